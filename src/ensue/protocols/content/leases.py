"""Leases of a broker's clients: last frame of each, and when it lost its connection."""

from collections.abc import Iterable, Iterator

from ensue.protocols.content.config import ContentConfig

__all__ = ["Leases"]


class Leases:
    """Leases of the clients of one broker. They start again when the broker restarts."""

    def __init__(self, config: ContentConfig) -> None:
        self._config = config
        self._heard_ns: dict[str, int] = {}
        self._lost_ns: dict[str, int] = {}
        """By client without a connection: start of its grace period."""

    def restart(self, clients: Iterable[str], now_ns: int) -> None:
        """Start the leases of all clients again."""
        self._heard_ns = dict.fromkeys(clients, now_ns)

    def renew(self, client: str, now_ns: int) -> None:
        """Extend the lease of a client that sent a frame."""
        self._heard_ns[client] = now_ns

    def start_grace(self, client: str, now_ns: int) -> None:
        """Start the grace period of a client without a connection, unless it runs."""
        self._lost_ns.setdefault(client, now_ns)

    def end_grace(self, client: str) -> None:
        """End the grace period of a client: it reconnected, or the period has ended."""
        self._lost_ns.pop(client, None)

    def remove(self, client: str) -> None:
        """Forget a client."""
        self._heard_ns.pop(client, None)
        self._lost_ns.pop(client, None)

    def expired(self, now_ns: int) -> Iterator[str]:
        """Yield clients whose lease has expired."""
        for client, heard_ns in list(self._heard_ns.items()):
            if heard_ns + self._config.lease_ns <= now_ns:
                yield client

    def out_of_grace(self, now_ns: int) -> Iterator[str]:
        """Yield clients whose grace period has expired."""
        for client, lost_ns in list(self._lost_ns.items()):
            if lost_ns + self._config.grace_ns <= now_ns:
                yield client

    def due_ns(self) -> list[int]:
        """Return when each lease and grace period expires."""
        dues = [heard_ns + self._config.lease_ns for heard_ns in self._heard_ns.values()]
        dues += [lost_ns + self._config.grace_ns for lost_ns in self._lost_ns.values()]
        return dues
