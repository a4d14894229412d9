"""Registered brokers: they follow a registry, request topics, warm up, and monitor clocks."""

from collections.abc import Callable

import msgspec
import pytest

from ensue.core.event import CLOCK, DEADLINE
from ensue.core.wire import Codec
from ensue.orders import wire_frames
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Groups, Message, Noted, Row
from ensue.protocols.deadline.registered import SETTLE_NS, RegisteredBroker
from ensue.protocols.interface import (
    Alert,
    Deliver,
    Discard,
    Frame,
    Join,
    Outcome,
    Refuse,
    Resumed,
    Send,
    Settle,
)
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.membership.frames import Members, TopicDenied, TopicRequest
from ensue.protocols.membership.registry import Registry

REGISTRY = "s/deadline"
MS = 1_000_000
SECOND = 1_000_000_000
CONFIG = DeadlineConfig(
    lifetime_ns=200 * MS,
    lifetime_ns_max=200 * MS,
    slack_ns=20 * MS,
    period_ns=20 * MS,
    skew_ns=100 * MS,
    held_max=8,
    deliver_late=True,
    spreads=False,
    durable=False,
)
CODEC = Codec(wire_frames())


class Room:
    """A registry and brokers; frames arrive at once, in order, unless a test loses them."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND
        self.registry = Registry(
            name=REGISTRY, order="deadline", expire_ns=60 * SECOND, now_ns=self.now_ns
        )
        self.brokers: dict[str, RegisteredBroker] = {}
        self.ahead_ns: dict[str, int] = {}
        """By how much a broker's clock is ahead."""
        self.outcomes: dict[str, list[Outcome]] = {}
        self.loses: Callable[[str, str, Frame], bool] = lambda _source, _target, _frame: False
        self.denies: dict[tuple[str, str], str] = {}
        self.under_way: list[tuple[str, str, Frame]] = []

    def clock(self, name: str) -> int:
        return self.now_ns + self.ahead_ns.get(name, 0)

    def come(self, name: str, *, ahead_ns: int = 0) -> RegisteredBroker:
        self.ahead_ns[name] = ahead_ns
        lists = KnownMembers("deadlines of 200 ms")
        self.registry.receive(lists.question(), source=name, now_ns=self.now_ns)
        for effect in self.registry.take_effects():
            if isinstance(effect, Send):
                if effect.peer == name:
                    assert isinstance(effect.frame, Members)
                    assert lists.take(effect.frame)
                else:
                    self.under_way.append((REGISTRY, effect.peer, effect.frame))
        self.brokers[name] = broker = RegisteredBroker(
            name=name, registry=REGISTRY, members=lists, config=CONFIG, now_ns=self.clock(name)
        )
        self.drain(name)
        self.settle()
        return broker

    def command(self, name: str, call: Callable[[RegisteredBroker, int], object]) -> None:
        call(self.brokers[name], self.clock(name))
        self.drain(name)
        self.settle()

    def publish(self, name: str, text: str, topic: str = "t") -> None:
        self.command(name, lambda node, now: node.publish(topic, text.encode(), now_ns=now))

    def subscribe(self, name: str, topic: str = "t") -> None:
        self.command(name, lambda node, now: node.subscribe((topic,), now_ns=now))

    def drain(self, name: str) -> None:
        for effect in self.brokers[name].take_effects():
            if isinstance(effect, Send):
                self.under_way.append((name, effect.peer, effect.frame))
            else:
                self.outcomes.setdefault(name, []).append(effect)  # type: ignore[arg-type]

    def settle(self) -> None:
        while self.under_way:
            source, target, frame = self.under_way.pop(0)
            if self.loses(source, target, frame):
                continue
            frame = CODEC.decode(CODEC.encode(frame))
            if target == REGISTRY:
                self._at_registry(source, frame)
            elif target in self.brokers:
                node = self.brokers[target]
                node.receive(frame, source=source, now_ns=self.clock(target))
                self.drain(target)

    def _at_registry(self, source: str, frame: Frame) -> None:
        if isinstance(frame, TopicRequest) and (why := self.denies.get((source, frame.topic))):
            answer = TopicDenied(topic=frame.topic, action=frame.action, reason=why)
            self.under_way.append((REGISTRY, source, answer))
            return
        self.registry.receive(frame, source=source, now_ns=self.now_ns)
        for effect in self.registry.take_effects():
            if isinstance(effect, Send):
                self.under_way.append((REGISTRY, effect.peer, effect.frame))

    def wait(self, ns: int, step_ns: int = 5 * MS) -> None:
        until_ns = self.now_ns + ns
        while self.now_ns < until_ns:
            self.now_ns = min(until_ns, self.now_ns + step_ns)
            for name, node in self.brokers.items():
                due_ns = node.next_timer_ns()
                if due_ns is not None and due_ns <= self.clock(name):
                    node.handle_timer(now_ns=self.clock(name))
                    self.drain(name)
            self.settle()

    def got(self, name: str) -> list[str]:
        return [
            outcome.event.payload.decode() + (f" ({outcome.verdict})" if outcome.verdict else "")
            for outcome in self.outcomes.get(name, ())
            if isinstance(outcome, Deliver)
        ]

    def dropped(self, name: str) -> dict[str, str]:
        return {
            outcome.event.payload.decode(): outcome.verdict
            for outcome in self.outcomes.get(name, ())
            if isinstance(outcome, Discard)
        }

    def outcomes_of(self, name: str, kind: type[Outcome]) -> list[Outcome]:
        return [each for each in self.outcomes.get(name, ()) if isinstance(each, kind)]


