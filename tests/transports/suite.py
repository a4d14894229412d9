"""The behavior of every transport: the tests of each transport inherit it."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import ClassVar

import pytest

import ensue


async def take(events: ensue.Subscription, count: int) -> list[ensue.ReceivedEvent]:
    """Read `count` events, or fail after a timeout."""
    async with asyncio.timeout(30):
        return [await anext(events) for _ in range(count)]


@dataclass(frozen=True, kw_only=True)
class Unheard(ensue.Order):
    """An order that no transport supports."""

    name: ClassVar[str] = "unheard"


class TransportSuite(ABC):
    """The behavior of every transport."""

    @abstractmethod
    def url(self) -> str:
        """Return the URL of a bus that no other test uses."""

    def test_events_of_several_topics_arrive_in_one_order(self) -> None:
        async def main() -> None:
            url = self.url()
            topics = [f"t{index}" for index in range(5)]
            async with AsyncExitStack() as stack:
                buses = [await stack.enter_async_context(ensue.connect(url)) for _ in range(4)]
                first = await stack.enter_async_context(buses[0].subscribe(*topics))
                second = await stack.enter_async_context(buses[1].subscribe(*reversed(topics)))
                part = await stack.enter_async_context(buses[2].subscribe("t1", "t3"))

                async def publish(bus: ensue.Bus, offset: int) -> None:
                    for number in range(50):
                        topic = topics[(number * offset) % 5]
                        await bus.publish(topic, str(number).encode())

                async with asyncio.TaskGroup() as group:
                    for offset, bus in enumerate(buses, 1):
                        group.create_task(publish(bus, offset))
                seen = [event.id for event in await take(first, 200)]
                assert [event.id for event in await take(second, 200)] == seen
                wanted = [each for each in seen if each.split("/")[1] in ("t1", "t3")]
                assert [event.id for event in await take(part, len(wanted))] == wanted

        asyncio.run(main())

    def test_one_publisher_keeps_its_order_across_topics(self) -> None:
        async def main() -> None:
            async with (
                ensue.connect(self.url()) as bus,
                bus.subscribe("a", "b", "c") as events,
            ):
                for number in range(60):
                    await bus.publish("abc"[number % 3], str(number).encode())
                got = [int(event.payload) for event in await take(events, 60)]
                assert got == list(range(60))

        asyncio.run(main())

    def test_concurrent_publishes_of_one_bus_keep_the_order_they_were_called_in(self) -> None:
        async def main() -> None:
            async with (
                ensue.connect(self.url()) as bus,
                bus.subscribe("a", "b") as events,
            ):
                await asyncio.gather(
                    *(bus.publish("ab"[number % 2], str(number).encode()) for number in range(300))
                )
                got = [int(event.payload) for event in await take(events, 300)]
                assert got == list(range(300))

        asyncio.run(main())

    def test_everything_published_with_an_event_arrives_with_it(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url()) as bus, bus.subscribe("orders") as events:
                sent = await bus.publish("orders", b"42", key=b"k", headers={"h": "v"})
                (event,) = await take(events, 1)
                assert event.payload == b"42"
                assert event.key == b"k"
                assert event.headers == {"h": "v"}
                assert event.topic == "orders"
                assert event.publisher == bus.name
                assert event.id == sent.id
                assert event.position == 1
                assert event.verdict == ""

        asyncio.run(main())

    def test_added_topic_starts_with_new_events(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url()) as bus, bus.subscribe("a") as events:
                await bus.publish("b", b"too early")
                await events.subscribe("b", "c")
                await bus.publish("b", b"in time")
                await bus.publish("a", b"too")
                got = [event.payload for event in await take(events, 2)]
                assert got == [b"in time", b"too"]
                assert sorted(events.topics) == ["a", "b", "c"]

        asyncio.run(main())

    def test_topic_is_silent_after_unsubscribing(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url()) as bus, bus.subscribe("a", "b") as events:
                await bus.publish("a", b"unread")
                await events.unsubscribe("a")
                await bus.publish("a", b"unwanted")
                await bus.publish("b", b"wanted")
                (event,) = await take(events, 1)
                assert event.payload == b"wanted"

        asyncio.run(main())

    def test_a_cancelled_reader_loses_nothing(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url()) as bus, bus.subscribe("a") as events:
                reader = asyncio.create_task(anext(events))
                await asyncio.sleep(0)
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
                for number in range(3):
                    await bus.publish("a", str(number).encode())
                assert [event.payload for event in await take(events, 3)] == [b"0", b"1", b"2"]

        asyncio.run(main())

    def test_reading_ends_when_the_bus_is_closed(self) -> None:
        async def main() -> None:
            bus = ensue.connect(self.url())
            async with bus:
                events = bus.subscribe("a")
                await events.__aenter__()
                await bus.publish("a", b"last")
                got: asyncio.Queue[bytes] = asyncio.Queue()

                async def read() -> None:
                    async for event in events:
                        await got.put(event.payload)

                reader = asyncio.create_task(read())
                async with asyncio.timeout(30):
                    assert await got.get() == b"last"
            async with asyncio.timeout(30):
                await reader
            assert got.empty()

        asyncio.run(main())

    def test_closed_bus_refuses_calls(self) -> None:
        async def main() -> None:
            bus = ensue.connect(self.url())
            with pytest.raises(ensue.LocalProtocolError, match="not open"):
                await bus.publish("a", b"")
            async with bus:
                pass
            with pytest.raises(ensue.LocalProtocolError, match="not open"):
                await bus.publish("a", b"")
            with pytest.raises(ensue.LocalProtocolError, match="not open"):
                bus.subscribe("a")

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("topic", "payload", "complaint"),
        [
            ("", b"", "1 to 255 bytes"),
            ("x" * 256, b"", "1 to 255 bytes"),
            (7, b"", "a topic must be a str, got int"),
            ("a", "text", "payload must be bytes, got str: encode it"),
        ],
    )
    def test_bad_input_is_refused_in_words(
        self, topic: str, payload: bytes, complaint: str
    ) -> None:
        async def main() -> None:
            async with ensue.connect(self.url()) as bus:
                with pytest.raises(ensue.BadInput, match=complaint):
                    await bus.publish(topic, payload)

        asyncio.run(main())

    def test_unsupported_order_is_refused_by_name(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url()) as bus:
                with pytest.raises(
                    ensue.UnsupportedOrder, match="does not carry unheard"
                ) as caught:
                    bus.subscribe("a", order=Unheard())
                assert caught.value.order == "unheard"

        asyncio.run(main())
