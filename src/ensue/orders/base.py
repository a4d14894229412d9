"""What the rest of Ensue asks of an order.

A `Guarantee` is one order as a plug-in: the client, the simulator, the checkers, the command line
and Spark ask it instead of switching on the order. Whatever it needs of these is imported when it
is asked, inside its methods: this package lies below them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from ensue.core.clock import Clock
from ensue.core.errors import BadInput
from ensue.core.event import Event
from ensue.core.order import Order, spelled
from ensue.protocols.interface import Frame, Node

if TYPE_CHECKING:
    from ensue.runtime.hub_memory import Hub
    from ensue.runtime.memory_membership import MemoryMembership
    from ensue.simulation.deployments.base import Deployment
    from ensue.simulation.scenario import Scenario
    from ensue.transports import Capabilities
    from ensue.transports.framed import FramedTransport

__all__ = ["Guarantee", "PublisherNode", "Wanted", "named_as_options"]


class PublisherNode(Node, Protocol):
    """The node of a bus, as the client uses it."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Take charge of an event; its fate comes as `Settle`."""

    def say_goodbye(self) -> None:
        """Let others forget this publisher."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a subscription asks of its node."""

    name: str
    """Its name on the transport."""
    order: Order | None
    """None: events as they arrive, whatever the order of the bus."""
    durable: bool = False
    acknowledge_each: bool = False
    start: int | None = None
    """The place in the log to start at; None: new events."""
    accept_loss: bool = False


class Guarantee(ABC):
    """One order: its value, its nodes, its options, its simulated deployment."""

    name: ClassVar[str]
    """In scenarios and on the command line."""
    value: ClassVar[type[Order] | None]
    """The class that an application passes to `connect`; None: the order has no such value."""
    is_offered: ClassVar[bool] = True
    """Whether `connect`, scenario files, `pub` and `sub` offer it."""

    # -- What it is made of ---------------------------------------------------------------------

    has_chain: ClassVar[bool] = False
    """Whether sequencer nodes stamp its events."""
    has_topic_log: ClassVar[bool] = False
    """Whether its events go through an event notification service."""
    keeps_log: ClassVar[bool] = False
    """Whether servers keep its events, so that subscriptions can be durable or start in the past."""

    shares_node: ClassVar[bool] = False
    """Whether nodes of buses keep the order among themselves. Subscriptions share the node of their
    bus, `membership` or `enroll` makes it, and a registry on servers numbers it."""
    uses_topics_alone: ClassVar[bool] = False
    """Whether topics without a log or an order are enough: a fan-out on a server, a broker's own."""
    agrees_on_terms: ClassVar[bool] = False
    """Whether clients of a fan-out agree on the options of the order first."""
    observes_stamps: ClassVar[bool] = False
    """Whether a bus publishes after each event that a subscription of it got before its turn."""

    # -- The client -----------------------------------------------------------------------------

    needs: ClassVar[tuple[str, ...]] = ()
    """Fields of `Capabilities` that a transport must have."""

    def refusal(
        self,
        order: Order | None,  # noqa: ARG002 - for those whose options decide
        capabilities: "Capabilities",
        transport: str,
    ) -> str | None:
        """Return why a transport can't carry the order; None if it can."""
        missing = [each for each in self.needs if not getattr(capabilities, each)]
        if not missing:
            return None
        return f"{transport} does not carry {self.name} order: it is not {' and '.join(missing)}"

    def disagreement(self, publishes: Any, wanted: Any) -> str | None:  # noqa: ARG002 - see above
        """Return why a subscription in this order can't have other options than its bus, if it can't."""
        return None

    def unordered_refusal(self, transport: str) -> str | None:  # noqa: ARG002 - see above
        """Return why a bus in this order can't have a subscription without order, if it can't."""
        return None

    def hands_over_late(self, order: Any) -> bool:  # noqa: ARG002 - see above
        """Return whether a subscription gets late events too, tagged."""
        return True

    @abstractmethod
    async def publisher(self, hub: "Hub", name: str) -> PublisherNode:
        """Return the node of a new bus on a hub."""

    @abstractmethod
    def subscriber(self, hub: "Hub", wanted: Wanted) -> Any:
        """Return the node of a new subscription on a hub in this order.

        It takes `subscribe`, `unsubscribe`, `acknowledge`, `pause` and `resume`, and has `topics` and
        `held_count`. Not called where subscriptions share the node of their bus.
        """

    # -- Hubs and servers -----------------------------------------------------------------------

    def unreliable_frames(self) -> tuple[type[Frame], ...]:
        """Return the frames that loss and jitter of `memory://` apply to: those that carry events."""
        from ensue.protocols.topic_log.frames import Notify

        return (Notify,)

    def membership(self, order: Any) -> "MemoryMembership[Any] | None":  # noqa: ARG002 - see above
        """Return the membership of a hub in memory, where nodes keep the order among themselves."""
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
        """Return the registries that servers need, by label, and whether order spans topics in each."""
        return {}

    # -- The command line -----------------------------------------------------------------------

    options: ClassVar[tuple[str, ...]] = ()
    """Options of `pub` and `sub` that are for this order, such as `--ms`."""

    def from_options(self, given: Mapping[str, Any]) -> Order | None:
        """Return the order that the options of `pub` and `sub` stand for.

        `given` has all of them by name; those that are not in `options` are None.
        """
        del given
        if self.value is None:
            return None
        try:
            return self.value()
        except BadInput as error:
            raise BadInput(f"--order {self.name}: {error}") from None

    # -- The simulator --------------------------------------------------------------------------

    is_lossy: ClassVar[bool] = False
    """Whether events may be missing even if the transport loses none: late ones are dropped."""
    is_searched: ClassVar[bool] = True
    """Whether `swarm` searches it for faults, with scenarios that `draw` returns."""

    @abstractmethod
    def deployment(self) -> "type[Deployment]":
        """Return the class that builds a simulated deployment and judges its trace."""

    def draw(self, seed: int) -> "Scenario":
        """Return the random scenario of a seed, with every fault that the order must survive."""
        raise BadInput(f"no scenario is drawn for {self.name} order, got seed {seed}")

    @abstractmethod
    def frames(self) -> tuple[type[Frame], ...]:
        """Return the frames that its nodes exchange."""

    def __repr__(self) -> str:
        """Show which one it is."""
        return f"<{self.name} order{'' if self.value is None else f', {spelled(self.value)}'}>"


@contextmanager
def named_as_options() -> Iterator[None]:
    """Begin the errors of an order's fields with the options that gave them."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"--{error}") from None
