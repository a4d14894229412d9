"""Assign topics to the nodes of a chain so that most stamps need no hop.

A stamp for topic T starts at T's node and travels up to the last node that hosts a partner of T:
`stage of the last - stage of T` hops, none if no partner is above. A component that fits on one
node goes there whole, and its stamps never hop. A larger component is split. Then the events of
topics below a partner hop, so a good split cuts few links and puts the busier side of each above.

Cost: the sum of events a second times hops. An event published at another site than its node's
adds `SITE_HOPS`. Constraint: no node has more than `balance` times its even share of all events,
except a node that hosts a single topic. The search may miss it where a few heavy topics do not
divide that evenly.

Method. Components that are too large are split in three ways: along the strongest links, by
popularity, and by site. Each split fills nodes from the top of the chain, and is refined while
the cost falls: move a topic, exchange two topics, exchange two nodes. The cheapest split wins. The
other components stay whole; an exhaustive search places the largest few, at their site if there is
room. One that fits nowhere is split too. The same input gives the same placement.

HAZARD: this runs on one machine, over topics and pairs of partners within components that have to
be split, not over subscribers. `EVALUATIONS_MAX` bounds the refinement: with more than some ten
thousand such topics it stops before the cost stops falling.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Problem", "Solution", "solve"]

SITE_HOPS = 1.0
"""Cost, in hops, of an event published at another site than its node's."""
PASSES_MAX = 20
"""Passes over all topics in one refinement."""
EVALUATIONS_MAX = 2_000_000
"""Moves evaluated in one refinement."""
EXCHANGES = 12
"""Exchanges tried for a topic that no other node has room for."""
SEARCHED = 12
"""Number of components, the largest first, that are placed by exhaustive search."""
SEARCH_MAX = 20_000
"""Steps of that search."""
EPSILON = 1e-9

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Topics to place and nodes to place them on, both by number."""

    rate: Floats
    """Events a second of each topic."""
    component: Ints
    """The component of each topic."""
    away: Floats
    """By topic and node: events of the topic published at another site than the node's."""
    left: Ints
    right: Ints
    """Pairs of partners. Pairs within components that fit on a node may be missing."""
    shared: Floats
    """Number of subscribers that each pair shares."""
    crowded: NDArray[np.bool_]
    """Topics with more partners than `left` and `right` list. A set that large is split, and almost
    always has a topic at the last stage, so their stamps are assumed to travel there."""
    balance: float

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.away.shape[1])

    @property
    def capacity(self) -> float:
        """Events a second that one node may have."""
        return self.balance * float(self.rate.sum()) / self.nodes * (1 + EPSILON)


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """A placement."""

    stage: Ints
    """The stage of each topic."""
    chain: list[int]
    """The node at each stage."""


class _Links:
    """Partners of each topic, and the weight of each link."""

    def __init__(self, problem: Problem) -> None:
        ends = np.concatenate([problem.left, problem.right])
        others = np.concatenate([problem.right, problem.left])
        rates = problem.rate[problem.left] + problem.rate[problem.right]
        weight = np.tile(problem.shared * rates, 2)
        order = np.lexsort((others, ends))
        self._others: Ints = others[order]
        self._weights: Floats = weight[order]
        self._starts: Ints = np.searchsorted(ends[order], np.arange(len(problem.rate) + 1))

    def partners(self, topic: int) -> Ints:
        return self._others[self._starts[topic] : self._starts[topic + 1]]

    def weights(self, topic: int) -> Floats:
        return self._weights[self._starts[topic] : self._starts[topic + 1]]


