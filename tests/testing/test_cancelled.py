"""Each operation of the public API, cancelled wherever it suspends, breaks nothing.

`cancelled` has the programs. Each judges the effect of its call; here the traces are judged, and
what is left in the process and at the servers.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from tests.testing import cancelled_content, cancelled_servers, cancelled_transactions
from tests.testing import cancelled_operations as on_topics
from tests.testing.cancelled import MANNERS, Client, Operation
from tests.testing.cancelled_calls import API, NOT_CANCELLED, noted, unlisted_classes
from tests.testing.swarm.mutants import MUTANTS
from tests.testing.swarm.planted import planted

import ensue
from ensue.core.order import Order
from ensue.protocols.total.publisher import Publisher
from ensue.server import Server, ServerConfig
from ensue.server.connection import Connection
from ensue.testing import Faults, Simulation, cancel_at, simulate
from ensue.testing.swarm.judge import judge
from ensue.testing.swarm.leaks import judge_leaks

ORDERS: dict[str, Order] = {
    "total": ensue.Total(),
    "causal": ensue.Causal(),
    "merged": ensue.Merged(epsilon=0.01, delta=0.2),
    "deadline": ensue.Deadline(ms=300),
}
ON_CONTENT = (*cancelled_content.OPERATIONS, *cancelled_transactions.OPERATIONS)
EVERYWHERE: tuple[Operation, ...] = (
    on_topics.connect,
    on_topics.close,
    on_topics.leave_block,
    on_topics.publish,
    on_topics.publish_many,
    on_topics.flush,
    on_topics.subscribe,
    on_topics.change_topics,
    on_topics.read_next,
    on_topics.read_batch,
    on_topics.handle,
    on_topics.handle_by_key,
)
DURABLE: tuple[Operation, ...] = (
    on_topics.durable_ack,
    on_topics.durable_enter,
    on_topics.durable_enter_again,
    on_topics.durable_close,
    on_topics.durable_forget,
)


@contextmanager
def reset_names() -> Iterator[set[str]]:
    """Collect the names whose connections to servers are reset."""
    found: set[str] = set()
    lost = Connection.connection_lost

    def note(self: Connection, error: Exception | None) -> None:
        if isinstance(error, ConnectionResetError):
            found.update(self.names)
        lost(self, error)

    with mock.patch.object(Connection, "connection_lost", note):
        yield found


def sweep(
    operation: Operation, order: Order | None, servers: int = 1, *, broker: str = ""
) -> list[str]:
    """Cancel an operation at all its suspensions; return what is wrong."""

    faults = Faults(partitions=60, resets=60)  # Where an operation lets them strike.

    async def main(simulation: Simulation) -> list[str]:
        names = [f"server-{number}" for number in range(1, servers + 1)]
        url = (await simulation.broker(broker)).url if broker else ""
        cluster = await simulation.serve(*names, broker=url)
        client = Client(simulation, cluster, order)
        process = simulation.start("client", operation, client)
        await process
        assert client.suspensions
        found = await judge_leaks(cluster, [process], client.closed)
        return [*client.problems, *client.left_behind(found, reset)]

    with reset_names() as reset:
        done = simulate(main, faults=faults, until_s=20_000)
    problems: list[str] = done.result
    if order is not None:
        # One that was forgotten begins anew, under the same name.
        rows = [row for row in done.rows if not (row.subscription or "").startswith("forgotten")]
        names = {row.subscription or "" for row in rows}
        durable = [each for each in names if each.startswith("kept")]
        problems += judge(rows, order.name, settle_s=None, durable=durable)
    return problems


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("operation", EVERYWHERE, ids=lambda each: each.__name__)
def test_topics(operation: Operation, order: str, servers: int) -> None:
    assert sweep(operation, ORDERS[order], servers) == []


@pytest.mark.parametrize("broker", ["nats", "redis", "mqtt", "amqp"])
@pytest.mark.parametrize("operation", [*EVERYWHERE, *DURABLE], ids=lambda each: each.__name__)
def test_brokers(operation: Operation, broker: str) -> None:
    assert sweep(operation, ensue.Total(), broker=broker) == []


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("operation", DURABLE, ids=lambda each: each.__name__)
def test_durable(operation: Operation, servers: int) -> None:
    assert sweep(operation, ensue.Total(), servers) == []


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("operation", ON_CONTENT, ids=lambda each: each.__name__)
def test_content(operation: Operation, servers: int) -> None:
    assert sweep(operation, None, servers) == []


@pytest.mark.parametrize("operation", cancelled_servers.OPERATIONS, ids=lambda each: each.__name__)
def test_servers(operation: Operation) -> None:
    assert sweep(operation, None) == []


def test_each_call_of_the_api_is_cancelled_while_it_waits() -> None:
    """A new call needs an operation that cancels it, or a reason why none does."""
    cancelled: set[str] = set()
    with noted(cancelled):
        for operation in (*EVERYWHERE, *DURABLE):
            sweep(operation, ensue.Total())
        for operation in (*ON_CONTENT, *cancelled_servers.OPERATIONS):
            sweep(operation, None)
    assert sorted(set(API) - cancelled) == sorted(NOT_CANCELLED)


def test_api_has_each_class_that_it_returns() -> None:
    assert unlisted_classes() == set()


def test_start_of_a_server_on_a_real_event_loop(tmp_path: Path) -> None:
    """Starting one suspends only where there are real sockets."""
    config = ServerConfig(data=str(tmp_path), listen="127.0.0.1:0", admin="127.0.0.1:0")

    async def attempt(suspension: int, manner: dict[str, bool]) -> bool:
        server = Server(config)
        attempt = await cancel_at(server.start(), suspension, **manner)
        if not attempt.cancelled:
            await server.stop()
        await asyncio.sleep(0.05)  # A stop goes on if its caller is cancelled.
        assert asyncio.all_tasks() == {asyncio.current_task()}
        again = Server(config)
        await again.start()
        await again.stop()
        return attempt.reached

    for manner in MANNERS:
        reached = 0
        while asyncio.run(attempt(reached + 1, manner)):
            reached += 1
        assert reached
    gc.collect()  # Warns of sockets that were left open, which fails this test.


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("a cancelled read loses", on_topics.read_next),
        ("leaving swallows cancellations", on_topics.leave_block),
        ("a cancelled block stays connected", on_topics.leave_block),
    ],
)
def test_planted_bug_is_found(name: str, operation: Operation) -> None:
    (mutant,) = (each for each in MUTANTS if each.name == name)
    with planted(mutant):
        try:
            found = sweep(operation, ensue.Total())
        except AssertionError as error:
            found = [str(error)]
    assert found


@pytest.mark.parametrize("broker", ["", "redis"])
def test_publisher_that_does_not_say_goodbye_is_found(broker: str) -> None:
    """Servers keep the sessions of all buses, also of those that nothing cut off."""
    with mock.patch.object(Publisher, "say_goodbye", return_value=None):
        found = sweep(on_topics.read_next, ensue.Total(), broker=broker)
    assert [each for each in found if "publisher session" in each]
