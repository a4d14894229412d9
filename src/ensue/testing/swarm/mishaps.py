"""Mishaps of a server's disk: damage, loss, an old copy, no space; and what has to follow.

A server must never go on as if nothing had happened, and no client may miss an event silently:

- `full`, `failing`: the server stops, and continues when the disk works again. No event is lost.
- `flipped`: a bit at rest. The server refuses the damage when it reads it, if it ever does.
- `cut`: the end or the start of the log is missing after a clean stop. The server refuses to start.
- `lost`, `rolled back`: a single server continues with an empty or an older log, and clients
  get `LogLost`. In a chain the others refuse it.
"""

import asyncio
from random import Random

from ensue.core.lineage import DAMAGED, REPLACED, ROLLED_BACK
from ensue.protocols.shared.state_store import FORGOTTEN
from ensue.testing.cluster import DATA, Cluster
from ensue.testing.process import Process
from ensue.testing.swarm.rare_faults import rarely
from ensue.testing.world import World

__all__ = ["FORGETFUL", "MISHAPS", "Mishap", "draw_mishap", "draw_rare_mishap"]

MISHAPS = ("full", "failing", "flipped", "cut", "lost", "rolled back")
FORGETFUL = ("lost", "rolled back")
"""Those after which a server no longer knows which names belong to which user."""
REASONS = {
    "flipped": frozenset({DAMAGED}),
    "lost": frozenset({REPLACED}),
    "rolled back": frozenset({ROLLED_BACK}),
}
"""By mishap: the reasons of errors that clients get."""
_UNNOTICED = frozenset({FORGOTTEN, ROLLED_BACK})
"""Reasons of subscriptions that a station on a broker lost before it was asked for its log."""
HARMLESS_FAULTS = ("server_kills", "client_kills", "resets")
"""Faults that may strike in the same run."""
NUMBER = 14255
"""Of the generator: with it, seeds that tests note draw no mishap."""
REFUSED_S = 20.0
"""How soon a server has refused a log that is cut, or not its own."""


def draw_mishap(random: Random, *, servers: int, sync_s: float) -> str:
    """Draw what happens to a disk; empty: nothing."""
    if random.random() < 0.7:
        return ""
    # What was not synced leaves no proof that it was ever there.
    possible = [each for each in MISHAPS if each in ("full", "failing", "cut") or sync_s == 0]
    if servers > 1:
        possible.remove("cut")
        if "rolled back" in possible:
            possible.remove("rolled back")
    return random.choice(possible)


def draw_rare_mishap(seed: int, order: str, *, flips: bool = False) -> str:
    """Draw what happens to a disk in orders where few programs have it; empty: nothing.

    `flips` says whether that may be damage. Faults stay as they are, whatever happens.
    """
    random = rarely("mishap", NUMBER, seed, order)
    if random is None:
        return ""
    return random.choice(("full", "failing", "flipped") if flips else ("full", "failing"))


