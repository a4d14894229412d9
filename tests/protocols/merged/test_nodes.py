"""Publishers, subscribers and relays as a driver sees them: frames in, effects out."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ensue.core.errors import BadInput, ConfigurationError, LimitReached
from ensue.core.event import Event, Stamp
from ensue.protocols.interface import (
    Alert,
    Attach,
    Broadcast,
    Deliver,
    Detach,
    Discard,
    Effect,
    Join,
    Leave,
    Multicast,
    Persist,
    Publish,
    Send,
    Settle,
)
from ensue.protocols.merged.config import MergedConfig, ticks_of
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.relay import MergedRelay
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.topic_log.frames import Attached, AttachRequest, DetachRequest, Notify

TICK = 10
"""Nanoseconds; nothing depends on its size."""


def config(epsilon: int = 2, delta: int = 5, **others: Any) -> MergedConfig:
    return MergedConfig(
        epsilon_ticks=epsilon, delta_ticks=delta, tick_ns=TICK, **{"durable": False, **others}
    )


def publisher(at: int = 0, name: str = "p", **others: Any) -> MergedPublisher:
    return MergedPublisher(name=name, config=config(**others), now_ns=at * TICK)


def subscriber(*topics: str, **others: Any) -> MergedSubscriber:
    node = MergedSubscriber(name="s", config=config(**others))
    node.subscribe(topics or ("t",), now_ns=0)
    for topic in topics or ("t",):
        node.receive(attached(topic), source="ens", now_ns=0)
    node.take_effects()
    return node


def attached(topic: str) -> Attached:
    return Attached(topic=topic, first=1, next=1, sent=1)


def event(
    r: int, *, c: int = 0, k: int = 0, by: str = "p", number: int = 1, topic: str = "t"
) -> Event:
    entries = {"@r": r, "@c": c, "@k": k}
    return Event(topic=topic, payload=b"", publisher=by, publisher_seq=number, stamp=Stamp(entries))


def give(node: MergedSubscriber | MergedRelay, tick: int, *events: Event) -> list[Effect]:
    for each in events:
        node.receive(Notify(event=each), source="ens", now_ns=tick * TICK)
    return list(node.take_effects())


def at(node: MergedSubscriber | MergedRelay, tick: int) -> list[Effect]:
    node.handle_timer(now_ns=tick * TICK)
    return list(node.take_effects())


def delivered(effects: Sequence[Effect]) -> list[tuple[str, str]]:
    return [(each.event.id, each.verdict) for each in effects if isinstance(each, Deliver)]


def discarded(effects: Sequence[Effect]) -> list[str]:
    return [each.verdict for each in effects if isinstance(each, Discard)]


def sent(node: MergedPublisher) -> list[dict[str, int]]:
    return [
        each.event.stamp.entries
        for each in node.take_effects()
        if isinstance(each, Broadcast) and each.event.stamp is not None
    ]


# -- Publishers ------------------------------------------------------------------------------------


def test_event_is_sent_and_settled_as_soon_as_it_is_stamped() -> None:
    node = publisher()
    plain = node.publish("t", b"x", now_ns=7 * TICK)
    assert plain.stamp is None
    published, broadcast, settled = node.take_effects()
    assert isinstance(published, Publish)
    assert isinstance(broadcast, Broadcast)
    assert isinstance(settled, Settle)
    assert published.event == broadcast.event == settled.event
    assert settled.event.stamp == Stamp({"@r": 7})
    assert settled.event.published_at_ns == 7 * TICK
    assert node.unsettled_count == 0
    assert node.next_timer_ns() is None


def test_a_publisher_that_has_just_started_waits_for_epsilon_and_one_tick() -> None:
    node = publisher(at=100)
    for tick in (100, 101, 102):
        node.publish("t", b"", now_ns=tick * TICK)
    assert sent(node) == []
    assert node.unsettled_count == 3
    assert node.next_timer_ns() == 103 * TICK
    node.handle_timer(now_ns=103 * TICK - 1)
    assert sent(node) == []
    node.handle_timer(now_ns=103 * TICK)
    assert sent(node) == [{"@r": 103}, {"@r": 103, "@k": 1}, {"@r": 103, "@k": 2}]


def test_a_publisher_whose_clock_goes_back_does_not_wait_for_it_to_return() -> None:
    node = publisher(at=10**9)
    node.publish("t", b"", now_ns=50 * TICK)
    assert node.next_timer_ns() == 53 * TICK
    node.handle_timer(now_ns=53 * TICK)
    assert sent(node) == [{"@r": 53}]


def test_events_published_together_share_a_timestamp_and_differ_by_their_index() -> None:
    node = publisher()
    node.publish_together([("t", b"", None, None), ("u", b"", None, None)], now_ns=5 * TICK)
    node.publish("t", b"", now_ns=5 * TICK)
    assert sent(node) == [{"@r": 5}, {"@r": 5, "@i": 1}, {"@r": 5, "@k": 1}]


def test_events_beyond_the_limit_of_a_tick_wait_for_the_next() -> None:
    node = publisher(events_per_tick_max=2)
    for _ in range(5):
        node.publish("t", b"", now_ns=5 * TICK)
    assert [each["@r"] for each in sent(node)] == [5, 5]
    assert node.next_timer_ns() == 6 * TICK
    node.handle_timer(now_ns=6 * TICK)
    assert [each["@r"] for each in sent(node)] == [6, 6]
    node.handle_timer(now_ns=7 * TICK)
    assert [each["@r"] for each in sent(node)] == [7]


def test_waiting_events_have_a_named_limit() -> None:
    node = publisher(at=0, outgoing_max=1)
    node.publish("t", b"", now_ns=0)
    with pytest.raises(LimitReached, match="outgoing_max"):
        node.publish("t", b"", now_ns=0)


def test_restarted_publisher_continues_its_numbers() -> None:
    first = publisher(durable=True)
    first.publish("t", b"", now_ns=9 * TICK)
    first.publish("u", b"", now_ns=9 * TICK)
    records = {
        each.key: each.value
        for each in first.take_effects()
        if isinstance(each, Persist) and each.value is not None
    }
    again = MergedPublisher(name="p", config=config(), records=records, now_ns=0)
    assert again.publish("t", b"", now_ns=99 * TICK).id == "p/t/2"
    assert again.publish("v", b"", now_ns=99 * TICK).id == "p/v/1"


@pytest.mark.parametrize("array", [False, True])
def test_observed_events_come_before_later_publications(array: bool) -> None:
    """Another clock is ahead by epsilon: without the token the reply sorts before the request."""
    ahead, behind = publisher(name="a", array=array), publisher(name="b", array=array)
    ahead.publish("t", b"question", now_ns=12 * TICK)
    (question,) = sent(ahead)
    token = ahead.token(now_ns=12 * TICK)
    assert behind.observe(token, now_ns=10 * TICK)
    behind.publish("t", b"answer", now_ns=10 * TICK)
    (answer,) = sent(behind)
    kind = behind.timeline.kind
    keys = [kind.key(kind.from_entries(each, 12)) for each in (question, token, answer)]
    assert keys[0] == keys[1] < keys[2], "a token is not an event"


@pytest.mark.parametrize(
    "token", [{}, {"@r": -1}, {"@r": 13}, {"@r": 9, "@c": 3}, {"@r": 9, "@k": 10**15}]
)
def test_impossible_token_is_refused(token: dict[str, int]) -> None:
    node = publisher()
    assert not node.observe(token, now_ns=10 * TICK)
    node.publish("t", b"", now_ns=10 * TICK)
    assert sent(node) == [{"@r": 10}]


def test_a_topic_that_looks_like_an_entry_of_a_stamp_is_refused() -> None:
    with pytest.raises(BadInput, match="must not begin with '@'"):
        publisher().publish("@r", b"", now_ns=0)


# -- Subscribers -----------------------------------------------------------------------------------


def test_event_is_released_when_the_clock_passes_r_c_delta_and_epsilon() -> None:
    node = subscriber()
    give(node, 11, event(10, c=1))
    assert node.next_timer_ns() == (11 + 5 + 2 + 1) * TICK
    assert delivered(at(node, 18)) == []
    (out,) = [each for each in at(node, 19) if isinstance(each, Deliver)]
    assert (out.position, out.verdict, out.held_ns) == (1, "", 8 * TICK)
    assert node.held_count == 0
    assert node.next_timer_ns() == node.config.poll_ns


def test_topics_are_requested_periodically_even_after_a_clock_goes_back() -> None:
    node = subscriber("t", "u", poll_ns=1_000, retry_ns=100)
    assert node.next_timer_ns() == 1_000
    node.handle_timer(now_ns=999)
    assert node.take_effects() == []
    node.handle_timer(now_ns=1_000)
    assert node.take_effects() == [Attach("t", 0), Attach("u", 0)]
    node.receive(attached("t"), source="ens", now_ns=1_001)
    assert node.take_effects() == [], "it has been joined all along"
    node.handle_timer(now_ns=500)
    assert node.take_effects() == [Attach("t", 0), Attach("u", 0)], "2,000 is too far away"


def test_due_events_are_sorted_by_the_whole_key() -> None:
    node = subscriber()
    give(
        node,
        12,
        event(12, by="b", number=1),
        event(11, c=1, by="a", number=2),
        event(12, k=1, by="a", number=3),
        event(11, by="z", number=4),
    )
    order = [name for name, _ in delivered(at(node, 40))]
    assert order == ["z/t/4", "a/t/2", "b/t/1", "a/t/3"]


def test_late_events_are_dropped_and_counted() -> None:
    node = subscriber()
    assert discarded(give(node, 18, event(10))) == ["late"]
    assert discarded(give(node, 17, event(10, number=2))) == []
    assert node.counts.late == 1


def test_late_events_are_delivered_with_a_verdict_with_deliver_late() -> None:
    node = subscriber(deliver_late=True)
    late = event(10)
    assert delivered(give(node, 18, late)) == [("p/t/1", "late")]
    assert discarded(give(node, 19, late)) == ["duplicate"]
    give(node, 20, event(19, number=2))
    assert delivered(at(node, 27)) == [("p/t/2", "")]
    assert discarded(give(node, 60, event(19, number=2))) == ["duplicate"], "it was delivered"
    assert (node.counts.late, node.counts.duplicate, node.counts.delivered) == (1, 2, 1)


def test_remembered_events_have_a_limit() -> None:
    node = subscriber(deliver_late=True, remembered_max=2)
    for number in (1, 2, 3):
        give(node, 50, event(10, number=number))
    assert delivered(give(node, 50, event(10, number=1))) == [("p/t/1", "late")]
    assert discarded(give(node, 50, event(10, number=3))) == ["duplicate"]


def test_stamp_from_the_future_is_skewed() -> None:
    node = subscriber()
    assert discarded(give(node, 10, event(13))) == ["skewed"]
    assert discarded(give(node, 10, event(12, c=1))) == ["skewed"]
    assert discarded(give(node, 10, event(12))) == []
    assert node.counts.skewed == 2


@pytest.mark.parametrize(
    "entries",
    [{}, {"t": 4}, {"@r": 10, "@c": 3}, {"@r": 10, "@k": 10**15}, {"@r": -5}, {"@c": 1}],
)
def test_invalid_stamp_is_dropped_as_corrupt(entries: dict[str, int]) -> None:
    node = subscriber()
    odd = msgspec.structs.replace(event(10), stamp=Stamp(entries))
    assert discarded(give(node, 10, odd)) == ["corrupt"]
    plain = msgspec.structs.replace(event(10), stamp=None)
    assert discarded(give(node, 10, plain)) == ["corrupt"]
    assert node.counts.corrupt == 2


def test_duplicate_of_a_held_or_delivered_event_is_dropped() -> None:
    node = subscriber()
    assert discarded(give(node, 10, event(10), event(10))) == ["duplicate"]
    at(node, 18)
    assert discarded(give(node, 18, event(10))) == ["late"]


def test_late_event_without_room_counts_as_overflow_alone() -> None:
    node = subscriber(deliver_late=True)
    node.pause()
    assert discarded(give(node, 30, event(10))) == ["overflow"]
    assert (node.counts.received, node.counts.overflow, node.counts.late) == (1, 1, 0)


def test_full_buffer_drops_events_as_overflow() -> None:
    node = subscriber(held_max=1)
    assert discarded(give(node, 10, event(10), event(10, k=1, number=2))) == ["overflow"]
    assert node.counts.overflow == 1


def test_no_event_is_delivered_out_of_order_after_a_clock_goes_back() -> None:
    node = subscriber(deliver_late=True)
    give(node, 20, event(20))
    assert delivered(at(node, 40)) == [("p/t/1", "")], "the clock jumps ahead"
    give(node, 21, event(19, number=2), event(21, number=3))
    assert [verdict for _, verdict in delivered(at(node, 40))] == [""]
    assert node.counts.late == 1


def test_topics_are_requested_until_they_are_attached() -> None:
    node = MergedSubscriber(name="s", config=config(retry_ns=100))
    node.subscribe(("t", "u", "t"), now_ns=0)
    assert node.take_effects() == [Attach("t", 0), Attach("u", 0)]
    node.receive(attached("t"), source="ens", now_ns=50)
    assert node.take_effects() == [Join("t")]
    assert node.next_timer_ns() == 100
    node.handle_timer(now_ns=100)
    assert node.take_effects() == [Attach("u", 0)]
    node.unsubscribe(("u",), now_ns=0)
    assert node.take_effects() == [Detach("u")]
    node.receive(attached("u"), source="ens", now_ns=0)
    assert node.take_effects() == []
    assert node.topics == ("t",)


def test_order_recovers_from_a_fault_in_its_memory() -> None:
    node = subscriber()
    node.merger._frontier = ((10**12, 0), "~", 0)
    give(node, 100, event(100))
    assert delivered(at(node, 108)) == [("p/t/1", "")]


def test_application_must_subscribe_again_after_a_fault_in_its_inputs() -> None:
    """Topics and pauses are inputs: a node cannot distinguish a fault there from a command."""
    node = subscriber()
    node._joined.clear()
    (dropped,) = give(node, 100, event(100))
    assert isinstance(dropped, Discard)
    assert dropped.verdict == "not_subscribed"
    node.subscribe(("t",), now_ns=101 * TICK)
    node.receive(attached("t"), source="ens", now_ns=101 * TICK)
    give(node, 102, event(102, number=2))
    assert delivered(at(node, 110)) == [("p/t/2", "")]

    node._paused = True
    give(node, 120, event(120, number=3))
    assert delivered(at(node, 128)) == []
    assert node.counts.overflow == 1
    node.resume(now_ns=129 * TICK)
    give(node, 130, event(130, number=4))
    assert delivered(at(node, 138)) == [("p/t/4", "")]


def test_leaving_a_topic_drops_its_held_events() -> None:
    node = subscriber("t", "u")
    give(node, 10, event(10), event(10, k=1, topic="u"))
    node.unsubscribe(("t",), now_ns=10 * TICK)
    assert [type(each) for each in node.take_effects()] == [Detach, Leave, Discard]
    assert delivered(at(node, 50)) == [("p/u/1", "")]
    assert discarded(give(node, 50, event(50))) == ["not_subscribed"]


def test_a_restarted_subscriber_joins_its_topics_again() -> None:
    node = MergedSubscriber(name="s", config=config(durable=True), records={"topic/a/b": b""})
    assert node.take_effects() == [Attach("a/b", 0)]
    node.receive(attached("a/b"), source="ens", now_ns=0)
    assert node.take_effects() == [Join("a/b")]


def test_eager_subscriber_delivers_on_arrival_with_a_verdict() -> None:
    node = MergedSubscriber(name="s", config=config(), eager=True)
    node.subscribe(("t",), now_ns=0)
    node.receive(attached("t"), source="ens", now_ns=0)
    effects = give(node, 10, event(12, number=2), event(10), event(10))
    assert delivered(effects) == [("p/t/2", "early"), ("p/t/1", "early")]
    assert discarded(effects) == ["duplicate"]


def test_readings_travel_modulo_b_and_are_decoded_by_the_local_clock() -> None:
    sender, node = publisher(modulus=10), subscriber(modulus=10)
    sender.publish("t", b"", now_ns=1_234 * TICK)
    (broadcast,) = [each for each in sender.take_effects() if isinstance(each, Broadcast)]
    assert broadcast.event.stamp == Stamp({"@r": 4})
    give(node, 1_233, broadcast.event)
    assert node.next_timer_ns() == (1_234 + 7 + 1) * TICK
    over = msgspec.structs.replace(broadcast.event, stamp=Stamp({"@r": 10}))
    assert discarded(give(node, 1_233, over)) == ["corrupt"]


# -- What is measured ------------------------------------------------------------------------------


def alerts(effects: Sequence[Effect]) -> list[tuple[str, int, bool]]:
    return [
        (each.assumption, each.measured_ns // TICK, each.broken)
        for each in effects
        if isinstance(each, Alert)
    ]


def test_clock_near_its_bound_warns_and_beyond_it_alerts() -> None:
    node = subscriber(epsilon=10, delta=20)
    assert alerts(give(node, 100, event(107))) == []
    assert alerts(give(node, 100, event(108, number=2))) == [("clock", 8, False)]
    assert alerts(give(node, 100, event(109, number=3))) == [], "reported already"
    assert alerts(give(node, 100, event(111, number=4))) == [("clock", 11, True)]
    assert alerts(give(node, 100, event(140, number=5))) == []
    assert (node.counts.warned, node.counts.broken, node.counts.skewed) == (1, 1, 2)


def test_delay_near_its_bound_warns_and_beyond_it_alerts() -> None:
    node = subscriber(epsilon=10, delta=20)
    assert alerts(give(node, 123, event(100))) == []
    assert alerts(give(node, 124, event(100, number=2))) == [("delay", 24, False)]
    assert alerts(give(node, 131, event(100, number=3))) == [("delay", 31, True)]
    assert node.watch.peers["p"].highest_ticks == 31
    assert node.watch.peers["p"].lowest_ticks == 23


def test_alert_is_repeated_after_a_calm_period() -> None:
    node = subscriber(epsilon=10, delta=20)
    assert alerts(give(node, 124, event(100))) == [("delay", 24, False)]
    later = 124 + 16 * node.config.span_ticks
    assert alerts(give(node, later - 1, event(later - 25, number=2))) == []
    calm = later - 1 + 16 * node.config.span_ticks
    assert alerts(give(node, calm, event(calm, number=3))) == []
    assert alerts(give(node, calm, event(calm - 24, number=4))) == [("delay", 24, False)]


def test_monitored_peers_have_a_limit() -> None:
    node = subscriber(peers_max=1)
    give(node, 10, event(10, by="a"), event(10, by="b"))
    assert list(node.watch.peers) == ["a"]
    assert node.counts.unwatched == 1


# -- Levels ----------------------------------------------------------------------------------------


def test_relay_forwards_merged_events_in_order() -> None:
    relay = MergedRelay(name="m", config=config(durable=True))
    relay.receive(AttachRequest(topic="t", from_slot=0), source="s", now_ns=0)
    assert relay.take_effects() == [
        Persist("listener/1/t/s", b""),
        Persist("topic/t", b""),
        Attach("t", 0),
    ]
    relay.receive(attached("t"), source="ens", now_ns=0)
    assert relay.take_effects() == [Send("s", Attached(topic="t", first=0, next=0, sent=0))]
    relay.receive(AttachRequest(topic="t", from_slot=0), source="s2", now_ns=0)
    assert Send("s2", Attached(topic="t", first=0, next=0, sent=0)) in relay.take_effects()
    give(relay, 11, event(11, number=2), event(10))
    passed = [each for each in at(relay, 30) if isinstance(each, Multicast)]
    assert [each.peers for each in passed] == [("s", "s2"), ("s", "s2")]
    assert [each.frame for each in passed] == [
        Notify(event=event(10)),
        Notify(event=event(11, number=2)),
    ]
    relay.receive(DetachRequest(topic="t"), source="s", now_ns=0)
    assert relay.take_effects() == [Persist("listener/1/t/s", None)]
    relay.receive(DetachRequest(topic="t"), source="s2", now_ns=0)
    assert Detach("t") in relay.take_effects()


def test_restarted_relay_knows_its_listeners() -> None:
    records = {"listener/3/a/b/s": b"", "topic/a/b": b""}
    relay = MergedRelay(name="m", config=config(durable=True), records=records)
    relay.receive(attached("a/b"), source="ens", now_ns=0)
    assert relay.take_effects()[-1] == Send("s", Attached(topic="a/b", first=0, next=0, sent=0))


def test_two_levels_of_replicated_mergers_deliver_once_and_in_order() -> None:
    """Two relays below, one subscriber above that listens to both: it gets every event once."""
    below = config()
    relays = [MergedRelay(name=name, config=below) for name in ("m1", "m2")]
    above = MergedSubscriber(name="s", config=below.above(3), mergers=("m1", "m2"))
    above.subscribe(("t",), now_ns=0)
    for effect in above.take_effects():
        assert isinstance(effect, Send)
        relay = next(each for each in relays if each.name == effect.peer)
        relay.receive(effect.frame, source="s", now_ns=0)
        relay.receive(attached("t"), source="ens", now_ns=0)
        for answer in relay.take_effects():
            if isinstance(answer, Send):
                above.receive(answer.frame, source=relay.name, now_ns=0)
    assert above.topics == ("t",)
    events = [event(10 + number, number=number) for number in range(1, 8)]
    order: list[str] = []
    for tick in range(10, 80):
        for relay in relays:
            arriving = [each for each in events if each.publisher_seq + 12 == tick]
            for effect in [*give(relay, tick, *arriving), *at(relay, tick)]:
                if isinstance(effect, Multicast):
                    above.receive(effect.frame, source=relay.name, now_ns=tick * TICK)
        order += [name for name, _ in delivered(at(above, tick))]
        order += [name for name, _ in delivered(above.take_effects())]
    assert order == [each.id for each in events]
    assert above.counts.duplicate == len(events)
    assert above.counts.late == 0


# -- Configuration ---------------------------------------------------------------------------------


def test_period_is_rounded_up_to_ticks() -> None:
    assert [ticks_of(period, 10) for period in (0, 1, 10, 11)] == [0, 1, 1, 2]


def test_a_level_above_has_a_delta_that_is_larger_by_three_epsilon_to_the_end_of_the_tick() -> None:
    above = config(epsilon=2, delta=5).above(link_delta_ticks=4)
    assert above.delta_ticks == 5 + 3 * 2 + 1 + 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": -1}, "epsilon_ticks must be between"),
        ({"delta": 10**12}, "delta_ticks must be between"),
        ({"modulus": 9}, "modulus must be at least 10"),
        ({"held_max": 0}, "held_max must be at least 1"),
        ({"warn_percent": 101}, "warn_percent must be"),
    ],
)
def test_invalid_configuration_is_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        config(**wrong)
