"""Planted bugs of rare calls by content, beside those of `mutants`, which runs them.

Each is a name, the order whose programs find it, what is put in whose place, and a seed that finds
it and finds nothing without it.
"""

from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from ensue.client.content import plan, transaction
from ensue.client.content.client import ContentClient
from ensue.client.content.durable import DurableMailbox
from ensue.client.content.plan import PlannedClient, PlannedTransaction
from ensue.client.content.reader import ReadOptions
from ensue.client.content.transaction import InvitedTransaction, Transaction, share_of
from ensue.client.subscription import Subscription
from ensue.protocols.content.frames import Attach
from ensue.protocols.content.mailboxes import Mailbox, Mailboxes
from ensue.runtime import content_brokers
from ensue.runtime.content_brokers import MemoryBrokers

__all__ = ["BUGS"]

Patches = tuple[tuple[object, str, object], ...]
Bugs = tuple[tuple[str, Patches], ...]


async def wait_for_nothing(*_arguments: object, **_options: object) -> None:
    """Return at once."""


# -- Plans -----------------------------------------------------------------------------------------


def keep_their_advertisement(self: PlannedClient, name: str) -> Coroutine[Any, Any, None]:
    """A plan leaves advertisements of other clients as they are."""
    del name
    return self._plan._operations.begin("unadvertise", wait_for_nothing)


def publish_for_itself(
    self: PlannedClient, attributes: Mapping[str, object], payload: bytes = b""
) -> Coroutine[Any, Any, None]:
    """A plan publishes in its own name what another client is to publish."""
    return self._plan.publish(attributes, payload)


async def abort_by_committing(self: PlannedTransaction) -> None:
    """A plan that is to be dropped is submitted."""
    await self.commit()


def take_more(self: PlannedTransaction) -> None:
    """A plan that was decided about still takes operations."""
    del self


def default_options(*, name: str | None = None, **_options: object) -> ReadOptions:
    """Subscriptions of transactions and plans have default limits, and acknowledge themselves."""
    return ReadOptions(name=name)


def acknowledge_for_others(self: ContentClient, handler: Any, options: ReadOptions) -> Any:
    """Subscriptions that plans of others make acknowledge themselves."""
    return real_on_subscription(self, handler, ReadOptions(pending_max=options.pending_max))


real_on_subscription = ContentClient.on_subscription

PLANS: Bugs = (
    (
        "plans keep advertisements of others",
        ((PlannedClient, "unadvertise", keep_their_advertisement),),
    ),
    ("plans publish in their own name", ((PlannedClient, "publish", publish_for_itself),)),
    ("dropped plans are submitted", ((PlannedTransaction, "abort", abort_by_committing),)),
    ("decided plans take more", ((PlannedTransaction, "_check_open", take_more),)),
    ("plans ignore options", ((plan, "ReadOptions", default_options),)),
    (
        "given subscriptions ignore options",
        ((ContentClient, "on_subscription", acknowledge_for_others),),
    ),
)

# -- Invitations -----------------------------------------------------------------------------------


def lose_the_payload(self: InvitedTransaction, *arguments: Any) -> None:
    """The payload of an invitation is lost."""
    real_invited(self, *arguments)
    self.payload = b""


async def accept_too_few(self: Any, event: Mapping[str, Any], payload: bytes, at_least: int) -> int:
    """An invitation by content is content with any number of clients."""
    del at_least
    return await real_invite_matching(self, event, payload, 0)


def go_on_taking(self: ContentClient, handler: Any, where: str | None) -> Any:
    """A client that wants no more invitations still gets them."""
    return self.session.opening() if handler is None else real_on_invitation(self, handler, where)


async def withdraw_of_guests_alone(self: Any, subscription: Subscription) -> None:
    """Coordinators keep the subscriptions that they withdraw."""
    if not isinstance(self, Transaction):
        await real_withdraw(self, subscription)


async def advertise_at_once(self: Any, where: str) -> str:
    """What an invited client advertises does not depend on the commit."""
    if isinstance(self, InvitedTransaction):
        return await self._session.advertise(where)
    return await real_advertise(self, where)


async def end_with_the_operation(self: Any, subscription: Subscription) -> None:
    """A subscription ends when it is withdrawn, not with the commit."""
    await real_withdraw(self, subscription)
    share_of(subscription).withdrawn()


async def invite_without_attributes(
    self: Any, name: str, attributes: Mapping[str, object] | None, payload: bytes
) -> int:
    """An invitation by name has no attributes."""
    del attributes
    return await real_invite(self, name, None, payload)


real_invited = InvitedTransaction.__init__
real_invite_matching = transaction._Participant._invite_matching
real_on_invitation = ContentClient.on_invitation
real_withdraw = transaction._Participant._withdraw
real_advertise = transaction._Participant._advertise
real_invite = transaction._Participant._invite

