"""Drive protocol nodes in a simulated world: one seed, every fault by name, the same trace."""

from ensue.simulation.clocks import Clock, ClockConfig
from ensue.simulation.delays import Constant, DelayModel, LogNormal, Normal, Uniform
from ensue.simulation.disks import Disk, DiskConfig
from ensue.simulation.driver import Codec, Command
from ensue.simulation.faults import ClockJump, Clog, Crash, Faults, Noise, Partition, Pause
from ensue.simulation.network import LinkDelay, Network, NetworkConfig, NetworkStatistics
from ensue.simulation.process import Factory
from ensue.simulation.queueing import QueueConfig, QueueStatistics
from ensue.simulation.world import World

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
