import json
from pathlib import Path

import pytest
from tests.checkers.helpers import Script
from typer.testing import CliRunner

from ensue.checkers import Verdict, check
from ensue.cli import build
from ensue.cli.demo import _displaced
from ensue.cli.demo_workload import PUBLISHERS, SUBSCRIBERS, TOPICS, _services
from ensue.core.trace import read


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(), ["demo", "--no-spark", *arguments])
    return result.exit_code, result.stdout


def test_demo_shows_disagreement_only_without_order(tmp_path: Path) -> None:
    code, printed = run("--seconds", "1", "--trace", str(tmp_path / "run"))
    assert code == 0
    assert "were seen in different orders by two services" in printed
    assert "pairs of events" in printed
    assert " delivered" in printed
    assert any(name in printed for name in SUBSCRIBERS)
    assert "total order, judged from its trace" in printed
    assert "One of them, side by side" in printed
    assert "→" in printed
    assert "With total order, 0 of" in printed
    for figure in ("events", "deliveries", "held back", "latency, median", "stamp entries, mean"):
        assert figure in printed
    for half in ("none", "total"):
        assert str(tmp_path / "run" / half) in printed.replace("\n", "")


def test_demo_writes_traces_with_the_same_verdicts(tmp_path: Path) -> None:
    code, printed = run("--seconds", "1", "--trace", str(tmp_path / "run"), "--json")
    assert code == 0
    results = json.loads(printed)
    assert results["none"]["inversions"] > 0
    assert 0 < results["none"]["displaced"] <= results["none"]["statistics"]["events"]
    assert results["total"]["displaced"] == 0
    assert results["total"]["inversions"] == 0
    assert results["total"]["statistics"]["held_count"] > 0
    ordered = check(read(tmp_path / "run" / "total"), order="total", causal=True)
    assert ordered.verdict is Verdict.VALID
    unordered = check(read(tmp_path / "run" / "none"), order="total")
    assert unordered.verdict is Verdict.INVALID


@pytest.mark.parametrize("arguments", [("--seconds", "0"), ("--seconds", "soon")])
def test_invalid_option_is_rejected(arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_directory_in_use_is_rejected_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "something").write_text("")
    assert run("--seconds", "1", "--trace", str(tmp_path))[0] == 2


def test_events_in_a_different_order_are_counted_once_each() -> None:
    script = Script()
    for name in ("s1", "s2", "s3"):
        script.subscribe(name, "x")
    for event in "abcd":
        script.publish("p", event)
    script.deliver("s1", *"abcd").deliver("s2", *"bacd").deliver("s3", *"cabd")
    assert _displaced(script.rows) == 3


def test_names_are_unique() -> None:
    names = [*_services(PUBLISHERS, 20), *_services(SUBSCRIBERS, 20)]
    assert len({*names, *TOPICS, "demo"}) == len(names) + len(TOPICS) + 1
    assert _services(PUBLISHERS, 9)[-1] == "web-2"
