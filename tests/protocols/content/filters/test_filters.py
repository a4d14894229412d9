"""Filters: what they mean, how they are written, and where their text is wrong."""

import contextlib
import gc
import weakref
from random import Random
from typing import Any

import pytest

from ensue.core.errors import BadInput, FilterError
from ensue.protocols.content.filters import filter as filters
from ensue.protocols.content.filters import spaces
from ensue.protocols.content.filters.filter import ALL, NOTHING, Filter, event_of, inside
from ensue.protocols.content.filters.index import PENDING_MAX, MatchIndex
from ensue.protocols.content.filters.parser import LONG_KEPT, NEGATED, parse
from ensue.protocols.content.filters.spaces import Value
from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.content.tables import Layer, Tables

NAMES = ("price", "symbol", "urgent", "size")
VALUES: tuple[Value, ...] = (0, 1, 2, 2.5, 3, 5, -1, "", "A", "AB", "ABC", "B", "z", True, False)


def random_text(random: Random, depth: int = 2) -> str:
    if depth and random.random() < 0.6:
        joint = random.choice((" and ", " or "))
        count = random.randint(2, 3)
        return "(" + joint.join(random_text(random, depth - 1) for _ in range(count)) + ")"
    name = random.choice(NAMES)
    number, text = random.choice((-1, 0, 1, 2, 2.5, 3)), random.choice(("", "A", "AB", "B"))
    return random.choice(
        (
            f"{name} = {number}",
            f"{name} = '{text}'",
            f"{name} = {random.choice(('true', 'false'))}",
            f"{name} {random.choice(('<', '<=', '>', '>='))} {number}",
            f"{name} {random.choice(('<', '<=', '>', '>='))} '{text}'",
            f"{name} in ({number}, '{text}', true)",
            f"{name} between {number} and {number + random.randint(0, 2)}",
            f"{name} starts with '{text}'",
            f"{name} exists",
        )
    )


