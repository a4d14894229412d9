"""Planted bugs above the protocols, for the swarm of the whole stack to find.

Each replaces functions of the client, the server, the journal, the runtime or the transports by
ones with a mistake. Those of `DEFECTS` were made once, and found by trials from outside.

    python -m tests.testing.swarm.mutants [--search] [--seeds A:B] [NAME …]

runs each with the seed noted beside it. `--search` looks for the first seed that finds it.
"""

import argparse
import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from tests.simulation.swarms.test_mutants_transactions import (
    attaches_after_the_sent,
    invites_without_waiting,
    keeps_for_readers_alone,
)
from tests.testing.swarm import content_mutants, mailbox_mutants, noncausal_mutants
from tests.testing.swarm.forgery_mutants import FORGERIES
from tests.testing.swarm.many_mutants import MANY
from tests.testing.swarm.move_mutants import MOVES
from tests.testing.swarm.topic_mutants import TOPICS

import ensue
from ensue.client import publications
from ensue.client.acknowledgements import Acknowledgements
from ensue.client.backpressure import Backpressure
from ensue.client.bus import Bus
from ensue.client.content import attempts, plan, transaction
from ensue.client.content import cells as content_cells
from ensue.client.content import client as content_client
from ensue.client.content.durable import DurableMailbox
from ensue.client.content.reader import ContentShare, ReadOptions
from ensue.client.content.session import ContentSession
from ensue.client.event_queue import EventQueue
from ensue.client.handlers import ReadAhead, Runner
from ensue.client.receipts import Receipts
from ensue.client.shared_node import Share, SharedNode
from ensue.client.subscription import Subscription
from ensue.client.topic_changes import TopicChanges
from ensue.core import clock, platform
from ensue.core.clock import SystemClock
from ensue.core.event import Event
from ensue.journal.files import Files
from ensue.journal.format import event_key
from ensue.journal.index import EventIndex
from ensue.journal.journal import Journal
from ensue.journal.recovery import Recovery
from ensue.journal.segments import Segments
from ensue.protocols.causal.reader_inquiries import ReaderInquiries
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.content.cells import Cells, Match
from ensue.protocols.content.client import Notified
from ensue.protocols.content.frames import INVITATION, Attach
from ensue.protocols.content.leases import Leases as ContentLeases
from ensue.protocols.content.mailboxes import Mailboxes
from ensue.protocols.content.steps import Steps
from ensue.protocols.content.tables import Tables
from ensue.protocols.interface import Acknowledged, Deliver, Discard, Join, Persist, Send
from ensue.protocols.membership.client import POLL_NS, MembershipClient
from ensue.protocols.membership.registry import Registry
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.topic_log.fanout import Agreed, Fanout
from ensue.protocols.topic_log.log_identity import LogRefused
from ensue.protocols.total.backfill import History
from ensue.protocols.total.delivery import Delivery
from ensue.protocols.total.publisher_sessions import PublisherSessions
from ensue.protocols.total.station import Station
from ensue.protocols.transactions import contexts, operations
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.compensation import Compensation
from ensue.protocols.transactions.submissions import Submissions
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub
from ensue.runtime.hub_remote import RemoteHub
from ensue.server import content_broker, listener, server, station_builder
from ensue.server.admission import Admission
from ensue.server.authorization import Authorization
from ensue.server.broker_admission import BrokerAdmission
from ensue.server.brokered import BrokeredServer
from ensue.server.connection import Connection
from ensue.server.content_broker import ContentBroker
from ensue.server.group_commit import GroupCommit
from ensue.server.high_water_marks import HighWaterMarks
from ensue.server.permissions import Grants
from ensue.server.relay_claims import ClaimChecker
from ensue.server.station_server import StationServer
from ensue.testing.swarm import draw, run
from ensue.transports import reconnect
from ensue.transports.brokers import base
from ensue.transports.brokers.base import BrokerCarrier, Session
from ensue.transports.framed import FramedPort
from ensue.transports.tcp import link
from ensue.transports.tcp.carrier import TcpCarrier
from ensue.transports.tcp.link import Link
from ensue.transports.tcp.messages import Framer

__all__ = ["MUTANTS", "UNFOUND", "BrokenMutant", "Mutant", "find", "found_by", "planted", "played"]

TESTS = Path(__file__).parents[2]
OUTDATED = (AttributeError, KeyError, NameError, TypeError)
"""What functions raise that no longer fit the code that they replace a part of."""

SEEDS_MAX = 2000
Patch = tuple[object, str, object]


class Mutant(msgspec.Struct, frozen=True):
    """One mistake: the order whose programs find it, and what is put in whose place."""

    name: str
    order: str
    patches: tuple[Patch, ...]
    hint: int = 0
    """The seed to try: the first that found it when last searched."""


def nothing(*_arguments: object, **_options: object) -> None:
    """Do nothing."""


async def wait_for_nothing(*_arguments: object, **_options: object) -> None:
    """Return at once."""


