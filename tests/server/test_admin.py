"""The admin port: what it tells is true, and whoever asks badly gets nothing but a word why."""

import asyncio
from pathlib import Path

import pytest
from tests.server.exposition import BadExpositionError, Exposed
from tests.server.helpers import read, serving, until, within

import ensue
from ensue.event import Event
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import OrderRequest
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.placement import Placement
from ensue.server import Server, state
from ensue.server.metrics import Exposition, Histogram, TopicCounts

ADMIN = "127.0.0.1:0"


class Page:
    """What came back."""

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


async def get(server: Server, path: str, method: str = "GET") -> Page:
    return await send(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def exposed(server: Server) -> Exposed:
    page = await get(server, "/metrics")
    assert page.status == 200
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Exposed(page.text)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything told as it is now."""
    monkeypatch.setattr(state, "FRESH_S", 0.0)


# -- The format ---------------------------------------------------------------------------------


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
        '# HELP x a\n# TYPE x histogram\nx_bucket{le="1"} 2\nx_bucket{le="+Inf"} 1\nx_sum 1\nx_count 1\n',
        '# HELP x a\n# TYPE x histogram\nx_bucket{le="1"} 1\nx_sum 1\nx_count 1\n',
        '# HELP x a\n# TYPE x histogram\nx_bucket{le="+Inf"} 1\nx_sum 1\nx_count 2\n',
    ],
)
def test_the_reader_of_the_format_finds_what_is_wrong(text: str) -> None:
    with pytest.raises(BadExpositionError):
        Exposed(text)


def test_whatever_a_topic_is_called_the_text_can_be_read() -> None:
    out = Exposition()
    names = ['a"b', "a\\b", "a\nb", "a\\nb", "ü}{,=", ""]
    out.gauges("x", "back\\slash and\nnewline", [({"topic": name}, 1.5) for name in names])
    out.counter("y_total", "plain", 3)
    read_back = Exposed(out.text())
    assert read_back.labelled("x") == dict.fromkeys(names, 1.5)
    assert read_back["y_total"] == 3


def test_a_histogram_counts_each_value_once_and_bounds_are_inclusive() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 2.0):
        histogram.observe(value)
    out = Exposition()
    out.histogram("t_seconds", "times", histogram)
    told = Exposed(out.text())
    assert [told["t_seconds_bucket", "le", each] for each in ("0.1", "1", "+Inf")] == [2, 4, 5]
    assert told["t_seconds_sum"] == pytest.approx(3.65)


# -- Topics -------------------------------------------------------------------------------------


class Counting:
    """A node whose topics are counted as if by its publishers."""

    def __init__(self) -> None:
        self.node = SequencerNode(
            name="n",
            placement=Placement(["n"]),
            config=SequencerConfig(carries=True),
            put_out=lambda _event, _stamp: None,
        )
        self._number = 0

    def publish(self, **counts: int) -> None:
        for topic, count in counts.items():
            for _ in range(count):
                self._number += 1
                event = Event(topic=topic, payload=b"", publisher="p", publisher_seq=self._number)
                request = OrderRequest(number=self._number, events=(event,), settled=self._number)
                self.node.receive(request, source="p", now_ns=0)


def test_the_busiest_topics_have_series_of_their_own_and_none_ever_falls() -> None:
    it = Counting()
    it.publish(old=3)
    counts = TopicCounts(it.node, topics_max=2)
    assert counts.look() == {"": 0}
    it.publish(a=5, b=2)
    assert counts.look() == {"a": 5, "b": 0, "": 0} | {"b": 2}
    it.publish(c=1)
    assert counts.look() == {"a": 5, "b": 2, "": 1}
    it.publish(old=1)
    # It has had four with those from before, and so is busier than b; its own series begins now.
    assert counts.look() == {"a": 5, "old": 1, "": 1}
    it.publish(b=1, a=1)
    assert counts.look() == {"a": 6, "old": 1, "": 2}
    assert counts.look() == {"a": 6, "old": 1, "": 2}


# -- A server -----------------------------------------------------------------------------------


def test_there_is_no_admin_port_unless_it_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            assert server.admin is None

    asyncio.run(main())


def test_counters_grow_by_exactly_what_was_done(tmp_path: Path) -> None:
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
            await until(lambda: not listener.visitors)
            after = await exposed(server)
        assert during["ensue_events_total"] - before["ensue_events_total"] == 8
        assert during.labelled("ensue_topic_events_total") == {"x": 7, 'we"ird\\': 1, "": 0}
        assert during["ensue_requested_events_total"] == 8
        assert during["ensue_requested_payload_bytes_total"] == 12
        assert during["ensue_frames_in_total", "kind", "OrderRequest"] == 8
        assert during["ensue_frames_in_total", "kind", "ChangeRequest"] == 1
        assert during["ensue_connections"] == 1
        assert during["ensue_connections_total"] == 1
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
        assert after["ensue_connections_total"] == 1
        assert after["ensue_events_total"] == 8

    asyncio.run(main())


def test_counters_begin_anew_with_the_server_and_what_is_kept_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            for _ in range(3):
                await bus.publish("x", b"1")
        async with serving(tmp_path / "d", admin=ADMIN) as server:
            told = await exposed(server)
            assert told["ensue_events_total"] == 0
            assert told["ensue_journal_batches_total"] == 0
            assert told.labelled("ensue_topic_events_total") == {"": 0}
            assert told["ensue_topics"] == 1
            async with ensue.connect(server.url) as bus:
                await bus.publish("x", b"1")
            assert (await exposed(server)).labelled("ensue_topic_events_total") == {"x": 1, "": 0}

    asyncio.run(main())


def test_the_lag_of_a_durable_subscription_that_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", admin=ADMIN) as server, ensue.connect(server.url) as bus:
            async with bus.subscribe("x", "y", name="desk", durable=True) as desk:
                for _ in range(5):
                    await bus.publish("x", b"x")
                await bus.publish("y", b"y")
                await read(desk, 4)
            # The fourth is acknowledged by whoever asks for the fifth.
            for _ in range(10):
                await bus.publish("y", b"later")
            told = await exposed(server)
            handled = told["ensue_subscription_position_events", "subscription", "desk"]
            assert handled in (3, 4)
            assert told["ensue_subscription_lag_events", "subscription", "desk"] == 16 - handled
            assert told["ensue_lag_events"] == 16 - handled
            assert told["ensue_durable_subscriptions"] == 1
            async with bus.subscribe("x", "y", name="desk", durable=True) as desk:
                await read(desk, 16 - int(handled))
            told = await exposed(server)
            assert told["ensue_subscription_lag_events", "subscription", "desk"] <= 1

    asyncio.run(main())
