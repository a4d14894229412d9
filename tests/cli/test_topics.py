"""`ensue topics`: list the topics of a chain, and move one."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.helpers import Shell
from tests.cli.test_status import chain, publish


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
    parts = [(each["topic"], each["server"], each["first"], each["next"]) for each in listed]
    assert parts == [("t0", "s0", 1, 3), ("t0", "s1", 3, 6), ("t1", "s1", 1, 2)]
    table = shell("topics", "list", "--url", servers[0].url)
    assert table.code == 0
    assert "t0" in table.stdout


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
