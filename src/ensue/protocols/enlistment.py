"""What a process knows by a registry: who else is there, under which numbers, and which topics it may use.

For processes that keep an order among themselves, whichever: `Lists` are the registry's as far as they are known, and an `Enlistment` keeps them up
to date, asks for topics, and says what is new (`News`). A registry is asked every few seconds, whenever a stranger
turns up, who is likely newer than the last news, and when a connection is back; what was asked for in vain is asked for again.

Expelled by the registry, it says so once (`Refuse`): whoever drives the node ends it. Who leaves by itself says so until the registry has answered
(`resigned`): as long as it is on the list, others wait for it, and who has other terms is not let in.
"""

import msgspec

from ensue.protocols.core import Effect, Frame, Refuse, Send
from ensue.protocols.hypercube import enrolment
from ensue.protocols.hypercube.enrolment import (
    AGAIN,
    Action,
    Ask,
    Denied,
    Enrol,
    Expelled,
    Granted,
    Leave,
    Members,
    Resign,
)

__all__ = ["Enlistment", "Lists", "News"]

POLL_NS = 2_000_000_000
"""How often the registry is asked what is new."""
RETRY_NS = 500_000_000
"""A topic that was asked for in vain is asked for again after so long."""
STRANGER_NS = 50_000_000
"""The registry is asked about strangers no more often than this."""
STRANGERS_MAX = 256
"""Those who are on no list and are remembered: the last that said anything."""


class Lists(enrolment.Lists):
    """What is known of the registry's lists, from its answers. `terms` is what all on them must agree on."""

    def __init__(self, terms: str = "") -> None:
        super().__init__()
        self.terms = terms
        self.epoch = 0
        self._whole = False

    @property
    def whole(self) -> bool:
        """Whether there was nothing more to be told."""
        return self._whole

    def take(self, members: Members) -> bool:
        """Take over what is new; False if something before it is missing."""
        self.epoch = members.epoch
        known, gone = len(self.names), len(self.gone)
        if members.first > known or members.gone_first > gone or not self.fits(members):
            self._whole = False
            return False
        for name in members.names[known - members.first :]:
            self.add(name)
        for number in members.gone[gone - members.gone_first :]:
            self.part(number)
        self._whole = len(self.names) >= members.total and len(self.gone) >= members.gone_total
        return self._whole

    def fits(self, members: Members) -> bool:
        """Tell whether the registry's lists are these, as far as they were known."""
        known = self.digest(members.first, members.gone_first)
        return known is None or known == members.digest

    def question(self, asked: int = 0) -> Enrol:
        """Ask for what is not known."""
        known, gone = len(self.names), len(self.gone)
        digest = self.digest(known, gone) or b""
        return Enrol(
            epoch=self.epoch, known=known, gone=gone, terms=self.terms, digest=digest, asked=asked
        )


class News(msgspec.Struct):
    """What an answer of the registry changes."""

    came: list[str] = []
    went: list[int] = []
    """Numbers of those who are gone for good."""
    granted: Granted | None = None
    denied: Denied | None = None


