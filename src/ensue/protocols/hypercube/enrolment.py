"""Who has which number in a cube whose nodes are processes: kept by a registry, and never given twice.

Nodes hand events to each other and order them among themselves; all that has to be agreed on beforehand is who is who. A registry
runs beside the first station of a chain, one for each kind of causal order, and keeps two lists that only grow: names, in the order of their
numbers, and who is gone. Whoever knows the first k of either can be told the rest, so that lost answers cost nothing but another question.

- A node that comes asks (`Enrol`) until it has both lists. Everybody who is there is told of it at once.
- A node that is there asks every few seconds: that is how it hears of others whose news was lost, and how the registry knows that it is alive.
- A node that goes says so (`Resign`) until it is told that it is none any more (`Expelled`); one that has not been heard of for `expire_ns` is taken
  for gone. Should it come back it is told (`Expelled`) and ends: its number may mean nothing any more.
- When all are gone the cube begins anew, from number 0, in another epoch. Until then a number is never given again, because
  others may still hold or name events by it.
- What all have to agree on (`terms`), the first to come decides. Who wants something else is not let in.
- Whether a node may use a topic it asks beforehand (`Ask`): an event that somebody refuses on its way would leave a gap that
  all its successors wait at. The registry itself grants everything; a server with permissions answers in its place.

It persists both lists. A registry that lost the end of them (a power failure with `--sync` above 0) would give numbers again that
somebody bears. So whoever asks, or is told, says by a digest which lists it goes on from: who knows others is expelled, or, should it be told first, takes itself for
expelled. And after a restart nobody new gets a number until all who were there have asked, or had the time to (`RETURN_NS`).
HAZARD: those who knew what the registry lost are told that they are gone, and have to come back as new ones.

A registry that stood still itself, or whose clock jumped, takes nobody for gone: only time in which it looked counts.

Limit: `NODES_MAX` numbers in one epoch, those of processes that are gone included.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec

from ensue.event import Count, Name
from ensue.protocols.core import Effect, Frame, Persist, Send
from ensue.protocols.hypercube.cube import NODES_MAX
from ensue.protocols.hypercube.frames import Number
from ensue.wire import Records

__all__ = [
    "AGAIN",
    "CUBE",
    "FRAMES",
    "FROM_NODES",
    "ORDERS",
    "Ask",
    "Denied",
    "Enrol",
    "Expelled",
    "Granted",
    "Leave",
    "Lists",
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
RETURN_NS = 3_000_000_000
"""How long after a restart those who were there may take to ask, as they do every few seconds, before a newcomer gets a number."""
AGAIN = "connect again to go on, as a new client"
MILLISECOND_NS = 1_000_000

Action = Literal["publish", "subscribe"]

_TEXT = Records[str](str)
_NUMBER = Records[int](int)


def registry_of(station: str, order: str) -> str:
    """Return the name of the registry beside a station. No client's name holds a slash."""
    return f"{station}/{order}"


Terms = Annotated[str, msgspec.Meta(max_length=64)]
Digest = Annotated[bytes, msgspec.Meta(max_length=16)]


