"""Steps: operations under way in the tree, and their answers.

An operation is a *step* at its client's home. It causes steps at neighbors, these cause further
ones, and each broker answers a step when all steps that it caused have been answered. So a client
learns when its operation has reached every broker, and transactions keep the order of theirs. A
publication outside of transactions is no step: it is not answered.

A neighbor that has acknowledged nothing for `away_ns` is *away*. A regular step that waits only for
brokers that are away is answered with their names, and once more when they have answered. A
subscription answered so covers no other subscription: its own second answer would not reach the
client of the covered one. Nor does one whose transaction may abort before its step is answered:
the client of the covered one would be refused, too. An advertisement may attract subscriptions of a
broker that is away, or that it has not reached yet: until that broker answers, it is sent all
publications outside of transactions that match the advertisement (`unknowing`). That holds for
regular advertisements, those restored after an abort, and those of atomic transactions.
"""

from collections.abc import Iterable, Sequence

import msgspec

from ensue.protocols.content import frames as f
from ensue.protocols.content.filters.index import MatchIndex
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import Change, Publication, Step, Stepped
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.tables import Outputs, Tables

__all__ = ["Pending", "Steps"]


class Pending(msgspec.Struct, array_like=True):
    """A step that waits for the steps it caused."""

    hop: str = ""
    """Where it came from; empty if from this broker itself."""
    number: int = 0
    """The sender's number of it."""
    transaction: str = ""
    path: str = ""
    waiting: list[int] = msgspec.field(default_factory=list)
    """This broker's numbers of the steps it caused, and of an invitation."""
    refused: str = ""
    advertised: list[str] = msgspec.field(default_factory=list)
    """Advertisements of a client of this broker that it makes, or restores after an abort."""
    answered: bool = False
    """Whether it was answered ahead of brokers that are away."""
    reached: int = 0
    """How many clients an invitation by content has reached, here and behind."""
    logged: int = -1
    """The place of an invitation by content in the log of a serializable transaction."""