# -- Defects that trials from outside found --------------------------------------------------------


async def withdraw_at_once(self: Any, subscription: Subscription) -> None:
    """A moved subscription ends with the commit: events routed to it before are dropped."""
    share = transaction.share_of(subscription)
    await self._act("usub", name=share.subscription)
    self._session.when_over(self.name, lambda done: share.withdrawn() if done else None)


def believe_any_log(self: TcpCarrier, welcome: Any) -> None:
    """A client takes any log for the one it has read."""
    if welcome.log is not None:
        self.logs[welcome.server] = welcome.log


def agree_to_all(self: Fanout, terms: str, peer: str, now_ns: int) -> None:
    """Clients of merged order with other bounds are let in."""
    del now_ns
    if terms:
        self._effects.append(Send(peer, Agreed(terms=terms)))


def anchored_once(self: SystemClock) -> int:
    """The clock is set when the process starts, and never corrected."""
    return self._line.offset_ns + self._steady_ns()


def check_no_deadline(self: Share, event: object, verdict: str, now_ns: object = None) -> str:
    """Events that became late while they were unread are handed over."""
    del event, now_ns
    return verdict


def find_room_for_one(self: ContentShare, notified: Notified) -> None:
    """Room is looked for event by event: a transaction may be torn."""
    self._begun = ""
    real_notified(self, msgspec.structs.replace(notified, following=0))


def ignore_options(self: Any, where: str, options: ReadOptions) -> Subscription:
    """Options of subscriptions by content are dropped."""
    del options
    return real_content_subscribe(self, where, ReadOptions())


def admit_stations_as_clients(self: Admission, one: Any, station: str) -> str | None:
    """Other servers of the chain need a place of a client."""
    del station
    found: str | None = real_admission_enter(self, one, "")
    return found


async def settle_without_end(self: Bus, by_s: float | None) -> bool:
    """Closing waits for receipts for as long as it takes."""
    del by_s
    return await real_settle_by(self, None)


def read_and_go_on(self: Journal, topic: str, slot: int, offset: int, ahead: int) -> bytes:
    """An event that can't be read fails the request for it, and nothing else."""
    batch = self._buffered.get(offset) or self._segments.batch(offset, ahead=ahead)
    value = batch[event_key(topic, slot)]
    assert value is not None
    return value


def screen_nothing(_self: object, _sender: object, _source: str, _to: object, frames: Any) -> Any:
    """What relayed frames claim is believed."""
    return list(frames)


def know_any_log(self: Any, name: str, lineage: Any) -> None:
    """A server takes any log of another one for the one it knew."""
    self.logs[name] = lineage


real_notified = ContentShare.notified
real_content_subscribe = content_client.ContentClient.subscribe
real_admission_enter = Admission.admit
real_settle_by = Bus._settle_by

BELIEVE = ((TcpCarrier, "check_log", believe_any_log), (RemoteHub, "_learn_log", nothing))

DEFECTS = (
    Mutant(
        "a moved subscription loses events",
        "transactions",
        ((transaction._Participant, "_withdraw", withdraw_at_once),),
    ),
    Mutant(
        "two transactions move one subscription",
        "transactions",
        ((contexts, "_is_withdrawn", lambda *_: False),),
    ),
    Mutant("clients believe an empty log", "total", BELIEVE),
    Mutant(
        "servers believe an empty log",
        "total",
        ((station_builder.PeerLogs, "learn", know_any_log),),
    ),
    Mutant("merged bounds may differ", "merged", ((Fanout, "_agree", agree_to_all),)),
    Mutant("the clock is never corrected", "merged", ((SystemClock, "now_ns", anchored_once),)),
    Mutant("small errors of the clock stay", "merged", ((clock, "TOLERANCE_NS", 300_000_000),)),
    Mutant("suspensions stop the clock", "deadline", ((SystemClock, "now_ns", anchored_once),)),
    Mutant("unread events miss their deadline", "deadline", ((Share, "check", check_no_deadline),)),
    Mutant(
        "a transaction reaches a slow reader torn",
        "transactions",
        ((ContentShare, "notified", find_room_for_one),),
    ),
    Mutant(
        "subscriptions by content ignore options",
        "transactions",
        ((content_client.ContentClient, "subscribe", ignore_options),),
    ),
    Mutant("left topics are handed out", "total", ((TopicChanges, "leave", nothing),)),
    Mutant("a server goes on with a damaged log", "total", ((Journal, "_read", read_and_go_on),)),
    Mutant(
        "a cut end of the log goes unnoticed",
        "total",
        ((Recovery, "_check_truncation", nothing),),
    ),
    Mutant(
        "a removed start of the log goes unnoticed",
        "total",
        ((Recovery, "_check_start", lambda _self, logs: logs),),
    ),
    Mutant(
        "a removed end of the log goes unnoticed",
        "total",
        (
            (Recovery, "_check_truncation", nothing),
            (Recovery, "_check_end", lambda _self, logs, _nexts: logs),
        ),
    ),
    Mutant(
        "a log without files starts anew",
        "total",
        ((Files, "created", property(lambda _self: False)),),
    ),
    Mutant("relayed claims are believed", "causal", ((ClaimChecker, "screen", screen_nothing),)),
    Mutant(
        "relayed messages are believed", "deadline", ((ClaimChecker, "screen", screen_nothing),)
    ),
    Mutant(
        "a full server refuses its chain",
        "total",
        ((Admission, "admit", admit_stations_as_clients),),
    ),
    Mutant("closing waits for ever", "total", ((Bus, "_settle_by", settle_without_end),)),
    Mutant("a lost publisher keeps its lease", "total", ((Station, "lose", nothing),)),
    Mutant(
        "a paused broker holds up newcomers",
        "transactions",
        ((TransactionBroker, "note_away", nothing),),
    ),
    Mutant(
        "a dead coordinator keeps its timeout",
        "transactions",
        ((ContentBroker, "disconnected", nothing), (ContentBroker, "_track_connections", nothing)),
    ),
)

