"""The published rules that the errata correct, literally; each replaces one of ours."""

from typing import Any

import msgspec

from ensue.protocols.content.broker import ContentBroker
from ensue.protocols.content.filters.filter import Box, Filter
from ensue.protocols.content.filters.index import MatchIndex
from ensue.protocols.content.filters.spaces import intersection
from ensue.protocols.content.frames import Done, Publication, Stepped
from ensue.protocols.content.steps import Pending, Steps
from ensue.protocols.content.tables import Layer, Tables, TablesRecord
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.compensation import Compensation
from ensue.protocols.transactions.contexts import Context, Issued, Logged, replay, run
from ensue.protocols.transactions.plans import Plans
from ensue.protocols.transactions.two_phase_commit import TwoPhaseCommit


class _NoAnswerFromLeaves(Steps):
    def settle(self, pending: Pending) -> None:
        if not pending.waiting and pending.transaction:
            self.pending[-1 - len(self.pending)] = pending
            return
        super().settle(pending)


class NoAnswerFromLeaves(TransactionBroker):
    """D1: acknowledge only with destinations and triggered operations. A leaf has neither."""

    steps_type = _NoAnswerFromLeaves


def own_tables_against_committed_ones(self: Context, tables: Tables) -> str:
    """D3: compare the routing by the transaction's tables with that by the committed ones."""
    for logged in self.log:
        if logged.publication is not None:
            mine = run(self.tables, logged)
            theirs = run(Layer(tables).tables, logged)
            if (mine.neighbors, mine.clients) != (theirs.neighbors, theirs.clients):
                return "conflict"
    return ""


def publications_alone(step: Logged) -> object:
    """D4: only publications are compared."""
    return step.neighbors, step.clients


class _WaitsForEarlierNames(TwoPhaseCommit):
    def new_name(self) -> str:
        """Return names in any order, those of b2 first, whatever a home knows."""
        self.last_number += 1
        name = self._state.name
        first = 9 - int(name[1:])
        return f"{first:05d}{self.last_number:05d}-{name}"

    def open(self, frame: Any, source: str) -> None:
        mine = self.last_number
        super().open(frame, source)
        self.last_number = mine

    def conflicting(self, name: str, context: Context) -> list[str]:
        """Return earlier transactions that are known here."""
        return [its for its, other in self.contexts.items() if its < name]


class WaitsForEarlierNames(TransactionBroker):
    """D5: a vote waits for transactions with smaller names, if this broker has heard of them."""

    commit_type = _WaitsForEarlierNames


class _ParkedForever(TwoPhaseCommit):
    def prepare_parked(self, now_ns: int) -> None:
        """Do nothing."""


class ParkedForever(TransactionBroker):
    """D7: no line resumes a paused prepare."""

    commit_type = _ParkedForever


class _RoutedByLocalTables(ContentBroker):
    def publish(self, publication: Publication, hop: str, seen: dict[str, int]) -> None:
        super().publish(publication, hop, self._state.seen())


class RoutedByLocalTables(TransactionBroker):
    """D8: each broker routes a regular publication by its current tables."""

    content_type = _RoutedByLocalTables


def only_what_matched_nothing(self: Tables, promised: Filter) -> list[str]:
    """D9: an advertisement attracts only subscriptions buffered because they matched nothing."""
    return [
        name
        for name in WANTING(self, promised)
        if not any(name in passed for passed in self.passed.values())
    ]


WANTING = Tables._wanting


class _NothingIsUndone(Compensation):
    def undo(self, issued: list[Issued]) -> None:
        """Do nothing."""


class NothingIsUndone(TransactionBroker):
    """D-TX_NI does not define aborts."""

    compensation_type = _NothingIsUndone


class _EchoesAreNotAwaited(Plans):
    def process(self, name: str, plan: Any, operation: Any) -> None:
        super().process(name, plan, operation)
        if plan.echoes.pop(operation.path, None):
            self.processed(name, plan, operation.path)


class EchoesAreNotAwaited(TransactionBroker):
    """S5: an advertisement counts as processed at once."""

    plans_type = _EchoesAreNotAwaited


class _CompensatedInTheSameOrder(Compensation):
    def undo(self, issued: list[Issued]) -> None:
        super().undo(issued[::-1])


class CompensatedInTheSameOrder(TransactionBroker):
    """S6: compensating operations are processed in the order of the original ones."""

    compensation_type = _CompensatedInTheSameOrder


class _WaitsForNoOtherPlan(Plans):
    def waits_for_another(self, name: str, operation: Any) -> bool:
        return False

    def refusal(self, operation: Any) -> str:
        """Nor must it exist."""
        return ""


class WaitsForNoOtherPlan(TransactionBroker):
    """S7: an unsubscription is processed whatever another plan has yet to do."""

    plans_type = _WaitsForNoOtherPlan


