"""One experiment's part of the page, made from a result or parsed from the page.

A run of some experiments replaces their parts and keeps the others. A kept part has the figures and
verdicts of the run that it came from, and the prose of the current code, reasons included.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence

import msgspec

from experiments.experiment import Claim, Experiment, Table

__all__ = [
    "Cost",
    "Part",
    "anchor_of",
    "heading_of",
    "kept_parts",
    "missed_item",
    "opening_of",
    "wrapped",
]

COLUMNS_MAX = 100
_RUN = re.compile(
    r"^`python -m experiments run ([\w-]+)`, (quick|full) form, ([\d,]+) cases\.$", re.MULTILINE
)
_VERDICT = re.compile(
    r"^\| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (met|not met|not judged) \|$", re.MULTILINE
)
_COST = r"^\| {} \| ([\d,]+) \| ([\d,]+) \| [\d,]+ \| ([\d,]+) \|$"


class Cost(msgspec.Struct, frozen=True):
    """A row of the table of costs."""

    cases: int
    seconds: float
    full_seconds: float


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment's part of the page."""

    experiment: Experiment
    section: str
    verdicts: Sequence[str]
    missed: Sequence[str]
    """A list item per criterion that is not met."""
    cost: Cost


def wrapped(text: str, indent: str = "") -> str:
    """Wrap a paragraph; `indent` starts every line but the first."""
    return textwrap.fill(
        text,
        COLUMNS_MAX,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def heading_of(experiment: Experiment) -> str:
    """Return the heading of an experiment's section."""
    figures = f" ({experiment.figures})" if experiment.figures else ""
    return f"{experiment.title}{figures}"


def anchor_of(experiment: Experiment) -> str:
    """Return the anchor of that heading on GitHub."""
    kept = re.sub(r"[^\w\- ]", "", heading_of(experiment).lower())
    return kept.replace(" ", "-")


def opening_of(experiment: Experiment, form: str, cases: str) -> str:
    """Return the opening of a section: the command, the form and the setting."""
    command = f"`python -m experiments run {experiment.name}`, {form} form, {cases} cases."
    return "\n\n".join([command, *map(wrapped, experiment.setting)])


def missed_item(experiment: Experiment, claim: Claim) -> str:
    """Return the list item of a claim that is not met."""
    text = (
        f"* [{experiment.name}](#{anchor_of(experiment)})"
        + (f", {claim.figure}" if claim.figure else "")
        + f": {claim.expected}. Criterion: {claim.criterion}. Seen: {claim.seen}."
        + (f" {claim.why}" if claim.why else "")
        + (f" To meet it: {claim.change}" if claim.change else "")
    )
    return wrapped(text, indent="  ")


def kept_parts(page: str, experiments: Mapping[str, Experiment]) -> dict[str, Part]:
    """Parse the parts of a page, by experiment; drop experiments that no longer exist."""
    found: dict[str, Part] = {}
    for section in re.split(r"^(?=###? )", page, flags=re.MULTILINE):
        opening = _RUN.search(section)
        experiment = experiments.get(opening[1]) if opening else None
        if opening is None or experiment is None:
            continue
        # The setting ends where the table of claims begins.
        _, _, results = section.partition("\n|")
        rows = _VERDICT.findall(f"|{results}")
        cost = re.search(_COST.format(re.escape(experiment.name)), page, flags=re.MULTILINE)
        figures = [int(each.replace(",", "")) for each in cost.groups()] if cost else [0, 0, 0]
        prose = opening_of(experiment, opening[2], opening[3])
        found[experiment.name] = Part(
            experiment=experiment,
            section=f"### {heading_of(experiment)}\n\n{prose}\n\n|{results}".strip(),
            verdicts=[verdict for *_, verdict in rows],
            missed=[
                missed_item(experiment, _with_reasons(experiment, *cells))
                for *cells, verdict in rows
                if verdict == "not met"
            ],
            cost=Cost(*figures),
        )
    return found


def _with_reasons(
    experiment: Experiment, figure: str, expected: str, criterion: str, seen: str
) -> Claim:
    """Return a claim that was not met, with the reasons that the current code has for it."""
    for claim in experiment.judge(Table([])):
        if (claim.figure, claim.expected, claim.criterion) == (figure, expected, criterion):
            return msgspec.structs.replace(claim, seen=seen, met=False)
    return Claim(figure=figure, expected=expected, criterion=criterion, seen=seen, met=False)
