"""The local sequencer numbers and stamps rows, and publishes each row once."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.store.helpers import everything, rows

from ensue.core.errors import BadInput
from ensue.store import LogWriter, local_sequencer
from ensue.store.layout import Token
from ensue.store.local_sequencer import publication_schema, publish


def table(*given: tuple[str, str, int | None]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "topic": topic,
                "publisher": publisher,
                "publisher_seq": number,
                "value": b"x",
                "published_at": 0,
                "headers": [],
            }
            for publisher, topic, number in given
        ],
        schema=publication_schema(),
    )


def events(directory: Path) -> list[dict[str, Any]]:
    """Return all events in the total order of the log."""
    found = [each for one in everything(directory).values() for each in one]
    return sorted(found, key=lambda each: sum(dict(each["stamp"]).values()))


def test_rows_are_numbered_and_stamped_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sequencer, "_ENTRIES_MAX", 4)
    with LogWriter(tmp_path) as log:
        first = [("p", "a", None), ("q", "a", None), ("p", "b", None), ("p", "a", None)]
        assert publish(log, table(*first)) == 4
        assert publish(log, table(("p", "c", None), ("p", "a", None))) == 2
    found = events(tmp_path)
    assert [each["event"] for each in found] == [
        "p/a/1",
        "q/a/1",
        "p/b/1",
        "p/a/2",
        "p/c/1",
        "p/a/3",
    ]
    assert [sum(dict(each["stamp"]).values()) for each in found] == [1, 2, 3, 4, 5, 6]
    assert dict(found[-1]["stamp"]) == {"a": 4, "b": 1, "c": 1}
    assert [each["offset"] for each in found] == [0, 1, 0, 2, 0, 3]


def test_row_with_a_given_number_is_published_once(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        given = table(("p", "a", 2), ("p", "b", 1), ("p", "a", 1), ("p", "a", 2), ("q", "a", 1))
        assert publish(log, given) == 4
        assert publish(log, given) == 0
        assert publish(log, table(("p", "a", 3), ("p", "a", 2))) == 1
    assert [each["event"] for each in events(tmp_path)] == [
        "p/a/1",
        "p/b/1",
        "p/a/2",
        "q/a/1",
        "p/a/3",
    ]


def test_batch_with_a_token_is_published_once(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for batch in (0, 0, 1, 0, 1):
            publish(log, table(("p", "a", None)), token=Token(writer="q", batch=batch))
    assert [each["event"] for each in events(tmp_path)] == ["p/a/1", "p/a/2"]


def test_numbers_continue_after_those_of_a_run(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.append(rows("a", [1, 2, 3], publisher="p", stamp={"a": 1}))
        publish(log, table(("p", "a", None)))
    assert everything(tmp_path)["a"][-1]["event"] == "p/a/4"
    assert dict(everything(tmp_path)["a"][-1]["stamp"]) == {"a": 4}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (table(("p", "a", 1), ("p", "a", None)), "null in some rows"),
        (table(("p", "a", 0)), "counts from 1"),
    ],
)
def test_invalid_numbers_are_rejected(tmp_path: Path, given: pa.Table, reason: str) -> None:
    with LogWriter(tmp_path) as log, pytest.raises(BadInput, match=reason):
        publish(log, given)


def test_empty_table_is_published_with_its_token(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        assert publish(log, table(), token=Token(writer="q", batch=0)) == 0
        assert log.has(Token(writer="q", batch=0))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            ("a/b", "c", None),
            "publisher name 'a/b' contains '/', which separates .* event ids: rename it",
        ),
        (("", "c", None), "column 'publisher' is empty"),
        (("p", "", None), "column 'topic' is empty"),
        (("p", "a", 2**62 + 1), "counts from 1 to"),
        (("p", "a", 2**63 - 1), "counts from 1 to"),
    ],
)
def test_names_with_ambiguous_event_ids_are_rejected(
    tmp_path: Path, given: tuple[str, str, int | None], reason: str
) -> None:
    with LogWriter(tmp_path) as log, pytest.raises(BadInput, match=reason):
        publish(log, table(given))
    assert events(tmp_path) == []


def test_numbers_beyond_the_maximum_are_rejected(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        publish(log, table(("p", "a", 2**62)))
        with pytest.raises(BadInput, match="counts from 1 to"):
            publish(log, table(("p", "a", None)))
    assert len(events(tmp_path)) == 1
