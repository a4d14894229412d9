"""The log of a node's inputs, from which the node recovers after a crash.

Theory of operation. A node is a deterministic function of its inputs, so the inputs are its state.
Each input that changes the state is persisted with its time, in the same batch as its effects.
After a crash the node handles the logged inputs again, in the same sequence, and drops the effects:
they were carried out before, or the links kept them. A crash is therefore only a delay, and no rule
of the protocol has to mention it. When the log is longer than the state, a snapshot of the state
replaces it; so each input pays a constant share of the snapshot.

HAZARD: every change of the state must come through `take`. A crash loses any other change.

HAZARD: `handle` must not read configuration that an operator can change: handled again under
another one, the same inputs would lead to another state. What an input depends on is logged with it
(`frames.Attach.owned_max`, `frames.Expire.idle_ns`), or decided before `take`. Limits that only a
new version of Ensue changes may be read.
"""

from collections.abc import Callable, Mapping

import msgspec

from ensue.core.wire import Codec, Records
from ensue.protocols.content.effects import Effects
from ensue.protocols.interface import Frame, Notification

__all__ = ["InputLog"]


class _Input(msgspec.Struct, frozen=True, array_like=True):
    now_ns: int
    source: str
    frame: bytes


_INPUT = Records[_Input](_Input)
_INT = Records[int](int)


class InputLog:
    """Persists the inputs of a node, and handles them again after a crash."""

    def __init__(
        self,
        *,
        codec: Codec,
        effects: Effects,
        handle: Callable[[Frame, str, int], None],
        dump: Callable[[], bytes],
        load: Callable[[bytes], None],
        durable: bool,
        bytes_min: int,
    ) -> None:
        self._codec = codec
        self._effects = effects
        self._handle = handle
        self._dump = dump
        self._load = load
        self.durable = durable
        self._bytes_min = bytes_min
        """Minimum size of a log that a snapshot replaces."""
        self._first = 1
        self._next = 1
        self._bytes = 0
        self._snapshot_bytes = 0
        self.recovered: list[tuple[int, Notification]] = []
        """Trace rows of recovered inputs, with their times: the trace may have missed them."""

    @property
    def next_number(self) -> int:
        """The number of the next input."""
        return self._next

    def take(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Persist an input and handle it."""
        if self.durable:
            record = _INPUT.encode(_Input(now_ns, source, self._codec.encode(frame)))
            self._effects.persist(f"journal/{self._next}", record)
            self._next += 1
            self._bytes += len(record)
        self._handle(frame, source, now_ns)
        if self._bytes > max(self._bytes_min, self._snapshot_bytes):
            self.write_snapshot()

    def write_snapshot(self) -> None:
        """Persist the state and drop the inputs before it."""
        state = self._dump()
        self._effects.persist("state", state)
        self._effects.persist("journal_first", _INT.encode(self._next))
        for number in range(self._first, self._next):
            self._effects.persist(f"journal/{number}", None)
        self._first, self._bytes = self._next, 0
        self._snapshot_bytes = len(state)

    def recover(self, records: Mapping[str, bytes]) -> None:
        """Load the snapshot and handle the inputs after it again."""
        if "state" in records:
            self._snapshot_bytes = len(records["state"])
            self._load(records["state"])
            self._first = self._next = _INT.decode(records["journal_first"])
        while (record := records.get(f"journal/{self._next}")) is not None:
            self._next += 1
            self._bytes += len(record)
            held = _INPUT.decode(record)
            self._handle(self._codec.decode(held.frame), held.source, held.now_ns)
            self.recovered += (
                (held.now_ns, effect)
                for effect in self._effects.drain()
                if isinstance(effect, Notification)
            )
        self._effects.drain()
