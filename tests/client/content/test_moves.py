"""A transaction moves a subscription to another bus: every event is read by one of the two."""

import asyncio
from pathlib import Path

import pytest
from tests.client.content.test_plan import TRANSPORTS, read, three
from tests.server.helpers import until, within

import ensue
from ensue.client.content.plan import PlannedTransaction
from ensue.core.errors import LocalProtocolError
from ensue.protocols.content.client import Notified
from ensue.protocols.content.frames import Publication
from ensue.protocols.transactions.client import Ceased, Concluded

WHERE = "x exists"


class Late:
    """Delays notifications of some kinds to a bus until `release`."""

    def __init__(self, bus: ensue.Bus, *kinds: type) -> None:
        client = bus._content.session
        self._on_value = client._on_value
        self._held: list[object] = []
        self._kinds = kinds
        client._on_value = self._hold_back  # type: ignore[method-assign]

    def _hold_back(self, value: object) -> None:
        if isinstance(value, self._kinds):
            self._held.append(value)
        else:
            self._on_value(value)

    def release(self) -> None:
        held, self._held, self._kinds = self._held, [], ()
        assert held
        for value in held:
            self._on_value(value)


async def rest_of(events: ensue.Subscription) -> list[bytes]:
    return [event.payload async for event in events]


def test_event_routed_before_the_commit_is_read_after_it() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await within(a.advertise(where=WHERE))
            old = await within(a.subscribe(where=WHERE).__aenter__())
            name = a.content_name(old)
            late = Late(a, Ceased)
            async with a.transaction() as tx:
                await tx.unsubscribe(old)
            made = Publication(publisher="p", number=1, attributes={"x": 1}, payload=b"before")
            late._on_value(Notified(made, name, 1))
            assert not old.closed
            with pytest.raises(LocalProtocolError, match="not an open subscription"):
                a.content_name(old)
            late.release()
            assert await within(rest_of(old)) == [b"before"]

    asyncio.run(main())


def test_closing_a_moved_subscription_withdraws_it_once() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            old = await within(a.subscribe(where=WHERE).__aenter__())
            late = Late(a, Ceased)
            async with a.transaction() as tx:
                await tx.unsubscribe(old)
            client = a._content.session
            asked: list[object] = []
            client.ask = asked.append  # type: ignore[assignment, method-assign]
            old.close()
            made = Publication(publisher="p", number=1, attributes={"x": 1})
            late._on_value(Notified(made, f"{client.name}.sub1", 1))
            late.release()
            assert asked == []
            assert client._readers == {}
            del client.ask

    asyncio.run(main())


@pytest.mark.parametrize("commit", [True, False])
def test_events_during_a_plan_are_kept_for_its_subscriptions(*, commit: bool) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://moves", order=None, name="a") as a,
            ensue.connect("memory://moves", order=None, name="b") as b,
        ):
            await within(a.advertise(where=WHERE))
            handed: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            await within(b.on_subscription(handed.put))
            late = Late(b, Concluded)
            async with a.transaction(isolation="planned") as plan:
                await plan.client("b").subscribe(WHERE)
            for number in range(3):
                await within(a.publish({"x": number}, b"%d" % number))
            client = b._content.session
            (name,) = client._readers
            if commit:
                late.release()
                new = await within(handed.get())
                assert await read(new, 3) == [b"0", b"1", b"2"]
            else:
                late._on_value(Ceased((name,)))
                assert client._readers == {}
                assert handed.empty()

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_repeated_moves_lose_no_event(kind: str, isolation: str, tmp_path: Path) -> None:
    """No event is duplicated where transactions are invisible before the commit."""

    async def main() -> None:
        got: list[bytes] = []
        held: dict[str, ensue.Subscription] = {}
        tasks: list[asyncio.Task[None]] = []

        async def reading(events: ensue.Subscription) -> None:
            got.extend(await rest_of(events))

        async def take(bus: ensue.Bus, events: ensue.Subscription) -> None:
            held[bus.name] = events
            tasks.append(asyncio.create_task(reading(events)))

        async with three(kind, tmp_path) as (publisher, *buses):
            await within(publisher.advertise(where=WHERE))
            for bus in buses:

                async def invited(tx: ensue.InvitedTransaction, bus: ensue.Bus = bus) -> None:
                    await take(bus, await tx.subscribe(WHERE))

                async def planned(events: ensue.Subscription, bus: ensue.Bus = bus) -> None:
                    await take(bus, events)

                await within(bus.on_invitation(invited))
                await within(bus.on_subscription(planned))
            old, new = buses
            await take(old, await within(old.subscribe(where=WHERE).__aenter__()))
            sent: list[bytes] = []
            moving = True

            async def publish() -> None:
                while moving:
                    sent.append(b"%d" % len(sent))
                    await publisher.publish({"x": len(sent)}, sent[-1])
                    await asyncio.sleep(0)

            publishing = asyncio.create_task(publish())
            for _ in range(6):
                before = held.get(new.name)
                async with old.transaction(isolation=isolation, timeout=60) as tx:
                    if isinstance(tx, PlannedTransaction):
                        await tx.client("b" if new is buses[0] else "c").subscribe(WHERE)
                    else:
                        await tx.invite(new.name)
                    await tx.unsubscribe(held[old.name])
                name = new.name
                await until(lambda: held.get(name) is not before)  # noqa: B023 - awaited here
                old, new = new, old
            moving = False
            await within(publishing)
            async with old.transaction(timeout=60) as tx:
                await tx.unsubscribe(held[old.name])
            await within(asyncio.gather(*tasks))
            assert set(got) == set(sent)
            if isolation == "serializable":
                assert sorted(got) == sorted(sent)

    asyncio.run(main())
