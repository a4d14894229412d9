"""The coordinator's home: it begins, prepares and decides on behalf of a client.

The home, not the client, holds the decision; it is persisted before it is told to anybody. So nobody waits for a client: each
transaction has a deadline on the clock of the coordinator's home, behind which it is aborted unless it was decided; the same happens if the
client leaves, is taken for gone, or has lost its connection for `grace_ns` before it asked for the commit. HAZARD: a client that hangs costs its transaction; if that is serializable, those that began after it can't be committed
before its deadline, for that is their order (D5), and may time out.

A serializable transaction that some broker refused to open (D5) is begun again under a later name, after a pause that doubles each time, until its
deadline: nothing of it has happened yet, so its client need not know.

A home that crashes comes back with everything and goes on; deadlines that passed meanwhile are met at once.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.refusing import too_long, too_many_transactions
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.acting import ABORTED, OVER, UNDER_WAY, lost_connection
from ensue.protocols.transactions.contexts import Context
from ensue.protocols.transactions.participant import Participant
from ensue.wire import Records

__all__ = ["Coordination", "Coordinator"]

OPENING, PAUSING, OPEN, PREPARING = "opening", "pausing", "open", "preparing"


class Coordination(msgspec.Struct, array_like=True):
    """A transaction that a client of this broker coordinates."""

    client: str
    isolated: bool
    deadline_ns: int
    number: int
    """The request to be answered next; 0 if none."""
    phase: str = OPENING
    attempts: int = 0
    retry_at_ns: int = 0


class CoordinatorRecord(msgspec.Struct, array_like=True):
    """What a coordinator's home keeps."""

    coordinations: dict[str, Coordination]
    besides: bytes


_RECORD = Records[CoordinatorRecord](CoordinatorRecord)


