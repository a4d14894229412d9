"""Leases: completed stamps whose publishers have not confirmed them yet.

A lease starts when its stamp is complete. If it runs out unconfirmed, the node asks the topic log
to put a void into the slot. The log decides: either the void took the slot, and a late original is
refused and reaches no subscriber; or the original was there before, and stays. The record remains
until the publisher confirms or will not ask again, so that a publisher that reconnects gets the
same answer.

A publisher whose connection is lost has a shorter lease, `lease_lost_ns` from then on: subscribers
wait for its slot. One that reconnects in time has its first lease again, no longer than if
it had stayed connected. A driver that sees connections reports lost ones; without one, the lease
stays.

A node that restarts does not know for how long its leases have run: they begin again, and those
that had run out are voided at once. A driver that sees connections reports the publishers that do
not return. HAZARD: without one, a node that restarts more often than leases run out voids none, and
subscribers wait for the slots of a publisher that is gone.

Every slot that was given away ends up confirmed, published or void; none is forgotten before. A
confirmation therefore names the slot, and a second stamp for one request (its origin had forgotten
the publisher) is a ghost: it is never sent to the publisher, and voided at once.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import takewhile

from ensue.core.event import Event, Stamp
from ensue.protocols.total.records import LeaseRecord

__all__ = ["OPEN", "OUT", "VOID", "VOIDING", "Lease", "Leases"]

OPEN = "open"
VOIDING = "voiding"
VOID = "void"
OUT = "out"


class Lease:
    """One completed stamp."""

    __slots__ = (
        "due_ns",
        "entry",
        "full_ns",
        "number",
        "origin",
        "publisher",
        "slot",
        "stamp",
        "state",
        "topic",
    )

    def __init__(
        self,
        publisher: str,
        origin: str,
        number: int,
        topic: str,
        stamp: Stamp,
        due_ns: int,
        state: str = OPEN,
    ) -> None:
        self.publisher = publisher
        self.origin = origin
        self.number = number
        self.topic = topic
        self.stamp = stamp
        self.state = state
        self.slot = stamp.entries[topic]
        self.due_ns = due_ns
        """When to void it, or to repeat the void."""
        self.full_ns = due_ns
        """When to void it if its publisher stays connected."""
        self.entry = 0
        """The number of its entry in the heap; earlier entries are stale."""

    @classmethod
    def restore(cls, record: LeaseRecord, due_ns: int) -> "Lease":
        """Return the lease that was persisted."""
        stamp = Stamp(record.entries, record.whole)
        return cls(
            record.publisher,
            record.origin,
            record.number,
            record.topic,
            stamp,
            due_ns,
            record.state,
        )

    @property
    def key(self) -> str:
        """The key of the persisted record."""
        return f"lease/{self.number}/{self.slot}/{len(self.origin)}/{self.origin}/{self.publisher}"

    def record(self) -> LeaseRecord:
        """Return what to persist."""
        stamp = self.stamp
        return LeaseRecord(
            self.publisher,
            self.origin,
            self.number,
            self.topic,
            stamp.entries,
            stamp.whole,
            self.state,
        )

    def void_event(self, node: str) -> Event:
        """Return the placeholder that competes for the slot."""
        return Event(
            topic=self.topic,
            payload=b"",
            publisher=node,
            publisher_seq=self.slot,
            stamp=self.stamp,
            void=True,
        )


class _Client:
    """The leases of one publisher's requests at one origin."""

    __slots__ = ("leases", "settled")

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        """By request number."""
        self.settled = 0
        """The publisher will not repeat requests below."""


