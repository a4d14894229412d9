"""What the carriers on brokers share, on a broker that is none."""

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
    monkeypatch.setattr(reconnect, "BACKOFF_S_MIN", 0.0)
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
            async with asyncio.timeout(base.OPEN_S / 2):
                with pytest.raises(TransportError, match="closed before 't' was opened"):
                    await joining
        del joining
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert unheard == []


class Counting(Moody):
    """Takes and drops in its own time; each is to be let through, and may be told to fail."""

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

    async def _take(self, places: Collection[Place]) -> None:
        await self._ask(f"take {', '.join(name for _, name in places)}")

    async def _drop(self, place: Place) -> None:
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


def test_opening_that_is_cancelled_is_taken_to_its_end_and_dropped() -> None:
    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        await cancelled(asyncio.create_task(carrier.join("t", nothing)))
        assert carrier.asked == ["take t"]
        await carrier.answer()
        assert carrier.asked == ["take t", "drop t"]
        await carrier.answer()
        assert carrier.lost == 0
        # It begins from the beginning.
        joining = asyncio.create_task(carrier.join("t", nothing))
        await rest()
        assert carrier.asked == ["take t", "drop t", "take t"]
        await carrier.answer()
        await joining
        await carrier.close()

    asyncio.run(main())


def test_opening_again_what_is_still_being_taken_asks_the_broker_once() -> None:
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
        carrier._hand(("t", "t"), b"1")
        assert got == [b"1"]
        await carrier.close()

    asyncio.run(main())


def test_leaving_that_is_cancelled_goes_on_and_opening_again_waits_for_it() -> None:
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


def test_opening_that_is_cancelled_when_the_broker_has_just_agreed_is_dropped() -> None:
    async def main() -> None:
        carrier = Counting()
        await carrier.start()
        joining = asyncio.create_task(carrier.join("t", nothing))
        await rest()
        carrier.turns[-1].set_result(None)
        for _ in range(20):
            if ("t", "t") in carrier.session.taken:
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


def test_a_broker_that_does_not_answer_what_nobody_waits_for_is_given_up(
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


def test_what_was_left_and_entered_again_while_it_was_opened_again_begins_anew(
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


def test_closing_waits_until_the_broker_knows_of_what_was_left() -> None:
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
