"""Orders that need only the topics of a broker: no station, no inboxes.

An event is multicast as it is published, and every client that has joined the topic gets it. This
is enough for merged order and no order. There is no topic log: requests to it are answered here. An
event is accepted once the carrier has it, and a topic is attached once the carrier has joined it.

HAZARD: the carrier may lose or repeat a message, and it is not retransmitted. While a connection is
lost, published events wait at the carrier (`pending_bytes_max`) and are sent late.
"""

from ensue.core.wire import Codec
from ensue.protocols.interface import Attach, Broadcast, Detach, Multicast
from ensue.protocols.topic_log.frames import Accepted, Attached, Notify, topic_of
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedPort, FramedTransport

__all__ = ["topic_transport"]


def topic_transport(carrier: Carrier) -> FramedTransport:
    """Return a transport on a carrier that multicasts and has no station."""
    return FramedTransport(
        carrier, Codec((Notify,)), home=_no_station, topic_of=topic_of, answer=_answer
    )


def _answer(port: FramedPort, effect: Broadcast | Attach | Detach) -> None:
    """Answer a node as a topic log would."""
    if isinstance(effect, Broadcast):
        event = effect.event
        port.multicast(Multicast(event.topic, (), Notify(event=event)))
        port.receive_soon(Accepted(topic=event.topic, event=event.id, slot=0))
    elif isinstance(effect, Attach):
        port.receive_soon(Attached(topic=effect.topic, first=1, next=1, sent=1))


def _no_station(topic: str) -> str:
    raise AssertionError(f"no station keeps {topic!r}")
