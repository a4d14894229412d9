"""The asyncio driver of one protocol node: its timer, its port and its outcomes.

The node stays pure; all I/O is here. After each batch of frames, timer call or command the driver
drains the node's effects and carries them out in the order that `ensue.protocols.interface`
prescribes. With a store, records are written first, and the other effects wait until they are safe.
A driver keeps one timer at the event loop, for the earliest time that the node asked for: a node
that postpones its timer with every frame arms none. The event loop's clock does not step: a timer
from before a step forward of the node's clock is late, and is armed again with the next frame,
command or timer.

asyncio would only log an exception of the node, the port or an outcome callback, and clients would
wait forever. So the driver closes, logs the exception, and reports it to its owner.

A driver belongs to one event loop and is not thread-safe.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar, get_args

from ensue.core.clock import Clock
from ensue.core.errors import LocalProtocolError
from ensue.protocols.interface import (
    Attach,
    Broadcast,
    Detach,
    Effect,
    Frame,
    Multicast,
    Node,
    Outcome,
    Persist,
    Publish,
    Refuse,
    Send,
)
from ensue.protocols.recorder import Recorder
from ensue.protocols.topic_log.frames import Notify, request_for
from ensue.transports.base import Transport

__all__ = ["Driver", "Failed", "Store"]

N = TypeVar("N", bound=Node)
SECOND_NS = 1_000_000_000
TIMER_LATE_S = 0.001
"""Arm a timer again that would fire later than this: the clock was stepped forward."""
_OUTCOMES = frozenset(get_args(Outcome)) - {Publish}

_log = logging.getLogger("ensue")


class Failed(Refuse, frozen=True, gc=True):
    """The node has stopped because of an exception."""

    error: Exception


class Store(Protocol):
    """The durable records of a node."""

    def write(self, writes: Sequence[Persist], done: Callable[[], None]) -> None:
        """Make a whole batch safe, then call `done`.

        Batches become safe in the order of the calls. One without writes waits for the earlier
        ones.
        """


class Driver(Generic[N]):
    """Runs one node on a transport.

    `store` is needed by a node that persists. `seen_as` and `subscription` name the node in the
    trace. `size_of` gives the wire size of frames to the trace; it is called only with a recorder.

    `on_failure` is called if the node fails; without it there is an outcome `Failed`. With
    `blames_sender`, the driver raises an exception that a frame causes to the transport, and the
    node continues.
    """

    def __init__(
        self,
        node: N,
        *,
        transport: Transport,
        clock: Clock,
        on_outcomes: Callable[[Sequence[Outcome]], None] | None = None,
        on_failure: Callable[[Exception], None] | None = None,
        blames_sender: bool = False,
        store: Store | None = None,
        recorder: Recorder | None = None,
        seen_as: str | None = None,
        subscription: str | None = None,
        size_of: Callable[[Frame], int] | None = None,
    ) -> None:
        self.node = node
        self._clock = clock
        self._on_outcomes = on_outcomes
        self._on_failure = on_failure
        self._blames_sender = blames_sender
        self._store = store
        self._recorder = recorder
        self._seen_as = node.name if seen_as is None else seen_as
        self._subscription = subscription
        self._size_of = size_of
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._closed = False
        self._done: Callable[[N], bool] | None = None
        """Set once the driver has retired: whether the node has finished."""
        self._on_closed: Callable[[], None] | None = None
        self._lazy = transport.lazy
        self._scheduled = False
        """Whether a callback of this event loop iteration will drain the effects of commands."""
        self._checking_timer = False
        """Whether a callback of this event loop iteration will check the timer."""
        self._port = transport.open(node.name, self._receive)
        self._drain()
        self._port.flush()

    @property
    def closed(self) -> bool:
        """Whether the driver is closed."""
        return self._closed

    @property
    def takes_commands(self) -> bool:
        """Whether the driver is neither closed nor retired."""
        return not self._closed and self._done is None

    def command(self, call: Callable[[N, int], object]) -> None:
        """Give the node a command: `call(node, now_ns)`. Exceptions reach the caller."""
        node, now_ns = self.begin()
        try:
            call(node, now_ns)
        finally:
            self.end()

    def begin(self) -> tuple[N, int]:
        """Return the node and the time, for a command; `end` must follow in any case."""
        if not self.takes_commands:
            raise LocalProtocolError(f"{self.node.name} is closed")
        return self.node, self._clock.now_ns()

    def end(self) -> None:
        """Carry out the effects of a command."""
        if not self._lazy:
            self._drain()
            self._port.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain_late)

    def repeat(self) -> None:
        """Let the node retransmit now."""
        repeat = getattr(self.node, "repeat", None)
        if repeat is not None and not self._closed:
            try:
                repeat(now_ns=self._clock.now_ns())
                self._drain()
                self._port.flush()
            except Exception as error:  # noqa: BLE001 - see above
                self.fail(error)

    def lose(self, reason: str, error: Exception | None = None) -> None:
        """Close, and report to the application why its node was refused permanently."""
        if not self._closed:
            self.close()
            if self._on_outcomes is not None:
                outcome = Refuse((), reason) if error is None else Failed((), reason, error)
                self._on_outcomes((outcome,))

    def fail(self, error: Exception) -> None:
        """Close, and report the failure to the owner of this node."""
        if self._closed:
            return
        if self._on_failure is None and self._on_outcomes is None:
            raise error
        _log.error("node failed node=%s error=%r", self.node.name, str(error), exc_info=error)
        self._scheduled = False  # Its remaining effects may be wrong.
        self.close()
        if self._on_failure is not None:
            self._on_failure(error)
        elif self._on_outcomes is not None:
            self._on_outcomes((Failed((), str(error) or repr(error), error),))

    def retire(
        self, done: Callable[[N], bool], on_closed: Callable[[], None] | None = None
    ) -> None:
        """Take no more commands; close as soon as `done(node)` holds after a step.

        For a node that finishes work without its application. `on_closed` is called when the driver
        has closed, for any reason.
        """
        self._done = done
        self._on_closed = on_closed
        if self._closed:
            self._report_closed()
        else:
            self._close_if_done()

    def close(self) -> None:
        """Stop the node: no more frames, timers or commands reach it."""
        if self._scheduled:
            self._drain_late()
        self._closed = True
        self._port.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._report_closed()

    def _report_closed(self) -> None:
        report, self._on_closed = self._on_closed, None
        if report is not None:
            report()

    def _receive(self, frames: Sequence[Frame], source: str) -> None:
        # The transport flushes after the last frame.
        now_ns = self._clock.now_ns()
        receive = self.node.receive
        try:
            for frame in frames:
                if self._recorder is not None and type(frame) is Notify:
                    self._recorder.frame("received", self._seen_as, frame, now_ns)
                receive(frame, source=source, now_ns=now_ns)
            self._drain()
            if self._done is not None:
                self._close_if_done()
        except Exception as error:
            if self._blames_sender:
                raise
            self.fail(error)

    def _drain_late(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            self._drain()
            self._port.flush()
            self._close_if_done()
        except Exception as error:  # noqa: BLE001 - see above
            self.fail(error)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.node.handle_timer(now_ns=self._clock.now_ns())
            self._drain()
            self._port.flush()
            self._close_if_done()
        except Exception as error:  # noqa: BLE001 - see above
            self.fail(error)

    def _close_if_done(self) -> None:
        if self._done is not None and not self._closed and self._done(self.node):
            self.close()

    def _drain(self) -> None:
        if not self._checking_timer:
            # Once per event loop iteration is enough, however many frames arrive.
            self._checking_timer = True
            self._loop.call_soon(self._check_timer)
        effects = self.node.take_effects()
        if not effects:
            return
        if self._store is None:
            self._carry_out(effects)
            return
        writes: list[Persist] = []
        others: list[Effect] = []
        for effect in effects:
            if type(effect) is Persist:
                writes.append(effect)
            else:
                others.append(effect)
        self._store.write(writes, partial(self._carry_out_later, others))

    def _carry_out_later(self, effects: Sequence[Effect]) -> None:
        if self._closed:
            return
        try:
            self._carry_out(effects)
            self._port.flush()
            self._close_if_done()
        except Exception as error:  # noqa: BLE001 - see above
            self.fail(error)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        outcomes: list[Outcome] = []
        port = self._port
        # By type, not by isinstance: every effect of every event passes here.
        for effect in effects:
            kind = type(effect)
            if kind in _OUTCOMES:
                outcomes.append(effect)  # type: ignore[arg-type]
            elif kind is Send:
                port.send(effect.peer, effect.frame)  # type: ignore[union-attr]
            elif kind is Multicast:
                port.multicast(effect)  # type: ignore[arg-type]
            elif kind is Publish:
                outcomes.append(effect)  # type: ignore[arg-type]
                # Recorded in its place among the sends: it is published before it is sent.
                self._record(effect)  # type: ignore[arg-type]
            elif kind is Persist:
                raise LocalProtocolError(
                    f"{self.node.name} persists records, and has no store: configure it with "
                    "durable=False"
                )
            else:
                self._ask(effect)  # type: ignore[arg-type]
        if outcomes:
            self._report(outcomes)

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        """Report outcomes to the application."""
        if self._recorder is not None:
            for outcome in outcomes:
                if type(outcome) is not Publish:
                    self._record(outcome)
        if self._on_outcomes is not None:
            self._on_outcomes(outcomes)

    def _ask(self, effect: Broadcast | Attach | Detach) -> None:
        request = request_for(effect)
        if self._recorder is not None and isinstance(effect, Broadcast):
            size = None if self._size_of is None else self._size_of(request)
            self._recorder.sent(self._seen_as, effect.event, self._clock.now_ns(), bytes=size)
        self._port.ask(effect, request)

    def _record(self, outcome: Outcome) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        now_ns = self._clock.now_ns()
        if isinstance(outcome, Publish):
            put = request_for(Broadcast(outcome.event))
            size = None if self._size_of is None else self._size_of(put)
            recorder.published(self._seen_as, outcome.event, now_ns, bytes=size)
        else:
            recorder.outcome(self._seen_as, self._subscription, outcome, now_ns)

    def _check_timer(self) -> None:
        """Arm the event loop's timer for the node's next time, or earlier."""
        self._checking_timer = False
        if self._closed:
            return
        try:
            due_ns = self.node.next_timer_ns()
        except Exception as error:  # noqa: BLE001 - see above
            self.fail(error)
            return
        if due_ns is None:
            return
        fires_s = self._loop.time() + max(0, due_ns - self._clock.now_ns()) / SECOND_NS
        if self._timer is not None:
            if self._timer_due_ns <= due_ns and self._timer.when() <= fires_s + TIMER_LATE_S:
                return  # It fires early, finds nothing due, and is armed again.
            self._timer.cancel()
        self._timer_due_ns = due_ns
        self._timer = self._loop.call_at(fires_s, self._on_timer)
