"""Invitations by content: a `tcm` that finds its recipients by their filters.

A client that takes invitations subscribes to them (`invitation_filter`): an ordinary subscription
that requires the reserved attribute `INVITATION`, so that no other publication matches it. An
inviter gives attributes that it has advertised. Its home adds the reserved attribute and routes the
invitation as a step along the tables of the transaction. Each broker invites its own clients whose
subscriptions to invitations match, once each, and passes it on to neighbors. It answers when all of
them have finished, with the number of clients that were reached: so the inviter's next operation,
and the commit, wait for every recipient (Algorithm 2, acknowledgements).

Live recipients count. A client that is disconnected is not invited. A home answers for a recipient
that leaves or is disconnected: if it has done nothing for the invitation, it is not counted, and
its home refuses operations that come later. If it has, the answer is a refusal, and the transaction
aborts.

In a serializable transaction the step is in the log, and its recipients are compared before the
vote: a subscription to invitations that came meanwhile is a conflict, and so is one that went,
unless its client does not count (`Context.reached`).

Paths. Recipients act at once, in no order among themselves. The path of the invitation, a zero, and
one number for each hop make the path of each recipient unique: a client that 2 invited acts as
2.0.1.1, 2.0.1.2, …; one behind the second neighbor as 2.0.2.1.1. Numbers after a zero do not count
for the sequence.
"""

from collections.abc import Mapping

import msgspec

from ensue.core.errors import BadInput
from ensue.protocols.content.entries import Entry
from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import INVITATION, Publication
from ensue.protocols.content.refusals import reserved_name

__all__ = ["invitation_filter", "marked", "parse_unreserved", "recipients", "unmarked"]


def parse_unreserved(where: str) -> Filter:
    """Parse a filter of an application; raise BadInput if it has the reserved attribute."""
    wanted = parse(where)
    if any(name == INVITATION for box in wanted.boxes for name, _ in box):
        raise BadInput(reserved_name(INVITATION))
    return wanted


def invitation_filter(where: str) -> str:
    """Return the filter of a subscription to invitations that match `where`."""
    return parse(f"({where}) and {INVITATION} exists").to_text()


def marked(publication: Publication) -> Publication:
    """Return an invitation that only subscriptions to invitations match."""
    attributes = {**publication.attributes, INVITATION: True}
    return msgspec.structs.replace(publication, attributes=attributes)


def unmarked(publication: Publication) -> Publication:
    """Return an invitation as its inviter gave it."""
    plain = {name: value for name, value in publication.attributes.items() if name != INVITATION}
    return msgspec.structs.replace(publication, attributes=plain)


def recipients(
    publication: Publication, clients: dict[str, list[str]], subscriptions: Mapping[str, Entry]
) -> dict[str, list[str]]:
    """Return clients, other than the inviter, with subscriptions to invitations that match."""
    plain = unmarked(publication).attributes
    found = {
        client: [name for name in names if not parse(subscriptions[name].where).matches(plain)]
        for client, names in clients.items()
        if client != publication.publisher
    }
    return {client: names for client, names in found.items() if names}
