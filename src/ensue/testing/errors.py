"""Errors of the simulation itself."""

from ensue.core.errors import EnsueError

__all__ = ["EscapedSimulation", "SimulationFailed", "Stuck"]


class EscapedSimulation(EnsueError, RuntimeError):
    """A simulated program asked for a real socket, clock, thread or file."""


class SimulationFailed(EnsueError, AssertionError):
    """A simulated run failed; the message ends with the line that replays it."""


class Stuck(SimulationFailed):
    """Nothing can happen any more, or the virtual time is used up, and the run has not ended."""
