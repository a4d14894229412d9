"""A station: one stage of the chain, the log of its topics, and what clients ask it to remember.

Three nodes that share one name, one disk and one batch: whatever a frame causes in any of them is
persisted together. That is what makes `SequencerConfig.carries` safe: the count of a topic and the
event that has the slot survive a crash together or not at all.

Clients that vanish: a subscriber is heard of again and again, because it asks its topics' logs whether it
missed something. One with a name of its process's own (`EPHEMERAL` in it) that has not been heard of
for `expire_ns` is taken out of the chain, as if it had left; if it comes back it is told so
(`Expired`) and has to start anew under another name. Names that were given by people never expire; but
after as long a silence nothing new is sent to them, until they ask: then they are sent what they missed.

HAZARD: a name that expired is remembered for the last `EXPIRED_MAX`. Whoever comes back later than so
many others is not told, and misses the order of what was published since.

Of a subscriber without topics here, as its changes pass by or it has left, nothing is kept after as long a
silence. A change that a neighbour passes on, or asks for again, breaks the silence.

A publisher whose connection is lost has a shorter lease (`sequencer.leases`). A driver that sees connections says so (`lose`, `regain`). A client is connected
to every server of its chain, so the one that holds a stamp sees for itself that the stamp's publisher is gone.

The log of a topic is at the station that hosts the topic. A void for a topic of another station
goes there as a `Put`.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ensue.event import Event
from ensue.protocols import ens, exchange, guide, keeping, lineage, looking
from ensue.protocols.core import Broadcast, Effect, Frame, Persist, Send
from ensue.protocols.ens import AttachRequest, Put
from ensue.protocols.gossip import frames as gossip_frames
from ensue.protocols.hypercube import enrolment
from ensue.protocols.hypercube import frames as cube_frames
from ensue.protocols.keeping import Keeper, KeeperConfig
from ensue.protocols.lineage import Identify, Lineage
from ensue.protocols.looking import Look
from ensue.protocols.overlay import nodes as overlay
from ensue.protocols.sequencer import frames
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import (
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Expired,
    Forget,
)
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.topic_log import EnsConfig, KeptEvents, TopicLog

__all__ = ["EPHEMERAL", "FRAMES", "FROM_CLIENTS", "UNNUMBERED", "Station", "StationConfig"]

EPHEMERAL = "~"
"""Stands in names that die with their process, and in no other."""
EXPIRED_MAX = 100_000
WATCHERS_MAX = 10_000
"""Who asked which log a station has, and is told if it can't be read."""
SWEEPS = 4
"""How often in `expire_ns` the station looks who has vanished."""


class StationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a station does beyond its three parts."""

    expire_ns: int | None = None
    """How long a subscriber may be silent; None: for ever."""


FRAMES: tuple[type[Frame], ...] = (
    *frames.FRAMES,
    *keeping.FRAMES,
    *guide.FRAMES,
    *lineage.FRAMES,
    *looking.FRAMES,
    *exchange.FRAMES,
    *enrolment.FRAMES,
    *cube_frames.FRAMES,
    *gossip_frames.BETWEEN_BROKERS,
    *overlay.UNNUMBERED,
)
"""Everything that stations and their clients tell each other, and what clients tell each other through them."""

FROM_CLIENTS: frozenset[type[Frame]] = frozenset(
    (
        frames.StampRequest,
        frames.OrderRequest,
        frames.Confirm,
        frames.ChangeRequest,
        frames.Forget,
        ens.Put,
        ens.AttachRequest,
        ens.DetachRequest,
        ens.Fetch,
        keeping.Recall,
        keeping.Remember,
        keeping.Dismiss,
        looking.Look,
        lineage.Identify,
    )
)
"""What publishers and subscribers send to stations; the rest stations send, to them or each other."""
UNNUMBERED: tuple[type[Frame], ...] = (
    frames.Repeat,
    frames.ChangeRepeat,
    ens.Put,
    ens.Accepted,
    ens.Taken,
)
"""What stations tell each other and need no numbered link for: whoever sends these repeats them."""

_OF_LOG = ("event/", "first/", "attached/", "place/")
_OF_KEEPER = ("keeper/", "kept/")
_EXPIRED = "expired/"
_FOR_LOG = (ens.Put, ens.AttachRequest, ens.DetachRequest, ens.Fetch)
_FOR_KEEPER = (keeping.Recall, keeping.Remember, keeping.Dismiss)


def _select(records: Mapping[str, bytes], prefixes: tuple[str, ...]) -> dict[str, bytes]:
    return {key: records[key] for key in records if key.startswith(prefixes)}


class Station:
    """One station. It has no commands of its own but `trim`: it answers frames.

    `records` is what an earlier incarnation persisted, without the events if `kept` has them.
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig,
        station_config: StationConfig | None = None,
        ens_config: EnsConfig | None = None,
        keeper_config: KeeperConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        kept: KeptEvents | None = None,
        seal_key: bytes = b"",
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.placement = placement
        own = records or {}
        of_log = _select(own, _OF_LOG)
        of_keeper = _select(own, _OF_KEEPER)
        of_others = (*_OF_LOG, *_OF_KEEPER, _EXPIRED)
        of_node = {key: own[key] for key in own if not key.startswith(of_others)}
        self.log = TopicLog(name=name, config=ens_config, records=of_log, kept=kept)
        self.node = SequencerNode(
            name=name,
            placement=placement,
            config=config,
            put_out=self.log.append,
            slot_of=self.log.slot_of,
            records=of_node,
            seal_key=seal_key,
            now_ns=now_ns,
        )
        self.keeper = Keeper(name=name, config=keeper_config, records=of_keeper)
        self.config = station_config or StationConfig()
        self._now_ns = now_ns
        self._effects: list[Effect] = []
        self._seen: dict[str, int] = {}
        """Ephemeral subscribers, and whoever is attached to a topic, and when they were last heard of."""
        self._expired: dict[str, None] = {}
        self._heard: dict[str, int] = {}
        """Those whose records are kept, and when they were last heard of."""
        self.on_look: Callable[[Look, int], Frame] | None = None
        """Given a question and the time: what to answer. None: such questions are not answered."""
        self.lineage: Lineage | None = None
        """Which log this station has, for whoever asks. None: such questions are not answered."""
        self.watchers: dict[str, None] = {}
        """The last `WATCHERS_MAX` who asked that, the latest at the end."""
        self._looked: dict[str, None] = {}
        """Those whose question the effects hold an answer to."""
        self.expiries = 0
        """Subscribers that were taken for vanished since the start."""
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
        """Hand a frame to whom it is for."""
        self._now_ns = now_ns
        if source in self._seen:
            self._seen[source] = now_ns
        elif source in self._expired:
            self._effects.append(Send(source, Expired(name=source)))
            return
        elif type(frame) is AttachRequest or (type(frame) is ChangeRequest and EPHEMERAL in source):
            self._seen[source] = now_ns
        if isinstance(frame, _FOR_LOG):
            if type(frame) is not Put or self.may_put(frame.event, source):
                self.log.receive(frame, source=source, now_ns=now_ns)
        elif isinstance(frame, _FOR_KEEPER):
            self.keeper.receive(frame, source=source, now_ns=now_ns)
            if self.keeper.keeps(source):
                self._heard[source] = now_ns
            else:
                self._heard.pop(source, None)
        elif type(frame) is Look or type(frame) is Identify:
            self._tell(frame, source, now_ns)
        else:
            self.node.receive(frame, source=source, now_ns=now_ns)
            self._hear_through_chain(frame, now_ns)

    def _tell(self, question: Look | Identify, source: str, now_ns: int) -> None:
        """Answer who looks at the station, or asks which log it has."""
        if isinstance(question, Identify):
            self.watchers.pop(source, None)
            self.watchers[source] = None
            if len(self.watchers) > WATCHERS_MAX:
                del self.watchers[next(iter(self.watchers))]
            if self.lineage is not None:
                self._effects.append(lineage.answer(question, self.lineage, source))
        # Asked many times at once, it is answered once: there may be much to tell.
        elif self.on_look is not None and source not in self._looked:
            self._looked[source] = None
            self._effects.append(Send(source, self.on_look(question, now_ns)))

    def heard_ns(self, name: str) -> int | None:
        """Return when a subscriber was last heard of; None: not since the start."""
        return self._seen.get(name) if EPHEMERAL in name else self._heard.get(name)

    def may_put(self, event: Event, source: str) -> bool:
        """Tell whether an event may have its slot: only one that was given away, by who may have it.

        An event in a slot that is still to be given would be in the way of the one that gets it.
        """
        topic, slot = event.topic, event.slot
        if not self.placement.knows(topic) or self.placement.node(topic) != self.name:
            return False
        if slot is None or not 0 < slot <= self.node.count(topic):
            return False
        own = event.publisher == source and not event.void
        return own or source == self.name or source in self.placement.nodes

    def handle_timer(self, *, now_ns: int) -> None:
        """Let the sequencer do what is due; look who has vanished."""
        self._now_ns = now_ns
        self.node.handle_timer(now_ns=now_ns)
        expire_ns, late_ns = self.config.expire_ns, now_ns - self._sweep_due_ns
        if expire_ns is not None and late_ns >= 0:
            self._sweep_due_ns = now_ns + expire_ns // SWEEPS
            # While the station stood still nobody was heard: what they said waits to be read.
            for name, seen_ns in self._seen.items():
                self._seen[name] = min(now_ns, seen_ns + late_ns)
            self._sweep(now_ns, expire_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        node = self.node.next_timer_ns()
        if self.config.expire_ns is None or not self._seen:
            return node
        return self._sweep_due_ns if node is None else min(node, self._sweep_due_ns)

    def lose(self, name: str, *, now_ns: int) -> None:
        """Hear that no connection has a name any more."""
        self.node.lose(name, now_ns=now_ns)

    def regain(self, name: str) -> None:
        """Hear that a connection has a name."""
        self.node.regain(name)

    def trim(self, topic: str, first: int) -> None:
        """Note that events of a topic below a slot are no longer kept."""
        self.log.trim(topic, first)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done, after the three have told each other what they must."""
        effects, self._effects = self._effects, []
        if self._looked:
            self._looked = {}
        for effect in self.node.take_effects():
            if type(effect) is not Broadcast:
                effects.append(effect)
            elif (home := self.placement.node(effect.event.topic)) == self.name:
                self.log.receive(Put(event=effect.event), source=self.name, now_ns=self._now_ns)
            else:
                effects.append(Send(home, Put(event=effect.event)))
        for effect in self.log.take_effects():
            if type(effect) is Send and effect.peer == self.name:
                # The answer to what the sequencer put out or voided.
                self.node.receive(effect.frame, source=self.name, now_ns=self._now_ns)
            else:
                effects.append(effect)
        effects += self.node.take_effects()
        effects += self.keeper.take_effects()
        return effects

    def _hear_through_chain(self, frame: Frame, now_ns: int) -> None:
        """Note if a neighbour passed on what a subscriber wants, who may never talk to this station."""
        if not isinstance(frame, ChangeFill | ChangeRepeat):
            return
        name = frame.subscriber
        if name in self._expired:
            # If this is how it leaves, it is done with; if not, it stays until it has left.
            self._forget_subscriber(name, frame.number, now_ns)
        elif EPHEMERAL in name:
            self._seen[name] = now_ns

    def _sweep(self, now_ns: int, expire_ns: int) -> None:
        """Take those out of the chain that have not been heard of."""
        registered = self.node.subscribers()
        for name, seen_ns in list(self._seen.items()):
            if now_ns - seen_ns < expire_ns:
                continue
            del self._seen[name]
            self.log.forget(name)
            if EPHEMERAL not in name or name not in registered:
                continue
            number, topics = registered[name]
            if not topics:
                # It has nothing here, so it has no reason to be heard of, and may well be alive
                # elsewhere. It asks for nothing either: if it wants something again it is as new.
                self._forget_subscriber(name, number, now_ns)
                continue
            self._expired[name] = None
            self.expiries += 1
            self._effects.append(Persist(f"{_EXPIRED}{name}", b""))
            if self.placement.span(topics)[0] == self.node.stage:
                # From where it starts the leave travels the chain, as the subscriber's own would.
                leave = ChangeRequest(number=number + 1, old=topics, new=())
                self.node.receive(leave, source=name, now_ns=now_ns)
        self._forget_gone(now_ns)
        while len(self._expired) > EXPIRED_MAX:
            oldest = next(iter(self._expired))
            del self._expired[oldest]
            self._effects.append(Persist(f"{_EXPIRED}{oldest}", None))

    def _forget_gone(self, now_ns: int) -> None:
        """Forget the expired who have left everywhere: they will not say goodbye."""
        for name, (number, _) in self.node.subscribers().items():
            if name in self._expired:
                self._forget_subscriber(name, number, now_ns)

    def _forget_subscriber(self, name: str, number: int, now_ns: int) -> None:
        """Forget a subscriber, unless it has topics here."""
        self.node.receive(Forget(number=number, publisher=False), source=name, now_ns=now_ns)
