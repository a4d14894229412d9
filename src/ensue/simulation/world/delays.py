"""Delay models: whole nanoseconds, drawn from a seeded stream.

A model is a frozen value that can be written in a scenario file (`kind = "uniform"`). For the hot
path it gives a sampler: a function of no arguments, bound to one random stream. `Constant` draws
nothing, so replacing a model by a constant shortens the stream it was drawn from.

Every delay is at least 0 and at most `DELAY_NS_MAX`.
"""

import math
from collections.abc import Callable
from random import Random

import msgspec

from ensue.core.errors import ConfigurationError

__all__ = [
    "DELAY_NS_MAX",
    "Constant",
    "DelayModel",
    "LogNormal",
    "Normal",
    "Sampler",
    "Uniform",
    "require_between",
]

DELAY_NS_MAX = 365 * 24 * 3_600 * 1_000_000_000
"""One year: a longer delay is a mistake in the unit."""

REDRAWS_MAX = 100
"""How often a negative draw of `Normal` is drawn again before it counts as 0."""

Sampler = Callable[[], int]


def require_between(field: str, value: float, low: float, high: float) -> None:
    """Refuse a configured number outside its bounds, naming the field and the bounds."""
    if not low <= value <= high:
        raise ConfigurationError(f"{field} must be between {low} and {high}, got {value}")


class Constant(msgspec.Struct, frozen=True, tag="constant", tag_field="kind"):
    """Always the same delay."""

    delay_ns: int

    def __post_init__(self) -> None:
        require_between("Constant.delay_ns", self.delay_ns, 0, DELAY_NS_MAX)

    def sampler(self, random: Random) -> Sampler:
        """Return a function that gives the delay."""
        del random
        delay_ns = self.delay_ns
        return lambda: delay_ns


class Uniform(msgspec.Struct, frozen=True, tag="uniform", tag_field="kind"):
    """Any delay from `low_ns` to `high_ns`, all alike."""

    low_ns: int
    high_ns: int

    def __post_init__(self) -> None:
        require_between("Uniform.low_ns", self.low_ns, 0, DELAY_NS_MAX)
        require_between("Uniform.high_ns", self.high_ns, self.low_ns, DELAY_NS_MAX)

    def sampler(self, random: Random) -> Sampler:
        """Return a function that draws a delay from the stream."""
        # `randrange` takes five times as long, and a float has bits enough for any delay here.
        low_ns, width_ns, draw = self.low_ns, self.high_ns - self.low_ns + 1, random.random
        return lambda: low_ns + int(draw() * width_ns)


class Normal(msgspec.Struct, frozen=True, tag="normal", tag_field="kind"):
    """A normal distribution cut off at 0: negative draws are drawn again.

    With a mean of few standard deviations the cut raises the mean above `mean_ns`.
    """

    mean_ns: int
    std_ns: int

    def __post_init__(self) -> None:
        require_between("Normal.mean_ns", self.mean_ns, 0, DELAY_NS_MAX)
        require_between("Normal.std_ns", self.std_ns, 0, DELAY_NS_MAX)

    def sampler(self, random: Random) -> Sampler:
        """Return a function that draws a delay from the stream."""
        mean_ns, std_ns, draw = self.mean_ns, self.std_ns, random.normalvariate

        def sample() -> int:
            for _ in range(REDRAWS_MAX):
                delay_ns = draw(mean_ns, std_ns)
                if delay_ns >= 0:
                    return min(int(delay_ns), DELAY_NS_MAX)
            return 0

        return sample


class LogNormal(msgspec.Struct, frozen=True, tag="log_normal", tag_field="kind"):
    """A log-normal distribution with this mean and standard deviation: a long tail."""

    mean_ns: int
    std_ns: int

    def __post_init__(self) -> None:
        require_between("LogNormal.mean_ns", self.mean_ns, 1, DELAY_NS_MAX)
        require_between("LogNormal.std_ns", self.std_ns, 0, DELAY_NS_MAX)

    def sampler(self, random: Random) -> Sampler:
        """Return a function that draws a delay from the stream."""
        variance = math.log1p((self.std_ns / self.mean_ns) ** 2)
        mu, sigma = math.log(self.mean_ns) - variance / 2, math.sqrt(variance)
        draw = random.lognormvariate
        return lambda: min(int(draw(mu, sigma)), DELAY_NS_MAX)


DelayModel = Constant | Uniform | Normal | LogNormal
