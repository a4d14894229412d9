"""Checks of claims in relayed frames: about the sender, other clients, and topics.

The clients of one registry order events themselves, and a server relays their frames. Many frames
are about other clients: a node forwards events down a tree, repairs gaps with events of others, and
forwards subscriptions. The relay knows only the connection that a frame came from. So, on a server
with users:

- A claim about the sender itself is checked directly: the sender's name, its number at the
  registry, its permissions. If it is permitted, the relay *seals* it: it adds a MAC, with a key
  that no client has, over the registry, its epoch, the client and the content.
- A claim about another client needs that seal: it proves that the relay received the content from
  that client's own connection, and permitted it.
- Counts of other clients' events (start vectors, barriers, summaries, tombstones) can't be sealed.
  The relay saw all of these events first, from their publishers, and remembers the counts across
  restarts: no client may claim more (`ensue.server.high_water_marks`). The same holds for stamps of
  others in the causal past of a message.

| frame | claims | must be |
|---|---|---|
| `Publication`, `Fill` | events and their barriers | own and permitted, or sealed, readable (1) |
| `Change` | a row, topics to be started in | own row of readable topics, or sealed (2) |
| `Receipt` | rows, start vectors | as `Change`; no count beyond what was published (5) |
| `Rows` | rows | as `Change`; or of a departed client, without topics |
| `Versions` | versions of rows | none beyond what was sealed |
| `Summary` of causal order, `NotCached` | counts of one topic | at most what was published (3, 5) |
| `Message` | an event, its deadline, its causal past | as `Publication`, and complete (4) |
| `Groups`, `Noted` | a row | the sender's own, of topics that it may read |
| `Heartbeat`, `Alive`, `Request`, `Summary` with deadlines | only what the sender has or lacks | |

1. The sender may publish its own event, or read the topic of a sealed one. The receiver may read
   it.
2. The topics to be started in are in the row.
3. Sender and receiver may read the topic, or publish on it.
4. No stamp of another client is beyond the last that it sent.
5. After a kill of the server, the last marks may be missing. A `Summary` then passes with lower
   counts; other frames are dropped, and repeated. The relay asks the client that named such a count
   for the event, in a `Summary` of the registry. The answer, a `Fill` to the registry, proves the
   count by the seal of the event.

A rejected frame is dropped and counted as `permission`, or as `forged` if its claim has no proof.
If a `Fill`, a `Receipt` or `Rows` has several events or rows, the permitted ones pass.

On a server without users, every client may do everything, with any name: nothing is sealed.

HAZARD: a client that forwards for others may drop or delay frames, or claim that it sent them:
events then arrive later, by repair. Registered clients send each other the names of all topics in
use, with their subscribers.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from operator import is_
from typing import Any, TypeVar

import msgspec

from ensue.core import platform
from ensue.core.errors import RemoteProtocolError
from ensue.core.event import CLOCK
from ensue.protocols.causal import frames as cube
from ensue.protocols.deadline import frames as gossip
from ensue.protocols.deadline.codec import rows_digest
from ensue.protocols.interface import Frame, Persist
from ensue.protocols.membership.registry import CUBE, Registry
from ensue.server.authorization import BUNDLE_ITEMS_MAX, BUNDLE_TOO_LARGE, Authorization
from ensue.server.connection import Connection
from ensue.server.high_water_marks import HighWaterMarks

__all__ = ["KEY", "KEY_BYTES", "ClaimChecker"]

MARKS = f"{CUBE}marks/"
"""Prefix of the journal's records of high-water marks; the registry's name follows."""

KEY = f"{CUBE}seal"
"""Key of the journal's record of the sealing key."""
KEY_BYTES = 32
PROOF_BYTES = 16
QUESTIONS_MAX = 64
"""Events that a client is asked for, after one bundle."""

T = TypeVar("T", cube.Item, cube.Row)

_encode = msgspec.msgpack.Encoder().encode


