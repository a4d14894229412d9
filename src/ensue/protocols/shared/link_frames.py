"""The frames of numbered links (`ensue.protocols.shared.link`)."""

from collections.abc import Sequence

import msgspec

from ensue.core.errors import RemoteProtocolError
from ensue.core.event import Count
from ensue.core.wire import Records
from ensue.protocols.interface import Frame

__all__ = [
    "FRAMES",
    "GROUP_MAX",
    "LinkAck",
    "LinkData",
    "LinkGap",
    "LinkState",
    "packed",
    "unpacked",
]

GROUP_MAX = 256
"""Frames under one number."""
_GROUP = b"\x00"
"""The first byte of a payload of several frames: no version of the wire format has it."""
_PAYLOADS = Records[list[bytes]](list[bytes])


class LinkData(Frame, frozen=True, tag=8):
    """A numbered frame, or several (`packed`), as bytes."""

    number: Count
    """1, 2, 3, … per link."""
    payload: bytes


class LinkAck(Frame, frozen=True, tag=9):
    """Every frame up to this number is safe at the sender of this."""

    number: Count


class LinkGap(Frame, frozen=True, tag=12):
    """Every frame up to a number is safe, and these later ones have arrived."""

    number: Count
    early: tuple[Count, ...]
    """The latest `EARLY_REPORTED_MAX` of them, rising."""


class LinkState(Frame, frozen=True, tag=15):
    """The numbers of a link at one end."""

    first: Count
    """The first frame that the sender keeps, or its next one."""
    next: Count
    """The number of the sender's next frame."""
    expected: Count
    """The number of the next frame from the receiver."""
    wanted: bool = False
    """Whether the sender asks for the same of the receiver."""


FRAMES: tuple[type[Frame], ...] = (LinkData, LinkAck, LinkGap, LinkState)


def packed(frames: Sequence[bytes]) -> bytes:
    """Return encoded frames as one payload."""
    return frames[0] if len(frames) == 1 else _GROUP + _PAYLOADS.encode(list(frames))


def unpacked(payload: bytes, peer: str = "") -> list[bytes]:
    """Return the encoded frames of a payload, or raise `RemoteProtocolError`."""
    if payload[:1] != _GROUP:
        return [payload]
    try:
        frames = _PAYLOADS.decode(payload[1:])
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"numbered frames can't be read: {error}", peer=peer) from error
    if not 1 < len(frames) <= GROUP_MAX:
        raise RemoteProtocolError(
            f"{len(frames)} frames under one number, must be 2 to {GROUP_MAX}", peer=peer
        )
    return frames
