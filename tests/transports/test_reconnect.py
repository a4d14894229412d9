"""Reconnection: attempts, backoff, and the end."""

import asyncio

import pytest

from ensue.core import platform
from ensue.transports.reconnect import BACKOFF_S_MAX, BACKOFF_S_MIN, keep_connected


class Refused(Exception):
    """No more attempts."""


class Peer:
    """A peer that loses each connection at once, refuses some attempts, and rejects at last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcomes: list[str]) -> None:
        self.log: list[str] = []
        self._outcomes = outcomes

        def record(_low: float, high: float) -> float:
            self.log.append(f"pause {high:g}")
            return 0.0

        monkeypatch.setattr(platform.current(), "uniform", record)

    async def use(self, connection: str) -> None:
        self.log.append(f"lost {connection}")

    async def connect(self) -> str:
        outcome = self._outcomes.pop(0)
        if outcome == "refused":
            raise Refused
        if outcome == "fails":
            raise OSError(outcome)
        return outcome

    def failed(self, error: Exception) -> None:
        if isinstance(error, Refused):
            raise error
        self.log.append("failed")

    def resumed(self, connection: str) -> None:
        self.log.append(f"resumed {connection}")

    def run(self, connection: str | None, *, eager: bool) -> list[str]:
        with pytest.raises(Refused):
            asyncio.run(
                keep_connected(
                    connection,
                    use=self.use,
                    connect=self.connect,
                    failed=self.failed,
                    resumed=self.resumed,
                    eager=eager,
                )
            )
        return self.log


def test_eager_client_retries_at_once_and_then_backs_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Peer(monkeypatch, ["fails", "fails", "b", "refused"])
    assert peer.run("a", eager=True)[:7] == [
        "lost a",
        "failed",
        f"pause {BACKOFF_S_MIN:g}",
        "failed",
        f"pause {2 * BACKOFF_S_MIN:g}",
        "resumed b",
        "lost b",
    ]


def test_a_patient_client_waits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch, ["fails", "b", "refused"])
    assert peer.run("a", eager=False) == [
        "lost a",
        f"pause {BACKOFF_S_MIN:g}",
        "failed",
        f"pause {2 * BACKOFF_S_MIN:g}",
        "resumed b",
        "lost b",
        f"pause {BACKOFF_S_MIN:g}",
    ]


def test_flapping_connections_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Peer(monkeypatch, [*"bcdefghi", "refused"])
    pauses = [each for each in peer.run("a", eager=True) if each.startswith("pause")]
    assert pauses[:4] == [f"pause {BACKOFF_S_MIN * 2**flaps:g}" for flaps in (2, 3, 4, 5)]
    assert pauses[-1] == f"pause {BACKOFF_S_MAX:g}"


def test_first_connection_may_be_made_by_keep_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch, ["a", "refused"])
    assert peer.run(None, eager=True) == ["resumed a", "lost a"]
