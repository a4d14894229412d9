"""Applications that read durable content subscriptions: they attach, acknowledge and leave."""

from collections.abc import Callable

import msgspec

from ensue.protocols.content.client import Attachment, Notified, Superseded
from ensue.protocols.transactions.client import TransactionClient
from ensue.simulation.deployments.transaction_clients import Call, Later

__all__ = ["DurableReaders", "ReaderSpec"]


class ReaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a client that reads a durable subscription."""

    client: str
    at_ns: int
    action: str
    """`attach`, `release` or `forget`."""
    name: str
    where: str = ""
    window: int = 1_000
    wait_ns: int = 0
    """How long it takes to handle an event."""
    handles: int = 1_000_000
    """How many events it handles: further ones are delivered again to the next reader."""


class DurableReaders:
    """Plays the readers: `call` gives a client a command, `later` calls back after a while."""

    def __init__(self, call: Call, later: Later) -> None:
        self._call = call
        self._later = later
        self._specs: dict[tuple[str, int], ReaderSpec] = {}
        """By client and request: how it attaches."""
        self._read: dict[str, tuple[str, int, ReaderSpec]] = {}
        """By client: the mailbox and epoch that it reads, and how."""
        self._handled: dict[str, int] = {}
        """By client: number of events that it has handled in this epoch."""

    def play(self, spec: ReaderSpec) -> None:
        """Attach, or leave if the client is attached."""
        if spec.action == "attach":
            self._call(spec.client, self._attach(spec))
        elif spec.client in self._read:
            mailbox, epoch, _ = self._read.pop(spec.client)
            forget = spec.action == "forget"

            def release(client: TransactionClient, now_ns: int) -> None:
                client.release(mailbox, epoch, forget=forget, now_ns=now_ns)

            self._call(spec.client, release)

    def _attach(self, spec: ReaderSpec) -> Callable[[TransactionClient, int], None]:
        def attach(client: TransactionClient, now_ns: int) -> None:
            number = client.attach(spec.name, spec.where, window=spec.window, now_ns=now_ns)
            self._specs[spec.client, number] = spec

        return attach

    def take(self, client: str, value: object) -> None:
        """Take what a client got: an attachment, its end, or an event to handle."""
        match value:
            case Attachment() if spec := self._specs.pop((client, value.number), None):
                self._read[client] = (value.mailbox, value.epoch, spec)
                self._handled[client] = 0
            case Superseded() if self._reads(client, value.epoch):
                del self._read[client]
            case Notified() if value.mailbox and self._reads(client, value.epoch):
                spec = self._read[client][2]
                self._handled[client] += 1
                if self._handled[client] <= spec.handles:
                    self._later(spec.wait_ns, lambda: self._acknowledge(client, value))

    def _reads(self, client: str, epoch: int) -> bool:
        return client in self._read and self._read[client][1] == epoch

    def _acknowledge(self, name: str, notified: Notified) -> None:
        if not self._reads(name, notified.epoch):
            return

        def acknowledge(client: TransactionClient, now_ns: int) -> None:
            client.acknowledge(notified.mailbox, notified.epoch, notified.position, now_ns=now_ns)

        self._call(name, acknowledge)
