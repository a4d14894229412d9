"""The experiments of the VCube-PS paper with one topic and one tree: Figures 4 and 5, and Table 1."""

from collections.abc import Sequence
from itertools import product

from experiments.causal import cases as playing
from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim, close_to

__all__ = ["COPY", "COST", "EXPERIMENTS", "PAPER", "SYSTEMS", "deliveries", "grid"]

PAPER = "vcube-ps"
SYSTEMS = ("VCube-PS", "SRPT")
COST = (
    "A node sends one copy at a time. Each occupies it for the time to process and the time to transmit, "
    "1 unit each, then travels for 100 units; acknowledgements cost nothing."
)
COPY = "Here a copy occupies its sender for 1 unit: the paper's figures for many publishers fit that, and those for a single one fit 2."


def grid(**choices: Sequence[object]) -> list[Case]:
    """Return every combination of some choices."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


# -- Figure 4 -------------------------------------------------------------------------------------


def _single_cases(quick: bool) -> list[Case]:
    sizes = (8, 64, 512, 4096) if quick else (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    cases: list[Case] = []
    for nodes, share in product(sizes, (1.0, 0.25)):
        # Few nodes, and a quarter of them drawn, differ much from run to run.
        runs = 40 if not quick or nodes <= 64 else 10 if nodes <= 512 else 3
        cases += grid(
            system=SYSTEMS,
            nodes=(nodes,),
            subscribed=(share,),
            seed=range(runs if share < 1 else min(runs, 3)),
        )
    return cases


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
            "all subscribed, SRPT takes one hop more",
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
            "SRPT sends up to 2.7 times as many with 8 nodes",
            "2 to 2.7 times on average",
            [few, few_more],
            lambda a, b: f"{b / a:.2f} times",
            lambda a, b: 2 <= b / a <= 2.7,
        ),
    ]


# -- Figure 5 -------------------------------------------------------------------------------------


def _publishers_cases(quick: bool) -> list[Case]:
    sizes = (16, 64, 128, 256) if quick else (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    cases: list[Case] = []
    for nodes in sizes:
        runs = 1 if quick else 40 if nodes <= 128 else 3 if nodes <= 512 else 1
        cases += grid(
            system=SYSTEMS,
            nodes=(nodes,),
            publishing=(0.25, 1.0),
            propagation=(100, 1000),
            seed=range(runs),
        )
    return cases


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
            "256 nodes all publish: SRPT takes 2.48 times as long",
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
            "4,096 nodes: all publishing takes the cube at most 38.8 % longer than a quarter",
            "25 to 50 %",
            growth,
            lambda a, b: f"{b / a - 1:.1%} longer",
            lambda a, b: 0.25 <= b / a - 1 <= 0.5,
        ),
    ]


# -- Table 1 --------------------------------------------------------------------------------------

_LOADS = (
    "Table 1 puts the root of SRPT among those with 4,096 to 8,192 copies, and the text gives it an average load of 9,240 with a deviation of 4,617; both can't be means. "
    "1,024 events of 10 copies each that leave at one a unit are 9,240 copies when the last event comes, and half of that on average: 9,240 is judged as the longest the queue was. "
    "A leaf of SRPT sends its own event to the root, so it has a queue for one unit and stands at ≤ 2 where the table has 0; what it forwards is counted apart."
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
            "the root of SRPT has the longest queue by far, and no node of the cube has one like it",
            "more than 20 times the cube's longest",
            longest,
            lambda a, b: f"{b:,.0f} and {a:,.1f}",
            lambda a, b: b > 20 * a,
        ),
        claim(
            "Table 1",
            "the root of SRPT has 4,096 to 8,192 copies waiting on average",
            "so",
            longest[1:],
            lambda a: f"{a:,.0f}",
            lambda a: 4096 < a <= 8192,
        ),
        close_to(
            "Table 1", "the root of SRPT has 9,240 copies waiting at its worst", 9240, worst, 10
        ),
        claim(
            "Table 1",
            "98 % of the nodes of the cube have 4 to 16 copies waiting",
            "at least 90 % of 1,024",
            cube,
            lambda a, b: f"{(a + b) / 1024:.0%}",
            lambda a, b: (a + b) / 1024 >= 0.9,
        ),
    ]


def deliveries(case: Case) -> float:
    """Return about how many deliveries a case has."""
    return float(case["nodes"] * case.get("events", case["nodes"] * case.get("publishing", 1.0)))


EXPERIMENTS = (
    Experiment(
        name="vcube-single",
        paper=PAPER,
        figures="Figure 4",
        title="One event: latency and copies as the system grows",
        setting=(COST, "Latency is the mean over subscribers; SRPT is rooted anywhere."),
        cases=_single_cases,
        play=playing.play_single,
        charts=(
            Chart(
                figure="4a",
                title="Figure 4a: latency of one event",
                across="nodes",
                up="units",
                log_x=True,
            ),
            Chart(
                figure="4b",
                title="Figure 4b: copies of one event",
                across="nodes",
                up="copies",
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
            "Everybody subscribes; publishers publish once, at any time within 1,000 units.",
        ),
        cases=_publishers_cases,
        play=playing.play_publishers,
        charts=(
            Chart(
                figure="5a",
                title="Figure 5a: links of 100 units",
                across="nodes",
                up="mean latency, units",
                log_x=True,
                log_y=True,
            ),
            Chart(
                figure="5b",
                title="Figure 5b: links of 1,000 units",
                across="nodes",
                up="mean latency, units",
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
        title="How long queues are, node by node",
        setting=(
            COST,
            COPY,
            "Everybody publishes once within 1,000 units. A queue is what a node has yet to send, what it is sending included, averaged from the first publication to the last delivery; acknowledgements take no time in it.",
            _LOADS,
        ),
        cases=_queues_cases,
        play=playing.play_queues,
        charts=tuple(
            Chart(
                figure=f"Table 1, {nodes} nodes",
                title=f"Table 1 with {nodes:,} nodes: nodes by the length of their queue",
                across="copies waiting, on average",
                up="nodes",
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
