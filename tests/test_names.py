"""What `import ensue` offers, and when it is imported."""

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
def test_every_name_it_lists_is_there(name: str) -> None:
    assert getattr(ensue, name).__name__ == name
    assert name in dir(ensue)


def test_it_lists_public_names_alone() -> None:
    assert dir(ensue) == sorted([*ensue.__all__, "__version__"])


def test_the_command_line_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "ensue", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"ensue {ensue.__version__}\n"


def test_names_are_the_ones_of_their_modules() -> None:
    assert ensue.Total is order.Total
    assert ensue.PerKey is policies.PerKey
    assert ensue.BadInput is errors.BadInput


def test_a_name_it_has_not_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match=r"module 'ensue' has no attribute 'Connect'"):
        _ = ensue.Connect  # type: ignore[attr-defined]


def test_ctrl_c_while_the_client_is_imported_ends_without_a_trace_of_python() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IMPORTING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (2, "ensue: interrupted\n")


def test_nothing_is_imported_before_the_command_line_waits_for_ctrl_c() -> None:
    program = (
        "import sys; before = set(sys.modules); import ensue.cli; "
        "print(*sorted(set(sys.modules) - before))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["ensue", "ensue.cli"]
