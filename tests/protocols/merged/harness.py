"""A small adversarial world for timestamps and mergers, with the true happened-before relation.

Every process publishes and merges. A scheduler drawn from a seed moves single clocks, makes local,
send and receive events, and keeps the two bounds: clocks never differ by more than epsilon, and a
message is received before its sender's clock has advanced by more than delta, or lost. `Options`
lets it break the bounds, or be as benign as the model of the paper.

Factories build the parts under test, so that the published rules can replace ours. Ticks are clock
values: there are no nanoseconds here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from random import Random
from typing import Any, Protocol

from ensue.core.event import Event
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import ACCEPTED, LATE, Held, Merger
from ensue.protocols.merged.timestamps import Timeline, timestamps_for

LOST = "lost in a crash"


class Line(Protocol):
    """A process's timestamps: `Timeline`, or a published one."""

    def event(self, tick: int, received: Sequence[Any] = ()) -> Any: ...


class Merging(Protocol):
    """`Merger`, or a published one."""

    def offer(self, held: Held, tick: int) -> str: ...

    def advance(self, tick: int) -> tuple[list[Held], list[Held]]: ...

    @property
    def held_count(self) -> int: ...


@dataclass(frozen=True)
class Options:
    """How the scheduler behaves."""

    epsilon: int = 2
    delta: int = 4
    processes: int = 3
    steps: int = 150
    per_tick: int = 1
    """Events of one process at one value of its clock."""
    per_send: int = 1
    """Maximum messages of one send event to one target."""
    skip: int = 1
    """How far a clock may move at once."""
    loss: float = 0.0
    duplication: float = 0.0
    lateness: int = 0
    """By how many ticks of the sender's clock a message may be later than delta."""
    early_ticks: bool = True
    """Whether a message may be received at once, or only when its receiver's clock has moved."""
    earliest: int = 0
    """Minimum ticks of its sender's clock before a message is received."""
    restarts: float = 0.0
    """The chance that a process loses all that it knows and holds, at each step."""
    rest: int | None = None
    """Ticks without events after that; None: epsilon + 1."""
    quiet: float = 0.0
    """The chance that a process makes no event for a long time."""
    array: bool = False
    modulus: int | None = None
    longest_lateness: int = 0

    def config(self) -> MergedConfig:
        return MergedConfig(
            epsilon_ticks=self.epsilon,
            delta_ticks=self.delta,
            tick_ns=1,
            array=self.array,
            modulus=self.modulus,
            lateness_ticks=self.longest_lateness,
            processes_max=self.processes,
            events_per_tick_max=max(1, self.per_tick),
        )


@dataclass
class Happened:
    """An event, and all events that happened before it, as bits."""

    number: int
    process: int
    tick: int
    timestamp: Any
    before: int


@dataclass
class Message:
    """A message under way to one process."""

    number: int
    sender: Happened
    index: int
    target: int
    timestamp: Any
    received_tick: int | None = None
    lost: bool = False


@dataclass
class Process:
    """One process: its clock, its timestamps, its merger and released messages."""

    number: int
    line: Line
    merger: Merging
    tick: int = 0
    last: Happened | None = None
    made: int = 0
    """Events made at this value of the clock."""
    quiet_until: int = 0
    resting_until: int = 0
    """It has restarted, and nothing reaches it until then."""
    delivered: list[tuple[Message, int]] = field(default_factory=list)
    """Each message, and what its sender's clock showed then."""
    refused: list[tuple[Message, str]] = field(default_factory=list)
    overtaken: list[Message] = field(default_factory=list)


MakeLine = Callable[[MergedConfig], Line]
MakeMerger = Callable[[MergedConfig], Merging]
MakeKey = Callable[[MergedConfig, Any], tuple[int, ...]]


def our_line(config: MergedConfig) -> Line:
    return Timeline(timestamps_for(config))


def our_key(config: MergedConfig, timestamp: Any) -> tuple[int, ...]:
    return timestamps_for(config).key(timestamp)


