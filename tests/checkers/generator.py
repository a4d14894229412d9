"""Small random traces with planted faults, each from one seed."""

from dataclasses import dataclass, field
from random import Random

from ensue.core.event import event_id
from ensue.core.trace import Row

TOPICS = ("x", "y", "z")
FAULTS = (
    "swap",
    "drop",
    "duplicate",
    "phantom",
    "relabel",
    "void",
    "uninvited",
    "tag",
    "leave",
    "crash",
    "stop_early",
)


@dataclass
class Subscription:
    node: str
    name: str
    topics: set[str]
    position: int = 0
    pending: list[Row] = field(default_factory=list)


class World:
    """Publishes and delivers at random: in one total order, except for planted faults."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.places = Random(f"positions of {seed}")
        """Draws only positions, so that the rest of a seed's trace does not depend on them."""
        self.miscounts = self.places.random() < 0.1
        self.rows: list[Row] = []
        self.time_ns = 0
        self.steps: dict[str, int] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.down: set[str] = set()
        self.faults = {fault for fault in FAULTS if self.random.random() < 0.25}
        self.simulated = self.random.random() < 0.6
        self.topics = TOPICS[: self.random.randint(2, 3)]
        self.publishers = [f"n{i}" for i in range(1, self.random.randint(2, 3) + 1)]
        nodes = [f"n{i}" for i in range(2, 6)]
        self.skew_ns = {node: self.random.randint(-5, 5) for node in {*self.publishers, *nodes}}
        self.subscriptions = [
            Subscription(node, self.random.choice(("", "a")), set())
            for node in self.random.sample(nodes, self.random.randint(2, 4))
        ]
        if self.random.random() < 0.2:
            self.subscriptions[-1].node = self.subscriptions[0].node
            self.subscriptions[-1].name = "b"

    def fault(self, name: str, chance: float = 0.2) -> bool:
        return name in self.faults and self.random.random() < chance

    def row(self, node: str, action: str, **columns: object) -> Row:
        self.time_ns += self.random.choice((0, 1, 10))
        self.steps[node] = self.steps.get(node, 0) + 1
        row = Row(
            run="r",
            node=node,
            step=self.steps[node],
            at_ns=self.time_ns + self.skew_ns[node],
            true_ns=self.time_ns if self.simulated else None,
            action=action,
            **columns,  # type: ignore[arg-type]
        )
        self.rows.append(row)
        return row

    def publish(self) -> None:
        node = self.random.choice(self.publishers)
        topic = self.random.choice(self.topics)
        if node in self.down:
            return
        number = self.numbers[node, topic] = self.numbers.get((node, topic), 0) + 1
        row = self.row(
            node,
            "published",
            event=event_id(node, topic, number),
            topic=topic,
            publisher=node,
            publisher_seq=number,
        )
        void = self.fault("void")
        if void:
            self.row(node, "discarded", event=row.event, topic=topic, verdict="void")
        for subscription in self.subscriptions:
            invited = topic in subscription.topics or self.fault("uninvited", 0.1)
            if invited and (not void or self.fault("void")):
                subscription.pending.append(row)

    def deliver(self, subscription: Subscription) -> None:
        if not subscription.pending or subscription.node in self.down:
            return
        place = 0
        if self.fault("swap") and len(subscription.pending) > 1:
            place = self.random.randrange(len(subscription.pending))
        row = subscription.pending.pop(place)
        if self.fault("drop"):
            if self.random.random() < 0.5:
                self.row(subscription.node, "discarded", event=row.event, verdict="late")
            return
        if self.fault("duplicate"):
            subscription.pending.insert(self.random.randint(0, len(subscription.pending)), row)
        event, number = row.event, row.publisher_seq
        if self.fault("phantom", 0.1):
            event, number = f"ghost-{self.random.randint(1, 3)}", self.random.randint(1, 9)
        if self.fault("relabel", 0.1):
            number = self.random.randint(1, 9)
        self.row(
            subscription.node,
            "delivered",
            event=event,
            topic=row.topic,
            publisher=row.publisher,
            publisher_seq=number,
            subscription=subscription.name,
            position=self.position(subscription),
            verdict="out_of_order" if self.fault("tag") else "",
        )

    def position(self, subscription: Subscription) -> int | None:
        """Return the next position; a tenth of all worlds skips or repeats some, or has none."""
        subscription.position += 1
        if self.miscounts and self.places.random() < 0.2:
            subscription.position += self.places.choice((-2, -1, 1, 2))
        if self.miscounts and self.places.random() < 0.1:
            return None
        return subscription.position

    def change(self, subscription: Subscription) -> None:
        topic = self.random.choice(self.topics)
        if subscription.node in self.down:
            return
        if topic not in subscription.topics or self.fault("leave", 0.05):
            subscription.topics.add(topic)
            action = "subscribed"
        elif self.fault("leave", 0.5):
            subscription.topics.remove(topic)
            kept = [one for one in subscription.pending if one.topic != topic]
            subscription.pending = subscription.pending if self.fault("uninvited") else kept
            action = "unsubscribed"
        else:
            return
        self.row(subscription.node, action, topic=topic, subscription=subscription.name)

    def crash(self) -> None:
        node = self.random.choice(sorted(self.steps))
        if node in self.down:
            self.down.remove(node)
            self.row(node, "restarted")
            for subscription in self.subscriptions:
                if subscription.node == node and self.places.random() < 0.5:
                    subscription.position = 0
            mine = [one for one in self.rows if one.node == node and one.action == "published"]
            for one in {one.event: one for one in mine}.values():
                if self.random.random() < 0.3:
                    self.row(
                        node,
                        "published",
                        event=one.event,
                        topic=one.topic,
                        publisher=one.publisher,
                        publisher_seq=one.publisher_seq,
                    )
        else:
            self.row(node, "crashed")
            self.down.add(node)


def ring(seed: int) -> list[Row]:
    """Make subscribers that each deliver two neighbors of a ring of events, mostly clockwise."""
    world = World(seed)
    world.faults = {"tag"} if world.random.random() < 0.3 else set()
    world.subscriptions = [Subscription(node, "", set()) for node in ("n2", "n3", "n4", "n5")]
    ring_size = world.random.randint(3, 4)
    published: list[Row] = []
    while len(published) < ring_size:
        world.publish()
        published = [row for row in world.rows if row.action == "published"]
    for number, subscription in enumerate(world.subscriptions):
        pair = [published[(number + offset) % ring_size] for offset in (0, 1)]
        if world.random.random() < 0.1:
            pair.reverse()
        subscription.pending = pair
        world.deliver(subscription)
        world.deliver(subscription)
    return world.rows


def generate(seed: int) -> list[Row]:
    """Make a run of up to 12 events."""
    if seed % 20 == 0:
        return ring(seed)
    world = World(seed)
    for subscription in world.subscriptions:
        for _ in range(3):
            world.change(subscription)
    publish_count = world.random.randint(3, 12)
    while publish_count:
        subscription = world.random.choice(world.subscriptions)
        turn = world.random.random()
        if turn < 0.35:
            publish_count -= 1
            world.publish()
        elif turn < 0.85:
            world.deliver(subscription)
        elif turn < 0.95:
            world.change(subscription)
        elif "crash" in world.faults:
            world.crash()
    if "stop_early" not in world.faults:
        for subscription in world.subscriptions:
            while subscription.pending and subscription.node not in world.down:
                world.deliver(subscription)
    world.random.shuffle(world.rows)
    return world.rows
