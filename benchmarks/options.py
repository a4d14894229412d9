"""Types of command-line options, which refuse bad values by name."""

import argparse
import math
from pathlib import Path

__all__ = ["count", "directory", "output", "seconds"]


def count(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a finite duration above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def output(text: str) -> Path:
    """Parse the path of a file to write, in a directory that exists."""
    path = Path(text).resolve()
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing directory, got {text!r}")
    return path


def directory(text: str) -> Path:
    """Parse the path of a directory that exists."""
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {text!r}: create it first")
    return path
