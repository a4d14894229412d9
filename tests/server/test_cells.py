"""Subscriptions by content in total order, on real servers."""

import asyncio
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.server.helpers import People, read, serving, within
from tests.server.test_command import ENSUE, running
from tests.server.test_server import chain

import ensue
from ensue.checkers import check
from ensue.client import validation
from ensue.core import trace
from ensue.core.errors import BadInput, ConfigurationError, EventRefused, SubscriptionRefused
from ensue.core.event import Event
from ensue.protocols.content.cells import Cells
from ensue.server import config_file
from ensue.server.config import sequenced

TOTAL = ensue.Total()
TEXT = "symbol/16; price<10<100"
SEQUENCER = sequenced(causal=True, cells=TEXT)


def test_overlapping_filters_agree_on_three_servers(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3, sequencer=SEQUENCER)
        try:
            filters = ("symbol = 'ACME'", "price >= 10", "true")
            async with (
                ensue.connect(servers[0].url, trace=str(tmp_path / "trace" / "a")) as bus,
                ensue.connect(servers[2].url, trace=str(tmp_path / "trace" / "b")) as other,
                bus.subscribe(where=filters[0], order=TOTAL) as acme,
                bus.subscribe(where=filters[1], order=TOTAL) as dear,
                bus.subscribe(where=filters[2], order=TOTAL) as everything,
            ):
                for sender in (bus, other):
                    for price in (1, 20, 300):
                        for symbol in ("ACME", "BETA", "ZINC"):
                            event = {"symbol": symbol, "price": price}
                            await within(sender.publish(event, symbol.encode(), order=TOTAL))
                assert await read(acme, 6) == [b"ACME"] * 6
                whole = [await within(anext(everything)) for _ in range(18)]
                assert await read(dear, 12) == [
                    event.payload for event in whole if event.attributes["price"] != 1
                ]
                assert acme.counts is not None
                assert acme.counts.received < 18
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())
    report = check(trace.read(tmp_path / "trace"))
    assert report.verdict == "valid", report.sentences()


def test_disjoint_filters_do_not_wait_for_each_others_servers(tmp_path: Path) -> None:
    async def main() -> None:
        sequencer = sequenced(causal=True, cells="symbol/16")
        servers = await chain(tmp_path, 2, sequencer=sequencer)
        cells, placement = Cells.parse("symbol/16"), servers[0].placement
        homes: dict[str, str] = {}
        for number in range(100):
            symbol = f"s{number}"
            homes.setdefault(placement.node(cells.topic_of({"symbol": symbol})), symbol)
        here, there = homes["s0"], homes["s1"]
        try:
            async with (
                ensue.connect(servers[0].url) as bus,
                ensue.connect(servers[0].url) as publisher,
                bus.subscribe(where=f"symbol = '{here}'", order=TOTAL) as events,
                bus.subscribe(where=f"symbol = '{there}'", order=TOTAL),
            ):
                await servers[1].stop()
                await within(publisher.publish({"symbol": here}, b"free", order=TOTAL))
                assert await read(events, 1) == [b"free"]
        finally:
            await servers[0].stop()

    asyncio.run(main())


def test_durable_subscription_resumes_with_its_filter_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path, sequencer=SEQUENCER) as server,
            ensue.connect(server.url) as bus,
        ):

            def subscribe(where: str | None) -> ensue.Subscription:
                if where is None:
                    return bus.subscribe(name="archive", durable=True)
                return bus.subscribe(
                    where=where, order=TOTAL, name="archive", durable=True, acknowledge="manual"
                )

            where = "symbol = 'ACME' and price > 0"
            async with subscribe(where) as events:
                for price in (0, 1, 0, 2):
                    sent = {"symbol": "ACME", "price": price}
                    await within(bus.publish(sent, b"%d" % price, order=TOTAL))
                event = await within(anext(events))
                assert event.payload == b"1"
                await within(event.ack())
            for price in (0, 3):
                sent = {"symbol": "ACME", "price": price}
                await within(bus.publish(sent, b"%d" % price, order=TOTAL))
            for other in ("symbol = 'BETA'", None):
                with pytest.raises(BadInput, match="'archive' is by content, and was entered"):
                    await within(subscribe(other).__aenter__())
            async with subscribe(where) as events:
                got = [await within(anext(events)) for _ in range(2)]
                assert [(event.payload, event.position) for event in got] == [
                    (b"2", 2),
                    (b"3", 3),
                ]

    asyncio.run(main())


def test_durable_subscription_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path, sequencer=SEQUENCER) as server,
            ensue.connect(server.url) as bus,
        ):
            for where in ("price > 0", "price > 1"):
                async with bus.subscribe(
                    where=where, order=TOTAL, name="archive", durable=True
                ) as events:
                    await within(events.forget())

    asyncio.run(main())


def test_subscription_reads_matching_events_from_the_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path, sequencer=SEQUENCER) as server,
            ensue.connect(server.url) as bus,
        ):
            for price in range(6):
                sent = {"symbol": "ACME" if price % 2 else "BETA", "price": price}
                await within(bus.publish(sent, b"%d" % price, order=TOTAL))
            async with bus.subscribe(where="price > 1", order=TOTAL, start="earliest") as events:
                assert await read(events, 4) == [b"2", b"3", b"4", b"5"]

    asyncio.run(main())


