"""The audit on Spark agrees with the checkers, however a trace is divided."""

from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.big_traces import Shape, generate
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.checkers import brute
from tests.checkers.generator import generate as random_trace

from ensue.checkers import Report, Violation, check
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.core.trace import Row
from ensue.simulation import run
from ensue.simulation.scenario_file import reader
from ensue.simulation.swarms import total
from ensue.spark import audit, read_trace
from ensue.spark.audits import Sizes

SCENARIOS = Path(__file__).parents[3] / "examples" / "scenarios"
TIMED = ("merged", "deadline")
MANY = 1_000_000
WHOLE = Sizes()
EXCERPTS = Sizes(whole_rows=0)
TILES = Sizes(whole_rows=0, tile_rows=4)
"""So small that the traces of these tests are divided like huge ones."""


def frame(spark: SparkSession, rows: list[Row], folder: Path) -> DataFrame:
    trace.write(rows, folder)
    return read_trace(spark, folder)


def renamed(rows: list[Row], name: str) -> list[Row]:
    return [msgspec.structs.replace(row, run=name) for row in rows]


Reported = Counter[tuple[str, str, tuple[object, ...], str, str | None]]


def reported(report: Report, *checkers: str) -> Reported:
    return Counter(
        (
            one.checker,
            violation.anomaly,
            violation.subscribers,
            violation.first_event,
            violation.second_event,
        )
        for one in report.findings
        if one.checker in checkers or not checkers
        for violation in one.violations
    )


def violations_by_run(report: Report) -> dict[str, dict[str, list[Violation]]]:
    found: dict[str, dict[str, list[Violation]]] = {}
    for one in report.findings:
        for violation in one.violations:
            of_run = found.setdefault(violation.subscribers[0].run, {})
            of_run.setdefault(one.checker, []).append(violation)
    return found


def as_brute(violations: list[Violation]) -> brute.Found:
    """List violations as brute force does: by the event that came last."""
    return Counter(
        (one.anomaly, who(one), one.second_event or one.first_event) for one in violations
    )


def who(violation: Violation, which: int = 0) -> brute.Who:
    subscriber = violation.subscribers[which]
    return subscriber.node, subscriber.subscription


def random_traces(count: int) -> dict[str, list[Row]]:
    named = {f"seed-{seed}": random_trace(seed) for seed in range(count)}
    return {
        name: renamed(rows, name)
        for name, rows in named.items()
        if brute.of_action(rows, "delivered")
    }


