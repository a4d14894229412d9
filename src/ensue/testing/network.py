"""The simulated network: byte streams between hosts, below `asyncio.Protocol`.

A connection is two pipes. A pipe cuts what is written into segments at random places, carries them
in sequence with a latency each, and keeps what the other side has not read: at most `WINDOW_BYTES`
are on the way or unread, as with TCP. So a reader that pauses, or a process that is stopped, fills
the buffers of its writer.

Faults, by pair of hosts and direction:

- A partition holds segments back, as TCP does until a retransmission gets through; healing releases
  them in sequence. A new connection waits too, for `SYN_S` at most.
- A blackhole loses all that a connection carries, for good, as a router does that forgot it.
- A reset fails both sides at once (`ConnectionResetError`), and bytes on the way are lost.
- A killed process closes its connections, as its kernel does. A power cut closes nothing: the other
  side finds out by itself, or never (half-open).
- A host that is unreachable, or without a listener at the port, refuses connections.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ensue.testing.errors import EscapedSimulation

if TYPE_CHECKING:
    from ensue.testing.process import Process
    from ensue.testing.world import World

__all__ = ["LOOPBACK", "Network", "NetworkOptions"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
WINDOW_BYTES = 256 * 1024
SEGMENT_BYTES_MAX = 16 * 1024
HIGH_WATER_BYTES = 64 * 1024
SYN_S = 60
"""How long the kernel tries to connect."""
EPHEMERAL_PORT = 40_000
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY = ("0.0.0.0", "::", "", None)  # noqa: S104 - names of the simulated network


class NetworkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the network is, and how it cuts streams."""

    latency_ms: tuple[float, float] = (0.05, 2.0)
    """Bounds of a segment's latency."""
    slow: float = 0.01
    """Share of segments that take `slow_ms`."""
    slow_ms: tuple[float, float] = (5.0, 120.0)
    bytes_per_s: int = 100_000_000
    """How fast a segment is sent."""
    queues: bool = False
    """Whether a segment waits until those before it are sent, as on a link of low bandwidth."""
    cuts: float = 0.2
    """Probability that a write is cut at a random byte."""
    accept_ms: tuple[float, float] = (0.0, 1.0)
    """Bounds of the time that a listener takes to accept."""


class _Pipe:
    """One direction of a connection."""

    def __init__(self, network: "Network", source: "_Stream", target: "_Stream") -> None:
        self.network = network
        self.source, self.target = source, target
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.in_flight = 0
        """Bytes on the way, or arrived and unread."""
        self.sent_ns = 0
        """When the last segment was sent, where segments wait for each other."""
        self.arrives_ns = 0
        """When the last segment arrives: the next one arrives later."""
        self.held: deque[bytes | None] = deque()
        """Segments that a partition holds back; None is the end of the stream."""
        self.ended = False
        self.is_blackhole = False
        """Whether everything is lost without a sign."""

    def write(self, data: bytes) -> None:
        """Take bytes from the application."""
        self.unsent.append(data)
        self.unsent_bytes += len(data)
        self.pump()

    def pump(self) -> None:
        """Send what the window allows."""
        random, options = self.network.random, self.network.options
        while self.unsent and self.in_flight < WINDOW_BYTES:
            data = self.unsent.popleft()
            size = min(len(data), SEGMENT_BYTES_MAX, WINDOW_BYTES - self.in_flight)
            if size > 1 and random.random() < options.cuts:
                size = random.randint(1, size)
            if size < len(data):
                self.unsent.appendleft(data[size:])
            self.unsent_bytes -= size
            self.in_flight += size
            self._carry(data[:size])
        self.source.wrote()
        if self.ended and not self.unsent:
            self.ended = False
            self._carry(None)

    def end(self) -> None:
        """Send the end of the stream behind everything else."""
        self.ended = True
        self.pump()

    def _carry(self, segment: bytes | None) -> None:
        network = self.network
        if self.is_blackhole:
            return
        if self.held or network.is_cut(self.source.host, self.target.host):
            self._hold(segment)
            return
        size = 0 if segment is None else len(segment)
        begun_ns = network.world.now_ns
        if network.options.queues:
            begun_ns = max(begun_ns, self.sent_ns)
        self.sent_ns = begun_ns + size * SECOND_NS // network.options.bytes_per_s
        self.arrives_ns = max(self.arrives_ns + 1, self.sent_ns + network.latency_ns())
        network.world.at(self.arrives_ns, self._arrive, segment)

    def _arrive(self, segment: bytes | None) -> None:
        if self.is_blackhole:
            return
        if self.held or self.network.is_cut(self.source.host, self.target.host):
            self._hold(segment)  # The partition began while it was on the way.
            return
        if segment is None:
            self.target.end_arrived()
        else:
            self.target.arrived(segment)

    def _hold(self, segment: bytes | None) -> None:
        self.held.append(segment)
        self.network.holding[self] = None

    def release(self) -> None:
        """Send again what a partition held back."""
        held, self.held = self.held, deque()
        for segment in held:
            self._carry(segment)

    def read(self, size: int) -> None:
        """Open the window: the other side has read so many bytes."""
        self.in_flight -= size
        if self.unsent:
            self.network.world.at(self.network.world.now_ns + self.network.latency_ns(), self.pump)