class World:
    """One run. `play` it, then read its violations."""

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        *,
        line: MakeLine = our_line,
        merger: MakeMerger = Merger,
        key: MakeKey = our_key,
        accepts: Callable[[Any, int], bool] = lambda _timestamp, _tick: True,
        carry: Callable[[Any, int, int], Any] = lambda timestamp, _sent, _read: timestamp,
        tie: Callable[[int, int], tuple[str, int]] = lambda process, index: (f"p{process}", index),
    ) -> None:
        self.seed = seed
        self.options = options or Options()
        self.config = self.options.config()
        self.random = Random(seed)
        self.key = key
        self.accepts = accepts
        """Whether a process accepts a timestamp at a tick."""
        self.carry = carry
        """Converts a timestamp in transit: from one clock's tick to another's."""
        self.tie = tie
        self.make_line, self.make_merger = line, merger
        self.processes = [
            Process(number, line(self.config), merger(self.config))
            for number in range(self.options.processes)
        ]
        self.patience = self.random.choice((0.0, 0.5, 0.95))
        """The chance that a message that could be received is left for later."""
        self.speeds = [self.random.choice((1, 1, 10)) for _ in self.processes]
        start = self.random.randrange(self.options.epsilon, 50)
        for process in self.processes:
            process.tick = start + self.random.randint(0, self.options.epsilon)
        self.events: list[Happened] = []
        self.messages: list[Message] = []
        self.under_way: list[Message] = []

    # -- What processes do ------------------------------------------------------------------------

    def event(self, process: Process, received: Sequence[Message] = ()) -> Happened:
        before, stamps = 0, []
        if process.last is not None:
            before |= process.last.before | 1 << process.last.number
        for message in received:
            before |= message.sender.before | 1 << message.sender.number
            stamps.append(self.carry(message.timestamp, message.sender.tick, process.tick))
        timestamp = process.line.event(process.tick, stamps)
        made = Happened(len(self.events), process.number, process.tick, timestamp, before)
        self.events.append(made)
        process.last = made
        process.made += 1
        return made

    def send(self, process: Process, targets: Sequence[int], count: int = 1) -> list[Message]:
        made = self.event(process)
        sent = []
        for target in targets:
            for index in range(count):
                message = Message(len(self.messages), made, index, target, made.timestamp)
                self.messages.append(message)
                self.under_way.append(message)
                sent.append(message)
        self.random.shuffle(self.under_way)
        return sent

    def receive(self, message: Message) -> None:
        self.under_way.remove(message)
        process = self.processes[message.target]
        read = self.carry(message.timestamp, message.sender.tick, process.tick)
        if not self.accepts(read, process.tick):
            return
        if message.received_tick is None:
            message.received_tick = process.tick
        self.event(process, (message,))
        self.offer(process, message)

    def offer(self, process: Process, message: Message) -> None:
        made = message.sender
        read = self.carry(message.timestamp, made.tick, process.tick)
        tie, index = self.tie(made.process, message.index)
        event = Event(topic="t", payload=b"", publisher=tie, publisher_seq=message.number)
        key = (self.key(self.config, read), tie, index)
        verdict = process.merger.offer(Held(key, event, read, process.tick), process.tick)
        if verdict != ACCEPTED:
            process.refused.append((message, verdict))

    def move(self, process: Process, by: int = 1) -> None:
        process.tick += by
        process.made = 0
        leaving, overtaken = process.merger.advance(process.tick)
        for held in leaving:
            message = self.messages[held.event.publisher_seq]
            process.delivered.append((message, self.processes[message.sender.process].tick))
        process.overtaken += [self.messages[held.event.publisher_seq] for held in overtaken]

    def restart(self, process: Process) -> None:
        """Forget everything but the clock; what was held counts as lost."""
        assert isinstance(process.merger, Merger)
        for held in process.merger.held():
            process.refused.append((self.messages[held.event.publisher_seq], LOST))
        process.line = self.make_line(self.config)
        process.merger = self.make_merger(self.config)
        rest = self.options.epsilon + 1 if self.options.rest is None else self.options.rest
        process.resting_until = process.tick + rest

    # -- The scheduler ----------------------------------------------------------------------------

    def play(self) -> "World":
        for _ in range(self.options.steps):
            self.step()
        self.finish()
        return self

    def step(self) -> None:
        process = self.random.choice(self.processes)
        choice = self.random.random()
        if self.options.restarts and self.random.random() < self.options.restarts:
            self.restart(process)
        elif choice < 0.35:
            self.try_to_move(self.random.choices(self.processes, self.speeds)[0])
        elif choice < 0.65 and self.under_way:
            message = self.random.choice(self.under_way)
            if self.random.random() >= self.patience and self.may_receive(message):
                self.receive(message)
        elif process.made < self.options.per_tick and process.tick >= max(
            process.quiet_until, process.resting_until
        ):
            if choice < 0.72:
                self.event(process)
            else:
                self.send_somewhere(process)
            if self.random.random() < self.options.quiet:
                process.quiet_until = process.tick + self.random.randrange(40)

    def send_somewhere(self, process: Process) -> None:
        others = [each.number for each in self.processes if each is not process]
        targets = self.random.sample(others, self.random.randint(1, len(others)))
        sent = self.send(process, targets, self.random.randint(1, self.options.per_send))
        for message in sent:
            if self.random.random() < self.options.loss:
                self.under_way.remove(message)
                message.lost = True
            elif self.random.random() < self.options.duplication:
                self.under_way.append(message)

    def may_receive(self, message: Message) -> bool:
        target, made = self.processes[message.target], message.sender
        if target.made >= self.options.per_tick or target.tick < target.resting_until:
            return False
        if self.processes[made.process].tick < made.tick + self.options.earliest:
            return False
        return self.options.early_ticks or target.tick > made.tick - self.options.epsilon

    def try_to_move(self, process: Process) -> None:
        """Move a clock if the bounds allow it; receive or lose first what would be too late."""
        options = self.options
        lowest = min(each.tick for each in self.processes)
        by = self.random.randint(1, options.skip)
        moving = [process]
        if options.epsilon == 0:
            moving = self.processes  # Clocks that are always alike move together.
        else:
            by = min(by, lowest + options.epsilon - process.tick)
            if by < 1:
                return
        for each in moving:
            self.settle(each, each.tick + by)
        for each in moving:
            self.move(each, by)

    def settle(self, sender: Process, tick: int) -> None:
        """Receive or lose messages of a process that would be too late at a tick of its clock."""
        for message in list(self.under_way):
            made = message.sender
            last = made.tick + self.options.delta + self.options.lateness
            if made.process == sender.number and tick > last:
                if self.may_receive(message) and self.random.random() < 0.9:
                    self.receive(message)
                else:
                    self.under_way.remove(message)
                    message.lost = message.received_tick is None

    def finish(self) -> None:
        """Run all clocks until nothing can be under way or held."""
        last = max(each.tick for each in self.processes) + 3 * self.config.span_ticks
        while min(each.tick for each in self.processes) < last:
            slowest = min(self.processes, key=lambda each: each.tick)
            self.try_to_move(slowest)

    # -- What is wrong ----------------------------------------------------------------------------

    def happened_before(self, cause: Happened, effect: Happened) -> bool:
        return bool(effect.before >> cause.number & 1)

    def pairs_against_causality(self) -> list[tuple[Happened, Happened]]:
        """Theorem 3.6: causes whose key is not smaller than their effect's."""
        keys = [self.key(self.config, each.timestamp) for each in self.events]
        return [
            (cause, effect)
            for effect in self.events
            for cause in self.events
            if self.happened_before(cause, effect) and not keys[cause.number] < keys[effect.number]
        ]

    def deliveries_against_causality(self) -> list[tuple[int, Message, Message]]:
        return [
            (process.number, first, second)
            for process in self.processes
            for (first, _), (second, _) in combinations(process.delivered, 2)
            if self.happened_before(second.sender, first.sender)
        ]

    def different_orders(self) -> list[tuple[int, int]]:
        """Pairs of processes that delivered common messages in different orders."""
        found = []
        for one, other in combinations(self.processes, 2):
            orders = [
                [(message.sender.number, message.index) for message, _ in process.delivered]
                for process in (one, other)
            ]
            common = set(orders[0]) & set(orders[1])
            if [x for x in orders[0] if x in common] != [x for x in orders[1] if x in common]:
                found.append((one.number, other.number))
        return found

    def not_delivered(self) -> list[Message]:
        """Messages that arrived in time and were never released."""
        out = {message.number for process in self.processes for message, _ in process.delivered}
        late = {
            message.number
            for process in self.processes
            for message, verdict in process.refused
            if verdict in (LATE, LOST)
        }
        return [
            message
            for message in self.messages
            if message.received_tick is not None
            and message.number not in out
            and message.number not in late
        ]

    def delivered_twice(self) -> list[Message]:
        found = []
        for process in self.processes:
            seen: set[int] = set()
            for message, _ in process.delivered:
                if message.number in seen:
                    found.append(message)
                seen.add(message.number)
        return found

    def slow_deliveries(self) -> list[Message]:
        """Lemma 4.1: messages released after the sender's clock passed r + delta + 3 epsilon."""
        bound = self.config.span_ticks + self.options.skip - 1
        return [
            message
            for process in self.processes
            for message, sender_tick in process.delivered
            if sender_tick > message.sender.tick + bound
        ]

    def left_in_buffers(self) -> int:
        return sum(process.merger.held_count for process in self.processes)

    def wrong(self) -> dict[str, object]:
        """Violations by name; empty if there are none."""
        found: dict[str, object] = {
            "keys against causality": self.pairs_against_causality(),
            "deliveries against causality": self.deliveries_against_causality(),
            "different orders": self.different_orders(),
            "not delivered": self.not_delivered(),
            "delivered twice": self.delivered_twice(),
            "slow": self.slow_deliveries(),
            "left in buffers": self.left_in_buffers(),
        }
        return {name: what for name, what in found.items() if what}


def bad_seeds(play: Callable[[int], World], seeds: range, *, what: str | None = None) -> list[int]:
    """The seeds with a violation, or with this one."""
    found = []
    for seed in seeds:
        wrong = play(seed).wrong()
        if what in wrong if what is not None else wrong:
            found.append(seed)
    return found


def config(epsilon: int, delta: int, **others: Any) -> MergedConfig:
    return MergedConfig(epsilon_ticks=epsilon, delta_ticks=delta, tick_ns=1, **others)


def ours(seed: int, options: Options) -> World:
    return World(seed, options).play()


def cured(options: Options, seeds: range) -> None:
    """Our rules have no violation, with either kind of timestamps."""
    for array in (False, True):
        chosen = replace(options, array=array)
        assert bad_seeds(partial(ours, options=chosen), seeds) == [], chosen
