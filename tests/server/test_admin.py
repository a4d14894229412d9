"""The admin port: its figures are true, and invalid requests get an error."""

import asyncio
import json
import socket
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Shell
from tests.server.exposition import BadExpositionError, Exposed
from tests.server.helpers import DEADLINE_S, People, read, serving, until, within

import ensue
from ensue.core.errors import BadInput, ConfigurationError, TransportError
from ensue.core.event import Event
from ensue.journal.files import JournalFailed
from ensue.protocols.interface import Persist
from ensue.protocols.shared.state_store import Recall, Remember
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import OrderRequest
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer
from ensue.server import Server, ServerConfig, admin, config_file
from ensue.server import status as state
from ensue.server.config import Limits
from ensue.server.metrics import Exposition, Histogram, TopicCounts

ADMIN = "127.0.0.1:0"


class Page:
    """A response."""

    def __init__(self, data: bytes) -> None:
        head, end, self.body = data.partition(b"\r\n\r\n")
        assert end, data
        line, *headers = head.decode("ascii").split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1"
        self.status = int(status)
        self.headers = dict(each.lower().split(": ", 1) for each in headers)
        assert self.headers["connection"] == "close"

    @property
    def text(self) -> str:
        assert int(self.headers["content-length"]) == len(self.body)
        return self.body.decode()


async def send(server: Server, data: bytes) -> Page:
    assert server.admin is not None
    reader, writer = await asyncio.open_connection(server.admin.host, server.admin.port)
    writer.write(data)
    answer = Page(await within(reader.read()))
    writer.close()
    return answer


async def get(server: Server, path: str, method: str = "GET", accept: str = "") -> Page:
    wanted = f"Accept: {accept}\r\n" if accept else ""
    return await send(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{wanted}\r\n".encode())


async def exposed(server: Server) -> Exposed:
    page = await get(server, "/metrics", accept="text/plain")
    assert page.status == 200
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Exposed(page.text)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable caching, so that every status is current."""
    monkeypatch.setattr(state, "FRESH_S", 0.0)
    monkeypatch.setattr(state, "SHARE_MAX", float("inf"))


# -- The format ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x 1",
        "x 1\n",
        "# HELP x_total a\n# TYPE x_total counter\nx_total 1\nx_total 2\n",
        "# HELP x a\n# TYPE x counter\nx 1\n",
        "# HELP x_total a\n# TYPE x_total gauge\nx_total 1\n",
        "# HELP x a\n# TYPE x gauge\ny 1\n",
        "# HELP x a\n# TYPE x gauge\nx one\n",
        "# HELP x a\n# TYPE x gauge\nx  1\n",
        '# HELP x a\n# TYPE x gauge\nx{a="b" 1\n',
        '# HELP x a\n# TYPE x gauge\nx{a="b\\t"} 1\n',
        '# HELP x a\n# TYPE x gauge\nx{a="b",a="c"} 1\n',
        '# HELP x a\n# TYPE x gauge\nx{a="b\n"} 1\n',
        "# HELP x a\\b\n# TYPE x gauge\nx 1\n",
        "# HELP x_total a\n# TYPE x_total counter\nx_total -1\n",
        (
            '# HELP x a\n# TYPE x histogram\nx_bucket{le="1"} 2\nx_bucket{le="+Inf"} 1\nx_sum 1\n'
            "x_count 1\n"
        ),
        '# HELP x a\n# TYPE x histogram\nx_bucket{le="1"} 1\nx_sum 1\nx_count 1\n',
        '# HELP x a\n# TYPE x histogram\nx_bucket{le="+Inf"} 1\nx_sum 1\nx_count 2\n',
    ],
)
def test_exposition_parser_rejects_invalid_text(text: str) -> None:
    with pytest.raises(BadExpositionError):
        Exposed(text)


NAMES = [
    'a"b', "a\\b", "a\nb", "a\\nb", "ü}{,=", "", "\x1b[31mred", r"\x1b[31mred", "bell\x07",
    "c1\x9b", "turned\u202e", r"turned\u202e", "\\\\x1b", "tab\t", "del\x7f", "\\\x1b",
]  # fmt: skip


@pytest.mark.parametrize("plain", [False, True])
def test_text_is_valid_for_any_topic_name(plain: bool) -> None:
    out = Exposition(plain=plain)
    out.gauges("x", 'back\\slash, "quotes" and\nnewline', [({"topic": n}, 1.5) for n in NAMES])
    out.counter("y_total", "plain", 3)
    text = out.text()
    assert all(each == "\n" or each.isprintable() for each in text)
    if plain:
        read_back = Exposed(text)
        series = read_back.labelled("x")
        assert read_back["y_total"] == 3
    else:
        families = {family.name: family for family in parsed(text)}
        series = {each.labels["topic"]: each.value for each in families["x"].samples}
        assert [(each.name, each.value) for each in families["y"].samples] == [("y_total", 3)]
    # Every name has its own series; names without control characters are unchanged.
    assert len(series) == len(NAMES)
    assert set(series) >= {'a"b', "a\\b", "a\nb", "a\\nb", "ü}{,=", "", r"\x1b[31mred"}


def parsed(text: str) -> list[Any]:
    """Parse text with a strict parser of OpenMetrics."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    return list(parser.text_string_to_metric_families(text))


def test_metrics_are_openmetrics(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", admin=ADMIN) as server,
            ensue.connect(server.url) as bus,
            ensue.connect(server.url, order=ensue.Causal()) as causal,
            bus.subscribe("\x1b[2Jt"),
            causal.subscribe("t"),
        ):
            await within(bus.publish("\x1b[2Jt", b"x"))
            await within(causal.publish("t", b"x"))
            for accept in (
                "",
                "*/*",
                "application/openmetrics-text;version=1.0.0,text/plain;q=0.3",
            ):
                page = await get(server, "/metrics", accept=accept)
                assert page.headers["content-type"].startswith("application/openmetrics-text;")
                assert "\x1b" not in page.text
                kinds = {family.name: family.type for family in parsed(page.text)}
                assert kinds["ensue_server"] == "info"
                assert kinds["ensue_events"] == "counter"
                assert kinds["ensue_journal_sync_seconds"] == "histogram"
            plain = await get(server, "/metrics", accept="text/plain")
            assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "\x1b" not in plain.text

    asyncio.run(main())


def test_histogram_counts_each_value_once_with_inclusive_bounds() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 2.0):
        histogram.observe(value)
    out = Exposition(plain=True)
    out.histogram("t_seconds", "times", histogram)
    series = Exposed(out.text())
    assert [series["t_seconds_bucket", "le", each] for each in ("0.1", "1", "+Inf")] == [2, 4, 5]
    assert series["t_seconds_sum"] == pytest.approx(3.65)


