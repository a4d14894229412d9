"""Every planted bug in content brokers and transactions is found by the swarm within 200 seeds.

A bug is found, as in `test_mutants_total`, if the outcome is invalid, a node is stuck, or a check
in production code fails. The seed that found a bug last time is tried first.
`python -m tests.simulation.swarms.test_mutants_transactions [NAME …]` searches from 0.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from tests.simulation.swarms.planted import CAUGHT, Mutant, Search

from ensue.core.errors import LocalProtocolError
from ensue.protocols.content.broker import ContentBroker
from ensue.protocols.content.client import ContentClient, Notified
from ensue.protocols.content.entries import IndexedEntries
from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.frames import Acknowledge, Attach, Change, Notify, Publication
from ensue.protocols.content.input_log import InputLog
from ensue.protocols.content.mailboxes import Mailbox, Mailboxes
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.steps import Steps
from ensue.protocols.content.tables import Outputs, Tables
from ensue.protocols.interface import Frame, Persist
from ensue.protocols.transactions import contexts, locks, two_phase_commit
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.compensation import Compensation
from ensue.protocols.transactions.contexts import Context, Delivery, Issued, Logged
from ensue.protocols.transactions.frames import Decide, Ordered
from ensue.protocols.transactions.operations import Operations
from ensue.protocols.transactions.plans import Plans
from ensue.protocols.transactions.submissions import Submissions
from ensue.protocols.transactions.two_phase_commit import TwoPhaseCommit, deliver
from ensue.simulation.deployments.base import Roles
from ensue.simulation.seeds import DRAWS

SEEDS_MAX = 200


class _RoutesByItsOwnTables(ContentBroker):
    def publish(self, publication: Publication, hop: str, seen: dict[str, int]) -> None:
        super().publish(publication, hop, self._state.seen())


class RoutesByItsOwnTables(TransactionBroker):
    """A publication during a commit is routed partly by the old tables (D8)."""

    content_type = _RoutesByItsOwnTables


class _HoldsNoLocks(TwoPhaseCommit):
    def conflicting(self, name: str, context: Context) -> list[str]:
        return []


class HoldsNoLocks(TransactionBroker):
    """A vote does not wait for the decision about another transaction that conflicts (D5)."""

    commit_type = _HoldsNoLocks


class _NeverGivesWay(TwoPhaseCommit):
    def conflicting(self, name: str, context: Context) -> list[str]:
        return [its for its in super().conflicting(name, context) if its < name]


class NeverGivesWay(TransactionBroker):
    """A vote does not wait for a later transaction that was voted for and conflicts."""

    commit_type = _NeverGivesWay


class _UnlocksAtTheVote(TwoPhaseCommit):
    def _voted(
        self, name: str, source: str, refused: str, now_ns: int, *, again: bool = False
    ) -> None:
        if source and name in self.contexts:
            self.contexts[name].voted = False
        super()._voted(name, source, refused, now_ns, again=again)


class UnlocksAtTheVote(TransactionBroker):
    """A broker releases its lock when it has voted, before the decision."""

    commit_type = _UnlocksAtTheVote


class _DeliversAtOnce(Operations):
    def perform(
        self,
        context: Context,
        pending: Any,
        hop: str,
        changes: Any,
        publication: Any,
        *,
        awaited: bool,
    ) -> None:
        super().perform(context, pending, hop, changes, publication, awaited=awaited)
        deliver(self._state, pending.transaction, context.deliveries)
        context.deliveries.clear()


class DeliversAtOnce(TransactionBroker):
    """Publications of a transaction don't wait for its commit."""

    operations_type = _DeliversAtOnce


class _NeverUndoes(Compensation):
    def undo(self, issued: list[Issued]) -> None:
        """Do nothing."""


class NeverUndoes(TransactionBroker):
    """An abort leaves the tables as they are (D-TX_NI)."""

    compensation_type = _NeverUndoes


class _UndoesInTheSameOrder(Compensation):
    def undo(self, issued: list[Issued]) -> None:
        super().undo(issued[::-1])


class UndoesInTheSameOrder(TransactionBroker):
    """Compensation runs forwards (S6)."""

    compensation_type = _UndoesInTheSameOrder


class _IgnoresDependencies(Plans):
    def start(self, frame: Any, source: str, now_ns: int) -> None:
        loose = tuple(msgspec.structs.replace(one, after=()) for one in frame.operations)
        super().start(msgspec.structs.replace(frame, operations=loose), source, now_ns)


class IgnoresDependencies(TransactionBroker):
    """Operations of a plan are processed in order of arrival (S3)."""

    plans_type = _IgnoresDependencies


class HasNoDeadlines(TransactionBroker):
    """No transaction of a client that hangs is aborted."""

    def deadline_ns(self) -> int | None:
        return None


