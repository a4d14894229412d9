"""Planted bugs of calls that few programs make, rare networks and missing permissions.

`mutants` merges them with all others, and runs them.
"""

from typing import Any

from tests.testing.swarm.defect_mutants import real_content_subscribe
from tests.testing.swarm.leak_mutants import close_with_a_timer
from tests.testing.swarm.planted import Mutant, nothing, wait_for_nothing

import ensue
from ensue.client import publications
from ensue.client.bus import Bus
from ensue.client.content import client as content_client
from ensue.client.content import plan, transaction
from ensue.client.content.reader import ReadOptions
from ensue.client.content.session import ContentSession
from ensue.client.shared_node import Share
from ensue.client.subscription import Subscription
from ensue.client.topic_changes import TopicChanges
from ensue.protocols.content.tables import Tables
from ensue.protocols.interface import Discard
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.total.backfill import History
from ensue.protocols.total.delivery import Delivery
from ensue.runtime.hub_memory import Hub
from ensue.server import content_broker
from ensue.server.authorization import Authorization
from ensue.server.permissions import Grants
from ensue.transports.tcp import link

__all__ = ["CALLS", "OPERATIONS", "RARE"]


# -- What operators meet: retention, and reading the past ------------------------------------------


def skip_a_slot(self: History) -> Any:
    """One event of the past is skipped."""
    event = real_history_take(self)
    if event is not None and event.slot == 7:
        event = real_history_take(self)
    return event


real_history_take = History.take

OPERATIONS = (
    Mutant("missed events go unreported", "operations", ((TopicChanges, "miss", nothing),)),
    Mutant("the past has a gap", "operations", ((History, "take", skip_a_slot),)),
    Mutant("left timers, operations", "operations", ((Bus, "_leave", close_with_a_timer),)),
)


# -- Calls that few programs make ------------------------------------------------------------------


def keep_unread_as_delivered(
    self: Share, event: Any, verdict: str, now_ns: int | None = None
) -> str | None:
    """Events that were read too late count as delivered, too."""
    checked = real_share_check(self, event, verdict, now_ns)
    if checked != verdict:
        self.counts.delivered += 1
    return checked


def refuse_uncounted(self: MergedSubscriber, event: Any, verdict: str) -> None:
    """Events that are late are not counted."""
    real_refuse(self, event, verdict)
    self.counts.late = 0


def drop_late_events(self: MergedSubscriber, event: Any, verdict: str) -> bool:
    """Late events are dropped, although the application asked for them."""
    self._effects.append(Discard(event, verdict))
    return True


def cover_nothing(self: MergedPublisher, *, now_ns: int) -> dict[str, int]:
    """A token stands for nothing that was published lately."""
    kind, tick = self.timeline.kind, self.config.tick(now_ns)
    return kind.to_entries(kind.knowing(tick - 3 * self.config.epsilon_ticks, ()))


def plan_no_withdrawal(self: Any, subscription: Subscription) -> Any:
    """A plan leaves subscriptions of its own bus as they are."""
    del subscription
    return self._operations.begin("unsubscribe", wait_for_nothing)


def note_blocks_first(self: Any, client: str, **what: Any) -> None:
    """Operations of a block come before those before it."""
    real_note(self, client, **what)
    if self._group:
        step = self._steps[-1]
        step.path = self._group[-1] = f"1.0.{len(self._steps)}"


def plan_no_unadvertisement(self: Any, name: str) -> Any:
    """A plan leaves advertisements of its own bus as they are."""
    del name
    return self._operations.begin("unadvertise", wait_for_nothing)


def drop_headers(headers: Any) -> dict[str, str]:
    """Events have no headers."""
    del headers
    return {}


async def withdraw_no_advertisement(self: Any, name: str) -> None:
    """A transaction leaves advertisements as they are."""
    del self, name


async def unadvertise_at_any_time(self: ContentSession, name: str) -> None:
    """It is not noticed if an advertisement is withdrawn twice."""
    await self.request(lambda client, now: client.unadvertise(name, now_ns=now))
    self.advertised.pop(name, None)


def acknowledge_at_once(self: Any, where: str, options: ReadOptions) -> Subscription:
    """Subscriptions by content acknowledge by themselves."""
    options = ReadOptions(name=options.name, pending_max=options.pending_max)
    return real_content_subscribe(self, where, options)


