"""Frames to bytes and back: versioned, bounded, strict.

A frame is one version byte and one MessagePack array: the frame's tag, then its fields in order. A
bundle is one message between two peers: one version byte and one array of the target's name, the
source's name, and an array of encoded frames.

Decoding checks every length against its limit and reads no further. Bytes that are not exactly one
frame or bundle raise `RemoteProtocolError` and have no effect.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

import msgspec

from ensue.core.errors import RemoteProtocolError
from ensue.core.event import Name

__all__ = ["FRAME_BYTES_MAX", "VERSION", "Codec", "Records", "bundle"]

VERSION = 2
FRAME_BYTES_MAX = 32 * 1024 * 1024

T = TypeVar("T")


class Records(Generic[T]):
    """Encodes and decodes the values of one type that a node persists."""

    __slots__ = ("decode", "encode")

    def __init__(self, kind: Any) -> None:
        self.encode: Callable[[T], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(kind).decode


class Codec:
    """Encodes and decodes a closed set of frame types."""

    __slots__ = ("_decode", "_decode_bundle", "body")

    def __init__(self, frames: Iterable[Any]) -> None:
        union = reduce(or_, frames)
        self.body: Callable[[msgspec.Struct], bytes] = msgspec.msgpack.Encoder().encode
        """Return a frame's bytes for a bundle, without the version."""
        self._decode: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(union).decode
        self._decode_bundle: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(
            tuple[Name, Name, list[union]]  # type: ignore[valid-type]
        ).decode

    def encode(self, frame: msgspec.Struct) -> bytes:
        """Return a frame's bytes."""
        return bytes((VERSION,)) + self.body(frame)

    def decode(self, data: bytes, *, peer: str = "") -> Any:
        """Return the frame, or raise `RemoteProtocolError`."""
        return _read(self._decode, data, peer)

    def unbundle(self, data: bytes, *, peer: str = "") -> tuple[str, str, list[Any]]:
        """Return target, source and frames of a bundle, or raise `RemoteProtocolError`."""
        target, source, frames = _read(self._decode_bundle, data, peer)
        return target, source, frames


def bundle(target: str, source: str, bodies: Sequence[bytes], count: int | None = None) -> bytes:
    """Return the bundle of encoded frames from one peer to another.

    `count` is the number of frames, if some of the bodies hold several.
    """
    names = _NAMES((target, source))
    size = (len(bodies) if count is None else count).to_bytes(4, "big")
    # `names` is an array of two: replace its header, so that it begins an array of three.
    return b"".join((_OPENING, names[1:], b"\xdd", size, *bodies))


_NAMES = msgspec.msgpack.Encoder().encode
_OPENING = bytes((VERSION, 0x93))


def _read(decode: Callable[[bytes | memoryview], Any], data: bytes, peer: str) -> Any:
    if len(data) > FRAME_BYTES_MAX:
        raise RemoteProtocolError(
            f"a frame of {len(data)} bytes exceeds the limit of {FRAME_BYTES_MAX}", peer=peer
        )
    if not data or data[0] != VERSION:
        found = f"version {data[0]}" if data else "no bytes"
        raise RemoteProtocolError(
            f"expected a frame of version {VERSION}, found {found}", peer=peer
        )
    try:
        return decode(memoryview(data)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(
            f"a frame of {len(data)} bytes can't be decoded: {error}", peer=peer
        ) from error
