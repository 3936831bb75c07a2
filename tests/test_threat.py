"""Balls: what every start, step and projection must respect."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from amata.errors import InputError
from amata.seeds import derive, generator
from amata.threat import BALLS, L2, Linf, feasible_gap
from tests.conftest import images

seeds = st.integers(0, 2**31)
balls = st.one_of(st.floats(1e-3, 1.0).map(Linf), st.floats(1e-3, 3.0).map(L2))


@given(balls, seeds)
def test_starts_and_projections_stay_in_the_ball_and_the_box(ball: Linf | L2, seed: int) -> None:
    x = images(seed=seed)
    region = ball.around(x)
    far = x + 10 * torch.randn(x.shape, generator=generator(seed))
    for point in (
        region.start(generator(seed)),
        region.project(far),
        region.project(region.ascend(x, far, 2.0)),
    ):
        assert float(ball.distance(point, x).max()) <= ball.eps * (1 + 1e-5) + 1e-6
        assert float(point.min()) >= 0
        assert float(point.max()) <= 1


@given(balls, seeds)
def test_a_projection_leaves_feasible_points_alone(ball: Linf | L2, seed: int) -> None:
    region = ball.around(images(seed=seed))
    point = region.start(generator(seed))
    torch.testing.assert_close(region.project(point), point, atol=1e-6, rtol=0)


def test_linf_projection_is_the_nearest_point() -> None:
    x = torch.full((1, 1, 1, 3), 0.5)
    moved = torch.tensor([0.2, 0.55, 2.0]).view(1, 1, 1, 3)
    torch.testing.assert_close(
        Linf(0.1).around(x).project(moved).flatten(), torch.tensor([0.4, 0.55, 0.6])
    )


def test_l2_projection_shrinks_the_difference_only_when_too_long() -> None:
    x = torch.full((2, 1, 1, 2), 0.5)
    moved = x + torch.tensor([[0.3, 0.4], [0.03, 0.04]]).view(2, 1, 1, 2)
    expected = x + torch.tensor([[0.06, 0.08], [0.03, 0.04]]).view(2, 1, 1, 2)
    torch.testing.assert_close(L2(0.1).around(x).project(moved), expected)


def test_an_ascent_step_has_its_step_size() -> None:
    x, g = images(), torch.randn(6, 1, 6, 6, generator=generator(1))
    for ball in (Linf(1), L2(1)):
        torch.testing.assert_close(
            ball.distance(ball.around(x).ascend(x, g, 0.25), x), torch.full((6,), 0.25)
        )


def test_a_tiny_gradient_makes_a_whole_step() -> None:
    x, g = images(), 1e-30 * torch.randn(6, 1, 6, 6, generator=generator(1))
    for ball in (Linf(1), L2(1)):
        torch.testing.assert_close(
            ball.distance(ball.around(x).ascend(x, g, 0.25), x), torch.full((6,), 0.25)
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_zero_gradient_moves_nothing(dtype: torch.dtype) -> None:
    x = images().to(dtype)
    for kind in BALLS.values():
        region = kind(1.0).around(x)
        assert torch.equal(region.ascend(x, torch.zeros_like(x), 0.25), x)
        assert torch.equal(region.project(x), x)


def test_a_gradient_that_is_not_finite_moves_only_its_finite_part() -> None:
    x = torch.full((3, 1, 1, 2), 0.5)
    g = torch.tensor([[torch.nan, torch.nan], [torch.nan, -2.0], [3.0, 4.0]]).view(3, 1, 1, 2)
    for ball, third in ((Linf(1), [0.75, 0.75]), (L2(1), [0.65, 0.7])):
        expected = torch.tensor([[0.5, 0.5], [0.5, 0.25], third]).view(3, 1, 1, 2)
        torch.testing.assert_close(ball.around(x).ascend(x, g, 0.25), expected)


def test_fosc_is_zero_at_the_corner_and_the_dual_norm_at_the_centre() -> None:
    """eps |g|_dual - <x' - x, g>, with the L1 norm for L-inf and the L2 norm for L2."""
    x = torch.full((1, 1, 1, 2), 0.5)
    g = torch.tensor([3.0, -4.0]).view(1, 1, 1, 2)
    for ball, dual in ((Linf(0.1), 7.0), (L2(0.1), 5.0)):
        best = x + 0.1 * ball.direction(g)
        assert float(ball.fosc(x, x, g)) == pytest.approx(0.1 * dual)
        assert float(ball.fosc(best, x, g)) == pytest.approx(0, abs=1e-6)
        assert float(ball.fosc(2 * x - best, x, g)) == pytest.approx(0.2 * dual)


@settings(max_examples=40)
@given(balls, seeds)
def test_the_feasible_gap_is_at_least_0_at_most_fosc_and_0_at_the_maximiser(
    ball: Linf | L2, seed: int
) -> None:
    x = images(seed=seed).double().round(decimals=1)  # some pixels are at 0 or 1
    g = torch.randn(x.shape, generator=generator(seed), dtype=x.dtype)
    g = g * (g.abs() > 0.3)
    region = ball.around(x)
    best, scale = region.maximiser(g), ball.eps * float(g.abs().sum())
    assert float(ball.distance(best, x).max()) <= ball.eps * (1 + 1e-12)
    assert 0 <= float(best.min()) <= float(best.max()) <= 1
    assert float(feasible_gap(region, best, g).abs().max()) <= 1e-12 * scale
    for point in (x, region.start(generator(seed)), region.project(x + ball.direction(g))):
        gap, fosc = feasible_gap(region, point, g), ball.fosc(point, x, g)
        assert float(gap.min()) >= -1e-12 * scale
        assert float((gap - fosc).max()) <= 1e-12 * scale