class Lists:
    """Names in the order of their numbers, and the numbers of those who are gone; either only grows."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.gone: list[int] = []
        self._name_digests = [b""]
        """Of the first 0, 1, … names."""
        self._gone_digests = [b""]

    def add(self, name: str) -> None:
        """Give the next number."""
        self.names.append(name)
        self._name_digests.append(_digest(self._name_digests[-1], name.encode()))

    def part(self, number: int) -> None:
        """Note that a number is not borne any more."""
        self.gone.append(number)
        self._gone_digests.append(_digest(self._gone_digests[-1], b"%d" % number))

    def digest(self, names: int, gone: int) -> bytes | None:
        """Return what is equal where the first so many of both are; None if so many are not known."""
        if names > len(self.names) or gone > len(self.gone):
            return None
        return self._name_digests[names] + self._gone_digests[gone]


def _digest(before: bytes, item: bytes) -> bytes:
    return blake2b(before + item, digest_size=8).digest()


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
    digest: Digest = b""
    """Of what I know; empty: I am new."""
    asked: Count = 0
    """A number of mine for this question."""


class Members(Frame, frozen=True, tag=71):
    """What the lists have beyond what was known; ask again if that is not all."""

    epoch: Count
    first: Count
    names: tuple[Name, ...]
    total: Count
    gone_first: Count
    gone: tuple[Number, ...]
    gone_total: Count
    digest: Digest = b""
    """Of what comes before `first` and `gone_first`."""
    asked: Count = 0
    """Which question this answers; 0: none, it is news."""


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


class Leave(Frame, frozen=True, tag=77):
    """I am not subscribed to this topic any more, and will ask should I want it again."""

    topic: Name


FRAMES: tuple[type[Frame], ...] = (Enrol, Members, Expelled, Resign, Ask, Granted, Denied, Leave)
FROM_NODES: tuple[type[Frame], ...] = (Enrol, Resign, Ask, Leave)


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
        self._lists = Lists()
        self._numbers: dict[str, int] = {}
        self._present: dict[str, int] = {}
        """Who is there, and when it was last heard of."""
        self.epoch = 0
        self.terms = ""
        self._restore(records or {}, now_ns)
        self._unheard = set(self._present)
        """Who was there before a restart and has not asked since."""
        self._return_ns = now_ns + RETURN_NS
        if not self.epoch:
            self._begin(max(1, now_ns // MILLISECOND_NS))

    @property
    def names(self) -> list[str]:
        """All who ever came, in the order of their numbers."""
        return self._lists.names

    @property
    def gone(self) -> list[int]:
        """The numbers of those who are gone."""
        return self._lists.gone

    @property
    def present(self) -> tuple[str, ...]:
        """Those who are there."""
        return tuple(self._present)

    def number(self, name: str) -> int | None:
        """Return the number of a client; None if it has none in this epoch."""
        return self._numbers.get(name)

    def is_gone(self, number: int) -> bool:
        """Tell whether a number was given and its client is gone."""
        return number < len(self.names) and self.names[number] not in self._present

    @property
    def heard(self) -> dict[str, int]:
        """When each of them was last heard of."""
        return dict(self._present)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a node."""
        match frame:
            case Enrol():
                self._enrol(frame, source, now_ns)
            case Resign(epoch=epoch):
                self._resign(epoch, source)
            case Ask(topic=topic, action=action):
                self._effects.append(Send(source, Granted(topic=topic, action=action)))
            case _:
                pass  # Not for a registry: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Look who has vanished."""
        late_ns = now_ns - self._sweep_due_ns
        if late_ns < 0:
            return
        self._sweep_due_ns = now_ns + self._expire_ns // SWEEPS
        # While nobody looked nobody was heard.
        self._present = {
            name: min(now_ns, heard_ns + late_ns) for name, heard_ns in self._present.items()
        }
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
        is_new = source not in self._numbers
        if is_new and not frame.epoch:
            if self._unheard and 0 <= self._return_ns - now_ns <= RETURN_NS:
                return  # It will ask again.
            if self.names and not self._present:
                self._begin(self.epoch + 1)
        if why := self._refusal(frame, source):
            self._effects.append(Send(source, Expelled(reason=why)))
            if source in self._present:
                self._part([source])
            return
        if is_new:
            self._admit(source, frame.terms, now_ns)
        self._present[source] = now_ns
        self._unheard.discard(source)
        self._tell(source, frame.known, frame.gone, asked=frame.asked)

    def _resign(self, epoch: int, source: str) -> None:
        if source in self._present:
            if epoch not in (0, self.epoch):
                return
            self._part([source])
        # Also who left before: the answer may be lost.
        self._effects.append(Send(source, Expelled(reason=f"it has left: {AGAIN}")))

    def _refusal(self, frame: Enrol, source: str) -> str:
        """Say why somebody is no node, or no longer; empty: it is, or may become one."""
        why = ""
        if frame.epoch not in (0, self.epoch):
            why = f"the registry knows nothing of its cube any more: {AGAIN}"
        elif source in self._numbers:
            if source not in self._present:
                why = f"it was away for too long, or has left: {AGAIN}"
        elif frame.epoch:
            why = f"the registry knows nothing of it any more: {AGAIN}"
        elif len(self.names) >= NODES_MAX:
            why = (
                f"the cube has given all its {NODES_MAX} numbers; it begins anew when all have left"
            )
        elif self._present and frame.terms != self.terms:
            why = f"all who are there have {self.terms}, and it has {frame.terms}"
        if not why and self._lists.digest(frame.known, frame.gone) != frame.digest:
            why = f"it knows what the registry has lost: {AGAIN}"
        return why

    def _admit(self, name: str, terms: str, now_ns: int) -> None:
        if terms != self.terms:
            self.terms = terms
            self._persist("terms", _TEXT.encode(terms))
        number = self._numbers[name] = len(self.names)
        self._lists.add(name)
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
            self._unheard.discard(name)
            self._persist(f"gone/{len(self.gone)}", _NUMBER.encode(self._numbers[name]))
            self._lists.part(self._numbers[name])
        if names:
            for other in self._present:
                self._tell(other, len(self.names), known)

    def _tell(self, peer: str, known: int, gone: int, *, asked: int = 0) -> None:
        digest = self._lists.digest(known, gone)
        assert digest is not None
        members = Members(
            epoch=self.epoch,
            first=known,
            names=tuple(self.names[known : known + NAMES_MAX]),
            total=len(self.names),
            gone_first=gone,
            gone=tuple(self.gone[gone : gone + GONE_MAX]),
            gone_total=len(self.gone),
            digest=digest,
            asked=asked,
        )
        self._effects.append(Send(peer, members))

    def _begin(self, epoch: int) -> None:
        """Begin anew: nobody is left who knows any number."""
        for number in range(len(self.names)):
            self._persist(f"name/{number}", None)
        for index in range(len(self.gone)):
            self._persist(f"gone/{index}", None)
        self.epoch = epoch
        self._persist("epoch", _NUMBER.encode(epoch))
        self._lists, self._numbers = Lists(), {}

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
        for _, name in sorted(names.items()):
            self._lists.add(name)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        for _, number in sorted(gone.items()):
            self._lists.part(number)
        left = set(self.gone)
        self._present = {
            name: now_ns for name, number in self._numbers.items() if number not in left
        }
