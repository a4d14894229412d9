"""What the page of experiments says of one experiment, from a result or from the page as it is.

A run of some experiments replaces their parts and keeps the others'. A kept part has the figures and verdicts of the run that it came from; the prose is that of
today's experiment.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from experiments.experiment import Experiment

__all__ = ["Cost", "Part", "anchor_of", "heading_of", "kept_parts", "opening_of"]

_RUN = re.compile(
    r"^`python -m experiments run ([\w-]+)`, (quick|full) form, ([\d,]+) cases\. .*$", re.MULTILINE
)
_VERDICT = re.compile(r"^\|.*\| (met|not met|not judged) \|$", re.MULTILINE)
_COST = r"^\| {} \| ([\d,]+) \| ([\d,]+) \| [\d,]+ \| ([\d,]+) \|$"


class Cost(msgspec.Struct, frozen=True):
    """A row of the table of costs."""

    cases: int
    seconds: float
    full_seconds: float


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What the page says of one experiment."""

    experiment: Experiment
    section: str
    verdicts: Sequence[str]
    missed: Sequence[str]
    """A line for each criterion that is not met."""
    cost: Cost


def heading_of(experiment: Experiment) -> str:
    """Return the heading of an experiment's section."""
    figures = f" ({experiment.figures})" if experiment.figures else ""
    return f"{experiment.title}{figures}"


def anchor_of(experiment: Experiment) -> str:
    """Return how Markdown on the web names that heading."""
    kept = re.sub(r"[^\w\- ]", "", heading_of(experiment).lower())
    return kept.replace(" ", "-")


def opening_of(experiment: Experiment, form: str, cases: str) -> str:
    """Return the first paragraph of a section: the command, the form and the setting."""
    told = " ".join(experiment.setting)
    return f"`python -m experiments run {experiment.name}`, {form} form, {cases} cases. {told}"


def kept_parts(page: str, experiments: Mapping[str, Experiment]) -> dict[str, Part]:
    """Return the parts of a page by experiment; those of experiments that are no more are left out."""
    found: dict[str, Part] = {}
    for section in re.split(r"^(?=###? )", page, flags=re.MULTILINE):
        opening = _RUN.search(section)
        experiment = experiments.get(opening[1]) if opening else None
        if opening is None or experiment is None:
            continue
        told = opening_of(experiment, opening[2], opening[3])
        _, _, rest = section.partition(opening[0])
        link = f"* [{experiment.name}]("
        missed = [line for line in page.splitlines() if line.startswith(link)]
        cost = re.search(_COST.format(re.escape(experiment.name)), page, flags=re.MULTILINE)
        figures = [int(each.replace(",", "")) for each in cost.groups()] if cost else [0, 0, 0]
        found[experiment.name] = Part(
            experiment=experiment,
            section=f"### {heading_of(experiment)}\n\n{told}{rest}".strip(),
            verdicts=_VERDICT.findall(rest),
            missed=[
                re.sub(r"\(#[^)]*\)", f"(#{anchor_of(experiment)})", each, count=1)
                for each in missed
            ],
            cost=Cost(*figures),
        )
    return found
