"""Transports: they carry frames between peers. Each URL scheme has one."""

from ensue.transports.base import Capabilities, Port, Transport
from ensue.transports.memory import MemoryOptions, MemoryTransport

__all__ = [
    "Capabilities",
    "MemoryOptions",
    "MemoryTransport",
    "Port",
    "Transport",
]
