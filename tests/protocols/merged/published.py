"""The published rules, literally, to show what they do; the product never uses them.

From "Stabilizing Causal Deterministic Merge" (Kulkarni, Ravikant): the timestamps of Figure 1 with
the checks of section 3.3, those of Figure 3 with their `less`, and the delivery of section 4.2 with
its condition as printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from experiments.merged.figure3 import Figure3, Figure3Line

from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import Held


class Figure1(msgspec.Struct, frozen=True):
    """A timestamp of Figure 1: kn from -epsilon to epsilon - 1."""

    r: int
    c: int
    kn: dict[int, int]


class Figure1Line:
    """The program of Figure 1. `checked` adds the resets of section 3.3 with the printed bound."""

    def __init__(self, config: MergedConfig, *, checked: bool = False) -> None:
        self.epsilon = config.epsilon_ticks
        self.processes = config.processes_max
        self.checked = checked
        self.last: Figure1 | None = None
        self.resets = 0

    def event(self, tick: int, received: Sequence[Figure1] = ()) -> Figure1:
        known = list(received) if self.last is None else [*received, self.last]
        c = max([0, *(each.r + each.c - tick for each in known)])
        kn = {
            t: max([0, *(each.kn.get(t + tick - each.r, 0) for each in known)])
            for t in range(-self.epsilon, self.epsilon)
        }
        kn[0] = kn.get(0, 0) + 1
        made = Figure1(tick, c, kn)
        if self.checked and not self.is_sound(made):
            self.resets += 1
            made = Figure1(tick, 0, {0: 1})
        self.last = made
        return made

    def is_sound(self, made: Figure1) -> bool:
        return (
            made.c < self.epsilon
            and max(made.kn.values()) <= self.processes
            and made.kn.get(made.c, 0) > 0
            and not any(count for t, count in made.kn.items() if t > made.c)
        )


def figure1_key(config: MergedConfig, made: Figure1) -> tuple[int, ...]:
    """`less` of section 3.2 as a key: epsilon elements of the array are compared."""
    counts = (made.kn.get(made.c - back, 0) for back in range(config.epsilon_ticks))
    return (made.r + made.c, *counts)


def figure3_less(one: Figure3, other: Figure3, epsilon: int) -> bool:
    """`less` of section 5.1."""
    if one.r + epsilon < other.r:
        return True
    if abs(one.r - other.r) > epsilon:
        return False
    reach, other_reach = one.r + one.c, other.r + other.c
    return reach < other_reach or (reach == other_reach and one.r < other.r)


def figure3_key(_config: MergedConfig, made: Figure3) -> tuple[int, ...]:
    """The order in which the delivery condition takes them: by r + c, then by r."""
    return (made.r + made.c, made.r)


__all__ = [
    "Figure1",
    "Figure1Line",
    "Figure3",
    "Figure3Line",
    "PublishedMerger",
    "figure1_key",
    "figure3_key",
    "figure3_less",
]


@dataclass
class PublishedMerger:
    """Section 4.2: buffer all messages, and deliver each when its condition holds.

    `equal` is the condition as printed; without it, messages whose tick has passed are delivered
    too, still at the first instant of the tick. With a modulus, clocks are compared modulo it.
    """

    config: MergedConfig
    equal: bool = True
    modulus: int | None = None

    def __post_init__(self) -> None:
        self.buffer: list[Held] = []

    @property
    def held_count(self) -> int:
        return len(self.buffer)

    def offer(self, held: Held, tick: int) -> str:
        del tick
        self.buffer.append(held)
        return ""

    def advance(self, tick: int) -> tuple[list[Held], list[Held]]:
        due = [each for each in self.buffer if self.is_due(each.timestamp, tick)]
        self.buffer = [each for each in self.buffer if not self.is_due(each.timestamp, tick)]
        return sorted(due, key=lambda each: each.key[:2]), []

    def is_due(self, made: Any, tick: int) -> bool:
        left: int = made.r + made.c + self.config.wait_ticks - tick
        if self.modulus is not None:
            left %= self.modulus
        return left == 0 if self.equal or self.modulus is not None else left <= 0
