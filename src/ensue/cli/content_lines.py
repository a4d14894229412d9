"""The lines of `pub --where`: events with attributes instead of a topic."""

import asyncio
import re
from collections import deque
from typing import Any

import msgspec

from ensue import Bus
from ensue.cli import output
from ensue.core.errors import BadInput, EventRefused
from ensue.core.event import Event
from ensue.core.order import Order
from ensue.core.toml_file import TableReader, parse_json
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.parser import parse

__all__ = ["ContentSource"]

UNACKNOWLEDGED_MAX = 256
"""Events that may wait for the broker's acknowledgment at once."""


class _JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line of `--json`."""

    attributes: dict[str, bool | int | float | str]
    payload: Any = ""


_attributes = msgspec.json.Decoder(dict[str, bool | int | float | str]).decode
_LINES = TableReader(_JsonLine)


class ContentSource:
    """A source of events by content."""

    def __init__(self, where: str, order: Order | None, *, json: bool, what: str) -> None:
        self._filter = parse(where)
        self.published = 0
        """Events that the broker has acknowledged; in an order, those that the bus has taken."""
        self.line = 0
        self.timeout_s: float | None = None
        """How long a line waits to be published."""
        self._where = where
        self._order = order
        """The order of these events; None: none, brokers route them."""
        self._json = json
        self._what = what
        self._unacknowledged: deque[tuple[int, asyncio.Task[Event]]] = deque()

    @property
    def settled(self) -> bool:
        """Whether `published` is exact: no event waits for an acknowledgment."""
        return not self._unacknowledged

    async def begin(self, bus: Bus) -> None:
        """Advertise the filter to brokers."""
        if self._order is None:
            await bus.advertise(where=self._where)

    async def publish(self, bus: Bus, line: bytes) -> None:
        """Publish one line."""
        self.line += 1
        try:
            attributes, payload = self._read(line)
        except BadInput as error:
            await self.settle()
            raise self.line_error(self.line, str(error)) from None
        if self._order is not None:
            await self._publish_in_order(bus, self._order, attributes, payload)
            return
        while len(self._unacknowledged) >= UNACKNOWLEDGED_MAX:
            await self._settle_one()
        self._unacknowledged.append(
            (
                self.line,
                asyncio.ensure_future(bus.publish(attributes, payload, timeout=self.timeout_s)),
            )
        )

    async def _publish_in_order(
        self,
        bus: Bus,
        order: Order,
        attributes: dict[str, bool | int | float | str],
        payload: bytes,
    ) -> None:
        """Publish an event in an order; the bus tracks its receipt."""
        try:
            self._check_matches(attributes)
            await bus.publish(
                attributes, payload, order=order, receipt=False, timeout=self.timeout_s
            )
        except BadInput as error:
            raise self.line_error(self.line, str(error)) from None
        self.published += 1

    def _check_matches(self, attributes: dict[str, bool | int | float | str]) -> None:
        if not self._filter.matches(event_of(attributes)):
            raise BadInput(f"{attributes} does not match --where {self._where!r}")

    async def settle(self) -> None:
        """Wait until the broker has acknowledged all events."""
        while self._unacknowledged:
            await self._settle_one()

    async def _settle_one(self) -> None:
        number, task = self._unacknowledged[0]
        try:
            await task
        except (BadInput, EventRefused) as error:
            for _, other in self._unacknowledged:
                other.cancel()
            raise self.line_error(number, str(error)) from None
        self._unacknowledged.popleft()
        self.published += 1

    def line_error(self, number: int, why: str) -> BadInput:
        """Return the error of an invalid line."""
        return BadInput(
            f"{self._what} {number}: {why}; {output.were(self.published)} published before it"
        )

    def _read(self, line: bytes) -> tuple[dict[str, bool | int | float | str], bytes]:
        if not self._json:
            try:
                return _attributes(line), b""
            except msgspec.DecodeError:
                raise BadInput(_describe_error(line)) from None
        read = _LINES.loads_json(line)
        value = read.payload
        payload = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        return read.attributes, payload


def _describe_error(line: bytes) -> str:
    """Return the table reader's description of an invalid line of attributes."""
    try:
        _LINES.read({"attributes": parse_json(line)}, json=True)
    except BadInput as error:
        return re.sub(r"^attributes(\.|: )", "", str(error))
    return "is not an object of attributes"
