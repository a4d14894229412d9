"""Interest: a subscriber gets only matching events, in order, and waits for no others."""

from random import Random
from typing import Any

import msgspec
import pytest
from tests.protocols.deadline.net import MS, Net

from ensue.core.errors import BadInput
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Enter, Peer, Rumor, Rumors, Wanted
from ensue.protocols.deadline.interest import filter_text, holds, part

CONFIG = DeadlineConfig(
    period_ns=10 * MS,
    lifetime_ns=200 * MS,
    lifetime_ns_max=200 * MS,
    slack_ns=1,
    subscribers_max=8,
    fan_out=8,
    alpha=3,
)
ACME, BOLT = "symbol = 'ACME'", "symbol = 'BOLT'"
EITHER = "symbol in ('ACME', 'BOLT')"


def net_of(filters: list[str], **changes: Any) -> Net:
    """Return a net of one broker, and subscribers of one topic with these filters."""
    net = Net(msgspec.structs.replace(CONFIG, **changes), 1, len(filters))
    for name, where in zip(net.subscribers, filters, strict=True):
        net.subscribe(name, "t", where=where)
    net.wait(50)
    net.sent.clear()
    return net


def publish(net: Net, text: str, symbol: str) -> None:
    net.publish("b0", "t", text, headers={"symbol": symbol})


def told_to(net: Net, name: str) -> set[str]:
    """Return all events that were sent to a process."""
    return {
        event.payload.decode()
        for _, target, frame in net.sent
        if target == name and isinstance(frame, Rumors)
        for rumor in frame.rumors
        for event in rumor.events
    }


def test_subscriber_gets_only_matching_events() -> None:
    net = net_of([ACME, BOLT, EITHER, "true"])
    for number, symbol in enumerate(("ACME", "BOLT", "COIL", "ACME")):
        publish(net, f"{symbol} {number}", symbol)
    net.publish("b0", "t", "no symbol")
    net.wait(200)
    acme, bolt = ["ACME 0", "ACME 3"], ["BOLT 1"]
    either = ["ACME 0", "BOLT 1", "ACME 3"]
    everything = ["ACME 0", "BOLT 1", "COIL 2", "ACME 3", "no symbol"]
    for name, wanted in zip(net.subscribers, (acme, bolt, either, everything), strict=True):
        assert net.got(name) == wanted
        assert told_to(net, name) == set(wanted)
        assert net.dropped(name) == {}


def test_no_subscriber_waits_for_unwanted_events() -> None:
    net = net_of([ACME], subscribers_max=1_000)
    for number, symbol in enumerate(("BOLT", "COIL", "ACME")):
        publish(net, str(number), symbol)
        net.wait(10)
    assert net.got("s0") == ["2"], "in its own round, not when the others have expired"


def test_filtered_message_is_forwarded_only_to_narrower_interests() -> None:
    net = net_of([EITHER, ACME, "true"])
    # The broker reaches only one of them.
    net.loses = lambda source, target, _frame: source == "b0" and target != "s0"
    publish(net, "bolt", "BOLT")
    publish(net, "acme", "ACME")
    net.wait(150)
    assert net.got("s0") == ["bolt", "acme"]
    assert net.got("s1") == ["acme"], "it is within what the first one has"
    assert net.got("s2") == [], "it wants more"
    named = [
        frame.have
        for source, target, frame in net.sent
        if (source, target) == ("s0", "s2") and isinstance(frame, Rumors)
    ]
    assert not any(named), "nor does it get their ids"


def test_missing_messages_are_requested_with_a_filter() -> None:
    net = net_of([ACME, ACME], push_rounds=1, alpha=6)
    net.loses = lambda _source, target, frame: (
        target == "s1" and isinstance(frame, Rumors) and bool(frame.rumors)
    )
    publish(net, "bolt", "BOLT")
    publish(net, "acme", "ACME")
    net.wait(25)
    net.loses = lambda *_: False
    net.wait(50)
    assert net.got("s1") == ["acme"]
    assert [f.wants for _, _, f in net.sent if isinstance(f, Wanted)]
    assert told_to(net, "s1") == {"acme"}


