"""Carriers of frames. `memory` is here; each other one is a module of its own with the same surface."""

from ensue.transports.base import Capabilities, Port, Transport, refusal
from ensue.transports.memory import MemoryOptions, MemoryTransport

__all__ = [
    "Capabilities",
    "MemoryOptions",
    "MemoryTransport",
    "Port",
    "Transport",
    "refusal",
]
