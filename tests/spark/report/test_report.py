"""`ensue report`: a self-contained page with correct figures and the first violation."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.checkers.helpers import Script
from tests.cli.helpers import Shell
from tests.spark.audits.application_rows import Application

from ensue.checkers import Verdict, check
from ensue.checkers.statistics import RunStatistics, statistics
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.core.trace import Row
from ensue.simulation import run as simulation
from ensue.simulation.scenario_file import reader
from ensue.spark import read_trace
from ensue.spark.report import Report, Span, read_runs, report, verdicts
from ensue.spark.report.windows import NODES_MAX, View, gather

SCENARIOS = Path(__file__).parents[3] / "examples" / "scenarios"
HOSTILE = """<script>alert("&'")</script>"""


class Reader(HTMLParser):
    """Parses a page as a browser would, and collects its contents."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def disagreeing() -> list[Row]:
    """Return a run with two events in opposite orders and hostile names."""
    script = Script(run="demo").subscribe("s1", HOSTILE).subscribe("s2", HOSTILE)
    script.publish("p&<b>", f"a{HOSTILE}", topic=HOSTILE).publish("p2", "b", topic=HOSTILE)
    return script.deliver("s1", f"a{HOSTILE}", "b").deliver("s2", "b", f"a{HOSTILE}").rows


@pytest.fixture(scope="module")
def desks() -> list[Row]:
    scenario = reader.load(SCENARIOS / "two-desks.toml")
    rows = simulation.play(scenario, 3, encode=True, peer_frames=True).rows
    return [msgspec.structs.replace(row, run="demo") for row in rows]


