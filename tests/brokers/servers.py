"""Real brokers for tests: child processes on spare ports of loopback, with their own data.

A server can be stopped, killed and restarted on the same port with the same data. It ends only
processes that it started. Tests of a broker that is not installed are skipped, with the command
that installs it.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

USER = "ensue"
PASSWORD = "se/cret"
PASSWORD_IN_URL = "se%2Fcret"
START_S = 180.0
"""RabbitMQ takes 10 seconds on an idle machine."""
STOP_S = 60.0


def spare_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One broker process."""

    binary: ClassVar[str]
    package: ClassVar[str]
    scheme: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = spare_port()
        self.environment = dict(os.environ)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def found(cls) -> str | None:
        # Debian installs servers in directories that only root's PATH has.
        return shutil.which(
            cls.binary, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
        )

    def url(self, options: str = "", *, port: int | None = None) -> str:
        query = f"?{options}" if options else ""
        return (
            f"{self.scheme}://{self.credentials()}127.0.0.1:{port or self.port}{self.path()}{query}"
        )

    def credentials(self) -> str:
        return f"{USER}:{PASSWORD_IN_URL}@"

    def path(self) -> str:
        return ""

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Write the server's configuration files."""

    def start(self) -> None:
        assert self._process is None
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.directory,
                # Its own process group, so that all of it can be ended and nothing else.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self.kill()
                tail = (self.directory / "log").read_text(errors="replace")[-2000:]
                pytest.fail(f"{self.binary} did not start ({ended=}):\n{tail}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """Stop it with SIGTERM, as an administrator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop it with SIGKILL, as a power cut does."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        self.signal(process, number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S)
        # A wrapper script may end before the server does.
        deadline = time.monotonic() + STOP_S
        while self._answers() and time.monotonic() < deadline:
            time.sleep(0.02)

    def signal(self, process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
        if process.poll() is None:
            os.killpg(process.pid, number)

    def ensure(self) -> None:
        """Start it if a failed test left it stopped."""
        if self._process is None:
            self.start()

    async def restart(self, *, gracefully: bool) -> None:
        await asyncio.to_thread(self.stop if gracefully else self.kill)
        await asyncio.to_thread(self.start)


class Nats(Server):
    binary = "nats-server"
    package = "nats-server"
    scheme = "nats"

    def command(self) -> list[str]:
        store = self.directory / "jetstream"
        return [
            *(self.found() or self.binary, "--addr", "127.0.0.1", "--port", str(self.port)),
            *("--user", USER, "--pass", PASSWORD, "--jetstream", "--store_dir", str(store)),
        ]


class Redis(Server):
    """Redis with an append-only file, so that data survives a restart."""

    binary = "redis-server"
    package = "redis-server"
    scheme = "redis"
    slowly = False
    """Whether loading the data takes some seconds."""

    def credentials(self) -> str:
        return f":{PASSWORD_IN_URL}@"

    def path(self) -> str:
        return "/0"

    def _answers(self) -> bool:
        """Return whether it answers and, unless `slow`, has loaded its data."""
        if self.slowly:
            return super()._answers()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {PASSWORD}\r\nPING\r\n".encode())
                answers = b""
                while answers.count(b"\r\n") < 2 and (piece := connection.recv(1000)):
                    answers += piece
                return answers.endswith(b"+PONG\r\n")
        except OSError:
            return False

    def command(self) -> list[str]:
        return [
            *(self.found() or self.binary, "--bind", "127.0.0.1", "--port", str(self.port)),
            *("--requirepass", PASSWORD, "--dir", str(self.directory)),
            *("--appendonly", "yes", "--save", ""),
            *(("--key-load-delay", "300") if self.slowly else ()),
        ]


class Mosquitto(Server):
    binary = "mosquitto"
    package = "mosquitto"
    scheme = "mqtt"

    def prepare(self) -> None:
        passwords = self.directory / "passwords"
        subprocess.run(
            ["mosquitto_passwd", "-b", "-c", str(passwords), USER, PASSWORD],
            check=True,
            capture_output=True,
        )
        # As root it would switch to a user that can't read root's directories.
        self.directory.chmod(0o755)
        passwords.chmod(0o644)
        lines = [
            f"listener {self.port} 127.0.0.1",
            f"password_file {passwords}",
            "allow_anonymous false",
            "user root",
            f"max_packet_size {MQTT_PACKET_BYTES_MAX}",
            # Limit of messages queued for a slow reader, 1,000 by default; beyond, they are lost.
            "max_queued_messages 0",
        ]
        (self.directory / "mosquitto.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def command(self) -> list[str]:
        return [self.found() or self.binary, "-c", str(self.directory / "mosquitto.conf")]


MQTT_PACKET_BYTES_MAX = 2 * 1024 * 1024


class RabbitMQ(Server):
    """RabbitMQ, with its own node and port mapper."""

    # The script on the PATH switches to another user and writes below /var.
    binary = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    package = "rabbitmq-server"
    scheme = "amqp"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._mapper: subprocess.Popen[bytes] | None = None
        self._mapper_port = spare_port()

    def path(self) -> str:
        return "/%2F"

    def prepare(self) -> None:
        directory = self.directory
        configuration = directory / "rabbitmq.conf"
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            f"default_user = {USER}",
            f"default_pass = {PASSWORD}",
            "loopback_users = none",
            "disk_free_limit.absolute = 10MB",
            "log.console = true",
            "log.console.level = warning",
            "log.file = false",
        ]
        configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
        (directory / "enabled_plugins").write_text("[].\n", encoding="utf-8")
        self.environment.update(
            HOME=str(directory),
            ERL_EPMD_PORT=str(self._mapper_port),
            ERL_EPMD_ADDRESS="127.0.0.1",
            RABBITMQ_NODENAME=f"ensue-{self.port}@localhost",
            RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_DIST_PORT=str(spare_port()),
            RABBITMQ_CONFIG_FILE=str(configuration),
            RABBITMQ_GENERATED_CONFIG_DIR=str(directory / "generated"),
            RABBITMQ_MNESIA_BASE=str(directory / "mnesia"),
            RABBITMQ_LOG_BASE=str(directory / "logs"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(directory / "enabled_plugins"),
            RABBITMQ_PID_FILE=str(directory / "pid"),
            RABBITMQ_CONF_ENV_FILE=str(directory / "none"),
            # One scheduler: it spins, and other tests need the processors too.
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 1:1 +sbwt none",
        )
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment,
        )

    def command(self) -> list[str]:
        return [self.binary]

    def signal(self, process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
        if number == signal.SIGTERM and process.poll() is None:
            # Only to the node: the wrapper script would call a slow tool.
            os.kill(int((self.directory / "pid").read_text(encoding="ascii")), number)
        else:
            super().signal(process, number)

    def end_mapper(self) -> None:
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait(STOP_S)


BROKERS: tuple[type[Server], ...] = (Nats, Redis, Mosquitto, RabbitMQ)


def missing() -> list[str]:
    """Return the packages of the brokers that are not installed."""
    return [kind.package for kind in BROKERS if kind.found() is None]


def running(kind: type[Server]) -> Iterator[Server]:
    if kind.found() is None:
        pytest.skip(f"{kind.package} is not installed: `make brokers` installs it")
    with tempfile.TemporaryDirectory(prefix="ensue-broker-", ignore_cleanup_errors=True) as name:
        server = kind(Path(name))
        server.prepare()
        try:
            server.start()
            yield server
        finally:
            server.kill()
            if isinstance(server, RabbitMQ):
                server.end_mapper()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Server]:
    yield from running(Nats)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    yield from running(Redis)


@pytest.fixture(scope="session")
def mosquitto_server() -> Iterator[Server]:
    yield from running(Mosquitto)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[Server]:
    yield from running(RabbitMQ)