GUESTS: Bugs = (
    ("invitations lose their payload", ((InvitedTransaction, "__init__", lose_the_payload),)),
    (
        "too few clients are enough",
        ((transaction._Participant, "_invite_matching", accept_too_few),),
    ),
    ("clients go on taking invitations", ((ContentClient, "on_invitation", go_on_taking),)),
    (
        "coordinators withdraw nothing",
        ((transaction._Participant, "_withdraw", withdraw_of_guests_alone),),
    ),
    ("guests advertise at once", ((transaction._Participant, "_advertise", advertise_at_once),)),
    (
        "withdrawn subscriptions end early",
        ((transaction._Participant, "_withdraw", end_with_the_operation),),
    ),
    (
        "invitations lose attributes",
        ((transaction._Participant, "_invite", invite_without_attributes),),
    ),
    ("transactions ignore options", ((transaction, "ReadOptions", default_options),)),
)

# -- Durable subscriptions -------------------------------------------------------------------------


def keep_what_is_forgotten(self: DurableMailbox, *, forget: bool) -> Any:
    """A subscription that is to be forgotten stays."""
    del forget
    return real_release(self, forget=False)


def let_all_users_in(self: Mailboxes, name: str, frame: Attach) -> str:
    """A name belongs to no user."""
    mailbox = self.open.get(name)
    if mailbox is not None:
        mailbox.owner = ""
    return real_refusal(self, name, frame)


def count_no_mailboxes(self: Mailboxes, name: str, frame: Attach) -> str:
    """A user may have any number of durable subscriptions."""
    return "" if frame.accept_loss else _reason(self, name)


def never_accept_loss(self: Mailboxes, name: str, frame: Attach) -> str:
    """A name that has expired is refused for ever."""
    return _reason(self, name) or real_refusal_of_new(self, name, frame)


def _reason(self: Mailboxes, name: str) -> str:
    expired = self.expired.get(name)
    return "" if expired is None else expired.reason


def forget_nothing_expired(self: Mailboxes, name: str, idle_ns: int) -> None:
    """A name that has expired is a new one, without an error."""


def take_any_filter(self: Mailboxes, name: str, frame: Attach) -> str:
    """A name may be entered with another filter, which changes nothing."""
    mailbox = self.open.get(name)
    if mailbox is not None:
        frame = msgspec.structs.replace(frame, where=mailbox.where)
    return real_refusal(self, name, frame)


async def acknowledge_failed_blocks(self: Subscription, *error: Any) -> None:
    """A block that raises has handled its last event."""
    if self._handover.automatic:
        self._handover.acknowledge_last()
    await real_exit(self, *error)


def keep_the_last_open(self: Subscription, *_error: Any) -> Any:
    """A block that ends has not handled its last event."""
    return self.finish()


def number_from_the_last(self: Mailboxes, name: str, frame: Attach) -> Mailbox:
    """A subscription that is made again counts on."""
    made = real_make(self, name, frame)
    made.acknowledged = made.seen = 1
    return made


real_release, real_exit = DurableMailbox.release, Subscription.__aexit__
real_refusal, real_make = Mailboxes.refusal, Mailboxes.make
real_refusal_of_new = Mailboxes._refusal_of_new

KEPT: Bugs = (
    ("forgotten mailboxes stay", ((DurableMailbox, "release", keep_what_is_forgotten),)),
    ("mailboxes belong to all users", ((Mailboxes, "refusal", let_all_users_in),)),
    ("users have any number of mailboxes", ((Mailboxes, "_refusal_of_new", count_no_mailboxes),)),
    ("mailboxes never expire", ((Mailboxes, "idle", lambda *_: []),)),
    ("mailboxes expire silently", ((Mailboxes, "note_expired", forget_nothing_expired),)),
    ("expired mailboxes are gone for ever", ((Mailboxes, "_refusal_of_new", never_accept_loss),)),
    ("mailboxes take any filter", ((Mailboxes, "refusal", take_any_filter),)),
    ("failed blocks acknowledge", ((Subscription, "__aexit__", acknowledge_failed_blocks),)),
    ("blocks leave the last event", ((Subscription, "__aexit__", keep_the_last_open),)),
    ("mailboxes count on", ((Mailboxes, "make", number_from_the_last),)),
)

# -- In memory -------------------------------------------------------------------------------------


def stand_alone(names: list[str]) -> dict[str, list[str]]:
    """Brokers in memory know no others."""
    return {name: [] for name in names}


def keep_at_any_broker(self: MemoryBrokers, durable: str) -> str:
    """A durable subscription is kept by the next broker."""
    del durable
    return self._home()


INSIDE: Bugs = (
    ("brokers in memory stand alone", ((content_brokers, "tree_of", stand_alone),)),
    ("any broker keeps a subscription", ((MemoryBrokers, "_keeper", keep_at_any_broker),)),
)

_GROUPS = (
    (PLANS, "transactions", 5),
    (GUESTS, "transactions", 22),
    (KEPT, "transactions", 13),
    (INSIDE, "operations", 16),
)
"""Bugs, the order whose programs find them, and a seed."""
_OTHER_SEEDS = {
    "guests advertise at once": 48,
    "mailboxes belong to all users": 145,
    "users have any number of mailboxes": 145,
}

BUGS: tuple[tuple[str, str, Patches, int], ...] = tuple(
    (name, order, patches, _OTHER_SEEDS.get(name, seed))
    for group, order, seed in _GROUPS
    for name, patches in group
)
