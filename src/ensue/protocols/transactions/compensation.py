"""Compensation: undoing the changes of aborted transactions without isolation, and of plans.

The home of each client that acted undoes its own clients' changes, last one first (S6), as regular
operations. Restoring old table entries instead would undo changes of others.

An open transaction may restore a subscription that it withdrew, so the subscription has not ended
yet, and must get the events of transactions that commit meanwhile (`still_owed`).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ensue.protocols.content.broker import ContentBroker
from ensue.protocols.content.frames import UNSUBSCRIBE, Change
from ensue.protocols.content.refusals import INVERSE
from ensue.protocols.content.state import BrokerState
from ensue.protocols.transactions.contexts import Context, Delivery, Issued
from ensue.protocols.transactions.records import Plan

__all__ = ["Compensation"]

_INVERSE = {**INVERSE, **{after: before for before, after in INVERSE.items()}}


class Compensation:
    """Undoes changes that clients of one broker made."""

    def __init__(
        self,
        state: BrokerState,
        content: ContentBroker,
        contexts: Mapping[str, Context],
        plans: Mapping[str, Plan],
    ) -> None:
        self._state = state
        self._content = content
        self._contexts = contexts
        self._plans = plans

    def undo(self, issued: list[Issued]) -> None:
        """Undo changes of clients of this broker, last one first, as regular operations."""
        for one in reversed(issued):
            change, before = one.change, one.before
            if one.client not in self._state.clients:
                continue
            if change.action in INVERSE:
                withdrawal = Change(INVERSE[change.action], change.name)
                self._content.change((withdrawal,), one.client)
                # A transaction that withdrew it meanwhile must not restore it.
                self.keep_withdrawn([Issued(one.client, withdrawal, None)])
            elif before is not None and not self._leave_to_another(one):
                restored = Change(_INVERSE[change.action], change.name, before.where)
                self._content.change((restored,), one.client)

    def withdraw(self, issued: list[Issued]) -> None:
        """Withdraw what was committed for clients that left after the vote."""
        for one in issued:
            if one.client not in self._state.clients and one.change.action in INVERSE:
                withdrawal = Change(INVERSE[one.change.action], one.change.name)
                self._content.change((withdrawal,), one.client)

    def keep_withdrawn(self, committed: list[Issued]) -> None:
        """Keep open transactions from restoring what a committed one withdrew too."""
        names = {
            (one.change.action, one.change.name)
            for one in committed
            if one.change.action not in INVERSE
        }
        if not names:
            return
        for issued in self._open():
            if any((one.change.action, one.change.name) in names for one in issued):
                issued[:] = [
                    one for one in issued if (one.change.action, one.change.name) not in names
                ]

    def still_owed(self, deliveries: list[Delivery], own: Iterable[str] = ()) -> list[Delivery]:
        """Drop subscriptions that have ended since the events matched them.

        Their clients expect no more events. A withdrawn subscription ends with its transaction, and
        not before the last event that older versions route to it. `own` are subscriptions that the
        transaction of the events makes or withdraws.
        """
        held, kept = self._state.tables.subscriptions, self._withdrawn() | set(own)
        found = []
        for one in deliveries:
            names = tuple(name for name in one.subscriptions if name in held or name in kept)
            if names:
                found.append(msgspec.structs.replace(one, subscriptions=names))
        return found

    def ended(self, names: Iterable[str]) -> set[str]:
        """Return subscriptions that have ended and whose clients get no `Withdrawn` for them."""
        withdrawn = self._withdrawn()
        held = self._state.tables.subscriptions
        return {name for name in names if name not in held and name not in withdrawn}

    def _withdrawn(self) -> set[str]:
        """Return withdrawn subscriptions whose end was not reported to their clients yet."""
        withdrawn: set[str] = set()
        for issued in self._open():
            withdrawn.update(one.change.name for one in issued if one.change.action == UNSUBSCRIBE)
        for undo in self._state.undos:
            withdrawn.update(*undo.withdrawn.values())
        return withdrawn

    def _leave_to_another(self, undone: Issued) -> bool:
        """Assign a withdrawal to an open transaction that requested it after it was done."""
        for issued in self._open():
            for at, one in enumerate(issued):
                if one.change == undone.change and one.before is None:
                    issued[at] = undone
                    return True
        return False

    def _open(self) -> Iterator[list[Issued]]:
        """Yield the changes of each open transaction that works on the shared tables."""
        for context in self._contexts.values():
            if not context.isolated:
                yield context.issued
        yield from (plan.issued for plan in self._plans.values() if plan.issued)
