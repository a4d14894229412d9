"""Subscriptions and publications drawn by the popularity laws of the paper.

The paper gives a shape and the share of topics that take 80 % of all choices: 0.5 % of 1,000 for
0.901 and 40 % for 0.349. Of the usual readings one fits: the Pareto law, P(rank > k) proportional
to (k + 1) ** -shape, cut off after the last topic. Five topics (0.5 %) then have 80.3 % at 0.901,
and 40 topics (4 %, where the paper says 40 %) have 79.8 % at 0.349.
`benchmarks/stamp_sizes.py --laws` prints the other readings.

Each site has its own ranking: topics by identifier, starting at the first topic of its own server
and wrapping around after the last. The paper does not say how a site ranks the topics of other
sites. With this ranking, clients of sites 5 and 4 often share a popular topic and one of a server
above, because the topics of server 1 come next for them; clients of sites 3 and 2 rarely do. This
is closer to Figure 11 than a random ranking, where chance decides whether a server forwards nearly
everything or nothing.
"""

from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["TOPICS", "Sites", "counts_of", "law", "subscribe"]

TOPICS = 1000
SITES = 5

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def law(shape: float) -> Floats:
    """Return the probability of each topic, by rank."""
    rank = np.arange(1, TOPICS + 1, dtype=np.float64)
    weights = rank**-shape - (rank + 1) ** -shape
    chances: Floats = weights / weights.sum()
    return chances


def subscribe(chances: Floats, subscribers: int, each: int, random: np.random.Generator) -> Flags:
    """Draw `each` distinct topics for every subscriber; return a matrix of subscriber by topic.

    Drawing until there are `each` distinct topics equals taking the first `each` of a race in which
    the time of a topic is exponential with the rate of its probability.
    """
    chosen = np.zeros((subscribers, TOPICS), dtype=np.bool_)
    for start in range(0, subscribers, 1000):
        rows = min(1000, subscribers - start)
        times = random.exponential(size=(rows, TOPICS)) / chances
        first = np.argpartition(times, each - 1, axis=1)[:, :each]
        np.put_along_axis(chosen[start : start + rows], first, values=True, axis=1)
    return chosen


def counts_of(chosen: Flags) -> NDArray[np.float32]:
    """Return the number of common subscribers of each pair of topics; 0 on the diagonal."""
    numbers = chosen.astype(np.float32)
    counts: NDArray[np.float32] = numbers.T @ numbers
    np.fill_diagonal(counts, 0)
    return counts


class Sites(msgspec.Struct, frozen=True):
    """Five sites with 200 clients and 200 topics each."""

    chances: Floats
    """Probability by site and topic that a client publishes on or subscribes to a topic."""
    counts: NDArray[np.float32]
    subscriptions: list[tuple[int, ...]]
    """By client; clients of a site are adjacent."""

    @classmethod
    @cache
    def draw(cls, shape: float, clients: int, each: int, seed: int) -> "Sites":
        """Draw the subscriptions of all clients."""
        random = np.random.default_rng([int(shape * 1000), clients, each, seed])
        own = TOPICS // SITES
        chances = np.zeros((SITES, TOPICS))
        flags = []
        for site in range(SITES):
            chances[site, np.roll(np.arange(TOPICS), -site * own)] = law(shape)
            flags.append(subscribe(chances[site], clients // SITES, each, random))
        chosen = np.concatenate(flags)
        subscriptions = [tuple(np.flatnonzero(row).tolist()) for row in chosen]
        return cls(chances, counts_of(chosen), subscriptions)
