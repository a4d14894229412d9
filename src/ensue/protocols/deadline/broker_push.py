"""Broker push: assign rounds to events, and push them to subscribers.

A message gets its round when it is published, because other brokers learn the round with the
message: everything they publish after it gets a larger one. If that round is in the future, the
message waits for it, and further events of the same topic may join it, as long as nothing was
learned meanwhile that does not precede that round.

A message whose round ended before it was pushed, because the process was stopped, is dropped as
`late` for all subscribers.

Limits: `rounds_ahead_max` future rounds, then publishing is refused; `batch_max` events a
message.
"""

from collections import OrderedDict

from ensue.core.errors import LimitReached
from ensue.core.event import Event
from ensue.protocols.deadline.causality import raise_to
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.delivery import Delivery
from ensue.protocols.deadline.frames import Enter, Live, Rumor, Wanted, Welcome
from ensue.protocols.deadline.gossip_push import GossipPush
from ensue.protocols.deadline.interest import are_readable
from ensue.protocols.deadline.membership import Membership
from ensue.protocols.deadline.partial_views import Picker, Views
from ensue.protocols.deadline.rounds import Vector, stamped
from ensue.protocols.interface import Effect, Frame, Send

__all__ = ["BrokerPush"]

PEERS_WELCOME = 8
"""Peers that a `Welcome` names."""


class BrokerPush:
    """Messages of one broker to subscribers, and its view of them."""

    def __init__(
        self,
        name: str,
        number: int,
        site: str,
        config: DeadlineConfig,
        rounds: tuple[int, int],
        delivery: Delivery,
        groups: Membership,
    ) -> None:
        self._name = name
        self._number = number
        self._config = config
        self._delivery = delivery
        self._membership = groups
        self.vector = Vector(number, config, rounds[0])
        self.vector.others = rounds[1]
        self.views = Views(name, site, config, Picker(name))
        self._gossip = GossipPush(config, self.views)
        self._pending: OrderedDict[int, Rumor] = OrderedDict()
        """By round number: the message that waits for it."""
        self._pushed_round = 0

    @property
    def room_ns(self) -> int:
        """From when on another message may get a round."""
        return (self.vector.next(0) - self._config.rounds_ahead_max) * self._config.period_ns

    def check_room(self, now_ns: int) -> None:
        """Raise if a message would have to wait too long for its round."""
        if now_ns < self.room_ns:
            raise LimitReached(
                f"{self._name} has messages for {self._config.rounds_ahead_max} future rounds "
                "(rounds_ahead_max): publish again in a while, or make rounds shorter",
                limit="rounds_ahead_max",
                value=self._config.rounds_ahead_max,
            )

    def publish(self, event: Event, now_ns: int) -> tuple[int, Live]:
        """Assign a round to an event; return it with the live rounds to name."""
        topic, now_round = event.topic, self._config.round_of(now_ns)
        vector = self.vector
        last = self._pending.get(vector.own)
        if (
            last is not None
            and last.topic == topic
            and vector.may_join(last.round)
            and len(last.events) < self._config.batch_max
        ):
            # The message has this broker's previous round already; the vector does not any more.
            live = {each: dict(row) for each, row in last.live.items()}
            raise_to(live, vector.live(last.round))
            events = (*last.events, event)
            self._pending[last.round] = Rumor(topic, self._number, last.round, live, events)
            return last.round, live
        number = vector.next(now_round)
        live = vector.give(topic, number)
        self._pending[number] = Rumor(topic, self._number, number, live, (event,))
        return number, live

    def learn(self, topic: str, source: int, round: int, live: Live) -> None:  # noqa: A002
        """Learn the rounds in a message of another broker."""
        self.vector.learn(live)
        if round:
            self.vector.learn({topic: {source: round}})

    def receive(self, frame: Frame, source: str, now_ns: int) -> list[Effect]:
        """Handle a frame of a subscriber."""
        if isinstance(frame, Wanted):
            return self._gossip.answer(frame, source, self._config.round_of(now_ns))
        if not isinstance(frame, Enter) or not are_readable(frame.peer.wants.values()):
            return []
        self.views.learn(frame.peer)
        newer = self._membership.edition > frame.edition
        if not frame.asks and not newer:
            return []
        topics = frame.peer.topics if frame.asks else ()
        chosen = self.views.choose(topics, PEERS_WELCOME)
        welcome = Welcome(
            topics=topics,
            peers=tuple(peer for peer in chosen if peer.name != source),
            edition=self._membership.edition if newer else 0,
            brokers=self._membership.present() if newer else (),
        )
        return [Send(source, welcome)]

    def handle_timer(self, now_ns: int) -> list[Effect]:
        """Push messages of this round, and gossip earlier ones."""
        if not self._gossip and not self._pending:
            return []
        config, now_round = self._config, self._config.round_of(now_ns)
        effects: list[Effect] = []
        if now_round != self._pushed_round:
            self._pushed_round = now_round
            self.vector.prune(now_round)
            self.views.expire(now_round)
            effects += self._gossip.push(now_round, None)
        while self._pending and next(iter(self._pending)) <= now_round:
            number, rumor = self._pending.popitem(last=False)
            if now_round >= number + config.lifetime_rounds:
                # This process was stopped: no subscriber could deliver it any more.
                for event in rumor.events:
                    self._delivery.give_up(stamped(event, number, config))
                continue
            live = {
                topic: {x: config.to_wire(v) for x, v in row.items()}
                for topic, row in rumor.live.items()
            }
            sent = Rumor(rumor.topic, self._number, config.to_wire(number), live, rumor.events)
            effects += self._gossip.send_at_once(sent)
            self._gossip.add(sent, number)
        return effects

    def next_timer_ns(self) -> int | None:
        """Return when the next round with something to push begins."""
        if self._gossip:
            return (self._pushed_round + 1) * self._config.period_ns
        if self._pending:
            return next(iter(self._pending)) * self._config.period_ns
        return None