class Steps:
    """The steps of one broker that are not answered yet."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.last_number = 0
        self.pending: dict[int, Pending] = {}
        self.causes: dict[int, list[int]] = {}
        """By number of a caused step: the pending steps that wait for it."""
        self.under_way: dict[int, tuple[str, list[str]]] = {}
        """By number of a caused step without an answer: its neighbor, its subscriptions."""
        self.away: dict[str, None] = {}
        """Neighbors that acknowledge nothing."""
        self.partial: dict[int, tuple[str, ...]] = {}
        """By number of a step answered ahead of brokers that are away: those brokers."""
        self.announced: dict[int, tuple[str, list[Change]]] = {}
        """By number of a caused step without an answer: its neighbor, its advertisements."""
        self._unanswered: dict[str, MatchIndex] = {}
        """By neighbor: these advertisements."""
        self._undecided: dict[int, list[str]] = {}
        """By number of a caused step of a transaction, without an answer: its subscriptions."""

    def restore(
        self,
        *,
        last_number: int,
        pending: dict[int, Pending],
        causes: dict[int, list[int]],
        under_way: dict[int, tuple[str, list[str]]],
        away: Iterable[str],
        partial: dict[int, tuple[str, ...]],
        announced: dict[int, tuple[str, list[Change]]],
    ) -> None:
        """Restore the persisted steps."""
        self.last_number, self.pending, self.causes = last_number, pending, causes
        self.under_way, self.away, self.partial = under_way, dict.fromkeys(away), partial
        for number, (neighbor, changes) in announced.items():
            self._announce(number, neighbor, changes)
        for number in under_way:
            if any(key in pending and pending[key].transaction for key in causes.get(number, ())):
                self._undecided[number] = under_way[number][1]
        self._update_partial()

    # -- Causing steps --------------------------------------------------------------------------

    def pass_on(self, outputs: Outputs, pending: Pending) -> None:
        """Cause steps at neighbors, and wait for them."""
        for neighbor in sorted(outputs):
            self.cause(pending, neighbor, tuple(outputs[neighbor]))
        self.settle(pending)

    def cause(
        self,
        pending: Pending,
        neighbor: str,
        changes: tuple[Change, ...] = (),
        publication: Publication | None = None,
        invited: str = "",
        *,
        member: str = "",
        home: str = "",
        shared: bool = False,
        path: str = "",
    ) -> None:
        """Send a neighbor a step that a pending one causes, under its path or another."""
        number = self.wait(pending)
        subscribed = [change.name for change in changes if change.action == f.SUBSCRIBE]
        self.under_way[number] = (neighbor, subscribed)
        if subscribed and pending.transaction:
            self._undecided[number] = subscribed
            self._update_partial()
        advertised = [change for change in changes if change.action == f.ADVERTISE]
        is_visible = shared or not pending.transaction
        if advertised and is_visible and (pending.hop or pending.advertised):
            self._announce(number, neighbor, advertised)
        step = Step(
            number=number,
            transaction=pending.transaction,
            path=path or pending.path,
            changes=changes,
            publication=publication,
            invited=invited,
            member=member,
            home=home,
            shared=shared,
        )
        self._state.send(neighbor, step)

    def send_unanswered(
        self,
        pending: Pending,
        neighbor: str,
        changes: tuple[Change, ...],
        publication: Publication | None,
    ) -> None:
        """Send a neighbor a step that a pending one causes, and that is not answered."""
        step = Step(
            number=0,
            transaction=pending.transaction,
            path=pending.path,
            changes=changes,
            publication=publication,
        )
        self._state.send(neighbor, step)

    def wait(self, pending: Pending) -> int:
        """Return a new number that a pending step waits for."""
        self.last_number += 1
        pending.waiting.append(self.last_number)
        return self.last_number

    def wait_for_coverers(
        self, pending: Pending, changes: Sequence[Change], tables: Tables
    ) -> None:
        """Have a covered subscription wait until its coverer has reached every broker.

        It is not passed on, so it has no step that would report when it is in effect.
        """
        for change in changes:
            if change.action != f.SUBSCRIBE:
                continue
            for number, (neighbor, names) in self.under_way.items():
                coverer = tables.passed[neighbor].get(change.name)
                if coverer and coverer in names:
                    pending.waiting.append(number)

    # -- Answers --------------------------------------------------------------------------------

    def settle(self, pending: Pending) -> None:
        """Answer a step if it waits for nothing; else keep it."""
        if not pending.waiting:
            self.answer(pending)
            return
        self.last_number += 1
        self.pending[self.last_number] = pending
        spreading = dict.fromkeys(pending.advertised, self.last_number)
        self._state.tables.spreading.update(spreading)
        for number in pending.waiting:
            self.causes.setdefault(number, []).append(self.last_number)
        self._answer_ahead(self.last_number)

    def answer(self, pending: Pending, away: tuple[str, ...] = ()) -> None:
        """Answer the client or neighbor that a step came from."""
        number, refused = pending.number, pending.refused
        if pending.reached and pending.hop:
            reached = f.Reached(number=number, refused=refused, clients=pending.reached)
            self._state.send(pending.hop, reached)
        elif pending.hop in self._state.clients:
            if number or not pending.answered:  # A client is welcomed once.
                done = f.Done(number=number, refused=refused, away=away)
                self._state.send(pending.hop, done)
        elif pending.hop and number:
            self._state.send(pending.hop, Stepped(number=number, refused=refused, away=away))

    def stepped(self, frame: Stepped) -> None:
        """Handle a neighbor's answer."""
        if not frame.away:
            self.finish(frame.number, frame.refused)
        elif frame.number in self.under_way:
            self.partial[frame.number] = frame.away
            self._update_partial()
            for key in self.causes.get(frame.number, ()):
                if key in self.pending:
                    self._answer_ahead(key)

    def finish(self, number: int, refused: str, reached: int = 0) -> None:
        """Note that a caused step is complete, and answer the steps that waited for it."""
        self.under_way.pop(number, None)
        self._forget_announced(number)
        names = self._undecided.pop(number, None)
        if self.partial.pop(number, None) is not None or names is not None:
            self._update_partial()
        for key in self.causes.pop(number, ()):
            pending = self.pending.get(key)
            if pending is None:
                continue  # Its transaction has ended.
            pending.waiting.remove(number)
            pending.refused = pending.refused or refused
            pending.reached += reached
            if not pending.waiting:
                self._complete(key, pending)
            else:
                self._answer_ahead(key)

    def _complete(self, key: int, pending: Pending) -> None:
        """Answer a step that waits for nothing more."""
        del self.pending[key]
        spreading = self._state.tables.spreading
        for name in pending.advertised:
            if spreading.get(name) == key:
                del spreading[name]
        self.answer(pending)

    def waiting_for(self, number: int) -> list[Pending]:
        """Return the pending steps that wait for a caused one."""
        keys = self.causes.get(number, ())
        return [self.pending[key] for key in keys if key in self.pending]

    def give_up(self, transaction: str, reason: str) -> None:
        """Answer all steps of a transaction that has ended."""
        for key, pending in list(self.pending.items()):
            if pending.transaction == transaction:
                pending.refused = reason
                self._complete(key, pending)

    def disown(self, hop: str) -> None:
        """Drop the pending answers to a departed client or neighbor."""
        for pending in self.pending.values():
            if pending.hop == hop:
                pending.hop = ""

    def remove_neighbor(self, neighbor: str) -> None:
        """Stop waiting for a neighbor that has left."""
        self.away.pop(neighbor, None)
        self.disown(neighbor)
        for number in [number for number, (to, _) in self.under_way.items() if to == neighbor]:
            self.finish(number, "")

    def acts_within(self, transaction: str, path: str) -> bool:
        """Return whether operations of a client's thread in a transaction are under way.

        `path` is that of the client's invitation; empty for the coordinator.
        """
        return any(
            pending.transaction == transaction
            and pending.hop in self._state.clients
            and pending.path.rpartition(".")[0] == path
            for pending in self.pending.values()
        )

    # -- Brokers that are away ------------------------------------------------------------------

    def note_away(self, neighbor: str) -> None:
        """Answer the steps that wait only for brokers that are away."""
        if neighbor in self._state.neighbors:
            self.away[neighbor] = None
            for key in list(self.pending):
                self._answer_ahead(key)

    def note_back(self, neighbor: str) -> None:
        """Wait for a neighbor again."""
        self.away.pop(neighbor, None)

    def unknowing(self, publication: Publication, hop: str) -> list[str]:
        """Return neighbors that may have subscriptions not yet attracted here.

        They have not answered an advertisement that matches the publication.
        """
        return [
            neighbor
            for neighbor, index in self._unanswered.items()
            if neighbor != hop and index.match(publication.attributes)
        ]

    def _answer_ahead(self, key: int) -> None:
        """Answer a regular step that waits only for brokers that are away.

        It stays pending, and is answered once more when they have answered. Steps of transactions
        wait: transactions need all brokers.
        """
        pending = self.pending[key]
        if pending.answered or pending.transaction or not pending.hop:
            return
        away: dict[str, None] = {}
        for number in pending.waiting:
            neighbor, _ = self.under_way.get(number, ("", []))
            missing = (neighbor,) if neighbor in self.away else self.partial.get(number)
            if missing is None:
                return
            away.update(dict.fromkeys(missing))
        self.answer(pending, tuple(sorted(away)))
        pending.answered = True

    def _update_partial(self) -> None:
        """Mark subscriptions that may not reach every broker: they cover nothing."""
        found = {name for number in self.partial for name in self.under_way[number][1]}
        self._state.tables.partial = found.union(*self._undecided.values())

    def _announce(self, number: int, neighbor: str, changes: list[Change]) -> None:
        self.announced[number] = (neighbor, changes)
        index = self._unanswered.setdefault(neighbor, MatchIndex())
        for change in changes:
            index.add(f"{number}/{change.name}", parse(change.where))

    def _forget_announced(self, number: int) -> None:
        neighbor, changes = self.announced.pop(number, ("", []))
        for change in changes:
            self._unanswered[neighbor].remove(f"{number}/{change.name}")
        if neighbor and not len(self._unanswered[neighbor]):
            del self._unanswered[neighbor]
