"""Measure the entries per stamp under the workloads of the paper (section 5.3, Figure 7).

Run `python benchmarks/stamp_sizes.py`. One sequencer node hosts 1,000 topics; each of 10,000
subscribers has 10 distinct ones; subscriptions and publications follow the same power law.

Which power law. The paper gives a shape and the share of topics that take 80 % of all choices:
0.5 % of 1,000 for 0.901 and 40 % for 0.349. Of the usual readings one fits: the Pareto law,
P(rank > k) proportional to (k + 1) ** -shape, cut off after the last topic. Five topics (0.5 %)
then have 80.3 % at 0.901, and 40 topics (4 %, where the paper says 40 %) have 79.8 % at 0.349. The
groups it yields agree with the figure too, see below. `--laws` prints the other readings.

Which mean. A mean over topics counts every topic once; a mean over events counts a topic as often
as it has events. The mean over topics of groups by two common subscriptions, without the topic
itself, matches Figure 7 (17 entries at 0.901, 46 at 0.349).

The output has the groups of all topics in the node, and the long-run entries if unchanged ones are
omitted; then the stamps that the node makes for published events. Each topic has one event before,
so that no counter is zero.
"""

import argparse
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random
from statistics import fmean

import msgspec

from ensue.core.event import Stamp
from ensue.core.wire import Records
from ensue.protocols.interface import Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import ChangeRequest, Confirm, Grant, Stamped, StampRequest
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer

_STAMP = Records[Stamp](Stamp)

NODE = "node"
RUN = 256
"""Requests per frame."""
SHAPES = {0.901: (0.005, 17), 0.349: (0.4, 46)}
"""By shape: the share of topics with 80 % of the choices in the paper, and its Figure 7."""


class Size(msgspec.Struct, frozen=True):
    """The size of a workload."""

    topics: int = 1000
    subscribers: int = 10_000
    each: int = 10
    """Topics per subscriber."""
    events: int = 20_000


Law = Callable[[int, float], list[float]]


def pareto(topics: int, shape: float) -> list[float]:
    """Weigh topics so that P(rank > k) is proportional to (k + 1) ** -shape, cut off at the end."""
    return [k**-shape - (k + 1) ** -shape for k in range(1, topics + 1)]


def zipf(topics: int, shape: float) -> list[float]:
    """Weigh topics by rank ** -shape."""
    return [k**-shape for k in range(1, topics + 1)]


def power_cdf(topics: int, shape: float) -> list[float]:
    """Weigh topics so that P(rank <= k) is (k / topics) ** (1 - shape)."""
    edges = [(k / topics) ** (1 - shape) for k in range(topics + 1)]
    return [high - low for low, high in pairwise(edges)]


def zipf_plus_one(topics: int, shape: float) -> list[float]:
    """Weigh topics by rank ** -(1 + shape): the density of the Pareto law."""
    return [k ** -(1 + shape) for k in range(1, topics + 1)]


LAWS: dict[str, Law] = {
    "pareto, cut off": pareto,
    "rank ** -shape": zipf,
    "rank ** -(1 + shape)": zipf_plus_one,
    "cdf (k/n) ** (1 - shape)": power_cdf,
}


def print_laws(topics: int) -> None:
    """Print the share of all choices that the first topics have under each reading."""
    print("share of choices that go to the first …        5 topics   40 topics  400 topics")
    for name, law in LAWS.items():
        for shape in SHAPES:
            weights = law(topics, shape)
            shares = [sum(weights[:first]) / sum(weights) for first in (5, 40, 400)]
            cells = "  ".join(f"{share:10.1%}" for share in shares)
            print(f"{name:26} shape {shape:5}      {cells}")


class Workload:
    """Subscriptions and publications drawn by one law."""

    def __init__(self, shape: float, size: Size) -> None:
        random = Random(f"stamp sizes {shape}")
        self.topics = [f"topic-{rank}" for rank in range(1, size.topics + 1)]
        self.size = size
        bounds = list(accumulate(pareto(size.topics, shape)))

        def draw() -> str:
            return random.choices(self.topics, cum_weights=bounds)[0]

        self.subscriptions: dict[str, tuple[str, ...]] = {}
        for index in range(size.subscribers):
            chosen: dict[str, None] = {}
            while len(chosen) < size.each:
                chosen[draw()] = None
            self.subscriptions[f"subscriber-{index}"] = tuple(chosen)
        self.publications = random.choices(self.topics, cum_weights=bounds, k=size.events)


