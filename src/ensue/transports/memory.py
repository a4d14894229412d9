"""`memory://`: everything in one process and one event loop.

A hub holds the chain's nodes and the topic logs; buses connect to it. `memory://` is a new hub for
one bus; `memory://NAME` is shared by all buses of the event loop that name it, and ends with the
last one.

Options, as in `memory://shop?nodes=3&jitter_ms=5`:
- `nodes`: stations in the chain (1).
- `jitter_ms`: largest random delay of a notification, so that notifications overtake (0).
- `loss`: probability that a notification is lost (0). Above 0 no log is kept, so a lost event stays
  lost; nodes of causal order retransmit it, and those of deadline order until its deadline.
- `seed`: of the random numbers for the two above (0).
- `brokers`: content brokers (1).
- `cells`: how events by content are divided for total order, such as `symbol/16` (none).

Frames are not encoded. They are delivered in the order sent, one after the other, within the call
that caused them: without jitter, a publish returns when the event is delivered.

Limit: a hub delivers `BURST_MAX` frames before it lets other tasks run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from random import Random
from urllib.parse import urlsplit

import msgspec

from ensue.core import platform
from ensue.core.clock import Clock
from ensue.core.errors import BadInput
from ensue.protocols.interface import Attach, Broadcast, Detach, Frame, Multicast
from ensue.transports.base import Capabilities, Receiver
from ensue.transports.url_options import UrlOptions

__all__ = ["MemoryOptions", "MemoryTransport"]

BURST_MAX = 10_000


class MemoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `memory://` URL."""

    hub: str = ""
    nodes: int = 1
    jitter_ms: float = 0.0
    loss: float = 0.0
    seed: int = 0
    brokers: int = 1
    """Content brokers, started on first use."""
    cells: str = ""
    """How events by content are divided (`SequencerConfig.cells`)."""

    @classmethod
    def parse(cls, url: str) -> "MemoryOptions":
        """Parse a URL; raise `BadInput` if it is wrong."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise BadInput(f"{url}: {error}") from None
        if parts.path not in ("", "/") or parts.fragment:
            raise BadInput(
                f"{url}: a memory hub has neither path nor fragment; expected memory://NAME"
            )
        if ":" in parts.netloc or "@" in parts.netloc:
            raise BadInput(f"{url}: a memory hub has no port and no user; expected memory://NAME")
        given = UrlOptions.read(
            parts.query, ("nodes", "jitter_ms", "loss", "seed", "brokers", "cells"), shown=url
        )
        read = cls(
            hub=parts.netloc,
            nodes=given.integer("nodes", 1),
            jitter_ms=given.number("jitter_ms", 0.0),
            loss=given.number("loss", 0.0),
            seed=given.integer("seed", 0),
            brokers=given.integer("brokers", 1),
            cells=given.text("cells"),
        )
        for name, count in (("nodes", read.nodes), ("brokers", read.brokers)):
            if not 1 <= count <= 64:
                raise BadInput(f"{url}: {name} must be between 1 and 64, got {count}")
        if read.jitter_ms < 0:
            raise BadInput(f"{url}: jitter_ms must be at least 0, got {read.jitter_ms:g}")
        if not 0 <= read.loss < 1:
            raise BadInput(f"{url}: loss must be from 0 to below 1, got {read.loss:g}")
        return read

    def to_query(self) -> str:
        """Return the query of the URL, without defaults."""
        defaults = MemoryOptions(hub=self.hub)
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        written = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in given.items()
            if value != getattr(defaults, name)
        ]
        return f"?{'&'.join(written)}" if written else ""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of a hub with these options."""
        return Capabilities(
            fifo=True,
            durable=False,
            replay=self.loss == 0,
            conditional=True,
            in_process=True,
        )


class MemoryTransport:
    """A transport between the nodes of one event loop.

    `home` names the peer that keeps a topic's log. `unreliable` are the types of the frames that
    carry events: loss and jitter apply only to these.
    """

    name = "memory://"
    lazy = False

    def __init__(
        self,
        options: MemoryOptions,
        *,
        home: Callable[[str], str] = str,
        unreliable: Collection[type[Frame]] = (),
        clock: Clock | None = None,
    ) -> None:
        self.options = options
        self.home = home
        self.clock = clock or platform.current().clock
        self.capabilities = options.capabilities
        self.on_closed: Callable[[str], None] | None = None
        """Called with the name of a node whose port was closed."""
        is_perfect = not options.loss and not options.jitter_ms
        self._unreliable = frozenset(() if is_perfect else unreliable)
        self._random = Random(options.seed)  # noqa: S311 - jitter is no secret
        self._jitter_s = options.jitter_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[str, Receiver] = {}
        self._queue: deque[tuple[str, str, Frame]] = deque()
        self._pumping = False

    def open(self, name: str, receiver: Receiver) -> "MemoryPort":
        """Give a node its port."""
        if name in self._receivers:
            raise BadInput(f"the name {name!r} is taken on this hub: choose another")
        self._receivers[name] = receiver
        return MemoryPort(self, name)

    def transmit(self, source: str, target: str, frame: Frame) -> None:
        """Queue a frame; `flush` delivers it.

        Never delivers it itself: a node completes its own step before it gets more frames.
        """
        if type(frame) not in self._unreliable:
            self._queue.append((source, target, frame))
        elif self.options.loss and self._random.random() < self.options.loss:
            return
        elif self._jitter_s:
            delay_s = self._random.random() * self._jitter_s
            self._loop.call_later(delay_s, self._arrive, source, target, frame)
        else:
            self._queue.append((source, target, frame))

    def flush(self) -> None:
        """Deliver queued frames, unless called from a delivery."""
        if self._queue and not self._pumping:
            self._pump()

    def forget(self, name: str) -> None:
        """Deliver nothing to a node any more."""
        if self._receivers.pop(name, None) is not None and self.on_closed is not None:
            self.on_closed(name)

    def _pump(self) -> None:
        self._pumping = True
        queue, receivers = self._queue, self._receivers
        try:
            for _ in range(BURST_MAX):
                if not queue:
                    return
                source, target, frame = queue.popleft()
                receiver = receivers.get(target)
                if receiver is not None:
                    receiver((frame,), source)
        finally:
            self._pumping = False
            if queue:
                # The burst was long enough, or a receiver raised: deliver the rest later.
                self._loop.call_soon(self.flush)

    def _arrive(self, source: str, target: str, frame: Frame) -> None:
        self._queue.append((source, target, frame))
        self.flush()


class MemoryPort:
    """One node's end of a hub."""

    __slots__ = ("_name", "_transport")

    def __init__(self, transport: MemoryTransport, name: str) -> None:
        self._transport = transport
        self._name = name

    def send(self, peer: str, frame: Frame) -> None:
        """Send a frame to a peer of this hub."""
        self._transport.transmit(self._name, peer, frame)

    def multicast(self, effect: Multicast) -> None:
        """Send a frame to each listener of a topic."""
        for peer in effect.peers:
            self._transport.transmit(self._name, peer, effect.frame)

    def ask(self, effect: Broadcast | Attach | Detach, request: Frame) -> None:
        """Ask the peer that keeps the topic's log."""
        topic = effect.event.topic if isinstance(effect, Broadcast) else effect.topic
        transport = self._transport
        transport.transmit(self._name, effect.node or transport.home(topic), request)

    def flush(self) -> None:
        """Have the hub deliver queued frames."""
        self._transport.flush()

    def close(self) -> None:
        """Deliver nothing to the node any more."""
        self._transport.forget(self._name)
