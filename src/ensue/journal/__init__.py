"""The embedded durable store of a server: one log of batches, holding a map of records and events.

`Journal` is all of it; ARCHITECTURE.md says where it stands, `ensue.journal.files` what is on the
disk.
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
