"""Whether clients connect and subscribe again once faults are over.

A client that is not connected is owed no event, so a swarm that judges events alone accepts
servers that no client can connect to. `CONNECT_S` after healing, and as much later as the network
and its faults allow, every client is connected and subscribed, unless a rule refuses it. From then
on no client gets an error of its connection, and none of its calls that connect may wait longer.

The world looks at clients once a second, outside of their event loops: it changes no trace.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from ensue.client.bus import Bus
from ensue.client.subscription import Subscription
from ensue.testing.process import SECOND_NS, Process
from ensue.testing.world import World

__all__ = ["CONNECT_S", "ClientWatch"]

CONNECT_S = 20.0
"""How soon after healing all clients are connected, on the usual network."""
_NEVER = 1 << 62
_CALLS = ((Bus, "__aenter__"), (Subscription, "__aenter__"), (Bus, "advertise"))
"""Calls that wait for a server to take the client."""


def _never(_client: str) -> bool:
    return False


class ClientWatch:
    """Reports clients of a run that are not connected long after healing."""

    def __init__(
        self,
        world: World,
        problems: list[str],
        late_s: float,
        may_wait: Callable[[str], bool] = _never,
    ) -> None:
        self._world, self._problems, self._may_wait = world, problems, may_wait
        self.within_s = CONNECT_S + late_s
        """How soon after healing all clients are connected."""
        self._healed_ns: int | None = None
        self._is_over = False
        self._reported: dict[str, None] = {}
        self._since_ns: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """By call that connects: since when it waits; never, once that was reported."""

    def healed(self, clients: Sequence[Process]) -> None:
        """Expect clients to be connected soon. The list may still grow."""
        self._healed_ns = self._world.now_ns
        self._world.at(self._world.now_ns, self._look, clients)

    def over(self) -> None:
        """Expect nothing more: clients leave."""
        self._is_over = True

    def is_due(self, client: str) -> bool:
        """Return whether a client has to be connected."""
        if self._healed_ns is None or self._may_wait(client):
            return False
        return self._world.now_ns >= self._healed_ns + int(self.within_s * SECOND_NS)

    def failed(self, client: str, error: BaseException) -> None:
        """Report an error of a client that applications have to expect, if it comes too late."""
        if self.is_due(client):
            self._report(client, f"got {error!r}")

    @contextmanager
    def expects(self, client: str, *errors: type[Exception]) -> Iterator[None]:
        """Suppress errors, as `suppress` does, and report those that come too late."""
        try:
            yield
        except errors as error:
            self.failed(client, error)

    def _look(self, clients: Sequence[Process]) -> None:
        """Report calls that wait for too long, and look again in a second."""
        if self._is_over:
            return
        now_ns, limit_ns = self._world.now_ns, int(self.within_s * SECOND_NS)
        for client in clients:
            for call in _calls(client):
                if now_ns - self._since_ns.setdefault(call, now_ns) < limit_ns:
                    continue
                self._since_ns[call] = _NEVER
                if not self._may_wait(client.name):
                    self._report(client.name, f"waits in {call.__qualname__}")
        self._world.at(now_ns + SECOND_NS, self._look, clients)

    def _report(self, client: str, what: str) -> None:
        """Report the first thing that is wrong with a client."""
        if client not in self._reported:
            self._reported[client] = None
            self._problems.append(f"liveness: {self.within_s:g} s after healing {client} {what}")


def _calls(client: Process) -> list[Any]:
    """Return the calls that connect in which tasks of a client wait, by name."""
    if not client.alive:
        return []
    codes = [getattr(owner, name).__code__ for owner, name in _CALLS]
    found = []
    for task in client.loop.tasks:
        coroutine: Any = None if task.done() else task.get_coro()
        while coroutine is not None and getattr(coroutine, "cr_code", None) not in codes:
            coroutine = getattr(coroutine, "cr_await", None)
        if coroutine is not None:
            found.append(coroutine)
    return sorted(found, key=lambda call: str(call.__qualname__))
