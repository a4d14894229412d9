"""`memory://`: everything in one process and one event loop.

A hub holds the chain's nodes and the ENS; buses connect to it. `memory://` is a hub of its own;
`memory://NAME` is shared by every bus of the event loop that names it, and gone with the last one.

Options, as in `memory://shop?nodes=3&jitter_ms=5`:
- `nodes`: sequencer nodes in the chain (1).
- `jitter_ms`: notifications take up to so long, each its own time, so they overtake each other (0).
- `loss`: the chance that a notification is lost (0). Above 0 the ENS keeps no log, so that what is
  lost stays lost; in causal order, where nodes hand events to each other, it is sent again, and with
  deadlines as long as it is of use.
- `seed`: for the two above (0).

Frames travel as objects: nothing is encoded. They are handed over in the order sent, one after the
other, within the call that caused them: a publish that meets no jitter is through before it returns.

Limit: a hub hands over `BURST_MAX` frames before it lets other tasks run.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from urllib.parse import parse_qsl, urlsplit

import msgspec

from ensue.clock import Clock, system_clock
from ensue.errors import BadInput
from ensue.event import Event
from ensue.protocols.core import Attach, Broadcast, Detach, Frame, Multicast, Send
from ensue.protocols.ens import Accepted, Notify, Put, request_for
from ensue.protocols.gossip.frames import Message
from ensue.protocols.hypercube.frames import Publication
from ensue.protocols.topic_log import EnsConfig, TopicLog
from ensue.transports.base import Capabilities, Receiver

__all__ = ["ENS", "MemoryOptions", "MemoryTransport"]

BURST_MAX = 10_000
RETAINED_MAX = 100_000
"""Events kept per topic, for subscriptions that hold too much back and ask again."""
_AT_RISK = (Publication, Message)
"""Frames with events that nodes hand each other."""
ENS = "ens"
"""The name under which a hub's ENS is a peer of its nodes."""


class MemoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a `memory://` URL says."""

    hub: str = ""
    nodes: int = 1
    jitter_ms: float = 0.0
    loss: float = 0.0
    seed: int = 0
    brokers: int = 1
    """Of the overlay that carries content, if anybody uses it."""

    @classmethod
    def parse(cls, url: str) -> "MemoryOptions":
        """Read a URL, or say what is wrong with it."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise BadInput(f"{url}: {error}") from None
        if parts.path not in ("", "/") or parts.fragment:
            raise BadInput(f"{url}: a memory hub is named without a path: memory://NAME")
        if ":" in parts.netloc or "@" in parts.netloc:
            raise BadInput(f"{url}: a memory hub has a name, no port and no user: memory://NAME")
        given = _given(url, parts.query)
        read = cls(
            hub=parts.netloc,
            nodes=_whole_number(url, "nodes", given.get("nodes", "1")),
            jitter_ms=_number(url, "jitter_ms", given.get("jitter_ms", "0")),
            loss=_number(url, "loss", given.get("loss", "0")),
            seed=_whole_number(url, "seed", given.get("seed", "0")),
            brokers=_whole_number(url, "brokers", given.get("brokers", "1")),
        )
        for name, count in (("nodes", read.nodes), ("brokers", read.brokers)):
            if not 1 <= count <= 64:
                raise BadInput(f"{url}: {name} must be between 1 and 64, not {count}")
        if read.jitter_ms < 0:
            raise BadInput(f"{url}: jitter_ms must be at least 0, not {read.jitter_ms:g}")
        if not 0 <= read.loss < 1:
            raise BadInput(f"{url}: loss must be from 0 to below 1, not {read.loss:g}")
        return read

    def to_query(self) -> str:
        """Return the options as a URL has them behind the name, without those that need not be said."""
        usual = MemoryOptions(hub=self.hub)
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        said = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in given.items()
            if value != getattr(usual, name)
        ]
        return f"?{'&'.join(said)}" if said else ""

    @property
    def capabilities(self) -> Capabilities:
        """What a hub with these options can do."""
        return Capabilities(
            orders=("none", "total", "causal", "merged", "deadline"),
            fifo=True,
            durable=False,
            replay=self.loss == 0,
            conditional=True,
        )


