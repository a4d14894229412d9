"""The on-disk format of a journal: frames and their payloads.

A file is a sequence of frames. A frame is

    marker   4 bytes   kind of payload: `HEAD`, `SNAPSHOT`, `BATCH`, `SIDECAR` or `MANIFEST`
    crc      4 bytes   CRC-32 of all that follows
    length   4 bytes   of the payload
    number   8 bytes   of the batch; in a head or snapshot, of the batch after it
    durable  8 bytes   the last batch known to be durable when this frame was written
    payload            MessagePack

A segment is a head, a snapshot of the map, and batches. A batch is one map from key to value, None
for a removed key. If a batch writes one key twice, the last write wins.

The checksum starts from the journal's salt plus the frame's offset in the log. So a frame is valid
at its own offset only. A copy elsewhere is not: a block that the disk wrote to the wrong place, or
a journal published as an event.

`durable` distinguishes damage from an unfinished write. An unreadable frame is harmless if no
receipt covers it; if a later frame says that it was durable, the disk lost it. HAZARD: the last
batches have no later frame. Damage there looks like an unfinished write and is truncated, unless
the journal was closed: then the manifest records the end.
"""

import sys
from array import array
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

from ensue.core.errors import BadInput

__all__ = [
    "BATCH",
    "EVENT",
    "FORMAT",
    "FRAME_BYTES",
    "HEAD",
    "MANIFEST",
    "SIDECAR",
    "SLOT_MAX",
    "SNAPSHOT",
    "Batch",
    "End",
    "Frame",
    "Head",
    "Manifest",
    "Part",
    "Sidecar",
    "Snapshot",
    "batches",
    "decode_batch",
    "decode_head",
    "decode_manifest",
    "decode_sidecar",
    "decode_snapshot",
    "encode",
    "encode_manifest",
    "event_key",
    "frame_header",
    "frame_length",
    "invalid_event_key",
    "merge",
    "offsets_of",
    "proves_durable",
    "read_frame",
    "salted",
]

FORMAT = 1
HEAD = b"ENSh"
SNAPSHOT = b"ENSs"
BATCH = b"ENSb"
SIDECAR = b"ENSi"
MANIFEST = b"ENSm"
EVENT = "event/"
"""Prefix of an event's key; the slot, a slash and the topic follow."""
SLOT_MAX = (1 << 62) - 1

_FIELDS = Struct("<IQQ")
_LEAD = Struct("<4sI")
FRAME_BYTES = _LEAD.size + _FIELDS.size
"""Size of a frame without its payload."""

Batch = dict[str, bytes | None]


