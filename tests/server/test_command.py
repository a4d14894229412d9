"""`ensue serve` and `ensue token`, as users and scripts run them."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Shell
from tests.server.helpers import DEADLINE_S, serving

import ensue
from ensue.cli import serve as serving_command
from ensue.server import ServerConfig, config_file
from ensue.server.permissions import Access

ENSUE = [sys.executable, "-c", "from ensue.cli import main; main()"]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


@contextmanager
def running(
    *words: object, before: str = ""
) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    """Run `ensue serve` in a process; yield it with its ready message."""
    process = subprocess.Popen(
        [*ENSUE[:-1], before + ENSUE[-1], "serve", "--json", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=DEADLINE_S)[1]
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_server_prints_its_url_and_exits_with_0_on_a_signal(
    tmp_path: Path, how: signal.Signals
) -> None:
    words = ("--listen", "127.0.0.1:0", "--data", tmp_path / "d", "--log-format", "json")
    with running(*words) as (process, ready):
        assert ready["server"] == "node-1"
        assert ready["data"] == str(tmp_path / "d")
        assert ready["pid"] == process.pid

        async def publish() -> None:
            async with ensue.connect(ready["url"]) as bus:
                await bus.publish("x", b"1")

        asyncio.run(publish())
        process.send_signal(how)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
        assert out == ""
        assert all("message" in json.loads(line) for line in err.splitlines())
    # Everything was written: the next server has the events.
    with running(*words) as (_, ready):

        async def look() -> None:
            async with (
                ensue.connect(ready["url"]) as bus,
                bus.subscribe("x", name="s", durable=True) as events,
            ):
                event = await bus.publish("x", b"2")
                assert event.slot == 2
                assert (await anext(events)).payload == b"2"

        asyncio.run(look())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_changes_nothing(tmp_path: Path, how: signal.Signals) -> None:
    with running("--listen", "127.0.0.1:0", "--data", tmp_path / "d") as (process, _):
        deadline_s = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline_s:
            process.send_signal(how)
            time.sleep(0.001)
        assert process.returncode == 0


@pytest.mark.parametrize("kind", ["text", "json"])
def test_url_is_on_stderr_without_json(tmp_path: Path, kind: str) -> None:
    words = ("--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), "--log-format", kind)
    process = subprocess.Popen(
        [*ENSUE, "serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if kind == "json":
            said = json.loads(line)
            assert said["url"].startswith("ensue://127.0.0.1:")
            assert said["message"] == f"node-1 is ready: {said['url']}"
        else:
            assert line.startswith("ensue: node-1 is ready: ensue://127.0.0.1:")
        process.terminate()
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (0, "")
    finally:
        if process.poll() is None:
            process.kill()


def test_failed_start_prints_one_sentence_and_exits_with_2(tmp_path: Path, shell: Shell) -> None:
    async def main() -> tuple[int, str, str, int, str]:
        async with serving(tmp_path / "d") as server:
            assert server.listener is not None
            address = f"127.0.0.1:{server.listener.port}"
            taken = await asyncio.to_thread(run, "--listen", address, "--data", tmp_path / "e")
            used = await asyncio.to_thread(run, "--listen", "127.0.0.1:0", "--data", tmp_path / "d")
            return (*taken, address, *used)

    code, err, address, used_code, used = asyncio.run(main())
    assert (code, used_code) == (2, 2)
    assert err == f"ensue: can't listen on {address}: address already in use\n" or "in use" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "e").exists()  # Nothing was created.
    assert "is open in another process: stop that process" in used
    assert used.count("\n") == 1
    ended = shell("serve", "--data", tmp_path / "f", "--listen", "0.0.0.0:0")
    assert ended.code == 2
    assert "beyond this machine" in ended.stderr
    assert "--insecure-listen-anyone" in ended.stderr
    assert not (tmp_path / "f").exists()


def run(*words: object) -> tuple[int, str]:
    ended = subprocess.run(
        [*ENSUE, "serve", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return ended.returncode, ended.stderr


def test_full_disk_exits_with_2_and_keeps_confirmed_events(
    tmp_path: Path,
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
    words = ("--listen", "127.0.0.1:0", "--data", tmp_path / "d")
    receipts = 0
    with running(*words, before=limit) as (process, ready):

        async def publish() -> None:
            nonlocal receipts
            bus = ensue.connect(ready["url"])
            await bus.__aenter__()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    while process.poll() is None:
                        sent = asyncio.ensure_future(bus.publish("x", bytes(10_000)))
                        while process.poll() is None and not sent.done():
                            await asyncio.wait((sent,), timeout=0.05)
                        receipts += sent.done()
            finally:
                sent.cancel()
                closing = asyncio.ensure_future(bus.close())
                await asyncio.sleep(0)
                closing.cancel()
                await asyncio.gather(closing, sent, return_exceptions=True)

        asyncio.run(publish())
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2
        assert "can't be written any more, so the server has stopped" in err.splitlines()[-1]
    assert receipts > 5
    with running(*words) as (_, ready):

        async def look() -> int:
            async with ensue.connect(ready["url"]) as bus:
                slot = (await bus.publish("x", b"")).slot
                assert slot is not None
                return slot

        assert asyncio.run(look()) > receipts


def test_damaged_segment_exits_with_2_and_two_lines(tmp_path: Path) -> None:
    config = tmp_path / "ensue.toml"
    config.write_text(
        '[[servers]]\nname = "n1"\nlisten = "127.0.0.1:0"\ndata = "d"\n'
        "[retention]\nsegment_bytes = 20000\n"
    )

    async def publish(url: str) -> None:
        async with ensue.connect(url) as bus:
            for _ in range(24):  # More than a server reads when it starts.
                await asyncio.gather(*(bus.publish("x", bytes(100)) for _ in range(50)))

    async def read(url: str) -> None:
        async with ensue.connect(url) as bus, bus.subscribe("x", start="earliest") as events:
            async with asyncio.timeout(DEADLINE_S):
                async for _ in events:
                    pass

    with running("--config", config) as (process, ready):
        asyncio.run(publish(ready["url"]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    log = min((tmp_path / "d").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x10
    log.write_bytes(data)
    with running("--config", config) as (process, ready):
        with pytest.raises(ensue.SubscriptionLost, match=rf"{log.name} is damaged at byte \d+"):
            asyncio.run(read(ready["url"]))
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2
        assert len(re.findall(rf"{log} is damaged at byte \d+", err)) == 2
        assert "Traceback" not in err
        assert "--accept-loss" in err.splitlines()[-1]


def test_log_without_its_tail_is_rejected_until_the_loss_is_accepted(tmp_path: Path) -> None:
    words = ("--listen", "127.0.0.1:0", "--data", tmp_path / "d")

    async def publish(url: str) -> int | None:
        async with ensue.connect(url) as bus:
            return (await bus.publish("x", b"1")).slot

    with running(*words) as (process, ready):
        assert asyncio.run(publish(ready["url"])) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    (log,) = (tmp_path / "d").glob("*.log")
    os.truncate(log, log.stat().st_size - 1)
    code, said = run(*words)
    assert code == 2
    assert f"{log} is damaged at byte " in said
    assert said.count("\n") == 1
    with running(*words, "--accept-loss") as (process, ready):
        assert asyncio.run(publish(ready["url"])) is not None
        process.send_signal(signal.SIGTERM)
        assert "loss accepted" in process.communicate(timeout=DEADLINE_S)[1]
    with running(*words) as (_, ready):
        assert asyncio.run(publish(ready["url"])) is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "d", "--sync", "sometimes"), '--sync: expected "always" or a duration'),
        (("--data", "d", "--sync", "0"), '--sync: expected "always" or a duration'),
        (("--data", "d", "--retain-bytes", "much"), "--retain-bytes: expected a size in bytes"),
        (("--data", "d", "--retain-bytes", "9" * 400 + "GB"), "is too large"),
        (("--data", "d", "--retain-age", "7"), "--retain-age: expected a duration like"),
        (("--data", "d", "--lease", "7"), "--lease: expected a duration like"),
        (
            ("--data", "d", "--lease-lost", "11s"),
            "lease_lost is 11 s, longer than the lease of 10 s",
        ),
        (("--data", "d", "--retain-age", "0s"), "retention.age_s must be above 0"),
        (("--data", "d", "--listen", "nowhere:x"), "the address to listen on 'nowhere:x'"),
        (
            ("--data", "d", "--config", "ensue.toml"),
            "--data and --config exclude each other: ensue.toml sets it",
        ),
        (("--config", "missing.toml"), "missing.toml: there is no such file"),
        ((), "--data is missing: name a directory"),
        (("--data", "d", "--url", "foo://x"), "no transport for 'foo://'; expected a broker: nats"),
        (
            ("--url", "nats://127.0.0.1:1", "--data", "d", "--listen", "127.0.0.1:0"),
            "--listen and --url exclude each other: a server on a broker has no port",
        ),
        (
            ("--url", "nats://127.0.0.1:1", "--data", "d", "--lease-lost", "1s"),
            "--lease-lost and --url exclude each other: a server on a broker sees no connections",
        ),
        (("--data", "d", "--name", "a/b"), "the name of a server must not contain '/' or '~'"),
        (("--data", "d", "--name", "chain"), "the name 'chain' is reserved"),
        (("--data", "d", "--listen", "no.such.host.invalid:7"), "there is no host 'no.such.host"),
    ],
)
def test_error_names_the_invalid_option(shell: Shell, words: tuple[str, ...], said: str) -> None:
    ended = shell("serve", *words)
    assert ended.code == 2
    assert said in ended.stderr
    assert shell("serve", *words, "--json").json()["error"] in ended.stderr


@pytest.mark.parametrize(
    ("words", "lease_s", "lost_s"),
    [
        ((), 10, 1),
        (("--lease", "20s"), 20, 1),
        (("--lease", "300ms"), 0.3, 0.3),
        (("--lease-lost", "500ms"), 10, 0.5),
    ],
)
def test_leases_are_options(
    shell: Shell,
    words: tuple[str, ...],
    lease_s: float,
    lost_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A publisher has 10 s to send a stamped event, and 1 s after its connection is lost."""
    served: list[ServerConfig] = []

    async def serve(config: ServerConfig, *_: object, **_options: object) -> None:
        served.append(config)

    monkeypatch.setattr(serving_command, "_serve", serve)
    assert shell("serve", "--data", "d", *words).code == 0
    (config,) = served
    leases = (config.sequencer.lease_ns, config.sequencer.lease_lost_ns)
    assert leases == (lease_s * 10**9, lost_s * 10**9)