class _Board:
    """Topics on stages, with the counts that make evaluating a move cheap."""

    def __init__(self, problem: Problem, links: _Links) -> None:
        self.problem = problem
        self.links = links
        self.nodes = problem.nodes
        self.chain = list(range(self.nodes))
        self.stage: Ints = np.full(len(problem.rate), -1, np.int64)
        self.load: Floats = np.zeros(self.nodes)
        self.hosted: Ints = np.zeros(self.nodes, np.int64)
        self._above: NDArray[np.int32] = np.zeros((len(problem.rate), self.nodes), np.int32)
        """By topic and stage: number of the topic's partners there."""
        self._above[:, -1] += problem.crowded
        self.evaluations = 0

    def fits(self, load: float, stage: int) -> bool:
        return self.load[stage] + load <= self.problem.capacity or not self.hosted[stage]

    def put(self, topic: int, stage: int) -> None:
        """Put a topic on a stage, or move it there."""
        before = int(self.stage[topic])
        partners = self.links.partners(topic)
        if before >= 0:
            self._above[partners, before] -= 1
            self.load[before] -= self.problem.rate[topic]
            self.hosted[before] -= 1
        self._above[partners, stage] += 1
        self.load[stage] += self.problem.rate[topic]
        self.hosted[stage] += 1
        self.stage[topic] = stage

    def gain(self, topic: int, stage: int) -> float:
        """Return the cost that moving a topic would save."""
        self.evaluations += 1
        before = int(self.stage[topic])
        rate, away = self.problem.rate, self.problem.away
        last = int(_last(self._above[topic : topic + 1])[0])
        saved = float(rate[topic]) * (max(last, before) - before - max(last, stage) + stage)
        saved += SITE_HOPS * float(away[topic, self.chain[before]] - away[topic, self.chain[stage]])
        partners = self.links.partners(topic)
        counts = self._above[partners]
        own = self.stage[partners]
        tops = np.maximum(_last(counts), own)
        counts[:, before] -= 1
        counts[:, stage] += 1
        return saved + float((rate[partners] * (tops - np.maximum(_last(counts), own))).sum())

    def cost(self) -> float:
        placed = np.flatnonzero(self.stage >= 0)
        own = self.stage[placed]
        hops = np.maximum(_last(self._above[placed]), own) - own
        nodes = np.asarray(self.chain)[own]
        away = self.problem.away[placed, nodes]
        return float((self.problem.rate[placed] * hops).sum() + SITE_HOPS * away.sum())

    def reorder(self, order: Sequence[int]) -> None:
        """Reorder nodes with their topics: `order` lists the old stage of each."""
        to = np.empty(self.nodes, np.int64)
        to[list(order)] = np.arange(self.nodes)
        placed = self.stage >= 0
        self.stage[placed] = to[self.stage[placed]]
        self.load, self.hosted = self.load[list(order)], self.hosted[list(order)]
        self._above[:, -1] -= self.problem.crowded
        self._above = self._above[:, list(order)]
        self._above[:, -1] += self.problem.crowded
        self.chain = [self.chain[old] for old in order]


def solve(problem: Problem) -> Solution:
    """Place all topics."""
    links = _Links(problem)
    members = _by_component(problem.component)
    sizes = [(float(problem.rate[topics].sum()), topics) for topics in members]
    sizes.sort(key=lambda each: (-each[0], int(each[1][0])))
    large = [topics for load, topics in sizes if load > problem.capacity and len(topics) > 1]
    whole = [topics for load, topics in sizes if load <= problem.capacity or len(topics) == 1]
    split = [int(topic) for topics in large for topic in topics]
    board = _best_split(problem, links, large)
    unplaced = _put_whole(board, whole)
    for topics in unplaced:
        for topic in sorted(map(int, topics), key=lambda each: (-problem.rate[each], each)):
            board.put(topic, _stage_with_room(board, float(problem.rate[topic])))
            split.append(topic)
    if unplaced:
        _refine(board, split)
    return Solution(stage=board.stage, chain=board.chain)


def _best_split(problem: Problem, links: _Links, large: Sequence[Ints]) -> _Board:
    """Split the large components in each way, and return the cheapest result."""
    best = _Board(problem, links)
    if not large:
        return best
    split = [int(topic) for topics in large for topic in topics]
    least = math.inf
    ways: list[Callable[[_Board, Ints], list[list[int]]]] = [_by_links, _by_popularity, _by_site]
    for way in ways:
        board = _Board(problem, links)
        _fill(board, [part for topics in large for part in way(board, topics)])
        _refine(board, split)
        cost = board.cost()
        if cost < least - EPSILON:
            least, best = cost, board
    return best


