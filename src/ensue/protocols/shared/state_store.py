"""The state store: records of clients, at a node of the chain.

A durable subscription outlives the process that reads it, and may resume on another machine. So its
records go to a state store, over the same wire as everything else.

`StateStore` holds a map of records for each name. Taking a name up (`Recall`) starts a new epoch
and is answered with the records; from then on only that epoch may change them, so of two processes
that use one name the later wins, and the earlier is fenced and stops. A late or repeated request of
the earlier one has no effect: the store remembers the last `ASKED_MAX` requests.

A store that continues from an older copy has lost changes that it had confirmed, or an epoch. It
finds out by the epoch and the number of the next change, and refuses it (`rolled back`).

The client's side is in `ensue.protocols.shared.remote_state`.

Limits: `records_max` records and `bytes_max` bytes a name, `names_max` names and `all_bytes_max`
bytes in all; beyond, the store refuses, with the limit as the reason.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ensue.core.errors import limit_reason
from ensue.core.event import Count
from ensue.core.lineage import ROLLED_BACK
from ensue.core.wire import Records
from ensue.protocols.interface import Effect, Frame, Persist, Send

__all__ = [
    "FORGOTTEN",
    "FRAMES",
    "SUPERSEDED",
    "Dismiss",
    "Dismissed",
    "NotKept",
    "NotRecalled",
    "Recall",
    "Recalled",
    "Remember",
    "Remembered",
    "StateStore",
    "StateStoreConfig",
]

ASKED_MAX = 16
"""Earlier requests of a name that are remembered."""
SUPERSEDED = "superseded"
"""Why a client keeps a durable subscription no longer: another one does."""
FORGOTTEN = "forgotten"
"""The same: the subscription was ended."""


class Recall(Frame, frozen=True, tag=40):
    """Take up the sender's name: a new epoch begins."""

    number: Count
    """Chosen by the sender: a repeated request has the same."""


class Recalled(Frame, frozen=True, tag=41):
    """The records of a name, and its new epoch."""

    number: Count
    epoch: Count
    records: dict[str, bytes]


class Remember(Frame, frozen=True, tag=42):
    """Change the sender's records: all of these writes or none."""

    epoch: Count
    number: Count
    """1, 2, 3, … within an epoch."""
    writes: tuple[tuple[str, bytes | None], ...]


class Remembered(Frame, frozen=True, tag=43):
    """Changes up to this number are safe."""

    epoch: Count
    number: Count


class NotKept(Frame, frozen=True, tag=44):
    """Nothing was changed: `superseded`, `forgotten`, `rolled back`, or a limit."""

    epoch: Count
    reason: str


class Dismiss(Frame, frozen=True, tag=45):
    """Remove all records of the sender."""

    epoch: Count


class Dismissed(Frame, frozen=True, tag=46):
    """The records of that epoch are removed."""

    epoch: Count


class NotRecalled(Frame, frozen=True, tag=47):
    """The name is refused: `superseded`, or a limit."""

    number: Count
    reason: str


FRAMES: tuple[type[Frame], ...] = (
    Recall,
    Recalled,
    Remember,
    Remembered,
    NotKept,
    Dismiss,
    Dismissed,
    NotRecalled,
)


class StateStoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a state store."""

    names_max: int = 100_000
    records_max: int = 10_000
    bytes_max: int = 4 * 1024 * 1024
    """Keys and values of one name."""
    all_bytes_max: int = 256 * 1024 * 1024


class _Name:
    """The records of one name."""

    __slots__ = ("asked", "before", "epoch", "last", "records", "size")

    def __init__(self) -> None:
        self.epoch = 0
        self.asked = 0
        """The number of the `Recall` that began the epoch."""
        self.before: tuple[int, ...] = ()
        """The numbers of earlier requests."""
        self.last = 0
        """The last change of this epoch."""
        self.records: dict[str, bytes] = {}
        self.size = 0
        """Bytes of all of them."""

    def after(self, writes: Sequence[tuple[str, bytes | None]]) -> tuple[int, int]:
        """Return the number and the bytes of the records after some writes."""
        count, size = len(self.records), self.size
        for key, value in dict(writes).items():
            before = self.records.get(key)
            if before is not None:
                count, size = count - 1, size - len(key) - len(before)
            if value is not None:
                count, size = count + 1, size + len(key) + len(value)
        return count, size


class _EpochRecord(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    asked: int
    last: int
    before: tuple[int, ...] = ()


_EPOCH = Records[_EpochRecord](_EpochRecord)


class StateStore:
    """One state store. It has no commands: it answers frames."""

    def __init__(
        self,
        *,
        name: str,
        config: StateStoreConfig | None = None,
        records: Mapping[str, bytes] | None = None,
    ) -> None:
        self.name = name
        self.config = config or StateStoreConfig()
        self._names: dict[str, _Name] = {}
        self._size = 0
        """Bytes of all records."""
        self._effects: list[Effect] = []
        self._recalled: dict[str, int] = {}
        """Name to the index of its answer to a `Recall` among the effects."""
        for key, value in sorted((records or {}).items()):
            kind, _, rest = key.partition("/")
            if kind == "keeper":
                epoch = _EPOCH.decode(value)
                known = self._names.setdefault(rest, _Name())
                known.epoch, known.asked, known.last = epoch.epoch, epoch.asked, epoch.last
                known.before = epoch.before
            elif kind == "kept":
                size, _, names = rest.partition("/")
                owner = self._names.setdefault(names[: int(size)], _Name())
                owner.records[names[int(size) + 1 :]] = value
                owner.size += len(names) - int(size) - 1 + len(value)
        self._size = sum(known.size for known in self._names.values())

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a frame."""
        del now_ns
        match frame:
            case Recall(number=number):
                self._recall(source, number)
            case Remember():
                self._remember(source, frame)
            case Dismiss(epoch=epoch):
                known = self._names.get(source)
                if known is not None and known.epoch == epoch:
                    self._dismiss(source, known)
                self._effects.append(Send(source, Dismissed(epoch=epoch)))
            case _:
                pass  # Not for a state store: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: there are no timers."""

    def next_timer_ns(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the answers."""
        effects, self._effects = self._effects, []
        self._recalled = {}
        return effects

    def keeps(self, name: str) -> bool:
        """Return whether a name has records."""
        return name in self._names

    def records(self, name: str) -> Mapping[str, bytes]:
        """Return the records of a name, read-only."""
        return self._names[name].records

    def names(self) -> Mapping[str, int]:
        """Return each name and the number of its records."""
        return {name: len(known.records) for name, known in self._names.items()}

    def _recall(self, source: str, number: int) -> None:
        known = self._names.get(source)
        if known is None:
            if len(self._names) >= self.config.names_max:
                self._effects.append(Send(source, NotRecalled(number=number, reason=self._full())))
                return
            known = self._names[source] = _Name()
            # Not from 1 on: a client that had the name before it was dismissed stays fenced.
            known.epoch = max(0, number - 1)
        if number in known.before:
            self._effects.append(Send(source, NotRecalled(number=number, reason=SUPERSEDED)))
            return
        if number != known.asked or known.epoch == 0:
            if known.asked:
                known.before = (*known.before, known.asked)[-ASKED_MAX:]
            known.epoch += 1
            known.asked = number
            known.last = 0
            self._persist_epoch(source, known)
        answer = Send(
            source, Recalled(number=number, epoch=known.epoch, records=dict(known.records))
        )
        place = self._recalled.setdefault(source, len(self._effects))
        if place < len(self._effects):
            # Requests repeated in one batch get one answer: it may be long.
            self._effects[place] = answer
        else:
            self._effects.append(answer)

    def _remember(self, source: str, frame: Remember) -> None:
        known = self._names.get(source)
        if known is None:
            self._effects.append(Send(source, NotKept(epoch=frame.epoch, reason=FORGOTTEN)))
            return
        if frame.epoch != known.epoch:
            reason = ROLLED_BACK if frame.epoch > known.epoch else SUPERSEDED
            self._effects.append(Send(source, NotKept(epoch=frame.epoch, reason=reason)))
            return
        if frame.number > known.last + 1:
            # A client sends a change when the one before is safe: this store has lost some.
            self._effects.append(Send(source, NotKept(epoch=frame.epoch, reason=ROLLED_BACK)))
            return
        if frame.number == known.last + 1:
            refusal, size = self._refusal(known, frame)
            if refusal:
                self._effects.append(Send(source, NotKept(epoch=frame.epoch, reason=refusal)))
                return
            self._size += size - known.size
            known.size = size
            known.last = frame.number
            for key, value in frame.writes:
                if value is None:
                    known.records.pop(key, None)
                else:
                    known.records[key] = value
                self._effects.append(Persist(_kept_key(source, key), value))
            self._persist_epoch(source, known)
        self._effects.append(Send(source, Remembered(epoch=known.epoch, number=known.last)))

    def _full(self) -> str:
        what = "there are too many durable subscriptions"
        how = "forget some with events.forget()"
        return limit_reason(what, "names_max", self.config.names_max, how)

    def _refusal(self, known: _Name, frame: Remember) -> tuple[str, int]:
        """Return the limit that the writes would exceed, if any, and the bytes after them."""
        config = self.config
        count, size = known.after(frame.writes)
        if count > config.records_max and count > len(known.records):
            return _over("records_max", config.records_max), size
        if size > config.bytes_max and size > known.size:
            return _over("bytes_max", config.bytes_max), size
        if self._size + size - known.size > config.all_bytes_max and size > known.size:
            what = "the records of durable subscriptions are too large"
            how = "forget some with events.forget()"
            return limit_reason(what, "all_bytes_max", config.all_bytes_max, how), size
        return "", size

    def _dismiss(self, source: str, known: _Name) -> None:
        self._size -= known.size
        for key in known.records:
            self._effects.append(Persist(_kept_key(source, key), None))
        self._effects.append(Persist(f"keeper/{source}", None))
        del self._names[source]

    def _persist_epoch(self, source: str, known: _Name) -> None:
        record = _EpochRecord(known.epoch, known.asked, known.last, known.before)
        self._effects.append(Persist(f"keeper/{source}", _EPOCH.encode(record)))


def _kept_key(owner: str, key: str) -> str:
    return f"kept/{len(owner)}/{owner}/{key}"


def _over(limit: str, value: int) -> str:
    what = "the records of the durable subscription are too many or too large"
    return limit_reason(what, limit, value, "give it fewer topics")
