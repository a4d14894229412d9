"""Publishers, subscribers and servers as processes, tortured, and then judged.

    python -m tests.processes.torture --url ensue:// --deliveries 1000000 --seed 7 --kills 100

Durable subscribers join and publishers publish numbered events. Meanwhile processes of every kind
are killed and restarted on their data, or paused, and connections are cut, stopped, delayed and
refused; one seed decides everything. Then the chaos ends, one last event goes to each topic, and
all subscribers must get everything. The last subscriber reads everything from the beginning.

What must hold: no event with a receipt is lost, none is repeated, an event that one subscriber got
reaches all subscribers of its topic, in one order, and no process is stuck. On failure the
directory is kept.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.brokers.proxy import DOWN, UP
from tests.processes.backends import Backend, backend_for
from tests.processes.chaos import Chaos
from tests.processes.records import Records
from tests.processes.runs import Process, worker
from tests.processes.verdicts import judge
from tests.processes.worker import EXIT_LOST, EXIT_WRONG

__all__ = ["Failure", "Plan", "Result", "main", "torture"]

TICK_S = 0.1
STUCK_S = 60.0
"""Without progress for this long, a process is stuck: no pause takes that long."""
TELL_S = 2.0
"""How long stuck processes have to report what they wait for."""
CHAOS_UNTIL = 0.95
"""Share of the deliveries after which the chaos ends."""
WRONG_MAX = 20
"""Maximum sentences in a failure."""
MARKERS = "markers"
LATECOMER = "latecomer"
BATCHES = (1, 16, 256)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run."""

    url: str
    seed: int
    deliveries: int
    kills: int
    publishers: int = 3
    everything: int = 3
    """Subscribers of all topics; there is also one for every two neighboring topics."""
    sync_s: float = 0.0
    deadline_s: float = 240.0
    """For all of it."""


@dataclass
class Result:
    """The outcome of a run."""

    plan: Plan
    seconds: float = 0.0
    deliveries: int = 0
    receipts: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return (
            f"{self.plan.url} seed {self.plan.seed}: {self.deliveries:,} deliveries of "
            f"{self.receipts:,} receipted events in {self.seconds:.0f} s; {counted or 'no chaos'}"
        )


class Failure(AssertionError):
    """A promise was broken, or a process is stuck."""