class _Rejected(Exception):
    """A frame may not pass: the kind of fault, and the reason."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class ClaimChecker:
    """Seals and checks for the frames between clients of one registry."""

    def __init__(
        self,
        authorization: Authorization,
        registry: Registry,
        key: bytes,
        records: Mapping[str, bytes],
    ) -> None:
        self._authorization = authorization
        self._registry = registry
        self._key = blake2b(registry.name.encode(), key=key, digest_size=KEY_BYTES).digest()
        self._epoch = registry.epoch
        self._prefix = f"{MARKS}{registry.name}/"
        self._marks = HighWaterMarks(
            epoch=registry.epoch,
            restored=len(registry.names),
            started_ns=platform.current().clock.now_ns(),
            prefix=self._prefix,
            records=records,
        )
        self._discarded: list[Persist] = []
        self._checks: Mapping[type[Frame], Callable[[_Bundle, Any], Frame]] = {
            cube.Publication: self._publication,
            cube.Fill: self._fill,
            cube.Change: self._change,
            cube.Receipt: self._receipt,
            cube.Rows: self._rows,
            cube.Versions: self._versions,
            cube.Summary: self._summary,
            cube.NotCached: self._not_cached,
            gossip.Message: self._message,
            gossip.Groups: self._groups,
            gossip.Noted: self._groups,
        }

    def screen(
        self, sender: Connection, source: str, receiver: Connection, frames: Sequence[Frame]
    ) -> tuple[list[Frame], list[Frame]]:
        """Return the frames that may pass between two clients, sealed, and count the others.

        Also return the questions of the registry to the sender.
        """
        number = self._registry.number(source)
        if number is None:
            return [], []  # Not registered: no client would accept its frames.
        if self._epoch != self._registry.epoch:
            self._begin_epoch()
        bundle = _Bundle(sender, source, number, receiver)
        admitted: list[Frame] = []
        for frame in frames:
            check = self._checks.get(type(frame))
            try:
                admitted.append(frame if check is None else check(bundle, frame))
            except _Rejected as rejected:
                sender.server.fault(sender, rejected.kind, str(rejected))
        return admitted, bundle.questions()

    def take_proofs(self, sender: Connection, source: str, frames: Sequence[Frame]) -> list[Frame]:
        """Raise marks by the events that a client sends to the registry; return other frames."""
        fills = [frame for frame in frames if isinstance(frame, cube.Fill)]
        if not fills:
            return list(frames)
        if sum(1 + len(fill.items) for fill in fills) > BUNDLE_ITEMS_MAX:
            raise RemoteProtocolError(BUNDLE_TOO_LARGE)
        for item in (item for fill in fills for item in fill.items):
            event = item.event
            number = self._registry.number(event.publisher)
            if number is None or not compare_digest(item.proof, self._event_seal(number, item)):
                why = f"{source!r} proved an event on {event.topic!r} without its seal"
                sender.server.fault(sender, "forged", why)
            else:
                self._marks.published(number, event.topic, event.publisher_seq)
        return [frame for frame in frames if not isinstance(frame, cube.Fill)]

    def take_writes(self) -> list[Persist]:
        """Return the writes that persist changed marks since the last call."""
        discarded, self._discarded = self._discarded, []
        return [*discarded, *self._marks.take_writes()]

    def _begin_epoch(self) -> None:
        self._discarded += self._marks.discard()
        self._epoch = self._registry.epoch
        self._marks = HighWaterMarks(epoch=self._epoch, prefix=self._prefix)

    # -- Events ---------------------------------------------------------------------------------

    def _publication(self, bundle: "_Bundle", frame: cube.Publication) -> Frame:
        items = tuple([self._item(bundle, item) for item in frame.items])
        if _same(items, frame.items):
            return frame
        return msgspec.structs.replace(frame, items=items)

    def _fill(self, bundle: "_Bundle", frame: cube.Fill) -> Frame:
        self._check_topic(bundle, frame.topic)
        items = bundle.each(frame.items, self._item)
        return frame if items is frame.items else msgspec.structs.replace(frame, items=items)

    def _item(self, bundle: "_Bundle", item: cube.Item) -> cube.Item:
        event = item.event
        own = event.publisher == bundle.source
        number = bundle.number if own else self._registry.number(event.publisher)
        proof = self._event_seal(number, item)
        if not own:
            _check_proof(bundle, item.proof, proof, event.publisher, f"an event on {event.topic!r}")
            if number is not None:
                self._marks.published(number, event.topic, event.publisher_seq)
            return item
        self._check_counts(bundle, item.after)
        self._marks.published(bundle.number, event.topic, event.publisher_seq)
        return cube.Item(event, item.after, proof)

    def _message(self, bundle: "_Bundle", frame: gossip.Message) -> Frame:
        event = frame.event
        own = event.publisher == bundle.source
        number = bundle.number if own else self._registry.number(event.publisher)
        if number != frame.source:
            raise _Rejected(
                "forged",
                f"{bundle.source!r} sent an event of {event.publisher!r} with a wrong number",
            )
        digest = frame.digest if own else rows_digest(frame.after)
        proof = self._seal("message", number, event, frame.dest, frame.round, frame.live, digest)
        stamp = 0 if event.stamp is None else event.stamp.entries.get(CLOCK, 0)
        if own:
            self._check_past(bundle, frame, stamp)
            self._marks.sent(bundle.number, stamp)
            return msgspec.structs.replace(frame, proof=proof)
        if frame.base:
            raise _Rejected(
                "forged", f"{bundle.source!r} sent an incomplete message of {event.publisher!r}"
            )
        self._check_past(bundle, frame, stamp)
        _check_proof(bundle, frame.proof, proof, event.publisher, f"an event on {event.topic!r}")
        self._marks.sent(frame.source, stamp)
        return frame

    def _check_past(self, bundle: "_Bundle", frame: gossip.Message, stamp: int) -> None:
        """Reject stamps that other clients have not reached.

        Receivers would drop all events up to such a stamp as late.
        """
        for number, ages in frame.after.items():
            if number == frame.source or not ages:
                continue
            latest = stamp - min(ages)
            if not self._marks.is_sent(number, latest):
                raise _Rejected(
                    "forged",
                    f"{bundle.source!r} claimed stamp {latest} of number {number}, not sent yet",
                )

    # -- Membership -----------------------------------------------------------------------------

    def _change(self, bundle: "_Bundle", frame: cube.Change) -> Frame:
        row = self._row(bundle, frame.row)
        if not set(frame.joins) <= set(row.topics):
            raise _Rejected("forged", f"{bundle.source!r} joins topics that are not in the row")
        return frame if row is frame.row else msgspec.structs.replace(frame, row=row)

    def _receipt(self, bundle: "_Bundle", frame: cube.Receipt) -> Frame:
        self._check_counts(bundle, frame.vectors)
        rows = bundle.each(frame.rows, self._row)
        return frame if rows is frame.rows else msgspec.structs.replace(frame, rows=rows)

    def _rows(self, bundle: "_Bundle", frame: cube.Rows) -> Frame:
        rows = bundle.each(frame.rows, self._row)
        return frame if rows is frame.rows else cube.Rows(rows=rows)

    def _row(self, bundle: "_Bundle", row: cube.Row) -> cube.Row:
        own = row.node == bundle.number
        if not own and not row.topics and self._registry.is_gone(row.node):
            return row  # Every client concludes the same from the registry's list.
        proof = self._seal("row", row.node, row.version, row.topics)
        if not own:
            _check_proof(bundle, row.proof, proof, f"number {row.node}", "a subscription")
            return row
        for topic in row.topics:
            _check(self._authorization.why_not(bundle.sender, "subscribe", topic))
        self._marks.announced(row.node, row.version)
        return cube.Row(row.node, row.version, row.topics, proof)

    def _versions(self, bundle: "_Bundle", frame: cube.Versions) -> Frame:
        if (own := frame.versions.get(bundle.number)) is not None:
            self._marks.announced(bundle.number, own)
        for number, version in frame.versions.items():
            if not self._registry.is_gone(number) and not self._marks.is_version(number, version):
                raise _Rejected(
                    "forged",
                    f"{bundle.source!r} claimed version {version} of the row of number {number}",
                )
        return frame

    def _groups(self, bundle: "_Bundle", frame: gossip.Groups | gossip.Noted) -> Frame:
        if frame.row.node != bundle.number:
            raise _Rejected(
                "forged", f"{bundle.source!r} sent the groups of number {frame.row.node}"
            )
        for topic in frame.row.topics:
            _check(self._authorization.why_not(bundle.sender, "subscribe", topic))
        return frame

    # -- Counts ---------------------------------------------------------------------------------

    def _summary(self, bundle: "_Bundle", frame: cube.Summary) -> Frame:
        self._check_topic(bundle, frame.topic)
        if frame.follows:
            _check(self._authorization.why_not(bundle.sender, "subscribe", frame.topic))
        have = self._lower(bundle, frame.topic, frame.have)
        self._check_counts(bundle, {frame.topic: have})
        return frame if have is frame.have else msgspec.structs.replace(frame, have=have)

    def _lower(self, bundle: "_Bundle", topic: str, counts: cube.Counts) -> cube.Counts:
        """Lower counts that marks lost at a restart can't prove.

        Refusing the summary would end all repair of the topic until the publisher is back or gone.
        A client that reports less is sent the events again, and their seals raise the marks.
        """
        lowered: cube.Counts = {}
        for number, count in counts.items():
            gone = self._registry.is_gone(number)
            if number == bundle.number or self._marks.is_published(number, topic, count, gone=gone):
                continue
            provable = self._marks.provable(number, topic)
            if provable is not None:
                lowered[number] = provable
                bundle.doubt(topic, number, count)
        if not lowered:
            return counts
        why = f"{bundle.source!r} claimed events on {topic!r} that are not known to be published"
        bundle.sender.server.fault(bundle.sender, "forged", why)
        kept = {**counts, **lowered}
        return {number: count for number, count in kept.items() if count}

    def _not_cached(self, bundle: "_Bundle", frame: cube.NotCached) -> Frame:
        self._check_topic(bundle, frame.topic)
        self._check_counts(bundle, {frame.topic: {frame.source: frame.up_to}})
        return frame

    def _check_topic(self, bundle: "_Bundle", topic: str) -> None:
        """Reject a topic that the sender or receiver may neither read nor publish on."""
        for connection in (bundle.sender, bundle.receiver):
            why = self._authorization.why_not(connection, "subscribe", topic)
            if why and self._authorization.why_not(connection, "publish", topic):
                raise _Rejected("permission", why)

    def _check_counts(self, bundle: "_Bundle", claims: Mapping[str, cube.Counts]) -> None:
        """Reject counts of others beyond their marks, by topic; raise the sender's own marks."""
        why = ""
        for topic, counts in claims.items():
            for number, count in counts.items():
                if number == bundle.number:
                    if count:
                        _check(self._authorization.why_not(bundle.sender, "publish", topic))
                        self._marks.published(number, topic, count)
                elif not self._marks.is_published(
                    number, topic, count, gone=self._registry.is_gone(number)
                ):
                    if self._marks.provable(number, topic) is not None:
                        bundle.doubt(topic, number, count)
                    why = why or (
                        f"{bundle.source!r} claimed event {count} of number {number} on {topic!r}, "
                        "which was not published"
                    )
        if why:
            raise _Rejected("forged", why)

    def _event_seal(self, number: int | None, item: cube.Item) -> bytes:
        return self._seal("event", number, item.event, item.after)

    def _seal(self, kind: str, *content: object) -> bytes:
        data = _encode((kind, self._epoch, *content))
        return blake2b(data, key=self._key, digest_size=PROOF_BYTES).digest()


