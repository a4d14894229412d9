"""Relayed frames on a server with users: every frame type, permitted, forged and forbidden."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.server.helpers import People, read, serving, until, within
from tests.server.raw import Raw
from tests.server.test_server import chain

import ensue
from ensue.core.errors import AccessDenied
from ensue.core.event import Event, Stamp
from ensue.protocols.causal import frames as cube
from ensue.protocols.deadline import frames as gossip
from ensue.protocols.deadline.codec import rows_digest
from ensue.protocols.interface import Frame
from ensue.protocols.membership.frames import (
    Deregister,
    Evicted,
    Members,
    Register,
    TopicDenied,
    TopicRequest,
)
from ensue.protocols.topic_log.fanout import Declined
from ensue.protocols.topic_log.frames import Accepted, Attached, AttachRequest, Fetch, Put, Taken
from ensue.protocols.total.frames import ChangeRequest, OrderRequest, Refused, Stamped
from ensue.server import Server

CAUSAL, DEADLINE = "node-1/causal", "node-1/deadline"
BANK, READER, EVIL, NOBODY = 0, 1, 2, 3
"""Numbers at the registry. Bank publishes on `open`; Reader and Evil read it; Nobody may not."""
NAMES = ("bank~1", "reader~1", "evil~1", "nobody~1")
PEOPLE = People(
    bank=(["open"], ["open"]), reader=([], ["open"]), evil=([], ["open"]), nobody=([], ["other"])
)
EVERYTHING = (["*"], ["*"])
EVERYBODY = People(bank=EVERYTHING, reader=EVERYTHING, evil=EVERYTHING, nobody=EVERYTHING)
MARK = cube.Alive()


def event(publisher: int = BANK, number: int = 1, **changes: object) -> Event:
    made = Event(
        topic="open",
        payload=b"pay",
        publisher=NAMES[publisher],
        publisher_seq=number,
        published_at_ns=1,
        headers={"b": "1", "a": "2"},
    )
    return msgspec.structs.replace(made, **changes)


def item(publisher: int = BANK, number: int = 1) -> cube.Item:
    return cube.Item(event(publisher, number))


def row(node: int, *topics: str, version: int = 1) -> cube.Row:
    return cube.Row(node, version, topics)


def publication(*items: cube.Item) -> cube.Publication:
    return cube.Publication(token=1, height=1, below=b"", items=items)


def fill(*items: cube.Item, topic: str = "open") -> cube.Fill:
    return cube.Fill(topic=topic, request=1, items=items, more=False)


def change(one: cube.Row, *joins: str) -> cube.Change:
    return cube.Change(token=1, height=1, below=b"", row=one, joins=joins)


def receipt(*rows: cube.Row, **vectors: cube.Counts) -> cube.Receipt:
    return cube.Receipt(token=1, covered=b"\1", final=True, rows=rows, vectors=vectors)


def summary(follows: bool = False, **have: int) -> cube.Summary:
    counts = {int(name[1:]): count for name, count in have.items()}
    return cube.Summary(topic="open", have=counts, follows=follows)


def message(publisher: int = BANK, source: int = BANK, **changes: object) -> gossip.Message:
    stamped = event(publisher, stamp=Stamp({"@r": 5, "@d": 9}))
    made = gossip.Message(
        event=stamped, source=source, dest=b"\x02", base=0, after={}, round=0, live={}, heard=0
    )
    return msgspec.structs.replace(made, **changes)


def groups(node: int, *topics: str) -> gossip.Groups:
    return gossip.Groups(row=gossip.Row(node, 1, topics))


def noted(node: int, *topics: str) -> gossip.Noted:
    return gossip.Noted(version=1, row=gossip.Row(node, 1, topics))


class Case(NamedTuple):
    """Permitted claims of Bank about itself; forged ones of Evil, and those of Nobody."""

    own: Frame
    others: tuple[Frame, ...] = ()
    without_rights: tuple[Frame, ...] = ()


CASES: dict[type[Frame], Case] = {
    cube.Publication: Case(
        publication(item()),
        (publication(item(BANK, 2)), publication(item(READER))),
        (publication(item(NOBODY)), publication(item(BANK, 2))),
    ),
    cube.Fill: Case(
        fill(item()), (fill(item(BANK, 2)), fill(item(READER))), (fill(item(NOBODY)), fill())
    ),
    cube.Change: Case(
        change(row(BANK, "open"), "open"),
        (change(row(BANK, version=9)), change(row(EVIL, "open"), "secret")),
        (change(row(NOBODY, "open")), change(row(READER, version=9))),
    ),
    cube.Receipt: Case(
        receipt(row(BANK, "open"), open={BANK: 3}),
        (receipt(row(BANK, version=9)), receipt(open={BANK: 10**12}), receipt(open={EVIL: 1})),
        (receipt(row(NOBODY, "open")), receipt(open={BANK: 10**12}), receipt(open={NOBODY: 1})),
    ),
    cube.Rows: Case(
        cube.Rows(rows=(row(BANK, "open"),)),
        (cube.Rows(rows=(row(READER, version=10**12),)),),
        (cube.Rows(rows=(row(READER, version=10**12),)), cube.Rows(rows=(row(NOBODY, "open"),))),
    ),
    cube.Versions: Case(
        cube.Versions(versions={BANK: 4}),
        (cube.Versions(versions={READER: 10**12}),),
        (cube.Versions(versions={READER: 10**12}),),
    ),
    cube.Summary: Case(
        summary(n0=3),
        (summary(n0=10**12), summary(n2=1)),
        (summary(n0=0), summary(follows=True), summary(n3=1)),
    ),
    cube.NotCached: Case(
        cube.NotCached(topic="open", source=BANK, up_to=3),
        (cube.NotCached(topic="open", source=BANK, up_to=10**12),),
        (cube.NotCached(topic="open", source=BANK, up_to=0),),
    ),
    cube.Heartbeat: Case(cube.Heartbeat(digest=b"d")),
    cube.Alive: Case(cube.Alive()),
    gossip.Message: Case(
        message(),
        (message(), message(EVIL, BANK), message(BANK, EVIL)),
        (message(NOBODY, NOBODY), message()),
    ),
    gossip.Groups: Case(
        groups(BANK, "open"), (groups(READER),), (groups(NOBODY, "open"), groups(READER))
    ),
    gossip.Noted: Case(
        noted(BANK, "open"), (noted(READER),), (noted(NOBODY, "open"), noted(READER))
    ),
    gossip.Summary: Case(gossip.Summary(have={BANK: (5,)}, heard=0)),
    gossip.Request: Case(gossip.Request(wanted={BANK: (5,)})),
}
"""By type: the claims of each. A frame without `others` claims nothing about others."""


def unsealed(frame: Frame) -> Frame:
    """Return the frame as its sender sent it."""
    match frame:
        case cube.Publication(items=items) | cube.Fill(items=items):
            bare = tuple(msgspec.structs.replace(each, proof=b"") for each in items)
            return msgspec.structs.replace(frame, items=bare)
        case cube.Receipt(rows=rows) | cube.Rows(rows=rows):
            plain = tuple(msgspec.structs.replace(each, proof=b"") for each in rows)
            return msgspec.structs.replace(frame, rows=plain)
        case cube.Change(row=one):
            return msgspec.structs.replace(frame, row=msgspec.structs.replace(one, proof=b""))
        case gossip.Message():
            return msgspec.structs.replace(frame, proof=b"")
    return frame


def registry_of(kind: type[Frame]) -> str:
    return DEADLINE if kind in gossip.BETWEEN_BROKERS else CAUSAL


class Room:
    """Four users on raw connections, registered in the order of their numbers."""

    def __init__(self, server: Server, raws: tuple[Raw, ...]) -> None:
        self.server, self.raws = server, raws

    def send(self, sender: int, receiver: int, *frames: Frame) -> None:
        self.raws[sender].bundle(NAMES[sender], *frames, target=NAMES[receiver])

    async def passes(self, sender: int, receiver: int, frame: Frame) -> Frame:
        """Send a frame that must arrive; return it as received."""
        self.send(sender, receiver, frame)
        return await self.raws[receiver].frame()

    async def is_refused(self, sender: int, receiver: int, *frames: Frame) -> None:
        """Send frames that must be dropped, each followed by one that must arrive."""
        for frame in frames:
            before = self.faults
            assert await self.passes(sender, receiver, MARK) == MARK
            self.send(sender, receiver, frame, MARK)
            assert await self.raws[receiver].frame() == MARK, frame
            assert self.faults == before + 1, frame

    @property
    def faults(self) -> int:
        assert self.server.listener is not None
        errors = self.server.listener.errors
        return errors["permission"] + errors["forged"]


@asynccontextmanager
async def room(
    tmp_path: Path, registry: str = CAUSAL, users: People = PEOPLE
) -> AsyncIterator[Room]:
    async with serving(tmp_path / "d", access=users.access) as server:
        raws = []
        for name in NAMES:
            raw = await Raw.hello(server, token=users.tokens[name.partition("~")[0]])
            assert await raw.enter(name) is None
            raws.append(raw)
            raw.bundle(name, Register(epoch=0, known=0, gone=0), target=registry)
            for each in raws:
                assert isinstance(await each.frame(), Members)
        yield Room(server, tuple(raws))
        for raw in raws:
            raw.close()


def test_table_lists_every_relayed_frame_type() -> None:
    assert set(CASES) == {*cube.FRAMES, *gossip.BETWEEN_BROKERS}


@pytest.mark.parametrize(
    "kind", CASES, ids=lambda kind: f"{kind.__module__.split('.')[2]}.{kind.__name__}"
)
def test_client_may_claim_only_what_it_is_permitted_about_itself(
    tmp_path: Path, kind: type[Frame]
) -> None:
    case = CASES[kind]
    assert {type(each) for each in (case.own, *case.others, *case.without_rights)} == {kind}

    async def main() -> None:
        async with room(tmp_path, registry_of(kind)) as people:
            assert unsealed(await people.passes(BANK, READER, case.own)) == case.own
            await people.is_refused(EVIL, READER, *case.others)
            await people.is_refused(NOBODY, READER, *case.without_rights)
            assert people.server.listener is not None
            assert people.server.listener.errors["protocol"] == 0

    asyncio.run(main())


def test_relay_drops_topics_that_the_receiver_may_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with room(tmp_path) as people:
            gone = cube.NotCached(topic="open", source=BANK, up_to=0)
            frames = (publication(item()), fill(item()), summary(n0=1), gone)
            await people.is_refused(BANK, NOBODY, *frames)
        async with room(tmp_path / "2", DEADLINE) as people:
            await people.is_refused(BANK, NOBODY, message())

    asyncio.run(main())


def test_sealed_events_and_subscriptions_are_relayed_unchanged(tmp_path: Path) -> None:
    async def main() -> None:
        async with room(tmp_path) as people:
            sent = await people.passes(BANK, READER, publication(item(), item(BANK, 2)))
            assert isinstance(sent, cube.Publication)
            assert all(each.proof for each in sent.items)
            assert await people.passes(READER, EVIL, sent) == sent
            assert await people.passes(EVIL, READER, fill(*sent.items)) == fill(*sent.items)
            sealed_change = await people.passes(BANK, READER, change(row(BANK, "open"), "open"))
            assert isinstance(sealed_change, cube.Change)
            assert await people.passes(READER, NOBODY, sealed_change) == sealed_change
            # A user without permissions forwards rows too: every client keeps all rows.
            rows = cube.Rows(rows=(sealed_change.row,))
            assert await people.passes(NOBODY, READER, rows) == rows
            assert people.faults == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "change_item",
    [
        lambda each: cube.Item(
            msgspec.structs.replace(each.event, payload=b"more"), {}, each.proof
        ),
        lambda each: cube.Item(
            msgspec.structs.replace(each.event, publisher_seq=2), {}, each.proof
        ),
        lambda each: cube.Item(
            msgspec.structs.replace(each.event, headers={"a": "3"}), {}, each.proof
        ),
        lambda each: cube.Item(each.event, {"open": {EVIL: 1}}, each.proof),
        lambda each: cube.Item(each.event, {}, bytes(16)),
        lambda each: cube.Item(each.event, {}, each.proof[:8]),
    ],
)
def test_seal_covers_an_event_and_its_barrier(
    tmp_path: Path, change_item: Callable[[cube.Item], cube.Item]
) -> None:
    async def main() -> None:
        async with room(tmp_path) as people:
            sent = await people.passes(BANK, EVIL, publication(item()))
            assert isinstance(sent, cube.Publication)
            false = change_item(sent.items[0])
            await people.is_refused(EVIL, READER, fill(false))
            # The other events of the same frame arrive.
            mixed = await people.passes(EVIL, READER, fill(false, *sent.items))
            assert mixed == fill(*sent.items)

    asyncio.run(main())


def test_seal_covers_a_message_and_its_causal_past(tmp_path: Path) -> None:
    after = {BANK: {2: b"\x02", 1: b"\x04"}, READER: {3: b"\x01"}}
    own = message(after=after, digest=rows_digest(after))

    async def main() -> None:
        async with room(tmp_path, DEADLINE, EVERYBODY) as people:
            await people.passes(READER, BANK, message(READER, READER))
            # As differences from an earlier one; clients that forward it send it whole.
            sent = await people.passes(
                BANK, EVIL, msgspec.structs.replace(own, base=4, after={READER: {3: b"\x01"}})
            )
            assert isinstance(sent, gossip.Message)
            turned = {READER: {3: b"\x01"}, BANK: {1: b"\x04", 2: b"\x02"}}
            whole = msgspec.structs.replace(sent, base=0, after=turned, heard=7)
            assert await people.passes(EVIL, READER, whole) == whole
            replace = msgspec.structs.replace
            await people.is_refused(
                EVIL,
                READER,
                sent,
                replace(whole, after={}),
                replace(whole, after={}, digest=rows_digest({})),
                replace(whole, dest=b"\x06"),
                replace(whole, source=EVIL),
                replace(whole, event=replace(sent.event, stamp=Stamp({"@r": 5, "@d": 10}))),
            )

    asyncio.run(main())


def test_messages_name_only_stamps_that_were_sent(tmp_path: Path) -> None:
    """A receiver drops a client's messages up to a stamp that a delivered message names."""

    def after(rows: gossip.Rows) -> gossip.Message:
        return message(EVIL, EVIL, after=rows, digest=rows_digest(rows))

    early, late = after({BANK: {1: b"\x02"}}), after({BANK: {3: b"\x04", 0: b"\x02"}})

    async def main() -> None:
        async with room(tmp_path, DEADLINE, EVERYBODY) as people:
            await people.is_refused(EVIL, READER, early)
            stamped = msgspec.structs.replace(message().event, stamp=Stamp({"@r": 4, "@d": 9}))
            await people.passes(BANK, EVIL, message(event=stamped))
            assert unsealed(await people.passes(EVIL, READER, early)) == early
            await people.is_refused(EVIL, READER, late)
            # Nor may a client forward a past that was sent as differences and sealed unseen.
            complete = msgspec.structs.replace(late, base=4, after={})
            sealed = await people.passes(EVIL, BANK, complete)
            assert isinstance(sealed, gossip.Message)
            whole = msgspec.structs.replace(sealed, base=0, after=late.after)
            await people.is_refused(BANK, READER, whole)

    asyncio.run(main())


