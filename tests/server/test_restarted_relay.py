"""A relay after a restart: no client may claim more of another than it has published."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.server.helpers import People, read, serving, until, within
from tests.server.raw import Raw
from tests.server.test_relay_claims import (
    BANK,
    CAUSAL,
    DEADLINE,
    EVERYBODY,
    EVIL,
    MARK,
    NAMES,
    NOBODY,
    PEOPLE,
    READER,
    Room,
    event,
    fill,
    item,
    message,
    publication,
    receipt,
    room,
    summary,
)

import ensue
from ensue.core import platform
from ensue.core.event import Stamp
from ensue.protocols.causal import frames as cube
from ensue.protocols.deadline import frames as gossip
from ensue.protocols.deadline.codec import rows_digest
from ensue.protocols.interface import Frame
from ensue.protocols.membership.frames import Deregister, Members, Register
from ensue.server import relay_claims as claims_module
from ensue.server import server as serving_module
from ensue.server.authorization import BUNDLE_TOO_LARGE

MANY = 10**12


async def epoch_of(people: Room, registry: str) -> int:
    ask = Register(epoch=0, known=0, gone=0, asked=1)
    people.raws[EVIL].bundle(NAMES[EVIL], ask, target=registry)
    told = await people.raws[EVIL].frame()
    assert isinstance(told, Members)
    return told.epoch


class Again(Room):
    """The same clients on new connections, if they have reconnected."""

    def __init__(self, people: Room, users: People, registry: str, epoch: int) -> None:
        super().__init__(people.server, ())
        self.users, self.registry, self.epoch = users, registry, epoch
        self.back: dict[int, Raw] = {}

    async def come(self, number: int) -> None:
        name = NAMES[number]
        raw = await Raw.hello(self.server, token=self.users.tokens[name.partition("~")[0]])
        assert await raw.enter(name) is None
        raw.bundle(name, Register(epoch=self.epoch, known=0, gone=0), target=self.registry)
        assert isinstance(await raw.frame(), Members)
        self.back[number] = raw
        self.raws = tuple(self.back.get(each, raw) for each in range(len(NAMES)))

    async def is_asked(self, number: int, *counts: int) -> None:
        """Check which events of Bank the registry asks a client for."""
        for count in counts:
            assert await self.raws[number].frame() == question(count)

    def prove(self, number: int, *items: cube.Item) -> None:
        self.raws[number].bundle(NAMES[number], fill(*items), target=self.registry)


@asynccontextmanager
async def again(
    data: Path, registry: str, epoch: int, *comers: int, users: People = EVERYBODY
) -> AsyncIterator[Again]:
    async with serving(data, access=users.access) as server:
        people = Again(Room(server, ()), users, registry, epoch)
        for number in comers:
            await people.come(number)
        yield people
        for raw in people.back.values():
            raw.close()


def question(count: int, topic: str = "open") -> cube.Summary:
    """Return the registry's question for one event of Bank."""
    return cube.Summary(topic, {BANK: count - 1}, follows=True, request=1, only=(BANK,), room=1)


def claims(count: int) -> Sequence[Frame]:
    """Return frames of Evil that claim a count of Bank's events."""
    return (
        summary(n0=count),
        receipt(open={BANK: count}),
        cube.NotCached(topic="open", source=BANK, up_to=count),
        publication(cube.Item(event(EVIL), {"open": {BANK: count}})),
    )


def test_counts_before_a_restart_are_trusted_up_to_the_published_ones(
    tmp_path: Path,
) -> None:
    """A false count would make a subscriber wait, give up, and drop later events."""

    async def main() -> None:
        async with room(tmp_path, users=EVERYBODY) as people:
            await people.passes(BANK, READER, publication(item(), item(BANK, 2)))
            epoch = await epoch_of(people, CAUSAL)
        async with again(tmp_path / "d", CAUSAL, epoch, READER, EVIL) as people:
            assert await people.passes(EVIL, READER, summary(n0=3)) == summary(n0=2)
            for more, enough in zip(claims(3)[1:], claims(2)[1:], strict=True):
                await people.is_refused(EVIL, READER, more)
                assert type(await people.passes(EVIL, READER, enough)) is type(enough)

    asyncio.run(main())


