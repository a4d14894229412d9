"""The algorithms as published (VCube-PS, Algorithms 1 and 2), to show where they go wrong.

Two misprints are corrected, because nothing works with them: line 48 empties the acknowledgement,
not the publication; lines 55 to 59 look a tuple up in the order in which it was put. Numbers in
comments are lines of the paper's listing.
"""

from dataclasses import dataclass, field, replace

from ensue.protocols.causal.hypercube import cluster_of, cluster_order

T = "t"
"""All of it happens in one topic."""

Id = tuple[int, int]
"""Source and counter."""


@dataclass(frozen=True)
class Message:
    kind: str
    source: int
    counter: int
    data: object = None
    barrier: frozenset[Id] = frozenset()
    members: frozenset[tuple[int, str, int]] = frozenset()


@dataclass
class Pending:
    parent: int | None
    left: int
    members: frozenset[tuple[int, str, int]] = frozenset()


@dataclass
class PublishedNode:
    """One node, in one topic."""

    number: int
    dimensions: int
    counter: int = 0
    view: frozenset[tuple[int, str, int]] = frozenset()
    tasks: int = 0
    """Propagation tasks that are idle; each sends one message at a time."""
    queue: list[Message] = field(default_factory=list)
    acks: dict[Id, Pending] = field(default_factory=dict)
    barrier: frozenset[Id] = frozenset()
    messages: dict[Id, Message] = field(default_factory=dict)
    waiting: dict[Id, frozenset[Id]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    outbox: list[tuple[int, Message]] = field(default_factory=list)
    received: list[Id] = field(default_factory=list)
    delivered: list[object] = field(default_factory=list)

    def subscribed(self) -> bool:
        return any(who == self.number and what == "SUB" for who, what, _ in self.view)

    # -- Algorithm 1 ----------------------------------------------------------------------------

    def subscribe(self) -> None:
        if not self.subscribed():
            self.view = frozenset({(self.number, "SUB", self.counter)})  # 6
            self._broadcast("SUB")

    def unsubscribe(self) -> None:
        if self.subscribed():
            mine = {entry for entry in self.view if entry[0] == self.number}
            self.view -= mine  # 12
            self._broadcast("UNS")

    def publish(self, data: object) -> None:
        if self.subscribed():
            self._broadcast("PUB", data)

    # -- Algorithm 2, sending -------------------------------------------------------------------

    def _broadcast(self, kind: str, data: object = None) -> None:
        message = Message(kind, self.number, self.counter, data)
        self.counter += 1
        if kind == "SUB":
            self.tasks += 1  # 11: one more task, whether or not an older one lives
        self.queue.append(message)
        self._propagate()

    def _propagate(self) -> None:
        while self.tasks and self.queue:
            message = self.queue.pop(0)
            if message.kind == "PUB":
                self.first.setdefault(self.number, message.counter)  # 17-18
                self._deliver(message)
                message = replace(message, barrier=self.barrier)
                self.barrier = frozenset({(self.number, message.counter)})  # 22
            children = self._children(message, self.dimensions)
            for child in children:
                self.outbox.append((child, message))
            if children:
                self.tasks -= 1
                self.acks[message.source, message.counter] = Pending(None, len(children))
                continue
            self._acknowledged(message)

    def _acknowledged(self, message: Message) -> None:
        if message.kind == "UNS":  # 32-36
            self.messages.clear()
            self.waiting.clear()
            self.first.clear()
            self.last.clear()
            if not self.queue:
                self.tasks -= 1

    def _children(self, message: Message, height: int) -> list[int]:
        subscribers = {who for who, what, _ in self.view if what == "SUB"}
        children = []
        for cluster in range(1, height + 1):
            order = cluster_order(self.number, cluster)
            if message.kind != "SUB":
                order = [each for each in order if each in subscribers]
            children += order[:1]
        return children

    # -- Algorithm 2, receiving -----------------------------------------------------------------

    def receive(self, message: Message, sender: int) -> None:
        if message.kind == "ACK":
            self._receive_ack(message)
        else:
            children = self._children(message, cluster_of(self.number, sender) - 1)  # 42, 44
            key = (message.source, message.counter)
            if children:
                self.acks[key] = Pending(sender, len(children))
                self.outbox += [(child, message) for child in children]
            else:
                self._send_ack(sender, Message("ACK", *key, data=message.kind))
        if not self.subscribed():  # 62
            return
        if message.kind == "PUB":
            key = (message.source, message.counter)
            self.received.append(key)
            self.first.setdefault(message.source, message.counter)
            self.waiting[key] = message.barrier
            self.messages[key] = message
            self._check()
        elif message.kind == "ACK":
            self._update(message.members)
        else:
            self._update(frozenset({(message.source, message.kind, message.counter)}))
            if message.kind == "UNS":
                self.first.pop(message.source, None)  # 74

    def _receive_ack(self, message: Message) -> None:
        key = (message.source, message.counter)
        pending = self.acks[key]
        pending.members |= message.members
        pending.left -= 1
        if pending.left:
            return
        del self.acks[key]
        answer = replace(message, members=pending.members)
        if pending.parent is not None:
            self._send_ack(pending.parent, answer)
            return
        if self.subscribed():
            self._update(pending.members)
        self.tasks += 1
        kind = message.data
        assert isinstance(kind, str)
        self._acknowledged(Message(kind, *key))
        self._propagate()

    def _send_ack(self, parent: int, message: Message) -> None:
        if self.subscribed() and message.source not in self.first:  # 96
            mine = {entry for entry in self.view if entry[0] == self.number}
            message = replace(message, members=message.members | mine)
        self.outbox.append((parent, message))

    def _update(self, entries: frozenset[tuple[int, str, int]]) -> None:
        latest = {who: (who, what, count) for who, what, count in self.view}
        for who, what, count in entries:
            if who not in latest or latest[who][2] < count:
                latest[who] = (who, what, count)
        self.view = frozenset(latest.values())

    # -- Algorithm 2, delivering ----------------------------------------------------------------

    def _deliver(self, message: Message) -> None:
        self.delivered.append(message.data)
        self.last[message.source] = message.counter

    def _check(self) -> None:
        while ready := [key for key, barrier in self.waiting.items() if self._met(barrier)]:
            key = ready[0]
            barrier = self.waiting.pop(key)
            self._deliver(self.messages.pop(key))
            self.barrier = (self.barrier - barrier) | {key}  # 89

    def _met(self, barrier: frozenset[Id]) -> bool:
        return all(
            self.last.get(source, -1) >= counter or self.first.get(source, -1) > counter  # 92
            for source, counter in barrier
        )


class PublishedNet:
    """Nodes, and messages in flight that arrive when a test delivers them."""

    def __init__(self, count: int) -> None:
        dimensions = (count - 1).bit_length()
        self.nodes = [PublishedNode(number, dimensions) for number in range(count)]
        self.links: dict[tuple[int, int], list[Message]] = {}
        self.slow: set[tuple[int, int]] = set()
        """Links on which nothing arrives for now."""

    def collect(self) -> None:
        for node in self.nodes:
            for target, message in node.outbox:
                self.links.setdefault((node.number, target), []).append(message)
            node.outbox.clear()

    def run(self) -> None:
        """Deliver all messages that are not on a slow link."""
        self.collect()
        while links := [link for link in sorted(self.links) if link not in self.slow]:
            for link in links:
                source, target = link
                for message in self.links.pop(link):
                    self.nodes[target].receive(message, source)
                    self.collect()

    def arrive(self, source: int, target: int, index: int = 0) -> None:
        """Deliver one message of a link, by default the first."""
        self.collect()
        messages = self.links[source, target]
        message = messages.pop(index)
        if not messages:
            del self.links[source, target]
        self.nodes[target].receive(message, source)
        self.collect()

    def subscribe(self, *numbers: int) -> None:
        for number in numbers:
            self.nodes[number].subscribe()
            self.run()
