"""The interface of an order: what clients, servers, the simulator and Spark ask it for.

A `Guarantee` is one order as a plug-in. The rest of Ensue asks it instead of switching on the
order. This package lies below its users, so its methods import what they need when they are called.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import msgspec

from ensue.core.clock import Clock
from ensue.core.errors import BadInput
from ensue.core.event import Event
from ensue.core.lineage import Lineage
from ensue.core.order import Order, spelled
from ensue.protocols.interface import Frame, Node
from ensue.protocols.topic_log.frames import TopicFrame

if TYPE_CHECKING:
    from ensue.protocols.total.config import SequencerConfig
    from ensue.runtime.hub_memory import Hub
    from ensue.runtime.memory_membership import MemoryMembership
    from ensue.simulation.deployments.base import Deployment
    from ensue.simulation.scenario import Scenario
    from ensue.spark.order_rules import OrderingRule
    from ensue.transports import Capabilities
    from ensue.transports.framed import FramedTransport

__all__ = [
    "LATE",
    "Guarantee",
    "LogReaderNode",
    "ObservingNode",
    "Option",
    "PublisherNode",
    "RelayedFrame",
    "SharedProtocolNode",
    "SubscriberNode",
    "SubscriptionOptions",
    "named_as_options",
]


# -- Nodes, as the client uses them ----------------------------------------------------------------


class PublisherNode(Node, Protocol):
    """The node of a bus."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Accept an event; `Settle` reports its receipt."""

    def say_goodbye(self) -> None:
        """Tell peers that this publisher leaves, so that they can forget it."""


