"""The configuration of one server: address, data, limits, security, and its chain."""

import socket
from hashlib import sha256
from ipaddress import ip_address
from typing import Literal

import msgspec

from ensue.core.errors import ConfigurationError, limit_reason
from ensue.core.event import NAME_LENGTH_MAX
from ensue.core.wire import FRAME_BYTES_MAX
from ensue.protocols.content.topology import tree_of
from ensue.protocols.shared.link import CONNECTED, LOSSY
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.discovery import DISCOVERY_NAME
from ensue.runtime.names import check_text
from ensue.server.permissions import Access
from ensue.transports.tcp.messages import Member
from ensue.transports.tcp.options import DEFAULT_PORT, parse_address

__all__ = [
    "TRANSACTION_GRACE_S",
    "Limits",
    "Retention",
    "ServerConfig",
    "Tls",
    "brokered",
    "connected",
    "leased",
    "sequenced",
    "too_many",
]

MIB = 1024 * 1024
SECOND_NS = 1_000_000_000
LEASE_S_MAX = 3600.0
"""The longest lease: how long a stalled but connected publisher can delay others."""
PIECE_BYTES_MAX = 64 * MIB
PIECE_BYTES_MIN = 64 * 1024
PIECES = 8
"""Segments that retained bytes are split into, unless these would be too small or too large."""


TRANSACTION_GRACE_S = 1.0
TRANSACTION_GRACE_S_MIN = 0.001
TRANSACTION_GRACE_S_MAX = 600.0
MAILBOX_EXPIRE_S_MIN, MAILBOX_EXPIRE_S_MAX = 60.0, 3_650 * 86_400.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the resources that clients may use."""

    connections: int = 1_000
    """Authenticated clients; other servers of the chain are not counted."""
    connections_per_address: int = 500
    """Authenticated clients of one address; of one /64 network in IPv6."""
    unauthenticated_connections: int = 512
    """Connections without hello. Beyond, the oldest of the address with the most is evicted."""
    names_per_connection: int = 1_000
    """Publishers and subscriptions of one connection."""
    topics_per_subscription: int = 1_000
    """A subscription costs the server time proportional to the square of its topics."""
    topic_length: int = NAME_LENGTH_MAX
    """Characters of a topic."""
    topic_depth: int = 16
    """Levels of a topic: `eu.berlin.orders` has three."""
    headers_per_event: int = 256
    durable_names: int = 100_000
    """Names of durable subscriptions with an owner."""
    mailboxes_per_user: int = 1_000
    """Durable subscriptions by content of one user."""
    message_bytes: int = FRAME_BYTES_MAX
    """Size of one message."""
    unfinished_bytes: int = 256 * MIB
    """Size of all unfinished messages, of all connections together; beyond, the connection with the
    most is closed."""
    pending_bytes: int = 8 * MIB
    """Pending output of one connection; more is dropped, and the client requests it again."""
    unauthenticated_s: float = 5.0
    """How long a connection may stay open without hello."""
    silence_s: float = 60.0
    """A connection is closed after this long without a whole message."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"limits.{name} must be above 0, got {getattr(self, name):g}"
                )
        if self.message_bytes > FRAME_BYTES_MAX:
            raise ConfigurationError(
                f"limits.message_bytes must be at most {FRAME_BYTES_MAX}, got {self.message_bytes}"
            )
        if self.topic_length > NAME_LENGTH_MAX:
            raise ConfigurationError(
                f"limits.topic_length must be at most {NAME_LENGTH_MAX}, got {self.topic_length}"
            )


