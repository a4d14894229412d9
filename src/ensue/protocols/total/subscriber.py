"""A subscriber: one subscription, whose events come out in the one order.

What it guarantees
- Events are delivered in positions 1, 2, 3, …; two subscribers never see two events in opposite
  orders. With reliable topic logs no event is lost and none waits forever.
- With lossy ones, an event is held back for missing ones no longer than its time to live, and what
  arrives too late is delivered at once and tagged `out_of_order`.
- Topics can be joined and left at any time. Leaving takes effect at once. Joining takes effect at a
  cut: everything published from then on is delivered.
- After a crash it resumes behind the last event that was acknowledged.

How a change works: attach to the logs of the new topics, so that nothing published after the cut
can be missed; send the change through the chain; join at the cut in its answer. One at a time:
topics that are requested or left meanwhile wait for the next change.

A subscriber whose application can't keep up is paused: it asks the logs to send nothing, keeps some
of what arrives all the same for later, and requests the rest when it is resumed. A request on a
topic is for few events if the application takes few: where a link is slow, the next pause comes
while the answer arrives, and the request after that would have the rest of it sent again.

One that fell behind what the logs keep reports what it missed, and continues with what is retained
(`backfill`). Where several servers keep its topics, the order of what lies behind is not known;
there the topic that fell behind starts again at a new cut, and everything up to it is missed.

HAZARD: with `acknowledge_each=False` an event counts as handled the moment it is delivered; a crash
of the application before it acted on the event loses it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from ensue.core.errors import SubscriptionRefused
from ensue.core.event import Event
from ensue.core.lineage import ROLLED_BACK, Lineage
from ensue.protocols.content.cells import ContentCounts
from ensue.protocols.interface import (
    Effect,
    Frame,
    Join,
    Leave,
    Persist,
    Refuse,
    Send,
)
from ensue.protocols.topic_log.frames import Attached, Fetched, LogEnd, Notify
from ensue.protocols.total.backfill import Backfill
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.delivery import Delivery
from ensue.protocols.total.frames import (
    Changed,
    ChangeRequest,
    Expired,
    Forget,
    Moved,
    Refused,
)
from ensue.protocols.total.gap_requests import GapRequests
from ensue.protocols.total.known_logs import KnownLogs
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.progress import Progress
from ensue.protocols.total.records import (
    CLOCK,
    HISTORY,
    INT,
    SUBSCRIPTION,
    ChangeUnderWay,
    SubscriptionRecord,
)
from ensue.protocols.total.subscription_state import SubscriptionState

__all__ = ["Subscriber"]

LEAP = 1 << 20
"""How far a change is numbered beyond one of an earlier life of the name."""


class Subscriber:
    """One subscription. Commands: `subscribe`, `unsubscribe`, `acknowledge`.

    `acknowledge_each` makes the application acknowledge events; otherwise an event counts as
    handled when it is delivered. `start` is the place in the log to start at, for the topics that
    are joined first; None, and for topics that are added later: with new events. `accept_loss`
    makes a durable subscription go on if a log is not the one that it read. `matches` says of each
    event in its turn whether the application gets it; others are discarded. `room` is how many
    events the application takes before it pauses the subscriber; 0: any number. `records` is what
    an earlier incarnation persisted. Changes are numbered from behind `life` on: where a name is
    used again after its records were given up, it has to be higher each time, so that no node takes
    a change for one that it has seen.
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig | None = None,
        acknowledge_each: bool = False,
        start: int | None = None,
        accept_loss: bool = False,
        matches: Callable[[Event], bool] | None = None,
        room: int = 0,
        records: Mapping[str, bytes] | None = None,
        life: int = 0,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.placement = placement
        self.config = config = config or SequencerConfig()
        state = self._state = SubscriptionState(
            name=name, placement=placement, config=config, matches=matches, room=room
        )
        self.counts: ContentCounts | None = getattr(matches, "counts", None)
        """Of a subscription by content; None for others."""
        self.queue = state.queue
        self._effects = state.effects
        self.progress = Progress(
            state, acknowledge_each=acknowledge_each, persist_state=self._persist_state
        )
        self.delivery = Delivery(state, self.progress, now_ns=now_ns)
        self.backfill = Backfill(state, self.progress, self.delivery)
        self.gaps = GapRequests(
            state, self.delivery, self.backfill, on_fallen_behind=self._fell_behind, now_ns=now_ns
        )
        self.logs = KnownLogs(state, self.last_place, accept_loss=accept_loss)
        self._wanted: dict[str, None] = {}
        self._registered: tuple[str, ...] = ()
        """The subscription as the chain knows it."""
        self._left: dict[str, None] = {}
        """Topics that were left and count for groups, with groups by two (`Groups`)."""
        self._number = life
        self._known = 0
        """The last change that the chain answered in this incarnation."""
        self._change: ChangeUnderWay | None = None
        self._moves: dict[str, int] = {}
        """Topics that were moved, to how often."""
        self._attaching: dict[str, None] = {}
        """Topics of the change under way that their log has not attached yet."""
        self._visited: dict[str, None] = {}
        """Nodes that may know this subscriber and have not got its goodbye."""
        self._change_due_ns = 0
        self._start = start
        """Where the first topics start; None as soon as they are joined."""
        self._begun = False
        """Whether a topic was ever joined."""
        self.expired = False
        """Whether the chain took it for vanished: it does nothing any more."""
        self._handlers: dict[type[Frame], Callable[..., None]] = {
            Attached: self._on_attached,
            Fetched: self.backfill.on_fetched,
            LogEnd: self.gaps.on_log_end,
            Expired: self._on_expired,
            Changed: self._on_changed,
            Refused: self._on_refused,
            Moved: self._on_moved,
        }
        if records and "state" in records:  # Else there are only records of logs.
            self._restore(records, now_ns)
        elif config.fixed is not None:
            self._start_fixed(config.fixed.get(name, ()), now_ns)

    # -- What others read -------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect: joined, and not left."""
        return (*self.queue.clock, *self.backfill.topics)

    @property
    def held_count(self) -> int:
        """How many events are held back."""
        return self.queue.held_count

    def waits(self, ends: Mapping[str, int]) -> Iterator[str]:
        """Describe what this subscriber waits for, given the last slot of each topic."""
        if self._change is not None:
            yield f"waits for change {self._change.number}"
        if self.backfill.topics:
            yield f"catches up with {', '.join(self.backfill.topics)}"
        if self.queue.held_count:
            yield f"holds {self.queue.held_count} events back"
        if self.config.reliable:
            for topic, slot in self.queue.clock.items():
                if slot < ends.get(topic, 0):
                    yield f"is at {slot} of {ends[topic]} of {topic}"

    @property
    def leave_confirmed(self) -> bool:
        """Whether every node of the chain knows that this subscriber has left its topics."""
        return not any(self.waits({}))

    def last_place(self, node: str) -> int:
        """Return the highest place of a delivered event of a node's log, or 0."""
        clock, parts = self.queue.clock, self.placement.parts
        of_node = (
            place
            for topic, place in self.progress.places.items()
            # Which node kept the last event of a topic that was left and then moved is not known.
            if (topic in clock or topic not in parts)
            and self._keeper(topic, clock.get(topic, 0)) == node
        )
        return max(of_node, default=0)

    # -- Commands ---------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`."""
        self._check_not_fixed()
        added = [topic for topic in topics if topic not in self._wanted]
        for topic in added:
            self.placement.stage(topic)  # Raises for a topic that has no place.
        if self._start is not None:
            self._check_one_server((*self._wanted, *added))
        self._wanted.update(dict.fromkeys(added))
        if added:
            self._begin_change(now_ns)
            self._persist_state()

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        self._check_not_fixed()
        for topic in topics:
            if topic not in self._wanted:
                continue
            del self._wanted[topic]
            self.progress.leave(topic)
            self._drop(topic)
        self._begin_change(now_ns)
        self._persist_state()
        self.backfill.go_on(now_ns)
        self.delivery.deliver_ready(now_ns)

    def acknowledge(self, position: int) -> None:
        """Note that the application has handled every event up to a position."""
        self.progress.acknowledge(position)

    def ask_log(self, question: int) -> None:
        """Note how far each log is delivered while nodes are asked which logs they have."""
        self.logs.ask(question)

    def learn_log(
        self, node: str, lineage: Lineage, *, now_ns: int, question: int | None = None
    ) -> None:
        """Learn which log a node has; one that is not the log of the records is refused.

        A durable subscription then ends. If it accepts a loss, it goes on behind what it has
        handled where the log continues the old one, and from its beginning where it does not.
        `question` is the one that this answers (`ask_log`); None: a new connection says so.
        """
        if not self.config.durable or self.expired:
            return
        topics = self._topics_at(node)
        reason, related = self.logs.learn(node, lineage, question=question, reads=bool(topics))
        if not reason:
            return
        if self.logs.accept_loss:
            self._rejoin(topics, now_ns, loss=reason, related=related)
        else:
            self.expired = True
            self._effects[:] = [Refuse((), reason)]  # Nothing else is to be done or waited for.

    def _topics_at(self, node: str) -> list[str]:
        clock = self.queue.clock
        return [
            topic
            for topic in self._wanted
            if self._keeper(topic, clock[topic] + 1 if topic in clock else 0) == node
        ]

    def _keeper(self, topic: str, slot: int) -> str:
        """Return the node that keeps a slot of a topic; 0: the next one."""
        return self.placement.keeper(topic, slot) or self.placement.node(topic)

    def pause(self) -> None:
        """Deliver nothing more until resumed. Only where the logs can send again."""
        assert self.config.reliable
        if not self.delivery.paused:
            self.delivery.paused = True
            for topic in self.queue.clock:
                self._state.detach(topic)

    def resume(self, *, now_ns: int) -> None:
        """Deliver again after a pause."""
        if self.delivery.paused and not self.expired:
            self.delivery.resume(now_ns)
            self._repeat_requests(now_ns)
            self.backfill.go_on(now_ns)

    def repeat(self, *, now_ns: int) -> None:
        """Repeat open requests now: a connection was lost."""
        self._confirm_registration()
        self._repeat_requests(now_ns)

    def _repeat_requests(self, now_ns: int) -> None:
        if self._change is not None:
            self._pursue_change(now_ns)
        self.backfill.repeat(now_ns)
        self.gaps.repeat(now_ns)

    # -- Driver -----------------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a notification, or an answer of a topic log or of a node."""
        if type(frame) is Notify:
            # Checked first: almost every frame is a notification.
            if self.expired:
                return
            accept = self.delivery.keep if self.delivery.paused else self.delivery.notify
            accept(frame.event, now_ns)
            return
        handler = self._handlers.get(type(frame))
        if handler is not None and not self.expired:
            handler(frame, source, now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat open requests, request what is missing, give up what is overdue."""
        if self._change is not None and self._change_due_ns <= now_ns:
            self._pursue_change(now_ns)
        if self.backfill.due_ns is not None and self.backfill.due_ns <= now_ns:
            self.backfill.fetch(now_ns)
        if self.topics:
            self.gaps.handle_timer(now_ns)
        if not self.config.reliable:
            self.delivery.expire(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something has to be repeated, requested or given up."""
        if self.expired:
            return None
        dues: list[int] = []
        if self._change is not None:
            dues.append(self._change_due_ns)
        if self.backfill.due_ns is not None:
            dues.append(self.backfill.due_ns)
        if self.topics:
            dues.append(self.gaps.next_timer_ns())
        if not self.config.reliable and (due_ns := self.delivery.expiry_due_ns()) is not None:
            dues.append(due_ns)
        return min(dues, default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    # -- Changes ----------------------------------------------------------------------------------

    def _begin_change(self, now_ns: int) -> None:
        """Start the next change, unless one is under way or none is needed."""
        if self._change is not None:
            return
        joining = tuple(
            topic
            for topic in self._wanted
            if topic not in self.queue.clock and topic not in self.backfill.topics
        )
        new = tuple(self._wanted)
        if not joining and frozenset(new) == frozenset(self._registered):
            return
        self._number += 1
        old = (*self._registered, *self._left)
        self._change = ChangeUnderWay(self._number, old, new, joining)
        self._visit((*old, *new))
        for topic in joining:
            self.queue.await_cut(topic)
        self._attaching = dict.fromkeys(joining)
        self._pursue_change(now_ns)

    def _pursue_change(self, now_ns: int) -> None:
        """Do, or repeat, the current step of the change under way."""
        change = self._change
        assert change is not None
        self._change_due_ns = now_ns + self.config.retry_ns
        if self._attaching:
            for topic in self._attaching:
                self.gaps.requests.sent(topic, now_ns)
                self._state.attach(topic, 0)
            return
        first, _ = self.placement.span((*change.old, *change.new))
        request = ChangeRequest(
            number=change.number, old=change.old, new=change.new, known=self._known
        )
        self._effects.append(Send(self.placement.nodes[first], request))

    def _confirm_registration(self, *, at: str | None = None) -> None:
        """Repeat the last answered change to one node or all: a node that lost it says so."""
        topics = self._registered
        if self._known and topics and self.config.fixed is None:
            old = (*topics, *self._left)
            request = ChangeRequest(number=self._known, old=old, new=topics, known=self._known)
            nodes = dict.fromkeys(self.placement.node(topic) for topic in old)
            self._effects.extend(Send(node, request) for node in nodes if at in (None, node))

    def _visit(self, topics: Sequence[str]) -> None:
        """Note the nodes that a change of these topics visits."""
        if topics:
            first, last = self.placement.span(topics)
            self._visited.update(dict.fromkeys(self.placement.nodes[first : last + 1]))

    def _on_attached(self, frame: Attached, source: str, now_ns: int) -> None:
        topic = frame.topic
        self.gaps.requests.measure(topic, now_ns)
        if topic in self._attaching:
            del self._attaching[topic]
            if not self._attaching and self._change is not None:
                self._pursue_change(now_ns)
        elif self.config.reliable and topic in self.queue.clock and not self.delivery.paused:
            self.gaps.on_attached(frame, source, now_ns)

    def _on_changed(self, frame: Changed, _source: str, now_ns: int) -> None:
        change = self._change
        if change is not None and change.number == frame.number:  # Else an earlier answer, again.
            self._join_at(change, frame.cut, now_ns)

    def _on_refused(self, frame: Refused, source: str, now_ns: int) -> None:
        change = self._change
        if frame.number == 0:  # No change has this number: the subscriber itself is refused.
            if frame.reason == ROLLED_BACK and frame.seen != self._known:
                # It answers an old request, which may have come after a later change or a goodbye.
                self._confirm_registration(at=source)
            elif frame.reason == ROLLED_BACK and self.logs.accept_loss:
                self._known = 0
                if any(self.placement.node(topic) == source for topic in self._left):
                    # Nothing may be wanted of this node: let it know what it has to order.
                    self._left.update(dict.fromkeys(self._registered))
                    self._registered = ()
                topics = self._topics_at(source)
                self._rejoin(topics, now_ns, loss=frame.reason, related=True)
            else:
                self._expire(frame.reason)
        elif change is None or change.number != frame.number:
            return  # An earlier answer, again.
        elif frame.seen:
            # An earlier life of the name got further, and maybe further still at other nodes.
            self._number = frame.seen + LEAP
            self._change = msgspec.structs.replace(change, number=self._number)
            self._persist_state()
            self._pursue_change(now_ns)
        else:
            self._give_up(change, f"{source}: {frame.reason}", now_ns)

    def _on_moved(self, frame: Moved, _source: str, now_ns: int) -> None:
        """Follow a topic to the node that it has moved to."""
        topic, parts = frame.topic, frame.parts
        self.placement.learn(topic, parts)
        if len(parts) <= self._moves.get(topic, 0):
            return
        self._moves[topic] = len(parts)
        self._visit((*self._registered, *self._left))
        self._leave_behind(tuple(self._left))
        if topic in self.queue.clock and not self.delivery.paused:
            first = max(parts[-2][1], self.queue.first_missing(topic) - 1) + 1
            self._state.attach(topic, first)
        if self._change is not None:
            self._visit((*self._change.old, *self._change.new))
            self._pursue_change(now_ns)
        self._persist_state()
        self.backfill.repeat(now_ns)

    def _on_expired(self, frame: Expired, _source: str, _now_ns: int) -> None:
        if frame.name == self.name:
            self._expire("expired")

    def _expire(self, reason: str) -> None:
        self.expired = True
        self._effects.append(Refuse((), reason))

    def _join_at(self, change: ChangeUnderWay, cut: Mapping[str, int], now_ns: int) -> None:
        """Join the topics of a change at their cut."""
        self._change = None
        self._registered, self._known = change.new, change.number
        if self.config.groups == 2:
            self._leave_behind(topic for topic in change.old if topic not in change.new)
        fallen = self.progress.fallen
        past: dict[str, int] = {}
        for topic in change.joining:
            if topic not in self.queue.joining:
                continue  # Left again before the cut came.
            if topic in self.placement.parts:
                self.progress.places.pop(topic, None)  # Of another node's log, maybe.
            self._begun = True
            if topic in fallen and self._on_one_server(change.new):
                self.backfill.read_on(topic, cut.get(topic, 0))
            elif self._start is None or topic in fallen or not cut.get(topic):
                self._join(topic, cut.get(topic, 0))
            else:
                past[topic] = cut[topic]
        if past and self._start is not None:
            self.backfill.begin(past, self._start)
        if self._begun:
            # The past of a topic that is added later would come behind events that it preceded.
            self._start = None
        self.backfill.go_on(now_ns)
        # Events published between the cut and now may have been sent before this answer came.
        soon_ns = now_ns + self.gaps.requests.timeout_ns
        self.gaps.poll_due_ns = min(self.gaps.poll_due_ns, soon_ns)
        self._begin_change(now_ns)
        self._persist_state()
        self.delivery.deliver_ready(now_ns)
        self._say_goodbye_if_done()

    def _leave_behind(self, topics: Iterable[str]) -> None:
        """Let topics that were left count for groups from now on, and no others."""
        self._left = dict.fromkeys(topics)
        if self.config.carries:
            # A node that has none of its topics would take it for vanished.
            node = self.placement.node
            polled = {node(topic) for topic in self._registered}
            apart = {node(topic): topic for topic in self._left if node(topic) not in polled}
            self.gaps.left = tuple(apart.values())

    def _join(self, topic: str, cut: int) -> None:
        """Join a topic at its cut, and report what was missed of one that fell behind."""
        self.delivery.start_at(topic, cut)
        handled = self.progress.fallen.pop(topic, cut + 1)
        first_missed = self.progress.reached.pop(topic, handled)
        self._effects.append(Join(topic, (first_missed, cut) if first_missed <= cut else None))

    def _give_up(self, change: ChangeUnderWay, reason: str, now_ns: int) -> None:
        """Give up a refused change, with its new topics.

        A repetition of the request may still be accepted later. By its number every node that has
        seen a newer change knows it for old; others keep a registration that is not used.
        """
        if frozenset(change.new) <= frozenset(change.old) - self._left.keys():
            return  # It only leaves topics: the chain has to learn of it, so it is repeated.
        for topic in change.joining:
            self._wanted.pop(topic, None)
            self.progress.forget_fallen(topic)
            self._drop(topic)
        self._change = None
        if change.joining:
            self._effects.append(Refuse(change.joining, reason))
        self._begin_change(now_ns)
        self._persist_state()
        self.delivery.deliver_ready(now_ns)

    def _fell_behind(self, topic: str, now_ns: int) -> None:
        """Rejoin a topic that fell behind its log, with all topics read with it."""
        together = self._on_one_server(self._wanted)
        if together and (self._change is not None or self.backfill.topics):
            return  # One at a time; it is noticed again when that is done.
        for each in list(self.queue.clock) if together else [topic]:
            self.progress.fall(each)
            self._drop(each, rejoins=True)
        self._begin_change(now_ns)
        self._persist_state()
        self.delivery.deliver_ready(now_ns)

    def _rejoin(self, topics: Sequence[str], now_ns: int, *, loss: str, related: bool) -> None:
        """Rejoin topics whose log was replaced: where they were if `related`, or at 1.

        `loss` is the reason that the application accepts.
        """
        progress = self.progress
        for topic in topics:
            progress.places.pop(topic, None)
            if related and topic not in self.queue.clock:
                continue  # Its past is still read, or it is about to be joined.
            if related:
                progress.fall(topic)
            else:
                progress.fallen[topic] = 1
                progress.reached.pop(topic, None)
            self._drop(topic, loss=loss)
        self._begin_change(now_ns)
        self._persist_state()
        self.delivery.deliver_ready(now_ns)

    def _drop(self, topic: str, *, rejoins: bool = False, loss: str = "") -> None:
        """Forget a topic, detach from its log and, if it was in effect, notify the application."""
        joined = topic in self.topics
        self.queue.leave(topic)
        self.gaps.leave(topic)
        self.backfill.leave(topic)
        self.delivery.forget(topic)
        change = self._change
        if change is not None and topic in change.joining:
            # Wanted again, it needs another cut: events before this one were not waited for.
            joining = tuple(each for each in change.joining if each != topic)
            self._change = msgspec.structs.replace(change, joining=joining)
        self._state.detach(topic)
        if self._attaching.pop(topic, 0) is None and not self._attaching:
            self._change_due_ns = 0  # The change no longer waits for the log.
        if joined:
            if self.config.durable:
                self._effects.append(Persist(f"clock/{topic}", None))
            self._effects.append(Leave(topic, rejoins, loss))

    def _say_goodbye_if_done(self) -> None:
        """Say goodbye to every node that knows this subscriber, if it wants nothing more.

        The record still names the nodes: after a crash, which may come before the goodbye is sent,
        they get it again.
        """
        if self._change is not None or self._wanted:
            return
        goodbye = Forget(number=self._number, publisher=False)
        nodes = (node for node in self._visited if node in self.placement.nodes)
        self._effects.extend(Send(node, goodbye) for node in nodes)
        self._visited = {}
        self._known = 0  # No node has to know a change any longer.

    # -- Checks -----------------------------------------------------------------------------------

    def _on_one_server(self, topics: Iterable[str]) -> bool:
        """Return whether one server keeps the logs of all these topics, and gives places."""
        topics = tuple(topics)
        keepers = {node for topic in topics for node in self.placement.keepers(topic)}
        return self.config.carries and (len(keepers) == 1 or len(topics) == 1)

    def _check_not_fixed(self) -> None:
        if self.config.fixed is not None:
            raise SubscriptionRefused(
                f"{self.name}: subscriptions of this chain are fixed; groups by one common "
                "subscription (groups = 1) allow changes",
                reason="fixed",
            )

    def _check_one_server(self, topics: Sequence[str]) -> None:
        homes = {node: topic for topic in topics for node in self.placement.keepers(topic)}
        if len(homes) > 1 and len(topics) > 1:
            apart = ", ".join(f"{topic!r} by {node}" for node, topic in homes.items())
            raise SubscriptionRefused(
                f"{self.name}: a subscription starts in the past only with topics of one server, "
                f"and these are kept apart: {apart}",
                reason="apart",
            )

    # -- Records ----------------------------------------------------------------------------------

    def _start_fixed(self, topics: Iterable[str], now_ns: int) -> None:
        self._wanted = dict.fromkeys(topics)
        self._registered = tuple(self._wanted)
        for topic in self._wanted:
            self._join(topic, 0)
            self.gaps.ask(topic, now_ns)
        self._persist_state()

    def _persist_state(self) -> None:
        if self.config.durable:
            state = SubscriptionRecord(
                tuple(self._wanted),
                self._registered,
                self._number,
                self._change,
                self.progress.fallen,
                tuple(self._visited),
                self._begun,
                self._known,
                tuple(sorted(self.progress.gaps)),
                tuple(self._left),
            )
            self._effects.append(Persist("state", SUBSCRIPTION.encode(state)))

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        state = SUBSCRIPTION.decode(records["state"])
        self._wanted = dict.fromkeys(state.wanted)
        self._registered, self._known = state.registered, state.known
        self._leave_behind(state.left)
        self._number = state.number
        self._change = state.change
        self.progress.fallen = state.fallen
        self._visited = dict.fromkeys(state.visited)
        self._visit(self._registered)  # Older records don't name the nodes.
        earlier = bool(state.registered) or state.number > 1
        self._begun = earlier if state.begun is None else state.begun
        if self._begun:
            self._start = None
        delivered = INT.decode(records["delivered"]) if "delivered" in records else 0
        self.progress.resume(delivered, state.gaps)
        for key in sorted(records):
            kind, _, topic = key.partition("/")
            if kind == "history":
                self.backfill.restore(topic, *HISTORY.decode(records[key]))
            elif kind == "log":
                self.logs.restore(topic, records[key])
            elif kind == "clock" and f"history/{topic}" not in records:
                clock = CLOCK.decode(records[key])
                self.queue.resume(topic, clock.slot, clock.base)
                if topic not in self.placement.parts:
                    # Else it may be of a later event than the slot, in another node's log.
                    self.progress.places[topic] = clock.place
                self.gaps.ask(topic, now_ns)
        self.backfill.go_on(now_ns)
        if self._change is not None:
            joining = [topic for topic in self._change.joining if topic in self._wanted]
            for topic in joining:
                self.queue.await_cut(topic)
            self._attaching = dict.fromkeys(joining)
            self._visit((*self._change.old, *self._change.new))
            self._pursue_change(now_ns)
        else:
            self._begin_change(now_ns)
            self._persist_state()
            self._say_goodbye_if_done()