def joined(*names: str) -> Room:
    room = Room()
    for name in names:
        room.come(name)
        room.subscribe(name)
    return room


# -- Who is there ----------------------------------------------------------------------------------


def test_new_broker_takes_commands_once_it_knows_all_groups() -> None:
    room = joined("a", "b")
    room.loses = lambda source, target, frame: isinstance(frame, Noted) and target == "c"
    joiner = room.come("c")
    assert not joiner.ready
    assert not room.outcomes_of("c", Resumed)
    room.loses = lambda _source, _target, _frame: False
    room.wait(CONFIG.retry_ns + 5 * MS)
    assert joiner.ready
    assert room.outcomes_of("c", Resumed) == [Resumed()]
    room.publish("c", "first")
    assert (room.got("a"), room.got("b")) == (["first"], ["first"])


def test_first_broker_does_not_wait() -> None:
    room = Room()
    assert room.come("a").ready


def test_new_broker_waits_a_limited_time_for_silent_members() -> None:
    room = joined("a", "b")
    room.loses = lambda _source, target, _frame: target == "a"
    joiner = room.come("c")
    assert not joiner.ready
    room.wait(SETTLE_NS + 10 * MS)
    assert joiner.ready


def test_frames_of_an_unknown_broker_are_handled_once_it_is_registered() -> None:
    room = joined("a")
    lost = [True]
    room.loses = lambda source, target, frame: (
        lost[0] and source == REGISTRY and target == "a" and isinstance(frame, Members)
    )
    joiner = room.come("b")
    assert not joiner.ready, "no broker answers an unknown one"
    lost[0] = False
    room.wait(CONFIG.retry_ns)
    assert joiner.ready
    room.publish("b", "of the stranger")
    assert room.got("a") == ["of the stranger"]


def test_deregistered_broker_is_removed_and_an_evicted_one_ends() -> None:
    room = joined("a", "b")
    room.publish("b", "hello")
    assert list(room.brokers["a"].watch.peers) == ["b"]
    room.command("b", lambda node, _now: node.say_goodbye())
    del room.brokers["b"]
    assert list(room.brokers["a"].watch.peers) == []
    sent = len(room.outcomes_of("a", Settle))
    room.publish("a", "alone")
    assert len(room.outcomes_of("a", Settle)) == sent + 1
    assert room.brokers["a"].next_timer_ns() is not None
    assert [row.node for row in room.brokers["a"].broker.rows] == [0], "no other broker is left"
    room.loses = lambda source, _target, _frame: source == "a"
    for _ in range(5):  # A registry that was stopped evicts no member.
        room.now_ns += 15 * SECOND
        room.registry.handle_timer(now_ns=room.now_ns)
    room.registry.take_effects()
    room.loses = lambda _source, _target, _frame: False
    room.wait(3 * SECOND)
    (refused,) = room.outcomes_of("a", Refuse)
    assert isinstance(refused, Refuse)
    assert refused.topics == ()
    assert "away for too long" in refused.reason


