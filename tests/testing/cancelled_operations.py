"""Operations on topics: buses, publishing, reading, handlers and durable subscriptions."""

import asyncio
from typing import Any

from tests.testing.cancelled import END, Client

import ensue


async def connect(client: Client) -> None:
    """After entering a bus its name is free again."""
    for cut in client.cuts():
        bus = client.connect("same")
        attempt = await cut(bus.__aenter__())
        if not attempt.cancelled:
            await bus.close()
            client.closes(bus)
        async with client.bus("same") as again, again.subscribe("t") as events:
            await client.soon("publishing", again.publish("t", END))
            client.expect("a new bus got", await client.to_end(events), [])


async def close(client: Client) -> None:
    """Closing disconnects, with events without a receipt and open subscriptions."""
    async with client.bus() as reader, reader.subscribe("t") as events:
        owed, got = [], []
        for cut in client.cuts(client.leaving_manners):
            bus = client.connect("same")
            await client.soon("entering", bus.__aenter__())
            await client.soon("subscribing", bus.subscribe("t").__aenter__())
            await bus.publish("t", cut.label.encode(), receipt=False)
            attempt = await cut(bus.close())
            client.closes(bus, cut)
            if "closed" not in repr(bus):
                client.wrong(f"it is not closed: {bus!r}")
            await client.soon("closing again", bus.close())
            await client.soon("publishing", reader.publish("t", END))
            got += await client.to_end(events)
            owed += [] if attempt.cancelled else [cut.label.encode()]
        # An event in doubt may come late.
        if len(set(got)) < len(got) or not set(owed) <= set(got):
            client.wrong(f"its reader got {got}, owed were {owed}")


async def leave_block(client: Client) -> None:
    """A task that is cancelled anywhere in its blocks leaves nothing."""

    async def work(bus: ensue.Bus) -> None:
        async with bus, bus.subscribe("t", "u") as events:
            await bus.publish("t", b"one")
            await anext(events)
            await events.unsubscribe("u")
            await bus.publish("t", b"two", receipt=False)

    for cut in client.cuts(client.leaving_manners):
        bus = client.connect("same")
        await cut(work(bus))
        client.closes(bus, cut)
        async with client.bus("same") as again, again.subscribe("t") as events:
            await client.soon("publishing", again.publish("t", END))
            for each in await client.to_end(events):
                client.expect("a new bus got", each, b"two")


async def publish(client: Client) -> None:
    """An event is published once or not at all, and once if there is a receipt."""
    async with client.bus() as bus, client.bus() as other, other.subscribe("t") as events:
        for cut in client.cuts():
            sent = cut.label.encode()
            attempt = await cut(bus.publish("t", sent))
            await client.soon("publishing", bus.publish("t", END))
            got = await client.to_end(events)
            client.expect("got", got, [sent], *([[]] if attempt.cancelled else []))
            client.expect("events without a receipt", bus.unsettled, 0)


async def publish_many(client: Client) -> None:
    """The first events are published, or all; each once and in sequence."""
    async with client.bus() as bus, client.bus() as other, other.subscribe("t", "u") as events:
        for cut in client.cuts():
            sent = [f"{cut.label} {number}".encode() for number in range(200)]
            pairs = [(("t", "u")[number % 2], each) for number, each in enumerate(sent)]
            attempt = await cut(bus.publish_many(pairs))
            await client.soon("publishing", bus.publish_many([("t", END)]))
            got = await client.to_end(events)
            if got != sent[: len(got)] or (len(got) < len(sent) and not attempt.cancelled):
                client.wrong(f"published {len(sent)} events, got {len(got)}: {got[:3]}, …")
            client.expect("events without a receipt", bus.unsettled, 0)


async def flush(client: Client) -> None:
    """Waiting for receipts changes nothing."""
    async with client.bus() as bus, client.bus() as other, other.subscribe("t") as events:
        for cut in client.cuts():
            sent = cut.label.encode()
            await bus.publish("t", sent, receipt=False)
            await cut(bus.flush())
            await client.soon("publishing", bus.publish("t", END))
            client.expect("got", await client.to_end(events), [sent])


async def subscribe(client: Client) -> None:
    """A subscription that was not entered holds nobody up; another one takes its place."""
    async with client.bus() as bus, client.bus() as other:
        for cut in client.cuts():
            events = bus.subscribe("t", "u", name="same", pending_max=2)
            attempt = await cut(events.__aenter__())
            if attempt.cancelled and not events.closed:
                client.wrong("it is open although entering it was cancelled")
            if not attempt.cancelled:
                await client.soon("leaving", events.__aexit__(None, None, None))
            async with bus.subscribe("t", "u", name="same") as again:
                for number in range(5):
                    await client.soon("publishing", other.publish("u", b"%d" % number))
                await client.soon("publishing", other.publish("t", END))
                got = await client.to_end(again)
                client.expect("got", got, [b"0", b"1", b"2", b"3", b"4"])


