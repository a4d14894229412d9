"""What a server is told: where to listen, where its data is, whom to trust, who else is in its chain."""

import socket
from hashlib import sha256
from ipaddress import ip_address
from typing import Literal

import msgspec

from ensue.errors import ConfigurationError, limit_reason
from ensue.event import NAME_LENGTH_MAX
from ensue.protocols.guide import GUIDE
from ensue.protocols.overlay.nodes import tree_of
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.runtime.names import check_text
from ensue.server.access import Access
from ensue.transports.tcp_messages import Member
from ensue.transports.tcp_options import DEFAULT_PORT, parse_address
from ensue.wire import FRAME_BYTES_MAX

__all__ = [
    "TRANSACTION_GRACE_S",
    "Limits",
    "Retention",
    "ServerConfig",
    "Tls",
    "leased",
    "too_many",
]

MIB = 1024 * 1024
SECOND_NS = 1_000_000_000
LEASE_S_MAX = 3600.0
"""The longest lease: so long a publisher that is gone, and whose connection stands, holds others up."""
PIECE_BYTES_MAX = 64 * MIB
PIECE_BYTES_MIN = 64 * 1024
PIECES = 8
"""In how many pieces the bytes that are kept lie, unless these would be too small or too large."""


TRANSACTION_GRACE_S = 1.0
TRANSACTION_GRACE_S_MIN = 0.001
TRANSACTION_GRACE_S_MAX = 600.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may ask of a server at the most."""

    connections: int = 1_000
    """Clients that were let in; other servers of the chain are not counted."""
    connections_per_address: int = 500
    """Of those, from one address; of IPv6, from one network of 64 bits."""
    unauthenticated_connections: int = 512
    """Besides: connections that have not said hello yet. Beyond, the oldest of the address with the most goes."""
    names_per_connection: int = 1_000
    """Publishers and subscriptions of one connection."""
    topics_per_subscription: int = 1_000
    """What a server does for a subscription grows with the square of its topics."""
    topic_length: int = NAME_LENGTH_MAX
    """Characters of a topic."""
    topic_depth: int = 16
    """Levels of a topic: `eu.berlin.orders` has three."""
    headers_per_event: int = 256
    durable_names: int = 100_000
    """Names of durable subscriptions that belong to somebody."""
    message_bytes: int = FRAME_BYTES_MAX
    """Of one message on a connection."""
    unfinished_bytes: int = 256 * MIB
    """Of all messages that have begun to come and are not whole, on all connections together; beyond,
    whoever has the most is hung up on."""
    pending_bytes: int = 8 * MIB
    """Waiting for one connection; what comes on top is dropped, and the client asks for it again."""
    unauthenticated_s: float = 5.0
    """How long somebody may be connected without having said hello."""
    silence_s: float = 60.0
    """A connection on which no whole message comes for so long is closed."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"limits.{name} must be above 0")
        if self.message_bytes > FRAME_BYTES_MAX:
            raise ConfigurationError(
                f"limits.message_bytes is {self.message_bytes}, and no message has more than "
                f"{FRAME_BYTES_MAX} bytes"
            )
        if self.topic_length > NAME_LENGTH_MAX:
            raise ConfigurationError(
                f"limits.topic_length is {self.topic_length}, and no name has more than "
                f"{NAME_LENGTH_MAX} characters"
            )


