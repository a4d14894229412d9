"""The goals of the comparison, judged by one run.

A goal bounds a figure of Ensue, or its ratio to the same figure of a peer: of medians over all
rounds. The ratios of single rounds show how much they vary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.measurement import FIRST, MANY_TASKS, Figures, Shape
from benchmarks.peers.run import Run

__all__ = [
    "EVEN_SHAPES",
    "GOALS",
    "RATIOS",
    "SHARE_MIN",
    "TIMES",
    "Goal",
    "Judged",
    "Ratio",
    "judge",
    "judge_shape",
    "share",
]

TIMES = "\N{MULTIPLICATION SIGN}"
EVEN_SHAPES = (Shape(1, 8), Shape(4, 2), Shape(4, 8), Shape(1, 2, 1_000))
"""Shapes in which every ratio should be about as good as in the first one."""
SHARE_MIN = 0.8
"""How good a ratio in one of these must be, as a share of the first shape's."""


@dataclass(frozen=True)
class Figure:
    """One of the measured figures."""

    name: str
    of: Callable[[Figures], float | None]
    more_is_better: bool = False


RATE = Figure("events/s", lambda each: each.rate, more_is_better=True)
CPU = Figure("CPU per event", lambda each: each.cpu_us)
LOW_CPU = Figure("CPU at 1,000/s", lambda each: each.low_cpu_us)
LOW_P50 = Figure("p50 at 1,000/s", lambda each: each.low_ms[0])
HALF_P50 = Figure("p50 at half load", lambda each: each.half_ms[0])


def _many_rate(figures: Figures) -> float | None:
    return next((each.rate for each in figures.awaited if each.tasks == MANY_TASKS), None)


MANY_RATE = Figure(
    f"events/s, {MANY_TASKS} tasks that await receipts", _many_rate, more_is_better=True
)


@dataclass(frozen=True)
class Ratio:
    """A figure of a case over that of a peer; without a peer, the figure itself."""

    case: str
    peer: str
    figure: Figure

    def of(self, run: Run, shape: Shape) -> float | None:
        """Return the ratio of the medians, if both were measured."""
        ours = run.median(self.case, shape, self.figure.of)
        theirs = run.median(self.peer, shape, self.figure.of) if self.peer else 1.0
        return None if ours is None or theirs is None else _over(ours, theirs)

    def rounds(self, run: Run, shape: Shape) -> list[float]:
        """Return the ratios of the rounds in which both were measured, lowest first."""
        found = []
        peers = run.of(self.peer, shape)
        for number, each in run.of(self.case, shape).items():
            ours = self.figure.of(each)
            theirs = 1.0 if not self.peer else None
            if number in peers:
                theirs = self.figure.of(peers[number])
            if ours is not None and theirs is not None:
                found.append(_over(ours, theirs))
        return sorted(found)


