"""A process that appends to a log until it is killed, and prints each confirmed batch.

Each commit has two rows in each of three topics. The number of a batch is printed only after
`append` has returned for it.
"""

import sys
from itertools import count

from tests.store.helpers import row

from ensue.store import LogWriter, layout
from ensue.store.layout import Token

TOPICS = ("a", "b", "c")


def main() -> None:
    layout.CHECKPOINT_EVERY = 5
    with LogWriter(sys.argv[1]) as log:
        for batch in count():
            token = Token(writer="appender", batch=batch)
            if log.has(token):
                continue
            rows = [row(topic, 2 * batch + k) for topic in TOPICS for k in (1, 2)]
            log.append(rows, token=token)
            if batch % 7 == 6:
                log.trim("c", 2 * batch - 10)
            sys.stdout.write(f"{batch}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
