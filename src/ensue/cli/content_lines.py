"""What `pub --where` makes of lines: events that are described by their attributes."""

import asyncio
import re
from collections import deque
from typing import Any

import msgspec

from ensue import Bus
from ensue.cli import output
from ensue.errors import BadInput, EventRefused
from ensue.event import Event
from ensue.protocols.overlay.parsing import parse
from ensue.tables import TableReader, parse_json

__all__ = ["ContentSource"]

UNDER_WAY_MAX = 256
"""Events that are on their way to the broker at once."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of `--json`."""

    attributes: dict[str, bool | int | float | str]
    payload: Any = ""


_attributes = msgspec.json.Decoder(dict[str, bool | int | float | str]).decode
_LINES = TableReader(_Line)


class ContentSource:
    """Turns lines into events by content, which its broker has when they are settled."""

    def __init__(self, where: str, *, json: bool, what: str) -> None:
        parse(where)
        self.published = 0
        """Events that the broker has."""
        self.line = 0
        self.timeout_s: float | None = None
        """How long a line waits to be published."""
        self._where = where
        self._json = json
        self._what = what
        self._under_way: deque[tuple[int, asyncio.Task[Event]]] = deque()

    @property
    def settled(self) -> bool:
        """Whether these are all that may be out."""
        return not self._under_way

    async def begin(self, bus: Bus) -> None:
        """Say what will be published."""
        await bus.advertise(where=self._where)

    async def publish(self, bus: Bus, line: bytes) -> None:
        """Publish one line."""
        self.line += 1
        try:
            attributes, payload = self._read(line)
        except BadInput as error:
            await self.settle()
            raise self.wrong(self.line, str(error)) from None
        while len(self._under_way) >= UNDER_WAY_MAX:
            await self._settle_one()
        self._under_way.append(
            (
                self.line,
                asyncio.ensure_future(bus.publish(attributes, payload, timeout=self.timeout_s)),
            )
        )

    async def settle(self) -> None:
        """Wait until the broker has everything."""
        while self._under_way:
            await self._settle_one()

    async def _settle_one(self) -> None:
        number, task = self._under_way[0]
        try:
            await task
        except (BadInput, EventRefused) as error:
            for _, other in self._under_way:
                other.cancel()
            raise self.wrong(number, str(error)) from None
        self._under_way.popleft()
        self.published += 1

    def wrong(self, number: int, why: str) -> BadInput:
        """Return what is wrong with a line."""
        return BadInput(
            f"{self._what} {number}: {why}; {output.were(self.published)} published before it"
        )

    def _read(self, line: bytes) -> tuple[dict[str, bool | int | float | str], bytes]:
        if not self._json:
            try:
                return _attributes(line), b""
            except msgspec.DecodeError:
                raise BadInput(_wrong_with(line)) from None
        read = _LINES.loads_json(line)
        value = read.payload
        payload = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        return read.attributes, payload


def _wrong_with(line: bytes) -> str:
    """Tell what is wrong with a line of attributes alone, as is told of those in an object."""
    try:
        _LINES.read({"attributes": parse_json(line)}, json=True)
    except BadInput as error:
        return re.sub(r"^attributes(\.|: )", "", str(error))
    return "can't be read"