def too_many(limits: Limits, limit: str, what: str) -> str:
    """Return the error text of a reached limit."""
    how = f"raise limits.{limit} in the server's file, or use fewer"
    return limit_reason(what, limit, getattr(limits, limit), how)


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long events are kept. Whole segments are dropped, the oldest first."""

    bytes: int | None = None
    """Size of the log of all topics; None for no limit."""
    age_s: float | None = None
    segment_bytes: int | None = None
    """Size of a segment; None to derive it from `bytes`."""

    @property
    def piece_bytes(self) -> int:
        """Size of a segment, small compared with what is retained."""
        if self.segment_bytes is not None:
            return self.segment_bytes
        if self.bytes is None:
            return PIECE_BYTES_MAX
        return min(PIECE_BYTES_MAX, max(PIECE_BYTES_MIN, self.bytes // PIECES))

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"retention.{name} must be above 0, got {value:g}")


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates of a server, and those it accepts."""

    cert: str
    """File of its certificate and of the intermediate ones."""
    key: str
    ca: str = ""
    """File of the CA certificates for clients and other servers."""
    clients: Literal["none", "optional", "required"] = "none"
    """Whether clients present a certificate."""

    def __post_init__(self) -> None:
        if self.clients != "none" and not self.ca:
            raise ConfigurationError(
                f'tls.clients is "{self.clients}", but there is no CA to verify client '
                "certificates: add tls.ca"
            )


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one server."""

    data: str
    """The directory of its journal."""
    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    name: str = "node-1"
    """Its name in the chain."""
    site: str = ""
    """Its location, shown in logs and status."""
    chain: tuple[Member, ...] = ()
    """All servers, this one included, in rank order; empty for a single server."""
    beside: dict[str, str] = {}
    """By server: the earlier one whose content broker is its neighbor; others form a binary
    tree."""
    closed: bool = False
    """Whether only the topics that the chain places by name exist."""
    sync_s: float = 0.0
    """Interval between syncs; 0 to sync before each answer to a client."""
    retention: Retention = Retention()
    limits: Limits = Limits()
    tls: Tls | None = None
    access: Access = Access()
    insecure: bool = False
    """Allow listening beyond this machine without TLS or without logins."""
    sequencer: SequencerConfig = SequencerConfig(carries=True)
    expire_s: float = 60.0
    """How long an unnamed subscription outlives its client."""
    mailbox_expire_s: float | None = None
    """How long a durable subscription by content lasts without a reader; None: for ever."""
    accept_loss: bool = False
    """Recover what can be read of a damaged or incomplete journal, as a new log."""
    transaction_grace_s: float = TRANSACTION_GRACE_S
    """How long transactions wait for a disconnected client."""
    admin: str = ""
    """Address of the admin port (`ensue.server.admin`); empty for none."""
    insecure_admin: bool = False
    """Allow an admin port beyond this machine; it has neither TLS nor login."""

    def __post_init__(self) -> None:
        host, _ = parse_address(self.listen, what="the address to listen on")
        for member in self.members:
            _check_name(member.name)
        names = [member.name for member in self.chain]
        if self.chain and self.name not in names:
            raise ConfigurationError(
                f"the chain has no server {self.name!r}; expected one of {', '.join(names)}"
            )
        if len(set(names)) != len(names):
            raise ConfigurationError(
                f"the chain has two servers of one name, rename one: {', '.join(names)}"
            )
        tree_of(names, self.beside)
        for member in self.chain:
            parse_address(member.address, what=f"the address of {member.name!r}")
        if not self.sequencer.carries or not self.sequencer.durable:
            raise ConfigurationError("sequencer.carries and sequencer.durable must be true")
        if self.closed and self.sequencer.partition is not None:
            raise ConfigurationError(
                "cells need topics that are placed by hash, and closed is true: set closed = false"
            )
        if self.sync_s < 0 or self.expire_s <= 0:
            raise ConfigurationError(
                f"sync_s must be at least 0, got {self.sync_s:g}, and expire_s above 0, got "
                f"{self.expire_s:g}"
            )
        self._check_times()
        self._check_trust()
        self._check_admin()
        if not self.insecure and not _is_loopback(host):
            self._check_exposed(host)

    def _check_times(self) -> None:
        expire_s = self.mailbox_expire_s
        if expire_s is not None and not MAILBOX_EXPIRE_S_MIN <= expire_s <= MAILBOX_EXPIRE_S_MAX:
            raise ConfigurationError(
                f"mailbox_expire must be from 1m to 3650d, got {expire_s:g} s; leave it out to "
                "keep mailboxes for ever"
            )
        grace_s = self.transaction_grace_s
        if not TRANSACTION_GRACE_S_MIN <= grace_s <= TRANSACTION_GRACE_S_MAX:
            raise ConfigurationError(
                f"transaction_grace must be from 1ms to 10m, got {grace_s:g} s"
            )

    @property
    def members(self) -> tuple[Member, ...]:
        """All servers of the chain; a single server is a chain of one."""
        return self.chain or (Member(self.name, ""),)

    @property
    def neighbors(self) -> tuple[str, ...]:
        """Servers whose content brokers are neighbors of this one's."""
        return tuple(tree_of([member.name for member in self.members], self.beside)[self.name])

    @property
    def requires_login(self) -> bool:
        """Whether unauthenticated clients are rejected."""
        return bool(self.access.users) or (self.tls is not None and self.tls.clients == "required")

    @property
    def stamp_key(self) -> bytes:
        """The key that seals stamps; empty if clients are trusted without seals."""
        secret = self.access.station_secret
        if not self.access.users or not secret or len(self.members) < 2:
            return b""
        return sha256(b"stamps" + secret.encode()).digest()

    def _check_trust(self) -> None:
        access = self.access
        shown = self.tls is not None and self.tls.clients != "none"
        if access.station_certificates and not shown:
            raise ConfigurationError(
                "stations.certificates has no effect, because TLS requests no certificates: "
                'set tls.clients to "optional" or "required"'
            )
        for name, user in access.users.items():
            if user.certificate and not shown:
                raise ConfigurationError(
                    f"users.{name}.certificate has no effect, because TLS requests no "
                    'certificates: set tls.clients to "optional" or "required"'
                )
        several = len(self.members) > 1
        if (
            several
            and self.requires_login
            and not (access.station_secret or access.station_certificates)
        ):
            raise ConfigurationError(
                "clients have to log in, so the servers of the chain must authenticate too: "
                "add stations.secret_file or stations.certificates"
            )

    def _check_admin(self) -> None:
        if not self.admin or self.insecure_admin:
            return
        host, _ = parse_address(self.admin, what="the address of the admin port")
        if not _is_loopback(host):
            raise ConfigurationError(
                f"the admin port would listen on {host}, beyond this machine, and it has neither "
                "TLS nor login: any host that can connect sees all topics and subscriptions. "
                "Listen on 127.0.0.1, or set insecure_admin = true or --insecure-admin-anyone on a "
                "trusted network"
            )

    def _check_exposed(self, host: str) -> None:
        missing = []
        if self.tls is None:
            missing.append("no TLS: the network can read and change all traffic")
        if not self.requires_login:
            missing.append("no login: any host that can connect may publish and read everything")
        if missing:
            _check_host(host, self.listen)
            raise ConfigurationError(
                f"the server would listen on {host}, beyond this machine, with "
                f"{', and with '.join(missing)}. Set up tls and users (docs/how-to/operations.md), "
                "listen on 127.0.0.1, or set insecure = true or --insecure-listen-anyone on a "
                "trusted network"
            )