@pytest.mark.parametrize("eps", [0.05, 0.3, 0.6, 0.9, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_feasible_gap_is_what_scipy_finds(eps: float, dtype: torch.dtype) -> None:
    """From pixels inside and at the edge of [0, 1], up to a ball that holds all of it."""
    x = torch.tensor([[0.5, 0.9, 0.0, 1.0], [0.1, 0.2, 0.98, 0.6], [0.0, 1.0, 0.0, 1.0]])
    g = torch.tensor([[1.0, 5.0, -2.0, -0.1], [-3.0, 0.0, 0.7, 1e-3], [-1.0, 2.0, -3.0, 4.0]])
    for row in range(3):
        at, slope = x[row].double().numpy(), g[row].double().numpy()
        bounds = [(0.0, 1.0)] * 4
        box = [(max(0.0, a - eps), min(1.0, a + eps)) for a in at]
        l2 = minimize(
            lambda p, slope=slope: -p @ slope,
            at,
            jac=lambda p, slope=slope: -slope,
            bounds=bounds,
            constraints={
                "type": "ineq",
                "fun": lambda p, at=at: eps**2 - np.sum((p - at) ** 2),
                "jac": lambda p, at=at: 2 * (at - p),
            },
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert l2.status in (0, 8)  # 8: no better point is found, where 1e-12 cannot be reached
        for ball, most in (
            (L2(eps), -l2.fun),
            (Linf(min(eps, 1)), -linprog(-slope, bounds=box).fun),
        ):
            point = x[row : row + 1].to(dtype)
            found = feasible_gap(ball.around(point), point, g[row : row + 1].to(dtype))
            assert float(found) == pytest.approx(most - at @ slope, rel=2e-6, abs=2e-6)


def test_fosc_stays_above_0_at_a_maximiser_on_the_edge_of_the_box_and_the_gap_does_not() -> None:
    x, g = torch.tensor([[1.0, 0.5]]), torch.tensor([[3.0, 4.0]])
    for ball, fosc in ((Linf(0.1), 0.3), (L2(0.1), 0.1)):
        region = ball.around(x)
        best = torch.tensor([[1.0, 0.6]])
        torch.testing.assert_close(region.maximiser(g), best)
        assert float(ball.fosc(best, x, g)) == pytest.approx(fosc)
        assert float(feasible_gap(region, best, g)) == pytest.approx(0, abs=1e-6)
        assert float(feasible_gap(region, x, g)) == pytest.approx(0.4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_zero_gradient_has_no_gap_and_a_tiny_one_a_maximiser(dtype: torch.dtype) -> None:
    x = images().to(dtype)
    g = torch.randn(x.shape, generator=generator(1)).to(dtype)
    tiny = g * torch.finfo(dtype).tiny
    for ball in (Linf(0.5), L2(0.5), L2(9)):
        region = ball.around(x)
        assert not feasible_gap(region, x, torch.zeros_like(x)).any()
        if dtype.itemsize > 2:
            torch.testing.assert_close(region.maximiser(1e-30 * g), region.maximiser(g))
        assert region.maximiser(tiny).isfinite().all()


def test_an_l2_projection_is_feasible_but_not_always_the_nearest_point() -> None:
    """x' = (1.5, 0.9) seen from (0.9, 0.5) with eps = 0.5: the ball first, then the box."""
    x, far = torch.tensor([[0.9, 0.5]]), torch.tensor([[1.5, 0.9]])
    ball = L2(0.5)
    found = ball.around(x).project(far)
    nearer = torch.tensor([[1.0, 0.9]])
    assert float(ball.distance(found, x)) <= 0.5
    assert float(ball.distance(nearer, x)) <= 0.5
    assert float(ball.distance(nearer, far)) < float(ball.distance(found, far))


def test_starts_fill_the_ball() -> None:
    x = torch.full((4000, 1, 1, 2), 0.5)
    linf = Linf(0.2).around(x).start(generator(0)) - x
    assert float(linf.abs().max()) == pytest.approx(0.2, abs=1e-3)
    assert float(linf.std()) == pytest.approx(0.2 / 3**0.5, rel=0.05)
    l2 = L2(0.2).distance(L2(0.2).around(x).start(generator(0)), x)
    # r^2 is uniform in two dimensions
    assert float((l2 / 0.2).square().mean()) == pytest.approx(0.5, rel=0.05)


def test_draws_depend_on_every_key_and_on_nothing_else() -> None:
    keys = [(0, 0, 0, "a"), (1, 0, 0, "a"), (0, 1, 0, "a"), (0, 0, 1, "a"), (0, 0, 0, "b")]
    assert len({derive(*k) for k in keys}) == len(keys)
    torch.manual_seed(1)
    first = torch.rand(3, generator=generator(0, 1, "x"))
    torch.manual_seed(2)
    assert torch.equal(first, torch.rand(3, generator=generator(0, 1, "x")))


def test_a_radius_may_be_written_as_a_fraction() -> None:
    assert Linf("8/255").eps == 8 / 255


@pytest.mark.parametrize("eps", [0, -1, "x", float("nan"), 1.001, 8])
def test_bad_radii_are_errors(eps: float) -> None:
    with pytest.raises(InputError, match="eps"):
        Linf(eps)


def test_the_largest_radii_are_accepted() -> None:
    assert Linf(1).eps == 1
    assert L2(8).eps == 8
