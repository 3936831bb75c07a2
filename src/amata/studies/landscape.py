"""The loss landscape of the inner maximisation: the loss on a plane through an image, and the paths
of attacks.

As in the paper's figure, X is the first principal component of the displacements along a PGD path,
and Y is a Rademacher direction. We make Y orthogonal to X, so plane coordinates are projections.
The grid ignores the ball and the box [0, 1]. The attacks respect both; the figure shows their
points projected onto the plane.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amata.attacks import pgd
from amata.attacks.preserve import input_grad, untouched
from amata.errors import InputError
from amata.losses import ce
from amata.models import load_state
from amata.quantity import positive
from amata.runs import RunFolder
from amata.runs.files import under
from amata.schedules import Control
from amata.seeds import generator
from amata.studies.runs import run_controls
from amata.tensors import read_tensors
from amata.threat import Ball
from amata.training.experiment import load_trained

CHUNK = 1000
"""Grid points per forward pass."""
CANDIDATES = 100
"""Test images from which the default sample is chosen."""


@dataclass(frozen=True)
class Plane:
    """Two orthonormal directions through an image."""

    origin: Tensor
    x: Tensor
    y: Tensor

    def coordinates(self, points: Tensor) -> Tensor:
        """The coordinates of each point's projection, (N, 2)."""
        moved = (points - self.origin).flatten(1)
        return torch.stack([moved @ self.x.flatten(), moved @ self.y.flatten()], 1)

    def at(self, coordinates: Tensor) -> Tensor:
        """The points of the plane at these coordinates (N, 2)."""
        a, b = (coordinates[:, i].view(-1, *[1] * (self.origin.dim() - 1)) for i in (0, 1))
        return self.origin + a * self.x + b * self.y


def pgd_path(model: nn.Module, x: Tensor, y: Tensor, ball: Ball, u: Control) -> Tensor:
    """The iterates of PGD from the clean image, which is the first: (K + 1, C, H, W)."""
    region, points = ball.around(x), [x]
    for _ in range(u.steps):
        points.append(
            region.project(
                region.ascend(points[-1], input_grad(model, points[-1], y, ce), u.step_size)
            )
        )
    return torch.cat(points)


def steepest_image(model: nn.Module, x: Tensor, y: Tensor, ball: Ball, u: Control) -> int:
    """The index of the image whose loss the attack raises most; most landscapes are flat."""
    with untouched(model):
        found = pgd(
            model, x, y, ball=ball, steps=u.steps, step_size=u.step_size, random_start=False
        )
        return int((_loss(model, found, y) - _loss(model, x, y)).argmax())


def principal_direction(points: Tensor, origin: Tensor) -> Tensor:
    """The first principal component of the displacements, pointing towards the last of them."""
    moved = (points - origin).flatten(1)
    centred = moved - moved.mean(0)
    direction = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    if float(centred.abs().max()) == 0:
        raise InputError(
            "the attack does not move this image, so it has no principal direction; choose another "
            "--sample"
        )
    return (direction if float(moved[-1] @ direction) >= 0 else -direction).view(origin.shape)


def rademacher_direction(origin: Tensor, other: Tensor, seed: int) -> Tensor:
    """A unit vector of random signs, orthogonalised against `other`."""
    signs = (
        torch.randint(0, 2, origin.shape, generator=generator(seed, "rademacher")).to(
            origin.device, origin.dtype
        )
        * 2
        - 1
    )
    signs = signs - (signs * other).sum() * other
    return signs / signs.norm()