async def change_topics(client: Client) -> None:
    """Topics that were being joined can be left and joined; others go on."""
    async with client.bus() as bus, client.bus() as other, bus.subscribe("t") as events:
        for cut in client.cuts():
            attempt = await cut(events.subscribe("u"))
            if not attempt.cancelled:
                client.expect("topics", set(events.topics), {"t", "u"})
            await client.soon("joining", events.subscribe("u"))
            await client.soon("publishing", other.publish("u", b"got"))
            await client.soon("leaving", events.unsubscribe("u"))
            await client.soon("joining", events.subscribe("u"))
            await client.soon("publishing", other.publish("u", b"last"))
            await client.soon("publishing", other.publish("t", END))
            got = await client.to_end(events)
            client.expect("got", got, [b"got", b"last"], [b"last"])
            await client.soon("leaving", events.unsubscribe("u"))


async def read_next(client: Client) -> None:
    """No event is lost or comes twice."""
    async with client.bus() as bus, client.bus() as other, bus.subscribe("t") as events:
        for cut in client.cuts():
            sent = cut.label.encode()
            publishing = asyncio.create_task(other.publish("t", sent))
            attempt = await cut(anext(events))
            await client.soon("publishing", publishing)
            await client.soon("publishing", other.publish("t", END))
            got = [] if attempt.result is None else [attempt.result.payload]
            client.expect("got", got + await client.to_end(events), [sent])
            client.expect("unread events", events.waiting, 0)


async def read_batch(client: Client) -> None:
    """No batch is lost or comes twice."""
    async with client.bus() as bus, client.bus() as other, bus.subscribe("t") as events:
        batches = events.batches()
        for cut in client.cuts():
            sent = [cut.label.encode(), b"second"]
            publishing = asyncio.create_task(other.publish_many([("t", each) for each in sent]))
            attempt = await cut(anext(batches))
            await client.soon("publishing", publishing)
            await client.soon("publishing", other.publish("t", END))
            got = [each.payload for each in attempt.result or ()]
            while END not in got:
                got += [each.payload for each in await client.soon("a batch", anext(batches))]
            client.expect("got", got, [*sent, END])


async def handle(client: Client) -> None:
    """Each event is handled to the end once, in sequence."""
    async with client.bus() as bus, client.bus() as other:
        for cut in client.cuts():
            async with bus.subscribe("t") as events:
                sent = [b"%d" % number for number in range(3)]
                await other.publish_many([("t", each) for each in (*sent, END)])
                await _until_waiting(events, len(sent) + 1)
                done: list[bytes] = []

                async def handler(event: ensue.ReceivedEvent) -> None:
                    await asyncio.sleep(0.001)
                    done.append(event.payload)  # noqa: B023 - of this turn
                    if event.payload == END:
                        events.close()

                attempt = await cut(_run(events, handler))
                if attempt.cancelled and not events.closed:
                    await client.soon("another run", events.run(handler))
                client.expect("handled", done, [*sent, END])


async def handle_by_key(client: Client) -> None:
    """Each event is handled to the end once, also by handlers in parallel."""
    async with client.bus() as bus, client.bus() as other:
        for cut in client.cuts():
            async with bus.subscribe("t") as events:
                sent = [b"%d" % number for number in range(6)]
                await other.publish_many([("t", each, each) for each in sent])
                await _until_waiting(events, len(sent))
                done: list[bytes] = []

                async def handler(event: ensue.ReceivedEvent) -> None:
                    await asyncio.sleep(0.001 * (1 + int(event.payload) % 3))
                    done.append(event.payload)  # noqa: B023 - of this turn
                    if len(done) == len(sent):  # noqa: B023 - of this turn
                        events.close()

                concurrency = ensue.PerKey(3)
                attempt = await cut(_run(events, handler, concurrency=concurrency))
                if attempt.cancelled and not events.closed:
                    await client.soon("another run", events.run(handler, concurrency=concurrency))
                client.expect("handled", sorted(done), sent)


async def _until_waiting(events: ensue.Subscription, number: int) -> None:
    while events.waiting < number:  # noqa: ASYNC110 - a subscription has no such event
        await asyncio.sleep(0.01)


