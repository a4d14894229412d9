"""A subscriber: it delivers what brokers tell by gossip, causal and on time, and passes it on to its peers.

What it guarantees, and why, is said in `rounds`; what becomes of the rest, in `handing`; how messages reach it, in `spreading`.

It knows the brokers, which tell it when others come or go, and of its peers some of each topic (`views`). To subscribe is to tell all brokers; it takes effect once all of them have
taken note, or after `join_ns`, and no earlier than rounds are common that are later than all that its former self may have been told. It says now and then that it is there, to one broker and to one peer, so that whoever
forgot it, or never knew, learns of it; who is not heard of is forgotten. To leave is to say so once.

After a crash it joins its topics again, as a newcomer: nothing of what it had is needed to be in order.

HAZARD: a subscriber that no broker and no peer knows any more gets nothing, and is not told, until it has said again that it is there:
`announce_rounds` times the number of brokers must be well below `expire_rounds`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ensue.protocols.core import Effect, Frame, Join, Leave, Persist, Send
from ensue.protocols.gossip.causality import ACCEPTED, LATE, OVERFLOW
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import (
    Enter,
    Live,
    Peer,
    Rumour,
    RumourId,
    Rumours,
    Wanted,
    Welcome,
)
from ensue.protocols.gossip.handing import GossipCounts, Handing
from ensue.protocols.gossip.interest import EVERYTHING, are_readable, holds, part, wish
from ensue.protocols.gossip.rounds import BEFORE_JOIN, NOT_SUBSCRIBED, Rounds, Told, stamped
from ensue.protocols.gossip.spreading import Spreading
from ensue.protocols.gossip.views import Picker, Views
from ensue.wire import Records

__all__ = ["GossipSubscriber"]

TOPIC, BROKERS = "topic/", "brokers"
_NAMES = Records[tuple[str, ...]](tuple[str, ...])


class _Attaching(msgspec.Struct):
    """A topic that was asked for."""

    round: int
    """What is of this round or earlier is not for this subscriber."""
    until_ns: int
    """For so long it waits for brokers that don't answer."""
    ask_ns: int
    """When to ask them again."""
    missing: dict[str, None]
    """Brokers that have not taken note."""


