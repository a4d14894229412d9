"""Messages and URLs of `ensue://`: any packets give the same messages; bad bytes are refused."""

import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ensue
from ensue import orders
from ensue.core.errors import BadInput, RemoteProtocolError
from ensue.transports.schemes import BrokerOptions, parse_url
from ensue.transports.tcp.messages import (
    CONTROL,
    PREFIX_BYTES,
    Begin,
    Enter,
    Entered,
    Exit,
    Exited,
    Farewell,
    Framer,
    Hello,
    Member,
    Ping,
    Pong,
    Welcome,
    decode_control,
    encode_control,
    framed,
)
from ensue.transports.tcp.options import DEFAULT_PORT, TcpOptions, parse_address
from ensue.transports.tls import TlsOptions

LIMITED = settings(derandomize=True, max_examples=150, deadline=None)

# -- Framing --------------------------------------------------------------------------------------


@LIMITED
@given(
    st.lists(st.binary(min_size=1, max_size=60), max_size=12),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_any_packets_give_the_same_messages(messages: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(framed, messages))
    framer, found, at, turn = Framer(60), list[bytes](), 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        found += framer.feed(stream[at : at + size])
        at += size
        turn += 1
        assert framer.held <= PREFIX_BYTES + 60
    assert found == messages
    assert framer.held == 0


@LIMITED
@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5), st.binary(max_size=30))
def test_only_an_incomplete_message_is_held(messages: list[bytes], rest: bytes) -> None:
    begun = framed(rest + b"!")[:-1]
    framer = Framer()
    assert framer.feed(b"".join(map(framed, messages)) + begun) == messages
    assert framer.held == len(begun)
    assert framer.feed(b"!") == [rest + b"!"]


@pytest.mark.parametrize("step", [1, 3, 4, 5, 1000])
@pytest.mark.parametrize("size", [0, 11, 2**31, 2**32 - 1])
def test_impossible_length_is_refused_at_once(size: int, step: int) -> None:
    framer = Framer(10)
    stream = framed(b"fine") + size.to_bytes(4, "big") + b"x" * 20
    # It is accepted until the packet with the last byte of the length.
    last = (11 // step) * step
    for at in range(0, last, step):
        framer.feed(stream[at : at + step])
    with pytest.raises(RemoteProtocolError, match=f"announces {size} bytes; expected 1 to 10"):
        framer.feed(stream[last : last + step])


def test_largest_message_is_accepted() -> None:
    framer = Framer(10)
    assert framer.feed(framed(b"x" * 10)) == [b"x" * 10]


def test_raised_limit_applies_from_the_next_message() -> None:
    framer = Framer(4)
    assert framer.feed(framed(b"abcd")[:-1]) == []
    framer.bytes_max = 8
    assert framer.feed(b"d" + framed(b"12345678")) == [b"abcd", b"12345678"]


# -- Control messages -----------------------------------------------------------------------------

EVERY = (
    Hello(client="c"),
    Hello(client="c", token="secret", role="station", protocol=7),
    Welcome(
        server="s",
        chain=(Member("s", ""), Member("t", "127.0.0.1:1", ("a", "b"))),
        closed=True,
        config=msgspec.Raw(msgspec.msgpack.encode({"carries": True, "window": 3})),
        message_bytes_max=5,
        session=b"0123456789abcdef",
    ),
    Begin(session=b"0123456789abcdef"),
    Enter(name="n"),
    Entered(name="n"),
    Exit(name="n"),
    Exited(name="n", reason="taken over"),
    Farewell(reason="bye", final=True),
    Farewell(reason="bye"),
    Ping(number=3),
    Pong(number=3),
)


@pytest.mark.parametrize("message", EVERY, ids=lambda each: type(each).__name__)
def test_control_message_roundtrip(message: object) -> None:
    (whole,) = Framer().feed(encode_control(message))  # type: ignore[arg-type]
    assert whole[0] == CONTROL
    assert decode_control(whole) == message


def encoded(*fields: object) -> bytes:
    return bytes((CONTROL,)) + msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    "data",
    [
        bytes((CONTROL,)),
        encoded(),
        encoded(99, "x"),
        encoded(3),
        encoded(3, ""),
        encoded(3, "x" * 256),
        encoded(3, 5),
        encoded(3, "name", "more"),
        encoded(8, "one"),
        encoded(1, 1, "client", "", "king"),
        encoded(1, 1, "client", "", "client", "more"),
        encoded(7, "bye", "yes"),
        bytes((CONTROL,)) + b"\xc1",
        encode_control(Ping(number=1))[PREFIX_BYTES:] + b"\x00",
        bytes((CONTROL,)) + b"\x91" * 5_000,
    ],
)
def test_other_bytes_are_refused_as_a_whole(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a control message can't be decoded"):
        decode_control(data)


@LIMITED
@given(st.binary(max_size=80))
def test_random_bytes_are_a_control_message_or_refused(noise: bytes) -> None:
    try:
        message = decode_control(bytes((CONTROL,)) + noise)
    except RemoteProtocolError:
        return
    assert type(message) in {type(each) for each in EVERY}


# -- URLs -----------------------------------------------------------------------------------------


def test_a_url_is_read_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENSUE_TOKEN", raising=False)
    assert TcpOptions.parse("ensue://host") == TcpOptions(host="host", port=DEFAULT_PORT)
    assert TcpOptions.parse("ensue://[::1]:9/") == TcpOptions(host="::1", port=9)
    full = "ensue://h:1?ca=c.pem&cert=d.pem&key=k.pem&token=s%26t&server_name=n"
    assert TcpOptions.parse(full) == TcpOptions(
        host="h",
        port=1,
        tls=TlsOptions(on=True, ca="c.pem", cert="d.pem", key="k.pem"),
        token="s&t",
        server_name="n",
    )
    assert TcpOptions.parse("ensue://h?tls=1").tls.on
    assert not TcpOptions.parse("ensue://h?tls=0&ca=c.pem").tls.on


def test_the_environment_gives_the_token_unless_the_url_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENSUE_TOKEN", "from the environment")
    assert TcpOptions.parse("ensue://h").token == "from the environment"
    assert TcpOptions.parse("ensue://h?token=given").token == "given"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ensue://", "expected ensue://HOST:PORT"),
        ("ensue://:7400", "expected ensue://HOST:PORT"),
        ("ensue://h/path", "expected ensue://HOST:PORT"),
        ("ensue://h#part", "expected ensue://HOST:PORT"),
        ("ensue://me:hidden@h", "expected ensue://HOST:PORT"),
        ("ensue://h:x", "Port could not be cast"),
        ("ensue://h:70000", "Port out of range"),
        ("ensue://[::1", "Invalid IPv6"),
        ("ensue://h?colour=red", "there is no option 'colour'; expected tls, ca"),
        ("ensue://h?tls=1&tls=1", "tls is given more than once"),
        ("ensue://h?tls=yes", "tls must be 0 or 1, got 'yes'"),
        ("ensue://h?cert=c.pem", "cert and key go together"),
        ("ensue://h?key=k.pem", "cert and key go together"),
    ],
)
def test_bad_url_is_refused_with_its_reason(url: str, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("?", r"\?")) as refused:
        TcpOptions.parse(url)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "ensue://h?token=hidden&colour=red",
        "ensue://h?token=hidden&token=hidden",
        "ensue://h?token=hidden&tls=2",
        "ensue://h?token=hidden&cert=c",
        "ensue://h/path?token=hidden",
        "ensue://me:hidden@h",
        "ensue://h:x?token=hidden",
    ],
)
def test_a_token_is_never_shown(url: str) -> None:
    with pytest.raises(BadInput) as refused:
        TcpOptions.parse(url)
    assert "hidden" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_missing_tls_files_are_named(tmp_path: os.PathLike[str]) -> None:
    missing = os.path.join(tmp_path, "missing.pem")  # noqa: PTH118 - as it stands in a URL
    assert TcpOptions.parse("ensue://h").tls.context() is None
    with pytest.raises(BadInput, match=r"TLS can't be set up from .*missing\.pem"):
        TlsOptions(on=True, ca=missing).context()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7", ("127.0.0.1", 7)),
        ("host", ("host", DEFAULT_PORT)),
        ("[::1]:8", ("::1", 8)),
        ("h:0", ("h", 0)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, what="it") == address


