"""Measure what a request costs the servers of a chain, by what they do with it.

Run `python -m benchmarks.visits`. Five servers and 1,000 clients as in the experiment
`total-rates`: groups by two common subscriptions, 10 topics a client, and the nodes that run in
production, with their numbered links. A visit is one frame at one server: bytes are decoded,
handled, and what follows is encoded; the acknowledgement that it causes at another server is added.
Events have 100 bytes and come one by one, and every tenth request is repeated. Sockets, the event
loop and the disk are left out: they cost every visit about the same.

The experiment charges a visit with nothing to add, and a repeated request, with the shares of a
stamped request that are printed last (`PASSED` and `REPEATED` in `experiments.total.servers`).
Then a whole server with its sockets, event loop and journal: CPU time of the process per request.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from random import Random

import numpy as np
from experiments.total.servers import TWO, deployment, named
from experiments.total.stations import CODEC, chain, linked
from experiments.total.workload import SITES, TOPICS, Sites

import ensue
from ensue.protocols.interface import Broadcast, Effect, Frame, Send
from ensue.protocols.shared.link import LinkAck, LinkData, unpacked
from ensue.protocols.topic_log.frames import Put
from ensue.protocols.total.frames import Fill, OrderRequest, Out, Stamped
from ensue.protocols.total.publisher import Publisher

LOCAL, STAMPED = "request, stamped and published", "request, stamped and passed on"
ADDED, COMPLETED = "passed on with more entries", "completed"
EMPTY, REPEATED = "passed on, nothing to add", "repeated request"
KINDS = (LOCAL, STAMPED, ADDED, COMPLETED, EMPTY, REPEATED)
REPEATS = 10
"""One of so many requests is repeated."""
CLIENTS = 20
"""Clients of the whole server."""


class Bench:
    """A chain whose frames travel as bytes, in order and at once."""

    def __init__(self, shape: float, seed: int) -> None:
        self.sites = Sites.draw(shape, 1000, 10, seed)
        self.placement, config = deployment(TWO, self.sites)
        stations = chain(self.placement, config, map(named, self.sites.subscriptions))
        self.servers = {each.name: linked(each, durable=True) for each in stations}
        self.clients = [
            Publisher(name=f"client-{number}", placement=self.placement, config=config)
            for number in range(len(self.sites.subscriptions))
        ]
        self.by_name = {each.name: each for each in self.clients}
        self.cpu_ns: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.visits: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._waiting: deque[tuple[str, str, bytes, str]] = deque()
        """Source, target, frame, and the kind of the visit that an acknowledgement is for."""
        self._now_ns = 0

    def run(self, requests: int, seed: int) -> None:
        """Publish events one after the other; measure every visit."""
        random, chooser = Random(seed), np.random.default_rng(seed)
        drawn = [chooser.choice(TOPICS, size=requests, p=law) for law in self.sites.chances]
        for index in range(requests):
            self._now_ns += 1_000_000
            number = random.randrange(len(self.clients))
            client = self.clients[number]
            topic = drawn[number * SITES // len(self.clients)][index]
            client.publish(f"t{topic}", b"x" * 100, now_ns=self._now_ns)
            asked = list(client.take_effects())
            self._send(client.name, asked, "")
            if index % REPEATS == 0:
                # While the first is on its way: the chain has handled one frame of it.
                self._step()
                self._send(client.name, asked, REPEATED)
            while self._waiting:
                self._step()

    def _send(self, source: str, effects: list[Effect], kind: str) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._waiting.append((source, effect.peer, CODEC.encode(effect.frame), kind))
            elif isinstance(effect, Broadcast):
                put = CODEC.encode(Put(event=effect.event, proof=effect.proof))
                home = effect.node or self.placement.node(effect.event.topic)
                self._waiting.append((source, home, put, ""))

    def _step(self) -> None:
        source, target, data, kind = self._waiting.popleft()
        client = self.by_name.get(target)
        if client is not None:
            client.receive(CODEC.decode(data), source=source, now_ns=self._now_ns)
            self._send(target, list(client.take_effects()), "")
            return
        server = self.servers[target]
        before = time.process_time_ns()
        frame = CODEC.decode(data)
        server.receive(frame, source=source, now_ns=self._now_ns)
        effects = list(server.take_effects())
        server.next_timer_ns()
        sent = [
            (target, each.peer, CODEC.encode(each.frame))
            for each in effects
            if isinstance(each, Send)
        ]
        cpu_ns = time.process_time_ns() - before
        of = kind if isinstance(frame, LinkAck) else kind or kind_of(frame, effects)
        if of:
            self.cpu_ns[of] += cpu_ns
            self.visits[of] += not isinstance(frame, LinkAck)
        for each, effect in zip(sent, (e for e in effects if isinstance(e, Send)), strict=True):
            self._waiting.append((*each, of if isinstance(effect.frame, LinkAck) else ""))


def kind_of(frame: Frame, effects: list[Effect]) -> str:
    """Return the kind of a visit; empty if it is not part of making a stamp."""
    sent = [each.frame for each in effects if isinstance(each, Send)]
    if isinstance(frame, OrderRequest):
        return LOCAL if any(isinstance(each, Out) for each in sent) else STAMPED
    fills = _fills(frame)
    if not fills:
        return ""
    if any(isinstance(each, Stamped) for each in sent):
        return COMPLETED
    onward = [fill for each in sent for fill in _fills(each)]
    return EMPTY if onward == fills else ADDED


def _fills(frame: Frame) -> list[Fill]:
    if not isinstance(frame, LinkData):
        return []
    found = map(CODEC.decode, unpacked(frame.payload))
    return [each for each in found if isinstance(each, Fill)]


async def served(requests: int) -> float:
    """Return the CPU time, in µs, that a whole server takes for a request of one event.

    Clients publish and wait for the receipt, one event at a time, so that nothing is batched.
    """
    with tempfile.TemporaryDirectory() as directory:
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ensue", "serve", "--listen", "127.0.0.1:0", "--json"),
            *("--causal", "no", "--data", directory),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            url = json.loads(await server.stdout.readline())["url"]
            buses = [ensue.connect(url, order=ensue.Total(causal=False)) for _ in range(CLIENTS)]
            async with contextlib.AsyncExitStack() as stack:
                for bus in buses:
                    await stack.enter_async_context(bus)
                await asyncio.gather(*(_publish(bus, 20) for bus in buses))
                before_s = cpu_s(server.pid)
                await asyncio.gather(*(_publish(bus, requests // CLIENTS) for bus in buses))
                took_s = cpu_s(server.pid) - before_s
        finally:
            server.terminate()
            await server.wait()
    return took_s / requests * 1e6


async def _publish(bus: ensue.Bus, count: int) -> None:
    for number in range(count):
        await bus.publish(f"t{number % 50}", b"x" * 100)


def cpu_s(process: int) -> float:
    """Return the CPU time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure both popularity patterns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    requests = 300 if parser.parse_args().quick else 2_000
    print(
        f"Visits of requests at the servers of a chain; {os.cpu_count()} cores, one used; Python "
        f"{platform.python_version()}; CPU time, {requests:,} requests a draw"
    )
    cpu_ns, visits = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for shape in (0.901, 0.349):
        for seed in range(3):
            bench = Bench(shape, seed)
            bench.run(requests // 10, seed)
            bench.cpu_ns, bench.visits = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
            bench.run(requests, seed + 10)
            for kind in KINDS:
                cpu_ns[kind] += bench.cpu_ns[kind]
                visits[kind] += bench.visits[kind]
    each_us = {kind: cpu_ns[kind] / max(1, visits[kind]) / 1000 for kind in KINDS}
    print(f"{'visit':34}{'visits':>9}{'µs each':>10}")
    for kind in KINDS:
        print(f"{kind:34}{visits[kind]:9,}{each_us[kind]:10.1f}")
    stamped = (LOCAL, STAMPED)
    base_us = sum(cpu_ns[kind] for kind in stamped) / sum(visits[kind] for kind in stamped) / 1000
    for kind in (EMPTY, REPEATED):
        print(f"{kind}: {each_us[kind] / base_us:.2f} of a stamped request")
    whole_us = asyncio.run(served(2 * requests))
    print(f"a whole server with {CLIENTS} clients: {whole_us:.0f} µs a request")


if __name__ == "__main__":
    main()
