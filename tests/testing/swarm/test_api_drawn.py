"""Programs of the swarm use the whole public API: what none of them uses is not judged."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import pytest

import ensue
from ensue.client.content.attempts import Attempt, Attempts
from ensue.client.content.plan import PlannedClient
from ensue.client.handover import Batches
from ensue.testing.swarm import draw, run
from ensue.testing.swarm.rare_calls import possible_calls
from ensue.testing.swarm.seeds import ORDERS

CALLED = (
    ensue.Bus,
    ensue.Subscription,
    ensue.ReceivedEvent,
    ensue.Transaction,
    ensue.InvitedTransaction,
    ensue.PlannedTransaction,
    PlannedClient,
    Attempt,
    Attempts,
    Batches,
)
"""Classes whose methods programs call."""
MADE = (
    ensue.Total,
    ensue.Causal,
    ensue.Merged,
    ensue.Deadline,
    ensue.Park,
    ensue.Retry,
    ensue.PerKey,
    ensue.Stop,
    ensue.Sequential,
)
"""Classes of which programs make values."""

_OF_THE_CLIENT = "other modules of the client call it"
_ON_A_DISK = "writes files, and simulated disks are those of servers"
_PLAIN = "is a plain value, which no program can change"
_RAISES = "raises at once: there is no such call"
_SHARED = "is the same code for a transaction's coordinator and for clients that it invites"
NOT_DRAWN = {
    "Bus.recording": _ON_A_DISK,
    "connect(record)": _ON_A_DISK,
    "connect(trace)": _ON_A_DISK,
    "PlannedTransaction.invite": _RAISES,
    "ReceivedEvent.deadline": _PLAIN,
    "ReceivedEvent.stamp": _PLAIN,
    "ReceivedEvent.with_verdict": _OF_THE_CLIENT,
    "Subscription.acknowledge": _OF_THE_CLIENT,
    "Subscription.closed": _PLAIN,
    "Subscription.finish": _OF_THE_CLIENT,
    "Subscription.rest": _OF_THE_CLIENT,
    "Subscription.settle": _OF_THE_CLIENT,
    "Subscription.until_safe": _OF_THE_CLIENT,
    "Transaction.check_awaited": _OF_THE_CLIENT,
    "Transaction.end": _OF_THE_CLIENT,
    "InvitedTransaction.check_awaited": _OF_THE_CLIENT,
    "InvitedTransaction.invite(at_least)": _SHARED,
    "Transaction.subscribe(acknowledge)": _SHARED,
    "Transaction.subscribe(name)": _SHARED,
    "Transaction.subscribe(pending_max)": _SHARED,
    "InvitedTransaction.end": _OF_THE_CLIENT,
    "PlannedTransaction.note_end": _OF_THE_CLIENT,
    "PlannedTransaction.note_event": _OF_THE_CLIENT,
    "PlannedTransaction.note_new": _OF_THE_CLIENT,
}
"""By call or option: why no program of the swarm uses it."""


class Uses:
    """The calls and options that programs of the swarm used."""

    def __init__(self) -> None:
        self.known: dict[str, None] = {}
        self.used: set[str] = set()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the uses of the API."""
        with ExitStack() as stack:
            for each in CALLED:
                for name in [name for name in dir(each) if not name.startswith("_")]:
                    watched = self._watch_member(each, name)
                    if watched is not None:
                        stack.enter_context(mock.patch.object(each, name, watched))
            for kind in MADE:
                made = self._watch(kind.__init__, kind.__name__, anywhere=True)
                stack.enter_context(mock.patch.object(kind, "__init__", made))
            connect = self._watch(ensue.connect, "connect")
            stack.enter_context(mock.patch.object(ensue, "connect", connect))
            yield

    def _watch_member(self, owner: type, name: str) -> Any:
        call, member = f"{owner.__name__}.{name}", inspect.getattr_static(owner, name)
        if inspect.isfunction(member):
            return self._watch(member, call)
        if not isinstance(member, property):
            return None
        self.known[call] = None
        read: Any = member.fget

        def note(instance: Any) -> Any:
            if _is_in_a_program():
                self.used.add(call)
            return read(instance)

        return property(note)

    def _watch(self, function: Any, call: str, *, anywhere: bool = False) -> Callable[..., Any]:
        signature = inspect.signature(function)
        defaults = {
            each.name: each.default
            for each in signature.parameters.values()
            if each.default is not each.empty
        }
        self.known[call] = None
        self.known.update(dict.fromkeys(f"{call}({name})" for name in defaults))

        @wraps(function)
        def watched(*arguments: Any, **options: Any) -> Any:
            if anywhere or _is_in_a_program():
                self.used.add(call)
                given = signature.bind(*arguments, **options).arguments
                self.used.update(
                    f"{call}({name})"
                    for name, value in given.items()
                    if name in defaults and value is not defaults[name] and value != defaults[name]
                )
            return function(*arguments, **options)

        return watched


def _is_in_a_program() -> bool:
    """Return whether a program of the swarm made the call that is noted, and not the client."""
    frame = sys._getframe(2)
    for _ in range(3):
        name = frame.f_globals.get("__name__", "")
        if name.startswith("ensue."):
            return bool(name.startswith("ensue.testing.swarm"))
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def seeds(order: str) -> list[int]:
    """Return some seeds of an order, and for each rare call the first ones that draw it."""
    chosen, missing = dict.fromkeys(range(4)), dict.fromkeys(possible_calls(order), 3)
    for seed in range(300):
        for call in getattr(draw(seed, order), "calls", ()):
            if missing.get(call):
                chosen[seed] = None
                missing[call] -= 1
    return list(chosen)


@pytest.mark.verify
def test_programs_use_all_calls_and_options_of_the_api() -> None:
    uses = Uses()
    with uses.noted():
        for order in ORDERS:
            for seed in seeds(order):
                run(draw(seed, order))
    missing = {each for each in uses.known if each not in uses.used}
    # An option of a call that no program makes is not listed apart.
    missing -= {each for each in missing if "(" in each and each.partition("(")[0] in missing}
    assert sorted(missing - set(NOT_DRAWN)) == []
    assert sorted(set(NOT_DRAWN) - missing) == []
