"""The TOML file that configures all servers of a chain.

`docs/how-to/operations.md` documents its keys.

All servers of a chain read the same file; each finds itself by its name, or by the one listen
address that its machine has. File names in it are relative to the file's directory.
"""

import socket
from pathlib import Path
from typing import Any, Literal

import msgspec

from ensue.core.errors import BadInput, ConfigurationError
from ensue.core.event import Name
from ensue.core.toml_file import TableReader, read_text
from ensue.core.units import duration_ns, shown, size_bytes
from ensue.server.config import (
    TRANSACTION_GRACE_S,
    Limits,
    Retention,
    ServerConfig,
    Tls,
    leased,
    sequenced,
)
from ensue.server.permissions import Access, User
from ensue.transports.tcp.messages import Member
from ensue.transports.tcp.options import parse_address

__all__ = ["keys", "load", "loads", "read_sync"]

SECOND_NS = 1_000_000_000
SECRET_LENGTH_MIN = 32


class Duration(float):
    """A duration in seconds."""


class Size(int):
    """A number of bytes."""


class Sync(float):
    """An interval between syncs in seconds; 0 to sync before each answer to a client."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table that rejects unknown keys."""


class _Limits(_Table, frozen=True, kw_only=True):
    connections: int | None = None
    connections_per_address: int | None = None
    unauthenticated_connections: int | None = None
    names_per_connection: int | None = None
    topics_per_subscription: int | None = None
    topic_length: int | None = None
    topic_depth: int | None = None
    headers_per_event: int | None = None
    durable_names: int | None = None
    mailboxes_per_user: int | None = None
    message_bytes: Size | None = None
    unfinished_bytes: Size | None = None
    pending_bytes: Size | None = None
    unauthenticated: Duration | None = None
    silence: Duration | None = None


class _Retention(_Table, frozen=True, kw_only=True):
    bytes: Size | None = None
    age: Duration | None = None
    segment_bytes: Size | None = None


class _Tls(_Table, frozen=True, kw_only=True):
    cert: str
    key: str
    ca: str = ""
    clients: Literal["none", "optional", "required"] = "none"


class _Stations(_Table, frozen=True, kw_only=True):
    secret_file: str = ""
    certificates: bool = False


class _Server(_Table, frozen=True, kw_only=True):
    name: Name
    listen: str
    address: str = ""
    data: str
    site: str = ""
    admin: str = ""
    topics: tuple[Name, ...] = ()
    beside: str = ""
    tls: _Tls | None = None


class _File(_Table, frozen=True, kw_only=True):
    servers: tuple[_Server, ...]
    closed: bool = False
    causal: bool = True
    cells: str = ""
    publisher_order: bool | None = None
    sync: Sync | None = None
    expire: Duration | None = None
    lease: Duration | None = None
    lease_lost: Duration | None = None
    transaction_grace: Duration | None = None
    mailbox_expire: Duration | None = None
    insecure: bool = False
    insecure_admin: bool = False
    retention: _Retention = _Retention()
    limits: _Limits = _Limits()
    tls: _Tls | None = None
    stations: _Stations = _Stations()
    users: dict[str, User] = {}


def read_sync(raw: Any) -> float:
    """Parse `always` or a duration; raise `ValueError` with the expected form."""
    if raw == "always":
        return 0.0
    try:
        seconds = duration_ns(raw) / SECOND_NS
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ValueError(f'expected "always" or a duration such as "100ms", got {shown(raw)}')
    return seconds


def _read_value(kind: type, raw: Any) -> Any:
    if kind is Duration:
        return Duration(duration_ns(raw) / SECOND_NS)
    if kind is Size:
        return Size(size_bytes(raw))
    if kind is Sync:
        return Sync(read_sync(raw))
    raise NotImplementedError(kind)


_READER = TableReader(_File, read_value=_read_value)


def load(path: str | Path, *, name: str | None = None) -> ServerConfig:
    """Read a file, and return the configuration of the server of that name."""
    file = Path(path)
    text = read_text(file, what="a configuration", hint="docs/how-to/operations.md has an example")
    config = loads(text, source=str(file), folder=file.parent, name=name)
    for key in ("cert", "key", "ca"):
        place = getattr(config.tls, key, "")
        if place and not Path(place).is_file():
            raise BadInput(f"{file}: tls.{key}: there is no file {place}")
    return config


def loads(
    text: str, *, source: str = "ensue.toml", folder: Path = Path(), name: str | None = None
) -> ServerConfig:
    """Parse text. Errors name `source`; its file names are relative to `folder`."""
    file = _READER.loads(text, source=source)
    try:
        return _build(file, folder, _pick(file, name))
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None


def keys() -> list[str]:
    """List every key of the file, for a check of the manual."""
    return _READER.keys()


