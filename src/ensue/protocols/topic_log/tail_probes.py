"""Tail probes: when a topic falls silent, its listeners learn how far its log is.

A listener notices a lost event when a later one arrives. After the last event before a silence
nothing arrives, so the log sends the end of the topic (`LogEnd`), as TCP and QUIC probe for a lost
tail: `probe_ns` after the last event, and `PROBES` times in all, each after twice as long a wait. A
listener that lacks something then requests it; others do nothing.

Senders in TCP and QUIC take the wait from acknowledgements. A log gets none: one per event from
each of many listeners would cost more than the events, and on a broker these are one message. So
the wait is fixed, and a listener weighs it against the round trip that it has measured itself
(`ensue.protocols.total.gap_requests`). Log-based multicast with variable heartbeats does the same
(H. Holbrook, S. Singhal, D. Cheriton: Log-based receiver-reliable multicast, SIGCOMM 1995).

Cost: `PROBES` small frames per listener and event at most; none while events follow each other
within `probe_ns`, and none for further topics while `SILENT_MAX` of them have probes to come.

HAZARD: if the event and all its probes are lost, its listener notices at its next poll, or with the
next event.
"""

__all__ = ["PROBES", "PROBE_NS", "SILENT_MAX", "TailProbes"]

PROBES = 2
"""So often the end of a silent topic is sent."""
PROBE_NS = 25_000_000
"""How long a topic is silent before its log probes, unless a configuration says otherwise."""
SILENT_MAX = 256
"""Topics with probes to come. Where more fall silent, so many events flow that a listener of
several topics mostly notices a gap by one of them."""


class TailProbes:
    """The silent topics of a log, and when their ends are sent."""

    __slots__ = ("_rounds",)

    def __init__(self, *, probe_ns: int) -> None:
        self._rounds: list[tuple[int, dict[str, int]]] = [
            (probe_ns * (2 ** (number + 1) - 1), {}) for number in range(PROBES)
        ]
        """By probe: how long after its last event, and topic to when that was, rising."""

    def published(self, topic: str, now_ns: int) -> None:
        """Note that an event of a topic was sent to its listeners."""
        self.forget(topic)
        if sum(len(silent) for _, silent in self._rounds) < SILENT_MAX:
            self._rounds[0][1][topic] = now_ns

    def forget(self, topic: str) -> None:
        """Send no further probes for the last event of a topic."""
        for _, silent in self._rounds:
            silent.pop(topic, None)

    def take_due(self, now_ns: int) -> list[tuple[str, int]]:
        """Return the topics whose end is to be sent, and how long they have been silent."""
        taken: list[tuple[str, int]] = []
        for number, (wait_ns, silent) in enumerate(self._rounds):
            for topic, since_ns in list(silent.items()):
                # A later time is from before the clock was set back.
                if since_ns <= now_ns < since_ns + wait_ns:
                    break
                del silent[topic]
                taken.append((topic, max(0, now_ns - since_ns)))
                if number + 1 < PROBES:
                    self._rounds[number + 1][1][topic] = min(since_ns, now_ns)
        return taken

    def next_timer_ns(self) -> int | None:
        """Return when the next probe is due."""
        dues = [
            since_ns + wait_ns
            for wait_ns, silent in self._rounds
            for since_ns in (next(iter(silent.values()), None),)
            if since_ns is not None
        ]
        return min(dues, default=None)
