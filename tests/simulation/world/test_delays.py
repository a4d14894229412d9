import math
from random import Random
from statistics import fmean, pstdev

import msgspec
import pytest

from ensue.core.errors import ConfigurationError
from ensue.simulation import Constant, DelayModel, LogNormal, Normal, Uniform

DRAWS = 40_000


@pytest.mark.parametrize(
    ("model", "mean", "std"),
    [
        (Constant(1_000), 1_000, 0),
        (Uniform(1_000, 3_000), 2_000, 2_000 / math.sqrt(12)),
        (Normal(10_000, 1_000), 10_000, 1_000),
        # Cut at its mean, a normal distribution has the mean and deviation of a half one.
        (Normal(0, 1_000), 1_000 * math.sqrt(2 / math.pi), 1_000 * math.sqrt(1 - 2 / math.pi)),
        (LogNormal(10_000, 5_000), 10_000, 5_000),
    ],
)
def test_mean_and_deviation_are_as_configured(model: DelayModel, mean: float, std: float) -> None:
    sample = model.sampler(Random(7))
    draws = [sample() for _ in range(DRAWS)]
    assert min(draws) >= 0
    assert all(type(draw) is int for draw in draws)
    assert fmean(draws) == pytest.approx(mean, rel=0.02)
    assert pstdev(draws) == pytest.approx(std, rel=0.03, abs=1e-9)


def test_uniform_includes_both_ends_and_nothing_else() -> None:
    sample = Uniform(3, 5).sampler(Random(1))
    assert {sample() for _ in range(1_000)} == {3, 4, 5}


def test_log_normal_has_a_longer_tail_than_normal() -> None:
    normal, tailed = (
        Normal(10_000, 5_000).sampler(Random(1)),
        LogNormal(10_000, 5_000).sampler(Random(1)),
    )
    assert max(tailed() for _ in range(DRAWS)) > 1.5 * max(normal() for _ in range(DRAWS))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Constant(-1), "Constant.delay_ns"),
        (lambda: Uniform(5, 4), "Uniform.high_ns"),
        (lambda: Uniform(-1, 4), "Uniform.low_ns"),
        (lambda: Normal(-1, 4), "Normal.mean_ns"),
        (lambda: Normal(1, -4), "Normal.std_ns"),
        (lambda: LogNormal(0, 4), "LogNormal.mean_ns"),
    ],
)
def test_bad_value_is_rejected_with_field_name(make: object, field: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=field):
        make()


def test_models_round_trip_by_kind() -> None:
    written = msgspec.to_builtins(Uniform(1, 2))
    assert written == {"kind": "uniform", "low_ns": 1, "high_ns": 2}
    assert msgspec.convert(written, Constant | Uniform | Normal | LogNormal) == Uniform(1, 2)
