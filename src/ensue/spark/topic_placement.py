"""Placement of topics on the nodes of a sequencer chain.

Topics that share a subscriber are ordered together, and a stamp is cheap if all of them are on one
node near the publisher. `placement` computes the components of topics that are ordered together, on
Spark. It keeps a component on one node if it fits there, splits larger ones (`chain_partition`),
and reports the expected figures of the result, next to those of hashing topics to nodes.

The figures are exact for the given subscriptions and publications, by the rules of the sequencer
with groups by one common subscription: a stamp starts at the node of its topic and travels up the
chain to the last node that hosts a topic subscribed together with it.

HAZARD: the driver holds a table of topics by nodes; `TOPICS_MAX` bounds it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import NumericType

from ensue.core.errors import BadInput, LimitReached
from ensue.protocols.total.placement import Placement
from ensue.simulation.scenario import SequencerSpec
from ensue.spark import topic_groups
from ensue.spark.chain_partition import Problem, Solution, solve
from ensue.store import COLUMNS

__all__ = ["Figures", "Placed", "placement"]

TOPICS_MAX = 200_000
NODES_MAX = 1_000
PAIRS_MAX = 10_000_000
"""Pairs of partners that a split considers: those with the most common subscribers."""

_PUBLICATIONS = ("topic", "site", "rate", "events")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Expected figures of a placement; every event has the same weight."""

    local: float
    """Share of stamps that stay at their first node."""
    hops: float
    """Mean number of hops of a stamp."""
    at_site: float | None
    """Share of events whose node is at the site of their publisher; None if no site is known."""
    load_max: float
    """Load of the busiest node, as a multiple of an even share."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A placement and its expected figures; `print` compares them with hashing."""

    placement: Placement
    """The value that sequencers, publishers and subscribers are configured with."""
    assignment: DataFrame
    """topic, node, stage, rank, component, site, load (events)."""
    sites: Mapping[str, str]
    """Site of each node, in the order of the chain."""
    topics: Mapping[str, tuple[str, ...]]
    """Topics of each node, in rank order."""
    expected: Figures
    hashed: Figures
    """The figures of `Placement(nodes)`, which hashes topic names."""

    def chain(self) -> tuple[SequencerSpec, ...]:
        """Return the chain for a scenario."""
        return tuple(
            SequencerSpec(name=node, site=site, topics=self.topics[node])
            for node, site in self.sites.items()
        )

    def to_toml(self) -> str:
        """Return the chain as part of a scenario file."""
        lines: list[str] = []
        for node in self.chain():
            for topic in node.topics:
                if ".." in topic:
                    raise BadInput(f"a scenario file would read the topic {topic!r} as a pattern")
            lines += ["[[chain]]", f"name = {_quoted(node.name)}"]
            if node.site:
                lines.append(f"site = {_quoted(node.site)}")
            if node.topics:
                lines += ["topics = [", *(f"  {_quoted(each)}," for each in node.topics), "]"]
            lines.append("")
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write the chain as part of a scenario file."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    def __str__(self) -> str:
        rows = [
            ("", "placed", "hashed"),
            ("local stamps", f"{self.expected.local:.1%}", f"{self.hashed.local:.1%}"),
            ("hops a stamp", f"{self.expected.hops:.3f}", f"{self.hashed.hops:.3f}"),
            ("at their site", _share(self.expected.at_site), _share(self.hashed.at_site)),
            ("busiest node", f"{self.expected.load_max:.2f} x", f"{self.hashed.load_max:.2f} x"),
        ]
        return "\n".join(f"{name:14}{placed:>10}{hashed:>10}" for name, placed, hashed in rows)


