"""Remote state: a node whose records are in a state store.

The store is `ensue.protocols.shared.state_store`.

`RemoteState` wraps the node. It recalls the records, builds the node, and turns each batch of
`Persist` into one numbered `Remember`. The other effects of the batch wait until the store has
answered, as a driver waits for a disk. Batches made while an answer is pending are joined.

While more than `HELD_MAX` effects wait, as they do when the store is unreachable, the node rests:
frames for it are dropped, and its timers are late. So the node must be one that repeats its
requests.

A node that is refused ends at once, with what still waits: its store may never answer.

Guarantee: what a node sends or delivers after a `Persist` is remembered first, and a batch is
remembered whole or not at all.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from ensue.protocols.interface import Effect, Frame, Node, Persist, Refuse, Resumed, Send
from ensue.protocols.shared.state_store import (
    Dismiss,
    Dismissed,
    NotKept,
    NotRecalled,
    Recall,
    Recalled,
    Remember,
    Remembered,
)

__all__ = ["DISMISSED", "RemoteState"]

RETRY_NS = 500_000_000
"""How long to wait for an answer before repeating a request."""
WRITES_MAX = 4096
"""Records in one `Remember`."""
HELD_MAX = 20_000
"""Effects that wait for the store: enough for what arrives while it writes."""
DISMISSED = "dismissed"
_ANSWERS = (Recalled, Remembered, NotKept, Dismissed, NotRecalled)

N = TypeVar("N", bound=Node)


class RemoteState(Generic[N]):
    """A node whose records are in the state store of the node `store`.

    `build` makes the node from its records and the time. `inner` is None until they have arrived;
    commands go to it. `number` must differ from that of any earlier incarnation of the name.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, bytes], int], N],
        *,
        name: str,
        store: str,
        number: int,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.inner: N | None = None
        self.stopped = ""
        """Why it stopped: `superseded`, a limit of the store, or why the node was refused."""
        self._build = build
        self._store = store
        self._number = number
        self._epoch = 0
        self._sent = 0
        """The number of the last `Remember`."""
        self._under_way: Remember | None = None
        self._waiting: deque[tuple[list[Persist], list[Effect]]] = deque()
        """Batches to be remembered, with the effects that wait for each; the pending ones first."""
        self._held = 0
        """How many effects wait in all batches."""
        self._covered = 0
        """How many batches the pending `Remember` covers."""
        self._now_ns = now_ns
        """The time of the last call."""
        self._finished: Callable[[N], bool] | None = None
        self._dismissing = False
        """Whether the node is finished, and the store was asked to remove its records."""
        self._due_ns: int | None = now_ns + RETRY_NS
        self._effects: list[Effect] = [Send(store, Recall(number=number))]

    @property
    def unremembered(self) -> int:
        """How many batches wait for the store."""
        return len(self._waiting)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle the store's answers; pass everything else to the node."""
        if self.stopped:
            return
        self._now_ns = now_ns
        if isinstance(frame, _ANSWERS):
            if source == self._store:
                self._answered(frame, now_ns)
        elif self.inner is not None and self._held < HELD_MAX:
            self.inner.receive(frame, source=source, now_ns=now_ns)

    def _answered(self, frame: Frame, now_ns: int) -> None:
        epoch, asking = self._epoch, self.inner is None
        match frame:
            case Recalled(number=self._number, epoch=begun, records=records) if asking:
                self._epoch = begun
                self._due_ns = None
                self.inner = self._build(records, now_ns)
                self._effects.append(Resumed())
            case NotRecalled(number=self._number, reason=reason) if asking:
                self._stop(reason)
            case Remembered(epoch=of, number=self._sent) if of == epoch and self._under_way:
                self._remembered()
            case NotKept(epoch=of, reason=reason) if of == epoch:
                self._stop(reason)
            case Dismissed(epoch=of) if of == epoch and self._dismissing:
                self._stop(DISMISSED)
            case _:
                pass  # An answer to an earlier incarnation, or a repeated one.

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat the open request; run the node's timers."""
        if self.stopped:
            return
        self._now_ns = now_ns
        if self._due_ns is not None and self._due_ns <= now_ns:
            self._due_ns = now_ns + RETRY_NS
            again: Frame = self._under_way or Recall(number=self._number)
            if self._dismissing:
                again = Dismiss(epoch=self._epoch)
            self._effects.append(Send(self._store, again))
        awake = self._awake
        if awake is not None:
            awake.handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to repeat a request, or when the node has something due."""
        if self.stopped:
            return None
        awake = self._awake
        inner = None if awake is None else awake.next_timer_ns()
        dues = [due for due in (self._due_ns, inner) if due is not None]
        return min(dues, default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects that do not wait for the store."""
        if self.inner is not None and not self.stopped and not self._dismissing:
            self._collect()
            self._send()
            finished = self._finished is not None and not self._waiting and not self.stopped
            if finished and self._finished is not None and self._finished(self.inner):
                self._dismissing = True
                self._due_ns = self._now_ns + RETRY_NS
                self._effects.append(Send(self._store, Dismiss(epoch=self._epoch)))
        effects, self._effects = self._effects, []
        return effects

    def repeat(self, *, now_ns: int) -> None:
        """Repeat open requests now, also the node's: a connection was lost."""
        if self.stopped:
            return
        if self._due_ns is not None:
            self._due_ns = now_ns
            self.handle_timer(now_ns=now_ns)
        elif not self._dismissing:
            # Another incarnation may have taken the name: an empty write finds out before anything
            # else is sent or delivered.
            self._waiting.append(([], []))
        repeat = getattr(self._awake, "repeat", None)
        if repeat is not None:
            self._now_ns = now_ns
            repeat(now_ns=now_ns)

    def dismiss(self, finished: Callable[[N], bool]) -> None:
        """Remove the records as soon as the node is finished; then do nothing more."""
        self._finished = finished

    def _collect(self) -> None:
        """Collect the node's effects: at once if nothing has to be remembered first."""
        assert self.inner is not None
        effects = self.inner.take_effects()
        if not effects:
            return
        writes = [effect for effect in effects if isinstance(effect, Persist)]
        others: list[Effect] = [each for each in effects if not isinstance(each, Persist)]
        ends = [each for each in others if isinstance(each, Refuse) and not each.topics]
        if not writes and not self._waiting:
            self._effects += others
        elif ends:
            # The node has ended: what waits for the store is not needed any more.
            self._stop(ends[0].reason)
        else:
            self._waiting.append((writes, others))
            self._held += len(others)

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
        self._effects.append(Send(self._store, self._under_way))
        self._due_ns = self._now_ns + RETRY_NS

    def _remembered(self) -> None:
        self._under_way = None
        self._due_ns = None
        for _ in range(self._covered):
            self._release()
        while self._waiting and not self._waiting[0][0]:
            self._release()

    def _release(self) -> None:
        _, others = self._waiting.popleft()
        self._held -= len(others)
        self._effects += others

    @property
    def _awake(self) -> N | None:
        """The node, unless it is finished or rests."""
        return None if self._dismissing or self._held >= HELD_MAX else self.inner

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._waiting.clear()
        self._effects.append(Refuse((), reason))
