"""The bounds of the paper on causal deterministic merge, as measured curves."""

from itertools import product

from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim
from experiments.merged import cases

__all__ = ["EXPERIMENTS"]

PAPER = "causal-deterministic-merge"
WORLD = (
    "Four publishers of 100 events a second each, four subscribers; two of them answer events before their turn. A clock is at either end of epsilon, a message takes nothing or half of delta "
    "on each of its two hops; a tick is a millisecond."
)


def _bounds(quick: bool) -> list[tuple[int, int]]:
    """Return epsilons and deltas, in milliseconds."""
    epsilons = (0, 10) if quick else (0, 2, 5, 10, 20)
    return list(product(epsilons, (10, 40, 100) if quick else (0, 10, 20, 40, 100, 200)))


def _delay_cases(quick: bool) -> list[Case]:
    return [
        {"epsilon_ms": epsilon, "delta_ms": delta, "seed": seed}
        for (epsilon, delta), seed in product(_bounds(quick), range(2 if quick else 20))
    ]


def _judge_delay(table: Table) -> list[Claim]:
    beyond = [each.mean for each in table.points if each.figure == "beyond"]
    used = [
        each.most / each.x
        for each in table.points
        if each.figure == "delay" and each.series == "ε = 10 ms"
    ]
    return [
        claim(
            "Lemma 4.2",
            "no event waits longer than δ + 3ε",
            "none, to the end of the tick",
            [sum(beyond) if beyond else None],
            lambda a: f"{a:.0f} events longer",
            lambda a: a == 0,
        ),
        claim(
            "Lemma 4.2",
            "the bound is no looser than need be",
            "some event uses at least 80 % of it with ε = 10 ms",
            [max(used, default=None)],
            lambda a: f"{a:.0%}",
            lambda a: a >= 0.8,
        ),
    ]


def _recovery_cases(quick: bool) -> list[Case]:
    return [
        {"epsilon_ms": epsilon, "delta_ms": delta, "seed": seed}
        for (epsilon, delta), seed in product(_bounds(quick), range(3 if quick else 40))
        if delta
    ]


def _judge_recovery(table: Table) -> list[Claim]:
    worst = max(
        (each.most - each.x for each in table.points if each.series != "δ + 3ε"), default=None
    )
    ratios = [each.most / each.x for each in table.points if each.series != "δ + 3ε"]
    return [
        claim(
            "Theorem 3.7",
            "recovery takes O(ε + δ): δ + 3ε",
            "nothing wrong later than δ + 3ε and a tick after the last fault",
            [worst],
            lambda _: f"{max(ratios):.0%} of the bound at the most",
            lambda beyond: beyond <= 1,
        )
    ]


_COUNTS = (3, 10, 30, 100)
_EPSILONS = (1, 3, 10, 30)


def _sizes_cases(quick: bool) -> list[Case]:
    counts = _COUNTS if quick else (*_COUNTS, 300, 1000)
    epsilons = _EPSILONS if quick else (*_EPSILONS, 100)
    chosen = [(count, 10) for count in counts] + [(10, epsilon) for epsilon in epsilons]
    return [
        {"processes": count, "epsilon_ticks": epsilon, "usual": 10, "array": array}
        for count, epsilon in dict.fromkeys(chosen)
        for array in (True, False)
    ]


def _judge_sizes(table: Table) -> list[Claim]:
    array, counter = "an array, as in the paper", "one counter"
    return [
        claim(
            "Theorem 3.8",
            "an array takes O(ε log n): linear in ε",
            "as many bytes more for each tick of ε from 10 to 30 as from 3 to 10, within a quarter",
            [table.at("epsilon", array, each) for each in (3, 10, 30)],
            lambda a, b, c: f"{(c - b) / 20:.1f} and {(b - a) / 7:.1f}",
            lambda a, b, c: 0.8 <= ((c - b) / 20) / ((b - a) / 7) <= 1.25,
        ),
        claim(
            "Theorem 3.8",
            "and logarithmic in n",
            "at most twice as many with 100 processes as with 3",
            [table.at("processes", array, each) for each in (3, 100)],
            lambda a, b: f"{a:.0f} and {b:.0f} bytes",
            lambda a, b: b <= 2 * a,
        ),
        claim(
            "section 7",
            "less than an array would be welcome",
            "one counter: at most 30 bytes whatever n and ε",
            [max((each.most for each in table.points if each.series == counter), default=None)],
            lambda a: f"{a:.0f} bytes at the most",
            lambda a: a <= 30,
        ),
    ]


