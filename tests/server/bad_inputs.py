"""Invalid input for a server: each with a name, and the reaction that it must cause.

`FRESH` are the first bytes of a connection, `WELCOME` follow hello, and `ENTERED` are from a
connection that has entered the name `BAD`. Each is bytes, or a function of the connection, which
may read and send. `CLOSED` must close the connection; `TOLD` must be answered with a rejection, and
the connection stays open.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
from tests.server.raw import Raw

from ensue.core.event import COUNT_MAX, Event, Stamp
from ensue.core.wire import FRAME_BYTES_MAX, VERSION, Codec
from ensue.protocols.content import frames as content
from ensue.protocols.interface import Frame
from ensue.protocols.shared import link
from ensue.protocols.shared.state_store import NotKept, Recalled, Remember, Remembered
from ensue.protocols.topic_log.frames import (
    Accepted,
    Attached,
    AttachRequest,
    Fetched,
    Notify,
    Put,
    Taken,
)
from ensue.protocols.total import frames
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.transactions import frames as transactions
from ensue.transports.tcp.messages import (
    CONTROL,
    Begin,
    Control,
    Enter,
    Entered,
    Exit,
    Exited,
    Farewell,
    Hello,
    Member,
    Ping,
    Pong,
    Welcome,
    encode_control,
    framed,
)

BAD = "bad~1"
SERVER = "node-1"
BROKER = "node-1/content"
CONTENT_CODEC = Codec(transactions.FRAMES)
TOPIC = "bad"
"""The topic that it may publish on and subscribe to; no other client uses it."""
TOPICS_MAX = 50
"""`topics_per_subscription` of the tested server."""
HEADERS_MAX = 20
NAMES_MAX = 10

Sends = bytes | Callable[[Raw], "Awaitable[None] | None"]


class Bad(NamedTuple):
    """One invalid input."""

    name: str
    what: Sends
    why: str = ""
    """The expected reason; empty for any."""


pack = msgspec.msgpack.encode


# -- Encodings -------------------------------------------------------------------------------------


def control(*fields: Any) -> bytes:
    """Return a control message of unchecked types."""
    return framed(bytes((CONTROL,)) + pack(list(fields)))


def raw_control(body: bytes) -> bytes:
    return framed(bytes((CONTROL,)) + body)


def envelope(*parts: Any, version: int = VERSION) -> bytes:
    """Return a bundle of unchecked types."""
    return framed(bytes((version,)) + pack(list(parts)))


def body(*fields: Any) -> bytes:
    """Return a bundle of one frame from the right sender to the right target."""
    return envelope(SERVER, BAD, [list(fields)])


def raw_body(data: bytes) -> bytes:
    """Return a valid bundle except for its one frame, which is these bytes."""
    return framed(bytes((VERSION,)) + b"\x93" + pack(SERVER) + pack(BAD) + b"\x91" + data)


def sends(*sent: Frame, source: str = BAD, target: str = SERVER) -> Callable[[Raw], None]:
    return lambda raw: raw.bundle(source, *sent, target=target)


def says(message: Control) -> bytes:
    return encode_control(message)


def event(**changes: Any) -> Event:
    given: dict[str, Any] = {"topic": TOPIC, "payload": b"x", "publisher": BAD, "publisher_seq": 1}
    return Event(**{**given, **changes})


def event_fields(**changes: Any) -> list[Any]:
    """Return an encoded event of unchecked types."""
    fields = {
        "topic": TOPIC,
        "payload": b"x",
        "publisher": BAD,
        "publisher_seq": 1,
        "key": None,
        "headers": {},
        "published_at_ns": 1,
        "stamp": None,
        "place": 0,
        "void": False,
        **changes,
    }
    return list(fields.values())


def order(*events: Event, number: int = 1, settled: int = 1) -> Callable[[Raw], None]:
    return sends(frames.OrderRequest(number=number, events=events, settled=settled))


def raw_order(**changes: Any) -> bytes:
    return body(28, 1, [event_fields(**changes)], 1)


def requests(*sent: Frame) -> Callable[[Raw], None]:
    """Return a frame to the content broker over the client's link."""
    numbered = (
        link.LinkData(number=number, payload=CONTENT_CODEC.encode(each))
        for number, each in enumerate(sent, 1)
    )
    return sends(content.Hello(), *numbered, target=BROKER)


def operation(**given: Any) -> content.Operate:
    return content.Operate(**{"number": 1, **given})


