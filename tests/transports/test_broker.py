"""What the carriers on brokers share, on a broker that is none."""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence

import pytest

from ensue.errors import TransportError
from ensue.transports import broker
from ensue.transports.broker import BrokerCarrier, Place, Session


class Moody(BrokerCarrier):
    """Connects, and fails as it is told to each time after that."""

    name = "moody://"
    how_to_start = "be patient"

    def __init__(self, moods: Iterator[Exception | None]) -> None:
        super().__init__("moody://somewhere", repeats=False)
        self.moods = moods
        self.session = Session()

    async def _connect(self, session: Session) -> None:
        self.session = session
        mood = next(self.moods)
        if mood is not None:
            raise mood

    async def _read(self, session: Session) -> None:
        await asyncio.shield(session.lost)

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None: ...

    async def _take(self, places: Collection[Place]) -> None: ...

    async def _drop(self, place: Place) -> None: ...

    async def _hang_up(self) -> None: ...


def test_a_broker_that_begins_to_refuse_is_told_of_once_for_each_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "BACKOFF_S_MIN", 0.0)
    no = "this user is refused"
    moods = [None, *[ConnectionRefusedError("nobody")] * 3, *[TransportError(no)] * 3,
             ConnectionRefusedError("nobody"), TransportError(no), TransportError("the account is locked"),
             None]  # fmt: skip

    async def main() -> None:
        carrier = Moody(iter(moods))
        back = asyncio.Event()
        carrier.on_reconnect = back.set
        await carrier.start()
        carrier.session.lose("cut")
        async with asyncio.timeout(30):
            await back.wait()
        await carrier.close()

    with caplog.at_level(logging.WARNING, logger="ensue"):
        asyncio.run(main())
    assert [each.getMessage() for each in caplog.records] == [
        "moody://somewhere: lost (cut); connecting again",
        f"moody://somewhere: not yet ({no})",
        "moody://somewhere: not yet (the account is locked)",
    ]
