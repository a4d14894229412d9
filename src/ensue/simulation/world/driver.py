"""The driver of one node: steps, batches, timers and effects.

A step of a node is one `receive`, `handle_timer` or command. After each step its effects are
drained into a batch and carried out as `protocols.interface` prescribes: the batch's records are
synced, then its frames are sent, then its outcomes reach the application and the trace. A batch
waits for earlier ones, even if it has no records. An effect for a topic log goes, as a frame, to
the node that `ens_for` returns for the topic.

This is the hot path: it knows whether a node is up, down or paused, but not the faults; see
`world`.

Limits: `BACKLOG_MAX` calls waiting for a paused node; `TIMER_REPEATS_MAX` timer calls to one node
at one instant. Either raises `LimitReached`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.core.event import Event
from ensue.protocols.interface import (
    Attach,
    Broadcast,
    Detach,
    Effect,
    Frame,
    Multicast,
    Outcome,
    Persist,
    Publish,
    Send,
)
from ensue.protocols.recorder import Recorder
from ensue.protocols.topic_log.frames import request_for
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.load_model import QueueConfig
from ensue.simulation.world.loop import Loop
from ensue.simulation.world.network import Network, NetworkConfig
from ensue.simulation.world.process import NEVER_NS, Process

__all__ = ["BACKLOG_MAX", "TIMER_REPEATS_MAX", "Codec", "Command", "Driver"]

BACKLOG_MAX = 1_000_000
TIMER_REPEATS_MAX = 100_000

Command = Callable[[Any, int], object]
"""Called with the node and the reading of its clock; the result is ignored."""


class Codec(Protocol):
    """Frames to bytes and back."""

    def encode(self, frame: Frame, /) -> bytes:
        """Return the encoded frame."""

    def decode(self, data: bytes, /) -> Frame:
        """Return the decoded frame."""


class Driver(Loop):
    """Drives processes; programs use its subclass `World`."""

    def __init__(
        self,
        seed: int,
        *,
        network: NetworkConfig,
        disk: DiskConfig,
        queueing: QueueConfig | None,
        codec: Codec | None,
        recorder: Recorder | None,
        on_outcome: Callable[[str, Outcome], None] | None,
        ens_for: Callable[[str], str],
    ) -> None:
        super().__init__(seed)
        self.recorder = recorder
        self.on_outcome = on_outcome
        self.ens_for = ens_for
        self.steps = 0
        """Frames received and timers handled by nodes so far."""
        self.frames_undelivered = 0
        """Frames whose target was down or unknown."""
        self.commands_undelivered = 0
        """Commands to a node that was down."""
        self._codec = codec
        self._queueing = queueing
        self._plain = codec is None and queueing is None
        self._disk_config = disk
        self._processes: dict[str, Process] = {}
        """By place."""
        self._by_name: dict[str, Process] = {}
        self.network = Network(
            network,
            schedule=self.schedule,
            arrive=self._arrive,
            delay_random=self.stream("network"),
            fault_random=self.stream("faults"),
        )

    # Steps

    def _start(self, process: Process, incarnation: int) -> None:
        if process.incarnation != incarnation:
            return
        if process.pauses:
            self._wait(process, self._start, (process, incarnation))
        else:
            self._drain(process)

    def _arrive(self, process: Process, source: str, message: Any, size: int) -> None:
        if process.node is None:
            self.frames_undelivered += 1
            return
        frame = message if self._codec is None else self._codec.decode(message)
        server = process.server
        if server is not None:
            assert self._queueing is not None
            cost_ns = self._queueing.cost_ns(process.name, frame, size)
            server.add(self.now_ns, cost_ns, (process, source, frame, size))
            if server.serving is None and not process.pauses:
                self._serve(process)
        elif process.pauses:
            self._wait(process, self._receive, (process, source, frame, size))
        else:
            self._receive(process, source, frame, size)

    def _receive(self, process: Process, source: str, frame: Frame, size: int) -> None:
        assert process.node is not None
        self.steps += 1
        now_ns = process.clock.read(self.now_ns)
        recorder = self.recorder
        if recorder is not None and recorder.peer_frames:
            recorder.frame("received", process.seen_as, frame, now_ns, self.now_ns, size or None)
        process.node.receive(frame, source=source, now_ns=now_ns)
        self._drain(process)

    def _serve(self, process: Process) -> None:
        assert process.server is not None
        service_ns = process.server.start(self.now_ns)
        if service_ns is not None:
            due_ns = self.now_ns + service_ns
            self.schedule(due_ns, self._served, (process, process.incarnation))

    def _served(self, process: Process, incarnation: int) -> None:
        if process.incarnation != incarnation:
            return
        if process.pauses:
            process.service_over = True
            return
        assert process.server is not None
        self._receive(*process.server.finish(self.now_ns))
        if process.incarnation == incarnation and not process.pauses:
            self._serve(process)

    def _call(self, place: str, command: Command) -> None:
        self._command(self._processes[place], command)

    def _command(self, process: Process, command: Command) -> None:
        if process.node is None:
            self.commands_undelivered += 1
        elif process.pauses:
            self._wait(process, self._command, (process, command))
        else:
            command(process.node, process.clock.read(self.now_ns))
            self._drain(process)

    def _wait(
        self, process: Process, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if len(process.backlog) >= BACKLOG_MAX:
            raise LimitReached(
                f"too many calls wait for the paused node {process.name}",
                limit="BACKLOG_MAX",
                value=BACKLOG_MAX,
            )
        process.backlog.append((function, arguments))

    # Timers

    def _arm(self, process: Process, timer_node_ns: int | None) -> None:
        process.timer_node_ns = timer_node_ns
        if timer_node_ns is None:
            process.timer_due_ns = NEVER_NS
            return
        due_ns = process.clock.true_at(timer_node_ns, self.now_ns)
        process.timer_due_ns = due_ns
        if due_ns < process.timer_entry_ns:
            process.timer_entry_ns = due_ns
            self.schedule(due_ns, self._timer, (process,))

    def _timer(self, process: Process) -> None:
        now_ns = self.now_ns
        if process.timer_entry_ns != now_ns:
            return  # An earlier entry took its place.
        process.timer_entry_ns = NEVER_NS
        if process.pauses or process.timer_due_ns == NEVER_NS:
            return  # Resuming arms it again.
        if process.timer_due_ns > now_ns:
            process.timer_entry_ns = process.timer_due_ns
            self.schedule(process.timer_due_ns, self._timer, (process,))
            return
        process.timer_repeats += 1
        if process.timer_fired_ns != now_ns:
            process.timer_fired_ns = now_ns
            process.timer_repeats = 0
        elif process.timer_repeats > TIMER_REPEATS_MAX:
            raise LimitReached(
                f"the timer of {process.name} keeps being due at {now_ns} ns: it must move forward",
                limit="TIMER_REPEATS_MAX",
                value=TIMER_REPEATS_MAX,
            )
        assert process.node is not None
        self.steps += 1
        # Forgotten first, so that a node asking for the same time again is called again.
        process.timer_node_ns = None
        process.timer_due_ns = NEVER_NS
        process.node.handle_timer(now_ns=process.clock.read(now_ns))
        self._drain(process)

    # Batches

    def _drain(self, process: Process) -> None:
        node = process.node
        assert node is not None
        effects = node.take_effects()
        timer_node_ns = node.next_timer_ns()
        if timer_node_ns != process.timer_node_ns:
            self._arm(process, timer_node_ns)
        if not effects:
            return
        writes = [effect for effect in effects if isinstance(effect, Persist)]
        disk = process.disk
        if not writes and disk.idle:
            self._carry_out(process, effects)
            return
        disk.add(writes, effects)
        if not disk.syncing:
            self._sync(process)

    def _sync(self, process: Process) -> None:
        process.disk.begin_sync()
        sync_ns = process.sync_ns()
        if sync_ns:
            self.schedule(self.now_ns + sync_ns, self._synced, (process, process.incarnation))
        else:
            self._synced(process, process.incarnation)

    def _synced(self, process: Process, incarnation: int) -> None:
        if process.incarnation != incarnation:
            return
        if process.pauses and process.disk.all_or_nothing:
            self._wait(process, self._synced, (process, incarnation))
            return
        outputs = process.disk.end_sync()
        if process.pauses:
            # The disk works on while the process stands still: durable, but not yet sent.
            process.outputs.extend(outputs)
        else:
            self._carry_out_all(process, outputs)

    def _carry_out_all(self, process: Process, outputs: list[Sequence[Effect]]) -> None:
        incarnation = process.incarnation
        for effects in outputs:
            self._carry_out(process, effects)
            if process.incarnation != incarnation:
                return  # The application crashed it.
        if not process.disk.idle and not process.disk.syncing:
            self._sync(process)

    def _carry_out(self, process: Process, effects: Sequence[Effect]) -> None:
        recorder = self.recorder
        outcomes: list[Outcome] = []
        for effect in effects:
            if isinstance(effect, Send):
                self._transmit(process, effect.peer, effect.frame)
            elif isinstance(effect, Multicast):
                for peer in effect.peers:
                    self._transmit(process, peer, effect.frame)
            elif isinstance(effect, Broadcast | Attach | Detach):
                self._ask_ens(process, effect)
            elif isinstance(effect, Publish):
                # Written in its place among the sends: an event is published before it is sent.
                outcomes.append(effect)
                if recorder is not None:
                    self._record_published(recorder, process, effect.event)
            elif not isinstance(effect, Persist):
                outcomes.append(effect)
        if outcomes:
            self._tell(process, outcomes)

    def _tell(self, process: Process, outcomes: list[Outcome]) -> None:
        recorder, incarnation = self.recorder, process.incarnation
        for outcome in outcomes:
            if recorder is not None and not isinstance(outcome, Publish):
                now_ns = process.clock.read(self.now_ns)
                recorder.outcome(
                    process.seen_as, process.subscription, outcome, now_ns, self.now_ns
                )
            if self.on_outcome is not None:
                self.on_outcome(process.place, outcome)
                if process.incarnation != incarnation:
                    return

    def _record_published(self, recorder: Recorder, process: Process, event: Event) -> None:
        size = self._pack(request_for(Broadcast(event)))[1]
        now_ns = process.clock.read(self.now_ns)
        recorder.published(process.seen_as, event, now_ns, self.now_ns, size or None)

    def _ask_ens(self, process: Process, effect: Broadcast | Attach | Detach) -> None:
        event = effect.event if isinstance(effect, Broadcast) else None
        topic = effect.topic if not isinstance(effect, Broadcast) else effect.event.topic
        name = effect.node or self.ens_for(topic)
        if name not in self._by_name:
            raise ConfigurationError(f"World.ens_for must name a node for {topic!r}, got {name!r}")
        self._transmit(process, name, request_for(effect), event)

    def _pack(self, frame: Frame) -> tuple[Any, int]:
        """Return a frame as it travels, and its size, 0 if unknown."""
        if self._codec is not None:
            data = self._codec.encode(frame)
            return data, len(data)
        if self._queueing is not None and self._queueing.size_of is not None:
            return frame, self._queueing.size_of(frame)
        return frame, 0

    def _transmit(
        self, process: Process, peer: str, frame: Frame, broadcast: Event | None = None
    ) -> None:
        # The plain case, frames as objects of no size, skips a call: it is the hottest line here.
        message, size = (frame, 0) if self._plain else self._pack(frame)
        recorder = self.recorder
        if recorder is not None and (broadcast is not None or recorder.peer_frames):
            now_ns = process.clock.read(self.now_ns)
            if broadcast is not None:
                recorder.sent(process.seen_as, broadcast, now_ns, self.now_ns, size or None)
            else:
                recorder.frame("sent", process.seen_as, frame, now_ns, self.now_ns, size or None)
        target = self._by_name.get(peer)
        if target is None:
            self.frames_undelivered += 1
            return
        if process.card is None:
            self.network.send(self.now_ns, process, target, (message, size))
            return
        left_ns = process.card.send(self.now_ns, size)
        if left_ns is not None:
            self.schedule(left_ns, self._leave_card, (process, target, message, size))

    def _leave_card(self, process: Process, target: Process, message: Any, size: int) -> None:
        self.network.send(self.now_ns, process, target, (message, size))
