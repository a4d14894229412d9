"""The corrected rules where the published ones hang, and the facts that make them fast.

Every scenario that hangs under the published rules (`test_published_rules`) runs here against the
real objects, with the same arrivals as far as the corrected rules allow: no subscriber
waits, and all agree. Then the facts of the errata, on random runs.
"""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from unittest import mock

import pytest
from tests.protocols.total import scenarios
from tests.protocols.total.harness import Net, Parcel
from tests.protocols.total.scenarios import SCENARIOS, Action, Scenario

from ensue.core.event import Event
from ensue.protocols.interface import Deliver
from ensue.protocols.topic_log.frames import Accepted, Put, Taken
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Fill, Stamped, StampRequest, Voided
from ensue.protocols.total.hold_back import Held, Offer, PositionQueue
from ensue.protocols.total.subscriber import Subscriber

TOPICS = ("T1", "T2", "T3", "T4", "T5", "T6")
CHAIN = {"low": ["T6", "T5"], "middle": ["T4"], "high": ["T3", "T2"], "top": ["T1"]}

# -- The scenarios ---------------------------------------------------------------------------------


class Player:
    """Runs a scenario, with its arrivals as far as the rules allow."""

    def __init__(self, scenario: Scenario, config: SequencerConfig) -> None:
        self.scenario = scenario
        self.net = Net({topic: [topic] for topic in scenario.chain}, config=config)
        self.changes: dict[str, str] = {}
        """`<subscriber>#<change>` to the name that the scenario calls it by."""
        for name, topics in scenario.subscriptions.items():
            self.net.subscriber(name)
            if config.fixed is None:
                self.net.subscribe(name, *topics)
        self.net.settle()
        self.start = len(self.net.handled)

    def play(self) -> Net:
        for action in (*self.scenario.actions, scenarios.Settle()):
            self.act(action)
        self.net.pass_time(self.net.config.lease_ns, pick=self.pick)
        self.net.come_to_rest(self.pick)
        return self.net

    def act(self, action: Action) -> None:
        net = self.net
        match action:
            case scenarios.Publish(event, publisher, topic):
                net.publish(publisher, topic, event)
            case scenarios.Repeat(event):
                net.pass_time(net.config.retry_ns, settle=False)
                again = [p for p in net.find(StampRequest) if event in net.about(p)]
                assert len(again) == 2
            case scenarios.Crash(publisher):
                net.crash(publisher)
            case scenarios.Subscribe(name, subscriber, topic):
                net.subscribe(subscriber, topic)
                self.changes[f"{subscriber}#{net.subscriber(subscriber)._number}"] = name
            case scenarios.Unsubscribe(name, subscriber, topic):
                net.unsubscribe(subscriber, topic)
                self.changes[f"{subscriber}#{net.subscriber(subscriber)._number}"] = name
            case scenarios.Settle():
                net.settle(self.pick)

    def names(self, parcel: Parcel) -> list[str]:
        return [self.changes.get(name, name) for name in self.net.about(parcel)]

    def handled(self) -> list[tuple[str, str]]:
        return [
            (parcel.target, name)
            for parcel in self.net.handled[self.start :]
            for name in self.names(parcel)
        ]

    def pick(self, choices: list[Parcel]) -> Parcel:
        """Return the oldest frame that no rule delays, or the oldest of all."""
        handled = self.handled()
        kept_back = {
            (rule.at, rule.second)
            for rule in self.scenario.arrivals
            if (rule.at, rule.first) not in handled
        }
        free = [
            parcel
            for parcel in choices
            if not any((parcel.target, name) in kept_back for name in self.names(parcel))
        ]
        return min(free or choices)


def changes_subscriptions(scenario: Scenario) -> bool:
    kinds = scenarios.Subscribe | scenarios.Unsubscribe
    return any(isinstance(action, kinds) for action in scenario.actions)


def ways() -> Iterator[tuple[Scenario, SequencerConfig]]:
    for scenario in SCENARIOS:
        yield scenario, SequencerConfig()
        yield scenario, SequencerConfig(leave_out=False)
        if not changes_subscriptions(scenario):
            yield scenario, SequencerConfig(groups=2, fixed=scenario.subscriptions)


WAYS = [
    pytest.param(scenario, config, id=f"{scenario.name}, {config.groups} {config.leave_out}")
    for scenario, config in ways()
]