class SubscriberNode(Node, Protocol):
    """The node of a subscription."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""

    @property
    def held_count(self) -> int:
        """Number of events held back."""

    @property
    def leave_confirmed(self) -> bool:
        """Whether all peers know that it has left its topics; True if they need not know."""

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`."""

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics."""

    def acknowledge(self, position: int) -> None:
        """Note that events up to a position are handled."""

    def pause(self) -> None:
        """Deliver nothing until `resume`: the application has no room."""

    def resume(self, *, now_ns: int) -> None:
        """Deliver again after a pause."""


class SharedProtocolNode(PublisherNode, Protocol):
    """The node of a bus that its subscriptions share."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""

    @property
    def held_count(self) -> int:
        """Number of events held back."""

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`."""

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics."""

    def pause(self) -> None:
        """Deliver nothing until `resume`: a subscription has no room."""

    def resume(self, *, now_ns: int) -> None:
        """Deliver again after a pause."""


class ObservingNode(PublisherNode, Protocol):
    """The node of a bus that publishes after events it has observed; see `observes_stamps`."""

    def token(self, *, now_ns: int) -> dict[str, int]:
        """Return the stamp of everything published or observed so far."""

    def observe(self, entries: Mapping[str, int], *, now_ns: int) -> bool:
        """Publish after a stamp; False: ignored, its clock is too far ahead."""


@runtime_checkable
class LogReaderNode(Protocol):
    """The node of a subscription that reads the logs of servers; see `keeps_log`."""

    def last_place(self, node: str) -> int:
        """Return the highest place of a delivered event of a server's log, or 0."""

    def ask_log(self, question: int) -> None:
        """Note the progress when servers are asked for the identity of their logs."""

    def learn_log(
        self, node: str, lineage: Lineage, *, now_ns: int, question: int | None = None
    ) -> None:
        """Compare a server's log with the one that was read."""


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a subscription, as its node needs them."""

    name: str
    """Its name on the transport."""
    order: Order | None
    """None: events as they arrive, whatever the order of the bus."""
    durable: bool = False
    acknowledge_each: bool = False
    start: int | None = None
    """The place in the log to start at; None: new events."""
    accept_loss: bool = False
    matches: Callable[[Event], bool] | None = None
    """Whether the application gets an event, by content; None: it gets all of its topics."""
    pending_max: int = 0
    """How many events the application takes before the node is paused; 0: it is never paused."""


# -- Values that an order declares -----------------------------------------------------------------


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """An option of `pub` and `sub` for an order."""

    name: str
    """Such as `--ms`."""
    metavar: str
    """Its value in the help, such as `MILLISECONDS`."""
    help: str
    """The help says `With --order NAME:` first."""
    kind: type = float
    """`float`, `int` or `str`."""
    choices: tuple[str, ...] = ()
    """The values that are allowed; empty: all."""
    commands: tuple[str, ...] = ("pub", "sub")


LATE = Option(
    name="--late",
    metavar="drop|tag",
    help="drop late events (default), or tag them.",
    kind=str,
    choices=("drop", "tag"),
    commands=("sub",),
)
"""For orders that have late events."""


def _no_events(frame: Frame) -> Sequence[Event]:
    del frame
    return ()


class RelayedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that clients send each other through a server, as the server checks it."""

    events: Callable[[Any], Sequence[Event]] = _no_events
    """Returns the events in a frame: the sender must be allowed to send them, the receiver to
    read them."""
    stamped: bool = False
    """Whether its events have stamps, of clock readings alone."""


class Guarantee(ABC):
    """One order: its value, its nodes, its frames, its options, its simulated deployment."""

    name: ClassVar[str]
    """In scenarios and on the command line."""
    value: ClassVar[type[Order] | None]
    """The class that an application passes to `connect`; None: the order has no such value."""
    is_offered: ClassVar[bool] = True
    """Whether `connect`, `pub` and `sub` offer it; scenario files may use every order."""

    # -- Parts -------------------------------------------------------------------------------------

    has_chain: ClassVar[bool] = False
    """Whether sequencer nodes stamp its events."""
    has_topic_log: ClassVar[bool] = False
    """Whether its events go through topic logs."""
    keeps_log: ClassVar[bool] = False
    """Whether servers keep its events, so that subscriptions can be durable or start in the
    past."""
    has_content_brokers: ClassVar[bool] = False
    """Whether scenarios of it have content brokers and clients instead of topics."""
    has_deadlines: ClassVar[bool] = False
    """Whether events expire, also while they wait for the application."""

    shares_node: ClassVar[bool] = False
    """Whether the nodes of buses keep the order among themselves. Subscriptions share the node of
    their bus, `membership` or `enroll` makes it, and a registry on servers numbers it."""
    uses_topics_alone: ClassVar[bool] = False
    """Whether topics without log or order suffice: a fan-out on a server, or a broker's
    topics."""
    agrees_on_terms: ClassVar[bool] = False
    """Whether clients of a fan-out agree on the options of the order first."""
    observes_stamps: ClassVar[bool] = False
    """Whether a bus publishes after each event that its subscriptions got before its turn; then
    its node is an `ObservingNode`."""

    orders_content: ClassVar[bool] = False
    """Whether events by content have this order too, in the cells of a chain."""

    # -- The client --------------------------------------------------------------------------------

    needs: ClassVar[tuple[str, ...]] = ()
    """Fields of `Capabilities` that a transport must have."""

    def refusal(
        self,
        order: Order | None,  # noqa: ARG002 - for orders whose options decide
        capabilities: "Capabilities",
        transport: str,
    ) -> str | None:
        """Return why a transport can't carry the order; None if it can."""
        missing = [each for each in self.needs if not getattr(capabilities, each)]
        if missing:
            lacks = " and ".join(missing)
            return f"{transport} does not carry {self.name} order: it is not {lacks}"
        if self.topic_frames() and capabilities.multicast:
            return (
                f"{transport} does not carry {self.name} order: no broker fans out its own frames; "
                "use memory:// or ensue://"
            )
        return None

    def disagreement(self, publishes: Any, wanted: Any) -> str | None:  # noqa: ARG002 - as above
        """Return why a subscription can't have other options than its bus; None if it can."""
        return None

    def unordered_refusal(self, transport: str) -> str | None:  # noqa: ARG002 - as above
        """Return why a bus can't have a subscription without order; None if it can."""
        return None

    def chain_refusal(
        self,
        order: Order | None,  # noqa: ARG002 - as above
        chain: "SequencerConfig",  # noqa: ARG002 - as above
    ) -> str | None:
        """Return why a chain of servers can't keep the order; None if it can."""
        return None

    def topic_refusal(self, topic: str) -> str | None:  # noqa: ARG002 - as above
        """Return why no event can have a topic; None if one can."""
        return None

    def topic_groups(self, order: Order | None) -> int:  # noqa: ARG002 - as above
        """Return how many subscriptions must share topics for a chain to order them together."""
        return 1

    def log_order(self, chain: "SequencerConfig") -> str:  # noqa: ARG002 - as above
        """Return the name in traces of the order in which a chain of servers logs events."""
        return self.name

    def hands_over_late(self, order: Any) -> bool:  # noqa: ARG002 - as above
        """Return whether a subscription gets late events too, tagged."""
        return True

    @abstractmethod
    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Return the node of a new bus on a hub."""

    @abstractmethod
    def subscriber(self, hub: "Hub", wanted: SubscriptionOptions) -> Any:
        """Return the node of a new subscription on a hub: a `SubscriberNode`.

        It may be wrapped in a `RemoteState`. Not called if subscriptions share the node of their
        bus.
        """

    # -- Hubs and servers --------------------------------------------------------------------------

    def topic_frames(self) -> tuple[type[TopicFrame], ...]:
        """Return its own frames that publishers send to all subscribers of a topic.

        A node sends one to the source of `Accepted` or `Attached`: the topic's log in memory, its
        fan-out on a server, which checks that the sender may publish on the topic.
        """
        return ()

    def relayed_frames(self) -> Mapping[type[Frame], RelayedFrame]:
        """Return the frames that registered clients send each other through servers.

        HAZARD: a server checks the events in them and nothing else. Claims of the built-in orders
        about other clients are sealed (`ensue.server.relay_claims`); those of other orders are not.
        """
        return {}

    def unreliable_frames(self) -> tuple[type[Frame], ...]:
        """Return the frames that loss and jitter of `memory://` apply to: those with events."""
        from ensue.protocols.topic_log.frames import Notify

        return (Notify,)

    def membership(self, order: Any) -> "MemoryMembership[Any] | None":  # noqa: ARG002 - as above
        """Return the membership of a hub in memory, where buses keep the order."""
        return None

    async def enroll(
        self,
        transport: "FramedTransport",
        *,
        name: str,
        registry: str,
        order: Any,
        clock: Clock,
    ) -> PublisherNode:
        """Register the node of a new bus with a registry; return the node."""
        raise NotImplementedError(f"{self.name}, {transport}, {name}, {registry}, {order}, {clock}")

    def registries(self) -> Mapping[str, bool]:
        """Return the registries that servers need, by label: whether order spans topics."""
        return {}

    # -- The command line --------------------------------------------------------------------------

    options: ClassVar[tuple[Option, ...]] = ()
    """Options of `pub` and `sub` for this order."""

    def from_options(self, given: Mapping[str, Any]) -> Order | None:
        """Return the order that the options of `pub` and `sub` stand for.

        `given` has the options of all orders by name; those that were not given are None.
        """
        del given
        if self.value is None:
            return None
        try:
            return self.value()
        except BadInput as error:
            raise BadInput(f"--order {self.name}: {error}") from None

    # -- The simulator -----------------------------------------------------------------------------

    is_lossy: ClassVar[bool] = False
    """Whether events may be missing although the transport loses none: late ones are dropped."""
    is_searched: ClassVar[bool] = True
    """Whether `swarm` searches it for faults, with scenarios that `draw` returns."""

    @abstractmethod
    def deployment(self) -> "type[Deployment]":
        """Return the class that builds a simulated deployment and judges its trace."""

    def draw(self, seed: int) -> "Scenario":
        """Return the random scenario of a seed, with every fault that the order must survive."""
        raise BadInput(f"no scenario is drawn for {self.name} order, got seed {seed}")

    def draws(self) -> "Mapping[str, Callable[[int], Scenario]]":
        """Return how to draw scenarios, by the names that `swarm` has for them."""
        return {self.name: self.draw} if self.is_searched else {}

    @abstractmethod
    def frames(self) -> tuple[type[Frame], ...]:
        """Return all frames that its nodes exchange in the simulator."""

    def scenario_table(self) -> type[msgspec.Struct] | None:
        """Return its table in scenario files, under the name of the order; None: it has none.

        All keys need defaults. The deployment finds the table in `Scenario.table`. The built-in
        orders have theirs in `ensue.simulation.scenario_file.tables`.
        """
        return None

    # -- Spark -------------------------------------------------------------------------------------

    def ordering_rules(self) -> "Mapping[str, OrderingRule]":
        """Return how Spark orders logs by positions, by the name of the order in traces."""
        return {}

    def __repr__(self) -> str:
        """Return its name and how an application writes it."""
        return f"<{self.name} order{'' if self.value is None else f', {spelled(self.value)}'}>"


@contextmanager
def named_as_options() -> Iterator[None]:
    """Begin the errors of an order's fields with the options that gave them."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"--{error}") from None
