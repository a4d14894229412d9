"""The remote reader returns the rows of a log directory, across ranges, trims and restarts."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from unittest import mock

import pytest
from tests.server import certificates
from tests.server.helpers import People, serving
from tests.store.publisher_process import publish, published, topics_at_random
from tests.store.server_process import Served, mirrored, spare_port

import ensue
from ensue.client import ReceivedEvent
from ensue.core.errors import (
    AccessDenied,
    BadInput,
    LogDamaged,
    LogLost,
    OffsetsGone,
    TransportError,
)
from ensue.core.event import Event
from ensue.journal import Journal
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import OrderRequest
from ensue.server.config import Retention, Tls
from ensue.store import Bounds, LogReader, log_schema, open_log
from ensue.store.remote_reader import RemoteReader, _Connection
from ensue.transports.tcp.messages import Member
from ensue.transports.tcp.options import TcpOptions

SEED = 1
TOPICS = ("x", "y", "z")
Rows = list[dict[str, Any]]


def rows(log: LogReader, topic: str, start: int, end: int) -> Rows:
    found: Rows = []
    for batch in log.read(topic, start, end):
        batch.validate(full=True)
        assert batch.schema == log_schema()
        found += batch.to_pylist()
    return found


def everything(log: LogReader) -> dict[str, Rows]:
    return {topic: rows(log, topic, *bounds) for topic, bounds in log.bounds().items()}


def positions(found: dict[str, Rows], topics: Iterable[str] = TOPICS) -> list[tuple[int, str]]:
    """Return the place of each event in the order of all topics, by the sum of its stamp."""
    return sorted(
        (sum(count for name, count in row["stamp"] if name in topics), row["event"])
        for topic in topics
        for row in found[topic]
    )


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server, its log as a directory, and the events as a subscriber got them."""
    place = tmp_path_factory.mktemp("served")
    plan = topics_at_random(SEED, 12_000, TOPICS)
    with Served(place / "data") as server:
        seen = publish(server.url, plan, TOPICS)
        seen += publish(server.url, plan[:300], TOPICS)
        yield server, mirrored(place, server), seen


def test_bounds_and_rows_equal_those_of_the_directory(served: Any) -> None:
    server, mirror, seen = served
    log = open_log(server.url)
    assert log.bounds() == mirror.bounds()
    found = everything(log)
    assert found == everything(mirror)
    assert sum(map(len, found.values())) == len(seen)


def test_stamps_give_the_order_of_a_subscriber(served: Any) -> None:
    server, _, seen = served
    order = positions(everything(open_log(server.url)))
    assert order == list(enumerate((event.id for event in seen), 1))


def test_any_range_equals_that_of_the_directory(served: Any) -> None:
    server, mirror, _ = served
    log = RemoteReader(server.url)
    draw = Random(SEED)
    for topic, (first, following) in log.bounds().items():
        ranges = [(first, first), (first, first + 1), (following - 1, following), (5, 9)]
        for _ in range(12):
            low, high = sorted(draw.sample(range(first, following + 1), 2))
            ranges.append((low, min(high, low + draw.choice((1, 100, 10_000)))))
        for low, high in ranges:
            assert rows(log, topic, low, high) == rows(mirror, topic, low, high), (topic, low, high)


def test_columns_are_in_requested_order(served: Any) -> None:
    server, mirror, _ = served
    for columns in (["offset", "event"], ["stamp", "key"], ["value"]):
        pairs = [
            [row for batch in log.read("x", 700, 900, columns) for row in batch.to_pylist()]
            for log in (open_log(server.url), mirror)
        ]
        assert pairs[0] == pairs[1]
        assert list(pairs[0][0]) == columns
    with pytest.raises(BadInput, match="no column 'colour'"):
        open_log(server.url).read("x", 0, 1, ["colour"])


