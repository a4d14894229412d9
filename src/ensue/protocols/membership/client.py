"""The membership client: follow the registry's lists, and request topics.

The registry is polled every few seconds, when a frame of an unknown process arrives (it probably
registered after the last update), when a connection is back, and when the owner inquires which
members may have subscribed to a topic. Unanswered topic requests and inquiries are repeated.

When the registry evicts the process, one `Refuse` effect reports it, and the driver ends the node.
A process that leaves repeats `Deregister` until the registry has answered (`resigned`): while it is
on the list, others wait for it, and processes with other terms are rejected.
"""

import msgspec

from ensue.protocols.interface import Effect, Frame, Refuse, Send
from ensue.protocols.membership.frames import (
    INQUIRIES_MAX,
    Action,
    Deregister,
    Evicted,
    Members,
    Register,
    TopicDenied,
    TopicGranted,
    TopicReleased,
    TopicRequest,
)
from ensue.protocols.membership.member_list import MemberList
from ensue.protocols.membership.registry import AGAIN

__all__ = ["KnownMembers", "MembershipClient", "MembershipUpdate"]

POLL_NS = 2_000_000_000
"""Interval at which the registry is polled."""
RETRY_NS = 500_000_000
"""Delay until an unanswered topic request is repeated."""
STRANGER_NS = 50_000_000
"""Minimum interval between polls that unknown senders cause."""
STRANGERS_MAX = 256
"""Unknown senders whose last frame is kept; the oldest are forgotten first."""


class KnownMembers:
    """A process's copy of the lists. `terms` are the settings all must share."""

    def __init__(self, terms: str = "") -> None:
        self.terms = terms
        self.epoch = 0
        self._list = MemberList()
        self._whole = False

    @property
    def names(self) -> list[str]:
        """Names in the order of their numbers."""
        return self._list.names

    @property
    def gone(self) -> list[int]:
        """Numbers of members that have left."""
        return self._list.gone

    @property
    def whole(self) -> bool:
        """Whether the last update completed the lists."""
        return self._whole

    def take(self, members: Members) -> bool:
        """Append new entries; return whether the lists are complete."""
        self.epoch = members.epoch
        known, gone = len(self.names), len(self.gone)
        if members.first > known or members.gone_first > gone or not self.fits(members):
            self._whole = False
            return False
        for name in members.names[known - members.first :]:
            self._list.add(name)
        for number in members.gone[gone - members.gone_first :]:
            self._list.part(number)
        self._whole = len(self.names) >= members.total and len(self.gone) >= members.gone_total
        return self._whole

    def fits(self, members: Members) -> bool:
        """Return whether the registry's lists continue these."""
        known = self._list.digest(members.first, members.gone_first)
        return known is None or known == members.digest

    def question(self, asked: int = 0, topics: tuple[str, ...] = ()) -> Register:
        """Return a request for the unknown entries, and for readers of topics."""
        known, gone = len(self.names), len(self.gone)
        return Register(
            epoch=self.epoch,
            known=known,
            gone=gone,
            terms=self.terms,
            digest=self._list.digest(known, gone) or b"",
            asked=asked,
            topics=topics,
        )


class MembershipUpdate(msgspec.Struct):
    """What an answer of the registry changes."""

    came: list[str] = []
    went: list[int] = []
    """Numbers of members that have left."""
    granted: TopicGranted | None = None
    denied: TopicDenied | None = None
    readers: dict[str, tuple[int, ...]] = {}
    """By topic: numbers of the members that may have subscribed, if that was asked."""


