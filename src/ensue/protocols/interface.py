"""The interface between protocol nodes and their drivers.

A protocol node is a state machine. A driver (the simulator, the asyncio runtime) passes it frames,
timer calls and commands, each with the time, and afterwards drains its effects and carries them
out:

1. every `Persist` of the batch, synced to disk before anything else of the batch happens;
2. `Send`, `Multicast`, `Broadcast`, `Attach` and `Detach`, in the order given;
3. the outcomes for the application (`Publish`, `Arrive`, `Deliver`, `Discard`, `Settle`, `Join`,
   `Leave`, `Refuse`, `Acknowledged`, `Resumed`, `Alert`, `Notification`), in the order given.

Batches are carried out in the order they were drained. A node that crashes loses the batches
that were not synced, together with what they would have sent, and restarts from what was synced.
The same state and input give the same effects, always.

HAZARD: a driver that sends before it syncs lets a restarted node forget what it sent. For a
sequencer that means one slot given to two events.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ensue.core.event import Event, Stamp

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
    "Notification",
    "Outcome",
    "Persist",
    "Publish",
    "Refuse",
    "Resumed",
    "Send",
    "Settle",
]


class Frame(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    array_like=True,
    gc=False,
    forbid_unknown_fields=True,
):
    """A message between peers. Subclasses have a `tag` unique within their protocol."""


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Write one record durably before anything of this batch is sent."""

    key: str
    value: bytes | None
    """None removes the record."""


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a frame to one peer. It may be lost, repeated or overtaken."""

    peer: str
    frame: Frame


class Multicast(msgspec.Struct, frozen=True, gc=False):
    """Send one frame to all listeners of a topic; as with `Send`, it may not arrive."""

    topic: str
    peers: tuple[str, ...]
    """The listeners, for a transport that has to send to each of them."""
    frame: Frame
    encoded: bytes = b""
    """The frame as it stands in a bundle, where it is known: it need not be encoded again."""


class Broadcast(msgspec.Struct, frozen=True, gc=False):
    """Publish an event in the log of its topic.

    The topic log answers with `Accepted` or `Taken`. `proof` shows which server gave the event its
    stamp.
    """

    event: Event
    proof: bytes = b""
    node: str = ""
    """The node that keeps this part of the log; empty: the home of the topic."""


class Attach(msgspec.Struct, frozen=True, gc=False):
    """Request the events of a topic from a slot on; the log answers with `Attached`.

    Slot 0 requests only new events.
    """

    topic: str
    from_slot: int
    node: str = ""
    """As in `Broadcast`."""
    limit: int = 0
    """How many of these events are wanted at once; 0: as many as the log sends."""


class Detach(msgspec.Struct, frozen=True, gc=False):
    """Stop the events of a topic."""

    topic: str
    node: str = ""
    """As in `Broadcast`."""


class Publish(msgspec.Struct, frozen=True, gc=False):
    """The node has accepted an event of its application, and will settle it."""

    event: Event


class Arrive(msgspec.Struct, frozen=True, gc=False):
    """The first copy of an event arrived, where the time of that matters."""

    event: Event


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Deliver an event to the application."""

    event: Event
    position: int
    """1, 2, 3, … in this subscription."""
    verdict: str = ""
    """Empty, or the tag: `out_of_order`, `late`, `overtaken`, `skewed`, `early`."""
    held_ns: int = 0
    """How long the event was held back."""


class Discard(msgspec.Struct, frozen=True, gc=False):
    """An event that will not be delivered, and why."""

    event: Event
    verdict: str
    """`duplicate`, `before_join`, `not_subscribed`, `void`, `late`, `overtaken`, `skewed`,
    `corrupt`, `mismatched`, `overflow`."""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The outcome of an event that this node published."""

    event: Event
    verdict: str
    """Empty: it is published. `void`: no subscriber will ever get it."""
    reason: str = ""
    """Why it is void, if a peer refused it."""
    slot: int = 0
    """Its slot, if that is known and the event has no stamp."""

    @property
    def stamped(self) -> Event:
        """The event with the known part of its stamp."""
        if not self.slot:
            return self.event
        stamp = Stamp({self.event.topic: self.slot}, whole=False)
        return msgspec.structs.replace(self.event, stamp=stamp)


class Join(msgspec.Struct, frozen=True, gc=False):
    """A subscription to a topic took effect: events from now on will be delivered.

    `missed` is the first and the last slot of events that are lost, if this subscription had to
    start again because it fell behind what the topic log keeps; in causal order, the first and the
    last number of one publisher's events that no node still has.
    """

    topic: str
    missed: tuple[int, int] | None = None


class Leave(msgspec.Struct, frozen=True, gc=False):
    """A subscription to a topic ended: nothing more of it will be delivered."""

    topic: str
    rejoins: bool = False
    """Whether the node joins it again by itself, because it fell behind its log."""
    loss: str = ""
    """Why its log is not the one that was read, if the application accepts that loss."""


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """A peer refused a command of the application permanently.

    With no topics: it refused the node itself, which stops.
    """

    topics: tuple[str, ...]
    reason: str


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """An acknowledgement is safe: events up to its position are not delivered again."""

    position: int


class Alert(msgspec.Struct, frozen=True, gc=False):
    """An assumption of the order is close to its bound, or broken."""

    assumption: str
    """`clock`: another clock is ahead of this one. `delay`: a message takes long, or this clock is
    ahead. `terms`: another process has other bounds."""
    peer: str
    """The sender of the messages that show it."""
    measured_ns: int
    bound_ns: int
    broken: bool
    """False: it still holds."""
    theirs: str = ""
    """The peer's terms, where they differ from `ours`."""
    ours: str = ""


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """A node whose records are kept remotely has them, and takes commands."""


class Notification(msgspec.Struct, frozen=True):
    """A value for the application, defined by the protocol, with its trace row."""

    value: object
    """The value for the application; None if it is for the trace alone."""
    row: dict[str, Any] | None = None
    """Its trace row, by column, with `action`; None: it has none."""


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
    | Notification
)
Effect = Persist | Send | Multicast | Broadcast | Attach | Detach | Outcome


class Node(Protocol):
    """The methods of every protocol node. Commands are the protocol's own."""

    name: str

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame from a peer; `source` is the peer's name, as the driver knows it."""

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due at `now_ns`. Calling it early or often is harmless."""

    def next_timer_ns(self) -> int | None:
        """Return when to call `handle_timer` next, if ever."""

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects, in the order of the module's rules."""
