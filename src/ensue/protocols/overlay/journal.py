"""A node that comes back as it was: it persists what it is handed, and handles it again after a crash.

Theory of operation. A node is a function of its inputs, so the inputs are its state. Each one that changes anything is persisted, with
the time it came at, in the batch that carries out what it caused. After a crash the node handles them again, in the same sequence, and drops
what that causes: it was sent, or its links kept it. So a crash is no more than a delay, and no protocol rule has to mention it.
When the journal has grown as long as the state that it stands for, the state is written in its place; so each input pays a
constant share of that.

HAZARD: everything that changes the state must come through `take`. A driver that changes a node in another way changes what a
crash would not bring back.
"""

from collections.abc import Mapping

import msgspec

from ensue.protocols.core import Effect, Frame, Persist, Told
from ensue.wire import Codec, Records

__all__ = ["Journaled"]


class _Input(msgspec.Struct, frozen=True, array_like=True):
    now_ns: int
    source: str
    frame: bytes


_INPUT = Records[_Input](_Input)
_INT = Records[int](int)


class Journaled:
    """Keeps the inputs of a node. A subclass says how one is handled, and what its state is as bytes."""

    codec: Codec

    def __init__(
        self, records: Mapping[str, bytes], *, durable: bool, journal_bytes_min: int
    ) -> None:
        self._durable = durable
        self._journal_bytes_min = journal_bytes_min
        self._journal_next = 1
        self._journal_first = 1
        self._journal_bytes = 0
        self._state_bytes = 0
        self._effects: list[Effect] = []
        self.recovered: list[tuple[int, Told]] = []
        """What inputs that were handled again told a trace, and when they came: it may not have heard."""
        self._recover(records)

    def take(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Keep an input and handle it."""
        if self._durable:
            record = _INPUT.encode(_Input(now_ns, source, self.codec.encode(frame)))
            self._effects.append(Persist(f"journal/{self._journal_next}", record))
            self._journal_next += 1
            self._journal_bytes += len(record)
        self._handle(frame, source, now_ns)
        if self._journal_bytes > max(self._journal_bytes_min, self._state_bytes):
            self._write_state()

    def _handle(self, frame: Frame, source: str, now_ns: int) -> None:
        """Handle an input."""
        raise NotImplementedError

    def _dump(self) -> bytes:
        """Return the state."""
        raise NotImplementedError

    def _load(self, state: bytes) -> None:
        """Take a state on."""
        raise NotImplementedError

    def _write_state(self) -> None:
        state = self._dump()
        self._effects.append(Persist("state", state))
        self._effects.append(Persist("journal_first", _INT.encode(self._journal_next)))
        for number in range(self._journal_first, self._journal_next):
            self._effects.append(Persist(f"journal/{number}", None))
        self._journal_first, self._journal_bytes = self._journal_next, 0
        self._state_bytes = len(state)

    def _recover(self, records: Mapping[str, bytes]) -> None:
        if "state" in records:
            self._state_bytes = len(records["state"])
            self._load(records["state"])
            self._journal_first = self._journal_next = _INT.decode(records["journal_first"])
        while (record := records.get(f"journal/{self._journal_next}")) is not None:
            self._journal_next += 1
            self._journal_bytes += len(record)
            held = _INPUT.decode(record)
            self._handle(self.codec.decode(held.frame), held.source, held.now_ns)
            self.recovered += (
                (held.now_ns, effect) for effect in self._effects if isinstance(effect, Told)
            )
            self._effects.clear()
        self._effects.clear()
