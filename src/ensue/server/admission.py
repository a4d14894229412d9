"""Room for connections: how many may stay, and which one goes when another one comes.

Connections that have not proved anything yet (no TLS handshake, no hello) have a room of their own, of `limits.unauthenticated_connections`. It is never closed:
beyond it the oldest connection of the address that has the most of them goes. A client that says hello at once leaves it within
milliseconds, however many others stand there in silence.

A client that was let in takes one of `limits.connections` places, of which `limits.connections_per_address` are for one address. Beyond,
it is told so, and hung up on.

The other servers of the chain take no such place: a server full of clients still takes them. Each has `STATION_CONNECTIONS_MAX` connections at the
most; beyond, its oldest goes.

Addresses of IPv6 count together if they share the first 64 bits, which one host or site has to itself.
"""

import logging
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from ensue.errors import limit_reason
from ensue.server.config import Limits

__all__ = ["STATION_CONNECTIONS_MAX", "Admission", "Newcomer", "source_of"]

STATION_CONNECTIONS_MAX = 4
TOLD_EVERY_S = 10.0

_log = logging.getLogger("ensue")


class Newcomer(Protocol):
    """A connection."""

    host: str
    """What it counts for, as `source_of` says."""

    def abort(self) -> None:
        """Hang up at once."""


class Admission:
    """The connections of one server. `time_s` is a clock; `errors` counts what was refused."""

    def __init__(
        self, limits: Limits, *, time_s: Callable[[], float], errors: Counter[str]
    ) -> None:
        self._limits = limits
        self._time_s = time_s
        self._errors = errors
        self._waiting: dict[str, dict[Newcomer, None]] = {}
        """By address: those that have not proved anything, the oldest first."""
        self._waiting_count = 0
        self._clients: dict[Newcomer, None] = {}
        self._per_host: Counter[str] = Counter()
        """Clients, by address."""
        self._stations: dict[str, dict[Newcomer, None]] = {}
        """By server of the chain."""
        self._evicted = 0
        """Since it was last said."""
        self._told_s = float("-inf")

    @property
    def waiting(self) -> int:
        """Connections that have not proved anything yet."""
        return self._waiting_count

    def come(self, one: Newcomer) -> None:
        """Take up a connection; another one that waits may have to go."""
        self._waiting.setdefault(one.host, {})[one] = None
        self._waiting_count += 1
        if self._waiting_count > self._limits.unauthenticated_connections:
            crowd = max(self._waiting.values(), key=len)
            oldest = next(iter(crowd))
            self.leave(oldest)
            self._evict(oldest)

    def enter(self, one: Newcomer, station: str) -> str | None:
        """Give a place to a client, or to another server of the chain; return why there is none."""
        if station:
            theirs = self._stations.setdefault(station, {})
            self._stop_waiting(one)
            theirs[one] = None
            if len(theirs) > STATION_CONNECTIONS_MAX:
                oldest = next(iter(theirs))
                self.leave(oldest)
                oldest.abort()
            return None
        limits = self._limits
        if len(self._clients) >= limits.connections:
            return limit_reason(
                "there are too many connections",
                "connections",
                limits.connections,
                "raise limits.connections in the server's file, or close some",
            )
        if self._per_host[one.host] >= limits.connections_per_address:
            return limit_reason(
                f"there are too many connections from {one.host}",
                "connections_per_address",
                limits.connections_per_address,
                "raise limits.connections_per_address in the server's file, or close some",
            )
        self._stop_waiting(one)
        self._clients[one] = None
        self._per_host[one.host] += 1
        return None

    def leave(self, one: Newcomer) -> None:
        """Forget a connection; once is enough."""
        self._stop_waiting(one)
        if self._clients.pop(one, 0) is None:
            self._per_host[one.host] -= 1
            if not self._per_host[one.host]:
                del self._per_host[one.host]
        for station, theirs in list(self._stations.items()):
            theirs.pop(one, None)
            if not theirs:
                del self._stations[station]

    def _stop_waiting(self, one: Newcomer) -> None:
        crowd = self._waiting.get(one.host, {})
        if crowd.pop(one, 0) is None:
            self._waiting_count -= 1
            if not crowd:
                del self._waiting[one.host]

    def _evict(self, oldest: Newcomer) -> None:
        self._errors["limit"] += 1
        self._evicted += 1
        now_s = self._time_s()
        if now_s - self._told_s >= TOLD_EVERY_S:
            _log.warning(
                "evicted connections without hello: count=%d last=%s "
                "limits.unauthenticated_connections=%d",
                self._evicted,
                oldest.host,
                self._limits.unauthenticated_connections,
                extra={"fault": "limit"},
            )
            self._told_s, self._evicted = now_s, 0
        oldest.abort()


def source_of(peer: object) -> str:
    """Return what a connection counts for, given the address of its other end."""
    if not isinstance(peer, tuple) or not peer:
        return "?"
    host = str(peer[0]).partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"
