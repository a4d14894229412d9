import asyncio
import contextlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from tests.transports.clocked_suite import ClockedSuite
from tests.transports.many_suite import ManySuite
from tests.transports.noncausal_suite import NoncausalSuite
from tests.transports.stations import StationThread
from tests.transports.suite import TransportSuite, Unheard, take

import ensue
from ensue.core.errors import BadInput
from ensue.protocols.interface import Frame
from ensue.transports import MemoryOptions, MemoryTransport

_hubs = count(1)


class TestMemory(ClockedSuite, ManySuite, TransportSuite):
    def url(self) -> str:
        return f"memory://hub-{next(_hubs)}"


class TestMemoryChain(NoncausalSuite, ManySuite, TransportSuite):
    def url(self) -> str:
        return f"memory://hub-{next(_hubs)}?nodes=3"

    @classmethod
    def noncausal_chain(
        cls, request: pytest.FixtureRequest, data: Path
    ) -> tuple[list[StationThread], str]:
        del request, data
        return [], f"memory://hub-{next(_hubs)}?nodes=2"


class TestMemoryJitter(ClockedSuite, ManySuite, TransportSuite):
    def url(self) -> str:
        return f"memory://hub-{next(_hubs)}?nodes=2&jitter_ms=3&seed=7"


def test_jitter_reorders_events_without_order() -> None:
    async def main() -> list[int]:
        async with (
            ensue.connect("memory://?jitter_ms=5&seed=3", order=None) as bus,
            bus.subscribe("a", "b") as events,
        ):
            for number in range(200):
                await bus.publish("ab"[number % 2], str(number).encode())
            return [int(event.payload) for event in await take(events, 200)]

    got = asyncio.run(main())
    assert sorted(got) == list(range(200))
    assert got != sorted(got)


def test_unnamed_hubs_are_separate() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as one,
            ensue.connect("memory://") as other,
            one.subscribe("a") as events,
        ):
            await other.publish("a", b"elsewhere")
            await one.publish("a", b"here")
            (event,) = await take(events, 1)
            assert event.payload == b"here"

    asyncio.run(main())


def test_named_hub_ends_with_its_last_bus() -> None:
    async def main() -> None:
        async with ensue.connect("memory://gone?nodes=2"):
            pass
        async with ensue.connect("memory://gone?nodes=3"):
            pass

    asyncio.run(main())


def test_hub_in_use_refuses_other_options() -> None:
    async def main() -> None:
        async with ensue.connect("memory://shared"):
            with pytest.raises(ensue.ConfigurationError, match="memory://shared is in use"):
                await ensue.connect("memory://shared?nodes=2").__aenter__()
            with pytest.raises(ensue.ConfigurationError, match="the hub's order"):
                await ensue.connect("memory://shared", order=None).__aenter__()

    asyncio.run(main())


def test_error_shows_the_options_of_a_hub_in_use() -> None:
    async def main() -> None:
        made = "memory://taken?nodes=2&jitter_ms=1.5&seed=1000000"
        order = ensue.Total(time_to_live=2)
        async with ensue.connect(made, order=order):
            with pytest.raises(ensue.ConfigurationError) as caught:
                await ensue.connect("memory://taken?loss=0.5", order=order).__aenter__()
            assert str(caught.value) == (
                f"memory://taken is in use: it was made as {made}, not memory://taken?loss=0.5; "
                "connect with the same options, or to another name"
            )
            with pytest.raises(ensue.ConfigurationError) as caught:
                await ensue.connect(made, order=ensue.Deadline(ms=5)).__aenter__()
            assert str(caught.value) == (
                "memory://taken is in use: the hub's order is ensue.Total(time_to_live=2), not "
                "ensue.Deadline(ms=5); connect with order=ensue.Total(time_to_live=2), or to "
                "another name"
            )

    asyncio.run(main())


def test_a_hub_that_loses_events_needs_a_time_to_live() -> None:
    with pytest.raises(ensue.UnsupportedOrder, match=r"Total\(time_to_live=SECONDS\)"):
        ensue.connect("memory://?loss=0.1")


def test_connect_refuses_an_unsupported_order_by_name() -> None:
    with pytest.raises(ensue.UnsupportedOrder, match="memory:// does not carry unheard order"):
        ensue.connect("memory://", order=Unheard())


def test_subscription_name_can_be_used_again() -> None:
    async def main() -> None:
        async with ensue.connect("memory://again") as bus:
            for _ in range(3):
                async with bus.subscribe("a", name="reader") as events:
                    await bus.publish("a", b"x")
                    await take(events, 1)

    asyncio.run(main())


def test_lossy_hub_delivers_the_rest_and_tags_late_events() -> None:
    async def main() -> None:
        order = ensue.Total(time_to_live=0.05)
        async with (
            ensue.connect("memory://?loss=0.2&jitter_ms=2&seed=5", order=order) as bus,
            bus.subscribe("a", "b") as events,
        ):
            for number in range(300):
                await bus.publish("ab"[number % 2], str(number).encode())
            got: list[ensue.ReceivedEvent] = []
            with contextlib.suppress(TimeoutError):
                while True:
                    got.append(await asyncio.wait_for(anext(events), timeout=1))
        assert 150 < len(got) < 300
        in_order = [int(event.payload) for event in got if not event.verdict]
        assert in_order == sorted(in_order)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("memory://?nodes=0", "nodes must be between 1 and 64"),
        ("memory://?nodes=many", "nodes must be a whole number, got 'many'"),
        ("memory://?nodes=1.5", "nodes must be a whole number, got '1.5'"),
        ("memory://?seed=", "seed must be a whole number, got ''"),
        ("memory://?loss=x", "loss must be a number, got 'x'"),
        ("memory://?loss=nan", "loss must be a number, got 'nan'"),
        ("memory://?jitter_ms=inf", "jitter_ms must be a number, got 'inf'"),
        ("memory://?loss=0&loss=0.5", "loss is given more than once"),
        ("memory://a:80", "no port"),
        ("memory://me@a", "no user"),
        ("memory://a#b", "has neither path nor fragment"),
        ("memory://[", "Invalid IPv6 URL"),
        ("memory://?jitter_ms=-1", "jitter_ms must be at least 0"),
        ("memory://?loss=1", "loss must be from 0 to below 1"),
        ("memory://?lost=0.5", "there is no option 'lost'"),
        ("memory://hub/path", "has neither path nor fragment"),
    ],
)
def test_a_bad_url_is_refused_in_words(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        MemoryOptions.parse(url)


@pytest.mark.parametrize("url", ["kafka://localhost", "memory", ""])
def test_unknown_transport_is_refused_by_name(url: str) -> None:
    with pytest.raises(BadInput, match="no transport for"):
        ensue.connect(url)


class Note(Frame, frozen=True, tag=98):
    """A frame to deliver."""


def test_frames_after_a_failing_receiver_are_delivered() -> None:
    async def main() -> None:
        transport = MemoryTransport(MemoryOptions())
        arrived = asyncio.Event()

        def fail(_frames: Sequence[Frame], _source: str) -> None:
            raise OSError("not today")

        sender = transport.open("sender", lambda _frame, _source: None)
        transport.open("broken", fail)
        transport.open("sound", lambda _frame, _source: arrived.set())
        sender.send("broken", Note())
        sender.send("sound", Note())
        with pytest.raises(OSError, match="not today"):
            sender.flush()
        async with asyncio.timeout(10):
            await arrived.wait()

    asyncio.run(main())