def test_message_filtered_too_much_is_ignored() -> None:
    """A peer knows an older filter; the complete message comes later."""
    net = net_of([ACME])
    publish(net, "bolt", "BOLT")
    (whole,) = net.broker("b0")._push._gossip._active.values()
    net.under_way.clear()
    net.unsubscribe("s0", "t")
    net.subscribe("s0", "t", where=EITHER)
    net.wait(50)
    late = msgspec.structs.replace(whole.rumor, round=CONFIG.round_of(net.now_ns))
    cut = Rumors(rumors=(part(late, ACME),), have=(), peers=(), cuts={"t": filter_text(ACME)})
    for frame in (cut, Rumors(rumors=(late,), have=(), peers=())):
        net.under_way.append(("b0", "s0", frame))
        net.settle()
        if frame is cut:
            assert net.got("s0") == []
    assert net.got("s0") == ["bolt"]


def test_filter_survives_a_crash_and_ends_with_the_subscription() -> None:
    net = net_of([ACME])
    net.crash("s0")
    net.start("s0")
    net.wait(50)
    for symbol in ("ACME", "BOLT"):
        publish(net, symbol, symbol)
    net.wait(100)
    assert net.got("s0") == ["ACME"]
    net.unsubscribe("s0", "t")
    net.subscribe("s0", "t")
    net.wait(50)
    publish(net, "everything", "BOLT")
    net.wait(100)
    assert net.got("s0") == ["ACME", "everything"]


def test_invalid_filters_are_refused_and_those_of_peers_are_ignored() -> None:
    net = net_of([ACME])
    with pytest.raises(BadInput, match="symbol ="):
        net.subscribe("s0", "u", where="symbol = ")
    bad = {"t": "symbol = "}
    empty = Rumor("t", 0, CONFIG.round_of(net.now_ns), {}, ())
    for target, frame in (
        ("b0", Enter(peer=Peer("evil", "", ("t",), 1, bad), asks=False)),
        ("b0", Wanted(ids=(("t", 0, 1),), wants=bad)),
        ("s0", Rumors(rumors=(empty,), have=(), peers=(), cuts=bad)),
        ("s0", Rumors(rumors=(), have=(), peers=(Peer("evil", "", ("t",), 1, bad),))),
    ):
        net.under_way.append(("evil", target, frame))
    net.settle()
    publish(net, "acme", "ACME")
    net.wait(100)
    assert net.got("s0") == ["acme"]
    assert "evil" not in {target for _, target, _ in net.sent}


@pytest.mark.parametrize(
    ("cut", "wanted", "is_all"),
    [
        ("", "", True),
        ("", ACME, True),
        (ACME, ACME, True),
        (EITHER, ACME, True),
        (ACME, "", False),
        (ACME, EITHER, False),
        (ACME, BOLT, False),
    ],
)
def test_filtered_message_holds_all_events_of_a_narrower_filter(
    cut: str, wanted: str, is_all: bool
) -> None:
    assert holds(cut and filter_text(cut), wanted and filter_text(wanted)) is is_all
    assert filter_text("true") == filter_text("symbol = 'A' or true") == ""


@pytest.mark.parametrize("seed", range(20))
def test_every_subscriber_gets_exactly_its_matching_events_in_causal_order(seed: int) -> None:
    """Brokers that reply to each other, random filters, lost copies; brokers reach all peers."""
    random = Random(seed)
    symbols = "ABC"
    filters = [random.sample(symbols, random.randint(1, 3)) for _ in range(5)]
    net = Net(CONFIG, 3, len(filters))
    for name in net.brokers:
        net.subscribe(name, "t")
    for name, wanted in zip(net.subscribers, filters, strict=True):
        texts = ", ".join(f"'{symbol}'" for symbol in wanted)
        net.subscribe(name, "t", where=f"symbol in ({texts})")
    net.wait(50)
    net.loses = lambda source, target, _frame: (
        source in net.subscribers and target in net.subscribers and random.random() < 0.5
    )
    past: dict[str, set[str]] = {}
    knows: dict[str, list[str]] = {}
    for number in range(30):
        name = random.choice(net.brokers)
        text = f"{random.choice(symbols)}{number}"
        past[text] = {*net.got(name), *knows.get(name, ())}
        knows.setdefault(name, []).append(text)
        net.publish(name, "t", text, headers={"symbol": text[0]})
        net.wait(random.choice((0, 3, 12)))
    net.wait(400)
    for name, wanted in zip(net.subscribers, filters, strict=True):
        got = net.got(name)
        assert sorted(got) == sorted(text for text in past if text[0] in wanted)
        for index, text in enumerate(got):
            assert not past[text] & set(got[index:]), f"seed {seed}: {text} before its cause"
