"""Test programs that use Ensue in a simulated world: `simulate`."""

from ensue.testing.errors import EscapedSimulation, SimulationFailed, Stuck
from ensue.testing.network import NetworkOptions
from ensue.testing.process import Process, ProcessKilled
from ensue.testing.simulation import Simulated, simulate
from ensue.testing.world import World

__all__ = [
    "EscapedSimulation",
    "NetworkOptions",
    "Process",
    "ProcessKilled",
    "Simulated",
    "SimulationFailed",
    "Stuck",
    "World",
    "simulate",
]
