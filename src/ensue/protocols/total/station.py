"""A station: one stage of the chain, its topics' log, and a state store.

Three nodes that share one name, one disk and one batch: what a frame causes in any of them is
persisted together. That makes `SequencerConfig.carries` safe: the count of a topic and the event
that has the slot survive a crash together or not at all.

Clients that vanish: a subscriber polls the logs of its topics. One with an ephemeral name
(`EPHEMERAL` in it) that was silent for `expire_ns` is removed from the chain, as if it had left; if
it returns it gets `Expired`, and has to start again under another name. Names that users chose
never expire; but after as long a silence they are sent nothing new until they ask. No name expires
at a station that takes nothing of clients yet (`compares`).

HAZARD: the last `EXPIRED_MAX` expired names are remembered. A subscriber that returns after so
many others does not get `Expired`, and misses the order of events published since.

A subscriber without topics here, whose changes pass by or that has left, is forgotten after as long
a silence. A change that a neighbor passes on or repeats breaks the silence. With groups by two, a
topic that it has left still counts here, so it goes on showing its presence, or expires.

A publisher whose connection is lost has a shorter lease (`leases`). A driver that sees connections
reports them (`lose`, `regain`). A client is connected to every server of its chain, so the one that
holds a stamp sees for itself that the stamp's publisher is gone. Of a client that was not connected
to it yet, the node before tells it (`PublisherLost`).

The log of a topic is at the station that hosts the topic. A void for a topic of another station
goes there as a `Put`.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ensue.core.event import Event
from ensue.core.lineage import Lineage
from ensue.protocols.content import frames as content
from ensue.protocols.interface import Broadcast, Effect, Frame, Persist, Send
from ensue.protocols.membership import frames as membership
from ensue.protocols.shared import state_store
from ensue.protocols.shared.state_store import StateStore, StateStoreConfig
from ensue.protocols.topic_log import fanout, log_identity
from ensue.protocols.topic_log import frames as log_frames
from ensue.protocols.topic_log.frames import AttachRequest, Put
from ensue.protocols.topic_log.log import KeptEvents, TopicLog, TopicLogConfig
from ensue.protocols.topic_log.log_identity import Identify
from ensue.protocols.total import discovery, frames, status
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Expired,
    Forget,
    Moved,
    Registered,
)
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.status import StatusRequest
from ensue.protocols.total.topic_moves import MoveConfig

__all__ = ["EPHEMERAL", "FRAMES", "FROM_CLIENTS", "UNNUMBERED", "Station", "StationConfig"]

EPHEMERAL = "~"
"""Marks names that die with their process."""
EXPIRED_MAX = 100_000
WATCHERS_MAX = 10_000
"""Clients that asked for the log's identity, and learn if it can't be read."""
SWEEPS = 4
"""How often in `expire_ns` the station looks for vanished subscribers."""


class StationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a station beyond its three parts."""

    expire_ns: int | None = None
    """How long a subscriber may be silent; None: for ever."""
    moves: MoveConfig = MoveConfig()
    """Waits and limits of topic moves."""
    compares: bool = False
    """Whether this station may continue from older records than it had, or from none: then it takes
    nothing of clients until all other stations have told it which moves they know."""


FRAMES: tuple[type[Frame], ...] = (
    *frames.FRAMES,
    *state_store.FRAMES,
    *discovery.FRAMES,
    *log_identity.FRAMES,
    *status.FRAMES,
    *fanout.FRAMES,
    *membership.FRAMES,
    *content.UNNUMBERED,
)
"""All frames between stations and clients. `ensue.orders` adds those that orders have."""

FROM_CLIENTS: frozenset[type[Frame]] = frozenset(
    (
        frames.StampRequest,
        frames.OrderRequest,
        frames.Confirm,
        frames.ChangeRequest,
        frames.Forget,
        frames.MoveRequest,
        log_frames.Put,
        log_frames.AttachRequest,
        log_frames.DetachRequest,
        log_frames.Fetch,
        state_store.Recall,
        state_store.Remember,
        state_store.Dismiss,
        status.StatusRequest,
        log_identity.Identify,
    )
)
"""Frames that publishers and subscribers send to stations; stations send the rest."""
UNNUMBERED: tuple[type[Frame], ...] = (
    frames.Repeat,
    frames.ChangeRepeat,
    frames.MoveDecision,
    frames.MoveStep,
    frames.KnownMoves,
    log_frames.Put,
    log_frames.Accepted,
    log_frames.Taken,
)
"""Frames between stations without a numbered link: their senders repeat them."""

