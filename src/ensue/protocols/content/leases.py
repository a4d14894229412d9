"""The leases of a broker's clients: when each was heard last, and when it lost its connection."""

from collections.abc import Iterable, Iterator

from ensue.protocols.content.config import ContentConfig

__all__ = ["Leases"]


class Leases:
    """Leases of the clients of one broker. They begin anew when the broker restarts."""

    def __init__(self, config: ContentConfig) -> None:
        self._config = config
        self._heard_ns: dict[str, int] = {}
        self._lost_ns: dict[str, int] = {}
        """By client without a connection: when its grace began."""

    def restart(self, clients: Iterable[str], now_ns: int) -> None:
        """Begin the leases of all clients anew."""
        self._heard_ns = dict.fromkeys(clients, now_ns)

    def renew(self, client: str, now_ns: int) -> None:
        """Extend the lease of a client that was heard."""
        self._heard_ns[client] = now_ns

    def start_grace(self, client: str, now_ns: int) -> None:
        """Begin the grace of a client without a connection, unless it has begun."""
        self._lost_ns.setdefault(client, now_ns)

    def end_grace(self, client: str) -> None:
        """End the grace of a client: it has a connection again, or its grace is over."""
        self._lost_ns.pop(client, None)

    def remove(self, client: str) -> None:
        """Forget a client."""
        self._heard_ns.pop(client, None)
        self._lost_ns.pop(client, None)

    def expired(self, now_ns: int) -> Iterator[str]:
        """Yield clients whose lease is over."""
        for client, heard_ns in list(self._heard_ns.items()):
            if heard_ns + self._config.lease_ns <= now_ns:
                yield client

    def out_of_grace(self, now_ns: int) -> Iterator[str]:
        """Yield clients whose grace is over."""
        for client, lost_ns in list(self._lost_ns.items()):
            if lost_ns + self._config.grace_ns <= now_ns:
                yield client

    def due_ns(self) -> list[int]:
        """Return when each lease and each grace is over."""
        dues = [heard_ns + self._config.lease_ns for heard_ns in self._heard_ns.values()]
        dues += [lost_ns + self._config.grace_ns for lost_ns in self._lost_ns.values()]
        return dues
