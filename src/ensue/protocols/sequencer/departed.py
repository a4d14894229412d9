"""Publishers that were forgotten, and how far they had come.

A publisher that closes is forgotten, as is one for which there is no room, but a request that it repeated may
still be under way, on brokers for long. Where events go along with requests, taking such a one for new would
put its event out twice. So the number of what would have been its next request is kept, also over a
restart, for the `DEPARTED_MAX` publishers that were forgotten last. In the same way it is kept which requests
were refused to those who were never taken in.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from ensue.protocols.sequencer.records import INT

__all__ = ["DEPARTED_MAX", "Departed"]

DEPARTED_MAX = 10_000


class Departed:
    """Names, in the order they were forgotten. `persist` writes a record of this kind, or removes it."""

    __slots__ = ("_kind", "_names", "_persist", "_serials")

    def __init__(self, persist: Callable[[str, bytes | None], None], kind: str = "gone") -> None:
        self._kind = kind
        self._names: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """The serial of each, and the number of its next request."""
        self._serials = count(1)
        self._persist = persist

    def add(self, name: str, next_number: int) -> None:
        """Note how far a publisher had come that is forgotten."""
        self.take(name)
        serial = next(self._serials)
        self._names[name] = (serial, next_number)
        self._persist(self._key(serial, name), INT.encode(next_number))
        if len(self._names) > DEPARTED_MAX:
            oldest, (serial, _) = self._names.popitem(last=False)
            self._persist(self._key(serial, oldest), None)

    def find(self, name: str) -> int:
        """Return the number of the next request of a publisher; 0 if unknown."""
        return self._names.get(name, (0, 0))[1]

    def take(self, name: str) -> int:
        """Forget a publisher that comes back, and return the number of its next request; 0 if unknown."""
        serial, next_number = self._names.pop(name, (0, 0))
        if serial:
            self._persist(self._key(serial, name), None)
        return next_number

    def restore(self, serial: int, name: str, value: bytes) -> None:
        """Take up a record; they come by their serials."""
        self._names[name] = (serial, INT.decode(value))
        self._serials = count(serial + 1)

    def _key(self, serial: int, name: str) -> str:
        return f"{self._kind}/{serial}/{name}"
