"""Frames to bytes and back: versioned, bounded, strict.

A frame is one version byte and one MessagePack array: the frame's tag, then its fields in order.
Nothing is read beyond its stated length, no length is believed beyond its limit, and what does not
decode to exactly one frame raises `RemoteProtocolError` and has no effect.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

import msgspec

from ensue.errors import RemoteProtocolError

__all__ = ["FRAME_BYTES_MAX", "VERSION", "Codec", "Records"]

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

    __slots__ = ("_decode", "_encode")

    def __init__(self, frames: Iterable[Any]) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(
            reduce(or_, frames)
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
