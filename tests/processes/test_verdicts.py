"""The judge of torture runs finds planted violations, and none in a valid run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes.records import Records, Tail
from tests.processes.verdicts import judge

Files = dict[str, list[str]]


def good() -> Files:
    """Two publishers, the first of which was killed; two subscribers of both topics, one of one."""
    one = ["name one~1"]
    one += [f"try {n} one~1/{t}/{k} {t}" for n, t, k in ((1, "x", 1), (2, "y", 1), (3, "x", 2))]
    one += ["out 1 one~1/x/1 x 1", "out 2 one~1/y/1 y 1"]
    two = ["name two~2", "try 1 two~2/x/1 x", "try 2 two~2/y/1 y", "try 3 two~2/y/2 y"]
    two += ["out 1 two~2/x/1 x 3", "void 2 two~2/y/1 y", "out 3 two~2/y/2 y 2", "end"]
    both = [
        *("joined 7", "got 1 one~1/x/1 x one:1", "got 2 one~1/y/1 y one:2", "safe 2"),
        *("got 3 one~1/x/2 x one:3", "joined 8"),
        *("got 4 two~2/x/1 x two:1", "got 5 two~2/y/2 y two:3"),
    ]
    only = ["joined 9", "got 1 one~1/y/1 y one:2", "got 2 two~2/y/2 y two:3"]
    return {"one": one, "two": two, "first": both, "second": list(both), "only": only}


def records_of(files: Files, directory: Path) -> Records:
    records = Records()
    for name, lines in files.items():
        path = directory / name
        text = "".join("\t".join(line.split(" ")) + "\n" for line in lines)
        path.write_text(text, encoding="utf-8")
        if name in ("one", "two"):
            records.add_publisher(name, name, path)
        else:
            records.add_subscriber(name, ("y",) if name == "only" else ("x", "y"), path)
    records.read()
    return records


def swap(files: Files) -> None:
    """Swap two events at one subscriber."""
    files["second"][6:8] = ["got 4 two~2/y/2 y two:3", "got 5 two~2/x/1 x two:1"]


def lose_receipted(files: Files) -> None:
    for name in ("first", "second"):
        files[name] = [line for line in files[name] if "two~2/y/2" not in line]
    files["only"].pop()


def lose_delivered(files: Files) -> None:
    """Lose an event without a receipt that another subscriber got."""
    files["second"] = [line for line in files["second"] if "one~1/x/2" not in line]
    for index, line in enumerate(files["second"]):
        if "two~2" in line:
            position = int(line.split(" ")[1])
            files["second"][index] = line.replace(f"got {position}", f"got {position - 1}")


def repeat(files: Files) -> None:
    for name in ("first", "second"):
        files[name].append("got 6 two~2/y/2 y two:3")


def invent(files: Files) -> None:
    files["only"].append("got 3 two~2/y/9 y two:9")


def bring_void(files: Files) -> None:
    for name, position in (("first", 6), ("second", 6), ("only", 3)):
        files[name].append(f"got {position} two~2/y/1 y two:2")


def skip_a_position(files: Files) -> None:
    files["only"][-1] = files["only"][-1].replace("got 2", "got 3")


def change_a_payload(files: Files) -> None:
    files["only"][-1] = files["only"][-1].replace("two:3", "two:2")


def number_twice(files: Files) -> None:
    """Give two events one id."""
    files["one"][-2] = "out 1 one~1/x/2 x 1"
    files["one"].append("out 3 one~1/x/1 x 1")


def overtake_itself(files: Files) -> None:
    """Swap one publisher's events on two topics, at all subscribers."""
    for name in ("first", "second"):
        files[name][1:3] = ["got 1 one~1/y/1 y one:2", "got 2 one~1/x/1 x one:1"]


def complain(files: Files) -> None:
    files["only"].append("wrong something")


def test_valid_run_is_valid(tmp_path: Path) -> None:
    records = records_of(good(), tmp_path)
    assert judge(records) == []
    assert records.missing() == {}
    assert records.receipts == {"one": 2, "two": 2}
    assert records.deliveries == 12


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (swap, "opposite|disagree|total"),
        (lose_receipted, "never delivered two~2/y/2"),
        (lose_delivered, "never delivered one~1/x/2"),
        (repeat, "had delivered it before"),
        (invent, "no client published it"),
        (bring_void, "discarded it as void"),
        (skip_a_position, "at position 3"),
        (change_a_payload, "brought two:2, not two:3"),
        (number_twice, "both have a receipt for slot 1"),
        (overtake_itself, "causal"),
        (complain, "only: something"),
    ],
)
def test_planted_violation_is_found(
    tmp_path: Path, spoil: Callable[[Files], None], said: str
) -> None:
    files = good()
    spoil(files)
    wrong = "\n".join(judge(records_of(files, tmp_path)))
    assert wrong
    assert any(words in wrong for words in said.split("|")), wrong


def test_missing_events_are_listed_by_subscriber(tmp_path: Path) -> None:
    files = good()
    files["only"].pop()
    records = records_of(files, tmp_path)
    assert records.missing() == {"only": 1}
    assert records.first_missing("only") == ["two~2/y/2"]


def test_line_is_read_when_complete(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "f")
    assert tail.read() == []
    with (tmp_path / "f").open("a", encoding="utf-8") as file:
        file.write("a\tb\nc")
        file.flush()
        assert tail.read() == [["a", "b"]]
        file.write("\td\n")
        file.flush()
        assert tail.read() == [["c", "d"]]
        assert tail.read() == []