class Head(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The first frame of a segment: its place in the log."""

    format: int = FORMAT
    segment: int
    base: int
    """Offset of the segment in the log."""
    first_batch: int
    salt: int
    created_s: float
    """When it was created, which is when the segment before it was sealed."""
    manifest: bool = False
    """Whether the journal had a manifest then; those of older releases had none."""


class End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a log when it was closed."""

    segment: int
    size: int
    """Size of that segment."""
    next_batch: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The identity, start and end of a log."""

    format: int = FORMAT
    identity: str
    """Random; drawn when the journal is created, and again when an operator accepts losses."""
    salt: int
    first: int
    """Number of the first segment; those before it were dropped."""
    end: End | None = None
    """None while the journal is open, and after its process was killed."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The second frame of a segment: the state before it, except events."""

    records: dict[str, bytes]
    next_slots: dict[str, int]
    """By topic, the slot after its last event, which may have been dropped since."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The changes of one segment to the index of one topic."""

    first: int
    next: int
    start: int
    """Slot of the first offset."""
    offsets: bytes
    """Offsets of events in the log, eight bytes each, negative for none."""


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The summary of a sealed segment, which replaces reading it."""

    format: int = FORMAT
    byteorder: str = sys.byteorder
    segment: int
    base: int
    size: int
    first_batch: int
    next_batch: int
    salt: int
    closed_s: float
    parts: dict[str, Part]


class Frame(NamedTuple):
    """A frame with a valid checksum."""

    payload: memoryview
    number: int
    durable: int
    end: int
    """Offset of the next frame."""


encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode
decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode_sidecar = msgspec.msgpack.Decoder(Sidecar).decode
_decode_manifest = msgspec.msgpack.Decoder(Manifest).decode


def salted(salt: int, offset: int) -> int:
    """Return the initial checksum of a frame at an offset of the log."""
    return (salt + offset) & 0xFFFFFFFF


def frame_header(
    marker: bytes, payload: bytes, start: int, number: int = 0, durable: int = 0
) -> bytes:
    """Return the header of a payload; `start` is the initial checksum (`salted`)."""
    fields = _FIELDS.pack(len(payload), number, durable)
    return _LEAD.pack(marker, crc32(payload, crc32(fields, start))) + fields


def frame_length(data: bytes, at: int) -> int:
    """Return the length of a frame by its header, or of the header if that is torn."""
    if at + FRAME_BYTES > len(data):
        return FRAME_BYTES
    length: int = _FIELDS.unpack_from(data, at + _LEAD.size)[0]
    return FRAME_BYTES + length


def read_frame(data: bytes, at: int, marker: bytes, *, start: int) -> Frame | None:
    """Return the frame at an offset, or None if it is torn or damaged."""
    if at + FRAME_BYTES > len(data):
        return None
    found, checksum = _LEAD.unpack_from(data, at)
    length, number, durable = _FIELDS.unpack_from(data, at + _LEAD.size)
    end = at + FRAME_BYTES + length
    if found != marker or end > len(data):
        return None
    view = memoryview(data)
    if crc32(view[at + _LEAD.size : end], start) != checksum:
        return None
    return Frame(view[at + FRAME_BYTES : end], number, durable, end)


def proves_durable(data: bytes, at: int, *, base: int, salt: int, number: int) -> bool:
    """Return whether a later whole batch says that batch `number` was durable."""
    while (at := data.find(BATCH, at)) >= 0:
        # The marker may occur in payloads: check the cheap fields before the checksum.
        if at + FRAME_BYTES <= len(data):
            _, later, durable = _FIELDS.unpack_from(data, at + _LEAD.size)
            if number <= durable < later and read_frame(
                data, at, BATCH, start=salted(salt, base + at)
            ):
                return True
        at += 1
    return False


def decode_sidecar(data: bytes) -> Sidecar | None:
    """Return a sidecar; None if it is damaged or has another byte order: rebuild it."""
    frame = read_frame(data, 0, SIDECAR, start=0)
    if frame is None or frame.end != len(data):
        return None
    try:
        found = _decode_sidecar(frame.payload)
    except msgspec.DecodeError:
        return None
    return found if (found.format, found.byteorder) == (FORMAT, sys.byteorder) else None


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest."""
    payload = encode(manifest)
    return frame_header(MANIFEST, payload, start=0) + payload


def decode_manifest(data: bytes) -> Manifest | None:
    """Return a manifest, or None if it is damaged."""
    frame = read_frame(data, 0, MANIFEST, start=0)
    if frame is None or frame.end != len(data):
        return None
    try:
        return _decode_manifest(frame.payload)
    except msgspec.DecodeError:
        return None


def offsets_of(part: Part) -> "array[int]":
    """Return the offsets of a part as an array."""
    found = array("q")
    found.frombytes(part.offsets)
    return found


def event_key(topic: str, slot: int) -> str:
    """Return the key of an event."""
    return f"{EVENT}{slot}/{topic}"


def invalid_event_key(key: str) -> BadInput:
    """Return the error for a malformed event key.

    A slot has one spelling only: with two, an event could be written by one key and read by the
    other.
    """
    return BadInput(
        f"event key {key!r} is malformed: expected {EVENT}<slot>/<topic>, with a decimal slot "
        f"from 0 to {SLOT_MAX}"
    )


def merge(records: dict[str, bytes], others: Mapping[str, bytes | None]) -> None:
    """Apply the records of a batch to the map."""
    for key, value in others.items():
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value


def batches(data: bytes, at: int, *, base: int, salt: int, number: int) -> Iterator[Frame]:
    """Yield batches from an offset until one is torn or its number does not follow."""
    while frame := read_frame(data, at, BATCH, start=salted(salt, base + at)):
        if frame.number != number:
            return
        yield frame
        number += 1
        at = frame.end