class Torture:
    """One run, in its own directory."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.records = Records()
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._backend: Backend = backend_for(plan.url, directory, sync_s=plan.sync_s)
        topics = self._backend.topics
        self._topics: dict[str, tuple[str, ...]] = {
            f"all-{number}": topics for number in range(1, plan.everything + 1)
        }
        for pair in pairwise(topics):
            self._topics["-".join(pair)] = pair
        self._subscribers = [
            self._subscriber(name, index) for index, name in enumerate(self._topics)
        ]
        self._latecomer = self._reader(
            LATECOMER, self._backend.past, start="earliest", batch=BATCHES[-1]
        )
        self._copies = sum(map(len, self._topics.values()))
        """Deliveries of one event on each topic, without the last subscriber."""
        copies = self._copies + len(self._backend.past)
        self._share = -(-plan.deliveries * len(topics) // copies // plan.publishers)
        """Receipts after which each publisher ends."""
        self._publishers = [
            self._publisher(f"publisher-{number}") for number in range(1, plan.publishers + 1)
        ]
        self._chaos: Chaos | None = None
        self._began_s = time.monotonic()
        self._noted_s = 0.0

    async def run(self) -> Result:
        clients = [each.name for each in self._clients] + [MARKERS]
        try:
            await self._backend.start(clients)
            await self._go()
            await self._end_subscribers()
            wrong = await self._backend.stop()
            wrong += await asyncio.to_thread(judge, self.records)
        finally:
            for process in (*self._clients, *self._backend.servers):
                process.kill()
            await self._backend.close()
        if wrong:
            raise Failure("\n".join(wrong[:WRONG_MAX]))
        return Result(
            self.plan,
            time.monotonic() - self._began_s,
            self.records.deliveries,
            self.records.receipts.total(),
            self.counts,
        )

    @property
    def _clients(self) -> list[Process]:
        return [*self._publishers, *self._subscribers, self._latecomer]

    async def _go(self) -> None:
        for process in self._subscribers:
            process.start()
        await self._until(
            lambda: all(self.records.subscribers[name].joined for name in self._topics),
            lambda: [name for name in self._topics if not self.records.subscribers[name].joined],
        )
        for process in self._publishers:
            process.start()
        chaos = self._chaos = Chaos(
            self.plan.seed,
            (*self._publishers, *self._subscribers, *self._backend.servers),
            self._backend.proxies,
            kills=self.plan.kills,
            progress=self._progress,
            log=self._directory / "chaos.log",
        )
        self.counts = chaos.counts
        chaos.begin()
        try:
            await self._until(
                lambda: (
                    self._all_published()
                    and self._progress() > CHAOS_UNTIL
                    # A small run may end before all planned kills.
                    and chaos.has_killed_all
                ),
                self._undelivered,
            )
        finally:
            await chaos.end()
        markers = self._publisher(MARKERS)
        self._publishers.append(markers)
        markers.start()
        self._latecomer.start()
        await self._until(
            lambda: self._all_published() and not self.records.missing(), self._undelivered
        )

    def _progress(self) -> float:
        """Return the share of deliveries so far, without the last subscriber."""
        topics = self._backend.topics
        wanted = self._share * self.plan.publishers
        return self.records.deliveries * len(topics) / (wanted * self._copies)

    def _all_published(self) -> bool:
        return all(each.code == 0 for each in self._publishers)

    def _unpublished(self) -> list[str]:
        return [
            f"{each.name} has {self.records.receipts[each.name]:,} of {self._share:,} receipts"
            for each in self._publishers
            if each.code != 0
        ]

    def _undelivered(self) -> list[str]:
        return self._unpublished() + [
            f"{name} waits for {count:,} events, such as "
            + ", ".join(self.records.first_missing(name))
            for name, count in self.records.missing().items()
        ]

    async def _until(self, done: Callable[[], bool], open_: Callable[[], list[str]]) -> None:
        """Wait for a condition and supervise all processes; fail without progress."""
        moved_s, seen = time.monotonic(), (-1, -1)
        while True:
            self.records.read()
            if self.records.wrongs():
                raise Failure("\n".join(self.records.wrongs()))
            self._look_after()
            if self._chaos is not None and self._chaos.failures:
                raise Failure("\n".join(self._chaos.failures))
            if done():
                return
            now_s = time.monotonic()
            here = (self.records.deliveries, self.records.receipts.total())
            if here != seen:
                moved_s, seen = now_s, here
            self._note_progress(now_s)
            late = now_s > self._began_s + self.plan.deadline_s
            if late or now_s > moved_s + STUCK_S:
                why = "not within its time" if late else f"nothing has moved for {STUCK_S:g} s"
                wrong = (await asyncio.to_thread(judge, self.records))[:WRONG_MAX]
                told = await self._told()
                raise Failure("\n".join([f"stuck: {why}", *open_(), *wrong, *told]))
            await asyncio.sleep(TICK_S)

    def _note_progress(self, now_s: float) -> None:
        """Log progress once a second, for diagnosis."""
        if now_s < self._noted_s + 1.0:
            return
        self._noted_s = now_s
        proxies = self._backend.proxies.values()
        up, down = (sum(each.carried[way] for each in proxies) / 1e6 for way in (UP, DOWN))
        with (self._directory / "progress.log").open("a", encoding="utf-8") as log:
            log.write(
                f"{now_s - self._began_s:8.2f} {self.records.receipts.total():,} receipts, "
                f"{self.records.deliveries:,} deliveries, {up:.1f} MB up, {down:.1f} MB down\n"
            )

    async def _told(self) -> list[str]:
        """Return the reports of all running processes."""
        for process in (*self._subscribers, self._latecomer):
            process.signal(signal.SIGUSR1)
        await asyncio.sleep(TELL_S)
        processes = (*self._clients, *self._backend.servers)
        return [f"-- {each.name} ({each.code}):\n{each.tail()}" for each in processes]

    def _look_after(self) -> None:
        """Restart processes that lost their subscription; no other may end by itself."""
        for process in (*self._clients, *self._backend.servers):
            down = self._chaos is not None and self._chaos.is_down(process)
            if process.code is None or down:
                continue
            if process.code == EXIT_LOST:
                self.counts["subscriptions taken over"] += 1
                process.start()
            elif process.code == EXIT_WRONG:
                self.records.read()
            elif process.code != 0 or process.kind != "publisher":
                raise Failure(f"{process.name} ended with {process.code}:\n{process.tail()}")

    async def _end_subscribers(self) -> None:
        for process in (*self._subscribers, self._latecomer):
            # In a thread: it disconnects through the proxies of this process.
            code = await asyncio.to_thread(process.end)
            if code != 0:
                raise Failure(f"{process.name} ended with {code}:\n{process.tail()}")
        had = self.records.deliveries
        self.records.read()
        if had != self.records.deliveries:
            raise Failure("a subscriber got an event after all had everything")

    def _subscriber(self, name: str, index: int) -> Process:
        random = Random(f"{self.plan.seed}/{name}")
        return self._reader(
            name,
            self._topics[name],
            batch=BATCHES[index % len(BATCHES)],
            pending_max=random.choice((10, 1_000, 10_000)),
        )

    def _reader(self, name: str, topics: tuple[str, ...], **options: object) -> Process:
        path = self._directory / f"{name}.subscriber"
        self.records.add_subscriber(name, topics, path)

        def command(_start: int) -> list[str]:
            return worker(
                "subscriber",
                url=self._backend.url(name),
                name=name,
                topics=",".join(topics),
                file=path,
                **options,
            )

        return Process(name, "subscriber", command, self._directory)

    def _publisher(self, name: str) -> Process:
        return Process(name, "publisher", partial(self._publish, name), self._directory)

    def _publish(self, name: str, start: int) -> list[str]:
        self.records.read()
        incarnation = f"{name}.{start}"
        path = self._directory / f"{incarnation}.publisher"
        self.records.add_publisher(name, incarnation, path)
        topics = self._backend.topics
        count = len(topics) if name == MARKERS else self._share
        random = Random(f"{self.plan.seed}/{incarnation}")
        return worker(
            "publisher",
            url=self._backend.url(name),
            name=incarnation,
            topics=",".join(topics),
            count=max(0, count - self.records.receipts[name]),
            window=random.choice((20, 200, 500)),
            flush=random.choice((0, 0, 500)) if name != MARKERS else 0,
            seed=random.choice((None, random.randrange(2**32))) if name != MARKERS else None,
            file=path,
        )


async def torture(plan: Plan, directory: Path) -> Result:
    """Run a plan; raise `Failure`, with the seed, if anything is wrong."""
    run = Torture(plan, directory)
    try:
        return await run.run()
    except Failure as failure:
        seconds = time.monotonic() - run._began_s
        result = Result(
            plan, seconds, run.records.deliveries, run.records.receipts.total(), run.counts
        )
        raise Failure(f"{result}\nwhat is left is in {directory}\n{failure}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.torture")
    parser.add_argument("--url", default="ensue://")
    parser.add_argument("--deliveries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--publishers", type=int, default=3)
    parser.add_argument("--everything", type=int, default=3, help="subscribers of all topics")
    parser.add_argument("--sync", type=float, default=0.0, help="seconds; 0: before each receipt")
    parser.add_argument("--deadline", type=float, default=3600.0, help="seconds for all of it")
    given = parser.parse_args()
    plan = Plan(
        url=given.url,
        seed=given.seed,
        deliveries=given.deliveries,
        kills=given.kills,
        publishers=given.publishers,
        everything=given.everything,
        sync_s=given.sync,
        deadline_s=given.deadline,
    )
    directory = Path(tempfile.mkdtemp(prefix="ensue-torture-"))
    try:
        result = asyncio.run(torture(plan, directory))
    except Failure as failure:
        sys.stdout.write(f"FAILED {failure}\n")
        return 1
    sys.stdout.write(f"VALID {result}\n")
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
