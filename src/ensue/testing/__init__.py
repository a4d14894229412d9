"""Test programs that use Ensue in a simulated world.

`simulate` runs several processes and Ensue's own servers in one thread, on virtual time, with
faults drawn from a seed: see `docs/how-to/test-your-service.md`.
"""

from ensue.testing.broker import Broker
from ensue.testing.cancellation import Attempt, cancel_at
from ensue.testing.cluster import Cluster
from ensue.testing.errors import EscapedSimulation, SimulationFailed, Stuck
from ensue.testing.faults import Faults
from ensue.testing.network import NetworkOptions
from ensue.testing.process import Process, ProcessKilled
from ensue.testing.simulation import Simulated, Simulation, simulate

__all__ = [
    "Attempt",
    "Broker",
    "Cluster",
    "EscapedSimulation",
    "Faults",
    "NetworkOptions",
    "Process",
    "ProcessKilled",
    "Simulated",
    "Simulation",
    "SimulationFailed",
    "Stuck",
    "cancel_at",
    "simulate",
]
