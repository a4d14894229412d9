"""A comparison beyond the papers: all guarantees on the same workload, network and faults."""

from itertools import product

from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim
from experiments.guarantees import cases, loss
from experiments.guarantees.cases import FAULTS, MIDDLE, ORDERS

__all__ = ["EXPERIMENTS"]

SETTING = (
    "Four publishers publish 25 events of 100 bytes a second each to eight subscribers of all "
    "topics, for three seconds; messages take 1 to 5 ms. None and total: a topic log, one "
    "sequencer. Causal and deadline (100 ms): directly between the clients. Merged: a relay, "
    "clocks within 2 ms, messages within 12 ms. Transactions: three brokers in a line, each event "
    "in its own planned transaction. Messages and bytes count all frames that any node sent, "
    "divided by the deliveries of events; an event alone takes about 130 bytes."
)
NAMES = {"total": "total order", "causal": "causal order", "transactions": "transactions"}
TITLES = {
    "calm": "No faults",
    "loss": "2 % of all messages are lost",
    "subscriber": "One subscriber of eight is down for half a second",
    "middle": "The topic log, sequencer, relay or broker in the middle is down for half a second",
}


def _cases(quick: bool) -> list[Case]:
    return [
        {"order": order, "faults": faults, "seed": seed}
        for order, faults, seed in product(ORDERS, FAULTS, range(1 if quick else 20))
    ]


def _judge(table: Table) -> list[Claim]:
    def at(faults: str, name: str, order: str) -> float | None:
        return table.at(faults, name, ORDERS.index(order))

    lost = "not delivered, %"
    reliable = tuple(NAMES)
    return [
        claim(
            "",
            "total, causal and transactional order lose nothing, whatever fails",
            "every event delivered to every subscriber, under every fault",
            [
                at(faults, lost, order)
                for order, faults in product(reliable, FAULTS)
                if faults != "middle" or order in MIDDLE
            ],
            lambda *all_: f"at most {max(all_):.2f} % not delivered",
            lambda *all_: max(all_) <= 0,
        ),
        *(
            claim(
                "",
                f"a lost message costs {NAMES[order]} a few round trips",
                "99 % of deliveries at 2 % loss take at most 5 times as long as without loss",
                [at(faults, "99 %, ms", order) for faults in ("calm", "loss")],
                lambda a, b: f"{a:.1f} and {b:.1f} ms: {b / a:.1f} times",
                lambda a, b: b <= 5 * a,
            )
            for order in reliable
        ),
        claim(
            "",
            "deadline order delivers nothing late",
            "at most 100 ms, under every fault",
            [at(faults, "longest, ms", "deadline") for faults in FAULTS[:3]],
            lambda *all_: f"{max(all_):.1f} ms",
            lambda *all_: max(all_) <= 100,
        ),
        claim(
            "",
            "merged order waits for δ + ε and for no answer",
            "14 to 20 ms on average, and fewer messages than total, causal and transactions",
            [at("calm", "latency, mean ms", "merged")]
            + [
                at("calm", "messages a delivery", order)
                for order in ("merged", "total", "causal", "transactions")
            ],
            lambda a, b, *others: (
                f"{a:.1f} ms; {b:.2f} messages, "
                f"the others {', '.join(f'{each:.2f}' for each in others)}"
            ),
            lambda a, b, *others: 14 <= a <= 20 and b < min(others),
        ),
        claim(
            "",
            "causal order sends an event without asking a sequencer, total order asks first",
            "causal is faster than total without faults",
            [at("calm", "latency, mean ms", order) for order in ("causal", "total")],
            lambda a, b: f"{a:.1f} and {b:.1f} ms",
            lambda a, b: a < b,
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="guarantees",
        paper="",
        figures="",
        title="The guarantees on the same workload, network and faults",
        setting=(SETTING,),
        cases=_cases,
        run_case=cases.run_choice,
        charts=(
            Chart(
                figure="latency",
                title="Mean latency by guarantee and fault",
                x_label="guarantee",
                y_label="ms",
                names=ORDERS,
                log_y=True,
            ),
            *(
                Chart(
                    figure=faults,
                    title=TITLES[faults],
                    x_label="guarantee",
                    y_label="",
                    names=ORDERS,
                    drawn=False,
                )
                for faults in FAULTS
            ),
        ),
        judge=_judge,
    ),
    loss.EXPERIMENT,
)
