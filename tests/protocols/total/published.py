"""Total notification order by the rules of the paper, as printed: what Ensue must not do.

Figures 15 to 19 of the paper, nothing corrected, so that tests can show where they hang. Comments
give figure and lines. Messages wait in FIFO channels, one for each ordered pair of processes; the
event notification service (ENS) loses nothing and reorders everything. The driver of a `World`
picks what arrives next.

Where the figures leave a choice, this reading takes the one that hangs less:

- `isNext` looks only at topics the subscriber has, unless `whole_stamp` asks for the printed test;
- delivering an event takes the clock to the event's stamp (Figure 17 lines 14 and 25 print the old
  value, with which no clock would ever move);
- a manager that gets two values for a topic of lower rank keeps the higher one, also from a
  subscription (Figure 18b line 5 prints a union);
- a new subscriber forgets events of its new topic stamped before it joined (section 3.4; Figure 18
  leaves them in the buffer).
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.protocols.total import scenarios
from tests.protocols.total.scenarios import Action, Scenario, Settle

__all__ = ["Arrival", "Message", "Need", "World", "run"]

Stamp = dict[str, int | None]
"""Topic to number; None where the figures print a bottom sign: not filled in, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Everything that processes and the ENS carry, under the figures' names."""

    kind: str
    name: str
    """The event or subscription this is about."""
    client: str = ""
    """Who gets the stamp."""
    topic: str = ""
    topics: tuple[str, ...] = ()
    stamp: Stamp = field(default_factory=dict)


class Arrival(NamedTuple):
    """A message that may arrive next."""

    sent: int
    source: str
    """Empty for the ENS."""
    process: str
    message: Message


class Need(NamedTuple):
    """The clock value an event waits for, and the subscriber's value (None: no such clock)."""

    wanted: int | None
    has: int | None


class Manager:
    """A topic manager: one stage of the sequencer."""

    def __init__(self, world: "World", topic: str) -> None:
        self.world = world
        self.topic = topic
        self.count = 0
        """LC of the paper."""
        self.lower: dict[str, int | None] = {}
        """LLC of the paper: last known numbers of group members of lower rank."""
        self.subscriptions: dict[str, tuple[str, ...]] = {}
        self.group: tuple[str, ...] = (topic,)

    def regroup(self) -> None:
        """Figure 15: keep every topic that enough subscriptions share with this one."""
        shares = Counter(topic for topics in self.subscriptions.values() for topic in topics)
        enough = self.world.common_subscriptions
        shared = {topic for topic, count in shares.items() if count >= enough}
        self.group = self.world.ranked({self.topic, *shared})

    def receive(self, message: Message) -> None:
        stamp = dict(message.stamp)
        match message.kind:
            case "CREATE_PUB_TS":  # Figure 16b lines 1 to 13
                stamp = dict.fromkeys(self.group)
                stamp.update((topic, n) for topic, n in self.lower.items() if topic in stamp)
                self.count += 1
                self.pass_on(message, "FILL_IN_PUB_TS", "EVENT_TS", stamp)
            case "FILL_IN_PUB_TS":  # Figure 16b lines 14 to 24: the number is read, not raised
                self.learn(stamp)
                self.pass_on(message, "FILL_IN_PUB_TS", "EVENT_TS", stamp)
            case "FILL_IN_SUB_TS":  # Figure 18b: the subscription counts like an event
                self.subscriptions[message.client] = message.topics
                self.regroup()
                self.learn({topic: stamp[topic] for topic in stamp if topic in self.group})
                self.count += 1
                self.pass_on(message, "FILL_IN_SUB_TS", "COMPLETED_SUB_VC", stamp)
            case "UPDATE_SUB":  # Figure 19b
                self.subscriptions[message.client] = message.topics
                if not message.topics:
                    del self.subscriptions[message.client]
                self.regroup()
                self.lower = {topic: n for topic, n in self.lower.items() if topic in self.group}
            case _:
                raise AssertionError(message)

    def learn(self, stamp: Mapping[str, int | None]) -> None:
        """Figure 16b lines 15 to 17 and Figure 18b lines 4 to 6: note numbers of lower ranks."""
        for topic in self.world.topics[self.world.topics.index(self.topic) + 1 :]:
            number = stamp.get(topic)
            if number is not None:
                self.lower[topic] = max(self.lower.get(topic) or 0, number)

    def pass_on(self, message: Message, onward: str, done: str, stamp: Stamp) -> None:
        """Fill in this topic's number and go to the next higher topic in the stamp, if any.

        Stages that are not in the stamp are skipped (`next` of the figures).
        """
        stamp[self.topic] = self.count
        ranks = self.world.ranked(stamp)
        place = ranks.index(self.topic)
        kind, target = (onward, ranks[place - 1]) if place else (done, message.client)
        self.world.send(self.topic, target, replace(message, kind=kind, stamp=stamp))


