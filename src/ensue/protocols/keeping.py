"""Records kept far away: a client whose state survives it, at a node of the chain.

A durable subscription outlives the process that reads it, and may go on on another machine. So what
it persists goes to a keeper, over the same wire as everything else.

`Keeper` holds a map of records for each name. Taking a name up (`Recall`) starts a new epoch and is
answered with the records; from then on only that epoch may change them, so of two processes that
use one name the later wins, and the earlier is told (`Superseded`) and stops.

`Kept` wraps the node whose records they are. It recalls them, builds the node, and turns each batch of
`Persist` into one numbered `Remember`. Whatever else the batch holds waits until the keeper has
answered, as a driver waits for a disk. Batches that come while an answer is out are put together.

Guarantee: what a node sent or delivered behind a `Persist` is remembered first, and a batch is
remembered whole or not at all.

Limits: `records_max` records and `bytes_max` bytes a name, `names_max` names and `all_bytes_max` bytes in
all; beyond, the keeper refuses, and says so.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from ensue.event import Count
from ensue.protocols.core import Effect, Frame, Node, Persist, Refuse, Resumed, Send
from ensue.wire import Records

__all__ = [
    "DISMISSED",
    "FRAMES",
    "SUPERSEDED",
    "Dismiss",
    "Keeper",
    "KeeperConfig",
    "Kept",
    "NotKept",
    "Recall",
    "Recalled",
    "Remember",
    "Remembered",
]

RETRY_NS = 500_000_000
"""What got no answer is asked again after so long."""
WRITES_MAX = 4096
"""Records in one `Remember`."""
SUPERSEDED = "superseded"
DISMISSED = "dismissed"

N = TypeVar("N", bound=Node)
_INT = Records[int](int)


class Recall(Frame, frozen=True, tag=40):
    """Take up the sender's name: a new epoch begins."""

    number: Count
    """Chosen by the sender, to tell a repeated question from a new one."""


class Recalled(Frame, frozen=True, tag=41):
    """What is kept for you."""

    number: Count
    epoch: Count
    records: dict[str, bytes]


class Remember(Frame, frozen=True, tag=42):
    """Change my records, all of these or none."""

    epoch: Count
    number: Count
    """1, 2, 3, … within an epoch."""
    writes: tuple[tuple[str, bytes | None], ...]


class Remembered(Frame, frozen=True, tag=43):
    """Changes up to this number are safe."""

    epoch: Count
    number: Count


class NotKept(Frame, frozen=True, tag=44):
    """Nothing was changed, and why: `superseded`, or a limit."""

    epoch: Count
    reason: str


class Dismiss(Frame, frozen=True, tag=45):
    """Forget everything of the sender's."""

    epoch: Count


