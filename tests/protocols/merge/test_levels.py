"""Relays and who listens to them: one order on all levels, and nobody remembered who is gone."""

from random import Random

import pytest
from tests.protocols.merge.test_nodes import TICK, at, attached, config, delivered, publisher

from ensue.errors import ConfigurationError
from ensue.protocols.core import Broadcast, Multicast
from ensue.protocols.ens import AttachRequest, Notify
from ensue.protocols.merge.relay import MergeRelay
from ensue.protocols.merge.subscriber import MergeSubscriber

ASK = AttachRequest(topic="t", from_slot=0)


# -- Bounded clocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [0, 4])
def test_a_modulus_too_small_for_the_level_above_is_refused_with_the_one_to_give(link: int) -> None:
    needed = 2 * 2 + (5 + 3 * 2 + 1 + link) + 1
    with pytest.raises(ConfigurationError, match=f"give modulus={needed} on all levels"):
        config(modulus=needed - 1).above(link)
    assert config(modulus=needed).above(link).modulus == needed


@pytest.mark.parametrize("seed", range(5))
def test_with_a_modulus_a_listener_hands_out_what_its_relay_did_in_the_same_order(
    seed: int,
) -> None:
    random = Random(seed)
    below = config(modulus=30)
    publishers = [publisher(name=name, modulus=30) for name in ("p", "q", "r")]
    relay = MergeRelay(name="m", config=below)
    top = MergeSubscriber(name="s", config=below.above(3), mergers=("m",))
    top.subscribe(("t",), now_ns=0)
    relay.receive(ASK, source="s", now_ns=0)
    relay.receive(attached("t"), source="ens", now_ns=0)
    top.receive(attached("t"), source="m", now_ns=0)
    for node in (relay, top):
        node.take_effects()
    passed: list[str] = []
    handed: list[str] = []
    for tick in range(1200, 1400):
        for each in publishers:
            if tick < 1360 and random.random() < 0.1:
                each.publish("t", b"", now_ns=tick * TICK)
            for effect in each.take_effects():
                if isinstance(effect, Broadcast):
                    notify = Notify(event=effect.event)
                    relay.receive(notify, source="ens", now_ns=tick * TICK)
        for effect in at(relay, tick):
            if isinstance(effect, Multicast) and isinstance(effect.frame, Notify):
                passed.append(effect.frame.event.id)
                top.receive(effect.frame, source="m", now_ns=tick * TICK)
        handed += [name for name, _ in delivered(at(top, tick))]
    assert len(passed) > 20
    assert handed == passed
