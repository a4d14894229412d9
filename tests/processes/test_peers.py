"""Orders that clients keep themselves, between processes that are killed and cut off."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.brokers.servers import BROKERS
from tests.cli.helpers import Shell
from tests.processes.backends import backend_for
from tests.processes.peer import TOPICS
from tests.processes.runs import Process

from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.trace import Row

DEADLINE_S = 60.0
COUNT = 60
"""Questions of each process."""
CALM = 40
"""Events of one more process, after all that is done to the others: all of them have to come."""
READ = (TOPICS, TOPICS[:2], TOPICS[1:], (TOPICS[0], TOPICS[2]))


class Peers:
    """Four processes, their servers, and the rows they recorded."""

    def __init__(self, url: str, order: str, seed: int, directory: Path) -> None:
        self.order = order
        self.seed = seed
        self.random = Random(f"{seed}/{order}/{url}")
        self.directory = directory
        self.backend = backend_for(url, directory, sync_s=1.0)
        names = [f"peer-{number}" for number in range(len(READ))]
        self.peers = [
            self._process(name, topics, COUNT) for name, topics in zip(names, READ, strict=True)
        ]
        self.killed: dict[str, int] = {}
        """The file of an incarnation, and when it was killed."""

    def _process(self, name: str, topics: tuple[str, ...], count: int) -> Process:
        def command(start: int) -> list[str]:
            words = [sys.executable, "-m", "tests.processes.peer", "--order", self.order]
            words += ["--url", self.backend.url(name), "--name", f"{name}.{start}"]
            words += ["--topics", ",".join(topics), "--count", str(count), "--seed", str(self.seed)]
            words += ["--file", str(self._file(name, start))]
            words += self.more_words(name, start)
            if topics:
                return words
            words += ["--topics", TOPICS[0], "--markers", "--pace", "0.3"]
            return [*words, "--until", str(self._all_back)]

        return Process(name, "peer", command, self.directory)

    @property
    def _all_back(self) -> Path:
        """A file that exists once all processes have seen a marker in each of their topics."""
        return self.directory / "all-back"

    def more_words(self, _name: str, _start: int) -> list[str]:
        """Return more arguments of an incarnation."""
        return []

    def _file(self, name: str, start: int) -> Path:
        return self.directory / f"{name}.{start}.seen"

    def kill(self, process: Process) -> None:
        process.kill()
        self.killed[self._file(process.name, process.starts).name] = time.time_ns()

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for path in sorted(self.directory.glob("*.seen")):
            node, step = "", 0
            # Only complete lines: a process may be writing, or was killed while writing.
            for line in path.read_bytes().split(b"\n")[:-1]:
                step += 1
                seen = msgspec.json.decode(line)
                node = seen["node"]
                if seen["action"] != "ended":
                    rows.append(Row(run="run", step=step, order=self.order, **seen))
            if node and path.name in self.killed:
                at_ns = self.killed[path.name]
                rows.append(Row(run="run", node=node, step=step + 1, at_ns=at_ns, action="crashed"))
        # A publisher gets its own event at once, before others are promised it by the receipt. If
        # only the killed publisher has seen its event, the event is in doubt.
        crashed = {row.node for row in rows if row.action == "crashed"}
        seen_by_others = {
            row.event for row in rows if row.action == "delivered" and row.node != row.publisher
        }
        kept = [
            row
            for row in rows
            if row.action != "delivered"
            or row.node not in crashed
            or row.node != row.publisher
            or row.event in seen_by_others
        ]
        # Without these deliveries, positions have gaps that are no violation.
        return [
            msgspec.structs.replace(row, position=None) if row.node in crashed else row
            for row in kept
        ]

    def ended(self, process: Process) -> bool:
        path = self._file(process.name, process.starts)
        return path.exists() and b'"ended"' in path.read_bytes()

    def joined(self, process: Process) -> bool:
        path = self._file(process.name, process.starts)
        return path.exists() and b'"subscribed"' in path.read_bytes()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        # In a thread: the proxies run in this process and must not wait for the read.
        while not await asyncio.to_thread(condition):
            for process in self.peers:
                assert process.running, f"{process.name} ended:\n{process.tail()}"
            if time.monotonic() > deadline_s:
                tails = "\n".join(f"-- {each.name}:\n{each.tail()}" for each in self.peers)
                raise AssertionError(f"seed {self.seed}: never: {what}\n{tails}")
            await asyncio.sleep(0.2)

    async def run(self) -> list[Row]:
        marker = self._process("marker", (), 0)
        calm = self._process("calm", TOPICS, CALM)
        processes = [*self.peers, marker, calm]
        try:
            await self.backend.start([process.name for process in processes])
            for process in self.peers:
                process.start()
            await self.until(lambda: all(map(self.joined, self.peers)), "all have joined")
            await self._torment()
            await self.until(lambda: all(map(self.ended, self.peers)), "all have published")
            marker.start()
            # In an order that drops late events, a process that is not back yet may miss some.
            await self.until(lambda: self._have_some_of(marker), "all are back")
            self._all_back.touch()
            await self.until(lambda: self.ended(marker), "no more markers")
            # No process is killed or cut off any more: no order may lose an event.
            calm.start()
            await self.until(lambda: self.ended(calm), "all is published that comes last")
            await self.until(lambda: self._have_all_of(calm), "all have what came last")
            # A question is recorded together with its answer, so a complete run has no answer to
            # come: none is published while processes end one after the other.
            if self.order == "causal":
                await self.until(self._is_complete, "all events are delivered")
            for process in processes:
                # In a thread, as above: it disconnects through the proxies of this process.
                assert await asyncio.to_thread(process.end) == 0, process.tail()
            assert await self.backend.stop() == []
        finally:
            for process in (*processes, *self.backend.servers):
                process.kill()
            await self.backend.close()
        return self.rows()

    async def _torment(self) -> None:
        """Kill two processes and the servers, and cut all connections."""
        victims = self.random.sample(self.peers, 2)
        for victim in victims:
            seen = len(self.rows())
            await self.until(lambda seen=seen: len(self.rows()) > seen + 40, "something happens")  # type: ignore[misc]
            for proxy in self.backend.proxies.values():
                proxy.cut()
            self.kill(victim)
            victim.start()
            await self.until(lambda victim=victim: self.joined(victim), "it is back")  # type: ignore[misc]
        server = self.backend.servers[0]
        server.kill()
        server.start()

    def _of(
        self, publisher: Process
    ) -> tuple[dict[str | None, set[str | None]], dict[str, set[str | None]]]:
        """Return its published events by topic, and the events delivered in order by process."""
        published: dict[str | None, set[str | None]] = {}
        got: dict[str, set[str | None]] = {}
        for row in self.rows():
            if row.action == "published" and row.node.startswith(f"{publisher.name}."):
                published.setdefault(row.topic, set()).add(row.event)
            if row.action == "delivered" and row.subscription == "turn" and not row.verdict:
                got.setdefault(row.node.partition("~")[0], set()).add(row.event)
        return published, got

    def _have_some_of(self, publisher: Process) -> bool:
        """Return whether all have an event of a process in each of their topics."""
        published, got = self._of(publisher)
        return all(
            got.get(f"{process.name}.{process.starts}", set()) & published.get(topic, set())
            for process, topics in zip(self.peers, READ, strict=True)
            for topic in topics
        )

    def _have_all_of(self, publisher: Process) -> bool:
        """Return whether all, and itself, have its events in order."""
        published, got = self._of(publisher)
        return all(
            got.get(f"{process.name}.{process.starts}", set()) >= published.get(topic, set())
            for process, topics in zip((*self.peers, publisher), (*READ, TOPICS), strict=True)
            for topic in topics
        )

    def _is_complete(self) -> bool:
        report = check(self.rows(), self.order)
        return report.verdict is Verdict.VALID or not any(
            "(lost)" in sentence for sentence in report.sentences()
        )


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("url", "order"),
    [
        ("ensue://", "causal"),
        ("redis://", "merged"),
        pytest.param("ensue://", "merged", marks=pytest.mark.verify),
        pytest.param("nats://", "causal", marks=pytest.mark.verify),
    ],
)
def test_order_survives_among_processes(
    url: str,
    order: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = {kind.scheme: kind for kind in BROKERS}
    scheme = url.partition(":")[0]
    if scheme in kinds and kinds[scheme].found() is None:
        pytest.skip(f"{kinds[scheme].package} is not installed: `make brokers` installs it")
    peers = Peers(url, order, 7, tmp_path)
    rows = asyncio.run(peers.run())
    trace.write(rows, tmp_path / "trace")
    words = ["check", str(tmp_path / "trace"), "--order", order]
    if order == "merged":
        # Events that could not be sent within delta during a cut are lost; see `CALM`.
        words.append("--lossy")
    result = Shell(capsys, monkeypatch)(*words)
    assert result.code == 0, result.stdout
    delivered = [row for row in rows if row.action == "delivered" and row.subscription == "turn"]
    assert len(delivered) > 5 * COUNT
    assert sum(row.action == "crashed" for row in rows) == 2
    shutil.rmtree(tmp_path)
