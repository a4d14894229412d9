"""Calls within transactions and plans, and to take part in those of other buses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.testing.cancelled import Client, Cut, Operation, refused
from tests.testing.cancelled_content import TIMEOUT_S, WHERE, mark, parties

import ensue
from ensue.core.errors import CONFLICT, aborted_transaction
from ensue.testing import Attempt

MINE, NEW, OWN = "x = 3", "x = 2", "y = 1"
"""Filters of a subscription that there is, of one that is made, and of an advertisement."""


# -- Calls of a bus ----------------------------------------------------------------------------


async def advertise(client: Client) -> None:
    """An advertisement whose name the caller did not get does not stay."""
    async with client.bus() as bus:
        await bus.advertise(where=WHERE)
        for cut in client.cuts():
            attempt = await cut(bus.advertise(where=OWN))
            is_refused = await client.soon("publishing", refused(bus.publish({"y": 1})))
            client.expect("refused", is_refused, attempt.cancelled)
            if attempt.result is not None:
                await client.soon("withdrawing", bus.unadvertise(attempt.result))


async def unadvertise(client: Client) -> None:
    """It is withdrawn or not, and can be once."""
    async with client.bus() as bus:
        for cut in client.cuts():
            name = await client.soon("advertising", bus.advertise(where=OWN))
            attempt = await cut(bus.unadvertise(name))
            is_done = await client.soon("again", refused(bus.unadvertise(name)))
            client.expect("withdrawn", is_done, True, *([False] if attempt.cancelled else []))
            is_refused = await client.soon("publishing", refused(bus.publish({"y": 1})))
            client.expect("refused", is_refused, True)


async def on_subscription(client: Client) -> None:
    """A bus whose first use of content is cancelled takes subscriptions of plans."""
    async with client.bus() as bus:
        await bus.advertise(where=WHERE)
        for cut in client.cuts():
            made: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            async with client.bus("guest") as guest:
                await cut(guest.on_subscription(made.put))
                await client.soon("taking subscriptions", guest.on_subscription(made.put))
                async with bus.transaction(isolation="planned", timeout=TIMEOUT_S) as plan:
                    await plan.client(guest.name).subscribe(WHERE)
                events = await client.soon("its subscription", made.get())
                client.expect("got", await mark(client, bus, events), [])
                await client.soon("leaving", events.__aexit__(None, None, None))


def on_invitation(where: str | None, *, withdraws: bool = False) -> Operation:
    """Return the operation of a bus that takes invitations, or takes no more of them."""

    async def take_part(tx: ensue.InvitedTransaction) -> None:
        await tx.publish({"x": 1}, b"guest")

    async def operation(client: Client) -> None:
        """A bus that takes them again can be invited; one that takes no more can't."""
        async with parties(client) as (bus, _, events):
            for cut in client.cuts():
                async with client.bus("guest") as guest:
                    if withdraws:
                        await client.soon("taking", guest.on_invitation(take_part, where=where))
                    handler = None if withdraws else take_part
                    if where is not None:
                        await client.soon("advertising", guest.advertise(where=WHERE))
                    await cut(guest.on_invitation(handler, where=where))
                    if where is None:  # Taking them was its first use of content.
                        await client.soon("advertising", guest.advertise(where=WHERE))
                    await client.soon("taking", guest.on_invitation(take_part, where=where))
                    client.expect("takes part", await _invite(client, bus, guest, where), 1)
                    client.expect("got", await mark(client, bus, events), [b"guest"])
                    await client.soon("withdrawing", guest.on_invitation(None, where=where))
                    client.expect("takes part", await _invite(client, bus, guest, where), 0)
                    client.expect("got", await mark(client, bus, events), [])

    kind = "by_name" if where is None else "by_content"
    operation.__name__ = f"{'no_more' if withdraws else 'on'}_invitation_{kind}"
    return operation


async def _invite(client: Client, bus: ensue.Bus, guest: ensue.Bus, where: str | None) -> int:
    try:
        async with bus.transaction(timeout=TIMEOUT_S) as tx:
            if where is None:
                return await client.soon("inviting", tx.invite(guest.name, {"x": 1}))
            return await client.soon("inviting", tx.invite({"x": 1}))
    except ensue.TransactionAborted:
        return 0


# -- Transactions ------------------------------------------------------------------------------


async def begin(client: Client) -> None:
    """A bus whose first use of content is a cancelled transaction can be used again."""
    for isolation in ("serializable", "planned"):
        async with client.bus() as other:
            for cut in client.cuts():
                async with client.bus("same") as bus:
                    first = bus.transaction(isolation=isolation, timeout=TIMEOUT_S)
                    attempt: Attempt[Any] = await cut(first.__aenter__())
                    if not attempt.cancelled:
                        await client.soon("aborting", first.__aexit__(ValueError, None, None))
                    for each in (bus, other):
                        async with each.transaction(isolation=isolation, timeout=TIMEOUT_S) as tx:
                            await client.soon("an operation", tx.advertise(WHERE))