def sequenced(
    *, causal: bool, publisher_order: bool | None = None, cells: str = ""
) -> SequencerConfig:
    """Return the sequencer configuration of a chain whose order is causal, or is not.

    Publisher order across topics is part of causal order, so by default there is neither or both.
    `cells` divides events by content.
    """
    if publisher_order and not causal:
        raise ConfigurationError(
            "publisher_order must be false with causal = false, got true: a publisher's events "
            "keep their order across topics only where order is causal; leave it out"
        )
    kept = causal if publisher_order is None else publisher_order
    return SequencerConfig(
        carries=True, groups=1 if causal else 2, publisher_order=kept, cells=cells or msgspec.UNSET
    )


def brokered(sequencer: SequencerConfig) -> SequencerConfig:
    """Return the configuration of a chain on a broker, which may lose messages."""
    return msgspec.structs.replace(
        sequencer, retry_ns_min=sequencer.retry_ns_min or LOSSY.retry_ns_min, publish_retry_ns=0
    )


def connected(sequencer: SequencerConfig) -> SequencerConfig:
    """Return the configuration of a chain that clients and servers reach over connections."""
    return msgspec.structs.replace(
        sequencer, publish_retry_ns=sequencer.publish_retry_ns or CONNECTED.retry_ns
    )


def leased(
    sequencer: SequencerConfig, lease_s: float | None, lease_lost_s: float | None
) -> SequencerConfig:
    """Return a sequencer configuration with other leases; None keeps a lease."""
    lease_ns, lost_ns = sequencer.lease_ns, sequencer.lease_lost_ns
    for name, seconds in (("lease", lease_s), ("lease_lost", lease_lost_s)):
        if seconds is not None and not 0.001 <= seconds <= LEASE_S_MAX:
            raise ConfigurationError(
                f"{name} must be from 1 ms to {LEASE_S_MAX / 60:g} minutes, got {seconds:g} s"
            )
    lease_ns = lease_ns if lease_s is None else round(lease_s * SECOND_NS)
    if lease_lost_s is not None:
        lost_ns = round(lease_lost_s * SECOND_NS)
        if lost_ns > lease_ns:
            raise ConfigurationError(
                f"lease_lost is {lease_lost_s:g} s, longer than the lease of "
                f"{lease_ns / SECOND_NS:g} s: a lost connection can only shorten it"
            )
    return msgspec.structs.replace(
        sequencer, lease_ns=lease_ns, lease_lost_ns=min(lost_ns, lease_ns)
    )


def _check_name(name: str) -> None:
    check_text(name, "the name of a server")
    if "/" in name or "~" in name:
        raise ConfigurationError(
            f"the name of a server must not contain '/' or '~', got {name!r}: rename it"
        )
    if name == DISCOVERY_NAME:
        raise ConfigurationError(f"the name {name!r} is reserved: rename the server")


def _check_host(host: str, listen: str) -> None:
    """Raise if a host is unknown: advice on exposing it would not help."""
    try:
        socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"can't listen on {listen!r}: there is no host {host!r} ({error.strerror})"
        ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
