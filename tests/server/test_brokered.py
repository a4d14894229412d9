"""A station on a broker that can't start or fails: it releases everything and reports why."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.brokers.deadlines import until

from ensue.core.errors import BadInput, LogLost, TransportError
from ensue.journal import Journal
from ensue.journal.files import JournalFailed
from ensue.protocols.interface import Persist
from ensue.protocols.total.discovery import DISCOVERY_NAME
from ensue.runtime import log_monitor
from ensue.server import ServerConfig, name_claim
from ensue.server.brokered import BrokeredServer
from ensue.transports.base import Capabilities
from ensue.transports.carrier import Inbox
from ensue.transports.tcp.messages import Member

pytest.importorskip("nats")
SAID = "the broker said no"


class Broker:
    """A carrier that fails at one step."""

    name = "broker://"
    on_reconnect: Callable[[], None] | None = None
    dropped = 0
    capabilities = Capabilities(
        fifo=True, durable=False, replay=False, conditional=False, multicast=True
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


class Wires(Broker):
    """A carrier that delivers to all carriers that share `inboxes`."""

    def __init__(self, inboxes: dict[str, Inbox]) -> None:
        super().__init__("")
        self._inboxes = inboxes
        self._own: set[str] = set()

    async def open(self, peer: str, receive: Inbox) -> None:
        self._inboxes[peer] = receive
        self._own.add(peer)

    async def shut(self, peer: str) -> None:
        self._own.discard(peer)
        self._inboxes.pop(peer, None)

    def send(self, peer: str, data: bytes) -> None:
        def arrive() -> None:
            if peer in self._inboxes:
                self._inboxes[peer](data)

        asyncio.get_running_loop().call_soon(arrive)

    async def close(self) -> None:
        for peer in list(self._own):
            await self.shut(peer)


def station_on(broker: Broker, data: Path, *, admin: str = "") -> BrokeredServer:
    server = BrokeredServer(ServerConfig(data=str(data), admin=admin), "nats://127.0.0.1")
    server.options = msgspec.structs.replace(server.options, carrier=lambda _given: broker)
    return server


@pytest.fixture(autouse=True)
def _quick_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_claim, "TRY_S", 0.0)


@pytest.mark.parametrize("step", ["start", "node-1", DISCOVERY_NAME, "admin"])
def test_failed_start_releases_everything(step: str, tmp_path: Path) -> None:
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


def test_disk_failure_stops_the_server_with_an_error(
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
        with pytest.raises(JournalFailed, match=r"no space left.*free or repair the disk"):
            async with asyncio.timeout(30):
                await server.wait()
        monkeypatch.undo()
        await server.stop()

    asyncio.run(main())


def test_server_with_another_log_stops_and_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_monitor, "ASK_S", 0.01)
    inboxes: dict[str, Inbox] = {}
    chain = (Member("s1", "127.0.0.1:1"), Member("s2", "127.0.0.1:2"))

    async def started(name: str, data: str) -> BrokeredServer:
        config = ServerConfig(name=name, data=str(tmp_path / data), chain=chain)
        server = BrokeredServer(config, "nats://127.0.0.1")
        wires = Wires(inboxes)
        server.options = msgspec.structs.replace(server.options, carrier=lambda _given: wires)
        await server.start()
        return server

    async def main() -> None:
        first, second = await started("s1", "1"), await started("s2", "2")
        assert first.journal is not None
        records = first.journal.records
        await until(lambda: "peer/s2" in records, "the log is known")
        await second.stop()
        second = await started("s2", "empty")
        with pytest.raises(LogLost, match=r"'s2' has another log than before.*own data directory"):
            async with asyncio.timeout(30):
                await second.wait()
        await second.stop()
        assert first.status is not None
        gate = first.status.broker_admission
        assert gate is not None
        assert gate.refused == {"s2"}
        assert sum("log lost server=s2" in line for line in caplog.messages) == 1
        second = await started("s2", "2")
        await until(lambda: not gate.refused, "it is taken again")
        for server in (first, second):
            assert server._ended is not None
            assert not server._ended.done()
            await server.stop()

    asyncio.run(main())
