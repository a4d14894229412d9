"""The machine around one node, which survives crashes.

A process is up, paused or down. `incarnation` counts crashes: a call scheduled for an earlier
incarnation sees a different number and does nothing.

An ephemeral process persists nothing, and each restart is a new process, with another name, at the
same place. Faults, sites and clocks belong to the place; frames go by names.

Each process has one live timer entry on the world's heap: the earliest. Moving a timer later keeps
the entry, which is checked when it expires, so nodes that postpone their timer with every frame do
not fill the heap with dead entries.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ensue.protocols.interface import Effect, Node
from ensue.simulation.world.clocks import Clock
from ensue.simulation.world.delays import Sampler
from ensue.simulation.world.disks import Disk
from ensue.simulation.world.load_model import Card, Server

__all__ = ["NEVER_NS", "Factory", "Process"]

Factory: TypeAlias = Callable[[Mapping[str, bytes], int], Node]
"""Builds a node from the records that were synced and the time on its clock."""

NEVER_NS = 1 << 62


class Process:
    """One node of the world with its clock, disk, queue and card."""

    __slots__ = (
        "backlog",
        "card",
        "clock",
        "disk",
        "ephemeral",
        "factory",
        "incarnation",
        "name",
        "node",
        "outputs",
        "pauses",
        "place",
        "removed",
        "seen_as",
        "server",
        "service_over",
        "site",
        "subscription",
        "sync_ns",
        "timer_due_ns",
        "timer_entry_ns",
        "timer_fired_ns",
        "timer_node_ns",
        "timer_repeats",
    )

    def __init__(
        self,
        name: str,
        factory: Factory,
        *,
        site: str,
        subscription: str,
        seen_as: str,
        clock: Clock,
        disk: Disk[Sequence[Effect]],
        sync_ns: Sampler,
        server: Server | None,
        card: Card | None,
        ephemeral: bool = False,
    ) -> None:
        self.name = name
        self.place = name
        """The name in faults and commands; an ephemeral process has a name of its own besides."""
        self.ephemeral = ephemeral
        self.factory = factory
        self.site = site
        self.subscription = subscription
        self.seen_as = seen_as
        """The node's name in the trace."""
        self.removed = False
        self.clock = clock
        self.disk = disk
        self.sync_ns = sync_ns
        """Draws how long the next sync takes."""
        self.server = server
        self.card = card
        self.node: Node | None = None
        """None while down."""
        self.incarnation = 0
        self.pauses = 0
        """Number of active pauses; they nest."""
        self.backlog: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Calls received while paused."""
        self.outputs: list[Sequence[Effect]] = []
        """Batches that became durable while paused: their effects are still due."""
        self.service_over = False
        """The service of a frame ended while paused."""
        self.timer_node_ns: int | None = None
        """The timer the node asked for, on its own clock."""
        self.timer_due_ns = NEVER_NS
        """The requested timer, in true time."""
        self.timer_entry_ns = NEVER_NS
        """The true time of the live entry on the heap."""
        self.timer_fired_ns = -1
        self.timer_repeats = 0

    def start(self, now_ns: int) -> None:
        """Build the node from its records."""
        self.node = self.factory(self.disk.snapshot(), self.clock.read(now_ns))
        if self.ephemeral:
            self.name = self.seen_as = self.subscription = self.node.name

    def successor(self, server: Server | None) -> "Process":
        """Return the next process at this place; this one never runs again."""
        self.removed = True
        self.disk.records.clear()
        following = Process(
            self.place,
            self.factory,
            site=self.site,
            subscription=self.place,
            seen_as=self.place,
            clock=self.clock,
            disk=self.disk,
            sync_ns=self.sync_ns,
            server=server,
            card=self.card,
            ephemeral=True,
        )
        following.incarnation = self.incarnation
        return following

    def forget(self, now_ns: int) -> None:
        """Lose everything volatile."""
        self.node = None
        self.incarnation += 1
        self.pauses = 0
        self.backlog.clear()
        self.outputs.clear()
        self.service_over = False
        self.timer_node_ns = None
        self.timer_due_ns = NEVER_NS
        self.timer_entry_ns = NEVER_NS
        if self.server is not None:
            self.server.crash(now_ns)
