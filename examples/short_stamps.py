"""One subscriber of everything: what causal order across topics costs, and total order alone.

An auditor subscribes to all topics of three nodes, and each of the others to two. With causal order
that makes every stamp count all topics. Without it, a stamp counts topics that two subscribers
share, and both of them still get the same order. Run it: python examples/short_stamps.py
"""

import asyncio
import tempfile
from pathlib import Path

import ensue
from ensue.core import trace

TOPICS = ("athens", "berlin", "cairo", "delhi", "essen", "faro")
EVENTS = 60


async def run(order: ensue.Total, folder: Path) -> None:
    """Publish to all topics; compare what the auditor and a reader of two topics got."""
    async with (
        ensue.connect("memory://?nodes=3", order=order, trace=str(folder)) as bus,
        bus.subscribe(*TOPICS) as auditor,
        bus.subscribe("athens", "berlin") as reader,
    ):
        for number in range(EVENTS):
            await bus.publish(TOPICS[number % len(TOPICS)], str(number).encode())
        audited = [await anext(auditor) for _ in range(EVENTS)]
        read = [await anext(reader) for _ in range(EVENTS // 3)]
        common = [event.id for event in audited if event.topic in ("athens", "berlin")]
        assert common == [event.id for event in read]


def entries_counted(folder: Path) -> float:
    """Return the mean number of topics that a stamp names."""
    stamps = [row.stamp for row in trace.read(folder) if row.action == "delivered" and row.stamp]
    return sum(map(len, stamps)) / len(stamps)


def main() -> None:
    """Run both."""
    for order in (ensue.Total(), ensue.Total(causal=False)):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(run(order, Path(folder) / "trace"))
            mean = entries_counted(Path(folder) / "trace")
            print(f"{'causal' if order.causal else 'not causal'}: {mean:.1f} topics in a stamp")


if __name__ == "__main__":
    main()
