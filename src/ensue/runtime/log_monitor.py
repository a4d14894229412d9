"""A monitor of the logs of stations on a broker.

A client of an `ensue://` server learns the server's log whenever it connects. On a broker it stays
connected while a station stops and another takes its name, so it asks: at once, then every `ASK_S`,
and when the broker is back.

A station that continues from before an event that the client has read is noticed, too, if the event
was read before a question that the station answered earlier.

HAZARD: of several changes between two answers only the last state is seen. A station that loses
unsynced events and stores as many new ones at once is not noticed.
"""

import asyncio
from collections.abc import Callable, Sequence

from ensue.core import platform
from ensue.core.errors import LogLost
from ensue.core.lineage import DAMAGED, Lineage, contradiction, lost_text
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.log_identity import ChainSettings, Identified, Identify
from ensue.protocols.total.station import EPHEMERAL
from ensue.transports.framed import FramedPort, FramedTransport

__all__ = ["LogMonitor"]

ASK_S = 2.0
QUESTIONS_MAX = 4
"""Questions that are remembered; answers to later ones contain no less."""


class LogMonitor:
    """Polls stations for the identities of their logs.

    `on_ask` gets the number of each question, and `on_log` each answer with that number: it may
    raise `LogLost`. So does `on_settings`, with the settings of the station. `on_lost` gets the
    first answer that contradicts an earlier one. With `continues` the monitor polls on after that:
    only `on_log` judges, and `on_lost` is called each time. `place_of` returns the highest place of
    an event that was read from a station's log.
    """

    def __init__(
        self,
        transport: FramedTransport,
        stations: Sequence[str],
        *,
        on_log: Callable[[str, Lineage, int], None],
        on_lost: Callable[[LogLost], None],
        on_ask: Callable[[int], None] = lambda _: None,
        on_settings: Callable[[str, ChainSettings, int], None] = lambda *_: None,
        place_of: Callable[[str], int] = lambda _: 0,
        continues: bool = False,
    ) -> None:
        self.logs: dict[str, Lineage] = {}
        """By station: its log."""
        self._transport = transport
        self._stations = tuple(stations)
        self._on_log = on_log
        self._on_lost = on_lost
        self._on_ask = on_ask
        self._on_settings = on_settings
        self._place_of = place_of
        self._asked: dict[int, dict[str, int]] = {}
        """By question: how far each station's log was read when it was asked."""
        self._places: dict[str, int] = {}
        """By station: how far the log that it last answered with was read, at least."""
        self._number = 0
        self._goes_on = continues
        self.name = f"log{EPHEMERAL}{platform.current().token_hex(6)}"
        self._port: FramedPort | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start polling."""
        await self._transport.enter(self.name)
        self._port = self._transport.open(self.name, self._receive)
        self._task = asyncio.get_running_loop().create_task(self._poll())

    def ask(self) -> None:
        """Ask all stations."""
        if self._port is not None:
            self._number += 1
            self._on_ask(self._number)
            self._asked[self._number] = {each: self._place_of(each) for each in self._stations}
            if len(self._asked) > QUESTIONS_MAX:
                del self._asked[next(iter(self._asked))]
            for station in self._stations:
                self._port.send(station, Identify(number=self._number))
            self._port.flush()

    def stop(self) -> None:
        """Stop polling."""
        port, self._port = self._port, None
        if port is not None:
            port.close()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop polling, and leave the name."""
        self.stop()
        await self._transport.exit(self.name)

    async def _poll(self) -> None:
        while True:
            self.ask()
            await asyncio.sleep(ASK_S)

    def _receive(self, frames: Sequence[Frame], source: str) -> None:
        for frame in frames:
            if isinstance(frame, Identified) and source in self._stations:
                if frame.damage:
                    text = f"server {source!r} can't read its log: {frame.damage}"
                    self._lose(LogLost(text, server=source, reason=DAMAGED))
                else:
                    self._on_settings(source, frame.settings, frame.number)
                    self._learn(source, frame.log, frame.number)

    def _learn(self, station: str, log: Lineage, number: int) -> None:
        known = self.logs.get(station)
        place = self._places.get(station, 0)
        reason = "" if known is None or self._goes_on else contradiction(known, log, place=place)
        if reason:
            text = f"{lost_text(station, reason)}; connect again to continue"
            self._lose(LogLost(text, server=station, reason=reason))
            return
        try:
            self._on_log(station, log, number)
        except LogLost as error:
            self._lose(error)
            return
        self.logs[station] = log
        # What was read before the question is of this incarnation, or of an earlier one.
        read = self._asked.get(number, {}).get(station, 0)
        self._places[station] = (
            read if known is None or known.last != log.last else max(place, read)
        )

    def _lose(self, error: LogLost) -> None:
        """Report that a log is lost; stop polling, unless `continues`."""
        if not self._goes_on:
            self._stations = ()
        self._on_lost(error)