def test_reads_can_interleave_and_be_closed_early(served: Any) -> None:
    server, mirror, _ = served
    log = RemoteReader(server.url)
    ends = {topic: bounds.next for topic, bounds in mirror.bounds().items()}
    closed_early = log.read("x", 0, ends["x"])
    next(closed_early)
    closed_early.close()  # type: ignore[attr-defined]
    reads = [log.read(topic, 0, ends[topic], ["event"]) for topic in TOPICS]
    found: dict[str, list[str | None]] = {topic: [] for topic in TOPICS}
    open_reads = dict(zip(TOPICS, reads, strict=True))
    while open_reads:
        for topic, batches in list(open_reads.items()):
            batch = next(batches, None)
            if batch is None:
                del open_reads[topic]
            else:
                found[topic] += batch.column("event").to_pylist()
    for topic in TOPICS:
        assert found[topic] == [row["event"] for row in rows(mirror, topic, 0, ends[topic])]


def test_offsets_beyond_the_end_and_unknown_topics_raise(served: Any) -> None:
    server, mirror, _ = served
    log = open_log(server.url)
    end = mirror.bounds()["x"].next
    with pytest.raises(OffsetsGone, match=f"'x' .* before offset {end}.* up to {end + 5}") as gone:
        list(log.read("x", end - 1, end + 5))
    assert (gone.value.topic, gone.value.start, gone.value.end) == ("x", end, end + 5)
    with pytest.raises(OffsetsGone, match=r"no topic 'w' at .* 'x', 'y', 'z'") as gone:
        list(log.read("w", 0, 3))
    assert (gone.value.topic, gone.value.start, gone.value.end) == ("w", 0, 3)
    assert list(log.read("w", 3, 3)) == []


