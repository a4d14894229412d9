"""Planted bugs in registry, membership client, registered nodes and fan-outs are found.

A bug is found, as in `test_mutants_total`, if the outcome is invalid, a node is stuck, or a check
in production code fails. The seed that found a bug last time is tried first.
`python -m tests.simulation.swarms.test_mutants_membership [NAME …]` searches from 0.
"""

import sys
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from tests.simulation.swarms.planted import CAUGHT, Mutant, Search, patched

from ensue.core.errors import ConfigurationError
from ensue.protocols.deadline.registered import RegisteredBroker
from ensue.protocols.interface import Effect, Frame, Send
from ensue.protocols.membership.client import KnownMembers, MembershipClient, MembershipUpdate
from ensue.protocols.membership.frames import Action, Members, Register
from ensue.protocols.membership.registry import Registry
from ensue.protocols.topic_log.fanout import Agreed, Fanout
from ensue.protocols.topic_log.frames import Accepted
from ensue.simulation.seeds import DRAWS

SEEDS_MAX = 400
"""Each mutant must be caught by one of the first so many seeds."""

real_send_update, real_take, real_update = (
    Registry._send_update,
    KnownMembers.take,
    MembershipClient._update,
)
real_receive, real_admit, real_refusal = Registry.receive, Registry._admit, Registry._refusal
real_take_effects, real_attach = Fanout.take_effects, Fanout._attach
real_broker_init, real_resign = RegisteredBroker.__init__, MembershipClient.resign


# -- Registry --------------------------------------------------------------------------------------


def numbers_members_that_are_present(self: Registry, name: str, terms: str, now_ns: int) -> None:
    """A departure is reported by the number of another member."""
    present = len(self._present)
    real_admit(self, name, terms, now_ns)
    self._numbers[name] = present


def reports_no_departures(self: Registry, peer: str, known: int, gone: int, **more: Any) -> None:
    """Members that left are not reported."""
    real_send_update(self, peer, known, gone, **more)
    sent = self._effects[-1]
    assert isinstance(sent, Send)
    assert isinstance(sent.frame, Members)
    frame = msgspec.structs.replace(sent.frame, gone=(), gone_total=0)
    self._effects[-1] = Send(peer, frame)


def evicts_no_member(self: Registry, *, now_ns: int) -> None:
    """A silent member stays a member."""
    self._sweep_due_ns = now_ns + self._expire_ns


def takes_any_client_back(self: Registry, frame: Register, source: str) -> str:
    """A member that was evicted is not notified."""
    why = real_refusal(self, frame, source)
    return "" if source in self._numbers and source not in self._present else why


def grants_publishing_alone(self: Registry, frame: Frame, *, source: str, now_ns: int) -> None:
    """Every topic request is answered as one to publish."""
    if hasattr(frame, "action"):
        frame = msgspec.structs.replace(frame, action="publish")
    real_receive(self, frame, source=source, now_ns=now_ns)


# -- Membership client -----------------------------------------------------------------------------


def appends_across_gaps(self: KnownMembers, members: Members) -> bool:
    """An update that overtook another is appended where it does not belong."""
    first = min(members.first, len(self.names))
    gone_first = min(members.gone_first, len(self.gone))
    return real_take(self, msgspec.structs.replace(members, first=first, gone_first=gone_first))


def fits_always(self: KnownMembers, members: Members) -> bool:
    """Lists are not compared."""
    return True


def never_polls(self: MembershipClient, now_ns: int) -> None:
    """Members that were not reported in time stay unknown."""
    self._poll_due_ns = now_ns + 3_600_000_000_000
    self._asked_ns = now_ns
    if self._leaving:
        self.resign()


def asks_once(self: MembershipClient, topic: str, action: Action, now_ns: int) -> None:
    """A topic request is not repeated."""
    if (topic, action) not in self._asks:
        self._ask(topic, action, now_ns)
        self._asks[topic, action] = now_ns + 3_600_000_000_000


def resigns_once(self: MembershipClient) -> None:
    """A member that leaves says so once."""
    if not self._leaving:
        real_resign(self)


