"""Losses: closed forms."""

import math

import pytest
import torch

from amata.losses import ce, correct, finite, kl, margin, smooth_ce

NAN, INF = math.nan, math.inf


def logits(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def test_kl_is_of_the_clean_prediction_from_the_adversarial_one() -> None:
    """KL(p || q) = sum p log(p / q), which is not KL(q || p)."""
    p, q = logits(0.9, 0.1), logits(0.5, 0.5)
    assert float(kl(q, p)) == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))
    assert float(kl(p, q)) == pytest.approx(0.5 * math.log(5 / 9) + 0.5 * math.log(5))
    assert float(kl(p + 3, p)) == pytest.approx(0, abs=1e-12)


def test_cross_entropy_and_margin() -> None:
    z, y = logits(0.5, 0.3, 0.2), torch.tensor([1])
    assert float(ce(z, y)) == pytest.approx(-math.log(0.3))
    smoothed = -(0.9 * math.log(0.3) + 0.1 * (math.log(0.5 * 0.3 * 0.2)) / 3)
    assert float(smooth_ce(0.1)(z, y)) == pytest.approx(smoothed)
    assert smooth_ce(0) is ce
    assert float(margin(z, y)) == pytest.approx(math.log(0.5 / 0.3))
    assert float(margin(z, torch.tensor([0]))) == pytest.approx(math.log(0.3 / 0.5))


@pytest.mark.parametrize(
    ("row", "label", "right", "is_finite"),
    [
        ([2.0, 1.0], 0, True, True),
        ([2.0, 1.0], 1, False, True),
        ([NAN, 1.0], 0, False, False),
        ([1.0, NAN], 1, False, False),
        ([INF, 1.0], 0, False, False),
        ([-INF, 1.0], 1, False, False),
    ],
)
def test_only_finite_logits_can_be_right(
    row: list[float], label: int, right: bool, is_finite: bool
) -> None:
    z, y = torch.tensor([row]), torch.tensor([label])
    assert (bool(correct(z, y)), bool(finite(z))) == (right, is_finite)