@pytest.mark.parametrize(("scenario", "config"), WAYS)
def test_corrected_rules_agree_and_finish_where_published_rules_hang(
    scenario: Scenario, config: SequencerConfig
) -> None:
    net = Player(scenario, config).play()
    assert net.waiting() == []
    assert net.disagreements() == []
    crashed = [a.publisher for a in scenario.actions if isinstance(a, scenarios.Crash)]
    for publish in scenario.publishes:
        if publish.publisher in crashed:
            continue
        for name, topics in scenario.subscriptions.items():
            if publish.topic in topics:
                assert publish.event in net.delivered(name)


def test_two_subscriptions_cannot_cross_because_no_stage_is_skipped() -> None:
    player = Player(scenarios.TWO_SUBSCRIPTIONS_CROSS, SequencerConfig())
    player.play()
    for stage in ("T3", "T1"):
        order = [name for at, name in player.handled() if at == stage and name.endswith("join")]
        assert order == ["wide-join", "narrow-join"]


def test_requests_keep_their_order_at_every_stage_that_both_visit() -> None:
    player = Player(scenarios.THREE_EVENTS_CLOSE_A_CIRCLE, SequencerConfig())
    player.play()
    at_t3 = [name for at, name in player.handled() if at == "T3" and name in ("e3", "e4")]
    at_t1 = [name for at, name in player.handled() if at == "T1" and name in ("e3", "e4")]
    assert at_t3 == at_t1 == ["e4", "e3"]


# -- Section 4: position is a sum ------------------------------------------------------------------


class Drawn:
    """A random run: random actions and random arrivals."""

    def __init__(self, seed: int, *, net: Net, changing: bool, subscribers: int = 5) -> None:
        self.random = Random(seed)
        self.net = net
        self.names = [f"s{number}" for number in range(subscribers)]
        for name in self.names:
            net.subscribe(name, *self.random.sample(TOPICS, self.random.randint(2, 4)))
        net.settle()
        for number in range(60):
            self.step(number, changing=changing)
        net.come_to_rest(self.random.choice)

    def step(self, number: int, *, changing: bool) -> None:
        random, net = self.random, self.net
        if changing and random.random() < 0.3:
            name, topic = random.choice(self.names), random.choice(TOPICS)
            wanted = topic in net.subscriber(name)._wanted
            (net.unsubscribe if wanted else net.subscribe)(name, topic)
        net.publish(f"p{random.randrange(3)}", random.choice(TOPICS), f"e{number}")
        for _ in range(random.randrange(12)):
            if choices := net.arrivals():
                net.deliver(random.choice(choices))


def deliveries(net: Net, name: str) -> list[Event]:
    return [each.event for each in net.outcomes[name] if isinstance(each, Deliver)]


