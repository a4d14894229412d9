"""Read filters from text: `symbol = 'ACME' and (price > 10 or urgent = true)`.

```
filter  := all ("or" all)*
all     := part ("and" part)*
part    := "(" filter ")" | "true" | "false" | name test
test    := ("=" | "==" | "<" | "<=" | ">" | ">=") value
         | "in" "(" value ("," value)* ")"
         | "between" value "and" value
         | "starts" "with" text
         | "exists"
```

Names are words, with dots and dashes inside, or anything in double quotes. Texts stand in single
quotes; a quote inside is written twice. There is no negation. Keywords may be written in capitals;
`inf` and `-inf` are numbers. An error has what was expected, what was found, and where.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NoReturn
from weakref import WeakValueDictionary

from ensue.core.errors import BadInput, FilterError
from ensue.protocols.content.filters import spaces
from ensue.protocols.content.filters.filter import (
    ALL,
    KEYWORDS,
    NOTHING,
    Filter,
    check_name,
    cost_of_both,
    cost_of_either,
    where,
)

__all__ = ["NEGATED", "TEXT_LENGTH_MAX", "parse"]

TEXT_LENGTH_MAX = 65_536
"""Maximum length of a filter's text."""
DEPTH_MAX = 50
"""Maximum nesting of brackets."""
DIGITS_MAX = 100
"""Maximum digits of a whole number."""
WORK_MAX = 1_000_000
"""Maximum work to combine the parts of one filter, in spans: some tenths of a second."""
NEGATED = "`price < 3 or price > 3`"
"""Shown in place of a negation; an event without the attribute does not match either."""
SHOWN = 60
"""Characters of the line shown before and after a mistake."""
_TOKENS = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf\b)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<word>[A-Za-z_](?:[\w.-]*\w)?)
    | (?P<sign><=|>=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
SHORT = 1024
"""Longest text of a filter in the large cache; longer ones may take megabytes."""
LONG_KEPT = 64
_in_use: WeakValueDictionary[str, Filter] = WeakValueDictionary()
"""Long filters that are in use, as in the index of subscriptions."""
_TESTS = ("in", "between", "starts", "exists")
_SPACE = re.compile(r"\s*")


def parse(text: str) -> Filter:
    """Return the filter of a text, or raise `FilterError` that shows the mistake."""
    if not isinstance(text, str):
        raise BadInput(f"a filter must be text, got {type(text).__name__}")
    if len(text) > TEXT_LENGTH_MAX:
        raise BadInput(f"a filter may have at most {TEXT_LENGTH_MAX} characters, got {len(text)}")
    return _parse(text) if len(text) <= SHORT else _parse_long(text)


@lru_cache(maxsize=65_536)
def _parse(text: str) -> Filter:
    return _Parser(text).filter()


@lru_cache(maxsize=LONG_KEPT)
def _parse_long(text: str) -> Filter:
    found = _in_use.get(text)
    if found is None:
        found = _in_use[text] = _Parser(text).filter()
    return found


class _Parser:
    """Reads one text, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._depth = 0
        self._work = 0
        self._advance()

    def filter(self) -> Filter:
        found = self._either()
        if self._kind:
            self._fail("'and', 'or' or the end")
        return found

    # -- Tokens ---------------------------------------------------------------------------------

    def _advance(self) -> None:
        space = _SPACE.match(self._text, self._end)
        self._at = space.end() if space else self._end
        self._kind, self._token = "", ""
        if self._at >= len(self._text):
            return
        match = _TOKENS.match(self._text, self._end)
        if match is None:
            unclosed = self._text[self._at] in "'\""
            if self._text[self._at] == "!":
                self._refuse_negation(self._at, self._text[self._at : self._at + 2].strip())
            self._kind, self._token = "stray", self._text[self._at]
            self._fail("a closing quote" if unclosed else "a name, a value or an operator")
        assert match is not None
        self._kind, self._token = str(match.lastgroup), match.group(str(match.lastgroup))
        self._end = match.end()

    def _fail(self, expected: str) -> NoReturn:
        found = repr(self._token) if self._kind else "the end"
        self._point(self._at, f"expected {expected}, found {found}")

    def _point(self, at: int, wrong: str) -> NoReturn:
        first = self._text.rfind("\n", 0, at) + 1
        first = max(first, at - SHOWN)
        shown = self._text[first : at + SHOWN].split("\n", 1)[0]
        raise FilterError(
            f"{wrong} at character {at + 1}:\n  {shown}\n  {' ' * (at - first)}^",
            text=self._text,
            position=at,
        )

    def _refuse_negation(self, at: int, found: str) -> NoReturn:
        self._point(at, f"filters have no negation (write {NEGATED} instead), found {found!r}")

    def _keyword(self, *words: str) -> str | None:
        """Consume one of the words, if it is next."""
        if self._kind == "word" and self._token.lower() in words:
            word = self._token.lower()
            self._advance()
            return word
        return None

    def _sign(self, *signs: str) -> str | None:
        if self._kind == "sign" and self._token in signs:
            sign = self._token
            self._advance()
            return sign
        return None

    def _need(self, sign: str) -> None:
        if self._sign(sign) is None:
            self._fail(repr(sign))

    # -- Grammar --------------------------------------------------------------------------------

    def _either(self) -> Filter:
        found = self._all()
        while self._keyword("or"):
            at, other = self._at, self._all()
            self._spend(at, cost_of_either(found, other))
            with self._pointing(at):
                found = found.either(other)
        return found

    def _all(self) -> Filter:
        found = self._part()
        while self._keyword("and"):
            at, other = self._at, self._part()
            self._spend(at, cost_of_both(found, other))
            with self._pointing(at):
                found = found.both(other)
        return found

    def _spend(self, at: int, work: int) -> None:
        """Refuse a filter that takes too much work to combine."""
        self._work += work
        if self._work > WORK_MAX:
            self._point(at, "the filter has too many alternatives")

    @contextmanager
    def _pointing(self, at: int) -> Iterator[None]:
        """Add the position to errors of a value or a part."""
        try:
            yield
        except BadInput as error:
            self._point(at, str(error))

    def _part(self) -> Filter:
        if self._sign("("):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                self._fail(f"at most {DEPTH_MAX} brackets within brackets")
            found = self._either()
            self._need(")")
            self._depth -= 1
            return found
        constant = self._keyword("true", "false")
        if constant:
            return ALL if constant == "true" else NOTHING
        at = self._at
        is_not = self._kind == "word" and self._token.lower() == "not"
        name = self._name()
        if is_not and (
            self._kind == "quoted" or self._text.startswith("(", self._at) or self._is_name()
        ):
            self._refuse_negation(at, "not")
        return self._test(name)

    def _is_name(self) -> bool:
        """Return whether the next token can't begin a test: then a `not` before it is no name."""
        return self._kind == "word" and self._token.lower() not in _TESTS

    def _name(self) -> str:
        if self._kind == "word" and self._token.lower() not in KEYWORDS:
            name = self._token
        elif self._kind == "quoted":
            name = self._token[1:-1].replace('""', '"')
        elif self._token.lower() == "exists":
            self._fail("the name of an attribute before it, as in `price exists`")
        else:
            self._fail("the name of an attribute")
        with self._pointing(self._at):
            check_name(name)
        self._advance()
        return name

    def _test(self, name: str) -> Filter:
        at, sign = self._at, self._sign("=", "==", "<", "<=", ">", ">=")
        if sign == "<" and self._text.startswith("<>", at):
            self._refuse_negation(at, "<>")
        if sign in ("=", "=="):
            return where(name, spaces.one_of((self._value(),)))
        return where(name, self._space() if sign is None else self._range(sign))

    def _space(self) -> spaces.Space:
        word = self._keyword(*_TESTS)
        if word is None:
            if self._token.lower() == "not":
                self._refuse_negation(self._at, "not")
            self._fail("'=', '<', '<=', '>', '>=', 'in', 'between', 'starts with' or 'exists'")
        if word == "exists":
            return spaces.EVERYTHING
        if word == "in":
            return self._set()
        if word == "starts":
            if not self._keyword("with"):
                self._fail("'with'")
            return self._prefix()
        low = self._range(">=")
        if not self._keyword("and"):
            self._fail("'and'")
        return spaces.intersection(low, self._range("<="))

    def _range(self, sign: str) -> spaces.Space:
        if self._kind not in ("number", "text"):
            self._fail("a number or a text to compare with")
        value = self._value()
        side = spaces.above if sign[0] == ">" else spaces.below
        return side(value, inclusive=sign.endswith("="))

    def _set(self) -> spaces.Space:
        self._need("(")
        values = [self._value()]
        while self._sign(","):
            values.append(self._value())
        self._need(")")
        return spaces.one_of(tuple(values))

    def _prefix(self) -> spaces.Space:
        if self._kind != "text":
            self._fail("a text in single quotes")
        return spaces.starting_with(str(self._value()))

    def _value(self) -> spaces.Value:
        if self._kind == "text":
            value: spaces.Value = self._token[1:-1].replace("''", "'")
        elif self._kind == "number":
            value = self._number()
        elif self._kind == "word" and self._token.lower() in ("true", "false"):
            value = self._token.lower() == "true"
        else:
            self._fail("a number, a text in single quotes, true or false")
        with self._pointing(self._at):
            value = spaces.value_of(value)
        self._advance()
        return value

    def _number(self) -> int | float:
        digits = self._token.lstrip("+-")
        if not digits.isdigit():
            return float(self._token)
        if len(digits) > DIGITS_MAX:  # More than Python parses.
            self._point(self._at, f"a whole number of {len(digits)} digits")
        return int(self._token)
