"""A broker beside which others come to stand, and which others leave, while it is in use.

Theory of operation. Brokers come and go at the leaves. A newcomer has nothing yet and names the broker it stands beside; that broker is told to adopt it (`adopt`).
It sends the newcomer, ahead of everything else, how far it is (`Adopted`): the version of its tables, the older versions that events under way may still be routed by, and the
transactions that are open; then, as steps like all others, what everybody has advertised and who is there. The newcomer passes all of it on to whoever stands behind it. Until then its own
clients wait to be welcomed: its steps to a broker that does not know it are kept by its link.

What is under way meanwhile: a serializable transaction that has advertised something and was not voted for yet is refused as a conflict, because the newcomer knows nothing of that; one that was
voted for is set right behind the commit, as after any regular change (D11). Plans go on among those who were there when they came.

A broker is left out (`abandon`) when nothing of it is there any more: no client, nothing advertised or subscribed, no transaction (`hold_of` says what). So nothing is lost with it; what others who have not heard yet plan for its clients is answered for by whoever left it out (`transactions.planner`).

HAZARD: two trees that were both in use can't be joined: their versions have nothing to do with each other. A broker that was left out comes back only with nothing, as a newcomer.
"""

from collections.abc import Mapping

from ensue.protocols.core import Frame
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.broker import Broker, Pending
from ensue.protocols.overlay.frames import Change
from ensue.protocols.overlay.versions import Undo

__all__ = ["Joining"]

CHANGES_MAX = 500
"""Advertisements that a newcomer is sent in one step."""


class Joining(Broker):
    """A broker whose neighbours come and go."""

    _HANDLERS: Mapping[type[Frame], str] = {
        **Broker._HANDLERS,  # noqa: SLF001 - the handlers of the base class
        f.Adopt: "_adopt",
        f.Adopted: "_adopted",
        f.Abandon: "_abandon",
    }

    def adopt(self, neighbour: str, *, now_ns: int) -> None:
        """Let a newcomer stand beside this broker."""
        self.take(f.Adopt(neighbour=neighbour), source="", now_ns=now_ns)
        self._keep_neighbours()

    def abandon(self, neighbour: str, *, now_ns: int) -> None:
        """Be without a neighbour of which nothing is there any more."""
        assert not self.hold_of(neighbour)
        self.take(f.Abandon(neighbour=neighbour), source="", now_ns=now_ns)
        self._keep_neighbours()

    def hold_of(self, neighbour: str) -> str:
        """Say what of a neighbour, and of those behind it, is still there, if anything."""
        for client, (_, hop) in self._members.items():
            if hop == neighbour:
                return f"its client {client}"
        for table in (self.tables.advertisements, self.tables.subscriptions):
            for name, entry in table.items():
                if entry.hop == neighbour:
                    return f"{name}, of its clients"
        return ""

    def _keep_neighbours(self) -> None:
        """Write the state, which says who they are: inputs are handled again by the neighbours there were."""
        if self._durable:
            self._write_state()

    def _adopt(self, frame: f.Adopt, source: str, now_ns: int) -> None:
        del source, now_ns
        newcomer = frame.neighbour
        self.neighbours = tuple(sorted({*self.neighbours, newcomer}))
        self.tables.add_neighbour(newcomer)
        self._send(newcomer, self._introduction())
        pending = Pending("", 0, "", "", [])
        promised = [
            Change(f.ADVERTISE, name, entry.where)
            for name, entry in self.tables.advertisements.items()
        ]
        for first in range(0, len(promised), CHANGES_MAX):
            self._cause(pending, newcomer, tuple(promised[first : first + CHANGES_MAX]))
        for client, (home, _) in self._members.items():
            self._cause(pending, newcomer, member=client, home=home)
        self._settle(pending)

    def _introduction(self) -> f.Adopted:
        """Return how far this broker is."""
        return f.Adopted(version=self.version, kept=tuple(undo.version for undo in self._undos))

    def _adopted(self, frame: f.Adopted, source: str, now_ns: int) -> None:
        """Begin where the others are."""
        del now_ns
        self.version = frame.version
        self._undos = [Undo(version, [], {}) for version in frame.kept]
        self._flood(frame, but=source)

    def _abandon(self, frame: f.Abandon, source: str, now_ns: int) -> None:
        del source, now_ns
        gone = frame.neighbour
        self.neighbours = tuple(each for each in self.neighbours if each != gone)
        self.tables.remove_neighbour(gone)
        self._away.pop(gone, None)
        for pending in self._steps.values():
            if pending.hop == gone:
                pending.hop = ""  # Nobody waits for its answer.
        for number in [number for number, (to, _) in self._under_way.items() if to == gone]:
            self._stepped_by(number, "")
