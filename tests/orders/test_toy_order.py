"""A new order is one package and one registration: everything else asks the registry."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.orders.toy import Batches, BatchOrder
from tests.orders.toy.deployment import BatchesTable
from tests.orders.toy.frames import EndOfBatch
from tests.server.helpers import People, read, serving, until, within

import ensue
from ensue import orders
from ensue.checkers import Verdict, check
from ensue.cli.narration import scenario_lines
from ensue.cli.order_options import chosen_order
from ensue.core import trace
from ensue.core.errors import BadInput, RemoteProtocolError
from ensue.core.order import parse
from ensue.protocols.topic_log.frames import TopicFrame
from ensue.server.relay_authorization import screen_fanout
from ensue.simulation import run
from ensue.simulation.scenario_file.reader import keys, loads
from ensue.simulation.seeds import DRAWS, play_seed

pytestmark = pytest.mark.usefixtures("toy")

SCENARIO = """
order = "batches"
duration = "2s"
[[publishers]]
name = "p"
rates = [{ topics = ["a"], per_second = 50 }]
[[subscribers]]
name = "s"
topics = ["a"]
"""


async def publish(url: str, first: int, last: int, *, size: int, name: str) -> None:
    async with ensue.connect(url, order=Batches(size=size), name=name) as bus:
        for number in range(first, last + 1):
            await within(bus.publish("numbers", b"%d" % number))


# -- The client ------------------------------------------------------------------------------------


def test_bus_publishes_and_subscribes_in_memory(tmp_path: Path) -> None:
    directory = tmp_path / "trace"

    async def main() -> list[bytes]:
        url = "memory://?jitter_ms=2&seed=3"
        async with (
            ensue.connect(url, order=Batches(), trace=str(directory)) as bus,
            bus.subscribe("numbers") as events,
        ):
            for number in range(1, 9):
                await bus.publish("numbers", b"%d" % number)
            return [(await anext(events)).payload for _ in range(8)]

    assert asyncio.run(main()) == [b"2", b"1", b"4", b"3", b"6", b"5", b"8", b"7"]
    rows = trace.read(directory)
    assert check(rows, "batches").verdict is Verdict.VALID
    assert check(rows, "fifo").verdict is Verdict.INVALID


def test_its_own_frame_ends_the_last_batch_in_memory() -> None:
    async def main() -> list[bytes]:
        url = "memory://toy"
        async with (
            ensue.connect(url, order=Batches(size=3)) as bus,
            bus.subscribe("numbers") as events,
        ):
            await publish(url, 1, 5, size=3, name="p")
            return await read(events, 5)

    assert asyncio.run(main()) == [b"3", b"2", b"1", b"5", b"4"]


def test_server_carries_its_events_and_its_own_frame(tmp_path: Path) -> None:
    directory = tmp_path / "trace"

    async def main() -> list[bytes]:
        async with (
            serving(tmp_path / "data") as server,
            ensue.connect(server.url, order=Batches(size=3), trace=str(directory)) as bus,
            bus.subscribe("numbers") as events,
        ):
            await publish(server.url, 1, 5, size=3, name="p")
            return await read(events, 5)

    assert asyncio.run(main()) == [b"3", b"2", b"1", b"5", b"4"]


def test_server_refuses_its_own_frame_without_permission_to_publish(tmp_path: Path) -> None:
    people = People(writer=(["numbers"], ["*"]), reader=([], ["*"]))

    async def main() -> None:
        async with serving(tmp_path / "data", access=people.access) as server:
            url = people.url(server, "reader")
            async with (
                ensue.connect(people.url(server, "writer"), order=Batches()),
                ensue.connect(url, order=Batches(), name="r") as bus,
                bus.subscribe("numbers"),
            ):
                listener = server.listener
                assert listener is not None
                await until(lambda: bus.name in listener.routes)
                connection = listener.routes[bus.name]
                frame = EndOfBatch(topic="numbers", publisher=bus.name, last=1)
                admitted, answers = screen_fanout(
                    listener.authorization, "ensue/batches", connection, bus.name, [frame]
                )
                assert admitted == []
                assert "may not publish" in answers[0].reason  # type: ignore[attr-defined]
                forged = EndOfBatch(topic="numbers", publisher="another", last=1)
                for fanout, sent in (("ensue/batches", forged), ("ensue/none", frame)):
                    with pytest.raises(RemoteProtocolError):
                        screen_fanout(listener.authorization, fanout, connection, bus.name, [sent])

    asyncio.run(main())


def test_broker_is_refused_by_name_because_it_fans_out_no_own_frames() -> None:
    with pytest.raises(ensue.UnsupportedOrder, match="nats:// does not carry batches order"):
        ensue.connect("nats://127.0.0.1:4222", order=Batches())


def test_subscription_in_another_order_is_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=Batches()) as bus:
            with pytest.raises(ensue.UnsupportedOrder, match="publishes in batches order"):
                bus.subscribe("numbers", order=ensue.Total())

    asyncio.run(main())


# -- The simulator and the checkers ----------------------------------------------------------------


def test_simulator_runs_its_seeds_and_checkers_judge_them() -> None:
    for seed in range(10):
        assert play_seed("batches", seed).failure == ()
    outcome = run.play(DRAWS["batches"](0), 0)
    assert outcome.delivered
    rules = [finding.checker for finding in outcome.report.findings]
    assert rules == ["batches", "positions", "complete"]


def test_its_own_rule_finds_a_violation() -> None:
    rows = run.play(DRAWS["batches"](1), 1).rows
    delivered = [row for row in rows if row.action == "delivered"]
    one, other = [row for row in delivered if row.node == delivered[0].node][:2]
    replaced = {
        id(one): msgspec.structs.replace(one, step=other.step, position=other.position),
        id(other): msgspec.structs.replace(other, step=one.step, position=one.position),
    }
    swapped = [replaced.get(id(row), row) for row in rows]
    assert check(rows, "batches").verdict is Verdict.VALID
    report = check(swapped, "batches")
    assert report.verdict is Verdict.INVALID
    assert any("was due" in sentence for sentence in report.sentences())


def test_scenario_file_has_its_table() -> None:
    assert loads(SCENARIO).table == BatchesTable(size=2)
    scenario = loads(f"{SCENARIO}[batches]\nsize = 5\n")
    assert scenario.table == BatchesTable(size=5)
    assert "batches.size" in keys()
    lines = list(scenario_lines(scenario))
    assert any("order batches" in line for line in lines)
    assert "  batches of 5" in lines
    rows = run.play(scenario, 0).rows
    numbers = [row.publisher_seq for row in rows if row.action == "delivered"]
    assert numbers[:10] == [5, 4, 3, 2, 1, 10, 9, 8, 7, 6]


def test_mistakes_in_its_table_are_explained() -> None:
    with pytest.raises(BadInput, match=r"batches: there is no key 'sizes' here; did you mean"):
        loads(f"{SCENARIO}[batches]\nsizes = 5\n")
    other = SCENARIO.replace('"batches"', '"total"')
    with pytest.raises(BadInput, match='batches: this table is for that order, not for order = "t'):
        loads(f"{other}[batches]\nsize = 5\n")


# -- Commands and the registry ---------------------------------------------------------------------


def test_commands_have_its_options() -> None:
    assert "batches" in DRAWS
    assert chosen_order("batches", {"--size": None}) == Batches()
    assert chosen_order("batches", {"--size": 3}) == Batches(size=3)
    assert parse("batches") == Batches()
    with pytest.raises(BadInput, match="--size must be from 1 to 1000, got 0"):
        chosen_order("batches", {"--size": 0})
    with pytest.raises(BadInput, match="--size is for --order batches, not for --order total"):
        chosen_order("total", {"--size": 3})


def test_name_is_taken_once(toy: BatchOrder) -> None:
    with pytest.raises(BadInput, match="there is an order 'batches' already"):
        orders.register(toy)


def test_order_that_is_not_registered_is_refused(toy: BatchOrder) -> None:
    orders.unregister(toy.name)
    try:
        with pytest.raises(ensue.UnsupportedOrder, match="batches order, which is not registered"):
            ensue.connect("memory://", order=Batches())
    finally:
        orders.register(toy)


def test_order_without_a_carrier_is_refused() -> None:
    class Other(BatchOrder):
        name = "other"
        has_topic_log = False

    with pytest.raises(BadInput, match="no part of Ensue carries other order: set has_topic_log"):
        orders.register(Other())


class Low(TopicFrame, frozen=True, tag=7):
    """A frame with the tag of `Notify`."""


class Twin(TopicFrame, frozen=True, tag=1_000):
    """A frame with the tag of another order."""


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (Low, "tag of Low must be at least 1000, got 7"),
        (Twin, "tag 1000 of Twin is that of EndOfBatch: choose another"),
    ],
)
def test_tag_of_another_frame_is_refused(frame: type[TopicFrame], why: str) -> None:
    class Other(BatchOrder):
        name = "other"
        options = ()

        def topic_frames(self) -> tuple[type[TopicFrame], ...]:
            return (frame,)

    with pytest.raises(BadInput, match=why):
        orders.register(Other())


def test_option_that_differs_from_that_of_another_order_is_refused() -> None:
    class Other(BatchOrder):
        name = "other"
        options = (orders.Option(name="--ms", metavar="WEEKS", help="another."),)

        def topic_frames(self) -> tuple[type[TopicFrame], ...]:
            return ()

    with pytest.raises(BadInput, match="--ms of other order differs from that of deadline order"):
        orders.register(Other())
