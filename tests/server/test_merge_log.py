"""The warning about a subscription that merges all groups: in the log and in the status."""

import asyncio
from pathlib import Path

import pytest
from tests.server.helpers import until
from tests.server.test_server import chain

import ensue
from ensue.runtime.status import chain_status
from ensue.runtime.topic_move import move_topic
from ensue.server import station_builder
from ensue.server.config import sequenced


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "groups merged" in one.getMessage()]


def test_subscription_that_merges_all_groups_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station_builder, "RETAIN_EVERY_S", 0.01)

    async def main() -> None:
        servers = await chain(tmp_path, 3)
        try:
            async with (
                ensue.connect(servers[0].url) as bus,
                bus.subscribe("t0"),
                bus.subscribe("t1"),
                bus.subscribe("t2"),
            ):
                assert warnings(caplog) == []
                async with bus.subscribe("t0", "t1", "t2", name="audit", durable=True) as audit:
                    await until(lambda: len(warnings(caplog)) == 3)  # One line of each server.
                    found = await chain_status(servers[0].url)
                    await audit.subscribe("u")
                    await audit.unsubscribe("u")
                assert found["groups"]["merged_by"] == [{"name": "audit", "groups": 3, "topics": 3}]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())
    lines = warnings(caplog)
    assert len(lines) == 3  # Not again, although the subscription changed.
    assert lines[0].startswith("groups merged subscription='audit' groups=3 topics=3: ")


def test_move_that_makes_a_subscription_merge_all_groups_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station_builder, "RETAIN_EVERY_S", 0.01)

    async def main() -> None:
        servers = await chain(tmp_path, 3)
        try:
            async with (
                ensue.connect(servers[0].url) as bus,
                bus.subscribe("t0"),
                bus.subscribe("t1"),
                bus.subscribe("t0", "t1", name="audit", durable=True),
            ):
                await move_topic(servers[0].url, "t0", "s1")  # Now one server has all its topics.
                await until(lambda: servers[1].placement.node("t0") == "s1")
                caplog.clear()
                await move_topic(servers[0].url, "t1", "s2")
                await until(lambda: len(warnings(caplog)) == 2)
                found = await chain_status(servers[0].url)
                assert found["groups"]["merged_by"] == [{"name": "audit", "groups": 2, "topics": 2}]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())
    assert all("subscription='audit' groups=2 topics=2: " in line for line in warnings(caplog))


def test_order_that_is_not_causal_has_no_such_subscription(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station_builder, "RETAIN_EVERY_S", 0.01)

    async def main() -> None:
        servers = await chain(tmp_path, 2, sequencer=sequenced(causal=False))
        order = ensue.Total(causal=False)
        try:
            async with (
                ensue.connect(servers[0].url, order=order) as bus,
                bus.subscribe("t0"),
                bus.subscribe("t1"),
                bus.subscribe("t0", "t1"),
            ):
                found = await chain_status(servers[0].url)
                assert found["groups"]["merged_by"] == []
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())
    assert warnings(caplog) == []
