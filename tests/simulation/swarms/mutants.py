"""Planted bugs: production classes with one mistake each, for the swarm to find.

Classes replace the real ones (`ensue.simulation.deployments.base.Roles`); functions are patched
into classes that are not a role. `test_mutants_total` lists them.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from heapq import heappop
from typing import Any
from unittest import mock

import msgspec

from ensue.core.event import Event
from ensue.protocols.interface import Attach, Deliver, Discard, Effect, Frame, Persist, Send
from ensue.protocols.shared.link import LinkAck, Linked
from ensue.protocols.topic_log.frames import Accepted, Taken
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Changed, ChangeFill, Fill, Repeat, StampRequest
from ensue.protocols.total.groups import Counters, Group
from ensue.protocols.total.hold_back import Held, HoldBack, PositionQueue
from ensue.protocols.total.publisher import Publisher
from ensue.protocols.total.publisher_sessions import PublisherSession
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.subscriber import Subscriber
from ensue.protocols.total.subscription_changes import SubscriptionChanges

real_fill, real_data, real_offer = Group.fill, Linked._data, HoldBack.offer
real_pass_on, real_apply = StageState.pass_on, SubscriptionChanges._apply
real_repeated = Sequencer._repeated
real_leave, real_next, real_read = HoldBack.leave, PositionQueue.next, PositionQueue._read


# -- Sequencer nodes -------------------------------------------------------------------------------


def pass_on_to_the_last(self: StageState, frame: Frame) -> None:
    """A stamp skips nodes that have nothing to add."""
    if isinstance(frame, Fill) and frame.origin == self.name:
        between = range(self.stage + 1, frame.last)
        partners = self.groups.partners(frame.topic)
        if not any(self.placement.stage(partner) in between for partner in partners):
            self.effects.append(Send(self.placement.nodes[frame.last], frame))
            return
    real_pass_on(self, frame)


def is_from_anywhere_below(self: StageState, source: str) -> bool:
    """A node accepts stamps from any lower stage, which the bug above needs."""
    return source in self.placement.nodes[: self.stage]


class LinkedToAll(Linked[Any]):
    """Numbered links between all nodes of a chain, so that only the order of stages can break."""

    def __init__(self, inner: Callable[..., Any], **options: Any) -> None:
        options["peers"] = [f"node-{number}" for number in range(1, 5)]
        super().__init__(inner, **options)


class LosesVoids(Sequencer):
    """An expired lease is never voided at the topic log."""

    def handle_timer(self, *, now_ns: int) -> None:
        self.leases.take_due(now_ns, again_ns=self.config.retry_ns)


class TakenCountsAsVoid(Sequencer):
    """The publisher learns that its event is void although it was committed before the void."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        if isinstance(frame, Taken):
            frame = Accepted(topic=frame.topic, event=frame.event, slot=frame.slot)
        super().receive(frame, source=source, now_ns=now_ns)


def answer_with_cut(moved: Callable[[int], int]) -> Callable[..., None]:
    """Return a function that answers subscribers with a wrong cut."""

    def answer(self: SubscriptionChanges, subscriber: str, number: int) -> None:
        done = self.done.get(subscriber)
        if done is not None and done.number == number:
            cut = {topic: moved(count) for topic, count in done.cut.items()}
            self._state.effects.append(Send(subscriber, Changed(number=number, cut=cut)))

    return answer


def apply_and_count(self: SubscriptionChanges, frame: ChangeFill) -> None:
    """A change of subscription counts as an event of its topics."""
    state = self._state
    for topic in frame.new:
        if state.placement.stage(topic) == state.stage:
            counter = state.counters.get(topic)
            state.counters.set(topic, counter, counter[0] + 1)
    real_apply(self, frame)


def apply_alone(self: SubscriptionChanges, frame: ChangeFill) -> None:
    """A change of subscription is answered by its first node."""
    state = self._state
    entries = {topic: state.counters.get(topic)[0] for topic in frame.new}
    real_apply(self, msgspec.structs.replace(frame, entries=entries, last=state.stage))


def apply_to_no_group_in_use(self: SubscriptionChanges, frame: ChangeFill) -> None:
    """A change of subscription does not reach the groups in use."""
    groups = dict(self._state.group_cache)
    real_apply(self, frame)
    self._state.group_cache.update(groups)


def apply_with_left_out_memory(self: SubscriptionChanges, frame: ChangeFill) -> None:
    """After a change, the next stamp omits entries that the new subscriber does not know."""
    state, before = self._state, dict(self._state.group_cache)
    real_apply(self, frame)
    for topic, old in before.items():
        if topic not in state.group_cache:
            state.group(topic).tick = old.tick


