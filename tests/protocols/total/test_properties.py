"""Random programs judged from outside: agreement, completeness and progress.

A program is a list of small steps: publish, subscribe, unsubscribe, deliver a frame, duplicate one,
lose one, crash, restart, advance the time. It runs on real nodes with numbered links, so that any
frame may be lost, duplicated or overtaken. Then crashed nodes restart, all frames are delivered,
and the outcomes are judged by the definitions, not by the stamps:

- no two subscribers delivered two events in opposite orders (pairwise, over all of history);
- no subscriber delivered an event twice;
- a subscriber that joined a topic and did not leave it has delivered all events published after it
  joined, except voids, which were reported to their publishers and reached no subscriber;
- events of one publisher are delivered in its order, whatever their topics;
- no process waits for anything.
"""

from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.protocols.total.harness import Net

from ensue.core.event import Event
from ensue.protocols.interface import Deliver, Join, Leave, Publish, Settle
from ensue.protocols.topic_log.frames import Accepted, Put
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import StampRequest
from ensue.protocols.total.hold_back import PositionQueue
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.subscriber import Subscriber

CHAIN = {"low": ["a", "b"], "middle": ["c"], "high": ["d"]}
TOPICS = ("a", "b", "c", "d")
PUBLISHERS = ("p", "q")
SUBSCRIBERS = ("r", "s", "t")
PROCESSES = (*CHAIN, "ens", *PUBLISHERS, *SUBSCRIBERS)
MILLISECOND_NS = 1_000_000

KINDS = ("publish", "subscribe", "unsubscribe", "arrive", "repeat", "lose", "crash", "time")
WEIGHTS = (6, 3, 1, 12, 2, 2, 2, 1)


class Step(NamedTuple):
    """One step; its numbers select process and target, modulo their count."""

    kind: str
    who: int
    what: int


steps = st.builds(
    Step,
    st.sampled_from(
        [kind for kind, weight in zip(KINDS, WEIGHTS, strict=True) for _ in range(weight)]
    ),
    st.integers(0, 9),
    st.integers(0, 9),
)
programs = st.lists(steps, max_size=60)


def random_program(seed: int, *, length: int = 120) -> list[Step]:
    random = Random(seed)
    kinds = random.choices(KINDS, WEIGHTS, k=length)
    return [Step(kind, random.randrange(10), random.randrange(10)) for kind in kinds]


def run(net: Net, program: list[Step]) -> Net:
    """Run a program, then run until nothing is due."""
    for name in SUBSCRIBERS:
        net.subscriber(name)
    for name in PUBLISHERS:
        net.publisher(name)
    for number, step in enumerate(program):
        act(net, step, number)
    for name in PROCESSES:
        if name not in net.nodes:
            net.restart(name)
    net.come_to_rest()
    return net


def act(net: Net, step: Step, number: int) -> None:
    topic = TOPICS[step.what % len(TOPICS)]
    publisher = PUBLISHERS[step.who % len(PUBLISHERS)]
    subscriber = SUBSCRIBERS[step.who % len(SUBSCRIBERS)]
    choices = net.arrivals()
    match step.kind:
        case "publish" if publisher in net.nodes:
            net.publish(publisher, topic, f"e{number}")
        case "subscribe" if subscriber in net.nodes:
            net.subscribe(subscriber, topic)
        case "unsubscribe" if subscriber in net.nodes:
            net.unsubscribe(subscriber, topic)
        case "arrive":
            for _ in range(1 + step.who):
                if choices := net.arrivals():
                    net.deliver(choices[step.what % len(choices)])
        case "repeat" if net.handled:
            net.repeat(net.handled[-1 - (10 * step.who + step.what) % len(net.handled)])
        case "lose" if choices:
            net.under_way.remove(choices[step.what % len(choices)])
        case "crash":
            name = PROCESSES[step.who % len(PROCESSES)]
            if name in net.nodes:
                net.crash(name)
            if step.what % 2:
                net.restart(name)
        case "time":
            net.pass_time(step.what * 100 * MILLISECOND_NS, settle=False)


def deliveries(net: Net, subscriber: str) -> list[Event]:
    return [each.event for each in net.outcomes[subscriber] if isinstance(each, Deliver)]


def judge(net: Net) -> list[str]:
    """Return the violations, if any."""
    found = [f"waiting: {why}" for why in net.waiting()]
    found += [f"opposite orders: {pair}" for pair in net.disagreements()]
    void = {
        outcome.event.id
        for _, outcome in net.history
        if isinstance(outcome, Settle) and outcome.verdict == "void"
    }
    for subscriber in SUBSCRIBERS:
        events = deliveries(net, subscriber)
        names = [event.id for event in events]
        if len(set(names)) != len(names):
            found.append(f"{subscriber} delivered something twice")
        if void & set(names):
            found.append(f"{subscriber} delivered something void")
        found += [f"{subscriber} missed {name}" for name in due(net, subscriber) - {*names, *void}]
        found += [f"{subscriber}: {why}" for why in out_of_turn(net, events)]
    return found


def due(net: Net, subscriber: str) -> set[str]:
    """Events published on a topic after the subscriber joined it for the last time."""
    joined: set[str] = set()
    published: set[str] = set()
    due: dict[str, set[str]] = {topic: set() for topic in TOPICS}
    for name, outcome in net.history:
        if isinstance(outcome, Join) and name == subscriber:
            joined.add(outcome.topic)
        elif isinstance(outcome, Leave) and name == subscriber:
            joined.discard(outcome.topic)
            due[outcome.topic] = set()
        elif isinstance(outcome, Publish) and outcome.event.id not in published:
            published.add(outcome.event.id)  # A restarted publisher says it again.
            if outcome.event.topic in joined:
                due[outcome.event.topic].add(outcome.event.id)
    return set().union(*due.values())


