"""What a node remembers of the publishers whose requests enter the chain there.

Requests of one publisher are taken in turn. Those that overtook an earlier one are kept until it comes, up
to a `window` of them a publisher and to `EARLY_BYTES_MAX`; beyond, they are dropped, and will be repeated.
All publishers together have `ALL_EARLY_BYTES_MAX`; beyond, what was kept of the one goes that has sent
nothing early for longest, which may well have vanished.
"""

from collections import OrderedDict

from ensue.event import Event, wire_bytes

__all__ = ["ALL_EARLY_BYTES_MAX", "EARLY_BYTES_MAX", "EarlyRequests", "Publisher", "record_order"]

EARLY_BYTES_MAX = 4 * 1024 * 1024
ALL_EARLY_BYTES_MAX = 64 * 1024 * 1024


class Publisher:
    """What an origin remembers of one publisher."""

    __slots__ = ("early", "early_bytes", "elsewhere", "next", "out", "seen_ns", "settled")

    def __init__(self, next_number: int, seen_ns: int) -> None:
        self.next = next_number
        """The number of the next new request."""
        self.elsewhere: OrderedDict[int, int] = OrderedDict()
        """Requests that another stage completes, so that a repeated one can be answered."""
        self.early: dict[int, str | Event] = {}
        """Requests that overtook an earlier one: topics, or events. `EarlyRequests` sees to it."""
        self.early_bytes = 0
        self.out: OrderedDict[int, int] = OrderedDict()
        """Requests whose events went out from here, with their slots, as far as remembered."""
        self.settled = 0
        """It knows the fate of every request below."""
        self.seen_ns = seen_ns


def record_order(key: str) -> tuple[str, int, int, str]:
    """Sort records so that numbered ones of one client come back as they were made."""
    kind, _, rest = key.partition("/")
    number, _, rest_of_numbered = rest.partition("/")
    if kind == "lease":
        slot, _, client = rest_of_numbered.partition("/")
        return (kind, int(number), int(slot), client)
    if kind in ("elsewhere", "gone", "refused"):
        return (kind, int(number), 0, rest_of_numbered)
    return (kind, 0, 0, rest)


class EarlyRequests:
    """Those of all publishers of a node."""

    __slots__ = ("_holders", "bytes")

    def __init__(self) -> None:
        self._holders: dict[Publisher, None] = {}
        """Publishers with early requests, the one that sent one last at the end."""
        self.bytes = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(len(known.early) for known in self._holders)

    def keep(self, known: Publisher, number: int, item: str | Event) -> None:
        """Keep a request until its turn comes, if there is room."""
        size = _bytes(item)
        if number in known.early or known.early_bytes + size > EARLY_BYTES_MAX:
            return
        self._holders.pop(known, None)
        self._holders[known] = None
        known.early[number] = item
        known.early_bytes += size
        self.bytes += size
        while self.bytes > ALL_EARLY_BYTES_MAX:
            self.forget(next(iter(self._holders)))

    def take_next(self, known: Publisher) -> str | Event | None:
        """Take the request whose turn it is out, if it is here."""
        item = known.early.pop(known.next, None)
        if item is not None:
            known.early_bytes -= _bytes(item)
            self.bytes -= _bytes(item)
            if not known.early:
                del self._holders[known]
        return item

    def forget(self, known: Publisher, *, below: int | None = None) -> None:
        """Drop what is kept of a publisher, or what is below a number."""
        left = {} if below is None else {n: known.early[n] for n in known.early if n >= below}
        self.bytes -= known.early_bytes
        known.early, known.early_bytes = left, sum(map(_bytes, left.values()))
        self.bytes += known.early_bytes
        if not left:
            self._holders.pop(known, None)


def _bytes(item: str | Event) -> int:
    return len(item) if isinstance(item, str) else wire_bytes(item)
