"""Numbered links: FIFO and exactly-once between two peers, across restarts.

`Linked` wraps a node. Frames to linked peers travel numbered, are kept until acknowledged, and are
retransmitted when they are not; frames from them reach the node once each, in order. What a link
needs after a crash is persisted in the same batch as what caused it, so a frame is never
acknowledged before its effects are safe, nor sent before its number is.

Where messages get lost (`retry_ns_min`), losses are found as in TCP and QUIC. Time-outs follow the
measured round trips (`round_trips`). A receiver reports frames that arrive early (`LinkGap`), and
the sender retransmits a frame that three later ones overtook (unless frames on this link have
overtaken each other and arrived all the same), or that is still missing a round trip
after it was sent when one sent later has arrived. When nothing is heard, it probes with two frames,
and retransmits the rest only when an answer shows that it is missing too.

With `acknowledge_ns` an acknowledgement waits for a frame to travel with, and the record of an
acknowledged frame is removed with the next record that is written: neither costs a message or a
sync of its own. After a crash such frames are sent once more, which changes nothing. With
`group_bytes` the frames to a peer in one batch travel under one number, and are received together.

Limits: `unacknowledged_max` frames a peer. At the limit the wrapped node gets nothing more from
peers without a link (clients, which repeat their requests) until the backlog shrinks. `early_max`
frames that arrived before an earlier one are kept; others are dropped and will be retransmitted. So
are those that arrive when `batch_bytes_max` bytes wait to be persisted in the current batch.

After a loss, of records here or at a peer, the ends of a link may differ in its numbers. A node
that is started to accept that (`compares`) first exchanges them (`LinkState`) with each peer, and
until then hears and sends nothing else on the link: its frames wait, on disk too, and count towards
`unacknowledged_max`. Where both have their records, nothing is lost. An end that is behind goes on
with the numbers of the other one: what was under way to it is lost.

HAZARD: without `compares`, a peer that lost its records can't be distinguished from a slow one; its
links stay stuck. Servers notice by the identities of their logs
(`ensue.protocols.topic_log.log_identity`), and refuse such a peer.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from ensue.core.errors import ConfigurationError, RemoteProtocolError
from ensue.core.wire import Codec, Records
from ensue.protocols.interface import Effect, Frame, Node, Persist, Send
from ensue.protocols.shared.link_ends import Incoming, Outgoing
from ensue.protocols.shared.link_frames import (
    FRAMES,
    GROUP_MAX,
    LinkAck,
    LinkData,
    LinkGap,
    LinkState,
    packed,
    unpacked,
)
from ensue.protocols.shared.round_trips import REORDERED_MAX, RETRY_NS_MIN, RoundTrips

__all__ = [
    "CONNECTED",
    "FRAMES",
    "GROUP_MAX",
    "LOSSY",
    "LinkAck",
    "LinkConfig",
    "LinkData",
    "LinkGap",
    "LinkState",
    "Linked",
    "packed",
    "unpacked",
]

N = TypeVar("N", bound=Node)

EARLY_REPORTED_MAX = 64
"""Frames that one `LinkGap` reports."""
PROBES = 2
"""Frames retransmitted when nothing is heard."""


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Waits and limits of links."""

    retry_ns: int = 200_000_000
    """How long to wait before retransmitting a frame; doubled each time."""
    retry_ns_max: int = 2_000_000_000
    """The longest wait."""
    retry_ns_min: int = 0
    """Where messages get lost: the shortest wait. Waits then follow the measured round trips, and
    `retry_ns` is only the first. 0: waits are fixed, for connections, which lose frames only when
    they end."""
    burst: int = 64
    """Frames retransmitted at a time."""
    unacknowledged_max: int = 8192
    early_max: int = 1024
    batch_bytes_max: int = 64 * 1024 * 1024
    """Frames are dropped beyond this; the effects of one frame are never split."""
    acknowledge_ns: int = 0
    """How long an acknowledgement waits for a frame to travel with, up to half of `burst`
    frames; 0: not at all."""
    group_bytes: int = 1
    """Bytes of frames under one number, up to `GROUP_MAX` of them, or a single frame."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if field not in ("acknowledge_ns", "retry_ns_min") and getattr(self, field) < 1:
                value = getattr(self, field)
                raise ConfigurationError(f"LinkConfig.{field} must be at least 1, got {value}")
        if not 0 <= self.retry_ns_min <= self.retry_ns:
            raise ConfigurationError(
                f"LinkConfig.retry_ns_min must be between 0 and retry_ns, got {self.retry_ns_min}"
            )
        if not 0 <= self.acknowledge_ns < self.retry_ns:
            raise ConfigurationError(
                "LinkConfig.acknowledge_ns must be at least 0 and below retry_ns: a frame that is "
                "acknowledged later is sent again before"
            )


CONNECTED = LinkConfig(
    retry_ns=2_000_000_000,
    retry_ns_max=10_000_000_000,
    acknowledge_ns=100_000_000,
    group_bytes=64 * 1024,
)
"""For links over connections, which lose frames only when they end.

