"""Experiments on causal order with deadlines: the paper's Figure 6, then scale and bytes."""

from itertools import product

from experiments.deadline import cases
from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim

__all__ = ["EXPERIMENTS"]

PAPER = "deadline-causal-gossip"
SYSTEMS = ("gossip", "reliable group")
SIZES = (50, 100, 150, 200)
LARGE = 800
MODEL = (
    "Four publishers publish 25 events of 100 bytes a second each; 0.1 % of messages are lost and "
    "0.1 % of processes crash, as in the paper. The paper leaves the rest open. Here, a perturbed "
    "member pauses for half of the time, 50 to 150 ms at a time; a message takes 1 to 5 ms; a node "
    "sends through a 100 Mbit/s network card and takes 20 µs per frame. In both systems, a round "
    "takes 20 ms, the fan-out is 3, and an event lives for the logarithm of the group size and 2 "
    "rounds more."
)
ALIKE = (
    "Both systems encode a matrix in the same way, so the reliable group sends about 300 bytes per "
    "member and event, which a 100 Mbit/s card can carry for 200 members. The paper does not say "
    "why its reliable group costs so much."
)


def _throughput_cases(quick: bool) -> list[Case]:
    chosen: list[Case] = [
        {
            "system": system,
            "subscribers": size,
            "perturbed": percent,
            "duration_ms": 1000,
            "seed": seed,
        }
        for system, size, percent, seed in product(
            SYSTEMS, SIZES, cases.FIGURES, range(1 if quick else 5)
        )
    ]
    chosen += [
        {"system": system, "subscribers": LARGE, "perturbed": 20, "duration_ms": 500, "seed": 0}
        for system in SYSTEMS
    ]
    return chosen


def _judge_throughput(table: Table) -> list[Claim]:
    found: list[Claim] = []
    for figure in cases.FIGURES.values():
        ours, theirs = (
            [table.at(figure, system, size) for size in (50, 200)] for system in SYSTEMS
        )
        found += [
            claim(
                figure,
                "gossip changes little as the group grows",
                "at most 10 points less with 200 members than with 50",
                ours,
                lambda a, b: f"{a:.1f} % and {b:.1f} %",
                lambda a, b: a - b <= 10,
            ),
            claim(
                figure,
                "the reliable group degrades as it grows",
                "less than half as much with 200 members as with 50",
                theirs,
                lambda a, b: f"{a:.1f} % and {b:.1f} %",
                lambda a, b: b < a / 2,
                why=ALIKE,
                change=(
                    "The reliable group would have to send several times as many bytes, as with "
                    "800 members (criterion below), or have a slower network."
                ),
            ),
        ]
    return [*found, *_judge_load(table)]


def _judge_load(table: Table) -> list[Claim]:
    ours, theirs = ([table.at("busiest", name, size) for size in (50, 200)] for name in SYSTEMS)
    return [
        claim(
            "beyond",
            "a publisher of the reliable group sends to every member, a gossip broker does not",
            "load with 200 members against 50: at least 3.5 times, and at most 1.5 times",
            [*theirs, *ours],
            lambda a, b, c, d: f"{b / a:.1f} times ({b:.1f} % of its card); {d / c:.1f} times",
            lambda a, b, c, d: b >= 3.5 * a and d <= 1.5 * c,
        ),
        claim(
            "beyond",
            "so larger groups degrade the reliable group, and not gossip",
            f"with {LARGE} members less than 90 % on time, and at least 98 %",
            [table.at("6a", name, LARGE) for name in reversed(SYSTEMS)],
            lambda a, b: f"{a:.1f} % and {b:.1f} %",
            lambda a, b: a < 90 and b >= 98,
        ),
        claim(
            "beyond",
            "gossip sends more in total",
            "more kilobytes per event with 200 members",
            [table.at("bytes", name, 200) for name in SYSTEMS],
            lambda a, b: f"{a:.0f} and {b:.0f}",
            lambda a, b: a > b,
        ),
    ]