def _growth_cases(quick: bool) -> list[Case]:
    rounds = 300 if quick else 1000
    kinds = [
        (False, 0, False), (False, 100, False), (False, 100, True), (False, 200, True), (True, 0, False),
    ]  # fmt: skip
    return [
        {"epsilon_ticks": 5, "rounds": rounds, "window_every": every, "local": local, "ours": ours}
        for ours, every, local in kinds
    ]


def _judge_growth(table: Table) -> list[Claim]:
    free, ours = "Figure 3, no windows", "one counter, no windows"
    printed = "Figure 3, a window every 100 ticks"
    short, long = (
        f"Figure 3, a window every {every} ticks, then local events" for every in (100, 200)
    )
    return [
        claim(
            "Figure 4",
            "c grows without bound",
            "twice as large after 300 rounds as after 150",
            [table.at("4", free, each) for each in (150, 300)],
            lambda a, b: f"{a:.0f} and {b:.0f}",
            lambda a, b: b >= 1.9 * a,
        ),
        claim(
            "section 5.2",
            "windows of 2ε bound c",
            "no larger after 300 rounds than after 200, with a window every 100 ticks",
            [table.at("4", printed, 200), table.at("4", printed, 300)],
            lambda a, b: f"{a:.0f} and {b:.0f}",
            lambda a, b: a == b,
            why="As printed, c is set to 0 only if the message that is received is old as well: one from after the window keeps its receiver's old c alive, until the receiver makes an event of its own (the next criterion).",
        ),
        claim(
            "section 5.2",
            "windows bound c in proportion to their period, if everybody makes a local event after each",
            "no larger after 300 rounds than after 200; with a window every 200 ticks about twice as large",
            [table.at("4", short, 200), table.at("4", short, 300), table.at("4", long, 300)],
            lambda a, b, c: f"{a:.0f} and {b:.0f}; {c:.0f}",
            lambda a, b, c: a == b and 1.5 <= c / b <= 2.5,
        ),
        claim(
            "beyond",
            "one counter needs no windows",
            "c at most ε = 5",
            [table.at("4", ours, 300)],
            lambda a: f"{a:.0f}",
            lambda a: a <= 5,
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="merge-delay",
        paper=PAPER,
        figures="Lemma 4.2, Theorem 4.3",
        title="How long events wait for their turn",
        setting=(WORLD, "Told is the longest wait, from publication to delivery in true time."),
        cases=_delay_cases,
        play=cases.play_delay,
        charts=(
            Chart(
                figure="delay",
                title="The longest wait against its bound",
                across="δ + 3ε, ms",
                up="ms",
                most=True,
            ),
            Chart(figure="mean", title="The mean wait", across="δ + 3ε, ms", up="ms"),
        ),
        judge=_judge_delay,
    ),
    Experiment(
        name="merge-recovery",
        paper=PAPER,
        figures="Theorem 3.7",
        title="How long a fault is felt",
        setting=(
            WORLD,
            "Half of all stamps are tampered with until 300 ms, when every memory is filled with anything. Told is how long after that the last event was published that is missing or out of order anywhere: the slowest run.",
        ),
        cases=_recovery_cases,
        play=cases.play_recovery,
        charts=(
            Chart(
                figure="recovery",
                title="The longest recovery against its bound",
                across="δ + 3ε, ms",
                up="ms",
                most=True,
            ),
        ),
        judge=_judge_recovery,
    ),
    Experiment(
        name="merge-sizes",
        paper=PAPER,
        figures="Theorem 3.8",
        title="Bytes of a timestamp",
        setting=(
            "Every process makes an event each tick, having heard of another's last one; stamps are encoded as they travel, clocks modulo 2ε + δ + 1. Ten processes or ε = 10 where the other varies.",
        ),
        cases=_sizes_cases,
        play=cases.play_sizes,
        charts=(
            Chart(
                figure="epsilon",
                title="As epsilon grows, 10 processes",
                across="epsilon, ticks",
                up="bytes",
            ),
            Chart(
                figure="processes",
                title="As processes become more, epsilon 10",
                across="processes",
                up="bytes",
                log_x=True,
            ),
        ),
        judge=_judge_sizes,
        work=lambda case: float(case["processes"]) * case["epsilon_ticks"] ** 2,
    ),
    Experiment(
        name="merge-growth",
        paper=PAPER,
        figures="Figure 4, section 5.2",
        title="How c grows without an array",
        setting=(
            "Three processes, epsilon 5; a message goes round from the clock that is ahead to those that are behind. Windows of 2ε ticks in which nobody makes an event come every so many ticks.",
        ),
        cases=_growth_cases,
        play=cases.play_growth,
        charts=(Chart(figure="4", title="Figure 4: the largest c", across="rounds", up="ticks"),),
        judge=_judge_growth,
        work=lambda case: float(case["rounds"]),
    ),
)
