"""Roundtrips of frames, and refusal of all other bytes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensue import orders
from ensue.core import lineage
from ensue.core.errors import RemoteProtocolError
from ensue.core.event import COUNT_MAX, NAME_LENGTH_MAX, Event, Stamp
from ensue.core.wire import FRAME_BYTES_MAX, VERSION, Codec, Records
from ensue.protocols.causal import frames as cube
from ensue.protocols.content import frames as overlay
from ensue.protocols.deadline import frames as gossip
from ensue.protocols.interface import Frame
from ensue.protocols.membership import frames as membership
from ensue.protocols.shared import link, state_store
from ensue.protocols.topic_log import fanout, log_identity
from ensue.protocols.topic_log import frames as ens
from ensue.protocols.total import discovery, frames, status
from ensue.protocols.total.config import SequencerConfig

TOPICS = ("prices", "orders", "trades", "café")
FRAMES = orders.wire_frames()
CODEC = Codec(FRAMES)

bounded = settings(derandomize=True, deadline=None, max_examples=150)

names = st.one_of(
    st.sampled_from(TOPICS), st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
)
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
records = st.dictionaries(names, st.binary(max_size=8), max_size=3)
writes = st.lists(st.tuples(names, st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
cuts = st.dictionaries(names, counts, max_size=4)
grants = st.lists(st.builds(frames.Grant, number=counts, stamp=stamps), max_size=3).map(tuple)
numbers = st.integers(0, (1 << 16) - 1)
heights = st.integers(1, 16)
sets = st.binary(max_size=8)
some_counts = st.dictionaries(numbers, counts, max_size=3)
by_topic = st.dictionaries(names, some_counts, max_size=3)
items = st.lists(st.builds(cube.Item, event=events, after=by_topic), max_size=3).map(tuple)
rows = st.builds(cube.Row, node=numbers, version=counts, topics=many_names)
many_rows = st.lists(rows, max_size=3).map(tuple)
many_numbers = st.lists(numbers, max_size=3).map(tuple)
actions = st.sampled_from(("publish", "subscribe"))
groups = st.builds(gossip.Row, node=numbers, version=counts, topics=many_names)
by_source = st.dictionaries(numbers, many_counts, max_size=3)

terms = st.text(max_size=20)
logs = st.builds(
    lineage.Lineage,
    st.text(max_size=16),
    st.lists(st.builds(lineage.Incarnation, counts, counts, counts), max_size=3).map(tuple),
)

moves: dict[str, st.SearchStrategy[Any]] = {
    "topic": names,
    "to": names,
    "phase": counts,
    "count": counts,
    "counts": st.dictionaries(names, counts, max_size=4),
    "registered": st.lists(
        st.builds(
            frames.Registered,
            subscriber=names,
            number=counts,
            topics=many_names,
            left=many_names,
        ),
        max_size=3,
    ).map(tuple),
}
FIELDS: dict[type[Frame], dict[str, st.SearchStrategy[Any]]] = {
    ens.Put: {"event": events},
    ens.Accepted: {"topic": names, "event": names, "slot": counts},
    ens.Taken: {"topic": names, "event": names, "slot": counts},
    ens.AttachRequest: {"topic": names, "from_slot": counts},
    ens.Attached: {"topic": names, "first": counts, "next": counts, "sent": counts},
    ens.DetachRequest: {"topic": names},
    ens.Notify: {"event": events},
    ens.Fetch: {
        "topic": names,
        "start": counts,
        "stop": counts,
        "place": counts,
        "survey": st.none() | many_names,
    },
    ens.Fetched: {
        "topic": names,
        "start": counts,
        "first": counts,
        "next": counts,
        "end": counts,
        "events": st.lists(events, max_size=3).map(tuple),
    },
    ens.Surveyed: {
        "start": counts,
        "next": counts,
        "end": counts,
        "topics": st.dictionaries(names, st.tuples(counts, counts), max_size=4),
    },
    ens.LogEnd: {"topic": names, "next": counts, "silent_ns": counts},
    link.LinkData: {"number": counts, "payload": st.binary(max_size=40)},
    link.LinkAck: {"number": counts},
    link.LinkGap: {"number": counts, "early": many_counts},
    link.LinkState: {
        "first": counts,
        "next": counts,
        "expected": counts,
        "wanted": st.booleans(),
    },
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
    frames.Move: moves,
    frames.MoveDecision: {"move": st.builds(frames.Move, **moves)},
    frames.MoveStep: {"number": counts, "topic": names, "phase": counts},
    frames.KnownMoves: {
        "parts": st.dictionaries(
            names, st.lists(st.tuples(names, counts), max_size=4).map(tuple), max_size=4
        ),
        "seen": counts,
        "wanted": st.booleans(),
        "complete": st.booleans(),
        "lost": counts,
    },
    frames.Moved: {
        "topic": names,
        "parts": st.lists(st.tuples(names, counts), max_size=4).map(tuple),
        "number": counts,
    },
    frames.MoveRequest: {"number": counts, "topic": names, "to": names},
    frames.MoveReply: {"number": counts, "moved": st.booleans(), "refusal": names},
    frames.ChangeRepeat: {"subscriber": names, "number": counts},
    frames.Forget: {"number": counts, "publisher": st.booleans()},
    frames.Refused: {"number": counts, "reason": names},
    frames.OrderRequest: {
        "number": counts,
        "events": st.lists(events, max_size=3).map(tuple),
        "settled": counts,
    },
    frames.Expired: {"name": names},
    frames.PublisherLost: {"publisher": names},
    frames.Out: {"origin": names, "slots": many_pairs},
    state_store.Recall: {"number": counts},
    state_store.Recalled: {"number": counts, "epoch": counts, "records": records},
    state_store.Remember: {"epoch": counts, "number": counts, "writes": writes},
    state_store.Remembered: {"epoch": counts, "number": counts},
    state_store.NotKept: {"epoch": counts, "reason": names},
    state_store.Dismiss: {"epoch": counts},
    state_store.Dismissed: {"epoch": counts},
    state_store.NotRecalled: {"number": counts, "reason": names},
    discovery.Discover: {"number": counts},
    discovery.Described: {
        "number": counts,
        "nodes": st.lists(st.tuples(names, many_names), max_size=2).map(tuple),
        "closed": st.booleans(),
        "config": st.just(SequencerConfig(carries=True)),
    },
    status.StatusRequest: {
        "number": counts,
        "readable": st.none() | many_names,
        "topics": many_names,
    },
    status.StatusReply: {
        "number": counts,
        "state": st.binary(max_size=20),
        "bounds": st.dictionaries(names, st.tuples(counts, counts), max_size=2),
    },
    fanout.Declined: {"topic": names, "event": names, "reason": names},
    fanout.Agree: {"terms": terms},
    fanout.Agreed: {"terms": terms},
    log_identity.Identify: {"number": counts},
    log_identity.Identified: {"number": counts, "log": logs, "damage": names},
    log_identity.LogRefused: {"known": logs},
    membership.Register: {
        "epoch": counts,
        "known": counts,
        "gone": counts,
        "terms": names,
        "digest": st.binary(max_size=16),
        "asked": counts,
        "topics": many_names,
    },
    membership.Members: {
        "epoch": counts,
        "first": counts,
        "names": many_names,
        "total": counts,
        "gone_first": counts,
        "gone": many_numbers,
        "gone_total": counts,
        "digest": st.binary(max_size=16),
        "asked": counts,
        "readers": st.dictionaries(names, many_numbers, max_size=3),
    },
    membership.Evicted: {"reason": names},
    membership.Deregister: {"epoch": counts},
    membership.TopicRequest: {"topic": names, "action": actions, "asked": counts},
    membership.TopicGranted: {"topic": names, "action": actions},
    membership.TopicDenied: {"topic": names, "action": actions, "reason": names},
    membership.TopicReleased: {"topic": names, "asked": counts},
    cube.Publication: {"token": counts, "height": heights, "below": sets, "items": items},
    cube.Change: {
        "token": counts,
        "height": heights,
        "below": sets,
        "row": rows,
        "joins": many_names,
    },
    cube.Receipt: {
        "token": counts,
        "covered": sets,
        "final": st.booleans(),
        "rows": many_rows,
        "vectors": by_topic,
        "doubts": st.dictionaries(names, many_numbers, max_size=3),
    },
    cube.Summary: {
        "topic": names,
        "have": some_counts,
        "follows": st.booleans(),
        "request": counts,
        "only": many_numbers,
        "room": counts,
    },
    cube.Fill: {"topic": names, "request": counts, "items": items, "more": st.booleans()},
    cube.NotCached: {"topic": names, "source": numbers, "up_to": counts},
    cube.Heartbeat: {"digest": sets},
    cube.Alive: {},
    cube.Versions: {"versions": some_counts, "answer": st.booleans()},
    cube.Rows: {"rows": many_rows},
    gossip.Message: {
        "event": events,
        "source": numbers,
        "dest": sets,
        "base": counts,
        "after": st.dictionaries(numbers, st.dictionaries(counts, sets, max_size=2), max_size=2),
        "round": counts,
        "live": by_topic,
        "heard": counts,
    },
    gossip.Summary: {"have": by_source, "heard": counts},
    gossip.Request: {"wanted": by_source, "baseless": st.booleans()},
    gossip.Groups: {"row": groups},
    gossip.Noted: {"version": counts, "row": groups},
    overlay.Hello: {},
    overlay.Beat: {},
    overlay.Expired: {},
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


def with_stamp(*stamp: object) -> bytes:
    """A `Fill` with these fields as its stamp."""
    return raw(17, "publisher", "origin", 1, "prices", list(stamp), 0)


# -- Roundtrips -----------------------------------------------------------------------------------


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
@given(events)
def test_a_persisted_event_survives_the_roundtrip(event: Event) -> None:
    records = Records[Event](Event)
    assert records.decode(records.encode(event)) == event


def test_tags_are_unique_among_all_frames() -> None:
    tags = [kind.__struct_config__.tag for kind in FRAMES]
    assert len(set(tags)) == len(tags)


# -- Sizes ----------------------------------------------------------------------------------------


def test_an_entry_of_a_stamp_costs_its_topic_and_its_count() -> None:
    without = ens.Notify(event=Event(topic="t", payload=b"", publisher="p", publisher_seq=1))
    stamped = ens.Notify(event=msgspec.structs.replace(without.event, stamp=Stamp({"orders": 7})))
    # Array, map, topic with its length, count and flag, instead of one byte for None.
    assert len(CODEC.encode(stamped)) - len(CODEC.encode(without)) == 1 + 1 + 7 + 1 + 1 - 1


# -- Strictness -----------------------------------------------------------------------------------


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


def test_oversized_frame_is_refused_before_it_is_decoded() -> None:
    refused(bytes((VERSION,)) + bytes(FRAME_BYTES_MAX), because="exceeds the limit")


@pytest.mark.parametrize("tag", [0, 12, 15, 31, 48, -1, "Put", None])
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
        (28, 1, [["prices", b"", "p"]], 1),
        (42, 1, 1, [["key"]]),
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
def test_false_length_is_refused(body: bytes) -> None:
    refused(bytes((VERSION,)) + body)


@pytest.mark.parametrize(
    "stamp",
    [
        (),
        ([],),
        ({"prices": 1}, "true"),
        ({"prices": 1}, True, 1),
        ({"prices": -1}, True),
        ({"prices": COUNT_MAX + 1}, True),
        ({"": 1}, True),
        ({"x" * (NAME_LENGTH_MAX + 1): 1}, True),
        ({1: 1}, True),
    ],
    ids=repr,
)
def test_a_stamp_that_breaks_its_rules_is_refused(stamp: tuple[object, ...]) -> None:
    refused(with_stamp(*stamp))


def test_text_that_is_not_utf_8_is_refused() -> None:
    refused(bytes((VERSION,)) + b"\x92\x06\xa2\xff\xfe")


def test_the_largest_count_fits() -> None:
    frame = CODEC.decode(with_stamp({"prices": COUNT_MAX}, True))
    assert frame.stamp == Stamp({"prices": COUNT_MAX})


@pytest.mark.parametrize("number", [-1, COUNT_MAX + 1, 2**64 - 1])
def test_count_out_of_range_is_refused(number: int) -> None:
    refused(raw(9, number))
    refused(raw(25, "subscriber", number))


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


def test_unencodable_value_is_refused_by_the_sender() -> None:
    frame = ens.Put(event=Event(topic="t", payload=b"", publisher="p", publisher_seq=1))
    broken = msgspec.structs.replace(frame, event=object())
    with pytest.raises(TypeError, match="type object is unsupported"):
        CODEC.encode(broken)
