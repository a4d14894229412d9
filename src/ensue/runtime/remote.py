"""A hub whose stations are elsewhere: on Ensue's servers, or on a broker.

A client's names are its own: `NAME~RANDOM` for whatever dies with it, so that nobody was ever called
so before. Only the names of durable subscriptions are given by people.
"""

import asyncio
from secrets import token_hex
from typing import Any
from weakref import WeakSet

import msgspec

from ensue.clock import SystemClock
from ensue.order import Order
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.station import EPHEMERAL, FRAMES
from ensue.runtime.driver import Driver
from ensue.runtime.hub import Hub, recorder_to
from ensue.runtime.names import check_name
from ensue.runtime.sink import ParquetSink
from ensue.transports.framed import FramedTransport
from ensue.transports.tcp import TcpCarrier
from ensue.transports.tcp_options import TcpOptions
from ensue.wire import Codec

__all__ = ["RemoteHub"]


class RemoteHub(Hub):
    """A client of a chain. Made by `connect`; `finish` disconnects."""

    holds_publishers = False
    transport: FramedTransport

    def __init__(
        self, carrier: TcpCarrier, *, order: Order | None, trace: str | None, run: str
    ) -> None:
        self.sink = None if trace is None else ParquetSink(trace)
        super().__init__(
            order=order, clock=SystemClock(), recorder=recorder_to(self.sink, run, order)
        )
        welcome = carrier.welcome
        assert welcome is not None
        self.carrier = carrier
        self.placement = Placement(
            [member.name for member in welcome.chain],
            topics={member.name: member.topics for member in welcome.chain},
            closed=welcome.closed,
        )
        self.config = msgspec.structs.replace(welcome.config, durable=False)
        self.transport = FramedTransport(carrier, Codec(FRAMES), home=self.placement.node)
        self._drivers: WeakSet[Driver[Any]] = WeakSet()
        self._suffix = token_hex(6)
        self._given = 0
        self._leaving: dict[str, asyncio.Task[None]] = {}
        carrier.on_reconnect = self._reconnected

    @classmethod
    async def connect(
        cls, options: TcpOptions, *, order: Order | None, name: str | None, trace: str | None
    ) -> "RemoteHub":
        """Connect to a chain."""
        stem = name or "client"
        carrier = TcpCarrier(options, client=stem)
        await carrier.start()
        try:
            hub = cls(carrier, order=order, trace=trace, run=name or "ensue")
        except BaseException:
            await carrier.close()
            raise
        hub.users = 1
        return hub

    def claim(self, wanted: str | None, kind: str) -> str:
        """Make a name that says who it is and is nobody else's."""
        if wanted is not None:
            check_name(wanted)
        return f"{wanted or kind}{EPHEMERAL}{self._suffix}"

    def unique(self, stem: str) -> str:
        """Return a name that nobody has, had or will have."""
        self._given += 1
        owner = stem if EPHEMERAL in stem else f"{stem}{EPHEMERAL}{self._suffix}"
        return f"{owner}.{self._given}"

    async def enter(self, name: str) -> None:
        """Have frames for a name come here."""
        if name in self._leaving:
            await self._leaving[name]
        await self.transport.enter(name)

    def leave(self, name: str) -> None:
        """Have no more frames for a name, once everything is out."""
        self.transport.flush()
        task = self._leaving[name] = self.loop.create_task(self.transport.exit(name))
        task.add_done_callback(lambda _task: self._leaving.pop(name, None))

    async def finish(self) -> None:
        """Let everything out and disconnect."""
        self.transport.flush()
        for task in list(self._leaving.values()):
            await task
        await self.carrier.close()
        if self.sink is not None:
            self.sink.close()

    def watch(self, driver: Driver[Any]) -> None:
        """Have a driver repeat itself when a lost connection is there again."""
        self._drivers.add(driver)

    def _reconnected(self) -> None:
        for driver in list(self._drivers):
            driver.repeat()
