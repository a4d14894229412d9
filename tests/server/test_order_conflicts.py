"""A topic that clients use in two orders is logged once."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.server.helpers import serving, within

import ensue
from ensue.server.order_conflicts import TOPICS_MAX, WARNINGS_MAX, TopicOrders

ORDERS = [
    ensue.Merged(epsilon=0.002, delta=0.3),
    ensue.Causal(),
    ensue.Causal(across_topics=False),
    ensue.Deadline(ms=5_000),
    None,
]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "never get events" in one.getMessage()]


@pytest.mark.parametrize("order", ORDERS)
def test_second_order_on_a_topic_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, order: ensue.Order | None
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            async with ensue.connect(server.url) as total, total.subscribe("a", "b"):
                await within(total.publish("a", b"1"))
                assert warnings(caplog) == []
                async with ensue.connect(server.url, order=order) as other:
                    await within(other.publish("a", b"2"))
                    await within(other.publish("c", b"3"))
                    async with other.subscribe("a"):
                        pass
            (told,) = warnings(caplog)
            assert told.startswith("topic 'a' is used in total and in ")

    with caplog.at_level(logging.WARNING, "ensue"):
        asyncio.run(main())


def test_recorded_topics_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    orders = TopicOrders()
    with caplog.at_level(logging.WARNING, "ensue"):
        for number in range(TOPICS_MAX + 1):
            orders.note(f"t{number}", "total")
        # By now the first topic is forgotten; the last is not.
        orders.note("t0", "merged")
        assert warnings(caplog) == []
        orders.note(f"t{TOPICS_MAX}", "merged")
        assert len(warnings(caplog)) == 1


def test_warnings_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    orders = TopicOrders()
    with caplog.at_level(logging.WARNING, "ensue"):
        for number in range(WARNINGS_MAX + 10):
            orders.note(f"t{number}", "total")
            orders.note(f"t{number}", "merged")
    assert len(warnings(caplog)) == WARNINGS_MAX