class _Stream(asyncio.Transport):
    """One side of a connection, as its process sees it."""

    def __init__(self, network: "Network", process: "Process", name: Any, peer_name: Any) -> None:
        super().__init__()
        self.network, self.process = network, process
        self.host = process.host
        self.loop = process.loop
        self.pipe: _Pipe
        """What this side writes to."""
        self.incoming: _Pipe
        """What this side reads from."""
        self._protocol: asyncio.BaseProtocol | None = None
        self._names = {"sockname": name, "peername": peer_name}
        self._unread: deque[bytes] = deque()
        self._reading_paused = False
        self._scheduled = False
        self._closing = False
        self._lost = False
        self._ended = False
        self._limits = (HIGH_WATER_BYTES // 4, HIGH_WATER_BYTES)
        self._writing_paused = False

    # -- As a transport -------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the addresses of both sides."""
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand what arrives to a protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        """Return whether the stream is closed or about to be, or its process gone."""
        return self._closing or self.loop.dead

    def is_reading(self) -> bool:
        """Return whether what arrives is handed over."""
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        """Leave what arrives in the buffer."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Hand over what arrives again."""
        self._reading_paused = False
        self._schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when writers are paused and resumed."""
        high = (HIGH_WATER_BYTES if low is None else 4 * low) if high is None else high
        self._limits = (high // 4 if low is None else low, high)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the network has not taken."""
        return self.pipe.unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return when writers are resumed and paused."""
        return self._limits

    def can_write_eof(self) -> bool:
        """Return True: the end can be sent while the other side still writes."""
        return True

    def write(self, data: Any) -> None:
        """Send bytes."""
        if self._closing or self.loop.dead or not data:
            return
        self.pipe.write(bytes(data))
        if self.pipe.unsent_bytes > self._limits[1] and not self._writing_paused:
            self._writing_paused = True
            self.get_protocol().pause_writing()

    def write_eof(self) -> None:
        """Send the end of the stream."""
        self.pipe.end()

    def close(self) -> None:
        """Send what is buffered, then close."""
        if not self._closing and not self.loop.dead:
            self._closing = True
            self.pipe.end()
            self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """Close at once; bytes that the network has not taken are lost."""
        if not self._lost and not self.loop.dead:
            self._closing = True
            self._drop_unsent()
            self.pipe.end()
            self.loop.call_soon(self._lose, None)

    # -- For pipes and the network --------------------------------------------------------------

    def made(self, protocol: asyncio.BaseProtocol) -> None:
        """Start: the protocol has a connection."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule()

    def arrived(self, segment: bytes) -> None:
        """Take a segment from the network."""
        if self.loop.dead or self._lost:
            self.incoming.in_flight -= len(segment)
            if not self.network.is_dark(self.host):
                self.network.send_reset(self)
            return
        self._unread.append(segment)
        self._schedule()

    def end_arrived(self) -> None:
        """Take the end of the stream from the network."""
        self._ended = True
        self._schedule()

    def wrote(self) -> None:
        """Note that the network took bytes."""
        if self._writing_paused and self.pipe.unsent_bytes <= self._limits[0]:
            self._writing_paused = False
            if not self.loop.dead and not self._lost:
                self.loop.call_soon(self.get_protocol().resume_writing)

    def reset(self) -> None:
        """Fail at once."""
        if not self._lost and not self.loop.dead:
            self._closing = True
            self._drop_unsent()
            self._unread.clear()
            error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            self.loop.call_soon(self._lose, error)

    def _drop_unsent(self) -> None:
        self.pipe.unsent.clear()
        self.pipe.unsent_bytes = 0

    def _schedule(self) -> None:
        if not self._scheduled and self._protocol is not None and not self.loop.dead:
            self._scheduled = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        self._scheduled = False
        if self._lost or self._reading_paused:
            return
        if self._closing:
            self._discard_unread()
            return
        if self._unread:
            # The kernel hands over what arrived so far, or a part of it.
            count = self.network.random.randint(1, len(self._unread))
            data = b"".join(self._unread.popleft() for _ in range(count))
            self.incoming.read(len(data))
            protocol = self.get_protocol()
            if isinstance(protocol, asyncio.BufferedProtocol):
                raise EscapedSimulation("buffered protocols are not simulated")
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)
            if self._unread or self._ended:
                self._schedule()
        elif self._ended:
            protocol = self.get_protocol()
            assert isinstance(protocol, asyncio.Protocol)
            if not protocol.eof_received():
                self.close()

    def _discard_unread(self) -> None:
        while self._unread:
            self.incoming.read(len(self._unread.popleft()))

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._discard_unread()
        self.network.forget(self)
        if self._protocol is not None:  # A reset may come before the connection is made.
            self._protocol.connection_lost(error)


