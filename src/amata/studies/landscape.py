"""The loss landscape of the inner maximisation: the loss on a plane through an image, and the paths
of attacks.

As in the paper's figure, X is the first principal component of the displacements along a PGD path,
and Y is a Rademacher direction. We make Y orthogonal to X, so plane coordinates are projections.
The grid ignores the ball and the box [0, 1]. The attacks respect both; the figure shows their
points projected onto the plane. A projected point can be outside the edge of the ball in the plane,
but not outside the projection of the ball.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from amata.attacks import pgd
from amata.attacks.preserve import input_grad, untouched
from amata.errors import InputError
from amata.losses import ce
from amata.quantity import positive
from amata.runs import RunFolder
from amata.schedules import Control, largest_control
from amata.studies.epochs import epoch_weights, load_epoch, mean_steepness
from amata.studies.plane import Plane, principal_direction, rademacher_direction
from amata.studies.runs import run_controls
from amata.threat import Ball
from amata.training.loaded import load_trained

CHUNK = 1000
"""Grid points per forward pass."""
CANDIDATES = 100
"""Test images from which the default one is chosen."""
MARGIN = 1.25
"""The grid reaches so far beyond the ball and the paths."""


class Pictured(NamedTuple):
    """The image and what the first attack makes of it, (H, W, C) or (H, W) in [0, 1]."""

    clean: Any
    adversarial: Any


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


def landscape(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    controls: dict[str, Control],
    size: int = 100,
    seed: int = 0,
) -> tuple[dict[str, Any], Pictured]:
    """The loss on a size x size grid around the image x (1, C, H, W), and the PGD path of each
    control. The first path defines the X axis, and gives the adversarial image."""
    with untouched(model):
        paths = {name: pgd_path(model, x, y, ball, u) for name, u in controls.items()}
        first = next(iter(paths.values()))
        along = principal_direction(first, x)
        plane = Plane(x, along, rademacher_direction(x, along, seed))
        courses = {name: plane.coordinates(points) for name, points in paths.items()}
        units = plane.units(ball)
        reach = torch.cat([*courses.values(), torch.tensor([units], device=x.device)]).abs()
        right, top = (MARGIN * reach.amax(0)).tolist()
        across = torch.linspace(-MARGIN * units[0], right, size, device=x.device)
        up = torch.linspace(-top, top, size, device=x.device)
        cells = torch.cartesian_prod(up, across).flip(1)  # X changes fastest
        losses = torch.cat([_loss(model, plane.at(part), y) for part in cells.split(CHUNK)]).view(
            size, size
        )
        climbed = {name: _loss(model, points, y) for name, points in paths.items()}
        predicted = _predicted(model, torch.cat([x, first[-1:]]))
    found = {
        "x": [round(v, 6) for v in across.tolist()],
        "y": [round(v, 6) for v in up.tolist()],
        "loss": [[float(f"{v:.5g}") for v in row] for row in losses.tolist()],
        "eps": ball.eps,
        "norm": ball.norm,
        "units": list(units),
        "edge": _rounded(plane.edge(ball)),
        "shadow": _rounded(plane.shadow(ball)),
        "clean_loss": float(next(iter(climbed.values()))[0]),
        "clean": predicted[0],
        "adversarial": predicted[1],
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
    return found, Pictured(_pixels(x), _pixels(first[-1:]))


def _rounded(points: Tensor) -> list[list[float]]:
    return [[round(v, 5) for v in point] for point in points.tolist()]


def _pixels(x: Tensor) -> Any:
    """An image as matplotlib shows it: grey (H, W), or colours (H, W, 3)."""
    image = x[0].float().cpu()
    return (image.permute(1, 2, 0) if len(image) == 3 else image.mean(0)).numpy()


@torch.no_grad()
def _predicted(model: nn.Module, x: Tensor) -> list[dict[str, Any]]:
    """The predicted class of each image, and its probability."""
    best = model(x).softmax(1).max(1)
    return [
        {"class": int(k), "probability": round(float(p), 4)}
        for p, k in zip(best.values, best.indices, strict=True)
    ]


@torch.no_grad()
def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y.expand(len(x)))


def run_landscapes(
    path: Path,
    epochs: Sequence[int],
    *,
    overrides: tuple[str, ...] = (),
    image: int | None = None,
    steps: Sequence[int] = (40, 2),
    alpha: float | None = None,
    size: int = 100,
    seed: int = 0,
    trust: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], list[Pictured]]:
    """The landscapes of a run after the given epochs (from 1), or of its best model, and the images
    of each.

    The default is the image, among the first test images, whose loss the first attack raises
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
    states = {epoch: epoch_weights(run, epoch, len(trained)) for epoch in epochs}
    model, recipe, splits = load_trained(path, overrides, to_test=True, trust=trust, note=note)
    device = next(model.parameters()).device
    if image is not None and not 0 <= image < len(splits.test):
        raise InputError(
            f"--image {image} is not one of the {len(splits.test)} test images, 0 to "
            f"{len(splits.test) - 1}"
        )
    candidates = list(range(min(CANDIDATES, len(splits.test))))
    some = next(iter(splits.test.read([torch.tensor(candidates)], device, None)))
    chosen = candidates if image is None else [image]
    x, y = next(iter(splits.test.read([torch.tensor(chosen)], device, None)))
    best = run.summary()["best_epoch"] if run.finished else None
    best = max(trained) if best is None else best + 1
    largest = largest_control(recipe.schedule, recipe.train.epochs)
    if not largest.steps * largest.step_size:
        # ordinary training has no attack; 2.5 eps is the reach of PGD-10 on CIFAR-10
        largest = Control(1, 2.5 * recipe.ball.eps)
    attacks = {
        f"PGD-{k}": Control(k, alpha) if alpha else largest.with_steps(k).for_batch(0)
        for k in steps
    }
    landscapes, pictures = [], []
    wanted: Sequence[int | None] = epochs or [None]
    for epoch in wanted:
        if epoch is not None:
            load_epoch(model, states[epoch])
        own = trained[epoch or best].parts()[-1][1]  # of a fractional K, the larger
        controls = {
            **attacks,
            f"training attack, K = {own.steps}": own._replace(step_size=alpha or own.step_size),
        }
        if len(x) > 1:
            first = next(iter(attacks.values()))
            chosen = [steepest_image(model.eval(), x, y, recipe.method.training_ball, first)]
            x, y = x[chosen], y[chosen]
        found, pictured = landscape(
            model.eval(),
            x,
            y,
            ball=recipe.method.training_ball,
            controls=controls,
            size=size,
            seed=seed,
        )
        for key in ("clean", "adversarial"):
            found[key]["name"] = splits.test.names[found[key]["class"]]
        mean = mean_steepness(model, *some, recipe.method.training_ball)
        found["steepness"] = {"images": len(candidates), **mean}
        landscapes.append({"epoch": epoch, **found})
        pictures.append(pictured)
    return {
        "run": path.name,
        "recipe": recipe.name,
        "image": chosen[0],
        "label": int(y),
        "label_name": splits.test.names[int(y)],
        "seed": seed,
        "landscapes": landscapes,
    }, pictures