class Coordinator(Participant):
    """A broker that coordinates for its clients."""

    def __init__(self, **options: Any) -> None:
        self._coordinations: dict[str, Coordination] = {}
        super().__init__(**options)

    def _dump_more(self) -> bytes:
        return _RECORD.encode(CoordinatorRecord(self._coordinations, self._dump_plans()))

    def _load_more(self, state: bytes) -> None:
        record = _RECORD.decode(state)
        self._coordinations = record.coordinations
        self._load_plans(record.besides)

    def _dump_plans(self) -> bytes:
        return b""

    def _load_plans(self, state: bytes) -> None:
        del state

    _HANDLERS: Mapping[type[Frame], str] = {
        **Participant._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        t.Begin: "_begin",
        t.End: "_end",
        f.Tick: "_tick",
    }

    def _new_name(self) -> str:
        """Return a name that comes after all that were seen."""
        self._transactions_numbered += 1
        return f"{self._transactions_numbered:010d}-{self.name}"

    def _coordinates(self, name: str, client: str) -> bool:
        coordination = self._coordinations.get(name)
        return (
            coordination is not None
            and coordination.client == client
            and coordination.phase == OPEN
        )

    # -- Begin ----------------------------------------------------------------------------------

    def _begin(self, frame: t.Begin, client: str, now_ns: int) -> None:
        refused = ""
        if frame.isolation not in (t.SERIALIZABLE, t.ATOMIC):
            refused = f"there is no isolation {frame.isolation!r}"
        elif not 0 < frame.timeout_ns <= self.config.timeout_ns_max:
            refused = too_long(self.config)
        elif self._coordinated(client) >= self.config.transactions_max:
            refused = too_many_transactions(client, self.config)
        if refused:
            self._send(client, f.Done(number=frame.number, refused=refused))
            return
        isolated = frame.isolation == t.SERIALIZABLE
        deadline_ns = now_ns + frame.timeout_ns
        self._start(Coordination(client, isolated, deadline_ns, frame.number), now_ns)

    def _coordinated(self, client: str) -> int:
        """Return how many open transactions a client coordinates."""
        return sum(one.client == client for one in self._coordinations.values())

    def _start(self, coordination: Coordination, now_ns: int) -> None:
        """Open a transaction everywhere, under a new name."""
        name = self._new_name()
        coordination.phase, coordination.attempts = OPENING, coordination.attempts + 1
        self._coordinations[name] = coordination
        frame = t.Open(transaction=name, base=self.version, isolated=coordination.isolated)
        refused = self._cannot_open(frame)
        if refused:
            self._opened_everywhere(name, refused, now_ns)
            return
        context = Context(self.version, self.tables, isolated=coordination.isolated)
        context.participants[coordination.client] = None
        self._contexts[name] = context
        if not coordination.isolated:
            self._flood(frame, but="")
            self._opened_everywhere(name, "", now_ns)
        elif not self._ask_all("open", frame, ""):
            self._opened_everywhere(name, "", now_ns)

    def _opened_everywhere(self, name: str, refused: str, now_ns: int) -> None:
        coordination = self._coordinations.get(name)
        if coordination is None or coordination.phase != OPENING:
            return
        if not refused:
            coordination.phase = OPEN
            kind = t.SERIALIZABLE if coordination.isolated else t.ATOMIC
            self._record(action="began", topic=kind, transaction=name)
            done = f.Done(number=coordination.number, transaction=name)
            coordination.number = 0
            self._send(coordination.client, done)
            return
        # Nothing of it has happened: its client is told nothing, and waits on.
        context = self._contexts.get(name)
        if context is not None:
            context.participants.clear()
        self._spread(name, now_ns, commit=False, reason=refused)
        pause_ns = self.config.retry_ns << min(coordination.attempts - 1, 20)
        coordination.phase = PAUSING
        coordination.retry_at_ns = now_ns + min(pause_ns, self.config.retry_ns_max)
        self._coordinations[name] = coordination

    # -- End ------------------------------------------------------------------------------------

    def _end(self, frame: t.End, client: str, now_ns: int) -> None:
        if not self._coordinates(frame.transaction, client):
            self._send(client, f.Done(number=frame.number, refused=OVER))
            return
        coordination = self._coordinations[frame.transaction]
        coordination.number = frame.number
        if not frame.commit or self._acts_within(frame.transaction, ""):
            reason = UNDER_WAY if frame.commit else ABORTED
            self._conclude(frame.transaction, now_ns, commit=False, reason=reason)
            return
        coordination.phase = PREPARING
        self._prepare(t.Prepare(transaction=frame.transaction), "", now_ns)

    def _voted_everywhere(self, name: str, refused: str, now_ns: int) -> None:
        coordination = self._coordinations.get(name)
        if coordination is not None and coordination.phase == PREPARING:
            self._conclude(name, now_ns, commit=not refused, reason=refused)

    def _conclude(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        """Decide, and tell everybody."""
        coordination = self._coordinations.pop(name)
        self._spread(name, now_ns, commit=commit, reason=reason)
        if coordination.number:
            done = f.Done(number=coordination.number, refused=reason, transaction=name)
            if coordination.client in self._clients:
                self._send(coordination.client, done)

    def _spread(self, name: str, now_ns: int, *, commit: bool, reason: str) -> None:
        """Send the decision to everybody, and carry it out here behind that."""
        self._coordinations.pop(name, None)
        context = self._contexts.get(name)
        note = self.version + 1 if commit and context is not None and context.isolated else 0
        asked = self._ask_all(
            "decide", t.Decide(transaction=name, commit=commit, reason=reason), "", note
        )
        self._terminate(name, commit=commit, reason=reason, now_ns=now_ns)
        if note and not asked:
            self._forget(t.Forget(version=note), "", 0)

    # -- Time, and clients that are gone --------------------------------------------------------

    def _due_ns(self) -> int | None:
        return min((self._due_of(one) for one in self._coordinations.values()), default=None)

    def _due_of(self, coordination: Coordination) -> int:
        if coordination.phase == PAUSING:
            return min(coordination.retry_at_ns, coordination.deadline_ns)
        return coordination.deadline_ns

    def _tick(self, frame: f.Tick, source: str, now_ns: int) -> None:
        del frame, source
        for name, coordination in list(self._coordinations.items()):
            if self._due_of(coordination) > now_ns or name not in self._coordinations:
                continue
            if coordination.deadline_ns <= now_ns:
                self._conclude(name, now_ns, commit=False, reason="timeout")
            else:
                del self._coordinations[name]
                self._start(coordination, now_ns)

    def _depart(self, client: str, now_ns: int) -> None:
        super()._depart(client, now_ns)
        self._conclude_of(client, now_ns, f"{client} is gone")

    def _disconnect(self, frame: f.Disconnected, source: str, now_ns: int) -> None:
        super()._disconnect(frame, source, now_ns)
        # What the client asked to be committed needs nothing more of it.
        self._conclude_of(frame.client, now_ns, lost_connection(frame.client), but=PREPARING)

    def _conclude_of(self, client: str, now_ns: int, reason: str, *, but: str = "") -> None:
        """Abort what a client coordinates, except transactions in one phase."""
        for name, coordination in list(self._coordinations.items()):
            if (
                coordination.client == client
                and coordination.phase != but
                and name in self._coordinations
            ):
                self._conclude(name, now_ns, commit=False, reason=reason)
