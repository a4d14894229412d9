"""Collect the facts of a trace that every task of an audit needs.

They are small compared with the deliveries: one row per run, one per subscription, and one per
publisher, topic and span of time.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ensue.checkers.history import Excerpt, History, Interval, histories
from ensue.checkers.verdict import Subscriber
from ensue.core.errors import BadInput
from ensue.core.trace import ACTIONS, Row
from ensue.spark.audits.common_order import Numbers
from ensue.spark.audits.facts import NEVER, SEQ_BITS, SEQ_MAX, Facts, Lanes, RunFacts, Span

__all__ = [
    "PUBLICATIONS",
    "Gathered",
    "Sizes",
    "canonical",
    "gather",
    "lane_hash",
    "name_hash",
    "node_hash",
    "subscriber_hash",
]

_log = logging.getLogger("ensue")

TILE_UNITS = 16
LANES_MAX = 1 << (63 - SEQ_BITS)
BUCKETS_A_UNIT = 2
"""Buckets of time per unit, from which units of equal size are formed."""

_CHANGES = ("subscribed", "unsubscribed", "crashed", "restarted")
_TIMED = ("submitted", "published", "subscribed", "unsubscribed", "crashed")
PUBLICATIONS = ("submitted", "published")
"""Rows that publish an event: the first counts, and a `published` row confirms it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How a trace is divided."""

    tile_rows: int = 2_000_000
    """Approximate deliveries of a tile: what one task holds in memory at once."""
    fragment_rows: int = 1_000_000
    """Rows that a task collects before it packs them."""
    whole_rows: int = 100_000
    """Largest run, in rows, that is judged whole if it has a doubtful event."""

    def unit_count(self, deliveries: int) -> int:
        """Return the number of units of a run with this many deliveries."""
        if deliveries <= self.tile_rows:
            return 1
        return max(1, -(-deliveries * TILE_UNITS // self.tile_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Facts of a trace, collected before its deliveries are scanned."""

    facts: Facts
    named: bool
    """Whether some ids are not publisher, topic and number, or may belong to two events."""
    rows: tuple[int, ...]
    """By run: number of rows other than deliveries."""
    malformed: frozenset[int]
    """Runs with contradictory or incomplete rows."""
    changes: Mapping[str, list[Row]]
    """By run: subscription changes, crashes and restarts."""
    subscribers: Mapping[int, Subscriber]
    """By hash."""
    nodes: Mapping[tuple[str, str], int]
    """By run and name: hash of each node that subscribed, crashed or restarted."""
    topics: Mapping[int, str]
    """By index."""
    voids: Sequence[Mapping[str, Any]]
    """Void events whose rows lack a publisher: run, event, name."""
    relabeled: Sequence[Mapping[str, Any]]
    """Events submitted under one label and published under another: run, event, name."""


def subscriber_hash() -> Column:
    """Return the hash of a row's subscriber."""
    return f.xxhash64("run", "node", f.coalesce("subscription", f.lit("")))


def node_hash() -> Column:
    """Return the hash of a row's node."""
    return f.xxhash64("run", "node")


def lane_hash() -> Column:
    """Return the hash of a row's lane: its run, publisher and topic."""
    return f.xxhash64("run", "publisher", "topic")


def name_hash() -> Column:
    """Return the hash of an event's id."""
    return f.xxhash64("run", "event")


