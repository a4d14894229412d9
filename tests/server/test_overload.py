"""Clients that cause more work than they send: it is bounded, and affects only them."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.server.helpers import DEADLINE_S, read, serving, until, within
from tests.server.raw import Raw

import ensue
from ensue.core.event import Event
from ensue.journal import journal
from ensue.protocols.topic_log.frames import Attached, AttachRequest
from ensue.protocols.total import sequencer
from ensue.protocols.total.frames import OrderRequest, Out
from ensue.protocols.total.status import StatusReply, StatusRequest
from ensue.server import Server
from ensue.server.config import Limits
from ensue.server.connection import UNANSWERED_BYTES_MAX, Connection
from ensue.transports.tcp.messages import Enter, Entered, Exited, Ping, Pong, encode_control

# -- Slow readers ----------------------------------------------------------------------------------


async def deaf_reader(server: Server) -> tuple[Raw, Connection]:
    """A client that listens to `x` and has stopped reading."""
    raw = await Raw.hello(server)
    assert await raw.enter("deaf~1") is None
    raw.bundle("deaf~1", AttachRequest(topic="x", from_slot=0))
    assert isinstance(await raw.frame(), Attached)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    assert server.listener is not None
    return raw, server.listener.routes["deaf~1"]


def test_control_messages_reach_a_slow_reader(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(pending_bytes=500_000)
        async with serving(tmp_path / "d", limits=limits) as server:
            assert server.listener is not None
            routes = server.listener.routes
            raw, connection = await deaf_reader(server)
            async with ensue.connect(server.url) as bus:
                while not connection.dropped:
                    await within(bus.publish("x", bytes(100_000)))
            raw.control(Enter(name="second~1"))
            await until(lambda: "second~1" in routes)
            other = await Raw.hello(server)
            assert await other.enter("deaf~1") is None
            raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
            said: list[tuple[type[Entered | Exited], str]] = []
            while len(said) < 2:
                message = await raw.message()
                if not isinstance(message, tuple):
                    said.append((type(message), message.name))
            assert said == [(Entered, "second~1"), (Exited, "deaf~1")]
            raw.close()
            other.close()

    asyncio.run(main())


def test_client_that_enters_names_without_reading_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(pending_bytes=500_000)
        async with serving(tmp_path / "d", limits=limits) as server:
            assert server.listener is not None
            listener = server.listener
            raw, connection = await deaf_reader(server)
            async with ensue.connect(server.url) as bus:
                while not connection.dropped:
                    await within(bus.publish("x", bytes(100_000)))
            waiting = connection.pending
            raw.send(encode_control(Enter(name="n" * 250)) * 20_000)
            await until(lambda: connection.closing)
            assert connection.pending < waiting + 3_000_000
            assert listener.errors == {"limit": 1}
            await until(lambda: connection not in listener.connections)
            raw.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["large", "amplified"])
def test_unsynced_bytes_per_connection_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A slow disk, and a client that never stops sending."""

    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            topics = [f"{number:03}{'x' * 240}" for number in range(100)]
            async with bus.subscribe(*topics):
                kept, listener = server.journal, server.listener
                assert kept is not None
                assert listener is not None
                disk, sync = threading.Event(), kept.sync

                def slow() -> int:
                    assert disk.wait(DEADLINE_S)
                    return sync()

                raw = await Raw.hello(server)
                assert await raw.enter("p~1") is None
                monkeypatch.setattr(kept, "sync", slow)
                before, count = kept.end_bytes, 14
                size, runs = (4 << 20, 1) if kind == "large" else (0, 70)
                for number in range(count):
                    first = 1 + number * runs
                    run = tuple(
                        Event(
                            topic=topics[n % 100],
                            payload=bytes(size),
                            publisher="p~1",
                            publisher_seq=n,
                        )
                        for n in range(first, first + runs)
                    )
                    raw.bundle("p~1", OrderRequest(number=first, events=run, settled=first))
                connection = listener.routes["p~1"]
                await until(lambda: connection._waiting)
                assert kept.end_bytes - before < UNANSWERED_BYTES_MAX + (6 << 20)
                disk.set()
                done = 0
                while done < count * runs:
                    answer = await raw.frame()
                    assert isinstance(answer, Out)
                    done = max(done, *(number for number, _ in answer.slots))
                raw.close()

    asyncio.run(main())


def test_fetching_a_topic_does_not_scan_all_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            await within(bus.publish("x", b""))
            assert server.status is not None
            assert server.station is not None
            monkeypatch.setattr(server.status, "state", lambda _readable, _user: b"{}")
            monkeypatch.delattr(type(server.station.log), "bounds")
            monkeypatch.delattr(type(server.station.log), "listeners")
            look = StatusRequest(number=1, topics=("x", "never"), readable=("x", "never"))
            seen = server.status.answer(look, 0)
            assert isinstance(seen, StatusReply)
            assert seen.bounds == {"x": (1, 2), "never": (1, 1)}
            monkeypatch.undo()

    asyncio.run(main())


# -- Batches ---------------------------------------------------------------------------------------


def test_small_message_with_long_stamps_does_not_stop_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BUFFER_BYTES_MAX", 8_000_000)
    monkeypatch.setattr(sequencer, "BATCH_BYTES_MAX", 2_000_000)
    topics = [f"{number:03}{'x' * 240}" for number in range(50)]
    count = 1_000

    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe(*topics) as events,
        ):
            raw = await Raw.hello(server)
            assert await raw.enter("p~1") is None
            run = [
                Event(topic=topics[n % 50], payload=b"", publisher="p~1", publisher_seq=n)
                for n in range(1, count + 1)
            ]
            done = 0
            while done < count:
                # It causes forty times as many written bytes.
                asked = [
                    OrderRequest(number=n, events=tuple(run[n - 1 : n + 99]), settled=done + 1)
                    for n in range(done + 1, count + 1, 100)
                ]
                raw.bundle("p~1", *asked)
                answers = [await raw.frame()]
                raw.control(Ping(number=1))
                while (message := await raw.message()) != Pong(number=1):
                    answers += message[2]
                for answer in answers:
                    assert isinstance(answer, Out)
                    done = max(done, *(number for number, _ in answer.slots))
            await within(bus.publish(topics[0], b"still there"))
            seen = await read(events, count + 1)
            assert seen == [b""] * count + [b"still there"]
            raw.close()

    asyncio.run(main())
