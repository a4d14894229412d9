"""Planted bugs: replacements of functions of production code, and what a seed finds with them."""

import inspect
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from ensue.testing.swarm import draw, run

__all__ = [
    "BrokenMutant",
    "Mutant",
    "Patch",
    "find",
    "found_by",
    "meets",
    "nothing",
    "planted",
    "played",
    "wait_for_nothing",
]

TESTS = Path(__file__).parents[2]
OUTDATED = (AttributeError, KeyError, NameError, TypeError)
"""What functions raise that no longer fit the code that they replace a part of."""

Patch = tuple[object, str, object]


class Mutant(msgspec.Struct, frozen=True):
    """One mistake: the order whose programs find it, and what is put in whose place."""

    name: str
    order: str
    patches: tuple[Patch, ...]
    hint: int = 0
    """The seed to try: the first that found it when last searched."""
    draws: tuple[tuple[str, object], ...] = ()
    """What a seed draws that meets the mistake itself, and not only an error that follows from it:
    attributes of the draw, and their values."""


def nothing(*_arguments: object, **_options: object) -> None:
    """Do nothing."""


async def wait_for_nothing(*_arguments: object, **_options: object) -> None:
    """Return at once."""


class BrokenMutant(Exception):
    """A mutant that fails by its own code, not by its bug."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Put a mistake into the production code; raise `BrokenMutant` if it no longer fits that."""
    broken: list[str] = []
    with ExitStack() as stack:
        for target, name, value in mutant.patches:
            checked = _checked(value, broken)
            if isinstance(target, str):
                stack.enter_context(mock.patch(f"{target}.{name}", checked))
            else:
                stack.enter_context(mock.patch.object(target, name, checked))
        yield
    if broken:
        raise BrokenMutant(f"mutant is broken: {mutant.name!r} raised {broken[0]}")


def _checked(value: Any, broken: list[str]) -> Any:
    """Return a replacement; note errors of its own code, which production code may catch."""
    if isinstance(value, property):
        return property(_checked(value.fget, broken))
    if not inspect.isfunction(value):
        return value

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except OUTDATED as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            if TESTS in Path(place.filename).parents:
                broken.append(f"{error!r} ({place.filename}:{place.lineno})")
            raise

    @wraps(value)
    def call(*arguments: Any, **options: Any) -> Any:
        with noted():
            return value(*arguments, **options)

    @wraps(value)
    async def run(*arguments: Any, **options: Any) -> Any:
        with noted():
            return await value(*arguments, **options)

    @wraps(value)
    def iterate(*arguments: Any, **options: Any) -> Any:
        with noted():
            return (yield from value(*arguments, **options))

    if inspect.isgeneratorfunction(value):
        return iterate
    return run if inspect.iscoroutinefunction(value) else call


def played(seed: int, order: str) -> str:
    """Return what a seed finds wrong; empty: nothing."""
    problems = run(draw(seed, order)).problems
    return problems[0] if problems else ""


def found_by(mutant: Mutant, seed: int) -> str:
    """Return what a seed finds wrong with a mistake planted; empty: nothing."""
    with planted(mutant):
        return played(seed, mutant.order)


def meets(mutant: Mutant, seed: int) -> bool:
    """Return whether a seed draws what meets a mistake."""
    drawn = draw(seed, mutant.order)
    return all(getattr(drawn, name) == value for name, value in mutant.draws)


def find(mutant: Mutant, seeds: Iterable[int]) -> int | None:
    """Return the first seed that finds a mistake, and nothing without it."""
    met = (seed for seed in seeds if meets(mutant, seed))
    found = (seed for seed in met if found_by(mutant, seed) and not played(seed, mutant.order))
    return next(found, None)
