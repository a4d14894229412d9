"""Checks that the routing tables of idle brokers fit each other.

An idle broker may write its tables into the trace, as rows `held`: first a row with the verdict
`tables` and the number of commits as `publisher_seq`; then a row with the verdict `client` for each
client, as `publisher`; then a row for each entry, with the name as `subscription`, the filter as
`topic` and a peer as `publisher`. The verdict of an entry says what it is: an `advertisement` or a
`subscription` from that peer, or one that was `sent` to it. The last report of each broker counts.

**converged.** All brokers have committed the same number of transactions (`behind`) and hold the
same advertisements (`unadvertised`). A broker has exactly the subscriptions that its peers sent to
it (`differ`). No entry is from a node that is neither a broker nor a client of the broker that
holds it (`orphan`).

HAZARD: reports of brokers that were not idle differ without a fault. A run without reports is not
judged.
"""

from collections.abc import Iterable, Iterator

import msgspec

from ensue.checkers.verdict import Collector, Subscriber
from ensue.core.trace import Row

__all__ = ["Fault", "faults", "judge"]


class Fault(msgspec.Struct, frozen=True, order=True):
    """A fault of a table entry or of a broker."""

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
    """Yield the faults of the tables of one run."""
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
                    "orphan",
                    node,
                    name,
                    f"{node} has {name} of {row.publisher}, which is not connected",
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