def test_barriers_name_only_published_events(tmp_path: Path) -> None:
    def effect(count: int) -> cube.Publication:
        return publication(cube.Item(event(EVIL), {"open": {BANK: count}}))

    async def main() -> None:
        async with room(tmp_path, users=EVERYBODY) as people:
            await people.passes(BANK, EVIL, publication(item(), item(BANK, 2)))
            await people.is_refused(EVIL, READER, effect(3))
            assert unsealed(await people.passes(EVIL, READER, effect(2))) == effect(2)

    asyncio.run(main())


def test_seals_are_valid_after_a_restart(
    tmp_path: Path,
) -> None:
    async def enter_again(server: Server, user: str, name: str, members: Members) -> Raw:
        raw = await Raw.hello(server, token=PEOPLE.tokens[user])
        assert await raw.enter(name) is None
        again = Register(epoch=members.epoch, known=0, gone=0)
        raw.bundle(name, again, target=CAUSAL)
        assert isinstance(await raw.frame(), Members)
        return raw

    async def main() -> None:
        async with room(tmp_path) as people:
            sent = await people.passes(BANK, READER, publication(item(), item(BANK, 2)))
            people.raws[EVIL].bundle(
                NAMES[EVIL], Register(epoch=0, known=0, gone=0, asked=1), target=CAUSAL
            )
            members = await people.raws[EVIL].frame()
            assert isinstance(members, Members)
        assert isinstance(sent, cube.Publication)
        async with serving(tmp_path / "d", access=PEOPLE.access) as server:
            reader = await enter_again(server, "reader", NAMES[READER], members)
            evil = await enter_again(server, "evil", NAMES[EVIL], members)
            reader.bundle(NAMES[READER], fill(*sent.items), target=NAMES[EVIL])
            assert await evil.frame() == fill(*sent.items)
            reader.bundle(NAMES[READER], summary(n0=2), target=NAMES[EVIL])
            assert await evil.frame() == summary(n0=2)
            bank = await enter_again(server, "bank", NAMES[BANK], members)
            bank.bundle(NAMES[BANK], summary(n0=2), target=NAMES[READER])
            assert await reader.frame() == summary(n0=2)
            evil.bundle(NAMES[EVIL], summary(n0=10**12), MARK, target=NAMES[READER])
            assert await reader.frame() == summary(n0=2)
            assert await reader.frame() == MARK
            for raw in (reader, evil, bank):
                raw.close()

    asyncio.run(main())