def _given(url: str, query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in ("nodes", "jitter_ms", "loss", "seed", "brokers"):
            raise BadInput(
                f"{url}: there is no option {name!r}; "
                "expected nodes, jitter_ms, loss, seed or brokers"
            )
        if name in given:
            raise BadInput(f"{url}: {name} is given more than once")
        given[name] = value
    return given


def _whole_number(url: str, name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise BadInput(f"{url}: {name} must be a whole number, not {value!r}") from None


def _number(url: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{url}: {name} must be a number, not {value!r}")
    return number


class MemoryTransport:
    """Carries frames between the nodes of one event loop, and is their ENS."""

    name = "memory://"
    lazy = False

    def __init__(
        self,
        options: MemoryOptions,
        *,
        clock: Clock | None = None,
        on_accepted: Callable[[Event, int], None] | None = None,
    ) -> None:
        self.options = options
        self._on_accepted = on_accepted
        """Told each event with its slot when the ENS has it; again if it is put again."""
        self.clock = clock or system_clock()
        self.capabilities = options.capabilities
        self._random = Random(options.seed)  # noqa: S311 - jitter is no secret
        self._jitter_s = options.jitter_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[str, Receiver] = {}
        self._queue: deque[tuple[str, str, Frame]] = deque()
        self._pumping = False
        self.on_closed: Callable[[str], None] | None = None
        """Told the name of a node whose port was closed."""
        self._ens = TopicLog(
            name=ENS,
            config=EnsConfig(
                keeps_log=self.capabilities.replay, retained_max=RETAINED_MAX, durable=False
            ),
        )
        self._receivers[ENS] = self._at_ens

    def open(self, name: str, receiver: Receiver) -> "MemoryPort":
        """Give a node its port."""
        if name in self._receivers:
            raise BadInput(f"the name {name!r} is taken on this hub: names must be unique")
        self._receivers[name] = receiver
        return MemoryPort(self, name)

    def transmit(self, source: str, target: str, frame: Frame) -> None:
        """Queue a frame; `flush` hands it over.

        Never from within: a node must have told its own outcomes before it is given more.
        Events that nodes hand each other suffer as notifications do.
        """
        if type(frame) in _AT_RISK:
            self._at_risk(source, target, frame)
        else:
            self._queue.append((source, target, frame))

    def flush(self) -> None:
        """Hand over what is queued, unless that is going on already."""
        if self._queue and not self._pumping:
            self._pump()

    def forget(self, name: str) -> None:
        """Hand nothing over to a node any more."""
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
                # The burst was long enough, or a receiver raised, which is not the others' fault.
                self._loop.call_soon(self.flush)

    def _at_ens(self, frames: Sequence[Frame], source: str) -> None:
        for frame in frames:
            self._ask_ens(frame, source)

    def _ask_ens(self, frame: Frame, source: str) -> None:
        ens = self._ens
        ens.receive(frame, source=source, now_ns=0)
        for effect in ens.take_effects():
            # An ENS that is not durable does nothing but send.
            if isinstance(effect, Multicast):
                assert isinstance(effect.frame, Notify)
                for peer in effect.peers:
                    self._notify(peer, effect.frame)
                continue
            assert isinstance(effect, Send)
            answer = effect.frame
            if isinstance(answer, Notify):
                self._notify(effect.peer, answer)
            else:
                self._queue.append((ENS, effect.peer, answer))
                if self._on_accepted is not None and isinstance(answer, Accepted):
                    assert isinstance(frame, Put)
                    self._on_accepted(frame.event, answer.slot)

    def _notify(self, peer: str, frame: Notify) -> None:
        self._at_risk(ENS, peer, frame)

    def _at_risk(self, source: str, target: str, frame: Frame) -> None:
        """Carry a frame that has an event in it, as the options say."""
        if self.options.loss and self._random.random() < self.options.loss:
            return
        if self._jitter_s:
            delay_s = self._random.random() * self._jitter_s
            self._loop.call_later(delay_s, self._arrive, source, target, frame)
        else:
            self._queue.append((source, target, frame))

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
        """Send a frame to each peer of this hub who listens."""
        for peer in effect.peers:
            self._transport.transmit(self._name, peer, effect.frame)

    def ask(self, effect: Broadcast | Attach | Detach) -> None:
        """Ask the hub's ENS."""
        self._transport.transmit(self._name, ENS, request_for(effect))

    def flush(self) -> None:
        """Let the hub hand over what was sent."""
        self._transport.flush()

    def close(self) -> None:
        """Hand nothing over any more."""
        self._transport.forget(self._name)
