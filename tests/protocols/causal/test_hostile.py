"""All faults at once, with patience shorter than faults: order holds, and no node waits forever.

The swarm does not draw these: paused readers, nodes that join later, departures that some nodes
learn of before others, limits so low that nearly all events are refused or dropped, and events that
are skipped although their source is only partitioned.
"""

from collections.abc import Callable
from random import Random

import msgspec
import pytest
from tests.protocols.causal.harness import MS, SECOND
from tests.protocols.causal.model import violations
from tests.protocols.causal.test_properties import CONFIG, Witness

from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import raise_counts
from ensue.protocols.causal.node import CausalNode

NODES_MAX = 10
STAY_MIN = 2
REST = 150 * SECOND
"""Enough for whatever is to be given up, one after the other."""


def draw_config(random: Random) -> CausalConfig:
    return msgspec.structs.replace(
        CONFIG,
        across_topics=random.random() < 0.5,
        durable=random.random() < 0.5,
        window=random.choice((1, 2, 8)),
        patience_ns=random.choice((100 * MS, 400 * MS, 2 * SECOND, 30 * SECOND)),
        held_max=random.choice((2, 4, 65_536)),
        retained_max=random.choice((3, 8, 65_536)),
        batch_max=random.choice((1, 3, 64)),
        batch_bytes_max=random.choice((1, 200, 1 << 20)),
        topics_max=random.choice((1, 2, 16_384, 16_384)),
    )


