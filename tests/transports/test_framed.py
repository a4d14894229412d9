"""Frames on a carrier: one bundle per peer and turn, encoded once; bad bundles are harmless."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from ensue.core.errors import BadInput, LimitReached, RemoteProtocolError
from ensue.core.event import Event, Stamp
from ensue.core.wire import Codec
from ensue.protocols.interface import Attach, Broadcast, Detach, Frame, Multicast
from ensue.protocols.topic_log.frames import (
    NOTIFY,
    AttachRequest,
    DetachRequest,
    Notify,
    Put,
    request_for,
    topic_of,
)
from ensue.protocols.total.frames import Forget
from ensue.protocols.total.station import FRAMES
from ensue.transports.base import Capabilities
from ensue.transports.carrier import Inbox
from ensue.transports.framed import FramedPort, FramedTransport

CODEC = Codec(FRAMES)


class Wire:
    """A carrier in memory that records messages and delivers them on request."""

    name = "wire://"
    on_reconnect: Callable[[], None] | None = None
    dropped = 0

    def __init__(self, *, multicast: bool = False, message_bytes_max: int = 2**20) -> None:
        self.capabilities = Capabilities(
            fifo=True,
            durable=True,
            replay=True,
            conditional=True,
            multicast=multicast,
            message_bytes_max=message_bytes_max,
        )
        self.inboxes: dict[str, Inbox] = {}
        self.topics: dict[str, Inbox] = {}
        self.sent: list[tuple[str, bytes]] = []
        """Targets and messages; a topic is prefixed with an asterisk."""
        self.joining: asyncio.Event | None = None
        """If set, joining a topic waits for it."""
        self.refuses = False

    async def start(self) -> None: ...

    async def open(self, peer: str, receive: Inbox) -> None:
        if self.refuses:
            raise ConnectionError("no")
        self.inboxes[peer] = receive

    async def shut(self, peer: str) -> None:
        del self.inboxes[peer]

    async def join(self, topic: str, receive: Inbox) -> None:
        if self.joining is not None:
            await self.joining.wait()
        if self.refuses:
            raise ConnectionError("no")
        if topic in self.topics:
            raise BadInput(f"the topic {topic!r} is open: close it first")
        self.topics[topic] = receive

    async def leave(self, topic: str) -> None:
        self.topics.pop(topic, None)

    def send(self, peer: str, data: bytes) -> None:
        self._check(data)
        self.sent.append((peer, data))

    def multicast(self, topic: str, data: bytes) -> None:
        self._check(data)
        self.sent.append((f"*{topic}", data))

    def _check(self, data: bytes) -> None:
        most = self.capabilities.message_bytes_max
        if len(data) > most:
            raise LimitReached(
                f"{len(data)} bytes are too many", limit="message_bytes_max", value=most
            )

    async def close(self) -> None: ...

    def take(self) -> list[tuple[str, str, list[Frame]]]:
        """Drain the sent messages: target, source and frames of each."""
        sent, self.sent = self.sent, []
        read = []
        for target, data in sent:
            named, source, frames = CODEC.unbundle(data)
            assert named == ("*" if target.startswith("*") else target)
            read.append((target, source, frames))
        return read

    def deliver(self, target: str, data: bytes) -> None:
        inbox = self.topics[target[1:]] if target.startswith("*") else self.inboxes[target]
        inbox(data)


class Heard:
    """A receiver that records frames."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[Frame], str]] = []

    def __call__(self, frames: Sequence[Frame], source: str) -> None:
        self.calls.append((list(frames), source))


def home(topic: str) -> str:
    return f"home-of-{topic}"


def ask(port: FramedPort, effect: Broadcast | Attach | Detach) -> None:
    port.ask(effect, request_for(effect))


async def opened(wire: Wire, *names: str) -> tuple[FramedTransport, list[FramedPort], list[Heard]]:
    transport = FramedTransport(wire, CODEC, home=home, topic_of=topic_of)
    ports, heard = [], []
    for name in names:
        await transport.enter(name)
        heard.append(Heard())
        ports.append(transport.open(name, heard[-1]))
    return transport, ports, heard


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(bounded())


def note(number: int) -> Frame:
    return Forget(number=number, publisher=True)


def event(slot: int, payload: bytes = b"x", topic: str = "t") -> Event:
    return Event(
        topic=topic, payload=payload, publisher="p", publisher_seq=slot, stamp=Stamp({topic: slot})
    )