class Enlistment:
    """One process's dealings with its registry. `lists` are whole, and name it; `effects` are for whoever uses this."""

    def __init__(self, registry: str, lists: Lists, *, now_ns: int) -> None:
        self.registry = registry
        self.lists = lists
        self.effects: list[Effect] = []
        self.denied: dict[str, str] = {}
        """Topics that this process may not publish on, and why."""
        self._poll_due_ns = now_ns + POLL_NS
        self._asked_ns = now_ns
        self.asked = 0
        """The number of the last question to the registry."""
        self.answered = 0
        """All who were there when this question was asked are known."""
        self._expelled = False
        self._resigning = False
        self.resigned = False
        """Whether it has left, and the registry knows."""
        self._strangers: dict[str, Frame] = {}
        """Those who are on no list yet, and the last that they said."""
        self._granted: dict[Action, set[str]] = {"publish": set(), "subscribe": set()}
        self._asks: dict[tuple[str, Action], int] = {}
        """What was asked for and is not answered, and when to ask again."""

    # -- Topics ---------------------------------------------------------------------------------

    def may(self, topic: str, action: Action) -> bool:
        """Tell whether a topic was granted."""
        return topic in self._granted[action]

    def ask(self, topic: str, action: Action, now_ns: int) -> None:
        """Ask for a topic, unless that was asked before."""
        if topic not in self._granted[action] and (topic, action) not in self._asks:
            self._ask(topic, action, now_ns)

    def withdraw(self, topic: str, action: Action) -> None:
        """Wait for no answer, and make no more use of a topic that was granted."""
        self._asks.pop((topic, action), None)
        if topic in self._granted[action]:
            self._granted[action].discard(topic)
            self.effects.append(Send(self.registry, Leave(topic=topic)))

    # -- Who is there ---------------------------------------------------------------------------

    def receive(self, frame: Frame, now_ns: int) -> News:
        """Handle what the registry says."""
        match frame:
            case Members(epoch=epoch) if epoch == self.lists.epoch:
                if self.lists.fits(frame):
                    return self._members(frame, now_ns)
                self.resign()
                self._expel(f"the registry has lost what it knows: {AGAIN}")
            case Expelled() if self._resigning:
                self.resigned = True
            case Expelled(reason=reason):
                self._expel(reason)
            case Granted(topic=topic, action=action) if (topic, action) in self._asks:
                del self._asks[topic, action]
                self._granted[action].add(topic)
                return News(granted=frame)
            case Denied(topic=topic, action=action) if (topic, action) in self._asks:
                del self._asks[topic, action]
                if action == "publish":
                    self.denied[topic] = frame.reason
                return News(denied=frame)
            case _:
                pass  # A stray frame changes nothing.
        return News()

    def stranger(self, name: str, frame: Frame, now_ns: int) -> None:
        """Have the registry say who somebody is who is on no list."""
        self._strangers.pop(name, None)
        if len(self._strangers) >= STRANGERS_MAX:
            del self._strangers[
                next(iter(self._strangers))
            ]  # Who is on no list by now may never be.
        self._strangers[name] = frame
        if not 0 <= now_ns - self._asked_ns < STRANGER_NS:
            self.question(now_ns)

    def introduce(self, name: str) -> Frame | None:
        """Return what somebody who came said last when nobody knew it."""
        return self._strangers.pop(name, None)

    # -- Driven from outside --------------------------------------------------------------------

    def question(self, now_ns: int) -> None:
        """Ask what is new, or say again that it leaves."""
        self._poll_due_ns = now_ns + (RETRY_NS if self._resigning else POLL_NS)
        self._asked_ns = now_ns
        if self._resigning and not self.resigned:
            self.resign()
        elif not self._resigning and not self._expelled:
            self.asked += 1
            self.effects.append(Send(self.registry, self.lists.question(self.asked)))

    def repeat(self, now_ns: int) -> None:
        """Ask again at once for whatever may be lost, and say which topics are in use."""
        self.question(now_ns)
        if self._resigning:
            return
        for topic in sorted(self._granted["subscribe"]):
            self.effects.append(Send(self.registry, Ask(topic=topic, action="subscribe")))
        for topic, action in self._asks:
            self._ask(topic, action, now_ns)

    def resign(self) -> None:
        """Leave for good: it is said until the registry has heard of it."""
        self._resigning = True
        self._asks.clear()
        self.effects.append(Send(self.registry, Resign(epoch=self.lists.epoch)))

    def handle_timer(self, now_ns: int) -> None:
        """Ask for what is due."""
        if self._poll_due_ns <= now_ns:
            self.question(now_ns)
        for (topic, action), due_ns in self._asks.items():
            if due_ns <= now_ns:
                self._ask(topic, action, now_ns)

    def next_timer_ns(self) -> int:
        """Return when something is due."""
        return min([self._poll_due_ns, *self._asks.values()])

    def _ask(self, topic: str, action: Action, now_ns: int) -> None:
        self._asks[topic, action] = now_ns + RETRY_NS
        self.effects.append(Send(self.registry, Ask(topic=topic, action=action)))

    def _expel(self, reason: str) -> None:
        if not self._expelled:
            self._expelled = True
            self.effects.append(Refuse((), reason))

    def _members(self, frame: Members, now_ns: int) -> News:
        lists = self.lists
        names, gone = len(lists.names), len(lists.gone)
        if lists.take(frame):
            self.answered = max(self.answered, min(frame.asked, self.asked))
        else:
            self.question(now_ns)
        # Somebody may be known to be gone before it is known who it was.
        went = [number for number in lists.gone[:gone] if names <= number < len(lists.names)]
        went += [number for number in lists.gone[gone:] if number < len(lists.names)]
        return News(came=lists.names[names:], went=went)
