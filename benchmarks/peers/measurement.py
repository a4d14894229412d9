"""One measurement of a case: warm-up, full load, light load for latency, and awaited receipts."""

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case, Site
from benchmarks.peers.processes import Failed, Process, python, started
from benchmarks.peers.tally import PAYLOAD_BYTES

__all__ = [
    "FIRST",
    "MANY_TASKS",
    "SUBSCRIBERS",
    "TASKS",
    "Awaited",
    "Crew",
    "Figures",
    "Settings",
    "Shape",
    "measure",
    "start_workers",
]

SUBSCRIBERS = 3
BATCH = 100
"""Events per call of a publisher under full load."""
LOW_RATE = 1_000.0
MANY_TASKS = 100
TASKS = (1, MANY_TASKS)
"""Tasks of the publisher that each wait for the receipt of an event before the next one."""
AWAITED_GUESS = 20
"""Events of each task from which the rate of receipts is guessed."""
PHASE_BYTES_MAX = 512_000_000
"""Most bytes of payloads in a phase: NATS disconnects a subscriber that is 1 GB behind."""
PATIENCE_S = 60.0
"""Extra time limit of a phase, beyond ten times its expected duration."""
SECOND_NS = 1_000_000_000
MS_NS = 1_000_000


@dataclass(frozen=True)
class Shape:
    """The numbers of publishers and topics, and the size of payloads."""

    publishers: int
    topics: int
    payload_bytes: int = PAYLOAD_BYTES

    def __str__(self) -> str:
        publishers = "publisher" if self.publishers == 1 else "publishers"
        topics = "topic" if self.topics == 1 else "topics"
        counts = f"{self.publishers} {publishers}, {self.topics} {topics}"
        if self.payload_bytes == PAYLOAD_BYTES:
            return counts
        if self.payload_bytes % 1_000:
            return f"{counts}, {self.payload_bytes:,} bytes"
        return f"{counts}, {self.payload_bytes // 1_000} kB"

    @property
    def short(self) -> str:
        """The shape as an argument of the command line."""
        name = f"{self.publishers}x{self.topics}"
        return name if self.payload_bytes == PAYLOAD_BYTES else f"{name}x{self.payload_bytes}"


FIRST = Shape(1, 2)
"""The shape of most goals; only here publishers also wait for receipts."""


