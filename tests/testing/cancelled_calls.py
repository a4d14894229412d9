"""The calls of the public API that suspend, and which of them a sweep has cancelled.

`API` has each public method that returns an awaitable, of the classes that users get. `noted` has
those noted in which a call that was cancelled has waited.
"""

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from tests.testing.cancelled import CUT

import ensue
import ensue.server
import ensue.testing
from ensue.client.content.attempts import Attempt, Attempts
from ensue.client.content.plan import PlannedClient
from ensue.client.handover import Batches
from ensue.testing.cancellation import _observed

__all__ = ["API", "NOT_CANCELLED", "noted", "unlisted_classes"]

RETURNED: tuple[type, ...] = (Attempt, Attempts, Batches, PlannedClient)
"""Classes that no package exports, and that methods of exported ones return."""
AWAITABLES = ("Awaitable[", "Coroutine[", "Future[", "Task[")

_AT_ONCE = "writes down an operation, which `commit` or `hold` submits: it never waits"
_RAISES = "raises at once: there is no such call"
_OF_THE_WORLD = "makes the simulated world: without it there is no program to go on"
_ON_SOCKETS = "suspends only where there are real sockets, as another test has them"
_INTERNAL = "is the same for `PlannedClient`"
NOT_CANCELLED = {
    "Attempts.__aenter__": _RAISES,
    "Attempts.__aexit__": _RAISES,
    "PlannedTransaction.invite": _RAISES,
    "PlannedTransaction.publish": _AT_ONCE,
    "PlannedTransaction.advertise": _AT_ONCE,
    "PlannedTransaction.unadvertise": _AT_ONCE,
    "PlannedTransaction.unsubscribe": _AT_ONCE,
    "PlannedClient.publish": _AT_ONCE,
    "PlannedClient.advertise": _AT_ONCE,
    "PlannedClient.unadvertise": _AT_ONCE,
    "PlannedClient.subscribe": _AT_ONCE,
    "PlannedClient.unsubscribe": _AT_ONCE,
    "PlannedTransaction.note_event": _INTERNAL,
    "PlannedTransaction.note_new": _INTERNAL,
    "PlannedTransaction.note_end": _INTERNAL,
    "Subscription.unsubscribe": "takes effect at once: it never waits",
    "Simulation.serve": _OF_THE_WORLD,
    "Simulation.broker": _OF_THE_WORLD,
    "Cluster.start": _OF_THE_WORLD,
    "Cluster.serve": "is the program of a server's process, which faults kill and cancel",
    "Server.start": _ON_SOCKETS,
    "Broker.start": _OF_THE_WORLD,
}
"""By call: why no sweep cancels it while it waits."""


def _classes() -> Iterator[type]:
    for package in (ensue, ensue.server, ensue.testing):
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value):
                yield value
    yield from RETURNED


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.endswith("__")


def _suspends(method: Any) -> bool:
    if not inspect.isfunction(method):
        return False
    returned = str(inspect.signature(method).return_annotation)
    return inspect.iscoroutinefunction(method) or any(each in returned for each in AWAITABLES)


def _calls() -> Iterator[tuple[str, tuple[type, str]]]:
    for each in _classes():
        for name, method in inspect.getmembers(each):
            if _is_public(name) and _suspends(method):
                yield f"{each.__name__}.{name}", (each, name)


API: dict[str, tuple[type, str]] = dict(_calls())
"""By call: its class and the method's name."""


def unlisted_classes() -> set[str]:
    """Return classes with such calls that methods of the API return, and that `API` is without."""
    listed = set(_classes())
    returned = {
        word
        for each in listed
        for name, method in inspect.getmembers(each, inspect.isfunction)
        if _is_public(name)
        for word in re.findall(r"\w+", str(inspect.signature(method).return_annotation))
    }
    known = {
        value
        for module in [each for each in sys.modules if each.startswith("ensue.")]
        for name, value in vars(sys.modules[module]).items()
        if name in returned and inspect.isclass(value) and value.__module__.startswith("ensue.")
    }
    suspending = {
        each for each in known if any(_suspends(method) for _, method in inspect.getmembers(each))
    }
    return {each.__name__ for each in suspending - listed}


@contextmanager
def noted(calls: set[str]) -> Iterator[None]:
    """Note calls of the API in which a call waits that `Client.cuts` cancels."""
    with ExitStack() as stack:
        for call, (owner, name) in API.items():
            watched = _watched(getattr(owner, name), call, calls)
            stack.enter_context(mock.patch.object(owner, name, watched))
        yield


def _watched(method: Callable[..., Awaitable[Any]], call: str, calls: set[str]) -> Any:
    def suspended(_waits_for: object) -> None:
        cut = CUT.get()
        if cut is not None and not cut.over:
            calls.add(call)

    async def watch(awaitable: Awaitable[Any]) -> Any:
        return await _observed(awaitable, suspended)

    @wraps(method)
    def watched(*arguments: Any, **options: Any) -> Any:
        return watch(method(*arguments, **options))

    return watched
