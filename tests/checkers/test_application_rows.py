"""Traces with the rows of an application: `submitted`, `published` and `delivered` are its own."""

import msgspec
import pytest
from tests.checkers.helpers import Script

from ensue.checkers import Report, Verdict, check
from ensue.checkers.statistics import statistics
from ensue.core.trace import Row

SUBSCRIPTION = "main"


class Application(Script):
    """A script of applications: publishing has two rows."""

    def submit(self, node: str, event: str, topic: str = "x") -> "Application":
        self.publish(node, event, topic)
        self.rows[-1] = msgspec.structs.replace(self.rows[-1], action="submitted")
        return self

    def confirm(self, node: str, *events: str) -> "Application":
        for event in events:
            self._add(node, "published", event)
        return self

    def node_deliver(self, node: str, *events: str) -> "Application":
        for event in events:
            self._add(node, "node_delivered", event, subscription=SUBSCRIPTION)
        return self

    def unread(self, node: str, event: str, position: int) -> "Application":
        self._add(
            node,
            "discarded",
            event,
            subscription=SUBSCRIPTION,
            position=position,
            verdict="unread",
        )
        return self

    def _add(self, node: str, action: str, event: str, **columns: object) -> None:
        publisher, topic, number = self._names[event]
        self.row(
            node,
            action,
            event=event,
            topic=topic,
            publisher=publisher,
            publisher_seq=number,
            **columns,
        )


def anomalies(report: Report) -> list[tuple[str, str]]:
    return [
        (violation.anomaly, violation.second_event or violation.first_event)
        for finding in report.findings
        for violation in finding.violations
    ]


def judged(script: Script, order: str = "total", settle_ns: int | None = None) -> Report:
    return check(script.rows, order=order, settle_ns=settle_ns)


@pytest.mark.parametrize("confirmed", [True, False])
def test_event_is_owed_from_its_receipt_on(confirmed: bool) -> None:
    script = Application()
    script.subscribe("s", "x")
    script.submit("p", "a").submit("p", "b")
    script.confirm("p", *("a" if confirmed else ""), "b")
    script.deliver("s", "b")
    expected = [("lost", "a")] if confirmed else []
    assert anomalies(judged(script)) == expected


def test_event_without_receipt_may_be_delivered() -> None:
    script = Application()
    script.subscribe("s", "x")
    script.submit("p", "a").deliver("s", "a")
    assert judged(script).verdict is Verdict.VALID


def test_what_a_node_delivered_is_no_delivery() -> None:
    script = Application()
    script.subscribe("s", "x")
    script.submit("p", "a").confirm("p", "a").submit("p", "b").confirm("p", "b")
    script.node_deliver("s", "a", "b").deliver("s", "b")
    assert anomalies(judged(script)) == [("lost", "a")]


def test_gap_is_found_if_receipts_came_after_the_last_event_was_submitted() -> None:
    """As with `receipt=False`; the subscription has ended, so the gap alone shows the loss."""
    script = Application()
    script.subscribe("s", "x")
    script.submit("p", "a").submit("p", "b").submit("p", "c").confirm("p", "a", "b", "c")
    script.deliver("s", "b", "c").leave("s", "x")
    assert anomalies(judged(script)) == [("lost", "a")]


@pytest.mark.parametrize(("settle_ns", "is_owed"), [(3, True), (4, False)])
def test_settling_begins_with_the_receipt(settle_ns: int, is_owed: bool) -> None:
    """The receipt comes three nanoseconds before the subscription ends, the call much earlier."""
    script = Application()
    script.subscribe("s", "x").submit("p", "a")  # type: ignore[attr-defined]
    for _ in range(10):
        script.row("q", "restarted")
    script.confirm("p", "a")
    script.row("q", "restarted").row("q", "restarted")
    script.leave("s", "x")
    script.subscribe("t", "x").publish("q", "z").deliver("t", "z")
    expected = [("lost", "a")] if is_owed else []
    assert anomalies(judged(script, settle_ns=settle_ns)) == expected


def test_place_of_an_event_is_where_it_was_submitted() -> None:
    """What its publisher was handed while it waited for the receipt is no cause of it."""
    script = Application()
    script.subscribe("p", "x").subscribe("s", "x")
    script.submit("p", "effect")
    script.submit("q", "other").confirm("q", "other").deliver("p", "other")
    script.confirm("p", "effect")
    script.deliver("p", "effect").deliver("s", "effect", "other")
    assert judged(script, order="causal").verdict is Verdict.VALID


@pytest.mark.parametrize("recorded", [True, False])
def test_positions_of_unread_events_are_skipped(recorded: bool) -> None:
    """Without the row the event was lost on its way to the application."""
    script = Application()
    script.subscribe("s", "x", "y")
    for event, topic in zip("abc", "xyx", strict=True):
        script.submit("p", event, topic).confirm("p", event)
    script.deliver("s", "a", position=1)
    if recorded:
        script.unread("s", "b", 2)
    script.deliver("s", "c", position=3).leave("s", "y")
    assert anomalies(judged(script)) == ([] if recorded else [("position", "c")])


def test_event_submitted_twice_is_a_contradiction() -> None:
    script = Application()
    script.subscribe("s", "x")
    script.submit("p", "a")
    script.rows.append(msgspec.structs.replace(script.rows[-1], step=2))
    report = judged(script)
    assert report.verdict is Verdict.UNKNOWN
    assert "were published as one event" in " ".join(report.reasons)


def test_statistics_of_an_application() -> None:
    """Latency begins with the call; the bytes of the bare event are those of its node."""

    def row(node: str, step: int, action: str, at_ns: int, **columns: object) -> Row:
        return Row(
            run="r",
            node=node,
            step=step,
            at_ns=at_ns,
            action=action,
            event="a",
            topic="x",
            publisher="p",
            publisher_seq=1,
            **columns,  # type: ignore[arg-type]
        )

    found = statistics(
        [
            row("p", 1, "submitted", 1_000_000),
            row("p", 2, "node_published", 1_000_000, bytes=10),
            row("p", 3, "sent", 2_000_000, bytes=25, stamp={"x": 1}),
            row("s", 1, "node_delivered", 3_000_000),
            row("p", 4, "published", 4_000_000),
            row("s", 2, "delivered", 9_000_000),
        ]
    )
    assert (found.events, found.deliveries) == (1, 1)
    assert found.latency_max_ms == 8
    assert found.stamp_bytes_mean == 15
