"""The progress of a subscription stays small, whatever it steps over, and loses nothing."""

from random import Random

import pytest

from ensue.protocols.interface import Persist
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.progress import Progress
from ensue.protocols.total.records import CLOCK
from ensue.protocols.total.subscription_state import SubscriptionState

TOPICS = ("a", "b", "c")


class Subscription:
    """Progress, the records that it persists, and all entries that it was given."""

    def __init__(self) -> None:
        self.state = SubscriptionState(
            name="s", placement=Placement(["n"]), config=SequencerConfig(), matches=None
        )
        self.progress = Progress(self.state, acknowledge_each=True, persist_state=lambda: None)
        for topic in TOPICS:
            list(self.state.queue.join(topic, 0))
        self.slots = dict.fromkeys(TOPICS, 0)
        self.entries: list[tuple[int, str, int]] = []
        """Position, topic and slot of each event that was delivered or skipped."""
        self.acknowledged = 0

    def take(self, topic: str, *, count: bool) -> None:
        self.slots[topic] += 1
        self.progress.handled(topic, self.slots[topic], count=count)
        self.entries.append((self.progress.delivered, topic, self.slots[topic]))

    def acknowledge(self, position: int) -> None:
        self.progress.acknowledge(position)
        self.acknowledged = max(self.acknowledged, min(position, self.progress.delivered))

    def persisted(self) -> dict[str, int]:
        records = [each for each in self.state.effects if isinstance(each, Persist)]
        return {
            each.key.removeprefix("clock/"): CLOCK.decode(each.value).slot
            for each in records
            if each.key.startswith("clock/") and each.value is not None
        }

    def handled(self, topic: str) -> int:
        """Return up to which slot a topic is handled."""
        done = [s for p, each, s in self.entries if each == topic and p <= self.acknowledged]
        return max(done, default=0)


def test_events_stepped_over_behind_an_unacknowledged_one_take_no_room() -> None:
    made = Subscription()
    made.take("a", count=True)
    for number in range(10_000):
        made.take(TOPICS[number % 3], count=False)
    assert len(made.progress.unacknowledged) == 1
    assert sum(map(len, made.progress.skipped.values())) <= 2 * len(TOPICS)
    made.acknowledge(1)
    assert made.persisted() == made.slots
    assert not made.progress.skipped


def test_topic_that_only_steps_over_advances_although_an_event_is_always_open() -> None:
    """Else a restart would read it from the beginning, which the log may have trimmed."""
    made = Subscription()
    for number in range(1, 1_000):
        made.take("a", count=True)
        made.take("b", count=False)
        if number > 10:
            made.acknowledge(number - 10)
            assert made.slots["b"] - made.persisted()["b"] <= 30


@pytest.mark.parametrize("seed", range(200))
def test_progress_is_never_ahead_and_complete_when_all_is_acknowledged(seed: int) -> None:
    random = Random(seed)
    made = Subscription()
    for _ in range(random.randrange(1, 80)):
        if random.random() < 0.8:
            made.take(random.choice(TOPICS), count=random.random() < 0.4)
        else:
            made.acknowledge(random.randint(made.acknowledged, made.progress.delivered))
        persisted = made.persisted()
        assert all(slot <= made.handled(topic) for topic, slot in persisted.items())
        for topic in TOPICS:
            kept = [slot for _, slot in made.progress.skipped.get(topic, ())]
            assert len(kept) <= 2
            assert made.handled(topic) <= max((*kept, persisted.get(topic, 0)))
    made.acknowledge(made.progress.delivered)
    assert made.persisted() == {topic: slot for topic, slot in made.slots.items() if slot}
    assert not made.progress.skipped
    assert not made.progress._due


def test_topic_that_is_left_forgets_what_it_stepped_over() -> None:
    made = Subscription()
    made.take("a", count=True)
    for topic in TOPICS:
        made.take(topic, count=False)
    made.progress.leave("b")
    assert set(made.progress.skipped) == {"a", "c"}
    made.acknowledge(1)
    assert set(made.persisted()) == {"a", "c"}


def test_topic_that_fell_behind_is_read_again_from_its_first_open_slot() -> None:
    made = Subscription()
    made.take("b", count=True)
    made.take("a", count=False)
    made.take("a", count=True)
    made.state.queue.clock["a"] = 2
    made.progress.fall("a")
    assert made.progress.fallen == {"a": 1}
