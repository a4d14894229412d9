"""Gossip push: in each round, a process forwards the messages it has to a few peers.

A message is forwarded for `push_rounds` rounds. After that, while it lives, only its id is sent,
and a peer that lacks it sends a request (`Wanted`). A peer gets what it subscribed to and nothing
else (`interest`). A frame also carries the sender itself and two peers that it knows, which
maintains the views.

None of this affects the order: lost, duplicated or reordered frames cannot break it.

Limits: `retained_max` messages, oldest evicted first; `batch_max` messages and ids per frame.
"""

from collections.abc import Iterable, Iterator

import msgspec

from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Filters, Peer, Rumor, RumorId, Rumors, Wanted
from ensue.protocols.deadline.interest import EVERYTHING, are_readable, holds, part
from ensue.protocols.deadline.partial_views import Views
from ensue.protocols.interface import Effect, Send

__all__ = ["GossipPush"]

PEERS_SENT = 2
"""Known peers in each frame, beside the sender itself."""


class _ActiveRumor(msgspec.Struct):
    """A message that is being gossiped."""

    rumor: Rumor
    round: int
    """Its round number."""
    cut: str
    """The filter that was applied to it."""
    pushed: int = 0


class GossipPush:
    """The messages that one process gossips."""

    def __init__(self, config: DeadlineConfig, views: Views) -> None:
        self._config = config
        self._views = views
        self._active: dict[RumorId, _ActiveRumor] = {}

    def __bool__(self) -> bool:
        return bool(self._active)

    def __contains__(self, rumor: RumorId) -> bool:
        return rumor in self._active

    def add(self, rumor: Rumor, round: int, cut: str = EVERYTHING) -> None:  # noqa: A002
        """Gossip a message from now on, or the part of it that is here."""
        known = self._active.get(rumor.id)
        if known is None or known.round != round:  # An old one may have the same color.
            self._active[rumor.id] = _ActiveRumor(rumor, round, cut)
            if len(self._active) > self._config.retained_max:
                del self._active[next(iter(self._active))]

    def leave(self, topic: str) -> None:
        """Stop gossiping messages of a topic."""
        for key in [key for key in self._active if key[0] == topic]:
            del self._active[key]

    def push(self, now_round: int, me: Peer | None) -> list[Effect]:
        """Gossip once per round; `me` is the sender, if it is a subscriber."""
        lifetime = self._config.lifetime_rounds
        for key in [k for k, one in self._active.items() if now_round >= one.round + lifetime]:
            del self._active[key]
        if not self._active:
            return []
        topics = dict.fromkeys(key[0] for key in self._active)
        fresh = [one for one in self._active.values() if one.pushed < self._config.push_rounds]
        known = [one for one in self._active.values() if one.pushed >= self._config.push_rounds]
        effects: list[Effect] = []
        for peer in self._views.choose(topics, self._config.fan_out):
            frames = self._frames(peer, fresh, known, me)
            effects += (Send(peer.name, frame) for frame in frames)
        for one in self._active.values():
            one.pushed += 1
        return effects

    def send_at_once(self, rumor: Rumor) -> list[Effect]:
        """Send a new message to a few peers, in its own round."""
        chosen = self._views.choose((rumor.topic,), self._config.fan_out)
        return [Send(peer.name, _frame((rumor,), peer.wants)) for peer in chosen]

    def answer(self, frame: Wanted, peer: str, now_round: int) -> list[Effect]:
        """Send requested messages that are alive: colors of expired ones are reused."""
        if not are_readable(frame.wants.values()):
            return []
        lifetime = self._config.lifetime_rounds
        found = tuple(
            one.rumor
            for key in frame.ids[: self._config.batch_max]
            if (one := self._active.get(key)) is not None
            and now_round < one.round + lifetime
            and _can_give(one, frame.wants)
        )
        return [Send(peer, _frame(found, frame.wants))] if found else []

    def _frames(
        self, peer: Peer, fresh: list[_ActiveRumor], known: list[_ActiveRumor], me: Peer | None
    ) -> Iterator[Rumors]:
        """Yield the frames for a peer."""
        most, wants = self._config.batch_max, peer.wants

        def for_peer(ones: list[_ActiveRumor]) -> list[Rumor]:
            return [
                one.rumor
                for one in ones
                if one.rumor.topic in peer.topics and _can_give(one, wants)
            ]

        rumors, have = for_peer(fresh), [each.id for each in for_peer(known)]
        own: Iterable[Peer] = () if me is None else (me,)
        peers = (*own, *self._views.some(PEERS_SENT))
        for at in range(0, max(len(rumors), len(have)), most):
            parts = tuple(rumors[at : at + most])
            yield _frame(parts, wants, tuple(have[at : at + most]), () if at else peers)


def _can_give(one: _ActiveRumor, wants: Filters) -> bool:
    """Return whether a message contains everything that a peer wants of it."""
    return not one.cut or holds(one.cut, wants.get(one.rumor.topic, EVERYTHING))


def _frame(
    rumors: tuple[Rumor, ...],
    wants: Filters,
    have: tuple[RumorId, ...] = (),
    peers: tuple[Peer, ...] = (),
) -> Rumors:
    """Return a frame with messages, filtered for a peer."""
    if not wants:
        return Rumors(rumors=rumors, have=have, peers=peers)
    parts = tuple(part(each, wants.get(each.topic, EVERYTHING)) for each in rumors)
    cuts = {each.topic: wants[each.topic] for each in rumors if each.topic in wants}
    return Rumors(rumors=parts, have=have, peers=peers, cuts=cuts)
