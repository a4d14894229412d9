"""`ensue.spark.placement`: the placement of topics, and its expected figures."""

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from ensue.core.errors import BadInput, LimitReached
from ensue.protocols.interface import Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import ChangeRequest, Fill, StampRequest
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer
from ensue.simulation import run
from ensue.simulation.scenario_file import reader
from ensue.spark import placement, topic_groups, topic_placement
from ensue.spark.topic_placement import Placed

Baskets = Mapping[str, Iterable[str]]


def subscribe(spark: SparkSession, baskets: Baskets) -> DataFrame:
    rows = [(name, topic) for name, topics in baskets.items() for topic in topics]
    return spark.createDataFrame(rows, "subscriber string, topic string")


def publish(spark: SparkSession, rates: Mapping[str, float]) -> DataFrame:
    return spark.createDataFrame(list(rates.items()), "topic string, rate double")


def publish_at(spark: SparkSession, rows: list[tuple[str, str, float]]) -> DataFrame:
    return spark.createDataFrame(rows, "topic string, site string, rate double")


def travelled(where: Placement, baskets: Baskets, topics: Iterable[str]) -> dict[str, int]:
    """Return the hops of a stamp of each topic through real nodes."""
    config = SequencerConfig(durable=False)
    nodes = {name: Sequencer(name=name, placement=where, config=config) for name in where.nodes}
    fills = 0

    def drive(target: str, frame: ChangeRequest | StampRequest, source: str) -> None:
        nonlocal fills
        nodes[target].receive(frame, source=source, now_ns=0)
        waiting = deque((target, each) for each in nodes[target].take_effects())
        while waiting:
            sender, effect = waiting.popleft()
            if isinstance(effect, Send) and effect.peer in nodes:
                fills += isinstance(effect.frame, Fill)
                nodes[effect.peer].receive(effect.frame, source=sender, now_ns=0)
                waiting += [(effect.peer, each) for each in nodes[effect.peer].take_effects()]

    for name, basket in baskets.items():
        first = where.nodes[where.span(basket)[0]]
        drive(first, ChangeRequest(number=1, old=(), new=tuple(basket)), name)
    found: dict[str, int] = {}
    for topic in topics:
        fills = 0
        request = StampRequest(number=1, topics=(topic,), settled=1)
        drive(where.node(topic), request, f"publisher of {topic}")
        found[topic] = fills
    return found


def check_figures(made: Placed, baskets: Baskets, rates: Mapping[str, float], nodes: int) -> None:
    """Compare the figures with stamps that travel through sequencer nodes."""
    total = sum(rates.values())
    hashed = Placement([f"node-{number}" for number in range(1, nodes + 1)])
    for figures, where in ((made.expected, made.placement), (made.hashed, hashed)):
        hops = travelled(where, baskets, rates)
        assert figures.hops == pytest.approx(
            sum(rates[each] * hops[each] for each in rates) / total
        )
        local = sum(rates[topic] for topic in rates if not hops[topic])
        assert figures.local == pytest.approx(local / total)
        loads = dict.fromkeys(where.nodes, 0.0)
        for topic, rate in rates.items():
            loads[where.node(topic)] += rate
        assert figures.load_max == pytest.approx(max(loads.values()) * nodes / total)


def test_components_that_fit_stay_whole_and_all_stamps_local(spark: SparkSession) -> None:
    baskets = {f"s{n}": [f"t{n}a", f"t{n}b", f"t{n}c"] for n in range(8)}
    rates = {topic: 1.0 for topics in baskets.values() for topic in topics}
    made = placement(subscribe(spark, baskets), publish(spark, rates), nodes=4)
    assert made.expected.local == 1.0
    assert made.expected.hops == 0.0
    assert made.expected.load_max == pytest.approx(1.0)
    assert made.hashed.local < 1.0
    check_figures(made, baskets, rates, 4)
    rows = made.assignment.collect()
    assert {row.topic: row.node for row in rows} == {t: made.placement.node(t) for t in rates}
    assert {row.topic: row.stage for row in rows} == {t: made.placement.stage(t) for t in rates}
    assert {row.topic: row.component for row in rows} == {t: f"{t[:-1]}a" for t in rates}
    ranked = sorted(rows, key=lambda row: row.rank)
    assert [row.topic for row in ranked] == sorted(rates, key=made.placement.rank)
    assert sum(row.load for row in rows) == sum(rates.values())