def random_event(random: Random) -> dict[str, Value]:
    return {name: random.choice(VALUES) for name in NAMES if random.random() < 0.7}


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (
            "symbol = 'ACME' and price > 10",
            {"symbol": "ACME", "price": 10.5},
            {"symbol": "ACME", "price": 10},
        ),
        ("price <= 10", {"price": 10}, {"price": "10"}),
        ("price >= 10 and price < 20", {"price": 10.0}, {"price": 20}),
        ("price between 1 and 3", {"price": 3}, {"price": 3.5}),
        ("region in ('eu', 'us')", {"region": "us"}, {"region": "asia"}),
        ("symbol starts with 'AC'", {"symbol": "ACME"}, {"symbol": "AD"}),
        ("symbol starts with ''", {"symbol": ""}, {"symbol": 1}),
        ("note exists", {"note": False}, {"other": 1}),
        ("urgent = true", {"urgent": True}, {"urgent": 1}),
        ("count = 1", {"count": 1.0}, {"count": True}),
        ("a = 1 OR b = 2 AND c = 3", {"a": 1}, {"b": 2}),
        ("(a = 1 or b = 2) and c = 3", {"b": 2, "c": 3}, {"a": 1}),
        ("\"two words\" = 'it''s'", {"two words": "it's"}, {"two words": "its"}),
        ("true", {}, None),
    ],
)  # fmt: skip
def test_filter_matches_the_events_it_describes(text: str, yes: Any, no: Any) -> None:
    wanted = parse(text)
    assert wanted.matches(yes)
    assert no is None or not wanted.matches(no)
    assert parse(wanted.to_text()) == wanted


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("price >", 7, "a number or a text to compare with, found the end"),
        ("price > > 3", 8, "a number or a text to compare with, found '>'"),
        (
            "price 10",
            6,
            "'=', '<', '<=', '>', '>=', 'in', 'between', 'starts with' or 'exists', found '10'",
        ),
        ("symbol = 'ACME", 9, "a closing quote, found \"'\""),
        ("symbol = ACME", 9, "a number, a text in single quotes, true or false, found 'ACME'"),
        ("(price = 1", 10, "')', found the end"),
        ("price = 1)", 9, "'and', 'or' or the end, found ')'"),
        ("a = 1 and", 9, "the name of an attribute, found the end"),
        ("a in (1, )", 9, "a number, a text in single quotes, true or false, found ')'"),
        ("a starts 'x'", 9, "'with', found"),
        ("a ? 1", 2, "a name, a value or an operator, found '?'"),
        ("price != 3", 6, f"no negation (write {NEGATED} instead), found '!='"),
        ("price ! = 3", 6, "no negation"),
        ("price <> 3", 6, f"no negation (write {NEGATED} instead), found '<>'"),
        ("not price > 1", 0, f"no negation (write {NEGATED} instead), found 'not'"),
        ("NOT (price > 1)", 0, "no negation"),
        ('a = 1 and not "b" = 1', 10, "no negation"),
        ("price not in (1, 2)", 6, "no negation"),
        (
            "exists price",
            0,
            "the name of an attribute before it, as in `price exists`, found 'exists'",
        ),
        ("urgent > true", 9, "a number or a text to compare with, found 'true'"),
        ("inf = 1", 0, "the name of an attribute, found 'inf'"),
        ("a = 9223372036854775808", 4, "a whole number must be between -2**63 and 2**63"),
        ("a in (1, -9223372036854775808)", 9, "a whole number must be between"),
    ],
)  # fmt: skip
def test_an_error_points_at_the_place(text: str, position: int, expected: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.position == position
    assert expected in str(caught.value)
    first, shown, arrow = str(caught.value).splitlines()
    assert shown == f"  {text}"
    assert arrow.index("^") - 2 == position, first


def test_an_attribute_may_be_called_not() -> None:
    for text in ("not = 1", "not exists", "not in (1, 2)", '"not" > 0', "not < 2"):
        assert parse(text).matches({"not": 1}), text


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("a = 1 and\nb > 2 and\nc >", 23, "found the end"),
        ("a = 1 and\nb > and\nc > 1", 14, "found 'and'"),
        ("a = " + "9" * 5000, 4, "a whole number of 5000 digits"),
        ("a = '" + "x" * 2000 + "'", 4, "at most 1024 characters"),
        ('b = 1 or "' + "x" * 200 + '" = 1', 9, "must have 1 to 128 characters"),
        ("a = 1 and " * 20 + "b ! 2", 202, "found '!'"),
    ],
)
def test_an_error_shows_what_is_near_the_place(text: str, position: int, expected: str) -> None:
    with pytest.raises(FilterError, match=expected) as caught:
        parse(text)
    assert caught.value.position == position
    _, line, arrow = str(caught.value).splitlines()
    assert len(line) <= 122
    assert line[2:] in text
    assert line[arrow.index("^") :] == text[position : position + 60].split("\n", maxsplit=1)[0]


def test_filter_text_round_trips_for_ambiguous_names_and_texts() -> None:
    for text in ('"inf" = 3', '"INF" > inf', "x starts with '\ud7ff' and x > '\ud7ffa'"):
        wanted = parse(text)
        written = wanted.to_text()
        assert parse(written) == wanted
        written.encode()
    event = Publication(publisher="p", number=1, attributes={"inf": 1})
    assert parse(event.text).matches({"inf": 1})


