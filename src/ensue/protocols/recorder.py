"""The recorder: turns the effects of nodes into trace rows.

Both drivers use it: the simulator gives the true time, the asyncio runtime gives None. A row is
written when the effect is carried out, so a node's rows are numbered in the node's own order: an
event is `published` when its publication is durable and before it is sent, and `delivered` when the
application gets it. An effect that was not carried out, because the node crashed, leaves no row.

Which effect becomes which row:

| effect | row |
|---|---|
| `Publish` | `published` |
| `Broadcast` | `sent`, always |
| `Send` | `sent` with `peer_frames`, else none: there are many |
| `Arrive` | `received` |
| `Deliver` | `delivered` with position, verdict and the stamp as sent |
| `Discard` | `discarded` with its verdict |
| `Settle` | `discarded` with verdict `void` at the publisher; none if the event is published |
| `Join` | `subscribed`; verdict `missed` if it starts again because events are lost |
| `Leave` | `unsubscribed`; verdict `behind` if it joins again by itself |
| `Refuse`, `Alert` | none |
| `Notification` | its own row; on a bus, events by content when the application gets them |

On a bus the application stands above the nodes, and a loss between them is a loss. There the rows
`published` and `delivered` are the application's (`application=True`), written by the client:

| what happened | row |
|---|---|
| `publish` was called | `submitted`: the event's causal place |
| its receipt came | `published`: from now on it is owed |
| the application was handed an event | `delivered` |
| an acknowledgement is safe | `acknowledged` with the last position that is |
| a node's `Publish` or `Deliver` | `node_published`, `node_delivered` |

The sink decides what to do with rows and how many it holds; the default is a list in memory.
"""

from typing import Any, Protocol

from ensue.core.event import DEADLINE, Event
from ensue.core.trace import Row
from ensue.protocols.interface import (
    Arrive,
    Deliver,
    Discard,
    Frame,
    Join,
    Leave,
    Notification,
    Outcome,
    Publish,
    Settle,
)

__all__ = ["BEHIND", "FORGOTTEN", "AlongsideRecorder", "Recorder", "Sink"]

BEHIND = "behind"
"""The verdict of `unsubscribed` when a subscription fell behind its log, and joins again."""
FORGOTTEN = "forgotten"
"""The verdict of `unsubscribed` when an application has a durable subscription forgotten."""


class Sink(Protocol):
    """A consumer of rows, such as a list."""

    def append(self, row: Row, /) -> None:
        """Take one row, which never changes afterwards."""