class Publisher:
    """Figure 16a."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.topics: dict[str, str] = {}
        self.outgoing: set[str] = set()
        self.crashed = False

    def publish(self, event: str, topic: str) -> None:
        """Lines 1 to 4."""
        self.topics[event] = topic
        self.outgoing.add(event)
        self.ask(event)

    def ask(self, event: str) -> None:
        """Line 4; section 4 has it done again and again until the stamp comes."""
        topic = self.topics[event]
        request = Message(kind="CREATE_PUB_TS", name=event, client=self.name, topic=topic)
        self.world.send(self.name, topic, request)

    def receive(self, message: Message) -> None:
        """Lines 5 to 9. A second stamp for the same event finds nothing to attach itself to."""
        if message.name in self.outgoing and not self.crashed:
            self.outgoing.remove(message.name)
            self.world.notify(replace(message, kind="event"))


class Subscriber:
    """Figures 17, 18a and 19a."""

    def __init__(self, world: "World", name: str, topics: Sequence[str]) -> None:
        self.world = world
        self.name = name
        self.clock: dict[str, int | None] = dict.fromkeys(topics, 0)
        """sub_LC of the paper; its keys are the subscription."""
        self.joined: dict[str, int] = {}
        self.held: list[Message] = []
        self.delivered: list[str] = []

    def subscribe(self, name: str, topic: str) -> None:
        """Figure 18a lines 1 to 7: ask the manager of the lowest rank first."""
        self.clock[topic] = None
        ranks = self.world.ranked(self.clock)
        request = Message(kind="FILL_IN_SUB_TS", name=name, client=self.name, topic=topic)
        stamp: Stamp = dict.fromkeys(ranks)
        self.world.send(self.name, ranks[-1], replace(request, topics=ranks, stamp=stamp))

    def unsubscribe(self, name: str, topic: str) -> None:
        """Figure 19a: tell each manager, all at once."""
        del self.clock[topic]
        self.held = [held for held in self.held if held.topic != topic]
        ranks = self.world.ranked(self.clock)
        for target in (*ranks, topic):
            topics = () if target == topic else ranks
            update = Message(kind="UPDATE_SUB", name=name, client=self.name, topics=topics)
            self.world.send(self.name, target, update)

    def receive(self, message: Message) -> None:
        topic = message.topic
        if message.kind == "COMPLETED_SUB_VC":  # Figure 18a lines 8 to 12
            self.clock = {topic: message.stamp.get(topic) for topic in self.clock}
            self.joined[topic] = message.stamp[topic] or 0
            self.held = [held for held in self.held if not self.is_old(held)]
            for target in self.world.ranked(self.clock):
                name = f"{message.name}:{target}"
                dummy = replace(message, kind="subscriptionUpdate", name=name, topic=target)
                self.world.notify(dummy)
        elif topic not in self.clock or self.is_old(message):  # Figure 17 line 9
            return
        elif message.kind == "subscriptionUpdate" and self.may_update(message):  # lines 1 to 5
            self.advance(message)
        else:  # lines 6 and 17; an event that is next leaves again in the loop below
            self.held.append(message)
        while ready := [held for held in self.held if not self.needs(held)]:
            self.held.remove(ready[0])  # lines 10 to 16 and 20 to 26
            if ready[0].kind == "event":
                self.delivered.append(ready[0].name)
            self.advance(ready[0])

    def is_old(self, message: Message) -> bool:
        """Section 3.4: whether an event was stamped before this subscriber joined its topic."""
        slot = message.stamp.get(message.topic) or 0
        return message.kind == "event" and slot <= self.joined.get(message.topic, 0)

    def may_update(self, dummy: Message) -> bool:
        """Figure 17 line 2: every clock but that of the dummy's own topic is one short."""
        return all(
            number is not None and dummy.stamp.get(topic) == number + 1
            for topic, number in self.clock.items()
            if topic != dummy.topic
        )

    def advance(self, message: Message) -> None:
        """Figure 17 lines 3 to 5 and 12 to 16: take the clock to the stamp."""
        for topic, number in self.clock.items():
            stamped = message.stamp.get(topic)
            if stamped is not None:
                self.clock[topic] = max(number or 0, stamped)

    def needs(self, message: Message) -> dict[str, Need]:
        """`isNext` of Figure 17, turned round: the clocks that keep a message from being next."""
        needs: dict[str, Need] = {}
        for topic, number in message.stamp.items():
            if topic in self.clock or self.world.whole_stamp:
                step = 1 if topic == message.topic else 0
                need = Need(None if number is None else number - step, self.clock.get(topic))
                if need.wanted is None or need.wanted != need.has:
                    needs[topic] = need
        return needs


