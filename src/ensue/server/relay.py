"""Relay authorization: what a client may say to others of itself, of other clients, and of topics.

Clients of one registry order events among themselves, and a server relays their frames. Much of what they send is about others: a
node forwards events down a tree, repairs gaps with events of others, and passes on who is subscribed to what. The relay knows
only which connection a frame came from. So, on a server with users:

- What a frame says of its own sender is checked where it passes: the sender's name, its number at the registry, its permissions. If it is
  allowed, the relay *seals* it: it adds a MAC, with a key that no client has, over the registry, its epoch, the client and the content.
- What a frame says of another client needs that seal: the relay had it from that client's own connection, and allowed it.
- How many events others have published (start vectors, barriers, summaries, what is gone) is told by numbers that no seal can
  cover. The relay has seen all of them first from their publishers: no client may claim more (`ensue.server.marks`). The same holds for
  stamps of others in what came before a message.

| frame | claims | must be |
|---|---|---|
| `Publication`, `Fill` | events and their barriers | the sender's own, which it may publish; or sealed, on a topic that it may read. The receiver may read the topic |
| `Change` | a row, topics to be started in | the sender's own row, of topics that it may read; or sealed. The topics are in the row |
| `Receipt` | rows, start vectors | as above; no count beyond what was published |
| `Rows` | rows | as above; or of a client that is gone: none of its topics are left |
| `Versions` | versions of rows | none beyond what was sealed |
| `Summary`, `Gone` of causal order | counts of one topic | sender and receiver may read the topic, or publish on it; no count beyond what was published |
| `Message` | an event, its deadline, what came before it | the sender's own; or sealed, and whole. As for `Publication`; no stamp of another client beyond the last that it sent |
| `Groups`, `Noted` | a row | the sender's own, of topics that it may read |
| `Beat`, `Here`, `Request`, `Summary` with deadlines | nothing but what the sender has or lacks | |

What is refused is dropped and counted as `permission`, or as `forged` if it claims what nothing proves. Of several events or rows of a `Fill`, a `Receipt` or `Rows` the others go on.

Without users every client may do everything, under any name: nothing is sealed.

HAZARD: who forwards for others may fail to, say that it did, or delay them: events then come by repair, later. Enrolled clients tell each
other the names of all topics in use, and who is subscribed to them.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from operator import is_
from typing import Any, TypeVar

import msgspec

from ensue.clock import system_clock
from ensue.event import CLOCK
from ensue.protocols.core import Frame
from ensue.protocols.gossip import frames as gossip
from ensue.protocols.gossip.letters import rows_digest
from ensue.protocols.hypercube import frames as cube
from ensue.protocols.hypercube.enrolment import CUBE, Registry
from ensue.server.marks import Marks
from ensue.server.rules import Rules
from ensue.server.visitor import Visitor

__all__ = ["KEY", "KEY_BYTES", "Relay"]

KEY = f"{CUBE}seal"
"""The journal's record of the key that seals are made with."""
KEY_BYTES = 32
PROOF_BYTES = 16

T = TypeVar("T", cube.Item, cube.Row)

_encode = msgspec.msgpack.Encoder().encode