@dataclass(frozen=True)
class Settings:
    """The extent of a measurement."""

    warm_up: int
    """Events of each of the two rounds of warm-up."""
    events: int | None
    """Events under full load; None: enough for `seconds`."""
    seconds: float
    """Approximate duration of each phase."""
    events_max: int = 400_000
    """Largest number of events in a phase: subscribers retain all of them until its end."""
    profile: Path | None = None

    def within(self, payload_bytes: int) -> "Settings":
        """Return settings with fewer events if payloads are large."""
        return replace(self, events_max=min(self.events_max, PHASE_BYTES_MAX // payload_bytes))


@dataclass(frozen=True)
class Awaited:
    """The results with a receipt awaited for each event, by a number of tasks."""

    tasks: int
    rate: float
    """Receipts per second."""
    cpu_us: float
    """CPU time of all processes, per event."""
    receipt_ms: tuple[float, float]
    """Median and 99th percentile of the time from the call to the receipt."""


@dataclass(frozen=True)
class Figures:
    """The results of one measurement; latencies are pairs of median and 99th percentile."""

    rate: float
    """Events per second that reached all subscribers."""
    cpu_us: float
    """CPU time of all processes, per event."""
    cpu_by_process: dict[str, float]
    """The same by kind of process."""
    low_cpu_us: float
    """CPU time per event at 1,000 events per second, where batches are small."""
    low_ms: tuple[float, float]
    half_ms: tuple[float, float]
    fell_behind: bool
    """Whether a publisher could not keep its rate."""
    same_order: bool
    """Whether all subscribers got the same order, in all phases."""
    overtaken: int
    """Events that a subscriber got after a later one of the same publisher, in all phases."""
    awaited: tuple[Awaited, ...] = ()
    """By number of tasks; empty for systems without receipts, and in other shapes."""


@dataclass
class Phase:
    """The results of one phase."""

    rate: float
    cpu_s: dict[str, float]
    latencies_ms: tuple[float, float]
    receipts_ms: tuple[float, float]
    receipt_rate: float
    """Events per second from the first publish to the last receipt."""
    fell_behind: bool
    same_order: bool
    overtaken: int


class Crew:
    """The publishers, subscribers and servers of one case."""

    def __init__(
        self,
        case: Case,
        servers: Sequence[Process],
        publishers: Sequence[Process],
        subscribers: Sequence[Process],
        payload_bytes: int = PAYLOAD_BYTES,
    ) -> None:
        self._case = case
        self._servers = servers
        self._publishers = publishers
        self._subscribers = subscribers
        self._payload_bytes = payload_bytes
        self._number = 0

    async def run(
        self, events: int, *, rate: float | None = None, tasks: int = 0, seconds: float
    ) -> Phase:
        """Publish events, and wait until every subscriber has all of them.

        With `tasks`, each publisher has so many, and each waits for the receipts of its events.
        """
        each = max(1, events // len(self._publishers))
        total = each * len(self._publishers)
        start, self._number = self._number, self._number + each
        patience_s = PATIENCE_S + 10 * seconds
        size = {"payload_bytes": self._payload_bytes}
        await self._ask(
            self._subscribers,
            do="expect",
            count=total,
            start=start,
            stop=start + each,
            timed=rate is not None,
            **size,
        )
        before = self._cpu_s()
        for process in self._subscribers:
            process.command(do="wait", seconds=patience_s)
        manner = {
            "rate": None if rate is None else rate / len(self._publishers),
            "batch": BATCH,
        }
        sent, arrived = await asyncio.gather(
            self._ask(
                self._publishers,
                do="await" if tasks else "publish",
                start=start,
                stop=start + each,
                patience_s=patience_s,
                **size,
                **({"tasks": tasks} if tasks else manner),
            ),
            self._hear(self._subscribers, patience_s + PATIENCE_S),
        )
        after = self._cpu_s()
        missing = max(each["missing"] for each in arrived)
        if missing:
            raise Failed(
                f"{missing:,} deliveries of {total:,} events missing after {patience_s:.0f} s"
            )
        results = await self._ask(
            self._subscribers,
            do="result",
            publishers=len(self._publishers),
            start=start,
            stop=start + each,
        )
        same_order = len({each["order"] for each in results}) == 1
        self._judge(results, same_order=same_order)
        first_ns = min(each["first_ns"] for each in sent)
        taken_ns = max(each["last_ns"] for each in arrived) - first_ns
        settled_ns = max(each["settled_ns"] for each in sent) - first_ns
        slowest_ns = max(each["sent_ns"] for each in sent) - first_ns
        return Phase(
            rate=total * SECOND_NS / taken_ns,
            cpu_s={name: after[name] - before[name] for name in after},
            latencies_ms=_percentiles([ns for each in results for ns in each["latencies_ns"]]),
            receipts_ms=_percentiles([ns for each in sent for ns in each.get("receipts_ns", ())]),
            receipt_rate=total * SECOND_NS / settled_ns,
            fell_behind=rate is not None and slowest_ns > 1.1 * total / rate * SECOND_NS,
            same_order=same_order,
            overtaken=sum(each["overtaken"] for each in results),
        )

    def _judge(self, results: Sequence[dict[str, Any]], *, same_order: bool) -> None:
        """Raise if Ensue broke a promise; violations of peers are only counted."""
        if not self._case.is_ours:
            return
        faults = [
            f"subscriber {number}: {result['missing']} missing, {result['repeated']} repeated, "
            f"{result['overtaken']} overtaken"
            for number, result in enumerate(results)
            if result["missing"] or result["repeated"] or result["overtaken"]
        ]
        if not same_order:
            faults.append("the subscribers saw different orders")
        if faults:
            raise Failed(f"WRONG: {'; '.join(faults)}")

    def _cpu_s(self) -> dict[str, float]:
        return {
            "servers": sum(process.cpu_s for process in self._servers),
            "publishers": sum(process.cpu_s for process in self._publishers),
            "subscribers": sum(process.cpu_s for process in self._subscribers),
        }

    async def _ask(
        self, processes: Sequence[Process], *, patience_s: float = PATIENCE_S, **order: Any
    ) -> list[dict[str, Any]]:
        for process in processes:
            process.command(**order)
        return await self._hear(processes, patience_s + PATIENCE_S)

    async def _hear(self, processes: Sequence[Process], seconds: float) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(process.reply(seconds) for process in processes)))


def _percentiles(latencies_ns: list[int]) -> tuple[float, float]:
    if len(latencies_ns) < 2:
        return (0.0, 0.0)
    cuts = statistics.quantiles(latencies_ns, n=100, method="inclusive")
    return (cuts[49] / MS_NS, cuts[98] / MS_NS)


async def measure(case: Case, shape: Shape, settings: Settings) -> Figures:
    """Start all processes, measure, and end them."""
    async with AsyncExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ensue-peers-", ignore_cleanup_errors=True)
        )
        profile = settings.profile
        if profile is not None:
            profile = profile / f"{case.name}-{shape.short}"
            profile.mkdir(parents=True, exist_ok=True)
        site = Site(Path(name), profile, stack, [])
        try:
            url = await case.start(site)
        except TimeoutError:
            raise Failed("the server does not answer") from None
        topics = [f"topic-{number}" for number in range(shape.topics)]
        subscribers = await start_workers(site, case, "subscribe", url, SUBSCRIBERS, topics)
        publishers = await start_workers(site, case, "publish", url, shape.publishers, topics)
        crew = Crew(case, site.servers, publishers, subscribers, shape.payload_bytes)
        settings = settings.within(shape.payload_bytes)
        figures = await _measure(crew, settings)
        if case.has_receipts and shape == FIRST:
            awaited = [await _measure_awaited(crew, settings, tasks) for tasks in TASKS]
            figures = replace(figures, awaited=tuple(awaited))
        workers = (*publishers, *subscribers)
        await asyncio.gather(*(worker.end(gently=True) for worker in workers))
        return figures


