"""Relays and their listeners: one order on all levels, and silent listeners are forgotten."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tests.protocols.merged.test_nodes import (
    TICK,
    at,
    attached,
    config,
    delivered,
    discarded,
    event,
    give,
    publisher,
    subscriber,
)

from ensue.core.errors import ConfigurationError
from ensue.protocols.interface import (
    Broadcast,
    Detach,
    Discard,
    Effect,
    Leave,
    Multicast,
    Persist,
    Refuse,
    Send,
)
from ensue.protocols.merged.relay import MergedRelay
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.topic_log.fanout import Declined
from ensue.protocols.topic_log.frames import AttachRequest, Notify

ASK = AttachRequest(topic="t", from_slot=0)
NO = Declined(topic="t", event="", reason="no")
POLL = 1_000


def relay_for(*listeners: str, **others: Any) -> MergedRelay:
    """Return a relay attached to the topic of these listeners."""
    relay = MergedRelay(name="m", config=config(**others))
    for each in listeners:
        relay.receive(ASK, source=each, now_ns=0)
    relay.receive(attached("t"), source="ens", now_ns=0)
    relay.take_effects()
    return relay


def listening(relay: MergedRelay, tick: int) -> tuple[str, ...]:
    """Return the listeners that get an event from a relay at a tick."""
    (passed,) = [
        each
        for each in [*give(relay, tick, event(tick)), *at(relay, tick + 8)]
        if isinstance(each, Multicast)
    ]
    return tuple(passed.peers)


def kept(records: dict[str, bytes], effects: Sequence[Effect]) -> dict[str, bytes]:
    for each in effects:
        if isinstance(each, Persist):
            records.pop(each.key, None)
            if each.value is not None:
                records[each.key] = each.value
    return records


# -- Bounded clocks --------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [0, 4])
def test_modulus_too_small_for_the_level_above_is_refused_naming_the_minimum(link: int) -> None:
    needed = 2 * 2 + (5 + 3 * 2 + 1 + link) + 1
    with pytest.raises(ConfigurationError, match=f"give modulus={needed} on all levels"):
        config(modulus=needed - 1).above(link)
    assert config(modulus=needed).above(link).modulus == needed


@pytest.mark.parametrize("seed", range(5))
def test_listener_with_a_modulus_delivers_in_the_order_of_its_relay(
    seed: int,
) -> None:
    random = Random(seed)
    below = config(modulus=30)
    publishers = [publisher(name=name, modulus=30) for name in ("p", "q", "r")]
    relay = MergedRelay(name="m", config=below)
    top = MergedSubscriber(name="s", config=below.above(3), mergers=("m",))
    top.subscribe(("t",), now_ns=0)
    relay.receive(ASK, source="s", now_ns=0)
    relay.receive(attached("t"), source="ens", now_ns=0)
    top.receive(attached("t"), source="m", now_ns=0)
    for node in (relay, top):
        node.take_effects()
    passed: list[str] = []
    handed: list[str] = []
    for tick in range(1200, 1400):
        for each in publishers:
            if tick < 1360 and random.random() < 0.1:
                each.publish("t", b"", now_ns=tick * TICK)
            for effect in each.take_effects():
                if isinstance(effect, Broadcast):
                    notify = Notify(event=effect.event)
                    relay.receive(notify, source="ens", now_ns=tick * TICK)
        for effect in at(relay, tick):
            if isinstance(effect, Multicast) and isinstance(effect.frame, Notify):
                passed.append(effect.frame.event.id)
                top.receive(effect.frame, source="m", now_ns=tick * TICK)
        handed += [name for name, _ in delivered(at(top, tick))]
    assert len(passed) > 20
    assert handed == passed


# -- Who listens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
def test_relay_declines_a_topic_that_is_declined_to_itself(
    joined: bool,
) -> None:
    relay = MergedRelay(name="m", config=config(durable=True))
    records: dict[str, bytes] = {}
    for source in ("s1", "s2"):
        relay.receive(ASK, source=source, now_ns=0)
    if joined:
        relay.receive(attached("t"), source="ens", now_ns=0)
    kept(records, relay.take_effects())
    assert len(records) == 3
    relay.receive(NO, source="ens", now_ns=1)
    effects = relay.take_effects()
    assert [each for each in effects if isinstance(each, Send)] == [Send("s1", NO), Send("s2", NO)]
    assert kept(records, effects) == {}
    relay.receive(ASK, source="s1", now_ns=2)
    assert "t" not in relay.inner.topics, "it asks below again"


def test_silent_listener_is_forgotten_and_a_topic_without_listeners_is_left() -> None:
    relay = relay_for("s1", "s2", durable=True, poll_ns=POLL)
    records = {"listener/1/t/s1": b"", "listener/1/t/s2": b"", "topic/t": b""}
    for now_ns in range(POLL, 9 * POLL, POLL):
        relay.handle_timer(now_ns=now_ns)
        relay.receive(ASK, source="s1", now_ns=now_ns)
    assert not [each for each in relay.take_effects() if isinstance(each, Persist)]
    assert listening(relay, 8 * POLL // TICK) == ("s1", "s2")
    relay.handle_timer(now_ns=9 * POLL + 1)
    kept(records, relay.take_effects())
    assert sorted(records) == ["listener/1/t/s1", "topic/t"]
    assert listening(relay, (9 * POLL + 10) // TICK) == ("s1",)
    relay.handle_timer(now_ns=30 * POLL)
    effects = relay.take_effects()
    assert Detach("t") in effects
    assert kept(records, effects) == {}


def test_restarted_relay_forgets_silent_listeners() -> None:
    settings = config(durable=True, poll_ns=POLL)
    records = {"listener/1/t/s1": b"", "topic/t": b""}
    relay = MergedRelay(name="m", config=settings, records=records, now_ns=100 * POLL)
    relay.receive(attached("t"), source="ens", now_ns=100 * POLL)
    relay.handle_timer(now_ns=108 * POLL)
    assert listening(relay, 108 * POLL // TICK) == ("s1",)
    relay.handle_timer(now_ns=110 * POLL)
    assert kept(records, relay.take_effects()) == {}


def test_no_listener_is_forgotten_when_a_clock_goes_back() -> None:
    relay = relay_for("s1", poll_ns=POLL)
    relay.receive(ASK, source="s1", now_ns=1_000 * POLL)
    relay.handle_timer(now_ns=50 * POLL)
    assert listening(relay, 51 * POLL // TICK) == ("s1",)
    for now_ns in range(52 * POLL, 70 * POLL, POLL):
        relay.handle_timer(now_ns=now_ns)
    assert relay.inner.topics == ()


def test_relay_declines_listeners_beyond_its_limit() -> None:
    relay = relay_for("s1", "s2", listeners_max=2)
    relay.receive(ASK, source="s3", now_ns=0)
    (answer,) = relay.take_effects()
    assert isinstance(answer, Send)
    assert isinstance(answer.frame, Declined)
    assert (answer.peer, answer.frame.topic) == ("s3", "t")
    assert "listeners_max" in answer.frame.reason
    relay.receive(ASK, source="s1", now_ns=0)
    assert len(relay.take_effects()) == 1, "it has its place"
    assert listening(relay, 10) == ("s1", "s2")


def test_relay_forwards_no_event_out_of_order() -> None:
    relay = relay_for("s", deliver_late=True)
    effects = give(relay, 100, event(10), event(110, number=2))
    assert not [each for each in effects if isinstance(each, Multicast)]
    assert discarded(effects) == ["late", "skewed"]


# -- Topics that are declined ----------------------------------------------------------------------


def test_no_event_of_a_declined_topic_is_delivered() -> None:
    node = subscriber("t", "u")
    give(node, 10, event(10), event(10, k=1, topic="u"))
    node.receive(NO, source="ens", now_ns=11 * TICK)
    assert [type(each) for each in node.take_effects()] == [Leave, Discard, Refuse]
    assert delivered(at(node, 30)) == [("p/u/1", "")]


def test_declined_topic_is_not_requested_after_a_restart() -> None:
    node = MergedSubscriber(name="s", config=config(durable=True))
    node.subscribe(("t",), now_ns=0)
    records = kept({}, node.take_effects())
    node.receive(NO, source="ens", now_ns=0)
    assert kept(records, node.take_effects()) == {}


def test_topic_is_declined_only_when_all_relays_decline_it() -> None:
    node = MergedSubscriber(name="s", config=config(), mergers=("m1", "m2"))
    node.subscribe(("t",), now_ns=0)
    node.receive(attached("t"), source="m1", now_ns=0)
    node.take_effects()
    for source in ("stranger", "m2", "stranger", "m2"):
        node.receive(NO, source=source, now_ns=1)
    assert (node.take_effects(), node.topics) == ([], ("t",))
    node.receive(attached("t"), source="m2", now_ns=2)
    node.receive(NO, source="m1", now_ns=3)
    assert (node.take_effects(), node.topics) == ([], ("t",)), "the other has it again"
    node.receive(NO, source="m2", now_ns=4)
    assert node.take_effects() == [Leave("t"), Refuse(("t",), "no")]
    assert node.topics == ()
