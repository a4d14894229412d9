"""A hub whose stations are elsewhere: on Ensue's servers, or on a broker.

Merged order and no order need topics alone, and no station: on a broker they go over its topics
directly, and at a server over its fan-outs, which carry events and keep none. In causal and
deadline order clients send events to each other, through inboxes of the broker or through the
server, and the first station only numbers them.

A client's names are its own: `NAME~RANDOM` for what dies with it, so that a name is never used
twice. Only the names of durable subscriptions are chosen by users.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ensue import orders
from ensue.core import platform
from ensue.core.errors import (
    AccessDenied,
    BadInput,
    LimitReached,
    LogLost,
    TransportError,
    UnsupportedOrder,
)
from ensue.core.lineage import Lineage
from ensue.core.order import Order, order_name
from ensue.core.wire import Codec
from ensue.orders import LogReaderNode, PublisherNode
from ensue.protocols.interface import Frame, Node
from ensue.protocols.membership.registry import registry_of
from ensue.protocols.shared.remote_state import RemoteState
from ensue.protocols.shared.state_store import SUPERSEDED
from ensue.protocols.topic_log.fanout import fanout_name
from ensue.protocols.topic_log.frames import topic_of
from ensue.protocols.topic_log.log_identity import ChainSettings
from ensue.protocols.total.discovery import DISCOVERY_NAME, Described, Discover, settings_of
from ensue.protocols.total.station import EPHEMERAL
from ensue.runtime.chain_agreement import check_of_welcome, described, disagreement
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import PAYLOAD_BYTES_MAX, Hub, recorder_to
from ensue.runtime.log_monitor import LogMonitor
from ensue.runtime.names import check_name
from ensue.runtime.request import inbox, request
from ensue.runtime.topic_transport import topic_transport
from ensue.runtime.trace_writer import ParquetSink
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedTransport
from ensue.transports.schemes import BrokerOptions
from ensue.transports.tcp.carrier import TcpCarrier
from ensue.transports.tcp.messages import TAKEN_OVER
from ensue.transports.tcp.options import TcpOptions

__all__ = ["RemoteHub", "discover"]

DISCOVER_S = 10.0
"""How long to wait for a station on a broker."""
DISCOVER_AGAIN_S = 0.5
PART_S_MIN = 0.5
"""The least time to wait for a registry and for left names, despite `close_timeout`."""
RENEW_S = 2.5
"""How long a client that leaves waits for its registry before it replaces a silent connection."""
RUN = "ensue"
"""The name of the run in traces: the same for all clients, so that traces can be merged."""
STAMP_BYTES = 256 * 1024
"""Reserved in the largest message, for the stamp and the names of an event."""

_log = logging.getLogger("ensue")


class RemoteHub(Hub):
    """A client of a chain. Made by `connect`; `finish` disconnects."""

    holds_publishers = False
    transport: FramedTransport

    def __init__(
        self,
        transport: FramedTransport,
        described: Described | None,
        *,
        order: Order | None,
        trace: str | None,
        server: str = "",
    ) -> None:
        self.server = server
        self.sink = None if trace is None else ParquetSink(trace)
        super().__init__(
            order=order,
            clock=platform.current().clock,
            recorder=recorder_to(self.sink or platform.current().trace_sink, RUN, order),
        )
        self.transport = transport
        message_bytes = transport.capabilities.message_bytes_max
        reserve = min(message_bytes // 4, STAMP_BYTES)
        self.payload_bytes_max = min(PAYLOAD_BYTES_MAX, message_bytes - reserve)
        self._agreed = ""
        """The server with whose configuration that of all others is compared; empty: none."""
        self._reserved: tuple[str, ...] = ()
        """Names of the chain itself."""
        self.is_unattended = described is None
        if described is not None:
            self._find_stations(described, order)
        self.users = 1
        self._suffix = platform.current().token_hex(6)
        self._given = 0
        self._refusal = ""
        """Why a server rejects this client permanently."""
        self._log_lost: LogLost | None = None
        """Why positions and receipts of a server no longer hold."""
        self._log_monitor: LogMonitor | None = None
        """Asks stations on a broker for the identities of their logs."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._parting: tuple[Driver[Any], asyncio.Event] | None = None
        """The driver of a client that leaves its registry; set when the registry confirms."""
        transport.on_too_large = self._sent_too_much
        carrier = transport.carrier
        carrier.on_reconnect = self._reconnected
        if isinstance(carrier, TcpCarrier):
            carrier.on_exited = self._exited
            carrier.on_refused = self._refused
            carrier.on_log = self._learn_log
            if self._agreed:
                carrier.disagreement = check_of_welcome(self._agreed, self._settings())
            carrier.on_log_lost = self._lose_log
            carrier.place_of = self._place_of
            carrier.ends_with_log = not orders.of(order).uses_topics_alone

    @classmethod
    async def connect(
        cls,
        options: TcpOptions | BrokerOptions,
        *,
        order: Order | None,
        name: str | None,
        trace: str | None,
    ) -> "RemoteHub":
        """Connect to a chain."""
        carrier: Carrier
        needs_topics_alone = orders.of(order).uses_topics_alone
        if isinstance(options, TcpOptions):
            carrier = tcp = TcpCarrier(options, client=name or "client")
        else:
            carrier = options.make(order_name(order) if needs_topics_alone else "")
        await carrier.start()
        if isinstance(options, BrokerOptions) and needs_topics_alone:
            transport = topic_transport(carrier)
        else:
            transport = FramedTransport(
                carrier, Codec(orders.wire_frames()), home=_nowhere, topic_of=topic_of
            )
        transport.capabilities = msgspec.structs.replace(
            options.capabilities, message_bytes_max=carrier.capabilities.message_bytes_max
        )
        try:
            found, server = None, ""
            if isinstance(options, TcpOptions):
                assert tcp.welcome is not None
                found, server = described(tcp.welcome), tcp.welcome.server
            elif not needs_topics_alone:
                found = await discover(transport, options.url)
            hub = cls(transport, found, order=order, trace=trace, server=server)
            await hub.watch_logs()
        except BaseException:
            await carrier.close()
            raise
        return hub

    async def watch_logs(self) -> None:
        """Ask stations on a broker for the identities of their logs."""
        if self._reserved and not isinstance(self.transport.carrier, TcpCarrier):
            self._log_monitor = LogMonitor(
                self.transport,
                self.placement.nodes,
                on_log=self._learn_log,
                on_lost=self._lose_log,
                on_ask=self._ask_log,
                on_settings=self._compare_settings,
                place_of=self._place_of,
            )
            await self._log_monitor.start()

    def _settings(self) -> ChainSettings:
        """Return the settings of the chain, as the first server has them."""
        return settings_of(self.config, closed=self.placement.closed)

    def _compare_settings(self, server: str, settings: ChainSettings, _question: int) -> None:
        """End all nodes if a station on a broker differs from the first one."""
        why = disagreement(self._agreed, self._settings(), server, settings)
        if self._agreed and why:
            _log.error("client ended: %s", why)
            self.expel(why)

    @property
    def connections_tell_logs(self) -> bool:
        """Whether a server sends its log identity on each connection; else clients ask."""
        return isinstance(self.transport.carrier, TcpCarrier)

    @property
    def logs(self) -> Mapping[str, Lineage]:
        """Station to the known identity of its log."""
        carrier = self.transport.carrier
        if isinstance(carrier, TcpCarrier):
            return carrier.logs
        return {} if self._log_monitor is None else self._log_monitor.logs

    def _find_stations(self, described: Described, order: Order | None) -> None:
        """Note the stations of the chain, and the targets of events."""
        self.placement = placement = described.placement()
        self.config = msgspec.structs.replace(described.config, durable=False)
        why = orders.of(order).chain_refusal(order, self.config)
        if why is not None:
            raise UnsupportedOrder(why, order=order_name(order), transport="these servers")
        self._reserved = (DISCOVERY_NAME, *placement.nodes)
        if not orders.of(order).uses_topics_alone:
            self.transport.home = placement.node
            self._agreed = self.server or placement.nodes[0]
            return
        self.answers = True
        if orders.of(order).agrees_on_terms:
            nodes = sorted(placement.nodes, key=lambda node: node != self.server)
            self.fanouts = tuple(fanout_name(node, order_name(order)) for node in nodes)

        # Topics are moved for total order alone: the fan-outs of all others stay.
        homes = msgspec.structs.replace(described, moves={}).placement()

        def fanout(topic: str) -> str:
            # A topic without a place is refused by any station.
            node = homes.node(topic) if homes.knows(topic) else homes.nodes[0]
            return fanout_name(node, order_name(order))

        self.transport.home = fanout

    def claim(self, wanted: str | None, kind: str) -> str:
        """Return a unique name that begins with the wanted one."""
        if wanted is not None:
            check_name(wanted)
        return f"{wanted or kind}{EPHEMERAL}{self._suffix}"

    def unique(self, stem: str) -> str:
        """Return a name that is never used twice."""
        self._given += 1
        owner = stem if EPHEMERAL in stem else f"{stem}{EPHEMERAL}{self._suffix}"
        return f"{owner}.{self._given}"

    async def admit(self, name: str) -> PublisherNode:
        """Make a client's node and register it with the registry at the first station."""
        order = self.order
        return await orders.of(order).enroll(
            self.transport,
            name=name,
            registry=registry_of(self.placement.nodes[0], order_name(order)),
            order=order,
            clock=self.clock,
        )

    async def enter(self, name: str) -> None:
        """Receive frames for a name."""
        if name in self._reserved:
            raise BadInput(f"the name {name!r} belongs to the chain itself: choose another")
        if (resting := self.lingering.get(name)) is not None:
            await resting.settle()
            resting.rest()
        if name in self._leaving:
            # Shielded: the name must be left even if this task is cancelled.
            await asyncio.shield(self._leaving[name])
        await self.transport.enter(name)

    def leave(self, name: str) -> None:
        """Receive no more frames for a name, once queued frames are sent."""
        self.transport.flush()
        task = self._leaving[name] = self.loop.create_task(self.transport.exit(name))
        task.add_done_callback(lambda _task: self._leaving.pop(name, None))

    async def finish(self, by_s: float) -> None:
        """Send queued frames and disconnect."""
        by_s = max(by_s, self.loop.time() + PART_S_MIN)
        try:
            await self._wait_for_removal(by_s)
        finally:
            try:
                self.transport.flush()
                if self._log_monitor is not None:
                    closing = self.loop.create_task(self._log_monitor.close())
                    self._leaving[self._log_monitor.name] = closing
                if leaving := tuple(self._leaving.values()):
                    await asyncio.wait(leaving, timeout=max(0.0, by_s - self.loop.time()))
            finally:
                try:
                    await self.transport.carrier.close()
                finally:
                    if self.sink is not None:
                        self.sink.close()

    def close_client(self, driver: Driver[Any]) -> None:
        """Close the driver of a client that leaves; `finish` waits for its registry.

        While it is registered, the others wait for it, and clients with other deadlines are
        refused.
        """
        if not self.shares_node:
            driver.close()
            return
        parted = asyncio.Event()
        self._parting = driver, parted
        driver.retire(lambda node: node.resigned, on_closed=parted.set)

    async def _wait_for_removal(self, by_s: float) -> None:
        """Wait until the registry has removed a client, up to a limit."""
        if self._parting is None:
            return
        driver, parted = self._parting
        renewing = self.loop.call_later(RENEW_S, self._renew, self.loop.time())
        try:
            async with asyncio.timeout_at(by_s):
                await parted.wait()
        except TimeoutError:
            _log.warning(
                "leave unconfirmed client=%s: no answer of its registry; others may wait until it "
                "expires",
                driver.node.name,
            )
        finally:
            renewing.cancel()
            driver.close()

    def _renew(self, since_s: float) -> None:
        """Connect to the registry's station again if it has been silent since a time.

        A new connection works where the network has forgotten the old one.
        """
        carrier = self.transport.carrier
        if isinstance(carrier, TcpCarrier):
            carrier.renew(self.placement.nodes[0], since_s)

    def watch(self, driver: Driver[Any], *, needs_log: bool = True) -> None:
        """Notify a driver of new connections, refusals and lost logs."""
        super().watch(driver)
        carrier = self.transport.carrier
        if isinstance(carrier, TcpCarrier) and needs_log:
            carrier.ends_with_log = True
        if self._refusal:
            driver.lose(self._refusal)
        elif self._log_lost is not None:
            driver.lose(self._log_lost.reason, self._log_lost)

    def _exited(self, name: str, error: AccessDenied) -> None:
        """End the node whose name another client has taken over."""
        for driver in self._drivers:
            if driver.node.name == name:
                driver.lose(SUPERSEDED if error.reason == TAKEN_OVER else error.reason)

    def _sent_too_much(self, name: str, error: LimitReached) -> None:
        """End a node that has to send what can't be carried: it would retry forever."""
        for driver in self._drivers:
            if driver.node.name == name:
                driver.fail(error)

    def _refused(self, error: AccessDenied) -> None:
        """End all nodes, also later ones: a server rejects this client permanently."""
        self.expel(error.reason)

    def expel(self, reason: str) -> None:
        """End all nodes, also later ones."""
        self._refusal = reason
        super().expel(reason)

    def _lose_log(self, error: LogLost) -> None:
        """End all nodes, also later ones: positions and receipts no longer hold."""
        _log.error("log lost server=%s reason=%r: %s", error.server, error.reason, error)
        self._log_lost = error
        for driver in self._drivers:
            driver.lose(error.reason, error)

    def _learn_log(self, server: str, log: Lineage, question: int | None = None) -> None:
        """Let subscriptions check a server's log against the one that they read.

        Durable ones compare logs. All others ask a station on a broker that started again whether
        it still knows them; at a server they do so with each new connection.
        """
        known = self.logs.get(server)
        if question is not None and known is not None and known != log:
            for driver in self._drivers:
                driver.repeat()
        for driver, subscriber in self._durable():
            if driver.takes_commands:
                learn = partial(subscriber.learn_log, server, log, question=question)
                driver.command(partial(_call_at, learn))

    def _ask_log(self, question: int) -> None:
        """Let durable subscriptions note their progress when stations are asked for logs."""
        for _, subscriber in self._durable():
            subscriber.ask_log(question)

    def _durable(self) -> Iterator[tuple[Driver[Any], LogReaderNode]]:
        for driver in self._drivers:
            inner = driver.node.inner if isinstance(driver.node, RemoteState) else None
            if isinstance(inner, LogReaderNode):
                yield driver, inner

    def _place_of(self, server: str) -> int:
        """Return the highest place of a delivered event of a server's log."""
        return max((_place_of(driver.node, server) for driver in self._drivers), default=0)

    def _reconnected(self) -> None:
        if self._log_monitor is not None:
            self._log_monitor.ask()
        for driver in self._drivers:
            driver.repeat()


