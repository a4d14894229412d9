"""The membership registry: number each process, uniquely within an epoch.

The theory of operation is in the package docstring.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.core.wire import Records
from ensue.protocols.causal.hypercube import NODES_MAX
from ensue.protocols.interface import Effect, Frame, Persist, Send
from ensue.protocols.membership.frames import (
    Deregister,
    Evicted,
    Members,
    Register,
    TopicGranted,
    TopicReleased,
    TopicRequest,
)
from ensue.protocols.membership.member_list import MemberList
from ensue.protocols.membership.topic_readers import TopicReaders

__all__ = ["AGAIN", "CUBE", "Registry", "registry_of"]

CUBE = "cube/"
"""Prefix of the record keys of all registries."""
NAMES_MAX = 1024
"""Names in one frame."""
GONE_MAX = 8192
"""Numbers of departed members in one frame."""
READERS_MAX = 8192
"""Numbers of readers in one frame, unless a single topic has more."""
SWEEPS = 4
"""How often the registry looks for silent members within `expire_ns`."""
RETURN_NS = 3_000_000_000
"""Time that members have to poll after a restart, before a new process gets a number."""
AGAIN = "connect again as a new client"
MILLISECOND_NS = 1_000_000

_TEXT = Records[str](str)
_NUMBER = Records[int](int)


def registry_of(station: str, order: str) -> str:
    """Return the name of a registry; no client name contains a slash."""
    return f"{station}/{order}"


class Registry:
    """The registry of one order. `records` is what an earlier run persisted."""

    def __init__(
        self,
        *,
        name: str,
        order: str,
        across: bool = False,
        expire_ns: int,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.across = across
        """Whether the order holds across topics."""
        self._prefix = f"{CUBE}{order}/"
        self._expire_ns = expire_ns
        self._sweep_due_ns = now_ns + expire_ns // SWEEPS
        self._effects: list[Effect] = []
        self._list = MemberList()
        self._numbers: dict[str, int] = {}
        self._present: dict[str, int] = {}
        """Members, and when each last sent a frame."""
        self._readers = TopicReaders()
        """Members that may have subscribed: they asked for a topic to subscribe to."""
        self.epoch = 0
        self.terms = ""
        self._restore(records or {}, now_ns)
        self._unheard = set(self._present)
        """Members from before a restart that have not polled since."""
        self._return_ns = now_ns + RETURN_NS
        if not self.epoch:
            self._begin(max(1, now_ns // MILLISECOND_NS))

    @property
    def names(self) -> list[str]:
        """All names of this epoch, in the order of their numbers."""
        return self._list.names

    @property
    def gone(self) -> list[int]:
        """Numbers of members that have left."""
        return self._list.gone

    @property
    def present(self) -> tuple[str, ...]:
        """Names of the current members."""
        return tuple(self._present)

    def number(self, name: str) -> int | None:
        """Return the number of a client; None if it has none in this epoch."""
        return self._numbers.get(name)

    def is_gone(self, number: int) -> bool:
        """Return whether a number was given and its member has left."""
        return number < len(self.names) and self.names[number] not in self._present

    @property
    def last_seen_ns(self) -> dict[str, int]:
        """When each member last sent a frame."""
        return dict(self._present)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of a process; ignore unexpected ones."""
        match frame:
            case Register():
                self._register(frame, source, now_ns)
            case Deregister(epoch=epoch):
                self._deregister(epoch, source)
            case TopicRequest(topic=topic, action=action, asked=asked):
                if action == "subscribe" and source in self._present:
                    self._add_reader(source, topic, asked)
                self._effects.append(Send(source, TopicGranted(topic=topic, action=action)))
            case TopicReleased(topic=topic, asked=asked):
                if self._readers.release(source, topic, asked):
                    self._persist(f"reader/{self._numbers[source]}/{topic}", None)
            case _:
                pass

    def handle_timer(self, *, now_ns: int) -> None:
        """Evict members that have been silent for `expire_ns`."""
        late_ns = now_ns - self._sweep_due_ns
        if late_ns < 0:
            return
        self._sweep_due_ns = now_ns + self._expire_ns // SWEEPS
        # Time in which the registry did not run does not count as silence.
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
        """Return when to look for silent members."""
        return self._sweep_due_ns if self._present else None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        effects, self._effects = self._effects, []
        return effects

    def _register(self, frame: Register, source: str, now_ns: int) -> None:
        is_new = source not in self._numbers
        if is_new and not frame.epoch:
            if self._unheard and 0 <= self._return_ns - now_ns <= RETURN_NS:
                return  # It will try again.
            if self.names and not self._present:
                self._begin(self.epoch + 1)
        if why := self._refusal(frame, source):
            self._effects.append(Send(source, Evicted(reason=why)))
            if source in self._present:
                self._part([source])
            return
        if is_new:
            self._admit(source, frame.terms, now_ns)
        self._present[source] = now_ns
        self._unheard.discard(source)
        readers = self._readers_of(frame.topics)
        self._send_update(source, frame.known, frame.gone, asked=frame.asked, readers=readers)

    def _deregister(self, epoch: int, source: str) -> None:
        if source in self._present:
            if epoch not in (0, self.epoch):
                return
            self._part([source])
        # Also if it left before: the first answer may be lost.
        self._effects.append(Send(source, Evicted(reason=f"this client has left: {AGAIN}")))

    def _refusal(self, frame: Register, source: str) -> str:
        """Return why a process may not be a member; empty if it may."""
        why = ""
        if frame.epoch not in (0, self.epoch):
            why = f"the registry no longer knows this client's epoch: {AGAIN}"
        elif source in self._numbers:
            if source not in self._present:
                why = f"this client was away for too long, or has left: {AGAIN}"
        elif frame.epoch:
            why = f"the registry no longer knows this client: {AGAIN}"
        elif len(self.names) >= NODES_MAX:
            why = f"all {NODES_MAX} numbers are taken: connect again when all clients have left"
        elif self._present and frame.terms != self.terms:
            why = f"other clients have {self.terms}, this one has {frame.terms}"
        if not why and self._list.digest(frame.known, frame.gone) != frame.digest:
            why = f"this client knows members that the registry has lost: {AGAIN}"
        return why

    def _admit(self, name: str, terms: str, now_ns: int) -> None:
        if terms != self.terms:
            self.terms = terms
            self._persist("terms", _TEXT.encode(terms))
        number = self._numbers[name] = len(self.names)
        self._list.add(name)
        self._persist(f"name/{number}", _TEXT.encode(name))
        for other in self._present:
            self._send_update(other, number, len(self.gone))
        if not self._present:
            self._sweep_due_ns = now_ns + self._expire_ns // SWEEPS

    def _add_reader(self, name: str, topic: str, asked: int) -> None:
        """Persist, before the grant, that a member may have subscribed."""
        if self._readers.add(name, topic, asked):
            self._persist(f"reader/{self._numbers[name]}/{topic}", b"")

    def _readers_of(self, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the members that may have subscribed to topics, as far as they fit."""
        readers: dict[str, tuple[int, ...]] = {}
        count = 0
        for topic in topics:
            readers[topic] = tuple(self._numbers[name] for name in self._readers.of(topic))
            count += len(readers[topic])
            if count >= READERS_MAX:
                break
        return readers

    def _part(self, names: list[str]) -> None:
        """Remove members, and notify the others."""
        known = len(self.gone)
        for name in names:
            del self._present[name]
            self._unheard.discard(name)
            for topic in self._readers.part(name):
                self._persist(f"reader/{self._numbers[name]}/{topic}", None)
            self._persist(f"gone/{len(self.gone)}", _NUMBER.encode(self._numbers[name]))
            self._list.part(self._numbers[name])
        if names:
            for other in self._present:
                self._send_update(other, len(self.names), known)

    def _send_update(
        self,
        peer: str,
        known: int,
        gone: int,
        *,
        asked: int = 0,
        readers: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        digest = self._list.digest(known, gone)
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
            readers=dict(readers or {}),
        )
        self._effects.append(Send(peer, members))

    def _begin(self, epoch: int) -> None:
        """Begin a new epoch: no member is left that knows any number."""
        for number in range(len(self.names)):
            self._persist(f"name/{number}", None)
        for index in range(len(self.gone)):
            self._persist(f"gone/{index}", None)
        self.epoch = epoch
        self._persist("epoch", _NUMBER.encode(epoch))
        self._list, self._numbers = MemberList(), {}

    def _persist(self, key: str, value: bytes | None) -> None:
        self._effects.append(Persist(self._prefix + key, value))

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        names: dict[int, str] = {}
        gone: dict[int, int] = {}
        readers: list[tuple[int, str]] = []
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
            elif kind == "reader":
                member, _, topic = index.partition("/")
                readers.append((int(member), topic))
            else:
                gone[int(index)] = _NUMBER.decode(value)
        for _, name in sorted(names.items()):
            self._list.add(name)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        for _, number in sorted(gone.items()):
            self._list.part(number)
        left = set(self.gone)
        self._present = {
            name: now_ns for name, number in self._numbers.items() if number not in left
        }
        for number, topic in sorted(readers):
            self._readers.add(self.names[number], topic, 0)
