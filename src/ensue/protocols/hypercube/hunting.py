"""Look for events until somebody gives them, or everybody has said that it can't.

One who does not keep an event says nothing about others: it may have joined after it was published, or have kept other topics in
its place. So nothing is given up (`forsaking`) before the source, unless it has left for good, and every member that can be reached have said
that they can't give it (`Gone`). Whoever has not said anything yet is asked again, the source first, then more of the
members each time; one that stays silent is suspected, and then not waited for. Those who are suspected already are asked, too, and have
`suspect_ns` to answer: a node that was cut off itself suspects everybody, and hears of one before the others.

Two things end a hunt besides: that nothing came of it for `patience_ns`, and that events of this source are not taken here (it is in doubt).
"""

from collections.abc import Callable

from ensue.protocols.hypercube.causality import IN, Causality
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.suspects import Suspects

__all__ = ["BACKOFF_MAX", "Hunts"]

ASKED_AT_ONCE = 2
"""So many are asked first; then twice as many, and so on: most often the first one gives."""
BACKOFF_MAX = 16
"""Somebody who finds no help asks less often, but never so many times less often."""


class _Hunt:
    """What is looked for of one source and topic."""

    __slots__ = ("begun_ns", "due_ns", "have", "said", "since_ns", "tries", "up_to", "waited")

    def __init__(self, up_to: int, have: int, now_ns: int) -> None:
        self.up_to = up_to
        self.have = have
        """Up to which number everything was here when it was looked at last."""
        self.begun_ns = now_ns
        self.since_ns = now_ns
        """Since when nothing came of it."""
        self.said: dict[int, int] = {}
        """By peer: up to which number it keeps nothing; 0: it never had what is missing."""
        self.due_ns = now_ns
        self.tries = 0
        self.waited = False
        """Whether the source has had `patience_ns` to be back, and was not."""

    def can_help(self, peer: int, have: int) -> bool:
        """Tell whether a peer has yet to say that it can't give the next event."""
        up_to = self.said.get(peer)
        return up_to is None or 0 < up_to <= have


class Hunts:
    """What one node is looking for."""

    def __init__(
        self,
        config: HypercubeConfig,
        causality: Causality,
        suspects: Suspects,
        *,
        helpers: Callable[[str, int], list[int]],
        ask: Callable[[str, int, int], None],
    ) -> None:
        self._config = config
        self._causality = causality
        self._suspects = suspects
        self._helpers = helpers
        """Lists who may have events of a topic and source, the suspected included."""
        self._ask = ask
        """Asks for events of a topic, of a peer, and of a source."""
        self._hunts: dict[tuple[str, int], _Hunt] = {}

    def begin(
        self, topic: str, source: int, up_to: int, *, now_ns: int, waited: bool = False
    ) -> None:
        """Look for the events of a source up to a number, unless it is looked for already; say if its source was waited for already."""
        have = self._causality.topic(topic).have(source)
        if have >= up_to:
            return
        hunt = self._hunts.setdefault((topic, source), _Hunt(up_to, have, now_ns))
        hunt.waited |= waited

    def said(self, topic: str, source: int, peer: int, up_to: int) -> None:
        """Note that a peer can't give what is missing."""
        hunt = self._hunts.get((topic, source))
        if hunt is not None:
            hunt.said[peer] = up_to

    def end(self, topic: str, source: int) -> None:
        """Look no more for events of a source, until something is missing again."""
        self._hunts.pop((topic, source), None)

    def forget(self, topic: str) -> None:
        """Look for nothing more in a topic."""
        for key in [each for each in self._hunts if each[0] == topic]:
            del self._hunts[key]

    def handle_timer(self, *, now_ns: int) -> None:
        """Ask where it is time."""
        for (topic, source), hunt in list(self._hunts.items()):
            state = self._causality.topic(topic)
            have = state.have(source)
            if state.state != IN or have >= hunt.up_to:
                del self._hunts[topic, source]
                continue
            if have > hunt.have:
                hunt.have, hunt.since_ns, hunt.tries = have, now_ns, 0
            hunt.since_ns = min(hunt.since_ns, now_ns)
            hunt.begun_ns = min(hunt.begun_ns, now_ns)
            if hunt.due_ns <= now_ns:
                self._ask_more(topic, source, hunt, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to ask again."""
        return min((hunt.due_ns for hunt in self._hunts.values()), default=None)

    def in_vain(self, topic: str, source: int, *, now_ns: int) -> int:
        """Return up to which number nobody can give what is missing; 0 if somebody may."""
        hunt = self._hunts.get((topic, source))
        if hunt is None:
            return 0
        state = self._causality.topic(topic)
        have = state.have(source)
        if have >= hunt.up_to:
            return 0
        # Somebody may keep what comes later.
        last = min([hunt.up_to, *(up_to for up_to in hunt.said.values() if up_to > have)])
        if state.doubt >> source & 1 or now_ns - hunt.since_ns >= self._config.patience_ns:
            return last
        return 0 if self._left(topic, source, hunt, now_ns) else last

    def all_in_vain(self, *, now_ns: int) -> list[tuple[str, int, int]]:
        """List topics and sources of which nobody can give anything, up to which number."""
        return [(*key, last) for key in self._hunts if (last := self.in_vain(*key, now_ns=now_ns))]

    def _left(self, topic: str, source: int, hunt: _Hunt, now_ns: int) -> list[int]:
        """List who has yet to say whether it can give anything."""
        have = self._causality.topic(topic).have(source)
        silent = self._suspects.suspected
        if not hunt.waited:
            # The source keeps what it published, and has `patience_ns` to be back.
            silent &= ~(1 << source)
        if now_ns - hunt.begun_ns < self._config.suspect_ns:
            silent = 0
        return [
            peer
            for peer in self._helpers(topic, source)
            if hunt.can_help(peer, have) and not silent >> peer & 1
        ]

    def _ask_more(self, topic: str, source: int, hunt: _Hunt, now_ns: int) -> None:
        left = self._left(topic, source, hunt, now_ns)
        for peer in left[: ASKED_AT_ONCE << min(hunt.tries, BACKOFF_MAX)]:
            self._suspects.away(peer, now_ns)
            self._suspects.ask(peer, now_ns)
            self._ask(topic, peer, source)
        hunt.tries += 1
        backoff = min(1 << min(hunt.tries // 2, 8), BACKOFF_MAX)
        hunt.due_ns = now_ns + backoff * self._config.gap_ns
