"""Addresses of brokers, and the names of inboxes and topics there."""

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

import msgspec

from ensue.core.errors import BadInput
from ensue.transports.tls import TLS_OPTIONS, TlsOptions
from ensue.transports.url_options import UrlOptions, hide, split_url

__all__ = ["Address", "check", "escape", "read_url"]

NAME_BYTES_MAX = 255
NAMES_CACHED = 65_536
PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}")
SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@lru_cache(maxsize=NAMES_CACHED)
def escape(name: str) -> str:
    """Return a name in letters, digits, `-`, `_` and `=`; different names stay different."""
    return "".join(
        each if each in SAFE else "".join(f"={byte:02X}" for byte in each.encode()) for each in name
    )


def check(what: str, name: str) -> None:
    """Raise `BadInput` unless a name can be that of an inbox or topic."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadInput(f"{what} must be valid UTF-8, got {name[:20]!a}") from None
    if not 0 < size <= NAME_BYTES_MAX:
        shown = f"{name[:20]!r}…" if name else "the empty one"
        raise BadInput(f"{what} must have 1 to {NAME_BYTES_MAX} bytes; {shown} has {size}")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a URL that all brokers have in common."""

    url: str
    """Without password or token, for errors and logs."""
    host: str
    port: int
    user: str
    password: str
    path: str
    given: UrlOptions
    prefix: str
    """First part of every name on the broker."""
    tls: TlsOptions


def read_url(
    url: str, *, scheme: str, port: int, tls_port: int | None = None, options: Sequence[str] = ()
) -> Address:
    """Parse a broker's URL; raise `BadInput` if it is wrong.

    `options` are those of this kind of broker. `tls_port` is its default port with TLS.
    """
    shown = hide(url)
    example = f"{scheme}://HOST:{port}"
    parts, found_port = split_url(url, shown=shown, expected=example)
    if parts.scheme != scheme:
        raise BadInput(f"{shown}: starts with {parts.scheme}://; expected {example}")
    if not parts.hostname:
        raise BadInput(f"{shown}: the host is missing; expected {example}")
    if parts.fragment:
        raise BadInput(f"{shown}: '#' is not allowed; write it as %23 in a password")
    given = UrlOptions.read(parts.query, (*options, "prefix", *TLS_OPTIONS), shown=shown)
    prefix = given.text("prefix", "ensue")
    if not PREFIX.fullmatch(prefix):
        raise BadInput(
            f"{shown}: prefix must be 1 to 32 letters, digits, '-' or '_', got {prefix!r}"
        )
    tls = TlsOptions.read(given)
    default_port = tls_port if tls.on and tls_port is not None else port
    return Address(
        url=shown,
        host=parts.hostname,
        port=default_port if found_port is None else found_port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        path=unquote(parts.path.removeprefix("/")),
        given=given,
        prefix=prefix,
        tls=tls,
    )
