"""The fuzz target itself: it reaches what it is meant to reach, and goes red where it should."""

from random import Random

import pytest
from fuzz import wire

from ensue.errors import RemoteProtocolError
from ensue.protocols.exchange import Exchange
from ensue.protocols.gossip.enrolled import EnrolledBroker
from ensue.protocols.hypercube.enrolled import EnrolledNode
from ensue.protocols.hypercube.enrolment import Registry
from ensue.protocols.station import FRAMES, Station


def inputs(count: int) -> list[bytes]:
    random = Random(7)
    return [random.randbytes(random.choice((3, 20, 200, 1000))) for _ in range(count)]


def test_nothing_but_protocol_errors_comes_of_random_bytes() -> None:
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
    # Those of links are for what the station is wrapped in.
    missing = {kind.__name__ for kind in FRAMES if kind not in seen}
    assert missing <= {"LinkData", "LinkAck"}


@pytest.mark.parametrize("kind", [EnrolledNode, EnrolledBroker, Registry, Exchange])
def test_what_runs_beside_a_station_is_reached_too(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that is planted there comes out."""

    def broken(*_given: object, **_named: object) -> None:
        raise ValueError("planted")

    def try_all() -> None:
        for data in inputs(600):
            wire.one_input(data)

    monkeypatch.setattr(kind, "receive", broken)
    with pytest.raises(ValueError, match="planted"):
        try_all()


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_a_peer_does_wrong_is_no_fault() -> None:
    with pytest.raises(RemoteProtocolError):
        wire.read(b"\x7f\xc1")
    wire.one_input(b"\x01\x00\x00" + b"\xc1")
