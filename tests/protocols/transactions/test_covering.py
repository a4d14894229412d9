"""A covered subscription misses nothing, whatever comes and goes within transactions.

Found by the swarm: a plan's subscription was on its way to a broker that was down, a regular one that it covers was answered at once, and an event published after that did not come. And: a transaction that was voted for
withdrew a subscription, which was taken to cover another when a third that had covered it went; some brokers had committed and some had not.
"""

from typing import Any

import pytest
from tests.protocols.transactions.harness import TransactionNet, adv, invite, line, pub, sub, usub

from ensue.protocols.transactions.plans import Plans
from ensue.protocols.transactions.two_phase_commit import TwoPhaseCommit

SEEDS = 150


def missed(seed: int, isolation: str, *, commit: bool = True, crash: bool = False) -> bool:
    """One client subscribes to much within a transaction, another to some of it; return whether what is published once that is answered does not come."""
    net = TransactionNet(line(3), {"p": "b0", "c": "b2", "d": "b2"}, seed=seed)
    net.regular("p", adv("a", "x exists"))
    net.settle()
    hold = isolation == "planned" and not commit
    net.start("c", sub("wide", "x exists"), isolation=isolation, commit=commit, hold=hold)
    for _ in range(net.random.randrange(80)):
        net.step()
    before = len(net.answers("d"))
    net.regular("d", sub("narrow", "x = 1"))
    if crash:
        net.crash("b2")
    while len(net.answers("d")) == before:
        assert net.step()
    net.regular("p", pub("event", x=1))
    net.settle()
    return net.payloads("d") != ["event"]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_an_answered_subscription_misses_nothing(isolation: str, commit: bool, crash: bool) -> None:
    bad = [seed for seed in range(SEEDS) if missed(seed, isolation, commit=commit, crash=crash)]
    assert not bad


def uncovered(seed: int) -> bool:
    """Two subscriptions cover a third; a transaction withdraws one, a client the other; return whether the third misses anything."""
    net = TransactionNet(line(3), {"p": "b2", "c": "b0", "d": "b0", "e": "b0"}, seed=seed)
    net.regular("p", adv("a", "x exists"))
    net.settle()
    for client, where in (("e", "x = 1"), ("c", "x exists"), ("d", "x = 1")):
        net.regular(client, sub(client, where))
        net.settle()
    net.start("p", invite("c", usub("c")), isolation="serializable")
    while not any(context.voted for context in net.broker("b0").commit.contexts.values()):
        assert net.step()
    net.regular("e", usub("e"))
    sent = 0
    while net.step():
        if sent < 30 and net.random.random() < 0.3:
            net.regular("p", pub(str(sent), x=1))
            sent += 1
    net.settle()
    return net.payloads("d") != [str(each) for each in range(sent)]


def test_what_is_uncovered_from_two_sides_misses_nothing() -> None:
    assert not [seed for seed in range(SEEDS) if uncovered(seed)]


def test_it_would_without_what_prevents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Plans.change

    def forgetful(self: Plans, *what: Any) -> list[str]:
        wholes = change(self, *what)
        self._state.tables.loose = _Nothing()
        return wholes

    monkeypatch.setattr(Plans, "change", forgetful)
    monkeypatch.setattr(TwoPhaseCommit, "let_settle", lambda *_arguments: None)
    assert any(missed(seed, "planned") for seed in range(SEEDS))
    assert any(missed(seed, "serializable") for seed in range(SEEDS))
    monkeypatch.setattr(TwoPhaseCommit, "update_settling", lambda _self: None)
    assert any(uncovered(seed) for seed in range(SEEDS))


class _Nothing(set[str]):
    def add(self, element: str) -> None:
        """Forget it."""