# -- The client ------------------------------------------------------------------------------------


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
    await self.on_invited(name, path, invitation.publication)  # type: ignore[misc]


def deliver_to_the_closed(self: ContentSession, subscription: str) -> None:
    """A closed subscription is not withdrawn from the brokers."""
    self.stop_reading(subscription)


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
    Mutant("settled when sent", "total", ((Receipts, "expect", settled_when_sent),)),
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
    ),
    Mutant("overflow is silent", "transactions", ((ContentShare, "_overflow", overflow_silently),)),
    Mutant(
        "invitations answer early",
        "transactions",
        ((ContentSession, "_act", act_before_the_handler),),
    ),
    Mutant(
        "closed content stays",
        "transactions",
        ((ContentSession, "withdraw", deliver_to_the_closed),),
    ),
)

# -- The runtime and the server --------------------------------------------------------------------


def carry_out_first(self: Driver[Any]) -> None:
    """A node's answers go out before what they depend on is safe."""
    if not self._checking_timer:
        self._checking_timer = True
        self._loop.call_soon(self._check_timer)
    effects = self.node.take_effects()
    if self._store is not None:
        writes = [each for each in effects if isinstance(each, Persist)]
        effects = [each for each in effects if not isinstance(each, Persist)]
        self._store.write(writes, nothing)
    if effects:
        self._carry_out(effects)


def retire_at_once(self: Driver[Any], done: Any, on_closed: Any = None) -> None:
    """A node ends before the others know that it has left."""
    del done
    real_retire(self, lambda _node: True, on_closed)


def lose_without_a_word(self: Driver[Any], reason: str, error: Any = None) -> None:
    """An application is not told that its node was refused."""
    del reason, error
    self.close()


def write_before_sync(self: GroupCommit) -> None:
    """Answers do not wait for the sync."""
    waiting, self._unwritten = list(self._unwritten), type(self._unwritten)()
    real_commit_write(self)
    for done in waiting:
        done()


def sync_failure_is_none(self: GroupCommit, outcome: int | BaseException) -> None:
    """A failed sync counts as one that succeeded."""
    if isinstance(outcome, BaseException):
        self._journal.failed = None
        outcome = self._journal.batch_count
    real_synced(self, outcome)


def answer_without_waiting(self: GroupCommit, writes: Any, done: Callable[[], None]) -> None:
    """A batch without writes does not wait for those before it."""
    if not writes:
        done()
        return
    real_group_write(self, writes, done)


def resume_without_work(self: Connection) -> None:
    """Messages that arrived during a pause wait for the next ones."""
    self._unanswered = self._unanswered_bytes = 0
    self._waiting = False
    if self._transport is not None and not self.closing:
        self._transport.resume_reading()


def leave_whoever_owns(self: listener.Listener, connection: Connection, name: str) -> None:
    """An old connection that ends takes the name from its new one."""
    del connection
    if self.routes.pop(name, None) is not None and self.on_left is not None:
        self.on_left(name)


def remember_the_gone(self: listener.Listener, connection: Connection) -> None:
    """The names of a lost connection stay routed to it."""
    self.connections.pop(connection, None)
    self.admission.remove(connection)
    if not self.connections and self._emptied is not None:
        self._emptied.set()


def count_the_gone(self: Admission, one: Any) -> None:
    """A client that is gone keeps its place."""
    self._stop_waiting(one)


def another_seal_key(_journal: object, _commit: object) -> bytes:
    """A server seals with another key after each start."""
    return platform.current().token_bytes(32)


def restore_no_marks(self: HighWaterMarks, records: object) -> None:
    """A relay forgets at each start what was published."""
    del records
    self._restored = 0


def same_incarnation(journal: Journal, begun: int) -> Any:
    """Each start of a server looks like the first one."""
    with mock.patch.object(platform.current(), "random_bits", return_value=1):
        lineage = real_begin(journal, 0)
    del begun
    first = lineage.incarnations[:1]
    return type(lineage)(lineage.identity, first)


