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
    discovery = DiscoveryNode(CHAIN)
    discovery.receive(Discover(number=5), source="visitor~1", now_ns=0)
    discovery.receive(Discover(number=5), source="visitor~1", now_ns=0)
    discovery.receive(Discover(number=9), source="visitor~2", now_ns=0)
    answers = discovery.take_effects()
    numbers = [
        (each.peer, each.frame.number)
        for each in answers
        if isinstance(each, Send) and isinstance(each.frame, Described)
    ]
    assert numbers == [("visitor~1", 5), ("visitor~1", 5), ("visitor~2", 9)]
    assert discovery.take_effects() == []


def test_discovery_answer_gives_all_clients_the_same_placement() -> None:
    discovery = DiscoveryNode(CHAIN)
    discovery.receive(Discover(number=1), source="v", now_ns=0)
    (answers,) = discovery.take_effects()
    assert isinstance(answers, Send)
    codec = Codec(FRAMES)
    described = codec.decode(codec.encode(answers.frame))
    assert isinstance(described, Described)
    assert described.config == CHAIN.config
    placement = described.placement()
    assert placement.nodes == ("north", "south", "west")
    assert [placement.node(topic) for topic in "abc"] == ["north", "north", "west"]
    # All clients hash unlisted topics alike.
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
    discovery = DiscoveryNode(CHAIN)
    discovery.handle_timer(now_ns=10**12)
    discovery.receive(CHAIN, source="v", now_ns=0)
    assert discovery.take_effects() == []
    assert discovery.next_timer_ns() is None
    assert discovery.name == DISCOVERY_NAME