class _Refused(Exception):
    """A frame may not pass: which kind of fault it is, and why."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Relay:
    """Seals and checks what the clients of one registry send each other."""

    def __init__(self, rules: Rules, registry: Registry, key: bytes) -> None:
        self._rules = rules
        self._registry = registry
        self._key = blake2b(registry.name.encode(), key=key, digest_size=KEY_BYTES).digest()
        self._epoch = registry.epoch
        now_ns = system_clock().now_ns()
        self._marks = Marks(restored=len(registry.names), started_ns=now_ns)
        self._checks: Mapping[type[Frame], Callable[[_Pass, Any], Frame]] = {
            cube.Publication: self._publication,
            cube.Fill: self._fill,
            cube.Change: self._change,
            cube.Receipt: self._receipt,
            cube.Rows: self._rows,
            cube.Versions: self._versions,
            cube.Summary: self._summary,
            cube.Gone: self._gone,
            gossip.Message: self._message,
            gossip.Groups: self._groups,
            gossip.Noted: self._groups,
        }

    def screen(
        self, sender: Visitor, source: str, receiver: Visitor, frames: Sequence[Frame]
    ) -> list[Frame]:
        """Return the frames that may go from one client to another, sealed; count the others."""
        number = self._registry.number(source)
        if number is None:
            return []  # The registry did not take it in: no client would listen to it.
        if self._epoch != self._registry.epoch:
            self._epoch, self._marks = self._registry.epoch, Marks(restored=0)
        one = _Pass(sender, source, number, receiver)
        admitted: list[Frame] = []
        for frame in frames:
            check = self._checks.get(type(frame))
            try:
                admitted.append(frame if check is None else check(one, frame))
            except _Refused as refused:
                sender.house.fault(sender, refused.kind, str(refused))
        return admitted

    # -- Events ---------------------------------------------------------------------------------

    def _publication(self, one: "_Pass", frame: cube.Publication) -> Frame:
        items = tuple([self._item(one, item) for item in frame.items])
        if _same(items, frame.items):
            return frame
        return msgspec.structs.replace(frame, items=items)

    def _fill(self, one: "_Pass", frame: cube.Fill) -> Frame:
        self._check_topic(one, frame.topic)
        items = one.each(frame.items, self._item)
        return frame if items is frame.items else msgspec.structs.replace(frame, items=items)

    def _item(self, one: "_Pass", item: cube.Item) -> cube.Item:
        event = item.event
        own = event.publisher == one.source
        number = one.number if own else self._registry.number(event.publisher)
        proof = self._seal("event", number, event, item.after)
        if not own:
            _check_proof(one, item.proof, proof, event.publisher, f"an event on {event.topic!r}")
            return item
        for topic, counts in item.after.items():
            self._check_counts(one, topic, counts)
        self._marks.published(one.number, event.topic, event.publisher_seq)
        return cube.Item(event, item.after, proof)

    def _message(self, one: "_Pass", frame: gossip.Message) -> Frame:
        event = frame.event
        own = event.publisher == one.source
        number = one.number if own else self._registry.number(event.publisher)
        if number != frame.source:
            raise _Refused(
                "forged", f"{one.source!r} sent an event of {event.publisher!r} as another's"
            )
        digest = frame.digest if own else rows_digest(frame.after)
        proof = self._seal("message", number, event, frame.dest, frame.round, frame.live, digest)
        stamp = 0 if event.stamp is None else event.stamp.entries.get(CLOCK, 0)
        if own:
            self._check_past(one, frame, stamp)
            self._marks.sent(one.number, stamp)
            return msgspec.structs.replace(frame, proof=proof)
        if frame.base:
            raise _Refused("forged", f"{one.source!r} sent part of what {event.publisher!r} knew")
        self._check_past(one, frame, stamp)
        _check_proof(one, frame.proof, proof, event.publisher, f"an event on {event.topic!r}")
        return frame

    def _check_past(self, one: "_Pass", frame: gossip.Message, stamp: int) -> None:
        """Refuse stamps that others have not reached: receivers would drop all that comes up to them."""
        for number, ages in frame.after.items():
            if number == frame.source or not ages:
                continue
            latest = stamp - min(ages)
            if not self._marks.is_sent(number, latest):
                raise _Refused(
                    "forged",
                    f"{one.source!r} named stamp {latest} of number {number}, not sent yet",
                )

    # -- Membership -----------------------------------------------------------------------------

    def _change(self, one: "_Pass", frame: cube.Change) -> Frame:
        row = self._row(one, frame.row)
        if not set(frame.joins) <= set(row.topics):
            raise _Refused("forged", f"{one.source!r} asked for topics that the client is not in")
        return frame if row is frame.row else msgspec.structs.replace(frame, row=row)

    def _receipt(self, one: "_Pass", frame: cube.Receipt) -> Frame:
        for topic, counts in frame.vectors.items():
            self._check_counts(one, topic, counts)
        rows = one.each(frame.rows, self._row)
        return frame if rows is frame.rows else msgspec.structs.replace(frame, rows=rows)

    def _rows(self, one: "_Pass", frame: cube.Rows) -> Frame:
        rows = one.each(frame.rows, self._row)
        return frame if rows is frame.rows else cube.Rows(rows=rows)

    def _row(self, one: "_Pass", row: cube.Row) -> cube.Row:
        own = row.node == one.number
        if not own and not row.topics and self._registry.is_gone(row.node):
            return row  # Every client concludes that by itself from what the registry says.
        proof = self._seal("row", row.node, row.version, row.topics)
        if not own:
            _check_proof(one, row.proof, proof, f"number {row.node}", "a subscription")
            return row
        for topic in row.topics:
            _check(self._rules.why_not(one.sender, "subscribe", topic))
        self._marks.announced(row.node, row.version)
        return cube.Row(row.node, row.version, row.topics, proof)

    def _versions(self, one: "_Pass", frame: cube.Versions) -> Frame:
        if (own := frame.versions.get(one.number)) is not None:
            self._marks.announced(one.number, own)
        for number, version in frame.versions.items():
            if not self._registry.is_gone(number) and not self._marks.is_version(number, version):
                raise _Refused(
                    "forged", f"{one.source!r} knows a subscription of {number} that is not"
                )
        return frame

    def _groups(self, one: "_Pass", frame: gossip.Groups | gossip.Noted) -> Frame:
        if frame.row.node != one.number:
            raise _Refused("forged", f"{one.source!r} told the groups of number {frame.row.node}")
        for topic in frame.row.topics:
            _check(self._rules.why_not(one.sender, "subscribe", topic))
        return frame

    # -- Counts ---------------------------------------------------------------------------------

    def _summary(self, one: "_Pass", frame: cube.Summary) -> Frame:
        self._check_topic(one, frame.topic)
        if frame.follows:
            _check(self._rules.why_not(one.sender, "subscribe", frame.topic))
        self._check_counts(one, frame.topic, frame.have)
        self._marks.told(one.number, frame.topic, frame.have.get(one.number, 0))
        return frame

    def _gone(self, one: "_Pass", frame: cube.Gone) -> Frame:
        self._check_topic(one, frame.topic)
        self._check_counts(one, frame.topic, {frame.source: frame.up_to})
        return frame

    def _check_topic(self, one: "_Pass", topic: str) -> None:
        """Refuse a topic that sender or receiver may neither read nor publish on."""
        for visitor in (one.sender, one.receiver):
            why = self._rules.why_not(visitor, "subscribe", topic)
            if why and self._rules.why_not(visitor, "publish", topic):
                raise _Refused("permission", why)

    def _check_counts(self, one: "_Pass", topic: str, counts: cube.Counts) -> None:
        """Refuse counts beyond what was published; the sender's own are its own to tell."""
        for number, count in counts.items():
            if number == one.number:
                if count:
                    _check(self._rules.why_not(one.sender, "publish", topic))
                    self._marks.published(number, topic, count)
            elif not self._marks.is_published(number, topic, count):
                raise _Refused(
                    "forged",
                    f"{one.source!r} named event {count} of number {number} on {topic!r}, "
                    "which was not published",
                )

    def _seal(self, kind: str, *content: object) -> bytes:
        data = _encode((kind, self._epoch, *content))
        return blake2b(data, key=self._key, digest_size=PROOF_BYTES).digest()


