"""Servers whose total order is not causal: topics are ordered by two common subscriptions."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.server.helpers import DEADLINE_S, read, serving, until, within
from tests.server.test_command import ENSUE, running
from tests.server.test_server import chain

import ensue
from ensue.checkers import check
from ensue.core import trace
from ensue.core.errors import (
    AccessDenied,
    BadInput,
    ConfigurationError,
    SubscriptionLost,
    UnsupportedOrder,
)
from ensue.server import Server, config_file
from ensue.server.config import sequenced

NONCAUSAL = ensue.Total(causal=False)
ONE = '[[servers]]\nname = "a"\nlisten = "127.0.0.1:7400"\ndata = "d"\n'


def test_topics_that_one_subscriber_shares_do_not_wait_for_each_others_servers(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2, sequencer=sequenced(causal=False))
        try:
            async with (
                ensue.connect(servers[0].url, order=NONCAUSAL) as bus,
                bus.subscribe("t0", "t1") as events,
            ):
                await servers[1].stop()
                # With causal order the stamp of this event would have to visit the other server.
                await within(bus.publish("t0", b"here"))
                assert await read(events, 1) == [b"here"]
                servers[1] = Server(servers[1].config)
                await servers[1].start()
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_common_subscribers_agree_while_they_join_and_leave(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3, sequencer=sequenced(causal=False))
        folder = tmp_path / "trace"
        try:
            async with (
                ensue.connect(servers[0].url, order=NONCAUSAL, trace=str(folder)) as bus,
                bus.subscribe("t0", "t1", "t2") as first,
                bus.subscribe("t0", "t1", "t2") as second,
                bus.subscribe("t0") as moving,
            ):
                for number in range(60):
                    await bus.publish(f"t{number % 3}", b"a%d" % number, receipt=False)
                    await bus.publish(f"t{(number + 1) % 3}", b"b%d" % number, receipt=False)
                    if number % 20 == 10:
                        await within(moving.unsubscribe(f"t{number // 20}"))
                        await within(moving.subscribe(f"t{(number // 20 + 1) % 3}"))
                seen = await read(first, 120)
                assert seen == await read(second, 120)
        finally:
            for server in servers:
                await server.stop()
        rows = trace.read(folder)
        assert {row.order for row in rows} == {"total-noncausal"}
        report = check(rows, "total-noncausal")
        assert report.verdict == "valid", report

    asyncio.run(main())


def test_durable_subscription_resumes_with_the_topics_that_it_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path, sequencer=sequenced(causal=False)) as server,
            ensue.connect(server.url, order=NONCAUSAL) as bus,
        ):
            async with bus.subscribe("a", name="s", durable=True) as events:
                await bus.publish("a", b"1")
                assert await read(events, 1) == [b"1"]
                await events.subscribe("b")
                await events.unsubscribe("a")
                await bus.publish("b", b"2")
                assert await read(events, 1) == [b"2"]
            assert server.station is not None
            async with bus.subscribe("b", name="s", durable=True) as events:
                await bus.publish("b", b"3")
                assert await read(events, 1) == [b"3"]
                (left,) = server.station.node.groups.left.values()
                assert left == ("a",)

    asyncio.run(main())


def test_causal_order_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, sequencer=sequenced(causal=False)) as server:
            with pytest.raises(UnsupportedOrder, match=r"order=ensue\.Total\(causal=False\)"):
                async with ensue.connect(server.url):
                    pass
            async with ensue.connect(server.url, order=NONCAUSAL) as bus:
                with pytest.raises(UnsupportedOrder, match="is not causal"):
                    bus.subscribe("x", order=ensue.Total())

    asyncio.run(main())


def test_a_causal_chain_serves_clients_that_need_less(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path) as server,
            ensue.connect(server.url, order=NONCAUSAL) as bus,
            bus.subscribe("x") as events,
        ):
            await bus.publish("x", b"1")
            assert await read(events, 1) == [b"1"]

    asyncio.run(main())


DIFFER = (
    "server 's{}' has causal = {}, and server 's{}' of the same chain has causal = {}: configure "
    "all servers of a chain alike"
)


def test_server_that_starts_with_another_choice_than_its_chain_stops(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2)
        try:
            await servers[1].stop()
            wrong = replace(servers[1].config, sequencer=sequenced(causal=False))
            servers[1] = Server(wrong)
            await servers[1].start()
            said = DIFFER.format(1, "false", 0, "true")
            with pytest.raises(ConfigurationError, match=said):
                await within(servers[1].wait())
            await servers[1].stop()
            # The other one goes on, and the right server is let in.
            servers[1] = Server(replace(wrong, sequencer=servers[0].config.sequencer))
            await servers[1].start()
            async with (
                ensue.connect(servers[0].url) as bus,
                bus.subscribe("t0", "t1") as events,
            ):
                await within(bus.publish("t1", b"1"))
                assert await read(events, 1) == [b"1"]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sequencer": sequenced(causal=True, publisher_order=False)}, "publisher_order = {}"),
        ({"sequencer": sequenced(causal=True, cells="symbol/16")}, "cells = {}"),
        ({"closed": True}, "closed = {}"),
    ],
)
def test_server_that_starts_with_other_settings_than_its_chain_stops(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2)
        try:
            await servers[1].stop()
            servers[1] = Server(replace(servers[1].config, **changed))
            await servers[1].start()
            own = r"(true|false|\"symbol/16\")"
            other = said.format(r"(true|false|\"\")")
            with pytest.raises(
                ConfigurationError,
                match=f"server 's1' has {said.format(own)}, and server 's0' of .* has {other}:",
            ):
                await within(servers[1].wait())
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_servers_that_differ_refuse_each_other_and_their_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both have tried to connect before the other one answered: neither is the newcomer.
    monkeypatch.setattr(Server, "_stops_differing", lambda _self, _carrier: False)

    async def main() -> None:
        servers = await chain(tmp_path, 2, sequencer=sequenced(causal=False))
        try:
            await servers[1].stop()
            other = replace(servers[1].config, sequencer=sequenced(causal=True))
            servers[1] = Server(other)
            await servers[1].start()
            await until(lambda: all(servers[n].listener.neighbors == {} for n in (0, 1)))  # type: ignore[union-attr]
            for own, there in (("false", "true"), ("true", "false")):
                index = int(own == "true")
                said = DIFFER.format(index, own, 1 - index, there)
                await until(lambda said=said: said in caplog.text, said)  # type: ignore[misc]
            async with ensue.connect(servers[0].url, order=NONCAUSAL) as bus:
                with pytest.raises(AccessDenied, match=DIFFER.format(0, "false", 1, "true")):
                    await within(bus.publish("t1", b"1"))
            async with ensue.connect(servers[1].url, order=NONCAUSAL) as bus:
                with pytest.raises(SubscriptionLost, match=DIFFER.format(1, "true", 0, "false")):
                    async with asyncio.timeout(DEADLINE_S), bus.subscribe("t0") as events:
                        await anext(events)
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_directory_keeps_the_groups_that_its_stamps_were_made_with(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path) as server,
            ensue.connect(server.url) as bus,
        ):
            await bus.publish("x", b"1")
        with pytest.raises(BadInput, match=r"was made with causal = true, and the configuration"):
            async with serving(tmp_path, sequencer=sequenced(causal=False)):
                pass

    asyncio.run(main())


def test_commands_choose_whether_order_is_causal(tmp_path: Path) -> None:
    def ensue_command(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [*ENSUE, *words]
        return subprocess.run(command, input="1\n", capture_output=True, text=True, check=False)

    words = ("--listen", "127.0.0.1:0", "--data", tmp_path / "d", "--causal", "no")
    with running(*words) as (_, ready):
        refused = ensue_command("pub", "x", "--url", ready["url"])
        assert refused.returncode == 2
        assert "order=ensue.Total(causal=False)" in " ".join(refused.stderr.split())
        sent = ensue_command("pub", "x", "--url", ready["url"], "--causal", "no")
        assert sent.returncode == 0, sent.stderr
    both = ensue_command("serve", "--config", "file.toml", "--causal", "no")
    assert "--causal and --config exclude each other" in " ".join(both.stderr.split())


def test_configuration_file_chooses_whether_order_is_causal() -> None:
    assert config_file.loads(ONE).sequencer.groups == 1
    sequencer = config_file.loads("causal = false\n" + ONE).sequencer
    assert (sequencer.groups, sequencer.publisher_order) == (2, False)
    with pytest.raises(BadInput, match="publisher_order must be false"):
        config_file.loads("causal = false\npublisher_order = true\n" + ONE)
