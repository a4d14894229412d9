"""What an `ensue://` URL says: where a server is, and how to prove who each side is."""

import os
import ssl
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ensue.errors import BadInput
from ensue.transports.base import Capabilities

__all__ = ["DEFAULT_PORT", "TcpOptions", "parse_address"]

DEFAULT_PORT = 7400


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


def _shown(url: str) -> str:
    """Return a URL for people: without its options, or a password, which nobody else should see."""
    scheme, separator, place = url.partition("?")[0].partition("#")[0].partition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2]}"


class TcpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an `ensue://` URL says."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
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
        given: dict[str, str] = {}
        known = ("tls", "ca", "cert", "key", "token", "server_name")
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in known:
                raise BadInput(
                    f"{shown}: there is no option {name!r}; expected one of {', '.join(known)}"
                )
            if name in given:
                raise BadInput(f"{shown}: {name} is given more than once")
            given[name] = value
        if given.get("tls", "0") not in ("0", "1"):
            raise BadInput(f"{shown}: tls is 0 or 1, not {given['tls']!r}")
        if bool(given.get("cert")) != bool(given.get("key")):
            raise BadInput(f"{shown}: cert and key go together")
        implied = any(given.get(name) for name in ("ca", "cert"))
        return cls(
            host=unquote(host),
            port=DEFAULT_PORT if port is None else port,
            tls=given.get("tls", "1" if implied else "0") == "1",
            ca=given.get("ca", ""),
            cert=given.get("cert", ""),
            key=given.get("key", ""),
            token=given.get("token") or os.environ.get("ENSUE_TOKEN", ""),
            server_name=given.get("server_name", ""),
        )

    @property
    def capabilities(self) -> Capabilities:
        """What Ensue's own servers can do."""
        return Capabilities(
            orders=("total",), fifo=True, durable=True, replay=True, conditional=True
        )

    def context(self) -> ssl.SSLContext | None:
        """Return what TLS needs, or None without it."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca, self.cert, self.key)))
            raise BadInput(f"TLS can't be set up from {files}: {error}") from None
        return context
