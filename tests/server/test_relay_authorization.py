"""Relayed orders: the same permissions, limits and protocol rules apply."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.server.helpers import People, read, serving, until, within
from tests.server.raw import Raw
from tests.server.test_server import chain

import ensue
from ensue.core.errors import AccessDenied, EnsueError, EventRefused, SubscriptionRefused
from ensue.core.event import Event, Stamp
from ensue.protocols.causal.frames import Alive, Fill, Heartbeat, Item, Publication
from ensue.protocols.deadline.frames import Message, Rumors
from ensue.protocols.interface import Frame
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.membership.frames import (
    Deregister,
    Evicted,
    Members,
    Register,
    TopicDenied,
    TopicGranted,
    TopicRequest,
)
from ensue.protocols.topic_log.fanout import Agreed, Declined
from ensue.protocols.topic_log.frames import (
    Accepted,
    Attached,
    AttachRequest,
    DetachRequest,
    Fetch,
    Notify,
    Put,
)
from ensue.protocols.total.frames import ChangeRequest
from ensue.server.authorization import BUNDLE_ITEMS_MAX
from ensue.server.config import Limits
from ensue.transports.tcp.messages import Member

MERGED = ensue.Merged(epsilon=0.002, delta=0.3)
DEADLINE = ensue.Deadline(ms=5_000)
ORDERS = [MERGED, ensue.Causal(), ensue.Causal(across_topics=False), DEADLINE, None]
EVERYTHING = (["*"], ["*"])
MERGED_FANOUT, CUBE = "node-1/merged", "node-1/causal"


def name_of(order: ensue.Order | None) -> str:
    return "none" if order is None else f"{order.name}-{getattr(order, 'across_topics', '')}"


# -- Permissions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS, ids=name_of)
def test_permissions_apply_in_every_order(tmp_path: Path, order: ensue.Order | None) -> None:
    people = People(alice=(["shop.*", "open"], ["open"]), bob=EVERYTHING)

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            with pytest.raises(AccessDenied, match="token"):
                await within(ensue.connect(server.url, order=order).__aenter__())
            async with (
                ensue.connect(people.url(server, "alice"), order=order) as alice,
                ensue.connect(people.url(server, "bob"), order=order) as bob,
                bob.subscribe("open", "secret") as events,
            ):
                for _ in range(2):
                    with pytest.raises(EventRefused, match="'alice' may not publish on 'secret'"):
                        await within(alice.publish("secret", b"no"))
                await within(alice.publish("open", b"yes"))
                assert await read(events, 1) == [b"yes"]
                with pytest.raises(SubscriptionRefused, match="may not subscribe to 'secret'"):
                    async with alice.subscribe("open", "secret"):
                        pass
                await alice.publish("secret", b"no", receipt=False)
                with pytest.raises(EventRefused):
                    await within(alice.flush())
                async with alice.subscribe("open") as hers:
                    await within(bob.publish("secret", b"not for her"))
                    await within(bob.publish("open", b"for all"))
                    assert await read(hers, 1) == [b"for all"]
                assert await read(events, 2) == [b"not for her", b"for all"]
            assert server.listener is not None
            assert server.listener.errors["permission"] >= 2
            assert server.listener.errors["protocol"] == 0

    asyncio.run(main())


def test_publisher_across_topics_needs_permission_to_subscribe(tmp_path: Path) -> None:
    people = People(alice=(["drop"], []))

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            url = people.url(server, "alice")
            async with ensue.connect(url, order=ensue.Causal()) as bus:
                with pytest.raises(EventRefused, match="may not subscribe to 'drop'"):
                    await within(bus.publish("drop", b""))
            async with ensue.connect(url, order=ensue.Causal(across_topics=False)) as bus:
                await within(bus.publish("drop", b""))

    asyncio.run(main())


@pytest.mark.parametrize("order", ORDERS, ids=name_of)
def test_unplaced_and_too_deep_topics_are_rejected(
    tmp_path: Path, order: ensue.Order | None
) -> None:
    async def main() -> None:
        members = (Member("node-1", "127.0.0.1:1", ("known", "a.b.c")),)
        limits = Limits(topic_depth=2)
        async with (
            serving(
                tmp_path / "d", name="node-1", chain=members, closed=True, limits=limits
            ) as server,
            ensue.connect(server.url, order=order) as bus,
        ):
            for topic, said in (
                ("unknown", "no server of this chain hosts"),
                ("a.b.c", "topic_depth"),
            ):
                with pytest.raises(EventRefused, match=said):
                    await within(bus.publish(topic, b""))
                with pytest.raises(SubscriptionRefused, match=said):
                    async with bus.subscribe(topic):
                        pass
            await within(bus.publish("known", b""))

    asyncio.run(main())


def test_headers_and_topics_are_limited_at_a_fanout(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(headers_per_event=1, topics_per_subscription=2)
        async with (
            serving(tmp_path / "d", limits=limits) as server,
            ensue.connect(server.url, order=MERGED) as bus,
        ):
            with pytest.raises(EventRefused, match="too many headers"):
                await within(bus.publish("t", b"", headers={"a": "1", "b": "2"}))
            async with bus.subscribe("a", "b") as events:
                with pytest.raises(SubscriptionRefused, match="topics_per_subscription"):
                    await within(events.subscribe("c"))
                await events.unsubscribe("a")
                await within(events.subscribe("c"))

    asyncio.run(main())


def test_user_without_permissions_does_not_set_the_terms_of_merged_order(
    tmp_path: Path,
) -> None:
    people = People(nobody=([], []), reader=([], ["t"]), writer=(["t.*"], []))
    other = ensue.Merged(epsilon=0.5, delta=0.3)

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            async with (
                ensue.connect(people.url(server, "nobody"), order=other),
                ensue.connect(people.url(server, "reader"), order=MERGED),
                ensue.connect(people.url(server, "nobody"), order=other),
            ):
                with pytest.raises(AccessDenied, match=r"has epsilon=0\.002.*has epsilon=0\.5"):
                    await within(
                        ensue.connect(people.url(server, "writer"), order=other).__aenter__()
                    )
            async with ensue.connect(people.url(server, "writer"), order=other):
                pass

    asyncio.run(main())


def test_bus_with_outdated_terms_ends_with_its_subscriptions(tmp_path: Path) -> None:
    """As after a restart, if other clients connected first."""

    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, order=MERGED) as bus,
            bus.subscribe("t") as events,
        ):
            driver = bus._driver
            assert driver is not None
            driver._receive((Agreed(terms="epsilon=9"),), MERGED_FANOUT)
            with pytest.raises(AccessDenied, match=r"has epsilon=9, this bus has epsilon=0\.002"):
                await within(bus.publish("t", b""))
            with pytest.raises(EnsueError, match=r"has epsilon=9, this bus has epsilon=0\.002"):
                await within(anext(events))

    asyncio.run(main())


# -- Protocol rules --------------------------------------------------------------------------------


def event(**changes: object) -> Event:
    plain = Event(topic="t", payload=b"x", publisher="raw~1", publisher_seq=1, published_at_ns=1)
    return msgspec.structs.replace(plain, **changes)


def clocked(**changes: object) -> Event:
    return event(stamp=Stamp({"@r": 5}), **changes)


def publication(*events: Event) -> Publication:
    items = tuple(Item(each) for each in events)
    return Publication(token=1, height=1, below=b"", items=items)


def fill(*events: Event) -> Fill:
    items = tuple(Item(each) for each in events)
    return Fill(topic="t", request=1, items=items, more=False)


def message(event: Event) -> Message:
    return Message(event=event, source=0, dest=b"\x02", base=0, after={}, round=0, live={}, heard=0)


@pytest.mark.parametrize(
    ("target", "frame", "said"),
    [
        (MERGED_FANOUT, Put(event=clocked(publisher="other~1")), "but 'raw~1' sent it"),
        (MERGED_FANOUT, Put(event=clocked(void=True)), "has a place"),
        (MERGED_FANOUT, Put(event=clocked(place=7)), "has a place"),
        (MERGED_FANOUT, Put(event=event(stamp=Stamp({"t": 3}))), "has a place"),
        (MERGED_FANOUT, Put(event=clocked(published_at_ns=-1)), "published_at_ns is out of range"),
        (MERGED_FANOUT, Notify(event=clocked()), "Notify is not for a fan-out"),
        (MERGED_FANOUT, Fetch(topic="t", start=1, stop=0), "Fetch is not for a fan-out"),
        (CUBE, Put(event=event()), "Put is not for a registry"),
        (CUBE, Members(epoch=1, first=0, names=(), total=0, gone_first=0, gone=(), gone_total=0),
         "Members is not for a registry"),
        ("node-1", Heartbeat(digest=b""), "Heartbeat is not for clients to send"),
        ("node-1", Register(epoch=0, known=0, gone=0), "Register is not for clients to send"),
        ("node-2", Heartbeat(digest=b""), "no inbox 'node-2'"),
        ("raw~2", ChangeRequest(number=1, old=(), new=("t",)), "is not for other clients"),
        ("raw~2", Notify(event=clocked()), "Notify is not for other clients"),
        ("raw~2", publication(clocked()), "has a place"),
        ("raw~2", publication(event(void=True)), "has a place"),
        ("raw~2", fill(event(place=3)), "has a place"),
        ("raw~2", publication(event(published_at_ns=-1)), "published_at_ns is out of range"),
        ("nobody~1", publication(event(place=1)), "has a place"),
        ("raw~2", message(event()), "has a place"),
        ("raw~2", message(event(stamp=Stamp({"t": 1}))), "has a place"),
        ("raw~2", message(clocked(place=1)), "has a place"),
        ("raw~2", message(clocked(published_at_ns=-1)), "published_at_ns is out of range"),
        ("raw~2", Rumors(rumors=(), have=(), peers=()), "frame"),
    ],
)  # fmt: skip
def test_protocol_violations_close_the_connection(
    tmp_path: Path, target: str, frame: Frame, said: str
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            good = await Raw.hello(server)
            assert await good.enter("raw~2") is None
            await enrol(good, "raw~2")
            bad = await Raw.hello(server)
            assert await bad.enter("raw~1") is None
            bad.bundle("raw~1", frame, target=target)
            assert said in (await bad.farewell()).reason
            # The receiver never gets it.
            good.bundle("raw~2", Heartbeat(digest=b"mine"), target="raw~2")
            assert await good.frame() == Heartbeat(digest=b"mine")
            good.close()

    asyncio.run(main())


async def enrol(raw: Raw, name: str, *others: Raw, registry: str = CUBE) -> None:
    """Register, and read the answers to this client and the others."""
    raw.bundle(name, Register(epoch=0, known=0, gone=0), target=registry)
    for each in dict.fromkeys((raw, *others)):
        assert isinstance(await each.frame(), Members)


def test_clients_reach_only_members_of_the_same_registry(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            listener = server.listener
            assert listener is not None
            raws = {}
            for name, registry in (
                ("across~1", CUBE),
                ("across~2", CUBE),
                ("topic~1", f"{CUBE}-topic"),
                ("total~1", ""),
            ):
                raw = raws[name] = await Raw.hello(server)
                assert await raw.enter(name) is None
                if registry:
                    others = [raws["across~1"]] if name == "across~2" else []
                    await enrol(raw, name, *others, registry=registry)
            for source, target in (
                ("across~1", "topic~1"), ("across~1", "total~1"), ("total~1", "across~1"),
                ("topic~1", "across~1"),
            ):  # fmt: skip
                raws[source].bundle(source, publication(event(publisher=source)), target=target)
            await until(lambda: listener.dropped_unregistered == 4)
            raws["across~1"].bundle("across~1", Alive(), target="across~2")
            raws["across~2"].bundle("across~2", Alive(), target="across~1")
            for name in ("across~1", "across~2"):
                assert await raws[name].frame() == Alive()
            assert listener.relayed == {"Alive": 2}
            # A new connection has to register again.
            raws["across~2"].close()
            again = await Raw.hello(server)
            assert await again.enter("across~2") is None
            raws["across~1"].bundle("across~1", Alive(), target="across~2")
            await until(lambda: listener.dropped_unregistered == 5)
            await enrol(again, "across~2")
            raws["across~1"].bundle("across~1", Alive(), target="across~2")
            assert await again.frame() == Alive()
            again.close()
            for raw in raws.values():
                raw.close()

    asyncio.run(main())


def test_detaching_elsewhere_frees_no_topics(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(topics_per_subscription=2)
        async with serving(tmp_path / "d", limits=limits) as server:
            raw = await Raw.hello(server)
            assert await raw.enter("raw~1") is None

            async def attach(topic: str) -> Frame:
                raw.bundle("raw~1", AttachRequest(topic=topic, from_slot=0), target=MERGED_FANOUT)
                return await raw.frame()

            for topic in ("a", "b"):
                assert isinstance(await attach(topic), Attached)
                for elsewhere in ("node-1", "node-1/none"):
                    raw.bundle("raw~1", DetachRequest(topic=topic), target=elsewhere)
            assert isinstance(await attach("c"), Declined)
            raw.bundle("raw~1", DetachRequest(topic="a"), target=MERGED_FANOUT)
            assert isinstance(await attach("c"), Attached)
            raw.close()

    asyncio.run(main())


@pytest.mark.parametrize("across_topics", [True, False])
def test_topics_per_client_are_limited_in_causal_order(
    tmp_path: Path, *, across_topics: bool
) -> None:
    order = ensue.Causal(across_topics=across_topics)

    async def main() -> None:
        limits = Limits(topics_per_subscription=2)
        async with (
            serving(tmp_path / "d", limits=limits) as server,
            ensue.connect(server.url, order=order) as bus,
            bus.subscribe("a", "b") as events,
        ):
            with pytest.raises(SubscriptionRefused, match="topics_per_subscription"):
                await within(events.subscribe("c"))
            await events.unsubscribe("a")
            await within(events.subscribe("c"))
            with pytest.raises(SubscriptionRefused, match="topics_per_subscription"):
                await within(events.subscribe("a"))
            driver = bus._driver
            assert driver is not None
            # Nor over another connection, which has no topics yet.
            assert server.listener is not None
            for connection in server.listener.connections:
                connection.attached.clear()
            driver.repeat()
            await within(bus.publish("b", b"still here"))
            assert await read(events, 1) == [b"still here"]
            with pytest.raises(SubscriptionRefused, match="topics_per_subscription"):
                await within(events.subscribe("a"))

    asyncio.run(main())


def test_clients_relay_only_permitted_events_with_their_own_name(tmp_path: Path) -> None:
    people = People(alice=(["a"], ["a", "b"]), bob=(["b"], ["b"]), eve=([], ["other"]))

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            raws: dict[str, Raw] = {}
            for user in ("alice", "bob", "eve"):
                raw = raws[user] = await Raw.hello(server, token=people.tokens[user])
                assert await raw.enter(f"{user}~1") is None
                await enrol(raw, f"{user}~1", *raws.values())
            of_alice, of_bob = (
                event(topic=topic, publisher=f"{user}~1")
                for topic, user in (("a", "alice"), ("b", "bob"))
            )
            # Her own event to a client that may not read it; an event that she forwards.
            raws["alice"].bundle("alice~1", publication(of_alice), Alive(), target="bob~1")
            assert await raws["bob"].frame() == Alive()
            raws["bob"].bundle("bob~1", publication(of_bob), target="alice~1")
            sealed = await raws["alice"].frame()
            assert isinstance(sealed, Publication)
            assert sealed.items[0].event == of_bob
            raws["alice"].bundle("alice~1", sealed, target="bob~1")
            assert await raws["bob"].frame() == sealed
            # The same for messages with deadlines.
            stamped = event(topic="a", publisher="alice~1", stamp=Stamp({"@r": 5, "@d": 9}))
            raws["alice"].bundle("alice~1", message(stamped), target="bob~1")
            # Bob forwards what he may not read; Eve publishes what she may not.
            raws["bob"].bundle("bob~1", publication(of_alice), Alive(), target="alice~1")
            forged = event(topic="a", publisher="eve~1")
            raws["eve"].bundle("eve~1", publication(forged), Alive(), target="alice~1")
            assert [await raws["alice"].frame() for _ in range(2)] == [Alive(), Alive()]
            assert server.listener is not None
            assert server.listener.errors == {"permission": 4}
            # To a disconnected client it is dropped, as on any network.
            raws["alice"].bundle("alice~1", Alive(), target="gone~1")
            await until(lambda: server.listener is not None and server.listener.dropped == 1)
            # No client may send with another's name.
            raws["eve"].bundle("bob~1", Alive(), target="alice~1")
            assert "does not own the name" in (await raws["eve"].farewell()).reason
            for user in ("alice", "bob"):
                raws[user].close()

    asyncio.run(main())


def test_disconnected_client_is_detached_from_a_fanout(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            fanout = server._fanouts[0].node
            assert fanout.name == MERGED_FANOUT
            leaves: list[Callable[[Raw], object]] = [
                lambda raw: raw.close(),
                lambda raw: raw.bundle(
                    "raw~1", AttachRequest(topic="u", from_slot=0), target=MERGED_FANOUT
                ),
            ]
            for leave in leaves:
                raw = await Raw.hello(server)
                assert await raw.enter("raw~1") is None
                raw.bundle("raw~1", AttachRequest(topic="t", from_slot=0), target=MERGED_FANOUT)
                assert await raw.frame() == Attached(topic="t", first=1, next=1, sent=1)
                raw.bundle("raw~1", Put(event=clocked()), target=MERGED_FANOUT)
                answers = {type(await raw.frame()) for _ in range(2)}
                assert answers == {Accepted, Notify}
                leave(raw)
                raw.close()
                await until(lambda: fanout.attachments == 0, "nobody listens any more")

    asyncio.run(main())


@pytest.mark.parametrize("across_topics", [True, False])
def test_event_with_many_headers_arrives_in_causal_order(
    tmp_path: Path, *, across_topics: bool
) -> None:
    order = ensue.Causal(across_topics=across_topics)
    many = {f"h{number}": "x" for number in range(5)}

    async def main() -> None:
        async with (
            serving(tmp_path / "d", limits=Limits(headers_per_event=4)) as server,
            ensue.connect(server.url, order=order) as bob,
            ensue.connect(server.url, order=order) as alice,
            bob.subscribe("open") as events,
        ):
            await within(alice.publish("open", b"with many", headers=many))
            assert await read(events, 1) == [b"with many"]

    asyncio.run(main())


def test_evicted_client_gets_the_reason_and_sends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            bus = await ensue.connect(server.url, order=ensue.Causal()).__aenter__()
            events = bus.subscribe("t")
            await within(events.__aenter__())
            driver = bus._driver
            assert driver is not None
            registry = server._registries[0]
            registry.command(lambda node, _now: node._part(list(node.present)))
            driver.repeat()
            with pytest.raises(ensue.SubscriptionLost, match="connect again"):
                await read(events, 1)
            with pytest.raises(AccessDenied, match=r"away for too long.*connect again"):
                await bus.publish("t", b"")
            await until(lambda: driver.closed, "its node does nothing any more")
            await within(bus.close())
            async with (
                ensue.connect(server.url, order=ensue.Causal()) as again,
                again.subscribe("t") as anew,
            ):
                await within(again.publish("t", b"here again"))
                assert await read(anew, 1) == [b"here again"]

    asyncio.run(main())


def test_repeated_registration_in_a_bundle_is_answered_once(tmp_path: Path) -> None:
    ask = Register(epoch=0, known=0, gone=0)

    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            raw = await Raw.hello(server)
            assert await raw.enter("a~1") is None
            raw.bundle("a~1", *[ask] * 1_000, target=CUBE)
            raw.bundle("a~1", TopicRequest(topic="t", action="publish"), target=CUBE)
            assert isinstance(await raw.frame(), Members)
            assert isinstance(await raw.frame(), TopicGranted)
            raw.bundle("a~1", *[ask] * (BUNDLE_ITEMS_MAX + 1), target=CUBE)
            assert "bundle has more than" in (await raw.farewell()).reason
            raw.close()

    asyncio.run(main())


def test_registry_answers_and_persists(tmp_path: Path) -> None:
    people = People(alice=(["a"], ["a"]))

    async def main() -> None:
        epochs = set()
        lists = KnownMembers()
        for turn in range(2):
            async with serving(tmp_path / "d", access=people.access) as server:
                raw = await Raw.hello(server, token=people.tokens["alice"])
                name = f"raw~{turn}"
                assert await raw.enter(name) is None
                if turn:
                    # New clients get no number before the earlier ones have registered.
                    assert await raw.enter("raw~0") is None
                    raw.bundle("raw~0", lists.question(), target=CUBE)
                    assert isinstance(await raw.frame(), Members)
                raw.bundle(name, Register(epoch=0, known=0, gone=0), target=CUBE)
                answers = [await raw.frame() for _ in range(1 + turn)]
                members = next(each for each in answers if getattr(each, "first", 1) == 0)
                assert isinstance(members, Members)
                lists.take(members)
                assert members.names == tuple(f"raw~{each}" for each in range(turn + 1))
                epochs.add(members.epoch)
                raw.bundle(name, TopicRequest(topic="b", action="publish"), target=CUBE)
                denied = await raw.frame()
                assert isinstance(denied, TopicDenied)
                assert "may not publish on 'b'" in denied.reason
                if turn:
                    raw.bundle(name, Deregister(epoch=members.epoch), target=CUBE)
                    raw.bundle(name, Register(epoch=members.epoch, known=0, gone=0), target=CUBE)
                    answers = [await raw.frame() for _ in range(2)]
                    assert any(isinstance(each, Evicted) for each in answers)
                raw.close()
        assert len(epochs) == 1

    asyncio.run(main())


@pytest.mark.parametrize("order", ORDERS, ids=name_of)
def test_chain_of_servers_supports_every_order(tmp_path: Path, order: ensue.Order | None) -> None:
    """Whichever server a client connects to, with topics of several servers."""

    async def main() -> None:
        servers = await chain(tmp_path, 3)
        try:
            async with (
                ensue.connect(servers[2].url, order=order) as one,
                ensue.connect(servers[1].url, order=order) as other,
                one.subscribe("t0", "t1", "t2") as here,
                other.subscribe("t2", "t0", "t1") as there,
            ):
                wanted = [b"%d" % number for number in range(9)]
                for number, text in enumerate(wanted):
                    await within((one, other)[number % 2].publish(f"t{number % 3}", text))
                got = [await read(events, 9) for events in (here, there)]
                assert sorted(got[0]) == sorted(got[1]) == wanted
                if order == MERGED:
                    assert got[0] == got[1]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_declined_event_is_named(tmp_path: Path) -> None:
    people = People(alice=([], []))

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            raw = await Raw.hello(server, token=people.tokens["alice"])
            assert await raw.enter("raw~1") is None
            raw.bundle("raw~1", Put(event=clocked()), target=MERGED_FANOUT)
            declined = await raw.frame()
            assert isinstance(declined, Declined)
            assert (declined.topic, declined.event) == ("t", "raw~1/t/1")
            raw.close()

    asyncio.run(main())
