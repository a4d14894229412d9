"""Frames to bytes and back: versioned, bounded, strict.

A frame is one version byte and one MessagePack array: the frame's tag, then its fields in order.
Stamps are packed: a flag byte, then an entry each as a topic and a count, both as variable-length
integers of seven bits a byte. A topic that both sides know from the placement's list is its number
there (1, 2, 3, …); any other is a zero, its length and its name. So an entry of a listed topic
takes two to five bytes.

Nothing is read beyond its stated length, no length is believed beyond its limit, and what does not
decode to exactly one frame raises `RemoteProtocolError` and has no effect.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

import msgspec

from ensue.errors import RemoteProtocolError
from ensue.event import Stamp

__all__ = [
    "ENTRIES_MAX",
    "FRAME_BYTES_MAX",
    "VERSION",
    "Codec",
    "Records",
    "pack_stamp",
    "unpack_stamp",
]

VERSION = 1
FRAME_BYTES_MAX = 32 * 1024 * 1024
ENTRIES_MAX = 1_048_576
"""Entries of one stamp: more than a node may know topics."""
_VARINT_BYTES_MAX = 9
_WHOLE = 1

T = TypeVar("T")


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(at, min(at + _VARINT_BYTES_MAX, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    raise ValueError(f"a number at byte {at} of the stamp is cut off or too long")


def pack_stamp(stamp: Stamp, numbers: dict[str, int]) -> bytes:
    """Return a stamp's bytes; `numbers` maps the topics that both sides know to 1, 2 and so on."""
    out = bytearray((_WHOLE if stamp.whole else 0,))
    for topic, count in stamp.entries.items():
        number = numbers.get(topic)
        if number is None:
            name = topic.encode()
            out.append(0)
            _write_varint(out, len(name))
            out += name
        else:
            _write_varint(out, number)
        _write_varint(out, count)
    return bytes(out)


def unpack_stamp(data: bytes, topics: Sequence[str]) -> Stamp:
    """Return the stamp that `pack_stamp` packed, or raise ValueError."""
    if not data or data[0] not in (0, _WHOLE):
        raise ValueError("a stamp starts with a flag byte of 0 or 1")
    entries: dict[str, int] = {}
    at = 1
    while at < len(data):
        if len(entries) >= ENTRIES_MAX:
            raise ValueError(f"a stamp has at most {ENTRIES_MAX} entries")
        number, at = _read_varint(data, at)
        if number == 0:
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError(f"a topic of {size} bytes goes beyond the stamp's end")
            topic = data[at : at + size].decode()
            at += size
        elif number <= len(topics):
            topic = topics[number - 1]
        else:
            raise ValueError(f"topic number {number} is not in the placement's list")
        if topic in entries:
            raise ValueError(f"topic {topic!r} stands twice in one stamp")
        entries[topic], at = _read_varint(data, at)
    return Stamp(entries, data[0] == _WHOLE)


def _hooks(
    topics: Sequence[str],
) -> tuple[Callable[[object], object], Callable[[type, Any], object]]:
    numbers = {topic: index for index, topic in enumerate(topics, 1)}

    def encode_hook(value: object) -> object:
        if isinstance(value, Stamp):
            return pack_stamp(value, numbers)
        raise TypeError(f"{type(value).__name__} has no wire form")

    def decode_hook(kind: type, value: Any) -> object:
        if kind is Stamp and isinstance(value, bytes):
            return unpack_stamp(value, topics)
        raise ValueError(f"expected packed bytes for {kind.__name__}")

    return encode_hook, decode_hook


class Records(Generic[T]):
    """Encodes and decodes the values of one type that a node persists."""

    __slots__ = ("decode", "encode")

    def __init__(self, kind: Any) -> None:
        encode_hook, decode_hook = _hooks(())
        self.encode: Callable[[T], bytes] = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
        self.decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(
            kind, dec_hook=decode_hook
        ).decode


class Codec:
    """Encodes and decodes a closed set of frame types.

    `topics` is the list that both sides know, usually `Placement.topics`.
    """

    __slots__ = ("_decode", "_encode")

    def __init__(self, frames: Iterable[Any], *, topics: Sequence[str] = ()) -> None:
        encode_hook, decode_hook = _hooks(topics)
        union = reduce(or_, frames)
        self._encode = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
        self._decode: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(
            union, dec_hook=decode_hook
        ).decode

    def encode(self, frame: msgspec.Struct) -> bytes:
        """Return a frame's bytes."""
        return bytes((VERSION,)) + self._encode(frame)

    def decode(self, data: bytes, *, peer: str = "") -> Any:
        """Return the frame, or raise `RemoteProtocolError` naming what is wrong with the bytes."""
        if len(data) > FRAME_BYTES_MAX:
            raise RemoteProtocolError(
                f"a frame of {len(data)} bytes is beyond the limit of {FRAME_BYTES_MAX}", peer=peer
            )
        if not data or data[0] != VERSION:
            found = f"version {data[0]}" if data else "no bytes"
            raise RemoteProtocolError(
                f"expected a frame of version {VERSION}, found {found}", peer=peer
            )
        try:
            return self._decode(memoryview(data)[1:])
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RemoteProtocolError(
                f"a frame of {len(data)} bytes can't be read: {error}", peer=peer
            ) from error
