"""The bounds of the paper on causal deterministic merge, measured."""

from itertools import product

from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim
from experiments.merged import cases

__all__ = ["EXPERIMENTS"]

PAPER = "causal-deterministic-merge"
WORLD = (
    "Four publishers of 100 events a second each and four subscribers, two of which answer events "
    "before their turn. A clock is at either end of epsilon; a message takes no time or half of "
    "delta on each of its two hops; a tick is a millisecond."
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
            "none, measured to the end of the tick",
            [sum(beyond) if beyond else None],
            lambda a: f"{a:.0f} events longer",
            lambda a: a == 0,
        ),
        claim(
            "Lemma 4.2",
            "the bound is tight",
            "some event waits for at least 80 % of the bound with ε = 10 ms",
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
            "no violation later than δ + 3ε and a tick after the last fault",
            [worst],
            lambda _: f"at most {max(ratios):.0%} of the bound",
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
            "bytes per tick of ε from 10 to 30 the same as from 3 to 10, within a quarter",
            [table.at("epsilon", array, each) for each in (3, 10, 30)],
            lambda a, b, c: f"{(c - b) / 20:.1f} and {(b - a) / 7:.1f}",
            lambda a, b, c: 0.8 <= ((c - b) / 20) / ((b - a) / 7) <= 1.25,
        ),
        claim(
            "Theorem 3.8",
            "an array is logarithmic in n",
            "at most twice as many bytes with 100 processes as with 3",
            [table.at("processes", array, each) for each in (3, 100)],
            lambda a, b: f"{a:.0f} and {b:.0f} bytes",
            lambda a, b: b <= 2 * a,
        ),
        claim(
            "section 7",
            "less than an array is desirable",
            "one counter takes at most 30 bytes for any n and ε",
            [max((each.most for each in table.points if each.series == counter), default=None)],
            lambda a: f"at most {a:.0f} bytes",
            lambda a: a <= 30,
        ),
    ]


def _growth_cases(quick: bool) -> list[Case]:
    rounds = 300 if quick else 1000
    kinds = [
        (False, 0, False),
        (False, 100, False),
        (False, 100, True),
        (False, 200, True),
        (True, 0, False),
    ]
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
            why=(
                "As printed, c is reset to 0 only if the received message is old as well. A "
                "message from after the window keeps its receiver's old c until the receiver makes "
                "a local event (the next criterion)."
            ),
            change=(
                "Every process would have to make a local event after each window, or c would have "
                "to be the one counter that Ensue uses (the last criterion)."
            ),
        ),
        claim(
            "section 5.2",
            "windows bound c in proportion to their period, if every process makes a local event "
            "after each",
            "no larger after 300 rounds than after 200; about twice as large with a window every "
            "200 ticks",
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
        title="Waiting time before delivery",
        setting=(WORLD, "The wait is the true time from publication to delivery."),
        cases=_delay_cases,
        run_case=cases.run_delay,
        charts=(
            Chart(
                figure="delay",
                title="The longest wait against its bound",
                x_label="δ + 3ε, ms",
                y_label="ms",
                most=True,
            ),
            Chart(figure="mean", title="The mean wait", x_label="δ + 3ε, ms", y_label="ms"),
        ),
        judge=_judge_delay,
    ),
    Experiment(
        name="merge-recovery",
        paper=PAPER,
        figures="Theorem 3.7",
        title="Recovery time after a fault",
        setting=(
            WORLD,
            (
                "Half of all stamps are tampered with until 300 ms, when the memory of every node "
                "is corrupted. Recovery time is from then to the publication of the last event "
                "that is missing or out of order at any subscriber; the slowest run counts."
            ),
        ),
        cases=_recovery_cases,
        run_case=cases.run_recovery,
        charts=(
            Chart(
                figure="recovery",
                title="The longest recovery against its bound",
                x_label="δ + 3ε, ms",
                y_label="ms",
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
            (
                "Every process makes an event in each tick, after it received the last event of "
                "another. Stamps are encoded as they are sent, clocks modulo 2ε + δ + 1. There "
                "are ten processes while ε varies, and ε is 10 while the number of processes "
                "varies."
            ),
        ),
        cases=_sizes_cases,
        run_case=cases.run_sizes,
        charts=(
            Chart(
                figure="epsilon",
                title="As epsilon grows, 10 processes",
                x_label="epsilon, ticks",
                y_label="bytes",
            ),
            Chart(
                figure="processes",
                title="As the number of processes grows, epsilon 10",
                x_label="processes",
                y_label="bytes",
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
            (
                "Three processes, epsilon 5; a message circulates from the clock that is ahead to "
                "those that are behind. In a window of 2ε ticks, which recurs periodically, no "
                "process makes an event."
            ),
        ),
        cases=_growth_cases,
        run_case=cases.run_growth,
        charts=(
            Chart(figure="4", title="Figure 4: the largest c", x_label="rounds", y_label="ticks"),
        ),
        judge=_judge_growth,
        work=lambda case: float(case["rounds"]),
    ),
)
