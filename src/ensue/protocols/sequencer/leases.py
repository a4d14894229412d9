"""Stamps that were completed here and whose publisher has not confirmed them yet.

A lease starts when its stamp is complete. If it runs out unconfirmed, the node asks the ENS to put a
void into the slot. The ENS decides: the void took the slot (a late original is refused and reaches
nobody) or the original was there before (then all is well). The record stays until the publisher
confirms, so that a publisher that comes back gets the same answer whenever it asks.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from ensue.event import Event, Stamp
from ensue.protocols.sequencer.records import LeaseRecord

__all__ = ["OPEN", "OUT", "VOID", "VOIDING", "Lease", "Leases"]

OPEN = "open"
VOIDING = "voiding"
VOID = "void"
OUT = "out"


class Lease:
    """One completed stamp."""

    __slots__ = ("due_ns", "number", "origin", "publisher", "stamp", "state", "topic")

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
        self.due_ns = due_ns
        """When to void it, or to ask again for the void."""

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
        return f"lease/{self.number}/{len(self.origin)}/{self.origin}/{self.publisher}"

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
            publisher_seq=self.stamp.entries[self.topic],
            stamp=self.stamp,
            void=True,
        )


class Leases:
    """All leases of one node, by request and by the time they are due."""

    __slots__ = ("_added", "_by_client", "_due", "_voiding")

    def __init__(self) -> None:
        self._by_client: dict[tuple[str, str], dict[int, Lease]] = {}
        self._due: list[tuple[int, int, Lease]] = []
        self._added = 0
        """Breaks ties in the heap, so that leases themselves are never compared."""
        self._voiding: dict[tuple[str, int], Lease] = {}
        """By topic and slot: what the ENS's answer to a void names."""

    def open_count(self) -> int:
        """Count the stamps whose events are not known to be out or void."""
        return sum(
            lease.state in (OPEN, VOIDING)
            for leases in self._by_client.values()
            for lease in leases.values()
        )

    def add(self, lease: Lease) -> None:
        """Take in a lease."""
        client = (lease.publisher, lease.origin)
        leases = self._by_client.get(client)
        if leases is None:
            leases = self._by_client[client] = {}
        leases[lease.number] = lease
        if lease.state in (OPEN, VOIDING):
            self._schedule(lease)

    def any_of(self, publisher: str, origin: str) -> bool:
        """Tell whether a publisher has unconfirmed stamps of an origin here."""
        return (publisher, origin) in self._by_client

    def find(self, publisher: str, origin: str, number: int) -> Lease | None:
        """Return the lease of a request."""
        return self._by_client.get((publisher, origin), {}).get(number)

    def confirm(
        self, publisher: str, origin: str, numbers: tuple[int, ...], settled: int
    ) -> Iterator[Lease]:
        """Forget the leases that a publisher is done with, and yield them."""
        leases = self._by_client.get((publisher, origin))
        if leases is None:
            return
        done = dict.fromkeys(number for number in numbers if number in leases)
        # Numbers are added in rising order, so settled ones stand in front.
        for number in leases:
            if number >= settled:
                break
            done[number] = None
        for number in done:
            lease = leases.pop(number)
            lease.state = OUT
            self._voiding.pop((lease.topic, lease.stamp.entries[lease.topic]), None)
            yield lease
        if not leases:
            del self._by_client[publisher, origin]

    def next_due_ns(self) -> int | None:
        """Return when the first open lease is due."""
        while self._due and self._due[0][2].state not in (OPEN, VOIDING):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now_ns: int, *, again_ns: int) -> list[Lease]:
        """Return the leases to void now; unanswered ones come again after `again_ns`."""
        due: list[Lease] = []
        while (first := self.next_due_ns()) is not None and first <= now_ns:
            due.append(heappop(self._due)[2])
        for lease in due:
            lease.state = VOIDING
            lease.due_ns = now_ns + again_ns
            self._schedule(lease)
            self._voiding[lease.topic, lease.stamp.entries[lease.topic]] = lease
        return due

    def resolve(self, topic: str, slot: int, *, state: str) -> Lease | None:
        """Note the ENS's answer to a void; return its lease."""
        lease = self._voiding.pop((topic, slot), None)
        if lease is not None:
            lease.state = state
        return lease

    def _schedule(self, lease: Lease) -> None:
        self._added += 1
        heappush(self._due, (lease.due_ns, self._added, lease))
