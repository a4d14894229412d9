"""Carriers of frames: `memory` and, with the same surface, one module for each other scheme."""

from ensue.transports.base import Capabilities, Port, Transport
from ensue.transports.memory import MemoryOptions, MemoryTransport

__all__ = [
    "Capabilities",
    "MemoryOptions",
    "MemoryTransport",
    "Port",
    "Transport",
]