class Mishap:
    """One mishap of one server; without a kind, none.

    With `ends_server` the server is ended then. It notices when it stops or starts, also if it
    would not read or write anything otherwise.
    """

    def __init__(
        self, world: World, cluster: Cluster, kind: str, *, ends_server: bool = False
    ) -> None:
        self._world, self._cluster, self.kind = world, cluster, kind
        self._ends_server = ends_server
        self._task: asyncio.Task[None] | None = None
        self._random = world.generator("mishap")
        self.lost_ns: int | None = None
        """When a server lost events that had receipts."""
        self.server = ""
        """The server whose log is damaged or lost."""
        self.struck_ns = 0
        """When that happened."""
        self.copied_ns = 0
        """When the older log was copied that a server continues with."""
        self.problems: list[str] = []
        self.log: list[str] = []

    @property
    def lost_topics(self) -> tuple[str, ...] | None:
        """Topics of the server that lost its log; None: all topics."""
        return self._cluster.placed(self.server) if self.server else None

    @property
    def is_chain(self) -> bool:
        """Whether other servers refuse a wrong log."""
        return len(self._cluster.names) > 1

    @property
    def is_accepted(self) -> bool:
        """Whether clients may get the error that a log is lost or damaged."""
        return self.kind in ("flipped", "cut", "lost", "rolled back")

    def explains(self, reason: str) -> bool:
        """Return whether clients may get an error with a reason by now."""
        if not self.struck_ns:
            return False
        if reason == "expired":  # Servers gave it up while it waited for one that refuses its log.
            return self.is_refused
        asked = _UNNOTICED if self._cluster.broker and self.kind in FORGETFUL else frozenset()
        return reason in REASONS.get(self.kind, frozenset()) | asked

    @property
    def is_refused(self) -> bool:
        """Whether a server refused its log, as it had to."""
        return bool(self._cluster.damaged) and self.is_accepted

    def holds_up(self, *, anywhere: bool = False) -> bool:
        """Return whether clients may wait for such a server until the end.

        They do if it has topics. `anywhere`: also if it has none, as durable subscriptions, whose
        state any server may have, and clients of topics without a place.
        """
        return self.is_refused and (anywhere or self.lost_topics != ())

    def judge(self) -> list[str]:
        """Return what is wrong about it, and which servers refused to start without a reason."""
        return self.problems + [
            f"{name} refused to start: {why}"
            for name, why in self._cluster.damaged.items()
            if not self.is_accepted or name != self.server
        ]

    def begin(self) -> None:
        """Let it happen at some time of the next seconds."""
        if self.kind:
            self._task = asyncio.get_running_loop().create_task(self._happen())

    async def ended(self) -> None:
        """Wait until it is over: a disk that only failed works again."""
        if self._task is not None:
            await self._task

    async def _happen(self) -> None:
        random = self._random
        server = self._cluster.processes[random.choice(self._cluster.names)]
        disk = server.machine.disk
        await asyncio.sleep(random.uniform(4.0, 8.0))
        if self.kind == "rolled back":
            disk.copy(DATA)
            self.copied_ns = self._world.now_ns
        await asyncio.sleep(random.uniform(0.5, 8.0))
        match self.kind:
            case "full":
                disk.full_after = random.randint(0, 100 if self._ends_server else 5_000)
                self._note(f"full disk of {server.name}")
                self._end(server)
                await asyncio.sleep(random.uniform(1.0, 4.0))
                disk.full_after = None
            case "failing":
                disk.fails_sync = True
                self._note(f"failing disk of {server.name}")
                self._end(server)
                await asyncio.sleep(random.uniform(0.1, 4.0))
                if self._cluster.loses_power_safely:
                    self._note(f"power cut {server.name}")
                    server.kill(power=True)
                disk.fails_sync = False
            case "flipped":
                if random.random() < 0.5:
                    self._down(server)
                self._strike(server)
                where = disk.flip_bit(DATA, synced=self._ends_server)
                self._note(f"flip {where} of {server.name}")
                await self._let_read(server)
            case "cut":
                await self._cut(server)
            case "lost" | "rolled back":
                await self._lose(server)

    def _strike(self, server: Process) -> None:
        self.server, self.struck_ns = server.name, self._world.now_ns

    def _note(self, what: str) -> None:
        self.log.append(f"{self._world.now_s:.3f} s: {what}")

    def _end(self, server: Process) -> None:
        if self._ends_server and server.alive:
            how = self._random.choice(("stop", "kill"))
            self._note(f"{how} {server.name}")
            if how == "stop":
                server.terminate()
            else:
                server.kill()

    async def _let_read(self, server: Process) -> None:
        """Let a server find damage that it reads when it starts."""
        if self._ends_server:
            self._cluster.down[server.name] = None
            self._end(server)
            await server.ended()
        self._up(server)
        if self._ends_server:
            await self._expect_refusal(server, "its log is damaged")

    def _down(self, server: Process) -> None:
        self._cluster.down[server.name] = None
        server.kill()

    def _up(self, server: Process) -> None:
        self._cluster.down.pop(server.name, None)

    async def _cut(self, server: Process) -> None:
        """Stop a server, and take the end or the start of its log away."""
        random, disk = self._random, server.machine.disk
        while not server.alive:  # noqa: ASYNC110 - until the supervisor starts it
            await asyncio.sleep(0.1)
        self._cluster.down[server.name] = None
        self._strike(server)
        server.terminate()
        await server.ended()
        logs = [DATA / name for name in disk.names(DATA) if name.endswith(".log")]
        how = random.choice(("tail", "zeros", "last", "first", "all"))
        if server.killed or not logs or (how == "first" and len(logs) < 2):
            self._up(server)
            return
        if how in ("tail", "zeros"):
            size = disk.size_of(logs[-1])
            count = random.randint(1, size)
            disk.truncate(logs[-1], size - count)
            if how == "zeros":
                disk.append(logs[-1], bytes(count))
        elif how == "all":
            for name in disk.names(DATA):
                if name != "lock":
                    disk.remove(DATA / name)
        else:
            disk.remove(logs[-1] if how == "last" else logs[0])
        self._note(f"cut {how} of {server.name}")
        self._up(server)
        await self._expect_refusal(server, f"its log was cut: {how}")

    async def _lose(self, server: Process) -> None:
        disk, was_alive = server.machine.disk, server.alive
        self._down(server)
        if self.kind == "lost":
            disk.lose(DATA)
        else:
            disk.roll_back(DATA)
        self._strike(server)
        self.lost_ns = self._world.now_ns
        self._note(f"{self.kind} {server.name}")
        self._up(server)
        if self.is_chain and was_alive:
            await self._expect_refusal(server, f"its log was {self.kind}")

    async def _expect_refusal(self, server: Process, why: str) -> None:
        for _ in range(int(REFUSED_S / 0.5)):
            await asyncio.sleep(0.5)
            while server.stopped:  # noqa: ASYNC110 - paused by another fault
                await asyncio.sleep(0.5)
            if server.name in self._cluster.damaged:
                return
        self.problems.append(f"refusal: {server.name} serves although {why}")
