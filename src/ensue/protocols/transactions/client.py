"""A client that coordinates transactions and takes part in those of others.

A client's operations within a transaction form a *thread*: its own if it coordinates, else one for each invitation that it has. The next operation of a
thread is sent when the one before has been answered (rule *thread* of Definition 6), however fast the application is. If one is refused, so are
those that wait behind it.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from ensue.errors import LocalProtocolError
from ensue.protocols.core import Frame, Send
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.client import Answered, OverlayClient
from ensue.protocols.overlay.frames import Change, Publication
from ensue.protocols.overlay.parsing import parse
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.acting import OVER
from ensue.protocols.transactions.plans import numbered
from ensue.wire import Codec, Records

__all__ = ["Ceased", "Concluded", "Invitation", "TransactionClient"]


class Invitation(msgspec.Struct, frozen=True):
    """Somebody asks this client to act within a transaction; `finish` says that it has."""

    transaction: str
    path: str
    publication: Publication


class Concluded(msgspec.Struct, frozen=True):
    """A transaction in which this client took part is over."""

    transaction: str
    committed: bool
    reason: str = ""
    subscriptions: tuple[tuple[str, str], ...] = ()
    """Subscriptions that a plan made for this client, with their filters."""


class Ceased(msgspec.Struct, frozen=True):
    """Subscriptions of this client that a transaction has withdrawn, or made and not kept: nothing more comes for them."""

    subscriptions: tuple[str, ...]


class _Thread(msgspec.Struct, array_like=True):
    """Operations of one client within one transaction, one after the other."""

    count: int = 0
    busy: bool = False
    queue: list[int] = msgspec.field(default_factory=list)
    acted: bool = False
    """Whether one of them was not refused: the home says then when the transaction is over."""
    made: list[str] = msgspec.field(default_factory=list)
    """Subscriptions that are there only if it is committed."""


_THREADS = Records[dict[str, _Thread]](dict[str, _Thread])


class TransactionClient(OverlayClient):
    """One client. Commands besides those of `OverlayClient`: `begin`, `act`, `invite`, `finish`, `end`, `submit`."""

    codec = Codec(t.FRAMES)

    def __init__(self, **options: Any) -> None:
        self._threads: dict[str, _Thread] = {}
        """By transaction and the path of the invitation."""
        super().__init__(**options)

    def _dump_besides(self) -> bytes:
        return _THREADS.encode(self._threads)

    def _load_besides(self, state: bytes) -> None:
        self._threads = _THREADS.decode(state)

    # -- Commands -------------------------------------------------------------------------------

    def begin(self, isolation: str, timeout_ns: int, *, now_ns: int) -> int:
        """Begin a serializable or atomic transaction; its name comes with the answer."""
        return self._ask(t.Begin(number=0, isolation=isolation, timeout_ns=timeout_ns), now_ns)

    def act(
        self,
        transaction: str,
        action: str,
        *,
        now_ns: int,
        within: str = "",
        where: str = "",
        name: str = "",
        attributes: Mapping[str, object] | None = None,
        payload: bytes = b"",
    ) -> tuple[int, str]:
        """Do one operation within a transaction: `adv`, `uadv`, `sub`, `usub` or `pub`.

        `within` is the path of the invitation, for a client that does not coordinate. Return the number of the request and the
        name of what was advertised or subscribed.
        """
        change: Change | None = None
        publication: Publication | None = None
        if action == "pub":
            publication = self._publication(attributes or {}, payload, now_ns)
        else:
            where = parse(where).to_text() if where else ""
            name = name or f"{self.name}.{action}{self._numbered + 1}"
            change = Change(action, name, where)
        operate = f.Operate(
            number=0,
            transaction=transaction,
            path=self._next_path(transaction, within),
            change=change,
            publication=publication,
        )
        return self._ask(operate, now_ns), name

    def invite(
        self,
        transaction: str,
        client: str,
        attributes: Mapping[str, object] | None = None,
        payload: bytes = b"",
        *,
        now_ns: int,
        within: str = "",
    ) -> int:
        """Let another client act within a transaction; answered when it has finished."""
        frame = t.Invite(
            number=0,
            transaction=transaction,
            path=self._next_path(transaction, within),
            client=client,
            publication=self._publication(attributes or {}, payload, now_ns),
        )
        return self._ask(frame, now_ns)

    def finish(self, transaction: str, path: str, refused: str = "", *, now_ns: int) -> int:
        """Say that this client has done what it was invited to, or refuses."""
        thread = self._threads.get(f"{transaction}|{path}")
        if thread is not None and thread.busy and not refused:
            raise LocalProtocolError("operations of this invitation are still under way")
        frame = t.Finish(number=0, transaction=transaction, path=path, refused=refused)
        return self._ask(frame, now_ns)

    def end(self, transaction: str, *, commit: bool, now_ns: int) -> int:
        """Commit or abort; what came of it is the answer."""
        thread = self._threads.get(f"{transaction}|")
        if commit and thread is not None and thread.busy:
            raise LocalProtocolError("operations of this transaction are still under way")
        return self._ask(t.End(number=0, transaction=transaction, commit=commit), now_ns)

    def submit(
        self,
        operations: Sequence[t.Operation],
        timeout_ns: int,
        *,
        now_ns: int,
        hold: bool = False,
    ) -> int:
        """Hand in a whole transaction."""
        own = count(self._published + 1)
        planned = tuple(
            numbered(one, next(own)) if one.publication and one.client == self.name else one
            for one in operations
        )
        frame = t.Submit(number=0, operations=planned, timeout_ns=timeout_ns, hold=hold)
        return self._ask(frame, now_ns)

    def planned_publication(
        self, client: str, attributes: Mapping[str, object], payload: bytes, *, now_ns: int
    ) -> Publication:
        """Return a publication for a plan; it is numbered when the plan is handed in, or by the client's home."""
        made = self._publication(attributes, payload, now_ns)
        return msgspec.structs.replace(made, publisher=client, number=0)

    def planned_name(self, client: str, number: int) -> str:
        """Return a name for what the next plan makes for a client: nobody else will ever use it."""
        return f"{client}.plan-{self.name.replace('.', '/')}-{self._numbered + 1}-{number}"

    def _next_path(self, transaction: str, within: str) -> str:
        thread = self._threads.get(f"{transaction}|{within}")
        number = 1 if thread is None else thread.count + 1
        return f"{within}.{number}" if within else str(number)

    # -- Inputs ---------------------------------------------------------------------------------

    _HANDLERS: Mapping[type[Frame], str] = {
        **OverlayClient._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        t.Begin: "_request",
        t.Invite: "_request_in_turn",
        f.Operate: "_request_in_turn",
        t.Finish: "_request",
        t.End: "_request",
        t.Submit: "_request_plan",
        t.Invited: "_invited",
        t.Ended: "_ended_here",
        t.Withdrawn: "_withdrawn_here",
    }

    def _request_in_turn(self, frame: f.Operate | t.Invite, now_ns: int) -> None:
        """Send an operation at once if it is regular or nothing of its thread is under way."""
        if not frame.transaction:
            self._request(frame, now_ns)
            return
        thread = self._threads.setdefault(_thread_of(frame), _Thread())
        thread.count += 1
        change = frame.change if isinstance(frame, f.Operate) else None
        makes = change is not None and change.action == f.SUBSCRIBE
        if change is not None and makes and change.name not in self._positions:
            thread.made.append(change.name)
        if not thread.busy:
            thread.busy = True
            self._request(frame, now_ns)
        else:
            self._numbered = frame.number
            self._asked[frame.number] = frame
            if frame.publication is not None:
                self._published = frame.publication.number
            thread.queue.append(frame.number)

    def _request_plan(self, frame: t.Submit, now_ns: int) -> None:
        for one in frame.operations:
            if one.publication is not None and one.client == self.name:
                self._published = one.publication.number
        self._request(frame, now_ns)

    def _answered(self, asked: Any, frame: f.Done) -> None:
        super()._answered(asked, frame)
        if isinstance(asked, f.Operate | t.Invite) and asked.transaction:
            key = _thread_of(asked)
            thread = self._threads.get(key)
            if thread is None:
                return
            self._note_change(thread, getattr(asked, "change", None), frame.refused)
            self._next_of(thread, frame.refused)
            if frame.refused == OVER and not thread.acted:
                del self._threads[key]  # It began behind the end: nothing more is said of it.

    def _note_change(self, thread: _Thread, change: Change | None, refused: str) -> None:
        """Keep what to do about a change when the transaction ends."""
        if refused:
            if change is not None and change.name in thread.made:
                thread.made.remove(change.name)
                self._positions.pop(change.name, None)
            return
        thread.acted = True

    def _next_of(self, thread: _Thread, refused: str) -> None:
        """Send the next operation of a thread, or refuse all if one was."""
        while refused and thread.queue:
            number = thread.queue.pop(0)
            self._asked.pop(number, None)
            self._tell(Answered(number, refused))
        thread.busy = bool(thread.queue)
        if thread.queue:
            self._effects.append(Send(self.home, self._asked[thread.queue.pop(0)]))

    def _invited(self, frame: t.Invited, now_ns: int) -> None:
        del now_ns
        self._tell(Invitation(frame.transaction, frame.path, frame.publication))

    def _ended_here(self, frame: t.Ended, now_ns: int) -> None:
        del now_ns
        for key in [key for key in self._threads if key.startswith(f"{frame.transaction}|")]:
            thread = self._threads.pop(key)
            self._next_of(thread, frame.reason or OVER)
            for name in () if frame.committed else thread.made:
                self._positions.pop(name, None)
        for name, where in frame.subscriptions:
            if where:
                self._positions.setdefault(name, 0)
        made = tuple(one for one in frame.subscriptions if one[1])
        self._tell(
            Concluded(frame.transaction, frame.committed, frame.reason, made),
            action="committed" if frame.committed else "aborted",
            transaction=frame.transaction,
        )
        withdrawn = tuple(name for name, where in frame.subscriptions if not where)
        if withdrawn:
            self._cease(withdrawn)

    def _withdrawn_here(self, frame: t.Withdrawn, now_ns: int) -> None:
        del now_ns
        self._cease(frame.subscriptions)

    def _cease(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._positions.pop(name, None)
        self._tell(Ceased(names))


def _thread_of(frame: f.Operate | t.Invite) -> str:
    return f"{frame.transaction}|{frame.path.rpartition('.')[0]}"
