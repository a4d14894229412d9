"""A broker as a participant of serializable and atomic transactions: steps, votes, decisions.

Theory of operation. A transaction is opened at all brokers, its operations are steps as regular ones are (`overlay.broker`), one after the
other, and it ends by two-phase commit. Messages about the transaction as a whole are flooded along the tree, and their answers gathered on the way
back.

*Serializable.* A broker votes twice. When the transaction is opened (D5) it refuses if its tables are not of the version that the transaction
begins with, or if it has voted for one that comes after it; transactions are ordered by version and name. So every broker that takes
part knows of every transaction that comes before any that it votes for. When it is prepared, the broker waits until all transactions
that come before are over here (`parked`, D7), then replays the log (`contexts`) and votes. Publications are held at the brokers of their
recipients until the commit.

*Atomic.* Steps are made on the broker's own tables, seen by everybody at once. An abort is made good by the brokers of the clients that
acted, each its own clients' changes, last one first, as regular operations: putting old entries back would undo what others did.

A decision is flooded ahead of what has to be set right behind it (`contexts.fixes`), so that every neighbour commits first. `Decided` comes back
along the tree behind all publications that were routed by older versions; then `Forget` lets the versions go. Until then events may still come
for a subscription that the transaction withdrew, and must reach its client: the client keeps it until its home says `Withdrawn`, behind the last such event.

HAZARD: a broker that has voted yes and is cut off from the coordinator's home can't decide. Regular traffic does not notice; serializable
transactions that come after it wait, and time out, until the two hear from each other again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.broker import Pending
from ensue.protocols.overlay.frames import ADVERTISE, SUBSCRIBE, UNSUBSCRIBE, Change
from ensue.protocols.overlay.refusing import INVERSE
from ensue.protocols.overlay.versions import Undo
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.acting import OVER, Acting
from ensue.protocols.transactions.contexts import Context, Delivery, Issued, fixes, replay
from ensue.wire import Records

__all__ = ["Gather", "Participant"]

_INVERSE = {**INVERSE, **{after: before for before, after in INVERSE.items()}}


class Gather(msgspec.Struct, array_like=True):
    """Answers of neighbours that are waited for."""

    parent: str
    """Who is answered; empty: this broker asked."""
    waiting: list[str]
    note: int = 0


class ParticipantRecord(msgspec.Struct, array_like=True):
    """What a participant keeps."""

    parked: dict[str, str]
    gathers: dict[str, Gather]
    numbered: int
    besides: bytes
    settling: dict[str, list[str]] = {}


_RECORD = Records[ParticipantRecord](ParticipantRecord)


class Participant(Acting):
    """A broker that takes part in transactions which others coordinate."""

    def __init__(self, **options: Any) -> None:
        self._parked: dict[str, str] = {}
        """Transactions to be prepared that wait for earlier ones, and who asked."""
        self._gathers: dict[str, Gather] = {}
        self._transactions_numbered = 0
        """The largest number of a transaction that was seen: names of new ones come after it."""
        self._settling: dict[str, list[str]] = {}
        """By transaction that is committed here, and not behind some neighbour: its subscriptions."""
        super().__init__(**options)

    @property
    def unanswered_count(self) -> int:
        """How many answers of neighbours about transactions are waited for."""
        return len(self._gathers) + len(self._parked)

    def _dump_transactions(self) -> bytes:
        return _RECORD.encode(
            ParticipantRecord(
                self._parked,
                self._gathers,
                self._transactions_numbered,
                self._dump_more(),
                self._settling,
            )
        )

    def _load_transactions(self, state: bytes) -> None:
        record = _RECORD.decode(state)
        self._parked, self._gathers = record.parked, record.gathers
        self._transactions_numbered, self._settling = record.numbered, record.settling
        self._note_settling()
        self._load_more(record.besides)

    def _dump_more(self) -> bytes:
        return b""

    def _load_more(self, state: bytes) -> None:
        del state

    _HANDLERS: Mapping[type[Frame], str] = {
        **Acting._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        t.Open: "_open",
        t.Opened: "_opened",
        t.Prepare: "_prepare",
        t.Prepared: "_prepared",
        t.Decide: "_decide",
        t.Decided: "_decided",
        t.Forget: "_forget",
    }

    # -- Brokers that come ------------------------------------------------------------------------

    def _adopt(self, frame: f.Adopt, source: str, now_ns: int) -> None:
        super()._adopt(frame, source, now_ns)
        for context in self._contexts.values():
            if context.isolated:
                context.tables.add_neighbour(frame.neighbour)

    def _introduction(self) -> f.Adopted:
        open_here = (
            (name, context.base, context.isolated) for name, context in self._contexts.items()
        )
        return msgspec.structs.replace(
            super()._introduction(),
            numbered=self._transactions_numbered,
            transactions=tuple(open_here),
        )

    def _adopted(self, frame: f.Adopted, source: str, now_ns: int) -> None:
        super()._adopted(frame, source, now_ns)
        self._transactions_numbered = max(self._transactions_numbered, frame.numbered)
        for name, base, isolated in frame.transactions:
            self._contexts[name] = Context(base, self.tables, isolated=isolated)

    def hold_of(self, neighbour: str) -> str:
        """Say what of a neighbour is still there, or which transaction it may be about."""
        found = super().hold_of(neighbour)
        open_here = self.open_transactions
        if not found and open_here:
            return f"transaction {open_here[0]}, which is not over"
        return found or ("an answer about a transaction that is over" if self._gathers else "")

    # -- Gathering answers ----------------------------------------------------------------------

    def _ask_all(self, kind: str, frame: Any, parent: str, note: int = 0) -> bool:
        """Flood a frame away from whoever sent it; return whether somebody has to answer."""
        waiting = [neighbour for neighbour in self.neighbours if neighbour != parent]
        self._flood(frame, but=parent)
        if waiting:
            self._gathers[f"{kind}/{frame.transaction}"] = Gather(parent, waiting, note)
        return bool(waiting)

    def _gathered(self, kind: str, transaction: str, source: str) -> Gather | None:
        """Note an answer; return what was gathered if it was the last."""
        gather = self._gathers.get(f"{kind}/{transaction}")
        if gather is None or source not in gather.waiting:
            return None
        gather.waiting.remove(source)
        return None if gather.waiting else self._gathers.pop(f"{kind}/{transaction}")

    def _refuse_for(self, kind: str, transaction: str) -> Gather | None:
        """Stop gathering: one no is enough."""
        return self._gathers.pop(f"{kind}/{transaction}", None)

    # -- Begin ----------------------------------------------------------------------------------

    def _open(self, frame: t.Open, source: str, now_ns: int) -> None:
        del now_ns
        number = int(frame.transaction.partition("-")[0])
        self._transactions_numbered = max(self._transactions_numbered, number)
        refused = self._cannot_open(frame)
        if refused:
            self._send(source, t.Opened(transaction=frame.transaction, refused=refused))
            return
        self._contexts[frame.transaction] = Context(
            frame.base, self.tables, isolated=frame.isolated
        )
        if not frame.isolated:
            self._flood(frame, but=source)  # Nobody waits: it runs ahead of all operations.
        elif not self._ask_all("open", frame, source):
            self._send(source, t.Opened(transaction=frame.transaction))

    def _cannot_open(self, frame: t.Open) -> str:
        """Vote about a transaction that begins (D5)."""
        if not frame.isolated:
            return ""
        if frame.base != self.version:
            return "the tables have changed since it began"
        order = (frame.base, frame.transaction)
        if any(
            context.voted and (context.base, name) > order
            for name, context in self._contexts.items()
        ):
            return "one that comes after it was voted for"
        return ""

    def _opened(self, frame: t.Opened, source: str, now_ns: int) -> None:
        name = frame.transaction
        if frame.refused:
            gather = self._refuse_for("open", name)
        else:
            gather = self._gathered("open", name, source)
        if gather is None:
            return
        if gather.parent:
            self._send(gather.parent, frame)
        else:
            self._opened_everywhere(name, frame.refused, now_ns)

    def _opened_everywhere(self, name: str, refused: str, now_ns: int) -> None:
        """Hear, as the coordinator's home, what came of it."""

    # -- Prepare --------------------------------------------------------------------------------

    def _prepare(self, frame: t.Prepare, source: str, now_ns: int) -> None:
        context = self._contexts.get(frame.transaction)
        if context is not None and self._is_behind_another(frame.transaction, context):
            self._parked[frame.transaction] = source
        else:
            self._vote(frame.transaction, source, now_ns)

    def _is_behind_another(self, name: str, context: Context) -> bool:
        """Return whether a transaction that comes before is not over here."""
        return context.isolated and any(
            other.isolated and (other.base, its) < (context.base, name)
            for its, other in self._contexts.items()
        )

    def _vote(self, name: str, source: str, now_ns: int) -> None:
        context = self._contexts.get(name)
        refused = OVER if context is None else self._objection(context)
        if context is not None and not refused:
            context.voted = True
            self._note_settling()
            if self._ask_all("prepare", t.Prepare(transaction=name), source):
                return
        self._voted(name, source, refused, now_ns)

    def _objection(self, context: Context) -> str:
        """Say why a transaction must not be committed, if so."""
        gone = [one.client for one in context.issued if one.client not in self._clients]
        if gone:
            return f"{gone[0]} is gone"
        return context.conflict(self.tables) if context.isolated else ""

    def _prepared(self, frame: t.Prepared, source: str, now_ns: int) -> None:
        if frame.refused:
            gather = self._refuse_for("prepare", frame.transaction)
        else:
            gather = self._gathered("prepare", frame.transaction, source)
        if gather is not None:
            self._voted(frame.transaction, gather.parent, frame.refused, now_ns)

    def _voted(self, name: str, source: str, refused: str, now_ns: int) -> None:
        """Pass the votes of this broker and all behind it on."""
        if source:
            self._send(source, t.Prepared(transaction=name, refused=refused))
        else:
            self._voted_everywhere(name, refused, now_ns)

    def _voted_everywhere(self, name: str, refused: str, now_ns: int) -> None:
        """Hear, as the coordinator's home, what came of it."""

    # -- Decide ---------------------------------------------------------------------------------

    def _decide(self, frame: t.Decide, source: str, now_ns: int) -> None:
        asked = self._ask_all("decide", frame, source)
        self._terminate(frame.transaction, commit=frame.commit, reason=frame.reason, now_ns=now_ns)
        if not asked:
            self._send(source, t.Decided(transaction=frame.transaction))

    def _decided(self, frame: t.Decided, source: str, now_ns: int) -> None:
        del now_ns
        gather = self._gathered("decide", frame.transaction, source)
        if gather is None:
            return
        self._settling.pop(frame.transaction, None)
        self._note_settling()
        if gather.parent:
            self._send(gather.parent, frame)
        elif gather.note:
            self._forget(t.Forget(version=gather.note), "", 0)

    def _forget(self, frame: t.Forget, source: str, now_ns: int) -> None:
        del now_ns
        forgotten = [undo for undo in self._undos if undo.version <= frame.version]
        self._undos = [undo for undo in self._undos if undo.version > frame.version]
        self._flood(frame, but=source)
        for undo in forgotten:
            for client, names in undo.withdrawn.items():
                if client in self._clients:
                    withdrawn = t.Withdrawn(
                        transaction=undo.transaction, subscriptions=tuple(names)
                    )
                    self._send(client, withdrawn)

    def _terminate(self, name: str, *, commit: bool, reason: str, now_ns: int) -> None:
        """End a transaction here."""
        self._parked.pop(name, None)
        for kind in ("open", "prepare"):
            self._gathers.pop(f"{kind}/{name}", None)
        context = self._contexts.pop(name, None)
        if context is None:
            return
        self._note_settling()
        self._give_up_steps(name, reason)
        for _, number in context.invitations.values():
            self._causes.pop(number, None)  # Nobody is left to answer it.
        self._record(action="committed" if commit else "aborted", transaction=name)
        withdrawn: dict[str, list[str]] = {}
        if commit:
            if context.isolated:
                self._commit(context)
                self._let_settle(name, context)
            withdrawn = self._withdrawn_of(context)
            if context.isolated and self.neighbours:
                withdrawn = self._drain_first(name, withdrawn)
            self._deliver(name, context.deliveries)
            self._clean_up(context)
            self._withdrawn_for_good(context.issued)
        elif not context.isolated:
            self._undo(context.issued)
        for client in context.participants:
            if client in self._clients:
                ended = t.Ended(
                    transaction=name,
                    committed=commit,
                    reason=reason,
                    subscriptions=tuple((each, "") for each in withdrawn.get(client, ())),
                )
                self._send(client, ended)
        self._prepare_parked(now_ns)

    def _withdrawn_of(self, context: Context) -> dict[str, list[str]]:
        """Return, by client of this broker, the subscriptions that a committed transaction withdrew."""
        found: dict[str, list[str]] = {}
        for one in context.issued:
            name = one.change.name
            if one.change.action == UNSUBSCRIBE and name not in self.tables.subscriptions:
                names = found.setdefault(one.client, [])
                if name not in names:
                    names.append(name)
        return found

    def _drain_first(self, name: str, withdrawn: dict[str, list[str]]) -> dict[str, list[str]]:
        """Keep back what the version before still has events for: `Withdrawn` follows. Return the rest."""
        rest = {client: list(names) for client, names in withdrawn.items()}
        for undo in self._undos[-1:]:
            undo.transaction = name
            for client, names in withdrawn.items():
                undo.withdrawn[client] = [each for each in names if each in undo.removed]
                rest[client] = [each for each in names if each not in undo.removed]
        return rest

    def _prepare_parked(self, now_ns: int) -> None:
        """Vote about what waited for nothing but what is over now (D7)."""
        for name, source in list(self._parked.items()):
            context = self._contexts.get(name)
            waits = context is not None and self._is_behind_another(name, context)
            if name in self._parked and not waits:  # A vote may decide, and so come back here.
                del self._parked[name]
                self._vote(name, source, now_ns)

    def _give_up_steps(self, name: str, reason: str) -> None:
        """Wait no more for steps of a transaction; tell whoever does."""
        for key, pending in list(self._steps.items()):
            if pending.transaction == name:
                del self._steps[key]
                pending.refused = reason or OVER
                self._answer(pending)

    def _commit(self, context: Context) -> None:
        """Do what was logged on the tables, and keep what it takes to route by the version before."""
        done, added, removed = replay(context.log, self.tables)
        self.version += 1
        self._undos.append(Undo(self.version, added, removed))
        set_right = fixes(context.log, done, self.tables)
        self._pass_on(set_right, Pending("", 0, "", "", []))

    def _let_settle(self, name: str, context: Context) -> None:
        """Have what was subscribed cover nothing until the brokers behind have committed it too."""
        if f"decide/{name}" in self._gathers:
            self._settling[name] = [
                change.name
                for step in context.log
                for change in step.changes
                if change.action == SUBSCRIBE
            ]
            self._note_settling()

    def _note_settling(self) -> None:
        """Have nothing covered by what is not everywhere, nor by what a transaction that was voted for withdraws."""
        going = {
            change.name
            for context in self._contexts.values()
            if context.voted and context.isolated
            for step in context.log
            for change in step.changes
            if change.action == UNSUBSCRIBE
        }
        self.tables.settling = going.union(*self._settling.values())

    def _deliver(self, name: str, deliveries: list[Delivery]) -> None:
        """Send clients the events of a transaction, each with how many follow: a reader has room for all, or for none."""
        left = Counter(each for one in deliveries for each in one.subscriptions)
        for one in deliveries:
            left.subtract(one.subscriptions)
            if one.client in self._clients:
                notify = f.Notify(
                    publication=one.publication,
                    subscriptions=one.subscriptions,
                    transaction=name,
                    path=one.path,
                    following=tuple(left[each] for each in one.subscriptions),
                )
                self._send(one.client, notify)

    def _clean_up(self, context: Context) -> None:
        """Withdraw what was committed for clients that went after the vote."""
        for one in context.issued:
            if one.client not in self._clients and one.change.action in INVERSE:
                withdrawal = Change(INVERSE[one.change.action], one.change.name)
                self._change((withdrawal,), one.client)

    def _undo(self, issued: list[Issued]) -> None:
        """Make good what clients of this broker did, last one first, as regular operations."""
        for one in reversed(issued):
            change, before = one.change, one.before
            if one.client not in self._clients:
                continue
            if change.action in INVERSE:
                withdrawal = Change(INVERSE[change.action], change.name)
                self._change((withdrawal,), one.client)
                # Nobody who withdrew it meanwhile may put it back.
                self._withdrawn_for_good([Issued(one.client, withdrawal, None)])
            elif before is not None and not self._leave_to_another(one):
                restored = Change(_INVERSE[change.action], change.name, before.where)
                numbered = self._numbered
                self._change((restored,), one.client)
                if numbered < self._numbered in self._steps and restored.action == ADVERTISE:
                    self.tables.returning[restored.name] = self._numbered

    def _leave_to_another(self, undone: Issued) -> bool:
        """Leave a withdrawal be that another open transaction asked for too, and found done."""
        for issued in self._issued_in_the_open():
            for at, one in enumerate(issued):
                if one.change == undone.change and one.before is None:
                    issued[at] = undone
                    return True
        return False

    def _withdrawn_for_good(self, committed: list[Issued]) -> None:
        """Have nobody put back what a committed transaction withdrew, though another had done so before it."""
        names = {
            (one.change.action, one.change.name)
            for one in committed
            if one.change.action not in INVERSE
        }
        if not names:
            return
        for issued in self._issued_in_the_open():
            if any((one.change.action, one.change.name) in names for one in issued):
                issued[:] = [
                    one for one in issued if (one.change.action, one.change.name) not in names
                ]

    def _issued_in_the_open(self) -> Iterator[list[Issued]]:
        """Yield what each open transaction without isolation has changed for clients of this broker."""
        for context in self._contexts.values():
            if not context.isolated:
                yield context.issued