def _by_links(board: _Board, topics: Ints) -> list[list[int]]:
    """Grow parts along the strongest links, each from the busiest remaining topic."""
    rate, capacity = board.problem.rate, board.problem.capacity
    heaviest = sorted(map(int, topics), key=lambda each: (-rate[each], each))
    left = set(heaviest)
    parts: list[list[int]] = []
    for seed in heaviest:
        if seed not in left:
            continue
        part: list[int] = []
        load = 0.0
        pull: dict[int, float] = {seed: 0.0}
        queue = [(0.0, -float(rate[seed]), seed)]
        while queue:
            pulled, _, topic = heapq.heappop(queue)
            if topic not in left or -pulled < pull[topic]:
                continue  # In a part already, or queued again with a larger weight.
            if part and load + rate[topic] > capacity:
                continue
            left.remove(topic)
            part.append(topic)
            load += float(rate[topic])
            for other, weight in zip(
                board.links.partners(topic).tolist(),
                board.links.weights(topic).tolist(),
                strict=True,
            ):
                if other in left:
                    pull[other] = pull.get(other, 0.0) + weight
                    heapq.heappush(queue, (-pull[other], -float(rate[other]), other))
        parts.append(part)
    return parts


def _by_popularity(board: _Board, topics: Ints) -> list[list[int]]:
    rate = board.problem.rate
    return list(_cut(board, sorted(map(int, topics), key=lambda each: (-rate[each], each))))


def _by_site(board: _Board, topics: Ints) -> list[list[int]]:
    """Separate topics whose events come from different sites."""
    rate, away = board.problem.rate, board.problem.away
    home = away.argmin(axis=1)
    grouped: dict[int, list[int]] = {}
    for topic in sorted(map(int, topics), key=lambda each: (-rate[each], each)):
        grouped.setdefault(int(home[topic]), []).append(topic)
    return [part for group in grouped.values() for part in _cut(board, group)]


def _cut(board: _Board, topics: Sequence[int]) -> Iterator[list[int]]:
    """Cut a sequence of topics into parts that fit on a node."""
    part: list[int] = []
    load = 0.0
    for topic in topics:
        rate = float(board.problem.rate[topic])
        if part and load + rate > board.problem.capacity:
            yield part
            part, load = [], 0.0
        part.append(topic)
        load += rate
    if part:
        yield part


def _fill(board: _Board, parts: Sequence[list[int]]) -> None:
    """Put parts on stages from the last down, each on the node nearest to its events."""
    away, top = board.problem.away, board.nodes - 1
    for number, part in enumerate(parts):
        stage = top - number
        if stage >= 0:
            free = board.chain[: stage + 1]
            nearest = min(free, key=lambda node: (float(away[part, node].sum()), node))
            board.chain.insert(stage, board.chain.pop(board.chain.index(nearest)))
        for topic in part:
            rate = float(board.problem.rate[topic])
            kept = stage >= 0 and board.fits(rate, stage)
            board.put(topic, stage if kept else _stage_with_room(board, rate))


def _stage_with_room(board: _Board, load: float) -> int:
    """Return the highest stage with room, or the least loaded if none has room."""
    room = [stage for stage in reversed(range(board.nodes)) if board.fits(load, stage)]
    return room[0] if room else int(board.load.argmin())


def _refine(board: _Board, topics: Sequence[int]) -> None:
    """Move topics, exchange topics and exchange nodes while the cost falls."""
    rate = board.problem.rate
    order = sorted(topics, key=lambda each: (-rate[each], each))
    for _ in range(PASSES_MAX):
        improved = any([_improve(board, topic, order) for topic in order])  # noqa: C419 - run all
        improved |= _exchange_places(board)
        if not improved or board.evaluations > EVALUATIONS_MAX:
            return


