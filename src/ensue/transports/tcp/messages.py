"""Messages on an `ensue://` connection, with length prefixes.

A message is four bytes of length, most significant first, and that many bytes. Its first byte is
`ensue.core.wire.VERSION` for a bundle of frames, or `CONTROL` for a control message. The control
messages:

| message | from | content |
|---|---|---|
| Hello | client, first | its name, and its token |
| Welcome | server | its name, the chain, the configuration, and the session |
| Begin | client, after Welcome | the session of that Welcome |
| Enter, Exit | client | open the inbox of a name, also after a reconnect; or close it |
| Entered, Exited | server | the inbox is open; or it is not, or no longer, and why |
| Farewell | either | why the sender closes the connection |
| Ping, Pong | either | liveness |

Before Hello, a client gets only Welcome or Farewell. A session is random and belongs to one
connection, so replaying a recorded connection has no effect.

Protocol versions: 2 has sessions; 1 had none.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from ensue.core.errors import RemoteProtocolError
from ensue.core.event import Name
from ensue.core.lineage import Lineage
from ensue.core.wire import FRAME_BYTES_MAX

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
"""Why a client lost a name: another client has entered it since."""
TURN_MAX = 2**62
LogFault = Literal["", "damaged", "replaced", "rolled back"]
"""What is wrong with a log, as in `LogLost.reason`."""
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
    """A control message."""


class Hello(Control, frozen=True, kw_only=True, tag=1):
    """The client's name, token and role."""

    protocol: int = PROTOCOL
    client: Name
    token: str = ""
    role: Literal["client", "station"] = "client"
    log: Lineage | None = None
    """The log of a station that connects to another."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One station of the chain."""

    name: Name
    address: str
    """HOST:PORT; empty: the address that the client used."""
    topics: tuple[Name, ...] = ()
    """Topics placed here by name, in rank order."""


class Welcome(Control, frozen=True, kw_only=True, tag=2):
    """The server, its chain and its configuration."""

    server: Name
    chain: tuple[Member, ...]
    closed: bool = False
    """Whether only topics placed by name exist."""
    config: msgspec.Raw
    """The configuration of the chain, encoded; the connection does not decode it."""
    message_bytes_max: int
    log: Lineage | None = None
    """The log of the server."""
    session: Session = b""
    """Repeated by `Begin`."""
    moves: dict[Name, tuple[tuple[Name, int], ...]] = msgspec.field(default_factory=dict)
    """Topics that were moved, to the stations that keep parts of their logs."""


class Begin(Control, frozen=True, tag=10):
    """The start of the session: the client has read the welcome of this connection."""

    session: Session


class Enter(Control, frozen=True, tag=3):
    """A request to open the inbox of a name on this connection, and on no other."""

    name: Name
    turn: Turn = 0
    """From `Entered`, after a reconnect: refused if another client has entered since."""


class Entered(Control, frozen=True, tag=4):
    """The inbox of a name is open."""

    name: Name
    turn: Turn = 0
    """Rises each time another client enters the name."""


class Exit(Control, frozen=True, tag=5):
    """A request to close the inbox of a name."""

    name: Name


class Exited(Control, frozen=True, tag=6):
    """The inbox of a name is not, or no longer, open here."""

    name: Name
    reason: str


class Farewell(Control, frozen=True, tag=7):
    """Why the sender closes the connection."""

    reason: str
    final: bool = False
    """Reconnecting with the same credentials is useless."""
    log: LogFault = ""
    """The server can't read its log, or the connecting station has another log than before."""


class Ping(Control, frozen=True, tag=8):
    """A request for a `Pong`."""

    number: int


class Pong(Control, frozen=True, tag=9):
    """The answer to a `Ping`."""

    number: int


_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(
    Hello | Welcome | Begin | Enter | Entered | Exit | Exited | Farewell | Ping | Pong
).decode


def framed(data: bytes) -> bytes:
    """Return a message with its length prefix."""
    return len(data).to_bytes(PREFIX_BYTES, "big") + data


def encode_control(message: Control) -> bytes:
    """Return an encoded control message, its length included."""
    return framed(bytes((CONTROL,)) + _encode(message))


def decode_control(data: bytes) -> Any:
    """Return a control message, or raise `RemoteProtocolError`."""
    try:
        return _decode(memoryview(data)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a control message can't be decoded: {error}") from error


class Framer:
    """A splitter of received bytes into messages; holds at most one incomplete message."""

    __slots__ = ("_chunks", "_held", "_needed", "bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = PREFIX_BYTES
        """Number of bytes that complete the next message."""

    @property
    def held(self) -> int:
        """Number of bytes held of an incomplete message."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete now."""
        if self._held + len(data) < self._needed:
            # Joined once complete, or a large message would be copied with each packet.
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
                    f"a message announces {size} bytes; expected 1 to {self.bytes_max}"
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