@pytest.mark.parametrize(
    "text",
    [
        " and ".join(
            "(" + " or ".join(f"({name}{n} = 1 and z{name} > {n})" for n in range(60)) + ")"
            for name in "ab"
        ),
        " or ".join(f"(a{n} = 1 and z > {n})" for n in range(60)) + " or (a1 = 1 and z > 1)" * 2000,
        "("
        + " or ".join(f"(a{n} = 1 and z > {n})" for n in range(60))
        + ")"
        + " and (z > 0 or y = 1)" * 2000,
    ],
    ids=["product", "or", "and"],
)  # fmt: skip
def test_normalizing_a_filter_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: a broker does nothing else meanwhile."""
    compared = 0
    real = filters._box_covers

    def counted(*arguments: Any) -> bool:
        nonlocal compared
        compared += 1
        return real(*arguments)

    monkeypatch.setattr(filters, "_box_covers", counted)
    with contextlib.suppress(FilterError):
        parse(text)
    assert compared < 250_000


def test_comparing_sets_is_bounded() -> None:
    """Counted, not timed: as often as there are values, not as often as there are pairs of them."""
    compared = 0

    class Counted(float):
        def __lt__(self, other: Any) -> bool:
            nonlocal compared
            compared += 1
            return super().__lt__(other)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = float.__hash__

    def numbers() -> spaces.Space:
        values = [Counted(number) for number in range(0, 4000, 2)]
        return tuple(((1, each, 0), (1, each, 1)) for each in values)

    one, other = numbers(), numbers()
    assert spaces.covers(one, other)
    assert not spaces.covers(one, ((other[0][0], other[-1][1]),))
    assert compared < 20_000


@pytest.mark.parametrize("seed", range(40))
def test_relations_hold_for_every_event(seed: int) -> None:
    random = Random(seed)
    one, two = parse(random_text(random)), parse(random_text(random))
    meet, join = one.both(two), one.either(two)
    for _ in range(60):
        event = random_event(random)
        mine, its = one.matches(event), two.matches(event)
        assert meet.matches(event) == (mine and its), (seed, event)
        assert join.matches(event) == (mine or its), (seed, event)
        assert not (mine and its) or one.overlaps(two), (seed, event)
        assert not (its and one.covers(two)) or mine, (seed, event)
    for each in (one, two, meet, join):
        assert parse(each.to_text()) == each, (seed, each.to_text())
        assert each.covers(each), seed
    for each in (one, two):
        assert join.covers(each), seed
        assert each.covers(meet), seed


def test_overlap_needs_all_attributes() -> None:
    """Definition 1, corrected (D10): sharing values of one attribute is not enough."""
    one, two = parse("x = 1 and y = 1"), parse("x = 1 and y = 2")
    assert not one.overlaps(two)
    assert one.overlaps(parse("x = 1 and z = 5")), "an event may have both y and z"


def test_subsumption_is_inclusion_of_every_predicate() -> None:
    """Definition 2."""
    wide, narrow = parse("x >= 0 and x <= 10"), parse("x >= 2 and x <= 3 and y = 1")
    assert wide.covers(narrow)
    assert not narrow.covers(wide)
    assert ALL.covers(wide)
    assert wide.covers(NOTHING)


def test_a_sample_of_a_filter_matches_it_and_what_covers_it() -> None:
    for text in (
        "x > 1",
        "x < 1",
        "x > 1 and x < 2",
        "x > 'a'",
        "x starts with 'a'",
        "x exists",
        "x in (1, 'b')",
    ):
        wanted = parse(text)
        assert all(wanted.matches(event) for event in wanted.samples()), text


def test_invalid_values_are_refused() -> None:
    for bad in (None, b"x", [1], float("nan"), 2**63, "x" * 2000):
        with pytest.raises(BadInput):
            event_of({"a": bad})
    with pytest.raises(BadInput):
        event_of({"": 1})
    with pytest.raises(BadInput):
        event_of({f"a{number}": 1 for number in range(65)})
    with pytest.raises(BadInput, match="alternatives"):
        parse(" and ".join(f"(a{n} = 1 or b{n} = 1)" for n in range(8)))
    with pytest.raises(FilterError):
        parse("(" * 60 + "a = 1" + ")" * 60)


@pytest.mark.parametrize("seed", range(12))
def test_the_index_finds_what_a_loop_finds(seed: int) -> None:
    random = Random(seed)
    index, plain = MatchIndex(), dict[str, Filter]()
    pool = [parse(random_text(random)) for _ in range(40)]
    for turn in range(700):
        roll = random.random()
        if roll < 0.6 or not plain:
            key = f"s{random.randrange(500)}"
            wanted = random.choice(pool)
            index.add(key, wanted)
            plain[key] = wanted
        elif roll < 0.8:
            key = random.choice(list(plain))
            index.remove(key)
            del plain[key]
        if turn % 7 == 0:
            event = random_event(random)
            expected = sorted(key for key, wanted in plain.items() if wanted.matches(event))
            assert sorted(index.match(event)) == expected, (seed, turn, event)
            other = parse(random_text(random))
            expected = sorted(key for key, wanted in plain.items() if wanted.overlaps(other))
            assert sorted(index.overlapping(other)) == expected, (seed, turn, other)
    assert len(index) == len(plain)


def test_index_is_rebuilt_when_most_of_it_was_removed() -> None:
    index = MatchIndex()
    for number in range(10 * PENDING_MAX):
        index.add(f"s{number}", parse(f"x = {number % 7}"))
    index.match({"x": 1})
    for number in range(9 * PENDING_MAX):
        index.remove(f"s{number}")
    for number in range(2 * PENDING_MAX):
        index.add(f"t{number}", parse("y = 1"))
    assert len(index.match({"y": 1})) == 2 * PENDING_MAX
    assert len(index._boxes) < 5 * PENDING_MAX, "dead slots were dropped"


def test_an_event_costs_few_exact_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index, not a loop: counted, not timed."""
    tests = 0
    real = inside

    def counted(*arguments: Any) -> bool:
        nonlocal tests
        tests += 1
        return real(*arguments)

    monkeypatch.setattr("ensue.protocols.content.filters.index.inside", counted)
    random = Random(1)
    index = MatchIndex()
    for number in range(2000):
        low = random.randrange(1000)
        index.add(
            f"s{number}",
            parse(f"symbol = 'S{random.randrange(100)}' and price > {low} and size > {low}"),
        )
    index.match({})
    tests, found = 0, 0
    for _ in range(20):
        found += len(
            index.match({"symbol": f"S{random.randrange(100)}", "price": 300, "size": 300})
        )
    assert found
    assert tests < 3 * found + 20 * PENDING_MAX


