"""Error texts of broker refusals, with the user's names and what to do next.

Brokers know a bus as `NAME~RANDOM.content`, and an operation of a plan by its path.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from ensue.client.received_event import CONTENT
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.parser import parse

__all__ = [
    "RefusedRequest",
    "display_name",
    "explained",
    "failure_of",
    "in_words",
    "invitation_text",
    "timed_out",
    "too_few_reached",
    "undecided_plan",
]

SHOWN_MAX = 200
"""Maximum characters shown of an event or a list of filters."""
_SUFFIX = f".{CONTENT}"
_NAME = re.compile(rf"(?:~[^.'\"\s]*)?\.{CONTENT}(?=['\"\s:,;]|$)")
_PATH = re.compile(r"\boperation (?:\d+\.0\.)?(\d+)\b")
_UNKNOWN = re.compile(rf"no client is called (['\"])(.*)\.{CONTENT}\1$")
_UNCOVERED = re.compile(rf"no advertisement of (.*)\.{CONTENT} covers it$")


class RefusedRequest(msgspec.Struct):
    """The request that a broker refused."""

    own: str = ""
    """The bus that sent it, by its name at brokers without `.content`; empty: name it."""
    event: Mapping[str, object] | None = None
    """The attributes of the event that was to be published."""
    advertised: tuple[str, ...] = ()
    """Advertisements of its publisher, as far as known."""
    advertise: str = "await bus.advertise(where=…)"
    join: str = "await bus.on_invitation(…)"
    """The call by which a bus takes part."""


def display_name(name: str) -> str:
    """Return the user's name of a client."""
    return name.removesuffix(_SUFFIX).partition("~")[0]


def in_words(reason: str) -> str:
    """Return a broker's reason with the user's names of clients."""
    return _PATH.sub(r"operation \1", _NAME.sub("", reason))


def explained(reason: str, situation: RefusedRequest) -> str:
    """Return a broker's reason, and what to do next."""
    reason = _UNKNOWN.sub(lambda found: _unknown(found[2], situation), reason)
    if situation.event is not None:
        event = situation.event
        reason = _UNCOVERED.sub(lambda found: _uncovered(found[1], event, situation), reason)
    return in_words(reason)


def failure_of(error: BaseException) -> str:
    """Return the type and the text of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def timed_out(timeout_s: float, waiting: str) -> str:
    """Return why a transaction aborted at its deadline, and what it was waiting for, if known."""
    passed = f"its timeout of {timeout_s:g} s" if timeout_s else "its timeout"
    if waiting:
        return (
            f"{passed} passed while it waited for {waiting}: have it return sooner, or pass a "
            "longer timeout= to bus.transaction"
        )
    return (
        f"{passed} passed before it was committed: end it sooner, or pass a longer timeout= to "
        "bus.transaction"
    )


def undecided_plan(timeout_s: float) -> str:
    """Return why a held plan aborted at its deadline."""
    return (
        f"it was held for longer than its timeout of {timeout_s:g} s: commit or abort it sooner, "
        "or pass a longer timeout= to bus.transaction"
    )


def invitation_text(event: Mapping[str, object]) -> str:
    """Return how an invitation by content is shown."""
    return f"the invitation {_cut(repr(dict(event)))}"


def too_few_reached(event: Mapping[str, object], found: int, at_least: int) -> str:
    """Return why an invitation by content aborts: it found fewer clients than it needs."""
    clients = {0: "no client", 1: "1 client"}.get(found, f"{found} clients")
    return (
        f"{invitation_text(event)} found {clients}, of at_least={at_least}: have "
        "other buses call `await bus.on_invitation(handler, where=…)` with a filter that matches "
        "it, or lower at_least; clients without a connection do not count"
    )


def _unknown(name: str, situation: RefusedRequest) -> str:
    who = display_name(name)
    return (
        f"no client is called {who!r}, or {who!r} takes no part in content yet: have it call "
        f"`{situation.join}` first"
    )


def _uncovered(name: str, event: Mapping[str, object], situation: RefusedRequest) -> str:
    who = "this bus" if name == situation.own else repr(display_name(name))
    had = ""
    if situation.advertised:
        had = f"; it has advertised {_cut(' and '.join(map(repr, situation.advertised)))}"
    return (
        f"no advertisement of {who} covers {_cut(repr(dict(event)))}{had}"
        f"{_hint(event, situation.advertised)}: advertise it by `{situation.advertise}` first"
    )


def _hint(event: Mapping[str, object], advertised: Iterable[str]) -> str:
    """Return a hint if an attribute has another type than was advertised."""
    filters = [parse(where) for where in advertised]
    for name, value in event.items():
        if isinstance(value, bool):
            continue
        is_text = isinstance(value, str)
        with suppress(ValueError):  # Most texts are not numbers.
            changed = event_of({**event, name: float(str(value)) if is_text else str(value)})
            if any(one.matches(changed) for one in filters):
                is_what, wanted = ("a text", "a number") if is_text else ("a number", "a text")
                return f" ({name!r} is {is_what}, {value!r}, and {wanted} was advertised)"
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"
