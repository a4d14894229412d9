"""Repeat the experiments of the paper: `python -m experiments.transactions [NAME …] [--transactions N] [--runs N] [--quick] [--json PATH]`.

Names: base (Figure 5), overlays (Figures 6(a) and 6(b)), concurrency (6(c), 6(d)), clients (6(e), 6(f)), regular (6(g)). Without a name, all of them.
All four schemes: S-TX, D-TX and D-TX_NI are the nodes that run in production, BL-WAIT is `waiting`. What the paper leaves open is stated in `model` and `regular`; its
figures stand beside ours where it prints them.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from experiments.transactions.model import BL_WAIT, MS, SCHEMES, Figures, Setting, play
from experiments.transactions.regular import disturb
from experiments.transactions.waiting import shortest_wait


class Options(msgspec.Struct, frozen=True):
    """What was asked for."""

    transactions: int
    """Of each instantiation."""
    runs: int
    """With clients on other brokers each."""
    between: int
    """Regular events between two dispatches."""


Rows = list[dict[str, Any]]


def waited(setting: Setting, seed: int) -> Setting:
    """Return the setting of the baseline with the shortest wait that is long enough."""

    def right(wait_ms: int) -> bool:
        return play(_with(setting, wait_ns=wait_ms * MS), seed).wrong == 0

    return _with(setting, wait_ns=shortest_wait(right) * MS)


def _with(setting: Setting, **changed: int) -> Setting:
    return msgspec.structs.replace(setting, **changed)


def measure(setting: Setting, options: Options) -> dict[str, Any]:
    """Return a row: the means over runs of one setting."""
    found: list[Figures] = []
    waits: list[float] = []
    for seed in range(options.runs):
        fixed = waited(setting, seed) if setting.scheme == BL_WAIT else setting
        waits.append(fixed.wait_ns / MS)
        found.append(play(fixed, seed))
    return {
        "scheme": setting.scheme,
        "brokers": setting.brokers,
        "concurrent": setting.concurrent,
        "clients": 4 * setting.instances,
        "transactions": setting.transactions,
        "latency_ms": round(fmean(one.latency_ms for one in found), 1),
        "per_second": round(fmean(one.per_second for one in found), 2),
        "messages": round(fmean(one.messages for one in found), 1),
        "wait_ms": round(fmean(waits), 1),
        "wrong": sum(one.wrong for one in found),
        "repeated": sum(one.repeated for one in found),
    }


def table(rows: Rows, settings: Iterable[Setting], column: str, options: Options) -> Iterator[str]:
    """Measure settings; yield a line each, with how both figures compare with the first of its scheme."""
    yield (
        f"{column:>10} {'scheme':>8} {'latency':>9} {'':>6} {'a second':>9} {'':>6} {'messages':>9} "
        f"{'wait':>8}"
    )
    first: dict[str, dict[str, Any]] = {}
    for setting in settings:
        row = measure(setting, options)
        rows.append(row)
        base = first.setdefault(setting.scheme, row)
        slower = row["latency_ms"] / base["latency_ms"]
        more = row["per_second"] / base["per_second"]
        wait = f"{row['wait_ms']:.0f} ms" if setting.scheme == BL_WAIT else ""
        yield (
            f"{row[column]:>10} {setting.scheme:>8} {row['latency_ms']:>6.0f} ms {slower:>5.1f}x "
            f"{row['per_second']:>9.1f} {more:>5.1f}x {row['messages']:>9.0f} {wait:>8}"
        )
        assert not row["wrong"], "an update went where it should not"


def base(options: Options, rows: Rows) -> Iterator[str]:
    """Figure 5: three brokers, four clients, one transaction at a time."""
    settings = [Setting(scheme=scheme, transactions=options.transactions) for scheme in SCHEMES]
    yield from table(rows, settings, "brokers", options)
    yield "the paper: BL-WAIT 190 ms and about 5 a second, S-TX about 20 a second, D-TX 570 ms, D-TX_NI much the same"


def overlays(options: Options, rows: Rows) -> Iterator[str]:
    """Figures 6(a) and 6(b): 1, 3, 5 and 9 brokers."""
    settings = [
        Setting(scheme=scheme, brokers=brokers, transactions=options.transactions)
        for brokers in (1, 3, 5, 9)
        for scheme in SCHEMES
    ]
    yield from table(rows, settings, "brokers", options)
    yield "the paper, 9 brokers against 1: D-TX 911 ms against 410 ms, BL-WAIT 2.6x, S-TX 1.9x; D-TX_NI is faster than D-TX"


def concurrency(options: Options, rows: Rows) -> Iterator[str]:
    """Figures 6(c) and 6(d): 1, 2, 5 and 10 transactions at once at one coordinator."""
    settings = [
        Setting(scheme=scheme, concurrent=concurrent, transactions=options.transactions)
        for concurrent in (1, 2, 5, 10)
        for scheme in SCHEMES
    ]
    yield from table(rows, settings, "concurrent", options)
    yield (
        "the paper, 10 against 1: latency of BL-WAIT 1.5x, S-TX 3x, D-TX and D-TX_NI about 4x; throughput of "
        "BL-WAIT 7x, S-TX 3.7x, D-TX 2.3x"
    )


def clients(options: Options, rows: Rows) -> Iterator[str]:
    """Figures 6(e) and 6(f): 1, 2, 5 and 10 coordinators, with workflows of their own."""
    settings = [
        Setting(scheme=scheme, instances=instances, transactions=options.transactions)
        for instances in (1, 2, 5, 10)
        for scheme in SCHEMES
    ]
    yield from table(rows, settings, "clients", options)
    yield (
        "the paper, 40 clients against 4: latency of S-TX and BL-WAIT 1.5x and throughput 7x; the throughput of D-TX grows up to "
        "20 clients and is less at 40; D-TX_NI's grows on"
    )


def regular(options: Options, rows: Rows) -> Iterator[str]:
    """Figure 6(g): regular events to both agents, and four instances dispatched now and then."""
    yield f"{'':>10} {'events a second':>35} {'ms on the way':>31}"
    yield (
        f"{'scheme':>10} {'quiet':>11} {'dispatching':>11} {'worst 0.1 s':>11} {'quiet':>9} {'dispatching':>11} {'longest':>9}"
    )
    for scheme in SCHEMES:
        wait_ns = 0
        if scheme == BL_WAIT:
            wait_ns = waited(Setting(scheme=scheme, concurrent=4, transactions=20), 0).wait_ns
        found = disturb(scheme, wait_ns=wait_ns, rounds=3, between=options.between, seed=0)
        rows.append({"scheme": scheme, **msgspec.structs.asdict(found)})
        yield (
            f"{scheme:>10} {found.per_second:>11.0f} {found.per_second_during:>11.0f} {found.per_second_least:>11.0f} "
            f"{found.delay_ms:>9.1f} {found.delay_ms_during:>11.1f} {found.delay_ms_most:>9.1f}"
        )
        assert not found.lost, "a regular event was lost"
    yield "the paper: the rate drops with D-TX and D-TX_NI while instances are dispatched, and does not with S-TX; it prints no figures"


EXPERIMENTS: dict[str, Callable[[Options, Rows], Iterator[str]]] = {
    "base": base,
    "overlays": overlays,
    "concurrency": concurrency,
    "clients": clients,
    "regular": regular,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Repeat the experiments of the paper.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--transactions", type=int, default=100, help="of each coordinator (100)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each figure (3)")
    parser.add_argument("--quick", action="store_true", help="20 transactions, one run")
    parser.add_argument("--json", type=Path, help="write the rows to a file")
    chosen = parser.parse_args()
    options = Options(chosen.transactions, chosen.runs, 20_000)
    if chosen.quick:
        options = Options(20, 1, 1_000)
    found: dict[str, Rows] = {}
    for name in chosen.names or EXPERIMENTS:
        if name not in EXPERIMENTS:
            parser.error(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
        print(f"== {name} ({options.transactions} transactions, {options.runs} runs)")
        for line in EXPERIMENTS[name](options, found.setdefault(name, [])):
            print(line)
            sys.stdout.flush()
    if chosen.json is not None:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))


if __name__ == "__main__":
    main()