def landscape(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    controls: dict[str, Control],
    size: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """The loss on a size x size grid around the image x (1, C, H, W), and the PGD path of each
    control. The first path defines the X axis."""
    with untouched(model):
        paths = {name: pgd_path(model, x, y, ball, u) for name, u in controls.items()}
        along = principal_direction(next(iter(paths.values())), x)
        plane = Plane(x, along, rademacher_direction(x, along, seed))
        courses = {name: plane.coordinates(points) for name, points in paths.items()}
        reach = 1.3 * max(float(c.abs().max()) for c in courses.values())
        # the paths go to the right
        across = torch.linspace(-0.3 * reach, reach, size, device=x.device)
        up = torch.linspace(-0.65 * reach, 0.65 * reach, size, device=x.device)
        cells = torch.cartesian_prod(up, across).flip(1)  # X changes fastest
        losses = torch.cat([_loss(model, plane.at(part), y) for part in cells.split(CHUNK)]).view(
            size, size
        )
        climbed = {name: _loss(model, points, y) for name, points in paths.items()}
    return {
        "x": [round(v, 6) for v in across.tolist()],
        "y": [round(v, 6) for v in up.tolist()],
        "loss": [[float(f"{v:.5g}") for v in row] for row in losses.tolist()],
        "clean_loss": float(next(iter(climbed.values()))[0]),
        "courses": [
            {
                "name": n,
                "steps": u.steps,
                "step_size": u.step_size,
                "points": courses[n].tolist(),
                "loss": climbed[n].tolist(),
            }
            for n, u in controls.items()
        ],
    }


@torch.no_grad()
def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y.expand(len(x)))


def run_landscapes(
    path: Path,
    epochs: Sequence[int],
    *,
    sample: int | None = None,
    steps: Sequence[int] = (40, 2),
    alpha: float | None = None,
    size: int = 100,
    seed: int = 0,
    trust: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The landscapes of a run after the given epochs (from 1), or of its best model.

    The default sample is the image, among the first test images, whose loss the first attack raises
    most at the first epoch. `trust` runs the code that the run's recipe names.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a run folder; a landscape needs the run's controls")
    alpha = None if alpha is None else positive(alpha, "alpha")
    if not steps:
        raise InputError("the landscape needs an attack; --steps 40,2 are the default")
    run = RunFolder.open(path)[0]
    trained = {epoch + 1: u for epoch, u in run_controls(run).items()}
    if not trained:
        raise InputError(f"{path} has no finished epoch; train it first")
    states = {epoch: _state(run, epoch, len(trained)) for epoch in epochs}
    model, recipe, splits = load_trained(path, trust=trust, note=note)
    device = next(model.parameters()).device
    if sample is not None and not 0 <= sample < len(splits.test):
        raise InputError(
            f"--sample {sample} is not one of the {len(splits.test)} test images, 0 to "
            f"{len(splits.test) - 1}"
        )
    chosen = list(range(min(CANDIDATES, len(splits.test)))) if sample is None else [sample]
    x, y = next(iter(splits.test.read([torch.tensor(chosen)], device, None)))
    best = run.summary()["best_epoch"] if run.finished else None
    best = max(trained) if best is None else best + 1
    tau = getattr(recipe.schedule, "tau", 2.5 * recipe.ball.eps)
    attacks = {f"PGD-{k}": Control(k, alpha or tau / k) for k in steps}
    pictures = []
    wanted: Sequence[int | None] = epochs or [None]
    for epoch in wanted:
        if epoch is not None:
            state = read_tensors(states[epoch])
            # EMA weights if there are any: evaluation uses them
            load_state(model, under(state, "ema/") or under(state, "model/"), states[epoch])
        own = trained[epoch or best]
        controls = {
            **attacks,
            f"{recipe.name}, K = {own.steps}": own._replace(step_size=alpha or own.step_size),
        }
        if len(x) > 1:
            first = next(iter(attacks.values()))
            chosen = [steepest_image(model.eval(), x, y, recipe.method.training_ball, first)]
            x, y = x[chosen], y[chosen]
        found = landscape(
            model.eval(),
            x,
            y,
            ball=recipe.method.training_ball,
            controls=controls,
            size=size,
            seed=seed,
        )
        pictures.append({"epoch": epoch, **found})
    return {
        "run": path.name,
        "recipe": recipe.name,
        "sample": chosen[0],
        "label": int(y),
        "seed": seed,
        "landscapes": pictures,
    }


def _state(run: RunFolder, epoch: int, epochs: int) -> Path:
    if not 1 <= epoch <= epochs:
        raise InputError(f"--epochs {epoch} is not one of the run's {epochs} epochs")
    if not run.epoch_file(epoch).is_file():
        raise InputError(
            f"{run.path} has no saved epochs; train it again with --set train.keep_epochs=true, or "
            "drop --epochs"
        )
    return run.epoch_file(epoch)
