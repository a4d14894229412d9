"""Small random traces of one durable subscription in several lives, with planted faults."""

from random import Random

from ensue.core.event import event_id
from ensue.core.trace import Row

FAULTS = (
    "late start",
    "early start",
    "other events",
    "moved",
    "superseded",
    "strange",
    "back",
    "set back",
)


class Reader:
    """A durable subscription that hands out the events of one publisher, life after life."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"durable lives {seed}")
        self.faults = {fault for fault in FAULTS if self.random.random() < 0.25}
        self.simulated = self.random.random() < 0.6
        self.rows: list[Row] = []
        self.steps: dict[str, int] = {}
        self.time_ns = 0
        self.skew_ns = {node: self.random.randint(-4, 4) for node in ("n1", "n2", "n3")}
        self.base = 0
        """How much greater the numbers of events are than positions."""
        self.safe = 0
        self.published = 0

    def fault(self, name: str, chance: float = 0.5) -> bool:
        return name in self.faults and self.random.random() < chance

    def row(self, node: str, action: str, **columns: object) -> None:
        self.time_ns += self.random.choice((0, 1, 1, 5))
        self.steps[node] = self.steps.get(node, 0) + 1
        row = Row(
            run="r",
            node=node,
            step=self.steps[node],
            at_ns=self.time_ns + self.skew_ns.get(node, 0),
            true_ns=self.time_ns if self.simulated else None,
            action=action,
            **columns,  # type: ignore[arg-type]
        )
        self.rows.append(row)

    def of_name(self, node: str, action: str, **columns: object) -> None:
        self.row(node, action, subscription="billing", **columns)

    def event(self, node: str, action: str, position: int, number: int, verdict: str = "") -> None:
        self.publish(number)
        self.of_name(
            node,
            action,
            event=event_id("p", "x", number),
            topic="x",
            publisher="p",
            publisher_seq=number,
            position=position,
            verdict=verdict,
        )

    def publish(self, number: int) -> None:
        while self.published < number:
            self.published += 1
            self.row(
                "p",
                "published",
                event=event_id("p", "x", self.published),
                topic="x",
                publisher="p",
                publisher_seq=self.published,
            )

    def live(self) -> None:
        """Have one life of the subscription."""
        random = self.random
        node = random.choice(("n1", "n2", "n3"))
        if self.fault("set back"):
            self.skew_ns[node] -= 30
        if random.random() < 0.7 or node not in self.steps:
            self.of_name(node, "subscribed", topic="x")
        elif random.random() < 0.7:
            self.row(node, "restarted")
        position = self.safe
        if self.fault("early start"):
            position = random.randint(0, self.safe)
        if self.fault("late start", 0.3):
            position += random.randint(0, 2)
        if self.fault("other events", 0.3):
            position, self.base = 0, self.published + 1
            self.safe = 0 if random.random() < 0.8 else self.safe
        shift = random.choice((1, 2)) if self.fault("moved", 0.3) else 0
        for _ in range(random.randint(0, 5)):
            position += 1
            if random.random() < 0.1:
                self.event(node, "discarded", position, self.base + position, "unread")
            elif self.fault("strange", 0.2):
                self.event(node, "delivered", position, self.published + 1)
            elif self.fault("back", 0.1) and position > 1:
                self.event(node, "delivered", position - 1, self.base + position - 1)
            else:
                self.event(node, "delivered", position + shift, self.base + position)
            if random.random() < 0.4 and position > self.safe:
                by = random.choice(("n1", "n2", "n3")) if self.fault("superseded") else node
                self.of_name(by, "acknowledged", position=position)
                self.safe = position
        self.end(node)

    def end(self, node: str) -> None:
        random = self.random
        verdict = random.choice(
            ("", "closed", "superseded", "forgotten", "rolled back", "replaced")
        )
        if random.random() < 0.5:
            self.of_name(node, "unsubscribed", topic="x", verdict=verdict)
            if verdict not in ("", "closed", "superseded") and random.random() < 0.8:
                if random.random() < 0.3 and self.safe:
                    self.of_name(node, "acknowledged", position=self.safe)
                self.safe = 0
                self.base = self.base if random.random() < 0.3 else self.published


def generate(seed: int) -> list[Row]:
    """Make a run of two to four lives; its rows are in random sequence."""
    reader = Reader(seed)
    for _ in range(reader.random.randint(2, 4)):
        reader.live()
    reader.random.shuffle(reader.rows)
    return reader.rows
