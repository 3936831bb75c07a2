"""AutoAttack and its parts against the authors' code in pyautoattack."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from pyautoattack import AutoAttack as Oracle
from pyautoattack import fab_projections
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amata.attacks import autoattack, parse_attack
from amata.attacks.apgd import apgd, dlr, targeted_dlr, untargeted_ce
from amata.attacks.fab import fab, project_to_plane
from amata.attacks.preserve import frozen
from amata.attacks.square import square
from amata.attacks.survivors import Found
from amata.errors import InputError
from amata.losses import correct
from amata.threat import L2, Ball, Linf

BALLS: list[Ball] = [Linf(0.03), L2(0.3)]
NORMS = {"linf": "Linf", "l2": "L2"}
WIDER = {10: 1, 4: 2, 3: 2, 2: 3}
"""Few classes are easier to tell apart: so much larger balls break some images, but not all."""
balls = pytest.mark.parametrize("ball", BALLS, ids=["linf", "l2"])


@cache
def trained(classes: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network that a short training has made a little robust, and 48 images that it
    classifies correctly."""
    rng = torch.Generator().manual_seed(classes)
    patterns = torch.rand(classes, 3, 6, 6, generator=rng)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (n,), generator=rng)
        return 0.35 * patterns[y] + 0.65 * torch.rand(n, 3, 6, 6, generator=rng), y

    with torch.random.fork_rng():
        torch.manual_seed(classes)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, classes)
        )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(40):
        x, y = draw(64)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    x, y = draw(100)
    right = correct(model(x), y)
    return model.eval(), x[right][:48], y[right][:48]