def test_directory_belongs_to_one_server_name(tmp_path: Path) -> None:
    words = ("--listen", "127.0.0.1:0", "--data", tmp_path / "d")
    with running(*words, "--name", "first") as (process, _):
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
    code, err = run(*words, "--name", "other")
    assert code == 2
    assert "belongs to the server 'first', and this one is 'other'" in err
    on_a_broker = run("--url", "nats://127.0.0.1:1", "--data", tmp_path / "d", "--name", "other")
    assert on_a_broker == (2, err)
    with running(*words, "--name", "first") as (_, ready):
        assert ready["server"] == "first"


def test_error_of_a_missing_file_names_its_key(tmp_path: Path, shell: Shell) -> None:
    config = tmp_path / "ensue.toml"
    config.write_text(
        '[[servers]]\nname = "a"\nlisten = "127.0.0.1:0"\ndata = "a"\n'
        '[tls]\ncert = "own.pem"\nkey = "own.key"\n'
    )
    ended = shell("serve", "--config", config)
    assert ended.code == 2
    assert f"{config}: tls.cert: there is no file {tmp_path / 'own.pem'}" in ended.stderr
    assert not (tmp_path / "a").exists()


def test_server_is_chosen_by_name_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "ensue.toml").write_text(
        'sync = "20ms"\n'
        '[[servers]]\nname = "a"\nlisten = "127.0.0.1:0"\ndata = "a"\ntopics = ["x"]\n'
        '[[servers]]\nname = "b"\nlisten = "127.0.0.1:1"\ndata = "b"\n'
    )
    with running("--config", tmp_path / "ensue.toml", "--name", "a") as (_, ready):
        assert ready["server"] == "a"
        assert ready["data"] == str(tmp_path / "a")


