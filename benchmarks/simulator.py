"""Measure the simulator with trivial nodes: events per second on one core, and memory.

Run `python benchmarks/simulator.py`. A protocol event is one frame received or one timer handled.
Every node forwards each frame to a neighbor, so one frame per node is always in flight; every tenth
node also has a timer. Each size runs in its own process, for a clean peak memory. The last run is
the real protocol: a cube of 4,096 subscribed nodes in causal order, with the costs of the paper.
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Mapping

from experiments.causal.model import Cost, Run

from ensue.protocols.interface import Effect, Frame, Persist, Send
from ensue.simulation import World

PERIOD_NS = 1_000_000


class Ping(Frame, frozen=True, tag=1):
    """A frame that nodes forward forever."""

    hops: int


class Echo:
    """Forwards every frame to the next node."""

    def __init__(self, *, name: str, neighbor: str, timer_ns: int | None, persists: bool) -> None:
        self.name = name
        self.persists = persists
        self._neighbor = neighbor
        self._timer_ns = timer_ns
        self._effects: list[Effect] = [Send(neighbor, Ping(hops=0))]

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Forward the frame."""
        del source, now_ns
        assert isinstance(frame, Ping)
        if self.persists:
            self._effects.append(Persist("hops", b"1"))
        self._effects.append(Send(self._neighbor, Ping(hops=frame.hops + 1)))

    def handle_timer(self, *, now_ns: int) -> None:
        """Set the timer again."""
        self._timer_ns = now_ns + PERIOD_NS

    def next_timer_ns(self) -> int | None:
        """Return the time of the timer, if this node has one."""
        return self._timer_ns

    def take_effects(self) -> list[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects


def measure(nodes: int, events: int, persists: bool) -> None:
    """Run one world in this process and print the results."""
    world = World(1)
    for number in range(nodes):

        def build(records: Mapping[str, bytes], now_ns: int, number: int = number) -> Echo:
            del records
            return Echo(
                name=f"node-{number}",
                neighbor=f"node-{(number + 1) % nodes}",
                timer_ns=now_ns + PERIOD_NS if number % 10 == 0 else None,
                persists=persists,
            )

        world.add(f"node-{number}", build)
    started_s = time.perf_counter()
    while world.steps < events:
        world.run(world.now_ns + PERIOD_NS)
    elapsed_s = time.perf_counter() - started_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    kind = "with disk" if persists else "no disk"
    print(
        f"{nodes:5} nodes, {kind:9}: {world.steps / elapsed_s:9,.0f} protocol events a second, "
        f"peak memory {peak_mib:,.0f} MiB"
    )


def measure_cube(nodes: int, events: int) -> None:
    """Publish in a cube for about so many protocol events; print the results."""
    run = Run(Cost(), 1)
    run.add_cube(nodes, range(nodes))
    for number in range(max(1, events // (2 * nodes))):
        run.publish(number * 97 % nodes, number * 50)
    started_s = time.process_time()
    run.to_end()
    elapsed_s = time.process_time() - started_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{nodes:5} nodes, a cube : {run.world.steps / elapsed_s:9,.0f} protocol events a second "
        f"of CPU, {len(run.latencies):,} deliveries, peak memory {peak_mib:,.0f} MiB"
    )


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=500_000)
    events = parser.parse_args().events
    context = multiprocessing.get_context("spawn")
    worlds = ((16, False), (256, False), (4096, False), (4096, True))
    runs = [
        *(context.Process(target=measure, args=(nodes, events, disk)) for nodes, disk in worlds),
        context.Process(target=measure_cube, args=(4096, events)),
    ]
    for process in runs:
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
