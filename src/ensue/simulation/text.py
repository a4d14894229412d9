"""Scenarios in words: durations, lists of names, sites."""

from collections.abc import Sequence

__all__ = ["at_site", "duration", "listed"]


def duration(ns: int) -> str:
    """Format a duration, such as `1.5ms`."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.4g}{unit}"
    return f"{ns}ns"


def listed(names: Sequence[str], empty: str = "nothing") -> str:
    """List names; return `empty` if there are none."""
    return ", ".join(names) or empty


def at_site(site: str) -> str:
    """Format the site of a node; empty if it has none."""
    return f" in {site}" if site else ""
