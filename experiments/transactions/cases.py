"""Run the cases of the experiments with transactions.

The baseline waits between its operations, for the shortest time in which no update goes wrong. A
search with the seed of the case finds that time.
"""

from collections.abc import Iterator

import msgspec

from experiments.experiment import Case, Row, row
from experiments.transactions.model import BL_WAIT, MS, SCHEMES, Setting, measure
from experiments.transactions.regular_events import disturb
from experiments.transactions.wait_baseline import shortest_wait

__all__ = ["FIGURES", "run_dispatching", "run_regular", "waited"]

FIGURES = {
    "scheme": ("5 latency", "5 throughput"),
    "brokers": ("6a", "6b"),
    "concurrent": ("6c", "6d"),
    "clients": ("6e", "6f"),
}
"""By varied parameter: the figures of latency and throughput."""
ROUNDS = 3


def waited(setting: Setting, seed: int) -> Setting:
    """Return the setting of the baseline with the shortest sufficient wait."""

    def right(wait_ms: int) -> bool:
        return measure(msgspec.structs.replace(setting, wait_ns=wait_ms * MS), seed).wrong == 0

    return msgspec.structs.replace(setting, wait_ns=shortest_wait(right) * MS)


def run_dispatching(case: Case) -> Iterator[Row]:
    """Figures 5 and 6(a) to 6(f): latency and throughput of dispatching instances."""
    setting = Setting(
        scheme=case["scheme"],
        brokers=case["brokers"],
        concurrent=case["concurrent"],
        instances=case["clients"] // 4,
        transactions=case["transactions"],
    )
    if setting.scheme == BL_WAIT:
        setting = waited(setting, case["seed"])
    found = measure(setting, case["seed"])
    assert not found.wrong, "an update did not reach its agent alone"
    latency, throughput = FIGURES[case["varies"]]
    if case["varies"] == "scheme":
        at = list(SCHEMES).index(setting.scheme)
        yield row(latency, "ours", at, found.latency_ms)
        yield row(throughput, "ours", at, found.per_second)
    else:
        yield row(latency, setting.scheme, case[case["varies"]], found.latency_ms)
        yield row(throughput, setting.scheme, case[case["varies"]], found.per_second)
    if case["varies"] == "concurrent":
        busy = {"busiest client": found.client_busy, "busiest broker": found.broker_busy}
        for name, share in busy.items():
            yield row("6c busy", f"{setting.scheme}, {name}", case["concurrent"], 100 * share)


def run_regular(case: Case) -> Iterator[Row]:
    """Figure 6(g): regular events while transactions are in progress."""
    scheme, wait_ns = case["scheme"], 0
    if scheme == BL_WAIT:
        wait_ns = waited(
            Setting(scheme=scheme, concurrent=4, transactions=20), case["seed"]
        ).wait_ns
    found = disturb(
        scheme, wait_ns=wait_ns, rounds=ROUNDS, between=case["between"], seed=case["seed"]
    )
    assert not found.lost, "a regular event was lost"
    rates = (
        found.per_second,
        found.per_second_during,
        found.per_second_least,
        found.per_second_least_during,
    )
    for at, rate in enumerate(rates):
        yield row("6g", scheme, at, rate)
    delays = (
        found.delay_ms,
        found.delay_ms_during,
        found.delay_ms_most,
        found.delay_ms_most_during,
    )
    for at, delay in enumerate(delays):
        yield row("delay", scheme, at, delay)
    yield row("drop", "worst 100 ms", list(SCHEMES).index(scheme), 100 * found.drop)