def canonical() -> Column:
    """Return whether an event's id is its publisher, topic and number."""
    return f.col("event").eqNullSafe(f.concat_ws("/", "publisher", "topic", "publisher_seq"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overview:
    """Summary of one run."""

    run: str
    rows: int
    published: int
    simulated: bool
    named: bool
    bad: bool
    nameless_voids: bool
    first_ns: int
    last_ns: int


def gather(
    trace: DataFrame, sizes: Sizes, coarser: Mapping[str, int], *, causal: bool = False
) -> Gathered:
    """Collect the facts of a trace; `coarser` divides the number of units of a run.

    With causal order, a run without true times is one unit: by a node's clock, an event that it
    published after a delivery may seem much older, and lie in another tile.
    """
    overviews = _overviews(trace)
    unit_counts = _unit_counts(trace, overviews, sizes, coarser)
    if causal:
        unit_counts = _in_one_piece(overviews, unit_counts, warns=not coarser)
    changes, owners = _changes(trace)
    lanes, topics = _lanes(trace, overviews, unit_counts)
    named = any(one.named for one in overviews)
    ambiguous, relabeled = _ambiguous(trace) if named else (set(), [])
    runs: list[RunFacts] = []
    malformed: set[int] = set()
    for index, (one, units) in enumerate(zip(overviews, unit_counts, strict=True)):
        rows = changes.get(one.run, [])
        found, reasons = histories(rows, excerpt=Excerpt(simulated=one.simulated, furthest={}))
        if one.bad or reasons or one.run in ambiguous:
            malformed.add(index)
        run = RunFacts(name=one.run, simulated=one.simulated, unit_count=units)
        runs.append(_run_facts(run, found, rows, owners, partial(_topic_index, topics, index)))
    facts = Facts(
        runs=tuple(runs),
        lanes=lanes,
        tile_units=TILE_UNITS,
        fragment_rows=sizes.fragment_rows,
    )
    return Gathered(
        facts=facts,
        named=named,
        rows=tuple(one.rows for one in overviews),
        malformed=frozenset(malformed),
        changes=changes,
        subscribers={hashes[0]: subscriber for subscriber, hashes in owners.items()},
        nodes={(one.run, one.node): node for one, (_, node) in owners.items()},
        topics={index: name for (_, name), index in topics.items()},
        voids=_voids(trace) if any(one.nameless_voids for one in overviews) else (),
        relabeled=relabeled,
    )


def _overviews(trace: DataFrame) -> list[_Overview]:
    action, true_ns = f.col("action"), f.col("true_ns")
    is_published = action.isin(*PUBLICATIONS)
    label = [f.col(name).isNull() for name in ("event", "topic", "publisher", "publisher_seq")]
    bad = (
        (is_published & (label[0] | label[1] | label[2] | label[3]))
        | (action.isin("subscribed", "unsubscribed") & label[1])
        | ~action.isin(*ACTIONS)
    )
    numbered = ~is_published | f.coalesce(f.col("publisher_seq"), f.lit(0)).between(0, SEQ_MAX)
    timed = action.isin(*_TIMED)
    times = {
        "first_at": f.min(f.when(is_published, f.col("at_ns"))),
        "last_at": f.max(f.when(is_published, f.col("at_ns"))),
        "first_true": f.min(f.when(is_published, true_ns)),
        "last_true": f.max(f.when(is_published, true_ns)),
    }
    table = (
        trace.where(action != "delivered")
        .groupBy("run")
        .agg(
            f.count("*").alias("rows"),
            f.greatest(*(f.count_if(action == one) for one in PUBLICATIONS)).alias("published"),
            f.count_if(timed & true_ns.isNull()).alias("untrue"),
            f.count_if(is_published & (~canonical() | f.col("publisher").contains("/"))).alias(
                "named"
            ),
            f.count_if(bad).alias("bad"),
            f.max(f.when(~numbered, f.col("publisher_seq"))).alias("beyond"),
            f.count_if(_nameless_void()).alias("nameless_voids"),
            *(value.alias(name) for name, value in times.items()),
        )
        .orderBy("run")
        .toArrow()
    )
    overviews = []
    for row in table.to_pylist():
        if row["beyond"] is not None:
            raise BadInput(
                f"run {row['run']} has an event with publisher_seq {row['beyond']}; an audit on "
                f"Spark takes numbers from 0 to {SEQ_MAX:,}; `ensue check` takes any"
            )
        base = "at" if row["untrue"] else "true"
        overviews.append(
            _Overview(
                run=row["run"],
                rows=row["rows"],
                published=row["published"],
                simulated=not row["untrue"],
                named=row["named"] > 0,
                bad=row["bad"] > 0,
                nameless_voids=row["nameless_voids"] > 0,
                first_ns=row[f"first_{base}"] or 0,
                last_ns=row[f"last_{base}"] or 0,
            )
        )
    return overviews


def _nameless_void() -> Column:
    """Return whether a row voids an event without naming its publisher."""
    nameless = [f.col(name).isNull() for name in ("topic", "publisher", "publisher_seq")]
    void = (f.col("action") == "discarded") & (f.col("verdict") == "void")
    return void & f.col("event").isNotNull() & (nameless[0] | nameless[1] | nameless[2])


def _ambiguous(trace: DataFrame) -> tuple[set[str], list[dict[str, Any]]]:
    """Return the runs in which two events share an id, and the events with two labels.

    An event that is submitted under one label and published under another is judged by the first.
    """
    label = f.struct("publisher", "topic", "publisher_seq")
    submitted, published = (f.when(f.col("action") == one, label) for one in PUBLICATIONS)
    differ = [f.min(one) != f.max(one) for one in (submitted, published)]
    ids = trace.where(f.col("action").isin(*PUBLICATIONS) & f.col("event").isNotNull())
    two = (
        ids.groupBy("run", "event")
        .agg(
            f.min(label).alias("one"),
            f.max(label).alias("other"),
            f.greatest(*differ).alias("ambiguous"),
        )
        .where("one != other")
    )
    runs = {row["run"] for row in two.where("ambiguous").select("run").distinct().collect()}
    others = two.where(~f.col("run").isin(*runs)) if runs else two
    return runs, _named_rows(others)


def _voids(trace: DataFrame) -> list[dict[str, Any]]:
    return _named_rows(trace.where(_nameless_void()))


def _named_rows(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the events of these rows: run, event, name."""
    named = rows.select("run", "event", name_hash().alias("name"))
    found: list[dict[str, Any]] = named.distinct().toArrow().to_pylist()
    return [{**row, "unlabelled": False} for row in found]


def _unit_counts(
    trace: DataFrame, overviews: Sequence[_Overview], sizes: Sizes, coarser: Mapping[str, int]
) -> list[int]:
    """Return the number of units of each run.

    Assumes the same number of deliveries per event in all runs.
    """
    published = sum(one.published for one in overviews)
    if not published:
        return [1] * len(overviews)
    delivered = trace.count() - sum(one.rows for one in overviews)
    return [
        max(1, sizes.unit_count(delivered * one.published // published) // coarser.get(one.run, 1))
        for one in overviews
    ]


def _in_one_piece(
    overviews: Sequence[_Overview], unit_counts: Sequence[int], *, warns: bool
) -> list[int]:
    """Make runs without true times one unit; warn of large ones."""
    for one, units in zip(overviews, unit_counts, strict=True):
        if warns and units > 1 and not one.simulated:
            _log.warning(
                "audit: run %s has no true times, so one task holds it whole to judge causal "
                "order, and may run out of memory; --no-causal (causal=False) divides it, and "
                "skips that rule",
                one.run,
            )
    return [
        units if one.simulated else 1 for one, units in zip(overviews, unit_counts, strict=True)
    ]


def _changes(
    trace: DataFrame,
) -> tuple[dict[str, list[Row]], dict[Subscriber, tuple[int, int]]]:
    """Collect subscription changes, crashes, and hashes of subscribers and nodes."""
    columns = ("run", "node", "step", "at_ns", "true_ns", "action", "topic", "subscription")
    table = (
        trace.where(f.col("action").isin(*_CHANGES))
        .select(*columns, subscriber_hash().alias("owner"), node_hash().alias("at_node"))
        .toArrow()
    )
    changes: dict[str, list[Row]] = {}
    owners: dict[Subscriber, tuple[int, int]] = {}
    for one in table.to_pylist():
        owner, at_node = one.pop("owner"), one.pop("at_node")
        row = Row(**one)
        changes.setdefault(row.run, []).append(row)
        subscriber = Subscriber(row.run, row.node, row.subscription or "")
        owners.setdefault(subscriber, (owner, at_node))
    return changes, owners


def _run_facts(
    facts: RunFacts,
    found: Sequence[History],
    rows: Sequence[Row],
    owners: Mapping[Subscriber, tuple[int, int]],
    topic_index: Callable[[str], int],
) -> RunFacts:
    """Add the subscriptions, crashes and restarts of a run to its facts."""
    spans: dict[int, list[Span]] = {}
    nodes: dict[int, int] = {}
    down: set[str] = set()
    for history in found:
        down |= history.down
        for (subscriber, topic), intervals in history.intervals.items():
            owner, nodes[owner] = owners[subscriber]
            spans.setdefault(owner, []).extend(
                _span(topic_index(topic), interval) for interval in intervals
            )
    restarted: dict[str, int] = {}
    for row in rows:
        if row.action == "restarted":
            restarted[row.node] = min(row.step, restarted.get(row.node, row.step))
    hashes = {
        subscriber.node: node
        for subscriber, (_, node) in owners.items()
        if subscriber.run == facts.name
    }
    return replace(
        facts,
        spans={owner: tuple(ones) for owner, ones in spans.items()},
        nodes=nodes,
        down=frozenset(hashes[node] for node in down),
        restarted={hashes[node]: step for node, step in restarted.items()},
    )


def _span(topic: int, interval: Interval) -> Span:
    return Span(
        topic=topic,
        opened_step=interval.opened_step,
        opened_ns=interval.opened_ns,
        closed_step=NEVER if interval.closed_step is None else interval.closed_step,
        closed_ns=interval.closed_ns,
    )


Topics = dict[tuple[int, str], int]
"""By run and name: the index of a topic."""


def _topic_index(topics: Topics, run: int, name: str) -> int:
    return topics.setdefault((run, name), len(topics))


def _lanes(
    trace: DataFrame, overviews: Sequence[_Overview], unit_counts: Sequence[int]
) -> tuple[Lanes, Topics]:
    """Collect all lanes, and the ends of their units."""
    runs = pa.table(
        {
            "run": pa.array([one.run for one in overviews], pa.string()),
            "index": pa.array(range(len(overviews)), pa.int64()),
            "simulated": pa.array([one.simulated for one in overviews], pa.bool_()),
            "first_ns": pa.array([float(one.first_ns) for one in overviews], pa.float64()),
            "span_ns": pa.array(
                [float(one.last_ns - one.first_ns + 1) for one in overviews], pa.float64()
            ),
            "buckets": pa.array(
                [n * BUCKETS_A_UNIT if n > 1 else 1 for n in unit_counts], pa.int64()
            ),
        }
    )
    spark = trace.sparkSession
    time = f.when(f.col("simulated"), f.col("true_ns")).otherwise(f.col("at_ns"))
    # As floats: clocks may differ by more than 64 bits can hold.
    share = (time.cast("double") - f.col("first_ns")) / f.col("span_ns")
    table = (
        trace.where(f.col("action").isin(*PUBLICATIONS) & f.col("publisher_seq").isNotNull())
        .join(f.broadcast(spark.createDataFrame(runs)), "run")
        .withColumn("bucket", f.floor(f.least(share, f.lit(1.0)) * f.col("buckets")))
        .groupBy("index", "run", "publisher", "topic", "bucket")
        .agg(f.max("publisher_seq").alias("end"), f.count("*").alias("count"))
        .withColumn("lane", lane_hash())
        .toArrow()
    )
    hashes, first, lane_of = np.unique(
        _column(table, "lane"), return_index=True, return_inverse=True
    )
    if len(hashes) > LANES_MAX:
        raise BadInput(
            f"the trace has {len(hashes)} pairs of publisher and topic; an audit takes {LANES_MAX}"
        )
    labels = table.select(["publisher", "topic"]).take(first).to_pylist()
    lane_runs = _column(table, "index")[first]
    topics: Topics = {}
    lane_topics = [
        _topic_index(topics, int(run), label["topic"] or "")
        for run, label in zip(lane_runs, labels, strict=True)
    ]
    ends, end_units = _ends(table, lane_of, unit_counts)
    lanes = Lanes(
        hashes=hashes,
        runs=lane_runs,
        topics=np.array(lane_topics, dtype=np.int64),
        publishers=[label["publisher"] or "" for label in labels],
        topic_names=[label["topic"] or "" for label in labels],
        ends=ends,
        end_units=end_units,
    )
    return lanes, topics


def _column(table: pa.Table, name: str) -> Numbers:
    return table.column(name).to_numpy().astype(np.int64)


def _ends(table: pa.Table, lane_of: Numbers, unit_counts: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Merge buckets of time into units of equal size; return their ends by lane."""
    runs, buckets, counts = (_column(table, name) for name in ("index", "bucket", "count"))
    cut_up = np.array(unit_counts, dtype=np.int64)[runs] > 1 if len(runs) else runs > 0
    if not cut_up.any():
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    units = np.zeros(len(runs), dtype=np.int64)
    for run in np.unique(runs[cut_up]).tolist():
        mine = runs == run
        sizes = np.bincount(buckets[mine], weights=counts[mine])
        before = np.cumsum(sizes) - sizes
        unit_of = np.floor(before * unit_counts[run] / max(1.0, sizes.sum())).astype(np.int64)
        units[mine] = unit_of[buckets[mine]]
    numbers = np.clip(_column(table, "end"), 0, SEQ_MAX)
    codes = (lane_of << SEQ_BITS) | numbers
    order = np.lexsort((codes, units, lane_of))
    codes, units, lanes = codes[order], units[order], lane_of[order]
    # Within a lane the ends must ascend with the units. An event published out of sequence gets a
    # wrong unit, which only costs a second scan. Codes of different lanes do not overlap, so the
    # running maximum never carries over.
    codes = np.maximum.accumulate(codes)
    last = np.ones(len(codes), dtype=np.bool_)
    last[:-1] = (lanes[1:] != lanes[:-1]) | (units[1:] != units[:-1])
    return codes[last], units[last]
