"""Deadlines between processes on a bad network, one killed and one paused, audited by traces.

A killed process leaves no trace. The file to which it wrote what it saw and published stands in.
"""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.brokers.proxy import DOWN, UP
from tests.cli.helpers import Shell
from tests.processes.peer import ORDERS
from tests.processes.runs import Process
from tests.processes.test_peers import COUNT, Peers

import ensue
from ensue.core import trace
from ensue.core.trace import Row
from ensue.runtime.deadline_nodes import SLACK_NS_MAX

SEED = 11
PACE_S = "0.15"
"""The longest pause between two questions of a process."""


class TimelyPeers(Peers):
    """Four processes whose events have deadlines."""

    def more_words(self, name: str, start: int) -> list[str]:
        directory = self.directory / "traces" / f"{name}.{start}"
        words = ["--trace", str(directory), "--pace", PACE_S]
        # Those who come when all is over have a count.
        return [*words, "--until", str(self._enough)] if name.startswith("peer") else words

    @property
    def _enough(self) -> Path:
        """A file that exists once no process has to publish any more."""
        return self.directory / "enough"

    async def _happens(self, count: int) -> None:
        """Wait until so much more has happened."""
        seen = len(self.rows())
        await self.until(lambda: len(self.rows()) > seen + count, "something happens")

    async def _torment(self) -> None:
        """Delay all connections, drop, hold and cut some; kill a process and pause another."""
        proxies = list(self.backend.proxies.values())
        for proxy in proxies:
            proxy.delay_s = self.random.choice((0.002, 0.01, 0.03))
        killed, paused, _, _ = self.random.sample(self.peers, 4)
        await self._happens(30)
        self.kill(killed)
        killed.start()
        for _ in range(4):
            for proxy in self.random.sample(proxies, 2):
                proxy.drop(self.random.choice((UP, DOWN)))
            await self._happens(30)
            for proxy in proxies:
                proxy.stop_dropping()
            await self._happens(20)
        paused.pause()
        await self.until(lambda: self.joined(killed), "it is back")
        await self._happens(30)
        paused.resume()
        held = self.random.choice(proxies)
        held.hold(UP)
        await self._happens(20)
        held.release(UP)
        self.random.choice(proxies).cut()
        await self._happens(20)
        self._enough.touch()

    def _have_all_of(self, publisher: Process) -> bool:
        """Return whether all have some of its events."""
        rows = [row for row in self.rows() if (row.publisher or "").startswith(publisher.name)]
        got = {row.node.partition("~")[0] for row in rows if row.action == "delivered"}
        return got >= {f"{process.name}.{process.starts}" for process in self.peers}

    def audited(self) -> list[Row]:
        """Return the traces of all, and of those who were killed what stands in for theirs."""
        dead = {name.removesuffix(".seen") for name in self.killed}
        rows = [
            row
            for path in sorted((self.directory / "traces").iterdir())
            if path.name not in dead
            for row in trace.read(path)
        ]
        lost = [row for row in self.rows() if row.node.partition("~")[0] in dead]
        (run,) = {row.run for row in rows}
        return _without_standstills(rows) + [msgspec.structs.replace(row, run=run) for row in lost]


def _without_standstills(rows: list[Row]) -> list[Row]:
    """Remove arrivals at a node that was stalled when it had to deliver them."""
    busy: dict[str, list[int]] = {}
    for row in rows:
        busy.setdefault(row.node, []).append(row.at_ns)

    def stood_still(row: Row) -> bool:
        due_ns = row.deadline_ns
        if row.action != "received" or due_ns is None:
            return False
        return not any(due_ns - SLACK_NS_MAX < at_ns <= due_ns for at_ns in busy[row.node])

    return [row for row in rows if not stood_still(row)]


@pytest.mark.timeout(400)
def test_deadlines_survive_among_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = ORDERS["deadline"]
    assert isinstance(order, ensue.Deadline)
    peers = TimelyPeers("ensue://", "deadline", SEED, tmp_path)
    asyncio.run(peers.run())
    rows = peers.audited()
    trace.write(rows, tmp_path / "trace")
    words = ("check", str(tmp_path / "trace"), "--order", "deadline", "--lossy")
    result = Shell(capsys, monkeypatch)(*words, "--clock-error", f"{order.ms / 4:g}ms")
    assert result.code == 0, f"seed {SEED}\n{result.stdout}"
    assert "delivered in order and on time" in result.stdout
    delivered = [row for row in rows if row.action == "delivered"]
    assert len(delivered) > 3 * COUNT
    assert {row.action for row in rows} >= {"published", "received", "subscribed", "crashed"}
    shutil.rmtree(tmp_path)