def _improve(board: _Board, topic: int, topics: Sequence[int]) -> bool:
    """Move a topic to the stage that saves most, or exchange it with another topic."""
    if board.evaluations > EVALUATIONS_MAX:
        return False
    here = int(board.stage[topic])
    least = EPSILON * (1 + float(board.problem.rate.sum()))
    gains = sorted(
        ((board.gain(topic, stage), stage) for stage in range(board.nodes) if stage != here),
        key=lambda each: (-each[0], each[1]),
    )
    load = float(board.problem.rate[topic])
    for gain, stage in gains:
        if gain > least and board.fits(load, stage):
            board.put(topic, stage)
            return True
    return any(_exchange(board, topic, stage, topics, least) for _, stage in gains[:2])


def _exchange(board: _Board, topic: int, stage: int, topics: Sequence[int], least: float) -> bool:
    """Exchange a topic with one of another stage if both fit and the cost falls."""
    here, rate = int(board.stage[topic]), board.problem.rate
    capacity = board.problem.capacity
    tried = 0
    first = board.gain(topic, stage)
    for other in topics:
        if board.stage[other] != stage or tried >= EXCHANGES:
            continue
        more = float(rate[topic] - rate[other])
        within = board.load[stage] + more <= capacity or board.hosted[stage] == 1
        back = board.load[here] - more <= capacity or board.hosted[here] == 1
        if not within or not back:
            continue
        tried += 1
        board.put(topic, stage)
        if first + board.gain(other, here) > least:
            board.put(other, here)
            return True
        board.put(topic, here)
    return False


def _exchange_places(board: _Board) -> bool:
    """Exchange pairs of nodes in the chain where that lowers the cost."""
    improved = False
    cost = board.cost()
    for low in range(board.nodes):
        for high in range(low + 1, board.nodes):
            order = list(range(board.nodes))
            order[low], order[high] = order[high], order[low]
            board.reorder(order)
            tried = board.cost()
            if tried < cost - EPSILON * (1 + cost):
                cost, improved = tried, True
            else:
                board.reorder(order)
    return improved


def _put_whole(board: _Board, whole: Sequence[Ints]) -> list[Ints]:
    """Place components whole, at their site if possible; return those without room."""
    unplaced: list[Ints] = []
    found = _search(board, whole[:SEARCHED])
    for number, topics in enumerate(whole):
        load = float(board.problem.rate[topics].sum())
        stages = [found[number]] if number < len(found) else _preferred_stages(board, topics, load)
        if not stages and len(topics) == 1:
            stages = [int(board.load.argmin())]
        if not stages:
            unplaced.append(topics)
        for topic in topics if stages else ():
            board.put(int(topic), stages[0])
    return unplaced


def _preferred_stages(board: _Board, topics: Ints, load: float) -> list[int]:
    """Return the stages with room for a component: nearest, then emptiest."""
    away = board.problem.away[topics].sum(axis=0)
    room = [stage for stage in range(board.nodes) if board.fits(load, stage)]
    return sorted(
        room, key=lambda each: (float(away[board.chain[each]]), float(board.load[each]), each)
    )


def _search(board: _Board, whole: Sequence[Ints]) -> list[int]:
    """Return a stage for each component so that all fit; empty if none was found."""
    loads = [float(board.problem.rate[topics].sum()) for topics in whole]
    steps = 0

    def fit(number: int) -> list[int] | None:
        nonlocal steps
        if number == len(whole):
            return []
        steps += 1
        for stage in _preferred_stages(board, whole[number], loads[number]):
            if steps > SEARCH_MAX:
                return None
            board.load[stage] += loads[number]
            board.hosted[stage] += 1
            rest = fit(number + 1)
            board.load[stage] -= loads[number]
            board.hosted[stage] -= 1
            if rest is not None:
                return [stage, *rest]
        return None

    return fit(0) or []


def _last(counts: NDArray[np.int32]) -> Ints:
    """Return the last stage with a partner for each row of counts, or -1."""
    present = counts > 0
    last = counts.shape[1] - 1 - present[:, ::-1].argmax(axis=1)
    return np.where(present.any(axis=1), last, -1)


def _by_component(component: Ints) -> list[Ints]:
    """Return the topics of each component."""
    order = np.argsort(component, kind="stable")
    cuts = np.flatnonzero(np.diff(component[order])) + 1
    return np.split(order, cuts)