class _OnlySubscriptionsAreAwaited(Plans):
    def start(self, frame: Any, source: str, now_ns: int) -> None:
        kinds = {one.path: one.change.action if one.change else "pub" for one in frame.operations}
        before: dict[str, tuple[str, ...]] = {}
        paths: list[str] = []
        for one in frame.operations:
            before[one.path] = tuple(path for path in paths if kinds[path] in ("sub", "usub"))
            paths.append(one.path)
        loose = tuple(
            msgspec.structs.replace(one, after=before[one.path]) for one in frame.operations
        )
        super().start(msgspec.structs.replace(frame, operations=loose), source, now_ns)


class OnlySubscriptionsAreAwaited(TransactionBroker):
    """S3: an unsubscription does not wait for the publication before it."""

    plans_type = _OnlySubscriptionsAreAwaited


class _AnswersWhereSubscriptionsCameFrom(Steps):
    contexts: dict[str, Context]
    """Those of the broker, set when it is built."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._origins: dict[int, list[str]] = {}

    def cause(
        self, pending: Pending, neighbor: str, changes: Any = (), *rest: Any, **options: Any
    ) -> None:
        super().cause(pending, neighbor, changes, *rest, **options)
        if pending.transaction and neighbor == pending.hop:
            tables = self.contexts[pending.transaction].tables
            self._origins[self.last_number] = [
                tables.subscriptions[one.name].hop for one in changes
            ]

    def finish(self, number: int, refused: str, reached: int = 0) -> None:
        super().finish(number, refused, reached)
        for origin in self._origins.pop(number, ()):
            if origin in self._state.neighbors:
                self._state.send(origin, Stepped(number=number, refused=refused))
            else:
                self._state.send(origin, Done(number=number, refused=refused))


class AnswersWhereSubscriptionsCameFrom(TransactionBroker):
    """D2: the answer to an attracted subscription also goes to the original sender of it."""

    steps_type = _AnswersWhereSubscriptionsCameFrom

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        assert isinstance(self.steps, _AnswersWhereSubscriptionsCameFrom)
        self.steps.contexts = self.commit.contexts


class _WaitsForNothingTriggered(Steps):
    def settle(self, pending: Pending) -> None:
        if pending.transaction:
            pending.waiting = [
                number
                for number in pending.waiting
                if self.under_way.get(number, ("", []))[0] != pending.hop
            ]
        super().settle(pending)


class WaitsForNothingTriggered(TransactionBroker):
    """D2b: an operation is answered before the operations it triggered."""

    steps_type = _WaitsForNothingTriggered


class _ReplacesItsTables(TwoPhaseCommit):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.copies: dict[str, TablesRecord] = {}

    def terminate(self, frame: Any, now_ns: int) -> None:
        state, name = self._state, frame.transaction
        context = self.contexts.get(name)
        if frame.commit and context is not None and context.isolated:
            state.tables = Tables(state.neighbors, self.copies[name])
        super().terminate(frame, now_ns)


class ReplacesItsTables(TransactionBroker):
    """D6: the tables of a transaction, a copy made at its start, replace the committed ones."""

    commit_type = _ReplacesItsTables

    def handle(self, frame: Any, source: str, now_ns: int) -> None:
        super().handle(frame, source, now_ns)
        assert isinstance(self.commit, _ReplacesItsTables)
        for name in self.commit.contexts:
            self.commit.copies.setdefault(name, self.tables.record())


def union_of_both_tables(
    log: list[Logged], tables: Tables
) -> tuple[list[Logged], list[str], dict[str, Any]]:
    """D6: the union of both tables, so that nothing is removed."""
    kept = [
        msgspec.structs.replace(
            step, changes=tuple(one for one in step.changes if one.action in ("sub", "adv"))
        )
        for step in log
    ]
    return replay(kept, tables)


def all_that_overlap(self: MatchIndex, wanted: Filter) -> list[str]:
    """Replace the index by a loop over `Filter.overlaps`."""
    return [key for key, held in self._filters.items() if held.overlaps(wanted)]


def any_that_overlaps(self: MatchIndex, wanted: Filter) -> bool:
    """Replace the index by a loop over `Filter.overlaps`."""
    return any(held.overlaps(wanted) for held in self._filters.values())


def one_attribute_is_enough(self: Filter, other: Filter) -> bool:
    """Definition 1 (D10): predicates of one attribute overlap; an absent one may have any value."""

    def meet(one: Box, two: Box) -> bool:
        mine, its = dict(one), dict(two)
        return (
            not mine
            or not its
            or any(
                name not in mine or name not in its or bool(intersection(mine[name], its[name]))
                for name in {*mine, *its}
            )
        )

    return any(meet(one, two) for one in self.boxes for two in other.boxes)