def write_content_at_once(self: Any, writes: Any, done: Callable[[], None]) -> None:
    """A broker answers before its records are safe."""
    real_own_write(self, writes, nothing)
    done()


def restore_no_content(self: ContentBroker) -> None:
    """A broker starts without its records."""
    with mock.patch.object(content_broker, "CONTENT_RECORDS", "none/"):
        real_drive(self)


def look_for_none(self: Registry, *, now_ns: int) -> None:
    """The registry never looks for silent members."""
    self._sweep_due_ns = now_ns + self._expire_ns


def put_off(self: MembershipClient, now_ns: int) -> None:
    """A client asks its registry once, and never again."""
    self._poll_due_ns = now_ns + POLL_NS


def greet_unregistered(self: RegisteredNode, *, now_ns: int) -> None:
    """A new connection greets others before it polls: its server drops these frames."""
    with mock.patch.object(self._client, "take_effects", return_value=[]):
        real_repeat(self, now_ns=now_ns)


def admit_without_news(self: Registry, name: str, terms: str, now_ns: int) -> None:
    """Members are not told of a new one."""
    before = list(self._effects)
    real_admit(self, name, terms, now_ns)
    self._effects = before + [
        each for each in self._effects[len(before) :] if isinstance(each, Persist)
    ]


def keep_guests(self: Registry, epoch: int, source: str) -> None:
    """Clients that may not publish cannot deregister."""
    if not source.startswith("guest"):
        real_deregister(self, epoch, source)


real_admit, real_deregister = Registry._admit, Registry._deregister
real_retire, real_commit_write = Driver.retire, GroupCommit._write
real_synced, real_group_write = GroupCommit._synced, GroupCommit.write
real_begin, real_own_write = station_builder.begin_incarnation, content_broker._OwnRecords.write
real_drive, real_repeat = ContentBroker._drive, RegisteredNode.repeat

SERVER = (
    Mutant("answers before records", "total", ((Driver, "_drain", carry_out_first),)),
    Mutant("nodes end too early", "causal", ((Driver, "retire", retire_at_once),)),
    Mutant("refusals are silent", "total", ((Driver, "lose", lose_without_a_word),)),
    Mutant("answers before sync", "total", ((GroupCommit, "_write", write_before_sync),)),
    Mutant("failed syncs count", "total", ((GroupCommit, "_synced", sync_failure_is_none),)),
    Mutant("empty batches overtake", "total", ((GroupCommit, "write", answer_without_waiting),)),
    Mutant("pauses lose messages", "total", ((Connection, "_resume", resume_without_work),)),
    Mutant(
        "old connections take names",
        "total",
        ((listener.Listener, "_release", leave_whoever_owns),),
    ),
    Mutant(
        "lost connections keep names",
        "total",
        ((listener.Listener, "connection_closed", remember_the_gone),),
    ),
    Mutant("servers keep silent clients", "total", ((Connection, "_check_silence", nothing),)),
    Mutant("gone clients keep places", "total", ((Admission, "remove", count_the_gone),)),
    Mutant("every user may", "total", ((Authorization, "why_not", lambda *_: ""),)),
    Mutant("every user may, merged", "merged", ((Authorization, "why_not", lambda *_: ""),)),
    Mutant("names have no owners", "total", ((Authorization, "_owner_refusal", nothing),)),
    Mutant("a new seal at each start", "causal", ((server, "_seal_key", another_seal_key),)),
    Mutant("marks are forgotten", "causal", ((HighWaterMarks, "_restore", restore_no_marks),)),
    Mutant(
        "rolled back unnoticed",
        "total",
        ((StationServer.__module__, "begin_incarnation", same_incarnation),),
    ),
    Mutant(
        "broker answers early",
        "transactions",
        ((content_broker._OwnRecords, "write", write_content_at_once),),
    ),
    Mutant("broker forgets", "transactions", ((ContentBroker, "_drive", restore_no_content),)),
    Mutant("brokers repeat nothing", "transactions", ((ContentBroker, "connected", nothing),)),
    Mutant("the registry forgets", "causal", ((Registry, "_persist", nothing),)),
    Mutant("silent members stay", "causal", ((Registry, "handle_timer", look_for_none),)),
    Mutant("guests stay members", "deadline", ((Registry, "_deregister", keep_guests),)),
    Mutant("members learn nothing new", "causal", ((Registry, "_admit", admit_without_news),)),
    Mutant("the registry is not asked again", "causal", ((MembershipClient, "question", put_off),)),
    Mutant("a new connection asks nothing", "causal", ((MembershipClient, "repeat", nothing),)),
    Mutant(
        "settled without asking",
        "causal",
        (
            (ReaderInquiries, "unread", lambda _self, _topic, last, _now_ns: last),
            (RegisteredNode, "repeat", greet_unregistered),
        ),
    ),
)


# -- The journal -----------------------------------------------------------------------------------


