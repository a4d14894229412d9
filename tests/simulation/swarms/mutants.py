"""Planted bugs: production classes with one mistake each, for the swarm to find.

Classes take the place of the real ones (`ensue.simulation.deployment.Roles`); functions are patched
into classes that no role reaches. `test_mutants` says which goes where.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any
from unittest import mock

import msgspec

from ensue.event import Event
from ensue.protocols.core import Attach, Deliver, Discard, Effect, Frame, Persist, Send
from ensue.protocols.ens import Accepted, Taken
from ensue.protocols.link import LinkAck, Linked
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import Changed, ChangeFill, Fill, StampRequest
from ensue.protocols.sequencer.groups import Counters, Group
from ensue.protocols.sequencer.holdback import Held, HoldBack, PositionQueue
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.publisher import Publisher
from ensue.protocols.sequencer.subscriber import Subscriber
from ensue.protocols.topic_log import TopicLog

real_fill, real_data, real_offer = Group.fill, Linked._data, HoldBack.offer
real_leave, real_next, real_read = HoldBack.leave, PositionQueue.next, PositionQueue._read


# -- Sequencer nodes -------------------------------------------------------------------------------


class SkipsIdleStages(SequencerNode):
    """A stamp goes straight to its last node if none between has anything to add."""

    def _pass_on(self, frame: Frame) -> None:
        if isinstance(frame, Fill) and frame.origin == self.name:
            between = range(self.stage + 1, frame.last)
            partners = self._groups.partners(frame.topic)
            if not any(self.placement.stage(partner) in between for partner in partners):
                self._effects.append(Send(self.placement.nodes[frame.last], frame))
                return
        super()._pass_on(frame)

    def _from_below(self, source: str) -> bool:
        return source in self.placement.nodes[: self.stage]


class LinkedToAll(Linked):
    """Numbered links between all nodes of a chain, so that only the order of stages is at stake."""

    def __init__(self, inner: Callable[..., Any], **options: Any) -> None:
        options["peers"] = [f"node-{number}" for number in range(1, 5)]
        super().__init__(inner, **options)


class LosesVoids(SequencerNode):
    """A lease that runs out is never voided at the ENS."""

    def handle_timer(self, *, now_ns: int) -> None:
        self._leases.take_due(now_ns, again_ns=self.config.retry_ns)


class TakenCountsAsVoid(SequencerNode):
    """The publisher is told that its event is void although it was out before the void."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        if isinstance(frame, Taken):
            frame = Accepted(topic=frame.topic, event=frame.event, slot=frame.slot)
        super().receive(frame, source=source, now_ns=now_ns)


def node_with_cut(moved: Callable[[int], int]) -> type[SequencerNode]:
    """Make a node that tells subscribers a wrong cut."""

    class WrongCut(SequencerNode):
        def _answer_change_again(self, subscriber: str, number: int) -> None:
            done = self._changes_done.get(subscriber)
            if done is not None and done.number == number:
                cut = {topic: moved(count) for topic, count in done.cut.items()}
                self._effects.append(Send(subscriber, Changed(number=number, cut=cut)))

    return WrongCut


class SubscriptionCounts(SequencerNode):
    """A change of subscription counts as an event of its topics."""

    def _change(self, frame: ChangeFill) -> None:
        for topic in frame.new:
            if self.placement.stage(topic) == self.stage:
                counter = self._counters.get(topic)
                self._counters.set(topic, counter, counter[0] + 1)
        super()._change(frame)


class AnswersChangesAlone(SequencerNode):
    """A change of subscription is answered by its first node."""

    def _change(self, frame: ChangeFill) -> None:
        entries = {topic: self._counters.get(topic)[0] for topic in frame.new}
        super()._change(msgspec.structs.replace(frame, entries=entries, last=self.stage))


class KeepsOldGroups(SequencerNode):
    """A change of subscription does not reach the groups in use."""

    def _change(self, frame: ChangeFill) -> None:
        groups = dict(self._group_cache)
        super()._change(frame)
        self._group_cache.update(groups)


class KeepsLeftOutMemory(SequencerNode):
    """After a change the next stamp leaves out what the joiner has not seen."""

    def _change(self, frame: ChangeFill) -> None:
        before = dict(self._group_cache)
        super()._change(frame)
        for topic, old in before.items():
            if topic not in self._group_cache:
                self._group(topic).tick = old.tick


class LearnsNothingFromChanges(SequencerNode):
    """A change of subscription leaves the counters of lower stages as they were."""

    def _change(self, frame: ChangeFill) -> None:
        with mock.patch.object(self, "_learn"):
            super()._change(frame)


class LearnsNothingFromStamps(SequencerNode):
    """A passing stamp leaves the counters of lower stages as they were."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        with mock.patch.object(self, "_learn") if isinstance(frame, Fill) else nullcontext():
            super().receive(frame, source=source, now_ns=now_ns)


class StampsRepeatedRequests(SequencerNode):
    """A repeated request is stamped again, in a new slot."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        def stamp_again(publisher: str, known: Any, number: int, _item: object) -> None:
            assert isinstance(frame, StampRequest)
            topic, following = frame.topics[number - frame.number], known.next
            self._stamp(publisher, known, number, topic, now_ns)
            known.next = following

        with mock.patch.object(self, "_repeated", stamp_again):
            super().receive(frame, source=source, now_ns=now_ns)


