"""`swarm --stack` and `replay --stack`: whole programs in a simulated world."""

import json
from pathlib import Path

import pytest
from tests.cli.helpers import Shell

from ensue.client.subscription import Subscription
from ensue.core import trace
from ensue.protocols.interface import Deliver


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


def plant_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make subscriptions swallow every tenth event that their nodes delivered."""
    real = Subscription._outcomes

    def swallow(self: Subscription, outcomes: object) -> None:
        kept = [
            each
            for each in outcomes  # type: ignore[attr-defined]
            if not (isinstance(each, Deliver) and each.position % 10 == 0)
        ]
        real(self, kept)

    monkeypatch.setattr(Subscription, "_outcomes", swallow)


def test_all_orders_are_searched(shell: Shell) -> None:
    ended = shell("swarm", "--stack", "all", "--seeds", "0:1", "--jobs", "1", "--json")
    assert ended.code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["protocol"] == "--stack all"
    assert found["seeds"] == 1
    assert found["deliveries"] > 0


def test_loss_above_the_protocol_is_found_and_replayed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant_a_loss(monkeypatch)
    ended = shell("swarm", "--stack", "total", "--seeds", "0:5", "--jobs", "1")
    assert ended.code == 1
    (line,) = [each for each in ended.stdout.splitlines() if each.startswith("replay: ")]
    words = line.removeprefix("replay: ensue ").split()
    assert words[:3] == ["replay", "--stack", "total"]
    place, picture = tmp_path / "trace", tmp_path / "diagram.html"
    replayed = shell(*words, "--trace", str(place), "--diagram", str(picture))
    assert replayed.code == 1
    assert "problems:" in replayed.stdout
    assert "around the first:" in replayed.stdout
    assert "<svg" in picture.read_text()
    assert trace.read(place)


def test_valid_seed_tells_its_story(shell: Shell) -> None:
    ended = shell("replay", "--stack", "transactions", "--seed", "1", "--json")
    assert ended.code == 0, ended.stderr
    story = json.loads(ended.stdout)
    assert story["verdict"] == "valid"
    assert len(story["digest"]) == 64


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("swarm", "all", "--seeds", "1"), "all needs --stack"),
        (("replay", "--stack", "all", "--seed", "1"), "replay needs one order instead of all"),
        (("replay", "total", "--seed", "1", "--diagram", "x.html"), "--diagram needs --stack"),
    ],
)
def test_contradicting_options_are_refused(shell: Shell, words: tuple[str, ...], why: str) -> None:
    ended = shell(*words)
    assert ended.code == 2
    assert why in ended.stderr
