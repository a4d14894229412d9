"""A deadline subscriber: deliver what brokers push, and gossip it to peers.

`rounds` has the delivery rule, `delivery` the outcomes, `gossip_push` the dissemination.

A subscriber knows the brokers, which send it a new list when others join or leave, and some peers
of each topic (`partial_views`). To subscribe, it sends `Enter` to all brokers. That takes effect
once all of them have acknowledged it, or after `join_ns`, and not before rounds that are later than
anything an earlier run may have received. It announces itself periodically to one broker and one
peer, so that processes that forgot it learn of it again; silent peers are forgotten. To leave, it
announces that once.

After a crash it joins its topics again as a new subscriber: order needs no state from before.

HAZARD: a subscriber that no broker and no peer knows any more gets nothing, unnoticed, until it
announces itself: `announce_rounds` times the number of brokers must be well below `expire_rounds`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ensue.core.wire import Records
from ensue.protocols.deadline.causality import ACCEPTED, LATE, OVERFLOW
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.delivery import DeadlineCounts, Delivery
from ensue.protocols.deadline.frames import (
    Enter,
    Live,
    Peer,
    Rumor,
    RumorId,
    Rumors,
    Wanted,
    Welcome,
)
from ensue.protocols.deadline.gossip_push import GossipPush
from ensue.protocols.deadline.interest import EVERYTHING, are_readable, filter_text, holds, part
from ensue.protocols.deadline.partial_views import Picker, Views
from ensue.protocols.deadline.rounds import (
    BEFORE_JOIN,
    NOT_SUBSCRIBED,
    ReceivedRumor,
    Rounds,
    stamped,
)
from ensue.protocols.interface import Effect, Frame, Join, Leave, Persist, Send

__all__ = ["DeadlineSubscriber"]

TOPIC, BROKERS = "topic/", "brokers"
_NAMES = Records[tuple[str, ...]](tuple[str, ...])


class _PendingJoin(msgspec.Struct):
    """A topic that is being joined."""

    round: int
    """Messages up to this round are not for this subscriber."""
    until_ns: int
    """Until when to wait for brokers that do not answer."""
    ask_ns: int
    """When to repeat the request."""
    missing: dict[str, None]
    """Brokers that have not acknowledged it."""


class DeadlineSubscriber:
    """One subscriber. Commands: `subscribe`, `unsubscribe`, `acknowledge`.

    `brokers` are the initial brokers, until one sends a newer list; `site` says which peers are
    near. `records` is what an earlier run persisted.
    """

    def __init__(
        self,
        *,
        name: str,
        brokers: Sequence[str],
        config: DeadlineConfig,
        site: str = "",
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config
        records = records or {}
        saved = _NAMES.decode(records[BROKERS]) if BROKERS in records else ()
        self._brokers = tuple(dict.fromkeys((*saved, *brokers)))
        self._edition = 0
        """Edition of that list, from a broker."""
        self._site = site
        self._picker = Picker(name)
        self._views = Views(name, site, config, self._picker)
        self._rounds = Rounds(config)
        self._gossip = GossipPush(config, self._views)
        self._delivery = Delivery(config)
        self._pending: dict[str, _PendingJoin] = {}
        """Topics that are not in effect yet."""
        self._seen: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        """Received messages, by topic, broker and round."""
        self._pushed_round = config.round_of(now_ns)
        self._announce_round = self._pushed_round
        self._announced = self._picker.below(1 << 16)
        """Number of announcements, which go to one broker after the other."""
        kept = [each for each in records.items() if each[0].startswith(TOPIC)]
        topics = [key.removeprefix(TOPIC) for key, _ in kept]
        self._wants = {
            topic: wanted.decode()
            for topic, (_, wanted) in zip(topics, kept, strict=True)
            if wanted
        }
        """Filters by topic, where it does not want all events."""
        self._attach(topics, now_ns)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(self._rounds.joined)

    @property
    def counts(self) -> DeadlineCounts:
        """Outcomes of the received events."""
        return self._delivery.counts

    @property
    def held_count(self) -> int:
        """Number of received messages that wait for their predecessors."""
        return len(self._rounds.waiting)

    @property
    def known_count(self) -> int:
        """Number of known peers."""
        return len(self._views.peers)

    def subscribe(self, topics: Iterable[str], *, now_ns: int, where: str = "true") -> None:
        """Request topics, or matching events; each takes effect with its `Join`.

        To change the filter of a topic, unsubscribe first.
        """
        wanted = filter_text(where)
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in self._pending and topic not in self._rounds.joined
        ]
        if self.config.durable:
            self._delivery.effects += (Persist(TOPIC + topic, wanted.encode()) for topic in new)
        if wanted:
            self._wants.update(dict.fromkeys(new, wanted))
        self._attach(new, now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, effective immediately; drop their waiting messages."""
        effects = self._delivery.effects
        left = [each for each in topics if each in self._pending or each in self._rounds.joined]
        for topic in left:
            if self.config.durable:
                effects.append(Persist(TOPIC + topic, None))
            self._pending.pop(topic, None)
            self._wants.pop(topic, None)
            if topic in self._rounds.joined:
                for received in self._rounds.leave(topic):
                    self._drop(received, NOT_SUBSCRIBED)
                effects.append(Leave(topic))
            self._gossip.leave(topic)
        if left:
            me = self._me(now_ns)
            effects += (Send(broker, self._enter(now_ns)) for broker in self._brokers)
            for peer in self._views.choose(left, self.config.fan_out):
                effects.append(Send(peer.name, Rumors(rumors=(), have=(), peers=(me,))))
            for topic in left:
                self._views.forget(topic)
        self._advance(now_ns)

    def acknowledge(self, position: int) -> None:
        """Do nothing: no event is delivered again."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of a broker or a peer; ignore unexpected ones."""
        self._advance(now_ns)
        match frame:
            case Rumors():
                self._receive_rumors(frame, source, now_ns)
            case Wanted():
                self._delivery.effects += self._gossip.answer(
                    frame, source, self.config.round_of(now_ns)
                )
            case Welcome():
                self._on_welcome(source, frame, now_ns)
            case _:
                pass
        self._advance(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Deliver what is due, and gossip once per round."""
        self._advance(now_ns)
        self._ask_again(now_ns)
        self._join(now_ns)
        now_round = self.config.round_of(now_ns)
        if now_round == self._pushed_round:
            return
        self._pushed_round = now_round
        self._rounds.prune(now_round)
        self._delivery.effects += self._gossip.push(now_round, self._me(now_ns))
        waited = now_round - self._announce_round
        if self._rounds.joined and not 0 <= waited < self.config.announce_rounds:
            self._announce(now_round, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        due_ns = min((self._due_ns(each) for each in self._pending.values()), default=None)
        number = None
        if self._gossip or self._rounds.waiting:
            number = self._pushed_round + 1
        elif self._rounds.joined:
            number = max(self._announce_round + self.config.announce_rounds, self._pushed_round + 1)
        if number is None:
            return due_ns
        round_ns = number * self.config.period_ns
        return round_ns if due_ns is None else min(due_ns, round_ns)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        effects, self._delivery.effects = self._delivery.effects, []
        return effects

    # -- Announcements --------------------------------------------------------------------------

    def _me(self, now_ns: int) -> Peer:
        topics = (*self._rounds.joined, *self._pending)
        return Peer(self.name, self._site, topics, self.config.round_of(now_ns), dict(self._wants))

    def _enter(self, now_ns: int, *, asks: bool = False) -> Enter:
        return Enter(peer=self._me(now_ns), asks=asks, edition=self._edition)

    def _attach(self, topics: Sequence[str], now_ns: int) -> None:
        """Request topics from all brokers."""
        config = self.config
        for topic in topics:
            self._pending[topic] = _PendingJoin(
                config.round_of(now_ns) + config.skew_rounds,
                now_ns + config.join_ns,
                now_ns + config.retry_ns,
                dict.fromkeys(self._brokers),
            )
        if topics:
            enter = self._enter(now_ns, asks=True)
            self._delivery.effects += (Send(broker, enter) for broker in self._brokers)

    def _ask_again(self, now_ns: int) -> None:
        """Repeat requests to brokers that have not answered in time."""
        retry_ns, asked = self.config.retry_ns, dict[str, None]()
        for pending in self._pending.values():
            if pending.missing and not now_ns < pending.ask_ns <= now_ns + retry_ns:
                pending.ask_ns = now_ns + retry_ns
                asked.update(pending.missing)
        if asked:
            enter = self._enter(now_ns, asks=True)
            self._delivery.effects += (Send(broker, enter) for broker in asked)

    def _due_ns(self, pending: _PendingJoin) -> int:
        common_ns = (pending.round + self.config.skew_rounds + 1) * self.config.period_ns
        if pending.missing:
            return min(pending.ask_ns, max(pending.until_ns, common_ns))
        return common_ns

    def _join(self, now_ns: int) -> None:
        """Put topics into effect that are due."""
        config, now_round = self.config, self.config.round_of(now_ns)
        for topic, pending in list(self._pending.items()):
            waits = pending.missing and now_ns < pending.until_ns <= now_ns + config.join_ns
            if not waits and now_round > pending.round + config.skew_rounds:
                del self._pending[topic]
                self._rounds.join(topic, pending.round)
                self._delivery.effects.append(Join(topic))

    def _on_welcome(self, broker: str, frame: Welcome, now_ns: int) -> None:
        if frame.edition > self._edition and broker in self._brokers:
            self._edition = frame.edition
            if frame.brokers != self._brokers:
                self._change_brokers(frame.brokers, now_ns)
        for topic in frame.topics:
            if topic in self._pending:
                self._pending[topic].missing.pop(broker, None)
        self._join(now_ns)
        self._learn_peers(frame.peers)

    def _change_brokers(self, brokers: tuple[str, ...], now_ns: int) -> None:
        """Announce this subscriber to new brokers, and wait for none that is gone."""
        new = [each for each in brokers if each not in self._brokers]
        self._brokers = brokers
        effects = self._delivery.effects
        if self.config.durable:
            effects.append(Persist(BROKERS, _NAMES.encode(brokers)))
        for pending in self._pending.values():
            missing = [each for each in pending.missing if each in brokers]
            pending.missing = dict.fromkeys((*missing, *new))
        if self._rounds.joined or self._pending:
            effects += (Send(each, self._enter(now_ns, asks=True)) for each in new)

    def _learn_peers(self, peers: Iterable[Peer]) -> None:
        mine = (*self._rounds.joined, *self._pending)
        for peer in peers:
            self._views.learn(peer, mine)

    def _announce(self, now_round: int, now_ns: int) -> None:
        """Announce this subscriber to one broker and one peer."""
        self._announce_round = now_round
        self._views.expire(now_round)
        me, effects = self._me(now_ns), self._delivery.effects
        if self._brokers:
            broker = self._brokers[self._announced % len(self._brokers)]
            self._announced += 1
            effects.append(Send(broker, self._enter(now_ns)))
        for peer in self._views.choose(self._rounds.joined, 1):
            peers = (me, *self._views.some(2))
            effects.append(Send(peer.name, Rumors(rumors=(), have=(), peers=peers)))

    # -- Messages -------------------------------------------------------------------------------

    def _receive_rumors(self, frame: Rumors, source: str, now_ns: int) -> None:
        self._learn_peers(frame.peers)
        now_round = self.config.round_of(now_ns)
        if not are_readable(frame.cuts.values()):
            self.counts.unreadable += 1
            return
        for rumor in frame.rumors:
            cut = frame.cuts.get(rumor.topic, EVERYTHING)
            if holds(cut, self._wants.get(rumor.topic, EVERYTHING)):
                self._receive_rumor(rumor, cut, now_round, now_ns)
        missing = tuple(each for each in frame.have if self._lacks(each, now_round))
        if missing:
            wanted = Wanted(ids=missing[: self.config.batch_max], wants=dict(self._wants))
            self._delivery.effects.append(Send(source, wanted))

    def _lacks(self, rumor: RumorId, now_round: int) -> bool:
        topic, source, sent = rumor
        number = self.config.from_wire(sent, now_round)
        if number is None or now_round >= number + self.config.lifetime_rounds:
            return False
        seen = (topic, source, number) in self._seen
        return not seen and not self._rounds.is_settled(topic, source, number)

    def _receive_rumor(self, rumor: Rumor, cut: str, now_round: int, now_ns: int) -> None:
        received = self._read(rumor, now_round, now_ns)
        if received is None:
            self.counts.unreadable += 1
            return
        name = (received.topic, received.source, received.round)
        if name in self._seen:
            self.counts.duplicate += len(received.events)
            return
        verdict = self._rounds.offer(received, now_round)
        if verdict == NOT_SUBSCRIBED:
            self._drop(received, verdict)
            return
        if verdict != OVERFLOW:  # Another copy may find room.
            self._seen[name] = None
            if len(self._seen) > self.config.remembered_max:
                self._seen.popitem(last=False)
        if verdict == BEFORE_JOIN:
            self._drop(received, verdict)
        else:
            for event in received.events:
                self._delivery.arrived(event)
                if verdict != ACCEPTED:
                    self._delivery.refuse(event, verdict)
        if now_round < received.round + self.config.lifetime_rounds:
            self._gossip.add(rumor, received.round, cut)

    def _drop(self, received: ReceivedRumor, verdict: str) -> None:
        for event in received.events:
            self._delivery.discard(event, verdict)

    def _read(self, rumor: Rumor, now_round: int, now_ns: int) -> ReceivedRumor | None:
        """Decode a message; return None if it is invalid."""
        config = self.config
        number = config.from_wire(rumor.round, now_round)
        if number is None or number > now_round + config.skew_rounds:
            return None
        live: Live = {}
        if now_round < number + config.lifetime_rounds:
            for topic, row in rumor.live.items():
                read = {x: config.from_wire(v, now_round) for x, v in row.items()}
                known = {x: v for x, v in read.items() if v is not None and v < number}
                if len(known) < len(row):
                    return None
                live[topic] = known
        wanted = part(rumor, self._wants.get(rumor.topic, EVERYTHING)).events
        events = tuple(stamped(event, number, config) for event in wanted)
        return ReceivedRumor(rumor.topic, rumor.source, number, live, events, now_ns)

    def _advance(self, now_ns: int) -> None:
        """Deliver all messages whose predecessors are settled."""
        if not self._rounds.waiting:
            return
        now_round = self.config.round_of(now_ns)
        for received in self._rounds.expired(now_round):
            for event in received.events:
                self._delivery.refuse(event, LATE)
        while (ready := self._rounds.next_ready(now_round)) is not None:
            for event in ready.events:
                self._delivery.deliver(event, now_ns - ready.arrived_ns)