def ignores_departures(self: MembershipClient, frame: Members, now_ns: int) -> MembershipUpdate:
    """A member that left is not removed."""
    return msgspec.structs.replace(real_update(self, frame, now_ns), went=[])


# -- Registered nodes ------------------------------------------------------------------------------


def broker_without_warm_up(self: RegisteredBroker, **options: object) -> None:
    """A new broker takes commands before it knows the groups of others."""
    real_broker_init(self, **options)  # type: ignore[arg-type]
    self._settle_due_ns = 0
    self._settle(1)


def admits_in_any_order(self: MembershipClient, frame: Members, now_ns: int) -> MembershipUpdate:
    """New members get each other's numbers."""
    update = real_update(self, frame, now_ns)
    return msgspec.structs.replace(update, came=update.came[::-1])


# -- Fan-outs --------------------------------------------------------------------------------------


def answers_nothing(self: Fanout) -> Iterable[Effect]:
    """Events are not answered."""
    return [
        each
        for each in real_take_effects(self)
        if not isinstance(each, Send) or not isinstance(each.frame, Accepted)
    ]


def agrees_on_nothing(self: Fanout) -> Iterable[Effect]:
    """The answer to terms has no terms."""
    return [
        Send(each.peer, Agreed(terms=""))
        if isinstance(each, Send) and isinstance(each.frame, Agreed)
        else each
        for each in real_take_effects(self)
    ]


def attaches_to_stale_list(self: Fanout, topic: str, peer: str) -> None:
    """A new listener is left out until another change."""
    peers = self._peers.get(topic)
    real_attach(self, topic, peer)
    if peers is not None:
        self._peers[topic] = peers


CAUSAL = (
    patched("reports no departures", 277, Registry, "_send_update", reports_no_departures),
    patched("evicts no member", 277, Registry, "handle_timer", evicts_no_member),
    patched("takes any client back", 341, Registry, "_refusal", takes_any_client_back),
    patched("grants publishing alone", 7, Registry, "receive", grants_publishing_alone),
    Mutant(
        "appends across gaps",
        10,
        patches=((KnownMembers, "take", appends_across_gaps), (KnownMembers, "fits", fits_always)),
    ),
    patched("never polls", 7, MembershipClient, "question", never_polls),
    patched("asks once", 7, MembershipClient, "ask", asks_once),
    patched("resigns once", 10, MembershipClient, "resign", resigns_once),
    patched("ignores departures", 277, MembershipClient, "_update", ignores_departures),
    patched("admits in any order", 7, MembershipClient, "_update", admits_in_any_order),
)
DEADLINE = (
    patched("numbers by presence", 10, Registry, "_admit", numbers_members_that_are_present),
    patched("never polls", 10, MembershipClient, "question", never_polls),
    patched("no warm-up", 10, RegisteredBroker, "__init__", broker_without_warm_up),
)
MERGED = (
    patched("answers nothing", 4, Fanout, "take_effects", answers_nothing),
    patched("agrees on nothing", 4, Fanout, "take_effects", agrees_on_nothing),
    patched("attaches to a stale list", 58, Fanout, "_attach", attaches_to_stale_list),
)
MUTANTS = {"causal": CAUSAL, "deadline": DEADLINE, "merged": MERGED}
SEARCHES = {order: Search(DRAWS[order], caught=(*CAUGHT, ConfigurationError)) for order in MUTANTS}
"""A node with wrong lists may refuse the names in them."""


@pytest.mark.parametrize(
    ("order", "mutant"),
    [
        pytest.param(order, mutant, id=f"{order}-{mutant.name.replace(' ', '-')}")
        for order, mutants in MUTANTS.items()
        for mutant in mutants
    ],
)
def test_swarm_finds_planted_bug(order: str, mutant: Mutant) -> None:
    search = SEARCHES[order]
    assert not search.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert search.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    for name, planted in MUTANTS.items():
        print(name)  # noqa: T201
        SEARCHES[name].print_seeds(planted, sys.argv[1:], range(SEEDS_MAX))
