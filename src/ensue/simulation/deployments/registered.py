"""Clients that register in a world, and their registry: as processes are in production.

The registry is a process of its own: it persists its lists, crashes, and restarts from its disk. A
client persists nothing. It registers under a new name each time it starts (`NAME~1`, `NAME~2`, …),
takes commands once its node has warmed up, and leaves for good or to come back. One that the
registry evicted connects again at once. `RegisteredProcess` stands for the bus of such a client.

In the trace each start of a client is a node of its own: nothing is owed to a client that has left.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ensue.core.trace import Row
from ensue.protocols.interface import Effect, Frame, Node, Outcome, Refuse, Resumed, Send
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.membership.frames import Deregister, Evicted, Members
from ensue.protocols.membership.registry import Registry
from ensue.simulation.scenario import RegistrySpec
from ensue.simulation.text import duration
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.process import Factory
from ensue.simulation.world.world import World

__all__ = [
    "ClientNode",
    "RegisteredClients",
    "RegisteredProcess",
    "client_of",
    "describe_registry",
    "ended_in",
]

REGISTER_NS = 10_000_000_000
"""How long a client tries to register under one name."""
REGISTER_AGAIN_NS = 500_000_000
LEFT = "the client has left"


class ClientNode(Node, Protocol):
    """What a registered node has besides the methods of every node."""

    @property
    def resigned(self) -> bool:
        """Whether the registry has confirmed that it left."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""

    @property
    def unsettled_count(self) -> int:
        """Number of published events that are not settled."""

    @property
    def held_count(self) -> int:
        """Number of received events that wait for others."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        headers: Mapping[str, str] | None = None,
    ) -> object:
        """Publish an event."""

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics."""

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics."""

    def say_goodbye(self) -> None:
        """Leave for good."""

    def repeat(self, *, now_ns: int) -> None:
        """Repeat all requests."""


Build = Callable[[str, KnownMembers, int], ClientNode]
"""Makes a node of a name, the members and the time."""


class RegisteredProcess:
    """One start of a client: it registers, runs a node, and leaves.

    `wanted` are the topics of its application, which outlive it.
    """

    def __init__(
        self,
        name: str,
        registry: str,
        build: Build,
        wanted: dict[str, None],
        *,
        terms: str,
        connects: bool,
        now_ns: int,
    ) -> None:
        self.name = name
        self.members = KnownMembers(terms)
        self.node: ClientNode | None = None
        """None until the process is registered."""
        self.ready = False
        """Whether the node takes commands."""
        self._registry = registry
        self._build = build
        self._wanted = wanted
        self._waiting: list[tuple[str, bytes, Mapping[str, str] | None]] = []
        """Events published before the node takes commands."""
        self.leaving = self._resigning = self._over = False
        self._ask_due_ns: int | None = None
        self._until_ns = 0
        self._now_ns = now_ns
        self._effects: list[Effect] = []
        if connects:
            self.connect(now_ns=now_ns)

    @property
    def connected(self) -> bool:
        """Whether the process registers or is registered, and has not left."""
        return not self._over and (self.node is not None or self._ask_due_ns is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """Topics that the application wants, and the node has not joined."""
        joined = () if self.node is None else self.node.topics
        return tuple(topic for topic in self._wanted if topic not in joined and not self.leaving)

    # -- Commands -------------------------------------------------------------------------------

    def connect(self, *, now_ns: int) -> None:
        """Register; nothing happens if that was done before."""
        if self.node is None and self._ask_due_ns is None and not self._over:
            self._until_ns = now_ns + REGISTER_NS
            self._ask(now_ns)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish an event once the node takes commands; one that is away publishes nothing."""
        self._now_ns = now_ns
        if self.ready and self.node is not None and not self.leaving:
            self.node.publish(topic, payload, now_ns=now_ns, headers=headers)
        elif self.connected and not self.leaving:
            self._waiting.append((topic, payload, headers))

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Subscribe, now or when the node takes commands."""
        self._now_ns = now_ns
        new = tuple(topics)
        self._wanted.update(dict.fromkeys(new))
        if self.ready and self.node is not None and not self.leaving:
            self.node.subscribe(new, now_ns=now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics."""
        self._now_ns = now_ns
        left = tuple(topics)
        for topic in left:
            self._wanted.pop(topic, None)
        if self.ready and self.node is not None and not self.leaving:
            self.node.unsubscribe(left, now_ns=now_ns)

    def leave(self, *, now_ns: int) -> None:
        """Leave once all events are settled."""
        self._now_ns = now_ns
        self.leaving = True
        if self.node is None:
            self._give_up(LEFT)

    def repeat(self, *, now_ns: int) -> None:
        """Repeat all requests: the connection is new."""
        self._now_ns = now_ns
        if self.node is not None:
            self.node.repeat(now_ns=now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the registry or of another client."""
        self._now_ns = now_ns
        if self._over:
            return
        if self.node is not None:
            self.node.receive(frame, source=source, now_ns=now_ns)
        elif source == self._registry and self._ask_due_ns is not None:
            if isinstance(frame, Evicted):
                self._over = True
                self._effects.append(Refuse((), frame.reason))
            elif isinstance(frame, Members):
                if self.members.take(frame):
                    self._ask_due_ns = None
                    self.node = self._build(self.name, self.members, now_ns)
                else:
                    self._effects.append(Send(self._registry, self.members.question()))

    def handle_timer(self, *, now_ns: int) -> None:
        """Register again, or run the timers of the node."""
        self._now_ns = now_ns
        if self.node is not None:
            if not self._over:
                self.node.handle_timer(now_ns=now_ns)
        elif self._ask_due_ns is not None and self._ask_due_ns <= now_ns:
            if self._until_ns <= now_ns:
                self._give_up("no answer from the registry")
            else:
                self._ask(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        if self._over:
            return None
        return self._ask_due_ns if self.node is None else self.node.next_timer_ns()

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects, and do what waited for the node."""
        effects, self._effects = self._effects, []
        if self.node is None or self._over:
            return effects
        effects += self.node.take_effects()
        if not self.ready and any(isinstance(each, Resumed) for each in effects):
            self._begin(self.node)
            effects += self.node.take_effects()
        if self.leaving and self.ready and not self._resigning and not self.node.unsettled_count:
            self._resigning = True
            self.node.say_goodbye()
            effects += self.node.take_effects()
        if self.node.resigned and not self._over:
            self._over = True
            effects.append(Refuse((), LEFT))
        return effects

    def _begin(self, node: ClientNode) -> None:
        self.ready = True
        if not self.leaving:
            node.subscribe(tuple(self._wanted), now_ns=self._now_ns)
        for topic, payload, headers in self._waiting:
            node.publish(topic, payload, now_ns=self._now_ns, headers=headers)
        self._waiting.clear()

    def _ask(self, now_ns: int) -> None:
        self._ask_due_ns = now_ns + REGISTER_AGAIN_NS
        self._effects.append(Send(self._registry, self.members.question()))

    def _give_up(self, reason: str) -> None:
        """End before there is a node; it may be registered, and others would wait for it."""
        if self._ask_due_ns is not None:
            self._effects.append(Send(self._registry, Deregister(epoch=self.members.epoch)))
        self._over = True
        self._effects.append(Refuse((), reason))


class RegisteredClients:
    """All clients of a deployment, and their registry."""

    def __init__(
        self, spec: RegistrySpec, world: World, *, order: str, across: bool = False, terms: str = ""
    ) -> None:
        self._spec = spec
        self._world = world
        self._terms = terms
        self._names: list[str] = []
        self._starts: dict[str, int] = {}
        self._departures = {each.client: each for each in spec.departures}
        world.on_up = self._restarted
        world.add(spec.name, self._registry_factory(order, across=across), site=spec.site)

    def add(self, name: str, build: Build, *, site: str, clock: ClockConfig | None) -> None:
        """Add a client."""
        world, late_ns = self._world, self._spec.arrivals.get(name, 0)
        self._names.append(name)
        factory = self._factory(name, build, late_ns)
        world.add(name, factory, site=site, clock=clock, ephemeral=True)
        if late_ns:
            world.call(name, _connect, at_ns=late_ns)
        if (departure := self._departures.get(name)) is not None:
            world.call(name, _leave, at_ns=departure.at_ns)

    def outcome(self, name: str, outcome: Outcome) -> None:
        """End a client that was refused or has left; it may come back under another name."""
        if not isinstance(outcome, Refuse) or outcome.topics:
            return
        world = self._world
        if outcome.reason != LEFT:
            world.crash(name, restart_after_ns=0)
        elif (back_after_ns := self._departures[name].back_after_ns) is None:
            world.remove(name)
        else:
            world.crash(name, restart_after_ns=back_after_ns)

    def processes(self) -> Iterator[RegisteredProcess]:
        """Yield the clients that are up and connected, or about to be."""
        for name in self._names:
            process = self._world.node(name)
            if isinstance(process, RegisteredProcess) and process.connected:
                yield process

    def waits(self) -> Iterator[str]:
        """Yield which client still waits for what."""
        for name in self._names:
            if self._world.now_ns <= self._spec.arrivals.get(name, 0):
                yield f"{name} has not started"
        for process in self.processes():
            if process.leaving:
                yield f"{process.name} has not left"
            elif not process.ready:
                yield f"{process.name} has not registered"
            for topic in process.missing:
                yield f"{process.name} has not joined {topic}"

    def _factory(self, name: str, build: Build, late_ns: int) -> Factory:
        wanted: dict[str, None] = {}

        def start(_records: object, now_ns: int) -> Node:
            number = self._starts[name] = self._starts.get(name, 0) + 1
            return RegisteredProcess(
                f"{name}~{number}",
                self._spec.name,
                build,
                wanted,
                terms=self._terms,
                connects=self._world.now_ns >= late_ns,
                now_ns=now_ns,
            )

        return start

    def _registry_factory(self, order: str, *, across: bool) -> Factory:
        spec = self._spec
        return lambda records, now_ns: Registry(
            name=spec.name,
            order=order,
            across=across,
            expire_ns=spec.expire_ns,
            records=records,
            now_ns=now_ns,
        )

    def _restarted(self, name: str) -> None:
        """Have all clients repeat their requests: their connections are new."""
        if name == self._spec.name and self._spec.reconnects:
            for client in self._names:
                self._world.call(client, _repeat)


def _connect(process: Any, now_ns: int) -> None:
    process.connect(now_ns=now_ns)


def _leave(process: Any, now_ns: int) -> None:
    process.leave(now_ns=now_ns)


def _repeat(process: Any, now_ns: int) -> None:
    process.repeat(now_ns=now_ns)


def client_of(node: str) -> str:
    """Return the client that a node of the trace is a start of."""
    return node.partition("~")[0]


def ended_in(rows: Iterable[Row]) -> set[str]:
    """Return the nodes that have crashed, left or been evicted: none of them comes back."""
    return {row.node for row in rows if row.action == "crashed"}


def describe_registry(spec: RegistrySpec) -> Iterator[str]:
    """Describe the registry, and which clients come and go."""
    yield f"  registry {spec.name} evicts clients that are silent for {duration(spec.expire_ns)}"
    for name, at_ns in spec.arrivals.items():
        yield f"  {duration(at_ns)}: {name} starts"
    for each in spec.departures:
        back = each.back_after_ns
        after = "" if back is None else f" and is back {duration(back)} later"
        yield f"  {duration(each.at_ns)}: {each.client} leaves{after}"
