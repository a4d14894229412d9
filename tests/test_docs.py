"""Tests of the documentation: its code runs and its links resolve."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

import ensue  # noqa: F401 - used by the evaluated lines of a page
from ensue.core.order import ORDERS
from ensue.protocols.deadline.causality import LATE, OVERTAKEN
from ensue.protocols.merged.merger import SKEWED
from ensue.protocols.merged.subscriber import EARLY

ROOT = Path(__file__).resolve().parent.parent
BUS = ROOT / "docs/reference/bus.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], key=lambda page: page.as_posix())


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_readme_example_prints_its_documented_output() -> None:
    (example, *_) = blocks(ROOT / "README.md", "python")
    run = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "1 orders one teapot\n2 payments paid\n"


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_tutorial_prints_its_documented_output() -> None:
    (program,) = blocks(ROOT / "docs/tutorial/first-steps.md", "python")
    for order, expected in (("ensue.Total()", "True\n"), ("None", "False\n")):
        run = subprocess.run(
            [sys.executable, "-c", program.replace("ensue.Total()", order)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout == expected


def test_index_lists_every_page() -> None:
    text = (ROOT / "docs/index.md").read_text()
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert {page for page in pages if f"]({page})" not in text} == {"index.md"}


@pytest.mark.parametrize(
    ("mark", "printed"),
    [
        ("one teapot", "{'order': '42', 'price': 12.5} one teapot\n"),
        ('where="city', "invited to Rome\ninvited to Rome\n2 agents took part\n"),
        ("retries=5", "2 {'order': '42'}\n"),
        ("plan.hold()", "0 events before the commit\n{'order': '42'}\n"),
        ("events.forget()", "{'order': '42'}\n"),
    ],
    ids=["invitation", "by content", "retries", "hold", "durable"],
)
def test_transaction_guide_prints_its_documented_output(mark: str, printed: str) -> None:
    page = ROOT / "docs/how-to/transactions.md"
    (example,) = (each for each in blocks(page, "python") if mark in each)
    assert all(f"`{line}`" in page.read_text() for line in printed.splitlines())
    run = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == printed


def test_readme_example_is_short_and_on_the_first_screen() -> None:
    text = (ROOT / "README.md").read_text()
    (example, *_) = blocks(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 14
    assert text.index("```python") < text.index("## ")


def test_reference_shows_every_order() -> None:
    (shown,) = (each for each in blocks(BUS, "python") if "ensue.Merged(" in each)
    orders = [eval(line) for line in shown.splitlines()]
    assert {type(order) for order in orders} == {*ORDERS, type(None)}


@pytest.mark.parametrize(
    ("mark", "printed"),
    [
        ("publish_many", "orders b'one teapot'\npayments b'12'\n"),
        ("cells=symbol", "30 1\n"),
    ],
    ids=["many at once", "by content"],
)
def test_reference_prints_its_documented_output(mark: str, printed: str) -> None:
    (example,) = (each for each in blocks(BUS, "python") if mark in each)
    assert all(f"`{line}`" in BUS.read_text() for line in printed.splitlines())
    program = (
        f"import asyncio, ensue\nasync def main():\n{indent(example, '    ')}asyncio.run(main())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == printed


def test_the_reference_has_every_verdict() -> None:
    text = BUS.read_text()
    about = text[text.index("Verdicts:") : text.index("adds a topic")]
    known = {"out_of_order", LATE, OVERTAKEN, SKEWED, EARLY}
    assert {each for each in known if f"`{each}`" in about} == known


def test_transaction_guide_shows_on_subscription() -> None:
    text = (ROOT / "docs/how-to/transactions.md").read_text()
    assert "agent.on_subscription(handler)" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_to_a_file_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_named_file_of_this_project_exists(page: Path) -> None:
    for named in re.findall(
        r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`", page.read_text()
    ):
        assert (ROOT / named).exists(), f"{page.name} names {named}"


@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_every_example_runs_unchanged(example: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
