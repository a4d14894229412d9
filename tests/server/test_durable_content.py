"""Durable subscriptions by content on servers: restarts, users, limits and status."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.helpers import People, read, serving, until, within
from tests.server.test_content_broker import SYNC_S, connected, tree

import ensue
from ensue.client.content.dismissal import forget_durable
from ensue.core.errors import (
    BadInput,
    LimitReached,
    RemoteProtocolError,
    SubscriptionLost,
    SubscriptionRefused,
)
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.frames import Acknowledge, Attach, Dismiss
from ensue.protocols.shared.link import LinkData, packed
from ensue.runtime.status import chain_status
from ensue.server import Server, content_broker
from ensue.server.config import Limits
from ensue.server.content_broker import screen_content
from ensue.server.permissions import Access

WHERE = "x exists"


def durable(bus: ensue.Bus, **options: Any) -> ensue.Subscription:
    return bus.subscribe(where=WHERE, name="billing", durable=True, **options)


async def restart(servers: list[Server]) -> None:
    for number, server in enumerate(list(servers)):
        await server.stop()
        servers[number] = Server(server.config)
        await within(servers[number].start())


def test_events_and_acknowledgements_survive_restarts_of_all_servers(tmp_path: Path) -> None:
    async def main() -> None:
        async with tree(tmp_path) as servers:
            async with connected(servers[0], "a") as a:
                await within(a.advertise(where=WHERE))
                async with durable(a, acknowledge="manual") as events:
                    for number in range(4):
                        await within(a.publish({"x": 1}, b"%d" % number))
                    await within((await within(anext(events))).ack())
                    await restart(servers)
                    # The reader goes on, and no event comes twice.
                    assert await read(events, 3) == [b"1", b"2", b"3"]
            await restart(servers)
            async with connected(servers[2], "c") as c, durable(c) as events:
                got = [await within(anext(events)) for _ in range(3)]
                assert [(event.position, event.payload) for event in got] == [
                    (2, b"1"), (3, b"2"), (4, b"3"),
                ]  # fmt: skip

    asyncio.run(main())


def test_name_belongs_to_the_user_who_made_it(tmp_path: Path) -> None:
    people = People(alice=(["content"], ["content"]), bob=([], ["content"]), carol=(["*"], []))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
            ensue.connect(people.url(server, "bob"), order=None, name="bob") as bob,
            ensue.connect(people.url(server, "carol"), order=None, name="carol") as carol,
        ):
            async with durable(alice):
                with pytest.raises(SubscriptionRefused, match="belongs to another user"):
                    async with durable(bob):
                        pass
                with pytest.raises(SubscriptionRefused, match="may not subscribe to 'content'"):
                    async with durable(carol):
                        pass
            async with durable(alice) as events:
                await within(events.forget())
            async with durable(bob):
                pass
            assert server.listener is not None
            frame = Attach(number=1, name="billing", where="x = 1", owner="alice")
            with pytest.raises(RemoteProtocolError, match="must not set owner"):
                _screened(server, frame)
            with pytest.raises(RemoteProtocolError, match="must not set owned_max"):
                _screened(server, msgspec.structs.replace(frame, owner="", owned_max=9))
            _screened(server, Acknowledge(number=1, mailbox="m", epoch=1, position=1))

    asyncio.run(main())


def _screened(server: Server, frame: Any) -> None:
    """Screen a frame of some connection."""
    listener = server.listener
    assert listener is not None
    connection = next(iter(listener.connections))
    data = LinkData(number=1, payload=packed([content_broker._CODEC.encode(frame)]))
    screen_content(listener.authorization, connection, "bob.content", [data])


def test_user_has_so_many_and_others_more(tmp_path: Path) -> None:
    people = People(alice=(["*"], ["content"]), bob=([], ["content"]))

    async def main() -> None:
        async with (
            serving(
                tmp_path / "d",
                access=people.access,
                sync_s=SYNC_S,
                limits=Limits(mailboxes_per_user=1),
            ) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
            ensue.connect(people.url(server, "bob"), order=None, name="bob") as bob,
        ):
            async with durable(alice):
                pass
            with pytest.raises(LimitReached, match="'alice' has too many") as caught:
                async with alice.subscribe(where=WHERE, name="other", durable=True):
                    pass
            assert (caught.value.limit, caught.value.value) == ("mailboxes_per_user", 1)
            async with durable(alice):
                pass  # It is there.
            async with bob.subscribe(where=WHERE, name="other", durable=True):
                pass

    asyncio.run(main())


def test_users_and_filters_of_others_are_for_operators(tmp_path: Path) -> None:
    people = People(
        alice=(["content"], ["content"]), bob=([], ["content"]), root=(["*"], ["*"]), eve=([], [])
    )

    async def listed(server: Server, user: str) -> dict[str, Any]:
        found = await within(chain_status(people.url(server, user), answer_s=5.0))
        return {one["name"]: (one["user"], one["where"]) for one in found["mailboxes"]}

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server:
            for user in ("alice", "bob"):
                url = people.url(server, user)
                async with (
                    ensue.connect(url, order=None, name=user) as bus,
                    bus.subscribe(where=f"{user} = 1", name=f"of-{user}", durable=True),
                ):
                    pass
            alice, bob = ("alice", "alice = 1"), ("bob", "bob = 1")
            hidden = (None, None)
            assert await listed(server, "root") == {"of-alice": alice, "of-bob": bob}
            assert await listed(server, "alice") == {"of-alice": alice, "of-bob": hidden}
            assert await listed(server, "bob") == {"of-alice": hidden, "of-bob": bob}
            assert await listed(server, "eve") == {}

    asyncio.run(main())


def test_without_an_owner_every_reader_of_content_sees_the_filter(tmp_path: Path) -> None:
    people = People(bob=([], ["content"]))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            connected(server, "a") as a,
            durable(a),
        ):
            pass
        async with serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server:
            found = await within(chain_status(people.url(server, "bob"), answer_s=5.0))
            (one,) = found["mailboxes"]
            assert (one["user"], one["where"]) == ("", WHERE)

    asyncio.run(main())


@pytest.mark.parametrize(("limit", "later"), [(9, 1), (2, 9)], ids=["lowered", "raised"])
def test_restart_with_another_limit_of_a_user_keeps_what_was_decided(
    tmp_path: Path, limit: int, later: int
) -> None:
    people = People(alice=(["content"], ["content"]))
    made = ["m", "n", "o"][:limit]

    @asynccontextmanager
    async def entered(limit: int) -> AsyncIterator[tuple[dict[str, int], ensue.Bus]]:
        options: dict[str, Any] = {"access": people.access, "sync_s": SYNC_S}
        limits = Limits(mailboxes_per_user=limit)
        async with (
            serving(tmp_path / "d", limits=limits, **options) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
        ):
            assert server.content is not None
            found = server.content.broker.state.mailboxes.open
            yield {name: len(mailbox.kept) for name, mailbox in found.items()}, alice

    async def main() -> None:
        async with entered(limit) as (_, alice):
            await within(alice.advertise(where=WHERE))
            for name in "mno":
                entering = alice.subscribe(where=WHERE, name=name, durable=True)
                if name in made:
                    async with entering:
                        pass
                else:
                    with pytest.raises(LimitReached, match="'alice' has too many"):
                        await within(entering.__aenter__())
            await within(alice.publish({"x": 1}))
        for other in (later, limit):
            async with entered(other) as (kept, alice):
                assert kept == {f"durable/{name}": 1 for name in made}
        async with (
            entered(later) as (_, alice),
            alice.subscribe(where=WHERE, name="m", durable=True) as events,
        ):
            assert await read(events, 1) == [b""], "one that is there is entered"

    asyncio.run(main())


def test_owner_and_operators_forget_what_no_program_reads(tmp_path: Path) -> None:
    people = People(
        alice=(["content"], ["content"]), bob=([], ["content"]), root=(["*"], ["*"]), eve=([], [])
    )

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="alice") as alice,
            ensue.connect(people.url(server, "bob"), order=None, name="bob") as bob,
            ensue.connect(people.url(server, "root"), order=None, name="root") as root,
            ensue.connect(people.url(server, "eve"), order=None, name="eve") as eve,
        ):
            async with durable(alice) as events:
                with pytest.raises(BadInput, match="belongs to another user"):
                    await within(forget_durable(bob, "billing"))
                with pytest.raises(BadInput, match="'eve' may not subscribe to 'content'"):
                    await within(forget_durable(eve, "billing"))
                await within(forget_durable(root, "billing"))
                with pytest.raises(SubscriptionLost) as caught:
                    await within(anext(events))
                assert caught.value.reason == "forgotten"
            async with durable(bob):
                pass  # The name is free.
            await within(forget_durable(bob, "billing"))
            with pytest.raises(BadInput, match="there is no durable subscription 'billing'"):
                await within(forget_durable(bob, "billing"))
            assert server.listener is not None
            frame = Dismiss(number=1, name="billing", owner="alice")
            with pytest.raises(RemoteProtocolError, match="must not set owner"):
                _screened(server, frame)

    asyncio.run(main())


def test_without_users_every_client_shares_all_names(tmp_path: Path) -> None:
    """As by topic: servers without users trust all clients."""

    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S, limits=Limits(mailboxes_per_user=1)) as server,
            connected(server, "a") as a,
            connected(server, "b") as b,
        ):
            async with durable(a) as events, durable(b):
                with pytest.raises(SubscriptionLost) as caught:
                    await within(anext(events))
                assert caught.value.reason == "superseded"
            async with b.subscribe(where=WHERE, name="other", durable=True):
                pass  # The limit of a user is none of all clients.
            await within(forget_durable(b, "billing"))

    asyncio.run(main())


def test_owner_lasts_while_users_come_and_go(tmp_path: Path) -> None:
    """Made without users, it belongs to the first user that enters it, and to that one for good."""
    people = People(alice=(["content"], ["content"]), bob=([], ["content"]))
    data = tmp_path / "d"

    async def enter(name: str, access: Access) -> None:
        async with serving(data, access=access, sync_s=SYNC_S) as server:
            url = people.url(server, name) if access.users else server.url
            async with ensue.connect(url, order=None, name=name) as bus, durable(bus):
                pass

    async def main() -> None:
        await within(enter("bob", Access()))
        await within(enter("alice", people.access))
        with pytest.raises(SubscriptionRefused, match="belongs to another user"):
            await within(enter("bob", people.access))
        await within(enter("bob", Access()))
        with pytest.raises(SubscriptionRefused, match="belongs to another user"):
            await within(enter("bob", people.access))
        await within(enter("alice", people.access))

    asyncio.run(main())


def test_mailbox_that_no_client_reads_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def quick(**options: Any) -> ContentConfig:
        return ContentConfig(**{**options, "mailbox_expire_ns": 10_000_000})

    monkeypatch.setattr(content_broker, "ContentConfig", quick)

    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S, mailbox_expire_s=60) as server,
            connected(server, "a") as a,
        ):
            assert server.content is not None
            server.content.broker._expire_from_ns = 0  # It started long ago.
            mailboxes = server.content.broker.state.mailboxes
            async with durable(a):
                pass
            await until(lambda: not mailboxes.open, "it has expired")
            with pytest.raises(SubscriptionRefused, match=r"has expired.*accept_loss=True"):
                async with durable(a):
                    pass
            async with durable(a, accept_loss=True):
                pass

    asyncio.run(main())


@pytest.mark.parametrize("is_content_first", [True, False])
def test_closed_subscription_of_the_name_by_topic_still_acknowledges(
    tmp_path: Path, is_content_first: bool
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            ensue.connect(server.url, name="a") as a,
        ):
            await within(a.advertise(where=WHERE))
            options: dict[str, Any] = {"name": "billing", "durable": True, "acknowledge": "manual"}
            kinds = [a.subscribe(where=WHERE, **options), a.subscribe("orders", **options)]
            first, second = kinds if is_content_first else kinds[::-1]
            await within(first.__aenter__())
            await within(a.publish({"x": 1}, b"by content"))
            await within(a.publish("orders", b"by topic"))
            event = await within(anext(first))
            first.close()  # It still takes acknowledgements.
            async with second:
                await within(event.ack())
            first.rest()

    asyncio.run(main())


def test_other_server_does_not_keep_a_name(tmp_path: Path) -> None:
    def keeps(server: Server) -> bool:
        return server.content is not None and bool(server.content.broker.state.mailboxes.open)

    async def main() -> None:
        async with (
            tree(tmp_path, 2) as servers,
            connected(servers[0], "a") as a,
            durable(a),
        ):
            (keeper,) = [server for server in servers if keeps(server)]
            (other,) = [server for server in servers if server is not keeper]
            assert other.listener is not None
            refusal = other.listener.authorization.durable_refusal
            assert refusal("billing") == f"'billing' is kept at {keeper.config.name}"
            assert "can't be called 'a/b'" in refusal("a/b")

    asyncio.run(main())


def test_too_many_waiting_events_are_an_error_for_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_broker, "ContentConfig", partial(ContentConfig, kept_max=3))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            connected(server, "a") as a,
        ):
            await within(a.advertise(where=WHERE))
            async with durable(a):
                pass
            for number in range(5):
                await within(a.publish({"x": 1}, b"%d" % number))
            async with durable(a) as events:
                assert await read(events, 3) == [b"0", b"1", b"2"]
                with pytest.raises(SubscriptionLost, match="limit kept_max=3"):
                    await within(anext(events))
            with pytest.raises(SubscriptionRefused, match="accept_loss=True"):
                async with durable(a):
                    pass
            async with durable(a, accept_loss=True) as events:
                await within(a.publish({"x": 1}, b"later"))
                assert await read(events, 1) == [b"later"]

    asyncio.run(main())


def test_status_has_its_position_and_lag(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            connected(server, "a") as a,
        ):
            await within(a.advertise(where=WHERE))
            async with durable(a, acknowledge="manual") as events:
                for _ in range(3):
                    await within(a.publish({"x": 1}))
                await within((await within(anext(events))).ack())
            assert server.status is not None
            (one,) = [each for each in server.status._measure() if each.name == "content/billing"]
            assert (one.position, one.lag, one.topics) == (1, 2, ("content",))
            shown = json.loads(server.status._encoded(None))["subscriptions"]
            assert {
                "name": "content/billing",
                "durable": True,
                "position": 1,
                "lag": 2,
            }.items() <= (next(each for each in shown if each["name"] == "content/billing").items())
            hidden = json.loads(server.status._encoded(("orders",)))["subscriptions"]
            assert not hidden

    asyncio.run(main())


def test_reader_that_vanishes_leaves_no_session_and_its_mailbox_stays(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with tree(tmp_path, 2) as servers:
            async with connected(servers[1], "a") as a, durable(a):
                pass
            brokers = [server.content.broker for server in servers if server.content is not None]
            await until(lambda: not any(broker.sessions for broker in brokers), "they are gone")
            assert sorted(name for broker in brokers for name in broker.clients) == [
                "durable/billing"
            ]

    asyncio.run(main())
