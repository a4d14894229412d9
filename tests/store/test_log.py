"""The event log: appends are atomic and durable, and readable until they are trimmed."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.helpers import everything, numbers, row, rows

from ensue.core.errors import BadInput, LocalProtocolError, LogDamaged, LogInUse, OffsetsGone
from ensue.store import Bounds, DirectoryReader, LogWriter, layout, log_schema, open_log, writer
from ensue.store.layout import Token


def test_appended_rows_are_read_with_every_column(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "log") as log:
        given_row = row("a", 1, key=b"k", headers={"h": "1"}, stamp={"b": 2, "a": 1})
        assert log.append([given_row, row("b/ü.", 1, value=None)])
    (found,) = everything(tmp_path / "log")["a"]
    assert found["key"] == b"k"
    assert found["value"] == b"a 1"
    assert found["event"] == "web/a/1"
    assert dict(found["stamp"]) == {"a": 1, "b": 2}
    assert dict(found["headers"]) == {"h": "1"}
    assert found["offset"] == 0
    assert found["published_at"].isoformat() == "1970-01-01T00:00:00.000001+00:00"
    (void,) = everything(tmp_path / "log")["b/ü."]
    assert void["value"] is None
    assert void["stamp"] is None


def test_open_reader_sees_later_appends(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", range(1, 4)))
        reader = open_log(tmp_path)
        log.append(rows("a", range(4, 6)) + rows("b", [1]))
        assert reader.bounds() == {"a": Bounds(0, 5), "b": Bounds(0, 1)}
        log.append(rows("a", [6]))
        read = [each["publisher_seq"] for b in reader.read("a", 2, 6) for each in b.to_pylist()]
        assert read == [3, 4, 5, 6]


def test_only_requested_columns_are_read(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", range(1, 10)))
    (batch,) = DirectoryReader(tmp_path).read("a", 3, 5, ["topic", "event"])
    assert batch.schema.names == ["topic", "event"]
    assert batch.to_pylist()[0] == {"topic": "a", "event": "web/a/4"}
    with pytest.raises(BadInput, match="no column 'colour'"):
        DirectoryReader(tmp_path).read("a", 3, 5, ["colour"])


def test_offsets_may_skip_but_never_repeat(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append([row("a", 1, offset=3), row("a", 2, offset=7)])
        for offsets in ((7,), (2,), (9, 9), (9, 8)):
            with pytest.raises(BadInput, match="offsets"):
                log.append([row("a", n, offset=each) for n, each in enumerate(offsets, 3)])
        log.append([row("a", 3)])
    reader = DirectoryReader(tmp_path)
    assert reader.bounds() == {"a": Bounds(3, 9)}
    assert [each["offset"] for each in everything(tmp_path)["a"]] == [3, 7, 8]
    (batch,) = reader.read("a", 4, 8)
    assert batch.column("offset").to_pylist() == [7]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": None}, "null"),
        ({"topic": ""}, "empty"),
        ({"publisher": None}, "null"),
        ({"publisher_seq": "many"}, "publisher_seq"),
        ({"published_at": None}, "published_at"),
    ],
)
def test_invalid_row_is_rejected_and_leaves_nothing(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    with LogWriter(tmp_path) as log:
        with pytest.raises(BadInput, match=reason):
            log.append([row("a", 1), {**row("b", 1), **change}])
        log.append([row("c", 1)])
    assert numbers(tmp_path) == {"c": [1]}
    LogWriter(tmp_path).close()
    assert [path.name for path in (tmp_path / "topics").iterdir() if any(path.iterdir())] == ["c"]


def test_missing_and_extra_columns_are_rejected(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        table = log_schema().empty_table()
        with pytest.raises(BadInput, match="'key' is missing"):
            log.append(table.drop_columns(["key"]))
        with pytest.raises(BadInput, match="'more' is not part"):
            log.append(table.append_column("more", table.column("key")))


def test_batch_with_a_token_is_appended_once(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        assert log.append(rows("a", [1]), token=Token(writer="q", batch=0))
        assert not log.append(rows("a", [2]), token=Token(writer="q", batch=0))
        assert log.append(rows("a", [2]), token=Token(writer="other", batch=0))
    with LogWriter(tmp_path) as log:
        assert not log.append(rows("a", [3]), token=Token(writer="q", batch=0))
        assert log.append([], token=Token(writer="q", batch=1))
        assert log.has(Token(writer="q", batch=1))
        assert not log.has(Token(writer="q", batch=2))
    assert numbers(tmp_path) == {"a": [1, 2]}


def test_last_number_of_a_publisher_survives_a_trim(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", [4, 2]) + rows("a", [9], publisher="app"))
        log.append(rows("a", [3]))
        log.trim("a", 100)
    with LogWriter(tmp_path) as log:
        assert log.last_number("web", "a") == 4
        assert log.last_number("app", "a") == 9
        assert log.last_number("web", "b") == 0


def test_trim_removes_whole_segments_and_readers_raise(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for start in (1, 4, 7):
            log.append(rows("a", range(start, start + 3)))
        old = DirectoryReader(tmp_path)
        assert log.trim("a", 2) == 0
        assert log.trim("a", 5) == 3
        with pytest.raises(OffsetsGone, match=r"offsets 1 to 2 of 'a'") as gone:
            list(old.read("a", 1, 9))
        assert (gone.value.topic, gone.value.start, gone.value.end) == ("a", 1, 3)
        assert [each["publisher_seq"] for each in everything(tmp_path)["a"]] == [4, 5, 6, 7, 8, 9]
        assert log.trim("a", 9) == 9
        assert DirectoryReader(tmp_path).bounds() == {"a": Bounds(9, 9)}
        log.append(rows("a", [10]))
        with pytest.raises(BadInput, match="can't trim topic 'b'"):
            log.trim("b", 1)
    assert numbers(tmp_path) == {"a": [10]}
    assert len(list((tmp_path / "topics").rglob("*.arrow"))) == 1


def test_trim_that_dies_before_its_commit_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with LogWriter(tmp_path) as log:
        log.append(rows("a", [1, 2]))
        log.append(rows("a", [3]))
        monkeypatch.setattr(layout.Layout, "write_commit", die)
        with pytest.raises(KeyboardInterrupt):
            log.trim("a", 2)
    assert numbers(tmp_path) == {"a": [1, 2, 3]}


def test_reading_beyond_the_end_raises(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", [1, 2]))
    with pytest.raises(OffsetsGone, match=r"'a' in .* before offset 2, and a read up to 3"):
        list(DirectoryReader(tmp_path).read("a", 0, 3))
    with pytest.raises(OffsetsGone, match=r"'b' in .* before offset 0, and a read up to 1"):
        list(DirectoryReader(tmp_path).read("b", 0, 1))
    assert list(DirectoryReader(tmp_path).read("b", 0, 0)) == []


def test_second_writer_is_rejected(tmp_path: Path) -> None:
    first = LogWriter(tmp_path)
    with pytest.raises(LogInUse, match="has a writer already"):
        LogWriter(tmp_path)
    first.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        first.append(rows("a", [1]))
    LogWriter(tmp_path, wait_s=1).close()


def test_second_writer_is_detected_at_commit_without_locks(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", [1]))
        theirs = layout.Layout(tmp_path)
        theirs.write_commit(layout.Commit(number=1))
        with pytest.raises(LogInUse, match="commit 1"):
            log.append(rows("a", [2]))
        with pytest.raises(LocalProtocolError, match="closed"):
            log.append(rows("a", [2]))
    assert numbers(tmp_path) == {"a": [1]}


def test_opening_reads_a_checkpoint_and_few_commits(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        behind = DirectoryReader(tmp_path)
        for number in range(1, 201):
            log.append([row("a", number)])
    commits = sorted(path.stem for path in (tmp_path / "_commits").iterdir())
    assert len(commits) < 2 * layout.CHECKPOINT_EVERY
    assert [int(path.stem) for path in sorted((tmp_path / "_checkpoints").iterdir())] == [127, 191]
    assert numbers(tmp_path) == {"a": list(range(1, 201))}
    assert behind.bounds() == {"a": Bounds(0, 200)}


def test_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for number in range(1, 140):
            log.append([row("a", number)])
    newest = max((tmp_path / "_checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-10])
    assert numbers(tmp_path) == {"a": list(range(1, 140))}


def test_files_that_no_commit_lists_are_ignored_and_removed(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", [1]))
    strays = [
        tmp_path / "topics" / "a" / "00000000000000000001-dead.arrow",
        tmp_path / "_commits" / ".unfinished-1",
        tmp_path / "_checkpoints" / ".unfinished-2",
    ]
    for stray in strays:
        stray.write_bytes(b"torn")
    (tmp_path / "_commits" / "notes.json").write_bytes(b"not ours")
    assert numbers(tmp_path) == {"a": [1]}
    LogWriter(tmp_path)._lock.abandon()
    LogWriter(tmp_path).close()
    assert not any(stray.exists() for stray in strays)
    assert numbers(tmp_path) == {"a": [1]}


def test_damage_error_names_the_file(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for number in range(1, 4):
            log.append([row("a", number)])
    commit = tmp_path / "_commits" / f"{1:020}.json"
    whole = commit.read_bytes()
    commit.write_bytes(whole[:20])
    with pytest.raises(LogDamaged, match=rf"{commit.name} is damaged"):
        DirectoryReader(tmp_path)
    commit.write_bytes(whole.replace(b'"format":1', b'"format":9'))
    with pytest.raises(BadInput, match="format 9"):
        DirectoryReader(tmp_path)
    commit.write_bytes(whole.replace(b'"number":1', b'"number":7'))
    with pytest.raises(LogDamaged, match="contains commit 7, expected 1"):
        DirectoryReader(tmp_path)
    commit.unlink()
    with pytest.raises(LogDamaged, match=rf"{commit.name} is missing"):
        DirectoryReader(tmp_path)
    commit.write_bytes(whole)
    segments = sorted((tmp_path / "topics" / "a").iterdir())
    segments[1].write_bytes(b"ARROW1 and no more")
    with pytest.raises(LogDamaged, match=segments[1].name):
        numbers(tmp_path)
    segments[1].unlink()
    with pytest.raises(LogDamaged, match=r"missing, but a commit lists it"):
        numbers(tmp_path)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("nowhere", "does not exist"), ("empty", "no event log"), ("kafka://host", "kafka://")],
)
def test_opening_something_else_is_rejected(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=reason):
        open_log(place if "://" in place else tmp_path / place)


def test_log_is_found_by_url_and_inside_a_recorded_run(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "a run" / "log") as log:
        log.append(rows("a", [1]))
    for url in (tmp_path / "a run", (tmp_path / "a run" / "log").as_uri()):
        assert open_log(url).bounds() == {"a": Bounds(0, 1)}
    with pytest.raises(BadInput, match="another machine"):
        open_log("file://elsewhere/log")


def test_writer_rejects_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    with pytest.raises(BadInput, match="not empty"):
        LogWriter(tmp_path)
    with pytest.raises(BadInput, match="is a file"):
        LogWriter(tmp_path / "other")


def test_topics_that_are_no_file_names_are_stored_separately(tmp_path: Path) -> None:
    topics = [".", "..", "a/b", "a%2Fb", "x" * 300, "x" * 299 + "y", "\n", "ü"]
    with LogWriter(tmp_path) as log:
        log.append([row(topic, 1) for topic in topics])
    assert {topic: len(found) for topic, found in everything(tmp_path).items()} == dict.fromkeys(
        topics, 1
    )
    inside = [path for path in tmp_path.rglob("*.arrow") if path.parent.parent.name == "topics"]
    assert len(inside) == len(topics)


def test_batches_of_any_size_are_read_whole(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", range(1, 11)))
    (segment,) = tmp_path.rglob("*.arrow")
    table = pa.ipc.open_file(str(segment)).read_all()
    with pa.ipc.new_file(str(segment), table.schema) as file:
        file.write_table(table, max_chunksize=3)

    assert numbers(tmp_path) == {"a": list(range(1, 11))}
    read = DirectoryReader(tmp_path).read("a", 2, 9)
    assert [each["publisher_seq"] for b in read for each in b.to_pylist()] == list(range(3, 10))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), batch_rows=st.sampled_from([2, 3, 16]))
def test_log_behaves_like_a_dict_of_lists(
    seed: int, batch_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against a model: random appends with gaps, trims and reopenings, read in random ranges."""
    rng = random.Random(seed)
    directory = tmp_path_factory.mktemp("log")
    model: dict[str, dict[int, int]] = {}
    ends: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "BATCH_ROWS", batch_rows)
        patch.setattr(writer, "SEGMENT_ROWS_MAX", 7)
        patch.setattr(layout, "CHECKPOINT_EVERY", 3)
        log = LogWriter(directory)
        reader = DirectoryReader(directory)
        for number in range(1, rng.randrange(2, 25)):
            action = rng.random()
            if action < 0.7:
                added = []
                for _ in range(rng.randrange(1, 12)):
                    topic = rng.choice("abc")
                    offset = ends.get(topic, 0) + (rng.random() < 0.1)
                    ends[topic] = offset + 1
                    model.setdefault(topic, {})[offset] = number
                    added.append(row(topic, number, offset=offset))
                log.append(added)
            elif action < 0.85 and ends:
                topic = rng.choice(sorted(ends))
                first = log.trim(topic, rng.randrange(ends[topic] + 2))
                model[topic] = {at: n for at, n in model[topic].items() if at >= first}
            else:
                log.close()
                log = LogWriter(directory)
        log.close()
        for each in (reader, DirectoryReader(directory)):
            bounds = each.bounds()
            assert {topic: known.next for topic, known in bounds.items()} == ends
            for topic, known in bounds.items():
                start = rng.randint(known.first, known.next)
                end = rng.randint(start, known.next)
                found = [r for b in each.read(topic, start, end) for r in b.to_pylist()]
                expected = {at: n for at, n in model[topic].items() if start <= at < end}
                assert {r["offset"]: r["publisher_seq"] for r in found} == expected
                assert [r["offset"] for r in found] == sorted(expected)