class _Socket:
    """What `asyncio.Server.sockets` holds."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener

    def getsockname(self) -> tuple[str, int]:
        """Return the address."""
        return self._listener.host, self._listener.port

    def fileno(self) -> "Listener":
        """Return what `remove_reader` takes."""
        return self._listener


class Listener:
    """A listening socket; has the methods of `asyncio.Server` that programs use."""

    def __init__(
        self,
        network: "Network",
        process: "Process",
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
    ) -> None:
        self.network, self.process, self.factory = network, process, factory
        self.loop = process.loop
        self.host, self.port = process.host, port
        self.accepting = True
        self.sockets: tuple[_Socket, ...] = (_Socket(self),)

    def close(self) -> None:
        """Stop listening."""
        self.accepting = False
        self.sockets = ()
        self.network.unlisten(self)

    async def wait_closed(self) -> None:
        """Return: nothing is left to wait for."""

    def is_serving(self) -> bool:
        """Return whether connections are accepted."""
        return self.accepting

    async def start_serving(self) -> None:
        """Accept connections."""
        self.network.open(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Network:
    """All hosts, listeners and connections."""

    def __init__(self, world: "World", random: Random, options: NetworkOptions) -> None:
        self.world, self.random, self.options = world, random, options
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._streams: dict[_Stream, None] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        """Pairs of hosts, sender first, between which nothing gets through."""
        self._dark: dict[str, None] = {}
        """Hosts without power, or suspended."""
        self.holding: dict[_Pipe, None] = {}
        """Pipes with segments that a partition holds back."""
        self._ports = EPHEMERAL_PORT

    def latency_ns(self) -> int:
        """Draw the latency of a segment."""
        options = self.options
        low, high = options.slow_ms if self.random.random() < options.slow else options.latency_ms
        return int((low + (high - low) * self.random.random()) * MILLISECOND_NS)

    # -- For processes --------------------------------------------------------------------------

    async def connect(
        self,
        process: "Process",
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect a process to a listener; raise OSError as the kernel would."""
        target = process.host if host in LOOPBACK else host
        loop = process.loop
        made: asyncio.Future[_Stream] = loop.create_future()
        began_ns = self.world.now_ns

        def try_once() -> None:
            if loop.dead or made.done():
                return
            blocked = target != process.host and (
                self.is_cut(process.host, target) or self.is_cut(target, process.host)
            )
            if blocked or self.is_dark(target):
                if self.world.now_ns - began_ns > SYN_S * SECOND_NS:
                    error = TimeoutError(errno.ETIMEDOUT, f"Connect call failed ({host}, {port})")
                    loop.call_soon(_fail, made, error)
                else:
                    self.world.at(self.world.now_ns + SECOND_NS, try_once)
                return
            listener = self._listeners.get((target, port))
            if listener is None or not listener.accepting or listener.loop.dead:
                text = f"Connect call failed ({host!r}, {port})"
                loop.call_soon(_fail, made, ConnectionRefusedError(errno.ECONNREFUSED, text))
                return
            stream = self._accept(process, listener)
            loop.call_soon(_succeed, made, stream)

        self.world.at(began_ns + 2 * self.latency_ns(), try_once)
        try:
            stream = await made
        except asyncio.CancelledError:
            if made.done() and not made.cancelled() and made.exception() is None:
                self.abandon(made.result())
            raise
        protocol = factory()
        stream.made(protocol)
        return stream, protocol

    def _accept(self, process: "Process", listener: Listener) -> _Stream:
        self._ports += 1
        client = (process.host, self._ports)
        server = (listener.host, listener.port)
        near = _Stream(self, process, client, server)
        far = _Stream(self, listener.process, server, client)
        far.loop = listener.loop
        near.pipe = far.incoming = _Pipe(self, near, far)
        far.pipe = near.incoming = _Pipe(self, far, near)
        self._streams[near] = self._streams[far] = None
        low, high = self.options.accept_ms
        wait_ns = int((low + (high - low) * self.random.random()) * MILLISECOND_NS)

        def accept() -> None:
            if far.loop.dead:
                return
            far.loop.call_soon(lambda: far.made(listener.factory()))

        self.world.at(self.world.now_ns + wait_ns, accept)
        return near

    def abandon(self, stream: _Stream) -> None:
        """Close a connection whose caller was cancelled."""
        stream.pipe.end()
        self.forget(stream)

    def listen(
        self,
        process: "Process",
        factory: Callable[[], asyncio.BaseProtocol],
        host: Any,
        port: int,
        *,
        serving: bool,
    ) -> Listener:
        """Listen at a port of a process's host."""
        if host not in (*LOOPBACK, *ANY, process.host):
            raise OSError(
                errno.EADDRNOTAVAIL, f"{host!r} is not an address of host {process.host!r}"
            )
        if port == 0:
            self._ports += 1
            port = self._ports
        listener = Listener(self, process, factory, port)
        known = self._listeners.get((process.host, port))
        if known is not None and not known.loop.dead:
            raise OSError(errno.EADDRINUSE, f"address already in use: {process.host}:{port}")
        if serving:
            self.open(listener)
        return listener

    def open(self, listener: Listener) -> None:
        """Accept connections at a listener."""
        self._listeners[listener.host, listener.port] = listener

    def unlisten(self, listener: Listener) -> None:
        """Remove a listener."""
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    def stop_accepting(self, listener: object) -> bool:
        """Stop accepting; connections that are accepted already are made."""
        if isinstance(listener, Listener):
            listener.accepting = False
            return True
        return False

    # -- Faults ---------------------------------------------------------------------------------

    def cut(self, sources: Iterable[str], targets: Iterable[str], *, one_way: bool = False) -> None:
        """Let nothing through from some hosts to others, and back unless `one_way`."""
        far = list(targets)
        for source in sources:
            for target in far:
                self._cuts[source, target] = None
                if not one_way:
                    self._cuts[target, source] = None

    def heal(self) -> None:
        """Let everything through again."""
        self._cuts.clear()
        self._release()

    def _release(self) -> None:
        holding, self.holding = self.holding, {}
        for pipe in holding:
            pipe.release()

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether nothing gets through from one host to another."""
        return (source, target) in self._cuts or target in self._dark or source in self._dark

    def is_dark(self, host: str) -> bool:
        """Return whether a host has no power or is suspended."""
        return host in self._dark

    def reset(self, host: str) -> int:
        """Reset all connections of a host; return how many."""
        found = [each for each in self._streams if each.host == host]
        for stream in found:
            self.send_reset(stream)
            stream.reset()
        return len(found)

    def blackhole(self, host: str) -> int:
        """Lose all that present connections of a host carry, for good; return how many.

        Both sides stay half-open. New connections are not concerned.
        """
        found = [each for each in self._streams if each.host == host]
        for stream in found:
            stream.pipe.is_blackhole = stream.incoming.is_blackhole = True
        return len(found)

    def send_reset(self, stream: _Stream) -> None:
        """Reset the other side of a stream."""
        peer = stream.pipe.target
        if stream.pipe.is_blackhole:
            return
        self.world.at(self.world.now_ns + self.latency_ns(), peer.reset)

    def killed(self, process: "Process", *, power: bool) -> None:
        """Close the connections of a killed process, or leave them half-open after a power cut."""
        for listener in [each for each in self._listeners.values() if each.process is process]:
            self.unlisten(listener)
        if power:
            self.darken(process.host)
        for stream in [each for each in self._streams if each.process is process]:
            del self._streams[stream]
            if not power:
                # The kernel sends what it has taken, then the end of the stream.
                stream.pipe.unsent.clear()
                stream.pipe.unsent_bytes = 0
                stream.pipe.end()

    def darken(self, host: str) -> None:
        """Let nothing reach a host, which has no power or is suspended."""
        self._dark[host] = None

    def powered(self, host: str) -> None:
        """Give a host power again: what others still send to old connections is reset."""
        self._dark.pop(host, None)
        for pipe in list(self.holding):
            if pipe.target.host == host and pipe.target.loop.dead and not pipe.is_blackhole:
                del self.holding[pipe]
                pipe.held.clear()
                self.world.at(self.world.now_ns + self.latency_ns(), pipe.source.reset)
        self._release()

    def forget(self, stream: _Stream) -> None:
        """Remove a closed stream."""
        self._streams.pop(stream, None)

    def connections(self, host: str) -> int:
        """Return how many connections a host has."""
        return sum(each.host == host for each in self._streams)


def _succeed(made: "asyncio.Future[_Stream]", stream: _Stream) -> None:
    if made.done():
        stream.network.abandon(stream)
    else:
        made.set_result(stream)


def _fail(made: "asyncio.Future[_Stream]", error: OSError) -> None:
    if not made.done():
        made.set_exception(error)
