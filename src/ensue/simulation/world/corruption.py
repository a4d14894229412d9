"""Corruption of what merged order relies on: memories, and stamps in transit.

Stabilizing means that from any state of all nodes, the system recovers by itself. So what is done
here is as wild as can be: timestamps near the truth, at their bounds and far out; buffers with
entries in the wrong place; counters; frontiers in the future; old messages again.
"""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Effect, Frame
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import Held, Merger
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.relay import MergedRelay
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.merged.timestamps import AnyTimestamp, ArrayTimestamp, CounterTimestamp
from ensue.protocols.topic_log.frames import Notify

__all__ = ["Tampering", "scramble"]

REPLAYED = 16
"""Earlier events kept for replay."""
FAR = 10**12


def scramble(node: object, random: Random, now_ns: int) -> None:
    """Fill the memory of a node with arbitrary values of the right types."""
    if isinstance(node, Tampering):
        node = node.inner
    if isinstance(node, MergedRelay):
        # Not who listens: who is forgotten asks again, but that takes longer than the claim allows.
        node._sweep_due_ns = random.choice((0, now_ns, FAR * node.config.tick_ns))  # noqa: SLF001
        node = node.inner
    if isinstance(node, MergedPublisher):
        tick = node.config.tick(now_ns)
        node.timeline.last = _timestamp(random, node.config, tick)
        node._ready_tick = random.choice((0, tick, FAR))  # noqa: SLF001 - faults reach all
        node._busy_tick = random.choice((0, tick, FAR))  # noqa: SLF001
        node._waiting_count = random.choice((0, random.randrange(-100, 100), FAR))  # noqa: SLF001
        node._seen_ns = random.choice((0, now_ns))  # noqa: SLF001
        for unanswered in node._unanswered.values():  # noqa: SLF001
            unanswered.due_ns = random.choice((0, FAR)) * tick
        node._busy_count = random.randrange(node.config.events_per_tick_max)  # noqa: SLF001
    elif isinstance(node, MergedSubscriber):
        _scramble_merger(node.merger, random, node.config.tick(now_ns))
        for observed in node.watch.peers.values():
            observed.calm_tick = random.choice((0, FAR))
        node._poll_due_ns = random.choice((0, now_ns, FAR * node.config.tick_ns))  # noqa: SLF001


def _scramble_merger(merger: Merger, random: Random, tick: int) -> None:
    config = merger.config
    entries = list(merger.held())
    held: dict[int, dict[Any, Held]] = {}
    for each in entries:
        made = each.timestamp
        if random.random() < 0.5:
            made = _timestamp(random, config, tick)
        reach = random.choice((made.r + made.c, random.randrange(2 * tick + 1)))
        key = (_key(random, config, made.r + made.c), each.key[1], each.key[2])
        held.setdefault(reach, {})[key] = Held(key, each.event, made, each.received_ns)
    merger._held = held  # noqa: SLF001 - nothing is private to a fault
    merger._reaches = [random.randrange(2 * tick + 1) for _ in range(random.randrange(4))]  # noqa: SLF001
    merger._count = random.randrange(100)  # noqa: SLF001
    merger._tick = random.choice((0, tick, tick + random.randrange(1000), FAR))  # noqa: SLF001
    merger._audit_tick = random.choice((0, tick, FAR))  # noqa: SLF001
    made = _timestamp(random, config, tick)
    merger._frontier = (_key(random, config, made.r + made.c), "~", 0)  # noqa: SLF001


def _key(random: Random, config: MergedConfig, reach: int) -> tuple[int, ...]:
    size = config.epsilon_ticks + 1 if config.array else 1
    return (reach, *(random.randrange(4) for _ in range(size)))


def _timestamp(random: Random, config: MergedConfig, tick: int) -> AnyTimestamp:
    epsilon, near = config.epsilon_ticks, config.span_ticks + 2
    r = max(0, random.choice((tick + random.randint(-near, near), tick + epsilon, FAR)))
    c = random.choice((0, random.randint(0, epsilon), epsilon, random.randrange(10**6)))
    if config.array:
        counts = [random.randrange(5) for _ in range(2 * epsilon + 1)]
        if c <= epsilon and random.random() < 0.7:
            counts[epsilon + c :] = [1] + [0] * (epsilon - c)
        return ArrayTimestamp(r, c, tuple(counts))
    return CounterTimestamp(r, c, random.choice((0, random.randrange(10**6), FAR)))


class Tampering:
    """A node some of whose events are tampered with on their way to it, for a while.

    Times are those of the node's own clock.
    """

    def __init__(
        self, inner: MergedSubscriber | MergedRelay, random: Random, *, share: float, until_ns: int
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self._random = random
        self._share = share
        self._until_ns = until_ns
        self._seen: deque[Event] = deque(maxlen=REPLAYED)

    def __getattr__(self, name: str) -> Any:
        """Pass commands on."""
        return getattr(self.inner, name)

    def handle_timer(self, *, now_ns: int) -> None:
        """Pass it on."""
        self.inner.handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Pass it on."""
        return self.inner.next_timer_ns()

    def take_effects(self) -> Sequence[Effect]:
        """Pass it on."""
        return self.inner.take_effects()

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Pass a frame on, changed, or with an old one behind it."""
        if isinstance(frame, Notify) and now_ns < self._until_ns:
            self._seen.append(frame.event)
            if self._random.random() < self._share:
                self._replay(source, now_ns)
                frame = Notify(event=self._changed(frame.event))
        self.inner.receive(frame, source=source, now_ns=now_ns)

    def _replay(self, source: str, now_ns: int) -> None:
        old = self._random.choice(self._seen)
        if self._random.random() < 0.5:
            old = self._changed(old)
        self.inner.receive(Notify(event=old), source=source, now_ns=now_ns)

    def _changed(self, event: Event) -> Event:
        if event.stamp is None:
            return event
        entries = dict(event.stamp.entries)
        name = self._random.choice([*sorted(entries), "@r", "@r", "@c", "@k", "@i"])
        value = entries.get(name, 0) + self._random.randint(-20, 20)
        entries[name] = max(0, self._random.choice((value, value, self._random.randrange(FAR))))
        return msgspec.structs.replace(event, stamp=Stamp(entries))