_OF_LOG = ("event/", "first/", "attached/", "place/")
_OF_STATE_STORE = ("keeper/", "kept/")
_EXPIRED = "expired/"
_FOR_LOG = (log_frames.Put, log_frames.AttachRequest, log_frames.DetachRequest, log_frames.Fetch)
_EARLY = (StatusRequest, Identify, frames.MoveRequest)
_FOR_STATE_STORE = (state_store.Recall, state_store.Remember, state_store.Dismiss)


def _select(records: Mapping[str, bytes], prefixes: tuple[str, ...]) -> dict[str, bytes]:
    return {key: records[key] for key in records if key.startswith(prefixes)}


class Station:
    """One station. Its only command is `trim`: it answers frames.

    `records` is what an earlier incarnation persisted, without the events if `kept` has them.
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig,
        station_config: StationConfig | None = None,
        topic_log_config: TopicLogConfig | None = None,
        state_store_config: StateStoreConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        kept: KeptEvents | None = None,
        seal_key: bytes = b"",
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.placement = placement
        own = records or {}
        of_log = _select(own, _OF_LOG)
        of_state_store = _select(own, _OF_STATE_STORE)
        of_others = (*_OF_LOG, *_OF_STATE_STORE, _EXPIRED)
        of_node = {key: own[key] for key in own if not key.startswith(of_others)}
        self.config = station_config or StationConfig()
        self.log = TopicLog(name=name, config=topic_log_config, records=of_log, kept=kept)
        self.node = Sequencer(
            name=name,
            placement=placement,
            config=config,
            put_out=self.log.append,
            slot_of=self.log.slot_of,
            records=of_node,
            seal_key=seal_key,
            move_config=self.config.moves,
            comparing=[node for node in placement.nodes if node != name and self.config.compares],
            now_ns=now_ns,
        )
        self.node.moves.on_switch = self._switched
        self.state_store = StateStore(name=name, config=state_store_config, records=of_state_store)
        self._now_ns = now_ns
        self._effects: list[Effect] = []
        self._seen: dict[str, int] = {}
        """Ephemeral subscribers and attached peers, to when they last sent something."""
        self._expired: dict[str, None] = {}
        self._heard: dict[str, int] = {}
        """Clients whose records are kept, to when they last sent something."""
        self.on_status_request: Callable[[StatusRequest, int], Frame] | None = None
        """Answers a status request at a time. None: such requests are not answered."""
        self.lineage: Lineage | None = None
        """The identity of this station's log. None: requests for it are not answered."""
        self.watchers: dict[str, None] = {}
        """The last `WATCHERS_MAX` clients that asked for it, the latest at the end."""
        self._status_sent: dict[str, None] = {}
        """Clients whose status answers are among the effects."""
        self.expiries = 0
        """Subscribers that expired since the start."""
        for key in _select(own, (_EXPIRED,)):
            self._expired[key.removeprefix(_EXPIRED)] = None
        listeners = (peer for peers in self.log.listeners().values() for peer in peers)
        registered = (each for each in self.node.subscribers() if EPHEMERAL in each)
        for subscriber in (*registered, *listeners):
            if subscriber not in self._expired:
                self._seen[subscriber] = now_ns
        self._forget_gone(now_ns)
        self._sweep_due_ns = now_ns

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Pass a frame to the part that handles it."""
        self._now_ns = now_ns
        self.log.advance(now_ns)
        if not self._admits(frame, source, now_ns):
            return
        if isinstance(frame, _FOR_LOG):
            if self._is_moved(frame, source):
                return
            if type(frame) is not Put or self.may_put(frame.event, source):
                self.log.receive(frame, source=source, now_ns=now_ns)
        elif isinstance(frame, _FOR_STATE_STORE):
            self.state_store.receive(frame, source=source, now_ns=now_ns)
            if self.state_store.keeps(source):
                self._heard[source] = now_ns
            else:
                self._heard.pop(source, None)
        elif type(frame) is StatusRequest or type(frame) is Identify:
            self._answer(frame, source, now_ns)
        else:
            self.node.receive(frame, source=source, now_ns=now_ns)
            self._note_passed_on(frame, now_ns)

    def _admits(self, frame: Frame, source: str, now_ns: int) -> bool:
        """Note a sign of life of a client; return whether its frame is handled."""
        is_early = self.placement.unsure and source not in self.placement.nodes
        if source in self._seen:
            self._seen[source] = now_ns
        if is_early and not isinstance(frame, _EARLY):
            return False  # Clients repeat it.
        if source in self._expired:
            self._effects.append(Send(source, Expired(name=source)))
            return False
        if self.config.expire_ns is not None and (
            type(frame) is AttachRequest or (type(frame) is ChangeRequest and EPHEMERAL in source)
        ):
            self._seen[source] = now_ns
        return True

    def _is_moved(self, frame: Frame, source: str) -> bool:
        """Return whether another node keeps what a frame asks for; then it gets `Moved`."""
        parts = self.placement.parts
        if isinstance(frame, Put):
            topic, slot = frame.event.topic, frame.event.slot or 0
        elif isinstance(frame, AttachRequest):
            topic, slot = frame.topic, frame.from_slot
        else:
            return False
        if topic not in parts or source in self.placement.nodes:
            return False
        if parts[topic][-1][0] != self.name:
            self._effects.append(Send(source, Moved(topic=topic, parts=parts[topic])))
        return self.placement.keeper(topic, slot) != self.name

    def _switched(self, topic: str, count: int, registered: tuple[Registered, ...]) -> None:
        """Begin or end this station's part of a topic's log."""
        parts = self.placement.parts[topic]
        if parts[-1][0] == self.name:
            self.log.begin(topic, count + 1)
            if self.config.expire_ns is not None:
                for each in registered:
                    if EPHEMERAL in each.subscriber and each.subscriber not in self._expired:
                        self._seen.setdefault(each.subscriber, self._now_ns)
        elif self.name in self.placement.keepers(topic):
            # A part that is not all here can't be completed: readers would wait for the rest.
            last = next(last for node, last in parts if node == self.name)
            if self.node.count(topic) < last:
                self.log.trim(topic, last + 1)
            moved = Moved(topic=topic, parts=parts)
            for peer in self.log.listeners().get(topic, ()):
                self._effects.append(Send(peer, moved))

    def _answer(self, question: StatusRequest | Identify, source: str, now_ns: int) -> None:
        """Answer a request for the status or for the identity of the log."""
        if isinstance(question, Identify):
            self.watchers.pop(source, None)
            self.watchers[source] = None
            if len(self.watchers) > WATCHERS_MAX:
                del self.watchers[next(iter(self.watchers))]
            if self.lineage is not None:
                closed = self.placement.closed
                settings = discovery.settings_of(self.node.config, closed=closed)
                identified = log_identity.answer(question, self.lineage, source, settings)
                self._effects.append(identified)
        # Requests repeated in one batch get one answer: it may be long.
        elif self.on_status_request is not None and source not in self._status_sent:
            self._status_sent[source] = None
            self._effects.append(Send(source, self.on_status_request(question, now_ns)))

    def heard_ns(self, name: str) -> int | None:
        """Return when a subscriber last sent something; None: not since the start."""
        return self._seen.get(name) if EPHEMERAL in name else self._heard.get(name)

    def may_put(self, event: Event, source: str) -> bool:
        """Return whether an event may take its slot: one that was given to its sender.

        An event in a slot that was not given yet would block the one that gets it.
        """
        topic, slot = event.topic, event.slot
        if not self.placement.knows(topic):
            return False
        if (self.placement.keeper(topic, slot or 0) or self.placement.node(topic)) != self.name:
            return False
        if slot is None or not 0 < slot <= self.node.count(topic):
            return False
        own = event.publisher == source and not event.void
        return own or source == self.name or source in self.placement.nodes

    def handle_timer(self, *, now_ns: int) -> None:
        """Run the sequencer's timers; look for vanished subscribers."""
        self._now_ns = now_ns
        self.log.handle_timer(now_ns=now_ns)
        self.node.handle_timer(now_ns=now_ns)
        expire_ns, late_ns = self.config.expire_ns, now_ns - self._sweep_due_ns
        if expire_ns is not None and late_ns >= 0:
            self._sweep_due_ns = now_ns + expire_ns // SWEEPS
            if self.placement.unsure:
                self._seen = dict.fromkeys(self._seen, now_ns)  # It answers none of them.
                return
            # A paused station reads no frames: those of live subscribers wait.
            for name, seen_ns in self._seen.items():
                self._seen[name] = min(now_ns, seen_ns + late_ns)
            self._sweep(now_ns, expire_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        dues = [self.node.next_timer_ns(), self.log.next_timer_ns()]
        if self.config.expire_ns is not None and self._seen:
            dues.append(self._sweep_due_ns)
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def publishers(self) -> tuple[str, ...]:
        """Return the publishers whose slots subscribers may wait for."""
        return self.node.leases.publishers()

    def lose(self, name: str, *, now_ns: int) -> None:
        """Note that no connection has a name any longer."""
        self.node.lose(name, now_ns=now_ns)

    def regain(self, name: str) -> None:
        """Note that a connection has a name."""
        if name in self.placement.nodes:
            self.node.moves.greet(name)
        else:
            self.node.regain(name)

    def trim(self, topic: str, first: int) -> None:
        """Note that events of a topic below a slot are no longer kept."""
        self.log.trim(topic, first)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects, after the three parts have exchanged their frames."""
        effects, self._effects = self._effects, []
        if self._status_sent:
            self._status_sent = {}
        for effect in self.node.take_effects():
            if type(effect) is not Broadcast:
                effects.append(effect)
            elif (home := self._home(effect.event)) == self.name:
                self.log.receive(Put(event=effect.event), source=self.name, now_ns=self._now_ns)
            else:
                effects.append(Send(home, Put(event=effect.event)))
        for effect in self.log.take_effects():
            if type(effect) is Send and effect.peer == self.name:
                # The answer to what the sequencer published or voided.
                self.node.receive(effect.frame, source=self.name, now_ns=self._now_ns)
            else:
                effects.append(effect)
        effects += self.node.take_effects()
        effects += self.state_store.take_effects()
        return effects

    def _home(self, event: Event) -> str:
        """Return the node that keeps an event's slot."""
        moved = self.placement.keeper(event.topic, event.slot or 0)
        return moved or self.placement.node(event.topic)

    def _note_passed_on(self, frame: Frame, now_ns: int) -> None:
        """Note a passed-on change: its subscriber may never send anything here itself."""
        if not isinstance(frame, ChangeFill | ChangeRepeat):
            return
        name = frame.subscriber
        if name in self._expired:
            # If the change leaves all topics, forget it; if not, it stays until it has left.
            self._forget_subscriber(name, frame.number, now_ns)
        elif EPHEMERAL in name and self.config.expire_ns is not None:
            if not isinstance(frame, ChangeFill) or frame.new:
                self._seen[name] = now_ns
            # A leave may be of a subscriber that has expired elsewhere: it is no sign of life.
            elif name in self._seen or self.node.state.hosted(frame.old):
                self._seen.setdefault(name, now_ns)
            else:
                self._forget_subscriber(name, frame.number, now_ns)

    def _sweep(self, now_ns: int, expire_ns: int) -> None:
        """Remove subscribers from the chain that were silent for too long."""
        registered = self.node.subscribers()
        for name, seen_ns in list(self._seen.items()):
            if now_ns - seen_ns < expire_ns:
                continue
            del self._seen[name]
            self.log.forget(name)
            if EPHEMERAL not in name or name not in registered:
                continue
            number, topics = registered[name]
            if not topics and name not in self.node.groups.left:
                # It has no topics here, so it has no reason to send anything, and may well be alive
                # elsewhere. If it subscribes here again it is as new.
                self._forget_subscriber(name, number, now_ns)
                continue
            self._expired[name] = None
            self.expiries += 1
            self._effects.append(Persist(f"{_EXPIRED}{name}", b""))
            if topics and self.placement.span(topics)[0] == self.node.stage:
                # The leave starts here and travels the chain, as the subscriber's own would.
                leave = ChangeRequest(number=number + 1, old=topics, new=())
                self.node.receive(leave, source=name, now_ns=now_ns)
        self._forget_gone(now_ns)
        while len(self._expired) > EXPIRED_MAX:
            oldest = next(iter(self._expired))
            del self._expired[oldest]
            self._effects.append(Persist(f"{_EXPIRED}{oldest}", None))

    def _forget_gone(self, now_ns: int) -> None:
        """Forget expired subscribers that have left everywhere: they send no `Forget`."""
        for name, (number, _) in self.node.subscribers().items():
            if name in self._expired:
                self._forget_subscriber(name, number, now_ns)

    def _forget_subscriber(self, name: str, number: int, now_ns: int) -> None:
        """Forget a subscriber, unless it has topics here."""
        self.node.receive(Forget(number=number, publisher=False), source=name, now_ns=now_ns)
