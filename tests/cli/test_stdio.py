"""Standard streams of commands: closed and full streams, bytes that are not text, long lines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.test_pub_sub import DEADLINE_S, ENSUE, Served, ended, pub, rows, started, sub
from tests.cli.test_pub_sub import process as process  # noqa: PLC0414 - a fixture
from tests.cli.test_pub_sub import server as server  # noqa: PLC0414 - a fixture
from tests.cli.test_pub_sub import topic as topic  # noqa: PLC0414 - a fixture

from ensue.cli.stdio import CHUNK_BYTES, LINE_BYTES_MAX
from ensue.core.errors import BadInput
from ensue.transports.tcp.options import TcpOptions

FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no device that is full")


def started_with(before: str, *words: object) -> "subprocess.Popen[bytes]":
    """Start a command after running code that changes its standard streams."""
    code = f"import os, sys; {before}; os.execv(sys.argv[1], sys.argv[1:])"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, *ENSUE, *map(str, words)], stdin=pipe, stdout=pipe, stderr=pipe
    )


def closing(number: int, *words: object) -> tuple[int, bytes, str]:
    """Run a command with one of its standard streams closed."""
    process = started_with(f"os.close({number})", *words)
    return ended(process, None if number == 0 else b"1\n2\n")


# -- Closed and full -------------------------------------------------------------------------------


def test_closed_stdin_is_an_error(server: Served, topic: str) -> None:
    code, out, err = closing(0, "pub", topic, "--url", server.url)
    assert (code, out) == (2, b"")
    assert err == "ensue: standard input: Bad file descriptor\n"


def test_closed_stdout_is_an_error_and_acknowledges_nothing(server: Served, topic: str) -> None:
    pub(server, topic, "-m", "1")
    words = ("sub", topic, "--name", f"desk-{topic}", "--from", "earliest", "-n", 1)
    code, _, err = closing(1, *words, "--url", server.url)
    assert code == 2
    assert err == "ensue: standard output: Bad file descriptor\n"
    assert sub(server, topic, "--name", f"desk-{topic}", "-n", 1) == b"1\n"


def test_closed_stderr_is_ignored(server: Served, topic: str) -> None:
    assert closing(2, "pub", topic, "--url", server.url) == (0, b"", "")
    words = ("sub", topic, "--from", "earliest", "-n", 2)
    assert closing(2, *words, "--url", server.url) == (0, b"1\n2\n", "")


@pytest.mark.parametrize(
    "before",
    [
        "os.close(2)",
        pytest.param(f"os.dup2(os.open({str(FULL)!r}, os.O_WRONLY), 2)", marks=needs_full),
    ],
)
def test_server_runs_without_stderr(tmp_path: Path, before: str) -> None:
    place = ("--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0")
    process = started_with(before, "serve", "--name", "quiet", *place, "--admin", "127.0.0.1:0")
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (tmp_path / "d").exists() and process.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.communicate()


@needs_full
@pytest.mark.parametrize(
    "words", [("status", "--json", "--url", "ensue://127.0.0.1:9"), ("token", "a", "--json")]
)
def test_full_stdout_is_an_error(words: tuple[str, ...]) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run([*ENSUE, *words], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


# -- Bytes that are not text -----------------------------------------------------------------------


def test_options_may_be_arbitrary_bytes(server: Served, topic: str) -> None:
    odd, url = os.fsdecode(b"\xff\xfe"), server.url
    assert ended(started("pub", topic, "-m", odd, "--key", odd, url=url)) == (0, b"", "")
    with_separator = started("pub", topic, "--key-separator", odd, url=url)
    assert ended(with_separator, b"a\xff\xfeb\n") == (0, b"", "")
    words = ("--from", "earliest", "-n", 2, "--format", odd + r"{key}={payload}\n")
    code, out, err = ended(started("sub", topic, *words, url=url))
    assert (code, err) == (0, "")
    assert out == b"\xff\xfe\xff\xfe=\xff\xfe\n\xff\xfea=b\n"


def test_token_that_is_not_text_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENSUE_TOKEN", os.fsdecode(b"\xff"))
    with pytest.raises(BadInput, match="a token must be valid UTF-8"):
        TcpOptions.parse("ensue://127.0.0.1")


# -- Lines -----------------------------------------------------------------------------------------


def test_error_names_a_line_that_is_too_long(server: Served, topic: str) -> None:
    lines = b"1\n2\n" + b"x" * (LINE_BYTES_MAX + CHUNK_BYTES + 1)
    code, out, err = ended(started("pub", topic, url=server.url), lines)
    assert (code, out) == (2, b"")
    assert err == (
        f"ensue: line 3: has more than {LINE_BYTES_MAX} bytes: split it; 2 were published before "
        "it\n"
    )
    assert sub(server, topic, "-n", 2) == b"1\n2\n"


def test_json_line_may_omit_its_payload_but_not_name_an_empty_topic(
    server: Served, topic: str
) -> None:
    lines = b'{"key":"gone"}\n{"payload":null}\n{"payload":"x","topic":""}\n'
    code, out, err = ended(started("pub", topic, "--json", url=server.url), lines)
    assert (code, out) == (2, b"")
    assert "line 3: a topic must have 1 to 255 bytes; the empty one has 0; 2 were published" in err
    assert sub(server, topic, "-n", 2, "--format", r"{key}:{payload}\n") == b"gone:\n:null\n"


def test_keys_that_are_not_text_are_base64_in_json(server: Served, topic: str) -> None:
    pub(server, topic, "--key-separator", "=", data=b"\xff=1\n\xfe=2\nk=3\n")
    keys = [
        (row.get("key"), row.get("key_base64"))
        for row in rows(sub(server, topic, "-n", 3, "--json"))
    ]
    assert keys == [(None, "/w=="), (None, "/g=="), ("k", None)]
