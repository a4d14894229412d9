"""Logins, permissions and TLS; rejected clients do not affect others."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.server import certificates
from tests.server.helpers import DEADLINE_S, People, read, serving, until, within
from tests.server.raw import Raw

import ensue
from ensue.core.errors import (
    AccessDenied,
    BadInput,
    EventRefused,
    LimitReached,
    SubscriptionLost,
    SubscriptionRefused,
    TransportError,
)
from ensue.core.event import Event, Stamp
from ensue.protocols.shared.state_store import Recall, Recalled, Remember
from ensue.protocols.topic_log.frames import AttachRequest, Fetch, Put, Surveyed, Taken
from ensue.protocols.total.frames import ChangeRequest, OrderRequest, Out, Refused
from ensue.protocols.total.status import StatusReply, StatusRequest
from ensue.server import Server, ServerConfig, authorization
from ensue.server.config import Limits, Tls
from ensue.server.permissions import Access, Grants, User, certificate_names, new_token
from ensue.server.station_builder import OWNER
from ensue.transports.tcp.messages import (
    Enter,
    Farewell,
    Framer,
    Hello,
    Member,
    Welcome,
    decode_control,
    encode_control,
)

EVERYTHING = (["*"], ["*"])
T = TypeVar("T")


# -- Values ----------------------------------------------------------------------------------------


def test_token_identifies_its_user() -> None:
    tokens = [new_token() for _ in range(3)]
    assert len({token for token, _ in tokens}) == 3
    users = {f"u{number}": User(token=stored) for number, (_, stored) in enumerate(tokens)}
    access = Access(users=users)
    for number, (token, stored) in enumerate(tokens):
        assert access.user_of(token, ()) == f"u{number}"
        assert token not in stored
        # The stored hash is not a token.
        assert access.user_of(stored, ()) is None
    assert access.user_of("", ()) is None


def test_token_is_compared_with_every_user(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [new_token() for _ in range(4)]
    access = Access(users={str(n): User(token=stored) for n, (_, stored) in enumerate(tokens)})
    compared: list[str] = []

    def compare(one: str, other: str) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr("ensue.server.permissions.hmac.compare_digest", compare)
    for token in (tokens[0][0], tokens[3][0], "wrong"):
        compared.clear()
        access.user_of(token, ())
        assert len(compared) == 4


def test_patterns_are_topics_prefixes_or_everything() -> None:
    authorization = User(token="x", publish=("orders", "audit.*"), subscribe=("*",))
    grants = Grants("al", authorization)
    assert [
        topic
        for topic in ("orders", "orders.eu", "audit", "audit.a", "audit.a.b", "auditor", "*")
        if grants.may("publish", topic)
    ] == ["orders", "audit.a", "audit.a.b"]
    assert grants.may("subscribe", "anything at all")
    nothing = Grants("al", User(token="x"))
    assert not nothing.may("publish", "orders")
    assert not nothing.may("subscribe", "")
    assert Grants("", None).may("publish", "orders")


def test_certificate_names() -> None:
    assert certificate_names(None) == ()
    assert certificate_names({}) == ()
    assert certificate_names(
        {
            "subject": ((("countryName", "DE"),), (("commonName", "al"),)),
            "subjectAltName": (("DNS", "al.example"), ("IP Address", "192.0.2.1"), ("URI", "x")),
        }
    ) == ("al", "al.example", "192.0.2.1")


# -- Login -----------------------------------------------------------------------------------------


def test_server_with_users_rejects_clients_without_login(tmp_path: Path) -> None:
    people = People(alice=EVERYTHING)

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            for url in (server.url, f"{server.url}?token=ensue_wrong"):
                with pytest.raises(AccessDenied, match="token"):
                    await within(ensue.connect(url).__aenter__())
            assert server.listener is not None
            assert server.listener.errors["login"] == 2
            async with ensue.connect(people.url(server, "alice")) as bus:
                await within(bus.publish("x", b"1"))

    asyncio.run(main())


def test_events_without_permission_are_rejected_and_others_published(tmp_path: Path) -> None:
    people = People(alice=(["orders", "audit.*"], ["*"]), bob=EVERYTHING)

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access) as server,
            ensue.connect(people.url(server, "alice")) as alice,
            ensue.connect(people.url(server, "bob")) as bob,
            bob.subscribe("orders", "audit.x", "secret") as events,
        ):
            with pytest.raises(EventRefused, match="'alice' may not publish on 'secret'") as caught:
                await within(alice.publish("secret", b"no"))
            assert caught.value.reason == "'alice' may not publish on 'secret'"
            # Rejected events are removed from the middle of a run, and the order stays.
            for number in range(30):
                topic = ("orders", "secret", "audit.x")[number % 3]
                await alice.publish(topic, b"%d" % number, receipt=False)
            with pytest.raises(EventRefused):
                await within(alice.flush())
            await within(bob.publish("secret", b"end"))
            seen = await read(events, 21)
            assert seen == [*(b"%d" % n for n in range(30) if n % 3 != 1), b"end"]
            listener = server.listener
            assert listener is not None
            assert listener.errors == {"permission": 11}
            assert len(listener.connections) == 2

    asyncio.run(main())


def test_subscribing_needs_permission_for_each_topic(tmp_path: Path) -> None:
    people = People(alice=(["*"], ["orders"]))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access) as server,
            ensue.connect(people.url(server, "alice")) as alice,
            alice.subscribe("orders") as events,
        ):
            for topics in (("secret",), ("orders", "secret")):
                with pytest.raises(SubscriptionRefused, match="may not subscribe to 'secret'"):
                    await within(alice.subscribe(*topics).__aenter__())
            with pytest.raises(SubscriptionRefused, match="may not subscribe to 'secret'"):
                await within(events.subscribe("secret"))
            await within(alice.publish("secret", b"no"))
            await within(alice.publish("orders", b"yes"))
            assert await read(events, 1) == [b"yes"]
            assert server.station is not None
            assert server.station.log.listeners().get("secret", ()) == ()

    asyncio.run(main())


def test_withdrawn_permission_ends_the_subscription_with_a_reason(tmp_path: Path) -> None:
    people = People(alice=(["*"], ["orders"]))
    fewer = Access(
        users={"alice": msgspec.structs.replace(people.access.users["alice"], subscribe=())}
    )

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access) as server,
            ensue.connect(people.url(server, "alice")) as alice,
            alice.subscribe("orders", name="desk", durable=True),
        ):
            pass
        async with (
            serving(tmp_path / "d", access=fewer) as server,
            ensue.connect(people.url(server, "alice")) as alice,
        ):
            with pytest.raises(SubscriptionLost, match="may not subscribe to 'orders'"):
                async with alice.subscribe("orders", name="desk", durable=True) as events:
                    await read(events, 1)

    asyncio.run(main())


def test_durable_name_belongs_to_its_first_user_across_restarts(
    tmp_path: Path,
) -> None:
    people = People(alice=EVERYTHING, bob=EVERYTHING)

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access) as server,
            ensue.connect(people.url(server, "alice")) as alice,
            ensue.connect(people.url(server, "bob")) as bob,
        ):
            async with alice.subscribe("x", name="desk", durable=True):
                with pytest.raises(AccessDenied, match="belongs to another user"):
                    await within(bob.subscribe("x", name="desk", durable=True).__aenter__())
            with pytest.raises(AccessDenied, match="belongs to another user"):
                await within(bob.subscribe("x", name="desk", durable=True).__aenter__())
        async with (
            serving(tmp_path / "d", access=people.access) as server,
            ensue.connect(people.url(server, "alice")) as alice,
            ensue.connect(people.url(server, "bob")) as bob,
        ):
            with pytest.raises(AccessDenied, match="belongs to another user"):
                await within(bob.subscribe("x", name="desk", durable=True).__aenter__())
            await within(bob.publish("x", b"1"))
            async with alice.subscribe("x", name="desk", durable=True) as events:
                assert await read(events, 1) == [b"1"]

    asyncio.run(main())


def test_process_name_stays_with_its_user_while_disconnected(tmp_path: Path) -> None:
    people = People(alice=EVERYTHING, bob=EVERYTHING)

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            alice = await Raw.hello(server, token=people.tokens["alice"])
            assert await alice.enter("a~1") is None
            bob = await Raw.hello(server, token=people.tokens["bob"])
            assert await bob.enter("a~1") == "the name belongs to another user"
            alice.close()
            assert server.listener is not None
            listener = server.listener
            await until(lambda: len(listener.connections) == 1)
            assert await bob.enter("a~1") == "the name belongs to another user"
            again = await Raw.hello(server, token=people.tokens["alice"])
            assert await again.enter("a~1") is None
            bob.close()
            again.close()

    asyncio.run(main())


def test_name_in_use_can_not_be_entered_even_if_its_owner_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "RECENT_MAX", 1)
    people = People(alice=EVERYTHING, bob=EVERYTHING)

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            alice = await Raw.hello(server, token=people.tokens["alice"])
            for name in ("a~1", "a~2"):
                assert await alice.enter(name) is None
            assert server.journal is not None
            assert f"{OWNER}a~1" not in server.journal.records, "whose it is nobody remembers"
            bob = await Raw.hello(server, token=people.tokens["bob"])
            assert await bob.enter("a~1") == "the name belongs to another user"
            # Messages still reach its owner; once it disconnects, the name is free.
            assert server.listener is not None
            listener = server.listener
            assert listener.routes["a~1"].grants.user == "alice"
            alice.close()
            await until(lambda: len(listener.connections) == 1)
            assert await bob.enter("a~1") is None
            bob.close()

    asyncio.run(main())


# -- Frames ----------------------------------------------------------------------------------------


@asynccontextmanager
async def restricted(tmp_path: Path) -> AsyncIterator[tuple[Server, Raw]]:
    """A server, and a connection of a user who may use only `mine`, as `m~1`."""
    people = People(mallory=(["mine"], ["mine"]))
    async with serving(tmp_path / "d", access=people.access) as server:
        raw = await Raw.hello(server, token=people.tokens["mallory"])
        assert await raw.enter("m~1") is None
        try:
            yield server, raw
        finally:
            raw.close()


def event(topic: str, **fields: Any) -> Event:
    given: dict[str, Any] = {"payload": b"", "publisher": "m~1", "publisher_seq": 1, **fields}
    return Event(topic=topic, **given)


def test_each_frame_type_gets_its_own_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with restricted(tmp_path) as (server, raw):
            why = "'mallory' may not publish on 'x'"
            cannot = "'mallory' may not subscribe to 'x'"
            for asked, told in (
                (
                    OrderRequest(number=4, events=(event("x"),), settled=4),
                    Refused(number=4, reason=why),
                ),
                (AttachRequest(topic="x", from_slot=7), Refused(number=0, reason=cannot)),
                (Fetch(topic="x", start=1, stop=0), Refused(number=0, reason=cannot)),
                (
                    ChangeRequest(number=1, old=(), new=("mine", "x")),
                    Refused(number=1, reason=cannot),
                ),
                # The topics that it claims to have are not verified.
                (
                    ChangeRequest(number=2, old=("x",), new=("x", "mine")),
                    Refused(number=2, reason=cannot),
                ),
            ):
                raw.bundle("m~1", asked)
                assert await raw.frame() == told
            assert server.listener is not None
            assert server.listener.errors == {"permission": 5}
            raw.bundle("m~1", OrderRequest(number=4, events=(event("mine"),), settled=4))
            assert isinstance(await raw.frame(), Out)
            assert server.station is not None
            assert server.station.log.ends() == {"mine": 1}

    asyncio.run(main())


def test_assigned_slot_rejects_an_event_without_permission(
    tmp_path: Path,
) -> None:
    people = People(alice=EVERYTHING, mallory=(["mine"], ["*"]))

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            async with ensue.connect(people.url(server, "alice")) as alice:
                for topic in ("x", "mine"):
                    await within(alice.publish(topic, b"1"))
            raw = await Raw.hello(server, token=people.tokens["mallory"])
            assert await raw.enter("m~1") is None
            assert server.listener is not None
            listener = server.listener
            mallory = listener.routes["m~1"]
            put, allowed = (
                Put(event=event(topic, stamp=Stamp({topic: 1}))) for topic in ("x", "mine")
            )
            taken = Taken(topic="x", event=put.event.id, slot=1)
            # The log has another event there and would answer the same: it is not queried.
            assert listener.authorization.screen(mallory, "m~1", [put, allowed]) == (
                [allowed],
                [taken],
            )
            raw.bundle("m~1", put)
            assert await raw.frame() == taken
            assert listener.errors == {"permission": 1}
            raw.close()

    asyncio.run(main())


def test_topic_beyond_the_length_limit_is_rejected_for_every_request(tmp_path: Path) -> None:
    most, longer = "t" * 5, "t" * 6
    why = (
        "the topic has too many characters (limit topic_length=5): raise limits.topic_length in "
        "the server's file, or use fewer"
    )

    async def main() -> None:
        async with (
            serving(tmp_path / "d", limits=Limits(topic_length=5)) as server,
            ensue.connect(server.url) as bus,
            bus.subscribe(most) as events,
        ):
            with pytest.raises(EventRefused, match=re.escape(why)):
                await within(bus.publish(longer, b""))
            with pytest.raises(SubscriptionRefused, match=re.escape(why)):
                await within(bus.subscribe(most, longer).__aenter__())
            await within(bus.publish(most, b"1"))
            assert await read(events, 1) == [b"1"]
            for order in (ensue.Causal(), ensue.Deadline(ms=5_000), None):
                async with ensue.connect(server.url, order=order) as other:
                    with pytest.raises(EventRefused, match=re.escape(why)):
                        await within(other.publish(longer, b""))
                    with pytest.raises(SubscriptionRefused, match=re.escape(why)):
                        await within(other.subscribe(longer).__aenter__())
            raw = await Raw.hello(server)
            assert await raw.enter("m~1") is None
            for asked in (
                AttachRequest(topic=longer, from_slot=1),
                Fetch(topic=longer, start=1, stop=0),
            ):
                raw.bundle("m~1", asked)
                assert await raw.frame() == Refused(number=0, reason=why)
            raw.close()
            assert server.station is not None
            assert server.station.log.ends() == {most: 1}

    asyncio.run(main())


def test_surveys_and_status_list_only_readable_topics(tmp_path: Path) -> None:
    people = People(alice=EVERYTHING, mallory=([], ["mine.*", "news"]), nobody=([], []))

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            async with ensue.connect(people.url(server, "alice")) as alice:
                for topic in ("mine.a", "news", "secret"):
                    await within(alice.publish(topic, b""))
            visible = {}
            for who in people.tokens:
                raw = await Raw.hello(server, token=people.tokens[who])
                assert await raw.enter(f"{who}~1") is None
                raw.bundle(f"{who}~1", Fetch(topic="*", start=0, stop=0, survey=("*",)))
                answer = await raw.frame()
                assert isinstance(answer, Surveyed)
                visible[who] = sorted(answer.topics)
                # Nor by a status request, whatever it claims that it may read.
                for readable in (None, ("*",)):
                    look = StatusRequest(
                        number=1, readable=readable, topics=("mine.a", "news", "secret")
                    )
                    raw.bundle(f"{who}~1", look)
                    seen = await raw.frame()
                    assert isinstance(seen, StatusReply)
                    shown = msgspec.json.decode(seen.state)["topics"]
                    assert sorted(each["topic"] for each in shown) == visible[who]
                    assert sorted(seen.bounds) == visible[who]
                raw.close()
            assert visible["alice"] == ["mine.a", "news", "secret"]
            assert visible["mallory"] == ["mine.a", "news"]
            assert visible["nobody"] == []

    asyncio.run(main())


def test_client_sends_only_from_names_that_it_entered(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            honest = await Raw.hello(server)
            assert await honest.enter("h~1") is None
            honest.bundle("h~1", Recall(number=1))
            recalled = await honest.frame()
            assert isinstance(recalled, Recalled)
            other = await Raw.hello(server)
            assert await other.enter("o~1") is None
            other.bundle("h~1", Remember(epoch=recalled.epoch, number=1, writes=(("k", b"v"),)))
            assert "does not own the name" in (await other.farewell()).reason
            assert server.station is not None
            assert server.station.state_store.names() == {"h~1": 0}
            assert server.listener is not None
            assert server.listener.errors == {"protocol": 1}
            honest.close()

    asyncio.run(main())


def test_client_can_not_claim_to_be_a_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            raw = await Raw.hello(server)
            assert await raw.enter("node-1") == "'node-1' is the name of a server: choose another"
            assert "must not contain '/'" in (await raw.enter("a/b") or "")
            raw.close()
            for client in ("node-1", "node-2"):
                with pytest.raises(AccessDenied, match="the chain has no other server"):
                    await Raw.hello(server, client=client, role="station")

    asyncio.run(main())


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


def tls(files: Path, name: str = "server", **options: Any) -> Tls:
    options.setdefault("ca", str(files / "ca.pem"))
    return Tls(cert=str(files / f"{name}.pem"), key=str(files / f"{name}.key"), **options)


def test_tls_works_and_rejects_unknown_certificates(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", tls=tls(files)) as server:
            async with (
                ensue.connect(f"{server.url}&ca={files}/ca.pem") as bus,
                bus.subscribe("x") as events,
            ):
                await within(bus.publish("x", b"1"))
                assert await read(events, 1) == [b"1"]
            with pytest.raises(
                ensue.HandshakeFailed, match=r"TLS with the server .* failed: .*: ca=FILE"
            ):
                await within(ensue.connect(f"{server.url}&ca={files}/stranger.pem").__aenter__())
            with pytest.raises(
                ensue.HandshakeFailed, match=r"speaks TLS answers there.*: add tls=1"
            ):
                await within(ensue.connect(server.url.partition("?")[0]).__aenter__())

    asyncio.run(main())


def test_certificate_of_another_host_is_rejected(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", tls=tls(files, "auditor")) as server:
            with pytest.raises(
                ensue.HandshakeFailed, match="connect by a host name in the certificate"
            ):
                await within(ensue.connect(f"{server.url}&ca={files}/ca.pem").__aenter__())

    asyncio.run(main())


def test_tls_before_1_2_is_rejected(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", tls=tls(files)) as server:
            assert server.listener is not None
            port = server.listener.port

            def old() -> None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = ssl.TLSVersion.TLSv1_1
                with (
                    socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
                    context.wrap_socket(plain),
                ):
                    pass

            with (
                pytest.warns(DeprecationWarning, match="TLSv1"),
                pytest.raises(OSError, match=r"(?i)protocol|alert"),
            ):
                await asyncio.to_thread(old)

    asyncio.run(main())


def test_data_sent_with_the_end_of_the_handshake_is_read(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", tls=tls(files)) as server:
            raw = await Raw.connect(server)
            context = ssl.create_default_context(cafile=files / "ca.pem")
            coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
            secured = context.wrap_bio(coming, going, server_hostname="localhost")

            async def hear(call: Callable[[], T]) -> T:
                while True:
                    try:
                        return call()
                    except ssl.SSLWantReadError:
                        raw.send(going.read())
                        data = await within(raw.reader.read(65536))
                        assert data, "the server hung up"
                        coming.write(data)

            await hear(secured.do_handshake)
            assert secured.version() == "TLSv1.3"
            # The last bytes of the handshake are not sent yet, and go with all of this.
            secured.write(encode_control(Hello(client="c")) + encode_control(Hello(client="c")))
            raw.send(going.read())
            framer, answers = Framer(), list[Any]()
            while len(answers) < 2:
                heard = await hear(lambda: secured.read(65536))
                assert heard, f"the server hung up: {answers}"
                answers += map(decode_control, framer.feed(heard))
            assert [type(answer) for answer in answers] == [Welcome, Farewell]
            raw.close()

    asyncio.run(main())


def test_certificate_identifies_a_user(tmp_path: Path, files: Path) -> None:
    access = Access(users={"auditor": User(certificate="auditor.example.org", subscribe=("x",))})

    async def main() -> None:
        trust = tls(files, clients="optional")
        async with serving(tmp_path / "d", tls=trust, access=access) as server:
            url = f"{server.url}&ca={files}/ca.pem"
            with pytest.raises(AccessDenied, match="a token is needed"):
                await within(ensue.connect(url).__aenter__())
            mine = f"&cert={files}/auditor.pem&key={files}/auditor.key"
            async with ensue.connect(url + mine) as bus, bus.subscribe("x"):
                with pytest.raises(EventRefused, match="'auditor' may not publish"):
                    await within(bus.publish("x", b"1"))
            other = f"&cert={files}/s1.pem&key={files}/s1.key"
            with pytest.raises(AccessDenied, match="a token is needed"):
                await within(ensue.connect(url + other).__aenter__())
            forged = f"&cert={files}/mallory.pem&key={files}/mallory.key"
            with pytest.raises(TransportError):
                await within(ensue.connect(url + forged).__aenter__())

    asyncio.run(main())


def test_required_certificates_are_a_login(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        trust = tls(files, clients="required")
        async with serving(tmp_path / "d", tls=trust) as server:
            url = f"{server.url}&ca={files}/ca.pem"
            with pytest.raises(TransportError):
                await within(ensue.connect(url).__aenter__())
            mine = f"&cert={files}/auditor.pem&key={files}/auditor.key"
            async with ensue.connect(url + mine) as bus:
                await within(bus.publish("x", b"1"))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("", r"does it need a client certificate \(cert=FILE&key=FILE\)\?"),
        ("mallory", r"does it trust the CA that signed .*mallory.pem \(its option tls.ca\)\?"),
    ],
)
def test_missing_or_unknown_certificate_is_reported_and_counted(
    tmp_path: Path, files: Path, shown: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        trust = tls(files, clients="required")
        async with serving(tmp_path / "d", tls=trust) as server:
            url = f"{server.url}&ca={files}/ca.pem"
            if shown:
                url += f"&cert={files}/{shown}.pem&key={files}/{shown}.key"
            with pytest.raises(TransportError, match=told):
                await within(ensue.connect(url).__aenter__())
            listener = server.listener
            assert listener is not None
            await until(lambda: listener.errors == {"tls": 1}, "it is counted")

    asyncio.run(main())
    (said,) = (each for each in caplog.records if vars(each).get("fault") == "tls")
    assert said.getMessage().startswith("127.0.0.1:")


def test_connection_without_handshake_is_counted_as_silent(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        limits = Limits(unauthenticated_s=0.05)
        async with serving(tmp_path / "d", tls=tls(files), limits=limits) as server:
            raw = await Raw.connect(server)
            listener = server.listener
            assert listener is not None
            await until(lambda: listener.errors == {"silent": 1}, "it is counted")
            raw.close()
            gone = await Raw.connect(server)
            await until(lambda: listener.handshakes)
            gone.close()
            await until(lambda: not listener.handshakes)
            assert listener.errors == {"silent": 1}, "who goes by itself has done nothing wrong"

    asyncio.run(main())


def test_process_name_belongs_to_its_user_across_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "RECENT_MAX", 3)
    people = People(al=(["*"], ["*"]), bo=(["*"], ["*"]))

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            al = await Raw.hello(server, token=people.tokens["al"])
            for name in ("old~1", "desk~1", "desk~2", "desk~3"):
                assert await al.enter(name) is None
            al.close()
        async with serving(tmp_path / "d", access=people.access) as server:
            bo = await Raw.hello(server, token=people.tokens["bo"])
            assert await bo.enter("desk~1") == "the name belongs to another user"
            al = await Raw.hello(server, token=people.tokens["al"])
            assert await al.enter("desk~1") is None
            # Exactly the limit is recorded.
            assert server.journal is not None
            owned = {key for key in server.journal.records if key.startswith(OWNER)}
            assert owned == {f"{OWNER}desk~{number}" for number in (1, 2, 3)}
            assert await bo.enter("old~1") is None
            for raw in (al, bo):
                raw.close()

    asyncio.run(main())


def test_connections_without_handshake_are_evicted_first(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        limits = Limits(
            connections=2, unauthenticated_connections=3, unauthenticated_s=2 * DEADLINE_S
        )
        async with serving(tmp_path / "d", tls=tls(files), limits=limits) as server:
            listener = server.listener
            assert listener is not None
            ca = files / "ca.pem"
            stays = await Raw.hello(server, ca=ca)
            silent = [await Raw.connect(server) for _ in range(3)]
            await until(lambda: listener.handshakes == 3)
            # Each new connection evicts the oldest.
            other = await Raw.hello(server, ca=ca)
            assert await within(silent[0].reader.read()) == b""
            assert listener.errors == {"limit": 1}
            # The server is full: a client that completes the handshake gets the reason.
            with pytest.raises(AccessDenied, match=r"\(limit connections=2\)"):
                await Raw.hello(server, ca=ca)
            for each in (other, stays, *silent):
                each.close()

    asyncio.run(main())


def test_handshake_times_out(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        limits = Limits(unauthenticated_s=0.2)
        async with serving(tmp_path / "d", tls=tls(files), limits=limits) as server:
            silent = await Raw.connect(server)
            # Half of asyncio's own timeout.
            assert await within(silent.reader.read(), 30) == b""
            assert server.listener is not None
            assert server.listener.handshakes == 0
            silent.close()

    asyncio.run(main())


def test_stop_does_not_wait_for_incomplete_handshakes(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        limits = Limits(unauthenticated_s=10 * DEADLINE_S)
        async with serving(tmp_path / "d", tls=tls(files), limits=limits) as server:
            listener = server.listener
            assert listener is not None
            silent = await Raw.connect(server)
            await until(lambda: listener.handshakes == 1)
        assert await within(silent.reader.read()) == b""
        assert listener.handshakes == 0
        silent.close()

    asyncio.run(main())


def test_error_names_unusable_tls_files(tmp_path: Path, files: Path) -> None:
    async def main() -> None:
        bad = Tls(cert=str(files / "none.pem"), key=str(files / "server.key"))
        server = Server(ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0", tls=bad))
        with pytest.raises(BadInput, match=r"TLS can't be set up from .*none\.pem"):
            await server.start()

    asyncio.run(main())


def two(tmp_path: Path, files: Path, ports: list[int], **access: Any) -> list[ServerConfig]:
    """Two servers of a chain with TLS; `access` sets how they authenticate."""
    members = tuple(
        Member(f"s{number}", f"127.0.0.1:{port}", (f"t{number}",))
        for number, port in enumerate(ports)
    )
    return [
        ServerConfig(
            data=str(tmp_path / member.name),
            listen=member.address,
            name=member.name,
            chain=members,
            tls=tls(files, member.name, clients="optional"),
            access=Access(**access),
        )
        for member in members
    ]


def spare_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.parametrize("proof", ["secret", "certificate"])
def test_servers_authenticate_each_other(tmp_path: Path, files: Path, proof: str) -> None:
    token, stored = new_token()
    users = {"al": User(token=stored, publish=("*",), subscribe=("*",))}
    access: dict[str, Any] = {"users": users}
    access |= {"station_secret": "s" * 43} if proof == "secret" else {"station_certificates": True}

    async def main() -> None:
        configs = two(tmp_path, files, spare_ports(2), **access)
        servers = [Server(config) for config in configs]
        for server in servers:
            await server.start()
        try:
            url = f"{servers[1].url}&ca={files}/ca.pem&token={token}"
            async with ensue.connect(url) as bus, bus.subscribe("t0", "t1") as events:
                for number in range(10):
                    await within(bus.publish(f"t{number % 2}", b"%d" % number))
                assert await read(events, 10) == [b"%d" % number for number in range(10)]
            # A user can't log in as a server, nor with a certificate of another server.
            for who in ("s0", "s1"):
                with pytest.raises(AccessDenied):
                    await Raw.hello(
                        servers[0],
                        client=who,
                        role="station",
                        token=token,
                        ca=files / "ca.pem",
                        own=files / "auditor",
                    )
            if proof == "secret":
                with pytest.raises(AccessDenied, match="is not authenticated"):
                    await Raw.hello(
                        servers[0], client="s1", role="station", token="", ca=files / "ca.pem"
                    )
            else:
                with pytest.raises(AccessDenied, match="is not authenticated"):
                    await Raw.hello(
                        servers[0],
                        client="s1",
                        role="station",
                        ca=files / "ca.pem",
                        own=files / "s0",
                    )
                station = await Raw.hello(
                    servers[0], client="s1", role="station", ca=files / "ca.pem", own=files / "s1"
                )
                assert await station.enter("al~1") == "this is 's1', not 'al~1'"
                station.close()
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_hello_reveals_no_secret(tmp_path: Path) -> None:
    people = People(alice=EVERYTHING)

    async def main() -> None:
        async with serving(tmp_path / "d", access=people.access) as server:
            raw = await Raw.connect(server)
            raw.control(Hello(client="x", token="ensue_wrong"))
            said = await raw.farewell()
            assert said == Farewell(reason="the token is unknown", final=True)
            early = await Raw.connect(server)
            early.control(Enter(name="a~1"))
            assert (await early.farewell()).reason == "expected hello first"
            good = await Raw.connect(server)
            good.control(Hello(client="x", token=people.tokens["alice"]))
            assert isinstance(await good.message(), Welcome)
            good.close()

    asyncio.run(main())


def test_limit_errors_name_the_limit_its_value_and_how_to_raise_it(
    tmp_path: Path,
) -> None:
    limits = Limits(
        names_per_connection=3, headers_per_event=1, topics_per_subscription=2, topic_depth=2
    )

    async def main() -> None:
        async with serving(tmp_path / "d", limits=limits) as server:
            async with ensue.connect(server.url) as bus:
                with pytest.raises(EventRefused) as many_headers:
                    await within(bus.publish("t", b"", headers={"a": "", "b": ""}))
                with pytest.raises(EventRefused) as deep:
                    await within(bus.publish("a.b.c", b""))
                with pytest.raises(SubscriptionRefused) as many_topics:
                    await within(bus.subscribe("a", "b", "c").__aenter__())
                for caught, limit, value in (
                    (many_headers, "headers_per_event", 1),
                    (deep, "topic_depth", 2),
                    (many_topics, "topics_per_subscription", 2),
                ):
                    error = caught.value
                    assert isinstance(error, LimitReached)
                    assert (error.limit, error.value) == (limit, value)
                    assert f"(limit {limit}={value}): raise limits.{limit} in" in str(error)
            async with ensue.connect(server.url) as bus:

                async def subscribe() -> None:
                    for _ in range(5):
                        await bus.subscribe("t").__aenter__()

                with pytest.raises(LimitReached) as many_names:
                    await within(subscribe())
                assert not isinstance(many_names.value, PermissionError)
                assert (many_names.value.limit, many_names.value.value) == (
                    "names_per_connection",
                    3,
                )
            assert server.listener is not None
            assert server.listener.errors["limit"] == 4

    asyncio.run(main())


def test_full_server_names_the_connection_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", limits=Limits(connections=1)) as server,
            ensue.connect(server.url),
        ):
            with pytest.raises(LimitReached, match=r"raise limits\.connections in") as caught:
                await within(ensue.connect(server.url, name="second").__aenter__())
            assert (caught.value.limit, caught.value.value) == ("connections", 1)

    asyncio.run(main())