def test_publishing_and_subscribing_test_few_advertisements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many there are of others: counted, not timed."""
    tests = 0

    def counting(real: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            nonlocal tests
            tests += 1
            return real(*arguments)

        return counted

    tables = Tables(("near", "far"))
    for number in range(20 * PENDING_MAX):
        hop = ("near", "far", "other")[number % 3]
        where = f"kind = 'K{number % 50}' and size = {number}"
        tables.apply(Change("adv", f"a{number}", where), hop)
    tables.apply(Change("adv", "mine", "price exists"), "me")
    layer = Layer(tables).tables
    layer.apply(Change("adv", "within", "volume exists"), "me")
    layer.apply(Change("sub", "warm", "kind = 'K1' and size = 1"), "me")
    for module, name in (("index", "inside"), ("index", "touch"), ("filter", "inside")):
        real = getattr(filters, name)
        monkeypatch.setattr(f"ensue.protocols.content.filters.{module}.{name}", counting(real))
    monkeypatch.setattr(Filter, "overlaps", counting(Filter.overlaps))
    event: dict[str, Value] = {"price": 3, "kind": "K1"}
    assert tables.advertised(event, "me") == layer.advertised(event, "me") == ["mine"]
    assert layer.advertised({"volume": 1}, "me") == ["within"]
    assert tables.advertised(event, "other") == []
    for each in (layer, tables):
        outputs = each.apply(Change("sub", "s", "kind = 'K1' and size between 100 and 900"), "me")
        assert sorted(outputs) == ["far", "near"]
    assert len(layer.advertisements) == 20 * PENDING_MAX + 2
    assert tests < 8 * PENDING_MAX


def test_index_drops_removed_filters_without_any_match() -> None:
    index = MatchIndex()
    for number in range(20 * PENDING_MAX):
        index.add(f"s{number}", parse("x = 1"))
        index.remove(f"s{number}")
    assert len(index._boxes) <= 2 * PENDING_MAX
    for number in range(10 * PENDING_MAX):
        index.add(f"s{number}", parse(f"x = {number % 7}"))
    index.match({"x": 1})
    for number in range(8 * PENDING_MAX):
        index.remove(f"s{number}")
    assert len(index._boxes) <= 5 * PENDING_MAX
    for number in range(20 * PENDING_MAX):
        index.add("one", parse("x = 1"))
        index.remove(f"t{number}")
    assert len(index._boxes) <= 6 * PENDING_MAX
    expected = [f"s{n}" for n in range(8 * PENDING_MAX, 10 * PENDING_MAX) if n % 7 == 1]
    assert index.match({"x": 1}) == [*expected, "one"], "in the order they were added"


def test_unused_long_filters_are_evicted_from_the_cache() -> None:
    """A long list that changes repeatedly, as of a client with many orders, must be evicted."""
    made = [
        weakref.ref(parse(f"order in ({', '.join(map(str, range(at, at + 500)))})"))
        for at in range(200)
    ]
    gc.collect()
    assert sum(each() is not None for each in made) <= LONG_KEPT
    text = f"order in ({', '.join(map(str, range(1000, 1500)))})"
    index = MatchIndex()
    index.add("kept", parse(text))
    for at in range(100):
        parse(f"order in ({', '.join(map(str, range(at, at + 501)))})")
    gc.collect()
    assert parse(text) is index._filters["kept"], "one that is in use is not read again"
