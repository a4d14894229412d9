"""Clients that are not connected long after healing are reported, and no others."""

import asyncio
from unittest import mock

import ensue
from ensue.client.bus import Bus
from ensue.core.errors import TransportError
from ensue.testing import Simulation, simulate
from ensue.testing.process import SECOND_NS, Process
from ensue.testing.swarm.client_watch import CONNECT_S, ClientWatch


def watch_reader(
    *, waits_s: float, late_s: float = 0.0, refused: str = "", errors: tuple[float, ...] = ()
) -> list[str]:
    """Have a reader wait for its connection; return the problems that are reported.

    `errors` says when after healing the reader gets an error, and `refused` who may wait.
    """
    problems: list[str] = []

    async def connect(self: Bus) -> Bus:
        await asyncio.sleep(waits_s)
        return self

    async def read() -> None:
        await ensue.connect("ensue://server:7400").__aenter__()

    async def main(simulation: Simulation) -> None:
        watch = ClientWatch(simulation.world, problems, late_s, lambda client: client == refused)
        clients: list[Process] = []
        watch.failed("reader", TransportError("faults strike"))
        watch.healed(clients)
        clients.append(simulation.start("reader", read))
        for at_s in errors:
            error = TransportError("away")
            simulation.world.at(int(at_s * SECOND_NS), watch.failed, "reader", error)
        await asyncio.sleep(60.0)
        watch.over()

    with mock.patch.object(Bus, "__aenter__", connect):
        simulate(main, seed=1)
    return problems


def test_a_client_that_connects_in_time_is_not_reported() -> None:
    assert watch_reader(waits_s=CONNECT_S - 2.0) == []


def test_a_client_that_connects_late_is_reported_once() -> None:
    (problem,) = watch_reader(waits_s=CONNECT_S + 10.0)
    assert problem.startswith("liveness: 20 s after healing reader waits in ")


def test_a_slow_network_allows_more_time() -> None:
    assert watch_reader(waits_s=CONNECT_S + 10.0, late_s=25.0, errors=(CONNECT_S + 10.0,)) == []


def test_a_server_that_refuses_its_log_owes_its_clients_no_connection() -> None:
    assert watch_reader(waits_s=CONNECT_S + 10.0, refused="reader", errors=(30.0,)) == []
    assert watch_reader(waits_s=CONNECT_S + 10.0, refused="other")
    assert watch_reader(waits_s=1.0, refused="other", errors=(30.0,))


def test_an_error_is_reported_once_all_clients_have_to_be_connected() -> None:
    assert watch_reader(waits_s=1.0, errors=(CONNECT_S - 1.0,)) == []
    assert watch_reader(waits_s=1.0, errors=(CONNECT_S + 1.0, CONNECT_S + 2.0)) == [
        "liveness: 20 s after healing reader got TransportError('away')"
    ]