def drop_what_is_late(self: Delivery, event: Any, now_ns: int) -> None:
    """Events that come after their place was given up are dropped."""
    real_delivery_notify(self, event, now_ns)
    if self._effects and getattr(self._effects[-1], "verdict", "") == "out_of_order":
        self._effects.pop()


def forget_time_to_live(self: Hub, order: Any, *, durable: bool = False) -> Any:
    """All events wait for a second, whatever their time to live is."""
    order = ensue.Total(held_max=order.held_max, causal=order.causal)
    return real_subscriber_config(self, order, durable=durable)


def undo_no_advertisement(self: Tables, change: Any, outputs: Any) -> None:
    """Advertisements stay when they are withdrawn."""
    del self, change, outputs


real_share_check = Share.check
real_refuse = MergedSubscriber._refuse
real_note = plan.PlannedTransaction._note
real_delivery_notify = Delivery.notify
real_subscriber_config = Hub.subscriber_config

CALLS = (
    Mutant("headers are dropped", "total", ((publications, "check_headers", drop_headers),)),
    Mutant(
        "headers are dropped, causal", "causal", ((publications, "check_headers", drop_headers),)
    ),
    Mutant("unread events count", "deadline", ((Share, "check", keep_unread_as_delivered),)),
    Mutant(
        "late events go uncounted", "merged", ((MergedSubscriber, "_refuse", refuse_uncounted),)
    ),
    Mutant(
        "late events are dropped all the same",
        "merged",
        ((MergedSubscriber, "_deliver_out_of_order", drop_late_events),),
    ),
    Mutant(
        "tokens are not observed", "merged", ((MergedPublisher, "observe", lambda *_, **__: True),)
    ),
    Mutant("tokens cover nothing", "merged", ((MergedPublisher, "token", cover_nothing),)),
    Mutant(
        "advertisements stay", "transactions", ((Tables, "_unadvertise", undo_no_advertisement),)
    ),
    Mutant(
        "transactions keep advertisements",
        "transactions",
        ((transaction._Participant, "_unadvertise", withdraw_no_advertisement),),
    ),
    Mutant(
        "advertisements are withdrawn twice",
        "transactions",
        ((ContentSession, "unadvertise", unadvertise_at_any_time),),
    ),
    Mutant(
        "plans keep subscriptions",
        "transactions",
        ((plan.PlannedTransaction, "unsubscribe", plan_no_withdrawal),),
    ),
    Mutant(
        "plans keep advertisements",
        "transactions",
        ((plan.PlannedTransaction, "unadvertise", plan_no_unadvertisement),),
    ),
    Mutant(
        "blocks of a plan come first",
        "transactions",
        ((plan.PlannedTransaction, "_note", note_blocks_first),),
    ),
    Mutant(
        "content acknowledges by itself",
        "transactions",
        ((content_client.ContentClient, "subscribe", acknowledge_at_once),),
    ),
    Mutant("gaps are waited for", "operations", ((Delivery, "expire", nothing),)),
    Mutant("late events are dropped", "operations", ((Delivery, "notify", drop_what_is_late),)),
    Mutant(
        "time to live is ignored", "operations", ((Hub, "subscriber_config", forget_time_to_live),)
    ),
)


# -- Rare networks, and users without permissions --------------------------------------------------


def let_all_read(self: Grants, action: str, topic: str) -> bool:
    """Every user may read every topic."""
    return action == "subscribe" or real_may(self, action, topic)  # type: ignore[arg-type]


def let_all_below_read(self: Grants, action: str, topic: str) -> bool:
    """A permission for all topics below one counts for that one too."""
    return real_may(self, action, topic) or real_may(self, action, f"{topic}.x")  # type: ignore[arg-type]


real_may = Grants.may

RARE = (
    Mutant("clients give up slow accepts", "total", ((link, "CONNECT_S", 0.05),)),
    Mutant("every user may read", "total", ((Grants, "may", let_all_read),)),
    Mutant("every user may read, causal", "causal", ((Grants, "may", let_all_read),)),
    Mutant("prefixes match their parent", "merged", ((Grants, "may", let_all_below_read),)),
    Mutant(
        "every user may by content",
        "transactions",
        ((content_broker, "_refusals", lambda *_: iter(())),),
    ),
    Mutant(
        "plans act for other users",
        "transactions",
        ((Authorization, "acting_refusal", lambda *_: ""),),
    ),
)
