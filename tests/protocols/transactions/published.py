"""The published rules, word for word where the errata say they are wrong; each in the place of the one that we have."""

from typing import Any

from ensue.protocols.overlay.broker import Pending
from ensue.protocols.overlay.frames import Change, Publication
from ensue.protocols.overlay.tables import Outputs, Tables
from ensue.protocols.transactions.contexts import Context, Issued, Logged, run
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


def only_what_matched_nothing(self: Tables, change: Change, hop: str, outputs: Outputs) -> None:
    """D9: an advertisement attracts subscriptions that were buffered because they matched nothing."""
    there = self.subscriptions
    self.subscriptions = {
        name: entry
        for name, entry in there.items()
        if not any(name in passed for passed in self.passed.values())
    }
    ADVERTISE(self, change, hop, outputs)
    self.subscriptions = there


ADVERTISE = Tables._advertise


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


class OnlySubscriptionsAreAwaited(TransactionBroker):
    """S3: an unsubscription does not wait for the publication before it."""

    def _planned(self, frame: Any, source: str, now_ns: int) -> None:
        kinds = {one.path: one.change.action if one.change else "pub" for one in frame.operations}
        before: dict[str, tuple[str, ...]] = {}
        paths: list[str] = []
        for one in frame.operations:
            before[one.path] = tuple(path for path in paths if kinds[path] in ("sub", "usub"))
            paths.append(one.path)
        import msgspec  # noqa: PLC0415 - used here alone

        loose = tuple(
            msgspec.structs.replace(one, after=before[one.path]) for one in frame.operations
        )
        super()._planned(msgspec.structs.replace(frame, operations=loose), source, now_ns)