def _pick(file: _File, name: str | None) -> _Server:
    names = [server.name for server in file.servers]
    if not names:
        raise ConfigurationError("servers is empty; add [[servers]]")
    if name is not None:
        for server in file.servers:
            if server.name == name:
                return server
        raise BadInput(f"there is no server {name!r}; expected one of {', '.join(names)}")
    if len(names) == 1:
        return file.servers[0]
    here = [server for server in file.servers if _is_here(server.listen)]
    if len(here) == 1:
        return here[0]
    found = ", ".join(server.name for server in here) or "none of them"
    raise BadInput(
        f"the file has the servers {', '.join(names)}, and this machine has the address of "
        f"{found}: choose one with --name"
    )


def _is_here(listen: str) -> bool:
    """Return whether this machine has a server's listen address."""
    host, _ = parse_address(listen, what="servers.listen")
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _build(file: _File, folder: Path, server: _Server) -> ServerConfig:
    _check_places(file)
    if len(file.servers) > 1:
        for each in file.servers:
            _check_reachable(each)
    chain: tuple[Member, ...] = ()
    if len(file.servers) > 1:
        chain = tuple(
            Member(each.name, each.address or each.listen, each.topics) for each in file.servers
        )
    elif server.topics:
        chain = (Member(server.name, server.address or server.listen, server.topics),)
    tls = server.tls or file.tls
    return ServerConfig(
        name=server.name,
        site=server.site,
        listen=server.listen,
        data=str(folder / server.data),
        chain=chain,
        beside={each.name: each.beside for each in file.servers if each.beside},
        closed=file.closed,
        sequencer=leased(
            sequenced(causal=file.causal, publisher_order=file.publisher_order, cells=file.cells),
            file.lease,
            file.lease_lost,
        ),
        sync_s=0.0 if file.sync is None else float(file.sync),
        expire_s=60.0 if file.expire is None else float(file.expire),
        transaction_grace_s=(
            TRANSACTION_GRACE_S if file.transaction_grace is None else float(file.transaction_grace)
        ),
        mailbox_expire_s=None if file.mailbox_expire is None else float(file.mailbox_expire),
        insecure=file.insecure,
        admin=server.admin,
        insecure_admin=file.insecure_admin,
        retention=_retention(file.retention),
        limits=_limits(file.limits),
        tls=None if tls is None else _tls(tls, folder),
        access=_access(file, folder),
    )


def _check_places(file: _File) -> None:
    seen: dict[str, str] = {}
    for server in file.servers:
        for topic in server.topics:
            if topic in seen:
                raise ConfigurationError(
                    f"servers: topic {topic!r} is placed on {seen[topic]} and on {server.name}: "
                    "remove it from one of them"
                )
            seen[topic] = server.name
    if file.closed and not seen:
        raise ConfigurationError(
            "closed: a closed chain needs topics; place some with servers.topics"
        )
    for what in ("listen", "data"):
        places = [getattr(server, what) for server in file.servers]
        if (
            what == "data"
            and len({server.listen.rpartition(":")[0] for server in file.servers}) > 1
        ):
            continue  # On different machines one path is different directories.
        if len(set(places)) != len(places):
            raise ConfigurationError(f"servers: two servers have the same {what}: change one")


def _check_reachable(server: _Server) -> None:
    host, _ = parse_address(server.address or server.listen, what=f"the address of {server.name!r}")
    if host in ("0.0.0.0", "::"):  # noqa: S104 - looked for, not listened on
        raise ConfigurationError(
            f"servers: {server.name} listens on all its addresses: add address, the one by which "
            "other servers reach it"
        )


def _limits(table: _Limits) -> Limits:
    given: dict[str, Any] = {}
    for name in table.__struct_fields__:
        value = getattr(table, name)
        if isinstance(value, Duration):
            given[f"{name}_s"] = float(value)
        elif value is not None:
            given[name] = int(value)
    return Limits(**given)


def _retention(table: _Retention) -> Retention:
    given: dict[str, Any] = {}
    if table.bytes is not None:
        given["bytes"] = int(table.bytes)
    if table.age is not None:
        given["age_s"] = float(table.age)
    if table.segment_bytes is not None:
        given["segment_bytes"] = int(table.segment_bytes)
    return Retention(**given)


def _tls(table: _Tls, folder: Path) -> Tls:
    return Tls(
        cert=str(folder / table.cert),
        key=str(folder / table.key),
        ca=str(folder / table.ca) if table.ca else "",
        clients=table.clients,
    )


def _access(file: _File, folder: Path) -> Access:
    secret = ""
    if file.stations.secret_file:
        place = folder / file.stations.secret_file
        text = read_text(place, what="a secret", hint="stations.secret_file names it")
        secret = text.strip()
        if len(secret) < SECRET_LENGTH_MIN:
            raise ConfigurationError(
                f"stations.secret_file: the secret in {place} has {len(secret)} characters; "
                f"expected {SECRET_LENGTH_MIN} or more, such as a token that `ensue token` prints"
            )
    return Access(
        users=file.users,
        station_secret=secret,
        station_certificates=file.stations.certificates,
    )