# -- Bundles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reported", [True, False], ids=["reported", "logged"])
def test_oversized_bundle_is_dropped_alone_and_reported(
    reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        wire = Wire(multicast=True, message_bytes_max=1000)
        transport, (a, b), _ = await opened(wire, "a", "b")
        heard: list[tuple[str, LimitReached]] = []
        if reported:
            transport.on_too_large = lambda name, error: heard.append((name, error))
        large = Put(event=event(1, bytes(2000)))
        a.send("x", large)
        a.multicast(Multicast("t", ("s",), Notify(event=event(2, bytes(2000)))))
        a.send("y", note(1))
        b.send("x", note(2))
        await turn()
        assert wire.take() == [("y", "a", [note(1)]), ("x", "b", [note(2)])]
        assert transport.too_large == 2
        assert [name for name, _ in heard] == (["a", "a"] if reported else [])
        loud = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
        assert loud == [] if reported else ["too many" in each for each in loud] == [True, True]

    run(main())


def test_frames_of_one_turn_to_a_peer_are_one_bundle_in_order() -> None:
    async def main() -> None:
        wire = Wire()
        _, (a, b), _ = await opened(wire, "a", "b")
        for number in range(5):
            a.send("x", note(number))
            a.send("y", note(10 + number))
            b.send("x", note(20 + number))
        assert wire.sent == []
        await turn()
        assert wire.take() == [
            ("x", "a", [note(number) for number in range(5)]),
            ("y", "a", [note(10 + number) for number in range(5)]),
            ("x", "b", [note(20 + number) for number in range(5)]),
        ]
        a.send("x", note(99))
        a.flush()
        await turn()
        assert wire.take() == [("x", "a", [note(99)])]
        await turn()
        assert wire.take() == []

    run(main())


def test_flush_sends_everything_at_once() -> None:
    async def main() -> None:
        wire = Wire()
        transport, (a,), _ = await opened(wire, "a")
        a.send("x", note(1))
        transport.flush()
        assert wire.take() == [("x", "a", [note(1)])]

    run(main())


@pytest.mark.parametrize("multicast", [False, True])
def test_large_bundle_is_split(multicast: bool) -> None:
    async def main() -> None:
        wire = Wire(message_bytes_max=20_000, multicast=multicast)
        transport, (a,), _ = await opened(wire, "a")
        assert transport.bundle_bytes == 10_000
        puts = [Put(event=event(slot, bytes(3_000))) for slot in range(1, 9)]
        huge = Put(event=event(9, bytes(15_000)))
        for put in (*puts, huge, puts[0]):
            a.send("x", put)
            a.multicast(Multicast("t", ("l",), Notify(event=put.event)))
        await turn()
        assert all(len(data) < 20_000 for _, data in wire.sent)
        taken = wire.take()
        to_x = [frames for target, _, frames in taken if target == "x"]
        assert [frame for frames in to_x for frame in frames] == [*puts, huge, puts[0]]
        assert len(to_x) == 5
        listener = "*t" if multicast else "l"
        others = [f for target, _, frames in taken if target == listener for f in frames]
        assert others == [Notify(event=put.event) for put in (*puts, huge, puts[0])]

    run(main())


# -- Multicast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("multicast", [False, True])
def test_event_is_sent_to_all_listeners_byte_for_byte_as_persisted(
    multicast: bool,
) -> None:
    async def main() -> None:
        wire = Wire(multicast=multicast)
        _, (a,), _ = await opened(wire, "a")
        events = [event(slot) for slot in (1, 2)]
        peers = ("r", "s")
        for each in events:
            encoded = NOTIFY + msgspec.msgpack.encode(each)
            # A mark that only the bytes have, so that it is seen which of the two travels.
            marked = encoded.replace(b"\xa1p\x01", b"\xa1q\x01")
            a.multicast(Multicast("t", peers, Notify(event=each), marked))
        await turn()
        taken = wire.take()
        targets = ["*t"] if multicast else ["r", "s"]
        assert [(target, source) for target, source, _ in taken] == [(t, "a") for t in targets]
        for _, _, frames in taken:
            slots = [frame.event.slot for frame in frames if isinstance(frame, Notify)]
            assert slots == [1, 2]
            assert isinstance(frames[0], Notify)
            assert frames[0].event.publisher == "q"

    run(main())


@pytest.mark.parametrize("peer_first", [False, True])
def test_peer_named_like_a_topic_is_not_the_topic(peer_first: bool) -> None:
    async def main() -> None:
        wire = Wire(multicast=True)
        _, (a,), _ = await opened(wire, "a")
        notify = Notify(event=event(1, topic="orders"))
        for peer in (peer_first, not peer_first):
            if peer:
                a.send("orders", note(1))
            else:
                a.multicast(Multicast("orders", ("orders",), notify))
        await turn()
        assert sorted(wire.take()) == [("*orders", "a", [notify]), ("orders", "a", [note(1)])]

    run(main())


def test_listeners_of_several_topics_get_each_its_own() -> None:
    async def main() -> None:
        wire = Wire()
        _, (a,), _ = await opened(wire, "a")
        both, one = ("r", "s"), ("r",)
        for slot, (topic, peers) in enumerate((("t", both), ("u", one), ("t", both)), 1):
            a.multicast(Multicast(topic, peers, Notify(event=event(slot, topic=topic))))
        a.send("s", note(1))
        await turn()
        got: dict[str, list[Frame]] = {"r": [], "s": []}
        for target, _, frames in wire.take():
            got[target] += frames
        assert sorted(map(repr, got["r"])) == sorted(
            repr(Notify(event=event(slot, topic=topic))) for slot, topic in enumerate("tut", 1)
        )
        assert len(got["s"]) == 3
        assert note(1) in got["s"]

    run(main())


# -- Requests to the log --------------------------------------------------------------------------


def test_requests_go_to_the_peer_that_keeps_the_topic() -> None:
    async def main() -> None:
        wire = Wire()
        _, (a,), _ = await opened(wire, "a")
        ask(a, Attach("t", 3))
        ask(a, Broadcast(event(1, topic="u")))
        ask(a, Detach("t"))
        await turn()
        assert wire.take() == [
            (
                "home-of-t",
                "a",
                [AttachRequest(topic="t", from_slot=3), DetachRequest(topic="t")],
            ),
            ("home-of-u", "a", [Put(event=event(1, topic="u"))]),
        ]
        assert wire.topics == {}

    run(main())


def test_multicast_topic_is_joined_before_the_request() -> None:
    async def main() -> None:
        wire = Wire(multicast=True)
        wire.joining = asyncio.Event()
        _, (a, b), (heard_a, heard_b) = await opened(wire, "a", "b")
        ask(a, Attach("t", 1))
        ask(b, Attach("t", 2))
        await turn()
        assert wire.take() == []
        wire.joining.set()
        await turn()
        assert sorted(wire.take()) == [
            ("home-of-t", "a", [AttachRequest(topic="t", from_slot=1)]),
            ("home-of-t", "b", [AttachRequest(topic="t", from_slot=2)]),
        ]
        notes = [Notify(event=event(slot)) for slot in (1, 2)]
        for each in notes:
            b.multicast(Multicast("t", ("a", "b"), each))
        await turn()
        ((_, data),) = wire.sent
        wire.deliver("*t", data)
        # Delivered together, as received: one call of the receiver, not one for each.
        assert heard_a.calls == heard_b.calls == [(notes, "b")]
        # The last to leave leaves it there, too.
        ask(a, Detach("t"))
        await turn()
        assert "t" in wire.topics
        b.close()
        await turn()
        assert "t" not in wire.topics

    run(main())


def test_failed_join_is_logged_and_can_be_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        wire = Wire(multicast=True)
        _, (a,), _ = await opened(wire, "a")
        wire.refuses = True
        with caplog.at_level(logging.WARNING, logger="ensue"):
            ask(a, Attach("t", 1))
            await turn()
        assert "join failed transport=wire:// topic='t': no" in caplog.text
        assert wire.take() == []
        wire.refuses = False
        ask(a, Attach("t", 1))
        await turn()
        assert wire.take() == [("home-of-t", "a", [AttachRequest(topic="t", from_slot=1)])]

    run(main())


@pytest.mark.parametrize("again", [False, True], ids=["gone", "back"])
def test_leaving_during_a_join_leaves_nothing_behind(again: bool) -> None:
    async def main() -> None:
        wire = Wire(multicast=True)
        wire.joining = asyncio.Event()
        _, (a,), (heard,) = await opened(wire, "a")
        ask(a, Attach("t", 1))
        await turn()
        ask(a, Detach("t"))
        await turn()
        wire.take()
        if again:
            ask(a, Attach("t", 2))
            await turn()
        wire.joining.set()
        for _ in range(5):
            await turn()
        assert ("t" in wire.topics) == again
        asked = [("home-of-t", "a", [AttachRequest(topic="t", from_slot=2)])]
        assert wire.take() == (asked if again else [])
        if again:
            a.multicast(Multicast("t", ("a",), Notify(event=event(1))))
            await turn()
            ((_, data),) = wire.sent
            wire.deliver("*t", data)
            assert heard.calls == [([Notify(event=event(1))], "a")]

    run(main())


def test_late_join_failure_does_not_undo_a_later_join() -> None:
    class Late(Wire):
        failures = 1

        async def join(self, topic: str, receive: Inbox) -> None:
            fails, self.failures = self.failures > 0, 0
            if fails and self.joining is not None:
                await self.joining.wait()
                raise ConnectionError("no")
            await super().join(topic, receive)

    async def main() -> None:
        wire = Late(multicast=True)
        wire.joining = asyncio.Event()
        _, (a,), _ = await opened(wire, "a")
        ask(a, Attach("t", 1))
        await turn()
        ask(a, Detach("t"))
        ask(a, Attach("t", 2))
        await turn()
        wire.take()
        wire.joining.set()
        for _ in range(5):
            await turn()
        assert "t" in wire.topics
        assert wire.take() == [("home-of-t", "a", [AttachRequest(topic="t", from_slot=2)])]

    run(main())


def test_unneeded_join_failure_is_not_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        wire = Wire(multicast=True)
        _, (a,), _ = await opened(wire, "a")
        wire.refuses = True
        ask(a, Attach("t", 1))
        a.close()
        await turn()

    with caplog.at_level(logging.DEBUG, logger="ensue"):
        run(main())
    assert [each.levelname for each in caplog.records if "join failed" in each.getMessage()] == [
        "DEBUG"
    ]


def test_port_that_left_during_a_join_sends_no_request() -> None:
    async def main() -> None:
        wire = Wire(multicast=True)
        wire.joining = asyncio.Event()
        _, (a,), _ = await opened(wire, "a")
        ask(a, Attach("t", 1))
        a.close()
        wire.joining.set()
        await turn()
        assert wire.take() == []

    run(main())


# -- Received bundles -----------------------------------------------------------------------------


def test_bundle_reaches_only_its_target() -> None:
    async def main() -> None:
        wire = Wire()
        _, (a, b), (heard_a, heard_b) = await opened(wire, "a", "b")
        a.send("b", note(1))
        a.send("b", note(2))
        a.send("unknown", note(3))
        await turn()
        for _, data in wire.sent:
            wire.deliver("a", data)  # A carrier may have one inbox for all names.
        assert heard_a.calls == []
        assert heard_b.calls == [([note(1), note(2)], "a")]
        b.close()
        wire.deliver("b", wire.sent[0][1])
        assert len(heard_b.calls) == 1

    run(main())


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x02", b"\x02\x93\xa1a", b"\xff" * 50, b"\x02\xc0"]
)
def test_bad_bundle_is_counted_reported_and_harmless(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        wire = Wire(multicast=True)
        transport, (a,), (heard,) = await opened(wire, "a")
        ask(a, Attach("t", 1))
        await turn()
        with caplog.at_level(logging.WARNING, logger="ensue"):
            wire.deliver("a", data)
            wire.deliver("*t", data)
        assert transport.bad_bundles == 2
        assert caplog.text.count("wire://") == 2
        errors: list[RemoteProtocolError] = []
        transport.on_bad_bundle = errors.append
        wire.deliver("a", data)
        assert (transport.bad_bundles, len(errors)) == (3, 1)
        assert heard.calls == []
        wire.take()
        a.send("a", note(1))
        await turn()
        wire.deliver(*wire.sent[0])
        assert heard.calls == [([note(1)], "a")]

    run(main())


def test_frames_that_are_not_admitted_are_not_delivered() -> None:
    async def main() -> None:
        wire = Wire()
        transport, (a, _), (_, heard) = await opened(wire, "a", "b")
        asked: list[tuple[str, str]] = []

        def admit(target: str, source: str, frames: list[Frame]) -> list[Frame]:
            asked.append((target, source))
            if len(frames) > 2:
                raise RemoteProtocolError("too many")
            return frames[:1]

        transport.admit = admit
        for count in (2, 3):
            for number in range(count):
                a.send("b", note(number))
            await turn()
        for _, data in wire.sent:
            wire.deliver("b", data)
        assert asked == [("b", "a"), ("b", "a")]
        assert heard.calls == [([note(0)], "a")]
        assert transport.bad_bundles == 1

    run(main())


# -- Names ----------------------------------------------------------------------------------------


def test_name_is_unique_until_it_is_closed_or_refused() -> None:
    async def main() -> None:
        wire = Wire()
        transport, _, _ = await opened(wire, "a")
        with pytest.raises(BadInput, match="'a' is taken on this bus"):
            await transport.enter("a")
        await transport.exit("a")
        await transport.exit("a")
        assert wire.inboxes == {}
        wire.refuses = True
        with pytest.raises(ConnectionError):
            await transport.enter("a")
        wire.refuses = False
        await transport.enter("a")
        assert list(wire.inboxes) == ["a"]

    run(main())
