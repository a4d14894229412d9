"""Names on a hub: chosen names are checked, generated ones never collide with them.

A name is used once in the life of a hub, because the chain remembers its owner's requests: a new
client with an old name would get its predecessor's stamps.
"""

from collections.abc import Iterable

from ensue.core.errors import BadInput, ConfigurationError

__all__ = ["TEXT_BYTES_MAX", "Names", "check_name", "check_text"]

TEXT_BYTES_MAX = 255
GENERATED = "~"
"""Marks generated names; no chosen name has it."""


def check_text(text: object, what: str) -> None:
    """Raise `BadInput` unless a text can be a name; `what` is for the error."""
    if not isinstance(text, str):
        raise BadInput(f"{what} must be a str, got {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadInput(
            f"{what} must be text that UTF-8 can carry; {text[:20]!a} has an unpaired surrogate"
        ) from None
    if not 0 < size <= TEXT_BYTES_MAX:
        shown = f"{text[:20]!r}…" if text else "the empty one"
        raise BadInput(f"{what} must have 1 to {TEXT_BYTES_MAX} bytes; {shown} has {size}")


def check_name(name: object) -> None:
    """Raise `BadInput` unless a name can be a client's."""
    check_text(name, "a client's name")
    assert isinstance(name, str)
    if "/" in name:
        # Event ids are publisher/topic/number: a slash would make two of them alike.
        raise BadInput(
            f"a client's name must not contain '/', which separates the parts of event ids: "
            f"rename {name!r}"
        )
    if GENERATED in name:
        raise BadInput(
            f"a client's name must not contain {GENERATED!r}, which marks generated names: "
            f"rename {name!r}"
        )


class Names:
    """All names that are or were in use on a hub. `reserved` ones belong to the hub."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._reserved = frozenset(reserved)
        self._claimed: set[str] = set()
        self._given = 0

    def claim(self, wanted: str) -> str:
        """Reserve a name that a client asks for."""
        check_name(wanted)
        if wanted in self._reserved:
            raise BadInput(f"the name {wanted!r} belongs to the hub itself: choose another")
        if wanted in self._claimed:
            raise ConfigurationError(
                f"the name {wanted!r} is or was in use on this hub: choose another"
            )
        self._claimed.add(wanted)
        return wanted

    def unique(self, stem: str) -> str:
        """Return a name that is never used twice."""
        self._given += 1
        return f"{stem}{GENERATED}{self._given}"
