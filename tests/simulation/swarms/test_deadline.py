"""Deadline order in random scenarios: causal and on time, or dropped; planted bugs are found.

`python -m tests.simulation.swarms.test_deadline [NAME …]` prints the first seed that finds each
planted bug.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.simulation.swarms.planted import Mutant, Search, patched
from tests.simulation.swarms.seeds import CHUNK, first_seeds

from ensue.core.errors import BadInput
from ensue.core.event import Event
from ensue.core.trace import digest
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.broker_push import BrokerPush
from ensue.protocols.deadline.causality import Causality, Held, Sent
from ensue.protocols.deadline.codec import Codec
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.delivery import Delivery
from ensue.protocols.deadline.frames import Live, Matrix, Message
from ensue.protocols.deadline.gossip_push import GossipPush
from ensue.protocols.deadline.membership import Membership
from ensue.protocols.deadline.rounds import ReceivedRumor, Rounds, Vector
from ensue.protocols.interface import Effect, Persist
from ensue.simulation.deployments.base import Roles
from ensue.simulation.deployments.deadline import MARK, MARKS
from ensue.simulation.run import Outcome, play
from ensue.simulation.scenario import Scenario
from ensue.simulation.scenario_file import reader
from ensue.simulation.swarms.deadline import KINDS, draw, draw_plain, kind_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "scenarios"
SEEDS_MAX = 400
"""Each mutant must be caught by one of the first so many seeds."""


def complaint(outcome: Outcome) -> str:
    sentences = "\n".join(f"  {sentence}" for sentence in outcome.sentences())
    return f"ensue replay deadline --seed {outcome.seed}\n{sentences}"


@pytest.mark.parametrize("first", first_seeds(always=100))
def test_no_seed_breaks_order_or_misses_punctual_event(first: int) -> None:
    complaints = []
    for seed in range(first, first + CHUNK):
        outcome = play(draw(seed), seed)
        if not outcome.valid:
            complaints.append(complaint(outcome))
    assert not complaints, "\n" + "\n".join(complaints)


def test_swarm_reaches_every_outcome_of_an_event() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        scenario = draw(seed)
        outcome = play(scenario, seed)
        config, faults = scenario.deadline.config, scenario.faults
        seen["calm"] += not scenario.deadline.lossy
        seen["colors"] += config.colors is not None
        seen["skew"] += config.skew_ns > 0
        seen["pauses"] += bool(faults.pauses)
        seen["partitions"] += bool(faults.partitions)
        seen["churn"] += any(one.changes for one in scenario.subscribers)
        seen["answers"] += any(one.replies for one in scenario.subscribers)
        waited = {row.event for row in outcome.rows if row.action == "received"}
        for row in outcome.rows:
            seen[row.action if not row.verdict else f"{row.action} {row.verdict}"] += 1
        seen["waited"] += len(waited)
    for what in (
        "calm",
        "colors",
        "skew",
        "pauses",
        "partitions",
        "churn",
        "answers",
        "crashed",
        "delivered",
        "delivered late",
        "discarded late",
        "discarded overflow",
        "discarded before_join",
        "discarded not_subscribed",
        "unsubscribed",
    ):
        assert seen[what], f"no {what} in {seen}"
    assert not seen["discarded overtaken"], "nothing in time would break the order"
    assert not seen["delivered overtaken"]


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_brokers_deliver_on_time_in_true_time(seed: int) -> None:
    """Clocks differ by at most the skew, so a delivery may be that late in true time."""
    scenario = draw(seed)
    outcome = play(scenario, seed)
    deadline = scenario.deadline
    longest_ns = max((deadline.config.lifetime_ns, *deadline.lifetimes_ns.values()))
    published = {row.event: row for row in outcome.rows if row.action == "published"}
    for row in outcome.rows:
        if row.action != "delivered" or row.verdict or row.stamp is None or row.event is None:
            continue
        assert row.true_ns is not None
        start = published[row.event]
        assert start.true_ns is not None
        if row.stamp["@d"] == start.deadline_ns:  # Else it came in a round.
            took_ns = row.true_ns - start.true_ns
            assert took_ns <= longest_ns + 2 * deadline.config.skew_ns, f"seed {seed}: {row.event}"


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_seed_gives_same_trace_again(seed: int) -> None:
    first, again = (play(draw(seed), seed, peer_frames=True) for _ in range(2))
    assert digest(first.rows) == digest(again.rows)


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_encoded_frames_give_same_deliveries_as_objects(seed: int) -> None:
    objects, encoded = (play(draw(seed), seed, encode=encode) for encode in (False, True))
    assert objects.delivered
    for one, other in zip(objects.rows, encoded.rows, strict=True):
        assert msgspec.structs.replace(other, bytes=None) == msgspec.structs.replace(
            one, bytes=None
        )


@pytest.mark.parametrize("first", first_seeds(always=50, verify=500))
def test_filtered_subscribers_get_their_events_in_order(first: int) -> None:
    complaints, parts = [], 0
    for seed in range(first, first + CHUNK):
        scenario = draw(seed)
        if not scenario.deadline.lossy:
            continue  # With filters not every event is owed, and the trace does not show filters.
        outcome = play(with_filters(scenario, seed), seed)
        parts += outcome.delivered
        if not outcome.valid:
            complaints.append(f"{complaint(outcome)}\n  with wishes")
    assert not complaints, "\n" + "\n".join(complaints)
    assert parts


def with_filters(scenario: Scenario, seed: int) -> Scenario:
    """Return a scenario in which many gossip subscribers filter their topics."""
    random = Random(f"wishes/{seed}")
    wishes = {
        each.name: f"{MARK} in ({', '.join(map(repr, random.sample(MARKS, random.randint(1, 2))))})"
        for each in scenario.subscribers
        if random.random() < 0.6
    }
    deadline = msgspec.structs.replace(scenario.deadline, wishes=wishes)
    return msgspec.structs.replace(scenario, deadline=deadline)


def test_watch_together_example_is_in_order_and_on_time() -> None:
    scenario = reader.load(EXAMPLES / "watch-together.toml")
    assert scenario.deadline.config.lifetime_rounds == 7, "13 subscribers: 4 rounds, and 3"
    outcome = play(scenario, 1)
    assert outcome.valid, outcome.sentences()
    report = outcome.report
    assert [finding.checker for finding in report.findings] == [
        "fifo",
        "causal",
        "deadline",
        "positions",
        "complete",
    ]
    assert any("in order and on time" in note for note in report["deadline"].notes)
    assert {row.verdict for row in outcome.rows} >= {"", "late"}, "a room that is cut off is late"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("fan_out = 0", "deadline.*fan_out must be from 1"),
        ("colors = 7", "deadline.*colors need copy_age_rounds"),
        ('listening = "nobody"', "deadline.listening"),
        ("alpha = 65", "deadline.*alpha must be from 0 to 64"),
    ],
)
def test_bad_deadline_table_is_rejected(table: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        reader.loads(f'order = "deadline"\n[deadline]\n{table}\n', name="bad")


# -- Planted bugs ---------------------------------------------------------------------------------


real_learn, real_members = Causality._learn, Membership.members
real_missing, real_live, real_publish = Rounds._missing, Vector.live, BrokerPush.publish
real_read, real_offer, real_deliver = Codec.read, Rounds.offer, Delivery.deliver
real_prune = Vector.prune


def sees_other_senders_alone(self: Causality, message: Sent) -> bool:
    """Del_ok as printed: it does not wait for earlier messages of the same sender."""
    return all(
        row.get(self.number, 0) <= self.settled.get(source, 0)
        for source, row in message.after.items()
        if source != message.source
    )


def stamps_by_the_clock(self: Causality, now_ns: int) -> int:
    return now_ns


def falling_deadlines(self: Causality, now_ns: int, lifetime_ns: int) -> int:
    return now_ns + lifetime_ns


def delivers_in_order_of_arrival(self: Causality, now_ns: int) -> Held | None:
    """Messages with the same deadline have no order."""
    due = [held.sent for held in self.waiting.values() if self._is_due(held.sent, now_ns)]
    for key in reversed(list(self.waiting)):
        message = self.waiting[key].sent
        if self._nothing_missing(message) or any(
            message is other or self._precedes(message, other) for other in due
        ):
            held = self.waiting.pop(key)
            self._learn(message)
            return held
    return None


def waits_for_ever(self: Causality, *, paused: bool = False) -> int | None:
    """Deadlines are checked only when a message arrives."""
    return None


def forgets_what_senders_knew(self: Causality, message: Sent) -> None:
    """Only the message itself is learned, not what its sender knew."""
    real_learn(self, msgspec.structs.replace(message, after={}))


def takes_late_ones(self: Causality, message: Sent, now_ns: int) -> str:
    if self.is_settled(message.source, message.stamp) or message.key in self.waiting:
        return "overtaken"
    self.waiting[message.key] = Held(message, now_ns)
    return ""


def expires_nothing(self: Causality, now_ns: int) -> list[Held]:
    return []


def reads_differences_as_wholes(self: Codec, frame: Message) -> Sent | None:
    return real_read(self, msgspec.structs.replace(frame, base=0))


def delivers_rounds_at_once(
    self: Rounds, rumor: ReceivedRumor, now_round: int
) -> Iterator[tuple[str, int]]:
    return iter(())


def waits_for_other_brokers_alone(
    self: Rounds, rumor: ReceivedRumor, now_round: int
) -> Iterator[tuple[str, int]]:
    return (each for each in real_missing(self, rumor, now_round) if each[1] != rumor.source)


def waits_for_the_dead(
    self: Rounds, rumor: ReceivedRumor, now_round: int
) -> Iterator[tuple[str, int]]:
    return real_missing(self, rumor, min(now_round, rumor.round))


def merges_no_vectors(self: Vector, live: Live) -> None:
    """Brokers learn nothing of each other's rounds."""