@pytest.mark.parametrize("written", [False, True])
def test_counts_lost_in_a_kill_are_trusted_once_proved(
    tmp_path: Path, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_module, "MARKS_S", 0.01 if written else 3_600.0)

    async def main() -> None:
        async with room(tmp_path, users=EVERYBODY) as people:
            sent = await people.passes(BANK, READER, publication(item(), item(BANK, 2)))
            assert isinstance(sent, cube.Publication)
            epoch = await epoch_of(people, CAUSAL)
            journal = people.server.journal
            assert journal is not None
            if written:
                await until(lambda: any(key.endswith("counts/open") for key in journal.records))
            assert people.server._commit is not None
            await people.server._commit.sync()
            shutil.copytree(tmp_path / "d", tmp_path / "killed")
        async with again(tmp_path / "killed", CAUSAL, epoch, READER, EVIL) as people:
            if not written:
                assert await people.passes(READER, EVIL, summary(n0=2)) == summary()
                await people.is_refused(READER, EVIL, *claims(2)[1:3])
                await people.is_asked(READER, 2, 2, 2)
                passed = fill(*sent.items)
                assert await people.passes(READER, EVIL, passed) == passed
            assert await people.passes(EVIL, READER, summary(n0=3)) == summary(n0=2)
            await people.is_refused(EVIL, READER, *claims(3)[1:])
            await people.is_asked(EVIL, 3, 3, 3, 3)
            for enough in claims(2)[:3]:
                assert await people.passes(READER, EVIL, enough) == enough
            await people.come(BANK)
            await people.passes(BANK, READER, summary(n0=MANY))
            for enough in claims(MANY)[:3]:
                assert await people.passes(READER, EVIL, enough) == enough

    asyncio.run(main())


@asynccontextmanager
async def killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *comers: int, users: People = EVERYBODY
) -> AsyncIterator[tuple[Again, tuple[cube.Item, ...]]]:
    """Restart a server that lost how many events Bank had published; yield two, sealed."""
    monkeypatch.setattr(serving_module, "MARKS_S", 3_600.0)
    async with room(tmp_path, users=users) as people:
        sent = await people.passes(BANK, READER, publication(item(), item(BANK, 2)))
        assert isinstance(sent, cube.Publication)
        epoch = await epoch_of(people, CAUSAL)
        assert people.server._commit is not None
        await people.server._commit.sync()
        shutil.copytree(tmp_path / "d", tmp_path / "killed")
    async with again(tmp_path / "killed", CAUSAL, epoch, *comers, users=users) as people_again:
        yield people_again, sent.items


