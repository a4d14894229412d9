"""High-water marks: how many events each client has published on each topic, the versions of its rows, its last stamp.

A relay has seen all of them first on their way from the client itself, so nobody can know of more. After a restart of the server
nothing is known of clients that were there before: of such a client everything is believed until it has told, itself, how far it is in a
topic, which every publisher does within seconds. One that is gone by then publishes nothing that a lie could hide. Stamps are readings of
clocks, which a quiet publisher does not tell: none of before the restart can be later than the restart by more than `CLOCK_ERROR_NS`.

Limit: `TOPICS_MAX` topics a client. Beyond, nobody is believed to know of its events there but itself.
"""

from ensue.protocols.hypercube.frames import Counts

__all__ = ["Marks"]

TOPICS_MAX = 100_000
CLOCK_ERROR_NS = 10_000_000_000
"""By so much a client's clock may be ahead of the server's, at the most."""


class Marks:
    """The marks of one registry's clients. `restored` clients were numbered before the server was started, at `started_ns`."""

    def __init__(self, *, restored: int, started_ns: int = 0) -> None:
        self._restored = restored
        self._latest_restored = started_ns + CLOCK_ERROR_NS
        self._counts: dict[str, Counts] = {}
        """By topic: by client, how many events it has published there."""
        self._topics: dict[int, int] = {}
        """By client: on how many topics."""
        self._versions: dict[int, int] = {}
        self._stamps: dict[int, int] = {}
        self._heard: set[tuple[int, str]] = set()
        """Restored clients that have told how far they are, and the topics."""

    def published(self, number: int, topic: str, count: int) -> None:
        """Note that a client said itself that it has published so many."""
        counts = self._counts.get(topic, {})
        if number not in counts:
            if self._topics.get(number, 0) >= TOPICS_MAX:
                return
            self._topics[number] = self._topics.get(number, 0) + 1
            self._counts.setdefault(topic, counts)
        counts[number] = max(count, counts.get(number, 0))

    def told(self, number: int, topic: str, count: int) -> None:
        """Note that a client said itself how many it has published in all."""
        if number < self._restored or count:
            self.published(number, topic, count)
        if number < self._restored and number in self._counts.get(topic, {}):
            self._heard.add((number, topic))

    def is_published(self, number: int, topic: str, count: int) -> bool:
        """Tell whether a client may have published so many."""
        known = self._counts.get(topic, {}).get(number, 0)
        return count <= known or (number < self._restored and (number, topic) not in self._heard)

    def announced(self, number: int, version: int) -> None:
        """Note that a client said itself which version of its row there is."""
        self._versions[number] = max(version, self._versions.get(number, 0))

    def is_version(self, number: int, version: int) -> bool:
        """Tell whether there may be such a version of a client's row."""
        return version <= self._versions.get(number, 0) or number < self._restored

    def sent(self, number: int, stamp: int) -> None:
        """Note that a client sent a message with this stamp."""
        self._stamps[number] = max(stamp, self._stamps.get(number, 0))

    def is_sent(self, number: int, stamp: int) -> bool:
        """Tell whether a client may have sent a message with such a stamp."""
        known = self._stamps.get(number)
        if known is None:
            return number < self._restored and stamp <= self._latest_restored
        return stamp <= known