@pytest.mark.parametrize("lost", ["the resignation", "the answer"])
def test_deregistration_is_repeated_until_it_is_answered(lost: str) -> None:
    room = joined("a", "b")
    room.loses = lambda source, target, _frame: (
        target == REGISTRY and source == "b"
        if lost == "the resignation"
        else source == REGISTRY and target == "b"
    )
    room.command("b", lambda node, _now: node.say_goodbye())
    leaver = room.brokers["b"]
    room.wait(3 * SECOND)
    assert not leaver.resigned
    assert ("b" in room.registry.present) == (lost == "the resignation")
    room.loses = lambda _source, _target, _frame: False
    room.wait(SECOND)
    assert leaver.resigned
    assert room.registry.present == ("a",)
    assert room.outcomes_of("b", Refuse) == [], "it went by itself"
    leaver.repeat(now_ns=room.now_ns)
    sent = [each.peer for each in leaver.take_effects() if isinstance(each, Send)]
    assert REGISTRY not in sent, "and no more"


def test_deregistration_is_repeated_on_reconnect() -> None:
    room = joined("a", "b")
    room.loses = lambda source, _target, _frame: source == "b"
    room.command("b", lambda node, _now: node.say_goodbye())
    room.loses = lambda _source, _target, _frame: False
    room.command("b", lambda node, now: node.repeat(now_ns=now))
    assert room.brokers["b"].resigned
    assert room.registry.present == ("a",)


def test_row_is_accepted_from_its_own_broker_only() -> None:
    room = joined("a", "b")
    broker = room.brokers["a"]
    before = broker.broker.rows
    for node in (0, 5, 60_000):
        row = Row(node, 99, ("t",))
        for frame in (Groups(row=row), Noted(version=1, row=row)):
            broker.receive(frame, source="b", now_ns=room.now_ns)
    room.drain("a")
    room.settle()
    assert broker.broker.rows == before
    room.publish("a", "goes on")
    assert room.got("b") == ["goes on"]


def test_requests_are_repeated_on_reconnect() -> None:
    room = joined("a", "b")
    room.loses = lambda source, target, _frame: "a" in (source, target)
    room.subscribe("a", "u")
    room.publish("a", "waits", topic="u")
    assert not room.outcomes_of("a", Settle)
    room.loses = lambda _source, _target, _frame: False
    room.command("a", lambda node, now: node.repeat(now_ns=now))
    assert Join("u") in room.outcomes["a"]
    assert len(room.outcomes_of("a", Settle)) == 1


# -- Topics ----------------------------------------------------------------------------------------


def test_topics_are_requested_and_denied_ones_settle_with_a_reason() -> None:
    room = joined("a", "b")
    room.denies = {("a", "secret"): "a may not"}
    room.subscribe("a", "secret")
    assert room.outcomes_of("a", Refuse) == [Refuse(("secret",), "a may not")]
    room.loses = lambda _source, target, _frame: target == REGISTRY
    room.publish("a", "1", topic="secret")
    room.publish("a", "2")
    assert not room.got("b"), "what was published before it may still come"
    room.loses = lambda _source, _target, _frame: False
    room.wait(SECOND)
    settled = [
        (each.event.payload.decode(), each.verdict, each.reason)
        for each in room.outcomes_of("a", Settle)
        if isinstance(each, Settle)
    ]
    assert settled == [("1", "void", "a may not"), ("2", "", "")]
    assert room.got("b") == ["2"]
    room.publish("a", "3", topic="secret")
    assert len(room.outcomes_of("a", Settle)) == 3
    assert room.got("b") == ["2"]


def test_lifetime_of_an_event_begins_when_it_is_sent() -> None:
    room = joined("a", "b")
    room.loses = lambda _source, target, _frame: target == REGISTRY
    room.publish("a", "waited")
    room.wait(SECOND)
    room.loses = lambda _source, _target, _frame: False
    room.wait(SECOND)
    assert room.got("b") == ["waited"]


# -- Pauses ----------------------------------------------------------------------------------------


def test_events_wait_during_a_pause_and_are_dropped_at_their_deadline() -> None:
    room = joined("a", "b")
    room.command("b", lambda node, _now: node.pause())
    room.publish("a", "1")
    room.publish("b", "own")
    room.wait(100 * MS)
    room.publish("a", "2")
    assert room.got("b") == []
    due_ns = room.brokers["b"].next_timer_ns()
    assert due_ns is not None
    assert due_ns > room.now_ns, "or it would be called again and again in vain"
    room.wait(102 * MS)
    assert room.dropped("b") == {"1": "overflow", "own": "overflow"}
    room.command("b", lambda node, now: node.resume(now_ns=now))
    assert room.got("b") == ["2"]
    room.publish("a", "3")
    assert room.got("b") == ["2", "3"]
    assert room.got("a") == ["1", "own", "2", "3"]
    assert room.brokers["b"].counts.overflow == 2
    assert room.brokers["b"].counts.late == 0


