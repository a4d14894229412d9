"""Connection limits, and eviction of unauthenticated connections.

Unauthenticated connections (no TLS handshake or no hello yet) have their own limit,
`limits.unauthenticated_connections`. A new one is always accepted: beyond the limit, the oldest
connection of the address with the most of them is evicted. A client that sends hello at once leaves
this state within milliseconds, however many silent connections there are.

An authenticated client counts for `limits.connections`, and for `limits.connections_per_address`.
Beyond either, it is rejected with a reason.

Other servers of the chain do not count: a server full of clients still accepts them. Each may have
`STATION_CONNECTIONS_MAX` connections; beyond, its oldest is closed.

IPv6 addresses count together if they share the first 64 bits, which belong to one host or site.
"""

import logging
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from ensue.core.errors import limit_reason
from ensue.server.config import Limits

__all__ = ["STATION_CONNECTIONS_MAX", "Admissible", "Admission", "source_of"]

STATION_CONNECTIONS_MAX = 4
LOG_EVERY_S = 10.0

_log = logging.getLogger("ensue")


class Admissible(Protocol):
    """A connection that `Admission` can count and close."""

    host: str
    """The source it counts for, by `source_of`."""

    def abort(self) -> None:
        """Close the connection at once."""


class Admission:
    """The connections of one server; `time_s` is a clock, `errors` counts rejections."""

    def __init__(
        self, limits: Limits, *, time_s: Callable[[], float], errors: Counter[str]
    ) -> None:
        self._limits = limits
        self._time_s = time_s
        self._errors = errors
        self._waiting: dict[str, dict[Admissible, None]] = {}
        """By address: unauthenticated connections, the oldest first."""
        self._waiting_count = 0
        self._clients: dict[Admissible, None] = {}
        self._per_host: Counter[str] = Counter()
        """Clients, by address."""
        self._stations: dict[str, dict[Admissible, None]] = {}
        """By server of the chain."""
        self._evicted = 0
        """Connections evicted since this was last logged."""
        self._logged_s = float("-inf")

    @property
    def waiting(self) -> int:
        """Number of unauthenticated connections."""
        return self._waiting_count

    def add(self, one: Admissible) -> None:
        """Add an unauthenticated connection; evict another one beyond the limit."""
        self._waiting.setdefault(one.host, {})[one] = None
        self._waiting_count += 1
        if self._waiting_count > self._limits.unauthenticated_connections:
            largest = max(self._waiting.values(), key=len)
            oldest = next(iter(largest))
            self.remove(oldest)
            self._evict(oldest)

    def admit(self, one: Admissible, station: str) -> str | None:
        """Admit a client or another server; return the limit that it exceeds, or None."""
        if station:
            theirs = self._stations.setdefault(station, {})
            self._stop_waiting(one)
            theirs[one] = None
            if len(theirs) > STATION_CONNECTIONS_MAX:
                oldest = next(iter(theirs))
                self.remove(oldest)
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

    def remove(self, one: Admissible) -> None:
        """Remove a connection; idempotent."""
        self._stop_waiting(one)
        if self._clients.pop(one, 0) is None:
            self._per_host[one.host] -= 1
            if not self._per_host[one.host]:
                del self._per_host[one.host]
        for station, theirs in list(self._stations.items()):
            theirs.pop(one, None)
            if not theirs:
                del self._stations[station]

    def _stop_waiting(self, one: Admissible) -> None:
        waiting = self._waiting.get(one.host, {})
        if waiting.pop(one, 0) is None:
            self._waiting_count -= 1
            if not waiting:
                del self._waiting[one.host]

    def _evict(self, oldest: Admissible) -> None:
        self._errors["limit"] += 1
        self._evicted += 1
        now_s = self._time_s()
        if now_s - self._logged_s >= LOG_EVERY_S:
            _log.warning(
                "connections without hello evicted count=%d last=%s "
                "limits.unauthenticated_connections=%d",
                self._evicted,
                oldest.host,
                self._limits.unauthenticated_connections,
                extra={"fault": "limit"},
            )
            self._logged_s, self._evicted = now_s, 0
        oldest.abort()


def source_of(peer: object) -> str:
    """Return the source that limits count a connection for, given its peer address."""
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
