"""A sequencer node: one stage of the chain, hosting many topics.

What it guarantees
- Two events whose topics share a subscription have stamps that say which comes first, and every
  node that both requests visit agrees.
- A repeated request gets the same stamp. A slot whose publisher vanished is voided.
- Where nodes keep their topics' logs (`carries`), an event that needs no other node is stamped and
  put out in one step; repeated, it is known to be out.
- After a crash it comes back with every counter, subscription and open stamp it told anybody of.

How
- A request for topic `T` starts at `T`'s node, which counts it, and travels up the chain, node by
  node without skipping any, to the last node that hosts a topic of `T`'s group. Each node adds the
  counts of its own topics of the group; counts of topics on lower stages were learned from their
  requests, all of which pass through here. A group that lives on one node never leaves it.
- A change of subscription travels the same way, from the lowest stage of the old and the new topics
  to the highest, updates every node's groups as it passes, and reads the counters without counting.
- On a chain of contiguous paths over FIFO links, an order agreed at one stage is kept at all later
  ones; any three requests that meet pairwise meet at one stage; so no circle of waits can close.

Assumptions: links between neighbouring nodes are FIFO and exactly-once, also across restarts
(`ensue.protocols.link`); what was persisted survives. Client names are unique: a client that lost
its state takes a new name.

HAZARD: with `carries`, a copy of a request that comes after its publisher has been forgotten, and
`DEPARTED_MAX` others after it, puts its event out twice; and one that was refused to it, once.

HAZARD: a node that restarts from older records than it answered from gives one slot to two events;
the ENS lets the first win and the second publisher sees its event voided.

Departures from the paper: it skips stages, counts subscriptions as events and announces them by dummy
events, and keeps no request ids; each of these hangs (see `docs/protocols/sequencer.md`).
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ensue.event import Event, Stamp
from ensue.protocols.core import Broadcast, Effect, Frame, Persist, Send
from ensue.protocols.ens import Accepted, Taken
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import (
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Confirm,
    Fill,
    Forget,
    Grant,
    OrderRequest,
    Out,
    Repeat,
    StampRequest,
    Voided,
    stamped,
)
from ensue.protocols.sequencer.leases import OUT, VOID, Lease
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.publishers import Publisher, record_order
from ensue.protocols.sequencer.records import INT
from ensue.protocols.sequencer.remembering import RememberingStage
from ensue.protocols.sequencer.seals import stamp_proof

__all__ = ["SequencerNode"]

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Of events that go out in one batch, their stamps included, and of stamps; one event more may."""
ENCODED_MAX = 4
"""Bytes of a character."""


