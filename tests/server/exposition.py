"""A strict parser of Prometheus's text format, version 0.0.4."""

import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|Inf)|NaN")
KINDS = ("counter", "gauge", "histogram")

Labels = tuple[tuple[str, str], ...]


class BadExpositionError(AssertionError):
    """Raised if the text breaks a rule of the format."""


class Exposed:
    """The samples of a text: `exposed["ensue_topic_events_total", "topic", "x"]`."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        self._family = ""
        if not text.endswith("\n"):
            raise BadExpositionError("the last line ends with no newline")
        for line in text[:-1].split("\n"):
            try:
                self._line(line)
            except BadExpositionError as error:
                raise BadExpositionError(f"{error}: {line!r}") from None
        for name, kind in self.kinds.items():
            if kind == "histogram":
                self._check_histogram(name)

    def __getitem__(self, key: str | tuple[str, ...]) -> float:
        name, *labels = (key,) if isinstance(key, str) else key
        pairs = tuple(zip(labels[::2], labels[1::2], strict=True))
        return self.samples[name, pairs]

    def labelled(self, name: str) -> dict[str, float]:
        """Return the series of a family with one label, by the label's value."""
        return {
            labels[0][1]: value for (each, labels), value in self.samples.items() if each == name
        }

    def _line(self, line: str) -> None:
        if line.startswith("# HELP "):
            name, _, help_text = line.removeprefix("# HELP ").partition(" ")
            check(NAME.fullmatch(name), "no name")
            check(name not in self.helps, "a second HELP")
            check(help_text, "a HELP that says nothing")
            check(
                re.fullmatch(r"(?:[^\\]|\\\\|\\n)*", help_text), "a backslash that is not escaped"
            )
            self.helps[name] = help_text
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            check(name in self.helps, "a TYPE before its HELP")
            check(name not in self.kinds, "a second TYPE")
            check(kind in KINDS, "no such type")
            check(
                (kind == "counter") == name.endswith("_total"),
                "counters, and they alone, end in _total",
            )
            self.kinds[name] = kind
            self._family = name
        else:
            self._sample(line)

    def _sample(self, line: str) -> None:
        found = NAME.match(line)
        check(found, "no name")
        assert found is not None
        name, rest = found[0], line[found.end() :]
        family = name
        if self.kinds.get(self._family) == "histogram":
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            check(family != name, "a sample of a histogram that is none")
        check(family == self._family, "a sample outside of its family")
        labels: Labels = ()
        if rest.startswith("{"):
            labels, rest = read_labels(rest[1:])
        check(rest.startswith(" "), "no space before the value")
        check(NUMBER.fullmatch(rest[1:]), "no number")
        check((name, labels) not in self.samples, "a series twice")
        value = float(rest[1:])
        check(self.kinds[family] == "gauge" or value >= 0, "a counter below 0")
        self.samples[name, labels] = value

    def _check_histogram(self, name: str) -> None:
        bounds = [
            (float(labels[-1][1].replace("+Inf", "inf")), value)
            for (each, labels), value in self.samples.items()
            if each == f"{name}_bucket"
        ]
        for part in (0, 1):
            values = [each[part] for each in bounds]
            check(values == sorted(values), f"{name}: buckets that fall")
        check(bounds[-1][0] == float("inf"), f"{name}: no bucket for everything")
        check(bounds[-1][1] == self[f"{name}_count"], f"{name}: buckets and count differ")
        check((name + "_sum", ()) in self.samples, f"{name}: no sum")


def read_labels(text: str) -> tuple[Labels, str]:
    labels: list[tuple[str, str]] = []
    while True:
        found = LABEL.match(text)
        check(found, "no label")
        assert found is not None
        text = text[found.end() :]
        check(text.startswith('="'), "no value of a label")
        value, at = "", 2
        while text[at : at + 1] != '"':
            check(at < len(text), "a value that does not end")
            if text[at] == "\\":
                escaped = {"\\": "\\", '"': '"', "n": "\n"}.get(text[at + 1 : at + 2])
                check(escaped is not None, "no such escape")
                value += escaped or ""
                at += 2
            else:
                value += text[at]
                at += 1
        check(found[0] not in dict(labels), "a label twice")
        labels.append((found[0], value))
        text = text[at + 1 :]
        if text.startswith("}"):
            return tuple(labels), text[1:]
        check(text.startswith(","), "labels run together")
        text = text[1:]


def check(condition: object, what: str) -> None:
    if not condition:
        raise BadExpositionError(what)
