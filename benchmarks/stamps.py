"""Measure one sequencer in memory: stamps per second of CPU time on one core.

Run `python benchmarks/stamps.py`. Every topic belongs to one subscription of exactly as many topics
as the group is large, so a whole stamp has that many entries. One publisher requests stamps on
topics drawn evenly, in runs of 1, 16 or 64 requests per frame, and confirms each run in one frame,
so that leases are released. Frames are objects made in advance, so only the node is measured, with
records (durable) and without. `--profile` prints a profile.
"""

import argparse
import cProfile
import os
import platform
import pstats
import time
from collections.abc import Iterator
from random import Random
from statistics import median

from ensue.protocols.interface import Frame, Persist, Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import ChangeRequest, Confirm, Stamped, StampRequest
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer

NODE = "node"
PUBLISHER = "publisher"
GROUPS = 10
"""Subscriptions that share no topic."""
GOAL_PER_S = 100_000
"""For groups of 10."""
GOAL_RUN = 16
"""The goal applies to runs of this length."""


def build(group: int, *, durable: bool, leave_out: bool) -> tuple[Sequencer, list[str]]:
    """Return a node with its subscriptions, and its topics."""
    topics = [f"topic-{index}" for index in range(GROUPS * group)]
    node = Sequencer(
        name=NODE,
        placement=Placement([NODE], topics={NODE: topics}),
        config=SequencerConfig(durable=durable, leave_out=leave_out),
    )
    for start in range(0, len(topics), group):
        change = ChangeRequest(number=1, old=(), new=tuple(topics[start : start + group]))
        node.receive(change, source=f"subscriber-{start}", now_ns=0)
    node.take_effects()
    return node, topics


def frames(topics: list[str], run: int, stamps: int) -> list[Frame]:
    """Return requests for some stamps, each run followed by its confirmation."""
    random = Random(1)
    made: list[Frame] = []
    slots: dict[str, int] = dict.fromkeys(topics, 0)
    for first in range(1, stamps + 1, run):
        asked = tuple(random.choices(topics, k=run))
        made.append(StampRequest(number=first, topics=asked, settled=first))
        given = []
        for number, topic in enumerate(asked, first):
            slots[topic] += 1
            given.append((number, slots[topic]))
        made.append(Confirm(origin=NODE, slots=tuple(given), settled=first + run))
    return made


def drive(node: Sequencer, to_come: list[Frame]) -> Iterator[Send | Persist]:
    """Pass frames to the node one by one, as a driver does, and yield its effects."""
    for now_ns, frame in enumerate(to_come):
        node.receive(frame, source=PUBLISHER, now_ns=now_ns)
        for effect in node.take_effects():
            assert isinstance(effect, Send | Persist)
            yield effect


def cpu_s(node: Sequencer, to_come: list[Frame]) -> float:
    """Return the CPU time that a node takes for some frames."""
    started_s = time.process_time()
    for now_ns, frame in enumerate(to_come):
        node.receive(frame, source=PUBLISHER, now_ns=now_ns)
        node.take_effects()
        node.next_timer_ns()
    return time.process_time() - started_s


def measure(
    group: int, run: int, *, durable: bool, leave_out: bool, stamps: int, repeats: int
) -> float:
    """Print one row and return its stamps per second."""
    node, topics = build(group, durable=durable, leave_out=leave_out)
    sample = list(drive(node, frames(topics, run, min(stamps, 64 * 50))))
    grants = [
        grant
        for effect in sample
        if isinstance(effect, Send) and isinstance(effect.frame, Stamped)
        for grant in effect.frame.grants
    ]
    entries = sum(len(grant.stamp.entries) for grant in grants) / len(grants)
    records = sum(isinstance(effect, Persist) for effect in sample) / len(grants)
    assert node.open_count == 0
    times_s = []
    for _ in range(repeats):
        node, topics = build(group, durable=durable, leave_out=leave_out)
        to_come = frames(topics, run, stamps)
        times_s.append(cpu_s(node, to_come))
    each_us = median(times_s) / stamps * 1e6
    print(
        f"{group:5}  {'left out' if leave_out else 'whole':9} {'yes' if durable else 'no':8}"
        f"{run:4} {entries:8.1f} {records:8.1f} {each_us:9.2f} {1e6 / each_us:11,.0f}",
        flush=True,
    )
    return 1e6 / each_us


def profile(stamps: int) -> None:
    """Print a profile for groups of 10 and runs of 16."""
    for durable in (False, True):
        node, topics = build(10, durable=durable, leave_out=True)
        to_come = frames(topics, 16, stamps)
        profiler = cProfile.Profile()
        profiler.runcall(cpu_s, node, to_come)
        print(f"\nProfile, groups of 10, runs of 16, durable: {durable}")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(14)


def main() -> None:
    """Measure each combination."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer stamps, one repeat")
    parser.add_argument("--profile", action="store_true", help="also profile groups of 10")
    arguments = parser.parse_args()
    stamps, repeats = (3_200, 1) if arguments.quick else (64_000, 3)
    print(
        f"Stamps of one sequencer node in memory; {os.cpu_count()} cores, one used; "
        f"Python {platform.python_version()}; CPU time, median of {repeats}"
        f"{'; quick: figures are rough' if arguments.quick else ''}"
    )
    print("group  stamps    durable  run  entries  records  µs/stamp    stamps/s")
    judged: dict[bool, float] = {}
    for group in (10, 50):
        for leave_out in (True, False):
            for durable in (False, True):
                for run in (1, 16, 64):
                    per_s = measure(
                        group,
                        run,
                        durable=durable,
                        leave_out=leave_out,
                        stamps=stamps,
                        repeats=repeats,
                    )
                    if (group, leave_out, run) == (10, True, GOAL_RUN):
                        judged[durable] = per_s
    print(
        f"goal: {GOAL_PER_S:,} stamps/s for groups of 10; here, left out, runs of {GOAL_RUN}: "
        f"{judged[False]:,.0f} in memory, {judged[True]:,.0f} durable"
    )
    if arguments.profile:
        profile(stamps)


if __name__ == "__main__":
    main()
