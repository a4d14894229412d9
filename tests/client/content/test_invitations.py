"""Invitations by content: recipients that the inviter does not know, in memory and on servers."""

import asyncio
from pathlib import Path

import pytest
from tests.client.content.test_plan import SYNC_S, TRANSPORTS, read, three
from tests.server.helpers import People, serving, within
from tests.server.test_server import chain

import ensue
from ensue.client.content.transaction import InvitationHandler
from ensue.core.errors import BadInput, LocalProtocolError, TransactionAborted

ISOLATIONS = ["serializable", "atomic"]


async def nothing(_: ensue.InvitedTransaction) -> None:
    """Take part, and do nothing."""


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_every_bus_whose_filter_matches_takes_part(
    kind: str, isolation: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            made: dict[str, ensue.Subscription] = {}
            got: list[tuple[object, ...]] = []

            def take(bus: ensue.Bus) -> InvitationHandler:
                async def act(tx: ensue.InvitedTransaction) -> None:
                    got.append((dict(tx.attributes), tx.payload, tx.inviter == a.name))
                    made[bus.name] = await tx.subscribe("x = 1")

                return act

            for bus, where in ((a, "x = 1"), (b, "x = 1 or x = 7"), (c, "x > 0")):
                await within(bus.on_invitation(take(bus), where=where))
            async with b.subscribe(where="x exists") as regular:
                async with a.transaction(isolation=isolation, timeout=60) as tx:
                    assert await within(tx.invite({"x": 1}, payload=b"who?")) == 2
                    await tx.publish({"x": 1}, b"for all")
                assert got == [({"x": 1}, b"who?", True)] * 2, "and not the inviter itself"
                assert sorted(made) == sorted((b.name, c.name))
                for events in made.values():
                    assert await read(events, 1) == [b"for all"]
                assert await read(regular, 1) == [b"for all"], "an invitation is no event"
                await within(a.publish({"x": 1}, b"regular"))
                assert await read(regular, 1) == [b"regular"]
                assert len(got) == 2, "an event is no invitation"
                async with a.transaction(isolation=isolation, timeout=60) as tx:
                    assert await within(tx.invite({"x": 5})) == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_advertisement_attracts_recipients_before_the_invitation(
    kind: str, isolation: str, tmp_path: Path
) -> None:
    """Figure 2: adv(x), tcm(x), pub(y); filters wait at their brokers for the advertisement."""

    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            made: list[ensue.Subscription] = []

            async def act(tx: ensue.InvitedTransaction) -> None:
                made.append(await tx.subscribe("y exists"))

            for bus in (b, c):
                await within(bus.on_invitation(act, where="x exists"))
            async with a.transaction(isolation=isolation, timeout=60) as tx:
                await within(tx.advertise("x exists or y exists"))
                assert await within(tx.invite({"x": 1})) == 2
                await within(tx.publish({"y": 1}, b"y"))
            assert [await read(events, 1) for events in made] == [[b"y"], [b"y"]]

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_no_recipient_aborts_unless_none_is_needed(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            await within(b.on_invitation(nothing, where="x = 2"))
            async with c.subscribe(where="x exists") as events:

                async def invite(at_least: int, x: int) -> int:
                    async with a.transaction(timeout=60) as tx:
                        await tx.publish({"x": 1}, f"{x}/{at_least}".encode())
                        return await tx.invite({"x": x}, at_least=at_least)

                with pytest.raises(TransactionAborted, match="found no client, of at_least=1"):
                    await within(invite(1, 1))
                with pytest.raises(TransactionAborted, match="found 1 client, of at_least=2"):
                    await within(invite(2, 2))
                assert await within(invite(0, 1)) == 0
                assert await within(invite(1, 2)) == 1
                await within(b.on_invitation(None, where="x=2"))
                with pytest.raises(TransactionAborted, match="found no client, of at_least=1"):
                    await within(invite(1, 2))
                assert await read(events, 2) == [b"1/0", b"2/1"]
                assert not events.waiting

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_recipient_that_fails_or_leaves_aborts(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            await within(b.on_invitation(nothing, where="x exists"))
            reached, hangs = asyncio.Event(), asyncio.Event()

            async def fail(_: ensue.InvitedTransaction) -> None:
                raise ZeroDivisionError

            async def hang(tx: ensue.InvitedTransaction) -> None:
                await tx.subscribe("x = 9")
                reached.set()
                await hangs.wait()

            async def invite() -> int:
                async with a.transaction(timeout=60) as tx:
                    return await tx.invite({"x": 1})

            await within(c.on_invitation(fail, where="x exists"))
            with pytest.raises(TransactionAborted, match="ZeroDivisionError"):
                await within(invite())
            await within(c.on_invitation(hang, where="x exists"))
            inviting = asyncio.create_task(invite())
            await within(reached.wait())
            await within(c.close())
            with pytest.raises(TransactionAborted, match="gone"):
                await within(inviting)
            assert await within(invite()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("at_least", [1, 2])
@pytest.mark.parametrize("kind", TRANSPORTS)
def test_recipient_that_leaves_before_it_acts_does_not_count(
    kind: str, at_least: int, tmp_path: Path
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            await within(b.on_invitation(nothing, where="x exists"))
            reached, hangs = asyncio.Event(), asyncio.Event()

            async def hang(_: ensue.InvitedTransaction) -> None:
                reached.set()
                await hangs.wait()

            async def invite() -> int:
                async with a.transaction(isolation="atomic", timeout=60) as tx:
                    return await tx.invite({"x": 1}, at_least=at_least)

            await within(c.on_invitation(hang, where="x exists"))
            inviting = asyncio.create_task(invite())
            await within(reached.wait())
            await within(c.close())
            if at_least == 1:
                assert await within(inviting) == 1
            else:
                with pytest.raises(TransactionAborted, match="found 1 client, of at_least=2"):
                    await within(inviting)

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_recipient_that_comes_meanwhile_is_a_conflict(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            await within(b.on_invitation(nothing, where="x exists"))
            counts: list[int] = []
            async for attempt in a.transaction(timeout=60, retries=3):
                async with attempt as tx:
                    counts.append(await tx.invite({"x": 1}))
                    if attempt.number == 1:
                        await within(c.on_invitation(nothing, where="x = 1"))
            assert counts == [1, 2]

    asyncio.run(main())


def test_brokers_of_recipients_vote(tmp_path: Path) -> None:
    """The filter of `b` covers that of `c`: only their broker sees the conflict."""

    async def main() -> None:
        first, second = await chain(tmp_path, 2, sync_s=SYNC_S)
        try:
            async with (
                ensue.connect(first.url, order=None, name="a") as a,
                ensue.connect(second.url, order=None, name="b") as b,
                ensue.connect(second.url, order=None, name="c") as c,
            ):
                await within(a.advertise(where="x exists"))
                await within(b.on_invitation(nothing, where="x exists"))
                counts: list[int] = []
                async for attempt in a.transaction(timeout=60, retries=3):
                    async with attempt as tx:
                        counts.append(await within(tx.invite({"x": 1})))
                        if attempt.number == 1:
                            await within(c.on_invitation(nothing, where="x = 1"))
                assert counts == [1, 2]
        finally:
            for server in (first, second):
                await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_recipients_invite_others(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            for bus in (a, b):
                await within(bus.advertise(where="x exists"))

            async def pass_on(tx: ensue.InvitedTransaction) -> None:
                assert await tx.invite({"x": 2}) == 1
                await tx.publish({"x": 3}, b"b")

            async def publish(tx: ensue.InvitedTransaction) -> None:
                await tx.advertise("x = 4")
                await tx.publish({"x": 4}, b"c")

            await within(b.on_invitation(pass_on, where="x = 1"))
            await within(c.on_invitation(publish, where="x = 2"))
            async with a.subscribe(where="x > 2") as events:
                async with a.transaction(timeout=60) as tx:
                    assert await within(tx.invite({"x": 1})) == 1
                assert sorted(await read(events, 2)) == [b"b", b"c"]

    asyncio.run(main())


def test_recipient_that_hangs_is_named_at_the_timeout() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://hangs", order=None, name="a") as a,
            ensue.connect("memory://hangs", order=None, name="b") as b,
        ):
            await a.advertise(where="x exists")

            async def hang(_: ensue.InvitedTransaction) -> None:
                await asyncio.Event().wait()

            await b.on_invitation(hang, where="x exists")

            async def invite() -> None:
                async with a.transaction(timeout=0.2) as tx:
                    await tx.invite({"x": 1})

            waited = "0.2 s passed while it waited for a handler that takes the invitation {'x': 1}"
            with pytest.raises(TransactionAborted, match=waited) as caught:
                await within(invite())
            assert caught.value.reason == "timeout"

    asyncio.run(main())


def test_mistakes_are_named() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            with pytest.raises(ensue.FilterError):
                await a.on_invitation(nothing, where="x >")
            with pytest.raises(BadInput):
                await a.on_invitation("nothing", where="x = 1")  # type: ignore[arg-type]
            async with a.transaction(isolation="planned") as plan:
                with pytest.raises(LocalProtocolError, match="a plan names its clients"):
                    await plan.invite({"x": 1})
            async with a.transaction() as tx:
                with pytest.raises(BadInput, match="attributes alone"):
                    await tx.invite({"x": 1}, {"y": 1})
                with pytest.raises(BadInput, match="at_least must be a whole number"):
                    await tx.invite({"x": 1}, at_least=-1)

            async def invite_uncovered() -> None:
                async with a.transaction() as tx:
                    await tx.invite({"x": 1})

            with pytest.raises(TransactionAborted, match="no advertisement of this bus covers"):
                await invite_uncovered()
            await a.advertise(where="x exists")
            with pytest.raises(ensue.EventRefused, match="is reserved"):
                await a.publish({"x": 1, "ensue.invitation": True})

            for reserve in (
                lambda: a.subscribe(where="x = 1 and ensue.invitation exists"),
                lambda: a.transaction().subscribe("ensue.invitation = true"),
                lambda: a.transaction(isolation="planned").subscribe("ensue.invitation = true"),
                lambda: a.on_invitation(nothing, where="ensue.invitation exists or x = 1"),
            ):
                with pytest.raises(BadInput, match="is reserved"):
                    reserve()

            async def plan_reserved() -> None:
                async with a.transaction(isolation="planned") as plan:
                    await plan.publish({"x": 1, "ensue.invitation": True})

            with pytest.raises(TransactionAborted, match="is reserved"):
                await plan_reserved()

    asyncio.run(main())


def test_permissions_are_those_of_events_by_content(tmp_path: Path) -> None:
    people = People(alice=(["*"], ["*"]), bob=([], ["*"]), carol=(["*"], []))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
            ensue.connect(people.url(server, "bob"), order=None, name="bob") as bob,
            ensue.connect(people.url(server, "carol"), order=None, name="carol") as carol,
        ):
            await within(alice.advertise(where="x exists"))
            await within(bob.on_invitation(nothing, where="x exists"))
            with pytest.raises(ensue.EnsueError, match="may not subscribe"):
                await within(carol.on_invitation(nothing, where="x exists"))

            async def invite(bus: ensue.Bus) -> int:
                async with bus.transaction(timeout=60) as tx:
                    return await tx.invite({"x": 1})

            assert await within(invite(alice)) == 1
            with pytest.raises(TransactionAborted, match="may not publish"):
                await within(invite(bob))

    asyncio.run(main())
