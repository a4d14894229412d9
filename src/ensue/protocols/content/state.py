"""The state that all parts of a broker share."""

from collections.abc import Iterable
from typing import Any

from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.effects import Effects
from ensue.protocols.content.mailboxes import Mailboxes
from ensue.protocols.content.tables import Tables, TablesRecord
from ensue.protocols.content.versions import Undo
from ensue.protocols.interface import Frame

__all__ = ["BrokerState"]


class BrokerState:
    """Name, neighbors, clients, routing tables and effects of one broker."""

    def __init__(
        self, *, name: str, neighbors: Iterable[str], config: ContentConfig, effects: Effects
    ) -> None:
        self.name = name
        self.neighbors = tuple(sorted(neighbors))
        self.config = config
        self.effects = effects
        self.tables = Tables(self.neighbors)
        self.commits: dict[str, int] = {}
        """By home of the coordinator: number of serializable transactions committed here."""
        self.undos: list[Undo] = []
        """Changes of the latest commits, oldest first: see `versions`."""
        self.clients: dict[str, None] = {}
        """Clients whose home is this broker."""
        self.members: dict[str, tuple[str, str]] = {}
        """By client of any broker: its home, and the next hop to it."""
        self.disconnected: dict[str, None] = {}
        """Clients whose grace period has expired: no transaction waits for them."""
        self.leaving: dict[str, None] = {}
        """Clients that have left while plans still have operations for them: see `Plans`."""
        self.mailboxes = Mailboxes(config, effects)
        """Durable subscriptions whose home is this broker: clients without a session."""
        self.departed: list[str] = []
        """Departed clients whose links are still open."""

    def restore(
        self,
        *,
        neighbors: Iterable[str],
        tables: TablesRecord,
        commits: dict[str, int],
        undos: list[Undo],
        clients: Iterable[str],
        members: dict[str, tuple[str, str]],
        disconnected: Iterable[str],
    ) -> None:
        """Restore the persisted state."""
        self.neighbors = tuple(neighbors)
        self.tables = Tables(self.neighbors, tables)
        self.commits, self.undos = commits, undos
        self.clients, self.members = dict.fromkeys(clients), members
        self.disconnected = dict.fromkeys(disconnected)

    @property
    def version(self) -> int:
        """The number of serializable transactions committed here."""
        return sum(self.commits.values())

    def seen(self) -> dict[str, int]:
        """Return the version of the tables, as a publication carries it: see `versions`."""
        return {undo.home: self.commits[undo.home] for undo in self.undos}

    def send(self, peer: str, frame: Frame) -> None:
        """Send a frame to a neighbor, or to a client that has not left."""
        if peer in self.mailboxes:
            self.mailboxes.take(peer, frame)
        elif peer not in self.leaving:
            self.effects.send(peer, frame)

    def flood(self, frame: Frame, *, but: str) -> None:
        """Send a frame to all neighbors but one."""
        for neighbor in self.neighbors:
            if neighbor != but:
                self.send(neighbor, frame)

    def record(self, **columns: Any) -> None:
        """Write a row into the trace."""
        self.effects.notify(None, **columns)
