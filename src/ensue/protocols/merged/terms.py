"""The terms of a merged system: values that all of its processes must share.

Behind a server's fan-out they are agreed on at connect (`TermsClient`): the fan-out keeps the
terms of the connected clients, and a client with other terms gives up, with both in its error. On
the topics of a broker no process can be asked, so each stamp carries its publisher's terms as
entries, and every subscriber compares them with its own.
"""

from collections.abc import Mapping

import msgspec

from ensue.protocols.interface import Effect, Refuse, Resumed, Send
from ensue.protocols.topic_log.fanout import Agree, Agreed

__all__ = ["MergedTerms", "TermsClient", "terms_from"]

TICK_NS, EPSILON, DELTA = "@t", "@e", "@w"
DEFAULT_TICK_NS = 1_000_000
SECOND_NS = 1_000_000_000


class MergedTerms(msgspec.Struct, frozen=True):
    """The bounds of one merged system."""

    tick_ns: int
    epsilon_ticks: int
    delta_ticks: int

    def __str__(self) -> str:
        tick_ns = self.tick_ns
        epsilon_s = self.epsilon_ticks * tick_ns / SECOND_NS
        delta_s = self.delta_ticks * tick_ns / SECOND_NS
        return f"epsilon={epsilon_s:.9g}, delta={delta_s:.9g}, tick={tick_ns / SECOND_NS:.9g}"

    def to_entries(self) -> dict[str, int]:
        """Return the entries of a stamp; a tick of a millisecond is omitted."""
        entries = {EPSILON: self.epsilon_ticks, DELTA: self.delta_ticks}
        if self.tick_ns != DEFAULT_TICK_NS:
            entries[TICK_NS] = self.tick_ns
        return entries

    def sorts_like(self, other: "MergedTerms") -> bool:
        """Return whether stamps under both terms sort together; delta does not matter."""
        return (self.tick_ns, self.epsilon_ticks) == (other.tick_ns, other.epsilon_ticks)


def terms_from(entries: Mapping[str, int]) -> MergedTerms | None:
    """Return the terms that a stamp carries; None if it carries none."""
    epsilon = entries.get(EPSILON)
    if epsilon is None:
        return None
    return MergedTerms(entries.get(TICK_NS, DEFAULT_TICK_NS), epsilon, entries.get(DELTA, 0))


class TermsClient:
    """The agreement of one client with the fan-outs, its own server's first.

    `Resumed` reports that the first fan-out has agreed. `Refuse` reports that one has other
    terms: the client is rejected, or other clients came first after a server restart.
    """

    def __init__(
        self, terms: MergedTerms, fanouts: tuple[str, ...], *, retry_ns: int, now_ns: int
    ) -> None:
        self._terms = str(terms)
        self._fanouts = fanouts
        self._retry_ns = retry_ns
        self._unanswered: dict[str, None] = {}
        self._due_ns = now_ns
        self._resumed = self._over = not fanouts
        self.effects: list[Effect] = []
        self.repeat(now_ns)

    def repeat(self, now_ns: int) -> None:
        """Ask all fan-outs: they may have restarted."""
        if not self._over:
            self._unanswered = dict.fromkeys(self._fanouts)
            self._ask(now_ns)

    def handle_timer(self, now_ns: int) -> None:
        """Repeat unanswered requests that are due."""
        if self._unanswered and not now_ns < self._due_ns <= now_ns + self._retry_ns:
            self._ask(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to repeat requests."""
        return self._due_ns if self._unanswered else None

    def receive(self, frame: Agreed, source: str) -> None:
        """Compare the terms of a fan-out with those of this client."""
        if self._over or source not in self._fanouts:
            return
        self._unanswered.pop(source, None)
        if frame.terms != self._terms:
            self._over = True
            self._unanswered.clear()
            why = (
                f"merged order at {source.partition('/')[0]} has {frame.terms}, "
                f"this bus has {self._terms}: "
                "connect with the same values, or after the others have left"
            )
            self.effects.append(Refuse((), why))
        elif source == self._fanouts[0] and not self._resumed:
            self._resumed = True
            self.effects.append(Resumed())

    def withdraw(self) -> None:
        """Withdraw the terms from all fan-outs: this client leaves."""
        self._over = True
        self._unanswered.clear()
        self.effects += (Send(fanout, Agree(terms="")) for fanout in self._fanouts)

    def _ask(self, now_ns: int) -> None:
        self._due_ns = now_ns + self._retry_ns
        question = Agree(terms=self._terms)
        self.effects += (Send(fanout, question) for fanout in self._unanswered)