FRAMES: tuple[type[Frame], ...] = (Recall, Recalled, Remember, Remembered, NotKept, Dismiss)


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a keeper."""

    names_max: int = 100_000
    records_max: int = 10_000
    bytes_max: int = 4 * 1024 * 1024
    """Keys and values of one name."""
    all_bytes_max: int = 256 * 1024 * 1024


class _Name:
    """What is kept for one name."""

    __slots__ = ("asked", "epoch", "last", "records", "size")

    def __init__(self) -> None:
        self.epoch = 0
        self.asked = 0
        """The number of the `Recall` that began the epoch."""
        self.last = 0
        """The last change of this epoch."""
        self.records: dict[str, bytes] = {}
        self.size = 0
        """Bytes of all of them."""

    def after(self, writes: Sequence[tuple[str, bytes | None]]) -> tuple[int, int]:
        """Return how many records there would be after changes, and how many bytes of them."""
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


_EPOCH = Records[_EpochRecord](_EpochRecord)


class Keeper:
    """Keeps records for others. It has no commands: it answers frames."""

    def __init__(
        self,
        *,
        name: str,
        config: KeeperConfig | None = None,
        records: Mapping[str, bytes] | None = None,
    ) -> None:
        self.name = name
        self.config = config or KeeperConfig()
        self._names: dict[str, _Name] = {}
        self._size = 0
        """Bytes of all records."""
        self._effects: list[Effect] = []
        self._recalled: dict[str, int] = {}
        """Where the effects hold an answer to a `Recall`, by name."""
        for key, value in sorted((records or {}).items()):
            kind, _, rest = key.partition("/")
            if kind == "keeper":
                epoch = _EPOCH.decode(value)
                known = self._names.setdefault(rest, _Name())
                known.epoch, known.asked, known.last = epoch.epoch, epoch.asked, epoch.last
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
            case _:
                pass  # Not for a keeper: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: a keeper keeps no time."""

    def next_timer_ns(self) -> int | None:
        """Return None: a keeper keeps no time."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the answers."""
        effects, self._effects = self._effects, []
        self._recalled = {}
        return effects

    def keeps(self, name: str) -> bool:
        """Tell whether anything is known of a name."""
        return name in self._names

    def records(self, name: str) -> Mapping[str, bytes]:
        """Return what is kept for a name, to be read."""
        return self._names[name].records

    def names(self) -> Mapping[str, int]:
        """Return whose records are kept, and how many."""
        return {name: len(known.records) for name, known in self._names.items()}

    def _recall(self, source: str, number: int) -> None:
        known = self._names.get(source)
        if known is None:
            if len(self._names) >= self.config.names_max:
                self._effects.append(Send(source, NotKept(epoch=0, reason="names_max")))
                return
            known = self._names[source] = _Name()
            # Not from 1 on: whoever had the name before it was dismissed must stay superseded.
            known.epoch = max(0, number - 1)
        if number != known.asked or known.epoch == 0:
            known.epoch += 1
            known.asked = number
            known.last = 0
            self._persist_epoch(source, known)
        answer = Send(
            source, Recalled(number=number, epoch=known.epoch, records=dict(known.records))
        )
        place = self._recalled.setdefault(source, len(self._effects))
        if place < len(self._effects):
            # Asked many times at once, it is answered once: there may be much to tell.
            self._effects[place] = answer
        else:
            self._effects.append(answer)

    def _remember(self, source: str, frame: Remember) -> None:
        known = self._names.get(source)
        if known is None or frame.epoch != known.epoch:
            self._effects.append(Send(source, NotKept(epoch=frame.epoch, reason=SUPERSEDED)))
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

    def _refusal(self, known: _Name, frame: Remember) -> tuple[str, int]:
        """Return which limit changes would go beyond, if any, and how many bytes there would be."""
        config = self.config
        count, size = known.after(frame.writes)
        if count > config.records_max and count > len(known.records):
            return f"records_max ({config.records_max})", size
        if size > config.bytes_max and size > known.size:
            return f"bytes_max ({config.bytes_max})", size
        if self._size + size - known.size > config.all_bytes_max and size > known.size:
            return f"all_bytes_max ({config.all_bytes_max})", size
        return "", size

    def _dismiss(self, source: str, known: _Name) -> None:
        self._size -= known.size
        for key in known.records:
            self._effects.append(Persist(_kept_key(source, key), None))
        self._effects.append(Persist(f"keeper/{source}", None))
        del self._names[source]

    def _persist_epoch(self, source: str, known: _Name) -> None:
        record = _EpochRecord(known.epoch, known.asked, known.last)
        self._effects.append(Persist(f"keeper/{source}", _EPOCH.encode(record)))


def _kept_key(owner: str, key: str) -> str:
    return f"kept/{len(owner)}/{owner}/{key}"


