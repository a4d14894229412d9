"""Heartbeats between neighbors: compare membership rows, and notice nodes that are away.

Each node sends a heartbeat to the first unsuspected node of each of its clusters, and to a few
suspected ones. A peer with the same rows answers `Alive`; otherwise the two exchange missing rows.
So a change that a node missed reaches it over its neighbors, in at most as many steps as the
hypercube has dimensions.
"""

from ensue.protocols.causal.frames import Alive, Heartbeat, Row, Rows, Versions, row_bytes
from ensue.protocols.causal.hypercube import first_in_cluster, split
from ensue.protocols.causal.node_state import NodeState

__all__ = ["Neighbors"]

SUSPECTS_ASKED = 4
"""Suspected nodes that each round of heartbeats includes, in case they are back."""
ROWS_MAX = 256
"""Rows in one frame; `batch_bytes_max` limits it too."""


class Neighbors:
    """Heartbeats of one node."""

    def __init__(self, state: NodeState, *, now_ns: int) -> None:
        self._me = state.number
        self._cube = state.cube
        self._config = state.config
        self._membership = state.membership
        self._detector = state.detector
        self._send = state.send
        self._beat = 0
        self._asked: list[int] = []
        self.due_ns = now_ns
        """When the next round of heartbeats is due."""

    def handle_timer(self, *, now_ns: int) -> None:
        """Send heartbeats, if they are due."""
        if self.due_ns > now_ns:
            return
        self.due_ns = now_ns + self._config.beat_ns
        self._beat += 1
        for peer in self._asked:
            self._detector.away(peer, now_ns)
        others = self._cube.everyone & ~(1 << self._me)
        self._detector.suspected &= others
        asked = self._detector.some(SUSPECTS_ASKED, self._beat)
        reachable = others & ~self._detector.suspected
        for cluster, part in split(self._me, self._cube.dimensions, reachable):
            first = first_in_cluster(self._me, cluster, part)
            assert first is not None
            asked.append(first)
        for peer in asked:
            self.greet(peer, now_ns=now_ns)
        self._asked = asked

    def greet(self, peer: int, *, now_ns: int) -> None:
        """Send a heartbeat to one peer."""
        self._detector.ask(peer, now_ns)
        self._send(peer, Heartbeat(digest=self._membership.digest()))

    def answer_heartbeat(self, frame: Heartbeat, peer: int) -> None:
        """Answer a heartbeat."""
        if frame.digest == self._membership.digest():
            self._send(peer, Alive())
        else:
            self._send(peer, Versions(versions=self._membership.versions()))

    def versions(self, frame: Versions, peer: int) -> None:
        """Send a peer the rows that it lacks, and ask for newer ones."""
        rows: list[Row] = []
        size = 0
        for row in self._membership.newer_than(frame.versions):
            size += row_bytes(row)
            if rows and (len(rows) >= ROWS_MAX or size > self._config.batch_bytes_max):
                self._send(peer, Rows(rows=tuple(rows)))
                rows, size = [], row_bytes(row)
            rows.append(row)
        if rows:
            self._send(peer, Rows(rows=tuple(rows)))
        known = self._membership.version
        if not frame.answer and any(known(node) < one for node, one in frame.versions.items()):
            self._send(peer, Versions(versions=self._membership.versions(), answer=True))