def test_only_holder_of_an_event_proves_counts_lost_in_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start vectors would be dropped until Bank expires. Nobody may not read the event."""
    start = receipt(open={BANK: 2})

    async def main() -> None:
        comers = (READER, NOBODY)
        async with killed(tmp_path, monkeypatch, *comers, users=PEOPLE) as (people, items):
            await people.is_refused(READER, NOBODY, start)
            await people.is_asked(READER, 2)
            people.prove(READER, items[1])
            assert await people.passes(READER, NOBODY, start) == start
            await people.is_refused(READER, NOBODY, receipt(open={BANK: 3}))

    asyncio.run(main())


def test_count_is_proved_by_a_seal_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = receipt(open={BANK: 2})

    async def main() -> None:
        async with killed(tmp_path, monkeypatch, READER, EVIL) as (people, items):
            first, second = items
            for false in (
                item(BANK, 2),
                msgspec.structs.replace(second, after={"open": {READER: 1}}),
                cube.Item(event(BANK, 2), {}, first.proof),
                cube.Item(event(EVIL, 2), {}, second.proof),
                cube.Item(msgspec.structs.replace(second.event, publisher="x~1"), {}, second.proof),
            ):
                before = people.faults
                people.prove(EVIL, false)
                assert await people.passes(EVIL, READER, MARK) == MARK
                assert people.faults == before + 1, false
            people.prove(EVIL, first)
            await people.is_refused(EVIL, READER, start)
            await people.is_asked(EVIL, 2)

    asyncio.run(main())


def test_registry_asks_about_all_doubtful_counts_of_a_bundle_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "QUESTIONS_MAX", 2)

    async def main() -> None:
        async with killed(tmp_path, monkeypatch, READER, EVIL) as (people, _items):
            many = {topic: {BANK: 4} for topic in ("a", "b", "c")}
            people.send(EVIL, READER, receipt(**many), receipt(a={BANK: 6}), MARK)
            assert await people.raws[READER].frame() == MARK
            asked = [await people.raws[EVIL].frame() for _ in range(2)]
            assert asked == [question(6, "a"), question(4, "b")]
            assert await people.passes(READER, EVIL, MARK) == MARK

    asyncio.run(main())


def test_registry_asks_nothing_about_what_the_relay_must_have_seen(tmp_path: Path) -> None:
    async def main() -> None:
        async with room(tmp_path, users=EVERYBODY) as people:
            await people.passes(BANK, READER, publication(item()))
            await people.is_refused(EVIL, READER, *claims(2))
            assert await people.passes(READER, EVIL, MARK) == MARK

    asyncio.run(main())


def test_proofs_of_one_bundle_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "BUNDLE_ITEMS_MAX", 2)

    async def main() -> None:
        async with killed(tmp_path, monkeypatch, READER) as (people, items):
            people.prove(READER, *items)
            assert await people.raws[READER].hung_up() == BUNDLE_TOO_LARGE

    asyncio.run(main())


def test_counts_of_a_departed_client_lost_in_a_kill_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client could prove them, and events that depend on them would wait endlessly."""
    monkeypatch.setattr(serving_module, "MARKS_S", 3_600.0)

    async def main() -> None:
        async with room(tmp_path, users=EVERYBODY) as people:
            await people.passes(BANK, READER, publication(item(), item(BANK, 2)))
            epoch = await epoch_of(people, CAUSAL)
            assert people.server._commit is not None
            await people.server._commit.sync()
            shutil.copytree(tmp_path / "d", tmp_path / "killed")
        async with again(tmp_path / "killed", CAUSAL, epoch, READER, EVIL, BANK) as people:
            assert await people.passes(READER, EVIL, summary(n0=2)) == summary()
            await people.is_asked(READER, 2)
            people.raws[BANK].bundle(NAMES[BANK], Deregister(epoch=0), target=CAUSAL)
            for each in (READER, EVIL):
                assert isinstance(await people.raws[each].frame(), Members)
            assert await people.passes(READER, EVIL, summary(n0=2)) == summary(n0=2)

    asyncio.run(main())


def test_stamps_before_a_restart_are_trusted_up_to_the_sent_ones(tmp_path: Path) -> None:
    """A receiver drops a client's messages up to a stamp that a delivered message names."""
    started_ns = platform.current().clock.now_ns()
    ahead_ns = started_ns + 3_600 * 10**9
    """By a clock that is an hour ahead of the server's."""

    def stamped(publisher: int, stamp: int, **changes: object) -> gossip.Message:
        made = msgspec.structs.replace(
            message(publisher).event, stamp=Stamp({"@r": stamp, "@d": stamp + 1})
        )
        return message(publisher, publisher, event=made, **changes)

    def after(named: int) -> gossip.Message:
        rows = {BANK: {ahead_ns + 5 - named: b"\x02"}}
        return stamped(EVIL, ahead_ns + 5, after=rows, digest=rows_digest(rows))

    async def main() -> None:
        async with room(tmp_path, DEADLINE, EVERYBODY) as people:
            await people.passes(BANK, EVIL, stamped(BANK, ahead_ns + 3))
            epoch = await epoch_of(people, DEADLINE)
        async with again(tmp_path / "d", DEADLINE, epoch, READER, EVIL) as people:
            await people.is_refused(EVIL, READER, after(ahead_ns + 4))
            await people.passes(EVIL, READER, after(ahead_ns + 3))

    asyncio.run(main())