def sync_the_last(self: Segments, segments: Sequence[Any]) -> None:
    """Of several segments only the last is synced."""
    with mock.patch.object(self.files.system, "sync", return_value=None):
        if len(segments) > 1:
            real_segments_sync(self, segments[:-1])
    real_segments_sync(self, segments[-1:])


def note_sync_first(self: Journal) -> int:
    """The last synced batch is noted before the sync."""
    if self._files.created:
        self._files.set_synced(self._appended + 1)
    return real_journal_sync(self)


def no_changes(self: EventIndex) -> dict[str, Any]:
    """A sealed segment has no index."""
    real_take_changes(self)
    return {}


def confirm_unsynced(self: Segments, segments: Sequence[Any]) -> None:
    """A segment counts as durable before it is."""
    for segment in segments:
        if segment.path.suffix == ".next":
            self.files.confirm(segment.number)
            segment.path = self.files.log(segment.number)


def write_once(self: Files, descriptor: int, data: bytes) -> None:
    """A write that the disk took a part of counts as done."""
    self.system.write(descriptor, data)


def leave_the_tail(self: Recovery, segment: Any, data: bytes, later: list[int]) -> None:
    """What a crash left half written stays in the log."""
    del segment, data, later


def snapshot_without_records(self: Journal) -> None:
    """A new segment begins without the records."""
    records, self._records = self._records, {}
    try:
        real_create_segment(self)
    finally:
        self._records = records


def ignore_following(self: Recovery, segment: Any, size: int, nexts: list[int]) -> None:
    """Segments that were not confirmed are dropped, whatever is in them."""
    del segment, size, nexts


real_segments_sync, real_journal_sync = Segments.sync, Journal.sync
real_take_changes, real_create_segment = EventIndex.take_changes, Journal._create_segment

JOURNAL = (
    Mutant("only the last segment is synced", "total", ((Segments, "sync", sync_the_last),)),
    Mutant("synced is noted first", "total", ((Journal, "sync", note_sync_first),)),
    Mutant("segments without index", "total", ((EventIndex, "take_changes", no_changes),)),
    Mutant("segments confirmed unsynced", "total", ((Segments, "sync", confirm_unsynced),)),
    Mutant("names are not synced", "total", ((Files, "sync", nothing),)),
    Mutant("short writes count", "total", ((Files, "write_all", write_once),)),
    Mutant("torn tails stay", "total", ((Recovery, "_truncate", leave_the_tail),)),
    Mutant(
        "segments without records",
        "total",
        ((Journal, "_create_segment", snapshot_without_records),),
    ),
    Mutant(
        "unconfirmed segments are dropped", "total", ((Recovery, "_following", ignore_following),)
    ),
    Mutant(
        "a missing end goes unnoticed",
        "total",
        ((Recovery, "_check_end", lambda _self, logs, _nexts: logs),),
    ),
)

# -- Transports ------------------------------------------------------------------------------------


def send_before_names(self: Link) -> None:
    """Bundles are sent on a new connection before its names are entered."""
    self._activate()
    real_enter_all(self)


def enter_no_names(self: Link) -> None:
    """Names are not entered again after a reconnect."""
    self._unanswered.clear()
    self._activate()


def forget_the_rest(self: Framer, data: bytes) -> list[bytes]:
    """The rest behind a whole message is dropped."""
    messages = real_feed(self, data)
    if messages:
        self._chunks, self._held, self._needed = [], 0, 4
    return messages


async def never_reconnect(connection: Any, **options: Any) -> None:
    """A lost connection stays lost."""
    await options["use"](connection)
    await asyncio.get_running_loop().create_future()


def flush_the_first(self: FramedPort) -> Any:
    """Of bundles for several targets only the first is sent."""
    return real_take(self)[:1]


def turn_is_ignored(self: Any, message: Any) -> None:
    """A client does not note its turn at a name."""
    real_control(self, message)
    for known in self._names.values():
        known.turn = 0


real_enter_all, real_feed = Link._enter_all, Framer.feed
real_take, real_control = FramedPort.take, Link.control

TRANSPORTS = (
    Mutant("bundles before names", "total", ((Link, "_enter_all", send_before_names),)),
    Mutant("names are not entered again", "total", ((Link, "_enter_all", enter_no_names),)),
    Mutant("streams lose rests", "total", ((Framer, "feed", forget_the_rest),)),
    Mutant("lost connections stay lost", "total", ((link, "keep_connected", never_reconnect),)),
    Mutant("silence goes unnoticed", "total", ((link, "SILENCE_S", 1e9),)),
    Mutant("leaving trusts silent connections", "causal", ((RemoteHub, "_renew", nothing),)),
    Mutant("only one target is served", "total", ((FramedPort, "take", flush_the_first),)),
    Mutant("pauses grow without bound", "total", ((reconnect, "BACKOFF_S_MAX", 1e6),)),
    Mutant("turns are ignored", "total", ((Link, "control", turn_is_ignored),)),
)

