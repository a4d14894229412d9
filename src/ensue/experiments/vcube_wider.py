"""The experiments of the VCube-PS paper beyond that: answers (Figure 6), many topics (Figure 7), brokers (Figure 9)."""

from ensue.experiments.experiment import Case, Chart, Claim, Experiment, Table, between, claim
from ensue.experiments.hypercube import playing
from ensue.experiments.vcube import COPY, COST, PAPER, SYSTEMS, deliveries, grid

__all__ = ["EXPERIMENTS"]


# -- Figure 6 -------------------------------------------------------------------------------------


def _answers_cases(quick: bool) -> list[Case]:
    return grid(nodes=(256,), questions=(1, 10), wait=(300.0,), seed=range(1 if quick else 40))


def _judge_answers(table: Table) -> list[Claim]:
    one, ten = "1 question", "10 questions"
    return [
        between(
            "6",
            "one question: 51.6 % name fewer than 5 predecessors",
            0.466,
            0.566,
            table.at("6", one, 5),
        ),
        between("6", "19.9 % name just one", 0.15, 0.25, table.at("as many as questions", one, 1)),
        between(
            "6",
            "ten questions: 35.2 % name ten",
            0.30,
            0.40,
            table.at("as many as questions", ten, 10),
        ),
        between("6", "79.7 % name fewer than 15", 0.75, 0.85, table.at("6", ten, 15)),
        claim(
            "4.3",
            "87.2 % are delivered with no delay, 95.1 % within 10 units",
            "at least as many",
            [table.at("no delay", one, 1), table.at("less than 10 units", one, 1)],
            lambda a, b: f"{a:.1%} and {b:.1%}",
            lambda a, b: a >= 0.872 and b >= 0.951,
        ),
    ]


# -- Figure 7 -------------------------------------------------------------------------------------


def _topics_cases(quick: bool) -> list[Case]:
    nodes, topics = (64, 32) if quick else (256, 128)
    events = (64, 256, 1024) if quick else tuple(1 << power for power in range(8, 15))
    return grid(
        system=SYSTEMS,
        nodes=(nodes,),
        topics=(topics,),
        events=events,
        law=("uniform", "Zipf"),
        seed=range(1),
    )


def _judge_topics(table: Table) -> list[Claim]:
    most = max((each.x for each in table.points), default=0)
    evenly, popular = (
        [table.at("7", f"{name}, {law}", most) for name in SYSTEMS] for law in ("uniform", "Zipf")
    )
    return [
        claim(
            "7",
            "by popularity rather than evenly, SRPT takes 30.6 % longer and the cube 9.2 %",
            "SRPT loses more than the cube",
            [*evenly, *popular],
            lambda a, b, c, d: f"SRPT {d / b - 1:+.1%}, the cube {c / a - 1:+.1%}",
            lambda a, b, c, d: d / b > c / a,
        ),
        claim(
            "7",
            "by popularity SRPT takes longer than the cube",
            "so at the most events",
            popular,
            lambda a, b: f"{b:.0f} and {a:.0f} units",
            lambda a, b: b > a,
        ),
    ]


# -- Figure 9 -------------------------------------------------------------------------------------


def _brokers_cases(quick: bool) -> list[Case]:
    kinds = (("VCube-PS", 0), ("SRPT-S", 0), ("SRPT-B", 32), ("SRPT-B", 256), ("SRPT-B", 2048))
    return [
        {
            "system": name,
            "nodes": 4096,
            "brokers": brokers,
            "events": 6 if quick else 128,
            "seed": 1,
        }
        for name, brokers in kinds
    ]


def _judge_brokers(table: Table) -> list[Claim]:
    cube, srpt = (table.at("9", name, 4096) for name in ("VCube-PS", "SRPT-S"))
    brokers = [table.at("9", "SRPT-B", number) for number in (32, 256, 2048)]
    return [
        claim(
            "9",
            "the cube is 22 % faster than SRPT with 256 brokers",
            "15 to 29 %",
            [cube, brokers[1]],
            lambda a, b: f"{1 - a / b:.0%}",
            lambda a, b: 0.15 <= 1 - a / b <= 0.29,
        ),
        claim(
            "9",
            "the cube is faster than every SRPT",
            "so",
            [cube, srpt, *brokers],
            lambda *all_: ", ".join(f"{each:.0f}" for each in all_),
            lambda a, *others: a < min(others),
        ),
        claim(
            "9",
            "with 2,048 brokers SRPT is faster than among all subscribers",
            "so",
            [brokers[2], srpt],
            lambda a, b: f"{a:.0f} and {b:.0f}",
            lambda a, b: a < b,
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="vcube-barriers",
        paper=PAPER,
        figures="Figure 6",
        title="How many predecessors an event names",
        setting=(
            COST,
            "Every node answers one question, or ten, after a wait of up to 300 units: the paper does not say how waits are drawn, and that fits its figures.",
        ),
        cases=_answers_cases,
        play=playing.play_answers,
        charts=(
            Chart(
                figure="6",
                title="Figure 6: events that name fewer predecessors than that",
                across="predecessors",
                up="share of events",
            ),
        ),
        judge=_judge_answers,
        published={
            ("6", "1 question", 5.0): 0.516,
            ("6", "1 question", 2.0): 0.199,
            ("6", "10 questions", 15.0): 0.797,
        },
    ),
    Experiment(
        name="vcube-topics",
        paper=PAPER,
        figures="Figure 7",
        title="Many topics, evenly used or by popularity",
        setting=(
            COST,
            COPY,
            "Each node publishes about every 500 units on a topic drawn evenly or by Zipf's law with 0.825; everybody subscribes to everything. The quick form has 64 nodes and 32 topics instead of 256 and 128.",
        ),
        cases=_topics_cases,
        play=playing.play_topics,
        charts=(
            Chart(
                figure="7",
                title="Figure 7: latency as events become more",
                across="events",
                up="mean latency, units",
                log_x=True,
            ),
        ),
        judge=_judge_topics,
        work=deliveries,
    ),
    Experiment(
        name="vcube-brokers",
        paper=PAPER,
        figures="Figure 9",
        title="The cube beside trees of brokers",
        setting=(
            COST,
            "4,096 nodes, events about 500 units apart from subscribers drawn at random: 6 in the quick form, 128 in the paper's. Across: brokers; those without any stand at 4,096.",
        ),
        cases=_brokers_cases,
        play=playing.play_brokers,
        charts=(
            Chart(
                figure="9",
                title="Figure 9: latency with 4,096 nodes",
                across="brokers",
                up="mean latency, units",
                log_x=True,
            ),
        ),
        judge=_judge_brokers,
        work=deliveries,
    ),
)