@pytest.mark.verify
def test_figures_of_a_split_component_are_those_of_real_nodes(spark: SparkSession) -> None:
    random = Random(3)
    topics = [f"t{n:02}" for n in range(40)]
    rates = {topic: random.paretovariate(1) for topic in topics}
    baskets = {f"s{n}": sorted(random.sample(topics, 3)) for n in range(45)}
    made = placement(subscribe(spark, baskets), publish(spark, rates), nodes=3)
    check_figures(made, baskets, rates, 3)
    assert made.expected.hops < made.hashed.hops
    assert made.expected.local > made.hashed.local
    again = placement(subscribe(spark, baskets), publish(spark, rates), nodes=3)
    assert again.topics == made.topics


def test_topics_go_to_the_site_that_publishes_them(spark: SparkSession) -> None:
    baskets = {"s1": ["a", "b"], "s2": ["c", "d"], "s3": ["e"]}
    events = [("a", "rome", 3.0), ("b", "oslo", 1.0), ("c", "oslo", 2.0), ("d", "oslo", 2.0)]
    made = placement(
        subscribe(spark, baskets),
        publish_at(spark, events),
        nodes={"north": "oslo", "south": "rome"},
    )
    assert made.placement.node("a") == made.placement.node("b") == "south"
    assert made.placement.node("c") == made.placement.node("d") == "north"
    assert made.expected.at_site == pytest.approx(7 / 8)
    assert {row.topic: row.site for row in made.assignment.collect()}["a"] == "rome"
    assert "at their site      87.5%" in str(made)


@pytest.mark.verify
def test_one_subscriber_of_everything_makes_one_component_without_all_its_pairs(
    spark: SparkSession,
) -> None:
    topics = [f"t{n:03}" for n in range(topic_groups.PAIRED_MAX + 50)]
    baskets = {"everything": topics, "s1": topics[:2], "s2": topics[5:9]}
    rates = {topic: float(1 + n % 7) for n, topic in enumerate(topics)}
    made = placement(subscribe(spark, baskets), publish(spark, rates), nodes=2)
    found = topic_groups.baskets(subscribe(spark, baskets))
    assert topic_groups.partners(found).count() == 1 + 6
    assert topic_groups.crowded(found).count() == len(topics)
    assert {row.component for row in made.assignment.collect()} == {"t000"}
    check_figures(made, baskets, rates, 2)
    # All stamps of the upper node are local, and its load is at the bound.
    assert made.expected.local == pytest.approx(0.6, abs=0.01)
    assert made.expected.load_max <= 1.2 + 1e-6


@pytest.mark.verify
def test_components_are_those_of_a_search_through_the_graph(spark: SparkSession) -> None:
    random = Random(11)
    path = {f"p{n}": [f"path{n:03}", f"path{n + 1:03}"] for n in range(60)}
    topics = [f"r{n:03}" for n in range(80)]
    drawn = {f"s{n}": random.sample(topics, random.randint(1, 4)) for n in range(30)}
    baskets: dict[str, list[str]] = {**path, **drawn}
    wanted = {topic: {topic} for basket in baskets.values() for topic in basket}
    for basket in baskets.values():
        joined = set[str]().union(*(wanted[topic] for topic in basket))
        for topic in joined:
            wanted[topic] = joined
    found = topic_groups.components(topic_groups.baskets(subscribe(spark, baskets))).collect()
    assert {row.topic: row.component for row in found} == {
        topic: min(joined) for topic, joined in wanted.items() if len(joined) > 1
    }


@pytest.mark.verify
def test_components_with_too_many_rounds_raise_limit_reached(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_groups, "ROUNDS_MAX", 1)
    path = {f"p{n}": [f"path{n:03}", f"path{n + 1:03}"] for n in range(60)}
    with pytest.raises(LimitReached, match="topics still change component after 1 rounds"):
        topic_groups.components(topic_groups.baskets(subscribe(spark, path)))


