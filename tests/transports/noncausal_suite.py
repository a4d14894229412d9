"""Total order that is not causal, on every transport: a chain of two stations."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.transports.stations import StationThread, running
from tests.transports.suite import take

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.errors import UnsupportedOrder
from ensue.core.order import order_name
from ensue.server.config import ServerConfig, sequenced
from ensue.transports.tcp.messages import Member

NONCAUSAL = ensue.Total(causal=False)
EAST, WEST, NORTH = TOPICS = ("n-east", "n-west", "n-north")
ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2")
_names = count(1)


def chain_of_two(data: Path, addresses: tuple[str, str] = ADDRESSES) -> list[ServerConfig]:
    """Return the configurations of two stations that keep no causal order."""
    members = (
        Member("station-1", addresses[0], (EAST,)),
        Member("station-2", addresses[1], (WEST, NORTH)),
    )
    return [
        ServerConfig(
            data=str(data / member.name),
            name=member.name,
            listen=member.address,
            chain=members,
            sequencer=sequenced(causal=False),
        )
        for member in members
    ]


class NoncausalSuite(ABC):
    """The behavior of total order that is not causal on every transport."""

    @classmethod
    @abstractmethod
    def noncausal_chain(
        cls, request: pytest.FixtureRequest, data: Path
    ) -> tuple[list[StationThread], str]:
        """Return stations of a chain with `causal = false`, and the URL of its clients."""

    @pytest.fixture(scope="class")
    @classmethod
    def noncausal_url(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[str]:
        """Run such a chain for the tests of a class that use it."""
        stations, url = cls.noncausal_chain(request, tmp_path_factory.mktemp("noncausal"))
        with running(stations):
            yield url

    def test_not_causal_common_subscribers_agree_while_others_join_and_leave(
        self, noncausal_url: str, tmp_path: Path
    ) -> None:
        traces = [str(tmp_path / name) for name in ("one", "other")]

        async def main() -> None:
            if noncausal_url.startswith("memory:"):
                del traces[1:]  # The first bus to connect writes the trace of all.
            async with (
                ensue.connect(noncausal_url, order=NONCAUSAL, trace=traces[0]) as one,
                ensue.connect(noncausal_url, order=NONCAUSAL, trace=(*traces, None)[1]) as other,
                one.subscribe(*TOPICS) as first,
                other.subscribe(*TOPICS) as second,
                other.subscribe(EAST) as moving,
            ):
                for number in range(45):
                    bus = (one, other)[number % 2]
                    await bus.publish(TOPICS[number % 3], b"%d" % number, receipt=False)
                    if number % 15 == 7:
                        (topic,) = moving.topics
                        following = TOPICS[(TOPICS.index(topic) + 1) % 3]
                        await moving.subscribe(following)
                        await moving.unsubscribe(topic)
                seen = [event.id for event in await take(first, 45)]
                assert [event.id for event in await take(second, 45)] == seen

        asyncio.run(main())
        rows = [row for folder in traces for row in trace.read(folder)]
        assert {row.order for row in rows} == {order_name(NONCAUSAL)}
        report = check(rows, order_name(NONCAUSAL))
        assert report.verdict is Verdict.VALID, report.sentences()

    def test_not_causal_chain_refuses_causal_order_by_name(self, noncausal_url: str) -> None:
        async def main() -> None:
            async with ensue.connect(noncausal_url, order=NONCAUSAL) as bus:
                with pytest.raises((UnsupportedOrder, ensue.ConfigurationError), match="causal"):
                    await ensue.connect(noncausal_url).__aenter__()
                with pytest.raises(UnsupportedOrder, match="is not causal"):
                    bus.subscribe(EAST, order=ensue.Total())

        asyncio.run(main())


class RemoteNoncausalSuite(NoncausalSuite):
    """The same with stations that keep positions."""

    def test_not_causal_durable_subscription_resumes_with_other_topics(
        self, noncausal_url: str
    ) -> None:
        async def main() -> None:
            name = f"noncausal-{next(_names)}"
            async with ensue.connect(noncausal_url, order=NONCAUSAL) as bus:
                async with bus.subscribe(EAST, name=name, durable=True) as events:
                    await bus.publish(EAST, b"1")
                    assert [event.payload for event in await take(events, 1)] == [b"1"]
                    await events.subscribe(WEST)
                    await events.unsubscribe(EAST)
                    await bus.publish(EAST, b"left")
                    await bus.publish(WEST, b"2")
                    assert [event.payload for event in await take(events, 1)] == [b"2"]
                await bus.publish(WEST, b"3")
                async with bus.subscribe(WEST, name=name, durable=True) as events:
                    assert [event.payload for event in await take(events, 1)] == [b"3"]

        asyncio.run(main())