# -- Topics ----------------------------------------------------------------------------------------


class Counting:
    """A node whose topics are counted as for publishers."""

    def __init__(self) -> None:
        self.node = Sequencer(
            name="n",
            placement=Placement(["n"]),
            config=SequencerConfig(carries=True),
            put_out=lambda _event, _stamp: 0,
        )
        self._number = 0

    def publish(self, **counts: int) -> None:
        for topic, count in counts.items():
            for _ in range(count):
                self._number += 1
                event = Event(topic=topic, payload=b"", publisher="p", publisher_seq=self._number)
                request = OrderRequest(number=self._number, events=(event,), settled=self._number)
                self.node.receive(request, source="p", now_ns=0)


def test_busiest_topics_have_their_own_series_and_none_decreases() -> None:
    it = Counting()
    it.publish(old=3)
    counts = TopicCounts(it.node, topics_max=2)
    assert counts.update() == {"": 0}
    it.publish(a=5, b=2)
    assert counts.update() == {"a": 5, "b": 0, "": 0} | {"b": 2}
    it.publish(c=1)
    assert counts.update() == {"a": 5, "b": 2, "": 1}
    it.publish(old=1)
    # It now has four, more than b; its own series starts here.
    assert counts.update() == {"a": 5, "old": 1, "": 1}
    it.publish(b=1, a=1)
    assert counts.update() == {"a": 6, "old": 1, "": 2}
    assert counts.update() == {"a": 6, "old": 1, "": 2}


# -- A server --------------------------------------------------------------------------------------