# -- Brokers: their carriers, and stations on them -------------------------------------------------


async def reopen_nothing(self: BrokerCarrier, session: Session) -> None:
    """Inboxes and topics are not opened again after a reconnect."""
    session.subscribed.update(self._receivers)


def end_unnoticed(self: Session, reader: "asyncio.Task[None]") -> None:
    """A reader that ends does not end its session."""
    del self
    reader.cancelled() or reader.exception()


async def change_once(self: BrokerCarrier, session: Session, place: Any) -> None:
    """A place that is entered while it is left stays left."""
    try:
        if place in self._receivers:
            await session.during(self._subscribe([place]))
        else:
            await session.during(self._unsubscribe(place))
        session.subscribed.add(place)
    finally:
        session.changing.pop(place, None)


def keep_no_refusal(self: BrokerAdmission, source: str, frames: list[Any]) -> list[Any]:
    """A station does not hear that the others refuse its log."""
    del self, source
    return [frame for frame in frames if not isinstance(frame, LogRefused)]


def place_unknown(self: RemoteHub, server: str) -> int:
    """Clients forget how far they have read."""
    del self, server
    return 0


BROKERS = (
    Mutant("places stay closed", "merged", ((BrokerCarrier, "_reopen", reopen_nothing),)),
    Mutant("ended readers go unnoticed", "merged", ((Session, "_end", end_unnoticed),)),
    Mutant("brokers are left for good", "total", ((base, "keep_connected", never_reconnect),)),
    Mutant("places change once", "merged", ((BrokerCarrier, "_change", change_once),)),
    Mutant(
        "stations do not watch logs", "total", ((BrokeredServer, "_watch_logs", wait_for_nothing),)
    ),
    Mutant(
        "stations ignore refusals", "total", ((BrokerAdmission, "_admit_station", keep_no_refusal),)
    ),
    Mutant("clients do not ask for logs", "total", ((RemoteHub, "watch_logs", wait_for_nothing),)),
    Mutant("read places are forgotten", "total", ((RemoteHub, "_place_of", place_unknown),)),
)

# -- What clients leave behind ---------------------------------------------------------------------


async def close_with_a_timer(self: Bus, timeout_s: float | None = None) -> Any:
    """A closed bus leaves a timer."""
    asyncio.get_running_loop().call_later(1e6, nothing)
    return await real_bus_leave(self, timeout_s)


async def close_in_the_background(self: Bus, timeout_s: float | None = None) -> Any:
    """A closed bus leaves a task that never ends."""
    self._forgotten = asyncio.create_task(asyncio.sleep(1e6))  # type: ignore[attr-defined]
    return await real_bus_leave(self, timeout_s)


def keep_listening(self: Station, now_ns: int, expire_ns: int) -> None:
    """Subscribers that vanished are never removed."""
    del self, now_ns, expire_ns


def renew_expired_leases(self: ContentLeases, now_ns: int) -> Iterator[str]:
    """Brokers keep clients whose leases have expired."""
    for client in real_expired(self, now_ns):
        self.renew(client, now_ns)
    return iter(())


real_bus_leave, real_expired = Bus._leave, ContentLeases.expired

LEAKS = (
    Mutant("closed buses stay connected", "total", ((TcpCarrier, "close", wait_for_nothing),)),
    Mutant("closed buses keep timers", "total", ((Bus, "_leave", close_with_a_timer),)),
    Mutant("closed buses keep tasks", "total", ((Bus, "_leave", close_in_the_background),)),
    Mutant("vanished subscribers stay", "total", ((Station, "_sweep", keep_listening),)),
    Mutant(
        "gone parties stay",
        "merged",
        ((Fanout, "handle_timer", nothing), (Fanout, "next_timer_ns", nothing)),
    ),
    Mutant("gone listeners stay", "merged", ((Fanout, "forget", nothing),)),
    Mutant("gone publishers stay", "total", ((PublisherSessions, "forget", lambda *_: False),)),
    Mutant(
        "gone content sessions stay",
        "transactions",
        ((ContentLeases, "expired", renew_expired_leases),),
    ),
)

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

# -- Durable subscriptions by content --------------------------------------------------------------


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

# -- Events by content in total order -------------------------------------------------------------


def want_everything(self: Match, event: Event) -> bool:
    """The application gets every event of its cells."""
    self.counts.delivered += 1
    return bool(event)


def write_as_text(attributes: dict[str, Any]) -> dict[str, str]:
    """A number becomes the text that it is written as."""
    return {name: f'"{value}"' for name, value in attributes.items()}


def forget_last_attribute(self: Cells, event: dict[str, Any]) -> str:
    """The publisher takes the last attribute for absent."""
    classes = [axis.class_of(event.get(axis.name)) for axis in self.axes]
    return self._topic((*classes[:-1], 0))


