"""A station on a broker admits valid frames within the limits, from any client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.server.helpers import until

from ensue import orders
from ensue.core.errors import BadInput, limit_in
from ensue.core.event import Event, Stamp
from ensue.core.wire import Codec, bundle
from ensue.protocols.interface import Frame
from ensue.protocols.membership.frames import Members, Register
from ensue.protocols.membership.registry import registry_of
from ensue.protocols.shared.state_store import Recalled
from ensue.protocols.topic_log.frames import AttachRequest, Put
from ensue.protocols.total.frames import (
    Changed,
    ChangeRepeat,
    ChangeRequest,
    Fill,
    OrderRequest,
    Out,
    Refused,
    StampRequest,
)
from ensue.server import ServerConfig, broker_admission, name_claim
from ensue.server.authorization import BUNDLE_ITEMS_MAX
from ensue.server.brokered import BrokeredServer
from ensue.server.config import Limits, Tls
from ensue.server.listener import FAULTS_LOGGED_MAX
from ensue.server.permissions import Access, User, new_token
from ensue.transports.base import Capabilities
from ensue.transports.carrier import Inbox
from ensue.transports.tcp.messages import Member

pytest.importorskip("nats")
CODEC = Codec(orders.wire_frames())
ME = "client~1"


class Loopback:
    """A carrier with one station; it records what that sends to others."""

    name = "broker://"
    on_reconnect: Callable[[], None] | None = None
    dropped = 0
    capabilities = Capabilities(
        fifo=True, durable=False, replay=False, conditional=False, multicast=True
    )

    def __init__(self) -> None:
        self.inboxes: dict[str, Inbox] = {}
        self.sent: list[tuple[str, Frame]] = []

    async def start(self) -> None: ...

    async def open(self, peer: str, receive: Inbox) -> None:
        self.inboxes[peer] = receive

    async def shut(self, peer: str) -> None:
        self.inboxes.pop(peer, None)

    async def join(self, topic: str, receive: Inbox) -> None: ...

    async def leave(self, topic: str) -> None: ...

    def send(self, peer: str, data: bytes) -> None:
        _, _, frames = CODEC.unbundle(data)
        self.sent += [(peer, frame) for frame in frames]

    def multicast(self, topic: str, data: bytes) -> None: ...

    async def close(self) -> None: ...


class Rig:
    """A station on a broker, and its clients."""

    def __init__(self, carrier: Loopback, server: BrokeredServer) -> None:
        self.carrier = carrier
        self.server = server

    @property
    def errors(self) -> dict[str, int]:
        assert self.server.status is not None
        return self.server.status.errors

    def write(self, *frames: Frame, source: str = ME, target: str = "node-1") -> None:
        bodies = [CODEC.body(frame) for frame in frames]
        self.carrier.inboxes[target](bundle(target, source, bodies))

    def answers_to(self, source: str = ME) -> list[Frame]:
        return [frame for peer, frame in self.carrier.sent if peer == source]

    async def ask(
        self, *frames: Frame, source: str = ME, target: str = "node-1", answers: int = 1
    ) -> list[Frame]:
        """Return the answers, at least `count` frames."""
        self.carrier.sent.clear()
        self.write(*frames, source=source, target=target)
        await until(lambda: len(self.answers_to(source)) >= answers, "an answer")
        return self.answers_to(source)


@asynccontextmanager
async def station(data: Path, **options: object) -> AsyncIterator[Rig]:
    carrier = Loopback()
    config = ServerConfig(data=str(data), **options)  # type: ignore[arg-type]
    server = BrokeredServer(config, "nats://127.0.0.1")
    server.options = msgspec.structs.replace(server.options, carrier=lambda _given: carrier)
    await server.start()
    try:
        yield Rig(carrier, server)
    finally:
        await server.stop()


@pytest.fixture(autouse=True)
def _quick_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_claim, "TRY_S", 0.0)


def event(topic: str = "x", number: int = 1, **more: object) -> Event:
    given: dict[str, object] = {"publisher": ME, "publisher_seq": number, **more}
    return Event(topic=topic, payload=b"", **given)  # type: ignore[arg-type]


def order(*events: Event, number: int = 1, settled: int = 1) -> OrderRequest:
    return OrderRequest(number=number, events=events, settled=settled)


NO_CLIENT_WOULD: dict[str, Sequence[Frame]] = {
    "a stamp alone": [StampRequest(number=1, topics=("x",), settled=1)],
    "a neighbour's stamp": [
        Fill(publisher=ME, origin="a", number=1, topic="x", stamp=Stamp({"x": 9}), last=0)
    ],
    "a neighbour's question": [ChangeRepeat(subscriber="somebody~1", number=1)],
    "a station's answer": [Out(origin="node-1", slots=((1, 1),))],
    "a state store's answer": [Recalled(number=1, epoch=1, records={})],
    "no events": [order()],
    "a settled number": [order(event(), number=2, settled=3)],
    "nothing settled": [order(event(), settled=0)],
    "beyond the window": [order(event(), number=5_000, settled=1)],
    "a whole window beyond it": [
        order(*(event(number=n) for n in range(1, 3_000)), number=1, settled=1)
    ],
    "a time before all times": [order(event(published_at_ns=-1))],
    "a time after all times": [order(event(published_at_ns=2**63))],
    "a slot that was not given": [Put(event=event(stamp=Stamp({"x": 7})))],
    "an event without a slot": [Put(event=event())],
    "a change of nothing": [ChangeRequest(number=1, old=(), new=())],
    "a change before the first": [ChangeRequest(number=0, old=(), new=("x",))],
    "a topic twice": [ChangeRequest(number=1, old=(), new=("x", "x"))],
    "more than anybody has": [
        ChangeRequest(number=1, old=tuple(f"t{n}" for n in range(1_001)), new=("x",))
    ],
    "more than fits": [AttachRequest(topic="x", from_slot=0)] * (BUNDLE_ITEMS_MAX + 1),
}


@pytest.mark.parametrize("name", NO_CLIENT_WOULD)
def test_invalid_bundles_are_dropped_and_counted(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with station(tmp_path / "d") as rig:
            before = rig.server.journal.end_bytes if rig.server.journal else 0
            rig.write(*NO_CLIENT_WOULD[name])
            assert rig.errors == {"protocol": 1}
            assert rig.server.station is not None
            assert rig.server.station.node.subscribers() == {}
            assert rig.server.station.log.listeners() == {}
            # Nothing of it was stored, and valid clients are not affected.
            assert rig.server.journal is not None
            assert rig.server.journal.end_bytes == before
            assert await rig.ask(order(event())) == [Out(origin="node-1", slots=((1, 1),))]

    asyncio.run(main())


def test_first_invalid_bundles_are_logged_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        messages = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        caplog.clear()
        return messages

    async def main() -> None:
        async with station(tmp_path / "d") as rig:
            said()
            for number in range(100):
                if number % 2:
                    rig.write(order())
                else:
                    rig.carrier.inboxes["node-1"](b"no bundle at all")
            lines = said()
            assert len(lines) == FAULTS_LOGGED_MAX
            assert (
                lines[1]
                == "invalid bundle dropped transport=broker://: order request has no events"
            )
            assert rig.errors == {"protocol": 100}
            monkeypatch.setattr(broker_admission, "LOG_EVERY_S", 0.0)
            rig.write(order())
            assert said() == [
                f"invalid bundles dropped transport=broker:// more={100 - FAULTS_LOGGED_MAX}",
                lines[1],
            ]
            rig.write(order())
            assert said() == [lines[1]], "there were no more"
            assert rig.errors == {"protocol": 102}

    asyncio.run(main())


def test_events_beyond_a_limit_are_rejected_and_others_published(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(topic_depth=2, topic_length=10, headers_per_event=1)
        async with station(tmp_path / "d", limits=limits) as rig:
            answers = await rig.ask(
                order(
                    event("x", 1),
                    event("a.b.c", 1),
                    event("y" * 11, 1),
                    event("x", 2, headers={"a": "1", "b": "2"}),
                    event("x", 3),
                ),
                answers=4,
            )
            reasons = {each.number: each.reason for each in answers if isinstance(each, Refused)}
            assert {number: limit_in(why) for number, why in reasons.items()} == {
                2: ("topic_depth", 2),
                3: ("topic_length", 10),
                4: ("headers_per_event", 1),
            }
            assert rig.errors == {"protocol": 0, "limit": 3}
            # The publisher handles the rejections and requests the rest again.
            assert await rig.ask(order(event("x", 3), number=5, settled=5)) == [
                Out(origin="node-1", slots=((5, 2),))
            ]

    asyncio.run(main())


def test_topics_per_subscription_are_limited_on_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_admission, "PEERS_MAX", 2)

    async def main() -> None:
        limits = Limits(topics_per_subscription=3)
        async with station(tmp_path / "d", limits=limits) as rig:
            topics = tuple(f"t{n}" for n in range(4))
            (refused,) = await rig.ask(ChangeRequest(number=1, old=(), new=topics))
            assert isinstance(refused, Refused)
            assert "topics_per_subscription" in refused.reason
            (changed,) = await rig.ask(ChangeRequest(number=2, old=(), new=topics[:3]))
            assert isinstance(changed, Changed)
            listening = [AttachRequest(topic=topic, from_slot=1) for topic in topics]
            answers = await rig.ask(*listening, answers=4)
            assert sum(isinstance(each, Refused) for each in answers) == 1
            # Counted per sender, for a bounded number of senders.
            for number in range(2, 5):
                answers = await rig.ask(*listening[:3], source=f"client~{number}", answers=3)
                assert not any(isinstance(each, Refused) for each in answers)

    asyncio.run(main())


def test_many_rejections_are_sent_in_several_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with station(tmp_path / "d", limits=Limits(topic_depth=1)) as rig:
            assert rig.server.transport is not None
            rig.server.transport.bundle_bytes = 1_000
            events = [event(f"{'x' * 100}.y", number) for number in range(1, 101)]
            largest = 0
            carry = rig.carrier.send

            def send(peer: str, data: bytes) -> None:
                nonlocal largest
                largest = max(largest, len(data))
                carry(peer, data)

            rig.carrier.send = send  # type: ignore[method-assign]
            rig.write(order(*events))
            await until(lambda: len(rig.answers_to()) == 100)
            assert largest < 1_200

    asyncio.run(main())


def test_registry_gets_only_its_frame_types(tmp_path: Path) -> None:
    async def main() -> None:
        async with station(tmp_path / "d") as rig:
            registry = registry_of("node-1", "causal")
            rig.write(order(event()), target=registry)
            assert rig.errors == {"protocol": 1}
            answers = await rig.ask(Register(epoch=0, known=0, gone=0), target=registry)
            assert isinstance(answers[0], Members)

    asyncio.run(main())


def test_frames_of_other_stations_are_admitted(tmp_path: Path) -> None:
    async def main() -> None:
        chain = (Member("a", "127.0.0.1:1"), Member("node-1", "127.0.0.1:2"))
        async with station(tmp_path / "d", chain=chain) as rig:
            rig.write(ChangeRepeat(subscriber="somebody~1", number=1), source="a")
            assert rig.errors == {"protocol": 0}
            rig.write(ChangeRepeat(subscriber="somebody~1", number=1), source="b")
            assert rig.errors == {"protocol": 1}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("users", {"access": Access(users={"al": User(token=new_token()[1])})}),
        ("tls", {"tls": Tls(cert="c", key="k")}),
        ("stations", {"access": Access(station_secret="s" * 40)}),
    ],
)
def test_security_options_are_rejected_on_a_broker(
    table: str, options: dict[str, object], tmp_path: Path
) -> None:
    config = ServerConfig(data=str(tmp_path), **options)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=rf"{table} has no effect on a broker.*configure the broker"):
        BrokeredServer(config, "nats://127.0.0.1")
