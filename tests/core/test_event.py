"""Size and `repr` of events and stamps."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ensue.core.event import COUNT_MAX, Event, Stamp, wire_bytes

names = st.text(min_size=1, max_size=40)
counts = st.one_of(st.integers(0, COUNT_MAX), st.just(COUNT_MAX))
events = st.builds(
    Event,
    topic=names,
    payload=st.binary(max_size=300),
    publisher=names,
    publisher_seq=counts,
    key=st.none() | st.binary(max_size=300),
    headers=st.dictionaries(names, st.text(max_size=300), max_size=20),
    published_at_ns=st.integers(-(2**63), 2**63 - 1),
    stamp=st.none() | st.builds(Stamp, st.dictionaries(names, counts, max_size=20), st.booleans()),
    place=counts,
    void=st.booleans(),
)


@given(events)
def test_wire_bytes_is_a_tight_upper_bound(event: Event) -> None:
    encoded = len(msgspec.msgpack.encode(event))
    parts = len(event.headers) + (0 if event.stamp is None else len(event.stamp.entries))
    assert encoded <= wire_bytes(event) <= encoded + 64 + 14 * parts


def test_repr_of_a_stamp_has_no_control_characters() -> None:
    assert repr(Stamp({"a": 1, "\x1b[31mred": 2})) == r"Stamp(a:1, \x1b[31mred:2)"


def test_repr_shows_the_beginning_of_a_long_payload() -> None:
    event = Event(
        topic="orders",
        payload=b"x" * 81,
        publisher="shop",
        publisher_seq=7,
        key=b"k" * 1_000,
        headers={"note": "y" * 1_000},
    )
    key, note = f"{b'k' * 80!r}… (1,000 bytes)", f"{'y' * 80!r}… (1,000 characters)"
    assert repr(event) == (
        f"Event(id='shop/orders/7', payload={b'x' * 80!r}… (81 bytes), key={key}, "
        f"headers={{'note': {note}}})"
    )


def test_repr_shows_all_of_a_short_event() -> None:
    stamp = Stamp({"orders": 3})
    event = Event(topic="orders", payload=b"x" * 80, publisher="a", publisher_seq=1, stamp=stamp)
    assert repr(event) == f"Event(id='a/orders/1', payload={b'x' * 80!r}, stamp=Stamp(orders:3))"
