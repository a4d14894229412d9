"""Every planted bug in the overlay and its transactions is found by the swarm within 200 seeds.

Found means what it means in `test_mutants`: the outcome is invalid, somebody is stuck, or one of the checks
that production code makes of itself fails. The seed that found a bug last time is tried first.
`python -m tests.simulation.test_mutants_transactions [NAME …]` searches from 0.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest

from ensue.errors import LimitReached, RemoteProtocolError
from ensue.protocols.core import Frame, Persist
from ensue.protocols.overlay.frames import Change, Publication
from ensue.protocols.overlay.journal import Journaled
from ensue.protocols.overlay.tables import Outputs, Tables
from ensue.protocols.transactions import contexts, participant
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.contexts import Context, Issued, Logged
from ensue.protocols.transactions.frames import Ordered
from ensue.protocols.transactions.planner import TransactionBroker
from ensue.simulation.deployment import Roles
from ensue.simulation.families import DRAWS
from ensue.simulation.run import play

SEEDS_MAX = 200
CAUGHT = (AssertionError, LimitReached, RemoteProtocolError, KeyError)


class Mutant(msgspec.Struct, frozen=True):
    """One mistake: a class for a role, or replacements for attributes (target, name, value)."""

    name: str
    hint: int
    """The seed to try first: the first that caught it when last searched."""
    broker: type[TransactionBroker] = TransactionBroker
    client: type[TransactionClient] = TransactionClient
    patches: tuple[tuple[object, str, object], ...] = ()


class RoutesByItsOwnTables(TransactionBroker):
    """A publication that meets a commit is routed half by the old tables (D8)."""

    def _publish(self, publication: Publication, hop: str, version: int) -> None:
        super()._publish(publication, hop, self.version)


class PreparesOutOfTurn(TransactionBroker):
    """A later transaction does not wait for an earlier one."""

    def _is_behind_another(self, name: str, context: Context) -> bool:
        return False


class DeliversAtOnce(TransactionBroker):
    """Publications of a transaction don't wait for its commit."""

    def _within(
        self, context: Context, pending: Any, hop: str, changes: Any, publication: Any
    ) -> None:
        super()._within(context, pending, hop, changes, publication)
        self._deliver(pending.transaction, context.deliveries)
        context.deliveries.clear()


class NeverUndoes(TransactionBroker):
    """An abort leaves the tables as they are (D-TX_NI)."""

    def _undo(self, issued: list[Issued]) -> None:
        """Do nothing."""


class UndoesInTheSameOrder(TransactionBroker):
    """Compensation runs forwards (S6)."""

    def _undo(self, issued: list[Issued]) -> None:
        super()._undo(issued[::-1])


class IgnoresDependencies(TransactionBroker):
    """Operations of a plan are processed as they come (S3)."""

    def _planned(self, frame: Any, source: str, now_ns: int) -> None:
        loose = tuple(msgspec.structs.replace(one, after=()) for one in frame.operations)
        super()._planned(msgspec.structs.replace(frame, operations=loose), source, now_ns)


class HasNoDeadlines(TransactionBroker):
    """Nobody aborts a transaction whose client hangs."""

    def _due_ns(self) -> int | None:
        return None


class AnswersForNobody(TransactionBroker):
    """What a client that is gone had subscribed stays."""

    def _depart(self, client: str, now_ns: int) -> None:
        self.tables.subscriptions, kept = {}, self.tables.subscriptions
        super()._depart(client, now_ns)
        self.tables.subscriptions = kept


class ForgetsAtOnce(TransactionBroker):
    """Old versions are let go when a commit is carried out."""

    def _commit(self, context: Context) -> None:
        super()._commit(context)
        self._undos.clear()