class Leases:
    """All leases of one node, by request and by the time they are due."""

    __slots__ = ("_added", "_clients", "_due", "_voiding")

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], _Client] = {}
        self._due: list[tuple[int, int, Lease]] = []
        """A heap of open and voiding leases; of several entries of one, the latest counts."""
        self._added = 0
        """Breaks ties in the heap, so that leases themselves are never compared."""
        self._voiding: dict[tuple[str, int], Lease] = {}
        """By topic and slot, which the log's answer to a void names."""

    def open_count(self) -> int:
        """Return how many stamps are not known to be published or void."""
        return sum(self._is_current(entry) for entry in self._due)

    def add(self, lease: Lease, *, now_ns: int) -> bool:
        """Add a lease; False if there is one for its request, so that this one is a ghost."""
        key = (lease.publisher, lease.origin)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _Client()
        first = client.leases.setdefault(lease.number, lease)
        if first is not lease:
            lease.due_ns = now_ns
        if lease.state in (OPEN, VOIDING):
            self._schedule(lease)
        return first is lease

    def publishers(self) -> tuple[str, ...]:
        """Return the publishers that have open stamps."""
        publishers = (
            publisher
            for (publisher, _), client in self._clients.items()
            if any(lease.state == OPEN for lease in client.leases.values())
        )
        return tuple(dict.fromkeys(publishers))

    def any_of(self, publisher: str, origin: str) -> bool:
        """Return whether a publisher has unconfirmed stamps of an origin here."""
        return (publisher, origin) in self._clients

    def find(self, publisher: str, origin: str, number: int) -> Lease | None:
        """Return the lease of a request."""
        client = self._clients.get((publisher, origin))
        return None if client is None else client.leases.get(number)

    def confirm(
        self, publisher: str, origin: str, slots: tuple[tuple[int, int], ...], settled: int
    ) -> list[Lease]:
        """Remove and return the leases that a publisher is done with."""
        client = self._clients.get((publisher, origin))
        if client is None:
            return []
        client.settled = max(client.settled, settled)
        leases = client.leases
        done: list[Lease] = []
        for number, slot in slots:
            lease = leases.get(number)
            if lease is not None and lease.slot == slot:
                del leases[number]
                lease.state = OUT
                self._voiding.pop((lease.topic, slot), None)
                done.append(lease)
        # Numbers are added in rising order, so settled ones come first. One that is still open was
        # not confirmed: its slot has to be voided or published before it is forgotten.
        for lease in list(takewhile(lambda each: each.number < client.settled, leases.values())):
            if lease.state in (VOID, OUT):
                del leases[lease.number]
                done.append(lease)
        if not leases:
            del self._clients[publisher, origin]
        return done

    def next_due_ns(self) -> int | None:
        """Return when the first open lease is due."""
        while self._due and not self._is_current(self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now_ns: int, *, again_ns: int) -> list[Lease]:
        """Return the leases to void now; unanswered ones are due again after `again_ns`."""
        due: list[Lease] = []
        while (first := self.next_due_ns()) is not None and first <= now_ns:
            due.append(heappop(self._due)[2])
        for lease in due:
            lease.state = VOIDING
            lease.due_ns = now_ns + again_ns
            self._schedule(lease)
            self._voiding[lease.topic, lease.slot] = lease
        return due

    def shorten(self, publisher: str, origins: Iterable[str], due_ns: int) -> None:
        """Let the open leases of a publisher run out by a time."""
        for lease in self._open_of(publisher, origins):
            if due_ns < lease.due_ns:
                self._move(lease, due_ns)

    def lengthen(self, publisher: str, origins: Iterable[str]) -> None:
        """Restore the first due times of a publisher's open leases."""
        for lease in self._open_of(publisher, origins):
            if lease.due_ns < lease.full_ns:
                self._move(lease, lease.full_ns)

    def _open_of(self, publisher: str, origins: Iterable[str]) -> list[Lease]:
        clients = (self._clients.get((publisher, origin)) for origin in origins)
        return [
            lease
            for client in clients
            if client is not None
            for lease in client.leases.values()
            if lease.state == OPEN
        ]

    def _move(self, lease: Lease, due_ns: int) -> None:
        lease.due_ns = due_ns
        self._schedule(lease)

    def resolve(self, topic: str, slot: int, *, state: str) -> tuple[Lease, bool] | None:
        """Note the log's answer to a void; return the lease, and whether it is needed."""
        lease = self._voiding.pop((topic, slot), None)
        if lease is None:
            return None
        lease.state = state
        key = (lease.publisher, lease.origin)
        client = self._clients.get(key)
        if client is None or client.leases.get(lease.number) is not lease:
            return lease, False
        if lease.number < client.settled:
            del client.leases[lease.number]
            if not client.leases:
                del self._clients[key]
            return lease, False
        return lease, True

    def _schedule(self, lease: Lease) -> None:
        self._added += 1
        lease.entry = self._added
        heappush(self._due, (lease.due_ns, self._added, lease))

    @staticmethod
    def _is_current(entry: tuple[int, int, Lease]) -> bool:
        lease = entry[2]
        return lease.entry == entry[1] and lease.state in (OPEN, VOIDING)