@pytest.mark.parametrize("text", ["", ":7", "h:x", "h:70000", "h/p", "h?q=1", "[::1"])
def test_invalid_address_is_refused_with_its_kind(text: str) -> None:
    with pytest.raises(BadInput, match="the address to listen on"):
        parse_address(text, what="the address to listen on")


# -- Schemes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "ensue", "http://h", "ensue:h", "://", "ENSUE//h"])
def test_unknown_scheme_lists_the_transports(url: str) -> None:
    with pytest.raises(BadInput, match=r"expected memory://.*ensue://HOST:PORT.*nats://"):
        parse_url(url)


def test_mistyped_scheme_hides_the_password() -> None:
    with pytest.raises(BadInput, match="no transport for 'natz://'") as refused:
        parse_url("natz://me:hidden@h?token=hidden")
    assert "hidden" not in str(refused.value)


def test_url_must_be_text() -> None:
    with pytest.raises(BadInput, match="a URL must be a str"):
        parse_url(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["nats", "redis", "mqtt", "amqp"])
def test_stations_on_a_broker_add_capabilities(scheme: str) -> None:
    pytest.importorskip(
        {"nats": "nats", "redis": "redis", "mqtt": "aiomqtt", "amqp": "aio_pika"}[scheme]
    )
    options = parse_url(f"{scheme}://user:hidden@127.0.0.1:1")
    assert isinstance(options, BrokerOptions)
    assert options.scheme == scheme
    assert "hidden" not in options.url
    can = options.capabilities
    merged, deadline = ensue.Merged(epsilon=0.1, delta=1), ensue.Deadline(ms=100)
    for order in (ensue.Total(), ensue.Causal(), merged, deadline, None):
        assert orders.of(order).refusal(order, can, options.url) is None
    assert (can.durable, can.replay, can.conditional) == (True, True, True)
