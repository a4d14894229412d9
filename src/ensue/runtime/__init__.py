"""Drive protocol nodes for real, under asyncio."""

from ensue.runtime.driver import Driver

__all__ = ["Driver"]