@pytest.mark.verify
@pytest.mark.parametrize("count", [10_000])
def test_audit_agrees_with_brute_force_on_thousands_of_traces(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    traces = random_traces(count + count // 15)
    assert len(traces) >= count
    trace.write([row for rows in traces.values() for row in rows], tmp_path / "trace")
    found_all = audit(tmp_path / "trace", causal=True, violations_max=MANY)
    report = found_all.report(violations_max=MANY)
    assert not report.reasons
    found = violations_by_run(report)
    seen: Counter[str] = Counter()
    for name, rows in traces.items():
        of_run = found.get(name, {})
        expected = {
            "fifo": brute.fifo(rows),
            "causal": brute.causal(rows),
            "positions": brute.positions(rows),
            "complete": brute.complete(rows, settle_ns=None, clock_error_ns=0, gaps=True),
        }
        for checker, wanted in expected.items():
            assert as_brute(of_run.get(checker, [])) == wanted, name
            seen.update(anomaly for anomaly, _, _ in wanted)
        inverted = set(brute.inverted(rows))
        assert bool(of_run.get("total")) == bool(inverted), name
        for one in of_run.get("total", []):
            pair = (one.first_event, one.second_event or "")
            assert (who(one), who(one, 1), *pair) in inverted or (
                who(one, 1),
                who(one),
                *pair[::-1],
            ) in inverted, name
        seen["total"] += bool(inverted)
        seen["valid"] += not of_run
    outcomes = (
        "fifo",
        "causal",
        "total",
        "position",
        "lost",
        "phantom",
        "uninvited",
        "void",
        "valid",
    )
    for outcome in outcomes:
        assert seen[outcome] > count // 100, seen


@pytest.mark.parametrize(
    ("order", "terms", "count", "by_path"),
    [
        ("total", {}, 80, True),
        ("causal", {"settle_ns": 5, "clock_error_ns": 3}, 80, False),
        *(
            pytest.param(order, terms, 400, by_path, marks=pytest.mark.verify)
            for order, terms in (
                ("total", {}),
                ("merged", {}),
                ("causal", {"settle_ns": 5, "clock_error_ns": 3}),
                ("causal-topic", {}),
                ("fifo", {"settle_ns": 20}),
                ("none", {"lossy": True}),
            )
            for by_path in (True, False)
        ),
    ],
)
def test_report_on_whole_runs_equals_that_of_the_checkers(
    spark: SparkSession,
    tmp_path: Path,
    order: str,
    terms: dict[str, int],
    count: int,
    *,
    by_path: bool,
) -> None:
    rows = [row for each in random_traces(count).values() for row in each]
    limits = {"violations_max": MANY, **terms}
    expected = check(rows, order, **limits)  # type: ignore[arg-type]
    data = frame(spark, rows, tmp_path / "trace")
    found = audit(tmp_path / "trace" if by_path else data, order, **limits)  # type: ignore[arg-type]
    report = found.report(violations_max=MANY)
    assert report.verdict == expected.verdict
    assert sorted(report.sentences()) == sorted(expected.sentences())
    every = found.sentences(violations_max=found.violation_count)
    assert sorted(every) == sorted(expected.sentences())


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        (TILES, 30),
        pytest.param(EXCERPTS, 700, marks=pytest.mark.verify),
        pytest.param(TILES, 700, marks=pytest.mark.verify),
    ],
    ids=["tiles", "excerpts-of-more", "tiles-of-more"],
)
def test_trace_in_tiles_gets_the_same_verdict(
    spark: SparkSession, tmp_path: Path, sizes: Sizes, count: int
) -> None:
    # In a large run, unpublished events are reported only as phantoms.
    traces = {
        name: rows
        for name, rows in random_traces(count).items()
        if not check(rows, "none")["complete"].anomaly_counts.get("phantom")
    }
    rows = [row for each in traces.values() for row in each]
    expected = check(rows, causal=True, violations_max=MANY)
    trace.write(rows, tmp_path / "trace")
    found = audit(tmp_path / "trace", causal=True, violations_max=MANY, sizes=sizes)
    report = found.report(violations_max=MANY)
    for checker in ("positions", "complete"):
        assert reported(report, checker) == reported(expected, checker)
    for checker in ("fifo", "causal"):
        # The earlier event of a pair may differ: any that is too early is a witness.
        late = [
            {(key[1:3], key[4] or key[3]) for key in reported(one, checker)}
            for one in (report, expected)
        ]
        assert late[0] == late[1]
    wrong = {name for name, each in violations_by_run(report).items() if "total" in each}
    assert wrong == {name for name, each in violations_by_run(expected).items() if "total" in each}
    for name, each in violations_by_run(report).items():
        inverted = set(brute.inverted(traces[name]))
        for one in each.get("total", []):
            pair = (one.first_event, one.second_event or "")
            assert inverted & {
                (who(one), who(one, 1), *pair),
                (who(one, 1), who(one), *pair[::-1]),
            }


