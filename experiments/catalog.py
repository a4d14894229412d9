"""All experiments, by name."""

from ensue.core.errors import BadInput
from experiments.causal import figures_one_topic, figures_wider
from experiments.deadline import figures as deadline
from experiments.experiment import Experiment
from experiments.guarantees import figures as guarantees
from experiments.merged import figures as merged
from experiments.total import figures as total
from experiments.transactions import figures as transactions

__all__ = ["EXPERIMENTS", "chosen"]

_ALL = (
    *total.EXPERIMENTS,
    *figures_one_topic.EXPERIMENTS,
    *figures_wider.EXPERIMENTS,
    *transactions.EXPERIMENTS,
    *merged.EXPERIMENTS,
    *deadline.EXPERIMENTS,
    *guarantees.EXPERIMENTS,
)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}


def chosen(names: list[str]) -> list[Experiment]:
    """Return the experiments with these names; `all` means every experiment."""
    if names == ["all"]:
        return list(EXPERIMENTS.values())
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        names_known = ", ".join(EXPERIMENTS)
        raise BadInput(f"no experiment {', '.join(map(repr, unknown))}: use {names_known} or all")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]
