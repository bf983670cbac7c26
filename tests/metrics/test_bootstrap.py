"""The bootstrap: seeded, the same resamples for every statistic, and intervals as theory expects them."""

import numpy as np
import pytest

from regard.metrics.bootstrap import RESAMPLES, SIGNATURE, Difference, bootstrap, bootstrap_mean, paired_test, resample


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation() -> None:
    values = np.random.default_rng(7).normal(3.0, 2.0, size=400)
    score = bootstrap_mean("mean", values)
    assert score.value == values.mean()
    assert score.interval == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    assert score.signature == SIGNATURE == "bs:1000|seed:12345"


def test_resamples_are_seeded_and_the_same_for_every_statistic() -> None:
    values = np.arange(23.0)
    both = bootstrap(lambda rows: {"mean": values[rows].mean(), "max": values[rows].max()}, 23, {"max": "of all"})
    assert both[0] == bootstrap_mean("mean", values)
    assert [score.signature for score in both] == [SIGNATURE, "of all"]
    drawn = np.stack(resample(lambda rows: rows, 23))
    assert drawn.shape == (RESAMPLES, 23)
    assert drawn.min() == 0 and drawn.max() == 22
    rng = np.random.default_rng(12345)  # the order in which numpy's own `choice` draws
    assert (values[drawn[:5]] == np.stack([rng.choice(values, 23) for _ in range(5)])).all()


@pytest.mark.parametrize(("gain", "noise"), [(0.0, True), (0.02, True), (0.5, False)])
def test_the_paired_test_distinguishes_gains_from_noise(gain: float, noise: bool) -> None:
    first = np.random.default_rng(1).normal(size=200)
    second = first + gain + 0.5 * np.random.default_rng(2).normal(size=200) * bool(gain)
    difference = paired_test("score", first, second)
    assert difference.is_noise == noise
    assert (difference.p_value == 1.0) == (gain == 0)
    assert paired_test("score", second, first).p_value == difference.p_value


def test_the_verdict_depends_on_the_direction_of_the_metric() -> None:
    difference = Difference("loss", 1.0, 2.0, 0.001)
    assert difference.to_dict()["verdict"] == "second is better"
    assert difference.to_dict(higher_is_better=False)["verdict"] == "first is better"
    assert Difference("loss", 1.0, 2.0, 0.2).to_dict()["verdict"] == "may be chance"
    assert Difference("loss", 1.0, 1.0, 1.0).to_dict()["verdict"] == "no difference"