class _Bundle:
    """One bundle between two clients.

    `relay_authorization` has checked the topics of its events.
    """

    __slots__ = ("_doubted", "number", "receiver", "sender", "source")

    def __init__(self, sender: Connection, source: str, number: int, receiver: Connection) -> None:
        self.sender = sender
        self.source = source
        self.number = number
        self.receiver = receiver
        self._doubted: dict[tuple[str, int], int] = {}
        """By topic and source: a count that the sender may be able to prove."""

    def doubt(self, topic: str, source: int, count: int) -> None:
        """Note a count beyond a mark that may have been lost in a kill."""
        known = self._doubted.get((topic, source), 0)
        if known or len(self._doubted) < QUESTIONS_MAX:
            self._doubted[topic, source] = max(count, known)

    def questions(self) -> list[Frame]:
        """Return requests for the events that prove the doubted counts: the last of each."""
        return [
            cube.Summary(
                topic=topic,
                have={source: count - 1},
                follows=True,
                request=1,
                only=(source,),
                room=1,
            )
            for (topic, source), count in self._doubted.items()
        ]

    def each(self, parts: tuple[T, ...], check: Callable[["_Bundle", T], T]) -> tuple[T, ...]:
        """Return the parts of a frame that may pass; raise if none may."""
        passed: list[T] = []
        rejected: _Rejected | None = None
        for part in parts:
            try:
                passed.append(check(self, part))
            except _Rejected as error:
                rejected = error
        if rejected is not None:
            if not passed:
                raise rejected
            self.sender.server.fault(self.sender, rejected.kind, str(rejected))
        return parts if _same(passed, parts) else tuple(passed)


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether both have the same objects: nothing was sealed or left out."""
    return len(some) == len(others) and all(map(is_, some, others))


def _check(why: str) -> None:
    if why:
        raise _Rejected("permission", why)


def _check_proof(bundle: _Bundle, given: bytes, expected: bytes, subject: str, what: str) -> None:
    if not compare_digest(given, expected):
        raise _Rejected("forged", f"{bundle.source!r} sent {what} of {subject!r} without its seal")
