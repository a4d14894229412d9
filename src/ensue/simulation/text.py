"""Scenarios in words: durations, lists of names, sites."""

from collections.abc import Sequence

__all__ = ["at_site", "duration", "listed"]


def duration(ns: int) -> str:
    """Write a duration for people."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.4g}{unit}"
    return f"{ns}ns"


def listed(names: Sequence[str], empty: str = "nothing") -> str:
    """Write names, or what stands for none."""
    return ", ".join(names) or empty


def at_site(site: str) -> str:
    """Write the site of a node, if it has one."""
    return f" in {site}" if site else ""