@pytest.fixture(scope="module")
def folder(desks: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recorded runs, both named `demo`."""
    parent = tmp_path_factory.mktemp("runs") / "today"
    trace.write(disagreeing(), parent / "none" / "trace")
    trace.write(desks, parent / "total")
    return parent


@pytest.fixture(scope="module")
def made(spark: SparkSession, folder: Path) -> Report:
    return report(spark, folder, order="total")


@pytest.fixture(scope="module")
def page(made: Report) -> Reader:
    return Reader(made.html)


def test_the_page_is_well_formed(made: Report, page: Reader) -> None:
    assert page.open == []
    pictures = re.findall(r"<svg.*?</svg>", made.html, flags=re.DOTALL)
    assert len(pictures) >= 6
    for picture in pictures:
        ET.fromstring(picture)
    assert not re.search(r'"(?:nan|inf|None)|nan,|,nan', made.html)


def test_the_page_loads_nothing_and_runs_nothing(made: Report, page: Reader) -> None:
    assert not page.tags & {"script", "link", "img", "iframe", "image", "use", "object", "a"}
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "xlink:href", "srcset"}
    assert not any(name.startswith("on") for name in names)
    assert "http://" not in made.html
    assert "https://" not in made.html
    assert "@import" not in made.html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", made.html))
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_hostile_names_are_escaped(made: Report, page: Reader) -> None:
    assert "<script" not in made.html
    assert HOSTILE in page.text
    assert "p&<b>" in page.text


def test_page_shows_verdicts_and_witness(made: Report, page: Reader) -> None:
    assert made.judgements["none"].verdict is Verdict.INVALID
    assert made.judgements["total"].verdict is Verdict.VALID
    assert made.verdict is Verdict.INVALID
    because = check(disagreeing(), "total")["total"].violations[0].because
    assert because in page.text
    assert "two nodes disagree on the order of A and B" in page.text
    assert "total: its first events" in page.text


def test_figures_agree_with_checkers(made: Report, desks: list[Row]) -> None:
    wanted: dict[str, RunStatistics] = {
        "none": statistics(disagreeing()),
        "total": statistics(desks),
    }
    assert made.figures.runs == ("none", "total")
    for run, figures in wanted.items():
        totals = made.figures.one("totals", run)
        latency = made.figures.one("latency", run)
        assert totals is not None
        assert latency is not None
        assert totals["events"] == figures.events
        assert totals["deliveries"] == figures.deliveries
        assert latency["p50_ms"] == figures.latency_p50_ms
        assert latency["p99_ms"] == figures.latency_p99_ms
    assert made.figures.one("hold_back", "none") is None
    held = made.figures.one("hold_back", "total")
    assert held is not None
    assert held["held_count"] == wanted["total"].held_count


@pytest.mark.verify
def test_empty_card_gives_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    trace.write(Script().publish("p", "a").rows, tmp_path / "trace")
    text = Reader(report(spark, tmp_path).html).text
    assert "No delivery in this trace has its publication in it too." in text
    assert "it does not show how long events waited" in text
    assert "No event was sent with a stamp" in text
    assert "run r has no deliveries" in text


def test_page_is_written_atomically(made: Report, tmp_path: Path) -> None:
    made.write(tmp_path / "page.html")
    made.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == made.html
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(OSError, match="nowhere"):
        made.write(tmp_path / "nowhere" / "page.html")


@pytest.mark.verify
def test_a_large_trace_is_judged_by_the_audit_with_the_same_result(
    spark: SparkSession, folder: Path, made: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "ROWS_MAX", 3)
    monkeypatch.delattr(verdicts, "checkers")
    rows = read_runs(spark, folder)
    found = verdicts.judge(rows, {"none": "total", "total": "total"}, row_count=4)
    assert found == made.judgements


@pytest.mark.verify
def test_violation_of_any_rule_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    script = Script()
    for node in ("q", "s"):
        script.subscribe(node, "x")
    script.publish("p", "a").deliver("q", "a").publish("q", "b").deliver("q", "b")
    rows = frame(spark, script.deliver("s", "b", "a").rows, tmp_path)
    judged = verdicts.judge(rows, {"r": "causal-topic"}, row_count=7)["r"]
    assert judged.verdict is Verdict.INVALID
    assert judged.first is not None
    assert judged.first.anomaly == "causal"
    assert judged.sentences[0].startswith("causal-topic broken once: ")


def frame(spark: SparkSession, rows: list[Row], folder: Path) -> DataFrame:
    trace.write(rows, folder / "frame")
    return read_trace(spark, folder / "frame").persist()


@pytest.mark.verify
def test_a_lost_event_is_drawn_where_it_was_owed(spark: SparkSession, tmp_path: Path) -> None:
    script = Script().subscribe("s1", "x").subscribe("s2", "x").publish("p", "a").publish("p", "b")
    rows = script.deliver("s1", "a", "b").deliver("s2", "b").rows
    (violation,) = check(rows, "total")["complete"].violations
    found = gather(frame(spark, rows, tmp_path), View(run="r", violation=violation), begin_ns=1)
    assert found is not None
    assert found.events == ("a",)
    assert found.absent == ("s2",)
    assert {one.node for one in found.deliveries if one.event == "a"} == {"s1"}
    assert not any(one.marked for one in found.deliveries)


@pytest.mark.verify
def test_diagram_shows_the_chosen_time_or_event(spark: SparkSession, tmp_path: Path) -> None:
    script = Script().subscribe("s", "x")
    for number in range(200):
        script.publish("p", f"e{number}").deliver("s", f"e{number}")
    rows = frame(spark, script.rows, tmp_path)
    # Script writes a row a nanosecond: e100 is published 200 ns after the first event.
    span = Span(begin_ms=200e-6, end_ms=205e-6)
    chosen = gather(rows, View(run="r", span=span), begin_ns=2)
    assert chosen is not None
    assert sorted(one.event for one in chosen.publications) == ["e100", "e101", "e102"]
    around = gather(rows, View(run="r", event="e100"), begin_ns=2)
    assert around is not None
    assert around.events == ("e100",)
    assert around.begin_ms < 200e-6
    assert around.end_ms > 201e-6
    beginning = gather(rows, View(run="r"), begin_ns=2)
    assert beginning is not None
    assert min(one.at_ms for one in beginning.publications) == 0
    assert len(beginning.publications) == 24
    assert gather(rows, View(run="r", event="nothing"), begin_ns=2) is None
    late = Span(begin_ms=5, end_ms=6)
    assert gather(rows, View(run="r", span=late), begin_ns=2) is None


def test_events_of_an_application_are_drawn_where_it_submitted_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = Application(named=True).subscribe("s", "x")
    for number in range(40):
        script.submit("p", f"e{number}").confirm("p", f"e{number}").hand_over("s", f"e{number}")
    script.submit("p", "never confirmed")
    rows = frame(spark, script.rows, tmp_path)
    # A row a nanosecond: the receipt of e10 comes 31 ns after the first event was submitted.
    span = Span(begin_ms=31e-6, end_ms=35e-6)
    chosen = gather(rows, View(run="r", span=span), begin_ns=2)
    assert chosen is not None
    drawn = {one.event: round(one.at_ms * 1e6) for one in chosen.publications}
    assert drawn == {"e10": 30, "e11": 33}
    beginning = gather(rows, View(run="r"), begin_ns=2)
    assert beginning is not None
    drawn = {one.event: round(one.at_ms * 1e6) for one in beginning.publications}
    assert drawn == {f"e{number}": 3 * number for number in range(24)}
    around = gather(rows, View(run="r", event="never confirmed"), begin_ns=2)
    assert around is not None
    assert [one.at_ms for one in around.publications if one.event in around.events] == [120e-6]


@pytest.mark.verify
def test_nodes_of_a_violation_are_drawn_first(spark: SparkSession, tmp_path: Path) -> None:
    script = Script()
    names = [f"s{number:02}" for number in range(40)]
    for name in names:
        script.subscribe(name, "x")
    script.publish("p", "a").publish("q", "b")
    for name in names[:-1]:
        script.deliver(name, "a", "b")
    rows = script.deliver(names[-1], "b", "a").rows
    violation = check(rows, "total")["total"].violations[0]
    found = gather(frame(spark, rows, tmp_path), View(run="r", violation=violation), begin_ns=1)
    assert found is not None
    nodes = {one.node for one in (*found.deliveries,)} | {one.node for one in found.publications}
    assert {"p", "q", "s39"} <= nodes
    assert len(nodes) == NODES_MAX
    assert found.left_out == 42 - NODES_MAX
    assert sum(one.marked for one in found.deliveries) == 4


def test_runs_are_named_after_their_directories(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    def names(place: Path) -> list[str]:
        return sorted(row[0] for row in read_runs(spark, place).select("run").distinct().collect())

    assert names(folder) == ["none", "total"]
    assert names(folder / "none") == ["demo"]
    two = [*Script(run="1").publish("p", "a").rows, *Script(run="2").publish("p", "a").rows]
    trace.write(two, tmp_path / "both")
    assert names(tmp_path) == ["both/1", "both/2"]


@pytest.mark.verify
def test_traces_of_several_processes_are_reported_as_one_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = Script(run="ensue").subscribe("shop", "x").subscribe("bank", "x")
    rows = script.publish("shop", "a").deliver("shop", "a").deliver("bank", "a").rows
    for node in ("shop", "bank"):
        trace.write([row for row in rows if row.node == node], tmp_path / "tuesday" / node)
    trace.write(rows, tmp_path / "tuesday" / "_temporary" / "0")
    made = report(spark, tmp_path / "tuesday")
    assert {run: one.verdict for run, one in made.judgements.items()} == {"ensue": "valid"}

    apart = Script(run="ensue").subscribe("till", "x").publish("till", "b").deliver("till", "b")
    trace.write(apart.rows, tmp_path / "days" / "wednesday")
    trace.write([row for row in rows if row.node == "shop"], tmp_path / "days" / "thursday")
    assert set(report(spark, tmp_path / "days").judgements) == {"wednesday", "thursday"}


def test_transactions_of_buses_without_order_are_judged_as_such(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Script(run="ensue").subscribe("s", "x").publish("p", "a").deliver("s", "a").rows
    parts = [msgspec.structs.replace(row, order="none", transaction="tx") for row in rows]
    trace.write(parts, tmp_path / "content")
    trace.write([msgspec.structs.replace(row, order="none") for row in rows], tmp_path / "plain")
    mixed = [*parts[:1], *(msgspec.structs.replace(row, order="total") for row in rows)]
    assert list(report(spark, tmp_path / "content").judgements) == ["ensue"]
    assert "Judged by transactions order" in report(spark, tmp_path / "content").html
    assert "Judged by total order" in report(spark, tmp_path / "plain").html
    trace.write(mixed, tmp_path / "mixed")
    with pytest.raises(BadInput, match=r"several orders \(total, transactions\)"):
        report(spark, tmp_path / "mixed")


def test_bad_input_of_a_report_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        report(spark, tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no Parquet file"):
        report(spark, tmp_path)
    with pytest.raises(BadInput, match="no order 'best'"):
        report(spark, tmp_path, order="best")
    with pytest.raises(BadInput, match="not both"):
        report(spark, tmp_path, span=Span(begin_ms=0, end_ms=1), around="a")
    trace.write([], tmp_path / "empty")
    with pytest.raises(BadInput, match="trace without rows"):
        report(spark, tmp_path / "empty")


def test_command_writes_page_and_prints_figures(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell(capsys, monkeypatch)
    trace.write(disagreeing(), tmp_path / "run" / "trace")
    out = tmp_path / "page.html"
    ended = shell("report", tmp_path / "run", "-o", out, "--around", "b", "--json")
    assert ended.code == 0
    reported = ended.json()
    assert reported["page"] == str(out)
    assert reported["verdict"] == "invalid"
    assert reported["tables"]["totals"][0]["deliveries"] == 4
    assert json.dumps(reported)
    assert "demo: around b" in Reader(out.read_text(encoding="utf-8")).text
    assert "measuring …" in ended.stderr


@pytest.mark.verify
def test_command_rejects_an_event_that_no_run_has(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell(capsys, monkeypatch)
    trace.write(disagreeing(), tmp_path / "run" / "trace")
    out = tmp_path / "page.html"
    ended = shell("report", tmp_path / "run", "-o", out, "--around", "nobody")
    assert ended.code == 2
    assert "no run has an event 'nobody'" in ended.stderr
