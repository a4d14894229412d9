"""Connections to servers that stop and restart, despite other errors."""

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest
from tests.brokers.proxy import Proxy
from tests.client.test_end import running
from tests.client.test_takeover import port, through
from tests.server.certificates import make
from tests.server.helpers import People, read, serving, until, within
from tests.transports.tcp.test_carrier import spare_port

import ensue
from ensue.core.errors import AccessDenied
from ensue.server import Server, ServerConfig
from ensue.server.config import Tls
from ensue.server.permissions import Access
from ensue.transports.tcp.messages import Member

NO_LOGIN = Access()


def test_connection_survives_a_certificate_that_is_missing_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make(tmp_path / "c")
    tls = Tls(cert=str(files / "server.pem"), key=str(files / "server.key"))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", tls=tls) as server,
            Proxy(port(server)) as proxy,
            ensue.connect(f"{through(proxy)}?ca={files}/ca.pem") as bus,
        ):
            await within(bus.publish("x", b"1"))
            (files / "ca.pem").rename(files / "ca.away")
            proxy.cut()
            await until(lambda: "TLS can't be set up" in caplog.text, "it says what is missing")
            (files / "ca.away").rename(files / "ca.pem")
            await within(bus.publish("x", b"2"))

    with caplog.at_level(logging.WARNING, "ensue"):
        asyncio.run(main())


def test_exception_in_on_reconnect_does_not_end_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            Proxy(port(server)) as proxy,
            ensue.connect(through(proxy)) as bus,
        ):
            assert bus._hub is not None
            carrier = bus._hub.transport.carrier  # type: ignore[attr-defined]
            hear, faults = carrier.on_reconnect, [RuntimeError("a fault")]

            def hears() -> None:
                if faults:
                    raise faults.pop()
                hear()

            carrier.on_reconnect = hears
            for _ in range(2):
                proxy.cut()
                await within(bus.publish("x", b"1"))
            assert not faults

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "a fault" in caplog.text


# -- Servers of a chain ----------------------------------------------------------------------------


def two_servers(
    tmp_path: Path,
    first: Access = NO_LOGIN,
    second: Access = NO_LOGIN,
) -> list[Server]:
    """A chain of two that were not started: `a` has the topic `ta`, and `b` has `tb`."""
    members = tuple(Member(name, f"127.0.0.1:{spare_port()}", (f"t{name}",)) for name in ("a", "b"))
    return [
        Server(
            ServerConfig(
                data=str(tmp_path / member.name),
                listen=member.address,
                name=member.name,
                chain=members,
                access=access,
            )
        )
        for member, access in zip(members, (first, second), strict=True)
    ]


def test_absent_server_does_not_block_clients_of_other_servers(tmp_path: Path) -> None:
    async def main() -> None:
        one, other = two_servers(tmp_path)
        async with running(one), ensue.connect(f"ensue://{one.config.listen}") as bus:
            async with bus.subscribe("ta") as events:
                await within(bus.publish("ta", b"1"))
                assert await read(events, 1) == [b"1"]
            held_up = asyncio.create_task(bus.publish("tb", b"2"))
            async with running(other):
                assert (await within(held_up)).slot == 1
                async with bus.subscribe("ta", "tb") as events:
                    await within(bus.publish("tb", b"3"))
                    await within(bus.publish("ta", b"4"))
                    assert await read(events, 2) == [b"3", b"4"]

    asyncio.run(main())


# -- Refusals --------------------------------------------------------------------------------------


def test_client_survives_a_login_that_is_wrong_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    people = People(somebody=(["*"], ["*"]))

    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            assert server.listener is not None
            listen = f"127.0.0.1:{server.listener.port}"
            bus = ensue.connect(server.url)
            await within(bus.__aenter__())
        wrong = Server(ServerConfig(data=str(tmp_path / "d"), listen=listen, access=people.access))
        async with running(wrong):
            waiting = asyncio.create_task(bus.publish("x", b"1"))
            await until(lambda: "a token is needed" in caplog.text, "it says what is wrong")
        async with running(Server(ServerConfig(data=str(tmp_path / "d"), listen=listen))):
            assert (await within(waiting)).slot == 1
            await within(bus.close())

    with caplog.at_level(logging.WARNING, "ensue"):
        asyncio.run(main())


def test_server_of_a_chain_survives_every_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensue.transports.tcp.link.REFUSED_S", 0.0)
    people = People(somebody=(["*"], ["*"]))
    right, wrong = (
        Access(users=people.access.users, station_secret=letter * 40) for letter in "rw"
    )
    one, other = two_servers(tmp_path, right, right)

    async def main() -> None:
        async with running(one):
            assert one.listener is not None
            async with running(other):
                await until(lambda: one.listener and "b" in one.listener.neighbors)
            refusing = Server(msgspec.structs.replace(other.config, access=wrong))
            async with running(refusing):
                assert refusing.listener is not None
                errors = refusing.listener.errors
                await until(lambda: errors["login"] > 2, "it has asked again and again")
            async with (
                running(Server(other.config)),
                ensue.connect(people.url(one, "somebody")) as bus,
                bus.subscribe("ta", "tb") as events,
            ):
                await within(bus.publish("ta", b"1"))
                await within(bus.publish("tb", b"2"))
                assert await read(events, 2) == [b"1", b"2"]

    asyncio.run(main())


def test_client_unknown_to_another_server_of_the_chain_is_refused(tmp_path: Path) -> None:
    people = People(somebody=(["*"], ["*"]))

    async def main() -> None:
        one, other = two_servers(
            tmp_path,
            Access(station_secret="s" * 40),
            Access(users=people.access.users, station_secret="s" * 40),
        )
        async with running(one), running(other):
            with pytest.raises(AccessDenied, match="a token is needed"):
                async with ensue.connect(f"ensue://{one.config.listen}") as bus:
                    await within(bus.publish("tb", b"1"))

    asyncio.run(main())