class World:
    """All processes, the channels between them, and the ENS."""

    def __init__(
        self,
        topics: Sequence[str],
        subscriptions: Mapping[str, Sequence[str]],
        *,
        common_subscriptions: int = 2,
        whole_stamp: bool = False,
    ) -> None:
        self.topics = tuple(topics)
        self.common_subscriptions = common_subscriptions
        self.whole_stamp = whole_stamp
        self.managers = {topic: Manager(self, topic) for topic in topics}
        self.publishers: dict[str, Publisher] = {}
        self.subscribers = {who: Subscriber(self, who, own) for who, own in subscriptions.items()}
        self.channels: dict[tuple[str, str], deque[Arrival]] = {}
        self.notifications: list[Arrival] = []
        self.handled: list[tuple[str, str]] = []
        """Process and name of every message that arrived, in order."""
        self.stamps: dict[str, Stamp] = {}
        """The stamp that each event and dummy event went out with."""
        self.sent = 0
        for manager in self.managers.values():
            manager.subscriptions = {
                who: self.ranked(own) for who, own in subscriptions.items() if manager.topic in own
            }
            manager.regroup()
            manager.learn(dict.fromkeys(manager.group, 0))

    def ranked(self, topics: Mapping[str, object] | Sequence[str] | set[str]) -> tuple[str, ...]:
        return tuple(topic for topic in self.topics if topic in topics)

    def send(self, source: str, target: str, message: Message) -> None:
        self.sent += 1
        channel = self.channels.setdefault((source, target), deque())
        channel.append(Arrival(self.sent, source, target, message))

    def notify(self, message: Message) -> None:
        self.stamps[message.name] = message.stamp
        for name, subscriber in self.subscribers.items():
            if message.topic in subscriber.clock:
                self.sent += 1
                self.notifications.append(Arrival(self.sent, "", name, message))

    def arrivals(self) -> list[Arrival]:
        """What may arrive next: the head of each channel, and anything in the ENS."""
        heads = [channel[0] for channel in self.channels.values() if channel]
        return heads + self.notifications

    def deliver(self, arrival: Arrival) -> None:
        if arrival.source:
            head = self.channels[arrival.source, arrival.process].popleft()
            assert head is arrival, "channels are FIFO"
        else:
            self.notifications.remove(arrival)
        process = arrival.process
        self.handled.append((process, arrival.message.name))
        if arrival.message.kind == "EVENT_TS":
            self.publishers[process].receive(arrival.message)
        elif arrival.source and process in self.managers:
            self.managers[process].receive(arrival.message)
        else:
            self.subscribers[process].receive(arrival.message)

    def act(self, action: Action) -> None:
        match action:
            case scenarios.Publish(event, name, topic):
                publisher = self.publishers.setdefault(name, Publisher(self, name))
                publisher.publish(event, topic)
            case scenarios.Repeat(event):
                next(p for p in self.publishers.values() if event in p.topics).ask(event)
            case scenarios.Crash(name):
                self.publishers[name].crashed = True
            case scenarios.Subscribe(name, subscriber, topic):
                joining = self.subscribers.setdefault(subscriber, Subscriber(self, subscriber, ()))
                joining.subscribe(name, topic)
            case scenarios.Unsubscribe(name, subscriber, topic):
                self.subscribers[subscriber].unsubscribe(name, topic)
            case Settle():
                raise AssertionError("the driver settles")

    def settle(self, pick: Callable[[list[Arrival]], Arrival]) -> None:
        while choices := self.arrivals():
            self.deliver(pick(choices))

    def waiting(self) -> dict[tuple[str, str], dict[str, Need]]:
        """Subscriber and event to the clocks that the event waits for."""
        return {
            (subscriber.name, held.name): subscriber.needs(held)
            for subscriber in self.subscribers.values()
            for held in subscriber.held
            if held.kind == "event"
        }


def run(scenario: Scenario, *, common_subscriptions: int = 2, whole_stamp: bool = False) -> World:
    """Run a scenario by the published rules until nothing is under way."""
    world = World(
        scenario.topics,
        scenario.subscriptions,
        common_subscriptions=common_subscriptions,
        whole_stamp=whole_stamp,
    )

    def oldest(choices: list[Arrival]) -> Arrival:
        kept_back = {
            (rule.at, rule.second)
            for rule in scenario.arrivals
            if (rule.at, rule.first) not in world.handled
        }
        free = [one for one in choices if (one.process, one.message.name) not in kept_back]
        assert free, f"the published rules do not allow these arrivals: {choices}"
        return min(free)

    for action in (*scenario.actions, Settle()):
        if isinstance(action, Settle):
            world.settle(oldest)
        else:
            world.act(action)
    return world
