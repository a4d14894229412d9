"""Play the scenario of a seed, and return a small result.

Programs that play many seeds, in processes or on a cluster, use `play_seed`: the same seed gives
the same result wherever it is played. An exception inside a run is a failure of its seed.
"""

import traceback

import msgspec

from ensue.orders import DRAWS
from ensue.simulation import run

__all__ = ["DRAWS", "SeedResult", "play_seed", "raised"]


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one seed; small, because it travels between processes."""

    seed: int
    failure: tuple[str, ...] = ()
    """The failures, in sentences; empty if there are none."""
    steps: int = 0
    published: int = 0
    delivered: int = 0


def play_seed(protocol: str, seed: int) -> SeedResult:
    """Play the scenario of one seed."""
    try:
        outcome = run.play(DRAWS[protocol](seed), seed)
    except Exception as error:  # noqa: BLE001 - any exception is a failure of this seed
        return SeedResult(seed=seed, failure=(raised(error),))
    return SeedResult(
        seed=seed,
        failure=() if outcome.valid else tuple(outcome.sentences()),
        steps=outcome.steps,
        published=outcome.published,
        delivered=outcome.delivered,
    )


def raised(error: BaseException) -> str:
    """Return an exception as one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {error}{where}"