def test_permission_for_content_is_one_for_its_cells(tmp_path: Path) -> None:
    people = People(reader=([], ["content"]), writer=(["content"], ["other"]))

    async def main() -> None:
        async with (
            serving(tmp_path, access=people.access, sequencer=SEQUENCER) as server,
            ensue.connect(people.url(server, "reader")) as reader,
            ensue.connect(people.url(server, "writer")) as writer,
            reader.subscribe(where="price > 0", order=TOTAL) as events,
        ):
            await within(writer.publish({"price": 1}, b"1", order=TOTAL))
            assert await read(events, 1) == [b"1"]
            with pytest.raises(EventRefused, match="'reader' may not publish on 'content'"):
                await within(reader.publish({"price": 1}, order=TOTAL))
            with pytest.raises(SubscriptionRefused, match="may not subscribe to 'content'"):
                await within(writer.subscribe(where="price > 0", order=TOTAL).__aenter__())

    asyncio.run(main())


def test_permission_for_content_is_none_for_topics_that_only_look_like_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "is_cell", lambda _topic: False)  # A client that lies.
    people = People(alice=(["content"], ["content"]))
    cells = Cells.parse(TEXT)

    async def main() -> None:
        async with (
            serving(tmp_path, access=people.access, sequencer=SEQUENCER) as server,
            ensue.connect(people.url(server, "alice")) as alice,
        ):
            for topic in (
                "content:private",
                f"{cells.stem}private",
                f"{cells.stem}1-01",
                f"{cells.stem}1-99",
                f"{cells.stem}1-1-1",
                cells.stem,
            ):
                with pytest.raises(EventRefused, match="have other cells for events by content"):
                    await within(alice.publish(topic, b""))
                with pytest.raises(SubscriptionRefused, match="have other cells"):
                    await within(alice.subscribe(topic).__aenter__())

    asyncio.run(main())


@pytest.mark.parametrize("headers", [{}, {"price": "50"}, {"price": "none"}, {"price": "[1]"}])
def test_event_of_another_cell_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    """It would reach some of the subscriptions that match it, and others not."""
    cells = Cells.parse(TEXT)

    async def main() -> None:
        async with serving(tmp_path, sequencer=SEQUENCER) as server:
            assert server.listener is not None
            async with ensue.connect(server.url):
                (peer,) = server.listener.connections
                refusal = server.listener.authorization.event_refusal
                topic = cells.topic_of({"symbol": "ACME", "price": 1})
                own = {"symbol": '"ACME"', "price": "1"}
                event = Event(topic=topic, payload=b"", publisher="a", publisher_seq=1, headers=own)
                assert refusal(peer, event) == ""
                wrong = msgspec.structs.replace(event, headers=headers)
                assert "does not belong to the cell of its attributes" in refusal(peer, wrong)

    asyncio.run(main())


def test_client_of_other_cells_is_refused(tmp_path: Path) -> None:
    """A client that connected before the servers were configured anew loses nothing silently."""

    async def main() -> None:
        async with serving(tmp_path, sequencer=SEQUENCER) as server:
            bus = ensue.connect(server.url)
            async with bus:
                hub = bus._hub
                assert hub is not None
                hub.config = sequenced(causal=True, cells="symbol/4")
                with pytest.raises(EventRefused, match="have other cells for events by content"):
                    await within(bus.publish({"symbol": "ACME"}, order=TOTAL))
                with pytest.raises(SubscriptionRefused, match="have other cells"):
                    await within(bus.subscribe(where="true", order=TOTAL).__aenter__())

    asyncio.run(main())


def test_server_without_cells_says_how_to_declare_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            with pytest.raises(ConfigurationError, match="in the servers' file, or ensue serve"):
                bus.subscribe(where="true", order=TOTAL)

    asyncio.run(main())


def test_cells_are_declared_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ensue.toml"
    one = '[[servers]]\nname = "a"\nlisten = "127.0.0.1:7400"\ndata = "d"\n'
    file.write_text('cells = "symbol/8"\n' + one)
    assert config_file.load(file).sequencer.cells == "symbol/8"
    file.write_text('closed = true\ncells = "symbol/8"\n' + one + 'topics = ["t"]\n')
    with pytest.raises(BadInput, match="cells need topics that are placed by hash"):
        config_file.load(file)
    file.write_text('cells = "symbol"\n' + one)
    with pytest.raises(BadInput, match="cells 'symbol': '' is no division"):
        config_file.load(file)


def test_command_serves_cells(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with (
            ensue.connect(url) as bus,
            bus.subscribe(where="symbol = 'ACME'", order=TOTAL) as events,
        ):
            await within(bus.publish({"symbol": "ACME"}, b"served", order=TOTAL))
            assert await read(events, 1) == [b"served"]

    words = ("--listen", "127.0.0.1:0", "--data", tmp_path, "--cells", "symbol/8")
    with running(*words) as (_process, ready):
        asyncio.run(main(ready["url"]))


def test_command_names_wrong_cells(tmp_path: Path) -> None:
    words = [*ENSUE, "serve", "--data", str(tmp_path), "--cells", "symbol"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "--cells: cells 'symbol': '' is no division of 'symbol'" in done.stderr
