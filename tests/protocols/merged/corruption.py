"""Corrupt all state of the small world at once, and measure how long faults are visible."""

from itertools import count
from random import Random

from tests.protocols.merged.harness import Happened, Merging, Options, Process, World

from ensue.core.event import Event
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import Held, Merger
from ensue.protocols.merged.timestamps import (
    AnyTimestamp,
    ArrayTimestamp,
    CounterTimestamp,
    Timeline,
    timestamps_for,
)


def any_timestamp(random: Random, config: MergedConfig, tick: int) -> AnyTimestamp:
    """Return a false timestamp: near the truth, at its bounds, or far off."""
    epsilon = config.epsilon_ticks
    near = config.span_ticks + 2
    r = random.choice((tick + random.randint(-near, near), tick + epsilon, random.randrange(10**9)))
    c = random.choice((0, epsilon, random.randint(0, epsilon), random.randrange(10**6)))
    if config.array:
        counts = [random.randrange(config.count_max + 1) for _ in range(2 * epsilon + 1)]
        if random.random() < 0.7 and c <= epsilon:
            counts[epsilon + c] = max(1, counts[epsilon + c])
            counts[epsilon + c + 1 :] = [0] * (epsilon - c)
        return ArrayTimestamp(r, c, tuple(counts))
    bound = config.count_max * (epsilon + 1)
    return CounterTimestamp(r, c, random.choice((0, random.randrange(bound), bound - 1, 10**9)))


def corrupt_merger(random: Random, merger: Merger, tick: int) -> None:
    """Fill a merger's memory with random values."""
    config = merger.config
    counts = (0,) * (config.epsilon_ticks + 1 if config.array else 1)
    for _ in range(random.randrange(6)):
        made = any_timestamp(random, config, tick)
        key = ((made.r + made.c, *counts), "ghost", 0)
        event = Event(topic="t", payload=b"", publisher="ghost", publisher_seq=0)
        bucket = random.choice((made.r + made.c, random.randrange(10**9)))
        merger._held.setdefault(bucket, {})[key] = Held(key, event, made, 0)
    merger._reaches = [random.randrange(2 * tick + 2) for _ in range(random.randrange(4))]
    merger._count = random.randrange(100)
    merger._tick = random.choice((0, tick, tick + random.randrange(100), 10**12))
    merger._audit_tick = random.choice((0, tick, 10**12))
    if random.random() < 0.7:
        made = any_timestamp(random, config, tick)
        merger._frontier = ((made.r + made.c, *counts), "zzz", 0)


def corrupt_process(random: Random, process: Process) -> None:
    """Corrupt the memory of a process."""
    assert isinstance(process.merger, Merger)
    assert isinstance(process.line, Timeline)
    corrupt_merger(random, process.merger, process.tick)
    if random.random() < 0.8:
        process.line.last = any_timestamp(random, process.merger.config, process.tick)


class Recovery:
    """A corrupted and repaired world, with the violations found after the repair."""

    def __init__(self, world: World, mended_tick: int, first: int) -> None:
        self.world = world
        self._mended_tick = mended_tick
        """Reading of the fastest clock at the repair."""
        self._first = first
        """The number of the first event after that."""
        self._pairs = world.pairs_against_causality()

    def made_after(self, ticks: int) -> set[int]:
        """Return the events made more than `ticks` after the repair."""
        return {
            each.number
            for each in self.world.events[self._first :]
            if each.tick > self._mended_tick + ticks
        }

    def wrong_timestamps(self, ticks: int) -> list[tuple[Happened, Happened]]:
        """Causes whose key is not smaller than their effect's, both made so long after."""
        later = self.made_after(ticks)
        return [
            (cause, effect)
            for cause, effect in self._pairs
            if cause.number in later and effect.number in later
        ]

    def wrong_deliveries(self, ticks: int) -> dict[str, object]:
        """Violations in deliveries of events made so long after, by name."""
        world, later = self.world, self.made_after(ticks)
        everything = [process.delivered for process in world.processes]
        for process in world.processes:
            process.delivered = [
                (message, tick)
                for message, tick in process.delivered
                if message.sender.number in later
            ]
        found: dict[str, object] = {
            "against causality": world.deliveries_against_causality(),
            "different orders": world.different_orders(),
            "not delivered": [
                message for message in world.not_delivered() if message.sender.number in later
            ],
        }
        for process, delivered in zip(world.processes, everything, strict=True):
            process.delivered = delivered
        return {name: what for name, what in found.items() if what}

    def ticks(self) -> int:
        """Return after how many ticks since the repair no new event violates a rule."""
        return next(
            ticks
            for ticks in count()
            if not self.wrong_timestamps(ticks) and not self.wrong_deliveries(ticks)
        )


def after_corruption(seed: int, options: Options) -> Recovery:
    """Run a world in which all state is corrupted half-way.

    Clocks jump and are repaired before the count begins, as the theorem requires. Ghosts from
    corrupted buffers are removed: no process sent them.
    """
    config = options.config()
    kind = timestamps_for(config)

    def accepts(made: AnyTimestamp, tick: int) -> bool:
        """Return whether publishers and subscribers accept a timestamp."""
        return kind.is_sound(made) and made.r + made.c <= tick + config.epsilon_ticks

    world = World(seed, options, accepts=accepts)
    random = Random(seed + 10**6)
    for _ in range(options.steps):
        world.step()
    true_ticks = [process.tick for process in world.processes]
    for process in world.processes:
        process.tick = max(0, process.tick + random.randint(-30, 30))
        if random.random() < 0.5:
            world.event(process)
        corrupt_process(random, process)
    for message in world.under_way:
        if random.random() < 0.7:
            message.timestamp = any_timestamp(random, world.config, message.sender.tick)
    for process, tick in zip(world.processes, true_ticks, strict=True):
        process.tick = tick
        corrupt_process(random, process)
    for process in world.processes:
        process.merger = _WithoutGhosts(process.merger)
    mended, first = max(true_ticks), len(world.events)
    for _ in range(options.steps * 3):
        world.step()
    world.finish()
    return Recovery(world, mended, first)


class _WithoutGhosts:
    """A merger that hides ghosts."""

    def __init__(self, inner: Merging) -> None:
        self.inner = inner

    @property
    def held_count(self) -> int:
        return self.inner.held_count

    def offer(self, held: Held, tick: int) -> str:
        return self.inner.offer(held, tick)

    def advance(self, tick: int) -> tuple[list[Held], list[Held]]:
        leaving, overtaken = self.inner.advance(tick)
        return _real(leaving), _real(overtaken)


def _real(held: list[Held]) -> list[Held]:
    return [each for each in held if each.event.publisher != "ghost"]