class StampsAcrossGaps(SequencerNode):
    """A request is stamped although an earlier one of its publisher was lost."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        known = self._publishers.get(source)
        if isinstance(frame, StampRequest) and known is not None:
            known.next = max(known.next, frame.number)
        super().receive(frame, source=source, now_ns=now_ns)


def node_without(kind: str) -> type[SequencerNode]:
    """Make a node that restarts without its records of one kind."""

    class Forgetful(SequencerNode):
        def _restore(self, key: str, value: bytes, now_ns: int) -> None:
            if not key.startswith(f"{kind}/"):
                super()._restore(key, value, now_ns)

    return Forgetful


def fill_naming_each_once(
    self: Group, entries: dict[str, int], counters: Counters, *, whole: bool
) -> None:
    """An entry that was left out or named once is never named again."""
    if whole or self.tick is None:
        real_fill(self, entries, counters, whole=whole)


# -- Links -----------------------------------------------------------------------------------------


def hand_over_as_it_comes(
    self: Linked, peer: str, number: int, payload: bytes, now_ns: int
) -> None:
    """A frame that overtook another is handed over at once."""
    link = self._in[peer]
    if number >= link.next and number not in link.early:
        link.early[number] = payload
        self.inner.receive(self._codec.decode(payload), source=peer, now_ns=now_ns)
        while link.early.pop(link.next, None) is not None:
            link.next += 1
        self._persist(f"link/in/{peer}", msgspec.msgpack.encode(link.next))
    self._effects.append(Send(peer, LinkAck(number=link.next - 1)))


def acknowledge_beyond_gaps(
    self: Linked, peer: str, number: int, payload: bytes, now_ns: int
) -> None:
    """A frame is acknowledged although an earlier one is missing."""
    real_data(self, peer, number, payload, now_ns)
    self._effects.append(Send(peer, LinkAck(number=number)))


def send_before_persisting(self: Linked) -> list[Effect]:
    """What a batch persists is written with the batch after it, and sent with its own."""
    effects, self._effects = self._effects, []
    late: list[Effect] = self.__dict__.get("late", [])
    self.__dict__["late"] = [each for each in effects if isinstance(each, Persist)]
    return late + [each for each in effects if not isinstance(each, Persist)]


def persist_no_incoming_numbers(self: Linked, key: str, value: bytes | None) -> None:
    """After a restart a link does not know which frames it has handed over."""
    if not key.startswith("link/in/"):
        self._effects.append(Persist(key, value))


# -- Subscribers -----------------------------------------------------------------------------------


class ForgetsClocks(Subscriber):
    """After a restart every clock is back where its topic was joined."""

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        super()._restore(records, now_ns)
        for topic, base in dict(self._queue.base).items():
            self._queue.resume(topic, base, base)


class DeliversLateUntagged(Subscriber):
    """What turns up too late is delivered as if it were in order."""

    def take_effects(self) -> list[Effect]:
        return [
            msgspec.structs.replace(each, verdict="") if isinstance(each, Deliver) else each
            for each in super().take_effects()
        ]


def subscriber_that_delivers(verdict: str) -> type[Subscriber]:
    """Make a subscriber that hands over what has to be discarded for a reason."""

    class Careless(Subscriber):
        def take_effects(self) -> list[Effect]:
            effects: list[Effect] = []
            for each in super().take_effects():
                if isinstance(each, Discard) and each.verdict == verdict:
                    self._delivered += 1
                    effects.append(Deliver(each.event, self._delivered))
                else:
                    effects.append(each)
            return effects

    return Careless


class KeepsLeftTopicInChange(Subscriber):
    """A topic left while it is being joined stays part of the change under way."""

    def _drop(self, topic: str, *, rejoins: bool = False) -> None:
        change = self._change
        super()._drop(topic, rejoins=rejoins)
        self._change = change


class NeverAsks(Subscriber):
    """A subscriber never asks for what it missed."""

    def handle_timer(self, *, now_ns: int) -> None:
        super().handle_timer(now_ns=now_ns)
        self._effects = [
            each for each in self._effects if not isinstance(each, Attach) or each.from_slot == 0
        ]


def next_or_the_one_after(self: PositionQueue) -> Held | None:
    """An event is let go one position before its turn."""
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
        # Those of the topic itself are gone, or the mutant would fail on finding them.
        stay = {position: held for position, held in self._by_position.items() if not held.gone}
        self._by_position = stay
        self._tips.pop(topic, None)


def offer_to_the_full(self: HoldBack, event: Event, slot: int, now_ns: int) -> str:
    """At the limit even the event that all others wait for is dropped."""
    return "overflow" if self.full else real_offer(self, event, slot, now_ns)


# -- Publishers and the ENS ------------------------------------------------------------------------


class AsksTwoNodesAtOnce(Publisher):
    """A request to another node does not wait for the stamps of earlier events."""

    def __init__(self, *, config: SequencerConfig | None = None, **options: Any) -> None:
        config = msgspec.structs.replace(config or SequencerConfig(), publisher_order=False)
        super().__init__(config=config, **options)


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
