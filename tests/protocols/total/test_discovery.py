"""Discovery: the first station answers under a well-known name with the chain."""

from ensue.core.wire import Codec
from ensue.protocols.interface import Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.discovery import DISCOVERY_NAME, Described, Discover, DiscoveryNode
from ensue.protocols.total.station import FRAMES

CHAIN = Described(
    number=0,
    nodes=(("north", ("a", "b")), ("south", ()), ("west", ("c",))),
    closed=False,
    config=SequencerConfig(carries=True, window=7),
)


def test_discovery_answers_with_the_number_of_the_request() -> None:
    guide = DiscoveryNode(CHAIN)
    guide.receive(Discover(number=5), source="visitor~1", now_ns=0)
    guide.receive(Discover(number=5), source="visitor~1", now_ns=0)
    guide.receive(Discover(number=9), source="visitor~2", now_ns=0)
    told = guide.take_effects()
    numbers = [
        (each.peer, each.frame.number)
        for each in told
        if isinstance(each, Send) and isinstance(each.frame, Described)
    ]
    assert numbers == [("visitor~1", 5), ("visitor~1", 5), ("visitor~2", 9)]
    assert guide.take_effects() == []


def test_discovery_answer_gives_all_clients_the_same_placement() -> None:
    guide = DiscoveryNode(CHAIN)
    guide.receive(Discover(number=1), source="v", now_ns=0)
    (told,) = guide.take_effects()
    assert isinstance(told, Send)
    codec = Codec(FRAMES)
    described = codec.decode(codec.encode(told.frame))
    assert isinstance(described, Described)
    assert described.config == CHAIN.config
    placement = described.placement()
    assert placement.nodes == ("north", "south", "west")
    assert [placement.node(topic) for topic in "abc"] == ["north", "north", "west"]
    # Topics that are not placed by name are hashed alike by everybody.
    anywhere = [f"topic-{number}" for number in range(50)]
    assert [placement.node(each) for each in anywhere] == [
        CHAIN.placement().node(each) for each in anywhere
    ]
    assert {placement.node(each) for each in anywhere} == set(placement.nodes)


def test_discovery_reports_a_closed_chain() -> None:
    closed = Described(number=0, nodes=CHAIN.nodes, closed=True, config=CHAIN.config)
    assert not closed.placement().knows("anything")
    assert closed.placement().knows("a")


def test_discovery_node_has_no_timer_and_ignores_stray_frames() -> None:
    guide = DiscoveryNode(CHAIN)
    guide.handle_timer(now_ns=10**12)
    guide.receive(CHAIN, source="v", now_ns=0)
    assert guide.take_effects() == []
    assert guide.next_timer_ns() is None
    assert guide.name == DISCOVERY_NAME