class LosesItsDecision(TransactionBroker):
    """A coordinator's home decides for itself and tells nobody."""

    def _spread(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        self._coordinations.pop(name, None)
        self._terminate(name, commit=commit, reason=reason, now_ns=now_ns)


class CountsAdvertisementsAtOnce(TransactionBroker):
    """A planned advertisement is over before what it attracts has come (S5)."""

    def _process(self, name: str, plan: Any, operation: Any) -> None:
        super()._process(name, plan, operation)
        if plan.echoes.pop(operation.path, None):
            self._processed(name, plan, operation.path)


class SendsNoMarkers(TransactionBroker):
    """Nothing stands for an operation that is not passed on (S4)."""

    def _send(self, peer: str, frame: Frame) -> None:
        if not (isinstance(frame, Ordered) and not frame.whole):
            super()._send(peer, frame)


class AnswersInvitationsAtOnce(TransactionBroker):
    """Whoever invites goes on while the invited client acts (rule trigger star)."""

    def _hand_on(
        self, context: Context, pending: Any, client: str, publication: Publication
    ) -> None:
        super()._hand_on(context, pending, client, publication)
        _, number = context.invitations.get(pending.path, ("", 0))
        if number:
            self._stepped_by(number, "")


class AnswersStepsAtOnce(TransactionBroker):
    """An operation is answered before the brokers behind have processed it (Definition 6)."""

    def _settle(self, pending: Any) -> None:
        if (
            pending.transaction
            and pending.path not in self._contexts[pending.transaction].invitations
        ):
            pending.waiting = []
        super()._settle(pending)


class DeliversPlansAtOnce(TransactionBroker):
    """Publications of a plan don't wait until it is closed."""

    def _process(self, name: str, plan: Any, operation: Any) -> None:
        super()._process(name, plan, operation)
        self._deliver(name, plan.deliveries)
        plan.deliveries.clear()


class KeepsOldVersions(TransactionBroker):
    """Old versions of the tables are never let go."""

    def _forget(self, frame: Any, source: str, now_ns: int) -> None:
        """Do nothing."""


class CommitsNothing(TransactionBroker):
    """A commit delivers, and leaves the tables as they are."""

    def _commit(self, context: Context) -> None:
        context.log.clear()
        super()._commit(context)


def never_conflicts(self: Context, tables: Tables) -> str:
    """Every vote is yes (D3)."""
    return ""


def compares_publications_alone(step: Logged) -> object:
    """Changes are not compared (D4)."""
    return step.neighbours, step.clients


def replays_additions_alone(
    log: list[Logged], tables: Tables
) -> tuple[list[Logged], list[str], dict[str, Any]]:
    """The union of both tables: what was withdrawn comes back (D6)."""
    kept = [
        msgspec.structs.replace(
            step, changes=tuple(one for one in step.changes if one.action in ("sub", "adv"))
        )
        for step in log
    ]
    return real_replay(kept, tables)


def sets_nothing_right(log: list[Logged], done: list[Logged], tables: Tables) -> Outputs:
    """What regular operations and the transaction did not know of each other stays so (D11)."""
    return {}


def lets_the_covered_down(self: Tables, change: Change, outputs: Outputs) -> None:
    """What a subscription covered is not passed on when it goes."""
    for passed in self.passed.values():
        for name in [name for name, its in passed.items() if its == change.name]:
            passed[name] = "nothing"
    real_unsubscribe(self, change, outputs)


def attracts_buffered_alone(self: Tables, change: Change, hop: str, outputs: Outputs) -> None:
    """An advertisement attracts only what was passed on to nobody yet (D9)."""
    there = self.subscriptions
    self.subscriptions = {
        name: entry
        for name, entry in there.items()
        if not any(name in passed for passed in self.passed.values())
    }
    real_advertise(self, change, hop, outputs)
    self.subscriptions = there


def keeps_no_journal(self: Journaled, frame: Frame, *, source: str, now_ns: int) -> None:
    """A node that restarts knows only its last state."""
    real_take(self, frame, source=source, now_ns=now_ns)
    self._effects = [
        effect
        for effect in self._effects
        if not (isinstance(effect, Persist) and effect.key.startswith("journal/"))
    ]


real_replay, real_unsubscribe = contexts.replay, Tables._unsubscribe
real_advertise, real_take = Tables._advertise, Journaled.take

MUTANTS = (
    Mutant("routes by its own tables", 90, RoutesByItsOwnTables),
    Mutant("prepares out of turn", 24, PreparesOutOfTurn),
    Mutant("delivers at once", 0, DeliversAtOnce),
    Mutant("never undoes", 1, NeverUndoes),
    Mutant("undoes in the same order", 4, UndoesInTheSameOrder),
    Mutant("ignores dependencies", 4, IgnoresDependencies),
    Mutant("has no deadlines", 18, HasNoDeadlines),
    Mutant("answers for nobody", 8, AnswersForNobody),
    Mutant("forgets at once", 6, ForgetsAtOnce),
    Mutant("loses its decision", 0, LosesItsDecision),
    Mutant("counts advertisements at once", 15, CountsAdvertisementsAtOnce),
    Mutant("sends no markers", 4, SendsNoMarkers),
    Mutant("answers invitations at once", 1, AnswersInvitationsAtOnce),
    Mutant("answers steps at once", 1, AnswersStepsAtOnce),
    Mutant("delivers plans at once", 15, DeliversPlansAtOnce),
    Mutant("keeps old versions", 1, KeepsOldVersions),
    Mutant("commits nothing", 1, CommitsNothing),
    Mutant("never conflicts", 13, patches=((Context, "conflict", never_conflicts),)),
    Mutant(
        "compares publications alone",
        12,
        patches=(
            (contexts, "_comparable", compares_publications_alone),
            (participant, "fixes", sets_nothing_right),
        ),
    ),
    Mutant(
        "replays additions alone", 1, patches=((participant, "replay", replays_additions_alone),)
    ),
    Mutant("lets the covered down", 4, patches=((Tables, "_unsubscribe", lets_the_covered_down),)),
    Mutant(
        "attracts buffered alone", 1, patches=((Tables, "_advertise", attracts_buffered_alone),)
    ),
    Mutant("keeps no journal", 3, patches=((Journaled, "take", keeps_no_journal),)),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[Roles]:
    with ExitStack() as stack:
        for target, name, value in mutant.patches:
            stack.enter_context(mock.patch.object(target, name, value))
        yield Roles(broker=mutant.broker, overlay_client=mutant.client)


def catches(seed: int, roles: Roles) -> bool:
    try:
        return not play(DRAWS["transactions"](seed), seed, roles=roles).valid
    except CAUGHT:
        return True


def search(mutant: Mutant, first: Iterable[int]) -> int | None:
    with planted(mutant) as roles:
        return next((seed for seed in first if catches(seed, roles)), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_swarm_finds_it(mutant: Mutant) -> None:
    assert search(mutant, [mutant.hint, *range(SEEDS_MAX)]) is not None


if __name__ == "__main__":
    for each in MUTANTS:
        if not sys.argv[1:] or each.name in sys.argv[1:]:
            sys.stdout.write(f"{each.name}: {search(each, range(SEEDS_MAX))}\n")
            sys.stdout.flush()