def test_stamps_omit_topics_that_left_the_group(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        publish(server.url, ["x", "y"] * 20, ("x", "y"))
        publish(server.url, ["x"] * 20, ("x",))
        found = rows(open_log(server.url), "x", 0, 40)
        assert found == rows(mirrored(tmp_path, server), "x", 0, 40)
        assert [len(row["stamp"]) for row in found[1:]] == [2] * 19 + [1] * 20


def test_read_resumes_after_server_is_killed(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        publish(server.url, ["x", "y"] * 10_000, ("x", "y"))
        log = RemoteReader(server.url)
        batches = log.read("x", 0, 10_000)
        found = next(batches).to_pylist()
        server.kill()
        server.start(wait=False)
        for batch in batches:
            found += batch.to_pylist()
        assert log.bounds() == {"x": Bounds(0, 10_000), "y": Bounds(0, 10_000)}
        assert found == rows(mirrored(tmp_path, server), "x", 0, 10_000)


def test_read_fails_if_server_returns_with_another_log(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        publish(server.url, ["x"] * 5, ("x",))
        log = RemoteReader(server.url)
        assert len(rows(log, "x", 0, 5)) == 5
        server.kill()
        shutil.rmtree(server.data)
        server.start()
        publish(server.url, ["x"] * 9, ("x",))
        with pytest.raises(
            LogLost, match=r"has another log than before.*open the log again"
        ) as lost:
            rows(log, "x", 5, 9)
        assert lost.value.reason == "replaced"
        assert len(rows(RemoteReader(server.url), "x", 0, 9)) == 9


def test_damaged_log_fails_reads_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            async with ensue.connect(server.url) as bus:
                await bus.publish("x", b"1")
            log = await asyncio.to_thread(RemoteReader, server.url)
            assert server.journal is not None
            damage = LogDamaged("/x/1.log is damaged at byte 3: torn", path="/x/1.log")
            assert server.station is not None
            server.station.log._topics["x"].events.clear()
            with reads_damaged(server.journal, damage), pytest.raises(LogLost, match=r"1\.log is"):
                await asyncio.to_thread(rows, log, "x", 0, 1)
            with pytest.raises(LogDamaged):
                await server.wait()

    asyncio.run(main())


@contextmanager
def reads_damaged(journal: Journal, damage: LogDamaged) -> Iterator[None]:
    """Make every read of a journal raise an error."""

    def fail(*_args: object, **_named: object) -> NoReturn:
        raise damage

    with mock.patch.object(journal._segments, "batch", fail):
        yield


def test_reader_waits_for_first_connection_when_patient(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        publish(server.url, ["x"], ("x",))
        server.kill()
        with pytest.raises(TransportError, match=r"no server answers at .*: ensue serve --listen"):
            open_log(server.url)
        server.start(wait=False)
        assert open_log(server.url, patient=True).bounds() == {"x": Bounds(0, 1)}


def test_retries_end_after_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensue.store.remote_reader.RETRY_S", 0.2)
    with Served(tmp_path / "data") as server:
        publish(server.url, ["x"], ("x",))
        log = RemoteReader(server.url)
        server.kill()
        with pytest.raises(TransportError, match=r"no server answers .*; gave up after 0 s"):
            log.bounds()


def test_trimmed_offsets_raise_and_the_rest_reads_as_before(tmp_path: Path) -> None:
    # A quiet topic has few whole stamps; a topic that is never alone has only periodic ones.
    plan = topics_at_random(SEED, 4_000, TOPICS)
    kept = Retention(segment_bytes=50_000)
    with Served(tmp_path / "data", retention=kept) as server:
        publish(server.url, plan, TOPICS, size=100, flush_every=100)
        before = everything(open_log(server.url))
        whole = mirrored(tmp_path, server)
        assert before == everything(whole)
    tiny = Retention(segment_bytes=50_000, bytes=250_000)
    with Served(tmp_path / "data", retention=tiny) as server:
        log = RemoteReader(server.url)
        early = log.read("x", 0, len(before["x"]))
        eventually(lambda: all(bounds.first > 0 for bounds in log.bounds().values()))
        after = log.bounds()
        for topic, (first, following) in after.items():
            assert following == len(before[topic])
            assert first < following
            for start in (first, first + 1, first + 70, following - 1):
                assert rows(log, topic, start, following) == before[topic][start:], (topic, start)
            with pytest.raises(OffsetsGone, match="no longer has offsets 0 to") as gone:
                rows(log, topic, 0, following)
            error = gone.value
            assert (error.topic, error.start) == (topic, 0)
            assert 0 < error.end <= first
            # A reader that continues at the error's `end` gets to whole stamps only.
            while error.end < first:
                with pytest.raises(OffsetsGone) as gone:
                    rows(log, topic, error.end, following)
                assert gone.value.start == error.end < gone.value.end
                error = gone.value
            assert rows(log, topic, error.end, following) == before[topic][error.end :]
            # A range within the trimmed offsets raises too.
            with pytest.raises(OffsetsGone) as gone:
                rows(log, topic, 1, 3)
            assert (gone.value.start, gone.value.end) == (1, 3)
        with pytest.raises(OffsetsGone):
            list(early)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[list[Served]]:
    """Three servers, one for each of x, y and z."""
    members = tuple(
        Member(f"s{number}", f"127.0.0.1:{spare_port()}", (topic,))
        for number, topic in enumerate(TOPICS)
    )
    lease = SequencerConfig(carries=True, lease_ns=5 * 10**9, lease_lost_ns=5 * 10**9)
    servers = [
        Served(
            tmp_path / each.name,
            listen=each.address,
            name=each.name,
            chain=members,
            sequencer=lease,
        )
        for each in members
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


def stamp_without_sending(url: str) -> None:
    """Have two events of x stamped, and never send them."""
    options = TcpOptions.parse(url)
    connection = _Connection(options, (options.host, options.port))
    events = tuple(
        Event(topic="x", payload=b"lost", publisher=connection._name, publisher_seq=number)
        for number in (1, 2)
    )
    connection.send(OrderRequest(number=1, events=events, settled=1))
    time.sleep(0.5)
    connection.close()


def test_topics_are_read_from_their_servers_and_end_before_empty_slots(
    tmp_path: Path, chain: list[Served]
) -> None:
    plan = topics_at_random(SEED, 3_000, TOPICS)
    logs = [RemoteReader(server.url) for server in chain]
    early: list[Rows] = []
    bounds: list[Bounds] = []

    def halfway() -> None:
        stamp_without_sending(chain[0].url)
        bounds.append(logs[0].bounds()["x"])
        early.append(rows(logs[0], "x", *bounds[0]))

    def later() -> None:
        # By now there are events after the two missing ones; no reader sees them yet.
        time.sleep(1)
        bounds.append(logs[0].bounds()["x"])

    async def main() -> list[ReceivedEvent]:
        publishing = published(chain[0].url, plan, TOPICS, halfway=halfway)
        task = asyncio.create_task(publishing)
        await asyncio.to_thread(eventually, lambda: bool(early))
        await asyncio.to_thread(later)
        return await task

    seen = asyncio.run(main())
    assert bounds[0] == bounds[1]
    assert bounds[0].next < plan.count("x")
    eventually(lambda: sum(each.next for each in logs[0].bounds().values()) == len(plan) + 2)
    mirror = mirrored(tmp_path, *chain)
    for log in logs:
        assert log.bounds() == mirror.bounds()
        found = everything(log)
        assert found == everything(mirror)
        assert rows(log, "y", 400, 700) == rows(mirror, "y", 400, 700)
    assert early[0] == found["x"][: bounds[0].next]
    assert [row["offset"] for row in found["x"] if row["value"] is None] == [
        bounds[0].next,
        bounds[0].next + 1,
    ]
    order = positions(found)
    assert [position for position, _ in order] == list(range(1, len(plan) + 3))
    voids = {row["event"] for row in found["x"] if row["value"] is None}
    assert [event for _, event in order if event not in voids] == [event.id for event in seen]


def test_tokens_are_sent_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people = People(alice=(["*"], ["*"]), bob=([], ["x"]))

    async def main() -> None:
        async with serving(tmp_path / "data", access=people.access) as server:
            alice = people.url(server, "alice")
            await published(alice, ["x", "y"], ("x", "y"))

            def check() -> None:
                log = RemoteReader(alice)
                assert log.bounds() == {"x": Bounds(0, 1), "y": Bounds(0, 1)}
                assert people.tokens["alice"] not in log.url
                with pytest.raises(AccessDenied, match="a token is needed"):
                    open_log(server.url)
                with pytest.raises(AccessDenied, match="token is unknown"):
                    open_log(f"{server.url}?token=wrong")
                monkeypatch.setenv("ENSUE_TOKEN", people.tokens["bob"])
                log = RemoteReader(server.url)
                assert log.bounds() == {"x": Bounds(0, 1)}
                assert [row["offset"] for row in rows(log, "x", 0, 1)] == [0]
                with pytest.raises(AccessDenied, match="'bob' may not subscribe to 'y'"):
                    rows(log, "y", 0, 1)

            await asyncio.to_thread(check)

    asyncio.run(main())


def test_log_is_read_over_mutual_tls(tmp_path: Path) -> None:
    files = certificates.make(tmp_path / "certificates")
    own = Tls(
        ca=f"{files}/ca.pem",
        cert=f"{files}/server.pem",
        key=f"{files}/server.key",
        clients="required",
    )

    async def main() -> None:
        async with serving(tmp_path / "data", tls=own) as server:
            place = server.url.partition("?")[0]
            proof = f"cert={files}/auditor.pem&key={files}/auditor.key"
            url = f"{place}?ca={files}/ca.pem&{proof}"
            await published(url, ["x", "x"], ("x",))

            def check() -> None:
                assert [row["offset"] for row in rows(RemoteReader(url), "x", 0, 2)] == [0, 1]
                for stranger in (
                    f"{place}?ca={files}/stranger.pem&{proof}",
                    f"{place}?ca={files}/ca.pem",
                ):
                    with pytest.raises(TransportError):
                        RemoteReader(stranger)
                with pytest.raises(TransportError, match=r"does it want TLS \(tls=1\)"):
                    RemoteReader(place)

            await asyncio.to_thread(check)

    asyncio.run(main())


def test_server_without_events_has_no_topics(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        log = open_log(server.url)
        assert log.bounds() == {}
        with pytest.raises(OffsetsGone, match="none yet"):
            list(log.read("x", 0, 1))
