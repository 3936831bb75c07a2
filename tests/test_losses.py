"""Losses: closed forms."""

import math

import pytest
import torch

from amata.losses import ce, correct, finite, kl, margin, nuclear, runner_up, smooth_ce
from amata.polar import polar

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


def test_the_runner_up_counts_where_it_is_nearly_certain() -> None:
    """-log(1 - p_k). With the reference's constant it is 9.2 at most, without a gradient."""
    y = torch.tensor([1])
    assert float(runner_up(logits(0.5, 0.3, 0.2), y)) == pytest.approx(-math.log(0.5))
    assert float(runner_up(logits(0.2, 0.7, 0.1), y)) == pytest.approx(-math.log(0.8))
    two = logits(0.9, 0.1)
    assert float(runner_up(two, y)) == pytest.approx(float(ce(two, y)))
    z = torch.tensor([[80.0, 0.0, 0.0]], requires_grad=True)  # 1 - p_0 rounds to 0
    found = runner_up(z, y)
    found.backward()
    assert found.item() == pytest.approx(80 - math.log(2))
    assert z.grad is not None
    assert z.grad.tolist() == [[1.0, -0.5, -0.5]]


MATRICES = {
    "tall": torch.randn(128, 10, generator=torch.Generator().manual_seed(0)),
    "wide": torch.randn(6, 30, generator=torch.Generator().manual_seed(1)),
    "one row": torch.randn(1, 10, generator=torch.Generator().manual_seed(2)),
    "one class": torch.randn(9, 1, generator=torch.Generator().manual_seed(3)),
    "tiny": 1e-30 * torch.randn(8, 4, generator=torch.Generator().manual_seed(4)),
    "large": 1e18 * torch.randn(8, 4, generator=torch.Generator().manual_seed(5)),
    "nearly singular": torch.diag(torch.tensor([1.0, 1e-2, 1e-4, 1e-5])),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MATRICES)
def test_the_nuclear_norm_and_its_gradient_are_those_of_the_svd(
    name: str, dtype: torch.dtype
) -> None:
    d = MATRICES[name].to(dtype).requires_grad_()
    shares = nuclear(d)
    u, s, v = torch.linalg.svd(d.detach().double(), full_matrices=False)
    assert len(shares) == len(d)
    assert shares.double().sum().item() == pytest.approx(float(s.sum()), rel=1e-6)
    (g,) = torch.autograd.grad(shares.sum(), d)
    torch.testing.assert_close(g.double(), u @ v, atol=1e-6, rtol=0)
    (weighted,) = torch.autograd.grad((torch.arange(len(d)) * nuclear(d)).sum(), d)
    expected = torch.arange(len(d))[:, None] * (u @ v)
    torch.testing.assert_close(weighted.double(), expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_the_nuclear_norm_of_a_singular_matrix_has_a_subgradient(rank: int) -> None:
    """<G, d> = |d|_* and singular values of at most 1; outside the row space it may be 0."""
    rng = torch.Generator().manual_seed(rank)
    left, right = (
        torch.randint(-3, 4, shape, generator=rng).double() for shape in ((12, rank), (rank, 5))
    )
    d = (left @ right).requires_grad_()  # whole numbers: exactly of this rank
    assert int(torch.linalg.matrix_rank(d.detach())) == rank
    (g,) = torch.autograd.grad(nuclear(d).sum(), d)
    norm = torch.linalg.svdvals(d.detach()).sum()
    assert nuclear(d).sum().item() == pytest.approx(float(norm), rel=1e-9)
    assert (g * d).sum().item() == pytest.approx(float(norm), rel=1e-9)
    assert float(torch.linalg.svdvals(g).max()) <= 1 + 1e-9
    assert g.isfinite().all()
    assert torch.equal(polar(torch.zeros(3, 4)), torch.zeros(3, 4))