def test_any_client_may_claim_that_a_departed_client_has_no_topics(tmp_path: Path) -> None:
    async def main() -> None:
        async with room(tmp_path) as people:
            empty = cube.Rows(rows=(row(BANK, version=8),))
            await people.is_refused(READER, EVIL, empty)
            people.raws[BANK].bundle(NAMES[BANK], Deregister(epoch=0), target=CAUSAL)
            for each in people.raws[1:]:
                assert isinstance(await each.frame(), Members)
            assert await people.passes(READER, EVIL, empty) == empty
            await people.is_refused(READER, EVIL, cube.Rows(rows=(row(BANK, "open", version=9),)))

    asyncio.run(main())


def test_without_users_nothing_is_sealed_and_everything_passes(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            raws = []
            for name in NAMES[:2]:
                raw = await Raw.hello(server)
                assert await raw.enter(name) is None
                raws.append(raw)
                raw.bundle(name, Register(epoch=0, known=0, gone=0), target=CAUSAL)
                for each in raws:
                    assert isinstance(await each.frame(), Members)
            raws[0].bundle(NAMES[0], publication(item(READER)), target=NAMES[1])
            assert await raws[1].frame() == publication(item(READER))
            for raw in raws:
                raw.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "order", [ensue.Causal(), ensue.Deadline(ms=1_000)], ids=["causal", "deadline"]
)
def test_user_without_permissions_gets_no_number(tmp_path: Path, order: ensue.Order) -> None:
    users = People(nobody=([], []))

    async def main() -> None:
        async with serving(tmp_path / "d", access=users.access) as server:
            with pytest.raises(AccessDenied, match="'nobody' may neither publish nor subscribe"):
                await within(ensue.connect(users.url(server, "nobody"), order=order).__aenter__())
            raw = await Raw.hello(server, token=users.tokens["nobody"])
            assert await raw.enter("nobody~1") is None
            raw.bundle("nobody~1", Register(epoch=0, known=0, gone=0), target=CAUSAL)
            assert isinstance(await raw.frame(), Evicted)
            assert server.status is not None
            assert not any(each.names for each in server.status.relayed_orders.registries.values())
            raw.close()

    asyncio.run(main())