def content_event(**given: Any) -> content.Publication:
    return content.Publication(**{"publisher": BAD, "number": 1, "attributes": {"x": 1}, **given})


STAMP = Stamp({TOPIC: 1})
HELLO = Hello(client="bad")
WELCOMED = Welcome(
    server="evil",
    chain=(Member("evil", ""),),
    config=msgspec.Raw(msgspec.msgpack.encode(SequencerConfig())),
    message_bytes_max=1,
)


# -- Before hello ----------------------------------------------------------------------------------

HELLO_FIRST = "expected hello first"
FRESH = [
    Bad("a browser", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    Bad("somebody who speaks TLS", bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) * 40),
    Bad("a shell", b"\n\nhelp\nexit\n" * 20),
    Bad("noise", Random(1).randbytes(2000)),
    Bad("more noise", b"\xff" * 2000),
    Bad("a message of no bytes", b"\0\0\0\0"),
    Bad("a length of four gigabytes", b"\xff\xff\xff\xff"),
    Bad("a length beyond what is taken before hello", (64 * 1024 + 1).to_bytes(4, "big")),
    Bad("a bundle first of all", envelope(SERVER, BAD, []), HELLO_FIRST),
    Bad(
        "a frame first of all",
        lambda raw: raw.bundle(BAD, frames.Forget(number=1, publisher=True)),
        HELLO_FIRST,
    ),
    Bad("enter first of all", says(Enter(name=BAD)), HELLO_FIRST),
    Bad("exit first of all", says(Exit(name=BAD)), HELLO_FIRST),
    Bad("ping first of all", says(Ping(number=1)), HELLO_FIRST),
    Bad("pong first of all", says(Pong(number=1)), HELLO_FIRST),
    Bad("farewell first of all", says(Farewell(reason="no")), HELLO_FIRST),
    Bad("welcome first of all", says(WELCOMED), HELLO_FIRST),
    Bad("entered first of all", says(Entered(name=BAD)), HELLO_FIRST),
    Bad("exited first of all", says(Exited(name=BAD, reason="x")), HELLO_FIRST),
    Bad("version 0 of the protocol", says(Hello(client="x", protocol=0))),
    Bad(
        "version 1 of the protocol",
        says(Hello(client="x", protocol=1)),
        "the client has protocol version 1, the server 2: install the same release",
    ),
    Bad("version 3 of the protocol", says(Hello(client="x", protocol=3))),
    Bad("begin first of all", says(Begin(session=b"x")), HELLO_FIRST),
    Bad("a version beyond all versions", control(1, 2**63, "x", "", "client")),
    Bad("a negative version", control(1, -1, "x", "", "client")),
    Bad("a version in words", control(1, "one", "x", "", "client")),
    Bad("a role that there is not", control(1, 1, "x", "", "admin")),
    Bad("a server from nowhere", says(Hello(client="x", role="station"))),
    Bad("the server itself", says(Hello(client=SERVER, role="station"))),
    Bad("a client without a name", control(1, 1, "", "", "client")),
    Bad("a client with a long name", control(1, 1, "x" * 256, "", "client")),
    Bad("a client whose name is a number", control(1, 1, 7, "", "client")),
    Bad("a client whose name is no UTF-8", raw_control(b"\x95\x01\x01\xa2\xff\xfe\xa0\xa6client")),
    Bad("hello with too much in it", control(1, 1, "x", "", "client", "more")),
    Bad("hello with too little in it", control(1, 1)),
    Bad("hello as a map", raw_control(pack({"client": "x"}))),
    Bad("hello with something behind it", raw_control(pack([1, 1, "x"]) + b"\xc0")),
    Bad("no message at all", raw_control(b"")),
    Bad("an empty array", raw_control(b"\x90")),
    Bad("a message of no kind", control(99, "x")),
    Bad("a message of a negative kind", control(-1, "x")),
    Bad("a message of a kind in words", control("hello", "x")),
    Bad("nil", raw_control(b"\xc0")),
    Bad("arrays within arrays within arrays", raw_control(b"\x91" * 60_000)),
    Bad("maps within maps within maps", raw_control(b"\x81" * 60_000)),
    Bad("a byte that MessagePack never uses", raw_control(b"\xc1" * 10)),
    Bad("a first byte that nobody knows", framed(b"\x00\x01\x02")),
    Bad("another first byte that nobody knows", framed(b"\xff\x01\x02")),
]