def test_stamps_lost_in_a_kill_are_trusted_up_to_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later messages have later stamps, which no claim can name in advance."""
    monkeypatch.setattr(serving_module, "MARKS_S", 3_600.0)

    def after(named: int, stamp: int) -> gossip.Message:
        rows = {BANK: {stamp - named: b"\x02"}}
        made = msgspec.structs.replace(
            message(EVIL).event, stamp=Stamp({"@r": stamp, "@d": stamp + 1})
        )
        return message(EVIL, EVIL, event=made, after=rows, digest=rows_digest(rows))

    async def main() -> None:
        async with room(tmp_path, DEADLINE, EVERYBODY) as people:
            epoch = await epoch_of(people, DEADLINE)
            assert people.server._commit is not None
            await people.server._commit.sync()
            shutil.copytree(tmp_path / "d", tmp_path / "killed")
            before_ns = platform.current().clock.now_ns()
        async with again(tmp_path / "killed", DEADLINE, epoch, READER, EVIL) as people:
            now_ns = platform.current().clock.now_ns()
            await people.is_refused(EVIL, READER, after(now_ns, now_ns + 1))
            await people.passes(EVIL, READER, after(before_ns, now_ns + 1))

    asyncio.run(main())


@pytest.mark.parametrize("registry", [CAUSAL, DEADLINE])
def test_marks_end_with_their_epoch(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers restart: the marks of number 0 do not apply to its new owner."""
    monkeypatch.setattr(serving_module, "MARKS_S", 3_600.0)

    async def main() -> None:
        async with room(tmp_path, registry, EVERYBODY) as people:
            if registry == CAUSAL:
                await people.passes(BANK, READER, publication(item(), item(BANK, 2)))
            else:
                await people.passes(BANK, READER, message())
            for number, raw in enumerate(people.raws):
                raw.bundle(NAMES[number], Deregister(epoch=0), target=registry)
            server = people.server
            assert server.listener is not None
            relay = server.listener.claim_checkers[registry]
            newcomers = []
            for number, name in enumerate(("evil~2", "bank~2")):
                raw = await Raw.hello(server, token=EVERYBODY.tokens[name.partition("~")[0]])
                assert await raw.enter(name) is None
                newcomers.append(raw)
                while True:
                    raw.bundle(name, Register(epoch=0, known=0, gone=0), target=registry)
                    told = await raw.frame()
                    if isinstance(told, Members) and number == told.total - 1:
                        break
            evil, bank = newcomers
            evil.bundle("evil~2", MARK, target="bank~2")
            while await bank.frame() != MARK:
                pass
            left = {write.key: write.value for write in relay.take_writes()}
            assert left
            assert set(left.values()) == {None}
            for raw in newcomers:
                raw.close()

    asyncio.run(main())


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("order", [ensue.Causal(), ensue.Deadline(ms=60_000)], ids=str)
def test_clients_continue_after_a_restart(
    tmp_path: Path, order: ensue.Order, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events depend on earlier ones, even if the server had not persisted their counts."""
    monkeypatch.setattr(serving_module, "MARKS_S", 3_600.0)

    async def main() -> None:
        async with serving(tmp_path / "d", access=EVERYBODY.access) as server:
            assert server.listener is not None
            address = f"127.0.0.1:{server.listener.port}"
            buses = [
                ensue.connect(EVERYBODY.url(server, user), order=order)
                for user in ("bank", "reader")
            ]
            for bus in buses:
                await bus.__aenter__()
            bank, reader = buses
            here, there = bank.subscribe("open"), reader.subscribe("open")
            for events in (here, there):
                await events.__aenter__()
            for number in range(3):
                await within(bank.publish("open", b"%d" % number))
            assert await read(there, 3) == await read(here, 3) == [b"0", b"1", b"2"]
            data = tmp_path / "d"
            if killed:
                assert server._commit is not None
                await server._commit.sync()
                data = Path(shutil.copytree(tmp_path / "d", tmp_path / "killed"))
            await server.stop()
            async with serving(data, access=EVERYBODY.access, listen=address) as restarted:
                await within(reader.publish("open", b"3"))  # It names what Bank had published.
                assert await read(here, 1) == await read(there, 1) == [b"3"]
                await within(bank.publish("open", b"4"))
                assert await read(here, 1) == await read(there, 1) == [b"4"]
                assert restarted.listener is not None
                assert killed or not restarted.listener.errors["forged"]
                for bus in buses:
                    await within(bus.close())

    asyncio.run(main())