async def repeat(client: Client) -> None:
    """Attempts at a transaction that conflicts: one happens, or none."""

    async def transact(bus: ensue.Bus) -> None:
        async for attempt in bus.transaction(retries=2, timeout=TIMEOUT_S):
            async with attempt as tx:
                await tx.advertise(WHERE)
                await tx.publish({"x": 1}, b"%d" % attempt.number)
                if attempt.number == 1:
                    raise aborted_transaction("it conflicts", reason=f"{CONFLICT}planted")

    async with parties(client) as (_, other, events):
        for cut in client.cuts():
            async with client.bus() as bus:  # Its first attempt begins its use of content.
                attempt = await cut(transact(bus))
                await client.soon("another", transact(other))
                got = await mark(client, other, events)
                client.expect("got", got, [b"2"] * 2, *([[b"2"]] if attempt.cancelled else []))


Within = ensue.Transaction | ensue.InvitedTransaction


class _Party:
    """What a client that takes part in a transaction has, and does in it."""

    def __init__(self, bus: ensue.Bus, advertised: str, mine: ensue.Subscription) -> None:
        self.bus, self.advertised, self.mine = bus, advertised, mine
        self.made: list[ensue.Subscription] = []
        self.new = ""
        """The name of an advertisement that it made."""

    def call(self, call: str, tx: Within, third: str) -> Awaitable[Any]:
        """Begin an operation of a transaction."""
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "publish": lambda: tx.publish({"x": 1}, b"cut"),
            "advertise": lambda: self._advertise(tx),
            "unadvertise": lambda: tx.unadvertise(self.advertised),
            "subscribe": lambda: self._subscribe(tx),
            "unsubscribe": lambda: tx.unsubscribe(self.mine),
            "invite": lambda: tx.invite(third, {"x": 1}),
            "invite_matching": lambda: tx.invite({"x": 1}, at_least=1),
        }
        return calls[call]()

    async def _advertise(self, tx: Within) -> None:
        self.new = await tx.advertise("z = 1")

    async def _subscribe(self, tx: Within) -> None:
        self.made.append(await tx.subscribe(NEW))

    async def check(self, client: Client, call: str, *, done: bool) -> None:
        """Note what an operation left that was not done, or what it did not do."""
        is_new = not await client.soon("publishing", refused(self.bus.publish({"z": 1})))
        client.expect("its advertisement is there", is_new, done and call == "advertise")
        if is_new and self.new:
            await client.soon("withdrawing", self.bus.unadvertise(self.new))
        is_gone = await client.soon("withdrawing", refused(self.bus.unadvertise(self.advertised)))
        client.expect("its advertisement is gone", is_gone, done and call == "unadvertise")
        ends = done and call == "unsubscribe"
        if not ends:
            await client.soon("publishing", self.bus.publish({"x": 3}, b"mine"))
        got = await client.soon("reading its subscription", anext(self.mine, None))
        client.expect("its subscription got", got and got.payload, None if ends else b"mine")
        for each in self.made:
            client.expect("its new subscription is closed", each.closed, not done)
            await client.soon("leaving", each.__aexit__(None, None, None))


@asynccontextmanager
async def _party(bus: ensue.Bus) -> AsyncIterator[_Party]:
    async with bus.subscribe(where=MINE) as mine:
        yield _Party(bus, await bus.advertise(where=OWN), mine)


CALLS = (
    "publish", "advertise", "unadvertise", "subscribe", "unsubscribe", "invite", "invite_matching"
)  # fmt: skip


def within(call: str, *, invited: bool) -> Operation:
    """Return the operation of a transaction, one of whose calls is cancelled and caught."""

    async def operation(client: Client) -> None:
        """No transaction commits without one of its operations, and nothing of it stays."""
        async with parties(client) as (bus, other, events), client.bus() as third:
            await third.advertise(where=WHERE)

            async def act(tx: ensue.InvitedTransaction) -> None:
                await tx.publish({"x": 1}, b"third")

            await third.on_invitation(act)
            await third.on_invitation(act, where="x = 1")
            for cut in client.cuts():
                async with _party(other if invited else bus) as party:
                    await _cut_within(client, cut, call, (bus, third), party, events)

    operation.__name__ = f"{'invited' if invited else 'transaction'}_{call}"
    return operation