def placement(
    subscriptions: DataFrame,
    publications: DataFrame | None = None,
    *,
    nodes: Mapping[str, str] | Sequence[str] | int,
    balance: float = 1.2,
) -> Placed:
    """Place all subscribed or published topics on the nodes of a chain.

    `subscriptions` has the columns `subscriber` and `topic`. `publications` has `topic` and, if
    known, `site`, where the events are published, and `rate` or `events`, how many. Without either,
    each row is one event, so an event log works too. Columns other than these and those of an event
    log raise `BadInput`. Without publications all topics have the same weight.

    `nodes` maps each node to its site, or lists the nodes, or is their number. Their order in the
    chain is part of the result. No node gets more than `balance` times its even share of all
    events, unless a single topic has more.
    """
    sites = _sites(nodes)
    if not balance >= 1:
        raise BadInput(f"balance: a node needs room for an even share: at least 1, got {balance}")
    subscribed = _subscribed(subscriptions).persist()
    found = topic_groups.baskets(subscribed).persist()
    try:
        table = _Topics(subscribed, _published(publications), found, sites)
        solution = solve(table.problem(found, balance))
        return table.placed(solution, subscribed)
    finally:
        found.unpersist()
        subscribed.unpersist()


class _Topics:
    """The driver's table of topics, numbered in the order of their names."""

    def __init__(
        self,
        subscribed: DataFrame,
        published: DataFrame | None,
        found: DataFrame,
        sites: Mapping[str, str],
    ) -> None:
        self._spark = subscribed.sparkSession
        self._sites = sites
        names = subscribed.select("topic")
        if published is not None:
            names = names.union(published.select("topic"))
        listed = names.distinct().limit(TOPICS_MAX + 1).toArrow()["topic"].to_pylist()
        if len(listed) > TOPICS_MAX:
            raise LimitReached(
                f"placement: more than {TOPICS_MAX:,} topics; place the busiest and let the others "
                "be hashed",
                limit="TOPICS_MAX",
                value=TOPICS_MAX,
            )
        self.names: list[str] = sorted(map(str, listed))
        if not self.names:
            raise BadInput(
                "placement: there are no subscriptions and no publications: give at least one"
            )
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.rate = np.zeros(len(self.names))
        self.away = np.zeros((len(self.names), len(sites)))
        self._known = np.zeros(len(self.names))
        if published is not None:
            self._read_rates(published)
        self._weighted = bool(self.rate.sum())
        if not self._weighted:
            self.rate[:] = 1.0
        self.component = np.arange(len(self.names))
        for row in topic_groups.components(found).toArrow().to_pylist():
            self.component[self._numbers[row["topic"]]] = self._numbers[row["component"]]

    def problem(self, found: DataFrame, balance: float) -> Problem:
        """Return the problem to solve, with the pairs of components that may be split."""
        even = float(self.rate.sum()) / len(self._sites)
        loads = np.bincount(self.component, self.rate, len(self.names))
        # A smaller component fits on some node wherever the others are: if no node had that much
        # room, all nodes together would have more than all events.
        parted = loads[self.component] > (balance - 1) * even
        parted &= np.bincount(self.component)[self.component] > 1
        some = len(self._sites) > 1 and bool(parted.any())
        pairs: dict[str, list[Any]] = {"left": [], "right": [], "shared": []}
        crowded = np.zeros(len(self.names), bool)
        if some:
            within = self._within(found, parted)
            pairs = _pairs(within)
            listed = topic_groups.crowded(within).toArrow()["topic"].to_pylist()
            crowded[[self._numbers[str(name)] for name in listed]] = True
        return Problem(
            rate=self.rate,
            component=self.component,
            away=self.away,
            left=np.array([self._numbers[name] for name in pairs["left"]], np.int64),
            right=np.array([self._numbers[name] for name in pairs["right"]], np.int64),
            shared=np.array(pairs["shared"], np.float64),
            crowded=crowded,
            balance=balance,
        )

    def placed(self, solution: Solution, subscribed: DataFrame) -> Placed:
        """Return the placement and its figures."""
        nodes = list(self._sites)
        order = [nodes[node] for node in solution.chain]
        topics: dict[str, list[str]] = {node: [] for node in order}
        # Busy topics first: a low rank is short on the wire.
        for number in sorted(range(len(self.names)), key=lambda each: (-self.rate[each], each)):
            topics[order[solution.stage[number]]].append(self.names[number])
        ours = Placement(order, topics=topics)
        hashing = Placement(nodes)
        hashed = np.array([hashing.stage(name) for name in self.names])
        expected, other = self._figures(
            subscribed, [(solution.stage, solution.chain), (hashed, list(range(len(nodes))))]
        )
        return Placed(
            placement=ours,
            assignment=self._assignment(ours),
            sites={node: self._sites[node] for node in order},
            topics={node: tuple(listed) for node, listed in topics.items()},
            expected=expected,
            hashed=other,
        )

    def _read_rates(self, published: DataFrame) -> None:
        rows = published.toArrow().to_pylist()
        node_sites = list(self._sites.values())
        for row in sorted(rows, key=lambda each: (each["topic"], each["site"] or "")):
            number, rate = self._numbers[row["topic"]], float(row["rate"])
            self.rate[number] += rate
            if row["site"] and any(node_sites):
                self._known[number] += rate
                for node, site in enumerate(node_sites):
                    self.away[number, node] += rate if site != row["site"] else 0.0

    def _within(self, found: DataFrame, parted: np.ndarray[Any, Any]) -> DataFrame:
        """Return the sets of topics within components that may be split."""
        names = [self.names[number] for number in np.flatnonzero(parted)]
        firsts = self._spark.createDataFrame(pa.table({"first": pa.array(names)}))
        # A set lies within one component, so its first topic identifies it.
        return found.join(firsts, f.element_at("topics", 1) == f.col("first"), "left_semi")

    def _assignment(self, ours: Placement) -> DataFrame:
        ranked = [self._numbers[name] for name in ours.topics]
        stages = [ours.stage(name) for name in ours.topics]
        return self._spark.createDataFrame(
            pa.table(
                {
                    "topic": pa.array(list(ours.topics)),
                    "node": pa.array([ours.nodes[stage] for stage in stages]),
                    "stage": pa.array(stages, pa.int32()),
                    "rank": pa.array(range(len(ranked)), pa.int64()),
                    "component": pa.array([self.names[self.component[each]] for each in ranked]),
                    "site": pa.array([self._sites[ours.nodes[stage]] for stage in stages]),
                    "load": pa.array(
                        self.rate[ranked] if self._weighted else np.zeros(len(ranked))
                    ),
                }
            )
        )

    def _figures(
        self, subscribed: DataFrame, placements: Sequence[tuple[Any, Sequence[int]]]
    ) -> list[Figures]:
        """Return the figures of several placements, given as topic stages and chain."""
        columns = {f"stage{index}": pa.array(each[0]) for index, each in enumerate(placements)}
        stages = self._spark.createDataFrame(
            pa.table({"topic": pa.array(self.names), "rate": pa.array(self.rate), **columns})
        )
        highest = [f.max(name).alias(name) for name in columns]
        # The highest stage of each subscription, then of all subscriptions to a topic.
        tops = subscribed.join(stages, "topic").groupBy("subscriber").agg(*highest)
        reached = (
            subscribed.join(tops, "subscriber")
            .groupBy("topic")
            .agg(*(f.max(name).alias(f"top{name}") for name in columns))
        )
        joined = stages.join(reached, "topic", "left")
        sums: list[Column] = []
        for name in columns:
            hops = f.coalesce(f.col(f"top{name}"), f.col(name)) - f.col(name)
            sums += [
                f.sum(f.when(hops == 0, f.col("rate")).otherwise(0.0)).alias(f"local{name}"),
                f.sum(hops * f.col("rate")).alias(f"hops{name}"),
            ]
        row = joined.agg(*sums).collect()[0]
        total = float(self.rate.sum())
        made: list[Figures] = []
        for name, (stage, chain) in zip(columns, placements, strict=True):
            node = np.asarray(chain)[stage]
            away = float(self.away[np.arange(len(node)), node].sum())
            known = float(self._known.sum())
            load = np.bincount(node, self.rate, len(chain))
            made.append(
                Figures(
                    local=float(row[f"local{name}"]) / total,
                    hops=float(row[f"hops{name}"]) / total,
                    at_site=1 - away / known if known else None,
                    load_max=float(load.max()) * len(chain) / total,
                )
            )
        return made


