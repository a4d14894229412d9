"""Planted bugs of the runtime, the server and the registry of members.

`mutants` merges them with all others, and runs them.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.testing.swarm.planted import Mutant, nothing

from ensue.core import platform
from ensue.journal.journal import Journal
from ensue.protocols.causal.reader_inquiries import ReaderInquiries
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.interface import Persist
from ensue.protocols.membership.client import POLL_NS, MembershipClient
from ensue.protocols.membership.registry import Registry
from ensue.runtime.driver import Driver
from ensue.server import content_broker, listener, server, station_builder
from ensue.server.admission import Admission
from ensue.server.authorization import Authorization
from ensue.server.connection import Connection
from ensue.server.content_broker import ContentBroker
from ensue.server.group_commit import GroupCommit
from ensue.server.high_water_marks import HighWaterMarks
from ensue.server.station_server import StationServer

__all__ = ["SERVER"]


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
