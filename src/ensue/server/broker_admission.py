"""Admission control of a station on a broker: frame types and limits, no logins.

The broker authenticates and authorizes clients: a station on it has neither logins nor permissions,
and trusts names. Frame types and limits are those of a server with a port
(`ensue.server.authorization`): a request beyond a limit gets an answer, and an invalid bundle is
dropped whole, counted and logged. There is no connection to close, so within `LOG_EVERY_S` only the
first invalid bundles are logged, as many as of one connection, and then the number of the others.

Limit: the topics of subscriptions are counted for the last `PEERS_MAX` senders.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence

from ensue.core.errors import RemoteProtocolError
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.log_identity import LogRefused
from ensue.server.listener import FAULTS_LOGGED_MAX
from ensue.server.peer import Known, Peer
from ensue.transports.framed import FramedPort, FramedTransport

__all__ = ["PEERS_MAX", "BrokerAdmission", "Screen"]

PEERS_MAX = 10_000
LOG_EVERY_S = 60.0

_log = logging.getLogger("ensue")

Screen = Callable[[Peer, str, list[Frame]], tuple[list[Frame], list[Frame]]]


class BrokerAdmission:
    """Admission to the inboxes in `screens`; other stations, `nodes`, always pass."""

    def __init__(self, transport: FramedTransport, *, nodes: Collection[str]) -> None:
        self.screens: dict[str, Screen] = {}
        """By inbox: the function that returns the admitted frames and the answers to the others."""
        self.errors: Counter[str] = Counter()
        """Rejected requests, by kind."""
        self.refused: set[str] = set()
        """Stations of the chain with another log than before: their frames are dropped."""
        self.differing: set[str] = set()
        """Stations that are configured otherwise than this one: their frames are dropped, too."""
        self.on_log_refused: Callable[[str, LogRefused], None] | None = None
        """Called with a station that rejects this one's log, and its frame."""
        self._transport = transport
        self._nodes = frozenset(nodes)
        self._peers: OrderedDict[str, Peer] = OrderedDict()
        self._known: Known = {"publish": {}, "subscribe": {}}
        """Shared: all clients have the same permissions."""
        self._loop = asyncio.get_running_loop()
        self._bad = 0
        """Bundles dropped since `_bad_since_s`."""
        self._bad_since_s = self._loop.time()

    def admit(self, target: str, source: str, frames: list[Frame]) -> list[Frame]:
        """Return the admitted frames of a bundle, and answer the others."""
        screen = self.screens.get(target)
        if screen is not None and source in self._nodes:
            return self._admit_station(source, frames)
        if screen is None:
            return frames
        admitted, answers = screen(self._peer(source), source, frames)
        if answers:
            self._answer(target, source, answers)
        return admitted

    def _admit_station(self, source: str, frames: list[Frame]) -> list[Frame]:
        """Return the frames of another station that are for nodes."""
        for frame in frames:
            if isinstance(frame, LogRefused) and self.on_log_refused is not None:
                self.on_log_refused(source, frame)
        if source in self.refused or source in self.differing:
            return []
        return [frame for frame in frames if not isinstance(frame, LogRefused)]

    def bad_bundle(self, error: RemoteProtocolError) -> None:
        """Log a dropped bundle, at a bounded rate; the transport has counted it."""
        name, now_s = self._transport.name, self._loop.time()
        if now_s - self._bad_since_s >= LOG_EVERY_S:
            if self._bad > FAULTS_LOGGED_MAX:
                more = self._bad - FAULTS_LOGGED_MAX
                _log.warning("invalid bundles dropped transport=%s more=%d", name, more)
            self._bad, self._bad_since_s = 0, now_s
        self._bad += 1
        if self._bad <= FAULTS_LOGGED_MAX:
            _log.warning(
                "invalid bundle dropped transport=%s: %s", name, error, extra={"fault": "protocol"}
            )

    def _peer(self, source: str) -> Peer:
        peer = self._peers.get(source)
        if peer is None:
            peer = self._peers[source] = Peer(known=self._known)
            if len(self._peers) > PEERS_MAX:
                self._peers.popitem(last=False)
        else:
            self._peers.move_to_end(source)
        return peer

    def _answer(self, target: str, source: str, answers: Sequence[Frame]) -> None:
        self.errors["limit"] += len(answers)
        # For sending only: the target's own port receives its frames.
        port = FramedPort(self._transport, target, _receive_nothing)
        for answer in answers:
            port.send(source, answer)


def _receive_nothing(frames: Sequence[Frame], source: str) -> None:
    raise AssertionError(f"{len(frames)} frames of {source!r} at a port that only sends")
