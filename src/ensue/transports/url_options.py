"""The query options of a URL, parsed alike for every transport."""

import math
from collections.abc import Sequence
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from ensue.core.errors import BadInput

__all__ = ["UrlOptions", "hide", "split_url"]


def hide(url: str) -> str:
    """Return a URL without its password, for errors and logs."""
    start, slashes, rest = url.partition("//")
    secret, at, place = rest.rpartition("@")
    if not at:
        return url
    # A password may hold any delimiter of a URL: hide too much rather than too little.
    user, colon, _ = secret.partition(":")
    return f"{start}{slashes}{user}:***@{place}" if colon else f"{start}{slashes}***@{place}"


def split_url(url: str, *, shown: str, expected: str = "") -> tuple[SplitResult, int | None]:
    """Split a URL and parse its port; errors begin with `shown` and end with `expected`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        hint = f"; expected {expected}" if expected else ""
        raise BadInput(f"{shown}: {hide(str(error))}{hint}") from None
    return parts, port


class UrlOptions(msgspec.Struct, frozen=True):
    """The query options of one URL; errors begin with `shown`."""

    given: dict[str, str]
    shown: str

    @classmethod
    def read(cls, query: str, known: Sequence[str], *, shown: str) -> "UrlOptions":
        """Parse a query; raise `BadInput` for an option that is not `known` or given twice."""
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
        return cls(given, shown)

    def text(self, name: str, default: str = "") -> str:
        """Return an option unchanged."""
        return self.given.get(name, default)

    def switch(self, name: str, *, default: bool = False) -> bool:
        """Return an option that is 0 or 1."""
        value = self.given.get(name)
        if value is None:
            return default
        if value not in ("0", "1"):
            raise BadInput(f"{self.shown}: {name} must be 0 or 1, got {value!r}")
        return value == "1"

    def integer(self, name: str, default: int) -> int:
        """Return an option that is a whole number."""
        value = self.given.get(name)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise BadInput(f"{self.shown}: {name} must be a whole number, got {value!r}") from None

    def number(self, name: str, default: float) -> float:
        """Return an option that is a finite number."""
        value = self.given.get(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise BadInput(f"{self.shown}: {name} must be a number, got {value!r}")
        return number
