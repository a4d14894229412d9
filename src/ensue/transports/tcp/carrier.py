"""`ensue://HOST:PORT`: connections to the servers of a chain.

A client is connected to every server of its chain: the one that the URL names lists the others. A
server that is away delays only what needs it. A lost connection is made again, forever, with
pauses that grow (`ensue.transports.reconnect`); then every name is entered again and `on_reconnect`
is called. Frames in flight are lost, and their senders repeat them. A server that is silent for
`SILENCE_S` is taken for gone, so that a connection that works in one direction only does not last.

A server that refuses a client it had welcomed is retried for `REFUSED_S`; then `on_refused` is
called. One that comes back with another log, or an older state of it (`ensue.core.lineage`), ends
the client at once (`on_log_lost`).

Options, as in `ensue://HOST:7400?tls=1&ca=ca.pem`:
- `tls`: 1 asks for TLS (0); `ca`: a file of certificates to trust instead of the system's; `cert`,
  `key`: files that this client shows; each of these three implies `tls=1`.
- `token`: the server's access token; better given by the environment, as `ENSUE_TOKEN`.

Limits: `PENDING_BYTES_MAX` not yet taken by the operating system, a connection; beyond, messages
are dropped and counted.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from ensue.core.errors import AccessDenied, LogLost, RemoteProtocolError
from ensue.core.lineage import Lineage, contradiction, lost_text
from ensue.core.wire import FRAME_BYTES_MAX
from ensue.transports.carrier import Inbox
from ensue.transports.tcp.link import Link
from ensue.transports.tcp.messages import Welcome, framed
from ensue.transports.tcp.options import TcpOptions, parse_address

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
        """The log of a station that connects to others."""
        self.capabilities = options.capabilities
        self.on_reconnect: Callable[[], None] | None = None
        self.on_refused: Callable[[AccessDenied], None] | None = None
        """Called when a server rejects this client permanently."""
        self.on_exited: Callable[[str, AccessDenied], None] | None = None
        """Called when another client has taken over a name."""
        self.ends_with_log = role == "client"
        """Whether a client ends if a server's log is gone."""
        self.on_log: Callable[[str, Lineage], None] | None = None
        """Called with a server and its log at each welcome; raises `LogLost` to refuse it."""
        self.on_log_lost: Callable[[LogLost], None] | None = None
        """Called when a server no longer has its log."""
        self.place_of: Callable[[str], int] | None = None
        """Given a server: the highest place in its log that was delivered."""
        self.logs: dict[str, Lineage] = {}
        """By server: its log."""
        self.dropped = 0
        self.welcome: Welcome | None = None
        self._links: dict[str, Link] = {}
        """Station to the link to it."""
        self._first: Link | None = None
        """To the first station of the chain."""
        self._inboxes: dict[str, Inbox] = {}
        self._receive: Inbox | None = None

    async def start_one(self) -> Welcome:
        """Connect only to the server that the URL names."""
        first = Link(self, (self.options.host, self.options.port))
        welcome = self.welcome = await first.start()
        self._links[welcome.server] = first
        return welcome

    async def start(self) -> None:
        """Connect to the server that the URL names, and to the others in the background."""
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
        """Send to a station, a part of it (`STATION/PART`), or through the first to a client."""
        link = self._links.get(peer.partition("/")[0], self._first)
        connection = None if link is None else link.connection
        if connection is None or not connection.write(framed(data)):
            self.dropped += 1

    def multicast(self, topic: str, data: bytes) -> None:
        """Refuse: servers send to each listener."""
        raise NotImplementedError(f"ensue:// does not multicast {len(data)} bytes to {topic!r}")

    async def close(self) -> None:
        """Flush for up to a second, and disconnect."""
        # Together: each may take a moment.
        closing = [asyncio.ensure_future(link.close()) for link in self._links.values()]
        if closing:
            await asyncio.wait(closing)

    # -- From the connections -------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """Hand a bundle over; its receiver looks at the target."""
        if self._receive is not None:
            self._receive(data)

    def reconnected(self) -> None:
        """Report that a connection is back."""
        if self.on_reconnect is not None:
            self.on_reconnect()

    def refused(self, error: AccessDenied) -> None:
        """Report that a server rejects this client permanently."""
        _log.error("%s", error)
        if self.on_refused is not None:
            self.on_refused(error)

    def check_log(self, welcome: Welcome) -> LogLost | None:
        """Return why the log in a welcome can't be the server's known one; None: it can."""
        server, log = welcome.server, welcome.log
        if log is None or (self.role == "client" and not self.ends_with_log):
            return None
        known = self.logs.get(server)
        place = 0 if self.place_of is None else self.place_of(server)
        reason = "" if known is None else contradiction(known, log, place=place)
        if reason and self.role == "client":
            text = f"{lost_text(server, reason)}; connect anew to go on"
            return LogLost(text, server=server, reason=reason)
        try:
            if self.on_log is not None:
                self.on_log(server, log)
        except LogLost as error:
            return error
        self.logs[server] = log
        return None

    def log_lost(self, error: LogLost) -> None:
        """Report that a server no longer has its log."""
        if self.on_log_lost is not None:
            self.on_log_lost(error)

    def exited(self, name: str, error: AccessDenied) -> None:
        """Report that another client has taken over a name."""
        if self.on_exited is not None:
            self.on_exited(name, error)


def _others(welcome: Welcome) -> dict[str, tuple[str, int]]:
    """Return the addresses of the other stations of a chain."""
    if len({member.name for member in welcome.chain}) != len(welcome.chain):
        raise RemoteProtocolError("the server names a station twice", peer=welcome.server)
    return {
        member.name: parse_address(member.address, what="a station's address")
        for member in welcome.chain
        if member.name != welcome.server
    }
