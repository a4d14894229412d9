"""Redelivery after an acknowledgement is found by the checkers in the trace of a whole stack."""

import pytest
from tests.testing.swarm.mutants import MUTANTS
from tests.testing.swarm.planted import planted
from tests.testing.swarm.topic_mutants import AGAIN

from ensue.checkers import redelivery
from ensue.checkers.verdict import Collector, Finding
from ensue.core.trace import Row
from ensue.testing.swarm import draw, run

ROLLED_BACK = 314
"""A seed whose server is rolled back to before what durable subscriptions have read."""
FORGOTTEN = 8
"""A seed that forgets a durable subscription and enters it again."""
(BUG,) = (each for each in MUTANTS if each.name == AGAIN)


def judged(rows: list[Row]) -> Finding:
    found = Collector("positions", violations_max=5)
    redelivery.judge(rows, found, {row.run: True for row in rows}, clock_error_ns=0)
    return found.finding()


def test_planted_redelivery_is_found_by_the_rule_of_the_checkers() -> None:
    with planted(BUG):
        played = run(draw(BUG.hint, BUG.order))
    assert judged(played.rows).anomaly_counts["again"]
    assert any(each.startswith("positions: ") and " again (" in each for each in played.problems)
    assert judged(run(draw(BUG.hint, BUG.order)).rows).verdict == "valid"


@pytest.mark.parametrize(
    ("seed", "verdict"), [(ROLLED_BACK, "rolled back"), (FORGOTTEN, "forgotten")]
)
def test_trace_says_when_a_subscription_begins_anew(seed: int, verdict: str) -> None:
    rows = run(draw(seed, "total")).rows
    assert redelivery.durable_names(rows)
    assert verdict in {row.verdict for row in rows if row.action == "unsubscribed"}
    assert judged(rows).verdict == "valid"