def test_token_is_printed_with_its_configuration(shell: Shell) -> None:
    ended = shell("token", "alice")
    assert ended.code == 0
    lines = [line.strip() for line in ended.stdout.splitlines()]
    token = next(line for line in lines if line.startswith("ensue_"))
    table = tomllib.loads("\n".join(lines[lines.index("[users.alice]") :]))
    config = config_file.loads(
        '[[servers]]\nname = "a"\nlisten = "127.0.0.1:0"\ndata = "a"\n'
        + "\n".join(lines[lines.index("[users.alice]") :])
    )
    assert table["users"]["alice"]["token"].startswith("sha256:")
    assert token not in table["users"]["alice"]["token"]
    assert config.access.user_of(token, ()) == "alice"
    assert config.access.user_of(token + "x", ()) is None
    other = shell("token", "alice", "--json").json()
    assert other["token"] != token
    assert Access().user_of(other["token"], ()) is None


def test_station_secret_is_printed_with_its_configuration(shell: Shell, tmp_path: Path) -> None:
    ended = shell("token", "station")
    assert "ENSUE_TOKEN" not in ended.stdout
    assert "[users" not in ended.stdout
    lines = [line.strip() for line in ended.stdout.splitlines()]
    secret = next(line for line in lines if line.startswith("ensue_"))
    (tmp_path / "station.secret").write_text(secret + "\n")
    text = "".join(
        f'[[servers]]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\ndata = "{name}"\n'
        for name, port in (("a", 1), ("b", 2))
    )
    text += "\n".join(lines[lines.index("[stations]") :])
    config = config_file.loads(text, folder=tmp_path, name="a")
    assert config.access.station_secret == secret


def test_user_name_is_quoted_for_toml(shell: Shell) -> None:
    ended = shell("token", "Zoë & co")
    lines = [line.strip() for line in ended.stdout.splitlines()]
    start = next(at for at, line in enumerate(lines) if line.startswith("[users"))
    assert list(tomllib.loads("\n".join(lines[start:]))["users"]) == ["Zoë & co"]
