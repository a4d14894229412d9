"""Planted bugs of durable subscriptions by content.

`mutants` merges them with all others, and runs them.
"""

import msgspec
from tests.simulation.swarms.test_mutants_transactions import (
    attaches_after_the_sent,
    keeps_for_readers_alone,
)
from tests.testing.swarm.planted import Mutant

from ensue.client.content.durable import DurableMailbox
from ensue.protocols.content.frames import Attach
from ensue.protocols.content.mailboxes import Mailboxes
from ensue.protocols.interface import Acknowledged

__all__ = ["DURABLE"]


def attach_with_a_large_window(self: Mailboxes, name: str, frame: Attach, reader: str) -> None:
    """A reader gets more events than it has room for."""
    real_attach(self, name, msgspec.structs.replace(frame, window=1_000), reader)


def acknowledge_here_alone(self: DurableMailbox) -> None:
    """Acknowledgements count as stored, and are not sent."""
    self._on_outcome(Acknowledged(self._acknowledged))


real_attach = Mailboxes.attach

DURABLE = (
    Mutant(
        "mailboxes have no window",
        "transactions",
        ((Mailboxes, "attach", attach_with_a_large_window),),
    ),
    Mutant(
        "mailboxes skip what was sent",
        "transactions",
        ((Mailboxes, "attach", attaches_after_the_sent),),
    ),
    Mutant(
        "content acks are safe at once",
        "transactions",
        ((DurableMailbox, "_send_acknowledgement", acknowledge_here_alone),),
    ),
    Mutant(
        "mailboxes need readers", "transactions", ((Mailboxes, "_keep", keeps_for_readers_alone),)
    ),
)
