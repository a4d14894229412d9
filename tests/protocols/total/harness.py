"""A small network of real nodes; tests deliver each frame and advance the time.

`Net` holds a chain of sequencers, one node with all topic logs called `ens`, publishers and
subscribers. Every step of a node is atomic: its records are written, then its frames leave, then
its outcomes are noted. Frames between nodes of the chain arrive in order (or, with `linked`, travel
over numbered links, and then those frames can be lost too). All other frames arrive in any order.
Events are named by their payload.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ensue.core.event import Event, Stamp
from ensue.core.wire import Codec
from ensue.protocols.interface import (
    Attach,
    Broadcast,
    Deliver,
    Detach,
    Discard,
    Effect,
    Frame,
    Join,
    Multicast,
    Node,
    Outcome,
    Persist,
    Send,
    Settle,
)
from ensue.protocols.shared.link import Linked
from ensue.protocols.topic_log.frames import Notify, Put, request_for
from ensue.protocols.topic_log.log import TopicLog, TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    FRAMES,
    Changed,
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Fill,
    Repeat,
    Stamped,
    StampRequest,
)
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.subscriber import Subscriber

__all__ = ["Net", "Parcel", "only", "sent"]


@dataclass(frozen=True, slots=True, order=True)
class Parcel:
    """A frame in flight; `number` is its place among all sent frames."""

    number: int
    source: str
    target: str
    frame: Frame


RETRIES_MAX = 100
"""How often requests may be repeated before a run counts as stuck."""

Rule = Callable[[Parcel], bool]
Pick = Callable[[list[Parcel]], Parcel]


def sent(node: Node, kind: type[Frame] = Frame) -> list[Frame]:
    """Drain a node without a network; list the frames of one type that it sends."""
    effects = node.take_effects()
    return [e.frame for e in effects if isinstance(e, Send) and isinstance(e.frame, kind)]


def only(kind: type[Frame], *, to: str = "", about: str = "") -> Rule:
    """Match frames by type and, if given, by receiver and event."""

    def rule(parcel: Parcel) -> bool:
        event = getattr(parcel.frame, "event", None)
        name = event.payload.decode() if isinstance(event, Event) else ""
        return isinstance(parcel.frame, kind) and to in ("", parcel.target) and about in ("", name)

    return rule


class Net:
    """The network. `chain` maps nodes to their topics, in the order that requests climb."""

    node_type = Sequencer
    publisher_type = Publisher
    subscriber_type = Subscriber
    ens_type = TopicLog

    def __init__(
        self,
        chain: Mapping[str, Sequence[str]],
        *,
        config: SequencerConfig | None = None,
        topic_log_config: TopicLogConfig | None = None,
        linked: bool = False,
        closed: bool = False,
    ) -> None:
        self.config = config or SequencerConfig()
        self.placement = Placement(list(chain), topics=chain, closed=closed)
        self.now_ns = 0
        self.nodes: dict[str, Node] = {}
        self.disks: dict[str, dict[str, bytes]] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.history: list[tuple[str, Outcome]] = []
        """All outcomes of all processes, in order."""
        self.under_way: list[Parcel] = []
        self.handled: list[Parcel] = []
        """Every frame that arrived, in order."""
        self.stamps: dict[str, Stamp] = {}
        """Event to the stamp it went out with."""
        self._linked = linked
        self._builders: dict[str, Callable[[dict[str, bytes]], Node]] = {}
        self._held_back: list[Rule] = []
        self._requests: dict[tuple[str, str, int], str] = {}
        self._sent = 0
        topic_log_config = topic_log_config or TopicLogConfig(keeps_log=self.config.reliable)
        self._add(
            "ens", lambda own: self.ens_type(name="ens", config=topic_log_config, records=own)
        )
        for name in chain:
            self._add(name, self._stage_builder(name))

    # -- Who is there ---------------------------------------------------------------------------

    def publisher(self, name: str) -> Publisher:
        """Return the publisher, created at the first call."""
        node = self._client(self.publisher_type, name)
        assert isinstance(node, Publisher)
        return node

    def subscriber(self, name: str, **options: bool) -> Subscriber:
        """Return the subscriber, created with its options at the first call."""
        node = self._client(self.subscriber_type, name, **options)
        assert isinstance(node, Subscriber)
        return node

    def stage(self, name: str) -> Sequencer:
        node = self.nodes[name]
        node = node.inner if isinstance(node, Linked) else node
        assert isinstance(node, Sequencer)
        return node

    @property
    def log(self) -> TopicLog:
        node = self.nodes["ens"]
        assert isinstance(node, TopicLog)
        return node

    # -- What clients do ------------------------------------------------------------------------

    def publish(self, publisher: str, topic: str, event: str) -> Event:
        node = self.publisher(publisher)
        published = node.publish(topic, event.encode(), now_ns=self.now_ns)
        pending = next(
            each
            for unsettled in node._unsettled.values()
            for each in reversed(unsettled.values())
            if each.event is published
        )
        self._requests[publisher, pending.origin, pending.number] = event
        self._carry_out(publisher)
        return published

    def subscribe(self, subscriber: str, *topics: str) -> None:
        self.subscriber(subscriber).subscribe(topics, now_ns=self.now_ns)
        self._carry_out(subscriber)

    def unsubscribe(self, subscriber: str, *topics: str) -> None:
        self.subscriber(subscriber).unsubscribe(topics, now_ns=self.now_ns)
        self._carry_out(subscriber)

    def confirm(self, publisher: str) -> None:
        """Let a publisher confirm settled events at once."""
        self.publisher(publisher).confirm_all()
        self._carry_out(publisher)

    def say_goodbye(self, publisher: str) -> None:
        self.publisher(publisher).say_goodbye()
        self._carry_out(publisher)

    def acknowledge(self, subscriber: str, position: int) -> None:
        self.subscriber(subscriber).acknowledge(position)
        self._carry_out(subscriber)

    # -- What the network does ------------------------------------------------------------------

    def arrivals(self) -> list[Parcel]:
        """Frames that may arrive next, the oldest first."""
        free: list[Parcel] = []
        channels: dict[tuple[str, str], Parcel] = {}
        for parcel in self.under_way:
            if not self._linked and {parcel.source, parcel.target} <= set(self.placement.nodes):
                first = channels.setdefault((parcel.source, parcel.target), parcel)
                if first is not parcel:
                    continue
            if not any(rule(parcel) for rule in self._held_back):
                free.append(parcel)
        return free

    def deliver(self, parcel: Parcel) -> None:
        """Deliver one frame. It is lost if the receiver has crashed."""
        self.under_way.remove(parcel)
        node = self.nodes.get(parcel.target)
        if node is not None:
            self.handled.append(parcel)
            node.receive(parcel.frame, source=parcel.source, now_ns=self.now_ns)
            self._carry_out(parcel.target)

    def settle(self, pick: Pick = min) -> None:
        """Deliver all frames and their answers until none is in flight."""
        while choices := self.arrivals():
            self.deliver(pick(choices))

    def roundtrip(self) -> None:
        """Deliver the frames in flight and their answers, but no further answers."""
        for _ in range(2):
            for parcel in self.arrivals():
                self.deliver(parcel)

    def find(self, kind: type[Frame], *, to: str = "", about: str = "") -> list[Parcel]:
        return [parcel for parcel in self.under_way if only(kind, to=to, about=about)(parcel)]

    def drop(self, kind: type[Frame], *, to: str = "", about: str = "") -> None:
        """Lose matching frames in flight."""
        for parcel in self.find(kind, to=to, about=about):
            self.under_way.remove(parcel)

    def repeat(self, parcel: Parcel) -> None:
        """Send a copy of a frame, which may have arrived long ago."""
        self._send(parcel.source, parcel.target, parcel.frame)

    @contextmanager
    def holding(self, kind: type[Frame], *, to: str = "", about: str = "") -> Iterator[None]:
        """Delay matching frames within the block."""
        rule = only(kind, to=to, about=about)
        self._held_back.append(rule)
        yield
        self._held_back.remove(rule)

    def come_to_rest(self, pick: Pick = min) -> None:
        """Deliver all frames, and advance the time until lost requests are repeated."""
        self.settle(pick)
        for _ in range(RETRIES_MAX):
            if not self.waiting():
                break
            self.pass_time(self.config.retry_ns, pick=pick)

    def pass_time(self, by_ns: int, *, settle: bool = True, pick: Pick = min) -> None:
        """Advance the time: timers fire when due, and their frames arrive (or stay)."""
        until_ns = self.now_ns + by_ns
        while True:
            dues = [
                (max(due_ns, self.now_ns), name)
                for name, node in self.nodes.items()
                if (due_ns := node.next_timer_ns()) is not None and due_ns <= until_ns
            ]
            if not dues:
                break
            self.now_ns, name = min(dues)
            self.nodes[name].handle_timer(now_ns=self.now_ns)
            self._carry_out(name)
            if settle:
                self.settle(pick)
        self.now_ns = until_ns

    def crash(self, name: str) -> None:
        del self.nodes[name]

    def restart(self, name: str) -> None:
        """Restart a process, crashed or not, from its persisted records."""
        self.nodes[name] = self._builders[name](dict(self.disks[name]))
        self._carry_out(name)

    # -- What came of it ------------------------------------------------------------------------

    def delivered(self, subscriber: str) -> list[str]:
        """Delivered events in order; an exclamation mark marks tagged ones."""
        return [f"{event}{'!' if why else ''}" for event, why in self._told(subscriber, Deliver)]

    def discarded(self, subscriber: str) -> list[tuple[str, str]]:
        return self._told(subscriber, Discard)

    def settled(self, publisher: str) -> list[tuple[str, str]]:
        return self._told(publisher, Settle)

    def joined(self, subscriber: str) -> list[str]:
        return [each.topic for each in self.outcomes[subscriber] if isinstance(each, Join)]

    def clock(self, subscriber: str) -> dict[str, int]:
        return dict(self.subscriber(subscriber).queue.clock)

    def group(self, topic: str) -> set[str]:
        """The sequencing group of a topic, as its node has it."""
        return {topic, *self.stage(self.placement.node(topic)).groups.partners(topic)}

    def about(self, parcel: Parcel) -> list[str]:
        """Name the events, or `<subscriber>#<change>`, of a frame."""
        source, target = parcel.source, parcel.target
        match parcel.frame:
            case StampRequest(number=number, topics=topics):
                keys = [(source, target, number + index) for index in range(len(topics))]
            case Fill(publisher=publisher, origin=origin, number=number):
                keys = [(publisher, origin, number)]
            case Stamped(origin=origin, grants=grants):
                keys = [(target, origin, grant.number) for grant in grants]
            case ChangeRequest(number=number):
                return [f"{source}#{number}"]
            case ChangeFill(subscriber=subscriber, number=number):
                return [f"{subscriber}#{number}"]
            case Changed(number=number):
                return [f"{target}#{number}"]
            case Notify(event=event):
                return [event.payload.decode()]
            case _:
                return []
        return [self._requests[key] for key in keys]

    def waiting(self) -> list[str]:
        """List which process still waits for what."""
        found: list[str] = []
        for name, node in self.nodes.items():
            if isinstance(node, Subscriber):
                found += [f"{name} {why}" for why in node.waits(self.log.ends())]
            elif isinstance(node, Publisher) and node.unsettled_count:
                found.append(f"{name} has {node.unsettled_count} unsettled")
        return found

    def disagreements(self) -> list[tuple[str, str]]:
        """Pairs of events that two subscribers delivered in opposite orders."""
        orders = [
            [event for event in self.delivered(name) if not event.endswith("!")]
            for name in self.outcomes
        ]
        pairs = {pair for order in orders for pair in combinations(order, 2)}
        return sorted((first, second) for first, second in pairs if (second, first) in pairs)

    # -- Inside ---------------------------------------------------------------------------------

    def _told(
        self, name: str, kind: type[Deliver] | type[Discard] | type[Settle]
    ) -> list[tuple[str, str]]:
        return [
            (outcome.event.payload.decode(), outcome.verdict)
            for outcome in self.outcomes[name]
            if isinstance(outcome, kind)
        ]

    def _common(self, name: str) -> dict[str, Any]:
        return {"name": name, "placement": self.placement, "config": self.config}

    def _client(self, role: type[Publisher] | type[Subscriber], name: str, **options: bool) -> Node:
        if name not in self._builders:
            common: dict[str, Any] = dict(self._common(name), **options)
            self._add(name, lambda own: role(**common, records=own, now_ns=self.now_ns))
        return self.nodes[name]

    def _add(self, name: str, build: Callable[[dict[str, bytes]], Node]) -> None:
        self._builders[name] = build
        self.disks[name] = {}
        self.outcomes[name] = []
        self.restart(name)

    def _stage_builder(self, name: str) -> Callable[[dict[str, bytes]], Node]:
        common = self._common(name)

        def stage(own: Mapping[str, bytes]) -> Sequencer:
            return self.node_type(**common, records=own, now_ns=self.now_ns)

        if not self._linked:
            return stage
        stage_number = self.placement.nodes.index(name)
        around = self.placement.nodes[max(0, stage_number - 1) : stage_number + 2]
        peers = [other for other in around if other != name]
        return lambda own: Linked(
            stage,
            peers=peers,
            codec=Codec(FRAMES),
            unnumbered=(Repeat, ChangeRepeat),
            records=own,
            now_ns=self.now_ns,
        )

    def _carry_out(self, name: str) -> None:
        effects: Sequence[Effect] = self.nodes[name].take_effects()
        for effect in effects:
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.disks[name].pop(effect.key, None)
                else:
                    self.disks[name][effect.key] = effect.value
        for effect in effects:
            if isinstance(effect, Send):
                self._send(name, effect.peer, effect.frame)
            elif isinstance(effect, Multicast):
                for peer in effect.peers:
                    self._send(name, peer, effect.frame)
            elif isinstance(effect, Broadcast | Attach | Detach):
                self._send(name, "ens", request_for(effect))
            elif not isinstance(effect, Persist):
                self.outcomes[name].append(effect)
                self.history.append((name, effect))

    def _send(self, source: str, target: str, frame: Frame) -> None:
        if isinstance(frame, Put) and frame.event.stamp is not None and not frame.event.void:
            self.stamps[frame.event.payload.decode()] = frame.event.stamp
        self._sent += 1
        self.under_way.append(Parcel(self._sent, source, target, frame))
