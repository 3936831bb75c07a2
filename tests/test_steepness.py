"""Steepness: against the closed forms of a logistic model, and over the saved epochs of a run."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from amata import recipes
from amata.errors import InputError
from amata.evaluation.steepness import steepness
from amata.studies.epochs import run_steepness
from amata.threat import L2, Ball, Linf
from amata.training.experiment import train
from tests.conftest import images, labels, small_net
from tests.test_compare import QUICK


class Logistic(nn.Module):
    """Two classes with logits 0 and w x + b: l = log(1 + e^(-z)) for label 1."""

    def __init__(self, w: Tensor, b: float) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(w), b

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1) @ self.w + self.b
        return torch.stack([torch.zeros_like(z), z], 1)


@pytest.mark.parametrize(
    ("ball", "fall"),
    # by how much the attack lowers z, and how far it moves the image in L2
    [
        (Linf(0.1), lambda w: (0.1 * w.abs().sum(), 0.1 * 12**0.5)),
        (L2(0.1), lambda w: (0.1 * w.norm(), 0.1)),
    ],
)
def test_a_logistic_model_has_a_closed_form(ball: Ball, fall: object) -> None:
    w = torch.linspace(-3, 2, 12, dtype=torch.float64)
    x = torch.linspace(0.3, 0.7, 36, dtype=torch.float64).view(3, 3, 2, 2)  # away from 0 and 1
    found = steepness(Logistic(w, 0.4), x, torch.ones(3, dtype=torch.int64), ball)
    z = x.flatten(1) @ w + 0.4
    lower, moved = fall(w)  # type: ignore[operator]
    slope = torch.sigmoid(-z)
    torch.testing.assert_close(found.gradient_l1, slope * w.abs().sum())
    torch.testing.assert_close(found.gradient_l2, slope * w.norm())
    bent = (torch.sigmoid(lower - z) - slope) * w.norm() / moved
    torch.testing.assert_close(found.curvature, bent)


def test_a_flat_loss_has_no_steepness_and_the_box_limits_the_move() -> None:
    flat = steepness(
        Logistic(torch.zeros(4), 1.0), torch.rand(2, 1, 2, 2), torch.ones(2).long(), L2(1)
    )
    assert all(torch.equal(value, torch.zeros(2)) for value in flat)
    # every pixel is already where the attack would move it
    cornered = steepness(
        Logistic(-torch.ones(4), 1.0), torch.ones(1, 1, 2, 2), torch.ones(1).long(), Linf(0.1)
    )
    assert float(cornered.gradient_l1) > 0
    assert float(cornered.curvature) == 0


def test_images_do_not_depend_on_their_batch_and_the_model_stays() -> None:
    model, x, y = small_net().train(), images(4), labels(4)
    whole = steepness(model, x, y, Linf(0.1))
    alone = steepness(model, x[2:3], y[2:3], Linf(0.1))
    for a, b in zip(whole, alone, strict=True):
        torch.testing.assert_close(a[2:3], b, rtol=1e-3, atol=1e-6)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_a_run_is_measured_after_every_saved_epoch(tmp_path: Path) -> None:
    short = [*QUICK, "train.epochs=2", "eval.limit=10", "optim.ema=0.9", "train.keep_epochs=true"]
    train(recipes.load("mnist5k-amata", short), tmp_path / "run")
    rows = run_steepness(tmp_path / "run", images=10)
    assert [(row["epoch"], row["images"]) for row in rows] == [(1, 10), (2, 10)]
    assert rows[0]["gradient_l1"] != rows[1]["gradient_l1"] > rows[1]["gradient_l2"] > 0
    assert run_steepness(tmp_path / "run", [2], images=10) == rows[1:]
    shutil.rmtree(tmp_path / "run" / "epochs")
    with pytest.raises(InputError, match="no saved epochs"):
        run_steepness(tmp_path / "run")