@pytest.mark.verify
def test_audit_agrees_with_checkers_on_every_scenario(spark: SparkSession, tmp_path: Path) -> None:
    runs: dict[tuple[str, bool, bool], list[Row]] = {}

    def add(outcome: run.Outcome, order: str, lossy: bool, name: str) -> None:
        """Add a run to others that promise the same."""
        causal = any(finding.checker == "causal" for finding in outcome.report.findings)
        runs.setdefault((order, lossy, causal), []).extend(renamed(outcome.rows, name))

    for path in sorted(SCENARIOS.glob("*.toml")):
        scenario = reader.load(path)
        for seed in (1, 2):
            outcome = run.play(scenario, seed)
            # What comes too late, by a clock that jumps or by its deadline, was never promised.
            lossy = scenario.order in TIMED
            add(outcome, scenario.order, lossy, f"{outcome.scenario}-{seed}")
    for seed in range(40):
        scenario = total.draw(seed)
        lossy = not scenario.topic_log_config.keeps_log
        add(run.play(scenario, seed), "total", lossy, f"seed-{seed}")
    assert {order for order, _, _ in runs} >= {"total", "causal", *TIMED}
    for (order, lossy, causal), rows in runs.items():
        folder = tmp_path / f"{order}-{lossy}-{causal}"
        everything = frame(spark, rows, folder)
        expected = check(rows, order, lossy=lossy, causal=causal)
        assert expected.verdict == "valid"
        for source in (everything, folder):
            for sizes in (WHOLE, Sizes(whole_rows=0, tile_rows=200)):
                report = audit(source, order, lossy=lossy, causal=causal, sizes=sizes).report()
                assert report.to_dict() == expected.to_dict()


