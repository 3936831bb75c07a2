"""Intervals of differences: closed forms, and how often they hold the truth."""

import math

import numpy as np
import pytest

from amata.studies.intervals import over_images, over_seeds, over_seeds_and_images, t_quantile


def test_quantiles_of_student() -> None:
    known = {1: 12.706, 2: 4.303, 4: 2.776, 10: 2.228, 100: 1.984, 1e9: 1.960}
    assert {df: t_quantile(df) for df in known} == pytest.approx(known, abs=1e-3)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("of_seed", "of_image", "rest"), [(3, 0, 40), (0, 40, 10), (2, 30, 40), (0, 0, 50)]
)
def test_intervals_hold_seeds_and_images(
    seeds: int, of_seed: float, of_image: float, rest: float
) -> None:
    rng, held, repeats = np.random.default_rng(0), 0, 400
    for _ in range(repeats):
        values = (
            rng.normal(0, of_seed, (seeds, 1))
            + rng.normal(0, of_image, (1, 300))
            + rng.normal(0, rest, (seeds, 300))
        )
        held += abs((found := over_seeds_and_images(values)).mean) < found.half
    assert (0.93 if seeds > 2 else 0.89) <= held / repeats <= 0.995


def test_either_source_alone_would_be_too_narrow() -> None:
    rng, by_seed, by_image, repeats = np.random.default_rng(1), 0, 0, 400
    for _ in range(repeats):
        values = rng.normal(0, 5, (3, 1)) + rng.normal(0, 60, (1, 300)) + rng.normal(0, 5, (3, 300))
        by_seed += abs((found := over_seeds(values.mean(1))).mean) < found.half
        columns = values.mean(0)
        by_image += abs(columns.mean()) < 1.96 * columns.std(ddof=1) / 300**0.5
    assert by_seed / repeats < 0.94
    assert by_image / repeats < 0.9


def test_a_difference_on_few_images_is_never_certain() -> None:
    """Agresti and Min's interval, here by its four cells, and how often it holds the truth."""
    both, first, second, none = 20.5, 12.5, 4.5, 14.5  # with half an image each
    n = both + first + second + none
    gap, apart = (first - second) / n, (first + second) / n
    half = 1.959964 * math.sqrt((apart - gap**2) / n)
    values = np.repeat([0.0, 1.0, -1.0], [34, 12, 4])
    assert over_images(values) == pytest.approx((gap - half, gap + half))
    low, high = over_images(np.zeros(10))
    assert low < -0.1 < 0.1 < high
    rng, held, repeats = np.random.default_rng(0), 0, 2000
    for _ in range(repeats):
        low, high = over_images(rng.choice([0.0, 1.0, -1.0], 40, p=[0.8, 0.15, 0.05]))
        held += low <= 0.1 <= high
    assert 0.93 <= held / repeats <= 0.98
