"""High-water marks of each client: events by topic, row version, last stamp.

A relay sees each of them first from the client itself, so no other client can know a higher one.
Counts and stamps are persisted (`take_writes`): after a restart, a claim about a client is compared
with the journal. The last marks before a kill are missing there. The client's next frame restores
them, or any sealed event of it that another client forwards, or sends when the relay asks for it.
Until then, claims beyond the marks are rejected, and clients repeat them.

Three claims about clients from before the restart are trusted without a mark:

- counts of a departed client, which publishes nothing that a false count could hide;
- stamps up to the time of the restart: they are clock readings, and later messages have later ones.
  HAZARD: a client whose clock is behind the server's can be silenced for as long as it is behind,
  from the restart on;
- the version of a row until its client has announced its own. With a false version, a liar gets
  only the row that it requests, and a new member waits for an incomplete peer no longer than for a
  silent one.

Limit: `TOPICS_MAX` topics per client. Beyond, claims of other clients about its events are
rejected.
"""

from collections.abc import Mapping

from ensue.core.wire import Records
from ensue.protocols.causal.frames import Counts
from ensue.protocols.interface import Persist

__all__ = ["HighWaterMarks"]

TOPICS_MAX = 100_000
COUNTS = "counts/"
STAMPS = "stamps"

_RECORD = Records[tuple[int, Counts]](tuple[int, Counts])
"""An epoch of the registry, and numbers by client."""


class HighWaterMarks:
    """The marks of one registry's clients in one epoch.

    The first `restored` clients got their numbers before the server started, at `started_ns`.
    `records` has what an earlier run persisted, with keys that start with `prefix`; records of
    another epoch are removed.
    """

    def __init__(
        self,
        *,
        epoch: int,
        restored: int = 0,
        started_ns: int = 0,
        prefix: str = "",
        records: Mapping[str, bytes] | None = None,
    ) -> None:
        self._epoch = epoch
        self._restored = restored
        self._started_ns = started_ns
        self._prefix = prefix
        self._counts: dict[str, Counts] = {}
        """By topic and client: the number of events published."""
        self._topics: dict[int, int] = {}
        """By client: the number of topics it has published on."""
        self._versions: dict[int, int] = {}
        self._stamps: Counts = {}
        self._changed: dict[str, None] = {}
        """Keys of unwritten records, without the prefix."""
        self._restore(records or {})

    def published(self, number: int, topic: str, count: int) -> None:
        """Raise a client's count on a topic: by its own claim, or by a sealed event."""
        counts = self._counts.get(topic, {})
        if count <= counts.get(number, 0):
            return
        if number not in counts:
            if self._topics.get(number, 0) >= TOPICS_MAX:
                return
            self._topics[number] = self._topics.get(number, 0) + 1
            self._counts.setdefault(topic, counts)
        counts[number] = count
        self._changed[f"{COUNTS}{topic}"] = None

    def is_published(self, number: int, topic: str, count: int, *, gone: bool = False) -> bool:
        """Return whether a client, possibly departed, can have published this many."""
        known = self._counts.get(topic, {}).get(number, 0)
        return count <= known or (gone and number < self._restored)

    def provable(self, number: int, topic: str) -> int | None:
        """Return the count to believe of a client from before the restart; None of others.

        It may have published more: marks of the last moments were not persisted.
        """
        if number >= self._restored:
            return None
        return self._counts.get(topic, {}).get(number, 0)

    def announced(self, number: int, version: int) -> None:
        """Raise the version of a client's row, by its own claim."""
        self._versions[number] = max(version, self._versions.get(number, 0))

    def is_version(self, number: int, version: int) -> bool:
        """Return whether a client's row can have this version."""
        known = self._versions.get(number)
        return number < self._restored if known is None else version <= known

    def sent(self, number: int, stamp: int) -> None:
        """Raise the last stamp of a client."""
        if stamp > self._stamps.get(number, 0):
            self._stamps[number] = stamp
            self._changed[STAMPS] = None

    def is_sent(self, number: int, stamp: int) -> bool:
        """Return whether a client can have sent a message with this stamp."""
        known = self._stamps.get(number, 0)
        return stamp <= known or (number < self._restored and stamp <= self._started_ns)

    def take_writes(self) -> list[Persist]:
        """Return the writes that persist changes since the last call."""
        changed, self._changed = self._changed, {}
        return [Persist(f"{self._prefix}{key}", self._record(key)) for key in changed]

    def discard(self) -> list[Persist]:
        """Return the writes that remove all records, at the end of an epoch."""
        keys = [STAMPS, *(f"{COUNTS}{topic}" for topic in self._counts)]
        return [Persist(f"{self._prefix}{key}", None) for key in keys]

    def _record(self, key: str) -> bytes | None:
        values = self._stamps if key == STAMPS else self._counts.get(key.removeprefix(COUNTS), {})
        return _RECORD.encode((self._epoch, values)) if values else None

    def _restore(self, records: Mapping[str, bytes]) -> None:
        for key, value in records.items():
            if not key.startswith(self._prefix):
                continue
            own = key.removeprefix(self._prefix)
            epoch, values = _RECORD.decode(value)
            if epoch != self._epoch:
                self._changed[own] = None
            elif own == STAMPS:
                self._stamps = values
            else:
                self._counts[own.removeprefix(COUNTS)] = values
                for number in values:
                    self._topics[number] = self._topics.get(number, 0) + 1
