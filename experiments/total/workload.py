"""Who subscribes to what, and who publishes where, by the popularity laws of the paper.

The paper gives a shape and, with it, how many topics take 80 % of all choices: 0.5 % of 1,000 for 0.901 and 40 % for 0.349. Of the usual readings one fits: the
Pareto law, P(rank > k) proportional to (k + 1) ** -shape, cut off after the last topic. Five topics (0.5 %) then have 80.3 % at 0.901, and 40 topics
(4 %, where the paper says 40 %) have 79.8 % at 0.349. `benchmarks/stamp_sizes.py --laws` prints the other readings.

With sites, each has a ranking of its own: topics by their identifiers, from the first of its own server to the last of all, then around. The paper does not say how a
site ranks the topics of others. That a popular topic is named together with one of a server above is then likely for sites 5 and 4, whose next topics are those of server 1, and rarer at 3 and 2: nearer to
Figure 11 than an order that is drawn, which makes any server pass on nearly everything or nothing, by chance.
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
    """Return how often a topic is chosen, by its rank."""
    rank = np.arange(1, TOPICS + 1, dtype=np.float64)
    weights = rank**-shape - (rank + 1) ** -shape
    chances: Floats = weights / weights.sum()
    return chances


def subscribe(chances: Floats, subscribers: int, each: int, random: np.random.Generator) -> Flags:
    """Let subscribers choose so many distinct topics each; return subscriber by topic.

    Whoever draws until there are enough different ones gets the first of a race in which a topic's time is exponential, at the rate of its chance.
    """
    chosen = np.zeros((subscribers, TOPICS), dtype=np.bool_)
    for start in range(0, subscribers, 1000):
        rows = min(1000, subscribers - start)
        times = random.exponential(size=(rows, TOPICS)) / chances
        first = np.argpartition(times, each - 1, axis=1)[:, :each]
        np.put_along_axis(chosen[start : start + rows], first, values=True, axis=1)
    return chosen


def counts_of(chosen: Flags) -> NDArray[np.float32]:
    """Return how many subscribers each pair of topics shares, none for a topic and itself."""
    numbers = chosen.astype(np.float32)
    counts: NDArray[np.float32] = numbers.T @ numbers
    np.fill_diagonal(counts, 0)
    return counts


class Sites(msgspec.Struct, frozen=True):
    """Five sites with 200 clients and 200 topics each."""

    chances: Floats
    """Site by topic: where its clients publish and subscribe."""
    counts: NDArray[np.float32]
    subscriptions: list[tuple[int, ...]]
    """By client; clients of a site stand together."""

    @classmethod
    @cache
    def draw(cls, shape: float, clients: int, each: int, seed: int) -> "Sites":
        """Draw everybody's subscriptions."""
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
