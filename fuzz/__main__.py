"""Run the fuzz target under atheris: `python -m fuzz [-max_total_time=SECONDS] [CORPUS …]`."""

import sys

import atheris

with atheris.instrument_imports(include=["ensue", "fuzz"]):
    from fuzz import content, wire


def one_input(data: bytes) -> None:
    """Run one input on a target; stations, the most complex one, get most inputs."""
    target = content if data[:1] < b"\x40" else wire
    target.one_input(data[1:])


atheris.Setup(sys.argv, one_input)
atheris.Fuzz()
