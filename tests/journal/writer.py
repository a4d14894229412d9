"""A process that writes to a journal until it is killed, and prints each confirmed batch.

Each batch has an event in two topics and a record. The number of a batch is printed only after
`write` has returned it. With the argument `hold` it opens the journal, prints `open` and waits.
"""

import sys
from pathlib import Path

from tests.journal.model import Batch, persists

from ensue.journal import Journal


def batch_of(number: int) -> Batch:
    return [
        (f"event/{number}/a", b"a%d" % number),
        ("last", b"%d" % number),
        (f"event/{number}/b", b"b%d" % number * 50),
    ]


def main() -> None:
    with Journal(Path(sys.argv[1]), segment_bytes=4096) as journal:
        if sys.argv[2:] == ["hold"]:
            sys.stdout.write("open\n")
            sys.stdout.flush()
            sys.stdin.readline()
            return
        number = journal.write()
        while True:
            for _ in range(3):
                number += 1
                journal.append(persists(batch_of(number)))
            assert journal.write() == number
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            if number % 30 == 0:
                journal.sync()


if __name__ == "__main__":
    main()