class Hostile:
    """Applies random actions and faults to a few nodes."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"hostile/{seed}")
        self.config = draw_config(random)
        self.witness = Witness(random.choice((3, 4, 5, 6, 8)), self.config)
        self.topics = [f"t{number}" for number in range(random.choice((1, 2, 3)))]
        self.gone: set[int] = set()
        """Nodes that left permanently."""
        self.paused: set[int] = set()
        self.published = 0
        self.steps: tuple[tuple[float, Callable[[int], None]], ...] = (
            (0.20, self.publish),
            (0.08, self.subscribe),
            (0.03, self.unsubscribe),
            (0.03, self.crash),
            (0.02, self.pause_or_resume),
            (0.02, self.vanish),
            (0.02, self.dismiss_at_some),
            (0.02, self.come),
            (0.03, self.cut_or_heal),
            (0.10, self.pass_time),
            (0.45, self.carry),
        )

    def play(self) -> None:
        weights = [weight for weight, _ in self.steps]
        actions = [action for _, action in self.steps]
        for _ in range(self.random.choice((60, 150, 300))):
            number = self.random.choice(self.there())
            if number in self.witness.nodes:
                (action,) = self.random.choices(actions, weights)
                action(number)
            else:
                self.witness.start(number)

    def there(self) -> list[int]:
        return [each for each in range(len(self.witness.names)) if each not in self.gone]

    def act(self, number: int, command: Callable[[CausalNode, int], object]) -> None:
        now_ns = self.witness.now_ns
        self.witness.act(number, lambda node: command(node, now_ns))

    def publish(self, number: int) -> None:
        topic = self.random.choice(self.topics)
        self.published += 1
        self.witness.publish(number, f"{topic}/{self.published}", topic)

    def subscribe(self, number: int) -> None:
        self.witness.subscribe(number, self.random.choice(self.topics))

    def unsubscribe(self, number: int) -> None:
        self.witness.unsubscribe(number, self.random.choice(self.topics))

    def crash(self, number: int) -> None:
        if self.config.durable:
            self.witness.crash(number)
            self.paused.discard(number)

    def pause_or_resume(self, number: int) -> None:
        if number in self.paused:
            self.paused.discard(number)
            self.act(number, lambda node, now_ns: node.resume(now_ns=now_ns))
        else:
            self.paused.add(number)
            self.act(number, lambda node, _now_ns: node.pause())

    def vanish(self, number: int) -> None:
        if len(self.there()) > STAY_MIN:
            self.gone.add(number)
            self.paused.discard(number)
            del self.witness.nodes[number]

    def dismiss_at_some(self, _number: int) -> None:
        for gone in sorted(self.gone):
            self.dismiss(gone, share=0.7)

    def dismiss(self, gone: int, *, share: float = 1.0) -> None:
        name = self.witness.names[gone]
        for each in sorted(self.witness.nodes):
            known = self.witness.nodes[each]._cube.everyone >> gone & 1
            if known and self.random.random() < share:
                self.act(each, lambda node, now_ns: node.dismiss(name, now_ns=now_ns))

    def come(self, _number: int) -> None:
        """Add a node as a registry does: all nodes know it at once, and it knows their
        subscriptions."""
        witness, number = self.witness, len(self.witness.names)
        if self.config.durable or number >= NODES_MAX:
            return
        name = f"p{number}"
        witness.names.append(name)
        witness.disks[number], witness.delivered[number], witness.outcomes[number] = {}, [], []
        rows = [row for each in sorted(witness.nodes) for row in witness.nodes[each].rows]
        for each in sorted(witness.nodes):
            self.act(each, lambda node, now_ns: node.admit(name, now_ns=now_ns))
        witness.nodes[number] = CausalNode(
            name=name, names=witness.names, config=self.config, rows=rows, now_ns=witness.now_ns
        )
        witness.drain(number)

    def cut_or_heal(self, _number: int) -> None:
        there = self.there()
        if self.random.random() < 0.5:
            self.witness.heal()
        else:
            self.witness.isolate(
                *self.random.sample(there, self.random.randint(1, len(there) // 2))
            )

    def pass_time(self, _number: int) -> None:
        most = self.random.choice((50 * MS, 400 * MS, 3 * SECOND))
        self.witness.now_ns += self.random.randrange(1, most)
        for each in sorted(self.witness.nodes):
            self.act(each, lambda node, now_ns: node.handle_timer(now_ns=now_ns))

    def carry(self, _number: int) -> None:
        links = self.witness.links
        for _ in range(self.random.choice((1, 3, 10))):
            if links:
                link = self.random.choice(sorted(links))
                index = self.random.randrange(len(links[link]))
                if self.random.random() < 0.1:
                    self.witness.nodes, nodes = {}, self.witness.nodes
                    self.witness.arrive(*link, index=index)  # The receiver is gone: lost.
                    self.witness.nodes = nodes
                else:
                    self.witness.arrive(*link, index=index)

    def rest(self) -> None:
        """Heal all partitions, announce departures, and wait."""
        self.witness.heal()
        for number in self.there():
            if number not in self.witness.nodes:
                self.witness.start(number)
        for number in sorted(self.paused):
            self.act(number, lambda node, now_ns: node.resume(now_ns=now_ns))
        for gone in sorted(self.gone):
            self.dismiss(gone)
        self.witness.wait(REST)

    def waits(self) -> list[str]:
        """List which node waits for what; doubted sources are gone, and not waited for."""
        nodes = self.witness.nodes
        furthest: dict[str, dict[int, int]] = {}
        for node in nodes.values():
            for topic, counts in node.seen().items():
                raise_counts(furthest.setdefault(topic, {}), counts)
        found = []
        for number, node in sorted(nodes.items()):
            if node.unsettled_count or node.joining or node.held_count:
                found.append(
                    f"{number}: {node.unsettled_count} unsettled, {node.held_count} held, "
                    f"joining {node.joining}"
                )
            found += [
                f"{number}: {counts.get(source, 0)} of {count} events of {source} on {topic}"
                for topic, counts in node.progress().items()
                for source, count in furthest[topic].items()
                if counts.get(source, 0) < count
                and not (source in self.gone and node._causality.topic(topic).doubt >> source & 1)
            ]
        return found


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_order_holds_and_no_node_waits_forever_whatever_is_skipped(first: int) -> None:
    for seed in range(first, first + 6):
        hostile = Hostile(seed)
        hostile.play()
        hostile.rest()
        assert violations(hostile.witness.seen, across=hostile.config.across_topics) == [], seed
        assert hostile.waits() == [], seed
