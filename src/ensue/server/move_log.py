"""Log lines about topics that moved, and about servers that had missed a move."""

import logging

from ensue.protocols.total.station import Station

__all__ = ["MoveLog"]

_log = logging.getLogger("ensue")


class MoveLog:
    """Names each move of a topic, and each topic whose newer place other servers knew."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._known = dict(station.placement.parts)
        self._waits = False

    def check(self) -> None:
        """Log what has happened since the last check."""
        placement, moves = self._station.placement, self._station.node.moves
        if placement.unsure and not self._waits:
            _log.warning(
                "moves compared servers=%s: no request is taken before all have answered",
                ",".join(moves.unsure_of),
            )
        self._waits = placement.unsure
        if placement.parts != self._known:
            for topic, parts in placement.parts.items():
                if parts != self._known.get(topic) and topic not in moves.corrected:
                    before, last = parts[-2]
                    _log.info(
                        "topic moved topic=%r from=%s to=%s last=%d",
                        topic,
                        before,
                        parts[-1][0],
                        last,
                    )
            self._known = dict(placement.parts)
        for topic, parts in moves.take_corrected().items():
            _log.error(
                "topic corrected topic=%r server=%s: this server continues from before the topic "
                "was moved, and what it published on it since then does not count",
                topic,
                parts[-1][0],
            )
