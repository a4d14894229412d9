"""The options of `ensue://` URLs: the server's address and credentials."""

import os
from urllib.parse import unquote, urlsplit

import msgspec

from ensue.core.errors import BadInput
from ensue.transports.base import Capabilities
from ensue.transports.tls import TLS_OPTIONS, TlsOptions
from ensue.transports.url_options import UrlOptions, split_url

__all__ = ["CAPABILITIES", "DEFAULT_PORT", "TcpOptions", "parse_address", "write_address"]

DEFAULT_PORT = 7400
CAPABILITIES = Capabilities(
    fifo=True,
    durable=True,
    replay=True,
    conditional=True,
)
"""What Ensue's own servers can do."""


def parse_address(text: str, *, what: str) -> tuple[str, int]:
    """Parse `HOST:PORT`, with brackets around a host that has colons."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadInput(f"{what} {text!r}: {error}") from None
    if not host or parts.path or parts.query:
        raise BadInput(f"{what} {text!r} must be HOST:PORT, such as 127.0.0.1:7400")
    return host, DEFAULT_PORT if port is None else port


def write_address(host: str, port: int) -> str:
    """Format an address for `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shown(url: str) -> str:
    """Return a URL without options and password, for errors and logs."""
    scheme, separator, place = url.partition("?")[0].partition("#")[0].partition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2]}"


class TcpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an `ensue://` URL."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls: TlsOptions = TlsOptions()
    token: str = ""
    server_name: str = ""
    """The name in the server's certificate, if it is not the host."""

    @classmethod
    def parse(cls, url: str) -> "TcpOptions":
        """Parse a URL; raise `BadInput` if it is wrong."""
        shown = _shown(url)
        parts, port = split_url(url, shown=shown)
        host = parts.hostname
        if not host or parts.path not in ("", "/") or parts.fragment or "@" in parts.netloc:
            raise BadInput(f"{shown}: expected ensue://HOST:PORT, with options after a '?'")
        given = UrlOptions.read(parts.query, (*TLS_OPTIONS, "token", "server_name"), shown=shown)
        token = given.text("token") or os.environ.get("ENSUE_TOKEN", "")
        try:
            token.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"{shown}: a token must be valid UTF-8: check the URL and ENSUE_TOKEN"
            ) from None
        return cls(
            host=unquote(host),
            port=DEFAULT_PORT if port is None else port,
            tls=TlsOptions.read(given),
            token=token,
            server_name=given.text("server_name"),
        )

    @property
    def capabilities(self) -> Capabilities:
        """What Ensue's own servers can do."""
        return CAPABILITIES
