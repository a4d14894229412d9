"""The comparison that none of the papers has: all guarantees on the same workload, network and faults."""

from itertools import product

from experiments.experiment import Case, Chart, Claim, Experiment, Table, claim
from experiments.guarantees import cases
from experiments.guarantees.cases import FAULTS, MIDDLE, ORDERS

__all__ = ["EXPERIMENTS"]

SETTING = (
    "Four publishers of 25 events of 100 bytes a second each, eight subscribers of everything, messages of 1 to 5 ms, three seconds. "
    "None and total: a notification service with a log, one sequencer node. Causal and deadline (100 ms): among the clients themselves. Merged: a service that only carries, clocks within 2 ms, messages within 12 ms. "
    "Transactions: three brokers in a line, every event in a planned transaction of its own. Messages and bytes are everything that anybody sent, divided by the deliveries of events; an event alone takes about 130 bytes."
)
TITLES = {
    "calm": "Nothing goes wrong",
    "loss": "2 % of all messages are lost",
    "subscriber": "One subscriber of eight is down for half a second",
    "middle": "Whoever is in the middle is down for half a second: sequencer, carrier or broker",
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
    reliable = ("total", "causal", "transactions")
    return [
        claim(
            "",
            "total, causal and transactional order lose nothing, whatever fails",
            "every event delivered to everybody, under every fault",
            [
                at(faults, lost, order)
                for order, faults in product(reliable, FAULTS)
                if faults != "middle" or order in MIDDLE
            ],
            lambda *all_: f"{max(all_):.2f} % not delivered at the most",
            lambda *all_: max(all_) <= 0,
        ),
        claim(
            "",
            "deadline order delivers nothing late",
            "100 ms at the most, under every fault",
            [at(faults, "longest, ms", "deadline") for faults in FAULTS[:3]],
            lambda *all_: f"{max(all_):.1f} ms",
            lambda *all_: max(all_) <= 100,
        ),
        claim(
            "",
            "merged order waits for δ + ε and needs nobody's answer",
            "14 to 20 ms on average, and the fewest messages of those with an order",
            [at("calm", "latency, mean ms", "merged")]
            + [
                at("calm", "messages a delivery", order)
                for order in ("merged", "total", "causal", "transactions")
            ],
            lambda a, b, *others: (
                f"{a:.1f} ms; {b:.2f} messages, the others {', '.join(f'{each:.2f}' for each in others)}"
            ),
            lambda a, b, *others: 14 <= a <= 20 and b < min(others),
        ),
        claim(
            "",
            "causal order asks nobody before an event goes out, total order does",
            "causal is faster than total where nothing goes wrong",
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
        play=cases.play_choice,
        charts=(
            Chart(
                figure="latency",
                title="Mean latency by guarantee and fault",
                across="guarantee",
                up="ms",
                names=ORDERS,
                log_y=True,
            ),
            *(
                Chart(
                    figure=faults,
                    title=TITLES[faults],
                    across="guarantee",
                    up="",
                    names=ORDERS,
                    drawn=False,
                )
                for faults in FAULTS
            ),
        ),
        judge=_judge,
    ),
)
