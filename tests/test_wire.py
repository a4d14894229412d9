"""Frames to bytes and back, and nothing but frames from bytes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensue import wire
from ensue.errors import RemoteProtocolError
from ensue.event import Event, Stamp
from ensue.protocols import ens, link
from ensue.protocols.core import Frame
from ensue.protocols.sequencer import frames
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import FRAMES
from ensue.wire import (
    ENTRIES_MAX,
    FRAME_BYTES_MAX,
    VERSION,
    Codec,
    Records,
    pack_stamp,
    unpack_stamp,
)

COUNT_MAX = 2**63 - 1
"""What nine bytes of seven bits hold."""
TOPICS = ("prices", "orders", "trades", "café")
CODEC = Codec(FRAMES, topics=TOPICS)
NUMBERS = {topic: number for number, topic in enumerate(TOPICS, 1)}

bounded = settings(derandomize=True, deadline=None, max_examples=150)

names = st.one_of(st.sampled_from(TOPICS), st.text(st.characters(codec="utf-8"), max_size=20))
counts = st.integers(0, COUNT_MAX)
stamps = st.builds(Stamp, st.dictionaries(names, counts, max_size=6), st.booleans())
events = st.builds(
    Event,
    topic=names,
    payload=st.binary(max_size=40),
    publisher=names,
    publisher_seq=counts,
    key=st.none() | st.binary(max_size=8),
    headers=st.dictionaries(names, names, max_size=2),
    published_at_ns=counts,
    stamp=st.none() | stamps,
    void=st.booleans(),
)
many_names = st.lists(names, max_size=4).map(tuple)
many_pairs = st.lists(st.tuples(counts, counts), max_size=4).map(tuple)
many_counts = st.lists(counts, max_size=4).map(tuple)
cuts = st.dictionaries(names, counts, max_size=4)
grants = st.lists(st.builds(frames.Grant, number=counts, stamp=stamps), max_size=3).map(tuple)

FIELDS: dict[type[Frame], dict[str, st.SearchStrategy[Any]]] = {
    ens.Put: {"event": events},
    ens.Accepted: {"topic": names, "event": names, "slot": counts},
    ens.Taken: {"topic": names, "event": names, "slot": counts},
    ens.AttachRequest: {"topic": names, "from_slot": counts},
    ens.Attached: {"topic": names, "first": counts, "next": counts, "sent": counts},
    ens.DetachRequest: {"topic": names},
    ens.Notify: {"event": events},
    link.LinkData: {"number": counts, "payload": st.binary(max_size=40)},
    link.LinkAck: {"number": counts},
    frames.StampRequest: {"number": counts, "topics": many_names, "settled": counts},
    frames.Fill: {
        "publisher": names,
        "origin": names,
        "number": counts,
        "topic": names,
        "stamp": stamps,
        "last": counts,
    },
    frames.Stamped: {"origin": names, "grants": grants},
    frames.Confirm: {"origin": names, "slots": many_pairs, "settled": counts},
    frames.Repeat: {"publisher": names, "number": counts},
    frames.Voided: {"origin": names, "numbers": many_counts},
    frames.ChangeRequest: {"number": counts, "old": many_names, "new": many_names},
    frames.ChangeFill: {
        "subscriber": names,
        "number": counts,
        "old": many_names,
        "new": many_names,
        "entries": cuts,
        "last": counts,
    },
    frames.Changed: {"number": counts, "cut": cuts},
    frames.ChangeRepeat: {"subscriber": names, "number": counts},
    frames.Forget: {"number": counts, "publisher": st.booleans()},
    frames.Refused: {"number": counts, "reason": names},
}
any_frame: st.SearchStrategy[Frame] = st.one_of(
    [st.builds(kind, **fields) for kind, fields in FIELDS.items()]
)


def refused(data: bytes, *, because: str | None = None) -> None:
    with pytest.raises(RemoteProtocolError, match=because) as caught:
        CODEC.decode(data, peer="the peer")
    assert caught.value.peer == "the peer"


def raw(*fields: object) -> bytes:
    """A frame written by hand."""
    return bytes((VERSION,)) + msgspec.msgpack.encode(list(fields))


def with_stamp(packed: bytes) -> bytes:
    """A `Fill` that carries these bytes for a stamp."""
    return raw(17, "publisher", "origin", 1, "prices", packed, 0)


# -- What goes in comes out -------------------------------------------------------------------------


def test_every_frame_is_covered() -> None:
    assert set(FIELDS) == set(FRAMES)


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.__name__)
def test_a_frame_of_every_kind_survives_the_roundtrip(kind: type[Frame]) -> None:
    @settings(derandomize=True, deadline=None, max_examples=30)
    @given(st.builds(kind, **FIELDS[kind]))
    def roundtrip(frame: Frame) -> None:
        back = CODEC.decode(CODEC.encode(frame))
        assert back == frame
        assert type(back) is kind

    roundtrip()


@bounded
@given(stamps)
def test_a_stamp_survives_the_roundtrip_with_and_without_a_list_of_topics(stamp: Stamp) -> None:
    for topics in (TOPICS, ()):
        numbers = {topic: number for number, topic in enumerate(topics, 1)}
        assert unpack_stamp(pack_stamp(stamp, numbers), topics) == stamp


@bounded
@given(events)
def test_a_persisted_event_survives_the_roundtrip(event: Event) -> None:
    records = Records[Event](Event)
    assert records.decode(records.encode(event)) == event


def test_tags_are_unique_among_all_frames() -> None:
    tags = [kind.__struct_config__.tag for kind in FRAMES]
    assert len(set(tags)) == len(tags)


# -- Sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "size"), [(1, 2), (127, 2), (128, 3), (16_383, 3), (16_384, 4), (2**21, 5)]
)
def test_an_entry_of_a_listed_topic_takes_two_to_five_bytes(count: int, size: int) -> None:
    assert len(pack_stamp(Stamp({"orders": count}), NUMBERS)) == 1 + size


def test_an_entry_of_a_topic_far_down_a_long_list_takes_one_byte_more() -> None:
    topics = [f"topic {number}" for number in range(1000)]
    numbers = {topic: number for number, topic in enumerate(topics, 1)}
    assert len(pack_stamp(Stamp({topics[126]: 1}), numbers)) == 3
    assert len(pack_stamp(Stamp({topics[127]: 1}), numbers)) == 4


def test_an_entry_of_an_unlisted_topic_carries_its_name() -> None:
    packed = pack_stamp(Stamp({"elsewhere": 7}), NUMBERS)
    assert packed == b"\x01\x00\x09elsewhere\x07"


def test_a_stamp_says_in_one_byte_whether_it_is_whole() -> None:
    assert pack_stamp(Stamp({}, whole=True), NUMBERS) == b"\x01"
    assert pack_stamp(Stamp({}, whole=False), NUMBERS) == b"\x00"


# -- Strictness -------------------------------------------------------------------------------------


@bounded
@given(any_frame, st.data())
def test_a_truncated_frame_is_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = CODEC.encode(frame)
    refused(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@bounded
@given(any_frame, st.binary(min_size=1, max_size=8))
def test_bytes_after_a_frame_are_refused(frame: Frame, garbage: bytes) -> None:
    refused(CODEC.encode(frame) + garbage)


@bounded
@given(any_frame)
def test_a_surplus_field_is_refused(frame: Frame) -> None:
    fields = msgspec.msgpack.decode(CODEC.encode(frame)[1:])
    refused(raw(*fields, "surplus"))


@bounded
@given(any_frame, st.integers(0, 255).filter(lambda version: version != VERSION))
def test_another_version_is_refused(frame: Frame, version: int) -> None:
    refused(bytes((version,)) + CODEC.encode(frame)[1:], because=f"version {version}")


def test_no_bytes_are_refused() -> None:
    refused(b"", because="no bytes")


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    refused(bytes((VERSION,)) + bytes(FRAME_BYTES_MAX), because="beyond the limit")


@pytest.mark.parametrize("tag", [0, 10, 15, 28, -1, "Put", None])
def test_an_unknown_tag_is_refused(tag: object) -> None:
    refused(raw(tag, 1))


@pytest.mark.parametrize(
    "fields",
    [
        (9,),
        (9, "1"),
        (9, None),
        (9, 1.5),
        (8, 1, "text"),
        (16, 1, "prices", 1),
        (16, 1, [1], 1),
        (19, "origin", [1, "2"], 1),
        (24, 1, [["prices", 1]]),
        (24, 1, {"prices": "1"}),
        (1, {"topic": "prices"}),
        (1, ["prices"]),
        (17, "publisher", "origin", 1, "prices", {"prices": 1}, 0),
        (17, "publisher", "origin", 1, "prices", "packed", 0),
    ],
    ids=repr,
)
def test_a_field_of_the_wrong_type_is_refused(fields: tuple[object, ...]) -> None:
    refused(raw(*fields))


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff\x10",  # an array of four thousand million
        b"\x94\x10\x01\xdd\xff\xff\xff\xff",  # so many topics
        b"\x93\x08\x01\xc6\xff\xff\xff\xff",  # so many bytes of payload
        b"\x92\x06\xdb\xff\xff\xff\xff",  # so long a name
        b"\x93\x18\x01\xdf\xff\xff\xff\xff",  # so large a map
        b"\x92\x09" + b"\x91" * 100_000,  # so deep
    ],
    ids=["array", "topics", "payload", "name", "map", "depth"],
)
def test_a_length_that_lies_is_refused(body: bytes) -> None:
    refused(bytes((VERSION,)) + body)


@pytest.mark.parametrize(
    ("packed", "because"),
    [
        (b"", "flag byte"),
        (b"\x02", "flag byte"),
        (b"\x01\x01\x05\x01\x06", "stands twice"),
        (b"\x01\x01\x05\x00\x06prices\x06", "stands twice"),
        (b"\x01\x05\x01", "not in the placement's list"),
        (b"\x01\x01", "cut off"),
        (b"\x01\x01\x80", "cut off"),
        (b"\x01\x00\x7fname\x01", "beyond the stamp's end"),
        (b"\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7fname", "beyond the stamp's end"),
        (b"\x01\x01" + b"\xff" * 9 + b"\x01", "too long"),
        (b"\x01\x00\x02\xff\xfe\x01", "utf-8"),
    ],
    ids=repr,
)
def test_a_stamp_that_breaks_its_rules_is_refused(packed: bytes, because: str) -> None:
    refused(with_stamp(packed), because=because)


def test_a_stamp_may_name_every_topic_that_a_node_may_know() -> None:
    assert SequencerConfig().topics_max <= ENTRIES_MAX == 1_048_576


def test_a_stamp_with_too_many_entries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ENTRIES_MAX", 1000)
    topics = [f"t{number}" for number in range(1001)]
    numbers = {topic: number for number, topic in enumerate(topics, 1)}
    codec = Codec(FRAMES, topics=topics)
    fits = Stamp(dict.fromkeys(topics[:-1], 1))
    frame = frames.Fill(publisher="p", origin="o", number=1, topic="t0", stamp=fits, last=0)
    assert codec.decode(codec.encode(frame)) == frame
    packed = pack_stamp(Stamp(dict.fromkeys(topics, 1)), numbers)
    with pytest.raises(RemoteProtocolError, match="at most"):
        codec.decode(with_stamp(packed))


def test_the_largest_count_fits_and_nothing_beyond() -> None:
    assert unpack_stamp(pack_stamp(Stamp({"prices": COUNT_MAX}), NUMBERS), TOPICS).entries == {
        "prices": COUNT_MAX
    }
    with pytest.raises(ValueError, match="too long"):
        unpack_stamp(pack_stamp(Stamp({"prices": COUNT_MAX + 1}), NUMBERS), TOPICS)


@settings(derandomize=True, deadline=None, max_examples=800)
@given(st.binary(max_size=80))
def test_random_bytes_are_a_frame_or_refused_and_nothing_else(data: bytes) -> None:
    for candidate in (data, bytes((VERSION,)) + data):
        try:
            frame = CODEC.decode(candidate)
        except RemoteProtocolError:
            continue
        assert isinstance(frame, FRAMES)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(any_frame, st.data())
def test_a_damaged_frame_is_a_frame_or_refused_and_nothing_else(
    frame: Frame, data: st.DataObject
) -> None:
    damaged = bytearray(CODEC.encode(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = CODEC.decode(bytes(damaged))
    except RemoteProtocolError:
        return
    assert isinstance(decoded, FRAMES)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(st.binary(max_size=40))
def test_random_bytes_for_a_stamp_are_a_stamp_or_refused_and_nothing_else(packed: bytes) -> None:
    try:
        frame = CODEC.decode(with_stamp(packed))
    except RemoteProtocolError:
        return
    again = unpack_stamp(pack_stamp(frame.stamp, NUMBERS), TOPICS)
    assert again == frame.stamp


def test_a_value_with_no_wire_form_is_refused_on_this_side() -> None:
    frame = ens.Put(event=Event(topic="t", payload=b"", publisher="p", publisher_seq=1))
    broken = msgspec.structs.replace(frame, event=object())
    with pytest.raises(TypeError, match="object has no wire form"):
        CODEC.encode(broken)
