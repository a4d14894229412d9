"""Everything that one run of the comparison measured."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.measurement import Figures, Shape
from benchmarks.record import Machine

__all__ = ["Failure", "Measured", "Run"]

Figure = Callable[[Figures], float | None]
"""None: not measured."""


@dataclass(frozen=True)
class Measured:
    """The results of one case in one shape and round."""

    case: str
    shape: Shape
    round: int
    figures: Figures


@dataclass(frozen=True)
class Failure:
    """A case that failed in one shape and round."""

    case: str
    shape: Shape
    round: int
    why: str


@dataclass(frozen=True)
class Run:
    """All rounds of all cases in all shapes, on one machine."""

    machine: Machine
    rounds: int
    quick: bool
    """Whether the figures are rough."""
    note: str
    measured: tuple[Measured, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def shapes(self) -> list[Shape]:
        """The shapes in the order of the run."""
        found = [each.shape for each in self.measured]
        return list(dict.fromkeys([*found, *(each.shape for each in self.failures)]))

    def of(self, case: str, shape: Shape) -> dict[int, Figures]:
        """Return the results of a case, by round."""
        return {
            each.round: each.figures
            for each in self.measured
            if each.case == case and each.shape == shape
        }

    def median(self, case: str, shape: Shape, figure: Figure) -> float | None:
        """Return the median of a figure over the rounds, if it was measured."""
        values = [figure(each) for each in self.of(case, shape).values()]
        found = [value for value in values if value is not None]
        return statistics.median(found) if found else None

    def failure(self, case: str, shape: Shape) -> str | None:
        """Return why a case failed, if it did in some round."""
        return next(
            (each.why for each in self.failures if each.case == case and each.shape == shape), None
        )
