"""Experiments of the VCube-PS paper with one topic: Figures 4 and 5, and Table 1."""

from collections.abc import Sequence
from itertools import product

from experiments.causal import cases
from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim, close_to

__all__ = ["COPY", "COST", "EXPERIMENTS", "PAPER", "SYSTEMS", "deliveries", "grid"]

PAPER = "vcube-ps"
SYSTEMS = ("VCube-PS", "SRPT")
COST = (
    "A node sends one copy at a time. Each copy occupies the node for the time to process and the "
    "time to transmit it, 1 unit each, and then travels for 100 units. Acknowledgements cost "
    "nothing."
)
COPY = (
    "Here a copy occupies its sender for 1 unit: the paper's figures fit 1 unit for many "
    "publishers, and 2 for a single one."
)


def grid(**choices: Sequence[object]) -> list[Case]:
    """Return every combination of choices."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


# -- Figure 4 -------------------------------------------------------------------------------------


def _single_cases(quick: bool) -> list[Case]:
    sizes = (8, 64, 512, 4096) if quick else (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    chosen: list[Case] = []
    for nodes, share in product(sizes, (1.0, 0.25)):
        # A quarter of a few nodes varies much from run to run.
        runs = 40 if not quick or nodes <= 64 else 10 if nodes <= 512 else 3
        chosen += grid(
            system=SYSTEMS,
            nodes=(nodes,),
            subscribed=(share,),
            seed=range(runs if share < 1 else min(runs, 3)),
        )
    return chosen


def _judge_single(table: Table) -> list[Claim]:
    quarter = [f"{name}, 25% subscribed" for name in SYSTEMS]
    every = [f"{name}, 100% subscribed" for name in SYSTEMS]
    ours, theirs = (table.at("4a", name, 4096) for name in quarter)
    copies, more = (table.at("4b", name, 4096) for name in quarter)
    few, few_more = (table.at("4b", name, 8) for name in quarter)
    all_ours, all_theirs = (table.at("4a", name, 4096) for name in every)
    return [
        close_to("4a", "533 units with 4,096 nodes, a quarter subscribed", 533, ours, 5),
        close_to("4a", "SRPT: 720 units", 720, theirs, 5),
        claim(
            "4a",
            "if all nodes subscribe, SRPT takes one hop more",
            "100 to 110 units more",
            [all_ours, all_theirs],
            lambda a, b: f"{b - a:.0f} more",
            lambda a, b: 100 <= b - a <= 110,
        ),
        claim(
            "4b",
            "at least 43 % fewer messages with 4,096 nodes",
            "41 to 45 %",
            [copies, more],
            lambda a, b: f"{1 - a / b:.0%} fewer",
            lambda a, b: 0.41 <= 1 - a / b <= 0.45,
        ),
        claim(
            "4b",
            "SRPT sends up to 2.7 times as many messages with 8 nodes",
            "2 to 2.7 times on average",
            [few, few_more],
            lambda a, b: f"{b / a:.2f} times",
            lambda a, b: 2 <= b / a <= 2.7,
        ),
    ]


# -- Figure 5 -------------------------------------------------------------------------------------


def _publishers_cases(quick: bool) -> list[Case]:
    sizes = (16, 64, 128, 256) if quick else (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    chosen: list[Case] = []
    for nodes in sizes:
        runs = 1 if quick else 40 if nodes <= 128 else 3 if nodes <= 512 else 1
        chosen += grid(
            system=SYSTEMS,
            nodes=(nodes,),
            publishing=(0.25, 1.0),
            propagation=(100, 1000),
            seed=range(runs),
        )
    return chosen


def _judge_publishers(table: Table) -> list[Claim]:
    cube, srpt = (f"{name}, 100% publish" for name in SYSTEMS)
    ratios = {
        nodes: (table.at("5a", cube, nodes), table.at("5a", srpt, nodes)) for nodes in (64, 256)
    }
    far = [table.at("5b", name, 256) for name in (cube, srpt)]
    growth = [table.at("5a", f"VCube-PS, {share} publish", 4096) for share in ("25%", "100%")]
    return [
        claim(
            "5a",
            "if all of 256 nodes publish, SRPT takes 2.48 times as long",
            "within 10 %",
            ratios[256],
            lambda a, b: f"{b / a:.2f} times",
            lambda a, b: abs(b / a / 2.48 - 1) <= 0.1,
        ),
        claim(
            "5a",
            "up to 128 nodes SRPT takes one hop more",
            "80 to 140 units more at 64 nodes",
            ratios[64],
            lambda a, b: f"{b - a:.0f} more",
            lambda a, b: 80 <= b - a <= 140,
        ),
        claim(
            "5b",
            "with links ten times as long, SRPT loses less",
            "a smaller ratio at 256 nodes than in 5a",
            [*ratios[256], *far],
            lambda a, b, c, d: f"{d / c:.2f} times, and {b / a:.2f} in 5a",
            lambda a, b, c, d: d / c < b / a,
        ),
        claim(
            "5a",
            "4,096 nodes: if all publish, not a quarter, the cube takes at most 38.8 % longer",
            "25 to 50 %",
            growth,
            lambda a, b: f"{b / a - 1:.1%} longer",
            lambda a, b: 0.25 <= b / a - 1 <= 0.5,
        ),
    ]


# -- Table 1 --------------------------------------------------------------------------------------

_LOADS = (
    "Table 1 lists the root of SRPT with 4,096 to 8,192 copies, and the text gives it an average "
    "load of 9,240 with a deviation of 4,617; they cannot both be means. If 1,024 events of 10 "
    "copies each leave at one copy per unit, 9,240 copies wait when the last event arrives, and "
    "half of that on average. So the criterion takes 9,240 as the maximum. A leaf of SRPT sends "
    "its own event to the root, so it has a queue for one unit and counts as ≤ 2 where the table "
    "has 0; copies that it forwards are counted separately."
)
_TABLE_1 = {"VCube-PS": (0, 0, 0, 495, 510, 19, 0, 0), "SRPT": (512, 448, 60, 3, 0, 0, 0, 1)}


def _queues_cases(quick: bool) -> list[Case]:
    return grid(system=SYSTEMS, nodes=(256, 1024), seed=range(1 if quick else 3))


def _judge_queues(table: Table) -> list[Claim]:
    idle = table.at("forward nothing", "SRPT", 1024)
    longest = [table.at("longest queue", name, 1024) for name in SYSTEMS]
    worst = table.at("longest queue at its worst", "SRPT", 1024)
    cube = [table.at("Table 1, 1024 nodes", "VCube-PS", index) for index in (3, 4)]
    return [
        claim(
            "Table 1",
            "half of the nodes of SRPT, its leaves, forward nothing",
            "half of 1,024",
            [idle],
            lambda a: f"{a:.0f} of 1,024",
            lambda a: abs(a - 512) <= 1,
        ),
        claim(
            "Table 1",
            "the root of SRPT has by far the longest queue, and no node of the cube a similar one",
            "more than 20 times the longest of the cube",
            longest,
            lambda a, b: f"{b:,.0f} and {a:,.1f}",
            lambda a, b: b > 20 * a,
        ),
        claim(
            "Table 1",
            "4,096 to 8,192 copies wait at the root of SRPT on average",
            "more than 4,096, at most 8,192",
            longest[1:],
            lambda a: f"{a:,.0f}",
            lambda a: 4096 < a <= 8192,
        ),
        close_to("Table 1", "up to 9,240 copies wait at the root of SRPT", 9240, worst, 10),
        claim(
            "Table 1",
            "4 to 16 copies wait at 98 % of the nodes of the cube",
            "at least 90 % of 1,024",
            cube,
            lambda a, b: f"{(a + b) / 1024:.0%}",
            lambda a, b: (a + b) / 1024 >= 0.9,
        ),
    ]


def deliveries(case: Case) -> float:
    """Estimate the number of deliveries of a case."""
    return float(case["nodes"] * case.get("events", case["nodes"] * case.get("publishing", 1.0)))


EXPERIMENTS = (
    Experiment(
        name="vcube-single",
        paper=PAPER,
        figures="Figure 4",
        title="One event: latency and copies as the system grows",
        setting=(COST, "Latency is the mean over subscribers; the root of SRPT is random."),
        cases=_single_cases,
        run_case=cases.run_single,
        charts=(
            Chart(
                figure="4a",
                title="Figure 4a: latency of one event",
                x_label="nodes",
                y_label="units",
                log_x=True,
            ),
            Chart(
                figure="4b",
                title="Figure 4b: copies of one event",
                x_label="nodes",
                y_label="copies",
                log_x=True,
                log_y=True,
            ),
        ),
        judge=_judge_single,
        work=lambda case: float(case["nodes"]),
        published={
            ("4a", "VCube-PS, 25% subscribed", 4096.0): 533.0,
            ("4a", "SRPT, 25% subscribed", 4096.0): 720.0,
        },
    ),
    Experiment(
        name="vcube-publishers",
        paper=PAPER,
        figures="Figure 5",
        title="Many publishers of one topic",
        setting=(
            COST,
            COPY,
            "All nodes subscribe. A publisher publishes once, at a random time within 1,000 units.",
        ),
        cases=_publishers_cases,
        run_case=cases.run_publishers,
        charts=(
            Chart(
                figure="5a",
                title="Figure 5a: links of 100 units",
                x_label="nodes",
                y_label="mean latency, units",
                log_x=True,
                log_y=True,
            ),
            Chart(
                figure="5b",
                title="Figure 5b: links of 1,000 units",
                x_label="nodes",
                y_label="mean latency, units",
                log_x=True,
                log_y=True,
            ),
        ),
        judge=_judge_publishers,
        work=deliveries,
    ),
    Experiment(
        name="vcube-queues",
        paper=PAPER,
        figures="Table 1",
        title="Length of the queue of each node",
        setting=(
            COST,
            COPY,
            (
                "All nodes publish once within 1,000 units. The queue of a node has the copies "
                "that it is sending or has yet to send. Its length is averaged from the first "
                "publication to the last delivery; acknowledgements take no time in it."
            ),
            _LOADS,
        ),
        cases=_queues_cases,
        run_case=cases.run_queues,
        charts=tuple(
            Chart(
                figure=f"Table 1, {nodes} nodes",
                title=f"Table 1 with {nodes:,} nodes: nodes by the length of their queue",
                x_label="copies waiting, on average",
                y_label="nodes",
                names=("0", "≤ 2", "≤ 4", "≤ 8", "≤ 16", "≤ 32", "≤ 4096", "≤ 8192"),
            )
            for nodes in (1024, 256)
        ),
        judge=_judge_queues,
        work=lambda case: float(case["nodes"]) ** 2,
        published={
            ("Table 1, 1024 nodes", name, float(index)): float(count)
            for name, counts in _TABLE_1.items()
            for index, count in enumerate(counts)
        },
    ),
)
