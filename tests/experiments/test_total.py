"""Experiments on stamps: popularity laws, stamp sizes, and servers that answer every request."""

import numpy as np
import pytest
from experiments.experiment import Point, Table
from experiments.total.cases import run_sizes
from experiments.total.figures import EXPERIMENTS
from experiments.total.servers import OURS, PUBLISHED, TWO, Load, measure
from experiments.total.workload import TOPICS, Sites, counts_of, law, subscribe

from ensue.protocols.interface import Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Stamped, StampRequest
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer


def test_few_topics_have_four_fifths_of_all_choices() -> None:
    assert law(0.901)[:5].sum() == pytest.approx(0.803, abs=0.001)
    assert law(0.349)[:40].sum() == pytest.approx(0.798, abs=0.001)


def test_subscribers_choose_distinct_topics_by_popularity() -> None:
    random = np.random.default_rng(1)
    chosen = subscribe(law(0.901), 1500, 4, random)
    assert (chosen.sum(axis=1) == 4).all()
    assert chosen[:, 0].mean() > 0.8 > chosen[:, 20].mean()
    assert not (chosen[:1000] == chosen[500:]).all(), "the parts must be drawn independently"


def test_counts_of_pairs_are_common_subscribers() -> None:
    chosen = np.zeros((3, TOPICS), dtype=np.bool_)
    chosen[0, [0, 1]] = chosen[1, [0, 1, 2]] = True
    counts = counts_of(chosen)
    assert (counts[0, 1], counts[0, 2], counts[2, 3], counts[0, 0]) == (2, 1, 0, 0)


def test_stamps_have_the_sizes_of_figure_7() -> None:
    rows = list(run_sizes({"shape": 0.901, "each": 10, "subscribers": 10_000, "seed": 3}))
    found = {(each["figure"], each["series"]): each["value"] for each in rows}
    assert found["7", "published rules, 0.901"] == pytest.approx(17, rel=0.1)
    assert found["events", "ours, 0.901"] < found["events", "published rules, 0.901"] / 10


def test_production_node_makes_stamps_of_counted_size() -> None:
    """A node with groups by two that omits no entry agrees with the counts of Figure 7."""
    chosen = subscribe(law(0.901), 40, 4, np.random.default_rng(7))
    fixed = {
        f"s{number}": tuple(f"t{topic}" for topic in np.flatnonzero(row).tolist())
        for number, row in enumerate(chosen)
    }
    topics = [f"t{topic}" for topic in range(TOPICS)]
    node = Sequencer(
        name="n",
        placement=Placement(["n"], topics={"n": topics}, closed=True),
        config=SequencerConfig(
            groups=2, fixed=fixed, leave_out=False, durable=False, window=1_000_000
        ),
    )
    sizes = []
    # The first round gives every topic an event: no stamp names a topic without events.
    for number, topic in enumerate([*topics, *topics], 1):
        request = StampRequest(number=number, topics=(topic,), settled=1)
        node.receive(request, source="p", now_ns=number)
        (stamped,) = (
            effect.frame
            for effect in node.take_effects()
            if isinstance(effect, Send) and isinstance(effect.frame, Stamped)
        )
        sizes.append(len(stamped.grants[0].stamp.entries) - 1)
    assert sizes[TOPICS:] == (counts_of(chosen) >= 2).sum(axis=1).tolist()
    assert max(sizes) > 10


def test_clients_prefer_topics_of_their_site() -> None:
    sites = Sites.draw(0.901, 100, 5, 1)
    assert len(sites.subscriptions) == 100
    for client, topics in enumerate(sites.subscriptions):
        assert any(topic // 200 == client // 20 for topic in topics)
    assert sites.chances[2, 400:600].sum() > 0.98


@pytest.mark.parametrize("system", [PUBLISHED, OURS, TWO])
def test_servers_below_capacity_answer_every_request(system: str) -> None:
    load = Load(shape=0.349, per_second=300, each=30, duration_ns=1_000_000_000, seed=1, clients=50)
    found = measure(system, load)
    # A round trip within a site takes 20 ms; through the whole chain from another site about 600.
    assert 20 < found.latency_ms < 650
    assert found.per_second == pytest.approx(300, rel=0.3)
    assert found.outgoing[1] == 0, "the last server forwards nothing"
    assert any(found.outgoing.values())


def test_groups_by_two_forward_fewer_stamps_than_groups_by_one() -> None:
    load = Load(shape=0.901, per_second=300, each=5, duration_ns=1_000_000_000, seed=1, clients=100)
    two, one = measure(TWO, load), measure(OURS, load)
    assert two.latency_ms < one.latency_ms
    assert sum(two.outgoing.values()) < sum(one.outgoing.values())


FIGURES = ("9", "10", "11", "12", "13", "14")


def test_figures_9_to_14_judge_production_nodes() -> None:
    """No criterion of the paper judges the model of the published rules."""
    (rates,) = (each for each in EXPERIMENTS if each.name == "total-rates")
    places = [
        (figure, x) for figure in FIGURES for x in (0, 1, 2, 3, 4, 10, 50, 1000, 5000, 7000, 10_000)
    ]

    def judged(system: str) -> dict[str, set[bool]]:
        points = [
            Point(figure=figure, series=f"{system}{pattern}", x=float(x), cases=1, mean=1.0,
                  deviation=0.0, least=1.0, most=1.0)
            for figure, x in places
            for pattern in ("", ", geographic", ", spray-and-diffuse")
        ]  # fmt: skip
        found: dict[str, set[bool]] = {}
        for claim in rates.judge(Table(points)):
            if claim.met is not None:
                found.setdefault(claim.figure, set()).add(claim.met)
        return found

    assert judged(PUBLISHED) == {}
    assert set(judged(TWO)) == set(FIGURES), "each figure has a criterion"


@pytest.mark.parametrize("requests", [5000, 10_000])
def test_figure_9_needs_latency_below_300_ms(requests: int) -> None:
    """At the peak of 5,000 requests a second, and at 10,000."""
    (rates,) = (each for each in EXPERIMENTS if each.name == "total-rates")

    def judged(latency_ms: float) -> list[bool]:
        point = Point(figure="9", series=f"{TWO}, geographic", x=float(requests), cases=1,
                      mean=latency_ms, deviation=0.0, least=latency_ms, most=latency_ms)  # fmt: skip
        claims = rates.judge(Table([point]))
        return [each.met for each in claims if each.figure == "9" and each.met is not None]

    assert judged(299.0) == [True]
    assert judged(300.0) == [False]
