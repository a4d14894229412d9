"""The commands `serve` and `token`: run a server, and create tokens for users."""

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from ensue.cli import output
from ensue.core.errors import BadInput
from ensue.core.units import parse_duration, parse_size
from ensue.protocols.content.cells import Cells
from ensue.protocols.total.config import SequencerConfig
from ensue.server import Server, ServerConfig, config_file
from ensue.server.brokered import BrokeredServer
from ensue.server.config import TRANSACTION_GRACE_S, Retention, leased, sequenced
from ensue.server.log_format import start_logging
from ensue.server.permissions import new_token
from ensue.transports.tcp.options import DEFAULT_PORT

__all__ = ["serve", "token"]

SECOND_NS = 1_000_000_000
STOPS = (signal.SIGINT, signal.SIGTERM)
STATIONS = "station"
"""Not a user: the servers of a chain."""

_log = logging.getLogger("ensue")


class LogFormat(StrEnum):
    """Log format of a server."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Log level of a server."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class YesNo(StrEnum):
    """Whether total order is causal across topics."""

    YES = "yes"
    NO = "no"


BrokerOption = Annotated[
    str | None,
    typer.Option(
        metavar="BROKER",
        help="Run on a broker instead of a port: nats://, redis://, mqtt:// or amqp://HOST:PORT. "
        "The broker then authorizes clients.",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help=f"Where to listen; 127.0.0.1:{DEFAULT_PORT}."),
]
AdminOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of the admin port: /metrics, /healthz, /status over HTTP; by default none.",
    ),
]
InsecureAdminOption = Annotated[
    bool,
    typer.Option(
        "--insecure-admin-anyone",
        help="Allow --admin beyond this machine: any host may read everything there.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory for events; created on first use."),
]
SyncOption = Annotated[
    str | None,
    typer.Option(
        metavar="always|SECONDS",
        help="When events are synced to disk: before each receipt (always), or at this interval, "
        "such as 0.1 or 100ms; then a power failure may lose the events since the last sync.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A TOML file that configures all servers of a chain.",
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of this server; with --config, which one to run."),
]
GraceOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long transactions wait for a client that lost its connection; 1s.",
    ),
]


InsecureListenOption = Annotated[
    bool,
    typer.Option(
        "--insecure-listen-anyone",
        help="Listen beyond this machine without TLS or login: any host may do everything.",
    ),
]
AcceptLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Recover, this once, what can be read of a damaged or incomplete journal; "
        "subscribers get an error that the log was replaced.",
    ),
]
RetainBytesOption = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Drop the oldest events beyond this size, such as 10GB."),
]
RetainAgeOption = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Drop events older than this, such as 7d."),
]
LeaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long a publisher may take to send a stamped event; 10s. Subscribers may wait "
        "that long for a stalled publisher.",
    ),
]
CausalOption = Annotated[
    YesNo | None,
    typer.Option(
        help="Whether total order is causal across topics; yes. no: topics of different servers "
        "are ordered together only if two subscribers share them, and clients connect with "
        "Total(causal=False).",
    ),
]
CellsOption = Annotated[
    str | None,
    typer.Option(
        metavar="ATTRIBUTES",
        help="How events by content are divided for total order, such as "
        "[bold]symbol/16; price<10<100[/bold].",
    ),
]
LogLevelOption = Annotated[LogLevel, typer.Option(help="Lowest level that is logged.")]
LeaseLostOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long a disconnected publisher may take to reconnect; 1s.",
    ),
]


@output.command
def serve(
    *,
    listen: ListenOption = None,
    data: DataOption = None,
    sync: SyncOption = None,
    retain_bytes: RetainBytesOption = None,
    retain_age: RetainAgeOption = None,
    causal: CausalOption = None,
    cells: CellsOption = None,
    lease: LeaseOption = None,
    lease_lost: LeaseLostOption = None,
    name: NameOption = None,
    config: ConfigOption = None,
    transaction_grace: GraceOption = None,
    insecure_listen_anyone: InsecureListenOption = False,
    admin: AdminOption = None,
    insecure_admin_anyone: InsecureAdminOption = False,
    url: BrokerOption = None,
    accept_loss: AcceptLossOption = False,
    log_format: Annotated[LogFormat, typer.Option(help="Log format.")] = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when it is ready.")
    ] = False,
) -> int:
    """Run a server until a signal stops it: on a port, or on a broker.

    Prints its URL on stderr when it accepts connections, and logs there. Exits with 0 on SIGINT and
    SIGTERM, after writing everything; with 2 if it can't start, or can't write.

    Example: [bold]ensue serve --listen 127.0.0.1:7400 --data ensue-data[/bold]
    """
    ports = {"--listen": listen, "--insecure-listen-anyone": insecure_listen_anyone or None}
    if url is not None:
        _exclude(ports, "--url", "a server on a broker has no port")
        _exclude({"--lease-lost": lease_lost}, "--url", "a server on a broker sees no connections")
    if config is None:
        chosen = _from_options(
            listen, data, sync, retain_bytes, retain_age, name, insecure=insecure_listen_anyone
        )
        chosen = replace(
            chosen,
            admin=admin or "",
            insecure_admin=insecure_admin_anyone,
            sequencer=_leased(_sequenced(causal, cells), lease, lease_lost),
            transaction_grace_s=_grace_s(transaction_grace),
        )
    else:
        given = {
            **ports,
            "--data": data,
            "--sync": sync,
            "--retain-bytes": retain_bytes,
            "--retain-age": retain_age,
            "--causal": causal,
            "--cells": cells,
            "--lease": lease,
            "--lease-lost": lease_lost,
            "--transaction-grace": transaction_grace,
            "--admin": admin,
            "--insecure-admin-anyone": insecure_admin_anyone or None,
        }
        _exclude(given, "--config", f"{config} sets it")
        chosen = config_file.load(config, name=name)
    chosen = replace(chosen, accept_loss=accept_loss)
    start_logging(log_format.value, log_level.value)
    with _ignore_late_signals():
        asyncio.run(_serve(chosen, url, json=json, logs_json=log_format is LogFormat.JSON))
    return output.EXIT_VALID


@output.command
def token(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The user; or station, for the secret of the servers of a chain.",
        ),
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """Create a token for a user.

    Prints the token, which is not stored, and the lines for the server's configuration, which are
    not secret.

    Example: [bold]ensue token alice[/bold]
    """
    if not name:
        raise BadInput("NAME is empty: name the user")
    made, stored = new_token()
    if json:
        output.print_json({"user": name, "token": made, "stored": stored})
        return output.EXIT_VALID
    if name == STATIONS:
        output.print_lines(
            [
                "A secret for the servers of a chain, shown only once:",
                "",
                f"    {made}",
                "",
                "Put it into a file that only the servers can read, the same for all of them.",
                "For their configuration:",
                "",
                "    [stations]",
                '    secret_file = "station.secret"',
            ]
        )
        return output.EXIT_VALID
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", name)
    key = name if bare else msgspec.json.encode(name).decode()
    output.print_lines(
        [
            f"The token of {name}, shown only once:",
            "",
            f"    {made}",
            "",
            "Clients set it as ENSUE_TOKEN. For the server's configuration:",
            "",
            f"    [users.{key}]",
            f'    token = "{stored}"',
            '    publish = ["orders", "audit.*"]',
            '    subscribe = ["*"]',
        ]
    )
    return output.EXIT_VALID


def _exclude(given: Mapping[str, object], other: str, why: str) -> None:
    """Raise if an option is given that another one excludes."""
    for option, value in given.items():
        if value is not None:
            raise BadInput(f"{option} and {other} exclude each other: {why}")


def _from_options(
    listen: str | None,
    data: Path | None,
    sync: str | None,
    retain_bytes: str | None,
    retain_age: str | None,
    name: str | None,
    *,
    insecure: bool,
) -> ServerConfig:
    if data is None:
        raise BadInput("--data is missing: name a directory for events, or a file with --config")
    with output.option("--sync"):
        try:
            plain = sync is not None and re.fullmatch(r"\d+(\.\d+)?", sync)
            sync_s = config_file.read_sync(f"{sync}s" if plain else sync or "always")
        except ValueError as error:
            raise BadInput(str(error)) from None
    with output.option("--retain-bytes"):
        size = None if retain_bytes is None else parse_size(retain_bytes)
    with output.option("--retain-age"):
        age_s = None if retain_age is None else parse_duration(retain_age) / SECOND_NS
    return ServerConfig(
        data=str(data),
        listen=listen or f"127.0.0.1:{DEFAULT_PORT}",
        name=name or "node-1",
        sync_s=sync_s,
        retention=Retention(bytes=size, age_s=age_s),
        insecure=insecure,
    )


def _sequenced(causal: YesNo | None, cells: str | None) -> SequencerConfig:
    if cells is not None:
        with output.option("--cells"):
            Cells.parse(cells)
    return sequenced(causal=causal is not YesNo.NO, cells=cells or "")


def _leased(
    sequencer: SequencerConfig, lease: str | None, lease_lost: str | None
) -> SequencerConfig:
    seconds: list[float | None] = []
    for name, given in (("--lease", lease), ("--lease-lost", lease_lost)):
        with output.option(name):
            seconds.append(None if given is None else parse_duration(given) / SECOND_NS)
    return leased(sequencer, *seconds)


def _grace_s(given: str | None) -> float:
    if given is None:
        return TRANSACTION_GRACE_S
    with output.option("--transaction-grace"):
        return parse_duration(given) / SECOND_NS


@contextmanager
def _ignore_late_signals() -> Iterator[None]:
    """Ignore signals after the server has stopped, so that it exits with 0."""
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        yield
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def _stop_on_signals(stop_requested: asyncio.Event) -> None:
    """Set an event on the first signal, and ignore further ones.

    Not with `loop.add_signal_handler`: those handlers end with the loop, before the process.
    """
    loop = asyncio.get_running_loop()

    def stop(_number: int, _frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(stop_requested.set)

    for number in STOPS:
        signal.signal(number, stop)


async def _serve(
    config: ServerConfig, url: str | None, *, json: bool, logs_json: bool = False
) -> None:
    stop_requested = asyncio.Event()
    _stop_on_signals(stop_requested)
    server = Server(config) if url is None else BrokeredServer(config, url)
    await server.start()
    if json:
        ready = {"url": server.url, "server": config.name, "data": config.data, "pid": os.getpid()}
        if server.admin is not None:
            ready["admin"] = server.admin.url
        output.print_json(ready)
    else:
        where = f" in {config.site}" if config.site else ""
        ready_text = f"{config.name}{where} is ready: {server.url}"
        if logs_json:
            # A log line: programs parse every line of stderr.
            _log.info("%s", ready_text, extra={"url": server.url})
        else:
            output.print_error(ready_text)
    ended = asyncio.ensure_future(server.wait())
    stopped = asyncio.ensure_future(stop_requested.wait())
    try:
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await server.stop()
    await ended
