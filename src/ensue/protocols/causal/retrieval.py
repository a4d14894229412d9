"""Retrieval: search for missing events until a peer sends them or none can.

A peer without an event proves nothing about other peers: it may have joined later, or have cached
other topics instead. So no event is given up (`loss_recovery`) before its source, unless
it has left permanently, and every reachable member have answered `NotCached`. Peers that have not
answered are asked again: the source first, then more members each time. A peer that stays silent
is suspected, and then not waited for. Peers that are suspected already are asked too, and have
`suspect_ns` to answer: a node that was cut off itself suspects all others, and hears from one
first.

A search also fails when it makes no progress for `patience_ns`, or when the source is in doubt,
so that its events are not taken here.
"""

from collections.abc import Callable

from ensue.protocols.causal.causality import IN
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.causal.requests import Requests

__all__ = ["BACKOFF_MAX", "Retrieval"]

ASKED_AT_ONCE = 2
"""Peers asked first; then twice as many, and so on. The first one usually has the event."""
BACKOFF_MAX = 16
"""Upper bound of the factor by which unsuccessful requests slow down."""


class _Search:
    """The search for events of one source and topic."""

    __slots__ = ("absent", "begun_ns", "due_ns", "have", "since_ns", "tries", "up_to", "waited")

    def __init__(self, up_to: int, have: int, now_ns: int) -> None:
        self.up_to = up_to
        self.have = have
        """Up to which number all events were here at the last check."""
        self.begun_ns = now_ns
        self.since_ns = now_ns
        """Since when there was no progress."""
        self.absent: dict[int, int] = {}
        """By peer: up to which number it has nothing; 0: it never had the missing event."""
        self.due_ns = now_ns
        self.tries = 0
        self.waited = False
        """Whether the source was away for `patience_ns`."""

    def can_help(self, peer: int, have: int) -> bool:
        """Return whether a peer may still have the next event."""
        up_to = self.absent.get(peer)
        return up_to is None or 0 < up_to <= have


class Retrieval:
    """The searches of one node."""

    def __init__(
        self,
        state: NodeState,
        *,
        helpers: Callable[[str, int], list[int]],
        requests: Requests,
    ) -> None:
        self._config = state.config
        self._causality = state.causality
        self._detector = state.detector
        self._round_trips = state.round_trips
        self._helpers = helpers
        """Lists peers that may have events of a topic and source, suspected ones included."""
        self._requests = requests
        self._searches: dict[tuple[str, int], _Search] = {}

    def begin(
        self, topic: str, source: int, up_to: int, *, now_ns: int, waited: bool = False
    ) -> None:
        """Search for events of a source; `waited` if the source was away too long."""
        have = self._causality.topic(topic).have(source)
        if have >= up_to:
            return
        search = self._searches.setdefault((topic, source), _Search(up_to, have, now_ns))
        search.waited |= waited

    def not_cached(self, topic: str, source: int, peer: int, up_to: int) -> None:
        """Record that a peer does not have the missing events."""
        search = self._searches.get((topic, source))
        if search is not None:
            search.absent[peer] = up_to

    def end(self, topic: str, source: int) -> None:
        """End the search for events of a source."""
        self._searches.pop((topic, source), None)

    def forget(self, topic: str) -> None:
        """End all searches in a topic."""
        for key in [each for each in self._searches if each[0] == topic]:
            del self._searches[key]

    def handle_timer(self, *, now_ns: int) -> None:
        """Send due requests."""
        for (topic, source), search in list(self._searches.items()):
            state = self._causality.topic(topic)
            have = state.have(source)
            if state.state != IN or have >= search.up_to:
                del self._searches[topic, source]
                continue
            if have > search.have:
                search.have, search.since_ns, search.tries = have, now_ns, 0
                due_ns = self._requests.due_ns(topic, source, now_ns)
                if due_ns is not None:
                    search.due_ns = due_ns  # The peer that sent it has been asked for more.
            search.since_ns = min(search.since_ns, now_ns)
            search.begun_ns = min(search.begun_ns, now_ns)
            if search.due_ns <= now_ns:
                self._ask_more(topic, source, search, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next request is due."""
        return min((search.due_ns for search in self._searches.values()), default=None)

    def in_vain(self, topic: str, source: int, *, now_ns: int) -> int:
        """Return up to which number no peer has the missing events; 0 if one may."""
        search = self._searches.get((topic, source))
        if search is None:
            return 0
        state = self._causality.topic(topic)
        have = state.have(source)
        if have >= search.up_to:
            return 0
        # A peer may have later events.
        last = min([search.up_to, *(up_to for up_to in search.absent.values() if up_to > have)])
        if state.doubt >> source & 1 or now_ns - search.since_ns >= self._config.patience_ns:
            return last
        return 0 if self._left(topic, source, search, now_ns) else last

    def all_in_vain(self, *, now_ns: int) -> list[tuple[str, int, int]]:
        """List failed searches: topic, source, and up to which number."""
        return [
            (*key, last) for key in self._searches if (last := self.in_vain(*key, now_ns=now_ns))
        ]

    def _left(self, topic: str, source: int, search: _Search, now_ns: int) -> list[int]:
        """List peers that have not answered."""
        have = self._causality.topic(topic).have(source)
        silent = self._detector.suspected
        if not search.waited:
            # The source has what it published, and `patience_ns` to come back.
            silent &= ~(1 << source)
        if now_ns - search.begun_ns < self._config.suspect_ns:
            silent = 0
        return [
            peer
            for peer in self._helpers(topic, source)
            if search.can_help(peer, have) and not silent >> peer & 1
        ]

    def _ask_more(self, topic: str, source: int, search: _Search, now_ns: int) -> None:
        left = self._left(topic, source, search, now_ns)
        for peer in left[: ASKED_AT_ONCE << min(search.tries, BACKOFF_MAX)]:
            self._detector.away(peer, now_ns)
            self._detector.ask(peer, now_ns)
            self._requests.probe(topic, peer, source, now_ns)
        search.tries += 1
        backoff = min(1 << min(search.tries // 2, 8), BACKOFF_MAX)
        search.due_ns = now_ns + backoff * self._round_trips.timeout_ns