def _over(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else float("inf")


@dataclass(frozen=True)
class Goal:
    """A bound of a ratio; a lower one if more is better."""

    what: str
    ratio: Ratio
    bound: float
    shape: Shape = FIRST

    @property
    def wanted(self) -> str:
        """The bound in words."""
        sign = "≥" if self.ratio.figure.more_is_better else "≤"
        return f"{sign} {self.shown(self.bound, 'g')}"

    def shown(self, value: float, form: str = ".2f") -> str:
        """Return a value with its unit."""
        return f"{value:{form}} {TIMES if self.ratio.peer else 'µs'}"

    def met_by(self, value: float) -> bool:
        """Whether a ratio meets the goal."""
        return value >= self.bound if self.ratio.figure.more_is_better else value <= self.bound


@dataclass(frozen=True)
class Judged:
    """A row of the table of goals."""

    what: str
    wanted: str
    measured: str
    rounds: str = ""
    met: bool | None = None
    """None: not measured."""


def _against(case: str, peer: str, figure: Figure, bound: float, what: str) -> Goal:
    return Goal(what, Ratio(case, peer, figure), bound)


GOALS = (
    _against("ensue", "", CPU, 8.0, "Ensue, synced each second: CPU per event, all processes"),
    _against("ensue", "nats", CPU, 0.25, "… against NATS"),
    _against("ensue", "nats", RATE, 4.0, "… events/s against NATS"),
    _against("ensue", "redis-one", RATE, 5.0, "… against Redis in one stream"),
    _against("ensue", "jetstream-one", RATE, 15.0, "… against JetStream in one stream"),
    _against("ensue", "hub", RATE, 0.35, "… against the Python hub"),
    _against("ensue", "nats", LOW_P50, 1.25, "… p50 at 1,000 events/s against NATS"),
    _against("ensue", "nats", HALF_P50, 2.0, "… p50 at half load against NATS"),
    _against("ensue", "nats", LOW_CPU, 1.0, "… CPU at 1,000 events/s against NATS"),
    _against(
        *("ensue-fsync", "redis-one", RATE, 3.0),
        "Ensue, synced before the receipt: events/s against Redis in one stream",
    ),
    _against("ensue-fsync", "jetstream-one", RATE, 9.0, "… against JetStream in one stream"),
    _against("ensue-nats", "nats", RATE, 1.0, "Ensue on NATS: events/s against NATS"),
    _against("ensue-nats", "nats", HALF_P50, 3.0, "… p50 at half load"),
    _against(
        *("ensue-jetstream", "jetstream", RATE, 1.0),
        "Ensue on JetStream: events/s against a stream per topic",
    ),
    _against("ensue-jetstream", "jetstream", HALF_P50, 3.0, "… p50 at half load"),
    _against(
        *("ensue-redis", "redis", RATE, 1.0),
        "Ensue on Redis streams: events/s against a stream per topic",
    ),
    _against("ensue-redis", "redis", HALF_P50, 3.0, "… p50 at half load"),
    _against(
        *("ensue", "redis-one", MANY_RATE, 2.0),
        f"Ensue, {MANY_TASKS} tasks that await receipts: events/s against Redis in one stream",
    ),
    Goal(
        "Ensue, 10 kB payloads: events/s against NATS",
        Ratio("ensue", "nats", RATE),
        1.0,
        Shape(1, 2, 10_000),
    ),
)
RATIOS = tuple(
    goal.ratio
    for goal in GOALS
    if goal.ratio.peer and goal.shape == FIRST and goal.ratio.figure != MANY_RATE
)
"""Those of the first shape that other shapes are compared by."""


def judge(goal: Goal, run: Run) -> Judged:
    """Judge a goal."""
    value = goal.ratio.of(run, goal.shape)
    if value is None:
        return Judged(goal.what, goal.wanted, "not measured")
    rounds = goal.ratio.rounds(run, goal.shape)
    between = f"{rounds[0]:.2f} to {rounds[-1]:.2f}" if len(rounds) > 1 else ""
    return Judged(goal.what, goal.wanted, goal.shown(value), between, goal.met_by(value))


def share(ratio: Ratio, run: Run, shape: Shape) -> float | None:
    """Return how good a ratio is in a shape, as a share of the first shape's; 1 is as good."""
    here, first = ratio.of(run, shape), ratio.of(run, FIRST)
    if here is None or first is None:
        return None
    return _over(here, first) if ratio.figure.more_is_better else _over(first, here)


def judge_shape(shape: Shape, run: Run) -> tuple[Judged, Judged]:
    """Judge the worst ratios of a shape by those of the first one: of events/s, and of the rest."""
    rates = [ratio for ratio in RATIOS if ratio.figure == RATE]
    others = [ratio for ratio in RATIOS if ratio.figure != RATE]
    return (
        _judge_worst(f"{shape}: ratios of events/s", rates, shape, run),
        _judge_worst("… of CPU and p50", others, shape, run),
    )


def _judge_worst(what: str, ratios: Sequence[Ratio], shape: Shape, run: Run) -> Judged:
    wanted = f"≥ {SHARE_MIN:g} of the first shape's"
    shares = {ratio: share(ratio, run, shape) for ratio in ratios}
    found = {ratio: value for ratio, value in shares.items() if value is not None}
    if len(found) < len(ratios):
        return Judged(what, wanted, f"{len(found)} of {len(ratios)} measured")
    worst, value = min(found.items(), key=lambda each: each[1])
    measured = f"{value:.2f} ({worst.case} / {worst.peer}, {worst.figure.name})"
    return Judged(what, wanted, measured, met=value >= SHARE_MIN)
