"""Frames on the topics of a carrier alone: no station, no inboxes, nobody who answers.

What a node publishes is multicast as it is, and whoever has joined the topic gets it. For orders that ask for nothing
more: events stamped by clocks, or none. What nodes ask of an event notification service they are answered here: an event is
out when the carrier has it, and a topic is listened to when the carrier has joined it.

HAZARD: the carrier may lose or repeat a message, and nobody sends it again. While a connection is lost, what is published waits at
the carrier (`pending_bytes_max`) and goes out late.
"""

from ensue.errors import BadInput
from ensue.protocols.core import Attach, Broadcast, Detach, Frame, Multicast
from ensue.protocols.ens import Accepted, Attached, Notify
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedPort, FramedTransport
from ensue.wire import Codec

__all__ = ["TopicTransport"]


class TopicTransport(FramedTransport):
    """Gives nodes their ports on a carrier that multicasts."""

    def __init__(self, carrier: Carrier) -> None:
        super().__init__(carrier, Codec((Notify,)), home=_nobody)

    async def enter(self, name: str) -> None:
        """Take up a name: it is this transport's alone, as nobody sends to it."""
        if name in self._entered:
            raise BadInput(f"the name {name!r} is taken here: names must be unique")
        self._entered[name] = None

    async def exit(self, name: str) -> None:
        """Give up a name."""
        self._entered.pop(name, None)

    def _request(self, port: FramedPort, effect: Broadcast | Attach | Detach, topic: str) -> None:
        if isinstance(effect, Broadcast):
            event = effect.event
            port.multicast(Multicast(topic, (), Notify(event=event)))
            self._answer(port, Accepted(topic=topic, event=event.id, slot=0))
        elif isinstance(effect, Attach):
            self._answer(port, Attached(topic=topic, first=1, next=1, sent=1))

    def _answer(self, port: FramedPort, frame: Frame) -> None:
        """Hand an answer over, soon: the node is about something."""

        def hand() -> None:
            if self._ports.get(port.name) is port:
                port.receiver((frame,), self.name)

        self._loop.call_soon(hand)


def _nobody(topic: str) -> str:
    raise AssertionError(f"nobody keeps {topic!r}")
