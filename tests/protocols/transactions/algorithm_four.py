"""Algorithm 4 as published, with a switch for each of its faults.

It has no markers: an operation goes only where it is forwarded. A broker waits for earlier
operations that are *satisfiable*: it will see them, judging by its tables and the way to their
clients. As in the paper, no subscription covers another. The rest is our broker, which floods a
plan ahead, so that all brokers know the operations, their clients and their filters.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ensue.protocols.content import frames as f
from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.tables import Outputs, Tables
from ensue.protocols.interface import Frame
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.plans import Plans
from ensue.protocols.transactions.records import Plan


class Endless(Exception):
    """An operation is processed again and again."""


class _Plain(Tables):
    """Tables without covering."""

    filters: ClassVar[dict[str, str]] = {}
    """Filters by subscription: dependencies of the paper carry them, our plans do not."""

    def _subscribe(self, change: f.Change, hop: str, outputs: Outputs) -> None:
        super()._subscribe(change, hop, outputs)
        self.filters[change.name] = change.where

    def _coverer(self, name: str, wanted: Filter, neighbor: str) -> str:
        return ""


class _WithoutMarkers(BrokerState):
    def send(self, peer: str, frame: Frame) -> None:
        if not (isinstance(frame, t.Ordered) and not frame.whole):
            super().send(peer, frame)


class Waiting(Plans):
    """Operations wait for earlier ones that are satisfiable at this broker."""

    def advance(self, name: str, now_ns: int) -> None:
        del name, now_ns
        self.blocked = dict.fromkeys(self.open)  # Operations wait in open plans only.
        progress = True
        while progress:
            progress = False
            for each, plan in list(self.open.items()):
                for path, operation in plan.operations.items():
                    if path in plan.arrived and path not in plan.started:
                        before = set(self._satisfiable(plan, path))
                        if before <= plan.processed.keys() and not self.waits_for_another(
                            each, operation
                        ):
                            self.process(each, plan, operation)
                            progress = True
        for each in list(self.open):
            self.try_close(each)

    def try_close(self, name: str) -> None:
        plan = self.open[name]
        everything, unseen = plan.operations, plan.operations.keys() - plan.started.keys()
        if not unseen & set(self._satisfiable(plan, "")):
            plan.operations = {path: everything[path] for path in plan.started}
        super().try_close(name)
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
        if operation.home == self._state.name or (
            change is not None and change.action in (f.ADVERTISE, f.UNADVERTISE)
        ):
            return True
        towards = self._state.members[operation.client][1]
        later = self._written_behind(plan, operation.path)
        if change is not None:
            where = parse(change.where or _Plain.filters[change.name])
            hops = [
                entry.hop
                for name, entry in self._state.tables.advertisements.items()
                if name not in later and parse(entry.where).overlaps(where)
            ]
        else:
            assert operation.publication is not None
            hops = [
                self._state.tables.subscriptions[name].hop
                for name in self._state.tables.match(operation.publication.attributes)
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


class AlgorithmFour(TransactionBroker):
    """As corrected by the errata up to S3; S4 remains."""

    state_type = _WithoutMarkers
    plans_type: type[Plans] = Waiting

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.state.tables = _Plain(self.neighbors)


class _TheSameHop(Waiting):
    def _is_on_the_way(self, hop: str, towards: str) -> bool:
        return hop == towards


class TheSameHop(AlgorithmFour):
    """S1, line 36: `a.lastHop = CRT.get(…)`."""

    plans_type = _TheSameHop


class _EveryDependency(Waiting):
    def _is_satisfiable(self, plan: Plan, operation: t.Operation) -> bool:
        return True


class EveryDependency(AlgorithmFour):
    """S2, the last line: `return D`."""

    plans_type = _EveryDependency


class _TheWholeMap(Waiting):
    def processed(self, name: str, plan: Plan, path: str) -> None:
        super().processed(name, plan, path)
        self.turns = getattr(self, "turns", 0) + 1
        if self.turns > 100:
            raise Endless
        for other, operation in list(plan.operations.items()):
            before = set(self._satisfiable(plan, other))
            if other in plan.started and before and before <= plan.processed.keys():
                self.process(name, plan, operation)


class TheWholeMap(AlgorithmFour):
    """S2, line 24: for all in `succeedMap`, those that have been processed too."""

    plans_type = _TheWholeMap
