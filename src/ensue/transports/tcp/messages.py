"""What travels on a connection of `ensue://`: messages with their length in front.

A message is four bytes of length, the most significant first, and so many bytes. Its first byte tells
what it is: `ensue.wire.VERSION`, a bundle of frames; `CONTROL`, one of the messages below, which are
about the connection itself.

| message | from | says |
|---|---|---|
| Hello | whoever connects, first of all | who I am, and what I know that proves it |
| Welcome | server | who I am, who else is in the chain, what all of us go by, and the session |
| Begin | client, after Welcome | the session that Welcome named |
| Enter, Exit | client | take in bundles for this name (again, if I had it), or no longer |
| Entered, Exited | server | done; or: not, or no longer, yours, and why |
| Farewell | either | why I am about to hang up |
| Ping, Pong | either | are you there; yes |

Until it has said hello, whoever connects is told nothing but Welcome or Farewell. A session is random and of one connection: what
was recorded on one connection begins nothing on another, so replaying it has no effect.

Versions of the protocol: 2 has sessions; 1 had none.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from ensue.errors import RemoteProtocolError
from ensue.event import Name
from ensue.protocols.lineage import Lineage
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.wire import FRAME_BYTES_MAX

__all__ = [
    "CONTROL",
    "PREFIX_BYTES",
    "PROTOCOL",
    "SESSION_BYTES",
    "TAKEN_OVER",
    "TURN_MAX",
    "Begin",
    "Enter",
    "Entered",
    "Exit",
    "Exited",
    "Farewell",
    "Framer",
    "Hello",
    "LogFault",
    "Member",
    "Ping",
    "Pong",
    "Welcome",
    "decode_control",
    "encode_control",
    "framed",
]

CONTROL = 0x7F
PREFIX_BYTES = 4
PROTOCOL = 2
SESSION_BYTES = 16
TAKEN_OVER = "taken over"
"""Why a name is not, or no longer, whose it was: somebody has entered under it since."""
TURN_MAX = 2**62
LogFault = Literal["", "damaged", "replaced", "rolled back"]
"""What is wrong with a log: as `LogLost.reason`."""
Session = Annotated[bytes, msgspec.Meta(max_length=SESSION_BYTES)]
Turn = Annotated[int, msgspec.Meta(ge=0, le=TURN_MAX)]


class Control(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    array_like=True,
    gc=False,
    forbid_unknown_fields=True,
):
    """About the connection itself."""


class Hello(Control, frozen=True, kw_only=True, tag=1):
    """Who connects."""

    protocol: int = PROTOCOL
    client: Name
    token: str = ""
    role: Literal["client", "station"] = "client"
    log: Lineage | None = None
    """Which log a station has that connects to another one."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One station of the chain."""

    name: Name
    address: str
    """HOST:PORT; empty: the one you have reached me at."""
    topics: tuple[Name, ...] = ()
    """Topics placed here by name, in rank order."""


class Welcome(Control, frozen=True, kw_only=True, tag=2):
    """What whoever connected has to know."""

    server: Name
    chain: tuple[Member, ...]
    closed: bool = False
    """Whether there are no topics but those that are placed by name."""
    config: SequencerConfig
    message_bytes_max: int
    log: Lineage | None = None
    """Which log the server has."""
    session: Session = b""
    """What `Begin` has to name."""


class Begin(Control, frozen=True, tag=10):
    """Begin the session: whoever sends this has read the welcome of this very connection."""

    session: Session


class Enter(Control, frozen=True, tag=3):
    """Take in bundles for a name, from now on here and nowhere else."""

    name: Name
    turn: Turn = 0
    """What `Entered` said, from whoever comes back: refused if somebody has entered since."""


class Entered(Control, frozen=True, tag=4):
    """Bundles for the name come here."""

    name: Name
    turn: Turn = 0
    """Rises each time that somebody else enters under the name."""


class Exit(Control, frozen=True, tag=5):
    """No more bundles for the name."""

    name: Name


class Exited(Control, frozen=True, tag=6):
    """The name is not, or no longer, yours."""

    name: Name
    reason: str


class Farewell(Control, frozen=True, tag=7):
    """Why the sender hangs up."""

    reason: str
    final: bool = False
    """There is no use in connecting again as you are."""
    log: LogFault = ""
    """There is no use in waiting: the server's log can't be read; or a station that connects has another log than it had."""


class Ping(Control, frozen=True, tag=8):
    """Ask whether the other side is there."""

    number: int


class Pong(Control, frozen=True, tag=9):
    """Say that this side is there."""

    number: int


_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(
    Hello | Welcome | Begin | Enter | Entered | Exit | Exited | Farewell | Ping | Pong
).decode


def framed(data: bytes) -> bytes:
    """Put the length in front of a message."""
    return len(data).to_bytes(PREFIX_BYTES, "big") + data


def encode_control(message: Control) -> bytes:
    """Return a control message as it travels, its length included."""
    return framed(bytes((CONTROL,)) + _encode(message))


def decode_control(data: bytes) -> Any:
    """Return a control message, or raise `RemoteProtocolError`."""
    try:
        return _decode(memoryview(data)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a control message can't be read: {error}") from error


class Framer:
    """Cuts what arrives into messages. Never holds more than one message that is not whole."""

    __slots__ = ("_chunks", "_held", "_needed", "bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = PREFIX_BYTES
        """How many bytes there must be before there is anything to cut."""

    @property
    def held(self) -> int:
        """How many bytes of a message that is not whole are here."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole by now."""
        if self._held + len(data) < self._needed:
            # Joined once there is enough, or a large message would be copied with each packet.
            self._chunks.append(data)
            self._held += len(data)
            return []
        buffer = b"".join((*self._chunks, data)) if self._chunks else data
        messages: list[bytes] = []
        at, end = 0, len(buffer)
        needed = PREFIX_BYTES
        while end - at >= PREFIX_BYTES:
            size = int.from_bytes(buffer[at : at + PREFIX_BYTES], "big")
            if not 0 < size <= self.bytes_max:
                raise RemoteProtocolError(
                    f"a message says that it has {size} bytes; expected 1 to {self.bytes_max}"
                )
            if end - at < PREFIX_BYTES + size:
                needed = PREFIX_BYTES + size
                break
            at += PREFIX_BYTES
            messages.append(buffer[at : at + size])
            at += size
        self._chunks = [buffer[at:]] if at < end else []
        self._held = end - at
        self._needed = needed
        return messages