def too_many(limits: Limits, limit: str, what: str) -> str:
    """Say that a limit of the server is reached."""
    how = f"raise limits.{limit} in the server's file, or use fewer"
    return limit_reason(what, limit, getattr(limits, limit), how)


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long events are kept. The log is dropped in pieces, the oldest first."""

    bytes: int | None = None
    """The whole log, of all topics; None: without limit."""
    age_s: float | None = None
    segment_bytes: int | None = None
    """The size of a piece; None: what is good for `bytes`."""

    @property
    def piece_bytes(self) -> int:
        """The size of a piece: small enough that dropping one does not drop most of what is kept."""
        if self.segment_bytes is not None:
            return self.segment_bytes
        if self.bytes is None:
            return PIECE_BYTES_MAX
        return min(PIECE_BYTES_MAX, max(PIECE_BYTES_MIN, self.bytes // PIECES))

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"retention.{name} must be above 0")


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a server proves who it is, and whom it believes."""

    cert: str
    """The file of its certificate, with those between it and the root."""
    key: str
    ca: str = ""
    """A file of the certificates that sign those of clients and of the other servers."""
    clients: Literal["none", "optional", "required"] = "none"
    """Whether whoever connects shows a certificate."""

    def __post_init__(self) -> None:
        if self.clients != "none" and not self.ca:
            raise ConfigurationError(
                f'tls.clients is "{self.clients}", and nothing says who signs the certificates of '
                "clients: add tls.ca"
            )


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server."""

    data: str
    """The directory of its journal."""
    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    name: str = "node-1"
    """Its name in the chain."""
    site: str = ""
    """Where it stands, for people who read its log."""
    chain: tuple[Member, ...] = ()
    """All stations, this one included, in rank order; empty: it is alone."""
    beside: dict[str, str] = {}
    """Servers, and beside which one before them in the chain their content brokers stand; others: as in a binary tree by rank."""
    closed: bool = False
    """Whether there are no topics but those that the chain places by name."""
    sync_s: float = 0.0
    """0: what clients are told is on the disk; else it is synced so often."""
    retention: Retention = Retention()
    limits: Limits = Limits()
    tls: Tls | None = None
    access: Access = Access()
    insecure: bool = False
    """Listen beyond this machine without TLS or without asking who it is all the same."""
    sequencer: SequencerConfig = SequencerConfig(carries=True)
    expire_s: float = 60.0
    """How long a subscription that nobody named may be without its client."""
    accept_loss: bool = False
    """Start on a journal that is damaged or incomplete with what can be had of it, as another log."""
    transaction_grace_s: float = TRANSACTION_GRACE_S
    """How long transactions wait for a client that has lost its connection."""
    admin: str = ""
    """Where to listen for those who watch the server (`ensue.server.admin`); empty: nowhere."""
    insecure_admin: bool = False
    """Listen beyond this machine for them all the same: it has neither TLS nor login."""

    def __post_init__(self) -> None:
        host, _ = parse_address(self.listen, what="the address to listen on")
        for member in self.members:
            _check_name(member.name)
        names = [member.name for member in self.chain]
        if self.chain and self.name not in names:
            raise ConfigurationError(
                f"this server is {self.name!r}, and the chain has only {', '.join(names)}"
            )
        if len(set(names)) != len(names):
            raise ConfigurationError(f"the chain names a server twice: {', '.join(names)}")
        tree_of(names, self.beside)
        for member in self.chain:
            parse_address(member.address, what=f"the address of {member.name!r}")
        if not self.sequencer.carries or not self.sequencer.durable:
            raise ConfigurationError("a server keeps the log of its topics, and is durable")
        if self.sync_s < 0 or self.expire_s <= 0:
            raise ConfigurationError("sync_s must be at least 0, and expire_s above 0")
        grace_s = self.transaction_grace_s
        if not TRANSACTION_GRACE_S_MIN <= grace_s <= TRANSACTION_GRACE_S_MAX:
            raise ConfigurationError(
                f"transaction_grace must be from 1ms to 10m, not {grace_s:g} s"
            )
        self._check_trust()
        self._check_admin()
        if not self.insecure and not _is_loopback(host):
            self._check_exposed(host)

    @property
    def members(self) -> tuple[Member, ...]:
        """The chain, this server alone if there is none."""
        return self.chain or (Member(self.name, ""),)

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The servers next to whose content brokers this one's stands."""
        return tuple(tree_of([member.name for member in self.members], self.beside)[self.name])

    @property
    def asks_who(self) -> bool:
        """Whether somebody who can't prove who they are is turned away."""
        return bool(self.access.users) or (self.tls is not None and self.tls.clients == "required")

    @property
    def stamp_key(self) -> bytes:
        """What the servers of a chain seal stamps with; empty: clients are believed, as nobody else is asked who they are."""
        secret = self.access.station_secret
        if not self.access.users or not secret or len(self.members) < 2:
            return b""
        return sha256(b"stamps" + secret.encode()).digest()

    def _check_trust(self) -> None:
        access = self.access
        shown = self.tls is not None and self.tls.clients != "none"
        if access.station_certificates and not shown:
            raise ConfigurationError(
                "servers are to prove who they are by certificates, and nobody is asked for one: "
                'set tls.clients to "optional" or "required"'
            )
        for name, user in access.users.items():
            if user.certificate and not shown:
                raise ConfigurationError(
                    f"{name!r} is to show a certificate, and nobody is asked for one: set "
                    'tls.clients to "optional" or "required"'
                )
        several = len(self.members) > 1
        if several and self.asks_who and not (access.station_secret or access.station_certificates):
            raise ConfigurationError(
                "clients have to prove who they are, so the servers of the chain have to, too: "
                "add stations.secret_file or stations.certificates"
            )

    def _check_admin(self) -> None:
        if not self.admin or self.insecure_admin:
            return
        host, _ = parse_address(self.admin, what="the address of the admin port")
        if not _is_loopback(host):
            raise ConfigurationError(
                f"the admin port would listen on {host}, beyond this machine, and it has neither TLS "
                "nor login: everybody who can connect sees all topics and subscriptions. Listen on "
                "127.0.0.1, or say insecure_admin = true or --insecure-admin-anyone if a network that "
                "you trust is all there is"
            )

    def _check_exposed(self, host: str) -> None:
        missing = []
        if self.tls is None:
            missing.append("no TLS: everybody on the way can read and change what is said")
        if not self.asks_who:
            missing.append("no login: everybody who can connect may publish and read everything")
        if missing:
            _check_host(host, self.listen)
            raise ConfigurationError(
                f"the server would listen on {host}, beyond this machine, with "
                f"{', and with '.join(missing)}. Set up tls and users (docs/operations.md), listen "
                "on 127.0.0.1, or say insecure = true or --insecure-listen-anyone if a network that "
                "you trust is all there is"
            )


