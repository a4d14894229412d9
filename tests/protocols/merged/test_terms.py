"""The terms of merged order: agreed on with fan-outs, or carried by stamps and compared."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.protocols.merged.test_nodes import (
    attached,
    config,
    delivered,
    discarded,
    event,
    give,
    sent,
)

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Alert, Effect, Refuse, Resumed, Send
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.merged.terms import MergedTerms, terms_from
from ensue.protocols.topic_log.fanout import Agree, Agreed

OWN = config().terms
NEAR, FAR = "s1/merged", "s2/merged"


def publisher(*fanouts: str, stamps_terms: bool = False) -> MergedPublisher:
    return MergedPublisher(name="p", config=config(), fanouts=fanouts, stamps_terms=stamps_terms)


def client() -> MergedPublisher:
    return publisher(NEAR, FAR)


def subscriber(
    *, eager: bool = False, terms: MergedTerms | None = None, **bounds: int
) -> MergedSubscriber:
    node = MergedSubscriber(name="s", config=config(**bounds), eager=eager, terms=terms)
    node.subscribe(("t",), now_ns=0)
    node.receive(attached("t"), source="ens", now_ns=0)
    node.take_effects()
    return node


def asked(effects: Sequence[Effect]) -> list[str]:
    return [
        each.peer
        for each in effects
        if isinstance(each, Send) and each.frame == Agree(terms=str(OWN))
    ]


def agree(node: MergedPublisher, terms: str, source: str) -> list[Effect]:
    node.receive(Agreed(terms=terms), source=source, now_ns=0)
    return list(node.take_effects())


def test_terms_survive_a_round_trip() -> None:
    terms = MergedTerms(500_000, 40, 2_000)
    assert str(terms) == "epsilon=0.02, delta=1, tick=0.0005"
    assert terms_from({"@r": 7, **terms.to_entries()}) == terms
    usual = MergedTerms(1_000_000, 0, 0)
    assert usual.to_entries() == {"@e": 0, "@w": 0}
    assert terms_from(usual.to_entries()) == usual
    assert terms_from({"@r": 7}) is None


def test_client_requests_all_fanouts_and_resumes_when_its_own_agrees() -> None:
    node = client()
    assert asked(node.take_effects()) == [NEAR, FAR]
    assert agree(node, str(OWN), FAR) == []
    assert agree(node, "anything", "stranger") == []
    assert agree(node, str(OWN), NEAR) == [Resumed()]
    assert agree(node, str(OWN), NEAR) == []
    assert node.next_timer_ns() is None


def test_silent_fanouts_are_asked_again_and_all_are_after_a_reconnect() -> None:
    node = client()
    node.take_effects()
    agree(node, str(OWN), NEAR)
    due_ns = node.next_timer_ns()
    assert due_ns == config().retry_ns
    node.handle_timer(now_ns=due_ns - 1)
    assert asked(node.take_effects()) == []
    node.handle_timer(now_ns=due_ns)
    assert asked(node.take_effects()) == [FAR]
    node.repeat(now_ns=due_ns + 1)
    assert asked(node.take_effects()) == [NEAR, FAR]
    assert agree(node, str(OWN), NEAR) == []


@pytest.mark.parametrize("late", [False, True])
def test_a_client_with_other_terms_gives_up_and_names_both(late: bool) -> None:
    node = client()
    node.take_effects()
    if late:
        agree(node, str(OWN), NEAR)
        node.repeat(now_ns=1)
        node.take_effects()
    (refused,) = agree(node, "epsilon=9", FAR)
    assert isinstance(refused, Refuse)
    assert refused.topics == ()
    assert refused.reason.startswith(f"merged order at s2 has epsilon=9, this bus has {OWN}: ")
    assert agree(node, "epsilon=9", NEAR) == []
    node.repeat(now_ns=2)
    node.handle_timer(now_ns=2)
    assert node.take_effects() == []
    assert node.next_timer_ns() is None


def test_departed_client_withdraws_its_terms() -> None:
    node = client()
    node.take_effects()
    node.say_goodbye()
    assert node.take_effects() == [Send(NEAR, Agree(terms="")), Send(FAR, Agree(terms=""))]
    alone = publisher()
    alone.say_goodbye()
    assert alone.take_effects() == []


def test_stamps_carry_the_terms_where_no_fanout_exists() -> None:
    for stamps_terms in (True, False):
        node = publisher(stamps_terms=stamps_terms)
        node.publish("t", b"", now_ns=100 * config().tick_ns)
        (entries,) = sent(node)
        assert terms_from(entries) == (OWN if stamps_terms else None)


def stamped(number: int, terms: MergedTerms, by: str = "p") -> Event:
    made = event(10, by=by, number=number)
    assert made.stamp is not None
    return msgspec.structs.replace(made, stamp=Stamp(made.stamp.entries | terms.to_entries()))


def alerts(effects: Sequence[Effect]) -> list[tuple[str, str, str]]:
    return [
        (each.peer, each.theirs, each.ours)
        for each in effects
        if isinstance(each, Alert) and each.assumption == "terms"
    ]


@pytest.mark.parametrize(
    "other",
    [
        MergedTerms(OWN.tick_ns * 2, OWN.epsilon_ticks, OWN.delta_ticks),
        MergedTerms(OWN.tick_ns, OWN.epsilon_ticks + 1, OWN.delta_ticks),
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_mismatched_events_are_dropped_counted_and_reported_once(
    other: MergedTerms, eager: bool
) -> None:
    node = subscriber(eager=eager)
    effects = give(node, 10, stamped(1, other), stamped(2, other), stamped(1, other, "q"))
    assert discarded(effects) == ["mismatched"] * 3
    assert alerts(effects) == [("p", str(other), str(OWN)), ("q", str(other), str(OWN))]
    assert node.counts.mismatched == 3
    assert node.counts.corrupt == 0
    assert discarded(give(node, 10, stamped(3, OWN))) == []


def test_events_with_another_delta_are_reported_and_delivered() -> None:
    other = MergedTerms(OWN.tick_ns, OWN.epsilon_ticks, OWN.delta_ticks + 1)
    node = subscriber()
    effects = give(node, 10, stamped(1, other))
    assert alerts(effects) == [("p", str(other), str(OWN))]
    node.handle_timer(now_ns=100 * config().tick_ns)
    assert len(delivered(node.take_effects())) == 1
    assert node.counts.mismatched == 1


def test_a_subscription_with_a_delta_of_its_own_compares_the_terms_of_its_bus() -> None:
    node = subscriber(delta=50, terms=OWN)
    assert alerts(give(node, 10, stamped(1, OWN))) == []


def test_publishers_are_reported_again_with_other_terms_up_to_a_limit() -> None:
    node = subscriber(peers_max=1)
    one, two = (MergedTerms(OWN.tick_ns, OWN.epsilon_ticks + n, OWN.delta_ticks) for n in (1, 2))
    effects = give(node, 10, stamped(1, one), stamped(2, two), stamped(1, one, "q"))
    assert [peer for peer, *_ in alerts(effects)] == ["p", "p"]
    assert node.counts.mismatched == 3
