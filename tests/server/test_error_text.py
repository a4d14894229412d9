"""Errors of clients at the wrong port or without access say what to do."""

import asyncio
from pathlib import Path

import pytest
from tests.server.helpers import People, serving, within

import ensue


def test_tls_client_of_a_plain_server_is_advised_to_drop_tls(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            with pytest.raises(ensue.TransportError, match="it does not use TLS; leave tls=1 out"):
                await within(ensue.connect(f"{server.url}?tls=1").__aenter__())

    asyncio.run(main())


def test_client_of_the_admin_port_is_advised_of_its_mistake(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin="127.0.0.1:0") as server:
            assert server.admin is not None
            url = server.admin.url.replace("http://", "ensue://")
            with pytest.raises(
                ensue.TransportError, match=r"an HTTP server answers there.*is it the admin port"
            ):
                await within(ensue.connect(url).__aenter__())

    asyncio.run(main())


def test_unknown_token_does_not_look_like_a_lost_connection(tmp_path: Path) -> None:
    people = People(alice=(["x"], ["x"]))

    async def main() -> str:
        async with serving(tmp_path / "d", access=people.access) as server:
            with pytest.raises(ensue.AccessDenied, match="refuses this client") as caught:
                await within(ensue.connect(f"{server.url}?token=wrong").__aenter__())
            return str(caught.value)

    assert "closed the connection" not in asyncio.run(main())


def test_error_without_a_server_says_how_to_start_one_for_a_chain_too() -> None:
    async def main() -> None:
        with pytest.raises(ensue.TransportError, match=r"ensue serve --listen .* --config FILE"):
            await within(ensue.connect("ensue://127.0.0.1:1").__aenter__())

    asyncio.run(main())


def test_second_withdrawal_says_that_it_is_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, order=None, name="d") as bus,
        ):
            name = await within(bus.advertise(where="a exists"))
            await within(bus.unadvertise(name))
            with pytest.raises(
                ensue.BadInput, match=r"the name that advertise\(\) returned, and once"
            ):
                await within(bus.unadvertise(name))

    asyncio.run(main())


def test_error_without_a_server_quotes_ipv6_addresses() -> None:
    async def main() -> str:
        with pytest.raises(ensue.TransportError) as caught:
            await within(ensue.connect("ensue://[::1]:1").__aenter__())
        return str(caught.value)

    assert "ensue serve --listen [::1]:1 --data DIR" in asyncio.run(main())
