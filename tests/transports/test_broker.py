"""What the carriers on brokers share, on a broker that is none."""

import asyncio
import gc
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


class Slow(Moody):
    """Takes for ever, and fails when it is ended: a client's way to answer being cancelled."""

    def __init__(self) -> None:
        super().__init__(iter([None]))
        self.taking = asyncio.Event()

    async def _take(self, places: Collection[Place]) -> None:
        self.taking.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the connection was closed")


@pytest.mark.parametrize("closed", [False, True], ids=["cancelled", "closed"])
def test_opening_that_is_ended_while_the_client_fails_leaves_nothing_for_the_event_loop(
    closed: bool,
) -> None:
    unheard: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: unheard.append(context["message"]))
        carrier = Slow()
        await carrier.start()
        joining = asyncio.create_task(carrier.join("t", lambda _data: None))
        await carrier.taking.wait()
        if not closed:
            joining.cancel()
            await asyncio.wait([joining])
            assert joining.cancelled()
        await carrier.close()
        if closed:
            # At once, not when it has waited for a connection as long as it would.
            async with asyncio.timeout(broker.OPEN_S / 2):
                with pytest.raises(TransportError, match="closed before 't' was opened"):
                    await joining
        del joining
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert unheard == []
