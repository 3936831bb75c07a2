"""Balls: what every start, step and projection must respect."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amata.errors import InputError
from amata.seeds import derive, generator
from amata.threat import BALLS, L2, Linf
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