@pytest.mark.parametrize("leave_out", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_entries_over_a_subscribers_topics_add_up_to_its_position(
    seed: int, leave_out: bool
) -> None:
    config = SequencerConfig(leave_out=leave_out)
    net = Drawn(seed, net=Net(CHAIN, config=config), changing=False).net
    assert net.waiting() == []
    for name in (name for name in net.outcomes if name.startswith("s")):
        topics = net.subscriber(name).topics
        latest: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        sums = []
        for event in deliveries(net, name):
            assert event.stamp is not None
            # An entry left out stands for that of the topic's previous event.
            latest[event.topic] |= event.stamp.entries
            sums.append(sum(latest[event.topic].get(topic, 0) for topic in topics))
        assert sums == list(range(1, len(sums) + 1))


def test_leaving_out_unchanged_entries_makes_stamps_shorter() -> None:
    sizes = {}
    for leave_out in (False, True):
        config = SequencerConfig(leave_out=leave_out)
        net = Drawn(1, net=Net(CHAIN, config=config), changing=False).net
        sizes[leave_out] = sum(len(stamp.entries) for stamp in net.stamps.values())
    assert sizes[True] < sizes[False]


class VectorModel:
    """Section 3 of the errata, in its simplest form.

    What names a topic that is being joined waits for the cut. Only what was here before the
    joining began need not: it was stamped earlier than any cut that can come of it.
    """

    def __init__(self) -> None:
        self.clock: dict[str, int] = {}
        self.joining: dict[str, int] = {}
        """Topic to how many events had come when the joining began."""
        self.held: list[Event] = []
        self.arrivals: list[str] = []

    def add(self, event: Event) -> None:
        self.held.append(event)
        self.arrivals.append(event.id)

    def join(self, topic: str) -> None:
        self.joining[topic] = len(self.arrivals)

    def ready(self, *, patient: bool) -> list[str]:
        return [event.id for event in self.held if self.is_next(event, patient=patient)]

    def is_next(self, event: Event, *, patient: bool) -> bool:
        assert event.stamp is not None
        entries = event.stamp.entries
        for topic, before in self.joining.items():
            if topic in entries and (patient or self.arrivals.index(event.id) >= before):
                return False
        if event.topic not in self.clock:
            return False
        return entries[event.topic] == self.clock[event.topic] + 1 and all(
            self.clock[topic] >= count
            for topic, count in entries.items()
            if topic != event.topic and topic in self.clock
        )

    def forget(self) -> None:
        """Drop events of left topics, and those up to the clock."""
        self.held = [
            event
            for event in self.held
            if event.topic in self.joining
            or (event.topic in self.clock and (event.slot or 0) > self.clock[event.topic])
        ]


class TwinQueue(PositionQueue):
    """Delivers by position and asks the vector model each time whether it agrees."""

    checks = 0

    def __init__(self, *, whole: bool, **_limits: int) -> None:
        super().__init__(held_max=1000, missing_max=1000, whole=whole)
        self.model = VectorModel()

    def offer(self, event: Event, slot: int, now_ns: int) -> Offer:
        outcome = super().offer(event, slot, now_ns)
        if outcome in ("next", "held"):
            self.model.add(event)
            assert self.model.is_next(event, patient=True) == (outcome == "next")
        if outcome == "next":
            self.compare(event)
        return outcome

    def await_cut(self, topic: str) -> None:
        super().await_cut(topic)
        self.model.join(topic)

    def join(self, topic: str, cut: int) -> Iterator[Event]:
        yield from super().join(topic, cut)
        self.model.joining.pop(topic, None)
        self.model.clock[topic] = cut
        self.model.forget()

    def leave(self, topic: str) -> None:
        super().leave(topic)
        self.model.joining.pop(topic, None)
        self.model.clock.pop(topic, None)
        self.model.forget()

    def next(self) -> Held | None:
        held = super().next()
        if held is None:
            assert self.model.ready(patient=True) == []
        else:
            self.compare(held.event)
        return held

    def compare(self, event: Event) -> None:
        """The model, too, has this event next and no other."""
        TwinQueue.checks += 1
        assert self.model.ready(patient=False) == [event.id]
        self.model.clock[event.topic] += 1
        self.model.forget()
        assert self.clock == self.model.clock


class TwinSubscriber(Subscriber):
    def __init__(self, **options: object) -> None:
        queue = "ensue.protocols.total.subscription_state.PositionQueue"
        with mock.patch(queue, TwinQueue):
            super().__init__(**options)  # type: ignore[arg-type]


class TwinNet(Net):
    subscriber_type = TwinSubscriber


@pytest.mark.parametrize("leave_out", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_position_rule_agrees_with_the_vector_rule_while_subscriptions_change(
    seed: int, leave_out: bool
) -> None:
    before = TwinQueue.checks
    net = Drawn(
        seed, net=TwinNet(CHAIN, config=SequencerConfig(leave_out=leave_out)), changing=True
    )
    assert net.net.waiting() == []
    assert net.net.disagreements() == []
    assert TwinQueue.checks > before + 20


# -- Section 5: what a real system needs -----------------------------------------------------------


def voids(net: Net, subscriber: str) -> int:
    """The number of voids that the subscriber has skipped."""
    return [why for _, why in net.discarded(subscriber)].count("void")


def one_topic(**options: int) -> Net:
    config = SequencerConfig(**options)  # type: ignore[arg-type]
    net = Net({"low": ["T2"], "high": ["T1"]}, config=config)
    net.subscribe("reader", "T1", "T2")
    net.settle()
    return net


@pytest.mark.parametrize("arrived", [StampRequest, Fill, Stamped])
def test_section_5_a_repeated_request_is_answered_with_the_same_stamp(
    arrived: type[StampRequest | Fill | Stamped],
) -> None:
    """Wherever the first request has got to when the second one comes."""
    net = one_topic()
    net.publish("p", "T2", "e")
    with net.holding(arrived):
        net.settle()
        net.pass_time(net.config.retry_ns, settle=False)
    net.come_to_rest()
    puts = {repr(p.frame.event.stamp) for p in net.handled if isinstance(p.frame, Put)}
    assert puts == {"Stamp(T2:1)"}
    net.publish("p", "T2", "f")
    net.come_to_rest()
    assert net.delivered("reader") == ["e", "f"]


def test_section_5_a_stamp_not_confirmed_within_its_lease_is_voided() -> None:
    net = one_topic()
    net.publish("doomed", "T2", "lost")
    with net.holding(Stamped):
        net.settle()
    net.crash("doomed")
    net.publish("p", "T2", "next")
    net.settle()
    assert net.delivered("reader") == []  # The reader waits for the hole …
    net.pass_time(net.config.lease_ns)
    assert net.delivered("reader") == ["next"]  # … until the lease runs out.
    assert voids(net, "reader") == 1
    assert net.waiting() == []


@pytest.mark.parametrize("told_by", ["the ENS", "the node"])
def test_section_5_a_late_original_is_dropped_and_its_publisher_notified(
    told_by: str,
) -> None:
    net = one_topic()
    net.subscribe("other", "T1", "T2")
    net.settle()
    net.publish("slow", "T2", "late")
    with net.holding(Stamped), net.holding(Voided):
        net.settle()
        net.pass_time(net.config.lease_ns)
    assert voids(net, "reader") == voids(net, "other") == 1
    if told_by == "the ENS":
        net.drop(Voided)
        with net.holding(Voided):
            net.settle()
            assert [p for p in net.handled if isinstance(p.frame, Taken) and p.target == "slow"]
    else:
        net.drop(Stamped)
        net.settle()
    assert net.settled("slow") == [("late", "void")]
    assert net.delivered("reader") == net.delivered("other") == []
    net.publish("slow", "T2", "again")
    net.come_to_rest()
    assert net.delivered("reader") == net.delivered("other") == ["again"]


def test_section_5_an_event_published_before_its_lease_ended_stays() -> None:
    net = one_topic()
    net.publish("p", "T2", "e")
    with net.holding(Accepted, to="p"):
        net.settle()
    net.crash("p")
    assert net.stage("high").open_count == 1
    net.pass_time(3 * net.config.lease_ns)
    assert net.delivered("reader") == ["e"]
    assert voids(net, "reader") == 0
    assert net.stage("high").open_count == 0


def test_section_5_a_lost_void_is_retransmitted() -> None:
    net = one_topic()
    net.publish("doomed", "T2", "lost")
    with net.holding(Stamped):
        net.settle()
    net.crash("doomed")
    with net.holding(Put):
        net.pass_time(net.config.lease_ns)
    net.drop(Put)
    net.pass_time(net.config.retry_ns)
    assert voids(net, "reader") == 1


@pytest.mark.parametrize("node", ["low", "high"])
def test_section_5_a_node_restarts_with_counters_groups_and_answered_requests(node: str) -> None:
    net = one_topic()
    for number in range(3):
        net.publish("p", "T2", f"e{number}")
        net.publish("q", "T1", f"f{number}")
    net.come_to_rest()
    net.publish("p", "T2", "open")
    (request,) = net.find(StampRequest)
    with net.holding(Stamped):
        net.settle()
    net.drop(Stamped)
    old = net.stage(node)
    net.restart(node)
    new = net.stage(node)
    assert new is not old
    for topic in net.placement.topics:
        assert new.state.counters.get(topic)[0] == old.state.counters.get(topic)[0]
    assert new.groups.subscriptions == old.groups.subscriptions
    assert new.open_count == old.open_count
    net.repeat(request)
    net.come_to_rest()
    assert net.stamps["open"].entries["T2"] == 4
    assert net.delivered("reader")[-1] == "open"
    assert len(net.delivered("reader")) == 7


def test_section_5_a_restarted_node_still_voids_open_stamps() -> None:
    net = one_topic()
    net.publish("doomed", "T2", "lost")
    with net.holding(Stamped):
        net.settle()
    net.crash("doomed")
    net.restart("high")
    net.pass_time(net.config.lease_ns)
    assert voids(net, "reader") == 1
    net.restart("high")
    net.pass_time(net.config.lease_ns)
    assert voids(net, "reader") == 1


def test_slots_of_a_topic_are_used_once_each() -> None:
    net = Drawn(3, net=Net(CHAIN), changing=True).net
    for topic in TOPICS:
        slots = sorted(
            stamp.entries[topic]
            for event, stamp in net.stamps.items()
            if _topic(net, event) == topic
        )
        assert all(later == earlier + 1 for earlier, later in pairwise(slots))


def _topic(net: Net, name: str) -> str:
    return next(
        p.frame.event.topic
        for p in net.handled
        if isinstance(p.frame, Put) and p.frame.event.payload.decode() == name
    )
