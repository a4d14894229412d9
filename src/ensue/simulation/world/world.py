"""The simulated world: nodes under faults, deterministically.

A world is a loop of calls in true time, and processes: a node with its clock, disk and perhaps a
queue. `driver` carries out the effects of a node; this module adds nodes and injects faults.

A node is up, paused or down. While it is paused, frames, timers, commands and the outputs of
durable batches wait, and its clock runs on. A crash loses all volatile state and every batch not
carried out; frames to a node that is down are lost. A restart builds a new node from the synced
records.

Commands never run inside an outcome's callback: `call` puts them on the loop, so an application may
react to an outcome without disturbing the current batch.

The same seed, nodes, commands and faults give the same trace. Streams: `network` (delays), `faults`
(chances, what a crash leaves), `disks` (sync times); `workload` and any other name are for programs
that use the world.
"""

from collections.abc import Callable, Mapping

from ensue.core.errors import ConfigurationError
from ensue.protocols.interface import Node, Outcome
from ensue.protocols.recorder import Recorder
from ensue.simulation.world.clocks import Clock, ClockConfig
from ensue.simulation.world.disks import Disk, DiskConfig
from ensue.simulation.world.driver import Codec, Command, Driver
from ensue.simulation.world.faults import Crash, Faults, InstantFault, Pause, TimedFault
from ensue.simulation.world.load_model import Card, QueueConfig, QueueStatistics, Server
from ensue.simulation.world.network import NetworkConfig
from ensue.simulation.world.process import Factory, Process

__all__ = ["World"]


