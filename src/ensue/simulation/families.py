"""The protocols that can be simulated, by name: how to draw a seed, build its world and judge it.

`DEPLOYMENTS` says by the order of a scenario who builds and judges it; `DRAWS` says by the name of a protocol
what its seeds stand for. A new protocol adds one line to each, and a value to `Protocol` in `cli/simulation.py`;
`run`, `seeds`, the command line and Spark find it here.
"""

from collections.abc import Callable

from ensue.simulation import (
    swarm,
    swarm_causal,
    swarm_deadline,
    swarm_merged,
    swarm_transactions,
)
from ensue.simulation.causal import CausalDeployment
from ensue.simulation.deadline import DeadlineDeployment
from ensue.simulation.deployment import Deployment
from ensue.simulation.merged import MergedDeployment
from ensue.simulation.scenario import Scenario
from ensue.simulation.total import TotalDeployment
from ensue.simulation.transactions import TransactionDeployment

__all__ = ["DEPLOYMENTS", "DRAWS"]

DEPLOYMENTS: dict[str, type[Deployment]] = {
    "total": TotalDeployment,
    "causal": CausalDeployment,
    "merged": MergedDeployment,
    "deadline": DeadlineDeployment,
    "none": TotalDeployment,
    "transactions": TransactionDeployment,
}
"""Who builds a scenario, by its order."""

DRAWS: dict[str, Callable[[int], Scenario]] = {
    "total": swarm.draw,
    "causal": swarm_causal.draw,
    "merged": swarm_merged.draw,
    "transactions": swarm_transactions.draw,
    "deadline": swarm_deadline.draw,
}
"""What can be searched for faults, by name: seed to scenario."""
