"""What the judge says of clients that go on although a server lost its log."""

import pytest

from ensue.core.lineage import DAMAGED, REPLACED, ROLLED_BACK
from ensue.core.trace import Row
from ensue.protocols.shared.state_store import FORGOTTEN
from ensue.testing.cluster import Cluster
from ensue.testing.network import NetworkOptions
from ensue.testing.swarm.lost_logs import judge_lost_log
from ensue.testing.swarm.mishaps import Mishap
from ensue.testing.world import World

COPIED_NS, KNOWN_NS, LOST_NS, NOTICED_NS = 10, 20, 20, 30


def made_world() -> World:
    """Return a world without processes."""
    return World(0, network=NetworkOptions(), disk_sync_ms=(1.0, 1.0))


def problems(*story: str, copied_ns: int = 0, known_ns: int = KNOWN_NS) -> list[str]:
    """Return what is wrong with a story; each part is a time, a bus, an action, an event."""
    rows: list[Row] = []
    for step, part in enumerate(story):
        at, node, action, event = part.split()
        row = Row(
            run="run",
            node=node,
            step=step,
            at_ns=int(at),
            true_ns=int(at),
            action=action,
            event=event,
            subscription=f"{node}.1",
        )
        rows.append(row)
    return judge_lost_log(
        rows, known_ns=known_ns, lost_ns=LOST_NS, copied_ns=copied_ns, noticed_ns=NOTICED_NS
    )


@pytest.mark.parametrize(
    ("story", "goes_on"),
    [
        (("15 p published e", "35 p submitted f"), True),
        (("15 r delivered e", "35 r delivered f"), True),
        (("15 r subscribed -", "35 r delivered f"), True),
        # Others go on, or this one ended in time.
        (("15 p published e", "35 q submitted f"), False),
        (("15 p published e", "25 p submitted f"), False),
        (("15 r delivered e", "35 r unsubscribed -"), False),
        # It had no answer of the server before.
        (("15 p submitted e", "35 p submitted f"), False),
        (("25 p published e", "35 p submitted f"), False),
    ],
)
def test_buses_end_when_a_server_has_another_log(story: tuple[str, ...], *, goes_on: bool) -> None:
    assert bool(problems(*story)) is goes_on


def test_buses_on_a_broker_know_the_log_after_a_while() -> None:
    story = "15 p published e", "35 p submitted f"
    assert problems(*story, known_ns=16)
    assert not problems(*story, known_ns=15)


@pytest.mark.parametrize(
    ("story", "goes_on"),
    [
        (("12 p submitted e", "15 r delivered e", "35 r delivered f"), True),
        # The older log has the event, or the subscription did not get it, or ended.
        (("9 p submitted e", "15 r delivered e", "35 r delivered f"), False),
        (("12 p submitted e", "25 r delivered e", "35 r delivered f"), False),
        (("12 p submitted e", "15 r delivered e", "35 q delivered f"), False),
        # It may not notice that its receipts no longer hold.
        (("12 p submitted e", "15 p published e", "35 p submitted f"), False),
    ],
)
def test_subscriptions_end_that_read_more_than_an_older_log_has(
    story: tuple[str, ...], *, goes_on: bool
) -> None:
    assert bool(problems(*story, copied_ns=COPIED_NS)) is goes_on


@pytest.mark.parametrize(
    ("kind", "broker", "reasons"),
    [
        ("lost", "", {REPLACED}),
        ("rolled back", "", {ROLLED_BACK}),
        ("flipped", "", {DAMAGED}),
        ("cut", "", set()),
        ("failing", "", set()),
        # A station on a broker may answer before it is asked for its log.
        ("lost", "nats://broker", {REPLACED, ROLLED_BACK, FORGOTTEN}),
        ("rolled back", "nats://broker", {ROLLED_BACK, FORGOTTEN}),
    ],
)
def test_a_mishap_explains_errors_with_its_reasons(
    kind: str, broker: str, reasons: set[str]
) -> None:
    world = made_world()
    mishap = Mishap(world, Cluster(world, names=["server"], broker=broker), kind)
    every = {REPLACED, ROLLED_BACK, DAMAGED, FORGOTTEN, "expired"}
    assert not [each for each in every if mishap.explains(each)]
    mishap.struck_ns = 1
    assert {each for each in every if mishap.explains(each)} == reasons


def test_subscriptions_expire_while_a_server_refuses_its_log() -> None:
    world = made_world()
    cluster = Cluster(world, names=["server"])
    mishap = Mishap(world, cluster, "cut")
    mishap.struck_ns = 1
    assert not mishap.explains("expired")
    cluster.damaged["server"] = "its log was cut"
    assert mishap.explains("expired")
