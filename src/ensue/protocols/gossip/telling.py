"""A broker's part towards subscribers: it gives rounds to what it publishes, and tells it when they come.

A message has its round from the moment it is published, because other brokers are told it along with the message: whatever they publish after it
has a larger one. If that round is still to come, the message waits for it, and further events of the same topic may go with it, as long as
nothing has been learnt meanwhile that is not before that round.

A message whose round is over before it was told, because the process stood still, is dropped as `late` here, for all subscribers.

Limits: `rounds_ahead_max` rounds given that are still to come, then publishing is refused; `batch_max` events a message.
"""

from collections import OrderedDict

from ensue.errors import LimitReached
from ensue.event import Event
from ensue.protocols.core import Effect, Frame, Send
from ensue.protocols.gossip.causality import raise_to
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import Enter, Live, Rumour, Wanted, Welcome
from ensue.protocols.gossip.groups import GroupRolls
from ensue.protocols.gossip.handing import Handing
from ensue.protocols.gossip.interest import are_readable
from ensue.protocols.gossip.rounds import Vector, stamped
from ensue.protocols.gossip.spreading import Spreading
from ensue.protocols.gossip.views import Picker, Views

__all__ = ["Telling"]

PEERS_WELCOME = 8
"""Peers that a newcomer is told."""


class Telling:
    """What one broker tells subscribers, and which of them it knows."""

    def __init__(
        self,
        name: str,
        number: int,
        site: str,
        config: GossipConfig,
        rounds: tuple[int, int],
        handing: Handing,
        groups: GroupRolls,
    ) -> None:
        self._name = name
        self._number = number
        self._config = config
        self._handing = handing
        self._groups = groups
        self.vector = Vector(number, config, rounds[0])
        self.vector.others = rounds[1]
        self.views = Views(name, site, config, Picker(name))
        self._spreading = Spreading(config, self.views)
        self._pending: OrderedDict[int, Rumour] = OrderedDict()
        """By round: what waits for it, with rounds as numbers."""
        self._pushed_round = 0

    @property
    def room_ns(self) -> int:
        """From when on another message may have a round; long ago, where there are none."""
        return (self.vector.next(0) - self._config.rounds_ahead_max) * self._config.period_ns

    def check_room(self, now_ns: int) -> None:
        """Refuse what would have to wait for too long for its round."""
        if now_ns < self.room_ns:
            raise LimitReached(
                f"{self._name} has messages for {self._config.rounds_ahead_max} rounds to come "
                "(rounds_ahead_max): publish again in a while, or make rounds shorter",
                limit="rounds_ahead_max",
                value=self._config.rounds_ahead_max,
            )

    def publish(self, event: Event, now_ns: int) -> tuple[int, Live]:
        """Give an event its round; return it with what it has to name."""
        topic, now_round = event.topic, self._config.round_of(now_ns)
        vector = self.vector
        last = self._pending.get(vector.own)
        if (
            last is not None
            and last.topic == topic
            and vector.may_join(last.round)
            and len(last.events) < self._config.batch_max
        ):
            # Its own last round before this one is in the message already, and no longer in the vector.
            live = {each: dict(row) for each, row in last.live.items()}
            raise_to(live, vector.live(last.round))
            events = (*last.events, event)
            self._pending[last.round] = Rumour(topic, self._number, last.round, live, events)
            return last.round, live
        number = vector.next(now_round)
        live = vector.give(topic, number)
        self._pending[number] = Rumour(topic, self._number, number, live, (event,))
        return number, live

    def learn(self, topic: str, source: int, round: int, live: Live) -> None:  # noqa: A002 - the word
        """Take note of what comes with a message of another broker."""
        self.vector.learn(live)
        if round:
            self.vector.learn({topic: {source: round}})

    def receive(self, frame: Frame, source: str, now_ns: int) -> list[Effect]:
        """Handle what a subscriber says."""
        if isinstance(frame, Wanted):
            return self._spreading.answer(frame, source, self._config.round_of(now_ns))
        if not isinstance(frame, Enter) or not are_readable(frame.peer.wants.values()):
            return []
        self.views.learn(frame.peer)
        newer = self._groups.edition > frame.edition
        if not frame.asks and not newer:
            return []
        topics = frame.peer.topics if frame.asks else ()
        chosen = self.views.choose(topics, PEERS_WELCOME)
        welcome = Welcome(
            topics=topics,
            peers=tuple(peer for peer in chosen if peer.name != source),
            edition=self._groups.edition if newer else 0,
            brokers=self._groups.present() if newer else (),
        )
        return [Send(source, welcome)]

    def handle_timer(self, now_ns: int) -> list[Effect]:
        """Tell what is of this round, and go on telling what was told before."""
        if not self._spreading and not self._pending:
            return []
        config, now_round = self._config, self._config.round_of(now_ns)
        effects: list[Effect] = []
        if now_round != self._pushed_round:
            self._pushed_round = now_round
            self.vector.prune(now_round)
            self.views.expire(now_round)
            effects += self._spreading.push(now_round, None)
        while self._pending and next(iter(self._pending)) <= now_round:
            number, rumour = self._pending.popitem(last=False)
            if now_round >= number + config.lifetime_rounds:
                # This process stood still: nobody could deliver it any more.
                for event in rumour.events:
                    self._handing.give_up(stamped(event, number, config))
                continue
            live = {
                topic: {x: config.to_wire(v) for x, v in row.items()}
                for topic, row in rumour.live.items()
            }
            sent = Rumour(rumour.topic, self._number, config.to_wire(number), live, rumour.events)
            effects += self._spreading.send_at_once(sent)
            self._spreading.add(sent, number)
        return effects

    def next_timer_ns(self) -> int | None:
        """Return when a round begins in which there is something to tell."""
        if self._spreading:
            return (self._pushed_round + 1) * self._config.period_ns
        if self._pending:
            return next(iter(self._pending)) * self._config.period_ns
        return None