def test_admin_port_is_off_by_default(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            assert server.admin is None

    asyncio.run(main())


def test_counters_grow_exactly(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            before = await exposed(server)
            async with (
                ensue.connect(server.url) as bus,
                bus.subscribe("x", 'we"ird\\') as events,
            ):
                for number in range(7):
                    await bus.publish("x", b"%d" % number)
                await bus.publish('we"ird\\', b"12345")
                await read(events, 8)
                during = await exposed(server)
            assert server.listener is not None
            listener = server.listener
            await until(lambda: not listener.connections)
            after = await exposed(server)
        assert during["ensue_events_total"] - before["ensue_events_total"] == 8
        assert during.labelled("ensue_topic_events_total") == {"x": 7, 'we"ird\\': 1, "": 0}
        assert during["ensue_requested_events_total"] == 8
        assert during["ensue_requested_payload_bytes_total"] == 12
        assert during["ensue_frames_in_total", "kind", "OrderRequest"] == 8
        assert during["ensue_frames_in_total", "kind", "ChangeRequest"] == 1
        assert during["ensue_connections"] == 1
        assert during["ensue_connections_opened_total"] == 1
        assert during["ensue_names"] == 2
        assert during["ensue_subscribers"] == 1
        assert during["ensue_listeners"] == 2
        assert during["ensue_topics"] == 2
        assert during["ensue_grouped_topics"] == 2
        assert during["ensue_group_topics_max"] == 2
        assert during["ensue_group_topics_mean"] == 2
        assert during["ensue_open_stamps"] == 0
        assert during["ensue_voids_total"] == 0
        assert during["ensue_bytes_in_total"] > 12
        assert during["ensue_bytes_out_total"] > 12
        assert during["ensue_journal_batches_total"] >= 8
        assert during["ensue_journal_syncs_total"] >= 8
        assert during["ensue_journal_sync_seconds_count"] == during["ensue_journal_syncs_total"]
        assert during["ensue_journal_written_bytes_total"] > 8 * 12
        assert during["ensue_journal_segments"] == 1
        assert during["ensue_process_resident_memory_bytes"] > 1_000_000
        assert after["ensue_connections"] == 0
        assert after["ensue_names"] == 0
        assert after["ensue_connections_opened_total"] == 1
        assert after["ensue_events_total"] == 8

    asyncio.run(main())


def test_counters_restart_at_0_and_gauges_of_stored_state_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            for _ in range(3):
                await bus.publish("x", b"1")
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            series = await exposed(server)
            assert series["ensue_events_total"] == 0
            # Its content broker persists its initial neighbors.
            assert series["ensue_journal_batches_total"] == 1
            assert series.labelled("ensue_topic_events_total") == {"": 0}
            assert series["ensue_topics"] == 1
            async with ensue.connect(server.url) as bus:
                await bus.publish("x", b"1")
            assert (await exposed(server)).labelled("ensue_topic_events_total") == {"x": 1, "": 0}

    asyncio.run(main())


def test_lag_of_a_stopped_durable_subscription(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            async with bus.subscribe("x", "y", name="desk", durable=True) as desk:
                for _ in range(5):
                    await bus.publish("x", b"x")
                await bus.publish("y", b"y")
                await read(desk, 4)
            # Requesting the fifth event acknowledges the fourth.
            for _ in range(10):
                await bus.publish("y", b"later")
            series = await exposed(server)
            handled = series["ensue_subscription_position_events", "subscription", "desk"]
            assert handled in (3, 4)
            assert series["ensue_subscription_lag_events", "subscription", "desk"] == 16 - handled
            assert series["ensue_lag_events"] == 16 - handled
            assert series["ensue_durable_subscriptions"] == 1
            async with bus.subscribe("x", "y", name="desk", durable=True) as desk:
                await read(desk, 16 - int(handled))
            series = await exposed(server)
            assert series["ensue_subscription_lag_events", "subscription", "desk"] <= 1

    asyncio.run(main())


def test_durable_subscriptions_beyond_the_limit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            for name in ("one", "two"):
                async with bus.subscribe("x", name=name, durable=True):
                    pass
            assert server.station is not None
            records = server.station.state_store.names()["one"]
            monkeypatch.setattr(state, "RECORDS_MAX", records)
            series = await exposed(server)
            assert series["ensue_durable_subscriptions"] == 2
            assert list(series.labelled("ensue_subscription_lag_events")) == ["one"]

    asyncio.run(main())


def test_unreadable_records_are_skipped(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert server._driver is not None
            writes = (
                ("clock/x", b"\xc1"),
                ("clock/y", b"\x92\x01"),
                ("history/z", b"no"),
                ("delivered", b"\xff\xff"),
                ("nonsense", b""),
            )
            for frame in (Recall(number=1), Remember(epoch=1, number=1, writes=writes)):
                node, now_ns = server._driver.begin()
                node.receive(frame, source="mallory", now_ns=now_ns)
                server._driver.end()
            series = await exposed(server)
            assert series["ensue_subscription_lag_events", "subscription", "mallory"] == 0

    asyncio.run(main())


def test_rejections_and_drops_are_counted_by_kind(tmp_path: Path) -> None:
    async def main() -> None:
        people = People(al=(["x"], ["x"]))
        async with serving(tmp_path / "d", admin=ADMIN, access=people.access) as server:
            async with ensue.connect(people.url(server, "al")) as bus:
                with pytest.raises(ensue.EventRefused):
                    await bus.publish("y", b"1")
            with pytest.raises(ensue.AccessDenied):
                async with ensue.connect(f"{server.url}?token=wrong"):
                    pass
            assert server.listener is not None
            server.listener.send("nobody", b"lost")
            series = await exposed(server)
            assert series.labelled("ensue_refusals_total") == {"permission": 1, "login": 1}
            assert series.labelled("ensue_messages_dropped_total") == {
                "slow": 0,
                "disconnected": 1,
                "unregistered": 0,
            }

    asyncio.run(main())


def test_messages_to_a_slow_reader_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(pending_bytes=1)
        async with serving(tmp_path / "d", admin=ADMIN, limits=limits) as server:
            async with ensue.connect(server.url):
                assert server.listener is not None
                (connection,) = server.listener.connections
                # In one loop iteration: nothing is sent before the second message.
                connection.write(b"\0\0\0\1\1")
                connection.write(b"\0\0\0\1\1")
                series = await exposed(server)
            assert series.labelled("ensue_messages_dropped_total") == {
                "slow": 1,
                "disconnected": 0,
                "unregistered": 0,
            }

    asyncio.run(main())


# -- Health ----------------------------------------------------------------------------------------


def test_server_is_healthy_until_the_journal_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server = Server(ServerConfig(data=str(tmp_path / "d"), listen=ADMIN, admin=ADMIN))
        await server.start()
        assert server.journal is not None
        page = await get(server, "/healthz")
        assert (page.status, page.text) == (200, "ok\n")

        def broken() -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(server.journal, "sync", broken)
        assert server._commit is not None
        server._commit.write([Persist("a", b"b")], lambda: None)
        with pytest.raises(JournalFailed):
            await within(server.wait())
        page = await get(server, "/healthz")
        assert page.status == 503
        assert "the journal failed" in page.text
        assert "No space left" in page.text
        series = await exposed(server)
        assert (series["ensue_healthy"], series["ensue_journal_failed"]) == (0, 1)
        monkeypatch.undo()
        await server.stop()

    asyncio.run(main())


def test_stuck_sync_is_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert server.journal is not None
            assert server._commit is not None
            goes_on = threading.Event()
            sync = server.journal.sync

            def slow() -> int:
                assert goes_on.wait(DEADLINE_S)
                return sync()

            monkeypatch.setattr(server.journal, "sync", slow)
            server._commit.write([Persist("a", b"b")], lambda: None)
            commit = server._commit
            await until(lambda: commit.syncing_s > 0)
            assert (await get(server, "/healthz")).status == 200
            monkeypatch.setattr(state, "SYNC_STUCK_S", 0.0)
            page = await get(server, "/healthz")
            assert page.status == 503
            assert "syncing" in page.text
            goes_on.set()
            await until(lambda: commit.syncing_s == 0)
            assert (await get(server, "/healthz")).status == 200

    asyncio.run(main())


def test_stopping_server_is_unhealthy_and_then_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server = Server(ServerConfig(data=str(tmp_path / "d"), listen=ADMIN, admin=ADMIN))
        await server.start()
        assert server.listener is not None
        pages: list[Page] = []

        async def close() -> None:
            pages.append(await get(server, "/healthz"))

        monkeypatch.setattr(server.listener, "close", close)
        listener, monkey_closed = server.listener, type(server.listener).close
        await server.stop()
        await monkey_closed(listener)
        assert [(page.status, page.text) for page in pages] == [(503, "the server is stopping\n")]
        with pytest.raises(ConnectionRefusedError):
            await get(server, "/healthz")

    asyncio.run(main())


def test_status_is_one_object_with_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            await bus.publish("x", b"1")
            page = await get(server, "/status")
            assert page.headers["content-type"] == "application/json"
            answer = json.loads(page.text)
            assert answer["server"] == "node-1"
            assert answer["everything"] is True
            assert answer["events"] == 1
            assert [each["topic"] for each in answer["topics"]] == ["x"]

    asyncio.run(main())


def test_relayed_orders_are_shown(tmp_path: Path) -> None:
    causal, merged = ensue.Causal(), ensue.Merged(epsilon=0.01, delta=0.2)

    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert json.loads((await get(server, "/status")).text)["relayed_orders"] == []
            async with (
                ensue.connect(server.url, order=causal, name="stays") as one,
                one.subscribe("t") as events,
            ):
                async with (
                    ensue.connect(server.url, order=causal) as other,
                    ensue.connect(server.url, order=merged, name="sorts") as third,
                    third.subscribe("a", "b"),
                ):
                    await other.publish("t", b"1")
                    await third.publish("a", b"1")
                    await third.publish("nobody listens", b"1")
                    assert await read(events, 1) == [b"1"]
                    series = await exposed(server)
                    members = series.labelled("ensue_relayed_order_members")
                    assert members == {
                        "causal": 2, "causal-topic": 0, "deadline": 0, "merged": 1, "none": 0,
                    }  # fmt: skip
                    assert series["ensue_relayed_order_events_total", "order", "merged"] == 2
                    passed = series.labelled("ensue_relayed_frames_total")
                    assert passed["Publication"] >= 1
                series = await exposed(server)
                assert series.labelled("ensue_relayed_order_members")["causal"] == 1
                numbers = series["ensue_relayed_order_numbers", "order", "causal"]
                assert numbers == 2, "one of them has left"
                assert server.status is not None
                server.status._answers.clear()
                relayed = json.loads((await get(server, "/status")).text)["relayed_orders"]
                assert [each["order"] for each in relayed] == ["causal", "merged"]
                assert relayed[0]["numbers"] == 2
                assert relayed[0]["members_count"] == 1
                (member,) = relayed[0]["members"]
                assert member["name"] == one.name
                assert 0 <= member["heard_s"] < 60

    asyncio.run(main())


def test_long_answer_lists_fewer_names_and_counts_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            for number in range(40):
                await bus.publish(f"{number}" + "x" * 200, b"1", receipt=False)
            await bus.flush()
            monkeypatch.setattr(state, "ANSWER_BYTES_MAX", 6_000)
            page = await get(server, "/status")
            answer = json.loads(page.text)
            assert len(page.body) <= 6_001
            assert 0 < len(answer["topics"]) < 40
            assert answer["topics_count"] == 40

    asyncio.run(main())


def test_status_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FRESH_S", DEADLINE_S)

    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            before = await get(server, "/status")
            await bus.publish("x", b"1")
            assert (await get(server, "/status")).body == before.body

    asyncio.run(main())


def test_costly_status_is_cached_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, made = 0.0, 0

    def make() -> int:
        nonlocal now_s, made
        now_s, made = now_s + 0.5, made + 1
        return made

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(state, "SHARE_MAX", 0.1)
    remembered = state._Cached(make)
    assert remembered.get() == 1
    now_s = 5.4
    assert remembered.get() == 1
    now_s = 5.5
    assert remembered.get() == 2


# -- HTTP ------------------------------------------------------------------------------------------

GET = b"GET /healthz HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (GET + b"Host: x\r\n\r\n", 200),
        (b"GET /healthz?a=b HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (GET + b"Host: x\r\nContent-Length: 0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /../metrics HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"get /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (GET + b"\r\n", 400),
        (GET + b"Host: x\r\nHost: y\r\n\r\n", 400),
        (GET + b"Host: x\r\nContent-Length: 5\r\n\r\nhello", 400),
        (GET + b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (GET + b"Host : x\r\n\r\n", 400),
        (GET + b"Host: x\r\n folded\r\n\r\n", 400),
        (GET + b"Host: \x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\nHost: x\n\n", 400),
        (b"GET /healthz\rHTTP/1.1\r\n\r\n", 400),
        (b"GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /h\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\n", 400),
        (b"GET /" + b"a" * admin.REQUEST_BYTES_MAX, 431),
        (GET + b"X: y\r\n" * (admin.REQUEST_BYTES_MAX // 6 + 1), 431),
        (GET + b"X: " + b"y" * admin.REQUEST_BYTES_MAX + b"\r\n\r\n", 431),
    ],
)
def test_requests_are_parsed_strictly(tmp_path: Path, data: bytes, status: int) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            page = await send(server, data)
            assert page.status == status, page.text
            assert page.text.endswith("\n")
            assert ("allow" in page.headers) == (status == 405)
            assert (await get(server, "/healthz")).status == 200

    asyncio.run(main())


def test_request_may_arrive_byte_by_byte(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert server.admin is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", server.admin.port)
            for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":
                writer.write(bytes((byte,)))
                await writer.drain()
                await asyncio.sleep(0)
            assert Page(await within(reader.read())).status == 200
            writer.close()

    asyncio.run(main())


def test_head_gets_the_length_and_no_body(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            page = await get(server, "/healthz", "HEAD")
            assert (page.status, page.headers["content-length"], page.body) == (200, "3", b"")

    asyncio.run(main())


def test_unfinished_request_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "REQUEST_S", 0.05)

    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            page = await send(server, GET)
            assert page.status == 408
            assert server.admin is not None
            requests = server.admin.requests
            await until(lambda: not requests)

    asyncio.run(main())


def test_unread_response_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "RESPONSE_S", 0.05)

    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert server.admin is not None
            # More than the operating system buffers for a client that does not read.
            huge = (HTTPStatus.OK, "text/plain", b"x" * 64 * 1024 * 1024)
            monkeypatch.setattr(server.admin, "page", lambda *_: huge)
            with socket.create_connection(("127.0.0.1", server.admin.port)) as silent:
                silent.setblocking(False)
                silent.send(GET + b"Host: x\r\n\r\n")
                requests = server.admin.requests
                await until(lambda: len(requests) == 1)
                await until(lambda: not requests)

    asyncio.run(main())


def test_idle_connections_are_evicted(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert server.admin is not None
            requests, port = server.admin.requests, server.admin.port
            most = admin.CONNECTIONS_MAX
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(most + 36)]
            await until(lambda: len(requests) == most)
            for _ in range(3):
                assert (await get(server, "/healthz")).status == 200
            # The oldest is evicted first; the latest still works.
            assert await within(silent[0][0].read()) == b""
            silent[-1][1].write(GET + b"Host: x\r\n\r\n")
            assert Page(await within(silent[-1][0].read())).status == 200
            for _, writer in silent:
                writer.transport.abort()

    asyncio.run(main())


def test_failing_page_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert server.status is not None
            monkeypatch.setattr(server.status, "listeners", lambda: 1 / 0)
            assert (await get(server, "/metrics")).status == 500
            assert (await get(server, "/healthz")).status == 200

    asyncio.run(main())


# -- Listen address --------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7401", "example.org:7401"])
def test_exposed_admin_port_needs_an_option(address: str) -> None:
    # The option of the server does not apply to a port without TLS and login.
    for insecure in (False, True):
        with pytest.raises(ConfigurationError, match="insecure_admin"):
            ServerConfig(data="d", admin=address, insecure=insecure)
    ServerConfig(data="d", admin=address, insecure_admin=True)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:7401"])
def test_loopback_needs_no_option(address: str) -> None:
    ServerConfig(data="d", admin=address)


def test_file_has_an_admin_port_per_server() -> None:
    text = """
        insecure_admin = true
        [[servers]]
        name = "a"
        listen = "127.0.0.1:7400"
        admin = "0.0.0.0:7401"
        data = "a"
        [[servers]]
        name = "b"
        listen = "127.0.0.1:7410"
        data = "b"
    """
    assert config_file.loads(text, name="a").admin == "0.0.0.0:7401"
    assert config_file.loads(text, name="b").admin == ""
    with pytest.raises(BadInput, match="insecure_admin"):
        config_file.loads(text.replace("true", "false"), name="a")


def test_port_in_use_is_an_error_and_releases_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            assert server.admin is not None
            taken = f"127.0.0.1:{server.admin.port}"
            with pytest.raises(TransportError, match=r"admin port can't listen on .*in use"):
                await Server(
                    ServerConfig(data=str(tmp_path / "e"), listen=ADMIN, admin=taken)
                ).start()
            async with serving(tmp_path / "e"):
                pass

    asyncio.run(main())


def test_command_prints_the_admin_url_and_rejects_the_option_with_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(capsys, monkeypatch)
    words = ("serve", "--data", tmp_path / "d", "--listen", ADMIN)
    ended = shell(*words, "--admin", "0.0.0.0:7401")
    assert ended.code == 2
    assert "--insecure-admin-anyone" in ended.stderr
    ended = shell("serve", "--config", tmp_path / "x.toml", "--admin", ADMIN)
    assert ended.code == 2
    assert "--admin" in ended.stderr
