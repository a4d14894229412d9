"""The terms of a merged system: what all of its processes must have alike.

Behind a server's exchange they are agreed on at connect (`TermsClient`): the exchange keeps the terms of the clients that are there, and a
client with other terms gives up, with both in its error. On the topics of a broker nobody can be asked, so each stamp carries its
publisher's terms as entries, and every subscriber compares them with its own.
"""

from collections.abc import Mapping

import msgspec

from ensue.protocols.core import Effect, Refuse, Resumed, Send
from ensue.protocols.exchange import Agree, Agreed

__all__ = ["MergeTerms", "TermsClient", "terms_from"]

TICK_NS, EPSILON, DELTA = "@t", "@e", "@w"
DEFAULT_TICK_NS = 1_000_000
SECOND_NS = 1_000_000_000


class MergeTerms(msgspec.Struct, frozen=True):
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
        """Return them as they travel in a stamp; a tick of a millisecond is left out."""
        entries = {EPSILON: self.epsilon_ticks, DELTA: self.delta_ticks}
        if self.tick_ns != DEFAULT_TICK_NS:
            entries[TICK_NS] = self.tick_ns
        return entries

    def sorts_like(self, other: "MergeTerms") -> bool:
        """Tell whether stamps made under both can be sorted together. Delta has no part in them."""
        return (self.tick_ns, self.epsilon_ticks) == (other.tick_ns, other.epsilon_ticks)


def terms_from(entries: Mapping[str, int]) -> MergeTerms | None:
    """Return the terms that a stamp carries; None if it carries none."""
    epsilon = entries.get(EPSILON)
    if epsilon is None:
        return None
    return MergeTerms(entries.get(TICK_NS, DEFAULT_TICK_NS), epsilon, entries.get(DELTA, 0))


class TermsClient:
    """One client's side of the agreement with the exchanges of a chain, its own server's first.

    `Resumed` says that the first of them has agreed. `Refuse` says that one of them has other terms: the client is not
    let in, or, after a server was restarted, other clients came first.
    """

    def __init__(
        self, terms: MergeTerms, exchanges: tuple[str, ...], *, retry_ns: int, now_ns: int
    ) -> None:
        self._terms = str(terms)
        self._exchanges = exchanges
        self._retry_ns = retry_ns
        self._unanswered: dict[str, None] = {}
        self._due_ns = now_ns
        self._resumed = self._over = not exchanges
        self.effects: list[Effect] = []
        self.repeat(now_ns)

    def repeat(self, now_ns: int) -> None:
        """Ask all exchanges: they may have been restarted."""
        if not self._over:
            self._unanswered = dict.fromkeys(self._exchanges)
            self._ask(now_ns)

    def handle_timer(self, now_ns: int) -> None:
        """Ask those again that have not answered."""
        if self._unanswered and not now_ns < self._due_ns <= now_ns + self._retry_ns:
            self._ask(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to ask again."""
        return self._due_ns if self._unanswered else None

    def receive(self, frame: Agreed, source: str) -> None:
        """Compare the terms of an exchange with the own ones."""
        if self._over or source not in self._exchanges:
            return
        self._unanswered.pop(source, None)
        if frame.terms != self._terms:
            self._over = True
            self._unanswered.clear()
            why = (
                f"merged order at {source.partition('/')[0]} has {frame.terms}, this bus has {self._terms}: "
                "connect with the same values, or after the others have left"
            )
            self.effects.append(Refuse((), why))
        elif source == self._exchanges[0] and not self._resumed:
            self._resumed = True
            self.effects.append(Resumed())

    def withdraw(self) -> None:
        """Tell all exchanges that this client leaves: it holds nobody to its terms any more."""
        self._over = True
        self._unanswered.clear()
        self.effects += (Send(exchange, Agree(terms="")) for exchange in self._exchanges)

    def _ask(self, now_ns: int) -> None:
        self._due_ns = now_ns + self._retry_ns
        question = Agree(terms=self._terms)
        self.effects += (Send(exchange, question) for exchange in self._unanswered)