def test_late_events_are_not_delivered_during_a_pause() -> None:
    room = joined("a", "b")
    room.publish("a", "granted")
    room.loses = lambda _source, target, _frame: target == "b"
    room.publish("a", "late")
    copies = [
        message
        for message in room.brokers["a"].broker._repair._kept.values()
        if message.event.payload == b"late"
    ]
    room.wait(210 * MS)
    room.loses = lambda _source, _target, _frame: False
    room.command("b", lambda node, _now: node.pause())
    frame = room.brokers["a"].broker._codec.write(copies[0], 1, whole=True)
    room.brokers["b"].receive(frame, source="a", now_ns=room.now_ns)
    room.drain("b")
    assert room.got("b") == ["granted"]
    assert room.dropped("b") == {"late": "late"}


def test_events_held_during_a_pause_have_a_limit() -> None:
    room = joined("a", "b")
    room.command("b", lambda node, _now: node.pause())
    for number in range(6):
        room.publish("a", str(number))
    for number in range(6, 12):
        room.publish("b", str(number))
    assert room.dropped("b") == {str(number): "overflow" for number in range(8, 12)}
    room.command("b", lambda node, now: node.resume(now_ns=now))
    got = room.got("b")
    assert sorted(got) == [str(number) for number in range(8)]
    assert [each for each in got if each < "6"] == [str(number) for number in range(6)]


# -- Clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead_ms", "broken"), [(-500, None), (0, None), (85, False), (110, True)]
)
def test_clock_that_is_ahead_raises_an_alert(ahead_ms: int, broken: bool | None) -> None:
    room = joined("a")
    room.come("b", ahead_ns=ahead_ms * MS)
    room.publish("b", "1")
    room.publish("b", "2")
    alerts = [each for each in room.outcomes_of("a", Alert) if isinstance(each, Alert)]
    shown = [each for each in alerts if each.assumption == "clock"]
    assert [each.broken for each in shown] == ([] if broken is None else [broken])
    if shown:
        assert (shown[0].peer, shown[0].measured_ns) == ("b", ahead_ms * MS)
        assert shown[0].bound_ns == CONFIG.skew_ns
    behind = [each for each in alerts if each.assumption == "delay"]
    assert len(behind) == (ahead_ms == -500), "as if it had taken that long"
    counts = room.brokers["a"].counts
    assert (counts.warned, counts.broken) == (broken is False, (broken is True) + len(behind))


def test_lifetime_is_longer_for_a_slow_clock_and_shorter_for_a_fast_one() -> None:
    room = Room()
    for name, ahead_ms in (("a", 0), ("ahead", 90), ("behind", -90)):
        room.come(name, ahead_ns=ahead_ms * MS)
        room.subscribe(name)
    held: list[tuple[str, str, Frame]] = []
    room.publish("a", "granted")

    def keep(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Message):
            held.append((source, target, frame))
        return True

    room.loses = keep
    room.publish("a", "1")
    first = {target: (source, target, frame) for source, target, frame in reversed(held)}
    room.wait(150 * MS)
    room.loses = lambda _source, _target, frame: isinstance(frame, Message)
    for source, target, frame in first.values():
        room.brokers[target].receive(frame, source=source, now_ns=room.clock(target))
        room.drain(target)
    assert room.got("ahead") == ["granted", "1 (late)"]
    assert room.got("behind") == ["granted", "1"]


def test_impossible_stamps_and_deadlines_are_rejected() -> None:
    room = joined("a", "b")
    sent: list[Message] = []

    def keep(_source: str, _target: str, frame: Frame) -> bool:
        if isinstance(frame, Message):
            sent.append(frame)
        return False

    room.loses = keep
    room.publish("a", "1")
    (message,) = sent
    far_ns = room.now_ns + CONFIG.horizon_ns + 1
    stamp = message.event.stamp
    assert stamp is not None
    for changed in ({CLOCK: far_ns}, {DEADLINE: far_ns}):
        entries = {**stamp.entries, **changed}
        event = msgspec.structs.replace(
            message.event,
            payload=b"forged",
            publisher_seq=7,
            stamp=msgspec.structs.replace(stamp, entries=entries),
        )
        forged = msgspec.structs.replace(message, event=event)
        room.brokers["b"].receive(forged, source="a", now_ns=room.now_ns)
    room.drain("b")
    assert room.got("b") == ["1"]
    assert room.brokers["b"].counts.unreadable == 2
