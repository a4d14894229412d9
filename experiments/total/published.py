"""A model of the paper's rules, as far as they decide latency and load, for comparison.

Groups by two common subscriptions; a stamp names its whole group, and visits only the servers above
that host a topic of it. Skipping the other servers is what can make a subscriber wait forever.
Clients don't repeat requests, and subscriptions don't change.
"""

from collections.abc import Sequence

import numpy as np

from ensue.core.event import Stamp
from ensue.protocols.interface import Effect, Frame, Send
from ensue.protocols.total.frames import Fill, Grant, Stamped, StampRequest
from ensue.protocols.total.placement import Placement
from experiments.total.stations import Traffic
from experiments.total.workload import TOPICS, Sites

__all__ = ["PublishedClient", "PublishedServer", "published"]


class PublishedClient:
    """A client that requests stamps. Command: `request`."""

    def __init__(self, name: str, hosts: Sequence[str]) -> None:
        self.name = name
        self._hosts = hosts
        self._numbers: dict[str, int] = {}
        self._requested_ns: dict[tuple[str, int], int] = {}
        self.waits: list[tuple[int, int]] = []
        """Per stamp: when it was requested, and when it arrived."""
        self._effects: list[Effect] = []

    def request(self, topic: int, now_ns: int) -> None:
        """Request a stamp."""
        host = self._hosts[topic]
        number = self._numbers[host] = self._numbers.get(host, 0) + 1
        self._requested_ns[host, number] = now_ns
        request = StampRequest(number=number, topics=(f"t{topic}",), settled=1)
        self._effects.append(Send(host, request))

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Record the stamps of a frame."""
        del source
        if isinstance(frame, Stamped):
            for grant in frame.grants:
                requested_ns = self._requested_ns.pop((frame.origin, grant.number))
                self.waits.append((requested_ns, now_ns))

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: there are no timers."""

    def next_timer_ns(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects


class PublishedServer:
    """A server of the paper's topic managers: every server on the route fills in the stamp."""

    def __init__(self, name: str, ways: Sequence[tuple[str, ...]], sizes: Sequence[int]) -> None:
        self.name = name
        self.traffic = Traffic()
        self._ways = ways
        """By topic: the servers above this one that its stamps visit."""
        self._stamps = [Stamp({f"{index}": 1 for index in range(size)}) for size in sizes]
        """By topic: a stamp with the right number of entries; their content does not matter."""
        self._effects: list[Effect] = []

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Fill in a stamp and forward it."""
        del now_ns
        if isinstance(frame, StampRequest):
            topic = frame.topics[0]
            self._onward(topic, source, self.name, frame.number, 0)
        elif isinstance(frame, Fill):
            self._onward(frame.topic, frame.publisher, frame.origin, frame.number, frame.last)

    def _onward(self, topic: str, client: str, origin: str, number: int, step: int) -> None:
        index = int(topic[1:])
        way, stamp = self._ways[index], self._stamps[index]
        if step < len(way):
            fill = Fill(
                publisher=client,
                origin=origin,
                number=number,
                topic=topic,
                stamp=stamp,
                last=step + 1,
            )
            self._effects.append(Send(way[step], fill))
        else:
            stamped = Stamped(origin=origin, grants=(Grant(number, stamp),))
            self._effects.append(Send(client, stamped))

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: there are no timers."""

    def next_timer_ns(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return self.traffic.count(effects)


def published(
    sites: Sites, placement: Placement
) -> tuple[list[PublishedServer], list[PublishedClient]]:
    """Return the servers, by stage, and the clients."""
    grouped, names = sites.counts >= 2, placement.nodes
    stages = [placement.stage(f"t{topic}") for topic in range(TOPICS)]
    ways = []
    for topic in range(TOPICS):
        partners = np.flatnonzero(grouped[topic]).tolist()
        above = {stages[each] for each in partners if stages[each] > stages[topic]}
        ways.append(tuple(names[stage] for stage in sorted(above)))
    sizes = (grouped.sum(axis=1) + 1).tolist()
    hosts = [names[stage] for stage in stages]
    return (
        [PublishedServer(name, ways, sizes) for name in names],
        [PublishedClient(f"client-{number}", hosts) for number in range(len(sites.subscriptions))],
    )
