"""What the judge of programs by content reports if a broker is away until the end."""

from collections import Counter

from ensue.core.trace import Row
from ensue.testing.swarm.content_judge import judge_content

SUBSCRIPTION = "reader.content.sub1"


def story(*, lost: int = 0, withdrawals: int = 0) -> list[Row]:
    """Return a run with events that do not arrive, and transactions that end one subscription."""
    rows: list[Row] = []
    steps: Counter[str] = Counter()

    def add(node: str, action: str, **columns: str) -> None:
        steps[node] += 1
        row = Row(
            run="run",
            node=node,
            step=steps[node],
            at_ns=len(rows) + 1,
            true_ns=len(rows) + 1,
            action=action,
            order="none",
            topic=columns.get("topic"),
            event=columns.get("event"),
            subscription=columns.get("subscription"),
            transaction=columns.get("transaction"),
        )
        rows.append(row)

    def commit(name: str, action: str, **columns: str) -> None:
        add("one/content", "began", topic="planned", transaction=name)
        add("one/content", action, event=f"{name}#1", transaction=name, **columns)
        add("one/content", "committed", transaction=name)

    add("reader", "subscribed", topic="x exists", subscription=SUBSCRIPTION)
    for number in range(lost):
        commit(f"lost{number}", "published", topic="x = 1")
    for number in range(withdrawals):
        commit(f"end{number}", "unsubscribed", subscription=SUBSCRIPTION)
    return rows


def test_an_event_that_does_not_arrive_is_reported_unless_a_broker_is_away() -> None:
    (problem,) = judge_content(story(lost=1))
    assert problem.startswith("atomic: lost0#1 (x = 1) was not delivered to")
    assert judge_content(story(lost=1), is_cut=True) == []


def test_another_anomaly_is_reported_however_many_events_do_not_arrive() -> None:
    (problem,) = judge_content(story(lost=50, withdrawals=2), is_cut=True)
    assert problem.startswith(f"atomic: {SUBSCRIPTION} was withdrawn by end0 and by end1")
