"""The commands of the command line, each imported when it is needed."""

import subprocess
import sys

from typer.testing import CliRunner

from ensue.cli import COMMANDS, build

LOADED = """
import sys
from ensue.cli import main
sys.argv = ["ensue", {command!r}, "--help"]
try:
    main()
finally:
    print([name for name in sys.modules if name.startswith("ensue.cli.")], file=sys.stderr)
"""


def test_help_lists_all_commands_in_their_order() -> None:
    shown = CliRunner().invoke(build(), ["--help"]).output
    places = [shown.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)


def test_unknown_command_names_a_similar_one() -> None:
    result = CliRunner().invoke(build("pib"), ["pib"])
    assert "Did you mean 'pub'?" in result.output


def test_command_imports_no_other_one() -> None:
    script = LOADED.format(command="check")
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Usage: ensue check" in ran.stdout
    assert "'ensue.cli.check'" in ran.stderr
    assert "'ensue.cli.demo'" not in ran.stderr
