"""The tables that `ensue.spark.metrics` makes of a trace, against `ensue.checkers.statistics`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.checkers.generator import generate
from tests.checkers.helpers import Script
from tests.spark.audits.application_rows import LABEL, Application, random_application

import ensue
from ensue.checkers.statistics import percentile, statistics
from ensue.cli import demo_workload
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.core.trace import Row
from ensue.simulation import run as simulation
from ensue.simulation.scenario_file import reader
from ensue.spark import metrics, read_trace
from ensue.spark.trace_measurements import BUCKETS_MAX, WIDTHS_NS
from ensue.spark.trace_metrics import TABLES, write_metrics

SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"
MS_NS = 1_000_000

Tables = Mapping[str, list[dict[str, Any]]]


def simulated(name: str, *, frames: bool, changes: Mapping[str, str] | None = None) -> list[Row]:
    text = (SCENARIOS / f"{name}.toml").read_text(encoding="utf-8")
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    scenario = reader.loads(text, name=name)
    return list(simulation.play(scenario, 3, encode=True, peer_frames=frames).rows)


def published_again() -> list[Row]:
    """Return a run in which a restarted publisher publishes an event again."""
    script = Script(run="again").subscribe("s", "x").publish("p", "a").crash("p").restart("p")
    script.row("p", "published", event="a", topic="x", publisher="p", publisher_seq=1)
    return script.deliver("s", "a").rows


def application() -> list[Row]:
    """Two events are submitted, and one of them is confirmed and delivered; nodes tell sizes."""
    script = Application().subscribe("s", "x").submit("p", "a", "b")
    a = {name: getattr(script.rows[1], name) for name in LABEL}
    script.row("p", "node_published", **a, bytes=100)
    script.row("p", "sent", **a, bytes=130, stamp={"x": 1})
    script.confirm("p", "a").row("s", "node_delivered", **a)
    return script.hand_over("s", "a").rows


def demo(folder: Path) -> list[Row]:
    workload = demo_workload.Workload(seconds=0.4)
    demo_workload.run(workload, ensue.Total(), str(folder), lambda *_: None)
    return trace.read(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """All runs of the tests, measured together."""
    lossy = {'lease = "2s"': 'lease = "2s"\nreliable = false\ntime_to_live = "20ms"'}
    found = {
        "demo": demo(tmp_path_factory.mktemp("demo") / "trace"),
        "desks with frames": simulated("two-desks", frames=True),
        "desks without frames": simulated("two-desks", frames=False),
        "rough day": simulated("rough-day", frames=True),
        "lossy": simulated("rough-day", frames=True, changes=lossy),
        "again": published_again(),
        "nothing received": Script().subscribe("s", "x").publish("p", "a").deliver("s", "a").rows,
        "nothing delivered": Script().publish("p", "a").rows,
        "application": application(),
        **{f"random {seed}": generate(seed) for seed in range(12)},
        **{f"random application {seed}": random_application(seed) for seed in range(1, 9)},
    }
    return {
        name: [msgspec.structs.replace(row, run=name) for row in rows]
        for name, rows in found.items()
    }


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, runs: dict[str, list[Row]], tmp_path_factory: pytest.TempPathFactory
) -> Tables:
    folder = tmp_path_factory.mktemp("all") / "trace"
    trace.write([row for rows in runs.values() for row in rows], folder)
    return {
        name: [row.asDict() for row in frame.collect()]
        for name, frame in metrics(read_trace(spark, folder)).items()
    }


def of(rows: Sequence[Mapping[str, Any]], run: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["run"] == run]


def one(rows: Sequence[Mapping[str, Any]], run: str) -> Mapping[str, Any]:
    (row,) = [row for row in of(rows, run) if row.get("topic") is None]
    return row


def test_totals_agree_with_checkers(tables: Tables, runs: dict[str, list[Row]]) -> None:
    assert len(tables["totals"]) == len(runs)
    for name, rows in runs.items():
        wanted, found = statistics(rows), one(tables["totals"], name)
        assert found["events"] == wanted.events
        assert found["deliveries"] == wanted.deliveries
        assert found["subscribers"] == wanted.subscribers
        assert found["crashes"] == wanted.crashes
        assert found["tagged"] == sum(wanted.tagged.values())
        assert found["discarded"] == sum(wanted.discarded.values())
        assert found["rows"] == len(rows)
        reported = {
            (row["action"], row["verdict"]): row["count"] for row in of(tables["verdicts"], name)
        }
        changed = ("subscribed", "unsubscribed")
        reported = {key: count for key, count in reported.items() if key[0] not in changed}
        assert reported == {
            **{("discarded", verdict): count for verdict, count in wanted.discarded.items()},
            **{("delivered", verdict): count for verdict, count in wanted.tagged.items()},
        }


def test_runs_have_the_rows_that_figures_need(runs: dict[str, list[Row]]) -> None:
    """Otherwise the other tests would compare nothing with nothing."""
    assert statistics(runs["rough day"]).held_count
    assert statistics(runs["lossy"]).tagged
    assert statistics(runs["rough day"]).crashes
    assert sum(row.action == "published" for row in runs["again"]) == 2


def test_an_application_waits_from_its_submission_on(tables: Tables) -> None:
    """Row by row, a nanosecond each: submitted second, delivered eighth."""
    latency = one(tables["latency"], "application")
    assert (latency["count"], latency["max_ms"]) == (1, 6 / MS_NS)
    assert one(tables["totals"], "application")["events"] == 2
    assert one(tables["stamps"], "application")["max_bytes"] == 30
    (counts,) = [row for row in of(tables["throughput"], "application") if row["topic"] is None]
    assert (counts["published"], counts["delivered"]) == (1, 1)


def latencies_ms(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """Return latencies by topic, straight from the definition."""
    published: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.step):
        if row.action in ("submitted", "published"):
            published.setdefault(row.event or "", row)
    found = []
    for row in rows:
        start = published.get(row.event or "")
        if row.action == "delivered" and start is not None:
            true = row.true_ns is not None and start.true_ns is not None
            ns = (row.true_ns or 0) - (start.true_ns or 0) if true else row.at_ns - start.at_ns
            found.append((row.topic or "", ns / MS_NS))
    return sorted(found)


def test_latencies_agree_with_checkers(tables: Tables, runs: dict[str, list[Row]]) -> None:
    for name, rows in runs.items():
        wanted = statistics(rows)
        if wanted.latency_p50_ms is None:
            assert not of(tables["latency"], name)
            continue
        found = one(tables["latency"], name)
        assert found["p50_ms"] == wanted.latency_p50_ms
        assert found["p99_ms"] == wanted.latency_p99_ms
        assert found["max_ms"] == wanted.latency_max_ms


def test_latencies_of_each_topic_are_exact_by_nearest_rank(
    tables: Tables, runs: dict[str, list[Row]]
) -> None:
    for name in ("demo", "rough day", "random 3"):
        pairs = latencies_ms(runs[name])
        topics = sorted({topic for topic, _ in pairs})
        rows = {row["topic"]: row for row in of(tables["latency"], name)}
        assert sorted(filter(None, rows)) == topics
        for topic in (None, *topics):
            figures = sorted(ms for each, ms in pairs if topic in (None, each))
            assert rows[topic]["count"] == len(figures)
            assert rows[topic]["mean_ms"] == pytest.approx(sum(figures) / len(figures))
            for column, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("p999", 99.9)):
                assert rows[topic][f"{column}_ms"] == percentile(figures, percent)


def test_the_histogram_holds_every_latency_in_its_bucket(
    tables: Tables, runs: dict[str, list[Row]]
) -> None:
    for name, rows in runs.items():
        figures = [ms for _, ms in latencies_ms(rows)]
        buckets = of(tables["latency_histogram"], name)
        assert sum(bucket["count"] for bucket in buckets) == len(figures)
        for bucket in buckets:
            low, high = bucket["low_ms"], bucket["high_ms"]
            if low is None:
                assert bucket["count"] == sum(ms <= 0 for ms in figures)
                continue
            assert high / low == pytest.approx(10 ** (1 / 100))
            # A figure on an edge may be on either side of it, by the last bit of a logarithm.
            sure = sum(low * 1.000001 < ms < high / 1.000001 for ms in figures)
            assert (
                sure
                <= bucket["count"]
                <= sum(low / 1.000001 < ms < high * 1.000001 for ms in figures)
            )


def test_hold_back_agrees_with_checkers(tables: Tables, runs: dict[str, list[Row]]) -> None:
    for name, rows in runs.items():
        wanted = statistics(rows)
        if wanted.held_count is None:
            assert not of(tables["hold_back"], name)
            assert not of(tables["hold_back_over_time"], name)
            continue
        found = one(tables["hold_back"], name)
        assert found["held_count"] == wanted.held_count
        assert found["held_share"] == found["held_count"] / found["count"]
        assert found["mean_ms"] == pytest.approx(wanted.held_mean_ms)
        buckets = of(tables["hold_back_over_time"], name)
        assert sum(bucket["held_count"] for bucket in buckets) == wanted.held_count
        assert sum(bucket["count"] for bucket in buckets) == found["count"]
        assert max(bucket["max_ms"] or 0 for bucket in buckets) == found["max_ms"]


def test_stamps_agree_with_checkers(tables: Tables, runs: dict[str, list[Row]]) -> None:
    for name, rows in runs.items():
        wanted = statistics(rows)
        if wanted.stamp_entries_mean is None:
            assert not of(tables["stamps"], name)
            continue
        found = one(tables["stamps"], name)
        assert found["mean_entries"] == pytest.approx(wanted.stamp_entries_mean)
        assert found["mean_bytes"] == pytest.approx(wanted.stamp_bytes_mean)
        histogram = of(tables["stamp_histogram"], name)
        assert sum(row["count"] for row in histogram) == found["count"]
        entries = sum(row["count"] * row["entries"] for row in histogram)
        assert entries / found["count"] == pytest.approx(wanted.stamp_entries_mean)
        assert max(row["entries"] for row in histogram) == found["max_entries"]
        over_time = of(tables["stamps_over_time"], name)
        assert sum(row["count"] for row in over_time) == found["count"]


def test_messages_count_what_was_sent(tables: Tables, runs: dict[str, list[Row]]) -> None:
    for name in ("demo", "desks with frames", "desks without frames"):
        sent = [row for row in runs[name] if row.action == "sent"]
        deliveries = sum(row.action == "delivered" for row in runs[name])
        found = one(tables["messages"], name)
        assert found["sent"] == len(sent)
        assert found["sent_with_event"] == sum(row.event is not None for row in sent)
        assert found["sent_per_delivery"] == len(sent) / deliveries
        assert found["bytes_per_delivery"] == sum(row.bytes or 0 for row in sent) / deliveries
        assert found["frames"] == (name == "desks with frames")


def test_throughput_counts_every_publication_and_delivery_once(
    tables: Tables, runs: dict[str, list[Row]]
) -> None:
    for name, rows in runs.items():
        found = of(tables["throughput"], name)
        for action in ("published", "delivered"):
            count = sum(row.action == action for row in rows)
            assert sum(row[action] for row in found if row["topic"] is None) == count
            assert sum(row[action] for row in found if row["topic"] is not None) == count
        widths = {row["width_ms"] for row in found}
        assert len(widths) == 1
        assert widths <= {width / MS_NS for width in WIDTHS_NS}
        assert len({row["bucket_ms"] for row in found}) <= BUCKETS_MAX
        assert all(row["bucket_ms"] % row["width_ms"] == 0 for row in found)


def test_buckets_are_as_wide_as_the_run_is_long(tables: Tables) -> None:
    (width,) = {row["width_ms"] for row in of(tables["throughput"], "desks with frames")}
    # Two seconds and a bit, in at most 60 parts.
    assert width == 50


@pytest.mark.verify
def test_every_table_is_as_described_and_written_under_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Script().subscribe("s", "x").publish("p", "a").deliver("s", "a").rows
    trace.write(rows, tmp_path / "trace")
    found = metrics(read_trace(spark, tmp_path / "trace"))
    for name, frame in found.items():
        described = {column: kind for column, (kind, _) in TABLES[name].columns.items()}
        assert {field.name: field.dataType.simpleString() for field in frame.schema} == described
    few = {name: found[name] for name in ("totals", "hold_back")}
    write_metrics(few, tmp_path / "out")
    write_metrics(few, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["hold_back", "totals"]
    assert pq.read_table(str(tmp_path / "out" / "totals")).column("events").to_pylist() == [1]
    assert pq.read_table(str(tmp_path / "out" / "hold_back")).num_rows == 0


def test_metrics_of_another_data_frame_are_rejected(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match="column 'run' is missing"):
        metrics(spark.range(1))


def test_tables_are_not_written_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="is a file"):
        write_metrics({}, tmp_path / "file")
