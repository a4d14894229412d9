"""Frames on a carrier of bytes.

All frames from a node to one peer within one turn of the event loop are one bundle, and each frame
is encoded once: an event for a hundred listeners is encoded once, and a hundred events for one
listener are one message. A bundle that does not decode is counted and reported (`on_bad_bundle`).

If the carrier multicasts, a node that attaches to a topic joins it at the carrier first. If not,
each listener gets its own message.

Limit: a bundle holds `BUNDLE_BYTES` or half of the carrier's largest message, whichever is less, or
one frame. A frame that is too large for the carrier is dropped and reported (`on_too_large`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from itertools import groupby
from typing import Any

from ensue.core.errors import BadInput, LimitReached, RemoteProtocolError
from ensue.core.wire import Codec, bundle
from ensue.protocols.interface import Attach, Broadcast, Detach, Frame, Multicast
from ensue.transports.base import Receiver
from ensue.transports.carrier import Carrier
from ensue.transports.traffic_counts import Traffic

__all__ = ["FramedPort", "FramedTransport"]

BUNDLE_BYTES = 256 * 1024
ALL_LISTENERS = "*"
"""The target of a multicast bundle."""

_log = logging.getLogger("ensue")


class FramedTransport:
    """A transport that sends frames through a carrier.

    `topic_of` names the topic of a notification, and is empty for any other frame: multicast
    frames go to the ports that joined this topic. `home` names the peer that keeps a topic's log.

    If no peer keeps logs, `answer` handles the requests of a port instead of `home`. No peer sends
    to such ports, so they have no inboxes.
    """

    lazy = True

    def __init__(
        self,
        carrier: Carrier,
        codec: Codec,
        *,
        home: Callable[[str], str],
        topic_of: Callable[[Frame], str],
        answer: Callable[["FramedPort", Broadcast | Attach | Detach], None] | None = None,
    ) -> None:
        self.carrier = carrier
        self.name = carrier.name
        self.capabilities = carrier.capabilities
        self.codec = codec
        self.home = home
        self._topic_of = topic_of
        self._answer = answer
        self.bad_bundles = 0
        """Number of messages that did not decode or were not admitted."""
        self.on_bad_bundle: Callable[[RemoteProtocolError], None] | None = None
        self.too_large = 0
        """Number of bundles that exceeded the carrier's limit."""
        self.on_too_large: Callable[[str, LimitReached], None] | None = None
        """Called soon with the name of the sender and the carrier's error."""
        self.admit: Callable[[str, str, list[Frame]], list[Frame]] | None = None
        """Given target, source and frames of a bundle: returns the admitted frames, or raises
        `RemoteProtocolError` to refuse the bundle."""
        self.traffic: Traffic | None = None
        """Counts frames and bytes for metrics, if set."""
        self._loop = asyncio.get_running_loop()
        self._ports: dict[str, FramedPort] = {}
        self._entered: dict[str, None] = {}
        self._joined: dict[str, dict[FramedPort, None]] = {}
        """Topic to its listeners, where the carrier multicasts."""
        self._joining: dict[str, asyncio.Task[None]] = {}
        """Topics that are being joined, each with its task."""
        self._moves: dict[str, asyncio.Task[None]] = {}
        """The last task that joins or leaves a topic: the next one waits for it."""
        self._unflushed: dict[FramedPort, None] = {}
        self._flushing = False
        self.bundle_bytes = min(BUNDLE_BYTES, carrier.capabilities.message_bytes_max // 2)
        """Size of a bundle beyond which the next frame starts another."""
        self._last: tuple[Frame | None, bytes] = (None, b"")

    async def enter(self, name: str) -> None:
        """Open the inbox of a name; return when no later message to it is missed."""
        if name in self._entered:
            raise BadInput(f"the name {name!r} is taken on this bus: choose another")
        self._entered[name] = None
        if self._answer is not None:
            return
        try:
            await self.carrier.open(name, self._arrived)
        except BaseException:
            del self._entered[name]
            raise

    async def exit(self, name: str) -> None:
        """Close the inbox of a name."""
        if self._entered.pop(name, 0) is None and self._answer is None:
            await self.carrier.shut(name)

    def open(self, name: str, receiver: Receiver) -> "FramedPort":
        """Return the port of a node whose name was entered."""
        assert name in self._entered, name
        port = self._ports[name] = FramedPort(self, name, receiver)
        return port

    def forget(self, port: "FramedPort") -> None:
        """Deliver nothing to a port any more."""
        if self._ports.get(port.name) is port:
            del self._ports[port.name]
        for topic in [topic for topic, ports in self._joined.items() if port in ports]:
            self._leave(port, topic)

    def body(self, frame: Frame) -> bytes:
        """Return the encoded frame; the same frame again is not encoded twice."""
        if self._last[0] is frame:
            return self._last[1]
        body = self.codec.body(frame)
        self._last = (frame, body)
        return body

    def ask(self, port: "FramedPort", effect: Broadcast | Attach | Detach, request: Frame) -> None:
        """Send a request to the peer that keeps the topic's log."""
        topic = effect.event.topic if isinstance(effect, Broadcast) else effect.topic
        if self.capabilities.multicast and isinstance(effect, Attach):
            if topic not in self._joined:
                self._joined[topic] = {port: None}
                self._joining[topic] = self._move(topic, self._join)
            self._joined[topic][port] = None
            task = self._joining.get(topic)
            if task is not None:
                # Sent once the topic is joined: events may follow the answer at once.
                task.add_done_callback(lambda _task: self._joined_topic(port, effect, request))
                return
        elif self.capabilities.multicast and isinstance(effect, Detach):
            self._leave(port, topic)
        self._request(port, effect, request, topic)

    def _request(
        self,
        port: "FramedPort",
        effect: Broadcast | Attach | Detach,
        request: Frame,
        topic: str,
    ) -> None:
        if self._answer is None:
            port.send(effect.node or self.home(topic), request)
        else:
            self._answer(port, effect)

    def receive_soon(self, port: "FramedPort", frame: Frame) -> None:
        """Deliver a frame to a port in the next turn of the event loop, if it is open."""
        self._loop.call_soon(self._receive, port, frame)

    def _receive(self, port: "FramedPort", frame: Frame) -> None:
        if self._ports.get(port.name) is port:
            port.receiver((frame,), self.name)

    def flush_soon(self, port: "FramedPort") -> None:
        """Flush at the end of this turn of the event loop."""
        self._unflushed[port] = None
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send all bundles now."""
        self._flushing = False
        unflushed, self._unflushed = self._unflushed, {}
        carrier = self.carrier
        for port in unflushed:
            for target, topic, bodies in port.take():
                count = len(bodies)
                if topic:
                    data = bundle(ALL_LISTENERS, port.name, bodies)
                    self._transmit(carrier.multicast, topic, data, count, port)
                elif isinstance(target, str):
                    data = bundle(target, port.name, bodies)
                    self._transmit(carrier.send, target, data, count, port)
                else:
                    joined = (b"".join(bodies),)
                    for peer in target:
                        data = bundle(peer, port.name, joined, count)
                        self._transmit(carrier.send, peer, data, count, port)

    def _joined_topic(self, port: "FramedPort", effect: Attach, request: Frame) -> None:
        """Send the request that waited for a topic to be joined."""
        # If the topic is being joined again, a later request waits for that.
        ready = effect.topic not in self._joining
        if (
            ready
            and self._ports.get(port.name) is port
            and port in self._joined.get(effect.topic, ())
        ):
            self._request(port, effect, request, effect.topic)
            port.flush()

    def _move(
        self,
        topic: str,
        move: Callable[[str, asyncio.Task[None] | None], Coroutine[Any, Any, None]],
    ) -> asyncio.Task[None]:
        """Join or leave a topic after the previous task of this topic has ended."""
        task = self._loop.create_task(move(topic, self._moves.get(topic)))
        self._moves[topic] = task
        return task

    async def _join(self, topic: str, before: asyncio.Task[None] | None) -> None:
        task = asyncio.current_task()
        try:
            await _through(before)
            await self.carrier.join(topic, self._multicast_arrived)
        except Exception as error:  # noqa: BLE001 - the subscriber retries
            wanted = self._joining.get(topic) is task
            # No warning if all listeners have left meanwhile: the carrier may be closed.
            level = logging.WARNING if wanted else logging.DEBUG
            _log.log(level, "join failed transport=%s topic=%r: %s", self.name, topic, error)
            if wanted:
                self._joined.pop(topic, None)
        finally:
            for moves in (self._joining, self._moves):
                if moves.get(topic) is task:
                    del moves[topic]

    async def _quit(self, topic: str, before: asyncio.Task[None] | None) -> None:
        try:
            await _through(before)
            await self.carrier.leave(topic)
        except Exception as error:  # noqa: BLE001 - later messages of the topic are dropped
            _log.debug("leave failed transport=%s topic=%r: %s", self.name, topic, error)
        finally:
            if self._moves.get(topic) is asyncio.current_task():
                del self._moves[topic]

    def _leave(self, port: "FramedPort", topic: str) -> None:
        ports = self._joined.get(topic)
        if ports is None:
            return
        ports.pop(port, None)
        if not ports:
            del self._joined[topic]
            self._joining.pop(topic, None)
            self._move(topic, self._quit)

    def _transmit(
        self,
        send: Callable[[str, bytes], None],
        to: str,
        data: bytes,
        frames: int,
        port: "FramedPort",
    ) -> None:
        try:
            send(to, data)
        except LimitReached as error:
            # The other bundles are still sent.
            self.too_large += 1
            if self.on_too_large is None:
                _log.error("bundle dropped source=%s target=%s: %s", port.name, to, error)
            else:
                self._loop.call_soon(self.on_too_large, port.name, error)
            return
        if self.traffic is not None:
            self.traffic.count_sent(frames, len(data))

    def _arrived(self, data: bytes) -> None:
        read = self._read(data)
        if read is not None:
            target, source, frames = read
            port = self._ports.get(target)
            if port is not None:
                port.receiver(frames, source)

    def _multicast_arrived(self, data: bytes) -> None:
        read = self._read(data)
        if read is None:
            return
        _, source, frames = read
        # A bundle has one topic; a forged one may have several, and each goes to its listeners.
        for topic, run in groupby(frames, key=self._topic_of):
            together = tuple(run)
            for port in list(self._joined.get(topic, ())):
                port.receiver(together, source)

    def _read(self, data: bytes) -> tuple[str, str, list[Frame]] | None:
        try:
            read = self.codec.unbundle(data)
            if self.admit is not None:
                read = (read[0], read[1], self.admit(*read))
        except RemoteProtocolError as error:
            self.bad_bundles += 1
            if self.on_bad_bundle is None:
                _log.warning("bad bundle dropped transport=%s: %s", self.name, error)
            else:
                self.on_bad_bundle(error)
            return None
        if self.traffic is not None:
            self.traffic.count_received(read[2], len(data))
        return read


async def _through(move: "asyncio.Task[None] | None") -> None:
    """Wait for an earlier task, however it ends."""
    if move is not None:
        await asyncio.wait((move,))


Target = str | tuple[str, ...]
"""A peer, or several peers that get the same frames."""


class _Bundle:
    """Encoded frames for one target."""

    __slots__ = ("bodies", "size", "target", "topic")

    def __init__(self, target: Target, *, multicast: bool) -> None:
        self.target = target
        self.topic = target if multicast and isinstance(target, str) else ""
        self.bodies: list[bytes] = []
        self.size = 0


class FramedPort:
    """One node's end of a carrier."""

    __slots__ = ("_bundles", "_open", "_transport", "name", "receiver")

    def __init__(self, transport: FramedTransport, name: str, receiver: Receiver) -> None:
        self.name = name
        self.receiver = receiver
        self._transport = transport
        self._bundles: list[_Bundle] = []
        """In the order of their first frames."""
        self._open: dict[str | int | tuple[str], _Bundle] = {}
        """By target: the bundle that is not full."""

    def send(self, peer: str, frame: Frame) -> None:
        """Send a frame to a peer."""
        self._add(peer, peer, self._transport.body(frame), multicast=False)

    def multicast(self, effect: Multicast) -> None:
        """Send a frame to all listeners of a topic, by multicast if the carrier can."""
        transport = self._transport
        body = effect.encoded or transport.body(effect.frame)
        # Keys: a tuple for a topic, which may have the name of a peer; for several peers the
        # identity of their tuple, because hashing a long one takes time.
        multicasts = transport.capabilities.multicast
        target: Target = effect.topic if multicasts else effect.peers
        self._add((effect.topic,) if multicasts else id(target), target, body, multicast=multicasts)

    def ask(self, effect: Broadcast | Attach | Detach, request: Frame) -> None:
        """Ask the peer that keeps the topic's log."""
        self._transport.ask(self, effect, request)

    def receive_soon(self, frame: Frame) -> None:
        """Deliver a frame to this node in the next turn, when its command is handled."""
        self._transport.receive_soon(self, frame)

    def flush(self) -> None:
        """Send all bundles at the end of this turn of the event loop."""
        if self._bundles:
            self._transport.flush_soon(self)

    def close(self) -> None:
        """Deliver nothing to the node any more."""
        self._transport.forget(self)

    def _add(
        self, key: str | int | tuple[str], target: Target, body: bytes, *, multicast: bool
    ) -> None:
        """Add an encoded frame to the bundle of its target."""
        found = self._open.get(key)
        if found is None or found.size + len(body) > self._transport.bundle_bytes:
            if not self._bundles:
                self._transport.flush_soon(self)
            found = self._open[key] = _Bundle(target, multicast=multicast)
            self._bundles.append(found)
        found.bodies.append(body)
        found.size += len(body)

    def take(self) -> list[tuple[Target, str, list[bytes]]]:
        """Drain the bundles: target, topic if it is multicast, and encoded frames."""
        bundles, self._bundles, self._open = self._bundles, [], {}
        return [(each.target, each.topic, each.bodies) for each in bundles]
