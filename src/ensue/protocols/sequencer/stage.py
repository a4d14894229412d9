"""What a stage of the chain knows: its place, its topics' counters, and who subscribes to them.

Two kinds of requests travel the chain, changes of subscription (`changes`) and stamps (`node`). Both
read and write what is here, one request at a time.
"""

from collections.abc import Callable, Iterable, Sequence

from ensue.errors import limit_reason
from ensue.event import Event, Stamp
from ensue.protocols.core import Effect, Frame, Persist, Send
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import Refused
from ensue.protocols.sequencer.groups import Counters, Group, Groups
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.records import INT

__all__ = ["Stage"]


class Stage:
    """The common ground of a sequencer node's two jobs."""

    def __init__(self, *, name: str, placement: Placement, config: SequencerConfig) -> None:
        self.name = name
        self.placement = placement
        self.config = config
        self.stage = placement.nodes.index(name)
        self._counters = Counters()
        """Hosted topics: how many events. Topics of lower stages: how many have passed here."""
        self._groups = Groups(config.groups)
        self._group_cache: dict[str, Group] = {}
        self._effects: list[Effect] = []
        for subscriber, topics in sorted((config.fixed or {}).items()):
            if self._hosted(topics):
                self._groups.replace(subscriber, topics)

    @property
    def groups(self) -> Groups:
        """Which topics are ordered together here, to be looked at."""
        return self._groups

    def counts(self) -> dict[str, int]:
        """Return how many events each topic of this node has had."""
        return {
            topic: self._counters.by_topic[topic][0]
            for topic in self._hosted(self._counters.by_topic)
        }

    def counted_since(self, tick: int) -> tuple[int, dict[str, int]]:
        """Return the present tick, and the topics of this node that were counted since an earlier one."""
        counters, found = self._counters, {}
        for topic in reversed(counters.recent):
            count, changed = counters.by_topic[topic]
            if changed <= tick:
                break
            group = self._group_cache.get(topic)  # It knows already where the topic is.
            if self._hosted((topic,)) if group is None else group.hosted:
                found[topic] = count
        return counters.tick, found

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    def _stamp_run(
        self,
        events: Sequence[Event],
        put_out: Callable[[Event, Stamp], int],
        counted: dict[str, int],
        room: int,
    ) -> tuple[list[int], int]:
        """Stamp and put out events while no other node is needed, and until they are `room` bytes.

        Returns their slots and their bytes; `counted` is told how far their topics have come. This is
        what almost every event comes to: what a node does for one is done here for all at once.
        """
        groups, counters, leaves_out = self._group_cache, self._counters, self.config.leave_out
        slots: list[int] = []
        size = 0
        for event in events:
            topic = event.topic
            group = groups.get(topic)
            if group is None or not group.hosted or group.last != self.stage or size >= room:
                break
            slot = group.own[0] + 1
            counters.set(topic, group.own, slot)
            entries = {topic: slot}
            whole = group.tick is None or not leaves_out
            group.fill(entries, counters, whole=whole)
            size += put_out(event, Stamp(entries, whole))
            counted[topic] = slot
            slots.append(slot)
        return slots, size

    def _group(self, topic: str) -> Group:
        """Work out which entries this node adds to the topic's stamps."""
        stage = self.placement.stage
        partners = sorted(self._groups.partners(topic), key=self.placement.rank)
        last = max((stage(partner) for partner in partners), default=self.stage)
        hosted = stage(topic) == self.stage
        if hosted:
            # The topic's own node also knows how far the topics of lower stages are.
            here = [partner for partner in partners if stage(partner) <= self.stage]
        else:
            here = [partner for partner in partners if stage(partner) == self.stage]
        members = {name: self._counters.get(name) for name in here}
        own = self._counters.get(topic)
        group = Group(own, members, max(last, self.stage), hosted=hosted)
        self._group_cache[topic] = group
        return group

    def _learn(self, topic: str, count: int) -> None:
        """Note how many events of a lower stage's topic have passed here."""
        counter = self._counters.get(topic)
        if count > counter[0]:
            self._counters.set(topic, counter, count)
            if self.config.durable:
                self._persist(f"counter/{topic}", INT.encode(count))

    def _hosted(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that this node hosts."""
        return [topic for topic in topics if self.placement.stage(topic) == self.stage]

    def _may_host(self, topics: Iterable[str], client: str, number: int) -> bool:
        """Tell whether a client may use topics here; it is told if not."""
        fresh = 0
        for topic in topics:
            if not self.placement.knows(topic):
                self._refuse(client, number, f"{topic!r} has no place on this chain")
                return False
            here = self.placement.stage(topic) == self.stage
            fresh += here and topic not in self._counters.by_topic
        if fresh and len(self._counters.by_topic) + fresh > self.config.topics_max:
            self._refuse_limit(
                client, number, "topics_max", "there are too many topics", "use fewer"
            )
            return False
        return True

    def _from_below(self, source: str) -> bool:
        """Tell whether a frame comes from the neighbour that passes requests on to this node."""
        return self.stage > 0 and source == self.placement.nodes[self.stage - 1]

    def _refuse_limit(self, client: str, number: int, limit: str, what: str, how: str) -> None:
        """Refuse what goes beyond a limit of the chain."""
        self._refuse(client, number, limit_reason(what, limit, getattr(self.config, limit), how))

    def _refuse(self, client: str, number: int, reason: str) -> None:
        self._effects.append(Send(client, Refused(number=number, reason=reason)))

    def _pass_on(self, frame: Frame) -> None:
        self._effects.append(Send(self.placement.nodes[self.stage + 1], frame))

    def _persist(self, key: str, value: bytes | None) -> None:
        if self.config.durable:
            self._effects.append(Persist(key, value))
