"""Causal order between processes: clients exchange events through stations."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from tests.brokers.deadlines import until
from tests.transports.suite import take

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace

CAUSAL = ensue.Causal()


class CausalSuite(ABC):
    """The behavior of causal order on every transport with stations."""

    @abstractmethod
    def url(self) -> str:
        """Return the URL for clients."""

    def test_in_causal_order_no_answer_precedes_its_question(self, tmp_path: Path) -> None:
        names = ("ada", "bob", "eve")

        async def main() -> list[str]:
            async with AsyncExitStack() as stack:
                ada, bob, eve = [
                    await stack.enter_async_context(
                        ensue.connect(
                            self.url(), order=CAUSAL, name=name, trace=str(tmp_path / name)
                        )
                    )
                    for name in names
                ]
                asked = await stack.enter_async_context(bob.subscribe("c-questions"))
                heard = await stack.enter_async_context(eve.subscribe("c-questions", "c-answers"))

                async def answer() -> None:
                    for _ in range(15):
                        (question,) = await take(asked, 1)
                        text = b"to " + question.payload
                        await bob.publish("c-answers", text, receipt=False)

                answering = asyncio.create_task(answer())
                for number in range(15):
                    await ada.publish("c-questions", b"%d" % number, receipt=number % 2 == 0)
                found = [event.payload.decode() for event in await take(heard, 30)]
                await answering
                for bus in (ada, bob):
                    await bus.flush()
                return found

        found = asyncio.run(main())
        for index, text in enumerate(found):
            if text.startswith("to "):
                assert text.removeprefix("to ") in found[:index]
        assert [text for text in found if not text.startswith("to ")] == [str(n) for n in range(15)]
        report = check(trace.read(tmp_path), order="causal")
        assert report.verdict is Verdict.VALID, report.sentences()

    def test_causal_order_delivers_everything_during_churn(self) -> None:
        async def main() -> None:
            random = Random(5)
            async with AsyncExitStack() as stack:
                stays = [
                    await stack.enter_async_context(ensue.connect(self.url(), order=CAUSAL))
                    for _ in range(3)
                ]
                heard = [
                    await stack.enter_async_context(bus.subscribe("c-coming")) for bus in stays
                ]
                wanted = []
                for number in range(5):
                    # A publisher that leaves as soon as it has its receipt.
                    async with ensue.connect(self.url(), order=CAUSAL) as guest:
                        event = await guest.publish("c-coming", b"guest %d" % number)
                        wanted.append(event.id)
                    event = await random.choice(stays).publish("c-coming", b"%d" % number)
                    wanted.append(event.id)
                for events in heard:
                    got = [event.id for event in await take(events, 10)]
                    assert sorted(got) == sorted(wanted)
                    # Each was published after all clients had received the previous one.
                    assert [each for each in got if each in wanted[1::2]] == wanted[1::2]

        asyncio.run(main())

    def test_causal_subscriptions_come_and_go_without_leftovers(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url(), order=CAUSAL) as bus:
                async with bus.subscribe("c-a") as events, bus.subscribe("c-a", "c-b") as more:
                    await bus.publish("c-a", b"1")
                    await events.unsubscribe("c-a")
                    await bus.publish("c-a", b"2")
                    await events.subscribe("c-b")
                    await bus.publish("c-b", b"3", key=b"k", headers={"h": "v"})
                    got = await take(events, 1)
                    assert [each.payload for each in got] == [b"3"], (
                        "of what it left nothing is left"
                    )
                    assert (got[0].key, got[0].headers) == (b"k", {"h": "v"})
                    assert [each.payload for each in await take(more, 3)] == [b"1", b"2", b"3"]
                with pytest.raises(ensue.ConfigurationError, match="no positions"):
                    bus.subscribe("c-a", name="x", durable=True)
                with pytest.raises(ensue.ConfigurationError, match="keeps no log"):
                    bus.subscribe("c-a", start="earliest")
                with pytest.raises(ensue.UnsupportedOrder, match="causal order"):
                    bus.subscribe("c-a", order=ensue.Total())

        asyncio.run(main())

    def test_causal_order_within_topics_is_separate(self, tmp_path: Path) -> None:
        async def main() -> None:
            within = ensue.Causal(across_topics=False)
            async with (
                ensue.connect(self.url(), order=within, trace=str(tmp_path / "within")) as one,
                ensue.connect(self.url(), order=within) as other,
                ensue.connect(self.url(), order=CAUSAL) as stranger,
                other.subscribe("c-shared") as events,
                stranger.subscribe("c-shared") as elsewhere,
            ):
                await one.publish("c-shared", b"within")
                await stranger.publish("c-shared", b"across")
                assert [each.payload for each in await take(events, 1)] == [b"within"]
                assert [each.payload for each in await take(elsewhere, 1)] == [b"across"]

        asyncio.run(main())
        assert {row.order for row in trace.read(tmp_path / "within")} == {"causal-topic"}

    def test_slow_reader_in_causal_order_delays_no_other_and_misses_nothing(self) -> None:
        async def main() -> None:
            async with (
                ensue.connect(self.url(), order=CAUSAL) as bus,
                ensue.connect(self.url(), order=CAUSAL) as other,
                bus.subscribe("c-slow") as quick,
                other.subscribe("c-slow", pending_max=10) as slow,
            ):
                for number in range(1_000):
                    await bus.publish("c-slow", b"%d" % number, receipt=False)
                async with asyncio.timeout(60):
                    await bus.flush()
                got = [int(event.payload) for event in await take(quick, 1_000)]
                assert got == list(range(1_000))
                await until(lambda: slow.held_back > 0, "what comes is held")
                assert slow.pending < 1_000
                late = [int(event.payload) for event in await take(slow, 1_000)]
                assert late == got

        asyncio.run(main())

    def test_large_events_travel_in_causal_order(self) -> None:
        async def main() -> None:
            async with (
                ensue.connect(self.url(), order=CAUSAL) as bus,
                ensue.connect(self.url(), order=CAUSAL) as other,
                other.subscribe("c-large") as events,
            ):
                assert bus._hub is not None
                most = bus._hub.payload_bytes_max
                with pytest.raises(ensue.BadInput, match=f"at most {most} bytes here"):
                    await bus.publish("c-large", bytes(most + 1))
                sizes = [min(most, 700_000), 10, *[100_000] * 20, min(most, 700_000), 1]
                for size in sizes:
                    await bus.publish("c-large", bytes(size), receipt=False)
                got = await take(events, len(sizes))
                assert [len(event.payload) for event in got] == sizes

        asyncio.run(main())
