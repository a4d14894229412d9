"""Registered clients, their registry and fan-outs in simulated runs."""

from collections import Counter

import pytest

from ensue.core.errors import BadInput, ConfigurationError
from ensue.protocols.interface import Refuse
from ensue.simulation.deployments.registered import LEFT, RegisteredClients
from ensue.simulation.run import play
from ensue.simulation.scenario import (
    Departure,
    PublisherSpec,
    Rate,
    RegistrySpec,
    Scenario,
    SubscriberSpec,
)
from ensue.simulation.scenario_file.reader import loads
from ensue.simulation.seeds import DRAWS
from ensue.simulation.world.faults import Crash, Faults, Partition

SECOND = 1_000_000_000
ROOM = """
order = "{order}"
registered = true
duration = "6s"

[[publishers]]
name = "alice"
rates = [{{ topics = ["room"], per_second = 20 }}]

[[subscribers]]
name = "bob"
topics = ["room"]

[[faults.crash]]
node = "registry"
at = "1s"
restart_after = "500ms"

[[faults.crash]]
node = "bob"
at = "2s"
restart_after = "500ms"
"""


def scenario(order: str, **options: object) -> Scenario:
    """Return a run of one publisher and two subscribers."""
    return Scenario(
        name="registered",
        order=order,
        duration_ns=6 * SECOND,
        publishers=(PublisherSpec(name="alice", rates=(Rate(topics=("t",), per_second=10),)),),
        subscribers=tuple(SubscriberSpec(name=name, topics=("t",)) for name in ("bob", "carol")),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("order", ["causal", "deadline"])
def test_scenario_file_registers_clients(order: str) -> None:
    outcome = play(loads(ROOM.format(order=order)), 1)
    assert outcome.valid, outcome.sentences()
    delivered = Counter(row.node for row in outcome.rows if row.action == "delivered")
    assert set(delivered) == {"bob~1", "bob~2"}, "a client that restarts is a new one"
    assert {row.node for row in outcome.rows if row.action == "restarted"} == {"registry"}


def test_file_registers_only_in_orders_with_a_registry() -> None:
    with pytest.raises(BadInput, match="clients in order 'total' do not register"):
        loads(ROOM.format(order="total"))
    with pytest.raises(ConfigurationError, match="order 'causal' has no fan-out"):
        scenario("causal", fan_out=True)


@pytest.mark.parametrize("order", ["causal", "deadline"])
def test_silent_client_is_evicted_and_returns_under_another_name(order: str) -> None:
    cut = Partition(side=("registry",), other=("bob",), from_ns=SECOND, until_ns=3_900_000_000)
    outcome = play(
        scenario(
            order, registry=RegistrySpec(expire_ns=2_500_000_000), faults=Faults(partitions=(cut,))
        ),
        1,
    )
    assert outcome.valid, outcome.sentences()
    delivered = {row.node for row in outcome.rows if row.action == "delivered"}
    assert delivered == {"bob~1", "bob~2", "carol~1"}


@pytest.mark.parametrize("order", ["causal", "deadline"])
def test_client_arrives_late_leaves_and_returns(order: str) -> None:
    departure = Departure(client="carol", at_ns=2 * SECOND, back_after_ns=SECOND)
    registry = RegistrySpec(arrivals={"bob": 3 * SECOND}, departures=(departure,))
    outcome = play(scenario(order, registry=registry), 1)
    assert outcome.valid, outcome.sentences()
    first: dict[str, int] = {}
    for row in outcome.rows:
        if row.action == "delivered" and row.true_ns is not None:
            first.setdefault(row.node, row.true_ns)
    assert set(first) == {"bob~1", "carol~1", "carol~2"}
    assert first["carol~1"] < 2 * SECOND < 3 * SECOND < min(first["bob~1"], first["carol~2"])


@pytest.mark.parametrize("order", ["merged", "none"])
def test_fan_out_serves_again_after_a_restart(order: str) -> None:
    crash = Crash(node="ens", at_ns=2 * SECOND, restart_after_ns=SECOND // 10)
    outcome = play(scenario(order, fan_out=True, faults=Faults(crashes=(crash,))), 1)
    assert outcome.valid, outcome.sentences()
    last = max(row.true_ns or 0 for row in outcome.rows if row.action == "delivered")
    assert last > 5 * SECOND
    assert not outcome.events


@pytest.mark.parametrize("order", ["causal", "deadline"])
def test_swarm_draws_every_fate_of_a_client(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    real = RegisteredClients.outcome

    def outcome(self: RegisteredClients, name: str, one: object) -> None:
        if isinstance(one, Refuse) and not one.topics:
            seen["left" if one.reason == LEFT else "evicted"] += 1
        real(self, name, one)  # type: ignore[arg-type]

    monkeypatch.setattr(RegisteredClients, "outcome", outcome)
    for seed in range(100):
        drawn = DRAWS[order](seed)
        if drawn.registry is None:
            continue
        seen["late"] += bool(drawn.registry.arrivals)
        seen["cut off"] += any(each.side == ("registry",) for each in drawn.faults.partitions)
        for row in play(drawn, seed).rows:
            seen[f"registry {row.action}"] += row.node == "registry"
            seen["returned"] += row.action == "subscribed" and not row.node.endswith("~1")
    for what in ("left", "evicted", "late", "cut off", "registry restarted", "returned"):
        assert seen[what], f"no {what} in {seen}"


def test_swarm_draws_both_kinds_of_membership_and_service() -> None:
    drawn = [DRAWS["causal"](seed) for seed in range(50)]
    assert {each.registry is None for each in drawn} == {True, False}
    assert not any(each.fan_out for each in drawn)
    assert {DRAWS["merged"](seed).fan_out for seed in range(50)} == {True, False}