def _place_of(node: Node, server: str) -> int:
    """Return the highest place of an event of a server's log that a node delivered."""
    inner = node.inner if isinstance(node, RemoteState) else node
    return inner.last_place(server) if isinstance(inner, LogReaderNode) else 0


def _call_at(call: Callable[..., None], _node: Any, now_ns: int) -> None:
    call(now_ns=now_ns)


def _nowhere(topic: str) -> str:
    raise AssertionError(f"the home of {topic!r} is not known yet")


async def discover(
    transport: FramedTransport, url: str, *, within_s: float = DISCOVER_S
) -> Described:
    """Ask on a broker for the stations of the chain."""
    found: asyncio.Future[Described] = asyncio.get_running_loop().create_future()

    def receive(frames: Sequence[Frame], _source: str) -> None:
        for frame in frames:
            if isinstance(frame, Described) and not found.done():
                found.set_result(frame)

    async with inbox(transport, "discovery", receive) as port:
        if await request(
            port,
            lambda: [(DISCOVERY_NAME, Discover(number=1))],
            found,
            every_s=DISCOVER_AGAIN_S,
            within_s=within_s,
        ):
            return found.result()
        raise TransportError(
            f"no station answers on {url} within {within_s:g} s; start one with: "
            f"ensue serve --url {url} --data DIR"
        )