class Publishing:
    """A node with all subscriptions, and its one publisher."""

    def __init__(self, work: Workload, *, groups: int, leave_out: bool) -> None:
        self._next = 1
        fixed = work.subscriptions if groups == 2 else None
        self.node = Sequencer(
            name=NODE,
            placement=Placement([NODE], topics={NODE: work.topics}),
            config=SequencerConfig(groups=groups, fixed=fixed, leave_out=leave_out, durable=False),
        )
        if fixed is None:
            for subscriber, topics in work.subscriptions.items():
                change = ChangeRequest(number=1, old=(), new=topics)
                self.node.receive(change, source=subscriber, now_ns=0)
            self.node.take_effects()

    def partners(self, topics: Sequence[str]) -> list[list[str]]:
        """Return the other topics that each topic is ordered with."""
        return [list(self.node.state.group(topic).members) for topic in topics]

    def stamps(self, topics: Sequence[str]) -> Iterator[tuple[str, Stamp]]:
        """Publish on topics, one after the other, and yield each with its stamp."""
        for start in range(0, len(topics), RUN):
            run = tuple(topics[start : start + RUN])
            first, self._next = self._next, self._next + len(run)
            request = StampRequest(number=first, topics=run, settled=first)
            self.node.receive(request, source="publisher", now_ns=0)
            grants: list[Grant] = []
            for effect in self.node.take_effects():
                # Whole stamps may be long, and take several frames.
                assert isinstance(effect, Send)
                assert isinstance(effect.frame, Stamped)
                grants += effect.frame.grants
            slots: list[tuple[int, int]] = []
            for topic, grant in zip(run, grants, strict=True):
                slots.append((grant.number, grant.stamp.entries[topic]))
                yield topic, grant.stamp
            done = Confirm(origin=NODE, slots=tuple(slots), settled=self._next)
            self.node.receive(done, source="publisher", now_ns=0)


class Means(msgspec.Struct, frozen=True):
    """Entries and bytes of the stamps of one run."""

    by_event: float
    by_topic: float
    published: int
    """Topics with at least one event: the mean over topics is over these."""
    bytes_by_event: float
    bytes_by_topic: float


def measure(publishing: Publishing, work: Workload) -> Means:
    """Publish once on every topic, then by the workload; return the means of the latter."""
    for _ in publishing.stamps(work.topics):
        pass
    entries: dict[str, list[int]] = defaultdict(list)
    packed: dict[str, list[int]] = defaultdict(list)
    for topic, stamp in publishing.stamps(work.publications):
        entries[topic].append(len(stamp.entries))
        packed[topic].append(len(_STAMP.encode(stamp)))
    return Means(
        by_event=fmean(value for values in entries.values() for value in values),
        by_topic=fmean(map(fmean, entries.values())),
        published=len(entries),
        bytes_by_event=fmean(value for values in packed.values() for value in values),
        bytes_by_topic=fmean(map(fmean, packed.values())),
    )


def print_groups(work: Workload, chance: dict[str, float]) -> None:
    """Print the sizes of groups, and of stamps in the long run.

    A stamp names a partner if it had an event since the topic's previous event: with probability p
    of the partner and q of the topic, in p / (p + q) of the topic's events.
    """
    print(
        "groups by   whole: over topics  over events   left out: over topics  over events   CPU s"
    )
    for groups in (2, 1):
        started_s = time.process_time()
        publishing = Publishing(work, groups=groups, leave_out=True)
        loading_s = time.process_time() - started_s
        whole: dict[str, float] = {}
        named: dict[str, float] = {}
        for topic, partners in zip(work.topics, publishing.partners(work.topics), strict=True):
            q = chance[topic]
            whole[topic] = len(partners)
            named[topic] = sum(chance[each] / (chance[each] + q) for each in partners)
        cells = [
            mean
            for sizes in (whole, named)
            for mean in (
                fmean(sizes.values()),
                sum(chance[topic] * size for topic, size in sizes.items()),
            )
        ]
        print(
            f"{groups:9} {cells[0]:20.1f} {cells[1]:12.1f} {cells[2]:23.1f} {cells[3]:12.1f}"
            f" {loading_s:7.2f}"
        )


def report(shape: float, size: Size, *, quick: bool) -> None:
    """Print the tables of one shape."""
    work = Workload(shape, size)
    weights = pareto(size.topics, shape)
    share, figure = SHAPES[shape]
    figure_text = "" if quick else f"; Figure 7: {figure}"
    print(f"\nshape {shape} (the paper: {share:.1%} of the topics have 80 %){figure_text}")
    print("other topics in a group, of all topics; CPU s: to load the subscriptions")
    total = sum(weights)
    print_groups(work, {t: w / total for t, w in zip(work.topics, weights, strict=True)})
    print("stamps made, own topic included")
    print(
        "groups by   stamps     entries: over events  over topics    bytes: over events  over "
        "topics"
    )
    for groups in (2, 1):
        for leave_out in (False, True):
            means = measure(Publishing(work, groups=groups, leave_out=leave_out), work)
            print(
                f"{groups:9}   {'left out' if leave_out else 'whole':9} {means.by_event:21.1f}"
                f" {means.by_topic:12.1f} {means.bytes_by_event:21.0f} "
                f"{means.bytes_by_topic:12.0f}",
                flush=True,
            )
    print(f"over topics: of the {means.published} topics that had an event")


def main() -> None:
    """Measure both shapes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the workload")
    parser.add_argument("--laws", action="store_true", help="compare readings of the power law")
    arguments = parser.parse_args()
    size = Size(topics=200, subscribers=1000, events=2000) if arguments.quick else Size()
    print(
        f"Entries per stamp; {os.cpu_count()} cores, one used; Python {platform.python_version()}"
    )
    print(
        f"{size.topics:,} topics, {size.subscribers:,} subscribers of {size.each} topics each, "
        f"{size.events:,} "
        f"events{' (quick: scaled down, not comparable with Figure 7)' if arguments.quick else ''}"
    )
    if arguments.laws:
        print_laws(Size().topics)
    for shape in SHAPES:
        report(shape, size, quick=arguments.quick)


if __name__ == "__main__":
    main()
