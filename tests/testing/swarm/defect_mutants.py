"""Planted bugs that were made once, and found by trials from outside.

`mutants` merges them with all others, and runs them.
"""

from typing import Any

import msgspec
from tests.testing.swarm.planted import Mutant, Patch, nothing

from ensue.client.bus import Bus
from ensue.client.content import client as content_client
from ensue.client.content import transaction
from ensue.client.content.reader import ContentShare, ReadOptions
from ensue.client.content.session import ContentSession
from ensue.client.shared_node import Share
from ensue.client.subscription import Subscription
from ensue.client.topic_changes import TopicChanges
from ensue.core import clock
from ensue.core.clock import SystemClock
from ensue.journal.files import Files
from ensue.journal.format import event_key
from ensue.journal.journal import Journal
from ensue.journal.recovery import Recovery
from ensue.protocols.content.client import Notified
from ensue.protocols.interface import Send
from ensue.protocols.shared.state_store import Remember, Remembered, StateStore
from ensue.protocols.topic_log.fanout import Agreed, Fanout
from ensue.protocols.total import known_logs
from ensue.protocols.total.frames import Refused
from ensue.protocols.total.station import Station
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.transactions import contexts
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.server import station_builder
from ensue.server.admission import Admission
from ensue.server.content_broker import ContentBroker
from ensue.server.relay_claims import ClaimChecker
from ensue.transports.tcp import carrier

__all__ = ["DEFECTS"]


async def withdraw_at_once(self: Any, subscription: Subscription) -> None:
    """A moved subscription ends with the commit: events routed to it before are dropped."""
    share = transaction.share_of(subscription)
    await self._act("usub", name=share.subscription)
    self._session.when_over(self.name, lambda done: share.withdrawn() if done else None)


def drop_early_events(self: ContentSession, notified: Notified) -> None:
    """Events that come before a plan is committed are dropped: its subscription has no reader."""
    if notified.subscription in self._readers:
        real_session_notified(self, notified)


def go_on_unknown(self: Subscriber, frame: Refused, source: str, now_ns: int) -> None:
    """A subscription goes on at a server that does not know it."""
    if frame.number:
        real_refused(self, frame, source, now_ns)


def keep_for_the_unknown(self: StateStore, source: str, frame: Remember) -> None:
    """A server confirms what it is to remember of a subscription that it does not know."""
    if self.keeps(source):
        real_remember(self, source, frame)
    else:
        self._effects.append(Send(source, Remembered(epoch=frame.epoch, number=frame.number)))


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
    return list(frames), []


def know_any_log(self: Any, name: str, lineage: Any) -> None:
    """A server takes any log of another one for the one it knew."""
    self.logs[name] = lineage


real_notified, real_session_notified = ContentShare.notified, ContentSession._notified
real_refused, real_remember = Subscriber._on_refused, StateStore._remember
real_content_subscribe = content_client.ContentClient.subscribe
real_admission_enter = Admission.admit
real_settle_by = Bus._settle_by

LOST = (("mishap", "lost"), ("servers", 1), ("broker", None))
PLANNED = (("hands_over", True), ("servers", 3), ("kinds", ("planned",)))
GO_ON: Patch = (carrier, "contradiction", lambda *_, **__: "")
"""Buses compare logs first: alone, it lets publishers go on, and others get another error."""
BELIEVE = (
    GO_ON,
    (known_logs, "contradiction", lambda *_, **__: ""),
    (Subscriber, "_on_refused", go_on_unknown),
    (StateStore, "_remember", keep_for_the_unknown),
)

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
    Mutant(
        "a subscription moved by a plan loses events",
        "transactions",
        ((ContentSession, "_notified", drop_early_events),),
        draws=PLANNED,
    ),
    Mutant("clients believe an empty log", "total", BELIEVE, draws=(*LOST, ("durable", 2))),
    Mutant("publishers go on with an empty log", "total", (GO_ON,), draws=LOST),
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
