"""The fuzz target itself: it reaches the code that it should, and finds planted faults."""

import sys
from collections.abc import Callable
from inspect import CO_NEWLOCALS
from pathlib import Path
from random import Random
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
from fuzz import wire

from ensue.core.errors import RemoteProtocolError
from ensue.protocols.causal import node, publications, repair, subscriptions
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.deadline.registered import RegisteredBroker
from ensue.protocols.membership import client, member_list, registry
from ensue.protocols.membership.registry import Registry
from ensue.protocols.topic_log import fanout
from ensue.protocols.topic_log.fanout import Fanout
from ensue.protocols.total.station import FRAMES, Station

TraceFunction = Callable[[FrameType, str, Any], Any]


def inputs(count: int) -> list[bytes]:
    random = Random(11)
    return [random.randbytes(random.choice((3, 20, 200, 1000))) for _ in range(count)]


def test_random_bytes_raise_only_protocol_errors() -> None:
    for data in inputs(600):
        wire.one_input(data)


def test_every_kind_of_frame_reaches_the_station(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    receive = Station.receive

    def watched(self: Station, frame: object, **rest: object) -> None:
        seen.add(type(frame))
        receive(self, frame, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Station, "receive", watched)
    for data in inputs(1500):
        wire.one_input(data)
    # The frames of links are for the link around the station.
    missing = {kind.__name__ for kind in FRAMES if kind not in seen}
    assert missing <= {"LinkData", "LinkAck"}


@pytest.mark.parametrize("kind", [RegisteredNode, RegisteredBroker, Registry, Fanout])
def test_fuzzing_reaches_registries_and_fanouts(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault there is found."""

    def broken(*_given: object, **_named: object) -> None:
        raise ValueError("planted")

    def try_all() -> None:
        for data in inputs(600):
            wire.one_input(data)

    monkeypatch.setattr(kind, "receive", broken)
    with pytest.raises(ValueError, match="planted"):
        try_all()


def lines_of(code: CodeType) -> set[int]:
    """Return the executable lines of the functions of a module or a class."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    own = (
        {line for _, _, line in code.co_lines() if line} if code.co_flags & CO_NEWLOCALS else set()
    )
    return own.union(*map(lines_of, inner))


@pytest.mark.parametrize(
    ("modules", "rig", "share"),
    [
        ((fanout,), wire.FANOUT, 0.85),
        ((registry, member_list), wire.REGISTRY, 0.9),
        ((client,), wire.NODE, 0.7),
        ((node,), wire.NODE, 0.6),
        ((publications,), wire.NODE, 0.55),
        ((subscriptions,), wire.NODE, 0.55),
        ((repair,), wire.NODE, 0.55),
    ],
    ids=lambda each: each[0].__name__.rpartition(".")[2] if isinstance(each, tuple) else "",
)
def test_fuzzing_covers_most_of_registries_and_fanouts(
    modules: tuple[ModuleType, ...], rig: int, share: float
) -> None:
    """Not only the entry points: most of their lines run."""
    wanted: set[tuple[str, int]] = set()
    for module in modules:
        path = str(module.__file__)
        code = compile(Path(path).read_text(encoding="utf-8"), path, "exec")
        wanted |= {(path, line) for line in lines_of(code)}
    paths = {path for path, _ in wanted}
    seen: set[tuple[str, int]] = set()

    def within(frame: FrameType, _what: str, _given: object) -> TraceFunction:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return within

    def trace(frame: FrameType, what: str, given: object) -> TraceFunction | None:
        return within(frame, what, given) if frame.f_code.co_filename in paths else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for data in inputs(300):
            wire.one_input(bytes((2, wire.RIGS.index(rig))) + data)
    finally:
        sys.settrace(before)
    reached = len(seen & wanted) / len(wanted)
    assert reached >= share, f"{reached:.0%}; not {sorted(wanted - seen)}"


def test_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_data: bytes) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(wire, "decode_control", broken)
    found = 0
    for data in inputs(300):
        try:
            wire.one_input(data)
        except ValueError:
            found += 1
    assert found


def test_protocol_violation_of_a_peer_is_no_fault() -> None:
    with pytest.raises(RemoteProtocolError):
        wire.read(b"\x7f\xc1")
    wire.one_input(b"\x01\x00\x00" + b"\xc1")
