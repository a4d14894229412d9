"""One node of a cube: it publishes, subscribes, delivers in causal order, and forwards for others.

Guarantees. Of two events of which one comes before the other, no node delivers the later one first;
within a topic, or across all topics with `across_topics`. Every member of a topic delivers every event that
was published after it joined, once: as soon as the tree brings it, or later, if it was away. Nothing is
delivered that is not in the topics asked for.

Theory of operation. `Causality` says what may be delivered; it needs nothing but numbers and barriers,
so no loss, delay, repetition, crash or wrong suspicion can make it wrong. `Trees` brings messages to all
who can be reached; `Repair` brings them to all others; `Rolls` says who the members are, and
`Neighbours` keeps that equal everywhere; `Outbox` paces what this node publishes.

A join. The node raises the version of its row and sends it to everybody as a `Change`. Whoever gets it knows
from then on that the node is a member, sends it whatever it publishes later, and answers with what it
has delivered and published so far. When everybody who can be reached has answered, the greatest of that is
where the node starts (`causality`). Somebody who could not be reached learns of the member when it is
back; until then what it publishes comes by `Repair`. To leave is to send a `Change` without the topic.
A join and a leave count from when they are said, in that order: `Change` messages may overtake each other,
versions can't (errata 2 and 3 can't happen: there are no queues and tasks per subscription).

Assumptions. A node keeps its records over a crash, or comes back under another name. Events are kept
(`retained_max`) until those who are away for a while are back.

HAZARD: a node that lost its records and keeps its name publishes numbers that others have delivered, and
they drop its events as known. HAZARD: a member that is away for longer than events are kept misses some, as it does if all who
had an event are gone: it is told (`Join.missed`), and order holds (`forsaking`). HAZARD: a node that joins while it can reach
nobody starts from what it knows itself, and may be given events from before its time.

Departures from the paper: the corrections of the errata; any number of nodes; crashes, losses and partitions;
publishers that don't subscribe; order across topics; windows and batches.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.errors import LimitReached
from ensue.event import Event
from ensue.protocols.core import Effect, Frame, Join, Leave, Publish, Refuse
from ensue.protocols.hypercube.causality import IN, OUT
from ensue.protocols.hypercube.config import no_room
from ensue.protocols.hypercube.frames import (
    Beat,
    Change,
    Counts,
    Fill,
    Gone,
    Publication,
    Receipt,
    Row,
    Rows,
    Summary,
    Versions,
)
from ensue.protocols.hypercube.member import Member

__all__ = ["HypercubeNode"]


class HypercubeNode(Member):
    """One node. Commands: `publish`, `subscribe`, `unsubscribe`, `admit`, `dismiss`.

    `names` are all nodes, in the order of their numbers; `name` is this one. `records` is what an earlier
    run persisted. `rows` is what is known of others from the start, for a node that comes later. Experiments
    with thousands of nodes whose membership is fixed let them share one `Cube`, as `names`, and one `rolls`.
    """

    # -- What others may look at ----------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(topic for topic in self._wanted if self._state(topic) == IN)

    @property
    def unsettled_count(self) -> int:
        """How many events of this node are under way."""
        return len(self._waiting) + sum(len(one.unsettled) for one in self._outboxes.values())

    @property
    def held_count(self) -> int:
        """How many events wait for others that come before them."""
        return sum(len(state.held) for state in self._causality.topics.values())

    @property
    def joining(self) -> tuple[str, ...]:
        """Topics that are not joined yet."""
        return tuple(self._joins)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Who is subscribed to what, as far as this node knows."""
        return tuple(self._rolls.rows.values())

    def progress(self) -> dict[str, Counts]:
        """Return, for each topic this node is in, how many events of each source it is done with."""
        return {
            name: dict(state.delivered)
            for name, state in self._causality.topics.items()
            if state.state == IN
        }

    def seen(self) -> dict[str, Counts]:
        """Return the same for every topic it ever had to do with, its own events included."""
        return {name: dict(state.delivered) for name, state in self._causality.topics.items()}

    # -- Commands -------------------------------------------------------------------------------

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
        if self.unsettled_count >= self.config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {self.config.outgoing_max} events under way (outgoing_max): "
                "wait for some to settle",
                limit="outgoing_max",
                value=self.config.outgoing_max,
            )
        event = self._events.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self._effects.append(Publish(event))
        number = self._waiting_next
        self._waiting_next += 1
        self._waiting[number] = event
        self._memory.waiting(number, event)
        self._place_waiting(now_ns)
        self._finish(now_ns)
        return event

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`."""
        asked = [topic for topic in dict.fromkeys(topics) if topic not in self._wanted]
        new = [topic for topic in asked if self._state(topic) == OUT]
        room = self._room_for(new)
        if refused := tuple(new[room:]):
            self._effects.append(Refuse(refused, no_room(self.config)))
        for topic in asked:
            if topic not in refused:
                self._wanted[topic] = None
                self._memory.touch(topic)
                if self._state(topic) == IN:
                    self._effects.append(Join(topic))
        self._join(new[:room], now_ns)
        self._finish(now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        left = [topic for topic in topics if topic in self._wanted]
        for topic in left:
            del self._wanted[topic]
            if self._state(topic) == IN:
                self._effects.append(Leave(topic))
            self._forsaking.forget(topic)
            self._joins.pop(topic, None)
            self._patient_until_ns.pop(topic, None)
            self._causality.leave(topic)
            self._repair.leave(topic, now_ns=now_ns)
            self._memory.touch(topic)
        if left:
            self._announce((), now_ns)
        self._place_waiting(now_ns)
        self._finish(now_ns)

    def pause(self) -> None:
        """Deliver nothing until `resume`: what comes is held (`held_max`), and the rest asked for again."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Deliver what is due, and go on."""
        self._paused = False
        self._finish(now_ns)

    def say_goodbye(self, *, now_ns: int = 0) -> None:
        """Leave all topics, also those it is in to publish there: nobody has to send anything to this node any more."""
        there = [each for each, state in self._causality.topics.items() if state.state != OUT]
        self._wanted.update(dict.fromkeys(there))
        self.unsubscribe(there, now_ns=now_ns)

    def admit(self, name: str, *, now_ns: int) -> None:
        """Give the next number to a node that is new to the cube."""
        self._cube.add(name)
        self._neighbours.due_ns = min(self._neighbours.due_ns, now_ns)

    def dismiss(self, name: str, *, now_ns: int) -> None:
        """Expect nothing more of a node: it is gone for good."""
        self._cube.remove(name)
        row = self._rolls.rows.get(self._cube.numbers[name])
        if row is not None and row.topics:
            self._take_row(Row(row.node, row.version + 1, ()), now_ns)
        self._finish(now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of another node; one of a stranger changes nothing."""
        peer = self._cube.numbers.get(source)
        if peer is None or peer == self.number:
            return
        if self._suspects.heard(peer):
            self._neighbours.greet(peer, now_ns=now_ns)
            self._repair.back(peer, now_ns=now_ns)
            self._trees.back(peer, now_ns=now_ns)
        handler = _HANDLERS.get(type(frame))
        if handler is not None:
            getattr(self, handler)(frame, peer, now_ns)
        self._finish(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due."""
        self._neighbours.handle_timer(now_ns=now_ns)
        self._trees.handle_timer(now_ns=now_ns)
        self._repair.handle_timer(now_ns=now_ns)
        if self._join_due_ns is not None and self._join_due_ns <= now_ns:
            self._join_due_ns = None
            self._ask_again(now_ns)
        self._finish(now_ns)

    def _ask_again(self, now_ns: int) -> None:
        """Ask for starts that could not be had so far, and ask those who are in doubt."""
        idle = [topic for topic, version in self._joins.items() if version is None]
        if idle:
            self._ask_for_start(tuple(idle), now_ns)
        for topic, state in self._causality.topics.items():
            doubt = state.doubt & self._cube.everyone if state.state == IN else 0
            if not doubt:
                continue
            self._join_due_ns = now_ns + self.config.retry_ns_max
            if back := doubt & ~self._suspects.suspected:
                self._send_row((topic,), back, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        others = (
            self._trees.next_timer_ns(),
            self._repair.next_timer_ns(),
            self._forsaking.next_timer_ns(),
            self._join_due_ns,
        )
        dues = [due_ns for due_ns in others if due_ns is not None]
        return min([self._neighbours.due_ns, *dues])

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return [*self._memory.take(self._topic_record, self._position), *effects]

    # -- Frames ---------------------------------------------------------------------------------

    def _publication(self, frame: Publication, peer: int, now_ns: int) -> None:
        """Take events in, and pass them on to those whom the parent handed over."""
        if not self._trees.known(frame, peer):
            self._take_items(frame.items, now_ns)
            self._trees.pass_on(frame, peer, rows=(), vectors={}, doubts={}, now_ns=now_ns)

    def _change(self, frame: Change, peer: int, now_ns: int) -> None:
        """Learn of a member, and tell it where to start: behind all that is known here.

        From this moment on it is sent whatever this node publishes. (The paper leaves a node out of
        the answer that it has received something from the joiner before: erratum 6.)
        """
        if self._trees.known(frame, peer):
            return
        self._take_row(frame.row, now_ns)
        vectors: dict[str, Counts] = {}
        doubts: dict[str, int] = {}
        member = False
        for topic in frame.joins:
            state = self._causality.topics.get(topic)
            if state is not None:
                vectors[topic] = state.delivered
                doubts[topic] = state.doubt
                member = member or state.state != OUT
        rows = (self._rolls.rows[self.number],) if member else ()
        self._trees.pass_on(frame, peer, rows=rows, vectors=vectors, doubts=doubts, now_ns=now_ns)

    def _receipt(self, frame: Receipt, peer: int, now_ns: int) -> None:
        self._trees.receipt(frame, peer, now_ns=now_ns)

    def _summary(self, frame: Summary, peer: int, now_ns: int) -> None:
        self._repair.summary(frame, peer, now_ns=now_ns)

    def _fill(self, frame: Fill, peer: int, now_ns: int) -> None:
        """Take events in that were missing here, and ask for more if there are more.

        Only if they were of use: answers that come twice must not be asked for twice as much.
        """
        taken = self._take_items(frame.items, now_ns)
        if taken and frame.more and self._state(frame.topic) == IN:
            self._deliver(now_ns)
            self._repair.ask(frame.topic, peer)

    def _gone(self, frame: Gone, peer: int, now_ns: int) -> None:
        self._repair.gone(frame, peer, now_ns=now_ns)

    def _beat(self, frame: Beat, peer: int, now_ns: int) -> None:
        del now_ns
        self._neighbours.beat(frame, peer)

    def _versions(self, frame: Versions, peer: int, now_ns: int) -> None:
        del now_ns
        self._neighbours.versions(frame, peer)

    def _rows(self, frame: Rows, peer: int, now_ns: int) -> None:
        del peer
        for row in frame.rows:
            self._take_row(row, now_ns)


_HANDLERS: dict[type[Frame], str] = {
    Publication: "_publication",
    Change: "_change",
    Receipt: "_receipt",
    Summary: "_summary",
    Fill: "_fill",
    Gone: "_gone",
    Beat: "_beat",
    Versions: "_versions",
    Rows: "_rows",
}
"""Who handles what. `Here` says no more than that it came; a stray frame changes nothing."""
