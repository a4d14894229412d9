"""The whole surface between a protocol and whatever drives it.

A protocol node is a state machine. A driver (the simulator, the asyncio runtime) hands it frames,
timer calls and commands, each with the time, and afterwards drains its effects and carries them out:

1. every `Persist` of the batch, synced to disk before anything else of the batch happens;
2. `Send`, `Multicast`, `Broadcast`, `Attach` and `Detach`, in the order given;
3. the outcomes for the application (`Publish`, `Arrive`, `Deliver`, `Discard`, `Settle`, `Join`, `Leave`,
   `Refuse`, `Acknowledged`, `Resumed`, `Alert`, `Told`), in the order given.

Batches are carried out in the order they were drained. A node that crashes loses the batches
that were not synced, together with what they would have sent, and restarts from what was synced.
The same state and input give the same effects, always.

HAZARD: a driver that sends before it syncs lets a restarted node forget what it told others.
For a sequencer node that means one slot given to two events.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ensue.event import Event, Stamp

__all__ = [
    "Acknowledged",
    "Alert",
    "Arrive",
    "Attach",
    "Broadcast",
    "Deliver",
    "Detach",
    "Discard",
    "Effect",
    "Frame",
    "Join",
    "Leave",
    "Multicast",
    "Node",
    "Outcome",
    "Persist",
    "Publish",
    "Refuse",
    "Resumed",
    "Send",
    "Settle",
    "Told",
]


class Frame(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    array_like=True,
    gc=False,
    forbid_unknown_fields=True,
):
    """What peers exchange. Subclasses carry a `tag` unique within their protocol."""


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Write one record to this node's own durable map before anything of this batch is sent."""

    key: str
    value: bytes | None
    """None removes the record."""


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a frame to one peer. It may be lost, repeated or overtaken."""

    peer: str
    frame: Frame


class Multicast(msgspec.Struct, frozen=True, gc=False):
    """Send one frame to everybody who listens to a topic; as with `Send`, it may not arrive."""

    topic: str
    peers: tuple[str, ...]
    """Who listens, for a transport that has to send to each of them."""
    frame: Frame
    encoded: bytes = b""
    """The event of the frame as it was persisted, so that it need not be encoded again."""


class Broadcast(msgspec.Struct, frozen=True, gc=False):
    """Publish an event on its topic of the event notification service (ENS).

    The ENS answers with `ens.Accepted` or `ens.Taken`. `proof` shows it who gave the event its stamp.
    """

    event: Event
    proof: bytes = b""


class Attach(msgspec.Struct, frozen=True, gc=False):
    """Ask the ENS for the events of a topic from a slot on; answered with `ens.Attached`.

    Slot 0 asks for what is published from now on.
    """

    topic: str
    from_slot: int


class Detach(msgspec.Struct, frozen=True, gc=False):
    """Tell the ENS that events of a topic are no longer wanted."""

    topic: str


class Publish(msgspec.Struct, frozen=True, gc=False):
    """This node has taken charge of an event of its application: it will go out, or be settled."""

    event: Event


class Arrive(msgspec.Struct, frozen=True, gc=False):
    """A first copy of an event came, whatever becomes of it: said where it matters when that was."""

    event: Event


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Give an event to the application."""

    event: Event
    position: int
    """1, 2, 3, … in this subscription."""
    verdict: str = ""
    """Empty, or why this delivery is tagged: `out_of_order`, `late`, `overtaken`, `skewed`, `early`."""
    held_ns: int = 0
    """How long the event was held back."""


class Discard(msgspec.Struct, frozen=True, gc=False):
    """An event that will not be delivered, and why."""

    event: Event
    verdict: str
    """`duplicate`, `before_join`, `not_subscribed`, `void`, `late`, `overtaken`, `skewed`, `corrupt`, `mismatched`, `overflow`."""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The fate of an event this node published."""

    event: Event
    verdict: str
    """Empty: it is out for good. `void`: nobody will ever see it."""
    reason: str = ""
    """Why it is void, if a peer refused it."""
    slot: int = 0
    """Its place in its topic, if that is known and the event has no stamp."""

    @property
    def stamped(self) -> Event:
        """The event with what is known of its stamp."""
        if not self.slot:
            return self.event
        stamp = Stamp({self.event.topic: self.slot}, whole=False)
        return msgspec.structs.replace(self.event, stamp=stamp)


class Join(msgspec.Struct, frozen=True, gc=False):
    """A subscription to a topic took effect: events published from now on will be delivered.

    `missed` names the first and the last slot of what could no longer be had, if this subscription
    had to start anew because it fell behind what the ENS keeps; in causal order, the first and the last number of
    one publisher's events that nobody has any more.
    """

    topic: str
    missed: tuple[int, int] | None = None


class Leave(msgspec.Struct, frozen=True, gc=False):
    """A subscription to a topic ended: nothing more of it will be delivered."""

    topic: str
    rejoins: bool = False
    """Whether the node joins it anew by itself, because it fell behind what the ENS keeps."""


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """A command of the application was refused for good by a peer.

    With no topics: the node itself was, and does nothing any more.
    """

    topics: tuple[str, ...]
    reason: str


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """That events up to a position were handled is safe: they are never delivered again."""

    position: int


class Alert(msgspec.Struct, frozen=True, gc=False):
    """Something that the order depends on is about to give way, or has: nothing else tells the application."""

    assumption: str
    """`clock`: another clock is ahead of this one. `delay`: a message takes long, or this clock is ahead.
    `terms`: another process has other bounds."""
    peer: str
    """Whose messages show it."""
    measured_ns: int
    bound_ns: int
    broken: bool
    """False: it still holds."""
    theirs: str = ""
    """The peer's terms, where they differ …"""
    ours: str = ""
    """… from these."""


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """A node whose records are kept elsewhere has them, and takes commands."""


class Told(msgspec.Struct, frozen=True):
    """An outcome of a protocol's own."""

    value: object
    """What the application learns; None if it is for the trace alone."""
    row: dict[str, Any] | None = None
    """What a trace keeps of it, by column, `action` among them; None: nothing."""


Outcome = (
    Publish
    | Arrive
    | Deliver
    | Discard
    | Settle
    | Join
    | Leave
    | Refuse
    | Acknowledged
    | Resumed
    | Alert
    | Told
)
Effect = Persist | Send | Multicast | Broadcast | Attach | Detach | Outcome


class Node(Protocol):
    """What a driver knows of every protocol node. Commands are the protocol's own."""

    name: str

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame from a peer; `source` is the peer's name, as the driver knows it."""

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due at `now_ns`. Calling it early or often is harmless."""

    def next_timer_ns(self) -> int | None:
        """When `handle_timer` wants to be called next, if ever."""

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done, in the order of the module's rules."""