@pytest.mark.verify
@pytest.mark.parametrize(("deliveries", "count"), [(30_000, 30), (300_000, 120)])
def test_every_planted_violation_is_found_and_nothing_else(
    spark: SparkSession, tmp_path: Path, deliveries: int, count: int
) -> None:
    shape = Shape(deliveries=deliveries, subscribers=20, topics=12, topics_each=6)
    planted, _ = generate(tmp_path / "trace", shape, planted=count)
    assert {one.kind for one in planted} == {
        "total",
        "fifo",
        "lost",
        "duplicate",
        "phantom",
        "moved",
    }
    sizes = Sizes(tile_rows=deliveries // 3, whole_rows=0)
    found = audit(tmp_path / "trace", violations_max=MANY, sizes=sizes)
    rows = found.violations.collect()
    explained: set[int] = set()
    for one in planted:
        matching = {
            number
            for number, row in enumerate(rows)
            if one.node in (row.node, row.other_node)
            and set(one.events) & {row["first"], row["second"]}
        }
        assert matching, one
        explained |= matching
    assert len(explained) == len(rows), [
        row.because for number, row in enumerate(rows) if number not in explained
    ]


@pytest.mark.verify
def test_a_valid_trace_in_many_tiles_is_valid(spark: SparkSession, tmp_path: Path) -> None:
    generate(tmp_path / "trace", Shape(deliveries=300_000, subscribers=12, topics_each=18))
    # A subscriber's rows come in several fragments, as those of a giant one do.
    sizes = Sizes(tile_rows=150_000, fragment_rows=5_000)
    report = audit(tmp_path / "trace", causal=True, sizes=sizes).report()
    assert report.sentences() == [
        (
            "valid: checked fifo, total, causal, positions, complete on "
            f"{report.delivery_count} deliveries of {report.event_count} events to 12 subscribers"
        )
    ]


@pytest.mark.verify
def test_unsorted_rows_are_sorted_first(spark: SparkSession, tmp_path: Path) -> None:
    shape = Shape(deliveries=20_000, subscribers=6, topics=6, topics_each=3)
    planted, _ = generate(tmp_path / "trace", shape, planted=6)
    ordered = read_trace(spark, tmp_path / "trace")
    shuffled = ordered.repartition(4).orderBy(f.xxhash64("event", "node"))
    sizes = Sizes(tile_rows=5_000, whole_rows=0)
    reports = [
        audit(one, violations_max=MANY, sizes=sizes).report(violations_max=MANY)
        for one in (ordered, shuffled)
    ]
    assert reported(reports[0]) == reported(reports[1])
    assert len({key[2] for key in reported(reports[0])}) >= len({one.node for one in planted})


@pytest.mark.verify
def test_contradictory_rows_make_a_run_unknown(spark: SparkSession, tmp_path: Path) -> None:
    rows = run.play(reader.load(SCENARIOS / "two-desks.toml"), 1).rows
    delivered = next(row for row in rows if row.action == "delivered")
    publication = next(row for row in rows if row.action == "published")
    spoilt = {
        "two rows with one step": msgspec.structs.replace(delivered, event="a/b/1"),
        "no label": msgspec.structs.replace(delivered, step=10**6, topic=None),
        "no such action": msgspec.structs.replace(delivered, step=10**6, action="invented"),
        "published twice": msgspec.structs.replace(publication, node="elsewhere"),
    }
    every = [row for name, extra in spoilt.items() for row in renamed([*rows, extra], name)]
    expected = check(every)
    assert len(expected.reasons) == len(spoilt)
    everything = frame(spark, every, tmp_path / "trace")
    assert audit(everything).report().to_dict() == expected.to_dict()
    cut_up = audit(everything, sizes=Sizes(whole_rows=0, tile_rows=100)).report()
    assert cut_up.verdict == "unknown"
    assert len(cut_up.reasons) == len(spoilt)


def test_other_data_frames_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no trace: column 'run' is missing; expected string"):
        audit(spark.range(3))
    rows = run.play(reader.load(SCENARIOS / "two-desks.toml"), 1).rows
    good = frame(spark, rows, tmp_path / "trace")
    with pytest.raises(BadInput, match="no trace: column 'step' is string; expected bigint"):
        audit(good.withColumn("step", f.col("step").cast("string")))
    with pytest.raises(BadInput, match="there is no order 'tidy'"):
        audit(good, "tidy")
    with pytest.raises(BadInput, match="does not exist"):
        read_trace(spark, tmp_path / "nowhere")
    empty = audit(good.where("false")).report()
    assert empty.reasons == ("the trace is empty",)
    assert empty.verdict == "unknown"


def test_violations_come_as_a_data_frame(spark: SparkSession, tmp_path: Path) -> None:
    shape = Shape(deliveries=2_000, subscribers=4, topics=4, topics_each=3)
    generate(tmp_path / "trace", shape, planted=4)
    found = audit(read_trace(spark, tmp_path / "trace"))
    assert found.violations.columns[:6] == ["run", "anomaly", "node", "first", "second", "because"]
    assert found.violations.count() == found.violation_count > 0
    assert found.verdict == "invalid"


def published(node: str, step: int, at_ns: int, topic: str, seq: int, run: str = "r") -> Row:
    event = f"{node}/{topic}/{seq}"
    return Row(run=run, node=node, step=step, at_ns=at_ns, action="published", event=event,
               topic=topic, publisher=node, publisher_seq=seq)  # fmt: skip


def delivered(node: str, step: int, one: Row) -> Row:
    return Row(run=one.run, node=node, step=step, at_ns=step, action="delivered", event=one.event,
               topic=one.topic, publisher=one.publisher, publisher_seq=one.publisher_seq,
               position=step, subscription=node)  # fmt: skip


def change(node: str, step: int, action: str, topic: str) -> Row:
    return Row(run="r", node=node, step=step, at_ns=step, action=action, topic=topic,
               subscription=node)  # fmt: skip


@pytest.mark.verify
def test_an_effect_that_a_slow_clock_dates_long_before_its_cause_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    causes = [published("q", number, 1_000 * number, "a", number) for number in range(1, 41)]
    effect = published("p", 50, 2_500, "b", 1)
    rows = [*causes, effect]
    rows += [change("p", 1, "subscribed", "a"), delivered("p", 30, causes[19])]
    rows += [change("s", 1, "subscribed", "a"), change("s", 2, "subscribed", "b")]
    seen = [*causes[:2], effect, *causes[2:]]
    rows += [delivered("s", 3 + place, one) for place, one in enumerate(seen)]
    assert check(rows, "none", causal=True)["causal"].verdict == "invalid"
    trace.write(rows, tmp_path / "trace")

    found = audit(tmp_path / "trace", "none", causal=True, sizes=TILES).report()
    assert found["causal"].verdict == "invalid"


@pytest.mark.verify
def test_phantom_is_no_progress_of_an_ended_subscription(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = [published("q", number, 1_000 * number, "a", number) for number in range(1, 9)]
    phantom = published("q", 99, 0, "a", 1_000)
    rows = [*events, change("s", 1, "subscribed", "a")]
    rows += [delivered("s", 2, events[0]), delivered("s", 3, phantom)]
    rows += [change("s", 4, "unsubscribed", "a")]
    expected = check(rows, violations_max=MANY)
    assert expected["complete"].anomaly_counts == {"phantom": 1}
    trace.write(rows, tmp_path / "trace")

    found = audit(tmp_path / "trace", violations_max=MANY, sizes=EXCERPTS).report()
    assert found["complete"].anomaly_counts == {"phantom": 1}


def test_numbers_that_do_not_fit_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    trace.write([published("q", 1, 1, "a", 2**41)], tmp_path / "trace")

    with pytest.raises(BadInput, match=f"publisher_seq {2**41}; an audit on Spark takes numbers"):
        audit(tmp_path / "trace")


def test_all_readers_take_the_same_files_of_a_trace(spark: SparkSession, tmp_path: Path) -> None:
    one = published("q", 1, 1, "a", 1)
    trace.write([one], tmp_path / "trace")
    trace.write([published("p", 1, 1, "a", 1)], tmp_path / "trace" / "more")
    (tmp_path / "trace" / "notes.txt").write_text("Tuesday's run", encoding="utf-8")

    assert len(list(trace.read(tmp_path / "trace"))) == 2
    assert read_trace(spark, tmp_path / "trace").count() == 2


def test_nulls_in_a_required_column_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    path = trace.write([published("q", 1, 1, "a", 1)], tmp_path / "trace")
    table = pq.read_table(path)
    place = table.column_names.index("verdict")
    pq.write_table(table.set_column(place, "verdict", pa.nulls(1, pa.string())), path)

    with pytest.raises(BadInput, match="column 'verdict' is null in 1 rows"):
        read_trace(spark, tmp_path / "trace")


def test_bad_files_raise_the_errors_of_readers_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = trace.write([published("q", 1, 1, "a", 1)], tmp_path / "trace")
    whole, table = path.read_bytes(), pq.read_table(path)
    spoilt = [whole[: len(whole) // 2], b""]
    for changed in (table.append_column("colour", pa.array(["red"])), table.drop_columns(["step"])):
        pq.write_table(changed, path)
        spoilt.append(path.read_bytes())
    for data in spoilt:
        path.write_bytes(data)
        with pytest.raises(BadInput) as expected:
            trace.read(tmp_path / "trace")
        with pytest.raises(BadInput) as found:
            read_trace(spark, tmp_path / "trace")
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("as_frame", [False, True])
def test_trace_without_publishers_is_counted_and_checked_in_part(
    spark: SparkSession, tmp_path: Path, as_frame: bool
) -> None:
    rows = [change("s", 1, "subscribed", "a")]
    rows += [delivered("s", 1 + n, published("q", n, n, "a", n)) for n in range(1, 1_501)]
    place = tmp_path / "trace"
    trace.write(rows, place)

    found = audit(read_trace(spark, place) if as_frame else place, sizes=EXCERPTS)
    assert found.totals.deliveries == 1_500
    phantoms = found.report(violations_max=MANY)["complete"].anomaly_counts["phantom"]
    assert phantoms == 1_000
    assert any("there may be more violations" in note for note in found.report()["complete"].notes)
