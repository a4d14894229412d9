"""What one node of the chain remembers of publishers, and when it forgets them.

A publisher is remembered so that what it asks for again is answered as before. It is forgotten when it says
goodbye, or when there are too many (`clients_max`) and nothing of its is open.
"""

from collections.abc import Callable
from itertools import islice

from ensue.event import Event
from ensue.protocols.core import Persist
from ensue.protocols.sequencer.changes import ChangeStage
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.departed import Departed
from ensue.protocols.sequencer.frames import Confirm, Forget, OrderRequest, StampRequest
from ensue.protocols.sequencer.leases import Lease, Leases
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.publishers import EarlyRequests, Publisher
from ensue.protocols.sequencer.records import INT, LEASE

__all__ = ["RememberingStage"]

LOST_MAX = 10_000
"""Publishers whose connections were lost that are remembered, the last of them."""
FORGET_TRIES = 16
"""Publishers looked at for one that can be forgotten."""


class RememberingStage(ChangeStage):
    """A stage that knows its publishers, and the stamps that they have not confirmed."""

    def __init__(self, *, name: str, placement: Placement, config: SequencerConfig) -> None:
        super().__init__(name=name, placement=placement, config=config)
        self._publishers: dict[str, Publisher] = {}
        self._early = EarlyRequests()
        self._leases = Leases()
        self._gone = Departed(self._persist, "gone")
        """Publishers that were forgotten, and the numbers of their next requests."""
        self._refused = Departed(self._persist, "refused")
        """Publishers that there was no room for, and the first numbers that were not refused."""
        self._slot_of: Callable[[Event], int] | None = None
        """Looks into the log, where this node has one."""
        self._lost: dict[str, None] = {}
        """Publishers whose connections were lost: what is on its way for them has a short lease, too."""
        self._out: dict[str, list[tuple[int, int]]] = {}
        """Events put out while handling the current frame, by publisher."""

    def _welcome(
        self, publisher: str, frame: StampRequest | OrderRequest, count: int, now_ns: int
    ) -> Publisher | None:
        """Take in a publisher that is new here and asks for `count` stamps, if there is room.

        What went out before it was forgotten is answered in any case. What was refused once stays so:
        with `carries` a copy that comes when there is room would put an event out that its
        publisher was told is void. So it is not taken in before it knows what was refused.
        """
        first, stop = frame.number, frame.number + count
        fresh = min(max(first, self._gone.find(publisher)), stop)
        refused = self._refused.find(publisher)
        knows = frame.settled >= refused
        if fresh < stop and knows and self._room_for_publisher(now_ns):
            self._refused.take(publisher)
            next_number = max(frame.settled, self._gone.take(publisher))
            known = self._publishers[publisher] = Publisher(next_number, now_ns)
            return known
        if first < fresh:
            items = frame.events if isinstance(frame, OrderRequest) else frame.topics
            slots = map(self._find_slot, items[: fresh - first])
            again = list(enumerate(slots, first))
            self._out.setdefault(publisher, []).extend(again)
        if fresh < stop and (knows or fresh < refused):
            if self.config.carries:
                self._refused.add(publisher, max(refused, fresh + 1))
            what, how = "there are too many publishers", "try again when some have ended"
            self._refuse_limit(publisher, fresh, "clients_max", what, how)
        return None

    def _find_slot(self, item: str | Event) -> int:
        """Return the slot of an event that went out and is not remembered; 0: it is not known any more."""
        if isinstance(item, str) or self._slot_of is None:
            return 0
        return self._slot_of(item)

    def lose(self, publisher: str, *, now_ns: int) -> None:
        """Hear that the connection of a publisher is lost: shorten its leases.

        It may be wrong, or come late: a lease that runs out voids a slot, as ever, and no event.
        """
        self._lost.pop(publisher, None)
        self._lost[publisher] = None
        if len(self._lost) > LOST_MAX:
            del self._lost[next(iter(self._lost))]
        due_ns = now_ns + self.config.lease_lost_ns
        self._leases.shorten(publisher, self.placement.nodes, due_ns)

    def regain(self, publisher: str) -> None:
        """Hear that a publisher has a connection: its leases are as if it had never been away."""
        if publisher in self._lost:
            del self._lost[publisher]
            self._leases.lengthen(publisher, self.placement.nodes)

    def _forget_settled(self, publisher: str, known: Publisher, settled: int) -> None:
        """Nobody will ask again below a settled number, nor for one that was refused."""
        known.settled = max(known.settled, settled)
        if settled > known.next:
            known.next = settled
            if known.early:
                self._early.forget(known, below=settled)
        while known.out and (first := next(iter(known.out))) < settled:
            del known.out[first]
        while known.elsewhere and (first := next(iter(known.elsewhere))) < settled:
            del known.elsewhere[first]
            self._persist(f"elsewhere/{first}/{publisher}", None)

    def _on_confirm(self, frame: Confirm, publisher: str, _now_ns: int) -> None:
        known = self._publishers.get(publisher)
        if known is not None and frame.origin == self.name:
            self._forget_settled(publisher, known, frame.settled)
        for lease in self._leases.confirm(publisher, frame.origin, frame.slots, frame.settled):
            if self.config.durable:
                self._persist(lease.key, None)

    def _room_for_publisher(self, now_ns: int) -> bool:
        """Forget a publisher with nothing open if there are too many; False: all are busy."""
        if len(self._publishers) < self.config.clients_max:
            return True
        for name in list(islice(self._publishers, FORGET_TRIES)):
            known = self._publishers[name]
            # Where nothing has to be confirmed, only it knows what it may still ask for.
            certain = not self.config.carries or known.settled >= known.next
            idle = now_ns - known.seen_ns >= self.config.forget_ns
            if (certain or idle) and self._forget_publisher(name):
                return True
            self._publishers[name] = self._publishers.pop(name)
        return False

    def _forget_publisher(self, name: str) -> bool:
        """Forget a publisher, unless it may ask again for a stamp that was made.

        If it comes back it is taken up where it says it is. For a late repetition of an old
        request of its a stamp is made that nobody confirms, and voided after its lease; an event
        that came along would be out twice, so it is noted how far the publisher had come.
        """
        known = self._publishers[name]
        if known.elsewhere or self._leases.any_of(name, self.name):
            return False
        self._early.forget(self._publishers.pop(name))
        self._persist(f"publisher/{name}", None)
        if self.config.carries:
            self._gone.add(name, known.next)
        return True

    def _on_forget(self, frame: Forget, source: str, now_ns: int) -> None:
        if not frame.publisher:
            self._forget_subscriber(source, frame.number)
            return
        # Whatever was not confirmed, or not heard of to be, is settled all the same.
        self._on_confirm(Confirm(origin=self.name, slots=(), settled=frame.number), source, now_ns)
        known = self._publishers.get(source)
        if known is not None and known.next <= frame.number:
            self._forget_publisher(source)

    def _persist_lease(self, lease: Lease) -> None:
        if self.config.durable:
            self._effects.append(Persist(lease.key, LEASE.encode(lease.record())))

    def _restore(self, key: str, value: bytes, now_ns: int) -> None:
        kind, _, rest = key.partition("/")
        if kind == "counter":
            self._counters.get(rest)[0] = INT.decode(value)
        elif kind == "publisher":
            self._publisher(rest, now_ns).next = INT.decode(value)
        elif kind == "elsewhere":
            number, _, publisher = rest.partition("/")
            self._publisher(publisher, now_ns).elsewhere[int(number)] = INT.decode(value)
        elif kind in ("gone", "refused"):
            serial, _, publisher = rest.partition("/")
            table = self._gone if kind == "gone" else self._refused
            table.restore(int(serial), publisher, value)
        elif kind in ("subscription", "change"):
            self._restore_change(kind, rest, value)
        elif kind == "lease":
            # Leases start anew: a longer lease is always safe.
            due_ns = now_ns + self.config.lease_ns
            self._leases.add(Lease.restore(LEASE.decode(value), due_ns), now_ns=now_ns)

    def _publisher(self, name: str, now_ns: int) -> Publisher:
        return self._publishers.setdefault(name, Publisher(1, now_ns))