def out_of_turn(net: Net, events: list[Event]) -> list[str]:
    """Pairs of one publisher's events that were delivered in another order."""
    places: dict[str, int] = {}
    for _, outcome in net.history:
        if isinstance(outcome, Publish):
            places.setdefault(outcome.event.id, len(places))
    found = []
    for publisher in PUBLISHERS:
        own = [event.id for event in events if event.publisher == publisher]
        found += [f"{b} before {a}" for b, a in pairwise(own) if places[b] > places[a]]
    return found


# -- The properties --------------------------------------------------------------------------------

profile = settings(
    derandomize=True,
    deadline=None,
    max_examples=400,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@profile
@given(programs)
def test_random_program_ends_in_agreement_without_losses(program: list[Step]) -> None:
    assert judge(run(Net(CHAIN, linked=True), program)) == []


@pytest.mark.parametrize("leave_out", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_long_random_program_ends_in_agreement_without_losses(seed: int, leave_out: bool) -> None:
    net = Net(CHAIN, config=SequencerConfig(leave_out=leave_out), linked=True)
    run(net, random_program(seed))
    assert judge(net) == []
    assert len(net.history) > 10


@profile
@given(programs)
def test_lossy_log_delivers_only_tagged_events_out_of_order(program: list[Step]) -> None:
    config = SequencerConfig(reliable=False, leave_out=False, held_max=4)
    net = run(Net(CHAIN, config=config, linked=True), program)
    net.pass_time(config.time_to_live_ns)
    assert net.disagreements() == []
    for subscriber in SUBSCRIBERS:
        names = [event.id for event in deliveries(net, subscriber)]
        assert len(set(names)) == len(names)
        assert net.subscriber(subscriber).held_count == 0


@profile
@given(programs)
def test_the_same_program_has_the_same_outcomes(program: list[Step]) -> None:
    first, second = (run(Net(CHAIN, linked=True), program) for _ in range(2))
    assert first.history == second.history


# -- Judges that cannot go red are no judges -------------------------------------------------------


class NodeThatForgetsLowerStages(Sequencer):
    """Stamps with outdated counters."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.state.learn = lambda topic, count: None  # type: ignore[method-assign]


class NodeThatStampsTwice(Sequencer):
    """Counts a repeated request as a new one."""

    def receive(self, frame: object, *, source: str, now_ns: int) -> None:
        if isinstance(frame, StampRequest) and source in self.sessions.by_name:
            self.sessions.by_name[source].next = frame.number
        super().receive(frame, source=source, now_ns=now_ns)  # type: ignore[arg-type]


class NodeThatForgetsGroups(Sequencer):
    def __init__(self, *, records: Mapping[str, bytes] | None = None, **options: object) -> None:
        kept = {k: v for k, v in (records or {}).items() if not k.startswith("subscription/")}
        super().__init__(records=kept, **options)  # type: ignore[arg-type]


class NodeThatForgetsCounters(Sequencer):
    def __init__(self, *, records: Mapping[str, bytes] | None = None, **options: object) -> None:
        kept = {k: v for k, v in (records or {}).items() if not k.startswith("counter/")}
        super().__init__(records=kept, **options)  # type: ignore[arg-type]


class LogThatLosesEvents(TopicLog):
    """Accepts events, and loses every third."""

    def receive(self, frame: object, *, source: str, now_ns: int) -> None:
        super().receive(frame, source=source, now_ns=now_ns)  # type: ignore[arg-type]
        if isinstance(frame, Put) and (frame.event.slot or 0) % 3 == 0:
            kept = [e for e in self._effects if isinstance(getattr(e, "frame", None), Accepted)]
            self._effects = [*kept]
            self._topics[frame.event.topic].events.pop(frame.event.slot or 0, None)


class ImpatientQueue(PositionQueue):
    def _pass(self, event: Event, slot: int) -> bool:
        """Treat the next event of each topic as the next of all."""
        self.clock[event.topic] += 1
        self._reindex()
        return True


class ImpatientSubscriber(Subscriber):
    def __init__(self, **options: object) -> None:
        with mock.patch("ensue.protocols.total.subscription_state.PositionQueue", ImpatientQueue):
            super().__init__(**options)  # type: ignore[arg-type]


class BrokenLearning(Net):
    node_type = NodeThatForgetsLowerStages


class BrokenRepetition(Net):
    node_type = NodeThatStampsTwice


class BrokenRestart(Net):
    node_type = NodeThatForgetsCounters


class BrokenGroups(Net):
    node_type = NodeThatForgetsGroups


class BrokenLog(Net):
    ens_type = LogThatLosesEvents


class BrokenDelivery(Net):
    subscriber_type = ImpatientSubscriber


@pytest.mark.parametrize(
    "broken",
    [
        BrokenLearning,
        BrokenRepetition,
        BrokenRestart,
        BrokenGroups,
        BrokenLog,
        BrokenDelivery,
    ],
)
def test_planted_bug_is_found_within_forty_programs(broken: type[Net]) -> None:
    assert any(judge(run(broken(CHAIN, linked=True), random_program(s))) for s in range(40))