def _pairs(within: DataFrame) -> dict[str, list[Any]]:
    pairs = topic_groups.partners(within)
    table = pairs.limit(PAIRS_MAX + 1).toArrow()
    if table.num_rows > PAIRS_MAX:
        table = pairs.orderBy(f.desc("shared"), "left", "right").limit(PAIRS_MAX).toArrow()
    return table.sort_by([("left", "ascending"), ("right", "ascending")]).to_pydict()


def _sites(nodes: Mapping[str, str] | Sequence[str] | int) -> dict[str, str]:
    """Return the site of every node."""
    if isinstance(nodes, int):
        sites = {f"node-{number}": "" for number in range(1, nodes + 1)}
    elif isinstance(nodes, Mapping):
        sites = dict(nodes)
    else:
        sites = dict.fromkeys(nodes, "")
        if isinstance(nodes, str) or len(sites) != len(nodes):
            raise BadInput(f"nodes: name each node once, in a list: {nodes!r}")
    if not 1 <= len(sites) <= NODES_MAX:
        raise BadInput(f"nodes: a chain has 1 to {NODES_MAX:,} nodes, got {len(sites)}")
    return sites


def _subscribed(frame: DataFrame) -> DataFrame:
    _check_columns("subscriptions", frame, ("subscriber", "topic"))
    chosen = frame.select(*(f.col(name).cast("string") for name in ("subscriber", "topic")))
    _check_rows("subscriptions", chosen, {name: f.col(name).isNull() for name in chosen.columns})
    return chosen.distinct()


