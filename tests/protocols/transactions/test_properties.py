"""Random trees, clients, operations and crashes, against a model with serial transactions.

The model gets the sequence of commits and the operations of clients; it has one table. Publications
within a transaction must reach the recipients of the model; regular ones those of some state
between two commits. The seed of a failure is the test's parameter.
"""

from collections.abc import Iterator
from random import Random

import pytest
from tests.protocols.transactions.harness import (
    MS,
    TransactionNet,
    adv,
    invite,
    pub,
    random_tree,
    sub,
    uadv,
    usub,
)

from ensue.protocols.content.client import Notified
from ensue.protocols.content.filters.parser import parse
from ensue.simulation.deployments.transaction_clients import Act
from ensue.simulation.deployments.transactions import table_faults

FILTERS = (
    *(f"kind = 'x' and {where}" for where in ("x = 1", "x = 2", "x >= 1 and x <= 2", "x > 0")),
    "kind = 'x'",
    "kind = 'y'",
    "x = 1",
)
"""All clients have advertised x; y is advertised within transactions only, and so attracts."""
Table = dict[str, str]
"""By subscription: its filter."""
Given = set[tuple[int, str]]
"""Numbers of events, and the subscriptions that they came to."""


class Story:
    """Operations of the clients of one seed, and their outcomes."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"transactions/{seed}")
        tree = random_tree(random, random.randint(1, 6))
        self.clients = [f"c{number}" for number in range(random.randint(2, 5))]
        homes = {client: random.choice(list(tree)) for client in self.clients}
        self.net = TransactionNet(tree, homes, seed=seed)
        self.wheres: dict[str, str] = {}
        """By label of a subscription: its filter."""
        self.owners: dict[str, str] = {}
        self.acts: dict[int, tuple[Act, ...]] = {}
        """By the number of its last event: what a transaction does."""
        self.events: dict[int, Act] = {}
        self.regular: list[int] = []
        self.promised: list[str] = []
        for client in self.clients:
            self.net.regular(client, adv(f"a{client}", "kind = 'x'"))
            for _ in range(random.randint(0, 2)):
                self.net.regular(client, self.subscribing(client))
        self.net.settle()
        names = self.net.application.names
        self.at_first: Table = {names[label]: where for label, where in self.wheres.items()}

    def subscribing(self, client: str) -> Act:
        label = f"s{len(self.wheres)}"
        self.wheres[label] = self.random.choice(FILTERS)
        self.owners[label] = client
        return sub(label, self.wheres[label])

    def publishing(self, kind: str = "x") -> Act:
        number = len(self.events) + 1
        act = pub(str(number), kind=kind, x=self.random.randint(0, 3), number=number)
        self.events[number] = act
        return act

    def acting(self, client: str, depth: int) -> Iterator[Act]:
        """Yield some operations of a client, and of those that it invites."""
        for _ in range(self.random.randint(1, 3)):
            roll = self.random.random()
            mine = [label for label, owner in self.owners.items() if owner == client]
            if roll < 0.3:
                yield self.subscribing(client)
            elif roll < 0.5 and mine:
                yield usub(self.random.choice(mine))
            elif roll < 0.75 and depth:
                other = self.random.choice(self.clients)
                if other != client:
                    yield invite(other, *self.acting(other, depth - 1))
            elif roll < 0.85:
                label = f"y{len(self.promised)}"
                self.promised.append(label)
                yield adv(label, "kind = 'y'")
                yield self.publishing("y")
                if self.random.random() < 0.5:
                    yield uadv(label)
            else:
                yield self.publishing()

    def begin(self, isolation: str) -> None:
        client = self.random.choice(self.clients)
        acts = (*self.acting(client, 2), self.publishing())
        self.acts[len(self.events)] = acts
        self.net.start(client, *acts, isolation=isolation, timeout_ns=10**11)

    def publish(self) -> None:
        act = self.publishing()
        self.regular.append(len(self.events))
        self.net.regular(self.random.choice(self.clients), act)

    def crash(self) -> None:
        self.net.crash(self.random.choice(list(self.net.nodes)))

    def rest(self) -> None:
        for _ in range(30):
            self.net.settle()
            self.net.elapse(50 * MS)

    # -- What came of it ---------------------------------------------------------------------------

    def given(self) -> Given:
        return {
            (int(one.publication.payload), one.subscription)
            for client in self.clients
            for one in self.net.notified[client]
            if isinstance(one, Notified)
        }

    def committed(self) -> list[list[tuple[Act, ...]]]:
        """Return all operations in each sequence in which a broker committed them.

        Two transactions that do not conflict may be committed in different ones.
        """
        sequences = {
            tuple(
                row["transaction"]
                for row in self.net.rows
                if row["action"] == "committed" and row["node"] == name
            )
            for name in self.net.tree
        }
        assert len({frozenset(each) for each in sequences}) == 1, sequences
        last: dict[str, int] = {}
        for row in self.net.rows:
            if row["action"] == "published" and "transaction" in row:
                number = int(row["topic"].partition("number = ")[2].partition(" ")[0])
                last[row["transaction"]] = max(number, last.get(row["transaction"], 0))
        return [[self.acts[last[name]] for name in each] for each in sorted(sequences)]

    def model(self, committed: list[tuple[Act, ...]]) -> tuple[Given, list[Table]]:
        """Apply the commits to one table; return the deliveries, and all states of the table."""
        table, states, given = dict(self.at_first), [dict(self.at_first)], set()
        for acts in committed:
            for act in _in_sequence(acts):
                name = self.net.application.names.get(act.label, "")
                if act.action == "sub":
                    table[name] = act.where
                elif act.action == "usub":
                    table.pop(name, None)
                elif act.action == "pub":
                    given |= _matching(act, table)
            states.append(dict(table))
        return given, states

    def check(self) -> int:
        """Compare with the model; return how many transactions were committed."""
        given = self.given()
        inside = {pair for pair in given if pair[0] not in self.regular}
        states: list[Table] = []
        committed = self.committed()
        for each in committed:
            expected, its = self.model(each)
            assert inside == expected
            states += its
        for number in self.regular:
            got = {pair for pair in given if pair[0] == number}
            assert any(got == _matching(self.events[number], state) for state in states), number
        for client in self.clients:
            notified = [one for one in self.net.notified[client] if isinstance(one, Notified)]
            pairs = [(one.publication.payload, one.subscription) for one in notified]
            assert len(pairs) == len(set(pairs)), "something came twice"
        brokers = {name: self.net.broker(name) for name in self.net.tree}
        assert not list(table_faults(brokers))
        self.net.at_rest()
        return len(committed[0])


def _in_sequence(acts: tuple[Act, ...]) -> Iterator[Act]:
    for act in acts:
        if act.action == "invite":
            yield from _in_sequence(act.acts)
        else:
            yield act


def _matching(act: Act, table: Table) -> Given:
    number = int(act.payload)
    return {(number, name) for name, where in table.items() if parse(where).matches(act.attributes)}


@pytest.mark.parametrize("seed", range(60))
def test_concurrent_serializable_transactions_match_a_serial_order(seed: int) -> None:
    story = Story(seed)
    for _ in range(story.random.randint(2, 5)):
        story.begin("serializable")
        for _ in range(story.random.randrange(60)):
            story.net.step()
            if story.random.random() < 0.05:
                story.publish()
            if seed % 2 and story.random.random() < 0.01:
                story.crash()
    story.rest()
    story.check()


@pytest.mark.parametrize("isolation", ["atomic", "planned"])
@pytest.mark.parametrize("seed", range(20))
def test_sequential_transactions_match_the_model(isolation: str, seed: int) -> None:
    story = Story(1000 + seed)
    count = story.random.randint(2, 4)
    for _ in range(count):
        story.begin(isolation)
        for _ in range(story.random.randrange(60)):
            story.net.step()
            if seed % 2 and story.random.random() < 0.02:
                story.crash()
        story.rest()
        story.publish()
        story.rest()
    assert story.check() == len([wrong for _, wrong in story.net.application.outcomes if not wrong])


def test_most_transactions_commit() -> None:
    """Otherwise the tests above would prove little."""
    begun = committed = 0
    for seed in range(10):
        story = Story(seed)
        for _ in range(3):
            story.begin("serializable")
            story.net.step()
        story.rest()
        begun, committed = begun + 3, committed + story.check()
    assert committed > begun / 2
