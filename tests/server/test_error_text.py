"""What somebody is told who comes to the wrong place, or is not let in: what to do about it."""

import asyncio
from pathlib import Path

import pytest
from tests.server.helpers import People, serving, within

import ensue


def test_whoever_comes_with_tls_to_a_server_without_is_told_to_leave_it_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            with pytest.raises(ensue.TransportError, match="it does not use TLS; leave tls=1 out"):
                await within(ensue.connect(f"{server.url}?tls=1").__aenter__())

    asyncio.run(main())


def test_whoever_comes_to_the_admin_port_is_told_that_it_may_be_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin="127.0.0.1:0") as server:
            assert server.admin is not None
            url = server.admin.url.replace("http://", "ensue://")
            with pytest.raises(
                ensue.TransportError, match=r"an HTTP server answers there.*is it the admin port"
            ):
                await within(ensue.connect(url).__aenter__())

    asyncio.run(main())


def test_a_token_that_nobody_knows_does_not_sound_like_a_lost_connection(tmp_path: Path) -> None:
    people = People(alice=(["x"], ["x"]))

    async def main() -> str:
        async with serving(tmp_path / "d", access=people.access) as server:
            with pytest.raises(ensue.AccessDenied, match="refuses this client") as caught:
                await within(ensue.connect(f"{server.url}?token=wrong").__aenter__())
            return str(caught.value)

    assert "closed the connection" not in asyncio.run(main())


def test_whoever_finds_nobody_is_told_how_to_start_one_also_of_a_chain() -> None:
    async def main() -> None:
        with pytest.raises(ensue.TransportError, match=r"ensue serve --listen .* --config FILE"):
            await within(ensue.connect("ensue://127.0.0.1:1").__aenter__())

    asyncio.run(main())


def test_what_is_withdrawn_twice_is_said_to_be_done_once(tmp_path: Path) -> None:
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


def test_whoever_finds_nobody_at_an_address_with_colons_is_told_what_can_be_typed() -> None:
    async def main() -> str:
        with pytest.raises(ensue.TransportError) as caught:
            await within(ensue.connect("ensue://[::1]:1").__aenter__())
        return str(caught.value)

    assert "ensue serve --listen [::1]:1 --data DIR" in asyncio.run(main())
