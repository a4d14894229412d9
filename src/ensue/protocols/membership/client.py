"""The membership client: follow the registry's lists, and request topics.

The registry is polled every few seconds, when a frame of an unknown process arrives (it probably
registered after the last update), and when a connection is back. Unanswered topic requests are
repeated.

When the registry evicts the process, one `Refuse` effect reports it, and the driver ends the node.
A process that leaves repeats `Deregister` until the registry has answered (`resigned`): while it is
on the list, others wait for it, and processes with other terms are rejected.
"""

import msgspec

from ensue.protocols.interface import Effect, Frame, Refuse, Send
from ensue.protocols.membership.frames import (
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
        self.readers: tuple[int, ...] = ()
        """Numbers of members that may have subscribed when this process registered."""
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
        self.readers = members.readers or self.readers
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

    def question(self, asked: int = 0) -> Register:
        """Return a request for the unknown entries."""
        known, gone = len(self.names), len(self.gone)
        digest = self._list.digest(known, gone) or b""
        return Register(
            epoch=self.epoch, known=known, gone=gone, terms=self.terms, digest=digest, asked=asked
        )


class MembershipUpdate(msgspec.Struct):
    """What an answer of the registry changes."""

    came: list[str] = []
    went: list[int] = []
    """Numbers of members that have left."""
    granted: TopicGranted | None = None
    denied: TopicDenied | None = None


class MembershipClient:
    """The membership of one process. The owner drains `effects`."""

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
        self._asks.pop((topic, action), None)
        if topic in self._granted[action]:
            self._granted[action].discard(topic)
            self.effects.append(Send(self.registry, TopicReleased(topic=topic)))

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
        self._poll_due_ns = now_ns + (RETRY_NS if self._leaving else POLL_NS)
        self._asked_ns = now_ns
        if self._leaving and not self.resigned:
            self.resign()
        elif not self._leaving and not self._evicted:
            self.asked += 1
            self.effects.append(Send(self.registry, self.members.question(self.asked)))

    def repeat(self, now_ns: int) -> None:
        """Repeat all requests now, and report the topics in use: the connection is new."""
        self.question(now_ns)
        if self._leaving:
            return
        for topic in sorted(self._granted["subscribe"]):
            self.effects.append(Send(self.registry, TopicRequest(topic=topic, action="subscribe")))
        for topic, action in self._asks:
            self._ask(topic, action, now_ns)

    def resign(self) -> None:
        """Leave permanently; repeated until the registry confirms it."""
        self._leaving = True
        self._asks.clear()
        self.effects.append(Send(self.registry, Deregister(epoch=self.members.epoch)))

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
        self.effects.append(Send(self.registry, TopicRequest(topic=topic, action=action)))

    def _evict(self, reason: str) -> None:
        if not self._evicted:
            self._evicted = True
            self.effects.append(Refuse((), reason))

    def _update(self, frame: Members, now_ns: int) -> MembershipUpdate:
        members = self.members
        names, gone = len(members.names), len(members.gone)
        if members.take(frame):
            self.answered = max(self.answered, min(frame.asked, self.asked))
        else:
            self.question(now_ns)
        # A number may be known to be gone before its name is known.
        went = [number for number in members.gone[:gone] if names <= number < len(members.names)]
        went += [number for number in members.gone[gone:] if number < len(members.names)]
        return MembershipUpdate(came=members.names[names:], went=went)
