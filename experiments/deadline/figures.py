"""The experiments of the paper on causal order with deadlines: Figure 6 (a) to (d), then what it has not: scale and bytes."""

from itertools import product

from experiments.deadline import cases as playing
from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim

__all__ = ["EXPERIMENTS"]

PAPER = "deadline-causal-gossip"
SYSTEMS = ("gossip", "reliable group")
SIZES = (50, 100, 150, 200)
LARGE = 800
MODEL = (
    "Four publishers publish 25 events of 100 bytes a second each; 0.1 % of messages are lost and of processes crash, as in the paper. The rest it leaves open: "
    "a perturbed member stands still for half of the time, 50 to 150 ms at a stretch; a message takes 1 to 5 ms; everybody sends through a card of 100 Mbit/s and takes 20 µs for a frame; "
    "rounds of 20 ms, a fan-out of 3, events that live for the logarithm of the group and 2 rounds more, in both systems."
)
ALIKE = "Both encode a matrix alike, so the group that the paper compares with sends about 300 bytes for each member and event, which a card of 100 Mbit/s bears for 200 members; the paper does not say what costs its reliable group so much."


def _throughput_cases(quick: bool) -> list[Case]:
    cases: list[Case] = [
        {
            "system": system,
            "subscribers": size,
            "perturbed": percent,
            "duration_ms": 1000,
            "seed": seed,
        }
        for system, size, percent, seed in product(
            SYSTEMS, SIZES, playing.FIGURES, range(1 if quick else 5)
        )
    ]
    cases += [
        {"system": system, "subscribers": LARGE, "perturbed": 20, "duration_ms": 500, "seed": 0}
        for system in SYSTEMS
    ]
    return cases


def _judge_throughput(table: Table) -> list[Claim]:
    found: list[Claim] = []
    for figure in playing.FIGURES.values():
        ours, theirs = (
            [table.at(figure, system, size) for size in (50, 200)] for system in SYSTEMS
        )
        found += [
            claim(
                figure,
                "gossip does not change rapidly as the group grows",
                "at most 10 points less with 200 than with 50",
                ours,
                lambda a, b: f"{a:.1f} % and {b:.1f} %",
                lambda a, b: a - b <= 10,
            ),
            claim(
                figure,
                "the reliable group does",
                "less than half with 200 of what it has with 50",
                theirs,
                lambda a, b: f"{a:.1f} % and {b:.1f} %",
                lambda a, b: b < a / 2,
                why=ALIKE,
            ),
        ]
    return [*found, *_judge_load(table)]


def _judge_load(table: Table) -> list[Claim]:
    ours, theirs = ([table.at("busiest", name, size) for size in (50, 200)] for name in SYSTEMS)
    return [
        claim(
            "beyond",
            "a publisher of the reliable group sends to every member, a broker that gossips does not",
            "with 200 members at least 3.5 times the load of 50, and at most 1.5 times",
            [*theirs, *ours],
            lambda a, b, c, d: f"{b / a:.1f} times ({b:.1f} % of its card); {d / c:.1f} times",
            lambda a, b, c, d: b >= 3.5 * a and d <= 1.5 * c,
        ),
        claim(
            "beyond",
            "so the reliable group falls in larger groups, where gossip does not",
            f"with {LARGE} members less than 90 % on time, and at least 98 %",
            [table.at("6a", name, LARGE) for name in reversed(SYSTEMS)],
            lambda a, b: f"{a:.1f} % and {b:.1f} %",
            lambda a, b: a < 90 and b >= 98,
        ),
        claim(
            "beyond",
            "gossip sends more in all",
            "more kilobytes an event with 200 members",
            [table.at("bytes", name, 200) for name in SYSTEMS],
            lambda a, b: f"{a:.0f} and {b:.0f}",
            lambda a, b: a > b,
        ),
    ]


def _scale_cases(quick: bool) -> list[Case]:
    # The largest first: it takes longer than all others together.
    return [
        {"subscribers": size, "duration_ms": 400 if quick else 1000, "seed": seed}
        for size in (10_000, 3000, 1000, 300, 100)
        for seed in range(1 if quick or size > 1000 else 3)
    ]


def _judge_scale(table: Table) -> list[Claim]:
    on_time = table.curve("on time", "gossip")
    frames = [table.at("frames", "gossip", size) for size in (100, 1000)]
    large = table.at("on time", "gossip", 10_000)
    return [
        claim(
            "",
            "whatever the size, nearly everything is on time",
            "at least 99 % at every size",
            [min((each.mean for each in on_time), default=None)],
            lambda a: f"{a:.2f} % at the least",
            lambda a: a >= 99,
        ),
        claim(
            "",
            "messages for each subscriber grow like the logarithm",
            "at most 1.6 times as many with 1,000 as with 100 (the logarithm: 1.5)",
            frames,
            lambda a, b: f"{a:.1f} and {b:.1f}, {b / a:.2f} times",
            lambda a, b: b / a <= 1.6,
        ),
        claim(
            "",
            "10,000 subscribers",
            "at least 99 % on time",
            [large],
            lambda a: f"{a:.2f} %",
            lambda a: a >= 99,
        ),
    ]


