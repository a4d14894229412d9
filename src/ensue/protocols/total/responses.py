"""The responses of a sequencer to one frame: counts, published events, stamps.

The node collects them while it handles the frame, and persists and sends them together at the end:
one record for each topic, and one answer for each publisher.
"""

from collections.abc import Iterable

from ensue.protocols.interface import Persist, Send
from ensue.protocols.total.frames import Grant, Out, stamped
from ensue.protocols.total.leases import Lease
from ensue.protocols.total.records import INT
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.stamp_seals import stamp_proof

__all__ = ["Responses"]


class Responses:
    """The responses to the current frame. With a `seal_key`, stamps are sealed."""

    __slots__ = ("_granted", "_out", "_seal_key", "_state", "counted")

    def __init__(self, state: StageState, seal_key: bytes) -> None:
        self._state = state
        self._seal_key = seal_key
        self.counted: dict[str, int] = {}
        """Topics that were counted, and their counts."""
        self._out: dict[str, list[tuple[int, int]]] = {}
        """Publisher to the requests whose events were published, with their slots."""
        self._granted: dict[tuple[str, str], list[Grant]] = {}
        """Publisher and origin to the stamps that were completed."""

    def published(self, publisher: str, slots: Iterable[tuple[int, int]]) -> None:
        """Note request numbers of a publisher, and the slots of their events."""
        self._out.setdefault(publisher, []).extend(slots)

    def grant(self, lease: Lease) -> None:
        """Note a stamp for its publisher."""
        proof = stamp_proof(self._seal_key, lease.publisher, lease.topic, lease.stamp)
        granted = self._granted.setdefault((lease.publisher, lease.origin), [])
        granted.append(Grant(lease.number, lease.stamp, proof))

    def flush(self) -> None:
        """Persist the counts and send the answers."""
        state = self._state
        if self.counted:
            if state.config.durable:
                for topic, count in self.counted.items():
                    state.effects.append(Persist(f"counter/{topic}", INT.encode(count)))
            self.counted = {}
        if self._out:
            for publisher, slots in self._out.items():
                state.effects.append(Send(publisher, Out(origin=state.name, slots=tuple(slots))))
            self._out = {}
        if self._granted:
            for (publisher, origin), grants in self._granted.items():
                state.effects += [Send(publisher, each) for each in stamped(origin, grants)]
            self._granted = {}
