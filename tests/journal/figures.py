"""Measure a journal by hand: `python tests/journal/figures.py [name …]`. Not a test.

Each figure is the best of several rounds, in processor time: other work on the machine adds to
wall-clock time.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ensue.journal import Journal
from ensue.protocols.interface import Persist

VALUE = b"v" * 100
RECORDS = 200_000
ROUNDS = 5


def best(work: Callable[[], float], rounds: int = ROUNDS) -> float:
    return min(work() for _ in range(rounds))


def append(folder: Path, per_batch: int, *, events: bool) -> None:
    """Encode, index and write. No sync: that measures the disk."""
    with Journal(folder / f"append-{per_batch}-{events}", segment_bytes=1 << 40) as journal:
        slot = 0

        def once() -> float:
            nonlocal slot
            writes = []
            for at in range(slot, slot + RECORDS):
                if events:
                    writes.append(Persist(f"event/{at // 8}/orders/{at % 8}", VALUE))
                else:
                    writes.append(Persist(f"record/{at % 1000}", VALUE))
            slot += RECORDS
            batches = [writes[at : at + per_batch] for at in range(0, RECORDS, per_batch)]
            started = time.process_time()
            for count, batch in enumerate(batches):
                journal.append(batch)
                if count % 20 == 0:
                    journal.write()
            journal.write()
            return time.process_time() - started

        kind = "events" if events else "records"
        cost = best(once) / RECORDS * 1e6
        print(f"append and write, {per_batch:3} {kind} a batch: {cost:.2f} µs each")  # noqa: T201


def rotation(folder: Path) -> None:
    """Create a segment with 100,000 records of 100 bytes."""
    with Journal(folder / "rotation", segment_bytes=1 << 40) as journal:
        journal.append([Persist(f"record/{at:08}", VALUE) for at in range(100_000)])
        journal.write()
        journal.sync()

        def once() -> float:
            journal.sync()
            started = time.process_time()
            journal._create_segment()
            return time.process_time() - started

        print(f"create a segment, 100,000 records: {best(once) * 1e3:.1f} ms")  # noqa: T201


def memory(folder: Path) -> None:
    """Write ten million events of ten topics, then open the journal."""
    journal = Journal(folder / "memory")
    before = resident_bytes()
    for start in range(0, 1_000_000, 100):
        for topic in range(10):
            journal.append([Persist(f"event/{start + at}/{topic}", b"v") for at in range(100)])
        journal.write()
        if start % 100_000 == 0:
            journal.sync()  # Frees the sidecars.
    journal.sync()
    grown = resident_bytes() - before
    arrays = sum(sys.getsizeof(each.offsets) for each in journal._index.topics.values())
    journal.close()
    started = time.process_time()
    with Journal(folder / "memory") as again:
        opened = time.process_time() - started
        assert sum(after - first for first, after in again.bounds().values()) == 10_000_000
        print(  # noqa: T201
            f"10,000,000 events: {arrays / 1e6:.0f} MB of index, the process grew by "
            f"{grown / 1e6:.0f} MB; opened in {opened:.2f} s"
        )


def reading(folder: Path) -> None:
    """Read consecutive events, then single ones."""
    with Journal(folder / "reading") as journal:
        for start in range(0, RECORDS, 20):
            journal.append([Persist(f"event/{start + at}/t", VALUE) for at in range(20)])
            journal.write()

        def row() -> float:
            started = time.process_time()
            assert len(journal.events("t", 0, RECORDS, bytes_max=1 << 40)) == RECORDS
            return time.process_time() - started

        def single() -> float:
            started = time.process_time()
            for slot in range(0, RECORDS, 211):
                journal.event("t", slot)
            return (time.process_time() - started) / len(range(0, RECORDS, 211))

        print(f"consecutive events: {best(row) / RECORDS * 1e6:.2f} µs each")  # noqa: T201
        print(f"one random event: {best(single) * 1e6:.1f} µs")  # noqa: T201


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


FIGURES: dict[str, Callable[[Path], None]] = {
    "append-5-events": lambda folder: append(folder, 5, events=True),
    "append-100-events": lambda folder: append(folder, 100, events=True),
    "append-5-records": lambda folder: append(folder, 5, events=False),
    "append-100-records": lambda folder: append(folder, 100, events=False),
    "rotation": rotation,
    "reading": reading,
    "memory": memory,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        with tempfile.TemporaryDirectory() as place:
            FIGURES[name](Path(place))
