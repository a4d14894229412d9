"""Content and transactions on servers: brokers, restarts, permissions and limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.brokers.proxy import Proxy
from tests.brokers.servers import spare_port
from tests.server.helpers import People, read, serving, until, within
from tests.server.test_server import chain

import ensue
from ensue.core.errors import (
    BadInput,
    EventRefused,
    LocalProtocolError,
    SubscriptionLost,
    SubscriptionRefused,
)
from ensue.protocols.content.config import ContentConfig
from ensue.server import Server, ServerConfig, content_broker
from ensue.server.config import Limits
from ensue.transports.tcp.messages import Member

SYNC_S = 0.5
"""Long, because most of these tests do not depend on the disk, which may be slow."""


@asynccontextmanager
async def tree(tmp_path: Path, count: int = 3, **options: Any) -> AsyncIterator[list[Server]]:
    servers = await chain(tmp_path, count, sync_s=SYNC_S, **options)
    try:
        yield servers
    finally:
        for server in servers:
            await server.stop()


def connected(server: Server, name: str) -> ensue.Bus:
    return ensue.connect(server.url, order=None, name=name)


def at_rest(servers: list[Server]) -> bool:
    """Return whether all brokers are idle."""
    brokers = [server.content.broker for server in servers if server.content is not None]
    return not any(
        broker.open_transactions or broker.waiting_count or broker.unanswered_count
        for broker in brokers
    )


def test_events_reach_subscribers_of_other_brokers(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            tree(tmp_path) as servers,
            connected(servers[0], "a") as a,
            connected(servers[1], "b") as b,
            connected(servers[2], "c") as c,
        ):
            name = await within(a.advertise(where="symbol = 'ACME'"))
            async with (
                b.subscribe(where="symbol = 'ACME' and price > 10") as dear,
                c.subscribe(where="symbol starts with 'AC'") as every,
            ):
                await within(a.publish({"symbol": "ACME", "price": 5}, b"cheap"))
                await within(a.publish({"symbol": "ACME", "price": 12}, b"dear"))
                assert await read(every, 2) == [b"cheap", b"dear"]
                event = await within(anext(dear))
                assert event.attributes == {"symbol": "ACME", "price": 12}
                assert event.publisher == a.name
                with pytest.raises(EventRefused, match="no advertisement of"):
                    await within(a.publish({"symbol": "OTHER"}))
            with pytest.raises(BadInput, match="there is no 'nonsense'"):
                await within(a.unadvertise("nonsense"))
            with pytest.raises(BadInput, match="belongs to another client"):
                await within(b.unadvertise(name))
            await within(a.unadvertise(name))
            with pytest.raises(EventRefused):
                await within(a.publish({"symbol": "ACME", "price": 12}))

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_transaction_spans_clients_of_several_servers(tmp_path: Path, isolation: str) -> None:
    async def main() -> None:
        async with (
            tree(tmp_path) as servers,
            connected(servers[0], "a") as a,
            connected(servers[1], "b") as b,
            connected(servers[2], "c") as c,
        ):
            await within(a.advertise(where="x exists"))
            opened: list[ensue.Subscription] = []

            async def pass_on(tx: ensue.InvitedTransaction) -> None:
                assert (tx.inviter, tx.payload) == (a.name, b"please")
                await tx.invite(c.name, {"where": "x = 1"})  # By its whole name, …

            async def subscribe(tx: ensue.InvitedTransaction) -> None:
                opened.append(await tx.subscribe(str(tx.attributes["where"])))

            await within(b.on_invitation(pass_on))
            await within(c.on_invitation(subscribe))

            async def fail() -> None:
                async with a.transaction(isolation=isolation, timeout=60) as tx:
                    await tx.invite("b", payload=b"please")  # … or by that which it was given.
                    await tx.publish({"x": 1}, b"never")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            async with a.transaction(isolation=isolation, timeout=60) as tx:
                await tx.invite("b", payload=b"please")
                await tx.publish({"x": 1}, b"for c")
            assert await read(opened[1], 1) == [b"for c"]
            with pytest.raises(ensue.TransactionAborted, match="no client is called"):
                async with a.transaction(isolation=isolation, timeout=60) as tx:
                    await tx.invite("nobody")
            await until(lambda: at_rest(servers), "brokers are at rest")

    asyncio.run(main())


def test_name_addresses_the_last_client_that_connected_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        invited: list[str] = []

        async def note(tx: ensue.InvitedTransaction) -> None:
            invited.append(str(tx.payload))

        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            connected(server, "a") as a,
            connected(server, "agent") as old,
            connected(server, "agent") as new,
        ):
            await within(old.on_invitation(note))

            async def mark(tx: ensue.InvitedTransaction) -> None:
                invited.append("new")

            await within(new.on_invitation(mark))
            async with a.transaction(timeout=60) as tx:
                await tx.invite("agent")
            assert invited == ["new"]

    asyncio.run(main())


def test_restarted_brokers_have_their_tables_and_clients_resume(tmp_path: Path) -> None:
    async def main() -> None:
        async with tree(tmp_path) as servers:
            async with connected(servers[0], "a") as a, connected(servers[2], "c") as c:
                await within(a.advertise(where="x exists"))
                async with c.subscribe(where="x = 1") as events:
                    for number, server in enumerate(list(servers)):
                        await server.stop()
                        again = Server(server.config)
                        await within(again.start())
                        servers[number] = again
                        await within(a.publish({"x": 1}, b"%d" % number))
                    async with a.transaction(timeout=60) as tx:
                        await tx.publish({"x": 1}, b"within")
                    assert await read(events, 4) == [b"0", b"1", b"2", b"within"]
            await until(
                lambda: not any(s.content.broker.clients for s in servers if s.content),
                "those who left are gone",
            )

    asyncio.run(main())


def test_file_sets_the_neighbors_of_a_broker(tmp_path: Path) -> None:
    members = tuple(Member(f"s{number}", f"127.0.0.1:{number + 1}") for number in range(4))

    def neighbours(name: str, **beside: str) -> tuple[str, ...]:
        config = ServerConfig(data=str(tmp_path), name=name, chain=members, beside=beside)
        return config.neighbors

    assert neighbours("s0") == ("s1", "s2")
    assert neighbours("s1") == ("s0", "s3")
    assert neighbours("s1", s2="s1") == ("s0", "s2", "s3")
    with pytest.raises(BadInput, match="must be an earlier broker"):
        neighbours("s1", s1="s3")


async def restart(servers: list[Server], number: int, members: tuple[Member, ...]) -> None:
    """Restart a server, in a chain of another length."""
    await servers[number].stop()
    servers[number] = Server(msgspec.structs.replace(servers[number].config, chain=members))
    await within(servers[number].start())


def test_brokers_join_and_leave_while_others_are_in_use(tmp_path: Path) -> None:
    async def main() -> None:
        members = tuple(Member(f"s{number}", f"127.0.0.1:{spare_port()}") for number in range(3))
        servers = [
            Server(
                ServerConfig(
                    data=str(tmp_path / one.name),
                    name=one.name,
                    listen=one.address,
                    chain=members[:2],
                    sync_s=SYNC_S,
                )
            )
            for one in members[:2]
        ]
        for server in servers:
            await within(server.start())
        newcomer = ServerConfig(
            data=str(tmp_path / "s2"),
            name="s2",
            listen=members[2].address,
            chain=members,
            sync_s=SYNC_S,
        )
        async with connected(servers[0], "a") as a, connected(servers[1], "b") as b:
            await within(a.advertise(where="x exists"))
            async with b.subscribe(where="x = 1") as events:
                async with a.transaction(timeout=60) as tx:
                    await tx.publish({"x": 1}, b"before")
                third = Server(newcomer)
                await within(third.start())
                for number in range(2):
                    await restart(servers, number, members)
                async with connected(third, "c") as c:
                    await within(c.advertise(where="x exists"))
                    async with c.subscribe(where="x = 1") as its:
                        for bus, kind in ((a, "serializable"), (c, "serializable"), (c, "planned")):
                            async with bus.transaction(isolation=kind, timeout=60) as tx:
                                await tx.publish({"x": 1}, kind.encode())
                        assert await read(its, 3) == [b"serializable", b"serializable", b"planned"]
                    with pytest.raises(
                        BadInput, match="let its clients leave and transactions end"
                    ):
                        await restart(servers, 0, members[:2])
                    await restart(servers, 0, members)
                first = servers[0].content
                assert first is not None
                await until(lambda: not first.broker.hold_of("s2/content"), "its client is gone")
                await third.stop()
                for number in range(2):
                    await restart(servers, number, members[:2])
                async with a.transaction(timeout=60) as tx:
                    await tx.publish({"x": 1}, b"after")
                came = [b"before", b"serializable", b"serializable", b"planned", b"after"]
                assert await read(events, 5) == came
        for server in servers:
            await server.stop()

    asyncio.run(main())


def test_two_brokers_in_use_can_not_become_neighbors(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", name="s1", sync_s=SYNC_S) as server,
            connected(server, "a") as a,
        ):
            await within(a.advertise(where="x exists"))
        members = tuple(Member(f"s{number}", f"127.0.0.1:{number + 1}") for number in range(2))
        with pytest.raises(BadInput, match="start it with an empty data directory"):
            async with serving(tmp_path / "d", name="s1", chain=members):
                pass

    asyncio.run(main())


def test_broker_that_raises_restarts_from_its_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            connected(server, "a") as a,
            connected(server, "b") as b,
        ):
            await within(a.advertise(where="x exists"))
            async with b.subscribe(where="x = 1") as events:
                assert server.content is not None
                server.content.broker.tables.route = None  # type: ignore[method-assign, assignment]
                await within(a.publish({"x": 1}, b"all the same"))
                assert await read(events, 1) == [b"all the same"]
                assert server.content.restarts == 1

    asyncio.run(main())
    assert "content broker restarted" in caplog.text


def test_broker_answers_only_after_the_sync(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, connected(server, "a") as a:
            await within(a.advertise(where="x exists"))
            journal = server.journal
            assert journal is not None
            synced: list[bool] = []
            sync = journal.sync

            def slow() -> int:
                synced.append(publishing.done())
                return sync()

            journal.sync = slow  # type: ignore[method-assign]
            publishing = asyncio.ensure_future(a.publish({"x": 1}))
            await within(publishing)
            assert synced
            assert not synced[0]

    asyncio.run(main())


# -- Permissions -----------------------------------------------------------------------------------


def test_permissions_apply_to_content(tmp_path: Path) -> None:
    people = People(alice=(["content"], []), bob=([], ["content"]), carol=(["*"], ["*"]))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
            ensue.connect(people.url(server, "bob"), order=None, name="bob") as bob,
            ensue.connect(people.url(server, "carol"), order=None, name="carol") as carol,
        ):
            await within(alice.advertise(where="x exists"))
            with pytest.raises(BadInput, match="'bob' may not publish on 'content'"):
                await within(bob.advertise(where="x exists"))
            with pytest.raises(SubscriptionRefused, match="may not subscribe to 'content'"):
                async with alice.subscribe(where="x = 1"):
                    pass
            async with bob.subscribe(where="x = 1") as his, carol.subscribe(where="x = 1") as hers:
                await within(alice.publish({"x": 1}, b"one"))
                for isolation in ("serializable", "atomic"):
                    with pytest.raises(ensue.TransactionAborted, match="may not subscribe"):
                        async with alice.transaction(isolation=isolation, timeout=60) as tx:
                            await tx.subscribe("x = 1")
                    with pytest.raises(ensue.TransactionAborted, match="may not publish"):
                        async with bob.transaction(isolation=isolation, timeout=60) as tx:
                            await tx.publish({"x": 1}, b"never")
                await within(alice.publish({"x": 1}, b"two"))
                assert await read(his, 2) == await read(hers, 2) == [b"one", b"two"]
            assert server.listener is not None
            assert server.listener.errors["permission"] >= 6
            assert server.listener.errors["protocol"] == 0

    asyncio.run(main())


def test_user_without_content_permissions_can_not_begin_a_transaction(tmp_path: Path) -> None:
    people = People(alice=(["content"], []), bob=([], ["content"]), carol=(["orders"], ["orders"]))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
            ensue.connect(people.url(server, "bob"), order=None, name="bob") as bob,
            ensue.connect(people.url(server, "carol"), order=None, name="carol") as carol,
        ):
            for isolation in ("serializable", "atomic"):
                with pytest.raises(ensue.TransactionAborted, match="may neither publish on"):
                    async with carol.transaction(isolation=isolation, timeout=60):
                        pass
                for bus in (alice, bob):
                    async with bus.transaction(isolation=isolation, timeout=60):
                        pass

    asyncio.run(main())


def test_only_the_forbidden_requests_of_a_bundle_are_rejected(tmp_path: Path) -> None:
    """Simultaneous requests share one message of the link; each is checked separately."""
    people = People(alice=(["content"], []), bob=([], ["content"]))
    limits = Limits(headers_per_event=2)

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access, sync_s=SYNC_S, limits=limits) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
            ensue.connect(people.url(server, "bob"), order=None, name="bob") as bob,
        ):
            await within(alice.advertise(where="x exists"))
            async with bob.subscribe(where="x exists") as events:
                wide = {"x": 0, "y": 0, "z": 0}
                done = await within(
                    asyncio.gather(
                        alice.publish({"x": 1}, b"one"),
                        alice.publish(wide, b"never"),
                        alice.publish({"x": 2}, b"two"),
                        return_exceptions=True,
                    )
                )
                assert isinstance(done[1], EventRefused), done
                assert await read(events, 2) == [b"one", b"two"]

    asyncio.run(main())


# -- Limits ----------------------------------------------------------------------------------------


def test_slow_content_subscriber_gets_an_error_and_others_are_not_affected(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            connected(server, "a") as a,
            connected(server, "b") as b,
        ):
            await within(a.advertise(where="x exists"))
            slow = b.subscribe(where="x exists", pending_max=3)
            async with slow, b.subscribe(where="x exists") as brisk:
                for number in range(5):
                    await within(a.publish({"x": number}, b"%d" % number))
                assert await read(brisk, 5) == [b"0", b"1", b"2", b"3", b"4"]
                assert await read(slow, 3) == [b"0", b"1", b"2"]
                with pytest.raises(SubscriptionLost, match="did not keep up"):
                    await within(anext(slow))
                assert server.content is not None
                broker = server.content.broker
                await until(lambda: len(broker.tables.subscriptions) == 1, "it is withdrawn")

    asyncio.run(main())


def test_expired_client_gets_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=SYNC_S) as server, connected(server, "a") as a:
            await within(a.advertise(where="x exists"))
            async with a.subscribe(where="x exists") as events:
                assert server.content is not None
                driver = server.content._driver
                assert driver is not None
                gone = f"{a.name}.content"
                driver.command(lambda node, now: node.broker.expire(gone, now_ns=now))
                with pytest.raises(SubscriptionLost, match="connect again"):
                    await within(anext(events))
                with pytest.raises(LocalProtocolError, match="connect again"):
                    await within(a.publish({"x": 1}))

    asyncio.run(main())


def through(proxy: Proxy, name: str) -> ensue.Bus:
    return ensue.connect(f"ensue://127.0.0.1:{proxy.port}", order=None, name=name)


async def commit(bus: ensue.Bus, attributes: dict[str, object]) -> None:
    async with bus.transaction(timeout=600) as tx:
        await tx.publish(attributes)


def port(server: Server) -> int:
    assert server.listener is not None
    return server.listener.port


@pytest.mark.parametrize("restarts", [False, True])
def test_disconnected_coordinator_blocks_no_client(tmp_path: Path, *, restarts: bool) -> None:
    async def main() -> None:
        async with (
            tree(tmp_path, transaction_grace_s=0.05) as servers,
            Proxy(port(servers[0])) as proxy,
            connected(servers[1], "ok") as ok,
        ):
            doomed = await through(proxy, "doomed").__aenter__()
            await within(doomed.advertise(where="z exists"))
            await within(ok.advertise(where="k exists"))
            tx = await within(doomed.transaction(timeout=600).__aenter__())
            await within(tx.publish({"z": 1}))
            proxy.refuse()
            proxy.cut()
            if restarts:
                await servers[0].stop()
                servers[0] = Server(servers[0].config)
                await servers[0].start()
            await within(commit(ok, {"k": 1}))
            await until(lambda: at_rest(servers), "the transaction is aborted after the grace")
            proxy.accept()
            with pytest.raises(ensue.TransactionAborted, match="doomed lost its connection"):
                await within(tx.publish({"z": 2}))
            await within(doomed.__aexit__(None, None, None))

    asyncio.run(main())


def test_new_clients_use_content_while_another_server_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(content_broker, "ContentConfig", partial(ContentConfig, away_ns=50_000_000))

    async def main() -> None:
        async with tree(tmp_path) as servers, connected(servers[2], "far") as far:
            await within(far.advertise(where="n exists"))
            async with far.subscribe(where="n exists") as there:
                await within(servers[2].stop())
                async with connected(servers[0], "a") as a, connected(servers[1], "b") as b:
                    await within(a.advertise(where="n exists"))
                    async with b.subscribe(where="n exists") as events:
                        await within(a.publish({"n": 1}, b"near"))
                        assert await read(events, 1) == [b"near"]
                        servers[2] = Server(servers[2].config)
                        await within(servers[2].start())
                        assert await read(there, 1) == [b"near"]
                        await until(lambda: at_rest(servers), "s2 has everything")
                        await within(far.publish({"n": 2}, b"far"))
                        assert await read(events, 1) == [b"far"]

    asyncio.run(main())
    assert "content brokers away bus=a away=s2" in caplog.text


def test_new_clients_use_content_while_another_server_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open and it sends nothing, like a process stopped by a signal."""
    monkeypatch.setattr(content_broker, "ContentConfig", partial(ContentConfig, away_ns=50_000_000))

    async def main() -> None:
        async with tree(tmp_path) as servers, connected(servers[2], "far") as far:
            await within(far.advertise(where="n exists"))
            async with far.subscribe(where="n exists") as there:
                await until(lambda: at_rest(servers), "all brokers have it")
                hung = servers[2]
                assert hung.listener is not None
                with monkeypatch.context() as hanging:
                    hanging.setattr(hung.listener, "receive_bundle", lambda *_: 0)
                    for carrier in hung._carriers:
                        hanging.setattr(carrier, "send", lambda *_: None)
                    async with connected(servers[0], "a") as a, connected(servers[1], "b") as b:
                        await within(a.advertise(where="n exists"))
                        async with b.subscribe(where="n exists") as events:
                            await within(a.publish({"n": 1}, b"near"))
                            assert await read(events, 1) == [b"near"]
                            hanging.undo()
                            assert await read(there, 1) == [b"near"]

    asyncio.run(main())


def test_coordinator_that_reconnects_in_time_keeps_its_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            tree(tmp_path, transaction_grace_s=600) as servers,
            Proxy(port(servers[0])) as proxy,
            through(proxy, "a") as a,
        ):
            await within(a.advertise(where="z exists"))
            async with a.subscribe(where="z exists") as events:
                async with a.transaction(timeout=600) as tx:
                    await within(tx.publish({"z": 1}, b"before"))
                    proxy.cut()
                    await within(tx.publish({"z": 1}, b"after"))
                assert await read(events, 2) == [b"before", b"after"]

    asyncio.run(main())
