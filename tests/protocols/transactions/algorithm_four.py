"""Algorithm 4 as it is published, with a switch for each of its faults.

It has no markers: an operation goes only where it is forwarded, and a broker waits for those of the operations before it that it takes for *satisfiable*: it
will see them, as its tables and the way to their clients say. As in the paper, no subscription covers another. The rest is the broker that we
have, which floods a plan ahead, so that everybody knows the operations, their clients and their filters.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.filters import Filter
from ensue.protocols.overlay.parsing import parse
from ensue.protocols.overlay.tables import Entry, Tables
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.planner import TransactionBroker
from ensue.protocols.transactions.plans import Plan


class Endless(Exception):
    """Something is processed again and again."""


class _Plain(Tables):
    """Nothing is covered."""

    filters: ClassVar[dict[str, str]] = {}
    """Of all subscriptions: a dependency on an unsubscription says what it is about, our plans do not."""

    def _put(self, name: str, entry: Entry) -> None:
        super()._put(name, entry)
        self.filters[name] = entry.where

    def _coverer(self, name: str, wanted: Filter, neighbour: str) -> str:
        return ""


class AlgorithmFour(TransactionBroker):
    """As the errata correct it up to S3; what is left is S4."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tables = _Plain(self.neighbours)

    def _send(self, peer: str, frame: Frame) -> None:
        if not (isinstance(frame, t.Ordered) and not frame.whole):
            super()._send(peer, frame)

    def _advance(self, name: str, now_ns: int) -> None:
        del name, now_ns
        self._blocked = dict.fromkeys(self._plans)  # Whatever waits, waits in one of them.
        progress = True
        while progress:
            progress = False
            for each, plan in list(self._plans.items()):
                for path, operation in plan.operations.items():
                    if path in plan.arrived and path not in plan.started:
                        before = set(self._satisfiable(plan, path))
                        if before <= plan.processed.keys() and not self._waits_for_another(
                            each, operation
                        ):
                            self._process(each, plan, operation)
                            progress = True
        for each in list(self._plans):
            self._try_close(each)

    def _try_close(self, name: str) -> None:
        plan = self._plans[name]
        everything, unseen = plan.operations, plan.operations.keys() - plan.started.keys()
        if not unseen & set(self._satisfiable(plan, "")):
            plan.operations = {path: everything[path] for path in plan.started}
        super()._try_close(name)
        plan.operations = everything

    def _satisfiable(self, plan: Plan, path: str) -> Iterator[str]:
        """Yield the operations before one, or all if it has no path, that this broker will see."""
        for before, operation in plan.operations.items():
            if before == path:
                return
            if self._is_satisfiable(plan, operation):
                yield before

    def _is_satisfiable(self, plan: Plan, operation: t.Operation) -> bool:
        change = operation.change
        if operation.home == self.name or (
            change is not None and change.action in (f.ADVERTISE, f.UNADVERTISE)
        ):
            return True
        towards = self._members[operation.client][1]
        later = self._written_behind(plan, operation.path)
        if change is not None:
            where = parse(change.where or _Plain.filters[change.name])
            hops = [
                entry.hop
                for name, entry in self.tables.advertisements.items()
                if name not in later and parse(entry.where).overlaps(where)
            ]
        else:
            assert operation.publication is not None
            hops = [
                self.tables.subscriptions[name].hop
                for name in self.tables.match(operation.publication.attributes)
                if name not in later
            ]
        return any(self._is_on_the_way(hop, towards) for hop in hops)

    def _is_on_the_way(self, hop: str, towards: str) -> bool:
        """Line 36, corrected (S1)."""
        return hop != towards

    @staticmethod
    def _written_behind(plan: Plan, path: str) -> set[str]:
        paths = list(plan.operations)
        later = (plan.operations[one].change for one in paths[paths.index(path) :])
        return {change.name for change in later if change is not None}


class TheSameHop(AlgorithmFour):
    """S1, line 36: `a.lastHop = CRT.get(…)`."""

    def _is_on_the_way(self, hop: str, towards: str) -> bool:
        return hop == towards


class EveryDependency(AlgorithmFour):
    """S2, the last line: `return D`."""

    def _is_satisfiable(self, plan: Plan, operation: t.Operation) -> bool:
        return True


class TheWholeMap(AlgorithmFour):
    """S2, line 24: for all in `succeedMap`, those that have been processed too."""

    def _processed(self, name: str, plan: Plan, path: str) -> None:
        super()._processed(name, plan, path)
        self.turns = getattr(self, "turns", 0) + 1
        if self.turns > 100:
            raise Endless
        for other, operation in list(plan.operations.items()):
            before = set(self._satisfiable(plan, other))
            if other in plan.started and before and before <= plan.processed.keys():
                self._process(name, plan, operation)
