"""Routing tables of brokers, at rest: what each says it has fits what the others say.

A broker that is at rest may write its tables into the trace, as rows `held`: first one with the
verdict `tables`, with the number of commits as `publisher_seq`; then one with the verdict `client`
for each client that it has, as `publisher`; then one for each entry, with the name as
`subscription`, the filter as `topic` and a peer as `publisher`. The verdict says what it is: an
`advertisement` or a `subscription` came from that peer, or was `sent` to it. The last report of
each broker counts.

**converged.** All brokers have committed equally many transactions (`behind`) and hold the same
advertisements (`unadvertised`). What one broker sent to another is there as something that came
from it, and nothing else is (`differ`). No entry came from a node that is neither a broker nor a
client of its holder (`orphan`).

HAZARD: reports of brokers that were not at rest differ though nothing is wrong. A run without
reports is not judged.
"""

from collections.abc import Iterable, Iterator

import msgspec

from ensue.checkers.verdict import Collector, Subscriber
from ensue.core.trace import Row

__all__ = ["Fault", "faults", "judge"]


class Fault(msgspec.Struct, frozen=True, order=True):
    """What is wrong with an entry of a table, or with a broker."""

    anomaly: str
    node: str
    name: str
    because: str


def judge(run: str, held: Iterable[Row], collector: Collector) -> None:
    """Judge the tables that the brokers of one run reported."""
    for fault in sorted(faults(held)):
        collector.violation(
            fault.anomaly,
            (Subscriber(run, fault.node, ""),),
            (fault.name,),
            lambda fault=fault: fault.because,  # type: ignore[misc]
        )


def faults(held: Iterable[Row]) -> Iterator[Fault]:
    """Yield what is wrong with the tables of one run."""
    brokers = _latest(held)
    commits = {node: rows[0].publisher_seq or 0 for node, rows in brokers.items()}
    most = max(commits.values(), default=0)
    promised = {
        row.subscription: row
        for rows in brokers.values()
        for row in rows
        if _is(row, "advertisement")
    }
    sent = {
        (node, row.publisher, row.subscription)
        for node, rows in brokers.items()
        for row in rows
        if _is(row, "sent")
    }
    came = {
        (row.publisher, node, row.subscription)
        for node, rows in brokers.items()
        for row in rows
        if _is(row, "subscription") and row.publisher in brokers
    }
    for node, rows in brokers.items():
        if commits[node] < most:
            yield Fault(
                "behind",
                node,
                node,
                f"{node} has committed {commits[node]} transactions, others {most}",
            )
        mine = {row.subscription for row in rows if _is(row, "advertisement")}
        for name in promised.keys() - mine:
            yield Fault(
                "unadvertised", node, name or "", f"{node} does not have the advertisement {name}"
            )
        known = {*brokers, *(row.publisher for row in rows if _is(row, "client"))}
        for row in rows:
            if row.verdict in ("advertisement", "subscription") and row.publisher not in known:
                name = row.subscription or ""
                yield Fault(
                    "orphan", node, name, f"{node} has {name} of {row.publisher}, who is not there"
                )
    for source, target, name in sent - came:
        if target in brokers:
            yield Fault(
                "differ",
                source or "",
                name or "",
                f"{source} sent {name} to {target}, which does not have it",
            )
    for source, target, name in came - sent:
        yield Fault(
            "differ",
            target or "",
            name or "",
            f"{target} has {name} of {source}, which did not send it",
        )


def _is(row: Row, verdict: str) -> bool:
    return row.verdict == verdict


def _latest(held: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the last report of each broker: the row `tables`, and its entries."""
    found: dict[str, list[Row]] = {}
    for row in sorted(held, key=lambda row: (row.node, row.step)):
        if _is(row, "tables"):
            found[row.node] = [row]
        elif row.node in found:
            found[row.node].append(row)
    return found