# -- After hello -----------------------------------------------------------------------------------

WELCOME_CLOSED = [
    Bad("hello again", says(HELLO)),
    Bad("begin again", says(Begin(session=b"x"))),
    Bad("welcome to a server", says(WELCOMED)),
    Bad("entered, to a server", says(Entered(name=BAD))),
    Bad("exited, to a server", says(Exited(name=BAD, reason="x"))),
    Bad("a ping that counts in words", control(8, "one")),
    Bad("a ping that counts in fractions", control(8, 1.5)),
    Bad("entering without a name", control(3, "")),
    Bad("entering under nil", control(3, None)),
    Bad("entering under a number", control(3, 7)),
    Bad("entering under a long name", control(3, "x" * 256)),
    Bad("entering under no UTF-8", raw_control(b"\x92\x03\xa2\xc3\x28")),
    Bad("a farewell that says a number", control(7, 9, False)),
    Bad("a name that was never entered", sends(frames.Forget(number=1, publisher=True))),
    Bad("the server's own name", sends(frames.Forget(number=1, publisher=True), source=SERVER)),
    Bad(
        "a commit for somebody else",
        sends(Remember(epoch=1, number=1, writes=(("k", b"v"),)), source="honest~reader"),
    ),
    Bad("a length beyond the limit", (FRAME_BYTES_MAX + 1).to_bytes(4, "big")),
    Bad("a message of no bytes after hello", b"\0\0\0\0"),
    Bad(
        "a length that says too little", b"\0\0\0\x03" + envelope(SERVER, BAD, [])[4:] + b"\xff" * 8
    ),
    Bad("noise after hello", Random(2).randbytes(5000)),
]

TOLD_NAMES = [
    Bad("entering as the server", says(Enter(name=SERVER))),
    Bad("a name that parts ids", says(Enter(name="a/b"))),
    Bad(
        "more names than one connection may have",
        b"".join(says(Enter(name=f"many~{number}")) for number in range(NAMES_MAX + 1)),
    ),
    Bad("thousands of names", b"".join(says(Enter(name=f"m~{number}")) for number in range(5000))),
]

# -- Bundles ---------------------------------------------------------------------------------------

FORGET = [27, 1, True]

BUNDLES = [
    Bad("the version before", envelope(SERVER, BAD, [FORGET], version=VERSION - 1)),
    Bad("a version to come", envelope(SERVER, BAD, [FORGET], version=VERSION + 1)),
    Bad("a bundle of no frames", envelope(SERVER, BAD, [])),
    Bad("a bundle for nobody here", envelope("elsewhere", BAD, [FORGET])),
    Bad("a bundle for its sender", envelope(BAD, BAD, [FORGET])),
    Bad("a bundle for no name", envelope("", BAD, [FORGET])),
    Bad("a bundle from no name", envelope(SERVER, "", [FORGET])),
    Bad("a bundle from a number", envelope(SERVER, 7, [FORGET])),
    Bad("a bundle of two parts", envelope(SERVER, BAD)),
    Bad("a bundle of four parts", envelope(SERVER, BAD, [FORGET], 1)),
    Bad("a bundle as a map", framed(bytes((VERSION,)) + pack({"a": 1}))),
    Bad("a bundle of nothing", framed(bytes((VERSION,)))),
    Bad("frames that are none", envelope(SERVER, BAD, 7)),
    Bad("frames that are nil", envelope(SERVER, BAD, None)),
    Bad("frames as a map", envelope(SERVER, BAD, {"a": FORGET})),
    Bad(
        "four thousand million frames",
        framed(bytes((VERSION,)) + b"\x93" + pack(SERVER) + pack(BAD) + b"\xdd\xff\xff\xff\xff"),
    ),
    Bad(
        "ten frames that are one",
        framed(bytes((VERSION,)) + b"\x93" + pack(SERVER) + pack(BAD) + b"\x9a" + pack(FORGET)),
    ),
    Bad("something behind the bundle", framed(envelope(SERVER, BAD, [FORGET])[4:] + b"\xc0")),
    Bad("a good frame and a bad one", envelope(SERVER, BAD, [FORGET, [99]])),
    Bad("a frame of no kind", body(99, 1)),
    Bad("a frame of a negative kind", body(-5)),
    Bad("a frame of a kind in words", body("put")),
    Bad("a frame of half a kind", body(1.5)),
    Bad("a frame that is empty", body()),
    Bad("a frame that is nil", raw_body(b"\xc0")),
    Bad("a frame that is a number", raw_body(b"\x07")),
    Bad("a frame cut short", raw_body(b"\x93\x1b")),
    Bad("a frame with too much", body(27, 1, True, 5)),
    Bad("a frame with too little", body(27)),
    Bad("arrays within a frame", raw_body(b"\x91" * 100_000)),
    Bad("maps within a frame", raw_body(b"\x81\xa1k" * 100_000)),
    Bad("a text of four gigabytes", raw_body(b"\x92\x06\xdb\xff\xff\xff\xff")),
    Bad("bytes of four gigabytes", raw_body(b"\x94\x1c\x01\x91\x92\xa1x\xc6\xff\xff\xff\xff")),
    Bad("a map of four thousand million", raw_body(b"\x94\x29\x01\x01\xdf\xff\xff\xff\xff")),
    Bad("a topic that is no UTF-8", raw_body(b"\x92\x06\xa2\xff\xfe")),
    Bad("half a character", raw_body(b"\x92\x06\xa3\xed\xa0\x80")),
    Bad("a topic that says it is longer", raw_body(b"\x92\x06\xd9\xffabc")),
    Bad("an extension", raw_body(b"\x92\x06\xd4\x01\x00")),
    Bad("a point in time", raw_body(b"\x92\x06\xd6\xff\x00\x00\x00\x00")),
    Bad("a negative number", body(27, -1, True)),
    Bad("a number beyond all counts", body(27, COUNT_MAX + 1, True)),
    Bad("the largest number there is", body(27, 2**64 - 1, True)),
    Bad("a number that is none", body(27, float("nan"), True)),
    Bad("a number that is true", body(27, True, True)),
    Bad("a number in words", body(27, "one", True)),
    Bad("a number that is nil", body(27, None, True)),
    Bad("yes instead of true", body(27, 1, "yes")),
]

