"""How messages reach subscribers: in each round, whoever has some passes them on to a few peers.

A message is passed on for `push_rounds` rounds; after that, as long as it lives, its name is told along, and whoever lacks it
asks (`Wanted`). Everybody is given what it subscribed to and nothing else (`interest`). A frame also carries the sender itself and two
peers that it knows, which is how views are kept.

Nothing here has any part in the order: losing, repeating or reordering frames can't break it.

Limit: `retained_max` messages; the oldest go first. `batch_max` messages and names a frame, and as many frames as it takes.
"""

from collections.abc import Iterable, Iterator

import msgspec

from ensue.protocols.core import Effect, Send
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import Peer, Rumour, RumourId, Rumours, Wanted, Wishes
from ensue.protocols.gossip.interest import EVERYTHING, are_readable, holds, part
from ensue.protocols.gossip.views import Views

__all__ = ["Spreading"]

PEERS_TOLD = 2
"""Peers that are told along in each frame, beside the sender itself."""


class _Going(msgspec.Struct):
    """A message that goes round."""

    rumour: Rumour
    round: int
    """Its number."""
    cut: str
    """What there is of it."""
    pushed: int = 0


class Spreading:
    """The messages that one process passes on."""

    def __init__(self, config: GossipConfig, views: Views) -> None:
        self._config = config
        self._views = views
        self._going: dict[RumourId, _Going] = {}

    def __bool__(self) -> bool:
        return bool(self._going)

    def __contains__(self, rumour: RumourId) -> bool:
        return rumour in self._going

    def add(self, rumour: Rumour, round: int, cut: str = EVERYTHING) -> None:  # noqa: A002 - the word
        """Pass a message on from now on, or the part of it that is here."""
        known = self._going.get(rumour.id)
        if known is None or known.round != round:  # An old one may bear the same colour.
            self._going[rumour.id] = _Going(rumour, round, cut)
            if len(self._going) > self._config.retained_max:
                del self._going[next(iter(self._going))]

    def leave(self, topic: str) -> None:
        """Pass nothing of a topic on any more."""
        for key in [key for key in self._going if key[0] == topic]:
            del self._going[key]

    def push(self, now_round: int, me: Peer | None) -> list[Effect]:
        """Do what is to be done once in a round; `me` is the sender, if it is a subscriber."""
        lifetime = self._config.lifetime_rounds
        for key in [k for k, one in self._going.items() if now_round >= one.round + lifetime]:
            del self._going[key]
        if not self._going:
            return []
        topics = dict.fromkeys(key[0] for key in self._going)
        fresh = [one for one in self._going.values() if one.pushed < self._config.push_rounds]
        known = [one for one in self._going.values() if one.pushed >= self._config.push_rounds]
        effects: list[Effect] = []
        for peer in self._views.choose(topics, self._config.fan_out):
            frames = self._frames(peer, fresh, known, me)
            effects += (Send(peer.name, frame) for frame in frames)
        for one in self._going.values():
            one.pushed += 1
        return effects

    def send_at_once(self, rumour: Rumour) -> list[Effect]:
        """Tell a new message to a few, in the round it is of."""
        chosen = self._views.choose((rumour.topic,), self._config.fan_out)
        return [Send(peer.name, _told((rumour,), peer.wants)) for peer in chosen]

    def answer(self, frame: Wanted, peer: str, now_round: int) -> list[Effect]:
        """Send what somebody lacks, unless it is dead: by its colour an old copy looks like a new one."""
        if not are_readable(frame.wants.values()):
            return []
        lifetime = self._config.lifetime_rounds
        found = tuple(
            one.rumour
            for key in frame.ids[: self._config.batch_max]
            if (one := self._going.get(key)) is not None
            and now_round < one.round + lifetime
            and _can_give(one, frame.wants)
        )
        return [Send(peer, _told(found, frame.wants))] if found else []

    def _frames(
        self, peer: Peer, fresh: list[_Going], known: list[_Going], me: Peer | None
    ) -> Iterator[Rumours]:
        """Tell somebody everything, in as many frames as that takes."""
        most, wants = self._config.batch_max, peer.wants

        def for_it(ones: list[_Going]) -> list[Rumour]:
            return [
                one.rumour
                for one in ones
                if one.rumour.topic in peer.topics and _can_give(one, wants)
            ]

        rumours, have = for_it(fresh), [each.id for each in for_it(known)]
        own: Iterable[Peer] = () if me is None else (me,)
        peers = (*own, *self._views.some(PEERS_TOLD))
        for at in range(0, max(len(rumours), len(have)), most):
            parts = tuple(rumours[at : at + most])
            yield _told(parts, wants, tuple(have[at : at + most]), () if at else peers)


def _can_give(one: _Going, wants: Wishes) -> bool:
    """Tell whether there is all of a message that somebody wants of it."""
    return not one.cut or holds(one.cut, wants.get(one.rumour.topic, EVERYTHING))


def _told(
    rumours: tuple[Rumour, ...],
    wants: Wishes,
    have: tuple[RumourId, ...] = (),
    peers: tuple[Peer, ...] = (),
) -> Rumours:
    """Return messages as they are told to somebody."""
    if not wants:
        return Rumours(rumours=rumours, have=have, peers=peers)
    parts = tuple(part(each, wants.get(each.topic, EVERYTHING)) for each in rumours)
    cuts = {each.topic: wants[each.topic] for each in rumours if each.topic in wants}
    return Rumours(rumours=parts, have=have, peers=peers, cuts=cuts)
