"""Intervals of a difference between two recipes that hold both sources of chance: which seeds were
trained and which images were tested.

Every seed is tested on the same images, so d(seed, image) = mean + seed + image + rest with crossed
random effects. The variance of the mean is that of the seeds' means, plus that of the images'
means, minus the rest, which both contain. Its degrees of freedom are Satterthwaite's, so that few
seeds count as few. From two seeds, which agree by chance too often, the interval holds the truth in
about 90% of cases instead of 95%; from three, in 93% or more.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Z975 = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A mean with half of its 95% interval, in the unit of the values."""

    mean: float
    half: float
    seeds: int
    images: bool
    """Whether the interval holds the choice of images too."""

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half:.2f}"


def t_quantile(df: float, share: float = 0.95) -> float:
    """The t that holds this share of Student's distribution between -t and t.

    With t = sqrt(df) tan(angle) the density is cos(angle)^(df - 1), which is integrated.
    """
    df = min(max(df, 1.0), 1e4)
    angles = np.linspace(0, math.pi / 2, 4_001)
    density = np.cos(angles) ** (df - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(df) * math.tan(float(np.interp(share * mass[-1], mass, angles)))


def over_seeds(values: Values) -> Estimate:
    """From one value per seed: the images are taken as given."""
    spread = float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(float(values.mean()), t_quantile(len(values) - 1) * spread, len(values), False)


def over_images(values: Values) -> tuple[float, float]:
    """The 95% interval of a mean difference from one value per image: 1 if the first recipe alone
    was right, 0 if both or none, -1 if the second alone.

    Half an image is added to each of the four cases (Agresti and Min 2005), so that few images do
    not seem certain.
    """
    n = len(values) + 2
    first, second = ((float((values == v).sum()) + 0.5) / n for v in (1, -1))
    centre = first - second
    half = Z975 * math.sqrt((first + second - centre**2) / n)
    return max(-1.0, centre - half), min(1.0, centre + half)


def over_seeds_and_images(values: Values) -> Estimate:
    """From a table of seeds by images."""
    seeds, images = values.shape
    rows, columns, mean = values.mean(1), values.mean(0), float(values.mean())
    rest = values - rows[:, None] - columns[None, :] + mean
    of_seeds = float(rows.var(ddof=1)) / seeds
    of_images = float(columns.var(ddof=1)) / images
    df_rest = (seeds - 1) * (images - 1)
    of_rest = float((rest**2).sum()) / df_rest / (seeds * images)
    variance = max(of_seeds + of_images - of_rest, of_seeds, of_images)
    parts = ((of_seeds, seeds - 1), (of_images, images - 1), (of_rest, df_rest))
    squares = sum(part**2 / df for part, df in parts)
    df = variance**2 / squares if squares > 0 else 1.0
    return Estimate(mean, t_quantile(df) * math.sqrt(variance), seeds, True)
