"""Planted bugs of the client.

`mutants` merges them with all others, and runs them.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.simulation.swarms.test_mutants_transactions import (
    invites_without_waiting,
)
from tests.testing.swarm.planted import Mutant, nothing, wait_for_nothing

from ensue.client.acknowledgements import Acknowledgements
from ensue.client.backpressure import Backpressure
from ensue.client.bus import Bus
from ensue.client.content import attempts, plan, transaction
from ensue.client.content.reader import ContentShare
from ensue.client.content.session import ContentSession
from ensue.client.event_queue import EventQueue
from ensue.client.handlers import ReadAhead, Runner
from ensue.client.receipts import Receipts
from ensue.client.shared_node import Share, SharedNode
from ensue.client.subscription import Subscription
from ensue.protocols.content.client import Notified
from ensue.protocols.content.frames import INVITATION
from ensue.protocols.content.steps import Steps
from ensue.protocols.interface import Join
from ensue.protocols.transactions import contexts, operations
from ensue.protocols.transactions.compensation import Compensation
from ensue.protocols.transactions.submissions import Submissions
from ensue.runtime.driver import Driver
from ensue.runtime.hub_remote import RemoteHub

__all__ = ["CLIENT"]


def settled_when_sent(self: Receipts, event: Any, *, wanted: bool) -> Any:
    """A receipt does not wait for the server."""
    receipt = real_expect(self, event, wanted=wanted)
    if receipt is not None:
        receipt.set_result(event)
    return receipt


def settle_the_voided(self: Receipts, outcome: Any) -> None:
    """An event that lost its place counts as published."""
    if outcome.verdict and not outcome.reason:
        outcome = msgspec.structs.replace(outcome, verdict="")
    real_settle(self, outcome)


async def anext_with_a_gap(self: Subscription) -> Any:
    """A reader may be cancelled between taking an event and returning it."""
    event = await real_anext(self)
    await asyncio.sleep(0)
    return event


def acknowledge_the_last(self: Acknowledgements, position: int) -> int | None:
    """An acknowledgement counts for all before it."""
    self.open.pop(position, None)
    self.acknowledged = max(self.acknowledged, position)
    return self.acknowledged


def lose_silently(self: Acknowledgements, name: str, reason: str, why: str = "") -> Any:
    """Tasks that wait for an acknowledgement are not told that the subscription is lost."""
    waiting, self._waiting = self._waiting, {}
    lost = real_lose(self, name, reason, why)
    self._waiting = waiting
    return lost


def finish_before_the_handler(self: Runner, call: Any, then: Any) -> None:
    """An event is acknowledged when its handler begins."""
    event = next((each for each in self._window if each.begun and not each.finished), None)
    if event is not None:
        self._source.acknowledge(event.event.position)
    real_work(self, call, then)


def join_at_once(self: Share, topics: Iterable[str], *, now_ns: int) -> None:
    """A subscription is in effect before the other nodes know of it."""
    topics = list(topics)
    real_share_subscribe(self, topics, now_ns=now_ns)
    for topic in topics:
        self.pass_on(Join(topic))


def drop_all(self: SharedNode, topics: Iterable[str], *, now_ns: int) -> None:
    """A topic is left although another subscription of the bus has it."""
    self.node.unsubscribe(list(topics), now_ns=now_ns)


def part_at_once(_self: RemoteHub, driver: Driver[Any]) -> None:
    """A client leaves without a word to its registry."""
    driver.close()


def give_up_silently(self: ContentSession, error: Any) -> None:
    """Requests that wait are not told that the session has ended."""
    answers, self._answers = self._answers, {}
    real_give_up(self, error)
    self._answers = answers


def read_from_now_on(self: ContentSession, subscription: str, reader: Any) -> None:
    """What came before a planned subscription is read is dropped."""
    self._readers[subscription] = reader


def deliver_to_the_ended(_self: Compensation, deliveries: list[Any], _own: Any = ()) -> list[Any]:
    """A commit delivers to subscriptions that ended after its events had matched them."""
    return deliveries


def keep_what_was_aborted(self: ContentSession, subscriptions: Any) -> None:
    """The events of a planned subscription stay although its plan was aborted."""
    for name in subscriptions:
        reader = self._readers.get(name)
        if reader is not None:
            reader.withdrawn()


async def end_committed(self: Any, kind: Any, error: Any, traceback: Any) -> None:
    """A transaction is committed although its block raised."""
    del kind, error, traceback
    await real_transaction_exit(self, None, None, None)


def note_unordered(self: Any, client: str, **what: Any) -> None:
    """The operations of a plan may happen in any order."""
    self._before = ()
    real_note(self, client, **what)


async def publish_without_answer(_self: ContentSession, _begun: Any, event: Any) -> Any:
    """An event by content counts as published when it is sent."""
    return event


def overflow_silently(self: ContentShare, notified: Notified) -> None:
    """An event without room is dropped, and the subscription goes on."""
    self._session.record(notified, "discarded", 0, "overflow")


async def act_before_the_handler(self: ContentSession, invitation: Any) -> None:
    """An invitation is answered before its handler has returned."""
    name, path = invitation.transaction, invitation.path
    self.ask(lambda node, now: node.finish(name, path, "", now_ns=now))
    await real_act(self, invitation)


def deliver_to_the_closed(self: ContentSession, subscription: str) -> None:
    """A closed subscription is not withdrawn from the brokers."""
    self.stop_reading(subscription)


real_act = ContentSession._act
real_expect, real_settle = Receipts.expect, Receipts.settle
real_anext, real_lose = Subscription.__anext__, Acknowledgements.lose
real_work, real_share_subscribe = Runner._work, Share.subscribe


def submit_at_once(self: plan.PlannedTransaction, *, hold: bool = False) -> Any:
    """A plan does not wait for the decision."""
    del hold
    return real_ask_to_submit(self)


def decide_to_commit(self: plan.PlannedTransaction, *, commit: bool) -> Any:
    """A plan that its client aborts is committed."""
    del commit
    return real_decide(self, commit=True)


async def repeat_anyway(self: Any, kind: Any, error: Any, traceback: Any) -> bool:
    """An attempt that was committed is followed by another one."""
    done = await real_attempt_exit(self, kind, error, traceback)
    self.is_refused = self.number == 1
    return done


async def attempt_once(self: Any) -> Any:
    """The first attempt is the last."""
    attempt = await real_next_attempt(self)
    attempt._is_last = True
    return attempt


def run_at_home(tables: Any, step: Any) -> Any:
    """An invitation by content is not passed on to other brokers."""
    done = real_run_step(tables, step)
    is_invitation = step.publication is not None and INVITATION in step.publication.attributes
    return msgspec.structs.replace(done, neighbors=[]) if is_invitation else done


def finish_uncounted(self: Any, number: int, refused: str, reached: int = 0) -> None:
    """Only the clients of its own broker are counted."""
    del reached
    real_finish_step(self, number, refused)


real_run_step, real_finish_step = contexts.run, Steps.finish
real_attempt_exit = attempts.Attempt.__aexit__
real_next_attempt = attempts.Attempts.__anext__
real_ask_to_submit = plan.PlannedTransaction._ask_to_submit
real_decide = plan.PlannedTransaction._decide
real_give_up, real_note = ContentSession._give_up, plan.PlannedTransaction._note
real_transaction_exit = transaction.Transaction.__aexit__


async def swallow_cancellation(self: Bus, kind: Any, error: Any, traceback: Any) -> bool:
    """Leaving a bus ends a cancellation."""
    await real_leave(self, kind, error, traceback)
    return kind is asyncio.CancelledError


async def stay_if_cancelled(self: Bus, kind: Any, error: Any, traceback: Any) -> None:
    """A bus whose block is cancelled is not closed."""
    if kind is not asyncio.CancelledError:
        await real_leave(self, kind, error, traceback)


real_leave = Bus.__aexit__

CLIENT = (
    Mutant(
        "settled when sent",
        "total",
        ((Receipts, "expect", settled_when_sent),),
        # Else a guest's refused event gets a receipt, and no event needs to be lost.
        draws=(("users", False), ("broker", None)),
    ),
    Mutant("voided events count", "total", ((Receipts, "settle", settle_the_voided),)),
    Mutant("flush waits for nothing", "total", ((Receipts, "wait_for_all", wait_for_nothing),)),
    Mutant("a cancelled read loses", "total", ((Subscription, "__anext__", anext_with_a_gap),)),
    Mutant(
        "the last ack counts", "total", ((Acknowledgements, "acknowledge", acknowledge_the_last),)
    ),
    Mutant("acks are safe at once", "total", ((Acknowledgements, "until", wait_for_nothing),)),
    Mutant("lost acks wait", "total", ((Acknowledgements, "lose", lose_silently),)),
    Mutant("unread events survive leaving", "total", ((EventQueue, "drop", nothing),)),
    Mutant("handlers get left topics", "total", ((ReadAhead, "leave", lambda _self, _topics: []),)),
    Mutant("acked before the handler", "total", ((Runner, "_work", finish_before_the_handler),)),
    Mutant("shares join at once", "causal", ((Share, "subscribe", join_at_once),)),
    Mutant("shares leave for all", "causal", ((SharedNode, "drop", drop_all),)),
    Mutant("a full share stays paused", "causal", ((SharedNode, "resume", nothing),)),
    Mutant("a full reader stays paused", "total", ((Backpressure, "relieve", nothing),)),
    Mutant("leaving swallows cancellations", "total", ((Bus, "__aexit__", swallow_cancellation),)),
    Mutant("a cancelled block stays connected", "total", ((Bus, "__aexit__", stay_if_cancelled),)),
    Mutant("a failed bus waits on", "total", ((Receipts, "fail_all", nothing),)),
    Mutant("clients leave silently", "causal", ((RemoteHub, "close_client", part_at_once),)),
    Mutant("nothing is repeated on reconnect", "total", ((RemoteHub, "_reconnected", nothing),)),
    Mutant(
        "a failed session waits on",
        "transactions",
        ((ContentSession, "_give_up", give_up_silently),),
    ),
    Mutant(
        "plans lose first events", "transactions", ((ContentSession, "read", read_from_now_on),)
    ),
    Mutant(
        "ended subscriptions get events",
        "transactions",
        ((Compensation, "still_owed", deliver_to_the_ended),),
    ),
    Mutant(
        "events of aborted plans stay",
        "transactions",
        ((ContentSession, "_end_withdrawn", keep_what_was_aborted),),
    ),
    Mutant(
        "a failed block commits",
        "transactions",
        ((transaction.Transaction, "__aexit__", end_committed),),
    ),
    Mutant(
        "held plans are committed at once",
        "transactions",
        ((plan.PlannedTransaction, "_ask_to_submit", submit_at_once),),
    ),
    Mutant(
        "aborted plans are committed",
        "transactions",
        ((plan.PlannedTransaction, "_decide", decide_to_commit),),
    ),
    Mutant(
        "committed transactions are repeated",
        "transactions",
        ((attempts.Attempt, "__aexit__", repeat_anyway),),
    ),
    Mutant(
        "conflicts are raised at once",
        "transactions",
        ((attempts.Attempts, "__anext__", attempt_once),),
    ),
    Mutant(
        "recipients are not awaited",
        "transactions",
        ((operations.Operations, "_invite_here", invites_without_waiting),),
    ),
    Mutant(
        "invitations by content stay at home",
        "transactions",
        ((operations, "run", run_at_home),),
    ),
    Mutant(
        "recipients behind are not counted",
        "transactions",
        ((Steps, "finish", finish_uncounted),),
    ),
    Mutant("held plans have no timeout", "transactions", ((Submissions, "tick", nothing),)),
    Mutant(
        "plans have no order", "transactions", ((plan.PlannedTransaction, "_note", note_unordered),)
    ),
    Mutant(
        "content settled when sent",
        "transactions",
        ((ContentSession, "published", publish_without_answer),),
        draws=(("logins", False), ("calls", ())),
    ),
    Mutant("overflow is silent", "transactions", ((ContentShare, "_overflow", overflow_silently),)),
    Mutant(
        "invitations answer early",
        "transactions",
        ((ContentSession, "_act", act_before_the_handler),),
        draws=(("by_content", True),),
    ),
    Mutant(
        "closed content stays",
        "transactions",
        ((ContentSession, "withdraw", deliver_to_the_closed),),
    ),
)
