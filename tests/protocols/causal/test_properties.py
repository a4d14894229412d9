"""Random membership, reordering and crashes, against a simple model.

The model (`model`) gets all publications, deliveries, joins and leaves in order of time.
"""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.causal.harness import MS, SECOND, Table
from tests.protocols.causal.model import lost, violations

from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.interface import Join, Leave, Publish

CONFIG = CausalConfig(
    retry_ns=50 * MS, suspect_ns=200 * MS, beat_ns=300 * MS, digest_ns=200 * MS, gap_ns=40 * MS
)


class Witness(Table):
    """A table that records what applications see."""

    def __init__(self, count: int, config: CausalConfig) -> None:
        self.seen: list[tuple[int, str, str]] = []
        """Who, what, and the event or topic, in the order it happened."""
        super().__init__(count, config)

    def drain(self, number: int) -> None:
        known = len(self.outcomes[number])
        before = len(self.delivered[number])
        super().drain(number)
        for outcome in self.outcomes[number][known:]:
            if isinstance(outcome, Publish):
                self.seen.append((number, "published", outcome.event.payload.decode()))
        for text in self.delivered[number][before:]:
            self.seen.append((number, "delivered", text))
        for outcome in self.outcomes[number][known:]:
            if isinstance(outcome, Join | Leave):
                kind = "joined" if isinstance(outcome, Join) else "left"
                self.seen.append((number, kind, outcome.topic))


def play(seed: int, *, across: bool, crashes: bool) -> Witness:
    """Apply random faults to a few nodes; then heal all and run until nothing is due."""
    random = Random(seed)
    count = random.choice((2, 3, 4, 5, 6, 8))
    window = random.choice((1, 2, 8))
    config = msgspec.structs.replace(CONFIG, across_topics=across, window=window)
    witness = Witness(count, config)
    topics = [f"t{number}" for number in range(random.choice((1, 2, 3)))]
    published = 0
    for _ in range(random.choice((30, 80, 150))):
        number, topic, dice = random.randrange(count), random.choice(topics), random.random()
        if number not in witness.nodes:
            witness.start(number)
        elif dice < 0.2:
            published += 1
            witness.publish(number, f"{topic}/{published}", topic)
        elif dice < 0.3:
            witness.subscribe(number, topic)
        elif dice < 0.34:
            witness.unsubscribe(number, topic)
        elif dice < 0.37 and crashes:
            witness.crash(number)
        elif dice < 0.42:
            witness.now_ns += random.randrange(1, 200 * MS)
            for each in sorted(witness.nodes):
                witness.act(each, lambda node: node.handle_timer(now_ns=witness.now_ns))
        elif witness.links:
            for _ in range(random.choice((1, 3, 10))):
                if witness.links:
                    link = random.choice(sorted(witness.links))
                    witness.arrive(*link, index=random.randrange(len(witness.links[link])))
    for number in range(count):
        if number not in witness.nodes:
            witness.start(number)
    witness.wait(30 * SECOND)
    return witness


def judge(seed: int, *, across: bool, crashes: bool) -> None:
    witness = play(seed, across=across, crashes=crashes)
    case = f"seed {seed}, across={across}, crashes={crashes}"
    assert violations(witness.seen, across=across) == [], case
    assert lost(witness.seen) == [], case
    assert all(node.unsettled_count == 0 for node in witness.nodes.values()), case
    assert all(node.joining == () for node in witness.nodes.values()), case


@settings(derandomize=True, max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), across=st.booleans())
def test_deliveries_extend_causal_order_and_no_event_is_lost(seed: int, across: bool) -> None:
    judge(seed, across=across, crashes=False)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), across=st.booleans())
def test_deliveries_extend_causal_order_with_crashes(seed: int, across: bool) -> None:
    judge(seed, across=across, crashes=True)


def test_the_model_finds_faults() -> None:
    """An effect before its cause, a duplicate, and a lost event."""
    witness = Witness(2, CONFIG)
    witness.seen = [
        (0, "joined", "t"), (1, "joined", "t"),
        (0, "published", "t/1"), (1, "delivered", "t/1"), (1, "published", "t/2"),
        (0, "delivered", "t/2"), (0, "delivered", "t/1"), (0, "delivered", "t/1"),
    ]  # fmt: skip
    assert violations(witness.seen, across=True) == [
        "0 delivered t/2 before t/1",
        "0 delivered t/1 twice",
        "0 delivered t/2 before t/1",
    ]
    assert lost(witness.seen) == ["1 never got t/2"]


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_replays(seed: int) -> None:
    one, two = (play(seed, across=True, crashes=True) for _ in range(2))
    assert one.seen == two.seen


def test_deliveries_happen_at_all() -> None:
    kinds = [
        kind for seed in range(10) for _, kind, _ in play(seed, across=True, crashes=True).seen
    ]
    assert kinds.count("delivered") > 50
