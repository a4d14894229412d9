"""Cells: a partition of events by content."""

from itertools import product

import pytest

from ensue.core.errors import BadInput
from ensue.core.event import Event
from ensue.protocols.content.cells import CELLS_MAX, Cells, Match, headers_of
from ensue.protocols.content.filters.parser import parse

VALUES = (None, False, True, -1, 0, 1, 1.0, 2.5, 9.999, 10, 10.0, 100, 1e300, "", "a", "eu", "us")
DECLARATIONS = (
    "a/5",
    "a<0<10<100",
    "a<'b'<'f'",
    "a='eu','us'",
    "a=true,1,'a'",
    "a/2; b<10; c=1",
    '"a"/3; b/3',
)
TESTS = (
    "{} = 1",
    "{} = 1.0",
    "{} = 'eu'",
    "{} = true",
    "{} < 10",
    "{} >= 10",
    "{} > 2.5 and {} <= 100",
    "{} in (0, 'us', 10)",
    "{} starts with 'e'",
    "{} exists",
    "{} = 0 or {} = 'a'",
)
FILTERS = (
    "true",
    *(test.format(*"aaa") for test in TESTS),
    *(f"({one.format(*'aaa')}) and ({two.format(*'bbb')})" for one, two in product(TESTS, TESTS)),
    "a = 1 or b = 'us' or c < 3",
)


@pytest.mark.parametrize("text", DECLARATIONS)
def test_every_event_that_matches_a_filter_lies_in_one_of_its_cells(text: str) -> None:
    cells = Cells.parse(text)
    pairs = product(VALUES, VALUES, (None, 1, 2))
    events = [{n: v for n, v in zip("abc", one, strict=True) if v is not None} for one in pairs]
    topics = [cells.topic_of(event) for event in events]
    for where in FILTERS:
        wanted = parse(where)
        joined = cells.topics_in(wanted)
        for event, topic in zip(events, topics, strict=True):
            assert topic in joined or not wanted.matches(event), (where, event)
    assert set(topics) <= set(cells.topics_in(parse("true")))
    assert len(cells.topics_in(parse("true"))) == cells.count


def test_filters_on_classes_of_their_own_share_no_cell() -> None:
    cells = Cells.parse("region='eu','us'; price<10<100")
    joined = [
        set(cells.topics_in(parse(where)))
        for where in ("region = 'eu'", "region = 'us'", "price < 10", "price >= 100")
    ]
    assert not joined[0] & joined[1]
    assert not joined[2] & joined[3]
    assert joined[0] & joined[2]


def test_a_number_lies_in_one_cell_however_it_is_written() -> None:
    cells = Cells.parse("price/64")
    assert cells.topic_of({"price": 1}) == cells.topic_of({"price": 1.0})
    assert cells.topic_of({"price": 0}) == cells.topic_of({"price": -0.0})
    assert cells.topics_in(parse("price = 1")) == cells.topics_in(parse("price = 1.0"))
    assert cells.topic_of({"price": 1}) != cells.topic_of({"price": True})


def test_topics_say_which_declaration_they_belong_to() -> None:
    one, same, other = (Cells.parse(text) for text in ("a/4", " a / 4 ", "a/5"))
    assert one.stem == same.stem != other.stem
    assert one.topic_of({}) == f"{one.stem}0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an attribute is missing"),
        ("symbol", "'' is no division of 'symbol'"),
        ("symbol/1", "'symbol' needs at least 2 classes, got 1"),
        ("/4", "'/4' does not begin with an attribute"),
        ("a/2; a/3", "'a' is declared twice"),
        ("p<3<2", "the bounds of 'p' must increase"),
        ("p<3<'x'", "the bounds of 'p' must be numbers, or all texts"),
        ("p<3,4", "'<3,4' is no division of 'p'"),
        ("p=1,1.0", "'p' has 1.0 twice"),
        ("p<much", "'much' must be a number, true, false or 'a text'"),
        (f"a/{CELLS_MAX}", f"are {CELLS_MAX + 1}; at most {CELLS_MAX} are allowed"),
    ],
)
def test_wrong_declaration_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(BadInput, match="cells") as refused:
        Cells.parse(text)
    assert why in str(refused.value)


def test_declaration_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadInput, match="cells must be text such as 'symbol/16', got int"):
        Cells.parse(16)  # type: ignore[arg-type]


def test_traffic_in_vain_is_counted() -> None:
    match = Match(parse("price > 10"))
    events = [
        Event(topic="t", payload=b"x" * 100, publisher="p", publisher_seq=1, headers=headers)
        for headers in (headers_of({"price": 11}), headers_of({"price": 10}), {"price": "?"}, {})
    ]
    assert [match(event) for event in events] == [True, False, False, False]
    counts = match.counts
    assert (counts.received, counts.delivered, counts.in_vain) == (4, 1, 3)
    assert counts.in_vain_bytes > 300
