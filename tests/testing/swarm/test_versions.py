"""A seed has the same verdict on every version of Python that Ensue supports.

Other interpreters are those on the PATH that have msgspec: `python3.12 -m pip install msgspec`, or
a virtual environment's `bin` in front of the PATH. All of them run this source tree.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ensue.testing.swarm.seeds import ORDERS

ROOT = Path(__file__).parents[3]
VERSIONS = ("3.11", "3.12", "3.13")
SEEDS = 5
"""Seeds of each order."""
PRINT_VERDICTS = f"""
import logging
logging.disable()
from ensue.testing.swarm.seeds import ORDERS, play_seed
for order in ORDERS:
    for seed in range({SEEDS}):
        print(order, seed, "invalid" if play_seed(order, seed).failure else "valid")
"""


@cache
def verdicts(interpreter: str, metadata: Path) -> list[str]:
    """Return the verdict of each seed, played by an interpreter."""
    paths = (str(ROOT / "src"), str(metadata))
    return subprocess.run(
        [interpreter, "-c", PRINT_VERDICTS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    ).stdout.splitlines()


def interpreter_of(version: str) -> str:
    """Return the path of an interpreter that can run Ensue; skip the test if there is none."""
    found = shutil.which(f"python{version}")
    if found is None:
        pytest.skip(f"no python{version} on the PATH")
    probe = subprocess.run(
        [found, "-c", "import msgspec"], capture_output=True, timeout=60, check=False
    )
    if probe.returncode:
        pytest.skip(f"{found} has no msgspec")
    return found


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the metadata that servers report their version from."""
    folder = tmp_path_factory.mktemp("metadata")
    information = folder / "ensue-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ensue\nVersion: 0\n")
    return folder


@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "version", [each for each in VERSIONS if each != f"{sys.version_info[0]}.{sys.version_info[1]}"]
)
def test_another_version_gives_the_same_verdicts(version: str, metadata: Path) -> None:
    other = interpreter_of(version)
    own = verdicts(sys.executable, metadata)
    assert len(own) == SEEDS * len(ORDERS)
    assert verdicts(other, metadata) == own
