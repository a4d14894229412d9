"""The cases: the servers that each starts, and the client that it uses."""

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.peers.clients import RECEIPTS
from benchmarks.peers.processes import Failed, Process, find_server, python, spare_port, started

__all__ = ["CASES", "Case", "Site", "serve", "versions"]

NATS_PENDING = "1GB"
"""Bytes that may wait at the server for one subscriber; it disconnects slower ones."""


@dataclass
class Site:
    """The directory and the server processes of a case."""

    directory: Path
    profile: Path | None
    stack: AsyncExitStack
    servers: list[Process]

    async def start(self, name: str, command: list[str]) -> Process:
        """Start a server that ends with the case."""
        process = await self.stack.enter_async_context(started(name, command, self.directory))
        self.servers.append(process)
        return process

    def profile_of(self, name: str) -> Path | None:
        """Return the path for the profile of a process, if profiling is on."""
        return None if self.profile is None else self.profile / f"{name}.txt"


@dataclass(frozen=True)
class Case:
    """One system in one configuration."""

    name: str
    label: str
    order: str
    """The promised order: `total`, or `per topic`."""
    client: str
    start: Callable[[Site], Awaitable[str]]
    """Start its servers; return the URL for its clients."""
    needs: str = ""
    """The server that must be installed."""

    @property
    def is_ours(self) -> bool:
        """Whether a lost event or a different order is an error."""
        return self.client == "ensue"

    @property
    def has_receipts(self) -> bool:
        """Whether a publisher can wait for the receipt of each event."""
        return self.client in RECEIPTS

    @property
    def missing(self) -> bool:
        """Whether its server is not installed."""
        return bool(self.needs) and find_server(self.needs) is None


async def nats_server(site: Site) -> str:
    """Start NATS with JetStream on files, which it syncs every minute or two."""
    port = spare_port()
    config = site.directory / "nats.conf"
    config.write_text(
        f"host: 127.0.0.1\nport: {port}\nmax_pending: {NATS_PENDING}\n"
        f"jetstream {{ store_dir: {json.dumps(str(site.directory / 'jetstream'))} }}\n",
        encoding="utf-8",
    )
    server = await site.start("nats-server", [find_server("nats-server") or "", "-c", str(config)])
    await server.answers(port)
    return f"nats://127.0.0.1:{port}"


async def redis_server(site: Site) -> str:
    """Start Redis with a log that is synced every second and never rewritten."""
    port = spare_port()
    command = [
        *(find_server("redis-server") or "", "--bind", "127.0.0.1", "--port", str(port)),
        *("--dir", str(site.directory), "--logfile", str(site.directory / "redis.log")),
        *("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
        *("--auto-aof-rewrite-percentage", "0"),
        *("--client-output-buffer-limit", "pubsub", "0", "0", "0"),
    ]
    server = await site.start("redis-server", command)
    await server.answers(port)
    return f"redis://127.0.0.1:{port}/0"


async def hub(site: Site) -> str:
    """Start the hub."""
    port = spare_port()
    command = python("benchmarks.peers.hub", str(port), profile=site.profile_of("hub"))
    server = await site.start("hub", command)
    await server.answers(port)
    return f"hub://127.0.0.1:{port}"


def ensue_server(sync: str) -> Callable[[Site], Awaitable[str]]:
    """Start Ensue on its own port."""

    async def start(site: Site) -> str:
        return await serve(site, *_kept(site, sync), "--listen", "127.0.0.1:0")

    return start


def ensue_station(
    broker: Callable[[Site], Awaitable[str]], options: str = ""
) -> Callable[[Site], Awaitable[str]]:
    """Start a broker and a station of Ensue on it."""

    async def start(site: Site) -> str:
        url = await broker(site) + options
        await serve(site, *_kept(site, "1"), "--url", url)
        return url

    return start


def _kept(site: Site, sync: str) -> tuple[str, ...]:
    return ("--sync", sync, "--data", str(site.directory / "ensue-data"))


async def serve(site: Site, *options: str) -> str:
    """Start Ensue with these options; return its URL."""
    command = python(
        # The script beside this Python, as users run it.
        *(str(Path(sys.executable).with_name("ensue")), "serve", "--json", *options),
        profile=site.profile_of("ensue-server"),
    )
    server = await site.start("ensue-server", command)
    said = await server.reply()
    if "url" not in said:
        raise Failed(f"ensue serve says {said}")
    return str(said["url"])


NATS, REDIS = "nats-server", "redis-server"

CASES = (
    Case("ensue", "Ensue, synced each second", "total", "ensue", ensue_server("1")),
    Case(
        "ensue-fsync", "Ensue, synced before the receipt", "total", "ensue", ensue_server("always")
    ),
    Case("ensue-nats", "Ensue on NATS", "total", "ensue", ensue_station(nats_server), NATS),
    Case(
        "ensue-jetstream",
        "Ensue on JetStream",
        "total",
        "ensue",
        ensue_station(nats_server, "?jetstream=1"),
        NATS,
    ),
    Case(
        "ensue-redis",
        "Ensue on Redis streams",
        "total",
        "ensue",
        ensue_station(redis_server, "?streams=1"),
        REDIS,
    ),
    Case("nats", "NATS", "per topic", "nats", nats_server, NATS),
    Case("jetstream", "JetStream, a stream per topic", "per topic", "jetstream", nats_server, NATS),
    Case("redis", "Redis, a stream per topic", "per topic", "redis", redis_server, REDIS),
    Case("redis-pubsub", "Redis pub/sub", "per topic", "pubsub", redis_server, REDIS),
    Case("jetstream-one", "JetStream, one stream", "total", "jetstream-one", nats_server, NATS),
    Case("redis-one", "Redis, one stream", "total", "redis-one", redis_server, REDIS),
    Case("hub", "Python hub, memory only", "total", "hub", hub),
)
"""In the order of the tables."""


def versions() -> list[str]:
    """Return the versions of all systems."""
    found = []
    for name in (NATS, REDIS):
        path = find_server(name)
        if path is not None:
            said = subprocess.run(  # noqa: S603 - a server found on the PATH
                [path, "--version"], capture_output=True, encoding="utf-8", check=False
            ).stdout
            words = said.replace("=", " ").split()
            number = next((each for each in words if each.lstrip("v")[:1].isdigit()), "?")
            found.append(f"{name} {number.lstrip('v')}")
    for name in ("ensue", "nats-py", "redis", "hiredis", "msgspec"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return found
