"""The bytes of a journal: frames, and what stands in them.

A file is a row of frames, and a frame is

    marker   4 bytes   what the payload is: `HEAD`, `SNAPSHOT`, `BATCH`, `SIDECAR` or `MANIFEST`
    crc      4 bytes   CRC-32 of all that follows
    length   4 bytes   of the payload
    number   8 bytes   of the batch; a head and a snapshot carry that of the batch after them
    durable  8 bytes   the last batch that was known to be on the disk when this frame was made
    payload            MessagePack

A segment is a head, a snapshot of the map and batches. A batch is one map from key to value, None
for what is removed; of two writes to one key in a batch only the later one is ever seen.

The checksum starts from the journal's salt plus the frame's place in the whole log. So a frame is
good at its own place only: a copy of it elsewhere, be it a block that the disk wrote to the wrong
place or a journal published as an event, is not taken for one.

`durable` is what tells damage from a write that was never finished. A spot that can't be read is of
no concern as long as no receipt covers it; a later frame that knows of that promise proves that the
disk lost something. HAZARD: the last batches have no later frame. Damage there looks like a write
that was never finished, and is cut off, unless the journal was closed: then the manifest knows the
end.
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
    "merge",
    "no_event_key",
    "offsets_of",
    "promises",
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
"""What the key of an event starts with; its slot, a slash and its topic follow."""
SLOT_MAX = (1 << 62) - 1

_FIELDS = Struct("<IQQ")
_LEAD = Struct("<4sI")
FRAME_BYTES = _LEAD.size + _FIELDS.size
"""Of a frame beside its payload."""

Batch = dict[str, bytes | None]


class Head(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The first frame of a segment: its place in the log."""

    format: int = FORMAT
    segment: int
    base: int
    """Where the segment starts in the whole log, in bytes."""
    first_batch: int
    salt: int
    created_s: float
    """When it was begun, which is when the segment before it got its last batch."""
    manifest: bool = False
    """Whether the journal had a manifest by then: older ones have none."""


class End(msgspec.Struct, frozen=True, array_like=True):
    """Where a log ended when it was closed."""

    segment: int
    size: int
    """Of that segment."""
    next_batch: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What is to be known of the whole log: which one it is, where it begins, where it ended."""

    format: int = FORMAT
    identity: str
    """Random; made with the journal, and again when an operator accepts lost events."""
    salt: int
    first: int
    """The number of the first segment: those before it were dropped."""
    end: End | None = None
    """None as long as the journal is open, and if the process that had it open was killed."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The second frame of a segment: all that is known of the segments before it but events."""

    records: dict[str, bytes]
    next_slots: dict[str, int]
    """Topic to the slot after its last: the events themselves may have been dropped since."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What one segment changed in the index of one topic."""

    first: int
    next: int
    start: int
    """The slot of the first of `offsets`."""
    offsets: bytes
    """Where the events are in the whole log, eight bytes each, negative for none."""


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """All that is to be known of a sealed segment without reading it."""

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
    """A frame that was read and is as it was written."""

    payload: memoryview
    number: int
    durable: int
    end: int
    """Where the next one starts."""


encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode
decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode_sidecar = msgspec.msgpack.Decoder(Sidecar).decode
_decode_manifest = msgspec.msgpack.Decoder(Manifest).decode


def salted(salt: int, offset: int) -> int:
    """Return what the checksum of a frame at a place in the whole log starts from."""
    return (salt + offset) & 0xFFFFFFFF


def frame_header(
    marker: bytes, payload: bytes, start: int, number: int = 0, durable: int = 0
) -> bytes:
    """Return the bytes that go in front of a payload; `start` is as `salted` says."""
    fields = _FIELDS.pack(len(payload), number, durable)
    return _LEAD.pack(marker, crc32(payload, crc32(fields, start))) + fields


def frame_length(data: bytes, at: int) -> int:
    """Return how long the frame says it is, if the bytes reach as far as its header does."""
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


def promises(data: bytes, at: int, *, base: int, salt: int, number: int) -> bool:
    """Tell whether a whole batch from here on knows that batch `number` was on the disk."""
    while (at := data.find(BATCH, at)) >= 0:
        # Only what claims to know is worth its checksum: chance finds of the marker are dismissed.
        if at + FRAME_BYTES <= len(data):
            _, later, durable = _FIELDS.unpack_from(data, at + _LEAD.size)
            if number <= durable < later and read_frame(
                data, at, BATCH, start=salted(salt, base + at)
            ):
                return True
        at += 1
    return False


def decode_sidecar(data: bytes) -> Sidecar | None:
    """Return a sidecar, or None if it is damaged or of another kind of machine: make it anew."""
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
    """Return the offsets of a part as numbers."""
    found = array("q")
    found.frombytes(part.offsets)
    return found


def event_key(topic: str, slot: int) -> str:
    """Return the key under which an event is written."""
    return f"{EVENT}{slot}/{topic}"


def no_event_key(key: str) -> BadInput:
    """Return the error for a key that starts as an event's does and does not go on like one.

    A slot is written in one way only: an event that two keys name could be read by one of them.
    """
    return BadInput(
        f"{key!r} is no key of an event: expected {EVENT}<slot>/<topic>, "
        f"the slot a plain number up to {SLOT_MAX}"
    )


def merge(records: dict[str, bytes], others: Mapping[str, bytes | None]) -> None:
    """Write the records of a batch into the map."""
    for key, value in others.items():
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value


def batches(data: bytes, at: int, *, base: int, salt: int, number: int) -> Iterator[Frame]:
    """Yield the batches from a place on, as long as they are whole and numbered without a gap."""
    while frame := read_frame(data, at, BATCH, start=salted(salt, base + at)):
        if frame.number != number:
            return
        yield frame
        number += 1
        at = frame.end
