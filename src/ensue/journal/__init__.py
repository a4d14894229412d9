"""The durable store of a server: one log of batches, with records and events.

Start with `Journal`. ARCHITECTURE.md shows its place in the server; `ensue.journal.files` lists the
files on the disk.
"""

from ensue.journal.files import JournalFailed
from ensue.journal.journal import (
    BUFFER_BYTES_MAX,
    SEGMENT_BYTES,
    UNSYNCED_SEGMENTS_MAX,
    Journal,
    Outdated,
)

__all__ = [
    "BUFFER_BYTES_MAX",
    "SEGMENT_BYTES",
    "UNSYNCED_SEGMENTS_MAX",
    "Journal",
    "JournalFailed",
    "Outdated",
]
