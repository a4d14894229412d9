"""The cases of the experiments with transactions, played.

The baseline waits between its operations, for the shortest time with which all goes well: it is looked for, with the seed of the case.
"""

from collections.abc import Iterator

import msgspec

from experiments.experiment import Case, Row, row
from experiments.transactions.model import BL_WAIT, MS, SCHEMES, Setting, play
from experiments.transactions.regular_events import disturb
from experiments.transactions.wait_baseline import shortest_wait

__all__ = ["FIGURES", "play_dispatching", "play_regular", "waited"]

FIGURES = {
    "scheme": ("5 latency", "5 throughput"),
    "brokers": ("6a", "6b"),
    "concurrent": ("6c", "6d"),
    "clients": ("6e", "6f"),
}
"""By what varies: the figures of latency and of throughput."""
ROUNDS = 3


def waited(setting: Setting, seed: int) -> Setting:
    """Return the setting of the baseline with the shortest wait that is long enough."""

    def right(wait_ms: int) -> bool:
        return play(msgspec.structs.replace(setting, wait_ns=wait_ms * MS), seed).wrong == 0

    return msgspec.structs.replace(setting, wait_ns=shortest_wait(right) * MS)


def play_dispatching(case: Case) -> Iterator[Row]:
    """Figures 5 and 6(a) to 6(f): dispatch instances, and measure how long that takes and how many are over a second."""
    setting = Setting(
        scheme=case["scheme"],
        brokers=case["brokers"],
        concurrent=case["concurrent"],
        instances=case["clients"] // 4,
        transactions=case["transactions"],
    )
    if setting.scheme == BL_WAIT:
        setting = waited(setting, case["seed"])
    found = play(setting, case["seed"])
    assert not found.wrong, "an update went where it should not"
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


def play_regular(case: Case) -> Iterator[Row]:
    """Figure 6(g): events of those who have no part in transactions, while some are under way."""
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