def _published(frame: DataFrame | None) -> DataFrame | None:
    """Return the number of events of each topic and site."""
    if frame is None:
        return None
    _check_columns("publications", frame, ("topic",))
    unknown = [name for name in frame.columns if name not in (*_PUBLICATIONS, *COLUMNS)]
    if unknown:
        raise BadInput(
            f"publications: unknown column {unknown[0]!r}; expected {', '.join(_PUBLICATIONS)}, or "
            "those of an event log; name the number of events rate or events"
        )
    counted = [name for name in ("rate", "events") if name in frame.columns]
    if len(counted) > 1:
        raise BadInput("publications: the columns rate and events exclude each other; drop one")
    for name in counted:
        if not isinstance(frame.schema[name].dataType, NumericType):
            kind = frame.schema[name].dataType.simpleString()
            raise BadInput(f"publications: column {name!r} is {kind}; expected a number")
    rate = f.col(counted[0]).cast("double") if counted else f.lit(1.0)
    site = f.col("site").cast("string") if "site" in frame.columns else f.lit(None).cast("string")
    chosen = frame.select(
        f.col("topic").cast("string").alias("topic"), site.alias("site"), rate.alias("rate")
    )
    wrong = {"topic": f.col("topic").isNull()}
    if counted:
        bad = f.col("rate").isNull() | f.isnan("rate") | (f.col("rate") < 0)
        wrong[counted[0]] = bad | (f.col("rate") == float("inf"))
    _check_rows("publications", chosen, wrong)
    return chosen.groupBy("topic", "site").agg(f.sum("rate").alias("rate"))


def _check_columns(what: str, frame: DataFrame, wanted: Sequence[str]) -> None:
    if not isinstance(frame, DataFrame):
        raise BadInput(
            f"{what}: expected a Spark data frame, got {type(frame).__name__}; "
            "spark.createDataFrame makes one of a list"
        )
    for name in wanted:
        if name not in frame.columns:
            raise BadInput(
                f"{what}: there is no column {name!r}; there are {', '.join(frame.columns)}"
            )


def _check_rows(what: str, frame: DataFrame, wrong: Mapping[str, Column]) -> None:
    """Raise an error for unusable rows: dropped silently, they would skew the result."""
    counts = frame.agg(*(f.count_if(bad).alias(name) for name, bad in wrong.items())).collect()[0]
    for name in wrong:
        if counts[name]:
            raise BadInput(
                f"{what}: {counts[name]:,} rows have no usable {name!r}: null, or no number from "
                "0 up; leave them out"
            )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