def leased(
    sequencer: SequencerConfig, lease_s: float | None, lease_lost_s: float | None
) -> SequencerConfig:
    """Return a configuration with the leases of publishers that somebody asked for."""
    lease_ns, lost_ns = sequencer.lease_ns, sequencer.lease_lost_ns
    for name, seconds in (("lease", lease_s), ("lease_lost", lease_lost_s)):
        if seconds is not None and not 0.001 <= seconds <= LEASE_S_MAX:
            raise ConfigurationError(
                f"{name} must be between 1 ms and {LEASE_S_MAX / 60:g} minutes, not {seconds:g} s"
            )
    lease_ns = lease_ns if lease_s is None else round(lease_s * SECOND_NS)
    if lease_lost_s is not None:
        lost_ns = round(lease_lost_s * SECOND_NS)
        if lost_ns > lease_ns:
            raise ConfigurationError(
                f"lease_lost is {lease_lost_s:g} s, longer than the lease of {lease_ns / SECOND_NS:g} s: "
                "a lost connection shortens it"
            )
    return msgspec.structs.replace(
        sequencer, lease_ns=lease_ns, lease_lost_ns=min(lost_ns, lease_ns)
    )


def _check_name(name: str) -> None:
    check_text(name, "the name of a server")
    if "/" in name or "~" in name:
        raise ConfigurationError(f"the name of a server holds no '/' and no '~': rename {name!r}")
    if name == GUIDE:
        raise ConfigurationError(f"{name!r} is what all servers are called: rename that one")


def _check_host(host: str, listen: str) -> None:
    """Refuse a host that there is not: advice on how to expose it would be of no use."""
    try:
        socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"the address to listen on {listen!r}: there is no host {host!r} ({error.strerror})"
        ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
