"""Content, transactions, cells and durable subscriptions on `memory://`, within one process.

Nothing fails here but the process itself, so everything is owed:

- subscribers get the events that match their filters, in the sequence of each publisher;
- a subscription that moves within a transaction misses nothing, and gets nothing twice; a
  transaction that is undone leaves nothing behind;
- a durable subscription has the events that came while it had no reader, as long as a bus that uses
  content is open; forgotten, it is made anew;
- with cells, subscriptions whose filters overlap get their common events in one order.
"""

import asyncio
from collections.abc import Sequence
from random import Random

import ensue
from ensue.checkers.content_filters import matches
from ensue.core.errors import TransactionAborted
from ensue.testing.swarm.content_caller import UndoError, undo_if

__all__ = ["MemoryContent"]

ANSWER_S = 45.0
"""How long an answer takes at most: a process may be suspended."""
COUNT = 20
"""Events of each publisher."""
SYMBOLS = ("a", "b", "c")
CELLS = ("symbol/4", "symbol='a','b';price<10", "price/3")
FILTERS = ("symbol = 'a'", "symbol in ('a', 'b')", "price >= 10", "symbol exists")
TOTAL = ensue.Total()
Attributes = dict[str, bool | int | float | str]


class MemoryContent:
    """Buses within one process that use content."""

    def __init__(self, random: Random, problems: list[str]) -> None:
        self._random, self._problems = random, problems

    async def run(self) -> None:
        """Use content with brokers, and with cells."""
        random = self._random
        for brokers in (1, random.choice((2, 3, 5))):
            url = f"memory://inside?brokers={brokers}&jitter_ms={random.choice((0, 5))}"
            async with (
                ensue.connect(url, order=None, name="inside-1") as one,
                ensue.connect(url, order=None, name="inside-2") as two,
                ensue.connect(url, order=None, name="inside-3") as three,
            ):
                await self._match((one, two), three)
                await self._move(one, two, three)
                await self._plan(one, two)
                await self._keep(one, two)
        await self._divide()

    async def _read(self, events: ensue.Subscription, count: int) -> list[ensue.ReceivedEvent]:
        """Return the next events, all of which are owed."""
        got: list[ensue.ReceivedEvent] = []
        try:
            async with asyncio.timeout(ANSWER_S):
                while len(got) < count:
                    got.append(await anext(events))
        except (TimeoutError, StopAsyncIteration) as error:
            self._problems.append(
                f"inside: {events.name} got {len(got)} of {count} events: {error!r}"
            )
        return got

    async def _expect(self, events: ensue.Subscription, *payloads: bytes) -> None:
        got = [event.payload for event in await self._read(events, len(payloads))]
        if got != [*payloads]:
            self._problems.append(f"inside: {events.name} got {got}, expected {[*payloads]}")

    async def _expect_end(self, events: ensue.Subscription) -> None:
        """Check that a subscription ends without another event."""
        try:
            async with asyncio.timeout(ANSWER_S):
                got = [event.payload async for event in events]
        except TimeoutError:
            self._problems.append(f"inside: {events.name} does not end")
        else:
            if got:
                self._problems.append(f"inside: {events.name} ended behind {got}")

    # -- With brokers -----------------------------------------------------------------------------

    async def _match(self, publishers: Sequence[ensue.Bus], reader: ensue.Bus) -> None:
        """Publish from two buses: filters get what matches."""
        wanted = range(3)
        for bus in publishers:
            await bus.advertise(where="m exists")
        async with (
            reader.subscribe(where="m < 3") as low,
            publishers[0].subscribe(where="m >= 3") as high,
        ):
            sent: list[tuple[str, int, bytes]] = []

            async def publish(bus: ensue.Bus) -> None:
                for number in range(COUNT):
                    value = self._random.randrange(6)
                    sent.append((bus.name, value, b"%d" % number))
                    await bus.publish({"m": value}, b"%d" % number)

            await asyncio.gather(*map(publish, publishers))
            for events, is_low in ((low, True), (high, False)):
                owed = [each for each in sent if (each[1] in wanted) is is_low]
                got = await self._read(events, len(owed))
                for bus in publishers:
                    expected = [payload for name, _, payload in owed if name == bus.name]
                    found = [event.payload for event in got if event.publisher == bus.name]
                    if found != expected:
                        self._problems.append(
                            f"inside: {events.name} got {found} of {bus.name}, expected {expected}"
                        )

    async def _move(self, one: ensue.Bus, two: ensue.Bus, three: ensue.Bus) -> None:
        """Move a subscription to an invited client, twice: undone, and committed."""
        random, taken = self._random, []
        name = await three.advertise(where="n exists")

        async def take(tx: ensue.InvitedTransaction) -> None:
            if tx.payload != b"take it":
                self._problems.append(f"inside: an invitation has the payload {tx.payload!r}")
            taken.append(await tx.subscribe("n exists", name="taken", pending_max=50))

        await two.on_invitation(take)
        async with one.subscribe(where="n exists") as own:
            for number, undone in enumerate((True, False)):
                await three.publish({"n": number}, b"before %d" % number)
                isolation = random.choice(("serializable", "atomic"))
                try:
                    async with one.transaction(isolation=isolation, timeout=ANSWER_S) as tx:
                        await tx.unsubscribe(own)
                        await tx.invite(two.name, {"n": number}, b"take it")
                        undo_if(undone)
                except UndoError:
                    await self._expect_end(taken.pop())
                await three.publish({"n": number}, b"after %d" % number)
            await self._expect(own, b"before 0", b"after 0", b"before 1")
            await self._expect_end(own)
        (moved,) = taken
        if (moved.name, moved.pending_max) != ("taken", 50):
            self._problems.append(f"inside: {moved.name} has other options")
        await self._expect(moved, b"after 1")
        moved.close()
        await three.unadvertise(name)

    async def _plan(self, one: ensue.Bus, two: ensue.Bus) -> None:
        """Plan for another bus, drop a plan, and commit one before its block ends."""
        given: asyncio.Future[ensue.Subscription] = asyncio.get_running_loop().create_future()

        async def take(events: ensue.Subscription) -> None:
            given.set_result(events)

        await two.on_subscription(take)
        for drops in (True, False):
            try:
                async with one.transaction(isolation="planned", timeout=ANSWER_S) as plan:
                    other = plan.client(two.name)
                    await other.advertise("o exists")
                    await other.subscribe("o exists")
                    own = await plan.subscribe("o exists")
                    await other.publish({"o": int(drops)}, b"dropped" if drops else b"planned")
                    await (plan.abort() if drops else plan.commit())
            except TransactionAborted as error:
                self._problems.append(f"inside: a plan was aborted: {error}")
                return
            if drops:
                await self._expect_end(own)
        await self._expect(own, b"planned")
        async with asyncio.timeout(ANSWER_S):
            await self._expect(await given, b"planned")
        own.close()
        given.result().close()

    async def _keep(self, one: ensue.Bus, two: ensue.Bus) -> None:
        """Read a durable subscription from two buses in turn, and forget it."""

        def kept(bus: ensue.Bus) -> ensue.Subscription:
            return bus.subscribe(where="k exists", name="kept", durable=True)

        name = await one.advertise(where="k exists")
        async with kept(two):
            pass
        for payload in (b"first", b"second", b"third"):
            await one.publish({"k": 1}, payload)
        async with kept(two) as events:
            await self._expect(events, b"first")
        async with kept(one) as events:
            await self._expect(events, b"second")
            await events.forget()
        async with kept(two) as events:
            await one.publish({"k": 1}, b"anew")
            await self._expect(events, b"anew")
            await events.forget()
        await one.unadvertise(name)

    # -- With cells -------------------------------------------------------------------------------

    async def _divide(self) -> None:
        """Publish by content in total order, and compare what filters get."""
        random = self._random
        url = f"memory://divided?nodes={random.choice((1, 2, 3))}&jitter_ms=5"
        url += f"&cells={random.choice(CELLS)}"
        filters = random.sample(FILTERS, 3)
        async with (
            ensue.connect(url, order=TOTAL, name="divided-1") as one,
            ensue.connect(url, order=TOTAL, name="divided-2") as two,
            one.subscribe(where=filters[0], order=TOTAL) as first,
            two.subscribe(where=filters[1], order=TOTAL) as second,
            two.subscribe(where=filters[2], order=TOTAL, pending_max=2) as third,
        ):
            sent: dict[str, Attributes] = {}

            async def publish(bus: ensue.Bus) -> None:
                for _ in range(COUNT):
                    attributes: Attributes = {
                        "symbol": random.choice(SYMBOLS),
                        "price": random.randrange(20),
                    }
                    event = await bus.publish(attributes, order=TOTAL)
                    sent[event.id] = attributes

            async def read(events: ensue.Subscription) -> list[str]:
                return [event.id async for event in events]

            readers = [asyncio.create_task(read(each)) for each in (first, second, third)]
            await asyncio.gather(publish(one), publish(two))
            await asyncio.sleep(1.0)
            for each in (first, second, third):
                each.close()
            got = await asyncio.gather(*readers)
        self._compare(filters, got, sent)

    def _compare(
        self, filters: Sequence[str], got: Sequence[list[str]], sent: dict[str, Attributes]
    ) -> None:
        for where, found in zip(filters, got, strict=True):
            owed = {each for each, attributes in sent.items() if matches(where, attributes)}
            if len(found) != len(owed) or {*found} != owed:
                self._problems.append(
                    f"inside: {where} got {len(found)} events of {len(owed)} in total order"
                )
        for number, one in enumerate(got):
            for other in got[:number]:
                common = {*one}.intersection(other)
                if [each for each in one if each in common] != [
                    each for each in other if each in common
                ]:
                    self._problems.append("inside: two filters got events in different orders")
