"""Plans and transactions during churn: one decision each, and nothing is left behind.

Clients expire, brokers crash and join, and entries are withdrawn.

`python -m tests.protocols.transactions.test_churn A:B` runs further seeds.
"""

import sys
from contextlib import suppress
from random import Random

import pytest
from tests.protocols.transactions.harness import (
    TransactionNet,
    adv,
    invite,
    pub,
    random_tree,
    sub,
    uadv,
    usub,
)
from tests.protocols.transactions.test_joins import grow

from ensue.core.errors import LocalProtocolError
from ensue.simulation.deployments.transaction_clients import Act

SEEDS = 120
TURNS = 14
GROWN_MAX = 2


class Churn:
    """One run of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        tree = random_tree(self.random, self.random.randrange(2, 6))
        homes = {f"c{number}": self.random.choice(list(tree)) for number in range(5)}
        self.net = TransactionNet(tree, homes, seed=seed)
        for client in homes:
            self.net.regular(client, adv(f"a-{client}", "x exists"))
            self.net.regular(client, sub(f"s-{client}", f"x = {self.random.randrange(3)}"))
        self.net.settle()
        self.alive = list(homes)
        self.grown = 0

    def act(self, client: str, label: str) -> Act:
        random = self.random
        return random.choice(
            (
                pub(label, x=random.randrange(3)),
                sub(f"s{label}", f"x = {random.randrange(3)}"),
                usub(f"s-{client}"),
                uadv(f"a-{client}"),
                adv(f"a{label}", "x exists"),
            )
        )

    def transaction(self, client: str, label: str) -> None:
        random = self.random
        acts = []
        for number in range(random.randrange(1, 4)):
            # Also a client that has left, as far as one home knows.
            other = random.choice(list(self.net.homes))
            acts.append(
                invite(other, *(self.act(other, f"{label}-{number}-{at}") for at in range(2)))
            )
        isolation = random.choice(("planned", "planned", "atomic", "serializable"))
        held = isolation == "planned" and random.random() < 0.3
        commit = random.random() < 0.8
        options = {"hold": held, "commit": commit, "timeout_ns": 10**9}
        self.net.start(client, *acts, isolation=isolation, **options)

    def turn(self, number: int) -> None:
        net, chance = self.net, self.random.random()
        client = self.random.choice(self.alive)
        if chance < 0.5:
            self.transaction(client, str(number))
        elif chance < 0.62 and len(self.alive) > 2:
            net.nodes[net.homes[client]].broker.expire(client, now_ns=net.now_ns)
            net.drain(net.homes[client])
            self.alive.remove(client)
        elif chance < 0.72:
            net.regular(client, uadv(f"a-{client}"))
        elif chance < 0.9:
            net.crash(self.random.choice(list(net.tree)))
        elif self.grown < GROWN_MAX:
            self.grown += 1
            grow(net, self.random.choice(list(net.tree)), f"z{self.grown}")
        for _ in range(self.random.randrange(25)):
            net.step()

    def play(self) -> dict[str, str]:
        """Return the outcome of each transaction."""
        net = self.net
        for number in range(TURNS):
            with suppress(
                LocalProtocolError
            ):  # A departed client does nothing any more, and knows it.
                self.turn(number)
        net.settle()
        for _ in range(8):
            net.elapse(10**9)
        net.at_rest()
        decided: dict[str, str] = {}
        for row in net.rows:
            if row["node"] in net.tree and row["action"] in ("committed", "aborted"):
                known = decided.setdefault(row["transaction"], row["action"])
                assert known == row["action"], row
        for row in net.rows:
            if row["action"] == "delivered" and row.get("transaction"):
                assert decided[row["transaction"]] == "committed", row
        return decided


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_every_transaction_is_decided_once_and_leaves_nothing_behind(first: int) -> None:
    found: set[str] = set()
    for seed in range(first, first + 20):
        try:
            found |= set(Churn(seed).play().values())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert found == {"committed", "aborted"}


if __name__ == "__main__":
    begin, _, end = sys.argv[1].partition(":")
    for chosen in range(int(begin), int(end)):
        try:
            Churn(chosen).play()
        except Exception as problem:  # noqa: BLE001 - all of them are shown
            print(f"seed {chosen}: {type(problem).__name__} {problem}", flush=True)  # noqa: T201