class MembershipClient:
    """The membership of one process. The owner drains its effects."""

    def __init__(self, registry: str, members: KnownMembers, *, now_ns: int) -> None:
        self.registry = registry
        self.members = members
        self.effects: list[Effect] = []
        self.denied: dict[str, str] = {}
        """Topics that this process may not publish on, with the reason."""
        self._poll_due_ns = now_ns + POLL_NS
        self._asked_ns = now_ns
        self.asked = 0
        """Number of the last poll."""
        self.answered = 0
        """All processes that were members when this poll was sent are known."""
        self._evicted = False
        self._leaving = False
        self.resigned = False
        """Whether this process has left, and the registry has confirmed it."""
        self._strangers: dict[str, Frame] = {}
        """Unknown senders, and the last frame of each."""
        self._granted: dict[Action, set[str]] = {"publish": set(), "subscribe": set()}
        self._asks: dict[tuple[str, Action], int] = {}
        """Unanswered topic requests, and when to repeat them."""
        self._requests = 0
        """Number of the last topic request."""
        self._released: dict[str, tuple[int, TopicReleased]] = {}
        """Released topics, until the registry has answered this poll, which is a later one."""
        self._inquiries: dict[str, int] = {}
        """Topics whose readers are needed, and the first poll that asked; 0: none has yet."""

    # -- Topics ---------------------------------------------------------------------------------

    def may(self, topic: str, action: Action) -> bool:
        """Return whether a topic was granted."""
        return topic in self._granted[action]

    def ask(self, topic: str, action: Action, now_ns: int) -> None:
        """Request a topic, unless it was requested before."""
        if topic not in self._granted[action] and (topic, action) not in self._asks:
            self._ask(topic, action, now_ns)

    def withdraw(self, topic: str, action: Action) -> None:
        """Cancel the request for a topic, and release it if it was granted."""
        asked = self._asks.pop((topic, action), None) is not None
        if asked or topic in self._granted[action]:
            self._granted[action].discard(topic)
            released = TopicReleased(topic=topic, asked=self._requests)
            self._released[topic] = self.asked + 1, released
            self.effects.append(Send(self.registry, released))

    def inquire(self, topic: str, now_ns: int) -> None:
        """Ask which members may have subscribed to a topic; an update has the answer.

        Polls at once, unless such a poll is under way: the next one is for all topics since.
        """
        self._inquiries.setdefault(topic, 0)
        if not any(self._inquiries.values()) and not self._leaving:
            self.question(now_ns)

    def has_inquired(self, topic: str) -> bool:
        """Return whether a poll about a topic is under way."""
        return bool(self._inquiries.get(topic))

    # -- Members --------------------------------------------------------------------------------

    def receive(self, frame: Frame, now_ns: int) -> MembershipUpdate:
        """Handle a frame of the registry; ignore unexpected ones."""
        match frame:
            case Members(epoch=epoch) if epoch == self.members.epoch:
                if self.members.fits(frame):
                    return self._update(frame, now_ns)
                self.resign()
                self._evict(f"the registry has lost its membership records: {AGAIN}")
            case Evicted() if self._leaving:
                self.resigned = True
            case Evicted(reason=reason):
                self._evict(reason)
            case TopicGranted(topic=topic, action=action) if (topic, action) in self._asks:
                del self._asks[topic, action]
                self._granted[action].add(topic)
                return MembershipUpdate(granted=frame)
            case TopicDenied(topic=topic, action=action) if (topic, action) in self._asks:
                del self._asks[topic, action]
                if action == "publish":
                    self.denied[topic] = frame.reason
                return MembershipUpdate(denied=frame)
            case _:
                pass
        return MembershipUpdate()

    def stranger(self, name: str, frame: Frame, now_ns: int) -> None:
        """Keep the frame of an unknown sender, and poll the registry for it."""
        self._strangers.pop(name, None)
        if len(self._strangers) >= STRANGERS_MAX:
            del self._strangers[next(iter(self._strangers))]
        self._strangers[name] = frame
        if not 0 <= now_ns - self._asked_ns < STRANGER_NS:
            self.question(now_ns)

    def introduce(self, name: str) -> Frame | None:
        """Return the last frame that a new member sent while it was unknown."""
        return self._strangers.pop(name, None)

    # -- Driven from outside --------------------------------------------------------------------

    def question(self, now_ns: int) -> None:
        """Poll the registry, or repeat that this process leaves."""
        self._poll_due_ns = now_ns + (RETRY_NS if self._leaving or self._inquiries else POLL_NS)
        self._asked_ns = now_ns
        if self._leaving and not self.resigned:
            self.resign()
        elif not self._leaving and not self._evicted:
            self.asked += 1
            topics = tuple(self._inquiries)[:INQUIRIES_MAX]
            for topic in topics:
                self._inquiries[topic] = self._inquiries[topic] or self.asked
            self.effects.append(Send(self.registry, self.members.question(self.asked, topics)))

    def repeat(self, now_ns: int) -> None:
        """Repeat all requests now, and report the topics in use: the connection is new."""
        self.question(now_ns)
        if self._leaving:
            return
        for _, released in self._released.values():
            self.effects.append(Send(self.registry, released))
        for topic in sorted(self._granted["subscribe"]):
            self._request(topic, "subscribe")
        for topic, action in self._asks:
            self._ask(topic, action, now_ns)

    def resign(self) -> None:
        """Leave permanently; repeated until the registry confirms it."""
        self._leaving = True
        self._asks.clear()
        self.effects.append(Send(self.registry, Deregister(epoch=self.members.epoch)))

    def take_effects(self) -> list[Effect]:
        """Drain the pending effects."""
        effects, self.effects = self.effects, []
        return effects

    def handle_timer(self, now_ns: int) -> None:
        """Send due polls and requests."""
        if self._poll_due_ns <= now_ns:
            self.question(now_ns)
        for (topic, action), due_ns in self._asks.items():
            if due_ns <= now_ns:
                self._ask(topic, action, now_ns)

    def next_timer_ns(self) -> int:
        """Return when the next timer is due."""
        return min([self._poll_due_ns, *self._asks.values()])

    def _ask(self, topic: str, action: Action, now_ns: int) -> None:
        self._asks[topic, action] = now_ns + RETRY_NS
        self._request(topic, action)

    def _request(self, topic: str, action: Action) -> None:
        self._requests += 1
        request = TopicRequest(topic=topic, action=action, asked=self._requests)
        self.effects.append(Send(self.registry, request))

    def _evict(self, reason: str) -> None:
        if not self._evicted:
            self._evicted = True
            self.effects.append(Refuse((), reason))

    def _update(self, frame: Members, now_ns: int) -> MembershipUpdate:
        members = self.members
        names, gone = len(members.names), len(members.gone)
        readers: dict[str, tuple[int, ...]] = {}
        if members.take(frame):
            self.answered = max(self.answered, min(frame.asked, self.asked))
            self._released = {
                topic: (poll, released)
                for topic, (poll, released) in self._released.items()
                if poll > self.answered
            }
            readers = self._take_readers(frame, now_ns)
        else:
            self.question(now_ns)
        # A number may be known to be gone before its name is known.
        went = [number for number in members.gone[:gone] if names <= number < len(members.names)]
        went += [number for number in members.gone[gone:] if number < len(members.names)]
        return MembershipUpdate(came=members.names[names:], went=went, readers=readers)

    def _take_readers(self, frame: Members, now_ns: int) -> dict[str, tuple[int, ...]]:
        """Return the answers to inquiries; ask again for the rest, and for later ones."""
        readers = {
            topic: numbers
            for topic, numbers in frame.readers.items()
            if 0 < self._inquiries.get(topic, 0) <= frame.asked
        }
        for topic in readers:
            del self._inquiries[topic]
        if readers and any(first <= frame.asked for first in self._inquiries.values()):
            self.question(now_ns)
        return readers
