"""Deterministic simulation of protocol nodes: one seed, named faults, one trace."""

from ensue.simulation.world.clocks import Clock, ClockConfig
from ensue.simulation.world.delays import Constant, DelayModel, LogNormal, Normal, Uniform
from ensue.simulation.world.disks import Disk, DiskConfig
from ensue.simulation.world.driver import Codec, Command
from ensue.simulation.world.faults import ClockJump, Clog, Crash, Faults, Noise, Partition, Pause
from ensue.simulation.world.load_model import QueueConfig, QueueStatistics
from ensue.simulation.world.network import LinkDelay, Network, NetworkConfig, NetworkStatistics
from ensue.simulation.world.process import Factory
from ensue.simulation.world.world import World

__all__ = [
    "Clock",
    "ClockConfig",
    "ClockJump",
    "Clog",
    "Codec",
    "Command",
    "Constant",
    "Crash",
    "DelayModel",
    "Disk",
    "DiskConfig",
    "Factory",
    "Faults",
    "LinkDelay",
    "LogNormal",
    "Network",
    "NetworkConfig",
    "NetworkStatistics",
    "Noise",
    "Normal",
    "Partition",
    "Pause",
    "QueueConfig",
    "QueueStatistics",
    "Uniform",
    "World",
]
