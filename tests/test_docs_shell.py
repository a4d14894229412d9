"""Every line of the shell blocks in README and guides runs.

Lines of a block run one after the other. Servers and subscribers keep running until the test has
seen them work, and end with Ctrl-C. Two things differ from the page: ports and brokers are spare
ones, and swarms run few seeds. Lines that install need a network, so they do not run; the test
checks that the extras and targets they name exist.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.brokers.servers import Server, nats_server

__all__ = ["nats_server"]

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/tutorial/first-steps.md",
    "docs/how-to/servers-and-brokers.md",
    "docs/how-to/check-a-run.md",
    "docs/how-to/pipeline.md",
)
LINE_S = 900
"""Starting Spark takes long on a busy machine."""
RECORD = "ensue sim examples/scenarios/rough-day.toml --seed 3 --record runs/rough"

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("readme-shell")]


def shell_blocks() -> list[list[str]]:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = (
        tuple(_without_comment(line) for line in block.splitlines() if line.strip())
        for block in blocks
    )
    return [list(lines) for lines in dict.fromkeys(found)]


def _without_comment(line: str) -> str:
    return re.sub(r"\s+#.*$", "", line).strip()


BLOCKS = shell_blocks()
LINES = list(dict.fromkeys(line for block in BLOCKS for line in block))
INSTALLED = [line for line in LINES if line.startswith(("make ", "pip install "))]
TOGETHER = [
    [line for line in block if line not in INSTALLED]
    for block in BLOCKS
    if any(line.startswith(("ensue serve", "ensue sub")) for line in block)
]
ALONE = [
    line for line in LINES if line not in INSTALLED and not any(line in block for block in TOGETHER)
]


class Place:
    """A directory in which lines are run."""

    def __init__(self, root: Path, url: str = "") -> None:
        self.root = root
        (root / "examples").symlink_to(ROOT / "examples")
        programs = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "ENSUE_URL": url,
            "COLUMNS": "200",
        }
        if not url:
            del self.environment["ENSUE_URL"]

    def run(self, line: str) -> str:
        """Run a line until it ends; return its output."""
        ended = subprocess.run(
            ["sh", "-c", line],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LINE_S,
            check=False,
        )
        assert ended.returncode == 0, f"{line}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    @contextmanager
    def running(self, line: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a line in the background, and end it with Ctrl-C."""
        process = subprocess.Popen(
            shlex.split(line),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                with ExitStack() as unread:
                    for stream in (process.stdout, process.stderr):
                        assert stream is not None
                        unread.enter_context(stream)
                    process.wait(60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A directory with the run that the README records."""
    made = Place(tmp_path_factory.mktemp("readme"))
    assert RECORD in LINES
    made.run(RECORD)
    return made


def test_every_line_is_run_or_installs() -> None:
    assert {*INSTALLED, *ALONE, *(line for block in TOGETHER for line in block)} == set(LINES)
    assert len(BLOCKS) > 5
    assert len(ALONE) > 5


@pytest.mark.parametrize("line", INSTALLED)
def test_extras_and_targets_of_a_line_exist(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        ran = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False)
        assert ran.returncode == 0
        return
    (_, extras) = re.fullmatch(r"\.(\[(.*)\])?", words[2]).groups()  # type: ignore[union-attr]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {each for each in (extras or "").split(",") if each} <= known.keys()


def _marks(line: str) -> list[pytest.MarkDecorator]:
    """Keep lines that start their own Spark for `--verify`; `ensue audit` stands for them."""
    starts_spark = line.startswith(("ensue pipeline", "ensue report")) or "--master" in line
    return [pytest.mark.verify] if starts_spark else []


@pytest.mark.parametrize("line", [pytest.param(line, marks=_marks(line)) for line in ALONE])
def test_a_line_runs(line: str, place: Place) -> None:
    if "--record" in line:
        shutil.rmtree(place.root / line.rsplit(maxsplit=1)[-1])
    output = place.run(line.replace("0:1000", "0:3"))
    assert output
    if line.startswith("ensue pipeline"):
        assert re.search(r"ordered +204", output)
        assert "before it have no common order" in output
    if line.startswith("ensue report"):
        assert "<html" in (place.root / "report.html").read_text()


@pytest.mark.parametrize("lines", TOGETHER, ids=lambda lines: lines[0])
def test_lines_that_serve_publish_and_subscribe_run(
    lines: list[str], tmp_path: Path, nats_server: Server
) -> None:
    port = _spare_port()
    url = f"ensue://127.0.0.1:{port}"
    made = Place(tmp_path, url)
    served = any(line.startswith("ensue serve") for line in lines)
    if not served:  # An earlier block of the page has started it.
        lines = [f"ensue serve --listen 127.0.0.1:{port} --data ensue-data", *lines]
    with ExitStack() as running:
        for each in lines:
            line = each.replace("7400", str(port)).replace(
                "nats://127.0.0.1:4222", nats_server.url()
            )
            if line.startswith("ensue serve"):
                server = running.enter_context(made.running(line))
                assert server.stderr is not None
                assert any("is ready" in logged for logged in server.stderr)
            elif line.startswith("ensue sub") and "--count" not in line:
                _subscribes(made, line)
            elif line.startswith("ensue sub"):
                for first in (1, 11):  # The durable subscription resumes.
                    assert made.run(line).split() == [str(first + index) for index in range(10)]
            else:
                made.run(line)


def _subscribes(made: Place, line: str) -> None:
    """Assert that a line subscribes: it prints an event published with its options."""
    words = shlex.split(line)
    publish = shlex.join(["ensue", "pub", words[2], "-m", "hello", *_options(words)])
    with made.running(line) as reader:
        assert reader.stdout is not None
        got = threading.Event()

        def read() -> None:
            if reader.stdout is not None and "hello" in reader.stdout.readline():
                got.set()

        threading.Thread(target=read, daemon=True).start()
        while not got.is_set():  # Until it has subscribed, or the test times out.
            made.run(publish)
            got.wait(1)


def _options(words: list[str]) -> list[str]:
    """Return the options of a subscription: all words after its topics."""
    first = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return words[first:]


def _spare_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
