"""`ensue://HOST:PORT`: connections to the servers of a chain.

A client connects to every server of its chain: the server in the URL lists the others. A server
that is away delays only events of its topics. A client reconnects forever, with backoff
(`ensue.transports.reconnect`), enters every name again and calls `on_reconnect`. Frames in flight
are lost, and their senders retransmit them. A connection is closed if the server is silent for
`SILENCE_S`, so that one that works in one direction only does not last.

If a server refuses a client that it accepted before, the client retries for `REFUSED_S`; then
`on_refused` is called. A server that returns with another log, or an older state of its log
(`ensue.core.lineage`), ends the client at once (`on_log_lost`).

Options, as in `ensue://HOST:7400?tls=1&ca=ca.pem`:
- `tls`: 1 encrypts (0). `ca`: a file of certificate authorities to trust instead of the system's.
  `cert`, `key`: certificate and private key of this client. Each of these three implies `tls=1`.
- `token`: the server's access token; better set as `ENSUE_TOKEN` in the environment.

Limits: `PENDING_BYTES_MAX` bytes for each connection that the operating system has not accepted;
beyond, messages are dropped and counted.
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
    """A carrier on connections to the servers of a chain."""

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
        """Called with a name that another client has taken over."""
        self.ends_with_log = role == "client"
        """Whether a client ends if a server has lost its log."""
        self.on_log: Callable[[str, Lineage], None] | None = None
        """Called with a server and its log at each welcome; raises `LogLost` to refuse it."""
        self.disagreement: Callable[[Welcome], str] | None = None
        """Returns why a server can't be of this client's chain; empty: it can."""
        self.differs = ""
        """Why the server that last answered can't be of it."""
        self.on_log_lost: Callable[[LogLost], None] | None = None
        """Called when a server no longer has its log."""
        self.place_of: Callable[[str], int] | None = None
        """Returns the highest place of a delivered event in a server's log."""
        self.logs: dict[str, Lineage] = {}
        """By server: its log."""
        self.dropped = 0
        self.welcome: Welcome | None = None
        self._links: dict[str, Link] = {}
        """By station: the link to it."""
        self._first: Link | None = None
        """To the first station of the chain."""
        self._inboxes: dict[str, Inbox] = {}
        self._receive: Inbox | None = None

    async def start_one(self) -> Welcome:
        """Connect only to the server in the URL."""
        first = Link(self, (self.options.host, self.options.port))
        welcome = self.welcome = await first.start()
        self._links[welcome.server] = first
        return welcome

    async def start(self) -> None:
        """Connect to the server in the URL, and to the others in the background."""
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
        """Open an inbox; return when the connected servers have answered."""
        self._inboxes[peer] = receive
        self._receive = receive
        try:
            for link in self._links.values():
                await link.enter(peer)
        except BaseException:
            await self.shut(peer)
            raise

    async def shut(self, peer: str) -> None:
        """Close an inbox."""
        if self._inboxes.pop(peer, None) is not None:
            for link in self._links.values():
                link.exit(peer)

    async def join(self, topic: str, receive: Inbox) -> None:
        """Do nothing: servers send to each listener."""

    async def leave(self, topic: str) -> None:
        """Do nothing: servers send to each listener."""

    def send(self, peer: str, data: bytes) -> None:
        """Send to a station or a part of it (`STATION/PART`), or by the first to a client."""
        link = self._links.get(peer.partition("/")[0], self._first)
        connection = None if link is None else link.connection
        if connection is None or not connection.write(framed(data)):
            self.dropped += 1

    def multicast(self, topic: str, data: bytes) -> None:
        """Raise `NotImplementedError`: servers send to each listener."""
        raise NotImplementedError(f"ensue:// does not multicast {len(data)} bytes to {topic!r}")

    def renew(self, peer: str, since_s: float) -> None:
        """Reconnect to a station if nothing has arrived from it since a time of the event loop."""
        link = self._links.get(peer.partition("/")[0])
        if link is not None:
            link.renew(since_s)

    async def close(self) -> None:
        """Flush for up to a second, then disconnect."""
        closing = [asyncio.ensure_future(link.close()) for link in self._links.values()]
        if closing:
            await asyncio.wait(closing)

    # -- From the connections -------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """Deliver a bundle: the transport reads its target."""
        if self._receive is not None:
            self._receive(data)

    def reconnected(self) -> None:
        """Report that a connection is back."""
        if self.on_reconnect is not None:
            self.on_reconnect()

    def refused(self, error: AccessDenied) -> None:
        """Report that a server rejects this client permanently."""
        _log.error("client refused name=%s: %s", self.client, error)
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
            text = f"{lost_text(server, reason)}; connect again to continue"
            return LogLost(text, server=server, reason=reason)
        try:
            if self.on_log is not None:
                self.on_log(server, log)
        except LogLost as error:
            return error
        self.logs[server] = log
        return None

    def check_chain(self, welcome: Welcome) -> AccessDenied | None:
        """Return why the server of a welcome can't be of this client's chain; None: it can."""
        why = self.differs = "" if self.disagreement is None else self.disagreement(welcome)
        return AccessDenied(why, reason=why) if why else None

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
        raise RemoteProtocolError("the server lists a station twice", peer=welcome.server)
    return {
        member.name: parse_address(member.address, what="a station's address")
        for member in welcome.chain
        if member.name != welcome.server
    }
