"""Clients that cause more than they send: it is bounded, and costs them and nobody else."""

import asyncio
from pathlib import Path

import pytest
from tests.server.helpers import read, serving, within
from tests.server.raw import Raw

import ensue
from ensue.event import Event
from ensue.journal import journal
from ensue.protocols.sequencer import node
from ensue.protocols.sequencer.frames import OrderRequest, Out
from ensue.transports.tcp_messages import Ping, Pong

# -- Batches ------------------------------------------------------------------------------------


def test_a_small_message_whose_stamps_are_long_does_not_end_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BUFFER_BYTES_MAX", 8_000_000)
    monkeypatch.setattr(node, "BATCH_BYTES_MAX", 2_000_000)
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
                # Forty times as much is to be written, at once.
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