# -- Sequenced and fanned-out events ---------------------------------------------------------------


def _refused(answer: Frame) -> bool:
    return isinstance(answer, Refused | Declined | TopicDenied) or (
        isinstance(answer, Attached) and answer.next == 1
    )


def order_request(publisher: int) -> OrderRequest:
    return OrderRequest(number=1, events=(event(publisher),), settled=1)


@pytest.mark.parametrize(
    ("target", "make"),
    [
        ("node-1", order_request),
        ("node-1/none", lambda publisher: Put(event=event(publisher))),
        ("node-1/merged", lambda publisher: Put(event=event(publisher, stamp=Stamp({"@r": 5})))),
    ],
)
def test_publishing_as_another_or_without_permission_is_rejected(
    tmp_path: Path, target: str, make: Callable[[int], Frame]
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", access=PEOPLE.access) as server:
            for user, publisher, passes in (
                ("bank", BANK, True), ("bank", READER, False), ("evil", EVIL, False),
                ("nobody", NOBODY, False), ("evil", BANK, False),
            ):  # fmt: skip
                raw = await Raw.hello(server, token=PEOPLE.tokens[user])
                assert await raw.enter(f"{user}~1") is None
                raw.bundle(f"{user}~1", make(publisher), target=target)
                if passes or target == "node-1" or f"{user}~1" == NAMES[publisher]:
                    assert _refused(await raw.frame()) is not passes
                else:
                    assert "sent it" in (await raw.farewell()).reason
                raw.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("target", "frame"),
    [
        ("node-1", AttachRequest(topic="open", from_slot=1)),
        ("node-1", Fetch(topic="open", start=1, stop=0)),
        ("node-1", ChangeRequest(number=1, old=(), new=("open",))),
        ("node-1/none", AttachRequest(topic="open", from_slot=0)),
        ("node-1/merged", AttachRequest(topic="open", from_slot=0)),
        ("node-1/causal", TopicRequest(topic="open", action="subscribe")),
        ("node-1/causal", TopicRequest(topic="open", action="publish")),
        ("node-1/deadline", TopicRequest(topic="open", action="subscribe")),
    ],
)
def test_reading_without_permission_is_rejected(tmp_path: Path, target: str, frame: Frame) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", access=PEOPLE.access) as server:
            nobody = await Raw.hello(server, token=PEOPLE.tokens["nobody"])
            assert await nobody.enter("nobody~1") is None
            nobody.bundle("nobody~1", frame, target=target)
            assert _refused(await nobody.frame())
            assert server.listener is not None
            assert server.listener.errors["permission"] == 1
            nobody.close()

    asyncio.run(main())


