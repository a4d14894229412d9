"""Who has which number in a cube whose nodes are processes: kept by a registry, and never given twice.

Nodes hand events to each other and order them among themselves; all that has to be agreed on beforehand is who is who. A registry
runs beside the first station of a chain, one for each kind of causal order, and keeps two lists that only grow: names, in the order of their
numbers, and who is gone. Whoever knows the first k of either can be told the rest, so that lost answers cost nothing but another question.

- A node that comes asks (`Enrol`) until it has both lists. Everybody who is there is told of it at once.
- A node that is there asks every few seconds: that is how it hears of others whose news was lost, and how the registry knows that it is alive.
- A node that goes says so (`Resign`); one that has not been heard of for `expire_ns` is taken for gone. Should it come back it is told
  (`Expelled`) and ends: its number may mean nothing any more.
- When all are gone the cube begins anew, from number 0, in another epoch. Until then a number is never given again, because
  others may still hold or name events by it.
- What all have to agree on (`terms`), the first to come decides. Who wants something else is not let in.
- Whether a node may use a topic it asks beforehand (`Ask`): an event that somebody refuses on its way would leave a gap that
  all its successors wait at. The registry itself grants everything; a server with permissions answers in its place.

It persists both lists. HAZARD: a registry that lost some of them (a power failure with `--sync` above 0, or a directory that was deleted)
knows less than its nodes; they are told that they are gone, and come back as new ones.

Limit: `NODES_MAX` numbers in one epoch, those of processes that are gone included.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from ensue.event import Count, Name
from ensue.protocols.core import Effect, Frame, Persist, Send
from ensue.protocols.hypercube.cube import NODES_MAX
from ensue.protocols.hypercube.frames import Number
from ensue.wire import Records

__all__ = [
    "CUBE",
    "FRAMES",
    "FROM_NODES",
    "ORDERS",
    "Ask",
    "Denied",
    "Enrol",
    "Expelled",
    "Granted",
    "Members",
    "Registry",
    "Resign",
    "registry_of",
]

ORDERS = ("causal", "causal-topic", "deadline")
"""Causal across all topics, and within each: two cubes, as nodes of both would not understand each other; and brokers with deadlines."""
CUBE = "cube/"
"""What the keys of all registries' records begin with."""
NAMES_MAX = 1024
"""Names in one answer."""
GONE_MAX = 8192
"""Numbers of those who are gone in one answer."""
SWEEPS = 4
"""How often in `expire_ns` the registry looks who has vanished."""
MILLISECOND_NS = 1_000_000

Action = Literal["publish", "subscribe"]

_TEXT = Records[str](str)
_NUMBER = Records[int](int)


def registry_of(station: str, order: str) -> str:
    """Return the name of the registry beside a station. No client's name holds a slash."""
    return f"{station}/{order}"


Terms = Annotated[str, msgspec.Meta(max_length=64)]


class Enrol(Frame, frozen=True, tag=70):
    """Make me a node, or tell me what is new."""

    epoch: Count
    """0: I am new."""
    known: Count
    """How many names I know."""
    gone: Count
    """Of how many I know that they are gone."""
    terms: Terms = ""
    """What all have to agree on, in words."""


class Members(Frame, frozen=True, tag=71):
    """What the lists have beyond what was known; ask again if that is not all."""

    epoch: Count
    first: Count
    names: tuple[Name, ...]
    total: Count
    gone_first: Count
    gone: tuple[Number, ...]
    gone_total: Count


class Expelled(Frame, frozen=True, tag=72):
    """You are no node, and will not be one under this name."""

    reason: str


class Resign(Frame, frozen=True, tag=73):
    """I am gone for good."""

    epoch: Count
    """0: whichever it is, I was not told."""


class Ask(Frame, frozen=True, tag=74):
    """Ask whether I may do this with a topic."""

    topic: Name
    action: Action


class Granted(Frame, frozen=True, tag=75):
    """You may."""

    topic: Name
    action: Action


class Denied(Frame, frozen=True, tag=76):
    """You may not."""

    topic: Name
    action: Action
    reason: str


FRAMES: tuple[type[Frame], ...] = (Enrol, Members, Expelled, Resign, Ask, Granted, Denied)
FROM_NODES: tuple[type[Frame], ...] = (Enrol, Resign, Ask)