Then the owner retransmits frames under way at once (`repeat`). A shorter `retry_ns` would send all
frames twice to a peer that is merely busy.
"""
LOSSY = LinkConfig(retry_ns_min=RETRY_NS_MIN)
"""For links over carriers that may lose single messages, such as brokers."""


_INT = Records[int](int)


class Linked(Generic[N]):
    """A node whose frames to and from `peers` travel over numbered links.

    `inner` builds the node from its own records. `codec` knows every frame the node exchanges with
    those peers. Frames of the types in `unnumbered` travel as they are: their senders repeat them,
    and they need no order. `records` is what an earlier incarnation persisted, links and node
    together. With `compares`, records may be lost here or at a peer.
    """

    def __init__(
        self,
        inner: Callable[[Mapping[str, bytes]], N],
        *,
        peers: Iterable[str],
        codec: Codec,
        unnumbered: tuple[type[Frame], ...] = (),
        config: LinkConfig | None = None,
        durable: bool = True,
        records: Mapping[str, bytes] | None = None,
        compares: bool = False,
        now_ns: int = 0,
    ) -> None:
        self._config = config or LinkConfig()
        self._codec = codec
        self._unnumbered = unnumbered
        self._durable = durable
        self.undecodable_count = 0
        """Frames from linked peers that could not be decoded."""
        self._effects: list[Effect] = []
        self._now_ns = now_ns
        self._batch_bytes = 0
        """Bytes to be persisted since the effects were last drained."""
        self._persists = False
        """Whether there is anything to be persisted."""
        self._settled: list[str] = []
        """Records of acknowledged frames, to be removed with the next record that is written."""
        self._full: dict[str, None] = {}
        """Peers with `unacknowledged_max` frames on their way to them, since `take_full`."""
        self._along: dict[str, None] = {}
        """Peers that are sent a frame, so that an acknowledgement can go along."""
        self._together: dict[str, list[bytes]] = {}
        """Peer to the encoded frames that have no number yet."""
        self._waiting: dict[str, int] = {}
        """Peer to how many of them are persisted: they wait for the numbers of the link."""
        self.hears: Callable[[N], bool] | None = None
        """Whether the node can take frames of peers; else they repeat them. None: always."""
        self._dropped: dict[str, None] = {}
        """Peers that have to repeat frames which this node could not take."""
        self._out = {peer: self._outgoing() for peer in peers}
        self._in = {peer: Incoming() for peer in self._out}
        self._comparing = dict.fromkeys(self._out if compares else ())
        """Peers that have not told the state of their end."""
        self._compare_due_ns = now_ns
        own: dict[str, bytes] = {}
        for key, value in (records or {}).items():
            if key.startswith("link/"):
                self._restore(key, value)
            else:
                own[key] = value
        self._restore_waiting(records or {})
        for peer, link in self._out.items():
            link.unacknowledged = OrderedDict(sorted(link.unacknowledged.items()))
            link.due_ns = now_ns if link.unacknowledged else None
            link.since_ns = now_ns
            self._number_group(peer, now_ns)
        self.inner = inner(own)
        self.name = self.inner.name
        self._drain(now_ns)

    def _outgoing(self) -> Outgoing:
        config = self._config
        return Outgoing(
            RoundTrips(
                initial_ns=config.retry_ns,
                least_ns=config.retry_ns_min,
                most_ns=config.retry_ns_max,
            )
        )

    def link(self, peer: str) -> None:
        """Open a link to one more peer."""
        if peer not in self._out:
            self._out[peer] = self._outgoing()
            self._in[peer] = Incoming()

    def unlink(self, peer: str) -> None:
        """Forget a peer, and the frames on their way to it."""
        link = self._out.pop(peer, None)
        if link is None:
            return
        if self._in[peer].owed:
            self._acknowledge(peer)
        self._comparing.pop(peer, None)
        self._along.pop(peer, None)
        self._together.pop(peer, None)
        self._forget_waiting(peer)
        self._dropped.pop(peer, None)
        del self._in[peer]
        for number in link.unacknowledged:
            self._persist(f"link/out/{number}/{peer}", None)
        self._persist(f"link/next/{peer}", None)
        self._persist(f"link/in/{peer}", None)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Unwrap frames from linked peers; pass all others on as they are."""
        if self._batch_bytes >= self._config.batch_bytes_max:
            return  # Its sender repeats it.
        if source in self._comparing and not isinstance(frame, LinkState):
            return  # As above.
        match frame:
            case LinkData(number=number, payload=payload) if source in self._in:
                if self._takes_data():
                    self._data(source, number, payload, now_ns)
                else:
                    self._dropped[source] = None
            case LinkAck(number=number) if source in self._out:
                self._acknowledged(source, number, (), now_ns)
            case LinkGap(number=number, early=early) if source in self._out:
                self._acknowledged(source, number, early, now_ns)
            case LinkState() if source in self._in:
                self._compare(source, frame, now_ns)
            case _:
                # The node's effects are drained later: it bounds its answers by the batch.
                if not self._congested():  # Else dropped: peers without a link repeat requests.
                    self.inner.receive(frame, source=source, now_ns=now_ns)
                    self._now_ns = now_ns
                return
        self._drain(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Retransmit frames that were not acknowledged in time; run the node's timers."""
        if self._comparing and self._compare_due_ns <= now_ns:
            self._compare_due_ns = now_ns + self._config.retry_ns
            self._effects += [
                Send(peer, self._state(peer, wanted=True)) for peer in self._comparing
            ]
        for peer, link in self._out.items():
            if link.due_ns is None or link.due_ns > now_ns or peer in self._comparing:
                continue
            if self._retransmit_overtaken(peer, link, now_ns):
                continue
            link.resend = next(iter(link.unacknowledged))
            if link.sent:
                self._retransmit(peer, link, min(PROBES, self._config.burst), now_ns)
            else:
                self._retransmit(peer, link, self._config.burst, now_ns)
            link.due_ns = now_ns + link.wait_ns
            link.wait_ns = link.round_trips.after(link.wait_ns)
        for peer, incoming in self._in.items():
            if incoming.due_ns is not None and incoming.due_ns <= now_ns:
                self._acknowledge(peer)
        self.inner.handle_timer(now_ns=now_ns)
        self._drain(now_ns)

    def repeat(self, *, now_ns: int, peer: str | None = None) -> None:
        """Retransmit unacknowledged frames now, to one peer or all: a connection is new."""
        if peer in self._comparing:
            self._compare_due_ns = now_ns
        for name, link in self._out.items():
            if link.unacknowledged and peer in (None, name):
                link.round_trips.reset()
                link.due_ns, link.wait_ns = now_ns, link.round_trips.timeout_ns
                link.sent.clear()  # Nothing is on its way any more.
        self.handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when a link or the node has something due."""
        dues = [
            link.due_ns
            for peer, link in self._out.items()
            if link.due_ns is not None and peer not in self._comparing
        ]
        if self._comparing:
            dues.append(self._compare_due_ns)
        dues += [link.due_ns for link in self._in.values() if link.due_ns is not None]
        inner = self.inner.next_timer_ns()
        return min(dues if inner is None else [*dues, inner], default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        self._drain(self._now_ns)
        for peer in list(self._together):
            self._number_group(peer, self._now_ns)
        if self._dropped and self._takes_data():
            self._effects += [Send(peer, self._state(peer)) for peer in self._dropped]
            self._dropped.clear()
        for peer in self._along:
            if self._in[peer].owed:
                self._acknowledge(peer)
        self._along.clear()
        if self._persists or len(self._settled) >= self._config.unacknowledged_max:
            self._effects += [Persist(key, None) for key in self._settled]
            self._settled.clear()
        self._batch_bytes, self._persists = 0, False
        return self.take_link_effects()

    # -- For a node that owns its links -----------------------------------------------------------

    def is_linked(self, peer: str) -> bool:
        """Return whether there is a link to a peer."""
        return peer in self._out

    def take_full(self) -> list[str]:
        """Return the peers whose links have become full: `unacknowledged_max` frames under way."""
        full, self._full = self._full, {}
        limit = self._config.unacknowledged_max
        return [
            peer
            for peer in full
            if peer in self._out and len(self._out[peer].unacknowledged) >= limit
        ]

    def has_answered(self, peer: str) -> bool:
        """Return whether a peer has ever sent or acknowledged a numbered frame."""
        link = self._out[peer]
        return self._in[peer].next > 1 or next(iter(link.unacknowledged), link.next) > 1

    def unacknowledged_since_ns(self, peer: str) -> int | None:
        """Return since when the first frame to a peer waits for its acknowledgement, or None."""
        link = self._out[peer]
        return link.since_ns if link.unacknowledged else None

    @property
    def now_ns(self) -> int:
        """The time of the last input, at which effects are drained."""
        return self._now_ns

    def advance(self, now_ns: int) -> None:
        """Set the time at which effects are drained: the owner called the node itself."""
        self._now_ns = now_ns

    def persist(self, key: str, value: bytes | None) -> None:
        """Persist a record of the owner, or remove it, in the current batch."""
        self._persist(key, value)

    def take_link_effects(self) -> list[Effect]:
        """Drain the effects of the links without those of the node."""
        effects, self._effects = self._effects, []
        return effects

    # -- Frames -----------------------------------------------------------------------------------

    def _data(self, peer: str, number: int, payload: bytes, now_ns: int) -> None:
        link, again = self._in[peer], False
        if number > link.next:
            self._keep_early(peer, number, payload)
            return
        if number == link.next:
            following: bytes | None = payload
            while following is not None:
                try:
                    parts = unpacked(following, peer)
                    frames = [self._codec.decode(part, peer=peer) for part in parts]
                except RemoteProtocolError:
                    # As good as lost: it stays unacknowledged and will be retransmitted.
                    self.undecodable_count += 1
                    break
                link.next += 1
                link.owed += 1
                for frame in frames:
                    self.inner.receive(frame, source=peer, now_ns=now_ns)
                self._drain(now_ns)
                if self._batch_bytes >= self._config.batch_bytes_max:
                    break
                following = link.early.pop(link.next, None)
            self._persist(f"link/in/{peer}", _INT.encode(link.next))
        else:
            again = True  # The acknowledgement of this frame was lost.
        config = self._config
        if again or not config.acknowledge_ns or 2 * link.owed >= config.burst:
            self._acknowledge(peer)
        elif link.owed and link.due_ns is None:
            link.due_ns = now_ns + config.acknowledge_ns

    def _state(self, peer: str, *, wanted: bool = False) -> LinkState:
        link = self._out[peer]
        return LinkState(
            first=next(iter(link.unacknowledged), link.next),
            next=link.next,
            expected=self._in[peer].next,
            wanted=wanted,
        )

    def _compare(self, peer: str, there: LinkState, now_ns: int) -> None:
        """Adopt the numbers of a link where the other end is ahead."""
        link, incoming = self._out[peer], self._in[peer]
        self._acknowledged(peer, there.expected - 1, (), now_ns)
        if link.next < there.expected:
            link.next = there.expected
            self._persist(f"link/next/{peer}", _INT.encode(link.next))
        if incoming.next < there.first:
            incoming.next = there.next
            incoming.early.clear()
            self._persist(f"link/in/{peer}", _INT.encode(incoming.next))
        if there.wanted:
            self._effects.append(Send(peer, self._state(peer)))
        self._comparing.pop(peer, None)
        link.due_ns = now_ns if link.unacknowledged else None
        self._number_group(peer, now_ns)  # Before any later frame.

    def _keep_early(self, peer: str, number: int, payload: bytes) -> None:
        """Keep a frame that arrived before an earlier one, and report the gap."""
        link = self._in[peer]
        if len(link.early) >= self._config.early_max:
            return
        link.early[number] = payload
        if self._config.retry_ns_min:
            early = tuple(sorted(link.early))[-EARLY_REPORTED_MAX:]
            self._effects.append(Send(peer, LinkGap(number=link.next - 1, early=early)))

    def _acknowledge(self, peer: str) -> None:
        link = self._in[peer]
        link.owed, link.due_ns = 0, None
        self._effects.append(Send(peer, LinkAck(number=link.next - 1)))

    def _acknowledged(self, peer: str, number: int, early: tuple[int, ...], now_ns: int) -> None:
        """Forget frames that are safe at a peer; retransmit those that are found to be lost."""
        link = self._out[peer]
        round_trip_ns: int | None = None
        progress = False
        while link.unacknowledged and (first := next(iter(link.unacknowledged))) <= number:
            del link.unacknowledged[first]
            self._forget(f"link/out/{first}/{peer}")
            if first not in link.arrived:
                round_trip_ns = self._note_arrival(link, first, now_ns, round_trip_ns)
            link.sent.pop(first, None)
            link.arrived.discard(first)
            link.since_ns = now_ns
            progress = True
        new = [each for each in early if each in link.sent and each not in link.arrived]
        for each in new:
            round_trip_ns = self._note_arrival(link, each, now_ns, round_trip_ns)
        link.arrived.update(new)
        if round_trip_ns is not None:
            link.round_trips.sample(round_trip_ns)
        if progress:
            link.wait_ns = link.round_trips.timeout_ns + self._acknowledgement_wait_ns(link)
            self._catch_up(peer, link, number, now_ns)
        if progress or not link.round_trips.adapts:
            link.due_ns = now_ns + link.wait_ns if link.unacknowledged else None
        if early and link.unacknowledged:
            self._retransmit_overtaken(peer, link, now_ns)

    def _catch_up(self, peer: str, link: Outgoing, number: int, now_ns: int) -> None:
        """Retransmit after an acknowledgement what was lost with the frames up to a number."""
        if number + 1 in link.arrived:
            # The peer no longer has what arrived early: it restarted, or its batch was full.
            link.arrived.clear()
            link.resend = number + 1
            self._retransmit(peer, link, self._config.burst, now_ns)
        elif link.resend is not None:
            # Frames sent before the loss are likely lost or dropped too.
            link.resend = max(link.resend, number + 1)
            before_ns = now_ns - link.round_trips.overtaken_ns
            self._retransmit(peer, link, self._config.burst, now_ns, before_ns=before_ns)

    def _note_arrival(
        self, link: Outgoing, number: int, now_ns: int, shortest_ns: int | None
    ) -> int | None:
        """Note that a frame arrived; return the shortest round trip of those sent once."""
        sent = link.sent.get(number)
        if sent is None:
            return shortest_ns
        sent_ns, once = sent
        if not once:
            return shortest_ns  # Which of the copies arrived is not known.
        link.reorders |= number < link.highest
        link.highest = max(link.highest, number)
        link.latest_ns = max(link.latest_ns, sent_ns)
        round_trip_ns = now_ns - sent_ns
        return round_trip_ns if shortest_ns is None else min(shortest_ns, round_trip_ns)

    def _acknowledgement_wait_ns(self, link: Outgoing) -> int:
        """Return how long the peer may hold an acknowledgement back."""
        return self._config.acknowledge_ns if link.round_trips.adapts else 0

    def _retransmit_overtaken(self, peer: str, link: Outgoing, now_ns: int) -> bool:
        """Retransmit frames that later ones overtook for too long; False if there were none.

        A frame that was overtaken for less is due when it will have been for long enough.
        """
        if not link.arrived:
            return False
        last, found = max(link.arrived), 0
        threshold_ns = link.round_trips.overtaken_ns
        for number, frame in link.unacknowledged.items():
            if number > last or found >= self._config.burst:
                break
            sent_ns, once = link.sent.get(number, (now_ns, False))
            if number in link.arrived or sent_ns > link.latest_ns:
                continue
            lost_ns = sent_ns + threshold_ns
            skipped = once and not link.reorders and number + REORDERED_MAX <= last
            if lost_ns <= now_ns or skipped:
                link.sent[number] = (now_ns, False)
                self._effects.append(Send(peer, frame))
                found += 1
            elif link.due_ns is None or lost_ns < link.due_ns:
                link.due_ns = lost_ns
        if found:
            link.due_ns = now_ns + link.wait_ns
        return found > 0

    def _retransmit(
        self,
        peer: str,
        link: Outgoing,
        burst: int,
        now_ns: int,
        *,
        before_ns: int | None = None,
    ) -> None:
        """Retransmit frames from `resend` on, only what was last sent before a time if given."""
        assert link.resend is not None
        stop = min(link.resend + burst, link.next)
        for number in range(link.resend, stop):
            if link.round_trips.adapts:
                sent_ns, _ = link.sent.get(number, (-1, False))
                if before_ns is not None and (number in link.arrived or sent_ns > before_ns):
                    continue
                link.sent[number] = (now_ns, False)
            self._effects.append(Send(peer, link.unacknowledged[number]))
        link.resend = stop if stop < link.next else None

    @property
    def under_way_count(self) -> int:
        """How many frames are not acknowledged."""
        return sum(len(link.unacknowledged) for link in self._out.values())

    def _congested(self) -> bool:
        limit, waiting = self._config.unacknowledged_max, self._waiting
        return any(
            len(link.unacknowledged) + waiting.get(peer, 0) >= limit
            for peer, link in self._out.items()
        )

    def _takes_data(self) -> bool:
        """Return whether the node can take a frame, and what it may send in turn has room."""
        can = self.hears is None or self.hears(self.inner)
        return can and (not self._waiting or not self._congested())

    def _drain(self, now_ns: int) -> None:
        """Give numbers to the node's frames to linked peers; pass everything else on."""
        self._now_ns = now_ns
        for effect in self.inner.take_effects():
            if not isinstance(effect, Send) or effect.peer not in self._out:
                if type(effect) is Persist:
                    self._batch_bytes += len(effect.key) + len(effect.value or b"")
                    self._persists = True
                self._effects.append(effect)
                continue
            peer = effect.peer
            if isinstance(effect.frame, self._unnumbered):
                self._number_group(peer, now_ns)  # Earlier frames go first.
                self._effects.append(effect)
                continue
            payload = self._codec.encode(effect.frame)
            self._batch_bytes += len(payload)
            if peer in self._comparing:
                number = self._waiting[peer] = self._waiting.get(peer, 0) + 1
                self._persist(f"link/wait/{number}/{peer}", payload)
                self._together.setdefault(peer, []).append(payload)
            elif self._config.group_bytes > 1:
                self._together.setdefault(peer, []).append(payload)
            else:
                self._number(peer, payload, now_ns)

    def _number_group(self, peer: str, now_ns: int) -> None:
        """Give numbers to the frames collected for a peer, once the link's numbers are known."""
        if peer in self._comparing:
            return
        self._forget_waiting(peer)
        group: list[bytes] = []
        size = 0
        for payload in self._together.pop(peer, ()):
            size += len(payload)
            if group and (size > self._config.group_bytes or len(group) == GROUP_MAX):
                self._number(peer, packed(group), now_ns)
                group, size = [], len(payload)
            group.append(payload)
        if group:
            self._number(peer, packed(group), now_ns)

    def _number(self, peer: str, payload: bytes, now_ns: int) -> None:
        link = self._out[peer]
        data = LinkData(number=link.next, payload=payload)
        if not link.unacknowledged:
            link.since_ns = now_ns
        link.next += 1
        link.unacknowledged[data.number] = data
        if len(link.unacknowledged) >= self._config.unacknowledged_max:
            self._full[peer] = None
        self._persist(f"link/out/{data.number}/{peer}", payload)
        self._persist(f"link/next/{peer}", _INT.encode(link.next))
        self._effects.append(Send(peer, data))
        if link.round_trips.adapts:
            link.sent[data.number] = (now_ns, True)
        if link.due_ns is None:
            link.due_ns = now_ns + link.wait_ns
        if self._config.acknowledge_ns:
            self._along[peer] = None

    def _persist(self, key: str, value: bytes | None) -> None:
        if self._durable:
            self._effects.append(Persist(key, value))
            self._persists = True

    def _forget(self, key: str) -> None:
        """Remove the record of an acknowledged frame: now, or with the next write."""
        if not self._config.acknowledge_ns:
            self._persist(key, None)
        elif self._durable:
            self._settled.append(key)

    def _forget_waiting(self, peer: str) -> None:
        """Remove the records of frames that wait for their numbers."""
        for number in range(1, self._waiting.pop(peer, 0) + 1):
            self._persist(f"link/wait/{number}/{peer}", None)

    def _restore_waiting(self, records: Mapping[str, bytes]) -> None:
        for peer in self._out:
            while payload := records.get(f"link/wait/{self._waiting.get(peer, 0) + 1}/{peer}"):
                self._waiting[peer] = self._waiting.get(peer, 0) + 1
                self._together.setdefault(peer, []).append(payload)

    def _restore(self, key: str, value: bytes) -> None:
        _, kind, rest = key.split("/", 2)
        if kind == "in" and rest in self._in:
            self._in[rest].next = _INT.decode(value)
        elif kind == "next" and rest in self._out:
            self._out[rest].next = _INT.decode(value)
        elif kind == "out":
            number, _, peer = rest.partition("/")
            if peer in self._out:
                data = LinkData(number=int(number), payload=value)
                self._out[peer].unacknowledged[data.number] = data
