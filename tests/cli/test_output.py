"""Output of commands: titles in one line, names unchanged, hints that can be pasted."""

import sys
from pathlib import Path

import pytest

from ensue.cli import output


def test_title_is_not_wrapped_to_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    title = "total order, audited on Spark for total order"
    output.print_table(title, ("checker", "verdict"), [("fifo", "valid")])
    assert title in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", [r"\[/x]", "[bold]a[/bold]", "orders:x:new", ":warning:", "a\\"])
def test_names_are_printed_without_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(name, ("topic", "verdict"), [(name, "valid")])
    output.print_lines([name])
    first, *_, row, _, last = capsys.readouterr().out.splitlines()
    assert (first, row.split(), last) == (name, [name, "valid"], name)


def test_hint_calls_the_program_as_the_user_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "ensue"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert output.program() == str(script)
    monkeypatch.setenv("PATH", str(script.parent))
    assert output.program() == "ensue"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert output.program() == "ensue"