# -- Frames that servers send ----------------------------------------------------------------------

STATION_ONLY: list[Frame] = [
    frames.StampRequest(number=1, topics=(TOPIC,), settled=1),
    frames.Fill(publisher=BAD, origin=SERVER, number=1, topic=TOPIC, stamp=STAMP, last=0),
    frames.Stamped(origin=SERVER, grants=(frames.Grant(1, STAMP),)),
    frames.Repeat(publisher="honest~1", number=1),
    frames.Voided(origin=SERVER, numbers=(1,)),
    frames.ChangeFill(subscriber="honest~1", number=9, old=(), new=("x",), entries={}, last=0),
    frames.Changed(number=1, cut={"x": 1}),
    frames.ChangeRepeat(subscriber="honest~1", number=1),
    frames.Refused(number=1, reason="x"),
    frames.Out(origin=SERVER, slots=((1, 1),)),
    frames.Expired(name="honest~1"),
    Accepted(topic="x", event="e", slot=1),
    Taken(topic="x", event="e", slot=1),
    Attached(topic="x", first=1, next=1, sent=1),
    Notify(event=event(topic="x", stamp=Stamp({"x": 1}))),
    Fetched(topic="x", start=1, first=1, next=1, end=1, events=()),
    link.LinkData(number=1, payload=b"\x02\x90"),
    link.LinkAck(number=COUNT_MAX),
    Recalled(number=1, epoch=1, records={}),
    Remembered(epoch=1, number=1),
    NotKept(epoch=1, reason="superseded"),
]

# -- Invalid frames of clients ---------------------------------------------------------------------

