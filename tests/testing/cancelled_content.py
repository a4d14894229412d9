"""Operations by content: events, subscriptions, transactions, invitations, mailboxes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.testing.cancelled import END, Client, Operation

import ensue
from ensue.testing import Attempt

WHERE = "x exists"
TIMEOUT_S = 4.0
"""Of transactions: longer than anything that follows a cancelled one takes."""


@asynccontextmanager
async def parties(client: Client) -> AsyncIterator[tuple[ensue.Bus, ensue.Bus, Any]]:
    """Enter a bus, another one, and a subscription of that; both have advertised everything."""
    async with client.bus() as bus, client.bus() as other:
        await bus.advertise(where=WHERE)
        await other.advertise(where=WHERE)
        async with other.subscribe(where=WHERE) as events:
            yield bus, other, events


async def mark(client: Client, bus: ensue.Bus, events: ensue.Subscription) -> list[bytes]:
    """Publish the end; return what came before it."""
    await client.soon("publishing", bus.publish({"x": 0}, END))
    return await client.to_end(events)


async def publish(client: Client) -> None:
    """An event is published once or not at all, and once if there is a receipt."""
    async with parties(client) as (bus, _, events):
        for cut in client.cuts():
            attempt = await cut(bus.publish({"x": 1}, b"sent"))
            got = await mark(client, bus, events)
            client.expect("got", got, [b"sent"], *([[]] if attempt.cancelled else []))
            client.expect("events without a receipt", bus.unsettled, 0)


async def publish_first(client: Client) -> None:
    """A bus whose first use of content is cancelled can be used again."""
    async with client.bus() as other:
        await other.advertise(where=WHERE)
        async with other.subscribe(where=WHERE) as events:
            for cut in client.cuts():
                async with client.bus("same") as bus:
                    attempt = await cut(bus.advertise(where=WHERE))
                    if attempt.cancelled:
                        await client.soon("advertising", bus.advertise(where=WHERE))
                    await client.soon("publishing", bus.publish({"x": 1}, b"sent"))
                client.expect("got", await mark(client, other, events), [b"sent"])


async def subscribe(client: Client) -> None:
    """A subscription that was not entered gets nothing; another one gets everything."""
    async with client.bus() as bus, client.bus() as other:
        await other.advertise(where=WHERE)
        for cut in client.cuts():
            events = bus.subscribe(where=WHERE, pending_max=2)
            attempt = await cut(events.__aenter__())
            if attempt.cancelled and not events.closed:
                client.wrong("it is open although entering it was cancelled")
            if not attempt.cancelled:
                await client.soon("leaving", events.__aexit__(None, None, None))
            async with bus.subscribe(where=WHERE) as again:
                for _ in range(4):
                    await client.soon("publishing", other.publish({"x": 1}, b"sent"))
                client.expect("got", await mark(client, other, again), [b"sent"] * 4)


async def read_next(client: Client) -> None:
    """No event is lost or comes twice."""
    async with parties(client) as (bus, _, events):
        for cut in client.cuts():
            publishing = asyncio.create_task(bus.publish({"x": 1}, cut.label.encode()))
            attempt = await cut(anext(events))
            await client.soon("publishing", publishing)
            got = [] if attempt.result is None else [attempt.result.payload]
            got += await mark(client, bus, events)
            client.expect("got", got, [cut.label.encode()])


def transaction(isolation: Any) -> Operation:
    """Return the operation of a transaction that publishes twice, subscribes and advertises."""

    async def operation(client: Client) -> None:
        """All of it happens or nothing, and it holds up nobody."""
        async with parties(client) as (bus, other, events):
            for cut in client.cuts():
                made: list[ensue.Subscription] = []
                attempt = await cut(_transact(bus, isolation, made))
                # One that conflicts would wait for its timeout, or be aborted.
                await client.soon("another", _transact(other, isolation, []))
                await _check_transaction(client, attempt, (bus, events), made)

    operation.__name__ = f"transaction_{isolation}"
    return operation


async def _transact(bus: ensue.Bus, isolation: Any, made: list[ensue.Subscription]) -> None:
    async with bus.transaction(isolation=isolation, timeout=TIMEOUT_S) as tx:
        await tx.publish({"x": 1}, b"one")
        made.append(await tx.subscribe("x = 2"))
        await tx.publish({"x": 1}, b"two")


async def _check_transaction(
    client: Client,
    attempt: Attempt[None],
    used: tuple[ensue.Bus, ensue.Subscription],
    made: list[ensue.Subscription],
) -> None:
    bus, events = used
    got = await mark(client, bus, events)
    both = [b"one", b"two"]
    # The other transaction, and this one if it was committed.
    client.expect("got", got, both * 2, *([both] if attempt.cancelled else []))
    for each in made:
        is_done = len(got) == 4
        if is_done and not each.closed:
            await client.soon("publishing", bus.publish({"x": 2}, b"new"))
            event = await client.soon("an event", anext(each))
            client.expect("its subscription got", event.payload, b"new")
            await client.soon("leaving", each.__aexit__(None, None, None))
            await mark(client, bus, events)
        elif not is_done and not each.closed:
            client.wrong("its subscription is open although it was aborted")


async def invite(client: Client) -> None:
    """What an invited bus does happens with the transaction or not at all."""

    async def take_part(tx: ensue.InvitedTransaction) -> None:
        await tx.publish({"x": 1}, b"guest")

    async with parties(client) as (bus, other, events):
        await other.on_invitation(take_part)

        async def transact() -> None:
            async with bus.transaction(timeout=TIMEOUT_S) as tx:
                await tx.publish({"x": 1}, b"host")
                await tx.invite(other.name, {"x": 1})

        for cut in client.cuts():
            attempt = await cut(transact())
            await client.soon("another", transact())
            got = sorted(await mark(client, bus, events))
            both = [b"guest", b"host"]
            client.expect("got", got, sorted(both * 2), *([both] if attempt.cancelled else []))


async def on_invitation(client: Client) -> None:
    """A bus that took invitations, or began to, can be invited after it takes them again."""

    async def take_part(tx: ensue.InvitedTransaction) -> None:
        await tx.publish({"x": 1}, b"guest")

    async with parties(client) as (bus, _, events):
        for cut in client.cuts():
            async with client.bus("guest") as guest:

                async def begin(guest: ensue.Bus = guest) -> None:
                    await guest.advertise(where=WHERE)
                    await guest.on_invitation(take_part)

                await cut(begin())
                await client.soon("advertising", guest.advertise(where=WHERE))
                await client.soon("taking invitations", begin())
                async with bus.transaction(timeout=TIMEOUT_S) as tx:
                    await client.soon("inviting", tx.invite(guest.name, {"x": 1}))
                client.expect("got", await mark(client, bus, events), [b"guest"])


def durable(call: str) -> Operation:
    """Return the operation of a durable subscription whose entering, leaving, … is cancelled."""

    async def operation(client: Client) -> None:
        """It loses nothing that was not acknowledged."""
        async with client.bus() as bus, client.bus() as other:
            await other.advertise(where=WHERE)
            for cut in client.cuts():
                await _cut_durable(client, cut, call, (bus, other))

    operation.__name__ = f"durable_{call}"
    return operation


async def _cut_durable(
    client: Client, cut: Any, call: str, buses: tuple[ensue.Bus, ensue.Bus]
) -> None:
    bus, other = buses

    def make() -> ensue.Subscription:
        return bus.subscribe(
            where=WHERE, name=f"mail {cut.label}", durable=True, acknowledge="manual"
        )

    async with make():
        pass
    for each in (b"one", b"two"):
        await client.soon("publishing", other.publish({"x": 1}, each))
    allowed = [[b"one", b"two"]]
    events = make()
    if call == "enter":
        attempt: Attempt[Any] = await cut(events.__aenter__())
    else:
        await client.soon("entering", events.__aenter__())
        first = await client.soon("an event", anext(events))
        if call == "leave":
            events.acknowledge(first.position)  # Leaving waits until it is stored.
        calls: dict[str, Callable[[], Any]] = {
            "ack": first.ack,
            "forget": events.forget,
            "leave": lambda: events.__aexit__(None, None, None),
        }
        attempt = await cut(calls[call]())
        done = [[]] if call == "forget" else [[b"two"]]
        allowed = [*done, *allowed] if attempt.cancelled else done
    if call != "leave" and (call != "enter" or not attempt.cancelled):
        await client.soon("leaving", events.__aexit__(asyncio.CancelledError, None, None))
    if not events.closed:
        client.wrong("it is not closed")
    again = make()
    await client.soon("entering again", again.__aenter__())
    client.expect("got", await mark(client, other, again), *allowed)
    await client.soon("forgetting", again.forget())


OPERATIONS: tuple[Operation, ...] = (
    publish,
    publish_first,
    subscribe,
    read_next,
    transaction("serializable"),
    transaction("atomic"),
    transaction("planned"),
    invite,
    on_invitation,
    durable("enter"),
    durable("ack"),
    durable("leave"),
    durable("forget"),
)
