"""Transactions in the harness of content, with applications that follow a script."""

from collections.abc import Callable
from typing import Any

from tests.protocols.content.harness import MS, Net, line, random_tree

from ensue.protocols.content.config import ContentConfig
from ensue.simulation.deployments.transaction_clients import (
    Act,
    Application,
    RegularSpec,
    TransactionSpec,
)

__all__ = [
    "MS",
    "TransactionNet",
    "adv",
    "invite",
    "line",
    "pub",
    "random_tree",
    "sub",
    "uadv",
    "usub",
]


def pub(payload: str, **attributes: Any) -> Act:
    return Act(action="pub", attributes=attributes, payload=payload.encode())


def sub(label: str, where: str) -> Act:
    return Act(action="sub", label=label, where=where)


def usub(label: str) -> Act:
    return Act(action="usub", label=label)


def adv(label: str, where: str) -> Act:
    return Act(action="adv", label=label, where=where)


def uadv(label: str) -> Act:
    return Act(action="uadv", label=label)


def invite(client: str, *acts: Act) -> Act:
    return Act(action="invite", client=client, acts=acts)


class TransactionNet(Net):
    """Brokers and clients with transactions."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault(
            "config",
            ContentConfig(lease_ns=10**15, beat_ns=10**14, away_ns=10**15, journal_bytes_min=2000),
        )
        super().__init__(*arguments, **options)
        self.application = Application(self.call)
        self.on_notified = self.application.take
        self.settle()

    def call(self, client: str, command: Callable[[Any, int], None]) -> None:
        self.command(client, command)

    def regular(self, client: str, act: Act) -> None:
        self.application.regular(RegularSpec(client=client, at_ns=0, act=act))

    def start(self, name: Any, *acts: Act, **options: Any) -> None:
        if isinstance(name, str) and not acts and not options:
            super().start(name)
        else:
            self.application.start(TransactionSpec(client=name, at_ns=0, acts=acts, **options))

    def run(self, client: str, *acts: Act, **options: Any) -> str:
        """Run one transaction to its end; return why it was aborted, or nothing."""
        self.start(client, *acts, **{"isolation": "serializable", **options})
        self.settle()
        return self.outcome()

    def outcome(self) -> str:
        return self.application.outcomes[-1][1]

    def at_rest(self) -> None:
        """Check that no node waits, and that tables agree."""
        for name in self.tree:
            broker = self.broker(name)
            assert not broker.open_transactions, name
            assert not broker.waiting_count, name
            assert not broker.commit.gathers, name
            assert not broker.versions_kept, name
            assert not broker.plans.submissions, name
            assert not broker.commit.parked, name
            for neighbor in self.tree[name]:
                theirs = self.broker(neighbor).tables.subscriptions
                mine = sorted(one for one, entry in theirs.items() if entry.hop == name)
                assert broker.tables.sent(neighbor) == mine, (name, neighbor)
        promised = {tuple(sorted(self.broker(name).tables.advertisements)) for name in self.tree}
        assert len(promised) == 1, promised
        versions = {self.broker(name).version for name in self.tree}
        assert len(versions) == 1, versions
