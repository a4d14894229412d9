"""Where a broker is and what things are called there: URLs, prefixes and escaped names."""

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ensue.errors import BadInput
from ensue.transports.tls import TLS_OPTIONS, TlsOptions

__all__ = ["Address", "check", "escape", "hide", "read_options", "read_url", "switch"]

NAME_BYTES_MAX = 255
NAMES_CACHED = 65_536
PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}")
SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@lru_cache(maxsize=NAMES_CACHED)
def escape(name: str) -> str:
    """Write any name in letters, digits, `-`, `_` and `=`; no two names alike."""
    return "".join(
        each if each in SAFE else "".join(f"={byte:02X}" for byte in each.encode()) for each in name
    )


def check(what: str, name: str) -> None:
    """Refuse what can't be the name of an inbox or a topic."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadInput(f"{what} must be text that UTF-8 can carry, not {name[:20]!a}") from None
    if not 0 < size <= NAME_BYTES_MAX:
        shown = f"{name[:20]!r}…" if name else "the empty one"
        raise BadInput(f"{what} has 1 to {NAME_BYTES_MAX} bytes; {shown} has {size}")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a URL that every broker's has."""

    url: str
    """For people: without password or token."""
    host: str
    port: int
    user: str
    password: str
    path: str
    given: dict[str, str]
    """The options, `prefix` checked."""
    tls: TlsOptions = TlsOptions()

    @property
    def prefix(self) -> str:
        """What everything on the broker is below."""
        return self.given.get("prefix", "ensue")


def hide(url: str) -> str:
    """Leave out what nobody should read in a log."""
    start, slashes, rest = url.partition("//")
    secret, at, place = rest.rpartition("@")
    if not at:
        return url
    # A password may hold whatever parts a URL: rather too much is hidden than too little.
    user, colon, _ = secret.partition(":")
    return f"{start}{slashes}{user}:***@{place}" if colon else f"{start}{slashes}***@{place}"


def read_options(query: str, known: Sequence[str], *, shown: str) -> dict[str, str]:
    """Read what stands behind the question mark of a URL; `shown` is the URL, for people."""
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            listed = ", ".join(known[:-1])
            raise BadInput(
                f"{shown}: there is no option {name!r}; expected {listed} or {known[-1]}"
            )
        if name in given:
            raise BadInput(f"{shown}: {name} is given more than once")
        given[name] = value
    return given


def read_url(
    url: str, *, scheme: str, port: int, tls_port: int | None = None, options: Sequence[str] = ()
) -> Address:
    """Read a broker's URL, or say what is wrong with it.

    `options` are those of this kind of broker alone. With TLS the port is another, if there is one.
    """
    shown = hide(url)
    example = f"{scheme}://HOST:{port}"
    try:
        parts = urlsplit(url)
        found_port = parts.port
    except ValueError as error:
        raise BadInput(f"{shown}: {hide(str(error))}; expected {example}") from None
    if parts.scheme != scheme:
        raise BadInput(f"{shown}: starts with {parts.scheme}://; expected {example}")
    if not parts.hostname:
        raise BadInput(f"{shown}: names no host; expected {example}")
    if parts.fragment:
        raise BadInput(f"{shown}: '#' starts nothing here; write it as %23 in a password")
    given = read_options(parts.query, (*options, "prefix", *TLS_OPTIONS), shown=shown)
    if "prefix" in given and not PREFIX.fullmatch(given["prefix"]):
        raise BadInput(
            f"{shown}: prefix must be 1 to 32 letters, digits, '-' or '_', not {given['prefix']!r}"
        )
    tls = TlsOptions.read(given, shown=shown)
    usual = tls_port if tls.on and tls_port is not None else port
    return Address(
        url=shown,
        host=parts.hostname,
        port=usual if found_port is None else found_port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        path=unquote(parts.path.removeprefix("/")),
        given=given,
        tls=tls,
    )


def switch(address: Address, name: str) -> bool:
    """Read an option that is on or off; off unless given."""
    value = address.given.get(name, "0")
    if value not in ("0", "1"):
        raise BadInput(f"{address.url}: {name} must be 0 or 1, not {value!r}")
    return value == "1"
