"""Public names of `ensue`, and lazy imports."""

import subprocess
import sys

import pytest

import ensue
from ensue.client import policies
from ensue.core import errors, order

INTERRUPTED_WHILE_IMPORTING = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "ensue.client.bus":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.argv = ["ensue", "--version"]
from ensue.cli import main
main()
"""


@pytest.mark.parametrize("name", ensue.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(ensue, name).__name__ == name
    assert name in dir(ensue)


def test_dir_lists_only_public_names() -> None:
    assert dir(ensue) == sorted([*ensue.__all__, "__version__"])


def test_the_command_line_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "ensue", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"ensue {ensue.__version__}\n"


def test_names_are_the_ones_of_their_modules() -> None:
    assert ensue.Total is order.Total
    assert ensue.PerKey is policies.PerKey
    assert ensue.BadInput is errors.BadInput


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'ensue' has no attribute 'Connect'"):
        _ = ensue.Connect  # type: ignore[attr-defined]


def test_ctrl_c_during_imports_prints_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IMPORTING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (2, "ensue: interrupted\n")


def test_command_line_imports_nothing_before_it_handles_ctrl_c() -> None:
    program = (
        "import sys; before = set(sys.modules); import ensue.cli; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ensue", "ensue.cli"]
