"""Frames on the topics of a broker alone: no station, no inboxes.

An event is multicast as it is published, and every client that has joined the topic gets it. This
is enough for merged order and no order. What nodes ask of a topic's log is answered here: an event
is accepted once the carrier has it, and a topic is attached once the carrier has joined it.

HAZARD: the carrier may lose or repeat a message, and it is not sent again. While a connection is
lost, published events wait at the carrier (`pending_bytes_max`) and go out late.
"""

from ensue.core.errors import BadInput
from ensue.core.wire import Codec
from ensue.protocols.interface import Attach, Broadcast, Detach, Frame, Multicast
from ensue.protocols.topic_log.frames import Accepted, Attached, Notify, topic_of
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedPort, FramedTransport

__all__ = ["TopicTransport"]


class TopicTransport(FramedTransport):
    """Gives nodes their ports on a carrier that multicasts."""

    def __init__(self, carrier: Carrier) -> None:
        super().__init__(carrier, Codec((Notify,)), home=_no_station, topic_of=topic_of)

    async def enter(self, name: str) -> None:
        """Reserve a name. No messages are sent to it, so the carrier opens no inbox."""
        if name in self._entered:
            raise BadInput(f"the name {name!r} is taken here: names must be unique")
        self._entered[name] = None

    async def exit(self, name: str) -> None:
        """Give up a name."""
        self._entered.pop(name, None)

    def _request(
        self,
        port: FramedPort,
        effect: Broadcast | Attach | Detach,
        request: Frame,  # noqa: ARG002 - answered here, not sent
        topic: str,
    ) -> None:
        if isinstance(effect, Broadcast):
            event = effect.event
            port.multicast(Multicast(topic, (), Notify(event=event)))
            self._answer(port, Accepted(topic=topic, event=event.id, slot=0))
        elif isinstance(effect, Attach):
            self._answer(port, Attached(topic=topic, first=1, next=1, sent=1))

    def _answer(self, port: FramedPort, frame: Frame) -> None:
        """Hand an answer over in the next turn: the node is still handling its command."""

        def hand() -> None:
            if self._ports.get(port.name) is port:
                port.receiver((frame,), self.name)

        self._loop.call_soon(hand)


def _no_station(topic: str) -> str:
    raise AssertionError(f"no station keeps {topic!r}")
