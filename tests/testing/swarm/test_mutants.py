"""Every planted bug is found by the swarm of the whole stack, with the seed noted beside it.

Found means that the run has problems, or that production code raises. A replacement that raises
because it no longer fits the code it changes fails the test. Where a seed no longer finds its bug,
or finds something without it, `python -m tests.testing.swarm.mutants --search NAME` prints another.

A seed gives another trace on another minor version of Python, where a noted seed may find nothing.
"""

import sys
from collections.abc import Iterator

import pytest
from tests.testing.swarm.mutants import MUTANTS
from tests.testing.swarm.planted import (
    BrokenMutant,
    Mutant,
    Patch,
    found_by,
    meets,
    planted,
    played,
)

import ensue
from ensue.client.bus import Bus
from ensue.client.receipts import Receipts
from ensue.protocols.content.leases import Leases

SLOW = frozenset({"a paused broker holds up newcomers"})
"""Bugs that make processes do the same again and again: `make verify` tries them."""
NOTED_WITH = (3, 11)
"""The version of Python whose traces the noted seeds are."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=mutant.name.replace(" ", "-"),
            marks=[pytest.mark.verify] if mutant.name in SLOW else [],
        )
        for mutant in MUTANTS
    ],
)
def test_the_swarm_finds_it(mutant: Mutant) -> None:
    assert meets(mutant, mutant.hint)
    found = found_by(mutant, mutant.hint)
    if not found and sys.version_info[:2] != NOTED_WITH:
        pytest.skip(f"seed {mutant.hint} finds it on Python 3.11, where its trace is another")
    assert found


@pytest.mark.verify
@pytest.mark.parametrize(("order", "seed"), sorted({(each.order, each.hint) for each in MUTANTS}))
def test_the_seed_finds_nothing_without_a_bug(order: str, seed: int) -> None:
    assert not played(seed, order)


def without_arguments() -> None:
    """Have none of the arguments that production code gives."""


def with_a_missing_attribute(self: Receipts, *_: object, **__: object) -> None:
    self.no_longer_there  # type: ignore[attr-defined] # noqa: B018 - it raises


async def with_a_missing_name(*_: object, **__: object) -> None:
    no_longer_there()  # type: ignore[name-defined] # noqa: F821 - it raises


def with_a_missing_key(*_: object, **__: object) -> Iterator[str]:
    known: dict[str, str] = {}
    yield known["no longer there"]


@pytest.mark.parametrize(
    ("order", "patch"),
    [
        ("total", (Receipts, "expect", without_arguments)),
        ("total", (Receipts, "expect", with_a_missing_attribute)),
        ("total", (Bus, "_leave", with_a_missing_name)),
        ("total", (Bus, "unsettled", property(with_a_missing_attribute))),
        ("transactions", (Leases, "expired", with_a_missing_key)),
    ],
    ids=["arguments", "attribute", "name", "property", "key"],
)
def test_outdated_mutant_is_broken_not_found(order: str, patch: Patch) -> None:
    with pytest.raises(BrokenMutant, match="mutant is broken: 'outdated' raised"):
        found_by(Mutant("outdated", order, (patch,)), 0)


def test_error_of_production_code_is_not_that_of_a_mutant() -> None:
    def count(_self: Bus) -> int:
        return Receipts.__len__(None)  # type: ignore[arg-type]

    with planted(Mutant("raises", "total", ((Bus, "unsettled", property(count)),))):
        bus = ensue.connect("memory://")
        with pytest.raises(AttributeError):
            assert bus.unsettled
