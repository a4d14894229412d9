"""Partial views: a process knows some of the subscribers of each topic, never all of them.

As in lpbcast, a view is bounded; gossip carries a few known peers along, and when a view is full a
random peer is removed. Peers of the same site are preferred, both in views and as targets
(`near_percent`), so that most copies stay near; the rest goes to remote peers, so that sites stay
connected.

Random choices come from a stream seeded by the name alone: the same input gives the same choices.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Peer
from ensue.protocols.deadline.interest import are_readable

__all__ = ["Picker", "Views"]

T = TypeVar("T")
_MASK = (1 << 64) - 1


class Picker:
    """A deterministic pseudorandom generator (xorshift64*)."""

    __slots__ = ("_state",)

    def __init__(self, name: str, salt: int = 0) -> None:
        digest = blake2b(name.encode(), digest_size=8, salt=salt.to_bytes(8, "big")).digest()
        self._state = int.from_bytes(digest, "big") | 1

    def below(self, limit: int) -> int:
        """Return a number from 0 up to, but excluding, a limit."""
        state = self._state
        state ^= state >> 12
        state = (state ^ (state << 25)) & _MASK
        state ^= state >> 27
        self._state = state
        return ((state * 0x2545F4914F6CDD1D & _MASK) >> 32) * limit >> 32

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return up to `count` distinct items."""
        left = list(items)
        chosen: list[T] = []
        while left and len(chosen) < count:
            at = self.below(len(left))
            left[at], left[-1] = left[-1], left[at]
            chosen.append(left.pop())
        return chosen


class Views:
    """The peers known to one process, by topic."""

    def __init__(self, name: str, site: str, config: DeadlineConfig, picker: Picker) -> None:
        self._name = name
        self._site = site
        self._config = config
        self._picker = picker
        self._near_max = max(1, config.view_max * config.near_percent // 100)
        self.peers: dict[str, Peer] = {}
        self._of_topic: dict[str, dict[str, None]] = {}

    def of(self, topic: str) -> list[str]:
        """Return the names of the known peers of a topic."""
        return list(self._of_topic.get(topic, ()))

    def learn(self, peer: Peer, mine: Iterable[str] | None = None) -> None:
        """Add a peer, in those of its topics that are also `mine`, if given."""
        if peer.name == self._name or not are_readable(peer.wants.values()):
            return
        known = self.peers.get(peer.name)
        if known is not None and known.round > peer.round:
            return
        wanted = peer.topics if mine is None else [each for each in mine if each in peer.topics]
        if known is not None:
            for topic in known.topics:
                if topic not in wanted:
                    self._remove(topic, peer.name)
        if not wanted:
            self.peers.pop(peer.name, None)
            return
        self.peers[peer.name] = peer
        for topic in wanted:
            self._of_topic.setdefault(topic, {})[peer.name] = None
        for topic in wanted:
            if len(self._of_topic[topic]) > self._config.view_max:
                self._make_room(topic, self._of_topic[topic])

    def forget(self, topic: str) -> None:
        """Forget the peers of a topic."""
        for name in self.of(topic):
            self._remove(topic, name)
        self._of_topic.pop(topic, None)

    def expire(self, now_round: int) -> None:
        """Forget peers that have been silent for `expire_rounds`."""
        oldest = now_round - self._config.expire_rounds
        for name in [name for name, peer in self.peers.items() if peer.round < oldest]:
            for topic in self.peers[name].topics:
                self._remove(topic, name)
            self.peers.pop(name, None)

    def choose(self, topics: Iterable[str], count: int) -> list[Peer]:
        """Return random peers of any of the topics, mostly near ones."""
        names: dict[str, None] = {}
        for topic in topics:
            names.update(self._of_topic.get(topic, {}))
        peers = [self.peers[name] for name in names]
        if len(peers) <= count:
            return peers
        near = [peer for peer in peers if peer.site == self._site]
        far = [peer for peer in peers if peer.site != self._site]
        if not near or not far:
            return self._picker.sample(peers, count)
        wanted = sum(self._picker.below(100) < self._config.near_percent for _ in range(count))
        chosen = self._picker.sample(near, wanted)
        chosen += self._picker.sample(far, count - len(chosen))
        return chosen

    def some(self, count: int) -> list[Peer]:
        """Return random known peers, to be sent to others."""
        return self._picker.sample(list(self.peers.values()), count)

    def _make_room(self, topic: str, names: dict[str, None]) -> None:
        near = [name for name in names if self.peers[name].site == self._site]
        far = [name for name in names if self.peers[name].site != self._site]
        crowd = near if len(near) > self._near_max or not far else far
        self._remove(topic, crowd[self._picker.below(len(crowd))])

    def _remove(self, topic: str, name: str) -> None:
        names = self._of_topic.get(topic)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._of_topic[topic]
        if not any(name in each for each in self._of_topic.values()):
            self.peers.pop(name, None)