def count_in_vain(self: Delivery, event: Event, slot: int, since_ns: int, now_ns: int) -> None:
    """An event that does not match takes a position."""
    skipped = self._skipped(event)
    self._progress.places[event.topic] = event.place
    self._progress.handled(event.topic, slot, count=not event.void)
    if skipped:
        self._effects.append(Discard(event, skipped))
    else:
        self._effects.append(Deliver(event, self._progress.delivered, "", now_ns - since_ns))


CELLS = tuple(
    Mutant(name, "total-content", (patch,))
    for name, patch in (
        ("events in vain reach the application", (Match, "__call__", want_everything)),
        ("numbers become text", (content_cells, "headers_of", write_as_text)),
        ("a publisher forgets an attribute", (Cells, "topic_of", forget_last_attribute)),
        ("an event in vain takes a position", (Delivery, "release", count_in_vain)),
    )
)

NONCAUSAL = tuple(
    Mutant(name, noncausal_mutants.ORDER, (patch,)) for name, patch in noncausal_mutants.BUGS
)

SEEDS = {
    **noncausal_mutants.SEEDS,
    "ended subscriptions get events": 1,
    "events of aborted plans stay": 2,
    "mailboxes have no window": 171,
    "mailboxes skip what was sent": 15,
    "content acks are safe at once": 15,
    "mailboxes need readers": 15,
    "the last ack counts": 146,
    "names have no owners": 4,
    "nothing is repeated on reconnect": 164,
    "a cancelled read loses": 0,
    "failed syncs count": 136,
    "silent members stay": 1,
    "guests stay members": 0,
    "closed buses stay connected": 0,
    "closed buses keep timers": 0,
    "closed buses keep tasks": 0,
    "vanished subscribers stay": 0,
    "gone parties stay": 1,
    "gone listeners stay": 1,
    "gone publishers stay": 0,
    "a moved subscription loses events": 326,
    "two transactions move one subscription": 29,
    "a dead coordinator keeps its timeout": 16,
    "clients believe an empty log": 6,
    "servers believe an empty log": 65,
    "merged bounds may differ": 2,
    "the clock is never corrected": 6,
    "unread events miss their deadline": 3,
    "left topics are handed out": 496,
    "a log without files starts anew": 143,
    "relayed claims are believed": 4,
    "relayed messages are believed": 2,
    "a cut end of the log goes unnoticed": 158,
    "a removed start of the log goes unnoticed": 685,
    "a removed end of the log goes unnoticed": 391,
    "a full server refuses its chain": 209,
    "a lost publisher keeps its lease": 52,
    "settled when sent": 2,
    "flush waits for nothing": 36,
    "acks are safe at once": 45,
    "unread events survive leaving": 6,
    "handlers get left topics": 33,
    "shares join at once": 3,
    "shares leave for all": 2,
    "a full share stays paused": 2,
    "a full reader stays paused": 5,
    "a failed bus waits on": 614,
    "answers before records": 44,
    "refusals are silent": 61,
    "answers before sync": 16,
    "lost connections keep names": 52,
    "gone clients keep places": 384,
    "every user may": 2,
    "every user may, merged": 1,
    "marks are forgotten": 217,
    "the registry forgets": 0,
    "the registry is not asked again": 0,
    "settled without asking": 3344,
    "subscriptions by content ignore options": 0,
    "a paused broker holds up newcomers": 6,
    "plans lose first events": 1,
    "a failed block commits": 0,
    "held plans are committed at once": 2,
    "aborted plans are committed": 2,
    "committed transactions are repeated": 7,
    "conflicts are raised at once": 7,
    "recipients are not awaited": 2,
    "invitations by content stay at home": 371,
    "recipients behind are not counted": 2,
    "held plans have no timeout": 57,
    "plans have no order": 1,
    "overflow is silent": 4,
    "invitations answer early": 0,
    "broker forgets": 0,
    "only the last segment is synced": 16,
    "synced is noted first": 17,
    "segments without index": 17,
    "segments confirmed unsynced": 16,
    "names are not synced": 16,
    "short writes count": 53,
    "segments without records": 17,
    "unconfirmed segments are dropped": 232,
    "names are not entered again": 17,
    "streams lose rests": 5,
    "lost connections stay lost": 17,
    "only one target is served": 3,
    "a transaction reaches a slow reader torn": 26,
    "closing waits for ever": 40,
    "a server goes on with a damaged log": 1673,
    "rolled back unnoticed": 314,
    "places stay closed": 11,
    "ended readers go unnoticed": 11,
    "brokers are left for good": 23,
    "places change once": 3,
    "stations do not watch logs": 27,
    "stations ignore refusals": 27,
    "clients do not ask for logs": 487,
    "read places are forgotten": 164,
    "small errors of the clock stay": 29,
    "suspensions stop the clock": 155,
    "silence goes unnoticed": 58,
    "leaving trusts silent connections": 1025,
    "servers keep silent clients": 97,
    "leaving swallows cancellations": 7,
    "a cancelled block stays connected": 7,
    "clients give up slow accepts": 153,
    "every user may read": 32,
    "every user may read, causal": 42,
    "prefixes match their parent": 30,
    "every user may by content": 10,
    "plans act for other users": 32,
    "missed events go unreported": 58,
    "the past has a gap": 0,
    "left timers, operations": 0,
    "gone content sessions stay": 8,
    "closed content stays": 4,
    "content settled when sent": 10,
    "clients leave silently": 1,
    "nodes end too early": 1,
    "a failed session waits on": 23,
    "broker answers early": 15,
    "torn tails stay": 39,
    "headers are dropped": 11,
    "headers are dropped, causal": 40,
    "unread events count": 10,
    "late events go uncounted": 10,
    "late events are dropped all the same": 174,
    "tokens are not observed": 44,
    "tokens cover nothing": 44,
    "advertisements stay": 11,
    "transactions keep advertisements": 11,
    "advertisements are withdrawn twice": 11,
    "plans keep subscriptions": 11,
    "plans keep advertisements": 23,
    "blocks of a plan come first": 11,
    "content acknowledges by itself": 11,
    "gaps are waited for": 12,
    "late events are dropped": 12,
    "time to live is ignored": 78,
    "events in vain reach the application": 0,
    "numbers become text": 0,
    "a publisher forgets an attribute": 0,
    "an event in vain takes a position": 0,
}
"""By bug: a seed that finds it, and finds nothing without it."""

