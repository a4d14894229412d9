"""The published rules, word for word where the errata say they are wrong; each in the place of the one that we have."""

from typing import Any

import msgspec

from ensue.protocols.overlay.broker import Pending
from ensue.protocols.overlay.filters import Box, Filter
from ensue.protocols.overlay.frames import Done, Publication, Stepped
from ensue.protocols.overlay.index import MatchIndex
from ensue.protocols.overlay.spaces import intersection
from ensue.protocols.overlay.tables import Tables, TablesRecord
from ensue.protocols.transactions.contexts import Context, Issued, Logged, replay, run
from ensue.protocols.transactions.planner import TransactionBroker


class NoAnswerFromLeaves(TransactionBroker):
    """D1: acknowledge at once if there are destinations and triggered operations. A leaf has neither."""

    def _settle(self, pending: Pending) -> None:
        if not pending.waiting and pending.transaction:
            self._steps[-1 - len(self._steps)] = pending
            return
        super()._settle(pending)


def own_tables_against_committed_ones(self: Context, tables: Tables) -> str:
    """D3: a publication's routing under the transaction's tables, compared with that under the committed ones."""
    for logged in self.log:
        if logged.publication is not None:
            mine = run(self.tables, logged)
            theirs = run(tables.layer(), logged)
            if (mine.neighbours, mine.clients) != (theirs.neighbours, theirs.clients):
                return "conflict"
    return ""


def publications_alone(step: Logged) -> object:
    """D4: only publications are looked at."""
    return step.neighbours, step.clients


class NamesInAnyOrder(TransactionBroker):
    """Transactions are ordered by names that say nothing of what was heard of: those of b2 come first."""

    def _new_name(self) -> str:
        self._transactions_numbered += 1
        first = 9 - int(self.name[1:])
        return f"{first:05d}{self._transactions_numbered:05d}-{self.name}"

    def _open(self, frame: Any, source: str, now_ns: int) -> None:
        mine = self._transactions_numbered
        super()._open(frame, source, now_ns)
        self._transactions_numbered = mine


class NoVoteAtTheBeginning(NamesInAnyOrder):
    """D5: whoever gets the initialization registers the transaction."""

    def _cannot_open(self, frame: Any) -> str:
        return ""


class ParkedForEver(TransactionBroker):
    """D7: no line takes a paused prepare out again."""

    def _prepare_parked(self, now_ns: int) -> None:
        """Do nothing."""


class RoutedByWhoeverItMeets(TransactionBroker):
    """D8: each broker routes a regular publication by the tables it has."""

    def _publish(self, publication: Publication, hop: str, version: int) -> None:
        super()._publish(publication, hop, self.version)


def only_what_matched_nothing(self: Tables, promised: Filter) -> list[str]:
    """D9: an advertisement attracts subscriptions that were buffered because they matched nothing."""
    return [
        name
        for name in WANTING(self, promised)
        if not any(name in passed for passed in self.passed.values())
    ]


WANTING = Tables._wanting


class NothingIsUndone(TransactionBroker):
    """D-TX_NI says nothing of an abort."""

    def _undo(self, issued: list[Issued]) -> None:
        """Do nothing."""


class EchoesAreNotAwaited(TransactionBroker):
    """S5: an advertisement counts as processed at once."""

    def _process(self, name: str, plan: Any, operation: Any) -> None:
        super()._process(name, plan, operation)
        if plan.echoes.pop(operation.path, None):
            self._processed(name, plan, operation.path)


class CompensatedInTheSameOrder(TransactionBroker):
    """S6: compensating operations are processed in the order of the original ones."""

    def _undo(self, issued: list[Issued]) -> None:
        super()._undo(issued[::-1])


class WaitsForNoOtherPlan(TransactionBroker):
    """S7: an unsubscription is processed whatever another plan has yet to do."""

    def _waits_for_another(self, name: str, operation: Any) -> bool:
        return False

    def _refusal(self, operation: Any) -> str:
        """Nor does it have to be there."""
        return ""


class OnlySubscriptionsAreAwaited(TransactionBroker):
    """S3: an unsubscription does not wait for the publication before it."""

    def _planned(self, frame: Any, source: str, now_ns: int) -> None:
        kinds = {one.path: one.change.action if one.change else "pub" for one in frame.operations}
        before: dict[str, tuple[str, ...]] = {}
        paths: list[str] = []
        for one in frame.operations:
            before[one.path] = tuple(path for path in paths if kinds[path] in ("sub", "usub"))
            paths.append(one.path)
        loose = tuple(
            msgspec.structs.replace(one, after=before[one.path]) for one in frame.operations
        )
        super()._planned(msgspec.structs.replace(frame, operations=loose), source, now_ns)


class AnswersWhereSubscriptionsCameFrom(TransactionBroker):
    """D2: the answer to an attracted subscription goes, besides, to whoever once sent that subscription."""

    def __init__(self, **options: Any) -> None:
        self._origins: dict[int, list[str]] = {}
        super().__init__(**options)

    def _cause(
        self, pending: Pending, neighbour: str, changes: Any = (), *rest: Any, **options: Any
    ) -> None:
        super()._cause(pending, neighbour, changes, *rest, **options)
        if pending.transaction and neighbour == pending.hop:
            tables = self._contexts[pending.transaction].tables
            self._origins[self._numbered] = [tables.subscriptions[one.name].hop for one in changes]

    def _stepped_by(self, number: int, refused: str) -> None:
        super()._stepped_by(number, refused)
        for origin in self._origins.pop(number, ()):
            if origin in self.neighbours:
                self._send(origin, Stepped(number=number, refused=refused))
            else:
                self._send(origin, Done(number=number, refused=refused))


class WaitsForNothingTriggered(TransactionBroker):
    """D2b: an operation is answered when those it was passed on to have answered, whatever it triggered."""

    def _settle(self, pending: Pending) -> None:
        if pending.transaction:
            pending.waiting = [
                number
                for number in pending.waiting
                if self._under_way.get(number, ("", []))[0] != pending.hop
            ]
        super()._settle(pending)


class ReplacesItsTables(TransactionBroker):
    """D6: the tables of a transaction, which began as a copy, take the place of the committed ones."""

    def __init__(self, **options: Any) -> None:
        self._copies: dict[str, TablesRecord] = {}
        super().__init__(**options)

    def _handle(self, frame: Any, source: str, now_ns: int) -> None:
        super()._handle(frame, source, now_ns)
        for name in self._contexts:
            self._copies.setdefault(name, self.tables.record())

    def _terminate(self, name: str, *, commit: bool, reason: str, now_ns: int) -> None:
        if commit and self._contexts[name].isolated:
            self.tables = Tables(self.neighbours, self._copies[name])
        super()._terminate(name, commit=commit, reason=reason, now_ns=now_ns)


def union_of_both_tables(
    log: list[Logged], tables: Tables
) -> tuple[list[Logged], list[str], dict[str, Any]]:
    """D6: both tables together, so that nothing goes."""
    kept = [
        msgspec.structs.replace(
            step, changes=tuple(one for one in step.changes if one.action in ("sub", "adv"))
        )
        for step in log
    ]
    return replay(kept, tables)


def all_that_overlap(self: MatchIndex, wanted: Filter) -> list[str]:
    """Find by a loop, which asks `Filter.overlaps`, what the index finds by itself."""
    return [key for key, held in self._filters.items() if held.overlaps(wanted)]


def one_attribute_is_enough(self: Filter, other: Filter) -> bool:
    """Definition 1 (D10): there is an attribute whose predicates overlap; one that a filter leaves out may be anything."""

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
