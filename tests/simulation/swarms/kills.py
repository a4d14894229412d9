"""Print the planted bugs that the swarms find per second of processor time, by order.

    python -m tests.simulation.swarms.kills [--search]

Each bug is tried with the seed that found it last. If that seed no longer finds it, `--search`
looks for another one, and prints the seed to note beside the bug.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.protocols.shared import test_loss_recovery
from tests.simulation.swarms import (
    test_deadline,
    test_merged,
    test_mutants_causal,
    test_mutants_loss,
    test_mutants_membership,
    test_mutants_total,
    test_mutants_transactions,
    test_total_content,
    test_total_moves,
    test_total_noncausal,
)

Find = Callable[[Any, Iterable[int]], int | None]

ORDERS: dict[str, tuple[tuple[Any, ...], Find, int]] = {
    "total": (
        test_mutants_total.MUTANTS,
        test_mutants_total.first_seed,
        test_mutants_total.SEEDS_MAX,
    ),
    "total-noncausal": (
        test_total_noncausal.MUTANTS,
        test_total_noncausal.SEARCH.first_seed,
        test_total_noncausal.SEEDS_MAX,
    ),
    "total-moves": (
        test_total_moves.MUTANTS,
        test_total_moves.SEARCH.first_seed,
        test_total_moves.SEEDS_MAX,
    ),
    "total-content": (
        test_total_content.MUTANTS,
        test_total_content.SEARCH.first_seed,
        test_total_content.SEEDS_MAX,
    ),
    "causal": (
        test_mutants_causal.MUTANTS,
        test_mutants_causal.SEARCH.first_seed,
        test_mutants_causal.SEEDS_MAX,
    ),
    "merged": (test_merged.MUTANTS, test_merged.SEARCH.first_seed, test_merged.SEEDS_MAX),
    "deadline": (test_deadline.MUTANTS, test_deadline.SEARCH.first_seed, test_deadline.SEEDS_MAX),
    "transactions": (
        test_mutants_transactions.MUTANTS,
        test_mutants_transactions.SEARCH.first_seed,
        test_mutants_transactions.SEEDS_MAX,
    ),
    "loss": (
        test_mutants_loss.MUTANTS,
        test_mutants_loss.first_seed,
        test_mutants_loss.SEEDS_MAX,
    ),
    "loss: links": (
        test_loss_recovery.MUTANTS,
        test_loss_recovery.first_seed,
        test_loss_recovery.SEEDS_MAX,
    ),
    **{
        f"{order}: {part}": (
            test_mutants_membership.MUTANTS[order],
            test_mutants_membership.SEARCHES[order].first_seed,
            test_mutants_membership.SEEDS_MAX,
        )
        for order, part in (
            ("causal", "registered"),
            ("deadline", "registered"),
            ("merged", "fan-out"),
        )
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what the swarms catch.")
    parser.add_argument("--search", action="store_true", help="search where a noted seed fails")
    search = parser.parse_args().search
    print("| order | planted bugs | found by the noted seed | seconds | found per second |")
    print("|---|---|---|---|---|")
    for order, (mutants, find, seeds_max) in ORDERS.items():
        started = time.process_time()
        missed = [mutant for mutant in mutants if find(mutant, [mutant.hint]) is None]
        seconds = time.process_time() - started
        found = len(mutants) - len(missed)
        print(
            f"| {order} | {len(mutants)} | {found} | {seconds:.1f} | {found / seconds:.1f} |",
            flush=True,
        )
        for mutant in missed if search else ():
            seed = find(mutant, range(seeds_max))
            print(f"  {mutant.name}: seed {mutant.hint} is stale, {seed} finds it", flush=True)


if __name__ == "__main__":
    main()
