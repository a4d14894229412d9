"""Neighbours compare who is subscribed to what, and notice who is away.

Each node sends a beat to the first node of each of its clusters that it does not suspect, and to a few
of those that it does. Whoever knows the same rows says so; otherwise the two exchange what the other
does not know. So a change that somebody missed reaches it over its neighbours, in as many steps as the
cube has dimensions at the most.
"""

from collections.abc import Callable

from ensue.protocols.core import Frame
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.cube import Cube, first_in_cluster, split
from ensue.protocols.hypercube.frames import Beat, Here, Row, Rows, Versions, row_bytes
from ensue.protocols.hypercube.rolls import Rolls
from ensue.protocols.hypercube.suspects import Suspects

__all__ = ["Neighbours"]

SUSPECTS_ASKED = 4
"""So many of the suspected are asked in one beat whether they are back."""
ROWS_MAX = 256
"""Rows in one message, as far as `batch_bytes_max` goes."""


class Neighbours:
    """What one node has to do with its neighbours."""

    def __init__(
        self,
        me: int,
        cube: Cube,
        config: HypercubeConfig,
        rolls: Rolls,
        suspects: Suspects,
        send: Callable[[int, Frame], None],
        *,
        now_ns: int,
    ) -> None:
        self._me = me
        self._cube = cube
        self._config = config
        self._rolls = rolls
        self._suspects = suspects
        self._send = send
        self._beat = 0
        self._asked: list[int] = []
        self.due_ns = now_ns
        """When the next beat is due."""

    def handle_timer(self, *, now_ns: int) -> None:
        """Beat, if it is time."""
        if self.due_ns > now_ns:
            return
        self.due_ns = now_ns + self._config.beat_ns
        self._beat += 1
        for peer in self._asked:
            self._suspects.away(peer, now_ns)
        others = self._cube.everyone & ~(1 << self._me)
        self._suspects.suspected &= others
        asked = self._suspects.some(SUSPECTS_ASKED, self._beat)
        reachable = others & ~self._suspects.suspected
        for cluster, part in split(self._me, self._cube.dimensions, reachable):
            first = first_in_cluster(self._me, cluster, part)
            assert first is not None
            asked.append(first)
        for peer in asked:
            self.greet(peer, now_ns=now_ns)
        self._asked = asked

    def greet(self, peer: int, *, now_ns: int) -> None:
        """Ask one peer."""
        self._suspects.ask(peer, now_ns)
        self._send(peer, Beat(digest=self._rolls.digest()))

    def beat(self, frame: Beat, peer: int) -> None:
        """Answer a beat."""
        if frame.digest == self._rolls.digest():
            self._send(peer, Here())
        else:
            self._send(peer, Versions(versions=self._rolls.versions()))

    def versions(self, frame: Versions, peer: int) -> None:
        """Tell a peer what it does not know, and ask for what it knows better."""
        rows: list[Row] = []
        size = 0
        for row in self._rolls.newer_than(frame.versions):
            size += row_bytes(row)
            if rows and (len(rows) >= ROWS_MAX or size > self._config.batch_bytes_max):
                self._send(peer, Rows(rows=tuple(rows)))
                rows, size = [], row_bytes(row)
            rows.append(row)
        if rows:
            self._send(peer, Rows(rows=tuple(rows)))
        known = self._rolls.version
        if not frame.answer and any(known(node) < one for node, one in frame.versions.items()):
            self._send(peer, Versions(versions=self._rolls.versions(), answer=True))
