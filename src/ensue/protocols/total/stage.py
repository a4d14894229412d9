"""The state of one stage of the chain: place, counters and subscriptions.

Stamps and subscription changes travel the chain. The sequencer handles one request at a time, and
each of its parts reads and writes this state.
"""

from collections.abc import Callable, Iterable, Sequence

from ensue.core.errors import limit_reason
from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Effect, Frame, Persist, Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Moved, Refused
from ensue.protocols.total.groups import Counters, Group, Groups
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.records import INT

__all__ = ["StageState"]


class StageState:
    """The state that the parts of one sequencer share, and their effects."""

    def __init__(self, *, name: str, placement: Placement, config: SequencerConfig) -> None:
        self.name = name
        self.placement = placement
        self.config = config
        self.stage = placement.nodes.index(name)
        self.counters = Counters()
        """Hosted topics: events so far. Topics of lower stages: events that have passed here."""
        self.groups = (
            Groups(config.groups, self._are_near) if config.carries else Groups(config.groups)
        )
        self.group_cache: dict[str, Group] = {}
        self.effects: list[Effect] = []
        for subscriber, topics in sorted((config.fixed or {}).items()):
            if self.hosted(topics):
                self.groups.replace(subscriber, topics)

    # -- Counters ---------------------------------------------------------------------------------

    def count(self, topic: str) -> int:
        """Return how many events a topic has had; an unknown topic stays unknown."""
        counter = self.counters.by_topic.get(topic)
        return 0 if counter is None else counter[0]

    def counts(self) -> dict[str, int]:
        """Return how many events each topic of this node has had."""
        by_topic = self.counters.by_topic
        return {topic: by_topic[topic][0] for topic in self.hosted(by_topic)}

    def counted_since(self, tick: int) -> tuple[int, dict[str, int]]:
        """Return the current tick, and the counts of hosted topics changed since another."""
        counters, found = self.counters, {}
        for topic in reversed(counters.recent):
            count, changed = counters.by_topic[topic]
            if changed <= tick:
                break
            group = self.group_cache.get(topic)  # Knows already whether the topic is hosted here.
            if self.hosted((topic,)) if group is None else group.hosted:
                found[topic] = count
        return counters.tick, found

    def learn(self, topic: str, count: int) -> None:
        """Note how many events of a lower stage's topic have passed here."""
        counter = self.counters.get(topic)
        if count > counter[0]:
            self.counters.set(topic, counter, count)
            if self.config.durable:
                self.persist(f"counter/{topic}", INT.encode(count))

    # -- Groups and stamps ------------------------------------------------------------------------

    def _are_near(self, topic: str, other: str) -> bool:
        """Return whether one node keeps the logs of two topics.

        It publishes their events in one sequence, which a subscriber that starts in the past
        follows. Others have to get the same order. It costs no hop.
        """
        return self.placement.stage(topic) == self.placement.stage(other)

    def group(self, topic: str) -> Group:
        """Work out which entries this node adds to the topic's stamps, and cache it."""
        stage = self.placement.stage
        partners = sorted(self.groups.partners(topic), key=self.placement.rank)
        last = max((stage(partner) for partner in partners), default=self.stage)
        hosted = stage(topic) == self.stage
        if hosted:
            # The topic's own node also knows the counts of topics of lower stages.
            here = [partner for partner in partners if stage(partner) <= self.stage]
        else:
            here = [partner for partner in partners if stage(partner) == self.stage]
        members = {name: self.counters.get(name) for name in here}
        own = self.counters.get(topic)
        group = Group(own, members, max(last, self.stage), hosted=hosted)
        self.group_cache[topic] = group
        return group

    def stamp_run(
        self,
        events: Sequence[Event],
        put_out: Callable[[Event, Stamp], int],
        counted: dict[str, int],
        room: int,
    ) -> tuple[list[int], int]:
        """Stamp and put out events while no other node is needed, up to `room` bytes.

        Returns their slots and bytes, and adds the new counts to `counted`. This is the fast path
        of almost every event: what a node does for one event is done here for all at once.
        """
        groups, counters, leaves_out = self.group_cache, self.counters, self.config.leave_out
        slots: list[int] = []
        size = 0
        for event in events:
            topic = event.topic
            group = groups.get(topic)
            if group is None or not group.hosted or group.last != self.stage or size >= room:
                break
            if not event.payload and topic in self.placement.parts:
                break  # Its publisher may have sent it to the topic's former node, without payload.
            slot = group.own[0] + 1
            counters.set(topic, group.own, slot)
            entries = {topic: slot}
            whole = group.tick is None or not leaves_out
            group.fill(entries, counters, whole=whole)
            size += put_out(event, Stamp(entries, whole))
            counted[topic] = slot
            slots.append(slot)
        return slots, size

    # -- Place in the chain -----------------------------------------------------------------------

    def hosted(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that this node hosts."""
        return [topic for topic in topics if self.placement.stage(topic) == self.stage]

    def may_host(self, topics: Iterable[str], client: str, number: int) -> bool:
        """Check that a client may use topics here; refuse its request if not."""
        fresh = 0
        for topic in topics:
            if not self.placement.knows(topic):
                self.refuse(client, number, f"{topic!r} has no place on this chain")
                return False
            here = self.placement.stage(topic) == self.stage
            fresh += here and topic not in self.counters.by_topic
        if fresh and len(self.counters.by_topic) + fresh > self.config.topics_max:
            self.refuse_limit(
                client, number, "topics_max", "there are too many topics", "use fewer"
            )
            return False
        return True

    def is_from_below(self, source: str) -> bool:
        """Return whether a frame comes from the previous node of the chain."""
        return self.stage > 0 and source == self.placement.nodes[self.stage - 1]

    def is_from_above(self, source: str) -> bool:
        """Return whether a frame comes from the next node of the chain."""
        return source in self.placement.nodes[self.stage + 1 : self.stage + 2]

    # -- Effects ----------------------------------------------------------------------------------

    def pass_on(self, frame: Frame) -> None:
        """Send a frame to the next node of the chain."""
        self.effects.append(Send(self.placement.nodes[self.stage + 1], frame))

    def pass_down(self, frame: Frame) -> None:
        """Send a frame to the previous node of the chain."""
        self.effects.append(Send(self.placement.nodes[self.stage - 1], frame))

    def send_moved(self, client: str, topic: str, number: int = 0) -> None:
        """Tell a client where a topic was moved."""
        moved = Moved(topic=topic, parts=self.placement.parts[topic], number=number)
        self.effects.append(Send(client, moved))

    def refuse(self, client: str, number: int, reason: str) -> None:
        """Refuse a client's request."""
        self.effects.append(Send(client, Refused(number=number, reason=reason)))

    def refuse_limit(self, client: str, number: int, limit: str, what: str, how: str) -> None:
        """Refuse a request that goes beyond a limit of the chain."""
        self.refuse(client, number, limit_reason(what, limit, getattr(self.config, limit), how))

    def persist(self, key: str, value: bytes | None) -> None:
        """Write or remove a record, unless the chain keeps none."""
        if self.config.durable:
            self.effects.append(Persist(key, value))
