"""Ctrl-C before a command runs."""

from typing import Any

import pytest
from tests.cli.helpers import Shell

from ensue.cli.help_format import Command


@pytest.mark.parametrize("words", [("sub", "a"), ("pub", "a"), ("tx", "plan.toml")])
def test_ctrl_c_while_parsing_options_is_reported(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def interrupted(*_: Any) -> list[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Command, "get_params", interrupted)
    result = shell(*words)
    assert (result.code, result.stdout, result.stderr) == (2, "", "ensue: interrupted\n")
