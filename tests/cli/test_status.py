"""`ensue status`: one server, a chain with one server down, and permissions."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ended, Shell
from tests.server.helpers import People, serving, until, within
from tests.server.raw import Raw
from tests.transports.stations import StationThread

import ensue
from ensue.cli import status as command
from ensue.protocols.total.frames import OrderRequest
from ensue.runtime import status
from ensue.runtime.status import chain_status
from ensue.server import Server, ServerConfig
from ensue.server import status as state
from ensue.transports.tcp.messages import Member


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable caching, so that every status is current."""
    monkeypatch.setattr(state, "FRESH_S", 0.0)
    monkeypatch.setattr(state, "SHARE_MAX", float("inf"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, config: ServerConfig) -> StationThread:
    thread = StationThread(lambda: Server(config))
    stack.callback(thread.end)
    thread.start()
    return thread


def chain(tmp_path: Path, stack: ExitStack, count: int) -> list[StationThread]:
    """Start the servers s0, s1, … of a chain, with the topics t0, t1, …"""
    ports = []
    with ExitStack() as sockets:
        for _ in range(count):
            spare = sockets.enter_context(socket.socket())
            spare.bind(("127.0.0.1", 0))
            ports.append(spare.getsockname()[1])
    members = tuple(
        Member(f"s{number}", f"127.0.0.1:{port}", (f"t{number}",))
        for number, port in enumerate(ports)
    )
    return [
        start(
            stack,
            ServerConfig(
                data=str(tmp_path / member.name),
                listen=member.address,
                name=member.name,
                chain=members,
            ),
        )
        for member in members
    ]


async def publish(url: str, **counts: int) -> None:
    async with ensue.connect(url) as bus:
        for topic, count in counts.items():
            for _ in range(count):
                await bus.publish(topic, b"1")


def test_one_server_is_printed_as_one_object(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    server = start(stack, ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
    asyncio.run(publish(server.url, orders=3, audit=1))
    ended = shell("status", server.url, "--json")
    assert ended.code == 0
    found = ended.json()
    (one,) = found["servers"]
    assert (one["server"], one["rank"], one["health"]) == ("node-1", 1, "ok")
    assert one["address"] == server.url.removeprefix("ensue://")
    assert one["version"]
    assert one["uptime_s"] > 0
    assert one["journal"]["sync"] == "always"
    assert one["journal"]["bytes"] > 0
    topics = {each["topic"]: each for each in found["topics"]}
    assert topics["orders"] == {
        "topic": "orders",
        "server": "node-1",
        "first": 1,
        "next": 4,
        "events": 3,
        "listeners": 0,
        "current": True,
    }
    assert (found["moves"], found["holding"]) == ([], {})
    assert found["topics_count"] == 2
    assert found["subscriptions"] == []
    assert found["connections"] == 1  # That of `ensue status` itself.
    assert found["open_stamps"] == 0
    assert found["early_requests"] == 0
    assert found["errors"] == {}


def test_argument_and_option_override_the_environment(
    shell: Shell, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(stack, ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
    monkeypatch.setenv("ENSUE_URL", "ensue://127.0.0.1:1")
    for words in ((server.url,), ("--url", server.url)):
        ended = shell("status", *words, "--json")
        assert ended.code == 0
        assert ended.json()["url"] == server.url


def test_one_server_is_printed_as_tables(shell: Shell, tmp_path: Path, stack: ExitStack) -> None:
    server = start(stack, ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
    asyncio.run(publish(server.url, **{"or\x1b[31mders": 3}))
    ended = shell("status", server.url)
    assert ended.code == 0
    assert "node-1" in ended.stdout
    assert r"or\x1b[31mders" in ended.stdout  # Control characters are escaped.
    assert "1 topic\n" in ended.stdout
    assert "\n1 connection, 0 stamps open, 0 requests held back" in ended.stdout
    assert "rejected: nothing" in ended.stdout


def test_clients_of_relayed_orders_are_shown(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    server = start(stack, ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
    merged = ensue.Merged(epsilon=0.01, delta=0.2)

    async def main() -> None:
        async with (
            ensue.connect(server.url, order=ensue.Causal(), name="chat") as chat,
            ensue.connect(server.url, order=merged, name="desk") as desk,
            desk.subscribe("prices", "orders"),
        ):
            ended = await asyncio.to_thread(shell, "status", server.url)
            assert ended.code == 0
            assert "1 of 65,536" in ended.stdout
            assert chat.name in ended.stdout
            ended = await asyncio.to_thread(shell, "status", server.url, "--json")
            relayed = {each["order"]: each for each in ended.json()["relayed_orders"]}
            assert relayed.keys() == {"causal", "merged"}
            assert [each["name"] for each in relayed["causal"]["members"]] == [chat.name]
            assert [each["topics"] for each in relayed["merged"]["members"]] == [2]
            assert relayed["merged"]["server"] == "node-1"

    asyncio.run(main())


def test_tables_fit_into_80_columns(
    shell: Shell, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(
        data=str(tmp_path / "d"), listen="127.0.0.1:0", name="warehouse-north-1", sync_s=0.05
    )
    server = start(stack, config)
    asyncio.run(publish(server.url, orders=1))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("ENSUE_URL", server.url)
    ended = shell("status")
    assert ended.code == 0
    lines = ended.stdout.splitlines()
    assert max(map(len, lines[:10])) <= 80
    named = [line for line in lines if "warehouse-north-1" in line and "orders" not in line]
    where, doing = named
    assert where.split()[:4] == [
        "1",
        "warehouse-north-1",
        server.url.removeprefix("ensue://"),
        "ok",
    ]
    assert doing.split()[1:5] == ["1", "1", "0", "0"]
    assert doing.rstrip().endswith("0.05 s")


def test_held_back_requests_are_shown(shell: Shell, tmp_path: Path) -> None:
    async def main() -> tuple[Ended, dict[str, Any]]:
        async with serving(tmp_path / "d") as server:
            raw = await Raw.hello(server)
            assert await raw.enter("p~1") is None
            event = ensue.Event(topic="x", payload=b"", publisher="p~1", publisher_seq=2)
            raw.bundle("p~1", OrderRequest(number=2, events=(event,), settled=1))
            assert server.station is not None
            node = server.station.node
            await until(lambda: node.early_count == 1)
            shown = await asyncio.to_thread(shell, "status", server.url)
            found = await chain_status(server.url)
            raw.close()
            return shown, found

    ended, found = asyncio.run(main())
    assert found["early_requests"] == 1
    assert found["servers"][0]["early_requests"] == 1
    assert "1 request held back for an earlier one" in ended.stdout
    assert " held " in ended.stdout


def test_ended_subscription_is_not_shown(shell: Shell, tmp_path: Path, stack: ExitStack) -> None:
    server = start(stack, ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        async with ensue.connect(server.url) as bus:
            async with bus.subscribe("orders"), bus.subscribe("orders"):
                before = await chain_status(server.url)
            async with bus.subscribe("orders"):
                return before, await chain_status(server.url)

    before, after = asyncio.run(main())
    assert before["subscriptions_count"] == 2
    assert after["subscriptions_count"] == len(after["subscriptions"]) == 1
    assert after["subscriptions"][0]["topics"] == ["orders"]
    assert shell("status", server.url, "--json").json()["subscriptions"] == []


def test_lag_of_a_subscription_adds_up_over_the_chain(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    servers = chain(tmp_path, stack, 3)

    async def main() -> None:
        async with ensue.connect(servers[0].url) as bus:
            for name in ("desk", "board", "shelf"):
                subscription = bus.subscribe(
                    "t0", "t1", "t2", name=name, durable=True, acknowledge="manual"
                )
                async with subscription as events:
                    for topic in ("t0", "t1", "t2"):
                        await bus.publish(topic, b"1")
                    first = await within(anext(events))
                    await within(first.ack())
            for topic in ("t0", "t1", "t2", "t2"):
                await bus.publish(topic, b"2")

    asyncio.run(main())
    found = shell("status", servers[1].url, "--json").json()
    lags = {each["name"]: (each["position"], each["lag"]) for each in found["subscriptions"]}
    # Each acknowledged the first of three. Each later one published three more, then four followed.
    assert lags == {"desk": (1, 12), "board": (1, 9), "shelf": (1, 6)}
    assert not any(each["lag_is_least"] for each in found["subscriptions"])
    assert all(each["durable"] for each in found["subscriptions"])
    assert all(each["topics_count"] == 3 for each in found["subscriptions"])
    assert found["groups"] == {"topics": 9, "largest": 3, "mean": 3.0, "merged_by": []}


def test_chain_with_one_server_down(shell: Shell, tmp_path: Path, stack: ExitStack) -> None:
    servers = chain(tmp_path, stack, 2)
    asyncio.run(publish(servers[0].url, t0=2, t1=1))
    servers[1].stop()
    ended = shell("status", servers[0].url, "--json")
    assert ended.code == 2
    found = ended.json()
    assert not found["complete"]
    up, down = found["servers"]
    assert (up["server"], up["health"]) == ("s0", "ok")
    assert (down["server"], down["rank"]) == ("s1", 2)
    assert "no server answers" in down["error"]
    assert [each["topic"] for each in found["topics"]] == ["t0"]
    ended = shell("status", servers[0].url)
    assert ended.code == 2
    assert "s1 does not answer: no server answers" in ended.stdout


def test_unreachable_server_is_one_sentence(shell: Shell) -> None:
    with socket.socket() as spare:
        spare.bind(("127.0.0.1", 0))
        url = f"ensue://127.0.0.1:{spare.getsockname()[1]}"
        ended = shell("status", url, "--json")
    assert ended.code == 2
    assert "no server answers" in ended.json()["error"]
    assert ended.stderr.count("\n") == 1


def test_silent_server_times_out(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = shell("status", f"ensue://{address}", "--timeout", "0.3")
    assert ended.code == 2
    assert f"no answer from {address} within 0.3 s" in ended.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["memory://"], "within one process"),
        (["ensue://127.0.0.1:1", "--url", "ensue://127.0.0.1:2"], "leave one of them out"),
        (["nonsense"], "nonsense"),
        (["ensue://127.0.0.1:1", "--timeout", "0"], "--timeout"),
        (["ensue://127.0.0.1:1", "--watch", "0"], "--watch"),
    ],
)
def test_invalid_options_are_rejected(shell: Shell, words: list[str], why: str) -> None:
    ended = shell("status", *words)
    assert ended.code == 2
    assert why in ended.stderr


def test_password_of_a_broker_is_not_shown(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_server(*_: Any) -> status._Chain:
        return status._Chain((Member("s0", "", ()),), closed=False)

    monkeypatch.setattr(status, "_stations", no_server)
    for more in ((), ("--json",)):
        ended = shell("status", "redis://desk:secret@127.0.0.1:1?prefix=shop", *more)
        assert "redis://desk:***@127.0.0.1:1" in ended.stdout
        assert "secret" not in ended.stdout + ended.stderr


def test_user_sees_topics_it_may_subscribe_to(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    people = People(
        shop=(["orders", "audit.a", "secret"], ["*"]), clerk=([], ["orders", "audit.*"])
    )
    config = ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0", access=people.access)
    server = start(stack, config)
    shop, clerk = (f"{server.url}?token={people.tokens[name]}" for name in ("shop", "clerk"))

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        await publish(shop, orders=2, secret=5, **{"audit.a": 1})
        async with (
            ensue.connect(shop) as bus,
            bus.subscribe("orders", "secret", name="both", durable=True),
            bus.subscribe("orders", name="one", durable=True),
        ):
            return await chain_status(shop), await chain_status(clerk)

    of_shop, of_clerk = asyncio.run(main())
    assert {each["topic"] for each in of_shop["topics"]} == {"orders", "secret", "audit.a"}
    assert {each["name"] for each in of_shop["subscriptions"]} == {"both", "one"}
    assert of_shop["everything"]
    assert "journal" in of_shop["servers"][0]
    assert {each["topic"] for each in of_clerk["topics"]} == {"orders", "audit.a"}
    assert of_clerk["topics_count"] == 2
    assert {each["name"] for each in of_clerk["subscriptions"]} == {"one"}
    assert not of_clerk["everything"]
    (one,) = of_clerk["servers"]
    assert one.keys().isdisjoint({"journal", "errors", "connections", "events", "groups"})
    assert "secret" not in repr(of_clerk)
    ended = shell("status", clerk)
    assert ended.code == 0
    assert "only topics that you may subscribe to are shown" in ended.stdout
    assert people.tokens["clerk"] not in ended.stdout


def test_watch_continues_while_no_server_answers(
    shell: Shell, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(stack, ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
    refreshes = 0

    async def then(_seconds: float) -> None:
        nonlocal refreshes
        refreshes += 1
        if refreshes == 1:
            await asyncio.to_thread(server.stop)
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "pause", then)
    ended = shell("status", server.url, "--watch", "2", "--json")
    assert ended.code == 0
    first, second = ended.stdout.splitlines()
    assert '"complete": true' in first
    assert "no server answers" in second


def test_subscription_that_merges_all_groups_is_named(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    servers = chain(tmp_path, stack, 2)

    async def main() -> None:
        async with ensue.connect(servers[0].url) as bus:
            for name, topics in (("one", ("t0",)), ("audit", ("t0", "t1"))):
                async with bus.subscribe(*topics, name=name, durable=True):
                    pass

    asyncio.run(main())
    ended = shell("status", servers[0].url)
    assert "\nsubscription audit merges 2 groups into one by its 2 topics: " in ended.stdout
