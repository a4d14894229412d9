"""`ensue://HOST:PORT`: connections to the servers of a chain.

A client is connected to every server of its chain: the one that the URL names says who the others
are. One of those that is away holds up only what needs it. A connection that is lost is made again, for
ever, with pauses that grow up to `BACKOFF_S_MAX`; then every name is entered again and `on_reconnect`
is called. What was under way is lost, and whoever sent it repeats it. A server that says nothing for
`SILENCE_S` is taken for gone, so that a connection that works in one direction only does not last.
A server that refuses a client it had welcomed is asked again for `REFUSED_S`; then the client is told. One that comes
back with another log, or with an older state of it (`ensue.protocols.lineage`), is not gone on with: the client is told at once.

Options, as in `ensue://HOST:7400?tls=1&ca=ca.pem`:
- `tls`: 1 asks for TLS (0); `ca`: a file of certificates to trust instead of the system's; `cert`,
  `key`: files that this client shows; each of these three implies `tls=1`.
- `token`: what the server asks for; better given by the environment, as `ENSUE_TOKEN`.

Limits: `PENDING_BYTES_MAX` not yet taken by the operating system, a connection; beyond, messages are
dropped and counted.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from ensue.errors import AccessDenied, LogLost, RemoteProtocolError
from ensue.protocols.lineage import Lineage, contradiction, lost_text
from ensue.transports.carrier import Inbox
from ensue.transports.tcp_link import Link
from ensue.transports.tcp_messages import Welcome, framed
from ensue.transports.tcp_options import TcpOptions, parse_address
from ensue.wire import FRAME_BYTES_MAX

__all__ = ["TcpCarrier"]

_log = logging.getLogger("ensue")


class TcpCarrier:
    """Carries bytes to the servers of a chain and back."""

    name = "ensue://"

    def __init__(
        self, options: TcpOptions, *, client: str, role: Literal["client", "station"] = "client"
    ) -> None:
        self.options = options
        self.client = client
        self.role: Literal["client", "station"] = role
        self.log: Lineage | None = None
        """Which log a station has that connects to others."""
        self.capabilities = options.capabilities
        self.on_reconnect: Callable[[], None] | None = None
        self.on_refused: Callable[[AccessDenied], None] | None = None
        """Called if a server will not have this client any more."""
        self.on_exited: Callable[[str, AccessDenied], None] | None = None
        """Called if a name was taken away, by another client that entered under it."""
        self.ends_with_log = role == "client"
        """Whether a client does not go on with a server whose log is gone."""
        self.on_log: Callable[[str, Lineage], None] | None = None
        """Called with a server and which log it has, whenever it has said welcome; raises `LogLost` to refuse it."""
        self.on_log_lost: Callable[[LogLost], None] | None = None
        """Called if a server does not have the log any more that it had."""
        self.place_of: Callable[[str], int] | None = None
        """Given a server: the highest place of its log of which an event was delivered."""
        self.logs: dict[str, Lineage] = {}
        """By server: which log it has."""
        self.dropped = 0
        self.welcome: Welcome | None = None
        self._links: dict[str, Link] = {}
        """Station to the link to it."""
        self._first: Link | None = None
        """To the first station of the chain."""
        self._inboxes: dict[str, Inbox] = {}
        self._receive: Inbox | None = None

    async def start_one(self) -> Welcome:
        """Connect to the server that the URL names, and to no other."""
        first = Link(self, (self.options.host, self.options.port))
        welcome = self.welcome = await first.start()
        self._links[welcome.server] = first
        return welcome

    async def start(self) -> None:
        """Connect to the server that the URL names; to the others of its chain as soon as they are there."""
        welcome = await self.start_one()
        self.capabilities = msgspec.structs.replace(
            self.capabilities, message_bytes_max=min(welcome.message_bytes_max, FRAME_BYTES_MAX)
        )
        try:
            others = _others(welcome)
        except BaseException:
            await self.close()
            raise
        for name, address in others.items():
            self._links[name] = Link(self, address)
            self._links[name].start_later()
        self._first = self._links.get(welcome.chain[0].name) if welcome.chain else None

    async def open(self, peer: str, receive: Inbox) -> None:
        """Take what is sent to a name."""
        self._inboxes[peer] = receive
        self._receive = receive
        try:
            for link in self._links.values():
                await link.enter(peer)
        except BaseException:
            await self.shut(peer)
            raise

    async def shut(self, peer: str) -> None:
        """Take nothing more for a name."""
        if self._inboxes.pop(peer, None) is not None:
            for link in self._links.values():
                link.exit(peer)

    async def join(self, topic: str, receive: Inbox) -> None:
        """Do nothing: servers send to each listener."""

    async def leave(self, topic: str) -> None:
        """Do nothing: servers send to each listener."""

    def send(self, peer: str, data: bytes) -> None:
        """Send to a station, to a part of it (`STATION/PART`), or through the first one to a client."""
        link = self._links.get(peer.partition("/")[0], self._first)
        connection = None if link is None else link.connection
        if connection is None or not connection.write(framed(data)):
            self.dropped += 1

    def multicast(self, topic: str, data: bytes) -> None:
        """Refuse: servers send to each listener."""
        raise NotImplementedError(f"ensue:// does not multicast {len(data)} bytes to {topic!r}")

    async def close(self) -> None:
        """Let out what is pending, for a moment, and disconnect."""
        # Together: each may take a moment.
        closing = [asyncio.ensure_future(link.close()) for link in self._links.values()]
        if closing:
            await asyncio.wait(closing)

    # -- From the connections -------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """Hand a bundle over; whoever takes it looks at whom it is for."""
        if self._receive is not None:
            self._receive(data)

    def reconnected(self) -> None:
        """Tell that a connection is there again."""
        if self.on_reconnect is not None:
            self.on_reconnect()

    def refused(self, error: AccessDenied) -> None:
        """Tell that a server will not have this client any more."""
        _log.error("%s", error)
        if self.on_refused is not None:
            self.on_refused(error)

    def check_log(self, welcome: Welcome) -> LogLost | None:
        """Return why the log of a server that says welcome can't be the one it had; None: it can."""
        server, told = welcome.server, welcome.log
        if told is None or (self.role == "client" and not self.ends_with_log):
            return None
        known = self.logs.get(server)
        place = 0 if self.place_of is None else self.place_of(server)
        reason = "" if known is None else contradiction(known, told, place=place)
        if reason and self.role == "client":
            text = f"{lost_text(server, reason)}; connect anew to go on"
            return LogLost(text, server=server, reason=reason)
        try:
            if self.on_log is not None:
                self.on_log(server, told)
        except LogLost as error:
            return error
        self.logs[server] = told
        return None

    def log_lost(self, error: LogLost) -> None:
        """Tell that a server does not have the log any more that it had."""
        if self.on_log_lost is not None:
            self.on_log_lost(error)

    def exited(self, name: str, error: AccessDenied) -> None:
        """Tell that a name was taken away."""
        if self.on_exited is not None:
            self.on_exited(name, error)


def _others(welcome: Welcome) -> dict[str, tuple[str, int]]:
    """Return where the other stations of a chain are."""
    if len({member.name for member in welcome.chain}) != len(welcome.chain):
        raise RemoteProtocolError("the server names a station twice", peer=welcome.server)
    return {
        member.name: parse_address(member.address, what="a station's address")
        for member in welcome.chain
        if member.name != welcome.server
    }