class GossipSubscriber:
    """One subscriber. Commands: `subscribe`, `unsubscribe`, `acknowledge`.

    `brokers` are those it can tell what it wants, until they tell it of others, or that some are gone; `site` says which peers are near. `records` is what an earlier incarnation persisted.
    """

    def __init__(
        self,
        *,
        name: str,
        brokers: Sequence[str],
        config: GossipConfig,
        site: str = "",
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config
        records = records or {}
        told = _NAMES.decode(records[BROKERS]) if BROKERS in records else ()
        self._brokers = tuple(dict.fromkeys((*told, *brokers)))
        self._edition = 0
        """Of that list, as a broker told it."""
        self._site = site
        self._picker = Picker(name)
        self._views = Views(name, site, config, self._picker)
        self._rounds = Rounds(config)
        self._spreading = Spreading(config, self._views)
        self._handing = Handing(config)
        self._attaching: dict[str, _Attaching] = {}
        """Topics that have not taken effect."""
        self._seen: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        """Messages that have come, by topic, broker and round."""
        self._pushed_round = config.round_of(now_ns)
        self._announce_round = self._pushed_round
        self._announced = self._picker.below(1 << 16)
        """How often it has said that it is there: to one broker after the other."""
        kept = [each for each in records.items() if each[0].startswith(TOPIC)]
        topics = [key.removeprefix(TOPIC) for key, _ in kept]
        self._wants = {
            topic: wanted.decode()
            for topic, (_, wanted) in zip(topics, kept, strict=True)
            if wanted
        }
        """By topic: what of it, where it is not everything."""
        self._attach(topics, now_ns)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(self._rounds.joined)

    @property
    def counts(self) -> GossipCounts:
        """What became of the events that came."""
        return self._handing.counts

    @property
    def held_count(self) -> int:
        """How many messages wait for others that come before them."""
        return len(self._rounds.waiting)

    @property
    def known_count(self) -> int:
        """How many peers it knows."""
        return len(self._views.peers)

    def subscribe(self, topics: Iterable[str], *, now_ns: int, where: str = "true") -> None:
        """Ask for topics, or for those of their events whose headers match; each takes effect with its `Join`.

        Who wants something else of a topic leaves it first.
        """
        wanted = wish(where)
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in self._attaching and topic not in self._rounds.joined
        ]
        if self.config.durable:
            self._handing.effects += (Persist(TOPIC + topic, wanted.encode()) for topic in new)
        if wanted:
            self._wants.update(dict.fromkeys(new, wanted))
        self._attach(new, now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once; what waits of them is dropped."""
        effects = self._handing.effects
        left = [each for each in topics if each in self._attaching or each in self._rounds.joined]
        for topic in left:
            if self.config.durable:
                effects.append(Persist(TOPIC + topic, None))
            self._attaching.pop(topic, None)
            self._wants.pop(topic, None)
            if topic in self._rounds.joined:
                for told in self._rounds.leave(topic):
                    self._drop(told, NOT_SUBSCRIBED)
                effects.append(Leave(topic))
            self._spreading.leave(topic)
        if left:
            me = self._me(now_ns)
            effects += (Send(broker, self._enter(now_ns)) for broker in self._brokers)
            for peer in self._views.choose(left, self.config.fan_out):
                effects.append(Send(peer.name, Rumours(rumours=(), have=(), peers=(me,))))
            for topic in left:
                self._views.forget(topic)
        self._advance(now_ns)

    def acknowledge(self, position: int) -> None:
        """Do nothing: nothing is delivered again."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle what a broker or a peer says."""
        self._advance(now_ns)
        match frame:
            case Rumours():
                self._hear(frame, source, now_ns)
            case Wanted():
                self._handing.effects += self._spreading.answer(
                    frame, source, self.config.round_of(now_ns)
                )
            case Welcome():
                self._welcomed(source, frame, now_ns)
            case _:
                pass  # Not for a subscriber: a stray frame changes nothing.
        self._advance(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Deliver what is due, and do what is to be done once in a round."""
        self._advance(now_ns)
        self._ask_again(now_ns)
        self._join(now_ns)
        now_round = self.config.round_of(now_ns)
        if now_round == self._pushed_round:
            return
        self._pushed_round = now_round
        self._rounds.prune(now_round)
        self._handing.effects += self._spreading.push(now_round, self._me(now_ns))
        waited = now_round - self._announce_round
        if self._rounds.joined and not 0 <= waited < self.config.announce_rounds:
            self._announce(now_round, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        due_ns = min((self._due_ns(each) for each in self._attaching.values()), default=None)
        number = None
        if self._spreading or self._rounds.waiting:
            number = self._pushed_round + 1
        elif self._rounds.joined:
            number = max(self._announce_round + self.config.announce_rounds, self._pushed_round + 1)
        if number is None:
            return due_ns
        round_ns = number * self.config.period_ns
        return round_ns if due_ns is None else min(due_ns, round_ns)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._handing.effects = self._handing.effects, []
        return effects

    # -- Being known ----------------------------------------------------------------------------

    def _me(self, now_ns: int) -> Peer:
        topics = (*self._rounds.joined, *self._attaching)
        return Peer(self.name, self._site, topics, self.config.round_of(now_ns), dict(self._wants))

    def _enter(self, now_ns: int, *, asks: bool = False) -> Enter:
        return Enter(peer=self._me(now_ns), asks=asks, edition=self._edition)

    def _attach(self, topics: Sequence[str], now_ns: int) -> None:
        """Ask all brokers for topics."""
        config = self.config
        for topic in topics:
            self._attaching[topic] = _Attaching(
                config.round_of(now_ns) + config.skew_rounds,
                now_ns + config.join_ns,
                now_ns + config.retry_ns,
                dict.fromkeys(self._brokers),
            )
        if topics:
            enter = self._enter(now_ns, asks=True)
            self._handing.effects += (Send(broker, enter) for broker in self._brokers)

    def _ask_again(self, now_ns: int) -> None:
        """Ask those brokers that have not answered in time."""
        retry_ns, asked = self.config.retry_ns, dict[str, None]()
        for attaching in self._attaching.values():
            if attaching.missing and not now_ns < attaching.ask_ns <= now_ns + retry_ns:
                attaching.ask_ns = now_ns + retry_ns
                asked.update(attaching.missing)
        if asked:
            enter = self._enter(now_ns, asks=True)
            self._handing.effects += (Send(broker, enter) for broker in asked)

    def _due_ns(self, attaching: _Attaching) -> int:
        common_ns = (attaching.round + self.config.skew_rounds + 1) * self.config.period_ns
        if attaching.missing:
            return min(attaching.ask_ns, max(attaching.until_ns, common_ns))
        return common_ns

    def _join(self, now_ns: int) -> None:
        """Let those topics take effect whose time has come."""
        config, now_round = self.config, self.config.round_of(now_ns)
        for topic, attaching in list(self._attaching.items()):
            waits = attaching.missing and now_ns < attaching.until_ns <= now_ns + config.join_ns
            if not waits and now_round > attaching.round + config.skew_rounds:
                del self._attaching[topic]
                self._rounds.join(topic, attaching.round)
                self._handing.effects.append(Join(topic))

    def _welcomed(self, broker: str, frame: Welcome, now_ns: int) -> None:
        if frame.edition > self._edition and broker in self._brokers:
            self._edition = frame.edition
            if frame.brokers != self._brokers:
                self._change_brokers(frame.brokers, now_ns)
        for topic in frame.topics:
            if topic in self._attaching:
                self._attaching[topic].missing.pop(broker, None)
        self._join(now_ns)
        self._meet(frame.peers)

    def _change_brokers(self, brokers: tuple[str, ...], now_ns: int) -> None:
        """Tell those brokers that are new that this subscriber is there, and wait for none that is gone."""
        new = [each for each in brokers if each not in self._brokers]
        self._brokers = brokers
        effects = self._handing.effects
        if self.config.durable:
            effects.append(Persist(BROKERS, _NAMES.encode(brokers)))
        for attaching in self._attaching.values():
            missing = [each for each in attaching.missing if each in brokers]
            attaching.missing = dict.fromkeys((*missing, *new))
        if self._rounds.joined or self._attaching:
            effects += (Send(each, self._enter(now_ns, asks=True)) for each in new)

    def _meet(self, peers: Iterable[Peer]) -> None:
        mine = (*self._rounds.joined, *self._attaching)
        for peer in peers:
            self._views.learn(peer, mine)

    def _announce(self, now_round: int, now_ns: int) -> None:
        """Say that this subscriber is there, to one broker and one peer."""
        self._announce_round = now_round
        self._views.expire(now_round)
        me, effects = self._me(now_ns), self._handing.effects
        if self._brokers:
            broker = self._brokers[self._announced % len(self._brokers)]
            self._announced += 1
            effects.append(Send(broker, self._enter(now_ns)))
        for peer in self._views.choose(self._rounds.joined, 1):
            told = (me, *self._views.some(2))
            effects.append(Send(peer.name, Rumours(rumours=(), have=(), peers=told)))

    # -- Messages -------------------------------------------------------------------------------

    def _hear(self, frame: Rumours, source: str, now_ns: int) -> None:
        self._meet(frame.peers)
        now_round = self.config.round_of(now_ns)
        if not are_readable(frame.cuts.values()):
            self.counts.unreadable += 1
            return
        for rumour in frame.rumours:
            cut = frame.cuts.get(rumour.topic, EVERYTHING)
            if holds(cut, self._wants.get(rumour.topic, EVERYTHING)):
                self._hear_one(rumour, cut, now_round, now_ns)
        missing = tuple(each for each in frame.have if self._lacks(each, now_round))
        if missing:
            wanted = Wanted(ids=missing[: self.config.batch_max], wants=dict(self._wants))
            self._handing.effects.append(Send(source, wanted))

    def _lacks(self, rumour: RumourId, now_round: int) -> bool:
        topic, source, sent = rumour
        number = self.config.from_wire(sent, now_round)
        if number is None or now_round >= number + self.config.lifetime_rounds:
            return False
        seen = (topic, source, number) in self._seen
        return not seen and not self._rounds.is_settled(topic, source, number)

    def _hear_one(self, rumour: Rumour, cut: str, now_round: int, now_ns: int) -> None:
        told = self._read(rumour, now_round, now_ns)
        if told is None:
            self.counts.unreadable += 1
            return
        name = (told.topic, told.source, told.round)
        if name in self._seen:
            self.counts.duplicate += len(told.events)
            return
        verdict = self._rounds.offer(told, now_round)
        if verdict == NOT_SUBSCRIBED:
            self._drop(told, verdict)
            return
        if verdict != OVERFLOW:  # One for which there was no room may come again.
            self._seen[name] = None
            if len(self._seen) > self.config.remembered_max:
                self._seen.popitem(last=False)
        if verdict == BEFORE_JOIN:
            self._drop(told, verdict)
        else:
            for event in told.events:
                self._handing.arrived(event)
                if verdict != ACCEPTED:
                    self._handing.refuse(event, verdict)
        if now_round < told.round + self.config.lifetime_rounds:
            self._spreading.add(rumour, told.round, cut)

    def _drop(self, told: Told, verdict: str) -> None:
        for event in told.events:
            self._handing.discard(event, verdict)

    def _read(self, rumour: Rumour, now_round: int, now_ns: int) -> Told | None:
        """Return what a message means; None if nobody can have sent it."""
        config = self.config
        number = config.from_wire(rumour.round, now_round)
        if number is None or number > now_round + config.skew_rounds:
            return None
        live: Live = {}
        if now_round < number + config.lifetime_rounds:
            for topic, row in rumour.live.items():
                read = {x: config.from_wire(v, now_round) for x, v in row.items()}
                known = {x: v for x, v in read.items() if v is not None and v < number}
                if len(known) < len(row):
                    return None
                live[topic] = known
        wanted = part(rumour, self._wants.get(rumour.topic, EVERYTHING)).events
        events = tuple(stamped(event, number, config) for event in wanted)
        return Told(rumour.topic, rumour.source, number, live, events, now_ns)

    def _advance(self, now_ns: int) -> None:
        """Deliver what may be delivered."""
        if not self._rounds.waiting:
            return
        now_round = self.config.round_of(now_ns)
        for told in self._rounds.expired(now_round):
            for event in told.events:
                self._handing.refuse(event, LATE)
        while (ready := self._rounds.next_ready(now_round)) is not None:
            for event in ready.events:
                self._handing.deliver(event, now_ns - ready.arrived_ns)
