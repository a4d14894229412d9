"""Finds contradictions between sequences of events, in linear time.

The sequences form a graph with an edge between each two neighbors of a sequence. If the graph has
no cycle, one order fits all sequences. If two events are in opposite orders in two sequences, each
is reachable from the other, so both are in one strongly connected component. Events outside the
components agree in all sequences.

Kahn's algorithm removes the events before all cycles. Tarjan's algorithm splits the rest; it uses
an explicit stack, because traces are longer than Python's recursion limit.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["components", "cycle", "restrict"]


def components(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the sets of events on common cycles, smallest first; empty if all agree.

    Events are numbers from 0; no sequence has an event twice.
    """
    size = 1 + max((max(sequence) for sequence in sequences if sequence), default=-1)
    successors: list[list[int]] = [[] for _ in range(size)]
    waiting = [0] * size
    for sequence in sequences:
        for before, after in pairwise(sequence):
            successors[before].append(after)
            waiting[after] += 1
    ready = [event for event in range(size) if not waiting[event]]
    left = size
    while ready:
        left -= 1
        for after in successors[ready.pop()]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    if not left:
        return []
    tangled = [event for event in range(size) if waiting[event]]
    found = [sorted(part) for part in _strongly_connected(tangled, successors) if len(part) > 1]
    return sorted(found, key=lambda part: (len(part), part[0]))


def restrict(
    sequences: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]
) -> list[dict[int, list[int]]]:
    """Return, for each part, its events in each sequence, by the number of the sequence.

    Sequences with fewer than two events of a part are left out.
    """
    part_of = {event: number for number, part in enumerate(parts) for event in part}
    held: list[dict[int, list[int]]] = [{} for _ in parts]
    for number, sequence in enumerate(sequences):
        for event in sequence:
            part = part_of.get(event)
            if part is not None:
                held[part].setdefault(number, []).append(event)
    return [{n: events for n, events in part.items() if len(events) > 1} for part in held]


def cycle(part: dict[int, list[int]]) -> list[tuple[int, int, int]]:
    """Return a short cycle in one component, as steps (event, next event, sequence).

    Neighboring steps of one sequence are joined into one.
    """
    edges: dict[int, list[tuple[int, int]]] = {}
    for number, sequence in part.items():
        for before, after in pairwise(sequence):
            edges.setdefault(before, []).append((after, number))
    start = min(edges)
    came: dict[int, tuple[int, int]] = {}
    queue = deque([start])
    while start not in came:
        event = queue.popleft()
        for after, number in edges[event]:
            if after not in came:
                came[after] = (event, number)
                queue.append(after)
    steps: list[tuple[int, int, int]] = []
    event = start
    while not steps or event != start:
        before, number = came[event]
        steps.append((before, event, number))
        event = before
    return _joined(steps[::-1])


def _joined(steps: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    joined: list[tuple[int, int, int]] = []
    for before, after, number in steps:
        if joined and joined[-1][2] == number:
            joined[-1] = (joined[-1][0], after, number)
        else:
            joined.append((before, after, number))
    if len(joined) > 1 and joined[0][2] == joined[-1][2]:
        joined[0] = (joined.pop()[0], joined[0][1], joined[0][2])
    return joined


def _strongly_connected(events: Sequence[int], successors: Sequence[list[int]]) -> list[list[int]]:
    """Run Tarjan's algorithm on events that contain all their successors."""
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_events: list[int] = []
    is_open: set[int] = set()
    parts: list[list[int]] = []
    for root in events:
        if root in index:
            continue
        path = [(root, iter(successors[root]))]
        index[root] = lowest[root] = len(index)
        open_events.append(root)
        is_open.add(root)
        while path:
            event, rest = path[-1]
            for after in rest:
                if after not in index:
                    index[after] = lowest[after] = len(index)
                    open_events.append(after)
                    is_open.add(after)
                    path.append((after, iter(successors[after])))
                    break
                if after in is_open:
                    lowest[event] = min(lowest[event], index[after])
            else:
                path.pop()
                if path:
                    before = path[-1][0]
                    lowest[before] = min(lowest[before], lowest[event])
                if lowest[event] == index[event]:
                    parts.append(_taken(open_events, event))
                    is_open.difference_update(parts[-1])
    return parts


def _taken(events: list[int], last: int) -> list[int]:
    """Pop events off the end, up to and including `last`."""
    taken = [events.pop()]
    while taken[-1] != last:
        taken.append(events.pop())
    return taken
