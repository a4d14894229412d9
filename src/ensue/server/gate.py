"""What a station on a broker takes of what comes over it: what a client would send, within the limits.

Who somebody is, and what it may do, is for the broker to say: there are neither logins nor permissions here, and a
name is believed. But the same shapes and limits hold as for the clients of a server with a port
(`ensue.server.rules`): whoever goes beyond a limit is told so where it asked, and a bundle that no client would
send is dropped whole, counted and logged. Anybody can send those, and nobody can be hung up on: of all that come within `TOLD_EVERY_S` the first are
logged, as many as of one connection to a server, and then how many more there were.

Limit: how many topics a subscription listens to is known of the last `GUESTS_MAX` who sent anything.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence

from ensue.errors import RemoteProtocolError
from ensue.protocols.core import Frame
from ensue.protocols.lineage import LogRefused
from ensue.server.guest import Guest, Known
from ensue.server.listener import FAULTS_TOLD
from ensue.transports.framed import FramedPort, FramedTransport

__all__ = ["GUESTS_MAX", "Gate", "Screen"]

GUESTS_MAX = 10_000
TOLD_EVERY_S = 60.0

_log = logging.getLogger("ensue")

Screen = Callable[[Guest, str, list[Frame]], tuple[list[Frame], list[Frame]]]


class Gate:
    """Stands before the inboxes that `screens` names. Other stations of the chain, `nodes`, pass."""

    def __init__(self, transport: FramedTransport, *, nodes: Collection[str]) -> None:
        self.screens: dict[str, Screen] = {}
        """By inbox: what is asked which frames are let through, and what their sender is told."""
        self.errors: Counter[str] = Counter()
        """How often somebody was told that it may not."""
        self.refused: set[str] = set()
        """Stations of the chain that have another log than before: nothing of theirs is let through."""
        self.on_log_refused: Callable[[str, LogRefused], None] | None = None
        """Given a station that refuses the log of this one, and what it says."""
        self._transport = transport
        self._nodes = frozenset(nodes)
        self._guests: OrderedDict[str, Guest] = OrderedDict()
        self._known: Known = {"publish": {}, "subscribe": {}}
        """Shared: everybody may do the same."""
        self._loop = asyncio.get_running_loop()
        self._bad = 0
        """Bundles that were dropped, of late: …"""
        self._bad_since_s = self._loop.time()
        """… since then."""

    def admit(self, target: str, source: str, frames: list[Frame]) -> list[Frame]:
        """Return those frames of a bundle that are let through, and answer the others."""
        screen = self.screens.get(target)
        if screen is not None and source in self._nodes:
            return self._admit_station(source, frames)
        if screen is None:
            return frames
        admitted, answers = screen(self._guest(source), source, frames)
        if answers:
            self._answer(target, source, answers)
        return admitted

    def _admit_station(self, source: str, frames: list[Frame]) -> list[Frame]:
        """Return those frames of another station that are for nodes."""
        for frame in frames:
            if isinstance(frame, LogRefused) and self.on_log_refused is not None:
                self.on_log_refused(source, frame)
        if source in self.refused:
            return []
        return [frame for frame in frames if not isinstance(frame, LogRefused)]

    def bad_bundle(self, error: RemoteProtocolError) -> None:
        """Log that a bundle was dropped, unless that was said often enough; who took it has counted it."""
        name, now_s = self._transport.name, self._loop.time()
        if now_s - self._bad_since_s >= TOLD_EVERY_S:
            if self._bad > FAULTS_TOLD:
                more = self._bad - FAULTS_TOLD
                _log.warning(
                    "%s: %d more bundles were dropped that no client would send", name, more
                )
            self._bad, self._bad_since_s = 0, now_s
        self._bad += 1
        if self._bad <= FAULTS_TOLD:
            _log.warning("%s: %s", name, error, extra={"fault": "protocol"})

    def _guest(self, source: str) -> Guest:
        guest = self._guests.get(source)
        if guest is None:
            guest = self._guests[source] = Guest(known=self._known)
            if len(self._guests) > GUESTS_MAX:
                self._guests.popitem(last=False)
        else:
            self._guests.move_to_end(source)
        return guest

    def _answer(self, target: str, source: str, answers: Sequence[Frame]) -> None:
        self.errors["limit"] += len(answers)
        # Only to send by: what is sent to the target goes to whoever has entered under its name.
        port = FramedPort(self._transport, target, _hear_nothing)
        for answer in answers:
            port.send(source, answer)


def _hear_nothing(frames: Sequence[Frame], source: str) -> None:
    raise AssertionError(f"{len(frames)} frames of {source!r} for nobody")
