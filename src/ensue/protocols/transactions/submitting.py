"""Where plans are handed in: the home of a client that coordinates one judges it, names it, and decides about it.

And the home of a client that has a part in one says what of that can't be done, and numbers what others have the client publish. What a plan is, and how it goes on from there: `planner`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.frames import Change
from ensue.protocols.overlay.refusing import INVERSE, overfull, too_many_transactions, uncovered
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.coordinator import Coordinator
from ensue.protocols.transactions.planning import flaw
from ensue.protocols.transactions.plans import Handed, numbered

__all__ = ["Submitting"]


class Submitting(Coordinator):
    """A broker whose clients hand plans in."""

    def __init__(self, **options: Any) -> None:
        self._handed: dict[str, Handed] = {}
        self._numbers: dict[str, int] = {}
        """By client of this broker: the number of what others had it publish last."""
        super().__init__(**options)

    _HANDLERS: Mapping[type[Frame], str] = {
        **Coordinator._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        t.Submit: "_submit",
    }

    def _planned(self, frame: t.Planned, source: str, now_ns: int) -> None:
        """Begin with a plan."""
        raise NotImplementedError

    def _close(self, frame: t.Close, source: str, now_ns: int) -> None:
        """Take note of the decision about a plan."""
        raise NotImplementedError

    def _submit(self, frame: t.Submit, client: str, now_ns: int) -> None:
        frame = msgspec.structs.replace(
            frame, operations=tuple(self._by_whole_name(one) for one in frame.operations)
        )
        refused = flaw(frame, self.tables, self._members, self.config)
        if not refused and self._coordinated(client) >= self.config.transactions_max:
            refused = too_many_transactions(client, self.config)
        if refused:
            self._send(client, f.Done(number=frame.number, refused=refused))
            return
        name = self._new_name()
        # Of others nobody but their homes knows what is numbered already.
        operations = tuple(
            msgspec.structs.replace(
                one if one.client == client else numbered(one, 0), home=self._members[one.client][0]
            )
            for one in frame.operations
        )
        deadline_ns = now_ns + frame.timeout_ns
        self._handed[name] = Handed(client, frame.number, deadline_ns, decided=not frame.hold)
        self._record(action="began", topic=t.PLANNED, transaction=name)
        self._planned(t.Planned(transaction=name, operations=operations), "", now_ns)
        if frame.hold:
            self._handed[name].number = 0
            self._send(client, f.Done(number=frame.number, transaction=name))
        else:
            self._close(t.Close(transaction=name, commit=True), "", now_ns)

    def _by_whole_name(self, one: t.Operation) -> t.Operation:
        """Return an operation as one of the client that is meant (`acting`)."""
        whole = self._whole_name(one.client)
        if whole == one.client:
            return one
        change, publication = one.change, one.publication
        if change is not None and change.name.startswith(f"{one.client}."):
            own = change.name.removeprefix(one.client)
            change = Change(change.action, f"{whole}{own}", change.where)
        if publication is not None and publication.publisher == one.client:
            publication = msgspec.structs.replace(publication, publisher=whole)
        return msgspec.structs.replace(one, client=whole, change=change, publication=publication)

    def _end(self, frame: t.End, client: str, now_ns: int) -> None:
        handed = self._handed.get(frame.transaction)
        if handed is None or handed.client != client or handed.decided:
            super()._end(frame, client, now_ns)
            return
        handed.number = frame.number
        self._settle_plan(
            frame.transaction, now_ns, commit=frame.commit, reason="" if frame.commit else "aborted"
        )

    def _settle_plan(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        """Decide about a plan that was held."""
        handed = self._handed[name]
        handed.decided = True
        if not commit and handed.number:
            self._answer_handed(name, reason)  # It may take long to undo: nobody has to wait.
        self._close(t.Close(transaction=name, commit=commit, reason=reason), "", now_ns)

    def _coordinated(self, client: str) -> int:
        handed = sum(one.client == client for one in self._handed.values())
        return super()._coordinated(client) + handed

    def _answer_handed(self, name: str, refused: str) -> None:
        handed = self._handed[name]
        if handed.number and handed.client in self._clients:
            done = f.Done(number=handed.number, refused=refused, transaction=name)
            self._send(handed.client, done)
        handed.number = 0

    def _due_ns(self) -> int | None:
        dues = [one.deadline_ns for one in self._handed.values() if not one.decided]
        due_ns = super()._due_ns()
        return min(dues if due_ns is None else [*dues, due_ns], default=None)

    def _tick(self, frame: f.Tick, source: str, now_ns: int) -> None:
        for name, handed in list(self._handed.items()):
            if not handed.decided and handed.deadline_ns <= now_ns:
                self._settle_plan(name, now_ns, commit=False, reason="timeout")
        super()._tick(frame, source, now_ns)

    def _conclude_of(self, client: str, now_ns: int, reason: str, *, but: str = "") -> None:
        super()._conclude_of(client, now_ns, reason, but=but)
        for name, handed in list(self._handed.items()):
            if not handed.decided and handed.client == client:
                self._settle_plan(name, now_ns, commit=False, reason=reason)

    # -- What is planned for clients of this broker ---------------------------------------------

    def _numbered_here(self, operation: t.Operation) -> t.Operation:
        """Return what is planned for a client of this broker; a publication that others planned is given its number."""
        if operation.publication is None or operation.publication.number:
            return operation
        number = self._numbers.get(operation.client, f.PLANNED_FROM) + 1
        self._numbers[operation.client] = number
        return numbered(operation, number)

    def _refusal(self, operation: t.Operation) -> str:
        """Say why a client of this broker can't do what is planned, if so: things are not as the plan was made for."""
        client, change, publication = operation.client, operation.change, operation.publication
        if client not in self._clients:
            return f"{client} is gone"
        if publication is not None:
            return uncovered(publication, client, self.tables, within=True)
        assert change is not None
        held = self.tables.table(change).get(change.name)
        if change.action in INVERSE:
            already = f"there is a {change.name!r} already" if held is not None else ""
            return already or overfull(change, client, self.tables, self.config)
        if held is None:
            return f"there is no {change.name!r}"
        return f"{change.name!r} belongs to somebody else" if held.hop != client else ""