def _scale_cases(quick: bool) -> list[Case]:
    # Largest first: it takes longer than all others together.
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
            "nearly all events are on time at any size",
            "at least 99 % at every size",
            [min((each.mean for each in on_time), default=None)],
            lambda a: f"at least {a:.2f} %",
            lambda a: a >= 99,
        ),
        claim(
            "",
            "messages per subscriber grow with the logarithm of the group size",
            "at most 1.6 times as many with 1,000 as with 100 (the logarithm: 1.5)",
            frames,
            lambda a, b: f"{a:.1f} and {b:.1f}, {b / a:.2f} times",
            lambda a, b: b / a <= 1.6,
        ),
        claim(
            "",
            "gossip scales to 10,000 subscribers",
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
    plain, whole, sent, notified = (
        table.at("brokers", name, 16)
        for name in (
            "to a broker, a number for each pair",
            "to a broker, matrix whole",
            "to a broker, as it travels",
            "to a subscriber",
        )
    )
    member = table.at("members", "reliable group, all publish", 200)
    return [
        claim(
            "",
            "subscribers get a vector over brokers, not a matrix over members",
            "less than a hundredth of the bytes to a member of a reliable group of 200",
            [notified, member],
            lambda a, b: f"{a:.0f} bytes and {b:,.0f}",
            lambda a, b: a < b / 100,
        ),
        claim(
            "",
            "between brokers, rows as sets take less than a number for each pair",
            "less than a quarter with 16 brokers",
            [plain, whole],
            lambda a, b: f"{b:.0f} of {a:,.0f} bytes",
            lambda a, b: b < a / 4,
        ),
        claim(
            "",
            "sending only changes takes less than sending the whole matrix",
            "less than half with 16 brokers",
            [whole, sent],
            lambda a, b: f"{b:.0f} of {a:.0f} bytes",
            lambda a, b: b < a / 2,
            why=(
                "Brokers publish in turn here, so nearly every row has changed since the last "
                "message. Sending changes helps if few brokers publish."
            ),
            change="Most brokers would have to publish nothing between two messages.",
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
            (
                "The other system is deadline-constrained causal order among all members over a "
                "reliable group, with the matrix encoded as brokers encode theirs. The paper "
                "prints curves without numbers. Measured here: the share of published events that "
                "a subscriber receives in order and on time, and their rate (of about 100 a "
                "second)."
            ),
        ),
        cases=_throughput_cases,
        run_case=cases.run_throughput,
        charts=(
            *(
                Chart(
                    figure=figure,
                    title=f"Figure {figure}: {percent} % perturbed",
                    x_label="subscribers",
                    y_label="% in order and on time",
                )
                for percent, figure in cases.FIGURES.items()
            ),
            Chart(
                figure="throughput",
                title="Events in order and on time, by share of perturbed members",
                x_label="subscribers",
                y_label="events a second per subscriber",
            ),
            Chart(
                figure="bytes",
                title="Kilobytes sent per event, 20 % perturbed",
                x_label="subscribers",
                y_label="kilobytes",
                log_y=True,
            ),
            Chart(
                figure="busiest",
                title="Load on the network card of the busiest publisher, 20 % perturbed",
                x_label="subscribers",
                y_label="% of the time",
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
            .replace("the fan-out is 3", "the fan-out is 4")
            .replace("and 2 rounds", "and 3 rounds")
            .replace("In both systems, a round", "A round"),
            "A fifth of the members is perturbed.",
        ),
        cases=_scale_cases,
        run_case=cases.run_scale,
        charts=(
            Chart(
                figure="on time",
                title="Events in order and on time",
                x_label="subscribers",
                y_label="%",
                log_x=True,
            ),
            Chart(
                figure="frames",
                title="Frames per event and subscriber",
                x_label="subscribers",
                y_label="frames",
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
        title="Bytes of ordering information per message",
        setting=(
            (
                "Bytes of encoded frames, without the event itself. Brokers publish in turn and "
                "receive all events, so matrices and vectors are as full as possible."
            ),
        ),
        cases=_bytes_cases,
        run_case=cases.run_bytes,
        charts=(
            Chart(
                figure="brokers",
                title="Between brokers, and to subscribers",
                x_label="brokers",
                y_label="bytes",
                log_x=True,
                log_y=True,
            ),
            Chart(
                figure="members",
                title="In a reliable group of all members",
                x_label="members",
                y_label="bytes",
                log_y=True,
            ),
        ),
        judge=_judge_bytes,
        work=lambda case: float(case["size"]) ** 2 if case["among"] == "brokers" else 1.0,
    ),
)
