"""A raw connection to a server, which can send anything."""

import asyncio
import ssl
from pathlib import Path
from typing import Any, Literal, Self

from tests.server.helpers import within

from ensue import orders
from ensue.core.errors import AccessDenied
from ensue.core.wire import Codec, bundle
from ensue.protocols.interface import Frame
from ensue.server import Server
from ensue.transports.tcp.messages import (
    CONTROL,
    Begin,
    Control,
    Enter,
    Entered,
    Exited,
    Farewell,
    Framer,
    Hello,
    Welcome,
    decode_control,
    encode_control,
    framed,
)

CODEC = Codec(orders.wire_frames())


class Hung(Exception):
    """The server hung up."""


class Raw:
    """One connection, which reads only on request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.server = "node-1"
        self._framer = Framer()
        self._messages: list[bytes] = []
        self._frames: list[Frame] = []

    @classmethod
    async def connect(
        cls, server: Server, *, ca: Path | None = None, own: Path | None = None
    ) -> Self:
        """Connect, and send nothing."""
        assert server.listener is not None
        context = None
        if ca is not None:
            context = ssl.create_default_context(cafile=ca)
            if own is not None:
                context.load_cert_chain(own.with_suffix(".pem"), own.with_suffix(".key"))
        reader, writer = await within(
            asyncio.open_connection("127.0.0.1", server.listener.port, ssl=context)
        )
        raw = cls(reader, writer)
        raw.server = server.config.name
        return raw

    @classmethod
    async def hello(
        cls,
        server: Server,
        *,
        client: str = "raw",
        token: str = "",
        role: Literal["client", "station"] = "client",
        ca: Path | None = None,
        own: Path | None = None,
    ) -> Self:
        """Connect and log in, or raise `AccessDenied`."""
        raw = await cls.connect(server, ca=ca, own=own)
        raw.control(Hello(client=client, token=token, role=role))
        answer = await raw.message()
        if isinstance(answer, Farewell):
            raw.close()
            raise AccessDenied(answer.reason, reason=answer.reason)
        assert isinstance(answer, Welcome)
        raw.control(Begin(session=answer.session))
        return raw

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.writer.write(data)

    def control(self, message: Control) -> None:
        """Send a control message."""
        self.send(encode_control(message))

    def bundle(self, source: str, *frames: Frame, target: str | None = None) -> None:
        """Send frames to the server."""
        bodies = [CODEC.body(frame) for frame in frames]
        self.send(framed(bundle(self.server if target is None else target, source, bodies)))

    async def enter(self, name: str) -> str | None:
        """Enter a name; return why it is rejected, or None."""
        self.control(Enter(name=name))
        answer = await self.message()
        assert isinstance(answer, Entered | Exited)
        return answer.reason if isinstance(answer, Exited) else None

    async def message(self) -> Any:
        """Return the next message: control, or a bundle as target, source and frames."""
        while not self._messages:
            data = await within(self.reader.read(65536))
            if not data:
                raise Hung
            self._messages += self._framer.feed(data)
        message = self._messages.pop(0)
        return decode_control(message) if message[0] == CONTROL else CODEC.unbundle(message)

    async def frame(self) -> Frame:
        """Return the next frame of a bundle."""
        while not self._frames:
            message = await self.message()
            assert isinstance(message, tuple), message
            self._frames += message[2]
        return self._frames.pop(0)

    async def farewell(self) -> Farewell:
        """Return all messages until the Farewell, after which the server closes."""
        while True:
            message = await self.message()
            if isinstance(message, Farewell):
                assert await within(self.reader.read()) == b""
                self.close()
                return message

    async def hung_up(self) -> str | None:
        """Wait until the server closes; return the reason, if it sent one."""
        said = None
        try:
            while True:
                message = await self.message()
                if isinstance(message, Farewell):
                    said = message.reason
        except (Hung, ConnectionError):
            pass
        self.close()
        return said

    def close(self) -> None:
        """Close the connection."""
        self.writer.transport.abort()
