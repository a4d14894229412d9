"""The space-time diagram of a seed of the whole stack.

A process that is killed and started again has several buses, one after the other: they share a
line. A server's line has the faults that struck it, and the line `faults` all others. If the run
has problems, the events that the first of them names are highlighted, and the diagram shows the
time around them.
"""

import re
from collections.abc import Iterable

import msgspec

from ensue.core.trace import Row
from ensue.spark.report.spacetime import Delivery, Diagram, Happening, Publication
from ensue.testing.swarm import StackRun

__all__ = ["diagram_of"]

LANES_MAX = 24
"""Lines in a diagram: those with the most in them."""
FAULTS = "faults"
MARGIN = 0.05
MARGIN_MS = 500.0
"""How much is shown before and after highlighted events: this share of their time, or so long."""
_FAULT = re.compile(r"(?P<at_s>[\d.]+) s: (?P<what>.*)")
_SERVER = re.compile(r"(?:kill|stop|pause|power cut|reset) (server-\d+)$")


def diagram_of(run: StackRun) -> Diagram:
    """Return the diagram of a run."""
    first = str(run.problems[:1])
    lanes = _lanes(run.rows, named=first)
    rows = [(row.event, row) for row in run.rows if row.event is not None]
    # Letters for two: ids may begin with each other, so the longest names count.
    named = sorted(
        {event for event, _ in rows if event in first},
        key=lambda event: (-len(event), first.index(event)),
    )
    events = tuple(named[:2])
    publications: dict[str, Publication] = {}
    deliveries = []
    for event, row in rows:
        topic, node = row.topic or "", lanes[row.node]
        if row.action in ("submitted", "published") and event not in publications:
            publications[event] = Publication(
                event=event, topic=topic, node=node, at_ms=_ms(row.true_ns)
            )
        elif row.action == "delivered":
            deliveries.append(
                Delivery(
                    event=event,
                    topic=topic,
                    node=node,
                    at_ms=_ms(row.true_ns),
                    position=row.position,
                    marked=event in events,
                )
            )
    crashes = [
        Happening(node=lanes[row.node], at_ms=_ms(row.true_ns), name="crashed")
        for row in run.rows
        if row.action == "crashed"
    ]
    firsts: dict[str, float] = {}
    for one in deliveries:
        firsts[one.event] = min(one.at_ms, firsts.get(one.event, one.at_ms))
    return _clipped(
        Diagram(
            begin_ms=0.0,
            end_ms=1_000.0 * run.seconds,
            # The trace has some publications when their receipts come: after the first delivery.
            publications=tuple(
                msgspec.structs.replace(one, at_ms=min(one.at_ms, firsts.get(event, one.at_ms)))
                for event, one in publications.items()
            ),
            deliveries=tuple(deliveries),
            happenings=(*crashes, *_faults(run.faults)),
            events=events,
            absent=_absent(first, lanes, events, deliveries, publications),
        )
    )


def _absent(
    problem: str,
    lanes: dict[str, str],
    events: tuple[str, ...],
    deliveries: list[Delivery],
    publications: dict[str, Publication],
) -> tuple[str, ...]:
    """Return the lines that a problem names, and that never got the event they were owed."""
    if "complete: " not in problem or not events:
        return ()
    own = {one.node for one in deliveries if one.event == events[0]}
    if events[0] in publications:
        own.add(publications[events[0]].node)
    return tuple(sorted({lanes[node] for node in lanes if node in problem} - own))


def _ms(true_ns: int | None) -> float:
    return (true_ns or 0) / 1e6


def _lanes(rows: Iterable[Row], *, named: str) -> dict[str, str]:
    """Return the line of each bus: those of one name that lived one after the other share it.

    A bus that the first problem names has a line of its own, so that it can be found.
    """
    lives: dict[str, list[float]] = {}
    for row in rows:
        at_ms = _ms(row.true_ns)
        life = lives.setdefault(row.node, [at_ms, at_ms])
        life[0], life[1] = min(life[0], at_ms), max(life[1], at_ms)
    shared: dict[str, list[list[str]]] = {}
    for node in sorted(lives, key=lambda node: lives[node]):
        if node in named:
            continue
        known = shared.setdefault(node.partition("~")[0], [])
        free = [lane for lane in known if lives[lane[-1]][1] < lives[node][0]]
        if free:
            free[0].append(node)
        else:
            known.append([node])
    lanes = {node: node for node in lives}
    for name, known in shared.items():
        for number, lane in enumerate(known, 1):
            if len(lane) > 1:
                label = name if len(known) == 1 else f"{name} {number}"
                lanes.update(dict.fromkeys(lane, f"{label}, {len(lane)} lives"))
    return lanes


def _faults(log: Iterable[str]) -> list[Happening]:
    found = []
    for line in log:
        parsed = _FAULT.fullmatch(line)
        if parsed is not None:
            server = _SERVER.search(parsed["what"])
            node = FAULTS if server is None else server[1]
            name = parsed["what"] if server is None else parsed["what"].removesuffix(f" {node}")
            found.append(Happening(node=node, at_ms=1_000.0 * float(parsed["at_s"]), name=name))
    return found


def _clipped(diagram: Diagram) -> Diagram:
    """Return the part of a diagram that its events are about, with a bounded number of lines."""
    kept: tuple[Publication | Delivery, ...] = (*diagram.publications, *diagram.deliveries)
    events = diagram.events
    times = [one.at_ms for one in kept if not events or one.event in events]
    low, high = min(times, default=0.0), max(times, default=1.0)
    if not events:
        times += [one.at_ms for one in diagram.happenings]
        low, high = min(times, default=0.0), max(times, default=1.0)
    pad_ms = max(MARGIN * (high - low), MARGIN_MS)
    low, high = low - pad_ms, high + pad_ms
    weight = dict.fromkeys(diagram.absent, 1_000_000)
    shows: tuple[Publication | Delivery | Happening, ...] = (*kept, *diagram.happenings)
    for each in shows:
        if low <= each.at_ms <= high:
            important = each.event in events or each.node == FAULTS
            weight[each.node] = weight.get(each.node, 0) + (1_000_000 if important else 1)
    shown = set(sorted(weight, key=lambda node: (-weight[node], node))[:LANES_MAX])
    return msgspec.structs.replace(
        diagram,
        begin_ms=low,
        end_ms=high,
        # An event published before the window keeps its line if it is shown for another reason.
        publications=tuple(one for one in diagram.publications if one.node in shown),
        deliveries=tuple(
            one for one in diagram.deliveries if one.node in shown and low <= one.at_ms <= high
        ),
        happenings=tuple(
            one for one in diagram.happenings if one.node in shown and low <= one.at_ms <= high
        ),
        left_out=len(weight) - len(shown),
    )