class Kept(Generic[N]):
    """A node whose records are kept by a keeper.

    `build` makes the node from its records and the time. `inner` is None until they have come; commands
    go to it. `number` must differ from that of any earlier incarnation of the name.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, bytes], int], N],
        *,
        name: str,
        keeper: str,
        number: int,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.inner: N | None = None
        self.stopped = ""
        """Why it does nothing any more: `superseded`, or a limit of the keeper."""
        self._build = build
        self._keeper = keeper
        self._number = number
        self._epoch = 0
        self._sent = 0
        """The number of the last `Remember`."""
        self._under_way: Remember | None = None
        self._waiting: deque[tuple[list[Persist], list[Effect]]] = deque()
        """Batches to be remembered, and what waits for each; those under way come first."""
        self._covered = 0
        """How many of them the `Remember` under way covers."""
        self._now_ns = now_ns
        """When it was last called with the time."""
        self._finished: Callable[[N], bool] | None = None
        self._due_ns: int | None = now_ns + RETRY_NS
        self._effects: list[Effect] = [Send(keeper, Recall(number=number))]

    @property
    def unremembered(self) -> int:
        """How many batches wait for the keeper."""
        return len(self._waiting)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle the keeper's answers; hand everything else to the node."""
        if self.stopped:
            return
        self._now_ns = now_ns
        match frame:
            case Recalled(number=number, epoch=epoch, records=records):
                if self.inner is None and number == self._number and source == self._keeper:
                    self._epoch = epoch
                    self._due_ns = None
                    self.inner = self._build(records, now_ns)
                    self._effects.append(Resumed())
            case Remembered(epoch=epoch, number=number):
                if epoch == self._epoch and number == self._sent and self._under_way is not None:
                    self._remembered()
            case NotKept(epoch=epoch, reason=reason):
                if source == self._keeper and epoch == self._epoch:
                    self._stop(reason)
                    return
            case _:
                if self.inner is not None:
                    self.inner.receive(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Ask again; let the node do what is due."""
        if self.stopped:
            return
        self._now_ns = now_ns
        if self._due_ns is not None and self._due_ns <= now_ns:
            self._due_ns = now_ns + RETRY_NS
            again: Frame = self._under_way or Recall(number=self._number)
            self._effects.append(Send(self._keeper, again))
        if self.inner is not None:
            self.inner.handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to ask again, or when the node has something due."""
        if self.stopped:
            return None
        inner = None if self.inner is None else self.inner.next_timer_ns()
        dues = [due for due in (self._due_ns, inner) if due is not None]
        return min(dues, default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done; what waits for the keeper comes later."""
        if self.inner is not None and not self.stopped:
            self._collect()
            self._send()
            if self._finished is not None and not self._waiting and self._finished(self.inner):
                self._effects.append(Send(self._keeper, Dismiss(epoch=self._epoch)))
                self._stop(DISMISSED)
        effects, self._effects = self._effects, []
        return effects

    def repeat(self, *, now_ns: int) -> None:
        """Ask again at once, and let the node do so: a connection was lost."""
        if self.stopped:
            return
        if self._due_ns is not None:
            self._due_ns = now_ns
            self.handle_timer(now_ns=now_ns)
        repeat = getattr(self.inner, "repeat", None)
        if repeat is not None:
            self._now_ns = now_ns
            repeat(now_ns=now_ns)

    def dismiss(self, finished: Callable[[N], bool]) -> None:
        """Have the keeper forget this name as soon as the node is finished; then do nothing more."""
        self._finished = finished

    def _collect(self) -> None:
        """Take what the node wants done: at once if nothing has to be remembered before it."""
        assert self.inner is not None
        effects = self.inner.take_effects()
        if not effects:
            return
        writes = [effect for effect in effects if isinstance(effect, Persist)]
        others: list[Effect] = [each for each in effects if not isinstance(each, Persist)]
        if writes or self._waiting:
            self._waiting.append((writes, others))
        else:
            self._effects += others

    def _send(self) -> None:
        if self._under_way is not None or not self._waiting:
            return
        writes: dict[str, bytes | None] = {}
        self._covered = 0
        for batch, _ in self._waiting:
            if self._covered and len(writes) + len(batch) > WRITES_MAX:
                break
            writes.update((write.key, write.value) for write in batch)
            self._covered += 1
        self._sent += 1
        self._under_way = Remember(
            epoch=self._epoch, number=self._sent, writes=tuple(writes.items())
        )
        self._effects.append(Send(self._keeper, self._under_way))
        self._due_ns = self._now_ns + RETRY_NS

    def _remembered(self) -> None:
        self._under_way = None
        self._due_ns = None
        for _ in range(self._covered):
            self._effects += self._waiting.popleft()[1]
        while self._waiting and not self._waiting[0][0]:
            self._effects += self._waiting.popleft()[1]

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._waiting.clear()
        self._effects.append(Refuse((), reason))