def learns_what_others_knew_alone(
    self: BrokerPush,
    topic: str,
    source: int,
    round: int,  # noqa: A002
    live: Live,
) -> None:
    """The round of the message itself is not learned."""
    self.vector.learn(live)


def forgets_rounds_that_live(self: Vector, now_round: int) -> None:
    config = self._config
    longest = config.lifetime_rounds + config.skew_rounds
    real_prune(self, now_round + longest - config.lifetime_rounds // 2)


def names_only_its_own_rounds(self: Vector, round: int) -> Live:  # noqa: A002
    found = real_live(self, round)
    return {
        topic: {self._number: row[self._number]}
        for topic, row in found.items()
        if self._number in row
    }


def several_in_a_round(self: Vector, now_round: int) -> int:
    return max(now_round, self.own, 1)


def loses_what_its_message_named(self: BrokerPush, event: Event, now_ns: int) -> tuple[int, Live]:
    """An event added to a message replaces the events that it names."""
    number, live = real_publish(self, event, now_ns)
    rumor = self._pending.get(number)
    if rumor is not None and len(rumor.events) > 1:
        fresh = self.vector.live(number)
        self._pending[number] = msgspec.structs.replace(rumor, live=fresh)
    return number, live


def too_few_colours(self: DeadlineConfig, number: int) -> int:
    return number if self.colors is None else number % self.lifetime_rounds


def read_too_few(self: DeadlineConfig, sent: int, now_round: int) -> int | None:
    if self.colors is None:
        return sent
    newest = now_round + self.skew_rounds
    return newest - (newest - sent) % self.lifetime_rounds


def joins_at_once(self: Rounds, topic: str, round: int) -> None:  # noqa: A002
    self.joined[topic] = 0


def drops_while_others_wait(self: Rounds, rumor: ReceivedRumor, now_round: int) -> str:
    """A message for which there is room is dropped."""
    if len(self.waiting) > 1:
        return "overtaken"
    return real_offer(self, rumor, now_round)


def tells_nobody(*_arguments: object) -> list[Effect]:
    return []


def tags_nothing(self: Delivery, event: Event, held_ns: int = 0, verdict: str = "") -> None:
    real_deliver(self, event, held_ns)


def hands_out_copies(self: Delivery, event: Event) -> bool:
    return False


def forgets_the_matrix_soon(self: Causality, now_ns: int) -> Matrix:
    return {}


def leaves_the_last_out(self: Membership, topic: str) -> tuple[int, ...]:
    """One broker of a group gets no messages."""
    return real_members(self, topic)[:-1]


class ForgetsWhatItDelivered(DeadlineBroker):
    """A restarted broker delivers copies again."""

    def take_effects(self) -> Sequence[Effect]:
        return [
            each
            for each in super().take_effects()
            if not isinstance(each, Persist) or each.key != "state"
        ]


class NumbersFromOneAgain(DeadlineBroker):
    """A restarted broker reuses numbers."""

    def take_effects(self) -> Sequence[Effect]:
        return [
            each
            for each in super().take_effects()
            if not isinstance(each, Persist) or not each.key.startswith("sequence/")
        ]


class NeverSilent(DeadlineBroker):
    """A restarted broker publishes immediately."""

    def _silent_until_ns(self, state: object, now_ns: int) -> int:
        return now_ns


MUTANTS = (
    patched("sees other senders alone", 6, Causality, "_nothing_missing", sees_other_senders_alone),
    patched("stamps by the clock", 2, Causality, "stamp", stamps_by_the_clock),
    patched("falling deadlines", 381, Causality, "deadline_ns", falling_deadlines),
    patched("in order of arrival", 8, Causality, "next_ready", delivers_in_order_of_arrival),
    patched("waits for ever", 8, Causality, "next_timer_ns", waits_for_ever),
    patched("forgets what senders knew", 41, Causality, "_learn", forgets_what_senders_knew),
    Mutant(
        "takes late ones",
        3,
        Roles(),
        ((Causality, "offer", takes_late_ones), (Causality, "expired", expires_nothing)),
    ),
    patched("names no causes", 6, Causality, "before", forgets_the_matrix_soon),
    patched("differences as wholes", 119, Codec, "read", reads_differences_as_wholes),
    patched("rounds at once", 1, Rounds, "_missing", delivers_rounds_at_once),
    patched("other brokers alone", 1, Rounds, "_missing", waits_for_other_brokers_alone),
    patched("waits for the dead", 0, Rounds, "_missing", waits_for_the_dead),
    patched("merges no vectors", 10, Vector, "learn", merges_no_vectors),
    patched("names its own rounds", 14, Vector, "live", names_only_its_own_rounds),
    patched("several in a round", 0, Vector, "next", several_in_a_round),
    patched("loses what it named", 1, BrokerPush, "publish", loses_what_its_message_named),
    Mutant(
        "too few colors",
        0,
        Roles(),
        ((DeadlineConfig, "to_wire", too_few_colours), (DeadlineConfig, "from_wire", read_too_few)),
    ),
    patched("joins at once", 141, Rounds, "join", joins_at_once),
    patched("drops while others wait", 1, Rounds, "offer", drops_while_others_wait),
    Mutant(
        "tells nobody",
        0,
        Roles(),
        ((GossipPush, "send_at_once", tells_nobody), (GossipPush, "push", tells_nobody)),
    ),
    patched("tags nothing", 1, Delivery, "deliver", tags_nothing),
    patched("hands out copies", 0, Delivery, "is_copy", hands_out_copies),
    patched("leaves the last out", 0, Membership, "members", leaves_the_last_out),
    Mutant("forgets what it delivered", 11, Roles(gossip_broker=ForgetsWhatItDelivered)),
    patched("learns no round", 14, BrokerPush, "learn", learns_what_others_knew_alone),
    patched("forgets rounds that live", 19, Vector, "prune", forgets_rounds_that_live),
    Mutant("numbers from one again", 1, Roles(gossip_broker=NumbersFromOneAgain)),
    Mutant("never silent", 336, Roles(gossip_broker=NeverSilent)),
)

SEARCH = Search(draw_plain)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert not SEARCH.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert SEARCH.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX), kind_of)
