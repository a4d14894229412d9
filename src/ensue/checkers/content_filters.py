"""A second implementation of filters, to judge whether an event matches a subscription.

Checkers share no code with protocols, so this parser is independent and simple: it turns an
expression into a function. It supports the forms in `docs/explanation/protocols/content.md`.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from ensue.core.errors import BadInput

__all__ = ["attributes_of", "matches"]

Value = bool | int | float | str
Event = dict[str, Value]
Test = Callable[[Event], bool]

_TOKEN = re.compile(
    r"""\s*('(?:[^']|'')*'|"(?:[^"]|"")+"|"""
    r"""[+-]?[\d.]+(?:[eE][+-]?\d+)?|-?inf\b|[\w.-]+|<=|>=|==|[=<>(),])"""
)


@lru_cache(maxsize=4096)
def attributes_of(text: str) -> Event:
    """Return the attributes of an event: `name = value and name = value`."""
    tokens = list(_tokens(text))
    event: Event = {}
    if len(tokens) % 4 != 3:
        raise BadInput(f"{text!r} does not describe an event")
    for start in range(0, len(tokens), 4):
        name, sign, value = tokens[start : start + 3]
        if sign != "=":
            raise BadInput(f"{text!r} does not describe an event")
        try:
            event[_name(name)] = _value(value)
        except ValueError:
            raise BadInput(f"{text!r} does not describe an event") from None
    return event


def matches(where: str, event: Event) -> bool:
    """Return whether an event matches a filter."""
    try:
        return _compiled(where)(event)
    except (IndexError, ValueError):
        raise BadInput(f"{where!r} is not a filter") from None


@lru_cache(maxsize=4096)
def _compiled(where: str) -> Test:
    tokens = list(_tokens(where))
    test, rest = _either(tokens)
    if rest:
        raise BadInput(f"{where!r} is not a filter: unexpected {rest[0]!r}")
    return test


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadInput(f"{text!r} is not a filter: bad token at character {at + 1}")
        yield match.group(1)
        at = match.end()


def _either(tokens: list[str]) -> tuple[Test, list[str]]:
    test, tokens = _all(tokens)
    while tokens and tokens[0].lower() == "or":
        other, tokens = _all(tokens[1:])
        test = _or(test, other)
    return test, tokens


def _all(tokens: list[str]) -> tuple[Test, list[str]]:
    test, tokens = _one(tokens)
    while tokens and tokens[0].lower() == "and":
        other, tokens = _one(tokens[1:])
        test = _and(test, other)
    return test, tokens


def _or(one: Test, other: Test) -> Test:
    return lambda event: one(event) or other(event)


def _and(one: Test, other: Test) -> Test:
    return lambda event: one(event) and other(event)


def _one(tokens: list[str]) -> tuple[Test, list[str]]:
    if tokens[0] == "(":
        test, rest = _either(tokens[1:])
        return test, rest[1:]
    if tokens[0] in ("true", "false"):
        constant = tokens[0] == "true"
        return (lambda _event: constant), tokens[1:]
    name, sign = _name(tokens[0]), tokens[1]
    if sign == "exists":
        return (lambda event: name in event), tokens[2:]
    if sign == "starts":
        prefix = str(_value(tokens[3]))
        return (
            lambda event: (
                str(event.get(name, "")).startswith(prefix) and isinstance(event.get(name), str)
            )
        ), tokens[4:]
    if sign == "in":
        end = tokens.index(")")
        values = [_value(word) for word in tokens[3:end] if word != ","]
        return (lambda event: any(_equal(event.get(name), value) for value in values)), tokens[
            end + 1 :
        ]
    return _comparison(name, sign, _value(tokens[2])), tokens[3:]


def _comparison(name: str, sign: str, value: Value) -> Test:
    def test(event: Event) -> bool:
        mine = event.get(name)
        if mine is None or not _comparable(mine, value):
            return False
        return {
            "=": mine == value,
            "<": mine < value,  # type: ignore[operator]
            "<=": mine <= value,  # type: ignore[operator]
            ">": mine > value,  # type: ignore[operator]
            ">=": mine >= value,  # type: ignore[operator]
        }[sign]

    return test


def _equal(mine: Value | None, value: Value) -> bool:
    return mine is not None and _comparable(mine, value) and mine == value


def _comparable(one: Value, other: Value) -> bool:
    kinds = [(isinstance(each, bool), isinstance(each, str)) for each in (one, other)]
    return kinds[0] == kinds[1]


def _name(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token


def _value(word: str) -> Value:
    if word.startswith("'"):
        return word[1:-1].replace("''", "'")
    if word in ("true", "false"):
        return word == "true"
    return int(word) if word.lstrip("+-").isdigit() else float(word)
