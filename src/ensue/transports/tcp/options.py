"""What an `ensue://` URL says: where a server is, and how to prove who each side is."""

import os
from urllib.parse import unquote, urlsplit

import msgspec

from ensue.errors import BadInput
from ensue.transports.address import read_options
from ensue.transports.base import Capabilities
from ensue.transports.tls import TLS_OPTIONS, TlsOptions

__all__ = ["CAPABILITIES", "DEFAULT_PORT", "TcpOptions", "parse_address", "write_address"]

DEFAULT_PORT = 7400
CAPABILITIES = Capabilities(
    orders=("total", "causal", "merged", "deadline", "none"),
    fifo=True,
    durable=True,
    replay=True,
    conditional=True,
)
"""What Ensue's own servers can do."""


def parse_address(text: str, *, what: str) -> tuple[str, int]:
    """Read `HOST:PORT`, with brackets around a host that has colons."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadInput(f"{what} {text!r}: {error}") from None
    if not host or parts.path or parts.query:
        raise BadInput(f"{what} {text!r} is no address; expected HOST:PORT, as 127.0.0.1:7400")
    return host, DEFAULT_PORT if port is None else port


def write_address(host: str, port: int) -> str:
    """Write an address as `parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shown(url: str) -> str:
    """Return a URL for people: without its options, or a password, which nobody else should see."""
    scheme, separator, place = url.partition("?")[0].partition("#")[0].partition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2]}"


class TcpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an `ensue://` URL says."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls: TlsOptions = TlsOptions()
    token: str = ""
    server_name: str = ""
    """The name that the server's certificate is for, if it is not the host."""

    @classmethod
    def parse(cls, url: str) -> "TcpOptions":
        """Read a URL, or say what is wrong with it."""
        shown = _shown(url)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise BadInput(f"{shown}: {error}") from None
        if not host or parts.path not in ("", "/") or parts.fragment or "@" in parts.netloc:
            raise BadInput(f"{shown}: expected ensue://HOST:PORT, with options after a '?'")
        given = read_options(parts.query, (*TLS_OPTIONS, "token", "server_name"), shown=shown)
        token = given.get("token") or os.environ.get("ENSUE_TOKEN", "")
        try:
            token.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"{shown}: a token is text that UTF-8 can carry, and the one given, in the URL or as "
                "ENSUE_TOKEN, is not"
            ) from None
        return cls(
            host=unquote(host),
            port=DEFAULT_PORT if port is None else port,
            tls=TlsOptions.read(given, shown=shown),
            token=token,
            server_name=given.get("server_name", ""),
        )

    @property
    def capabilities(self) -> Capabilities:
        """What Ensue's own servers can do."""
        return CAPABILITIES
