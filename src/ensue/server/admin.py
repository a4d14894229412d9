"""The admin port: read-only HTTP for monitoring.

`GET /metrics` is for Prometheus (OpenMetrics, unless the request accepts only `text/plain`),
`/healthz` for health checks (200, or 503 with the reason), and `/status` is one JSON object with
what `ensue status` shows.

It has neither login nor encryption, so it listens on this machine only, unless an option allows
more.

Requests are parsed strictly: lines end with CRLF, no body, only `GET` or `HEAD`. Each connection
carries one request.

Limits: `REQUEST_BYTES_MAX` of a request, `REQUEST_S` until it is complete, `RESPONSE_S` until its
response is read, `CONNECTIONS_MAX` at once; beyond, the oldest connection without a complete
request is closed.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus

from ensue.core import platform
from ensue.core.errors import TransportError
from ensue.server.metrics import CONTENT_TYPE, PLAIN_CONTENT_TYPE, Metrics
from ensue.server.status import Status
from ensue.transports.tcp.options import parse_address, write_address

__all__ = ["CONNECTIONS_MAX", "REQUEST_BYTES_MAX", "REQUEST_S", "RESPONSE_S", "Admin"]

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_S = 5.0
RESPONSE_S = 10.0
CONNECTIONS_MAX = 64
PLAIN = "text/plain; charset=utf-8"

_LINE = re.compile(rb"([A-Za-z]+) (/[!-~]*) HTTP/(\d)\.(\d)")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_END = b"\r\n\r\n"

_log = logging.getLogger("ensue")


class Admin:
    """The HTTP server of the admin port."""

    def __init__(self, address: str, status: Status) -> None:
        self.host, self.port = parse_address(address, what="the address of the admin port")
        self.loop = asyncio.get_running_loop()
        self.requests: dict[_Request, None] = {}
        """One for each connection."""
        self._status = status
        self._metrics = Metrics(status, self.loop)
        self._server: asyncio.Server | None = None
        self._pages: dict[str, Callable[[str], tuple[HTTPStatus, str, bytes]]] = {
            "/metrics": self._count,
            "/status": lambda _: (HTTPStatus.OK, "application/json", status.state() + b"\n"),
            "/healthz": lambda _: self._health(),
        }

    @property
    def url(self) -> str:
        """The URL of the admin port."""
        return f"http://{write_address(self.host, self.port)}"

    async def start(self) -> None:
        """Start listening."""
        try:
            # In two steps, as in `Listener.start`.
            self._server = await self.loop.create_server(
                lambda: _Request(self), self.host, self.port, start_serving=False
            )
            await self._server.start_serving()
        except OSError as error:
            self._metrics.stop()
            raise TransportError(
                f"the admin port can't listen on {write_address(self.host, self.port)}: "
                f"{error.strerror or error}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        _log.info("admin port ready url=%s", self.url)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._metrics.stop()
        if self._server is not None:
            self._server.close()
        for request in list(self.requests):
            request.abort()

    def page(self, path: str, accept: str = "") -> tuple[HTTPStatus, str, bytes]:
        """Return the status, content type and body of a page, given the Accept header."""
        page = self._pages.get(path)
        if page is None:
            known = ", ".join(self._pages)
            return HTTPStatus.NOT_FOUND, PLAIN, f"not found; pages are {known}\n".encode()
        try:
            return page(accept)
        except Exception:  # noqa: BLE001 - a bug, which must not end the server
            _log.exception("internal error page=%s", path)
            text = "internal error; the server's log says more\n"
            return HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN, text.encode()

    def _count(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        plain = "text/plain" in accept and "openmetrics" not in accept and "*/*" not in accept
        kind = PLAIN_CONTENT_TYPE if plain else CONTENT_TYPE
        return HTTPStatus.OK, kind, self._metrics.text(plain=plain).encode()

    def _health(self) -> tuple[HTTPStatus, str, bytes]:
        unhealthy_reason = self._status.unhealthy_reason()
        if unhealthy_reason:
            return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"{unhealthy_reason}\n".encode()
        return HTTPStatus.OK, PLAIN, b"ok\n"


class _Request(asyncio.Protocol):
    """One connection: one request, one response."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self.answered = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request; beyond the limit, close the longest idle connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        requests = self._admin.requests
        requests[self] = None
        if len(requests) > CONNECTIONS_MAX:
            oldest = next((each for each in requests if not each.answered), self)
            if oldest is self:
                # All others have responses that they don't read: close the oldest.
                oldest = next(iter(requests))
            del requests[oldest]
            oldest.abort()
        self._timer = self._admin.loop.call_later(
            REQUEST_S,
            self._answer,
            HTTPStatus.REQUEST_TIMEOUT,
            f"no request within {REQUEST_S:g} s",
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        del exc
        self._admin.requests.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Respond as soon as the request is complete or invalid."""
        if self.answered:
            return
        self._data += data
        head, end, _ = self._data.partition(_END)
        if len(head) + len(end) > REQUEST_BYTES_MAX:
            text = f"the request exceeds {REQUEST_BYTES_MAX} bytes"
            self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
        elif re.search(rb"(?<!\r)\n|\r(?!\n|\Z)", head):
            self._answer(HTTPStatus.BAD_REQUEST, "expected lines that end with CRLF")
        elif end:
            self._handle(head.split(b"\r\n"))

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _handle(self, lines: list[bytes]) -> None:
        found = _LINE.fullmatch(lines[0])
        if found is None:
            self._answer(HTTPStatus.BAD_REQUEST, "expected a line such as GET /metrics HTTP/1.1")
            return
        method, target, major, minor = found.groups()
        if major != b"1":
            self._answer(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "expected HTTP/1.1")
            return
        why = _fault(lines[1:], needs_host=minor != b"0")
        if why:
            self._answer(HTTPStatus.BAD_REQUEST, why)
        elif method not in (b"GET", b"HEAD"):
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD")
        else:
            path = target.partition(b"?")[0].decode("ascii")
            self._send(*self._admin.page(path, _accepted(lines[1:])), bare=method == b"HEAD")

    def _answer(self, status: HTTPStatus, text: str) -> None:
        self._send(status, PLAIN, f"{text}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, *, bare: bool = False) -> None:
        transport = self._transport
        if self.answered or transport is None:
            return
        self.answered = True
        self._data = b""
        if self._timer is not None:
            self._timer.cancel()
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Date: {formatdate(platform.current().wall_s(), usegmt=True)}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        head = "\r\n".join((*lines, "", "")).encode("ascii")
        transport.write(head if bare else head + body)
        transport.close()
        # A client that does not read would keep the connection open.
        self._timer = self._admin.loop.call_later(RESPONSE_S, self.abort)


def _accepted(lines: list[bytes]) -> str:
    """Return the types that a request's headers accept, in lower case; empty if none."""
    pairs = (line.partition(b":") for line in lines)
    accepted = [value for name, _, value in pairs if name.strip().lower() == b"accept"]
    return b",".join(accepted).decode("latin-1").lower()


def _fault(lines: list[bytes], *, needs_host: bool) -> str:
    """Return what is wrong with the headers of a request; empty if nothing."""
    hosts = 0
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            return "expected headers of a name, a colon and a value"
        name, value = found[1].lower(), found[2].strip()
        hosts += name == b"host"
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            return "expected a request without a body"
    if hosts > 1 or (needs_host and not hosts):
        return "expected one Host header"
    return ""
