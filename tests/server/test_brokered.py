"""A station on a broker that can't start, or can't go on: it lets go of all it had, and says why."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ensue.errors import BadInput, TransportError
from ensue.journal import Journal
from ensue.journal.files import JournalFailed
from ensue.protocols.core import Persist
from ensue.protocols.guide import GUIDE
from ensue.server import ServerConfig, claiming
from ensue.server.brokered import BrokeredServer
from ensue.transports.base import Capabilities
from ensue.transports.carrier import Inbox

pytest.importorskip("nats")
SAID = "the broker said no"


class Broker:
    """A carrier that refuses one step."""

    name = "broker://"
    on_reconnect: Callable[[], None] | None = None
    dropped = 0
    capabilities = Capabilities(
        orders=("total",), fifo=True, durable=False, replay=False, conditional=False, multicast=True
    )

    def __init__(self, refuses: str) -> None:
        self.refuses = refuses
        self.closed = 0

    def _step(self, name: str) -> None:
        if name == self.refuses:
            raise TransportError(SAID)

    async def start(self) -> None:
        self._step("start")

    async def open(self, peer: str, receive: Inbox) -> None:
        del receive
        self._step(peer)

    async def shut(self, peer: str) -> None: ...

    async def join(self, topic: str, receive: Inbox) -> None: ...

    async def leave(self, topic: str) -> None: ...

    def send(self, peer: str, data: bytes) -> None: ...

    def multicast(self, topic: str, data: bytes) -> None: ...

    async def close(self) -> None:
        self.closed += 1


def station_on(broker: Broker, data: Path, *, admin: str = "") -> BrokeredServer:
    server = BrokeredServer(ServerConfig(data=str(data), admin=admin), "nats://127.0.0.1")
    server.options = msgspec.structs.replace(server.options, carrier=lambda _given: broker)
    return server


@pytest.fixture(autouse=True)
def _quick_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "TRY_S", 0.0)


@pytest.mark.parametrize("step", ["start", "node-1", GUIDE, "admin"])
def test_one_that_can_not_start_leaves_nothing_behind(step: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    broker = Broker(step)
    data = tmp_path / "d"

    async def main() -> None:
        taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        server = station_on(broker, data, admin=f"127.0.0.1:{port}" if step == "admin" else "")
        said = r"in use|taken" if step == "admin" else SAID
        with pytest.raises((TransportError, OSError, BadInput), match=said):
            async with asyncio.timeout(30):
                await server.start()
        taken.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert broker.closed == (step != "admin"), "what is there can be told before it connects"
        Journal(data).close()  # Its lock can be had again.
        left = {each.name for each in set(threading.enumerate()) - before}
        assert not [name for name in left if name.startswith("ensue-sync")]
        await server.stop()

    asyncio.run(main())


def test_one_whose_disk_fails_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server = station_on(Broker(""), tmp_path / "d")
        await server.start()
        assert server.journal is not None
        assert server._commit is not None

        def refuse(_writes: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(server.journal, "append", refuse)
        server._commit.write([Persist("a", b"b")], lambda: None)
        with pytest.raises(JournalFailed, match=r"no space left.*free or mend the disk"):
            async with asyncio.timeout(30):
                await server.wait()
        monkeypatch.undo()
        await server.stop()

    asyncio.run(main())
