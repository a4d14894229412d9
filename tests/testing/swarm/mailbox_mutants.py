"""Planted bugs in durable and ordered subscriptions by content, beside those of `mutants`.

Each is a name, the order whose programs find it, what is put in whose place, and a seed that finds
it and finds nothing without it.
"""

from typing import Any

import msgspec

from ensue.core.event import Event
from ensue.protocols.content.cells import Cells
from ensue.protocols.content.client import Notified
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.frames import Attach
from ensue.protocols.content.mailboxes import Mailboxes
from ensue.server.config import ServerConfig
from ensue.server.content_broker import ContentBroker

__all__ = ["BUGS"]


def is_misplaced(self: Cells, event: Event) -> bool:
    """Servers take the events of some cells for those of others."""
    return not event.topic.endswith("-1") and real_has(self, event)


def name_nothing(self: Notified, action: str, position: int, verdict: str = "") -> dict[str, Any]:
    """An event of a transaction is delivered to a subscription that was never made."""
    row = real_row(self, action, position, verdict)
    if self.transaction:
        row["subscription"] += "0"
    return row


class FileConfig(ContentConfig, frozen=True, kw_only=True):
    """A broker's configuration that has the limit of the server's file."""

    mailboxes_per_user: int


def read_the_file(self: ContentBroker, config: ServerConfig, **options: Any) -> None:
    """A broker gets the limit of the file that its server is started with."""
    real_content_broker(self, config, **options)
    self._config = FileConfig(
        **msgspec.structs.asdict(self._config), mailboxes_per_user=config.limits.mailboxes_per_user
    )


def judge_by_the_file(self: Mailboxes, name: str, frame: Attach) -> str:
    """Requests are judged by that limit, also those that are recovered."""
    limit = getattr(self._config, "mailboxes_per_user", 0) if frame.owned_max else 0
    return real_refusal_of_new(self, name, msgspec.structs.replace(frame, owned_max=limit))


real_has, real_row = Cells.has, Notified.row
real_content_broker = ContentBroker.__init__
real_refusal_of_new = Mailboxes._refusal_of_new

BUGS: tuple[tuple[str, str, tuple[tuple[object, str, object], ...], int], ...] = (
    ("servers know other cells", "total-content", ((Cells, "has", is_misplaced),), 0),
    (
        "a transaction reaches an unmade subscription",
        "transactions",
        ((Notified, "row", name_nothing),),
        0,
    ),
    (
        "requests are recovered by another limit",
        "transactions",
        (
            (ContentBroker, "__init__", read_the_file),
            (Mailboxes, "_refusal_of_new", judge_by_the_file),
        ),
        192,
    ),
)
