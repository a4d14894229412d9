"""Planted bugs that show when a disk is full, fails or is damaged, in orders that draw this rarely.

`tests.testing.swarm.mutants` runs them with its own.
"""

from tests.testing.swarm.journal_mutants import write_once
from tests.testing.swarm.planted import nothing
from tests.testing.swarm.server_mutants import sync_failure_is_none

from ensue.journal.files import Files
from ensue.journal.recovery import Recovery
from ensue.server.group_commit import GroupCommit

__all__ = ["MISHAPS"]

_SYNCS = ((GroupCommit, "_synced", sync_failure_is_none),)
_WRITES = ((Files, "write_all", write_once),)

MISHAPS = (
    (
        "content brokers start with damage",
        "transactions",
        ((Recovery, "_check_truncation", nothing),),
        129,
    ),
    ("failed syncs count, transactions", "transactions", _SYNCS, 443),
    ("failed syncs count, moves", "total-moves", _SYNCS, 220),
    ("failed syncs count, cells", "total-content", _SYNCS, 74),
    ("short writes count, transactions", "transactions", _WRITES, 311),
    ("short writes count, moves", "total-moves", _WRITES, 103),
    ("short writes count, cells", "total-content", _WRITES, 212),
    ("short writes count, causal", "causal", _WRITES, 125),
    ("short writes count, deadline", "deadline", _WRITES, 35),
    ("short writes count, merged", "merged", _WRITES, 20),
)
"""Name, order, what is replaced by what, and a seed that finds it and finds nothing without it."""