def test_sequencer_accepts_the_placement(spark: SparkSession, tmp_path: Path) -> None:
    baskets = {"reader": ["a", "b"], "other": ["b", "c"], "third": ["d", 'e "quoted"']}
    made = placement(subscribe(spark, baskets), nodes={"one": "here", "two": "", "three": "there"})
    made.save(tmp_path / "chain.toml")
    members = "".join(
        f"[[subscribers]]\nname = '{name}'\ntopics = {topics}\n" for name, topics in baskets.items()
    )
    file = tmp_path / "day.toml"
    file.write_text(
        f"""duration = "1s"
{(tmp_path / "chain.toml").read_text(encoding="utf-8")}
{members}
[[publishers]]
name = "shop"
rates = [{{ topics = ["a", "b", "c", "d"], per_second = 40 }}]
""",
        encoding="utf-8",
    )
    scenario = reader.load(file)
    assert scenario.chain == made.chain()
    outcome = run.play(scenario, 1)
    assert outcome.valid
    assert outcome.delivered > 20


def test_topic_that_a_scenario_file_would_misread_is_rejected(spark: SparkSession) -> None:
    made = placement(subscribe(spark, {"s": ["t1..t4"]}), nodes=2)
    with pytest.raises(BadInput, match=r"would read the topic 't1\.\.t4' as a pattern"):
        made.to_toml()


@pytest.mark.verify
def test_publications_may_be_an_event_log_or_absent(spark: SparkSession) -> None:
    baskets = {"s1": ["a", "b"], "s2": ["c"]}
    log = spark.createDataFrame(
        [("p", "a", n) for n in range(6)] + [("p", "c", n) for n in range(3)],
        "publisher string, topic string, offset bigint",
    )
    loads = {
        row.topic: row.load
        for row in placement(subscribe(spark, baskets), log, nodes=2).assignment.collect()
    }
    assert loads == {"a": 6.0, "b": 0.0, "c": 3.0}
    counted = placement(subscribe(spark, baskets), nodes=["x", "y"], balance=2)
    assert counted.expected.local == 1.0
    assert counted.expected.load_max == pytest.approx(4 / 3)
    assert counted.expected.at_site is None


def test_topics_without_subscribers_are_placed_too(spark: SparkSession) -> None:
    nobody = spark.createDataFrame([], "subscriber string, topic string")
    made = placement(nobody, publish(spark, {"a": 1.0, "b": 1.0}), nodes=2)
    assert {made.placement.stage(topic) for topic in "ab"} == {0, 1}
    with pytest.raises(BadInput, match="there are no subscriptions and no publications"):
        placement(nobody, nodes=2)


def test_bad_input_of_placement_is_rejected(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = subscribe(spark, {"s": ["a", "b"]})
    with pytest.raises(
        BadInput, match="subscriptions: there is no column 'subscriber'; there are who"
    ):
        placement(good.toDF("who", "what"), nodes=2)
    with pytest.raises(BadInput, match="publications: there is no column 'topic'"):
        placement(good, good.toDF("who", "what"), nodes=2)
    with pytest.raises(BadInput, match="column 'rate' is string; expected a number"):
        placement(good, good.toDF("rate", "topic"), nodes=2)
    with pytest.raises(BadInput, match=r"unknown column 'count'; expected topic, site, rate"):
        placement(good, spark.sql("select 'a' topic, 5 count"), nodes=2)
    with pytest.raises(BadInput, match="publications: expected a Spark data frame, got list"):
        placement(good, [("a", 5)], nodes=2)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="subscriptions: expected a Spark data frame, got list"):
        placement([("s", "a")], nodes=2)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="the columns rate and events exclude each other"):
        placement(good, spark.sql("select 'a' topic, 1 rate, 1 events"), nodes=2)
    for bad in ("null", "-1D", "double('nan')", "double('inf')"):
        with pytest.raises(BadInput, match="publications: 1 rows have no usable 'rate'"):
            placement(good, spark.sql(f"select 'a' topic, cast({bad} as double) rate"), nodes=2)
    with pytest.raises(BadInput, match="subscriptions: 1 rows have no usable 'topic'"):
        placement(spark.sql("select 's' subscriber, string(null) topic"), nodes=2)
    none: tuple[int, list[str], dict[str, str]] = (0, [], {})
    for nodes in none:
        with pytest.raises(BadInput, match="nodes: a chain has 1 to 1,000 nodes, got 0"):
            placement(good, nodes=nodes)
    with pytest.raises(BadInput, match="nodes: name each node once, in a list"):
        placement(good, nodes=["x", "x"])
    with pytest.raises(BadInput, match="balance: a node needs room for an even share"):
        placement(good, nodes=2, balance=0.5)
    monkeypatch.setattr(topic_placement, "TOPICS_MAX", 1)
    with pytest.raises(LimitReached, match="more than 1 topics"):
        placement(good, nodes=2)