FRAMES_CLOSED = [
    *(Bad(f"a client that sends {type(each).__name__}", sends(each)) for each in STATION_ONLY),
    Bad("ordering nothing", order()),
    Bad("a request of number 0", order(event(), number=0, settled=0)),
    Bad("a request that is settled", order(event(), number=3, settled=4)),
    Bad("a request far ahead", order(event(), number=COUNT_MAX, settled=1)),
    Bad("a run beyond the window", order(*(event() for _ in range(1025)), number=1, settled=1)),
    Bad("a topic without a name", raw_order(topic="")),
    Bad("a topic with a long name", raw_order(topic="x" * 256)),
    Bad("a topic that is bytes", raw_order(topic=b"x")),
    Bad("a payload that is text", raw_order(payload="x")),
    Bad("a payload that is nil", raw_order(payload=None)),
    Bad("a key that is a number", raw_order(key=5)),
    Bad("a header that is a number", raw_order(headers={"a": 1})),
    Bad("a header named by a number", raw_order(headers={1: "a"})),
    Bad("headers as a list", raw_order(headers=["a"])),
    Bad("published before time", raw_order(published_at_ns=-1)),
    Bad("published after time", raw_order(published_at_ns=2**63)),
    Bad("an event counted from below", raw_order(publisher_seq=-1)),
    Bad("a stamp that counts backwards", raw_order(stamp=[{"x": -1}, True])),
    Bad("a stamp of lists", raw_order(stamp=[[1, 2], True])),
    Bad("an event with more than it has", body(28, 1, [[*event_fields(), 1]], 1)),
    Bad("an event that is no array", body(28, 1, [7], 1)),
    Bad("an event without a stamp put out", sends(Put(event=event()))),
    Bad("an event with a stamp of other topics", sends(Put(event=event(stamp=Stamp({"y": 1}))))),
    Bad("an event in slot 0", sends(Put(event=event(stamp=Stamp({TOPIC: 0}))))),
    Bad("an event in the next slot", sends(Put(event=event(stamp=Stamp({TOPIC: 1}))))),
    Bad("an event in the last slot", sends(Put(event=event(stamp=Stamp({TOPIC: COUNT_MAX}))))),
    Bad(
        "an event in a slot of honest people",
        sends(Put(event=event(topic="x", stamp=Stamp({"x": 10_000})))),
    ),
    Bad("a void", sends(Put(event=event(topic="x", stamp=Stamp({"x": 1}), void=True)))),
    Bad(
        "somebody else's event put out",
        sends(Put(event=event(topic="x", publisher="honest~1", stamp=Stamp({"x": 1})))),
    ),
    Bad("a change of number 0", sends(frames.ChangeRequest(number=0, old=(), new=(TOPIC,)))),
    Bad("a change of nothing", sends(frames.ChangeRequest(number=1, old=(), new=()))),
    Bad(
        "leaving more topics than there can be",
        sends(
            frames.ChangeRequest(
                number=1, old=tuple(f"o{number}" for number in range(TOPICS_MAX + 1)), new=()
            )
        ),
    ),
    Bad(
        "one topic thousands of times",
        sends(frames.ChangeRequest(number=1, old=(), new=(TOPIC,) * 40)),
    ),
    Bad("topics that are numbers", body(22, 1, [], [7])),
    Bad("topics as text", body(22, 1, [], "abc")),
    Bad("topics as a map", body(22, 1, [], {"a": 1})),
    Bad("a topic of no name subscribed to", body(4, "", 1)),
    Bad("attaching from before the beginning", body(4, TOPIC, -1)),
    Bad("attaching from beyond all counts", body(4, TOPIC, COUNT_MAX + 1)),
    Bad("fetching from before the beginning", body(10, TOPIC, -1, 0)),
    Bad("fetching up to a word", body(10, TOPIC, 1, "end")),
    Bad("confirming in words", body(19, SERVER, [["a", "b"]], 1)),
    Bad("confirming threes", body(19, SERVER, [[1, 2, 3]], 1)),
    Bad("recalling backwards", body(40, -1)),
    Bad("remembering numbers", body(42, 1, 1, [["k", 5]])),
    Bad("remembering under a number", body(42, 1, 1, [[5, b"v"]])),
    Bad("remembering singles", body(42, 1, 1, [["k"]])),
    Bad("remembering a map", body(42, 1, 1, {"k": b"v"})),
    Bad("dismissing in words", body(45, "all")),
    Bad("more frames than fit", sends(*([frames.Forget(number=1, publisher=True)] * 65_537))),
]

