"""Warnings about subscriptions that merge all groups of a server."""

import logging

from ensue.protocols.total.station import Station

__all__ = ["MergeLog"]

_log = logging.getLogger("ensue")


class MergeLog:
    """Names each subscription that merges all groups of a station, once."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._seen = (0, 0)
        """How many changes of subscriptions, and of topics' nodes, the last search has seen."""
        self._named: dict[str, None] = {}

    def check(self) -> None:
        """Log subscriptions that have come to merge all groups since the last check."""
        node = self._station.node
        seen = (node.groups.changes, node.moves.switches)
        if seen == self._seen:
            return
        self._seen = seen
        merges = node.group_merges()
        for each in merges:
            if each.name not in self._named:
                _log.warning(
                    "groups merged subscription=%r groups=%d topics=%d: all their events wait for "
                    "each other",
                    each.name,
                    each.groups,
                    each.topics,
                )
        self._named = dict.fromkeys(each.name for each in merges)