def apply_and_learn_nothing(self: SubscriptionChanges, frame: ChangeFill) -> None:
    """A change of subscription leaves the counters of lower stages as they were."""
    with mock.patch.object(self._state, "learn"):
        real_apply(self, frame)


class LearnsNothingFromStamps(Sequencer):
    """A passing stamp leaves the counters of lower stages as they were."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        with mock.patch.object(self.state, "learn") if isinstance(frame, Fill) else nullcontext():
            super().receive(frame, source=source, now_ns=now_ns)


class StampsRepeatedRequests(Sequencer):
    """A repeated request is stamped again, in a new slot."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        def stamp_again(publisher: str, session: Any, number: int, _item: object) -> None:
            assert isinstance(frame, StampRequest)
            topic, following = frame.topics[number - frame.number], session.next
            self._stamp(publisher, session, number, topic, now_ns)
            session.next = following

        with mock.patch.object(self, "_repeated", stamp_again):
            super().receive(frame, source=source, now_ns=now_ns)


class StampsAcrossGaps(Sequencer):
    """A request is stamped although an earlier one of its publisher was lost."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        session = self.sessions.by_name.get(source)
        if isinstance(frame, StampRequest) and session is not None:
            session.next = max(session.next, frame.number)
        super().receive(frame, source=source, now_ns=now_ns)


def node_without(kind: str) -> type[Sequencer]:
    """Make a node that restarts without its records of one kind."""

    class Forgetful(Sequencer):
        def _restore(self, key: str, value: bytes, now_ns: int) -> None:
            if not key.startswith(f"{kind}/"):
                super()._restore(key, value, now_ns)

    return Forgetful


def fill_naming_each_once(
    self: Group, entries: dict[str, int], counters: Counters, *, whole: bool
) -> None:
    """An entry that was omitted or named once is never named again."""
    if whole or self.tick is None:
        real_fill(self, entries, counters, whole=whole)


# -- Links -----------------------------------------------------------------------------------------


def hand_over_as_it_comes(
    self: Linked[Any], peer: str, number: int, payload: bytes, now_ns: int
) -> None:
    """A frame that overtook another is delivered immediately."""
    link = self._in[peer]
    if number >= link.next and number not in link.early:
        link.early[number] = payload
        self.inner.receive(self._codec.decode(payload), source=peer, now_ns=now_ns)
        while link.early.pop(link.next, None) is not None:
            link.next += 1
        self._persist(f"link/in/{peer}", msgspec.msgpack.encode(link.next))
    self._effects.append(Send(peer, LinkAck(number=link.next - 1)))


def acknowledge_beyond_gaps(
    self: Linked[Any], peer: str, number: int, payload: bytes, now_ns: int
) -> None:
    """A frame is acknowledged although an earlier one is missing."""
    real_data(self, peer, number, payload, now_ns)
    self._effects.append(Send(peer, LinkAck(number=number)))


def send_before_persisting(self: Linked[Any]) -> list[Effect]:
    """The records of a batch are written with the next batch, but its frames are sent now."""
    effects, self._effects = self._effects, []
    late: list[Effect] = self.__dict__.get("late", [])
    self.__dict__["late"] = [each for each in effects if isinstance(each, Persist)]
    return late + [each for each in effects if not isinstance(each, Persist)]


def persist_no_incoming_numbers(self: Linked[Any], key: str, value: bytes | None) -> None:
    """After a restart, a link does not know which frames it has delivered."""
    if not key.startswith("link/in/"):
        self._effects.append(Persist(key, value))


# -- Subscribers -----------------------------------------------------------------------------------


class ForgetsClocks(Subscriber):
    """After a restart every clock is back where its topic was joined."""

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        super()._restore(records, now_ns)
        for topic, base in dict(self.queue.base).items():
            self.queue.resume(topic, base, base)


class DeliversLateUntagged(Subscriber):
    """A late event is delivered as if it were in order."""

    def take_effects(self) -> list[Effect]:
        return [
            msgspec.structs.replace(each, verdict="") if isinstance(each, Deliver) else each
            for each in super().take_effects()
        ]


def subscriber_that_delivers(verdict: str) -> type[Subscriber]:
    """Return a subscriber that delivers events that must be discarded for a reason."""

    class Careless(Subscriber):
        def take_effects(self) -> list[Effect]:
            effects: list[Effect] = []
            for each in super().take_effects():
                if isinstance(each, Discard) and each.verdict == verdict:
                    self.progress.delivered += 1
                    effects.append(Deliver(each.event, self.progress.delivered))
                else:
                    effects.append(each)
            return effects

    return Careless


class KeepsLeftTopicInChange(Subscriber):
    """A topic left while it is being joined stays part of the pending change."""

    def _drop(self, topic: str, *, rejoins: bool = False, loss: str = "") -> None:
        change = self._change
        super()._drop(topic, rejoins=rejoins, loss=loss)
        self._change = change


class NeverAsks(Subscriber):
    """A subscriber never requests gaps."""

    def handle_timer(self, *, now_ns: int) -> None:
        super().handle_timer(now_ns=now_ns)
        self._effects[:] = [
            each for each in self._effects if not isinstance(each, Attach) or each.from_slot == 0
        ]


def next_or_the_one_after(self: PositionQueue) -> Held | None:
    """An event is delivered one position too early."""
    held = real_next(self)
    if held is None and (held := self._by_position.pop(self._position + 2, None)) is not None:
        self._position += 2
        self.clock[held.event.topic] = held.slot
        self._take(held)
    return held


def read_without_cut(self: PositionQueue, event: Event, slot: int) -> int | None:
    """An event that names a topic being joined does not wait for the cut."""
    with mock.patch.object(self, "joining", {}):
        return real_read(self, event, slot)


def leave_positions_alone(self: HoldBack, topic: str) -> None:
    """Held events keep the positions they had before a topic was left."""
    with mock.patch.object(self, "_reindex"):
        real_leave(self, topic)
    if isinstance(self, PositionQueue):
        # Events of the topic itself are removed, or the mutant would fail on them.
        stay = {position: held for position, held in self._by_position.items() if not held.gone}
        self._by_position = stay
        self._tips.pop(topic, None)


def offer_to_the_full(self: HoldBack, event: Event, slot: int, now_ns: int) -> str:
    """At the limit, even the event that all others wait for is dropped."""
    return "overflow" if self.full else real_offer(self, event, slot, now_ns)


# -- Publishers and the topic log ------------------------------------------------------------------


class AsksTwoNodesAtOnce(Publisher):
    """A request to another node does not wait for the stamps of earlier events."""

    def __init__(self, *, config: SequencerConfig | None = None, **options: Any) -> None:
        config = msgspec.structs.replace(config or SequencerConfig(), publisher_order=False)
        super().__init__(config=config, **options)


def release_all(self: Publisher, now_ns: int) -> None:
    """Stamped events do not wait for the stamps of earlier ones."""
    while self._held:
        pending = heappop(self._held)[1]
        if pending.held:
            pending.held = False
            self._publish(pending, now_ns)


def repeat_to_one_node(
    self: Sequencer, publisher: str, session: PublisherSession, number: int, item: str | Event
) -> None:
    """A repeated request is repeated only to the node that counted it."""
    last = session.elsewhere.get(number)
    if last is None:
        real_repeated(self, publisher, session, number, item)
    else:
        frame = Repeat(publisher=publisher, number=number)
        self.state.effects.append(Send(self.placement.nodes[last], frame))


def start_over_at_once(self: Publisher, place: int, now_ns: int) -> None:
    """Only the event whose lease ran out is requested again, behind all others."""
    (pending,) = (
        each
        for unsettled in self._unsettled.values()
        for each in unsettled.values()
        if each.place == place
    )
    del self._unsettled[pending.origin][pending.number]
    pending.held, pending.granted_by = False, ""
    pending.event = msgspec.structs.replace(pending.event, stamp=None)
    pending.number = self._numbers[pending.origin] = self._numbers[pending.origin] + 1
    self._unsettled[pending.origin][pending.number] = pending
    self._unstamped[place] = None
    lane = self._lane(pending.origin)
    lane.waiting.append(pending)
    self._request(lane, now_ns)


def publisher_without(kind: str) -> type[Publisher]:
    """Make a publisher that restarts without its records of one kind."""

    class Forgetful(Publisher):
        def _restore(self, records: Mapping[str, bytes]) -> None:
            kept = {key: value for key, value in records.items() if not key.startswith(f"{kind}/")}
            super()._restore(kept)

    return Forgetful


class LaterEventTakesSlot(TopicLog):
    """The later of two events for one slot replaces the first."""

    def _put(self, event: Event, source: str) -> None:
        slot = event.slot
        present = self._topic(event.topic).events.get(slot or 0)
        if isinstance(present, Event) and present.id != event.id:
            del self._topic(event.topic).events[slot or 0]
        super()._put(event, source)


class ForgetsSlots(TopicLog):
    """After a restart every slot is free again."""

    def __init__(self, *, records: Mapping[str, bytes] | None = None, **options: Any) -> None:
        kept = {key: value for key, value in (records or {}).items() if key[0] == "a"}
        super().__init__(records=kept, **options)