FRAMES_TOLD = [
    Bad("somebody else's event", order(event(publisher="honest~1"))),
    Bad("an event that has a stamp", order(event(stamp=STAMP))),
    Bad("an event that is void", order(event(void=True))),
    Bad(
        "an event of thousands of headers",
        order(event(headers={f"h{n}": "v" for n in range(10_000)})),
    ),
    Bad("a topic too deep", order(event(topic=".".join("x" * 17)))),
    Bad(
        "subscribing too deep",
        sends(frames.ChangeRequest(number=1, old=(), new=(".".join("x" * 17),))),
    ),
    Bad("reading too deep", sends(AttachRequest(topic=".".join("x" * 17), from_slot=1))),
    Bad(
        "subscribing to too many topics",
        sends(
            frames.ChangeRequest(
                number=1, old=(), new=tuple(f"n{number}" for number in range(TOPICS_MAX + 1))
            )
        ),
    ),
    Bad(
        "attaching to too many topics",
        sends(
            *(AttachRequest(topic=f"n{number}", from_slot=1) for number in range(TOPICS_MAX + 1))
        ),
    ),
    Bad("remembering before recalling", sends(Remember(epoch=1, number=1, writes=(("k", b"v"),)))),
    Bad("remembering in an epoch to come", sends(Remember(epoch=COUNT_MAX, number=1, writes=()))),
]

# -- Content and transactions ----------------------------------------------------------------------

BROKER_ONLY: list[Frame] = [
    content.Done(number=0),
    content.Notify(publication=content_event(), subscriptions=()),
    content.Routed(publication=content_event(), seen={}),
    content.Step(number=1, changes=(content.Change("sub", "honest~1.sub1", "x = 1"),)),
    content.Stepped(number=1),
    content.Tick(),
    content.Expire(client="honest~1"),
    content.Forbidden(number=1, reason="x"),
    transactions.Open(transaction="1-x", isolated=True),
    transactions.Decide(transaction="1-x", commit=True),
    transactions.Forget(home="x", number=1),
    transactions.Planned(transaction="1-x", operations=()),
    transactions.Close(transaction="1-x", commit=True),
    transactions.Compensate(transaction="1-x"),
]


def planned(**given: Any) -> transactions.Submit:
    one = {"path": "1", "client": BAD, "publication": content_event(), **given}
    return transactions.Submit(
        number=1, operations=(transactions.Operation(**one),), timeout_ns=10**9
    )


CONTENT_CLOSED = [
    *(Bad(f"content: a client's {type(each).__name__}", requests(each)) for each in BROKER_ONLY),
    Bad(
        "content: a frame for stations",
        sends(frames.Forget(number=1, publisher=True), target=BROKER),
    ),
    Bad("content: what brokers say", sends(content.Expired(), target=BROKER)),
    Bad("content: a link of noise", sends(link.LinkData(number=1, payload=b"\xc1"), target=BROKER)),
    Bad(
        "content: several frames that are none",
        sends(link.LinkData(number=1, payload=b"\x00\xc1"), target=BROKER),
    ),
    Bad(
        "content: a bad frame behind a good one",
        sends(
            content.Hello(),
            link.LinkData(
                number=1,
                payload=link.packed(
                    [CONTENT_CODEC.encode(each) for each in (content.Goodbye(), BROKER_ONLY[0])]
                ),
            ),
            target=BROKER,
        ),
    ),
    Bad("content: a request of number 0", requests(operation(number=0))),
    Bad("content: an operation that is none", requests(operation())),
    Bad(
        "content: an operation that is two",
        requests(
            operation(
                change=content.Change("sub", f"{BAD}.sub1", "x = 1"), publication=content_event()
            )
        ),
    ),
    Bad(
        "content: a change of no kind", requests(operation(change=content.Change("x", f"{BAD}.1")))
    ),
    Bad(
        "content: somebody else's subscription",
        requests(operation(change=content.Change("sub", "honest~1.sub1", "x = 1"))),
    ),
    Bad(
        "content: somebody else's event",
        requests(operation(publication=content_event(publisher="honest~1"))),
    ),
    Bad(
        "content: published before time",
        requests(operation(publication=content_event(published_at_ns=-1))),
    ),
    Bad("content: a place in words", requests(operation(path="one", publication=content_event()))),
    Bad(
        "content: an invitation of somebody else",
        requests(
            transactions.Invite(
                number=1,
                transaction="1-x",
                path="1",
                client="honest~1",
                publication=content_event(publisher="honest~1"),
            )
        ),
    ),
    Bad("content: a plan that knows homes", requests(planned(home="node-1/content"))),
    Bad("content: a plan out of place", requests(planned(path="-1"))),
    Bad("content: a plan for somebody else's event", requests(planned(client="honest~1"))),
]

CLOSED_ENTERED = [*BUNDLES, *FRAMES_CLOSED, *CONTENT_CLOSED]
ALL = [*FRESH, *WELCOME_CLOSED, *TOLD_NAMES, *CLOSED_ENTERED, *FRAMES_TOLD]
