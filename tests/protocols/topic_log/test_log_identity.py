"""The frames by which clients and servers compare logs."""

import msgspec
import pytest

from ensue.core.lineage import Lineage
from ensue.core.wire import Codec
from ensue.protocols.interface import Send
from ensue.protocols.topic_log.log_identity import Identified, Identify
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.station import FRAMES, Station

SECOND = Lineage("a" * 16, ()).begin(token=11, begun=0).begin(token=22, begun=100)


def test_identities_are_decoded_strictly() -> None:
    codec = Codec(FRAMES)
    identified = Identified(number=1, log=SECOND)
    assert codec.decode(codec.encode(identified), peer="x") == identified
    long = msgspec.msgpack.encode(Lineage("x" * 65, ()))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(long, type=Lineage)


def test_station_answers_with_its_log_identity() -> None:
    station = Station(name="s", placement=Placement(["s"]), config=SequencerConfig(carries=True))
    station.receive(Identify(number=7), source="c~1", now_ns=0)
    assert not station.take_effects()
    station.lineage = SECOND
    station.receive(Identify(number=7), source="c~1", now_ns=0)
    (sent,) = station.take_effects()
    assert sent == Send("c~1", Identified(number=7, log=SECOND))
