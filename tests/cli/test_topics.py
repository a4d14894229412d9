"""`ensue topics`: list the topics of a chain, and move one."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.helpers import Shell
from tests.cli.test_status import chain, publish

import ensue
from ensue.cli.status import move_lines

KEYS = ("topic", "server", "current", "first", "next")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_topic_is_moved_and_listed_with_both_servers(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    servers = chain(tmp_path, stack, 2)
    asyncio.run(publish(servers[0].url, t0=2, t1=1))
    moved = shell("topics", "move", "t0", "--to", "s1", "--url", servers[1].url)
    assert (moved.code, moved.stdout) == (0, "t0 is on s1\n")
    again = shell("topics", "move", "t0", "--to", "s1", "--url", servers[1].url, "--json")
    assert again.json() == {"topic": "t0", "server": "s1"}
    asyncio.run(publish(servers[0].url, t0=3))
    listed = shell("topics", "list", "--url", servers[0].url, "--json").json()["topics"]
    parts = [tuple(each[key] for key in KEYS) for each in listed]
    assert parts == [
        ("t0", "s0", False, 1, 3),
        ("t0", "s1", True, 3, 6),
        ("t1", "s1", True, 1, 2),
    ]
    table = shell("topics", "list", "--url", servers[0].url)
    assert table.code == 0
    lines = [line.split() for line in table.stdout.splitlines()]
    assert ["t0", "s0", "1", "3"] in lines
    assert ["t0", "s1", "yes", "3", "6"] in lines


def test_move_under_way_is_listed_with_its_step(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    servers = chain(tmp_path, stack, 2)
    asyncio.run(publish(servers[0].url, t0=1))
    servers[1].stop()
    url = ("--url", servers[0].url)
    ended = shell("topics", "move", "t0", "--to", "s1", "--timeout", "0.3", *url)
    assert ended.code == 2
    assert "is at the step 'ask', and waits for s1" in " ".join(ended.stderr.split())
    listed = shell("topics", "list", "--json", *url).json()
    assert listed["moves"] == [{"topic": "t0", "to": "s1", "step": "ask", "waits_for": ["s1"]}]
    assert listed["holding"] == {}


def test_lines_name_the_move_and_the_servers_that_hold_requests() -> None:
    move = {"topic": "t0", "to": "s1", "step": "freeze", "waits_for": ["s1", "s2"]}
    assert move_lines({"moves": [move], "holding": {"s0": "t0"}}) == [
        "t0 moves to s1: step freeze, waits for s1, s2",
        "s0 holds requests while t0 moves",
    ]


def test_subscription_that_merges_all_groups_is_named_in_the_list(
    shell: Shell, tmp_path: Path, stack: ExitStack
) -> None:
    servers = chain(tmp_path, stack, 2)

    async def main() -> None:
        async with ensue.connect(servers[0].url) as bus:
            for name, topics in (("one", ("t0",)), ("audit", ("t0", "t1"))):
                async with bus.subscribe(*topics, name=name, durable=True):
                    pass

    asyncio.run(main())
    listed = shell("topics", "list", "--url", servers[0].url)
    assert "subscription audit merges 2 groups into one by its 2 topics: " in listed.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("lift",), "topics: expected list or move, got 'lift'"),
        (("list", "t0"), "topics list takes no topic and no --to"),
        (("move", "t0"), "topics move needs a topic and --to SERVER"),
        (("move", "t0", "--to", ""), "topics move needs a topic and --to SERVER"),
        (("move", "", "--to", "s1"), "topics move needs a topic and --to SERVER"),
        (("move", "t.*", "--to", "s1"), "has the wildcard '*'"),
        (("move", "t0", "--to", "a", "--timeout", "0"), "--timeout: expected a number"),
        (("move", "t0", "--to", "a", "--url", "memory://"), "is within one process"),
    ],
)
def test_what_can_not_be_done_is_refused(shell: Shell, words: tuple[str, ...], error: str) -> None:
    ended = shell("topics", *words)
    assert ended.code == 2
    assert error in " ".join(ended.stderr.split())
