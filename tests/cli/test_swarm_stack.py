"""`swarm --stack` and `replay --stack`: whole programs in a simulated world."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.helpers import Shell

from ensue.client.subscription import Subscription
from ensue.core import trace
from ensue.protocols.interface import Deliver
from ensue.testing.faults import Striker
from ensue.testing.swarm import AnyDraw, StackRun, seeds
from ensue.testing.swarm.program import Program
from ensue.testing.swarm.topic_draw import Draw


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


@pytest.mark.parametrize("as_json", [False, True])
def test_seed_of_all_names_every_order_that_failed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """Sentences of one order, however many, do not hide another order."""
    failing = {"total": [f"lost {number}" for number in range(20)], "merged": ["swapped"]}

    def planted(drawn: AnyDraw) -> StackRun:
        order = drawn.order.label if isinstance(drawn, Draw) and not drawn.moves else ""
        problems = failing.get(order, [])
        return StackRun(drawn=drawn, problems=problems, rows=[], faults=[], seconds=1.0, digest="")

    monkeypatch.setattr(seeds, "run", planted)
    words = ("swarm", "--stack", "all", "--seeds", "3", "--jobs", "1")
    replays = [f"ensue replay --stack {order} --seed 3" for order in failing]
    if as_json:
        ended = shell(*words, "--json")
        assert [each["replay"] for each in ended.json()["failures"]] == replays
        assert ended.json()["failures"][1]["sentences"] == ["merged: swapped"]
    else:
        ended = shell(*words)
        lines = ended.stdout.splitlines()
        assert [each for each in lines if each.startswith("replay: ")] == [
            f"replay: {each}" for each in replays
        ]
        assert "  and 10 more" in lines
        assert "  merged: swapped" in lines
    assert ended.code == 1


def test_any_order_may_have_failed_if_a_process_died() -> None:
    assert list(seeds.by_order(("a process died: no result",))) == list(seeds.ORDERS)


def break_runs(monkeypatch: pytest.MonkeyPatch, *, stuck: bool = False) -> None:
    """Make programs of topics raise, or hang, in the middle of their runs."""

    async def wait(_: Program) -> None:
        if not stuck:
            raise AssertionError("planted")
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Striker, "stop", wait)


@pytest.mark.parametrize(
    ("stuck", "what"), [(False, "raised AssertionError: planted ("), (True, "raised Stuck: ")]
)
def test_run_that_raises_tells_its_story(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, stuck: bool, what: str
) -> None:
    break_runs(monkeypatch, stuck=stuck)
    place, picture = tmp_path / "trace", tmp_path / "diagram.html"
    ended = shell(
        *("replay", "--stack", "total", "--seed", "3", "--verbose"),
        *("--trace", str(place), "--diagram", str(picture)),
    )
    assert ended.code == 1
    assert "seed 3 draws:\n  order: Total(" in ended.stdout
    assert f"problems:\n  {what}" in ended.stdout
    assert "  replay it with seed=3\n" in ended.stdout
    faults = ended.stdout.partition("faults:\n")[2].partition("\n\n")[0]
    assert " s: " in faults
    assert " delivered " in ended.stdout.partition("the last rows:\n")[2]
    assert "Traceback" in ended.stderr
    assert "<svg" in picture.read_text()
    assert trace.read(place)
    story = shell("replay", "--stack", "total", "--seed", "3", "--json")
    assert story.code == 1
    assert story.json()["verdict"] == "invalid"
    assert story.json()["problems"][0].startswith(what)


def test_trace_of_a_run_that_raises_is_written(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_runs(monkeypatch)
    place = tmp_path / "trace"
    ended = shell("swarm", "--stack", "total", "--seeds", "3", "--jobs", "1", "--trace", str(place))
    assert ended.code == 1
    assert "seed 3 failed:\n  raised AssertionError: planted (" in ended.stdout
    assert "replay: ensue replay --stack total --seed 3" in ended.stdout
    assert f"trace of seed 3: {place}" in ended.stdout
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
        (
            ("swarm", "--stack", "all", "--seeds", "1", "--trace", "x"),
            "--trace writes the trace of one order, got all: name an order",
        ),
        (("replay", "total", "--seed", "1", "--diagram", "x.html"), "--diagram needs --stack"),
    ],
)
def test_contradicting_options_are_refused(shell: Shell, words: tuple[str, ...], why: str) -> None:
    ended = shell(*words)
    assert ended.code == 2
    assert why in ended.stderr
