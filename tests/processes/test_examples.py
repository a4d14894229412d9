"""The use cases of the transactions paper, as examples, on three `ensue serve` processes."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import consolidation, dispatch
from tests.processes.runs import Process
from tests.processes.test_content_killed import SERVERS, configure, line_of

RUN_S = 300.0


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    """Start three servers from one configuration file; return their URLs."""
    addresses = configure(tmp_path)
    config = str(tmp_path / "ensue.toml")

    def serve(name: str) -> Callable[[int], list[str]]:
        words = ["serve", "--json", "--config", config, "--name", name]
        return lambda _start: [sys.executable, "-m", "ensue", *words]

    servers = [Process(name, "server", serve(name), tmp_path) for name in SERVERS]
    try:
        for server in servers:
            server.start()
        for server in servers:
            asyncio.run(line_of(server, "{"))
        yield list(addresses.values())
    finally:
        for server in servers:
            server.kill()


def played(example: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Return how often each event of an example came."""

    async def main() -> list[int]:
        return await asyncio.wait_for(example, RUN_S)

    return asyncio.run(main())


def test_dispatching_on_three_servers_loses_and_doubles_nothing(urls: list[str]) -> None:
    counts = played(dispatch.dispatch("in one transaction", urls))
    assert set(counts) == {1}
    # At least one event came between any two moves.
    assert len(counts) > 2 * dispatch.UPDATES + dispatch.MOVES


def test_consolidation_on_three_servers_loses_and_doubles_nothing(urls: list[str]) -> None:
    counts = played(consolidation.consolidate(in_one_transaction=True, urls=urls))
    assert set(counts) == {1}
    assert len(counts) > 2 * len(consolidation.INSTANCES) * consolidation.ROUNDS


def test_moves_on_three_servers_without_a_transaction_are_counted(urls: list[str]) -> None:
    assert 0 in played(dispatch.dispatch("unsubscribe, then subscribe", urls))
    assert 2 in played(dispatch.dispatch("subscribe, then unsubscribe", urls))
