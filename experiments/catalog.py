"""All experiments, by name."""

from ensue.errors import BadInput
from ensue.experiments import choices, deadlines, dispatching, merges, total, vcube, vcube_wider
from ensue.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS", "chosen"]

_ALL = (
    *total.EXPERIMENTS,
    *vcube.EXPERIMENTS,
    *vcube_wider.EXPERIMENTS,
    *dispatching.EXPERIMENTS,
    *merges.EXPERIMENTS,
    *deadlines.EXPERIMENTS,
    *choices.EXPERIMENTS,
)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}


def chosen(names: list[str]) -> list[Experiment]:
    """Return the experiments of these names; `all` stands for every one."""
    if names == ["all"]:
        return list(EXPERIMENTS.values())
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise BadInput(
            f"no experiment {', '.join(map(repr, unknown))}; there are {', '.join(EXPERIMENTS)}; and all"
        )
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]