class World(Driver):
    """A deterministic world of nodes.

    Without `codec` frames travel as objects and have no size; without `queueing` nodes and cards
    take no time; without `recorder` there is no trace.
    """

    def __init__(
        self,
        seed: int,
        *,
        network: NetworkConfig | None = None,
        disk: DiskConfig | None = None,
        queueing: QueueConfig | None = None,
        codec: Codec | None = None,
        recorder: Recorder | None = None,
        on_outcome: Callable[[str, Outcome], None] | None = None,
        ens_for: Callable[[str], str] = lambda _topic: "ens",
    ) -> None:
        super().__init__(
            seed,
            network=network or NetworkConfig(),
            disk=disk or DiskConfig(),
            queueing=queueing,
            codec=codec,
            recorder=recorder,
            on_outcome=on_outcome,
            ens_for=ens_for,
        )
        self._fault_epoch = 0
        self.on_down: Callable[[str], None] | None = None
        """Called with the name of a node that has crashed."""
        self.on_up: Callable[[str], None] | None = None
        """Called with the name of a node that has restarted."""

    # Nodes

    def add(
        self,
        name: str,
        factory: Factory,
        *,
        site: str = "",
        subscription: str | None = None,
        seen_as: str | None = None,
        clock: ClockConfig | None = None,
        disk: DiskConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        ephemeral: bool = False,
    ) -> None:
        """Add a node, up from now on.

        `subscription` is the name of its subscription in the trace, else the node's. `seen_as` is
        the node's own name in the trace: several nodes of one program may share it. `disk` replaces
        the world's kind of disk. `ephemeral`: each start is a new process without records, with the
        name of the node that the factory returns; faults and commands use `name`.

        Its first effects are carried out when the world runs, after all nodes were added.
        """
        if name in self._processes:
            raise ConfigurationError(f"World.add name must be unique; {name!r} is taken")
        queueing, disk = self._queueing, disk or self._disk_config
        has_card = queueing is not None and queueing.bandwidth_bytes_per_s is not None
        process = self._processes[name] = Process(
            name,
            factory,
            site=site,
            subscription=name if subscription is None else subscription,
            seen_as=name if seen_as is None else seen_as,
            clock=Clock(clock),
            disk=Disk(disk),
            sync_ns=disk.sync.sampler(self.stream("disks")),
            server=None if queueing is None else Server(queueing),
            card=Card(queueing) if queueing is not None and has_card else None,
            ephemeral=ephemeral,
        )
        process.disk.records.update(records or {})
        process.start(self.now_ns)
        self._by_name[process.name] = process
        self.schedule(self.now_ns, self._start, (process, process.incarnation))

    def names(self) -> list[str]:
        """Return the names of all nodes, in the order they were added."""
        return list(self._processes)

    def node(self, name: str) -> Node | None:
        """Return a node for inspection; None while it is down."""
        return self._process(name).node

    def clock_ns(self, name: str) -> int:
        """Return the reading of a node's clock."""
        return self._process(name).clock.read(self.now_ns)

    def records(self, name: str) -> dict[str, bytes]:
        """Return the synced records of a node."""
        return self._process(name).disk.snapshot()

    def queue(self, name: str) -> QueueStatistics | None:
        """Return the statistics of the frames queued at a node, if queues are modelled."""
        server = self._process(name).server
        return None if server is None else server.statistics

    def card(self, name: str) -> QueueStatistics | None:
        """Return the statistics of a node's network card, if its bandwidth is modelled."""
        card = self._process(name).card
        return None if card is None else card.statistics

    def busy(self) -> list[str]:
        """Return the nodes with batches that are not durable or not carried out."""
        return [
            name
            for name, process in self._processes.items()
            if process.outputs or process.backlog or not process.disk.idle
        ]

    def call(self, name: str, command: Command, *, at_ns: int | None = None) -> None:
        """Give a node a command, now or at a true time; lost if the node is down then."""
        due_ns = self.now_ns if at_ns is None else at_ns
        self.schedule(due_ns, self._call, (self._process(name).place, command))

    # Faults

    def inject(self, faults: Faults) -> None:
        """Schedule all faults; one that is due now happens at once."""
        if unknown := sorted(faults.nodes() - self._processes.keys()):
            raise ConfigurationError(f"Faults must name nodes of this world, got {unknown}")
        timed, instant = faults.timed(), faults.instant()
        times_ns = [fault.from_ns for fault in timed] + [fault.at_ns for fault in instant]
        if times_ns and min(times_ns) < self.now_ns:
            raise ConfigurationError(
                f"Faults must begin at {self.now_ns} ns or later, got {min(times_ns)}"
            )
        epoch = self._fault_epoch
        for lasting in timed:
            if lasting.from_ns > self.now_ns:
                self.schedule(lasting.from_ns, self._begin, (lasting, epoch))
            else:
                self._begin(lasting, epoch)
        for striking in instant:
            if striking.at_ns > self.now_ns:
                self.schedule(striking.at_ns, self._strike, (striking, epoch))
            else:
                self._strike(striking, epoch)

    def heal(self) -> None:
        """Remove all faults, current and scheduled, and restart all nodes.

        A clock that jumped stays where it is.
        """
        self._fault_epoch += 1
        self.network.heal(self.now_ns)
        for name, process in self._processes.items():
            if process.pauses:
                process.pauses = 1
                self.resume(name)
            self.restart(name)

    def pause(self, name: str) -> None:
        """Pause a node; pauses nest."""
        process = self._process(name)
        if process.node is not None:
            process.pauses += 1

    def resume(self, name: str) -> None:
        """End one pause; after the last, carry out pending sends, then waiting calls."""
        process = self._process(name)
        if not process.pauses:
            return
        process.pauses -= 1
        if process.pauses:
            return
        incarnation = process.incarnation
        outputs, process.outputs = process.outputs, []
        self._carry_out_all(process, outputs)
        while process.backlog and process.incarnation == incarnation and not process.pauses:
            function, arguments = process.backlog.popleft()
            function(*arguments)
        if process.incarnation != incarnation or process.pauses:
            return
        self._arm(process, process.timer_node_ns)
        server = process.server
        if server is not None and process.service_over:
            process.service_over = False
            self._served(process, incarnation)
        elif server is not None and server.serving is None:
            self._serve(process)

    def crash(self, name: str, *, restart_after_ns: int | None = None) -> None:
        """Take a node down; idempotent."""
        process = self._process(name)
        if process.node is None:
            return
        process.disk.crash(self.stream("faults"))
        process.forget(self.now_ns)
        if self.recorder is not None:
            self.recorder.crashed(process.seen_as, process.clock.read(self.now_ns), self.now_ns)
        if self.on_down is not None:
            self.on_down(name)
        if restart_after_ns is not None:
            due_ns = self.now_ns + restart_after_ns
            self.schedule(due_ns, self._restart, (process, process.incarnation))

    def restart(self, name: str) -> None:
        """Restart a node from its synced records; idempotent."""
        process = self._process(name)
        self._restart(process, process.incarnation)

    def remove(self, name: str) -> None:
        """Take a node down permanently; `restart` and `heal` skip it."""
        self.crash(name)
        self._process(name).removed = True

    def jump_clock(self, name: str, by_ns: int, *, monotone: bool = True) -> None:
        """Move a node's clock; see `clocks` for what it sees."""
        process = self._process(name)
        process.clock.jump(self.now_ns, by_ns, monotone=monotone)
        self._arm(process, process.timer_node_ns)

    def _begin(self, fault: TimedFault, epoch: int) -> None:
        if epoch != self._fault_epoch:
            return
        incarnation = 0
        if isinstance(fault, Pause):
            process = self._processes[fault.node]
            if process.node is None:
                return
            self.pause(fault.node)
            incarnation = process.incarnation
        else:
            self.network.begin(fault)
        if fault.until_ns is not None:
            self.schedule(fault.until_ns, self._end, (fault, epoch, incarnation))

    def _end(self, fault: TimedFault, epoch: int, incarnation: int) -> None:
        if epoch != self._fault_epoch:
            return
        if not isinstance(fault, Pause):
            self.network.end(fault, self.now_ns)
        elif self._processes[fault.node].incarnation == incarnation:
            self.resume(fault.node)

    def _strike(self, fault: InstantFault, epoch: int) -> None:
        if epoch != self._fault_epoch:
            return
        if isinstance(fault, Crash):
            self.crash(fault.node, restart_after_ns=fault.restart_after_ns)
        else:
            self.jump_clock(fault.node, fault.by_ns, monotone=fault.monotone)

    def _restart(self, process: Process, incarnation: int) -> None:
        stale = process.incarnation != incarnation
        if process.node is not None or process.removed or stale:
            return
        if process.ephemeral:
            process = self._succeed(process)
        else:
            process.start(self.now_ns)
            if self.recorder is not None:
                now_ns = process.clock.read(self.now_ns)
                self.recorder.restarted(process.seen_as, now_ns, self.now_ns)
        if self.on_up is not None:
            self.on_up(process.place)
        self._drain(process)

    def _succeed(self, process: Process) -> Process:
        """Start the next process at the place of an ephemeral one."""
        queueing = self._queueing
        server = None if queueing is None else Server(queueing)
        following = process.successor(server)
        del self._by_name[process.name]
        self._processes[process.place] = following
        following.start(self.now_ns)
        self._by_name[following.name] = following
        return following

    def _process(self, name: str) -> Process:
        process = self._processes.get(name)
        if process is None:
            raise ConfigurationError(f"World has no node {name!r}")
        return process
