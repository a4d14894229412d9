"""Invalid input is answered or closes the connection, is counted, and affects no other client."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.server import bad_inputs as bad
from tests.server.helpers import DEADLINE_S, People, read, serving, until, within
from tests.server.raw import Raw

import ensue
from ensue.core.errors import AccessDenied, limit_in
from ensue.core.event import Event
from ensue.protocols.interface import Frame
from ensue.protocols.shared.state_store import NotKept, Recall, Recalled, Remember, Remembered
from ensue.protocols.topic_log.frames import Attached, AttachRequest, Fetch, Taken
from ensue.protocols.total.frames import Changed, ChangeRequest, Forget, OrderRequest, Out, Refused
from ensue.server import Server
from ensue.server.config import Limits
from ensue.server.connection import BUNDLES_MAX
from ensue.transports.tcp.messages import Enter, Exited, Farewell, Ping, Pong, encode_control

LIMITS = Limits(
    topics_per_subscription=bad.TOPICS_MAX,
    headers_per_event=bad.HEADERS_MAX,
    names_per_connection=bad.NAMES_MAX,
    unauthenticated_s=30.0,
)
REFUSALS = (Refused, NotKept, Taken, Exited)


class Honest:
    """Two clients that publish all the time, and two that read both in total order."""

    def __init__(self) -> None:
        self.counts = [0, 0]
        self.seen: list[list[bytes]] = [[], []]
        self._stopping = False

    @asynccontextmanager
    async def at_work(self, server: Server) -> AsyncIterator["Honest"]:
        """Run them in this context; afterwards both have read the same, and everything."""
        async with (
            ensue.connect(server.url, name="honest") as one,
            ensue.connect(server.url) as two,
            one.subscribe("x", "y") as first,
            two.subscribe("y", "x") as second,
        ):
            work = [
                asyncio.create_task(self._publish(one, 0, "x")),
                asyncio.create_task(self._publish(two, 1, "y")),
            ]
            reading = [
                asyncio.create_task(self._read(first, 0)),
                asyncio.create_task(self._read(second, 1)),
            ]
            try:
                yield self
                self._stopping = True
                await within(asyncio.gather(*work))
                await until(lambda: all(len(each) == sum(self.counts) for each in self.seen))
            finally:
                for task in (*work, *reading):
                    task.cancel()
                await asyncio.gather(*work, *reading, return_exceptions=True)
        assert self.seen[0] == self.seen[1]
        for who, topic in ((0, b"x"), (1, b"y")):
            own = [each for each in self.seen[0] if each.startswith(topic)]
            assert own == [b"%s%d" % (topic, number) for number in range(self.counts[who])]

    async def _publish(self, bus: ensue.Bus, who: int, topic: str) -> None:
        while not self._stopping:
            await bus.publish(topic, b"%s%d" % (topic.encode(), self.counts[who]))
            self.counts[who] += 1

    async def _read(self, events: "ensue.Subscription", who: int) -> None:
        async for event in events:
            self.seen[who].append(event.payload)


async def say(raw: Raw, what: bad.Sends) -> None:
    if isinstance(what, bytes):
        raw.send(what)
    else:
        waiting = what(raw)
        if waiting is not None:
            await waiting


async def closed(server: Server, connect: Callable[[], Awaitable[Raw]], each: bad.Bad) -> str:
    """Send input that must close the connection; return what went wrong."""
    assert server.listener is not None
    raw = await connect()
    before, silent = sum(server.listener.errors.values()), server.listener.errors["silent"]
    await say(raw, each.what)
    try:
        said = await raw.hung_up()
    except TimeoutError:
        raw.close()
        return "the connection stays"
    if server.listener.errors["silent"] != silent:
        return f"noticed only because nothing came after it: {said}"
    if each.why and said != each.why:
        return f"said {said!r}"
    if sum(server.listener.errors.values()) != before + 1:
        return f"counted {sum(server.listener.errors.values()) - before} times; said {said!r}"
    return "" if said else "said nothing"


async def told(server: Server, connect: Callable[[], Awaitable[Raw]], each: bad.Bad) -> str:
    """Send input that must be answered with a rejection; return what went wrong."""
    raw = await connect()
    await say(raw, each.what)
    try:
        while True:
            message = await raw.message()
            if isinstance(message, Farewell):
                return f"hung up: {message.reason}"
            answers = message[2] if isinstance(message, tuple) else [message]
            if any(isinstance(answer, REFUSALS) for answer in answers):
                break
        # The connection still works.
        raw.control(Ping(number=77))
        while True:
            message = await raw.message()
            if message == Pong(number=77):
                return ""
    except TimeoutError:
        return "no answer"
    finally:
        raw.close()


def further(honest: Honest, before: list[int]) -> bool:
    """Return whether both honest publishers have made progress."""
    return all(now > then for now, then in zip(honest.counts, before, strict=True))


def test_there_are_at_least_100_inputs_with_unique_names() -> None:
    names = [each.name for each in bad.ALL]
    assert len(names) >= 100
    assert len(set(names)) == len(names)


def test_bad_input_affects_only_its_sender(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", limits=LIMITS) as server,
            Honest().at_work(server) as honest,
        ):
            failures: dict[str, str] = {}

            async def entered() -> Raw:
                raw = await Raw.hello(server)
                assert await raw.enter(bad.BAD) is None
                return raw

            async def fresh() -> Raw:
                return await Raw.connect(server)

            async def greeted() -> Raw:
                return await Raw.hello(server)

            for judge, connect, inputs in (
                (closed, fresh, bad.FRESH),
                (closed, greeted, bad.WELCOME_CLOSED),
                (told, greeted, bad.TOLD_NAMES),
                (closed, entered, bad.CLOSED_ENTERED),
                (told, entered, bad.FRAMES_TOLD),
            ):
                for each in inputs:
                    progress = list(honest.counts)
                    wrong = await judge(server, connect, each)
                    if wrong:
                        failures[each.name] = wrong
                    await until(partial(further, honest, progress), each.name)
            assert failures == {}
            assert server.listener is not None
            assert server.listener.errors["internal"] == 0
            assert server.station is not None
            station = server.station
            # Nothing is left behind.
            assert set(station.log.ends()) <= {"x", "y", *(f"n{n}" for n in range(bad.TOPICS_MAX))}
            assert bad.BAD not in station.node.subscribers()
            assert "honest~reader" not in station.state_store.names()
        async with serving(tmp_path / "d") as again, Honest().at_work(again):
            pass

    asyncio.run(main())


# -- Silence ---------------------------------------------------------------------------------------

IMPATIENT = Limits(unauthenticated_s=0.3, silence_s=0.6)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("nothing at all", b""),
        ("half a length", b"\0\0"),
        ("half a hello", encode_control(bad.HELLO)[:-3]),
    ],
)
def test_connection_without_hello_is_closed(tmp_path: Path, name: str, sent: bytes) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", limits=IMPATIENT) as server:
            raw = await Raw.connect(server)
            raw.send(sent)
            assert await raw.hung_up() == "no hello within 0.3 s", name
            assert server.listener is not None
            assert server.listener.errors == {"silent": 1}
            assert server.listener.connections == {}

    asyncio.run(main())


async def dribble(raw: Raw, data: bytes) -> None:
    """Send a message so slowly that it never completes."""
    for byte in data:
        raw.send(bytes((byte,)))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("greeted", [False, True])
def test_connection_that_trickles_bytes_is_closed(tmp_path: Path, greeted: bool) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", limits=IMPATIENT) as server:
            raw = await (Raw.hello(server) if greeted else Raw.connect(server))
            slow = asyncio.create_task(dribble(raw, b"\0\0\x10\0\x7f" + b"\x91" * 10_000))
            said = await raw.hung_up()
            slow.cancel()
            assert said is not None
            assert said.startswith("no whole message for" if greeted else "no hello within")
            assert server.listener is not None
            assert server.listener.unfinished == 0

    asyncio.run(main())


def test_connection_silent_after_half_a_message_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", limits=IMPATIENT) as server:
            raw = await Raw.hello(server)
            raw.send((1_000_000).to_bytes(4, "big") + b"\x02" + b"x" * 1000)
            assert server.listener is not None
            listener = server.listener
            await until(lambda: listener.unfinished == 1005)
            assert (await raw.hung_up() or "").startswith("no whole message for")
            assert listener.unfinished == 0

    asyncio.run(main())


def test_connection_with_occasional_messages_stays_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", limits=IMPATIENT) as server:
            raw = await Raw.hello(server)
            end = time.monotonic() + 2 * IMPATIENT.silence_s
            number = 0
            while time.monotonic() < end:
                number += 1
                raw.control(Ping(number=number))
                assert await raw.message() == Pong(number=number)
                await asyncio.sleep(0.02)
            raw.close()

    asyncio.run(main())


def test_connection_that_waits_for_the_server_is_not_silent(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            assert server.listener is not None
            listener = server.listener
            held: list[Callable[[], None]] = []
            listener._barrier = held.append  # A disk that takes its time.
            raw = await Raw.hello(server)
            assert await raw.enter("patient~1") is None
            connection = listener.routes["patient~1"]
            for number in range(1, BUNDLES_MAX + 1):
                raw.bundle("patient~1", Forget(number=number, publisher=True))
            await until(lambda: held)
            connection.heard_s -= 10 * listener.limits.silence_s
            connection._check_silence()
            assert not connection.closing
            held.pop()()
            await until(lambda: not connection._waiting)
            connection._check_silence()
            assert (await raw.hung_up() or "").startswith("no whole message for")

    asyncio.run(main())


# -- Limits ----------------------------------------------------------------------------------------


def test_connections_are_limited_until_one_closes(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", limits=Limits(connections=2)) as server:
            first, second = await Raw.hello(server), await Raw.hello(server)
            with pytest.raises(AccessDenied, match=r"\(limit connections=2\)"):
                await Raw.hello(server)
            first.close()
            assert server.listener is not None
            listener = server.listener
            await until(lambda: len(listener.connections) == 1)
            (await Raw.hello(server)).close()
            second.close()
            assert listener.errors == {"limit": 1}

    asyncio.run(main())


def test_unfinished_messages_of_all_connections_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(unfinished_bytes=1_000_000)
        async with serving(tmp_path / "d", limits=limits) as server, Honest().at_work(server):
            assert server.listener is not None
            listener = server.listener
            held = []
            for size in (300_000, 400_000, 200_000):
                raw = await Raw.hello(server)
                raw.send((10_000_000).to_bytes(4, "big") + b"x" * size)
                held.append(raw)
            await until(lambda: listener.unfinished >= 900_000)
            last = await Raw.hello(server)
            last.send((10_000_000).to_bytes(4, "big") + b"x" * 150_000)
            # The connection with the most, not the last one.
            assert "unfinished_bytes" in (await held[1].hung_up() or "")
            await until(lambda: listener.unfinished <= 660_000)
            for raw in (*held, last):
                raw.close()
            await until(lambda: listener.unfinished == 0 or len(listener.connections) == 2)

    asyncio.run(main())


def test_slow_reader_uses_at_most_its_pending_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(pending_bytes=4_000_000)
        async with serving(tmp_path / "d", limits=limits) as server:
            deaf = await Raw.hello(server)
            assert await deaf.enter("deaf~1") is None
            deaf.bundle("deaf~1", AttachRequest(topic="x", from_slot=0))
            assert isinstance(await deaf.frame(), Attached)
            deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
            assert server.listener is not None
            listener = server.listener
            connection = listener.routes["deaf~1"]
            async with ensue.connect(server.url) as bus, bus.subscribe("x") as events:
                for number in range(300):
                    # An occasional receipt, so that readers keep up.
                    payload = b"%06d" % number + bytes(50_000)
                    await within(bus.publish("x", payload, receipt=number % 10 == 0))
                    assert connection.pending < 6_000_000
                seen = await read(events, 300)
                assert [int(each[:6]) for each in seen] == list(range(300))
            assert connection.dropped > 0
            assert listener.dropped >= connection.dropped
            deaf.close()

    asyncio.run(main())


def test_durable_names_are_limited(tmp_path: Path) -> None:
    people = People(al=(["*"], ["*"]))

    async def main() -> None:
        limits = Limits(durable_names=2)
        async with serving(tmp_path / "d", limits=limits, access=people.access) as server:
            raw = await Raw.hello(server, token=people.tokens["al"])
            assert await raw.enter("one") is None
            assert await raw.enter("two") is None
            assert limit_in(str(await raw.enter("three"))) == ("durable_names", 2)
            assert await raw.enter("one") is None
            assert await raw.enter("process~1") is None
            raw.close()

    asyncio.run(main())


# -- Floods ----------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def grown(raw: Raw, name: str, flood: Iterable[Frame], times: int) -> int:
    """Send bundles of frames repeatedly and await answers; return the growth of memory."""
    frames = list(flood)
    before = most = resident_bytes()
    for _ in range(times):
        raw.bundle(name, *frames)
    answered = asyncio.ensure_future(_until_pong(raw))
    deadline = time.monotonic() + DEADLINE_S
    while not answered.done():
        # Output beyond the pending limit is dropped, pongs included.
        raw.control(Ping(number=1))
        most = max(most, resident_bytes())
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    await answered
    return most - before


async def _until_pong(raw: Raw) -> None:
    while await raw.message() != Pong(number=1):
        pass


MIB = 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("kind", ["recall", "attach", "fetch", "change"])
def test_repeated_small_requests_do_not_multiply_long_answers(tmp_path: Path, kind: str) -> None:
    """Each request has a few bytes, and its answer many."""

    async def main() -> None:
        async with serving(tmp_path / "d") as server, Honest().at_work(server):
            raw = await Raw.hello(server)
            name = "flood~1"
            assert await raw.enter(name) is None
            flood: list[Frame]
            if kind == "recall":
                raw.bundle(name, Recall(number=1))
                recalled = await raw.frame()
                assert isinstance(recalled, Recalled)
                for number in range(1, 11):
                    writes = tuple((f"{number}.{n}", bytes(300)) for n in range(900))
                    raw.bundle(name, Remember(epoch=recalled.epoch, number=number, writes=writes))
                    assert isinstance(await raw.frame(), Remembered)
                flood = [Recall(number=2 + n) for n in range(1000)]
            elif kind == "change":
                topics = tuple(f"topic.{n}" for n in range(900))
                raw.bundle(name, ChangeRequest(number=1, old=(), new=topics))
                assert isinstance(await raw.frame(), Changed)
                flood = [ChangeRequest(number=1, old=(), new=("x",))] * 2000
            else:
                for number in range(1, 41):
                    one = Event(
                        topic="big", payload=bytes(50_000), publisher=name, publisher_seq=number
                    )
                    raw.bundle(name, OrderRequest(number=number, events=(one,), settled=number))
                    assert isinstance(await raw.frame(), Out)
                if kind == "attach":
                    flood = [AttachRequest(topic="big", from_slot=1)] * 500
                else:
                    flood = [Fetch(topic="big", start=1, stop=0)] * 500
            grew = await grown(raw, name, flood, times=10)
            assert grew < 200 * MIB, f"{kind}: {grew / MIB:.0f} MiB"
            raw.close()
            assert server.listener is not None
            assert server.listener.errors == {}

    asyncio.run(main())


def test_flood_of_pings_is_answered_as_far_as_the_client_reads(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(pending_bytes=100_000)
        async with serving(tmp_path / "d", limits=limits) as server, Honest().at_work(server):
            raw = await Raw.hello(server)
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            raw.send(encode_control(Ping(number=1)) * 200_000)
            assert server.listener is not None
            listener = server.listener
            await until(lambda: listener.dropped > 0)
            assert max(each.pending for each in listener.connections) < 1_000_000
            raw.close()

    asyncio.run(main())


def test_entering_thousands_of_names_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            raw = await Raw.hello(server)
            for number in range(5000):
                raw.control(Enter(name=f"n~{number}"))
            refused = 0
            for _ in range(5000):
                refused += isinstance(await raw.message(), Exited)
            assert refused == 4000
            raw.close()
            assert server.listener is not None
            listener = server.listener
            await until(lambda: not listener.connections)
            assert listener.routes == {}

    asyncio.run(main())
