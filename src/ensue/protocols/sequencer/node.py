"""A sequencer node: one stage of the chain, hosting many topics.

What it guarantees
- Two events whose topics share a subscription have stamps that say which comes first, and every
  node that both requests visit agrees.
- A repeated request gets the same stamp. A slot whose publisher vanished is voided.
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

HAZARD: a node that restarts from older records than it answered from gives one slot to two events;
the ENS lets the first win and the second publisher sees its event voided.

Departures from the paper: it skips stages, counts subscriptions as events and announces them by dummy
events, and keeps no request ids; each of these hangs (see `docs/protocols/sequencer.md`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec

from ensue.event import Stamp
from ensue.protocols.core import Broadcast, Effect, Frame, Persist, Send
from ensue.protocols.ens import Accepted, Taken
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import (
    Changed,
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Confirm,
    Fill,
    Grant,
    Refused,
    Repeat,
    Stamped,
    StampRequest,
    Voided,
)
from ensue.protocols.sequencer.groups import Counter, Group, Groups
from ensue.protocols.sequencer.leases import OUT, VOID, Lease, Leases
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.records import (
    CHANGED,
    INT,
    LEASE,
    REGISTRATION,
    ChangedRecord,
    RegistrationRecord,
)

__all__ = ["SequencerNode"]


class _Publisher:
    """What an origin remembers of one publisher."""

    __slots__ = ("elsewhere", "next")

    def __init__(self, next_number: int) -> None:
        self.next = next_number
        """The number of the next new request."""
        self.elsewhere: dict[int, int] = {}
        """Requests that another stage completes, so that a repeated one can be answered."""


def _record_order(key: str) -> tuple[str, int, str]:
    """Sort records so that numbered ones of one client come back in rising order."""
    kind, _, rest = key.partition("/")
    number, _, client = rest.partition("/")
    numbered = kind in ("lease", "elsewhere")
    return (kind, int(number), client) if numbered else (kind, 0, rest)


class SequencerNode:
    """One stage. It has no commands of its own: it answers frames.

    `records` is what an earlier incarnation persisted.
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.placement = placement
        self.config = config or SequencerConfig()
        self.stage = placement.nodes.index(name)
        self._counters: dict[str, Counter] = {}
        """Hosted topics: how many events. Topics of lower stages: how many have passed here."""
        self._groups = Groups(self.config.groups)
        self._group_cache: dict[str, Group] = {}
        self._publishers: dict[str, _Publisher] = {}
        self._changes_seen: dict[str, int] = {}
        self._changes_done: dict[str, ChangedRecord] = {}
        self._leases = Leases()
        self._granted: dict[tuple[str, str], list[Grant]] = {}
        """Stamps completed while handling the current frame, by publisher and origin."""
        self._effects: list[Effect] = []
        for subscriber, topics in sorted((self.config.fixed or {}).items()):
            if self._hosts_any(topics):
                self._groups.replace(subscriber, topics)
        for key in sorted(records or {}, key=_record_order):
            self._restore(key, (records or {})[key], now_ns)

    @property
    def open_count(self) -> int:
        """How many stamps are out whose events are not known to be out or void."""
        return self._leases.open_count()

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame from a client, a neighbour or the ENS."""
        handler = self._HANDLERS.get(type(frame))
        if handler is None:
            return  # Not for a sequencer node: a stray frame changes nothing.
        handler(self, frame, source, now_ns)
        self._send_grants()

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
        effects, self._effects = self._effects, []
        return effects

    # -- Stamps ---------------------------------------------------------------------------------

    def _on_stamp_request(self, frame: StampRequest, publisher: str, now_ns: int) -> None:
        known = self._publishers.get(publisher)
        if known is None:
            if len(self._publishers) >= self.config.clients_max:
                self._refuse(publisher, frame.number, "clients_max")
                return
            known = self._publishers[publisher] = _Publisher(frame.settled)
        while known.elsewhere and (first := next(iter(known.elsewhere))) < frame.settled:
            del known.elsewhere[first]
            self._persist(f"elsewhere/{first}/{publisher}", None)
        number = frame.number
        for topic in frame.topics:
            if number < known.next:
                self._repeated(publisher, known, number)
            elif number > known.next or number >= frame.settled + self.config.window:
                break  # An earlier request was lost, or too many are open: it will be repeated.
            elif topic not in self._group_cache and not self._may_host(topic, publisher, number):
                break
            else:
                known.next = number + 1
                self._stamp(publisher, known, number, topic, now_ns)
            number += 1
        if self.config.durable:
            self._persist(f"publisher/{publisher}", INT.encode(known.next))

    def _stamp(
        self, publisher: str, known: _Publisher, number: int, topic: str, now_ns: int
    ) -> None:
        group = self._group_cache.get(topic) or self._group(topic)
        group.own[0] = slot = group.own[0] + 1
        entries = {topic: slot}
        whole = group.sent is None or not self.config.leave_out
        group.fill(entries, whole=whole)
        if self.config.durable:
            self._persist(f"counter/{topic}", INT.encode(slot))
        if group.last == self.stage:
            self._complete(publisher, self.name, number, topic, Stamp(entries, whole), now_ns)
            return
        known.elsewhere[number] = group.last
        if self.config.durable:
            self._persist(f"elsewhere/{number}/{publisher}", INT.encode(group.last))
        self._pass_on(
            Fill(
                publisher=publisher,
                origin=self.name,
                number=number,
                topic=topic,
                stamp=Stamp(entries, whole),
                last=group.last,
            )
        )

    def _on_fill(self, frame: Fill, _neighbour: str, now_ns: int) -> None:
        topic = frame.topic
        self._learn(topic, frame.stamp.entries[topic])
        group = self._group_cache.get(topic) or self._group(topic)
        stamp = Stamp(dict(frame.stamp.entries), frame.stamp.whole)
        group.fill(stamp.entries, whole=stamp.whole)
        if frame.last == self.stage:
            self._complete(frame.publisher, frame.origin, frame.number, topic, stamp, now_ns)
        else:
            self._pass_on(msgspec.structs.replace(frame, stamp=stamp))

    def _complete(
        self, publisher: str, origin: str, number: int, topic: str, stamp: Stamp, now_ns: int
    ) -> None:
        due_ns = now_ns + self.config.lease_ns
        lease = Lease(publisher, origin, number, topic, stamp, due_ns)
        self._leases.add(lease)
        if self.config.durable:
            self._persist_lease(lease)
        self._granted.setdefault((publisher, origin), []).append(Grant(number, stamp))

    def _send_grants(self) -> None:
        if self._granted:
            for (publisher, origin), grants in self._granted.items():
                self._effects.append(Send(publisher, Stamped(origin=origin, grants=tuple(grants))))
            self._granted = {}

    def _on_confirm(self, frame: Confirm, publisher: str, _now_ns: int) -> None:
        done = self._leases.confirm(publisher, frame.origin, frame.numbers, frame.settled)
        for lease in done:
            self._persist(lease.key, None)

    def _on_repeat(self, frame: Repeat, origin: str, _now_ns: int) -> None:
        self._answer_again(frame.publisher, origin, frame.number)

    def _repeated(self, publisher: str, known: _Publisher, number: int) -> None:
        last = known.elsewhere.get(number)
        if last is None:
            self._answer_again(publisher, self.name, number)
        else:
            frame = Repeat(publisher=publisher, number=number)
            self._effects.append(Send(self.placement.nodes[last], frame))

    def _answer_again(self, publisher: str, origin: str, number: int) -> None:
        lease = self._leases.find(publisher, origin, number)
        if lease is None:
            return  # Still on its way up the chain, or settled: nobody waits for the answer.
        if lease.state == VOID:
            self._effects.append(Send(publisher, Voided(origin=origin, numbers=(number,))))
        else:
            self._granted.setdefault((publisher, origin), []).append(Grant(number, lease.stamp))

    def _on_void_answer(self, frame: Accepted | Taken, _ens: str, _now_ns: int) -> None:
        state = VOID if isinstance(frame, Accepted) else OUT
        lease = self._leases.resolve(frame.topic, frame.slot, state=state)
        if lease is None:
            return
        self._persist_lease(lease)
        if state == VOID:
            told = Voided(origin=lease.origin, numbers=(lease.number,))
            self._effects.append(Send(lease.publisher, told))

    # -- Changes of subscription ----------------------------------------------------------------

    def _on_change_request(self, frame: ChangeRequest, subscriber: str, _now_ns: int) -> None:
        topics = dict.fromkeys((*frame.old, *frame.new))
        if self.config.fixed is not None:
            self._refuse(subscriber, frame.number, "subscriptions are fixed")
            return
        if not topics:
            return
        first, last = self.placement.span(topics)
        if first != self.stage:
            self._refuse(subscriber, frame.number, f"not for {self.name}")
        elif frame.number <= self._changes_seen.get(subscriber, 0):
            if last == self.stage:
                self._answer_change_again(subscriber, frame.number)
            else:
                repeat = ChangeRepeat(subscriber=subscriber, number=frame.number)
                self._effects.append(Send(self.placement.nodes[last], repeat))
        elif (
            subscriber not in self._changes_seen
            and len(self._changes_seen) >= self.config.clients_max
        ):
            self._refuse(subscriber, frame.number, "clients_max")
        else:
            self._change(
                ChangeFill(
                    subscriber=subscriber,
                    number=frame.number,
                    old=frame.old,
                    new=frame.new,
                    entries={},
                    last=last,
                )
            )

    def _on_change(self, frame: ChangeFill, _neighbour: str, _now_ns: int) -> None:
        self._change(frame)

    def _on_change_repeat(self, frame: ChangeRepeat, _first: str, _now_ns: int) -> None:
        self._answer_change_again(frame.subscriber, frame.number)

    def _change(self, frame: ChangeFill) -> None:
        subscriber, number = frame.subscriber, frame.number
        entries = dict(frame.entries)
        topics = tuple(dict.fromkeys((*frame.old, *frame.new)))
        for topic, count in frame.entries.items():
            self._learn(topic, count)
        hosted = frame.new if self._hosts_any(frame.new) else ()
        self._groups.replace(subscriber, hosted)
        self._changes_seen[subscriber] = number
        self._persist(
            f"subscription/{subscriber}", REGISTRATION.encode(RegistrationRecord(number, hosted))
        )
        for topic in topics:
            # Forgetting the cached group also makes the topic's next stamp whole, which
            # whoever joined just now depends on: it has not seen the previous one.
            self._group_cache.pop(topic, None)
            if self.placement.stage(topic) == self.stage:
                entries[topic] = self._counter(topic)[0]
        if frame.last == self.stage:
            record = ChangedRecord(number, {topic: entries[topic] for topic in frame.new})
            self._changes_done[subscriber] = record
            self._persist(f"change/{subscriber}", CHANGED.encode(record))
            self._answer_change_again(subscriber, number)
        else:
            self._pass_on(msgspec.structs.replace(frame, entries=entries))

    def _answer_change_again(self, subscriber: str, number: int) -> None:
        done = self._changes_done.get(subscriber)
        if done is not None and done.number == number:
            self._effects.append(Send(subscriber, Changed(number=number, cut=done.cut)))

    # -- Shared ---------------------------------------------------------------------------------

    def _group(self, topic: str) -> Group:
        """Work out which entries this node adds to the topic's stamps."""
        stage = self.placement.stage
        partners = sorted(self._groups.partners(topic), key=self.placement.rank)
        last = max((stage(partner) for partner in partners), default=self.stage)
        if stage(topic) == self.stage:
            # The topic's own node also knows how far the topics of lower stages are.
            here = [partner for partner in partners if stage(partner) <= self.stage]
        else:
            here = [partner for partner in partners if stage(partner) == self.stage]
        counters = [self._counter(name) for name in here]
        group = Group(self._counter(topic), here, counters, max(last, self.stage))
        self._group_cache[topic] = group
        return group

    def _counter(self, topic: str) -> Counter:
        counter = self._counters.get(topic)
        if counter is None:
            counter = self._counters[topic] = [0]
        return counter

    def _learn(self, topic: str, count: int) -> None:
        """Note how many events of a lower stage's topic have passed here."""
        counter = self._counter(topic)
        if count > counter[0]:
            counter[0] = count
            if self.config.durable:
                self._persist(f"counter/{topic}", INT.encode(count))

    def _hosts_any(self, topics: Sequence[str]) -> bool:
        return any(self.placement.stage(topic) == self.stage for topic in topics)

    def _may_host(self, topic: str, publisher: str, number: int) -> bool:
        if self.placement.stage(topic) != self.stage:
            self._refuse(publisher, number, f"{topic!r} is not hosted by {self.name}")
            return False
        if topic not in self._counters and len(self._counters) >= self.config.topics_max:
            self._refuse(publisher, number, "topics_max")
            return False
        return True

    def _refuse(self, client: str, number: int, reason: str) -> None:
        self._effects.append(Send(client, Refused(number=number, reason=reason)))

    def _pass_on(self, frame: Frame) -> None:
        self._effects.append(Send(self.placement.nodes[self.stage + 1], frame))

    def _persist(self, key: str, value: bytes | None) -> None:
        if self.config.durable:
            self._effects.append(Persist(key, value))

    def _persist_lease(self, lease: Lease) -> None:
        if self.config.durable:
            self._effects.append(Persist(lease.key, LEASE.encode(lease.record())))

    def _restore(self, key: str, value: bytes, now_ns: int) -> None:
        kind, _, rest = key.partition("/")
        if kind == "counter":
            self._counter(rest)[0] = INT.decode(value)
        elif kind == "publisher":
            self._publisher(rest).next = INT.decode(value)
        elif kind == "elsewhere":
            number, _, publisher = rest.partition("/")
            self._publisher(publisher).elsewhere[int(number)] = INT.decode(value)
        elif kind == "subscription":
            subscription = REGISTRATION.decode(value)
            self._changes_seen[rest] = subscription.number
            self._groups.replace(rest, subscription.topics)
        elif kind == "change":
            self._changes_done[rest] = CHANGED.decode(value)
        elif kind == "lease":
            # Leases start anew: a longer lease is always safe.
            due_ns = now_ns + self.config.lease_ns
            self._leases.add(Lease.restore(LEASE.decode(value), due_ns))

    def _publisher(self, name: str) -> _Publisher:
        return self._publishers.setdefault(name, _Publisher(1))

    _HANDLERS: ClassVar[dict[type[Frame], Callable[..., None]]] = {
        StampRequest: _on_stamp_request,
        Fill: _on_fill,
        Confirm: _on_confirm,
        Repeat: _on_repeat,
        ChangeRequest: _on_change_request,
        ChangeFill: _on_change,
        ChangeRepeat: _on_change_repeat,
        Accepted: _on_void_answer,
        Taken: _on_void_answer,
    }
