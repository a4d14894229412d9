"""Known logs: replaced or rolled-back logs are detected, restarts are accepted."""

import msgspec
import pytest
from tests.protocols.total.stationed import StationNet

from ensue.core.lineage import ROLLED_BACK, Lineage
from ensue.protocols.interface import Leave, Refuse, Send
from ensue.protocols.total.frames import ChangeRequest, Refused
from ensue.protocols.total.known_logs import QUESTIONS_MAX, UNASKED
from ensue.protocols.total.subscriber import Subscriber

FIRST = Lineage("a" * 16, ()).begin(token=11, begun=0)


def network() -> tuple[StationNet, Subscriber]:
    net = StationNet({"station": ["a", "b"]})
    node = net.reader("s")
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    return net, node


def publish(net: StationNet, count: int) -> None:
    for _ in range(count):
        net.publish("p", "a", "x")
    net.come_to_rest()


def ask(net: StationNet, question: int, log: Lineage) -> None:
    """Request the log identity, and answer at once."""
    node = net.reader("s")
    node.ask_log(question)
    node.learn_log("station", log, now_ns=net.now_ns, question=question)
    net._carry_out("s")


def test_events_of_a_new_incarnation_may_precede_its_answer() -> None:
    net, node = network()
    publish(net, 5)
    ask(net, 1, FIRST)
    # The station starts again with its five events, and three more come before it is asked.
    publish(net, 3)
    ask(net, 2, FIRST.begin(token=12, begun=5))
    assert not node.expired


def test_late_answer_confirms_progress_at_the_time_of_the_request() -> None:
    net, node = network()
    publish(net, 5)
    node.ask_log(1)
    publish(net, 3)  # By the next incarnation: the answer of the first is still on its way.
    node.learn_log("station", FIRST, now_ns=net.now_ns, question=1)
    ask(net, 2, FIRST.begin(token=12, begun=5))
    assert not node.expired


@pytest.mark.parametrize("restarts", [False, True])
def test_station_that_restarts_behind_confirmed_progress_is_rolled_back(restarts: bool) -> None:
    net, _ = network()
    publish(net, 5)
    ask(net, 1, FIRST)
    ask(net, 2, FIRST)
    net.come_to_rest()
    if restarts:
        net.crash("s")
        net.restart("s")
    node = net.reader("s")
    replaced = FIRST.begin(token=12, begun=4)
    node.learn_log("station", replaced, now_ns=net.now_ns, question=UNASKED)
    assert node.expired
    reasons = [effect.reason for effect in node.take_effects()]  # type: ignore[union-attr]
    assert reasons == [ROLLED_BACK]


def test_new_connection_covers_all_earlier_deliveries() -> None:
    net, node = network()
    node.learn_log("station", FIRST, now_ns=net.now_ns)
    publish(net, 5)
    node.learn_log("station", FIRST.begin(token=12, begun=5), now_ns=net.now_ns)
    assert not node.expired
    publish(net, 1)
    twice = FIRST.begin(token=12, begun=5).begin(token=13, begun=5)
    node.learn_log("station", twice, now_ns=net.now_ns)
    assert node.expired


def test_remembered_requests_have_a_limit() -> None:
    _, node = network()
    for question in range(1, 20):
        node.ask_log(question)
    assert list(node.logs.asked) == list(range(20 - QUESTIONS_MAX, 20))


def roll_back_behind_the_join() -> StationNet:
    """Return a network whose station has older records than a subscriber that got no event."""
    net = StationNet({"station": ["a", "b"]})
    publish(net, 2)
    older = dict(net.disks["station"])
    publish(net, 3)
    net.reader("s")
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    net.disks["station"] = older
    net.restart("station")
    return net


def test_subscriber_without_events_is_refused_by_a_station_from_before_it_joined() -> None:
    net = roll_back_behind_the_join()
    net.repeat_all("s")
    net.come_to_rest()
    assert net.refusals("s") == [((), ROLLED_BACK)]


def test_subscriber_that_restarts_is_refused_too() -> None:
    net = roll_back_behind_the_join()
    net.restart("s")
    net.repeat_all("s")
    net.come_to_rest()
    assert net.refusals("s") == [((), ROLLED_BACK)]


def test_change_after_a_rollback_is_refused_too() -> None:
    net = roll_back_behind_the_join()
    net.unsubscribe("s", "b")
    net.come_to_rest()
    assert net.refusals("s") == [((), ROLLED_BACK)]


def test_subscriber_that_accepts_a_loss_joins_a_rolled_back_station_anew() -> None:
    net = roll_back_behind_the_join()
    net.reader("s").logs.accept_loss = True
    net.repeat_all("s")
    net.come_to_rest()
    assert net.refusals("s") == []
    left = [each for each in net.outcomes["s"] if isinstance(each, Leave)]
    assert left
    assert {each.loss for each in left} == {ROLLED_BACK}
    net.publish("q", "a", "y")
    net.come_to_rest()
    assert net.delivered("s")[-1] == "y"


def test_refusal_of_an_old_request_does_not_end_the_subscription() -> None:
    # A request that is repeated may arrive after the goodbye of its subscriber.
    net, node = network()
    net.unsubscribe("s", "b")
    net.come_to_rest()
    refused = Refused(number=0, reason=ROLLED_BACK, seen=1)
    node.receive(refused, source="station", now_ns=net.now_ns)
    net.come_to_rest()
    assert not node.expired
    assert net.refusals("s") == []
    # The node says so again if it did lose the last change.
    node.receive(msgspec.structs.replace(refused, seen=2), source="station", now_ns=net.now_ns)
    assert node.expired


def test_resumed_subscriber_does_not_register_again() -> None:
    net, node = network()
    node.pause()
    node.take_effects()
    node.resume(now_ns=net.now_ns)
    sent = [one.frame for one in node.take_effects() if isinstance(one, Send)]
    assert not [frame for frame in sent if isinstance(frame, ChangeRequest)]


def paused_with_events_on_their_way(*, accept_loss: bool) -> StationNet:
    """Pause a subscriber when events have been sent to it that the station will not have."""
    net = StationNet({"station": ["a"]})
    node = net.reader("s")
    net.subscribe("s", "a")
    net.come_to_rest()
    node.logs.accept_loss = accept_loss
    publish(net, 3)
    node.learn_log("station", FIRST, now_ns=net.now_ns)
    publish(net, 1)
    node.pause()
    node.take_effects()  # The log does not know yet.
    for number in range(3):
        net.publish("p", "a", f"old{number}")
    net.come_to_rest()
    return net


ROLLED = FIRST.begin(token=12, begun=2).begin(token=13, begun=2)
"""The log of a station that was rolled back to its first event."""


def test_subscriber_that_ended_during_a_pause_delivers_nothing_when_resumed() -> None:
    net = paused_with_events_on_their_way(accept_loss=False)
    node = net.reader("s")
    node.learn_log("station", ROLLED, now_ns=net.now_ns)
    assert [type(each) for each in node.take_effects() if isinstance(each, Refuse)] == [Refuse]
    node.resume(now_ns=net.now_ns)
    assert list(node.take_effects()) == []


def test_events_of_the_old_log_that_came_during_a_pause_are_forgotten() -> None:
    net = paused_with_events_on_their_way(accept_loss=True)
    node = net.reader("s")
    node.learn_log("station", ROLLED, now_ns=net.now_ns)
    node.resume(now_ns=net.now_ns)
    assert node.held_count == 0