def test_connection_sends_only_from_its_own_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with room(tmp_path) as people:
            people.raws[EVIL].bundle(NAMES[BANK], publication(item()), target=NAMES[READER])
            assert "does not own the name" in (await people.raws[EVIL].farewell()).reason
            again = await Raw.hello(people.server, token=PEOPLE.tokens["evil"])
            assert await again.enter(NAMES[BANK]) == "the name belongs to another user"
            again.close()
            await until(lambda: people.faults == 1)

    asyncio.run(main())


def test_stamps_sent_to_another_server_are_sealed(
    tmp_path: Path,
) -> None:
    users = People(bank=(["*"], ["*"]), evil=(["t0"], []))
    access = msgspec.structs.replace(users.access, station_secret="s" * 40)

    async def main() -> None:
        servers = await chain(tmp_path, 2, access=access)
        first = servers[0]
        replace = msgspec.structs.replace
        async with (
            ensue.connect(users.url(first, "bank")) as bank,
            bank.subscribe("t0", "t1") as events,
        ):
            # Both servers order the two topics together.
            for number in range(3):
                await within(bank.publish(f"t{number % 2}", b"%d" % number))
            raws = []
            for server in servers:
                raw = await Raw.hello(server, token=users.tokens["evil"])
                assert await raw.enter(NAMES[EVIL]) is None
                raws.append(raw)
            asked = event(EVIL, topic="t0")
            raws[0].bundle(
                NAMES[EVIL], OrderRequest(number=1, events=(asked,), settled=1), target="s0"
            )
            told = await raws[1].frame()
            assert isinstance(told, Stamped)
            (grant,) = told.grants
            slot = grant.stamp.entries["t0"]
            stamped = replace(asked, stamp=grant.stamp)
            ahead = Stamp({**grant.stamp.entries, "t1": 10**9}, grant.stamp.whole)
            for lie in (
                Put(event=stamped),
                Put(event=stamped, proof=bytes(16)),
                Put(event=replace(stamped, stamp=ahead), proof=grant.proof),
                Put(event=replace(stamped, stamp=Stamp({"t0": slot - 1})), proof=grant.proof),
            ):
                raws[0].bundle(NAMES[EVIL], lie, target="s0")
                assert isinstance(await raws[0].frame(), Taken)
            raws[0].bundle(NAMES[EVIL], Put(event=stamped, proof=grant.proof), target="s0")
            assert isinstance(await raws[0].frame(), Accepted)
            await within(bank.publish("t1", b"3"))
            assert await read(events, 5) == [b"0", b"1", b"2", b"pay", b"3"]
            for raw in raws:
                raw.close()
        for server in servers:
            await server.stop()

    asyncio.run(main())