def broken(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return ~correct(model(x), y)


def runs(
    name: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    steps: int,
    found: Found | None = None,
) -> Found:
    """One of our attacks alone, with the seed 5."""
    found, rng = found or Found(x, len(x)), torch.Generator().manual_seed(5)
    given: dict[str, Any] = {"ball": ball, "rng": rng, "found": found}
    ranked = model(x).argsort(1, descending=True).T[1:]
    with frozen(model):
        if name == "square":
            square(model, x, y, queries=steps, **given)
        elif name in ("apgd-ce", "apgd-dlr"):
            loss = untargeted_ce if name == "apgd-ce" else dlr
            apgd(model, x, y, objective=loss, steps=steps, **given)
        elif name == "apgd-t":
            for target in ranked:
                apgd(model, x, y, objective=targeted_dlr, targets=target, steps=steps, **given)
        elif name == "fab-t":
            for target in ranked:
                fab(model, x, y, targets=target, steps=steps, **given)
        else:
            fab(model, x, y, steps=steps, **given)
    return found


def oracle(name: str, model: nn.Module, classes: int, ball: Ball, steps: int) -> Any:
    given: dict[str, Any] = {"norm": NORMS[ball.norm], "eps": ball.eps, "seed": 5, "device": "cpu"}
    few: dict[str, Any] = {"n_target_classes": classes - 1}
    return {
        "square": partial(SquareAttack, n_queries=steps, resc_schedule=False),
        "apgd-ce": partial(APGDAttack, n_iter=steps, loss="ce"),
        "apgd-dlr": partial(APGDAttack, n_iter=steps, loss="dlr"),
        "apgd-t": partial(APGDAttack_targeted, n_iter=steps, **few),
        "fab-t": partial(FABAttack_PT, n_iter=steps, targeted=True, **few),
        "fab": partial(FABAttack_PT, n_iter=steps),
    }[name](model, **given)


@balls
@pytest.mark.parametrize(
    ("name", "classes", "steps"),
    [
        ("apgd-ce", 10, 60),
        ("apgd-ce", 2, 30),
        ("apgd-dlr", 3, 30),
        ("apgd-t", 10, 12),
        ("apgd-t", 4, 30),
        ("fab-t", 10, 5),
        ("fab-t", 2, 30),
        ("fab", 3, 10),
    ],
)
def test_each_attack_gives_the_authors_verdicts(
    name: str, classes: int, steps: int, ball: Ball
) -> None:
    """The random draws are the same, so every image must get the same verdict."""
    model, x, y = trained(classes)
    ball = ball.scaled(WIDER[classes])
    ours = runs(name, model, x, y, ball, steps)
    with frozen(model):
        theirs = broken(model, oracle(name, model, classes, ball, steps).perturb(x, y), y)
    assert torch.equal(broken(model, ours.x_adv, y), ours.broken)
    assert torch.equal(ours.broken, theirs)
    assert 0 < int(theirs.sum()) < len(x)
    assert float(ball.distance(ours.x_adv, x).max()) <= ball.eps * 1.00001
    assert torch.equal(ours.x_adv[~ours.broken], x[~ours.broken])


def test_square_finds_the_authors_images() -> None:
    model, x, y = trained(10)
    ball = Linf(0.06)
    ours = runs("square", model, x, y, ball, 300)
    theirs = oracle("square", model, 10, ball, 300).perturb(x, y)
    assert torch.allclose(ours.x_adv, theirs, atol=1e-6)
    assert 0 < int(ours.broken.sum()) < len(x)


def test_square_proposes_the_authors_images_in_l2() -> None:
    """Signs are drawn for the images that are left, so the draws agree until the first is
    broken."""
    model, x, y = trained(10)
    ball, seen = L2(0.05), [[], []]  # type: ignore[var-annotated]

    class Seen(nn.Module):
        def __init__(self, into: list[Tensor]) -> None:
            super().__init__()
            self.into = into

        def forward(self, x: Tensor) -> Tensor:
            self.into.append(x.clone())
            return model(x)

    with torch.no_grad():
        lasting = ~oracle("square", model, 10, ball, 30).perturb(x, y).ne(x).flatten(1).any(1)
        x, y = x[lasting], y[lasting]
        oracle("square", Seen(seen[0]), 10, ball, 30).perturb(x, y)
        found, rng = Found(x, len(x)), torch.Generator().manual_seed(5)
        square(Seen(seen[1]), x, y, queries=30, ball=ball, rng=rng, found=found)
    for theirs, ours in zip(seen[0][1:32], seen[1], strict=True):
        assert torch.allclose(theirs, ours[: len(theirs)], atol=1e-6)


@balls
def test_projections_are_the_nearest_points_of_the_plane_in_the_box(ball: Ball) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(300, 500, generator=rng)
    x[:100] = x[:100].round()
    w = torch.randn(300, 500, generator=rng) * torch.rand(300, 500, generator=rng).pow(3)
    w[w.abs() < 1e-6] = 0
    b = (w * torch.rand(300, 500, generator=rng)).sum(1)
    b[:30] *= 100  # the box does not reach the plane
    theirs = getattr(fab_projections, f"projection_{ball.norm}")(x, w, b)
    ours = project_to_plane(x, w, (w * x).sum(1) - b, ball.norm)
    assert torch.allclose(ours, theirs, atol=1e-5)
    flat = project_to_plane(x, torch.zeros_like(w), b, ball.norm)
    assert not flat.any(), "without a gradient there is no direction"


@balls
@pytest.mark.parametrize("classes", [10, 4, 3, 2])
def test_autoattack_gives_the_authors_verdicts(
    classes: int, ball: Ball, short_autoattack: None
) -> None:
    model, x, y = trained(classes)
    ball = ball.scaled(WIDER[classes])
    theirs = Oracle(model, eps=ball.eps, norm=NORMS[ball.norm], device="cpu", seed=1)
    theirs.apgd_targeted.n_target_classes = theirs.fab.n_target_classes = classes - 1
    theirs.apgd.n_iter = theirs.apgd_targeted.n_iter = theirs.fab.n_iter = 4
    theirs.square.n_queries = 20
    if classes < 4:
        theirs.attacks_to_run = ["apgd-ce", "fab-t", "square"]
    with frozen(model):
        x_theirs, _ = theirs.run_standard_evaluation(x, y)
    ours = broken(model, autoattack(model, x, y, ball=ball, batch_size=20), y)
    differ = int((ours != broken(model, x_theirs, y)).sum())
    assert differ <= 2, "other random draws"
    assert 0 < int(ours.sum()) < len(x)


@pytest.mark.parametrize("name", ["apgd-ce", "fab-t", "square"])
def test_the_judge_decides_which_images_are_broken(name: str) -> None:
    """The attacked copy takes classes 0 to 4 for lost too early; only the model's word counts."""
    model, x, y = trained(10)
    shift = nn.Linear(10, 10)
    copy = nn.Sequential(model, shift)
    with torch.no_grad():
        shift.weight.copy_(torch.eye(10))
        shift.bias.copy_(torch.tensor([-1.0] * 5 + [0.0] * 5))
    found = Found(x, len(x), judge=model)
    runs(name, copy, x, y, Linf(0.02), 8, found)
    alone = runs(name, copy, x, y, Linf(0.02), 8)
    assert torch.equal(broken(model, found.x_adv, y), found.broken)
    assert not torch.equal(broken(model, alone.x_adv, y), alone.broken), "the copy errs"
    assert int(found.broken.sum()) > 0
    assert torch.equal(found.x_adv[~found.broken], x[~found.broken])


@pytest.mark.parametrize("name", ["apgd-ce", "apgd-t", "fab-t", "square"])
def test_the_parts_are_attacks_of_their_own(name: str, short_autoattack: None) -> None:
    model, x, y = trained(10)
    attack = parse_attack(f"{name}@9")
    count = {"queries": 20} if name == "square" else {"iterations": 4}
    assert attack.params(BALLS[0]) == {"norm": "linf", "eps": 0.03, **count}
    first, second = (attack(model, x, y, ball=Linf(0.06), seed=s) for s in (1, 1))
    assert torch.equal(first, second)
    assert broken(model, first, y).any()
    if name == "apgd-t":
        three = nn.Sequential(model, nn.Linear(10, 3)).eval()
        with pytest.raises(InputError, match="apgd-t needs a model with 4 classes or more, this"):
            attack(three, x, y.clamp(max=2), ball=Linf(0.06), seed=1)
