"""Run the command line as a user does, within the test's process."""

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ensue.cli import main


class Ended(msgspec.Struct):
    """The exit code and output of a command."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """Return the one JSON object on stdout."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value


class Shell:
    """`shell("sim", path)` runs `ensue sim <path>`."""

    def __init__(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        run: Callable[[], None] = main,
    ) -> None:
        self._run = run
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        # Wide enough that error boxes wrap no sentence.
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setenv("TERM", "dumb")

    def __call__(self, *words: object) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["ensue", *map(str, words)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            self._run()
        out, err = self._capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ended(code=code, stdout=out, stderr=err)