_COMMON = (*DEFECTS, *CLIENT, *SERVER, *JOURNAL, *TRANSPORTS, *BROKERS, *LEAKS, *OPERATIONS)
_ALL = (*_COMMON, *CALLS, *RARE, *DURABLE, *CELLS, *NONCAUSAL)
MUTANTS = (
    *(msgspec.structs.replace(each, hint=SEEDS[each.name]) for each in _ALL if each.name in SEEDS),
    *(Mutant(*each) for each in (*MANY, *MOVES, *TOPICS, *FORGERIES)),
    *(Mutant(*each) for each in (*mailbox_mutants.BUGS, *content_mutants.BUGS)),
)
UNFOUND = tuple(each for each in _ALL if each.name not in SEEDS)
"""Bugs that no program reaches yet, or that harm nothing that is judged."""


class BrokenMutant(Exception):
    """A mutant that fails by its own code, not by its bug."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Put a mistake into the production code; raise `BrokenMutant` if it no longer fits that."""
    broken: list[str] = []
    with ExitStack() as stack:
        for target, name, value in mutant.patches:
            checked = _checked(value, broken)
            if isinstance(target, str):
                stack.enter_context(mock.patch(f"{target}.{name}", checked))
            else:
                stack.enter_context(mock.patch.object(target, name, checked))
        yield
    if broken:
        raise BrokenMutant(f"mutant is broken: {mutant.name!r} raised {broken[0]}")


def _checked(value: Any, broken: list[str]) -> Any:
    """Return a replacement; note errors of its own code, which production code may catch."""
    if isinstance(value, property):
        return property(_checked(value.fget, broken))
    if not inspect.isfunction(value):
        return value

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except OUTDATED as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            if TESTS in Path(place.filename).parents:
                broken.append(f"{error!r} ({place.filename}:{place.lineno})")
            raise

    @wraps(value)
    def call(*arguments: Any, **options: Any) -> Any:
        with noted():
            return value(*arguments, **options)

    @wraps(value)
    async def run(*arguments: Any, **options: Any) -> Any:
        with noted():
            return await value(*arguments, **options)

    @wraps(value)
    def iterate(*arguments: Any, **options: Any) -> Any:
        with noted():
            return (yield from value(*arguments, **options))

    if inspect.isgeneratorfunction(value):
        return iterate
    return run if inspect.iscoroutinefunction(value) else call


def played(seed: int, order: str) -> str:
    """Return what a seed finds wrong; empty: nothing."""
    problems = run(draw(seed, order)).problems
    return problems[0] if problems else ""


def found_by(mutant: Mutant, seed: int) -> str:
    """Return what a seed finds wrong with a mistake planted; empty: nothing."""
    with planted(mutant):
        return played(seed, mutant.order)


def find(mutant: Mutant, seeds: Iterable[int]) -> int | None:
    """Return the first seed that finds a mistake."""
    return next((seed for seed in seeds if found_by(mutant, seed)), None)


def main() -> None:
    """Print which mistakes are found."""
    parser = argparse.ArgumentParser(description="Plant bugs for the swarm of the whole stack.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--search", action="store_true", help="search the first seed that finds it")
    parser.add_argument("--seeds", default=f"0:{SEEDS_MAX}")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    for mutant in (*MUTANTS, *(UNFOUND if options.search else ())):
        if options.names and mutant.name not in options.names:
            continue
        seeds = range(first, last) if options.search else [mutant.hint]
        seed = find(mutant, seeds)
        why = "" if seed is None else found_by(mutant, seed).splitlines()[0][:150]
        sys.stdout.write(f"{mutant.name} ({mutant.order}): {seed} {why}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