def _bytes_cases(quick: bool) -> list[Case]:
    brokers = (2, 4, 8, 16) if quick else (2, 4, 8, 16, 32)
    return [
        *({"among": "brokers", "size": size} for size in brokers),
        *({"among": "members", "size": size} for size in SIZES),
    ]


def _judge_bytes(table: Table) -> list[Claim]:
    plain, whole, travels, told = (
        table.at("brokers", name, 16)
        for name in (
            "to a broker, a number for each pair",
            "to a broker, matrix whole",
            "to a broker, as it travels",
            "to a subscriber",
        )
    )
    everybody = table.at("members", "reliable group, all publish", 200)
    return [
        claim(
            "",
            "subscribers get a vector over brokers, not a matrix over members",
            "less than a hundredth of what a member of a reliable group of 200 gets",
            [told, everybody],
            lambda a, b: f"{a:.0f} bytes and {b:,.0f}",
            lambda a, b: a < b / 100,
        ),
        claim(
            "",
            "between brokers rows as sets take less than a number for each pair",
            "less than a quarter with 16 brokers",
            [plain, whole],
            lambda a, b: f"{b:.0f} of {a:,.0f} bytes",
            lambda a, b: b < a / 4,
        ),
        claim(
            "",
            "and what has changed takes less than the whole",
            "less than half with 16 brokers",
            [whole, travels],
            lambda a, b: f"{b:.0f} of {a:.0f} bytes",
            lambda a, b: b < a / 2,
            why="Brokers publish in turn here, so nearly every row has changed since the last message; it helps those among whom few publish.",
        ),
    ]


def _frames(case: Case) -> float:
    size, members = case["subscribers"], case["system"] == "reliable group"
    return float(case["duration_ms"] * size * (size / 50 if members else 3))


EXPERIMENTS = (
    Experiment(
        name="gossip-throughput",
        paper=PAPER,
        figures="Figure 6",
        title="Throughput as groups grow and members are perturbed",
        setting=(
            MODEL,
            "The other side is deadline-constrained causal order among all members over a reliable group, its matrix encoded as that of the brokers is. The paper prints curves without figures; what is told here is the share of published events that a subscriber is given in order and on time, and how many that are a second (of about 100).",
        ),
        cases=_throughput_cases,
        play=playing.play_throughput,
        charts=(
            *(
                Chart(
                    figure=figure,
                    title=f"Figure {figure}: {percent} % perturbed",
                    across="subscribers",
                    up="% in order and on time",
                )
                for percent, figure in playing.FIGURES.items()
            ),
            Chart(
                figure="throughput",
                title="Events in order and on time, by how many members are perturbed",
                across="subscribers",
                up="events a second and subscriber",
            ),
            Chart(
                figure="bytes",
                title="Sent for each event, 20 % perturbed",
                across="subscribers",
                up="kilobytes",
                log_y=True,
            ),
            Chart(
                figure="busiest",
                title="How busy the card of the busiest publisher is, 20 % perturbed",
                across="subscribers",
                up="% of the time",
                log_y=True,
            ),
        ),
        judge=_judge_throughput,
        work=_frames,
    ),
    Experiment(
        name="gossip-scale",
        paper=PAPER,
        figures="beyond Figure 6",
        title="Gossip among more subscribers than the paper has",
        setting=(
            MODEL.replace("25 events", "5 events")
            .replace("a fan-out of 3", "a fan-out of 4")
            .replace("and 2 rounds", "and 3 rounds"),
            "A fifth of the members is perturbed.",
        ),
        cases=_scale_cases,
        play=playing.play_scale,
        charts=(
            Chart(
                figure="on time",
                title="Events in order and on time",
                across="subscribers",
                up="%",
                log_x=True,
            ),
            Chart(
                figure="frames",
                title="Frames for each event and subscriber",
                across="subscribers",
                up="frames",
                log_x=True,
            ),
        ),
        judge=_judge_scale,
        work=lambda case: float(case["subscribers"]) * (1000 + case["duration_ms"]),
    ),
    Experiment(
        name="gossip-bytes",
        paper=PAPER,
        figures="section 4",
        title="Bytes of ordering information a message",
        setting=(
            "Encoded frames, without the event itself. Brokers publish in turn and hear everything, so matrices and vectors are as full as they get.",
        ),
        cases=_bytes_cases,
        play=playing.play_bytes,
        charts=(
            Chart(
                figure="brokers",
                title="Between brokers, and to subscribers",
                across="brokers",
                up="bytes",
                log_x=True,
                log_y=True,
            ),
            Chart(
                figure="members",
                title="In a reliable group of all",
                across="members",
                up="bytes",
                log_y=True,
            ),
        ),
        judge=_judge_bytes,
        work=lambda case: float(case["size"]) ** 2 if case["among"] == "brokers" else 1.0,
    ),
)
