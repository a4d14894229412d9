"""Tombstones of publisher sessions: the last requests of forgotten publishers.

A node forgets a publisher that closes, or for which it has no room, but a copy of one of its
requests may still be on its way, on brokers for long. Where events travel with requests, taking
such a copy for new would publish its event twice. So a tombstone keeps the publisher's next request
number, and the slots of events whose receipts may be lost, also over a restart. In the same way a
node keeps which requests it refused to publishers that it never took in.

Limit: the last `TOMBSTONES_MAX` publishers of each kind.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from ensue.protocols.total.slots import PublishedSlots, decode_session, encode_session

__all__ = ["TOMBSTONES_MAX", "Tombstones"]

TOMBSTONES_MAX = 10_000


class Tombstones:
    """Tombstones of one kind, the oldest first; `persist` writes or removes a record."""

    __slots__ = ("_kind", "_names", "_persist", "_serials")

    def __init__(self, persist: Callable[[str, bytes | None], None], kind: str = "gone") -> None:
        self._kind = kind
        self._names: OrderedDict[str, tuple[int, int, PublishedSlots]] = OrderedDict()
        """Publisher to its serial, its next request number and the slots of unsettled requests."""
        self._serials = count(1)
        self._persist = persist

    def add(self, name: str, next_number: int, out: PublishedSlots | None = None) -> None:
        """Keep how far a publisher had come."""
        self.take(name)
        serial, out = next(self._serials), out or PublishedSlots()
        self._names[name] = (serial, next_number, out)
        self._persist(self._key(serial, name), encode_session(next_number, out))
        if len(self._names) > TOMBSTONES_MAX:
            oldest, (serial, _, _) = self._names.popitem(last=False)
            self._persist(self._key(serial, oldest), None)

    def find(self, name: str) -> int:
        """Return the next request number of a publisher, or 0 if it is not known."""
        found = self._names.get(name)
        return 0 if found is None else found[1]

    def slots(self, name: str) -> PublishedSlots:
        """Return the slots of a publisher's unsettled requests."""
        found = self._names.get(name)
        return PublishedSlots() if found is None else found[2]

    def take(self, name: str) -> int:
        """Remove a tombstone; return the publisher's next request number, or 0."""
        found = self._names.pop(name, None)
        if found is None:
            return 0
        serial, next_number, _ = found
        self._persist(self._key(serial, name), None)
        return next_number

    def restore(self, serial: int, name: str, value: bytes) -> None:
        """Take up a record; records come in the order of their serials."""
        self._names[name] = (serial, *decode_session(value))
        self._serials = count(serial + 1)

    def _key(self, serial: int, name: str) -> str:
        return f"{self._kind}/{serial}/{name}"
