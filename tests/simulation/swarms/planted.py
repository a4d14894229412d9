"""Planted bugs, and the search for the seeds of a swarm that find them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

import msgspec

from ensue.core.errors import LimitReached, RemoteProtocolError
from ensue.simulation.deployments.base import Roles
from ensue.simulation.run import play
from ensue.simulation.scenario import Scenario

CAUGHT: tuple[type[Exception], ...] = (AssertionError, LimitReached, RemoteProtocolError)
"""Exceptions by which production code reports that it detected a fault."""


class Mutant(msgspec.Struct, frozen=True):
    """One bug: classes for roles, or replacements of attributes (target, name, value)."""

    name: str
    hint: int
    """The seed to try first: the first that caught the bug in the last search."""
    roles: Roles = Roles()
    patches: tuple[tuple[object, str, object], ...] = ()


def patched(name: str, hint: int, target: object, attribute: str, value: object) -> Mutant:
    """Return a mutant with one replaced attribute."""
    return Mutant(name, hint, Roles(), ((target, attribute, value),))


@contextmanager
def planted(mutant: Mutant) -> Iterator[Roles]:
    """Apply the patches of a mutant for the duration of the context."""
    with ExitStack() as stack:
        for target, attribute, value in mutant.patches:
            stack.enter_context(mock.patch.object(target, attribute, value))
        yield mutant.roles


class Search:
    """A search for the first seed of a swarm that catches a mutant."""

    def __init__(
        self, draw: Callable[[int], Scenario], *, caught: tuple[type[Exception], ...] = CAUGHT
    ) -> None:
        self._draw = draw
        self._caught = caught

    def is_caught(self, mutant: Mutant, seed: int) -> bool:
        """Return whether a seed catches a mutant: its run is invalid, or raises."""
        try:
            with planted(mutant) as roles:
                return not play(self._draw(seed), seed, roles=roles).valid
        except self._caught:
            return True

    def first_seed(self, mutant: Mutant, seeds: Iterable[int]) -> int | None:
        """Return the first of some seeds that catches a mutant."""
        return next((seed for seed in seeds if self.is_caught(mutant, seed)), None)

    def print_seeds(
        self,
        mutants: Iterable[Mutant],
        names: Sequence[str],
        seeds: Iterable[int],
        describe: Callable[[int], str] = lambda _seed: "",
    ) -> None:
        """Print the first seed that catches each mutant, or each of the named ones."""
        for mutant in mutants:
            if not names or mutant.name in names:
                seed = self.first_seed(mutant, seeds)
                note = "" if seed is None else describe(seed)
                print(f"{mutant.name}: {seed} {note}".rstrip(), flush=True)  # noqa: T201