class Registry:
    """Keeps the lists of one cube. It answers frames; `records` is what an earlier run persisted."""

    def __init__(
        self,
        *,
        name: str,
        order: str,
        expire_ns: int,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.across = order == ORDERS[0]
        """Whether order holds across topics."""
        self._prefix = f"{CUBE}{order}/"
        self._expire_ns = expire_ns
        self._sweep_due_ns = now_ns + expire_ns // SWEEPS
        self._effects: list[Effect] = []
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.gone: list[int] = []
        self._present: dict[str, int] = {}
        """Who is there, and when it was last heard of."""
        self.epoch = 0
        self.terms = ""
        self._restore(records or {}, now_ns)
        if not self.epoch:
            self._begin(max(1, now_ns // MILLISECOND_NS))

    @property
    def present(self) -> tuple[str, ...]:
        """Those who are there."""
        return tuple(self._present)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a node."""
        match frame:
            case Enrol():
                self._enrol(frame, source, now_ns)
            case Resign(epoch=epoch) if epoch in (0, self.epoch) and source in self._present:
                self._part([source])
            case Ask(topic=topic, action=action):
                self._effects.append(Send(source, Granted(topic=topic, action=action)))
            case _:
                pass  # Not for a registry: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Look who has vanished."""
        if self._sweep_due_ns > now_ns:
            return
        self._sweep_due_ns = now_ns + self._expire_ns // SWEEPS
        self._part(
            [
                name
                for name, heard_ns in self._present.items()
                if now_ns - heard_ns >= self._expire_ns
            ]
        )

    def next_timer_ns(self) -> int | None:
        """Return when to look who has vanished."""
        return self._sweep_due_ns if self._present else None

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    def _enrol(self, frame: Enrol, source: str, now_ns: int) -> None:
        if frame.epoch and frame.epoch != self.epoch:
            self._expel(source, "the registry knows nothing of its cube any more")
            return
        if source not in self._numbers:
            if frame.epoch:
                self._expel(source, "the registry knows nothing of it any more")
                return
            if self.names and not self._present:
                self._begin(self.epoch + 1)
            if len(self.names) >= NODES_MAX:
                self._expel(
                    source,
                    f"the cube has given all its {NODES_MAX} numbers; it begins anew when all have left",
                )
                return
            if frame.terms != self.terms:
                if self._present:
                    why = f"all who are there have {self.terms}, and it has {frame.terms}"
                    self._expel(source, why)
                    return
                self.terms = frame.terms
                self._persist("terms", _TEXT.encode(self.terms))
            self._admit(source, now_ns)
        elif source not in self._present:
            self._expel(source, "it was away for too long, or has left")
            return
        self._present[source] = now_ns
        self._tell(source, frame.known, frame.gone)

    def _admit(self, name: str, now_ns: int) -> None:
        number = self._numbers[name] = len(self.names)
        self.names.append(name)
        self._persist(f"name/{number}", _TEXT.encode(name))
        for other in self._present:
            self._tell(other, number, len(self.gone))
        if not self._present:
            self._sweep_due_ns = now_ns + self._expire_ns // SWEEPS

    def _part(self, names: list[str]) -> None:
        """Take nodes for gone, and tell the others."""
        known = len(self.gone)
        for name in names:
            del self._present[name]
            self._persist(f"gone/{len(self.gone)}", _NUMBER.encode(self._numbers[name]))
            self.gone.append(self._numbers[name])
        if names:
            for other in self._present:
                self._tell(other, len(self.names), known)

    def _tell(self, peer: str, known: int, gone: int) -> None:
        if known > len(self.names) or gone > len(self.gone):
            self._expel(peer, "the registry knows less than it does")
            return
        members = Members(
            epoch=self.epoch,
            first=known,
            names=tuple(self.names[known : known + NAMES_MAX]),
            total=len(self.names),
            gone_first=gone,
            gone=tuple(self.gone[gone : gone + GONE_MAX]),
            gone_total=len(self.gone),
        )
        self._effects.append(Send(peer, members))

    def _expel(self, peer: str, reason: str) -> None:
        self._effects.append(Send(peer, Expelled(reason=reason)))

    def _begin(self, epoch: int) -> None:
        """Begin anew: nobody is left who knows any number."""
        for number in range(len(self.names)):
            self._persist(f"name/{number}", None)
        for index in range(len(self.gone)):
            self._persist(f"gone/{index}", None)
        self.epoch = epoch
        self._persist("epoch", _NUMBER.encode(epoch))
        self.names, self._numbers, self.gone = [], {}, []

    def _persist(self, key: str, value: bytes | None) -> None:
        self._effects.append(Persist(self._prefix + key, value))

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        names: dict[int, str] = {}
        gone: dict[int, int] = {}
        for key, value in records.items():
            if not key.startswith(self._prefix):
                continue
            kind, _, index = key.removeprefix(self._prefix).partition("/")
            if kind == "epoch":
                self.epoch = _NUMBER.decode(value)
            elif kind == "terms":
                self.terms = _TEXT.decode(value)
            elif kind == "name":
                names[int(index)] = _TEXT.decode(value)
            else:
                gone[int(index)] = _NUMBER.decode(value)
        self.names = [names[number] for number in sorted(names)]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.gone = [gone[index] for index in sorted(gone)]
        left = set(self.gone)
        self._present = {
            name: now_ns for name, number in self._numbers.items() if number not in left
        }