async def _run(events: ensue.Subscription, handler: Any, **options: Any) -> None:
    """Run a handler; suspend as often as its handlers may have."""
    running = asyncio.create_task(events.run(handler, **options))
    try:
        while not running.done():  # noqa: ASYNC110 - a suspension each
            await asyncio.sleep(0.0003)
    finally:
        running.cancel()
        await asyncio.wait([running])


# -- Durable subscriptions ---------------------------------------------------------------------


async def durable_ack(client: Client) -> None:
    """An acknowledgement that returned is never undone; others may be or not."""
    async with client.bus() as bus, client.bus() as other:
        options = {"name": "kept", "durable": True, "acknowledge": "manual"}
        for cut in client.cuts():
            async with bus.subscribe("t", **options) as events:  # type: ignore[arg-type]
                await other.publish_many([("t", b"one"), ("t", b"two")])
                first = await client.soon("an event", anext(events))
                attempt = await cut(first.ack())
            async with bus.subscribe("t", **options) as events:  # type: ignore[arg-type]
                await other.publish("t", END)
                got = []
                async for event in events:
                    got.append(event.payload)
                    await client.soon("acknowledging", event.ack())
                    if event.payload == END:
                        break
                both = [b"one", b"two", END]
                client.expect("got", got, both[1:], *([both] if attempt.cancelled else []))


async def durable_enter(client: Client) -> None:
    """Whether entering is cancelled or not, it has what it had."""
    async with client.bus() as bus, client.bus() as other:
        for cut in client.cuts():
            events = bus.subscribe("t", name=f"kept {cut.label}", durable=True)
            attempt = await cut(events.__aenter__())
            if not attempt.cancelled:
                await client.soon("leaving", events.__aexit__(None, None, None))
            elif not events.closed:
                client.wrong("it is open although entering it was cancelled")
            async with bus.subscribe("t", name=f"kept {cut.label}", durable=True) as again:
                await client.soon("publishing", other.publish("t", END))
                client.expect("got", await client.to_end(again), [])
                await client.soon("forgetting", again.forget())


async def durable_enter_again(client: Client) -> None:
    """Events that came in between are there, whether entering was cancelled or not."""
    async with client.bus() as bus, client.bus() as other:
        for cut in client.cuts():
            name = f"kept {cut.label}"
            async with bus.subscribe("t", name=name, durable=True):
                pass
            await client.soon("publishing", other.publish("t", b"owed"))
            events = bus.subscribe("t", name=name, durable=True)
            attempt = await cut(events.__aenter__())
            if not attempt.cancelled:
                await client.soon("leaving", events.__aexit__(asyncio.CancelledError, None, None))
            async with bus.subscribe("t", name=name, durable=True) as again:
                await client.soon("publishing", other.publish("t", END))
                client.expect("got", await client.to_end(again), [b"owed"])
                await client.soon("forgetting", again.forget())


async def durable_close(client: Client) -> None:
    """What was handled and acknowledged before leaving does not come again."""
    async with client.bus() as bus, client.bus() as other:
        for cut in client.cuts():
            events = bus.subscribe("t", name="kept", durable=True)
            await client.soon("entering", events.__aenter__())
            await other.publish_many([("t", b"one"), ("t", b"two"), ("t", b"three")])
            first = await client.soon("an event", anext(events))
            await client.soon("acknowledging", first.ack())
            await client.soon("an event", anext(events))
            attempt = await cut(events.__aexit__(None, None, None))
            if not events.closed:
                client.wrong("it is not closed")
            async with bus.subscribe("t", name="kept", durable=True) as again:
                await client.soon("publishing", other.publish("t", END))
                got = await client.to_end(again)
                rest = [b"two", b"three"]
                client.expect("got", got, rest[1:], *([rest] if attempt.cancelled else []))


async def durable_forget(client: Client) -> None:
    """It is forgotten or it goes on; then it can be forgotten."""
    async with client.bus() as bus, client.bus() as other:
        for cut in client.cuts():
            name = f"forgotten {cut.label}"
            events = bus.subscribe("t", name=name, durable=True)
            await client.soon("entering", events.__aenter__())
            await client.soon("publishing", other.publish("t", b"unread"))
            attempt = await cut(events.forget())
            await client.soon("leaving", events.__aexit__(asyncio.CancelledError, None, None))
            async with bus.subscribe("t", name=name, durable=True) as again:
                await client.soon("publishing", other.publish("t", END))
                got = await client.to_end(again)
                client.expect("got", got, [], *([[b"unread"]] if attempt.cancelled else []))
                await client.soon("forgetting", again.forget())
