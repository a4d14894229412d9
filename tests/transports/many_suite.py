"""Many events at once on every transport, in every order."""

import asyncio
from abc import ABC, abstractmethod
from itertools import count
from pathlib import Path

import pytest
from tests.transports.clocked_suite import MERGED

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.order import order_name

COUNT = 300
"""More than one part of `publish_many`."""
BATCH_MAX = 70

_numbers = count(1)


class ManySuite(ABC):
    """The behavior of `publish_many` and `batches` on every transport."""

    @abstractmethod
    def url(self) -> str:
        """Return the URL of a bus that no other test uses."""

    @pytest.mark.parametrize(
        "order",
        [ensue.Total(), ensue.Causal(), MERGED, ensue.Deadline(ms=60_000), None],
        ids=order_name,
    )
    def test_many_events_arrive_in_batches_in_their_sequence(
        self, order: ensue.Order | None, tmp_path: Path
    ) -> None:
        topics = [f"many-{next(_numbers)}" for _ in range(2)]
        payloads = [b"%d" % number for number in range(COUNT)]
        pairs = [(topics[number % 2], payload) for number, payload in enumerate(payloads)]

        async def main() -> None:
            async with (
                ensue.connect(self.url(), order=order, trace=str(tmp_path)) as bus,
                bus.subscribe(*topics) as events,
            ):
                publishing = asyncio.create_task(bus.publish_many(pairs))
                got: list[bytes] = []
                async with asyncio.timeout(60):
                    async for batch in events.batches(max=BATCH_MAX):
                        assert 1 <= len(batch) <= BATCH_MAX
                        got += [event.payload for event in batch]
                        assert events.pending >= len(batch)
                        if len(got) == COUNT:
                            break
                    published = await publishing
                assert [(event.topic, event.payload) for event in published] == pairs
                assert len({event.id for event in published}) == COUNT
                assert bus.unsettled == 0
                if order is None:
                    got.sort(key=int)
                assert got == payloads
                (later,) = await bus.publish_many([(topics[0], b"later")], receipt=False)
                await bus.flush()
                assert (await anext(events)).id == later.id

        asyncio.run(main())
        rows = trace.read(tmp_path)
        actions = [row.action for row in rows]
        assert [actions.count(each) for each in ("submitted", "delivered")] == [COUNT + 1] * 2
        if order is not None:
            report = check(rows, order.label)
            assert report.verdict is Verdict.VALID, report.sentences()
