"""The judge of a run: checkers on the workers' files as a trace, and checks beyond a trace."""

from collections.abc import Iterator

from tests.processes.records import Records

from ensue.checkers import Verdict, check
from ensue.core.trace import Row

__all__ = ["judge", "rows_of"]

RUN = "processes"


def rows_of(records: Records) -> list[Row]:
    """Return the run as a trace.

    An event without a receipt counts as published if a subscriber got it: then all must. Each
    incarnation of a publisher is a node. Subscribers had joined before the first publication, or
    began with the first event.
    """
    came = {one.event for reader in records.subscribers.values() for one in reader.got}
    rows: list[Row] = []
    for name, publisher in records.publishers.items():
        step = 0
        for event, tried in publisher.tried.items():
            if event not in came and event not in publisher.slots and event not in publisher.void:
                continue
            step += 1
            rows.append(_row(name, step, "published", event, tried.topic, at_ns=1))
            if event in publisher.void:
                step += 1
                rows.append(_row(name, step, "discarded", event, tried.topic, verdict="void"))
    for name, reader in records.subscribers.items():
        for step, topic in enumerate(reader.topics, start=1):
            rows.append(
                Row(
                    run=RUN,
                    node=name,
                    step=step,
                    at_ns=0,
                    action="subscribed",
                    topic=topic,
                    subscription=name,
                )
            )
        for one in reader.got:
            step = len(reader.topics) + one.position
            rows.append(
                _row(
                    name,
                    step,
                    "delivered",
                    one.event,
                    one.topic,
                    position=one.position,
                    subscription=name,
                )
            )
    return rows


def _row(
    node: str,
    step: int,
    action: str,
    event: str,
    topic: str,
    *,
    at_ns: int = 1,
    verdict: str = "",
    position: int | None = None,
    subscription: str | None = None,
) -> Row:
    publisher, _, number = event.split("/")
    return Row(
        run=RUN,
        node=node,
        step=step,
        at_ns=at_ns,
        action=action,
        event=event,
        topic=topic,
        publisher=publisher,
        publisher_seq=int(number),
        verdict=verdict,
        position=position,
        subscription=subscription,
        order="total",
    )


def judge(records: Records) -> list[str]:
    """Return all violations of a run."""
    wrong = records.wrongs()
    wrong += _positions(records)
    report = check(rows_of(records), "total", causal=True)
    if report.verdict is not Verdict.VALID:
        wrong += report.sentences()
    wrong += _payloads(records)
    wrong += _receipts(records)
    wrong += _sequences(records)
    return wrong


def _positions(records: Records) -> Iterator[str]:
    for name, reader in records.subscribers.items():
        for index, one in enumerate(reader.got, start=1):
            if one.position != index:
                yield f"{name}: {one.event} is its {index}., at position {one.position}"
                break


def _payloads(records: Records) -> Iterator[str]:
    """Yield deliveries whose payload differs from the published one."""
    sent = {
        event: f"{name}:{tried.number}"
        for name, publisher in records.publishers.items()
        for event, tried in publisher.tried.items()
    }
    for name, reader in records.subscribers.items():
        for one in reader.got:
            if one.payload != sent.get(one.event, one.payload):
                yield f"{name}: {one.event} brought {one.payload}, not {sent[one.event]}"


def _receipts(records: Records) -> Iterator[str]:
    """Yield slots of two events, and slots that fall in the order of delivery."""
    slots: dict[str, int] = {}
    holders: dict[tuple[str, int], str] = {}
    for name, publisher in records.publishers.items():
        for event, slot in publisher.slots.items():
            if event not in publisher.tried:
                yield f"{name} has a receipt for {event}, which it did not publish"
            elif slot:
                slots[event] = slot
                holder = holders.setdefault((publisher.tried[event].topic, slot), event)
                if holder != event:
                    yield f"{event} and {holder} both have a receipt for slot {slot}"
    for name, reader in records.subscribers.items():
        last: dict[str, tuple[int, str]] = {}
        for one in reader.got:
            slot = slots.get(one.event, 0)
            earlier = last.get(one.topic, (0, ""))
            if slot and slot < earlier[0]:
                yield f"{name} got {one.event}, slot {slot}, after {earlier[1]}, slot {earlier[0]}"
            if slot:
                last[one.topic] = (slot, one.event)


def _sequences(records: Records) -> Iterator[str]:
    """Yield subscribers of the same topics that saw different sequences."""
    first: dict[frozenset[str], str] = {}
    for name, reader in records.subscribers.items():
        other = first.setdefault(frozenset(reader.topics), name)
        ours = [one.event for one in reader.got]
        theirs = [one.event for one in records.subscribers[other].got]
        if ours != theirs:
            both = zip(ours, theirs, strict=False)
            at = next((i for i, (one, two) in enumerate(both) if one != two), None)
            where = (
                f"{len(ours)} events against {len(theirs)}"
                if at is None
                else f"at {at + 1}, {ours[at]} against {theirs[at]}"
            )
            yield f"{name} and {other} subscribe to the same and differ: {where}"
