"""`ensue pub` and `ensue sub` as users and scripts run them: processes, pipes and signals."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Shell

from ensue.cli import pub as publishing
from ensue.cli.stdio import Output

ENSUE = [sys.executable, "-c", "from ensue.cli import main; main()"]
DEADLINE_S = 100.0
"""Timeout of a test's waits; the machine may be busy."""

_topics = count(1)


class Served:
    """A server process that can be killed and restarted on its data."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.address = "127.0.0.1:0"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.shell: Shell | None = None
        """If set, commands that need no separate process run in the test's."""

    def start(self) -> None:
        words = ["--listen", self.address, "--data", str(self.data), "--log-level", "error"]
        self.process = subprocess.Popen(
            [*ENSUE, "serve", "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server did not start"
        self.url = json.loads(line)["url"]
        self.address = self.url.removeprefix("ensue://")

    def kill(self) -> None:
        """Kill the server, as kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served") / "data")
    served.start()
    yield served
    served.kill()


@pytest.fixture
def server(process: Served, shell: Shell) -> Served:
    process.shell = shell
    return process


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_topics)}"


Process = subprocess.Popen[bytes]


def started(*words: object, url: str) -> Process:
    """Start a command with pipes for its standard streams."""
    return subprocess.Popen(
        [*ENSUE, *map(str, words), "--url", url],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
    )


def ended(process: Process, data: bytes | None = None) -> tuple[int, bytes, str]:
    """Send a process its input, if any, and wait until it exits."""
    try:
        out, err = process.communicate(data, timeout=DEADLINE_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, SUBSCRIBED.sub("", err.decode())


SUBSCRIBED = re.compile(r"^ensue: subscribed to .*\n", re.MULTILINE)
"""The line that `ensue sub` prints once it is subscribed."""


def pub(server: Served, *words: object, data: bytes = b"") -> None:
    """Publish, and assert that it exits with 0 and prints nothing."""
    if server.shell is None or data:
        assert ended(started("pub", *words, url=server.url), data) == (0, b"", "")
    else:
        result = server.shell("pub", *words, "--url", server.url)
        assert (result.code, result.stdout, result.stderr) == (0, "", "")


def sub(server: Served, *words: object) -> bytes:
    """Read from the start of the log, and assert that it exits with 0."""
    if server.shell is None:
        code, out, err = ended(started("sub", *words, "--from", "earliest", url=server.url))
    else:
        result = server.shell("sub", *words, "--from", "earliest", "--url", server.url)
        code, out, err = result.code, result.stdout.encode(), result.stderr
    assert (code, SUBSCRIBED.sub("", err)) == (0, "")
    return out


def rows(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# -- Round trips -----------------------------------------------------------------------------------


def test_lines_are_printed_in_the_order_of_publication(server: Served, topic: str) -> None:
    pub(server, topic, data=b"one\ntwo\r\n\n \xff\x00\nlast without an end")
    process = started("sub", topic, "-n", 5, "--from", "earliest", url=server.url)
    assert ended(process) == (0, b"one\ntwo\n\n \xff\x00\nlast without an end\n", "")


def test_messages_of_the_command_line_replace_stdin(server: Served, topic: str) -> None:
    pub(server, topic, "-m", "one", "--message", "two words", data=b"ignored\n")
    assert sub(server, topic, "--count", 2) == b"one\ntwo words\n"
    pub(server, topic, "-m", "three")
    assert sub(server, topic, "--count", 3) == b"one\ntwo words\nthree\n"


def test_empty_input_publishes_nothing(server: Served, topic: str) -> None:
    assert ended(started("pub", topic, url=server.url)) == (0, b"", "")
    pub(server, topic, "-m", "first")
    (row,) = rows(sub(server, topic, "-n", 1, "--json"))
    assert (row["payload"], row["position"]) == ("first", 1)


def test_format_prints_keys_and_headers(server: Served, topic: str) -> None:
    pub(server, topic, "--key", "k", "--header", "a=1", "--header", "b=x=y", "-m", "one")
    pub(server, topic, "--key-separator", "::", data=b"left::right::more\n::empty\n")
    shown = sub(
        server, topic, "-n", 3, "--format", r"{topic}\t{key}\t{payload}\t{headers}\t{position}\0"
    )
    t = topic.encode()
    assert shown.split(b"\0") == [
        t + b'\tk\tone\t{"a":"1","b":"x=y"}\t1',
        t + b"\tleft\tright::more\t{}\t2",
        t + b"\t\tempty\t{}\t3",
        b"",
    ]


def test_json_lines_round_trip(server: Served, topic: str) -> None:
    other = f"{topic}-other"
    lines = [
        {"payload": "text", "key": "k", "headers": {"h": "1"}},
        {"payload": {"a": [1, None]}},
        {"payload": "elsewhere", "topic": other},
        {},
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    pub(server, topic, "--json", "--header", "all=x", "--name", "writer", data=data)
    pub(server, topic, data=b"\xff\xfe\n")
    got = rows(sub(server, topic, other, "-n", 5, "--json"))
    assert [row.get("payload") for row in got] == [
        "text",
        '{"a":[1,null]}',
        "elsewhere",
        "",
        None,
    ]
    assert got[0]["key"] == "k"
    assert got[0]["headers"] == {"all": "x", "h": "1"}
    assert got[1]["key"] is None
    assert [row["topic"] for row in got] == [topic, topic, other, topic, topic]
    assert [row["position"] for row in got] == [1, 2, 3, 4, 5]
    assert got[0]["publisher"].startswith("writer~")
    assert got[0]["id"] == f"{got[0]['publisher']}/{topic}/1"
    assert got[4]["payload_base64"] == "//4="
    assert all("verdict" not in row for row in got)


# -- Start positions -------------------------------------------------------------------------------


def test_sub_starts_at_a_place(server: Served, topic: str) -> None:
    pub(server, topic, "-m", "1", "-m", "2", "-m", "3", "-m", "4")
    places = sub(server, topic, "-n", 4, "--format", r"{place}\n").split()
    assert [int(b) - int(a) for a, b in pairwise(places)] == [1, 1, 1]
    process = started("sub", topic, "-n", 2, "--from", places[2].decode(), url=server.url)
    assert ended(process) == (0, b"3\n4\n", "")


def test_durable_subscription_resumes_after_its_last_printed_event(
    server: Served, topic: str
) -> None:
    pub(server, topic, "-m", "1", "-m", "2", "-m", "3", "-m", "4", "-m", "5")
    assert sub(server, topic, "--name", f"desk-{topic}", "-n", 2) == b"1\n2\n"
    assert sub(server, topic, "--name", f"desk-{topic}", "-n", 1) == b"3\n"
    # Its `--from` is ignored from now on.
    process = started("sub", topic, "--name", f"desk-{topic}", "-n", 2, url=server.url)
    assert ended(process) == (0, b"4\n5\n", "")


def test_timeout_exits_with_2(server: Served, topic: str) -> None:
    pub(server, topic, "-m", "1")
    words = ("sub", topic, "-n", 2, "--from", "earliest", "--timeout", "0.2")
    code, out, err = ended(started(*words, url=server.url))
    assert (code, out) == (2, b"1\n")
    assert "no event for 0.2 s (--timeout); 1 was printed" in err


# -- Errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "data", "message"),
    [
        (("--json",), b'{"payload":"1"}\n{"payload":"2"}\n{oops\n{}\n', "line 3: is not JSON"),
        (
            ("--key-separator", "="),
            b"a=1\nb=2\nno key\n",
            "line 3: has no key separator '='",
        ),
    ],
)
def test_error_names_an_invalid_line_and_earlier_lines_are_published(
    server: Served, topic: str, words: tuple[str, ...], data: bytes, message: str
) -> None:
    code, out, err = ended(started("pub", topic, *words, url=server.url), data)
    assert code == 2
    assert message in err
    assert "2 were published before it" in err
    assert err.count("\n") == 1
    assert out == b""  # stdout is for events only.
    assert len(sub(server, topic, "-n", 2).splitlines()) == 2
    pub(server, topic, "-m", "next")
    (last,) = rows(sub(server, topic, "-n", 3, "--json"))[2:]
    assert last["payload"] == "next"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pub", "t", "--header", "none"), "--header 'none': expected NAME=VALUE"),
        (("pub", "t", "--json", "--key", "k"), "leave --key and --key-separator out"),
        (("pub", "t", "--url", "http://h"), "no transport for 'http://'"),
        (("sub", "t", "--from", "never"), "--from 'never': expected earliest, latest or a place"),
        (("sub", "t", "--from", "0"), "--from '0': expected earliest"),
        (
            ("sub", "t", "--accept-loss"),
            "--accept-loss is for a durable subscription: add its --name",
        ),
        (
            ("sub", "t", "--format", "{colour}"),
            "--format: unknown field {colour}; expected one of {payload}",
        ),
        (("sub", "t", "--json", "--format", "x"), "--json and --format exclude each other"),
        (("sub", "t", "--order", "merged"), "needs the largest difference of clocks"),
        (
            ("pub", "t", "--order", "merged", "--epsilon", "1"),
            "needs the largest difference of clocks",
        ),
        (("sub", "t", "--order", "causal", "--delta", "1"), "--delta is for --order merged"),
        (
            ("sub", "t", "--late", "tag"),
            "--late is for --order merged and --order deadline, not for --order total",
        ),
        (("sub", "t", "--order", "deadline"), "needs the lifetime of events"),
        (("pub", "t", "--order", "deadline"), "such as --ms 200"),
        (("pub", "t", "--order", "deadline", "--ms", "0"), "ms must be from 1 to"),
        (
            ("sub", "t", "--order", "deadline", "--ms", "9", "--late", "deliver"),
            "--late must be drop or tag, got 'deliver'",
        ),
        (("pub", "t", "--ms", "9"), "--ms is for --order deadline, not for --order total"),
        (("pub", "t", "--order", "dead"), "one of total, causal, merged, deadline, none"),
        (
            ("sub", "t", "--order", "deadline", "--ms", "9", "--name", "x"),
            "--name needs a log, and --order deadline keeps none",
        ),
        (("sub", "t", "--order", "merged", "--epsilon", "-1", "--delta", "1"), "--epsilon must be"),
        (
            ("sub", "t", "--order", "causal", "--name", "x"),
            "--name needs a log, and --order causal keeps none",
        ),
        (
            ("sub", "t", "--order", "none", "--from", "earliest"),
            "--from needs a log, and --order none keeps none",
        ),
        (("sub", "t", "--json", "--from", "never"), "--from 'never': expected earliest"),
        (("sub", "t", "--format", "{topic} {payload"), "{payload is not closed; write {payload}"),
        (
            ("sub", "t", "--timeout", "-1"),
            "--timeout: expected a number of seconds above 0, got -1",
        ),
        (
            ("pub", "t", "--key-separator", "", "-m", "x"),
            "--key-separator is empty: give the text that follows a key",
        ),
        (("sub", "t", "--url", "foo"), "no transport for 'foo'; expected ensue://HOST:PORT, or a"),
        (("sub", "t", "--order", "deadline", "--ms", "-5"), "--ms must be from 1 to"),
        (("sub", "t", "--timeout", "nan"), "--timeout: expected a number of seconds above 0"),
        (("sub", "t", "--timeout", "0"), "--timeout: expected a number of seconds above 0"),
        (("pub", "", "-m", "x"), "a topic must have 1 to 255 bytes"),
        (("pub", "t", "-m", "x", "--url", "memory://shop"), "memory://shop is within one process"),
        (("sub", "t", "--url", "memory://"), "memory:// is within one process"),
    ],
)
def test_error_names_the_invalid_option(shell: Shell, words: tuple[str, ...], message: str) -> None:
    result = shell(*words)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--order", "causal"),
        ("--order", "merged", "--epsilon", "0.01", "--delta", "1"),
        ("--order", "deadline", "--ms", "5000"),
        ("--order", "none"),
    ],
    ids=lambda words: str(words[1]),
)
def test_other_orders_are_printed_in_order_of_publication(
    server: Served, topic: str, words: tuple[str, ...]
) -> None:
    """These orders keep no log: publish until the reader has enough, each time by a new process."""
    reader = started("sub", topic, "-n", 3, *words, url=server.url)
    number = 0
    while reader.poll() is None and number < 1_000:
        pub(server, topic, *words, "-m", number, "-m", number + 1)
        number += 2
    code, out, err = ended(reader)
    assert (code, err) == (0, "")
    numbers = [int(line) for line in out.splitlines()]
    assert len(numbers) == 3
    assert numbers == sorted(set(numbers))


def test_braces_without_a_field_are_literal(server: Served, topic: str) -> None:
    pub(server, topic, "-m", "1")
    shown = sub(server, topic, "-n", 1, "--format", '{"a": {payload}, { b: {x')
    assert shown == b'{"a": 1, { b: {x'


def test_error_of_a_missing_server_says_how_to_start_one(shell: Shell) -> None:
    for words in (("pub", "t", "-m", "x"), ("sub", "t")):
        result = shell(*words, "--url", "ensue://127.0.0.1:1", "--wait", "0")
        assert result.code == 2
        assert "no server answers at 127.0.0.1:1" in result.stderr
        assert "ensue serve" in result.stderr


def test_silent_server_times_out(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "ATTEMPT_S_MIN", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for words in (("pub", "t", "-m", "x"), ("sub", "t")):
            result = shell(*words, "--url", f"ensue://{address}", "--wait", "0.3")
            assert result.code == 2
            assert f"no answer from {address} within 0.3 s" in result.stderr


# -- Exits -----------------------------------------------------------------------------------------


def test_closed_pipe_ends_sub_quietly(server: Served, topic: str) -> None:
    pub(server, topic, data=b"".join(b"%d\n" % number for number in range(20_000)))
    process = started("sub", topic, "--from", "earliest", url=server.url)
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    process.stdout = None
    code, _, err = ended(process)
    assert (code, err) == (0, "")


def test_closed_pipe_ends_sub_without_further_events(server: Served, topic: str) -> None:
    pub(server, topic, "-m", "1", "-m", "2")
    name = f"desk-{topic}"
    process = started("sub", topic, "--from", "earliest", "--name", name, url=server.url)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
    process.stdout.close()
    process.stdout = None
    code, _, err = ended(process)
    assert (code, err) == (0, "")
    pub(server, topic, "-m", "3")
    assert sub(server, topic, "--name", name, "-n", 1) == b"3\n"


def test_ctrl_c_ends_pub_after_publishing_what_it_read(server: Served, topic: str) -> None:
    process = started("pub", topic, url=server.url)
    assert process.stdin is not None
    process.stdin.write(b"1\n2\nnot a whole line")
    process.stdin.flush()
    # Both are published: pub now waits for more input.
    assert sub(server, topic, "-n", 2) == b"1\n2\n"
    process.send_signal(signal.SIGINT)
    try:
        process.wait(DEADLINE_S)
    finally:
        process.kill()
    code, out, err = ended(process)
    assert (code, out) == (2, b"")
    assert err == "ensue: interrupted; 2 events published\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("words", [("pub", "t", "-m", "x"), ("sub", "t")], ids=["pub", "sub"])
def test_wait_for_a_server_prints_a_notice_and_ends_on_a_signal(
    words: tuple[str, ...], number: signal.Signals
) -> None:
    process = started(*words, url="ensue://127.0.0.1:1")
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    assert line == "ensue: waiting up to 10 s for 127.0.0.1:1 to answer (--wait)\n"
    process.send_signal(number)
    code, out, err = ended(process)
    assert (code, out) == (2, b"")
    assert err.startswith("ensue: interrupted")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code"), [((), 0), (("-n", 100), 2)], ids=["endless", "counting"]
)
def test_ctrl_c_ends_sub(server: Served, topic: str, words: tuple[object, ...], code: int) -> None:
    pub(server, topic, "-m", "1", "-m", "2")
    process = started("sub", topic, "--from", "earliest", *words, url=server.url)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    assert process.stdout.readline() == b"2\n"
    process.send_signal(signal.SIGINT)
    returned, out, err = ended(process)
    assert (returned, out) == (code, b"")
    assert ("interrupted" in err) == (code == 2)
    assert "Traceback" not in err


def test_ctrl_c_acknowledges_printed_events(server: Served, topic: str) -> None:
    pub(server, topic, "-m", "1", "-m", "2")
    name = f"desk-{topic}"
    process = started("sub", topic, "--from", "earliest", "--name", name, url=server.url)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
    process.send_signal(signal.SIGINT)
    code, out, _ = ended(process)
    assert (code, out) == (0, b"")
    pub(server, topic, "-m", "3")
    assert sub(server, topic, "--name", name, "-n", 1) == b"3\n"


@contextmanager
def pub_without_receipts(data: Path, *options: str) -> Iterator[Process]:
    """Start a publisher with unacknowledged events, whose server no longer responds."""
    served = Served(data)
    served.start()
    process = started("pub", "t", *options, url=served.url)
    assert process.stdin is not None
    assert process.stderr is not None
    assert served.process is not None
    try:
        process.stdin.write(b"1\n")
        assert sub(served, "t", "-n", 1) == b"1\n"
        # A stopped server looks like a slow one.
        served.process.send_signal(signal.SIGSTOP)
        # More than a pipe holds: once all is written, pub has read some of it.
        process.stdin.write(b"%1000d\n" % 2 * 200)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        served.kill()


IN_DOUBT = (
    r"ensue: the bus was closed; [\d,]+ events? (is|are) in doubt, may be delivered or not: "
    r"client.*\n"
)


def test_second_ctrl_c_ends_pub_at_once_without_a_server(tmp_path: Path) -> None:
    with pub_without_receipts(tmp_path) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        line = process.stderr.readline().decode()
        assert re.fullmatch(
            r"ensue: waiting up to 5 s for [\d,]+ receipts?; press Ctrl-C again to exit now\n",
            line,
        )
        process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
        assert (code, out) == (2, b"")
        assert re.fullmatch(IN_DOUBT, err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_pub_after_its_timeout_without_a_server(
    tmp_path: Path, number: signal.Signals
) -> None:
    with pub_without_receipts(tmp_path, "--timeout", "0.1") as process:
        process.send_signal(number)
        code, out, err = ended(process)
        assert (code, out) == (2, b"")
        assert re.fullmatch(rf"ensue: waiting up to 0\.1 s for .*\n{IN_DOUBT}", err)


@pytest.mark.parametrize("timeout", ["0", "0.1"])
def test_pub_gives_up_after_its_timeout(tmp_path: Path, timeout: str) -> None:
    with pub_without_receipts(tmp_path, "--timeout", timeout) as process:
        code, out, err = ended(process)
        assert (code, out) == (2, b"")
        assert re.fullmatch(IN_DOUBT, err)


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_wildcards_are_rejected_before_connecting(command: str) -> None:
    code, _, err = ended(started(command, "orders.*", url="ensue://127.0.0.1:1"))
    assert code == 2
    assert "'orders.*' has the wildcard '*', which topics can't have: name each topic" in err


@pytest.mark.parametrize("timeout", ["inf"])
def test_pub_rejects_an_invalid_timeout(timeout: str) -> None:
    code, _, err = ended(started("pub", "t", "--timeout", timeout, url="ensue://127.0.0.1:1"))
    assert code == 2
    assert f"--timeout must be a finite number of seconds, 0 or more, got {timeout}" in err


def test_slow_reader_does_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    data = bytes(range(256)) * 4096

    async def main() -> bytes:
        output = Output()
        output.write(data)
        flushing = asyncio.create_task(output.flush())
        got = b""
        while len(got) < len(data):
            # If the flush blocked the event loop, this read would never run.
            got += await asyncio.to_thread(os.read, reading, 65_536)
        await flushing
        return got

    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert asyncio.run(main()) == data
    os.close(reading)


# -- Server failures -------------------------------------------------------------------------------


def test_killed_server_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    served.start()
    expected = b"".join(b"%d\n" % number for number in range(20_000))
    reader = writer = None
    try:
        writer = started("pub", "numbers", url=served.url)
        reader = started("sub", "numbers", "-n", 20_000, "--from", "earliest", url=served.url)
        assert writer.stdin is not None
        assert reader.stdout is not None
        # Only half, so that the publisher is still running when the server dies.
        half = len(expected) // 2
        writer.stdin.write(expected[:half])
        writer.stdin.flush()
        head = b"".join(reader.stdout.readline() for _ in range(1_000))
        assert expected.startswith(head)
        served.kill()
        served.start()
        at = f"the server at {served.address}"
        message = (
            f"ensue: the connection to {at} is lost; reconnecting\nensue: reconnected to {at}\n"
        )
        assert ended(writer, expected[half:]) == (0, b"", message)
        code, rest, err = ended(reader)
        assert (code, err) == (0, message)
        assert head + rest == expected
        assert sub(served, "numbers", "-n", 20_000) == expected
    finally:
        for process in (reader, writer):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
        served.kill()


def test_restart_of_a_server_is_reported(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    served.start()
    reader = started("sub", "t", "-n", 2, "--from", "earliest", url=served.url)
    assert reader.stdout is not None
    assert reader.stderr is not None
    try:
        assert reader.stderr.readline() == b"ensue: subscribed to t\n"
        pub(served, "t", "-m", "1")
        assert reader.stdout.readline() == b"1\n"
        assert served.process is not None
        served.process.terminate()
        at = f"the server at {served.address}"
        away = f"ensue: {at} closed the connection: the server is shutting down; reconnecting\n"
        assert reader.stderr.readline().decode() == away
        served.kill()
        served.start()
        assert reader.stderr.readline().decode() == f"ensue: reconnected to {at}\n"
        pub(served, "t", "-m", "2")
        assert ended(reader) == (0, b"2\n", "")
    finally:
        if reader.poll() is None:
            reader.kill()
            reader.communicate()
        served.kill()
