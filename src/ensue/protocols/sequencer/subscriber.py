"""A subscriber: one subscription, whose events come out in the one order.

What it guarantees
- Events are delivered in positions 1, 2, 3, …; two subscribers never see two events in opposite
  orders. On a reliable ENS nothing is lost and nothing waits for ever.
- On an ENS that loses, an event is held back for missing ones no longer than its time to live, and
  what turns up too late is delivered at once and tagged `out_of_order`.
- Topics can be joined and left at any time. Leaving takes effect at once. Joining takes effect at a
  cut: everything published from then on is delivered.
- After a crash it resumes behind the last event that was acknowledged.

How a change goes: attach the new topics to the ENS, so that nothing published after the cut can be
missed; send the change through the chain; join at the cut that comes back. One at a time: what is
asked for meanwhile waits for the next change.

A subscriber whose application can't keep up is paused: it asks the logs to send nothing, drops what comes
all the same, and when it is resumed asks for everything from there on.

One that fell behind what the logs keep says what it missed, and reads on with what there is (`history`).
Where its topics are kept by several servers, nobody can tell the order of what lies behind; there the topic
that fell behind starts anew at a fresh cut, and all up to it is missed.

HAZARD: with `acknowledge_each=False` an event counts as handled the moment it is handed over; a
crash of the application before it acted on it loses it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from ensue.protocols.core import (
    Attach,
    Detach,
    Effect,
    Frame,
    Join,
    Leave,
    Persist,
    Refuse,
    Send,
)
from ensue.protocols.ens import Attached, Fetched, Notify
from ensue.protocols.lineage import Lineage, contradiction
from ensue.protocols.sequencer.asking import Asking
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import (
    Changed,
    ChangeRequest,
    Expired,
    Forget,
    Refused,
)
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.records import (
    CLOCK,
    HISTORY,
    INT,
    LOG,
    SUBSCRIPTION,
    ChangeUnderWay,
    KnownLog,
    SubscriptionRecord,
)

__all__ = ["UNASKED", "Subscriber"]

UNASKED = 0
"""No question about logs has this number."""
QUESTIONS_MAX = 4
"""Questions about logs whose answers tell how far a log was; later answers tell no less."""

LEAP = 1 << 20
"""By so much the number of a change is raised beyond one that an earlier life of the name had."""


class Subscriber(Asking):
    """One subscription. Commands: `subscribe`, `unsubscribe`, `acknowledge`.

    `acknowledge_each` makes the application say which events it has handled; otherwise an event
    counts as handled when it is delivered. `start` is the place in the log to start at, for the topics that are
    joined first; None, and for topics that are added later: with what is new. `accept_loss` makes a durable one go on if a log is not the one that it read. `records` is what an earlier incarnation persisted. Changes are numbered from behind `life`
    on: where a name is used again after its records were given up, it is to be higher each time, so that no
    node takes a change for one that it has seen.
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
        records: Mapping[str, bytes] | None = None,
        life: int = 0,
        now_ns: int = 0,
    ) -> None:
        super().__init__(
            config=config or SequencerConfig(), acknowledge_each=acknowledge_each, now_ns=now_ns
        )
        self.name = name
        self.placement = placement
        self._wanted: dict[str, None] = {}
        self._registered: tuple[str, ...] = ()
        """What the chain knows this subscription to be."""
        self._number = life
        self._change: ChangeUnderWay | None = None
        self._attaching: dict[str, None] = {}
        """Topics of the change under way that the ENS has not attached yet."""
        self._visited: dict[str, None] = {}
        """Nodes that may know this subscriber, and have not been told that it left."""
        self._change_due_ns = 0
        self._accept_loss = accept_loss
        self._logs: dict[str, KnownLog] = {}
        """By node: which log it had when it was last heard of, for as long as records last."""
        self._asked: dict[int, dict[str, int]] = {}
        """By question about logs: by node, how far its log was delivered when it was asked."""
        self._start = start
        """Where the first topics start; None as soon as they are joined."""
        self.expired = False
        """Whether the chain took it for vanished: it does nothing any more."""
        if records and "state" in records:  # Else it had nothing but word of the logs.
            self._restore(records, now_ns)
        elif self.config.fixed is not None:
            self._start_fixed(self.config.fixed.get(name, ()), now_ns)

    def waits(self, ends: Mapping[str, int]) -> Iterator[str]:
        """Say what this subscriber still waits for, given the last slot of each topic."""
        if self._change is not None:
            yield f"waits for change {self._change.number}"
        if self._history.topics:
            yield f"catches up with {', '.join(self._history.topics)}"
        if self._queue.held_count:
            yield f"holds {self._queue.held_count} events back"
        if self.config.reliable:
            for topic, slot in self._queue.clock.items():
                if slot < ends.get(topic, 0):
                    yield f"is at {slot} of {ends[topic]} of {topic}"

    def last_place(self, node: str) -> int:
        """Return the highest place of a node's log of which an event was delivered; 0: none was."""
        of_node = (
            place for topic, place in self._places.items() if self.placement.node(topic) == node
        )
        return max(of_node, default=0)

    # -- Commands -------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`."""
        self._refuse_if_fixed()
        added = [topic for topic in topics if topic not in self._wanted]
        for topic in added:
            self.placement.stage(topic)  # Refuses a topic that has no place.
        if self._start is not None:
            self._refuse_if_apart((*self._wanted, *added))
        self._wanted.update(dict.fromkeys(added))
        if added:
            self._begin_change(now_ns)
            self._persist_state()

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        self._refuse_if_fixed()
        for topic in topics:
            if topic not in self._wanted:
                continue
            del self._wanted[topic]
            self._fallen.pop(topic, None)
            self._reached.pop(topic, None)
            self._disown(topic)
            self._drop(topic)
        self._begin_change(now_ns)
        self._persist_state()
        self._go_on_with_history(now_ns)
        self._deliver_ready(now_ns)

    def ask_log(self, question: int) -> None:
        """Remember how far each log is delivered while nodes are asked which logs they have."""
        self._asked[question] = {node: self.last_place(node) for node in self.placement.nodes}
        while len(self._asked) > QUESTIONS_MAX:
            del self._asked[next(iter(self._asked))]

    def learn_log(
        self, node: str, told: Lineage, *, now_ns: int, question: int | None = None
    ) -> None:
        """Hear which log a node has. One that is not the log of the records ends a durable subscription, or begins anew.

        `question` is the one that this answers (`ask_log`): what was delivered before it is of this incarnation, or of an
        earlier one. None: a new connection tells it, and all that was delivered came over those before.
        If the subscription accepts a loss, it goes on behind what it has handled where the log goes on from the old one, and
        from its beginning where it does not.
        """
        known = self._logs.get(node)
        if not self.config.durable or self.expired:
            return
        place = 0 if question is None else self._asked.get(question, {}).get(node, 0)
        if known is not None and known.log == told.last:
            if place > known.place:
                self._remember_log(node, KnownLog(known.log, place))
            return
        topics = [topic for topic in self._wanted if self.placement.node(topic) == node]
        reason, reached = "", 0
        if known is not None and topics:
            reached = self.last_place(node) if question is None else known.place
            reason = contradiction(known.log, told, place=reached)
        if reason and not self._accept_loss:
            self.expired = True
            self._effects = [Refuse((), reason)]  # Nothing else is to be done or waited for.
            return
        self._remember_log(node, KnownLog(told.last, place))
        if reason and known is not None:
            related = told.continues(known.log, place=reached)
            self._begin_anew(topics, now_ns, related=related)

    def _remember_log(self, node: str, known: KnownLog) -> None:
        self._logs[node] = known
        self._effects.append(Persist(f"log/{node}", LOG.encode(known)))

    def pause(self) -> None:
        """Deliver nothing more until resumed. Only where the logs can send again."""
        assert self.config.reliable
        if not self._paused:
            self._paused = True
            self._effects.extend(Detach(topic) for topic in self._queue.clock)

    def resume(self, *, now_ns: int) -> None:
        """Go on where it was paused."""
        if self._paused:
            self._paused = False
            self.repeat(now_ns=now_ns)
            self._go_on_with_history(now_ns)

    def repeat(self, *, now_ns: int) -> None:
        """Do again at once what would be done again in a while: a connection was lost."""
        if self._change is not None:
            self._pursue_change(now_ns)
        self._history.expect_nothing()
        self._fetch(now_ns)
        self._questions.drop_all()
        self._ask(now_ns)

    # -- Driver ---------------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a notification, or an answer of the ENS or of a node."""
        if type(frame) is Notify:
            if not self._paused and not self.expired:
                self._notify(frame.event, now_ns)
            return  # Looked for first, and by type: almost everything that comes is one.
        if self.expired:
            return
        match frame:
            case Attached():
                self._attached(frame, now_ns)
            case Fetched():
                self._fetched(frame, now_ns)
            case Expired(name=self.name) | Refused(number=0):  # No change: all was refused.
                self.expired = True
                self._effects.append(Refuse((), getattr(frame, "reason", "expired")))
            case Changed() | Refused():
                self._answered(frame, source, now_ns)
            case _:
                pass  # Not for a subscriber: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat what got no answer, ask for what is missing, give up what is overdue."""
        if self._change is not None and self._change_due_ns <= now_ns:
            self._pursue_change(now_ns)
        if self._history_due_ns is not None and self._history_due_ns <= now_ns:
            self._fetch(now_ns)
        if self.topics:
            self._ask_if_due(now_ns)
        if not self.config.reliable:
            self._expire(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is to be repeated, asked for or given up."""
        dues: list[int] = []
        if self.expired:
            return None
        if self._change is not None:
            dues.append(self._change_due_ns)
        if self._history_due_ns is not None:
            dues.append(self._history_due_ns)
        if self.topics:
            dues.append(self._asking_due_ns())
        if not self.config.reliable and (oldest := self._queue.oldest_ns()) is not None:
            dues.append(max(oldest + self.config.time_to_live_ns, self._expire_from_ns))
        return min(dues, default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    # -- Changes --------------------------------------------------------------------------------

    def _begin_change(self, now_ns: int) -> None:
        """Start the next change, unless one is under way or none is needed."""
        if self._change is not None:
            return
        joining = tuple(
            topic
            for topic in self._wanted
            if topic not in self._queue.clock and topic not in self._history.topics
        )
        new = tuple(self._wanted)
        if not joining and frozenset(new) == frozenset(self._registered):
            return
        self._number += 1
        self._change = ChangeUnderWay(self._number, self._registered, new, joining)
        self._visit((*self._registered, *new))
        for topic in joining:
            self._queue.await_cut(topic)
        self._attaching = dict.fromkeys(joining)
        self._pursue_change(now_ns)

    def _pursue_change(self, now_ns: int) -> None:
        """Do, or do again, the step that the change under way has come to."""
        change = self._change
        assert change is not None
        self._change_due_ns = now_ns + self.config.retry_ns
        if self._attaching:
            self._effects.extend(Attach(topic, 0) for topic in self._attaching)
            return
        first, _ = self.placement.span((*change.old, *change.new))
        request = ChangeRequest(number=change.number, old=change.old, new=change.new)
        self._effects.append(Send(self.placement.nodes[first], request))

    def _visit(self, topics: Sequence[str]) -> None:
        """Note which nodes a change of these topics comes by."""
        if topics:
            first, last = self.placement.span(topics)
            self._visited.update(dict.fromkeys(self.placement.nodes[first : last + 1]))

    def _attached(self, frame: Attached, now_ns: int) -> None:
        topic = frame.topic
        if topic in self._attaching:
            del self._attaching[topic]
            if not self._attaching and self._change is not None:
                self._pursue_change(now_ns)
        elif self.config.reliable and topic in self._queue.clock and not self._paused:
            self._told_how_far(frame, now_ns)

    def _fell_behind(self, topic: str, now_ns: int) -> None:
        """Join anew what fell behind what the ENS keeps, with all that has to be read with it."""
        together = self._kept_together(self._wanted)
        if together and (self._change is not None or self._history.topics):
            return  # One at a time; it is found again when that is done.
        for each in list(self._queue.clock) if together else [topic]:
            self._fall(each)
            self._drop(each, rejoins=True)
        self._begin_change(now_ns)
        self._persist_state()
        self._deliver_ready(now_ns)

    def _begin_anew(self, topics: Sequence[str], now_ns: int, *, related: bool) -> None:
        """Join topics anew whose log is another one: from where they were, or if that has no meaning from the beginning."""
        for topic in topics:
            self._places.pop(topic, None)
            if related and topic not in self._queue.clock:
                continue  # Its past is still read, or it is about to be joined.
            if related:
                self._fall(topic)
            else:
                self._fallen[topic] = 1
                self._reached.pop(topic, None)
            self._drop(topic)
        self._begin_change(now_ns)
        self._persist_state()
        self._deliver_ready(now_ns)

    def _answered(self, frame: Changed | Refused, source: str, now_ns: int) -> None:
        change = self._change
        if change is None or change.number != frame.number:
            return  # The answer to an earlier change, again.
        if isinstance(frame, Changed):
            self._changed(change, frame.cut, now_ns)
        elif frame.seen:
            # An earlier life of the name got further, and maybe further still at other nodes.
            self._number = frame.seen + LEAP
            self._change = msgspec.structs.replace(change, number=self._number)
            self._persist_state()
            self._pursue_change(now_ns)
        else:
            self._refused(change, frame.reason, source, now_ns)

    def _changed(self, change: ChangeUnderWay, cut: Mapping[str, int], now_ns: int) -> None:
        self._change = None
        self._registered = change.new
        past: dict[str, int] = {}
        for topic in change.joining:
            if topic not in self._queue.joining:
                continue  # Left again before the cut came.
            self._begun = True
            if topic in self._fallen and self._kept_together(change.new):
                self._read_on(topic, cut.get(topic, 0))
            elif self._start is None or topic in self._fallen or not cut.get(topic):
                self._join(topic, cut.get(topic, 0))
            else:
                past[topic] = cut[topic]
        if past and self._start is not None:
            self._begin_history(past, self._start)
        if self._begun:
            # The past of what is added later would come behind events that it was before.
            self._start = None
        self._go_on_with_history(now_ns)
        # What was published between the cut and now may have been sent before this came.
        self._poll_due_ns = min(self._poll_due_ns, now_ns + self.config.gap_ns)
        self._begin_change(now_ns)
        self._persist_state()
        self._deliver_ready(now_ns)
        self._say_goodbye_if_done()

    def _say_goodbye_if_done(self) -> None:
        """Tell every node that knows this subscriber that it wants nothing any more.

        The record still names them: after a crash, which may come before this is out, they are told again.
        """
        if self._change is not None or self._wanted:
            return
        goodbye = Forget(number=self._number, publisher=False)
        told = (node for node in self._visited if node in self.placement.nodes)
        self._effects.extend(Send(node, goodbye) for node in told)
        self._visited = {}

    def _join(self, topic: str, cut: int) -> None:
        self._start_at(topic, cut)
        handled = self._fallen.pop(topic, cut + 1)
        first_missed = self._reached.pop(topic, handled)
        self._effects.append(Join(topic, (first_missed, cut) if first_missed <= cut else None))

    def _refused(self, change: ChangeUnderWay, reason: str, source: str, now_ns: int) -> None:
        """Give a change up: what was to be joined is not wanted any more.

        A repetition of the request may still be let in later. By its number every node that has
        seen a newer change knows it for old; others keep a registration that nobody uses.
        """
        if frozenset(change.new) <= frozenset(change.old):
            return  # Only something left: the chain has to hear of it, so it is repeated.
        for topic in change.joining:
            self._wanted.pop(topic, None)
            self._fallen.pop(topic, None)
            self._reached.pop(topic, None)
            self._drop(topic)
        self._change = None
        if change.joining:
            self._effects.append(Refuse(change.joining, f"{source}: {reason}"))
        self._begin_change(now_ns)
        self._persist_state()
        self._deliver_ready(now_ns)

    def _drop(self, topic: str, *, rejoins: bool = False) -> None:
        """Forget a topic and tell the application and the ENS, if it was in effect."""
        joined = topic in self.topics
        self._queue.leave(topic)
        self._questions.drop(topic)
        self._leave_history(topic)
        change = self._change
        if change is not None and topic in change.joining:
            # Wanted again, it needs another cut: what came before this one was not waited for.
            joining = tuple(each for each in change.joining if each != topic)
            self._change = msgspec.structs.replace(change, joining=joining)
        self._effects.append(Detach(topic))
        if self._attaching.pop(topic, 0) is None and not self._attaching:
            self._change_due_ns = 0  # The change no longer waits for the ENS.
        if joined:
            if self.config.durable:
                self._effects.append(Persist(f"clock/{topic}", None))
            self._effects.append(Leave(topic, rejoins))

    def _start_fixed(self, topics: Iterable[str], now_ns: int) -> None:
        self._wanted = dict.fromkeys(topics)
        self._registered = tuple(self._wanted)
        for topic in self._wanted:
            self._join(topic, 0)
            self._ask_for(topic, now_ns)
        self._persist_state()

    # -- Records --------------------------------------------------------------------------------

    def _persist_state(self) -> None:
        if self.config.durable:
            state = SubscriptionRecord(
                tuple(self._wanted),
                self._registered,
                self._number,
                self._change,
                self._fallen,
                tuple(self._visited),
                self._begun,
            )
            self._effects.append(Persist("state", SUBSCRIPTION.encode(state)))

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        state = SUBSCRIPTION.decode(records["state"])
        self._wanted = dict.fromkeys(state.wanted)
        self._registered = state.registered
        self._number = state.number
        self._change = state.change
        self._fallen = state.fallen
        self._visited = dict.fromkeys(state.visited)
        self._visit(self._registered)  # Older records don't name the nodes.
        earlier = bool(state.registered) or state.number > 1
        self._begun = earlier if state.begun is None else state.begun
        if self._begun:
            self._start = None
        if "delivered" in records:
            self._delivered = INT.decode(records["delivered"])
        for key in sorted(records):
            kind, _, topic = key.partition("/")
            if kind == "history":
                self._resume_history(topic, *HISTORY.decode(records[key]))
            elif kind == "log":
                self._logs[topic] = LOG.decode(records[key])
            elif kind == "clock" and f"history/{topic}" not in records:
                clock = CLOCK.decode(records[key])
                self._queue.resume(topic, clock.slot, clock.base)
                self._places[topic] = clock.place
                self._ask_for(topic, now_ns)
        self._go_on_with_history(now_ns)
        if self._change is not None:
            joining = [topic for topic in self._change.joining if topic in self._wanted]
            for topic in joining:
                self._queue.await_cut(topic)
            self._attaching = dict.fromkeys(joining)
            self._visit((*self._change.old, *self._change.new))
            self._pursue_change(now_ns)
        else:
            self._begin_change(now_ns)
            self._persist_state()
            self._say_goodbye_if_done()