class AnswersForNobody(TransactionBroker):
    """The subscriptions of a client that has left stay."""

    def _depart(self, client: str, now_ns: int) -> None:
        self.tables.subscriptions, kept = IndexedEntries(), self.tables.subscriptions
        super()._depart(client, now_ns)
        self.tables.subscriptions = kept


class _ForgetsAtOnce(TwoPhaseCommit):
    def apply(self, context: Context, home: str, number: int) -> None:
        super().apply(context, home, number)
        self._state.undos.clear()


class ForgetsAtOnce(TransactionBroker):
    """Old versions are removed when a commit is applied."""

    commit_type = _ForgetsAtOnce


class _LosesItsDecision(TwoPhaseCommit):
    def spread(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        self.coordinations.pop(name, None)
        number = self._state.commits.get(self._state.name, 0) + 1
        decide = Decide(transaction=name, commit=commit, reason=reason, number=number)
        self.terminate(decide, now_ns)


class LosesItsDecision(TransactionBroker):
    """A coordinator's home decides for itself and sends the decision to no broker."""

    commit_type = _LosesItsDecision


class _CountsAdvertisementsAtOnce(Plans):
    def process(self, name: str, plan: Any, operation: Any) -> None:
        super().process(name, plan, operation)
        if plan.echoes.pop(operation.path, None):
            self.processed(name, plan, operation.path)


class CountsAdvertisementsAtOnce(TransactionBroker):
    """A planned advertisement ends before the subscriptions it attracts arrive (S5)."""

    plans_type = _CountsAdvertisementsAtOnce


class _SendsNoMarkers(BrokerState):
    def send(self, peer: str, frame: Frame) -> None:
        if not (isinstance(frame, Ordered) and not frame.whole):
            super().send(peer, frame)


class SendsNoMarkers(TransactionBroker):
    """No marker replaces an operation that is not forwarded (S4)."""

    state_type = _SendsNoMarkers


class _AnswersInvitationsAtOnce(Operations):
    def pass_invitation(
        self, context: Context, pending: Any, client: str, publication: Publication
    ) -> None:
        super().pass_invitation(context, pending, client, publication)
        _, number = context.invitations.get(pending.path, ("", 0))
        if number:
            self._steps.finish(number, "")


class AnswersInvitationsAtOnce(TransactionBroker):
    """The inviting client continues while the invited client acts (rule trigger star)."""

    operations_type = _AnswersInvitationsAtOnce


class _AnswersStepsAtOnce(Steps):
    contexts: dict[str, Context]
    """Those of the broker, which passes them when it is built."""

    def settle(self, pending: Any) -> None:
        if (
            pending.transaction
            and pending.path not in self.contexts[pending.transaction].invitations
        ):
            pending.waiting = []
        super().settle(pending)


class _HandsContextsOver(TwoPhaseCommit):
    def __init__(
        self,
        state: BrokerState,
        steps: Steps,
        compensation: Compensation,
        contexts: dict[str, Context],
    ) -> None:
        super().__init__(state, steps, compensation, contexts)
        assert isinstance(steps, _AnswersStepsAtOnce)
        steps.contexts = contexts


class AnswersStepsAtOnce(TransactionBroker):
    """An operation is answered before the next brokers have processed it (Definition 6)."""

    steps_type = _AnswersStepsAtOnce
    commit_type = _HandsContextsOver


class _DeliversPlansAtOnce(Plans):
    def process(self, name: str, plan: Any, operation: Any) -> None:
        super().process(name, plan, operation)
        deliver(self._state, name, plan.deliveries)
        plan.deliveries.clear()


class DeliversPlansAtOnce(TransactionBroker):
    """Publications of a plan don't wait until it is closed."""

    plans_type = _DeliversPlansAtOnce


class _KeepsOldVersions(TwoPhaseCommit):
    def forget(self, frame: Any, source: str) -> None:
        """Do nothing."""


class KeepsOldVersions(TransactionBroker):
    """Old versions of the tables are never removed."""

    commit_type = _KeepsOldVersions


class _CommitsNothing(TwoPhaseCommit):
    def apply(self, context: Context, home: str, number: int) -> None:
        context.log.clear()
        super().apply(context, home, number)


class CommitsNothing(TransactionBroker):
    """A commit delivers, but does not change the tables."""

    commit_type = _CommitsNothing


def never_conflicts(self: Context, tables: Tables) -> str:
    """Every vote is yes (D3)."""
    real_conflict(self, tables)
    return ""


def compares_publications_alone(step: Logged) -> object:
    """Changes are not compared (D4)."""
    return step.neighbors, step.clients


def replays_additions_alone(
    log: list[Logged], tables: Tables
) -> tuple[list[Logged], list[str], dict[str, Any]]:
    """The union of both tables: withdrawn entries return (D6)."""
    kept = [
        msgspec.structs.replace(
            step, changes=tuple(one for one in step.changes if one.action in ("sub", "adv"))
        )
        for step in log
    ]
    return real_replay(kept, tables)


def sets_nothing_right(log: list[Logged], done: list[Logged], tables: Tables) -> Outputs:
    """Regular operations and the transaction never learn of each other (D11)."""
    return {}


def lets_the_covered_down(self: Tables, change: Change, outputs: Outputs) -> None:
    """Subscriptions that another one covered are not forwarded when that one ends."""
    for passed in self.passed.values():
        for name in [name for name, its in passed.items() if its == change.name]:
            passed[name] = "nothing"
    real_unsubscribe(self, change, outputs)


def attracts_buffered_alone(self: Tables, promised: Filter) -> list[str]:
    """An advertisement attracts only subscriptions that no neighbor was sent (D9).

    Rare in the swarm: 2 of the first 1,000 seeds find it, 667 and 820.
    """
    return [
        name
        for name in real_wanting(self, promised)
        if not any(name in passed for passed in self.passed.values())
    ]


def keeps_no_journal(self: InputLog, frame: Frame, *, source: str, now_ns: int) -> None:
    """A restarted node knows only its last stored state."""
    real_take(self, frame, source=source, now_ns=now_ns)
    self._effects.pending = [
        effect
        for effect in self._effects.pending
        if not (isinstance(effect, Persist) and effect.key.startswith("journal/"))
    ]


def invites_at_one_path(
    self: Any, context: Any, pending: Any, client: str, publication: Any, path: str, names: Any = ()
) -> None:
    """All recipients of an invitation by content act at the same place."""
    path = f"{path.partition('.0.')[0]}.0.1" if names else path
    real_invite_here(self, context, pending, client, publication, path, names)


def invites_without_waiting(
    self: Any, context: Any, pending: Any, client: str, publication: Any, path: str, names: Any = ()
) -> None:
    """The inviting client continues while clients that it found act (rule trigger star)."""
    real_invite_here(self, context, pending, client, publication, path, names)
    _, number = context.invitations.get(path, ("", 0))
    if names and number:
        pending.waiting.remove(number)


def lets_plans_wait(self: Submissions, now_ns: int) -> None:
    """A plan that its client does not decide about stays open."""


def delivers_to_the_ended(
    self: Compensation, deliveries: list[Delivery], own: Iterable[str] = ()
) -> list[Delivery]:
    """A commit delivers to subscriptions that ended after the events had matched them."""
    return deliveries


def delivers_to_none_it_withdraws(
    self: Compensation, deliveries: list[Delivery], own: Iterable[str] = ()
) -> list[Delivery]:
    """A commit delivers to no subscription that it withdraws or makes itself."""
    return real_still_owed(self, deliveries)


real_still_owed = Compensation.still_owed
real_invite_here = Operations._invite_here
real_conflict = Context.conflict
real_replay, real_unsubscribe = contexts.replay, Tables._unsubscribe
real_wanting, real_take = Tables._wanting, InputLog.take


def attaches_after_the_sent(self: Mailboxes, name: str, frame: Attach, reader: str) -> None:
    """Events that an earlier reader had are not delivered again."""
    mailbox = self.open[name]
    kept, mailbox.kept = mailbox.kept, mailbox.kept[mailbox.seen - mailbox.acknowledged :]
    mailbox.acknowledged += len(kept) - len(mailbox.kept)
    real_attach(self, name, frame, reader)


def drops_nothing(self: Mailboxes, name: str, position: int) -> None:
    """Acknowledged events stay, and the window moves."""
    self.open[name].window += 1
    self._push(name, self.open[name])


def journals_no_acknowledgements(self: InputLog, frame: Frame, *, source: str, now_ns: int) -> None:
    """A broker that restarts delivers acknowledged events again."""
    if isinstance(frame, Acknowledge) and source:
        self._handle(frame, source, now_ns)
    else:
        real_take(self, frame, source=source, now_ns=now_ns)


def keeps_for_readers_alone(
    self: Mailboxes, name: str, mailbox: Mailbox, frames: Sequence[Notify]
) -> None:
    """Events that come while no client reads are lost."""
    if mailbox.reader:
        real_keep(self, name, mailbox, frames)


def delivers_where_none_subscribed(self: ContentClient, frame: Notify) -> None:
    """Events of a transaction reach a subscription that was never made, too."""
    real_notify(self, frame)
    if frame.transaction:
        names = tuple(f"{name}0" for name in frame.subscriptions)
        stray = Notified(frame.publication, names[0], 1, frame.transaction, frame.path)
        self._effects.notify(None, **stray.row("delivered", 1))


def makes_under_one_name(self: Mailboxes, name: str, frame: Attach) -> Mailbox:
    """A mailbox that is made again gets events that were published for the earlier one."""
    self.made, made = 0, self.made
    try:
        return real_make(self, name, frame)
    finally:
        self.made = made + 1


real_notify, real_make = ContentClient.notify, Mailboxes.make
real_attach, real_keep = Mailboxes.attach, Mailboxes._keep
real_take = InputLog.take

MUTANTS = (
    Mutant("routes by its own tables", 272, Roles(broker=RoutesByItsOwnTables)),
    Mutant("holds no locks", 18, Roles(broker=HoldsNoLocks)),
    Mutant("never gives way", 18, Roles(broker=NeverGivesWay)),
    Mutant("unlocks at the vote", 32, Roles(broker=UnlocksAtTheVote)),
    Mutant(
        "locks no published events", 118, patches=((locks, "_events", lambda _context: iter(())),)
    ),
    Mutant("delivers at once", 0, Roles(broker=DeliversAtOnce)),
    Mutant("never undoes", 1, Roles(broker=NeverUndoes)),
    Mutant("undoes in the same order", 4, Roles(broker=UndoesInTheSameOrder)),
    Mutant("ignores dependencies", 4, Roles(broker=IgnoresDependencies)),
    Mutant("has no deadlines", 13, Roles(broker=HasNoDeadlines)),
    Mutant("answers for nobody", 8, Roles(broker=AnswersForNobody)),
    Mutant("forgets at once", 272, Roles(broker=ForgetsAtOnce)),
    Mutant("loses its decision", 0, Roles(broker=LosesItsDecision)),
    Mutant("counts advertisements at once", 34, Roles(broker=CountsAdvertisementsAtOnce)),
    Mutant("sends no markers", 4, Roles(broker=SendsNoMarkers)),
    Mutant("answers invitations at once", 1, Roles(broker=AnswersInvitationsAtOnce)),
    Mutant("answers steps at once", 1, Roles(broker=AnswersStepsAtOnce)),
    Mutant("delivers plans at once", 15, Roles(broker=DeliversPlansAtOnce)),
    Mutant("keeps old versions", 1, Roles(broker=KeepsOldVersions)),
    Mutant("commits nothing", 1, Roles(broker=CommitsNothing)),
    Mutant("never conflicts", 13, patches=((Context, "conflict", never_conflicts),)),
    Mutant(
        "compares publications alone",
        24,
        patches=(
            (contexts, "_comparable", compares_publications_alone),
            (two_phase_commit, "fixes", sets_nothing_right),
        ),
    ),
    Mutant(
        "replays additions alone",
        1,
        patches=((two_phase_commit, "replay", replays_additions_alone),),
    ),
    Mutant("lets the covered down", 4, patches=((Tables, "_unsubscribe", lets_the_covered_down),)),
    Mutant(
        "attracts buffered alone", 667, patches=((Tables, "_wanting", attracts_buffered_alone),)
    ),
    Mutant(
        "recipients share a path", 1, patches=((Operations, "_invite_here", invites_at_one_path),)
    ),
    Mutant(
        "recipients are not awaited",
        7,
        patches=((Operations, "_invite_here", invites_without_waiting),),
    ),
    Mutant("held plans never end", 15, patches=((Submissions, "tick", lets_plans_wait),)),
    Mutant(
        "delivers to the ended", 15, patches=((Compensation, "still_owed", delivers_to_the_ended),)
    ),
    Mutant(
        "delivers to none it withdraws",
        5,
        patches=((Compensation, "still_owed", delivers_to_none_it_withdraws),),
    ),
    Mutant("keeps no journal", 3, patches=((InputLog, "take", keeps_no_journal),)),
    Mutant(
        "mailboxes skip what was sent",
        173,
        patches=((Mailboxes, "attach", attaches_after_the_sent),),
    ),
    Mutant("mailboxes forget acks", 2, patches=((Mailboxes, "acknowledge", drops_nothing),)),
    Mutant(
        "acks are not journaled", 564, patches=((InputLog, "take", journals_no_acknowledgements),)
    ),
    Mutant("mailboxes need readers", 1, patches=((Mailboxes, "_keep", keeps_for_readers_alone),)),
    Mutant(
        "delivers where none subscribed",
        1,
        patches=((ContentClient, "notify", delivers_where_none_subscribed),),
    ),
    Mutant("mailboxes keep names", 194, patches=((Mailboxes, "make", makes_under_one_name),)),
)


SEARCH = Search(DRAWS["transactions"], caught=(*CAUGHT, KeyError, LocalProtocolError))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_swarm_finds_planted_bug(mutant: Mutant) -> None:
    assert SEARCH.first_seed(mutant, [mutant.hint, *range(SEEDS_MAX)]) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX))