async def _cut_within(
    client: Client,
    cut: Cut,
    call: str,
    buses: tuple[ensue.Bus, ensue.Bus],
    party: _Party,
    events: ensue.Subscription,
) -> None:
    bus, third = buses
    attempts: list[Attempt[Any]] = []

    async def act(tx: Within) -> None:
        attempts.append(await cut(party.call(call, tx, third.name)))

    async def transact() -> None:
        async with bus.transaction(timeout=TIMEOUT_S) as tx:
            await tx.publish({"x": 1}, b"one")
            await (act(tx) if party.bus is bus else tx.invite(party.bus.name))

    if party.bus is not bus:
        await party.bus.on_invitation(act)
    is_aborted = await client.soon("the transaction", refused(transact()))
    (attempt,) = attempts
    client.expect("aborted", is_aborted, attempt.cancelled)
    async with third.transaction(timeout=TIMEOUT_S) as tx:  # One that conflicts would wait.
        await client.soon("another", tx.publish({"x": 1}, b"another"))
    done = {"publish": [b"cut"], "invite": [b"third"], "invite_matching": [b"third"]}
    all_of_it = [] if is_aborted else [b"one", *done.get(call, [])]
    got = await mark(client, bus, events)
    client.expect("got", sorted(got), sorted([*all_of_it, b"another"]))
    await party.check(client, call, done=not is_aborted)
    await mark(client, bus, events)


# -- Plans -------------------------------------------------------------------------------------


def plan(call: str, *, held: bool = False) -> Operation:
    """Return the operation of a plan, one of whose calls is cancelled and caught."""

    async def operation(client: Client) -> None:
        """All of it happens or nothing, and it holds up nobody."""
        async with parties(client) as (bus, other, events):
            made: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            await other.on_subscription(made.put)
            for cut in client.cuts():
                async with bus.subscribe(where=MINE) as mine:
                    await _cut_plan(client, cut, (call, held), (bus, other), (mine, events), made)

    operation.__name__ = f"{'held_' if held else ''}plan_{call}"
    return operation


async def _cut_plan(
    client: Client,
    cut: Cut,
    what: tuple[str, bool],
    buses: tuple[ensue.Bus, ensue.Bus],
    subscriptions: tuple[ensue.Subscription, ensue.Subscription],
    made: "asyncio.Queue[ensue.Subscription]",
) -> None:
    (call, held), (bus, other), (mine, events) = what, buses, subscriptions
    new: list[ensue.Subscription] = []
    attempt: Attempt[Any] | None = None

    async def transact() -> None:
        nonlocal attempt
        async with bus.transaction(isolation="planned", timeout=TIMEOUT_S) as plan:
            await plan.publish({"x": 1}, b"one")
            await plan.unsubscribe(mine)
            await plan.client(other.name).publish({"x": 1}, b"two")
            await plan.client(other.name).subscribe(NEW)
            subscribing = plan.subscribe(NEW)
            if call == "subscribe":
                attempt = await cut(subscribing)
            else:
                await subscribing
            new.extend(bus._subscriptions[-1:])
            if held:
                await plan.hold()
            if call != "subscribe":
                attempt = await cut(getattr(plan, call)())

    is_refused = await client.soon("the plan", refused(transact()))
    assert attempt is not None
    client.expect("refused", is_refused, call == "subscribe" and attempt.cancelled)
    async with other.transaction(timeout=TIMEOUT_S) as tx:  # One that conflicts would wait.
        await client.soon("another", tx.publish({"x": 1}, b"another"))
    got = await mark(client, bus, events)
    done, undone = sorted([b"one", b"two", b"another"]), [b"another"]
    allowed = [undone] if call == "abort" or attempt.cancelled else [done]
    if call == "commit" and attempt.cancelled:
        allowed = [done, undone]
    client.expect("got", sorted(got), *allowed)
    is_done = len(got) > 1
    if is_done:
        new.append(await client.soon("the other's subscription", made.get()))
        client.expect("the withdrawn one got", await client.soon("it", anext(mine, None)), None)
    for each in new:
        if each.closed == is_done:
            client.wrong(f"a subscription that it made is {'closed' if is_done else 'open'}")
    if is_done:
        await client.soon("publishing", bus.publish({"x": 2}, b"new"))
    for each in new if is_done else ():
        client.expect("it got", (await client.soon("it", anext(each))).payload, b"new")
        await client.soon("leaving", each.__aexit__(None, None, None))
    client.expect("other subscriptions", made.qsize(), 0)
    await mark(client, bus, events)


OPERATIONS: tuple[Operation, ...] = (
    advertise,
    unadvertise,
    on_subscription,
    on_invitation(None),
    on_invitation("x = 1"),
    on_invitation(None, withdraws=True),
    on_invitation("x = 1", withdraws=True),
    begin,
    repeat,
    *(within(call, invited=False) for call in CALLS),
    *(within(call, invited=True) for call in CALLS),
    plan("subscribe"),
    plan("commit"),
    plan("abort"),
    plan("hold"),
    plan("commit", held=True),
    plan("abort", held=True),
)