class _Pass:
    """One bundle on its way from one client to another. What events say of topics was checked (`carrying`)."""

    __slots__ = ("number", "receiver", "sender", "source")

    def __init__(self, sender: Visitor, source: str, number: int, receiver: Visitor) -> None:
        self.sender = sender
        self.source = source
        self.number = number
        self.receiver = receiver

    def each(self, parts: tuple[T, ...], check: Callable[["_Pass", T], T]) -> tuple[T, ...]:
        """Return those parts of a frame that may pass; raise if none of them may."""
        passed: list[T] = []
        refused: _Refused | None = None
        for part in parts:
            try:
                passed.append(check(self, part))
            except _Refused as error:
                refused = error
        if refused is not None:
            if not passed:
                raise refused
            self.sender.house.fault(self.sender, refused.kind, str(refused))
        return parts if _same(passed, parts) else tuple(passed)


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Tell whether nothing was sealed or left out."""
    return len(some) == len(others) and all(map(is_, some, others))


def _check(why: str) -> None:
    if why:
        raise _Refused("permission", why)


def _check_proof(one: _Pass, given: bytes, expected: bytes, subject: str, what: str) -> None:
    if not compare_digest(given, expected):
        raise _Refused("forged", f"{one.source!r} sent {what} of {subject!r} without its seal")
