"""Runs of benchmarks as JSON files, with the machine that they ran on."""

import datetime as dt
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

__all__ = ["BadRecord", "Machine", "read", "this_machine", "write"]

Record = TypeVar("Record")


class BadRecord(Exception):
    """A file is not the run that was expected."""


@dataclass(frozen=True)
class Machine:
    """Where and when a run was measured."""

    day: str
    """In UTC, as in ISO 8601."""
    cores: int
    cpu: str
    python: str
    versions: tuple[str, ...]
    """Of servers and packages: `redis-server 7.0.15`."""
    load: float
    """Load average over a minute when the run started; the run's own processes don't count."""

    def __str__(self) -> str:
        return (
            f"{self.day}, {self.cores} cores ({self.cpu}), Python {self.python}, "
            f"{', '.join(self.versions)}, load average {self.load:.1f} at the start"
        )


def this_machine(versions: Sequence[str]) -> Machine:
    """Describe this machine now."""
    return Machine(
        day=dt.datetime.now(dt.UTC).date().isoformat(),
        cores=os.cpu_count() or 1,
        cpu=_cpu(),
        python=platform.python_version(),
        versions=tuple(versions),
        load=os.getloadavg()[0],
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def write(record: object, path: Path) -> None:
    """Write a run to a file, each of its measurements on a line of its own."""
    fields: dict[str, object] = msgspec.to_builtins(record)
    lines = [f"{_json(name)}: {_lines(value)}" for name, value in fields.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _lines(value: object) -> str:
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(map(_json, value)) + "\n]"
    return _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def read(path: Path, kind: type[Record], command: str) -> Record:
    """Read a run of one kind; `command` writes such a file."""
    remedy = f"write one with `{command} --json {path}`"
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadRecord(f"cannot read {path}: {error.strerror}: {remedy}") from None
    except msgspec.MsgspecError as error:
        raise BadRecord(f"{path} is not a run of {command}: {error}: {remedy}") from None
