"""Run the fuzz target under atheris: `python -m fuzz [-max_total_time=SECONDS] [CORPUS …]`."""

import sys

import atheris

with atheris.instrument_imports(include=["ensue", "fuzz"]):
    from fuzz import wire

atheris.Setup(sys.argv, wire.one_input)
atheris.Fuzz()