class Recorder:
    """The rows of one run.

    `order` is the order the run promises, as in the trace. `peer_frames` records every frame
    between peers as well, as `sent` and `received`. `rows` holds the rows unless `sink` is given.
    """

    __slots__ = ("_append", "_steps", "application", "order", "peer_frames", "rows", "run")

    def __init__(
        self,
        run: str,
        order: str = "none",
        *,
        sink: Sink | None = None,
        peer_frames: bool = False,
        application: bool = False,
    ) -> None:
        self.run = run
        self.order = order
        self.application = application
        """Whether the client records what the application does and gets."""
        self.peer_frames = peer_frames
        self.rows: list[Row] = []
        self._append = self.rows.append if sink is None else sink.append
        self._steps: dict[str, int] = {}

    def published(
        self,
        node: str,
        event: Event,
        at_ns: int,
        true_ns: int | None = None,
        bytes: int | None = None,  # noqa: A002 — the name of the trace's column
    ) -> None:
        """Record that a node's application published an event."""
        action = "node_published" if self.application else "published"
        self._event(action, node, event, at_ns, true_ns, size=bytes)

    def submitted(self, node: str, event: Event, at_ns: int) -> None:
        """Record that an application called `publish`."""
        self._event("submitted", node, event, at_ns, None)

    def confirmed(self, node: str, event: Event, at_ns: int) -> None:
        """Record that an application got the receipt of an event."""
        self._event("published", node, event, at_ns, None)

    def handed_over(self, node: str, subscription: str, delivery: Deliver, at_ns: int) -> None:
        """Record that an application was handed an event."""
        self._event(
            "delivered",
            node,
            delivery.event,
            at_ns,
            None,
            subscription=subscription,
            position=delivery.position,
            verdict=delivery.verdict,
        )

    def acknowledged(self, node: str, subscription: str, position: int, at_ns: int) -> None:
        """Record that everything up to a position is acknowledged, and never comes again."""
        self._add("acknowledged", node, at_ns, None, subscription=subscription, position=position)

    def unread(self, node: str, subscription: str, delivery: Deliver, at_ns: int) -> None:
        """Record that an application left a topic before it read an event of it."""
        self._event(
            "discarded",
            node,
            delivery.event,
            at_ns,
            None,
            subscription=subscription,
            position=delivery.position,
            verdict="unread",
        )

    def resumed(self, node: str, subscription: str, topic: str, at_ns: int) -> None:
        """Record that an application resumed a durable subscription that has a topic."""
        self._add("subscribed", node, at_ns, None, topic=topic, subscription=subscription)

    def ended(self, node: str, subscription: str, topic: str, at_ns: int, verdict: str) -> None:
        """Record that a subscription to a topic ended without being left, and why."""
        self._add(
            "unsubscribed",
            node,
            at_ns,
            None,
            topic=topic,
            subscription=subscription,
            verdict=verdict,
        )

    def forgotten(self, node: str, subscription: str, topic: str, at_ns: int) -> None:
        """Record that an application has a durable subscription forgotten that had a topic."""
        self.ended(node, subscription, topic, at_ns, FORGOTTEN)

    def sent(
        self,
        node: str,
        event: Event,
        at_ns: int,
        true_ns: int | None = None,
        bytes: int | None = None,  # noqa: A002 — as above
    ) -> None:
        """Record that a node sent an event to its topic log."""
        self._event("sent", node, event, at_ns, true_ns, size=bytes)

    def frame(
        self,
        action: str,
        node: str,
        frame: Frame,
        at_ns: int,
        true_ns: int | None = None,
        bytes: int | None = None,  # noqa: A002 — as above
    ) -> None:
        """Record a frame between peers as `sent` or `received`, if `peer_frames` is set."""
        event = getattr(frame, "event", None)
        if isinstance(event, Event):
            self._event(action, node, event, at_ns, true_ns, size=bytes)
        else:
            self._add(action, node, at_ns, true_ns, bytes=bytes)

    def outcome(
        self,
        node: str,
        subscription: str | None,
        effect: Outcome,
        at_ns: int,
        true_ns: int | None = None,
    ) -> None:
        """Record an outcome for a node's application."""
        if isinstance(effect, Deliver):
            self._event(
                "node_delivered" if self.application else "delivered",
                node,
                effect.event,
                at_ns,
                true_ns,
                subscription=subscription,
                position=effect.position,
                verdict=effect.verdict,
            )
        elif isinstance(effect, Discard):
            self._event(
                "discarded",
                node,
                effect.event,
                at_ns,
                true_ns,
                subscription=subscription,
                verdict=effect.verdict,
            )
        elif isinstance(effect, Settle):
            if effect.verdict:
                self._event("discarded", node, effect.event, at_ns, true_ns, verdict=effect.verdict)
        elif isinstance(effect, Join):
            verdict = "" if effect.missed is None else "missed"
            self._add(
                "subscribed",
                node,
                at_ns,
                true_ns,
                topic=effect.topic,
                subscription=subscription,
                verdict=verdict,
            )
        elif isinstance(effect, Leave):
            self._add(
                "unsubscribed",
                node,
                at_ns,
                true_ns,
                topic=effect.topic,
                subscription=subscription,
                verdict=BEHIND if effect.rejoins else effect.loss,
            )
        elif isinstance(effect, Arrive):
            self._event("received", node, effect.event, at_ns, true_ns, subscription=subscription)
        elif isinstance(effect, Publish):
            self.published(node, effect.event, at_ns, true_ns)
        elif isinstance(effect, Notification) and effect.row is not None:
            columns = dict(effect.row)
            self._add(columns.pop("action"), node, at_ns, true_ns, **columns)

    def crashed(self, node: str, at_ns: int, true_ns: int | None = None) -> None:
        """Record that a node lost its volatile state."""
        self._add("crashed", node, at_ns, true_ns)

    def restarted(self, node: str, at_ns: int, true_ns: int | None = None) -> None:
        """Record that a node runs again from its records."""
        self._add("restarted", node, at_ns, true_ns)

    def _add(self, action: str, node: str, at_ns: int, true_ns: int | None, **columns: Any) -> None:
        """Append a row; `columns` are those that not every action has."""
        step = self._steps[node] = self._steps.get(node, 0) + 1
        self._append(
            Row(
                run=self.run,
                node=node,
                step=step,
                at_ns=at_ns,
                true_ns=true_ns,
                action=action,
                order=self.order,
                **columns,
            )
        )

    def _event(
        self,
        action: str,
        node: str,
        event: Event,
        at_ns: int,
        true_ns: int | None,
        *,
        subscription: str | None = None,
        position: int | None = None,
        verdict: str = "",
        size: int | None = None,
    ) -> None:
        stamp = event.stamp
        self._add(
            action,
            node,
            at_ns,
            true_ns,
            event=event.id,
            topic=event.topic,
            publisher=event.publisher,
            publisher_seq=event.publisher_seq,
            position=position,
            subscription=subscription,
            verdict=verdict,
            # Not copied: the entries of a stamp never change after it is made.
            stamp=None if stamp is None else stamp.entries,
            deadline_ns=None if stamp is None else stamp.entries.get(DEADLINE),
            bytes=size,
        )


class AlongsideRecorder(Recorder):
    """A second recorder of the same nodes; both number their rows together."""

    __slots__ = ()

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(
            recorder.run,
            recorder.order,
            peer_frames=recorder.peer_frames,
            application=recorder.application,
        )
        self._append, self._steps = recorder._append, recorder._steps  # noqa: SLF001 - same class
