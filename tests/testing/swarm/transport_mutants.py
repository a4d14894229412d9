"""Planted bugs of transports, carriers of brokers, and stations on them.

`mutants` merges them with all others, and runs them.
"""

import asyncio
from typing import Any

from tests.testing.swarm.planted import Mutant, nothing, wait_for_nothing

from ensue.protocols.topic_log.log_identity import LogRefused
from ensue.runtime.hub_remote import RemoteHub
from ensue.server.broker_admission import BrokerAdmission
from ensue.server.brokered import BrokeredServer
from ensue.transports import reconnect
from ensue.transports.brokers import base
from ensue.transports.brokers.base import BrokerCarrier, Session
from ensue.transports.framed import FramedPort
from ensue.transports.tcp import link
from ensue.transports.tcp.link import Link
from ensue.transports.tcp.messages import Framer

__all__ = ["BROKERS", "TRANSPORTS"]


# -- Transports ------------------------------------------------------------------------------------


def send_before_names(self: Link) -> None:
    """Bundles are sent on a new connection before its names are entered."""
    self._activate()
    real_enter_all(self)


def enter_no_names(self: Link) -> None:
    """Names are not entered again after a reconnect."""
    self._unanswered.clear()
    self._activate()


def forget_the_rest(self: Framer, data: bytes) -> list[bytes]:
    """The rest behind a whole message is dropped."""
    messages = real_feed(self, data)
    if messages:
        self._chunks, self._held, self._needed = [], 0, 4
    return messages


async def never_reconnect(connection: Any, **options: Any) -> None:
    """A lost connection stays lost."""
    await options["use"](connection)
    await asyncio.get_running_loop().create_future()


def flush_the_first(self: FramedPort) -> Any:
    """Of bundles for several targets only the first is sent."""
    return real_take(self)[:1]


def turn_is_ignored(self: Any, message: Any) -> None:
    """A client does not note its turn at a name."""
    real_control(self, message)
    for known in self._names.values():
        known.turn = 0


real_enter_all, real_feed = Link._enter_all, Framer.feed
real_take, real_control = FramedPort.take, Link.control

TRANSPORTS = (
    Mutant("bundles before names", "total", ((Link, "_enter_all", send_before_names),)),
    Mutant("names are not entered again", "total", ((Link, "_enter_all", enter_no_names),)),
    Mutant("streams lose rests", "total", ((Framer, "feed", forget_the_rest),)),
    Mutant("lost connections stay lost", "total", ((link, "keep_connected", never_reconnect),)),
    Mutant("silence goes unnoticed", "total", ((link, "SILENCE_S", 1e9),)),
    Mutant("leaving trusts silent connections", "causal", ((RemoteHub, "_renew", nothing),)),
    Mutant("only one target is served", "total", ((FramedPort, "take", flush_the_first),)),
    Mutant("pauses grow without bound", "total", ((reconnect, "BACKOFF_S_MAX", 1e6),)),
    Mutant("turns are ignored", "total", ((Link, "control", turn_is_ignored),)),
)


# -- Brokers: their carriers, and stations on them -------------------------------------------------


async def reopen_nothing(self: BrokerCarrier, session: Session) -> None:
    """Inboxes and topics are not opened again after a reconnect."""
    session.subscribed.update(self._receivers)


def end_unnoticed(self: Session, reader: "asyncio.Task[None]") -> None:
    """A reader that ends does not end its session."""
    del self
    reader.cancelled() or reader.exception()


async def change_once(self: BrokerCarrier, session: Session, place: Any) -> None:
    """A place that is entered while it is left stays left."""
    try:
        if place in self._receivers:
            await session.during(self._subscribe([place]))
        else:
            await session.during(self._unsubscribe(place))
        session.subscribed.add(place)
    finally:
        session.changing.pop(place, None)


def keep_no_refusal(self: BrokerAdmission, source: str, frames: list[Any]) -> list[Any]:
    """A station does not hear that the others refuse its log."""
    del self, source
    return [frame for frame in frames if not isinstance(frame, LogRefused)]


def place_unknown(self: RemoteHub, server: str) -> int:
    """Clients forget how far they have read."""
    del self, server
    return 0


BROKERS = (
    Mutant("places stay closed", "merged", ((BrokerCarrier, "_reopen", reopen_nothing),)),
    Mutant("ended readers go unnoticed", "merged", ((Session, "_end", end_unnoticed),)),
    Mutant("brokers are left for good", "total", ((base, "keep_connected", never_reconnect),)),
    Mutant("places change once", "merged", ((BrokerCarrier, "_change", change_once),)),
    Mutant(
        "stations do not watch logs", "total", ((BrokeredServer, "_watch_logs", wait_for_nothing),)
    ),
    Mutant(
        "stations ignore refusals", "total", ((BrokerAdmission, "_admit_station", keep_no_refusal),)
    ),
    Mutant("clients do not ask for logs", "total", ((RemoteHub, "watch_logs", wait_for_nothing),)),
    Mutant("read places are forgotten", "total", ((RemoteHub, "_place_of", place_unknown),)),
)