async def start_workers(
    site: Site, case: Case, role: str, url: str, count: int, topics: list[str]
) -> list[Process]:
    """Start publishers or subscribers; return when all are connected."""
    workers = []
    for number in range(count):
        name = f"{role}-{number}"
        command = python(
            *("benchmarks.peers.worker", role, case.client, url, str(number), *topics),
            profile=site.profile_of(name),
        )
        # Not started through the site: it is not a server.
        process = await site.stack.enter_async_context(started(name, command, site.directory))
        workers.append(process)
    await asyncio.gather(*(worker.reply() for worker in workers))
    return workers


async def _measure(crew: Crew, settings: Settings) -> Figures:
    seconds = settings.seconds
    await crew.run(settings.warm_up, seconds=seconds)
    warm = await crew.run(settings.warm_up, seconds=seconds)
    events = settings.events
    if events is None:
        # A first estimate: short runs differ from long ones.
        guess = await crew.run(_enough(warm.rate * seconds / 4, settings), seconds=seconds)
        events = _enough(guess.rate * seconds, settings)
    full = await crew.run(events, seconds=seconds)
    low_events = int(LOW_RATE * seconds)
    low = await crew.run(low_events, rate=LOW_RATE, seconds=seconds)
    half_rate = full.rate / 2
    half = await crew.run(_enough(half_rate * seconds, settings), rate=half_rate, seconds=seconds)
    phases = (full, low, half)
    per_event = {name: taken / events * 1e6 for name, taken in full.cpu_s.items()}
    return Figures(
        rate=full.rate,
        cpu_us=sum(per_event.values()),
        cpu_by_process=per_event,
        low_cpu_us=sum(low.cpu_s.values()) / low_events * 1e6,
        low_ms=low.latencies_ms,
        half_ms=half.latencies_ms,
        fell_behind=low.fell_behind or half.fell_behind,
        same_order=all(phase.same_order for phase in phases),
        overtaken=sum(phase.overtaken for phase in phases),
    )


async def _measure_awaited(crew: Crew, settings: Settings, tasks: int) -> Awaited:
    seconds = settings.seconds
    guess = await crew.run(AWAITED_GUESS * tasks, tasks=tasks, seconds=seconds)
    events = int(max(tasks, min(guess.receipt_rate * seconds, settings.events_max)))
    phase = await crew.run(events, tasks=tasks, seconds=seconds)
    return Awaited(
        tasks=tasks,
        rate=phase.receipt_rate,
        cpu_us=sum(phase.cpu_s.values()) / events * 1e6,
        receipt_ms=phase.receipts_ms,
    )


def _enough(events: float, settings: Settings) -> int:
    return int(min(max(events, settings.warm_up), settings.events_max))