class SequencerNode(RememberingStage):
    """One stage. It has no commands of its own: it answers frames.

    `put_out` takes the events of an `OrderRequest` that this node can order alone, and returns their
    bytes; without it the publisher gets a stamp. `slot_of` finds the slot of one that went out before a restart. `records` is what an earlier incarnation persisted.
    With a `seal_key`, stamps that publishers take elsewhere are sealed.
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig | None = None,
        put_out: Callable[[Event, Stamp], int] | None = None,
        slot_of: Callable[[Event], int] | None = None,
        records: Mapping[str, bytes] | None = None,
        seal_key: bytes = b"",
        now_ns: int = 0,
    ) -> None:
        super().__init__(name=name, placement=placement, config=config or SequencerConfig())
        self.voids = 0
        """Stamps that were voided since the start."""
        self._granted: dict[tuple[str, str], list[Grant]] = {}
        """Stamps completed while handling the current frame, by publisher and origin."""
        self._counted: dict[str, int] = {}
        """Topics that were counted while handling the current frame, and how far."""
        self._seal_key = seal_key
        self._put_out = put_out
        self._slot_of = slot_of
        self._batch_bytes = 0
        """Of what was stamped since the effects were last drained."""
        self._handlers: dict[type[Frame], Callable[..., None]] = {
            StampRequest: self._on_stamp_request,
            OrderRequest: self._on_order_request,
            Fill: self._on_fill,
            Confirm: self._on_confirm,
            Repeat: self._on_repeat,
            Forget: self._on_forget,
            ChangeRequest: self._on_change_request,
            ChangeFill: self._on_change,
            ChangeRepeat: self._on_change_repeat,
            Accepted: self._on_void_answer,
            Taken: self._on_void_answer,
        }
        for key in sorted(records or {}, key=record_order):
            self._restore(key, (records or {})[key], now_ns)

    @property
    def open_count(self) -> int:
        """How many stamps are out whose events are not known to be out or void."""
        return self._leases.open_count()

    @property
    def early_count(self) -> int:
        """How many requests wait for an earlier one of their publisher."""
        return self._early.count

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame from a client, a neighbour or the ENS."""
        handler = self._handlers.get(type(frame))
        if handler is None:
            return  # Not for a sequencer node: a stray frame changes nothing.
        handler(frame, source, now_ns)
        self._finish()

    def handle_timer(self, *, now_ns: int) -> None:
        """Void the leases that ran out; ask again for voids that got no answer."""
        for lease in self._leases.take_due(now_ns, again_ns=self.config.retry_ns):
            self._persist_lease(lease)
            self._effects.append(Broadcast(lease.void_event(self.name)))

    def next_timer_ns(self) -> int | None:
        """Return when the next lease runs out."""
        return self._leases.next_due_ns()

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        self._batch_bytes = 0
        return super().take_effects()

    # -- Stamps ---------------------------------------------------------------------------------

    def _on_stamp_request(self, frame: StampRequest, publisher: str, now_ns: int) -> None:
        self._take_requests(frame, frame.topics, publisher, now_ns)

    def _on_order_request(self, frame: OrderRequest, publisher: str, now_ns: int) -> None:
        for event in frame.events:
            if event.publisher != publisher or event.stamp is not None or event.void:
                self._refuse(
                    publisher, frame.number, "an event that is not the sender's to publish"
                )
                return
        self._take_requests(frame, frame.events, publisher, now_ns)

    def _take_requests(
        self,
        frame: StampRequest | OrderRequest,
        items: Sequence[str | Event],
        publisher: str,
        now_ns: int,
    ) -> None:
        known = self._publishers.get(publisher)
        known = known or self._welcome(publisher, frame, len(items), now_ns)
        if known is None:
            return
        known.seen_ns = now_ns
        self._forget_settled(publisher, known, frame.settled)
        full = frame.settled + self.config.window
        done = self._take_run(publisher, known, frame, full)
        for number, item in enumerate(items[done:], frame.number + done):
            if number < known.next:
                self._repeated(publisher, known, number, item)
            elif number >= full:
                break  # Too many are open: it will be repeated.
            elif number > known.next:
                self._early.keep(known, number, item)
            elif not self._try_stamp(publisher, known, number, item, now_ns):
                break
        while known.early and (early := self._early.take_next(known)) is not None:
            if not self._try_stamp(publisher, known, known.next, early, now_ns):
                break
        if self.config.durable:
            self._persist(f"publisher/{publisher}", INT.encode(known.next))

    def _take_run(
        self, publisher: str, known: Publisher, frame: StampRequest | OrderRequest, full: int
    ) -> int:
        """Put out what is next and needs no other node; return how many events."""
        if self._put_out is None or isinstance(frame, StampRequest) or frame.number != known.next:
            return 0
        room, most = BATCH_BYTES_MAX - self._batch_bytes, max(0, full - known.next)
        slots, size = self._stamp_run(frame.events[:most], self._put_out, self._counted, room)
        self._batch_bytes += size
        if slots:
            run = list(enumerate(slots, known.next))
            known.next += len(run)
            known.out.update(run)
            self._out.setdefault(publisher, []).extend(run)
        return len(slots)

    def _try_stamp(
        self, publisher: str, known: Publisher, number: int, item: str | Event, now_ns: int
    ) -> bool:
        """Stamp the next request of a publisher, or refuse it."""
        if self._batch_bytes >= BATCH_BYTES_MAX:
            return False  # Stamps may be far longer than requests. It will be repeated.
        topic = item if isinstance(item, str) else item.topic
        group = self._group_cache.get(topic)
        if group is None or not group.hosted:
            if not self._may_host((topic,), publisher, number):
                return False
            if self.placement.stage(topic) != self.stage:
                self._refuse(publisher, number, f"{topic!r} is not hosted by {self.name}")
                return False
        self._stamp(publisher, known, number, item, now_ns)
        return True

    def _stamp(
        self, publisher: str, known: Publisher, number: int, item: str | Event, now_ns: int
    ) -> None:
        topic = item if isinstance(item, str) else item.topic
        known.next = number + 1
        group = self._group_cache.get(topic) or self._group(topic)
        slot = group.own[0] + 1
        self._counters.set(topic, group.own, slot)
        entries = {topic: slot}
        whole = group.tick is None or not self.config.leave_out
        group.fill(entries, self._counters, whole=whole)
        self._counted[topic] = slot
        stamp = Stamp(entries, whole)
        if group.last == self.stage:
            if isinstance(item, str) or self._put_out is None:
                self._batch_bytes += ENCODED_MAX * sum(map(len, entries))
                self._complete(publisher, self.name, number, topic, stamp, now_ns)
                return
            self._batch_bytes += self._put_out(item, stamp)
            known.out[number] = slot
            out = self._out.get(publisher)
            if out is None:
                out = self._out[publisher] = []
            out.append((number, slot))
            return
        self._batch_bytes += ENCODED_MAX * sum(map(len, entries))
        known.elsewhere[number] = group.last
        if self.config.durable:
            self._persist(f"elsewhere/{number}/{publisher}", INT.encode(group.last))
        self._pass_on(
            Fill(
                publisher=publisher,
                origin=self.name,
                number=number,
                topic=topic,
                stamp=stamp,
                last=group.last,
            )
        )

    def _on_fill(self, frame: Fill, source: str, now_ns: int) -> None:
        topic, slot = frame.topic, frame.stamp.entries.get(frame.topic)
        valid = self.placement.knows(topic) and self.stage <= frame.last < len(self.placement.nodes)
        if slot is None or not valid or not self._from_below(source):
            return  # Nothing that a neighbour would send.
        self._learn(topic, slot)
        group = self._group_cache.get(topic) or self._group(topic)
        stamp = Stamp(dict(frame.stamp.entries), frame.stamp.whole)
        group.fill(stamp.entries, self._counters, whole=stamp.whole)
        if frame.last == self.stage:
            self._complete(frame.publisher, frame.origin, frame.number, topic, stamp, now_ns)
        else:
            self._pass_on(msgspec.structs.replace(frame, stamp=stamp))

    def _complete(
        self, publisher: str, origin: str, number: int, topic: str, stamp: Stamp, now_ns: int
    ) -> None:
        config = self.config
        lease = Lease(publisher, origin, number, topic, stamp, now_ns + config.lease_ns)
        if publisher in self._lost:
            lease.due_ns = now_ns + min(config.lease_ns, config.lease_lost_ns)
        fresh = self._leases.add(lease, now_ns=now_ns)
        if self.config.durable:
            self._persist_lease(lease)
        if fresh:
            self._grant(lease)
        else:
            self._answer_again(publisher, origin, number)

    def _grant(self, lease: Lease) -> None:
        """Hand a stamp to its publisher, when the frame is handled."""
        proof = stamp_proof(self._seal_key, lease.publisher, lease.topic, lease.stamp)
        granted = self._granted.setdefault((lease.publisher, lease.origin), [])
        granted.append(Grant(lease.number, lease.stamp, proof))

    def _finish(self) -> None:
        """Persist and answer what the frame caused, all at once."""
        if self._counted:
            if self.config.durable:
                for topic, count in self._counted.items():
                    self._effects.append(Persist(f"counter/{topic}", INT.encode(count)))
            self._counted = {}
        if self._out:
            for publisher, slots in self._out.items():
                self._effects.append(Send(publisher, Out(origin=self.name, slots=tuple(slots))))
            self._out = {}
        if self._granted:
            for (publisher, origin), grants in self._granted.items():
                self._effects += [Send(publisher, each) for each in stamped(origin, grants)]
            self._granted = {}

    def _on_repeat(self, frame: Repeat, origin: str, _now_ns: int) -> None:
        self._answer_again(frame.publisher, origin, frame.number)

    def _repeated(self, publisher: str, known: Publisher, number: int, item: str | Event) -> None:
        last = known.elsewhere.get(number)
        if last is not None:
            frame = Repeat(publisher=publisher, number=number)
            self._effects.append(Send(self.placement.nodes[last], frame))
        elif self.config.carries and self._leases.find(publisher, self.name, number) is None:
            # Stamped here, and no lease: it went out in the same step.
            slot = known.out.get(number) or self._find_slot(item)
            self._out.setdefault(publisher, []).append((number, slot))
        else:
            self._answer_again(publisher, self.name, number)

    def _answer_again(self, publisher: str, origin: str, number: int) -> None:
        lease = self._leases.find(publisher, origin, number)
        if lease is None:
            return  # Still on its way up the chain, or settled: nobody waits for the answer.
        if lease.state == VOID:
            self._effects.append(Send(publisher, Voided(origin=origin, numbers=(number,))))
        else:
            self._grant(lease)

    def _on_void_answer(self, frame: Accepted | Taken, _ens: str, _now_ns: int) -> None:
        state = VOID if isinstance(frame, Accepted) else OUT
        resolved = self._leases.resolve(frame.topic, frame.slot, state=state)
        if resolved is None:
            return
        lease, needed = resolved
        self.voids += state == VOID
        if not needed:
            self._persist(lease.key, None)
            return
        self._persist_lease(lease)
        if state == VOID:
            told = Voided(origin=lease.origin, numbers=(lease.number,))
            self._effects.append(Send(lease.publisher, told))
