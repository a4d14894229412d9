"""Inquiries about subscribers that a publisher does not know.

A publisher may know of no subscriber because it was cut off when one subscribed. Such an event is
settled only when it is certain that no member had subscribed before it was published:

1. The registry answers a poll that was sent after the event was published. It names the members
   that have asked for the topic to subscribe to.
2. Each of these has sent its row since, or was evicted. If a row has the topic, the publisher knows
   a subscriber, and sends the event.

One poll is for all topics and events before it. Later events wait for the next one, so a publisher
has one poll of this kind under way, however fast it publishes.

Assumes that frames from a member to the registry, and from both to the publisher, are not delayed
for longer than a joining member waits for silent ones (`suspect_ns`), or arrive in order.
"""

from ensue.protocols.causal.hypercube import Hypercube
from ensue.protocols.membership.client import MembershipClient

__all__ = ["ReaderInquiries"]


class ReaderInquiries:
    """The inquiries of one node, by topic."""

    def __init__(self, client: MembershipClient, cube: Hypercube, name: str) -> None:
        self._client = client
        self._cube = cube
        self._name = name
        self._asked: dict[str, int] = {}
        """By topic: the last event that the answer of the registry will be for."""
        self._answers: dict[str, tuple[int, int]] = {}
        """By topic: the last event, and the members that owe their rows, as a set."""

    @property
    def owing(self) -> int:
        """Members that owe their rows, as a set."""
        owing = 0
        for _, members in self._answers.values():
            owing |= members
        return owing & self._cube.everyone

    def unread(self, topic: str, last: int, now_ns: int) -> int:
        """Return up to which number the events of a topic have no subscriber, for certain.

        If that is not known up to `last`, find out.
        """
        known = 0
        if topic in self._answers:
            known, owing = self._answers[topic]
            if owing & self._cube.everyone:
                return 0
            del self._answers[topic]
        if known < last and not self._client.has_inquired(topic):
            self._asked[topic] = last
            self._client.inquire(topic, now_ns)
        return known

    def answer(self, readers: dict[str, tuple[int, ...]]) -> int:
        """Take in which members may have subscribed; return those that owe their rows."""
        named = 0
        for topic, numbers in readers.items():
            if topic in self._asked:
                members = sum(1 << number for number in set(numbers))
                members &= self._cube.everyone & ~(1 << self._cube.numbers[self._name])
                self._answers[topic] = self._asked.pop(topic), members
                named |= members
        return named

    def received_rows(self, peer: int) -> bool:
        """Record that a member has sent its rows; return whether it owed them."""
        owed = bool(self.owing >> peer & 1)
        for topic, (last, owing) in self._answers.items():
            self._answers[topic] = last, owing & ~(1 << peer)
        return owed
