"""Deadlines: events are delivered on time, and events on time are delivered."""

from tests.checkers.helpers import Script

from ensue.checkers import Verdict, check
from ensue.checkers.verdict import Finding


class Timed(Script):
    """One row per nanosecond; events that arrive or are delivered have a deadline."""

    def arrive(self, node: str, event: str, deadline_ns: int) -> "Timed":
        return self._dated(node, "received", event, deadline_ns)

    def hand(self, node: str, event: str, deadline_ns: int, verdict: str = "") -> "Timed":
        return self._dated(node, "delivered", event, deadline_ns, verdict)

    def _dated(
        self, node: str, action: str, event: str, deadline_ns: int, verdict: str = ""
    ) -> "Timed":
        publisher, topic, number = self._names[event]
        self.row(
            node,
            action,
            event=event,
            topic=topic,
            publisher=publisher,
            publisher_seq=number,
            subscription="main",
            verdict=verdict,
            deadline_ns=deadline_ns,
        )
        return self

    def wait(self, count: int) -> "Timed":
        for _ in range(count):
            self.row("s", "sent")
        return self


def start() -> Timed:
    """Subscribed at 1, published at 2."""
    script = Timed()
    script.subscribe("s", "x").publish("p", "e")
    return script


def finding(script: Script, **options: int) -> Finding:
    report = check(script.rows, "deadline", lossy=True, **options)  # type: ignore[arg-type]
    return report["deadline"]


def test_delivery_on_time_is_valid_and_counted() -> None:
    report = check(start().arrive("s", "e", 9).hand("s", "e", 4).wait(9).rows, "deadline")
    assert report.verdict is Verdict.VALID
    assert report["deadline"].notes == (
        "1 of 1 events that arrived were delivered in order and on time (100.0%)",
    )


def test_delivery_after_deadline_is_explained() -> None:
    (violation,) = finding(start().arrive("s", "e", 3).hand("s", "e", 3).wait(9)).violations
    assert (violation.anomaly, violation.nodes) == ("expired", ("s",))
    assert violation.because == "s delivered e 1e-06 ms after its deadline, untagged"


def test_tagged_late_delivery_is_valid() -> None:
    assert not finding(start().arrive("s", "e", 2).hand("s", "e", 2, "late").wait(9)).violations


def test_undelivered_event_that_arrived_on_time_is_missed() -> None:
    (violation,) = finding(start().arrive("s", "e", 5).wait(9)).violations
    assert violation.anomaly == "missed"
    assert violation.because == (
        "e arrived at s 2e-06 ms before its deadline, and was not delivered in order and on time"
    )
    tagged = start().arrive("s", "e", 5).hand("s", "e", 5, "overtaken").wait(9)
    assert finding(tagged).anomaly_counts == {"missed": 1}
    dropped = start().arrive("s", "e", 5)
    dropped.discard("s", "e", "overtaken")
    assert finding(dropped.wait(9)).anomaly_counts == {"missed": 1}


def test_event_that_arrived_too_late_is_not_missed() -> None:
    assert not finding(start().arrive("s", "e", 2).wait(9)).violations
    assert not finding(start().arrive("s", "e", 5).wait(9), clock_error_ns=3).violations
    assert finding(start().arrive("s", "e", 5).wait(9), clock_error_ns=2).violations


def test_crash_leave_or_overflow_excuses_missed_event() -> None:
    crashed = start().arrive("s", "e", 6)
    crashed.crash("s")
    left = start().arrive("s", "e", 6)
    left.leave("s", "x")
    elsewhere = start().arrive("s", "e", 6)
    elsewhere.leave("s", "y")
    full = start().arrive("s", "e", 6)
    full.row("s", "discarded", event="e", verdict="overflow", subscription="main")
    assert not finding(crashed.wait(9)).violations
    assert not finding(left.wait(9)).violations
    assert finding(elsewhere.wait(9)).violations
    assert not finding(full.wait(9)).violations
    assert not finding(start().arrive("s", "e", 60)).violations, "the trace ends before"


def test_leave_of_another_subscription_excuses_nothing() -> None:
    script = start()
    script.subscribe("s", "x", subscription="other")
    script.arrive("s", "e", 9).leave("s", "x", subscription="other")
    assert finding(script.wait(9)).anomaly_counts == {"missed": 1}


def test_crash_after_deadline_excuses_nothing() -> None:
    script = start().arrive("s", "e", 4).wait(3)
    script.crash("s")
    assert finding(script.wait(3)).anomaly_counts == {"missed": 1}


def test_deadline_order_still_checks_causality() -> None:
    script = Timed()
    script.subscribe("a", "x").subscribe("b", "x").publish("p", "question").deliver("a", "question")
    script.publish("a", "answer").deliver("b", "answer", "question")
    assert check(script.rows, "deadline", lossy=True)["causal"].violation_count == 1


def test_unread_event_is_not_missed() -> None:
    unread = start().arrive("s", "e", 6).wait(9)
    unread.row("s", "discarded", event="e", verdict="unread", subscription="main")
    assert not finding(unread).violations
    assert not finding(unread.hand("s", "e", 6, "late")).violations
    assert finding(unread.hand("s", "e", 6)).anomaly_counts == {"expired": 1}
