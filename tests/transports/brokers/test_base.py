"""The base of carriers on brokers, without a broker."""

import asyncio
import gc
import logging
from collections.abc import Collection, Iterator, Sequence

import pytest
from tests.brokers.deadlines import until

from ensue.core.errors import TransportError
from ensue.transports import reconnect
from ensue.transports.brokers import base
from ensue.transports.brokers.base import BrokerCarrier, Place, Session


class Moody(BrokerCarrier):
    """A carrier whose attempts to connect have given outcomes."""

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

    async def _subscribe(self, places: Collection[Place]) -> None: ...

    async def _unsubscribe(self, place: Place) -> None: ...

    async def _disconnect(self) -> None: ...


def test_refusing_broker_is_logged_once_per_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "BACKOFF_S_MIN", 0.0)
    no = "this user is refused"
    away, refused = ConnectionRefusedError("away"), TransportError(no)
    locked = TransportError("the account is locked")
    moods = [None, away, away, away, refused, refused, refused, away, refused, locked, None]

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
        "connection lost url=moody://somewhere: cut",
        f"reconnect failed url=moody://somewhere: {no}",
        "reconnect failed url=moody://somewhere: the account is locked",
    ]


class Slow(Moody):
    """Subscribes forever, and raises when cancelled, as client libraries do."""

    def __init__(self) -> None:
        super().__init__(iter([None]))
        self.taking = asyncio.Event()

    async def _subscribe(self, places: Collection[Place]) -> None:
        self.taking.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the connection was closed")


@pytest.mark.parametrize("closed", [False, True], ids=["cancelled", "closed"])
def test_open_that_ends_while_the_client_fails_leaves_no_unretrieved_exception(
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
            # At once, not after the timeout of an open.
            async with asyncio.timeout(base.OPEN_S / 2):
                with pytest.raises(TransportError, match="closed before 't' was opened"):
                    await joining
        del joining
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert unheard == []


class Counting(Moody):
    """A carrier whose requests wait until the test answers them."""

    def __init__(self) -> None:
        super().__init__(iter([None, None]))
        self.asked: list[str] = []
        self.turns: list[asyncio.Future[None]] = []
        self.lost = 0
        self.on_reconnect = self._come_back

    def _come_back(self) -> None:
        self.lost += 1

    async def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.turns.append(asyncio.get_running_loop().create_future())
        await self.turns[-1]

    async def _subscribe(self, places: Collection[Place]) -> None:
        await self._ask(f"take {', '.join(name for _, name in places)}")

    async def _unsubscribe(self, place: Place) -> None:
        await self._ask(f"drop {place[1]}")

    async def answer(self) -> None:
        self.turns[-1].set_result(None)
        await rest()


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[None]) -> None:
    await rest()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def nothing(_data: bytes) -> None: ...


def test_cancelled_open_completes_and_is_undone() -> None:
    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        await cancelled(asyncio.create_task(carrier.join("t", nothing)))
        assert carrier.asked == ["take t"]
        await carrier.answer()
        assert carrier.asked == ["take t", "drop t"]
        await carrier.answer()
        assert carrier.lost == 0
        # The next join starts again.
        joining = asyncio.create_task(carrier.join("t", nothing))
        await rest()
        assert carrier.asked == ["take t", "drop t", "take t"]
        await carrier.answer()
        await joining
        await carrier.close()

    asyncio.run(main())


def test_reopening_during_a_subscribe_sends_one_request() -> None:
    async def main() -> None:
        carrier, got = Counting(), list[bytes]()
        await carrier.start()
        await cancelled(asyncio.create_task(carrier.join("t", nothing)))
        joining = asyncio.create_task(carrier.join("t", got.append))
        await rest()
        assert not joining.done()
        await carrier.answer()
        await joining
        assert carrier.asked == ["take t"]
        carrier._deliver(("t", "t"), b"1")
        assert got == [b"1"]
        await carrier.close()

    asyncio.run(main())


def test_cancelled_leave_completes_before_the_topic_is_joined_again() -> None:
    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        joining = asyncio.create_task(carrier.join("t", nothing))
        await rest()
        await carrier.answer()
        await joining
        await cancelled(asyncio.create_task(carrier.leave("t")))
        joining = asyncio.create_task(carrier.join("t", nothing))
        await rest()
        assert carrier.asked == ["take t", "drop t"]
        await carrier.answer()
        assert carrier.asked == ["take t", "drop t", "take t"]
        assert not joining.done()
        await carrier.answer()
        await joining
        await carrier.close()

    asyncio.run(main())


def test_open_cancelled_after_the_confirmation_is_undone() -> None:
    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        joining = asyncio.create_task(carrier.join("t", nothing))
        await rest()
        carrier.turns[-1].set_result(None)
        for _ in range(20):
            if ("t", "t") in carrier.session.subscribed:
                break
            await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait([joining])
        assert joining.cancelled()
        await rest()
        assert carrier.asked == ["take t", "drop t"]
        await carrier.answer()
        await carrier.close()

    asyncio.run(main())


def test_unanswered_request_without_a_waiter_ends_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "OPEN_S", 0.05)
    monkeypatch.setattr(reconnect, "BACKOFF_S_MIN", 0.0)

    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        await cancelled(asyncio.create_task(carrier.join("t", nothing)))
        await until(lambda: carrier.lost == 1, "it is back")
        assert carrier.asked == ["take t"]
        await carrier.close()

    asyncio.run(main())


def test_topic_left_and_joined_during_a_reconnect_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "BACKOFF_S_MIN", 0.0)

    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        joining = asyncio.create_task(carrier.join("t", nothing))
        await rest()
        await carrier.answer()
        await joining
        carrier.session.lose("cut")
        await until(lambda: len(carrier.asked) == 2, "it is asked again")
        await carrier.leave("t")
        joining = asyncio.create_task(carrier.join("t", list[bytes]().append))
        await rest()
        await carrier.answer()
        await carrier.answer()
        assert carrier.asked == ["take t", "take t", "drop t", "take t"]
        await carrier.answer()
        await joining
        await carrier.close()

    asyncio.run(main())


def test_closing_waits_for_unsubscriptions() -> None:
    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        await cancelled(asyncio.create_task(carrier.join("t", nothing)))
        closing = asyncio.create_task(carrier.close())
        await rest()
        await carrier.answer()
        assert not closing.done()
        assert carrier.asked == ["take t", "drop t"]
        await carrier.answer()
        await closing

    asyncio.run(main())
