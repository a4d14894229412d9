"""Deadline order between processes: causal and on time, or dropped."""

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.brokers.deadlines import until
from tests.transports.suite import take

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.protocols.deadline.delivery import DeadlineCounts

LONG = ensue.Deadline(ms=5_000)
"""Longer than any delivery here, also on a busy machine."""


def counts_of(events: ensue.Subscription) -> DeadlineCounts:
    counts = events.counts
    assert isinstance(counts, DeadlineCounts)
    return counts


class DeadlineSuite(ABC):
    """The behavior of deadline order on every transport with stations."""

    @abstractmethod
    def url(self) -> str:
        """Return the URL for clients."""

    def test_with_deadlines_no_answer_precedes_its_question(self, tmp_path: Path) -> None:
        async def main() -> list[str]:
            async with AsyncExitStack() as stack:
                ada, bob, eve = [
                    await stack.enter_async_context(
                        ensue.connect(self.url(), order=LONG, name=name, trace=str(tmp_path / name))
                    )
                    for name in ("ada", "bob", "eve")
                ]
                asked = await stack.enter_async_context(bob.subscribe("d-questions"))
                heard = await stack.enter_async_context(eve.subscribe("d-questions", "d-answers"))

                async def answer() -> None:
                    for _ in range(15):
                        (question,) = await take(asked, 1)
                        text = b"to " + question.payload
                        await bob.publish("d-answers", text, receipt=False)

                answering = asyncio.create_task(answer())
                for number in range(15):
                    await ada.publish("d-questions", b"%d" % number, receipt=number % 2 == 0)
                found = [event.payload.decode() for event in await take(heard, 30)]
                await answering
                assert counts_of(heard).delivered == 30
                return found

        found = asyncio.run(main())
        for index, text in enumerate(found):
            if text.startswith("to "):
                assert text.removeprefix("to ") in found[:index]
        assert [text for text in found if not text.startswith("to ")] == [str(n) for n in range(15)]
        rows = trace.read(tmp_path)
        assert {row.order for row in rows} == {"deadline"}
        assert all(row.deadline_ns for row in rows if row.action in ("received", "delivered"))
        report = check(rows, order="deadline")
        assert report.verdict is Verdict.VALID, report.sentences()

    def test_with_deadlines_clients_come_and_go(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url(), order=LONG) as stays:
                async with stays.subscribe("d-coming") as heard:
                    for number in range(4):
                        async with ensue.connect(self.url(), order=LONG) as guest:
                            if number % 2:
                                async with guest.subscribe("d-coming") as own:
                                    await guest.publish("d-coming", b"%d" % number)
                                    assert [each.payload for each in await take(own, 1)] == [
                                        b"%d" % number
                                    ]
                            else:
                                # It leaves as soon as it has its receipt.
                                await guest.publish(
                                    "d-coming", b"%d" % number, key=b"k", headers={"h": "v"}
                                )
                        (event,) = await take(heard, 1)
                        assert event.payload == b"%d" % number
                        assert event.key == (None if number % 2 else b"k")
                    await heard.unsubscribe("d-coming")
                    await stays.publish("d-coming", b"unheard")
                    assert heard.waiting == 0
                with pytest.raises(ensue.ConfigurationError, match="no positions"):
                    stays.subscribe("d-coming", name="x", durable=True)
                with pytest.raises(ensue.UnsupportedOrder, match="lifetime of 5000 ms"):
                    stays.subscribe("d-coming", order=ensue.Deadline(ms=1))
                with pytest.raises(
                    ensue.AccessDenied,
                    match="have deadlines of 5000 ms, this one has deadlines of 7",
                ):
                    async with ensue.connect(self.url(), order=ensue.Deadline(ms=7)):
                        pass

        asyncio.run(main())

    def test_event_after_its_deadline_is_dropped_or_tagged(self, tmp_path: Path) -> None:
        order = ensue.Deadline(ms=100)

        async def main() -> None:
            async with (
                ensue.connect(self.url(), order=order, trace=str(tmp_path / "one")) as one,
                ensue.connect(self.url(), order=order, trace=str(tmp_path / "other")) as other,
            ):
                # There is no subscriber yet: on a busy machine it may be in time or not.
                await one.publish("d-late", b"granted")
                tagged = ensue.Deadline(ms=100, on_late="tag")
                async with (
                    other.subscribe("d-late") as dropping,
                    other.subscribe("d-late", order=tagged) as tagging,
                ):
                    for number in range(5):
                        # It is sent only after this process has blocked.
                        await one.publish("d-late", b"%d" % number, receipt=False)
                        time.sleep(0.15)  # noqa: ASYNC251 - blocks the event loop on purpose
                    got = await take(tagging, 5)
                    assert [(each.payload, each.verdict) for each in got] == [
                        (b"%d" % number, "late") for number in range(5)
                    ]
                    assert counts_of(dropping).late == 5
                    assert dropping.waiting == 0

        asyncio.run(main())
        rows = trace.read(tmp_path)
        assert sum(row.verdict == "late" for row in rows) >= 10
        report = check(rows, order="deadline", lossy=True)
        assert report.verdict is Verdict.VALID, report.sentences()

    def test_slow_reader_with_deadlines_delays_no_other_and_counts_losses(self) -> None:
        order = ensue.Deadline(ms=1_000, on_late="tag")

        async def main() -> None:
            async with (
                ensue.connect(self.url(), order=order) as bus,
                ensue.connect(self.url(), order=order) as other,
                bus.subscribe("d-slow") as quick,
                other.subscribe("d-slow", pending_max=10) as slow,
            ):
                for number in range(300):
                    await bus.publish("d-slow", b"%d" % number)
                    await asyncio.sleep(0)
                assert [int(event.payload) for event in await take(quick, 300)] == list(range(300))
                counts = counts_of(slow)
                await until(
                    lambda: counts.delivered + counts.overflow + counts.late == 300,
                    "all of them are delivered, or dropped",
                )
                assert counts.overflow > 0
                # The events before it had no room, without a gap, read too late. It continues then.
                kept = counts.delivered
                got = [(int(event.payload), event.verdict) for event in await take(slow, kept)]
                assert got == [(number, "late") for number in range(kept)]
                assert counts.delivered == 0
                await bus.publish("d-slow", b"after")
                while (await take(slow, 1))[0].payload != b"after":
                    pass

        asyncio.run(main())
