"""Attacks: one conformance table, closed forms on linear models, and agreement with foolbox."""

from collections.abc import Callable
from typing import Any

import eagerpy as ep
import foolbox as fb
import pytest
import torch
from torch import Tensor, nn

from amata.attacks import autoattack, cw_l2, cw_pgd, fgsm, pgd
from amata.errors import InputError
from amata.losses import ce, margin
from amata.threat import L2, Ball, Linf
from tests.conftest import Linear, images, labels, small_net

LINF, TWO = Linf(0.1), L2(0.5)
Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]

# name -> (attack, the ball it must stay in, the loss it must not lower)
ATTACKS: dict[str, tuple[Attack, Ball | None, Any]] = {
    "fgsm": (lambda m, x, y: fgsm(m, x, y, ball=LINF), LINF, None),
    "pgd": (lambda m, x, y: pgd(m, x, y, ball=LINF, steps=10), LINF, ce),
    "pgd, no random start": (
        lambda m, x, y: pgd(m, x, y, ball=LINF, steps=10, random_start=False),
        LINF,
        ce,
    ),
    "pgd, restarts": (lambda m, x, y: pgd(m, x, y, ball=LINF, steps=5, restarts=3), LINF, ce),
    "pgd, targeted": (
        lambda m, x, y: pgd(m, x, y, ball=LINF, steps=10, targets=(y + 1) % 4),
        LINF,
        None,
    ),
    "pgd in L2": (lambda m, x, y: pgd(m, x, y, ball=TWO, steps=10), TWO, ce),
    "cw-pgd": (lambda m, x, y: cw_pgd(m, x, y, ball=LINF, steps=10), LINF, margin),
    "cw-l2": (lambda m, x, y: cw_l2(m, x, y, c=1.0, steps=20), None, None),
    "autoattack": (lambda m, x, y: autoattack(m, x, y, ball=LINF), LINF, None),
    "autoattack in L2": (lambda m, x, y: autoattack(m, x, y, ball=TWO), TWO, None),
}
rows = pytest.mark.parametrize("name", ATTACKS)
quick_rows = pytest.mark.parametrize("name", [name for name in ATTACKS if "autoattack" not in name])


@rows
def test_the_budget_and_the_box_are_respected(name: str) -> None:
    attack, ball, loss = ATTACKS[name]
    model, x, y = small_net(), images(8), labels(8)
    before = x.clone()
    x_adv = attack(model, x, y)
    assert torch.equal(x, before), "the images were changed in place"
    assert (x_adv.shape, x_adv.dtype, x_adv.device, x_adv.requires_grad) == (
        x.shape,
        x.dtype,
        x.device,
        False,
    )
    assert float(x_adv.min()) >= 0
    assert float(x_adv.max()) <= 1
    if ball is not None:
        assert float(ball.distance(x_adv, x).max()) <= ball.eps + 1e-5
    if loss is not None:
        with torch.no_grad():
            model.eval()
            assert float(loss(model(x_adv), y).mean()) >= float(loss(model(x), y).mean())


def snapshot(model: nn.Module) -> dict[str, Any]:
    return {
        "modes": [m.training for m in model.modules()],
        "parameters": [p.detach().clone() for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "flags": [p.requires_grad for p in model.parameters()],
        "buffers": [b.clone() for b in model.buffers()],
        "identities": [id(t) for t in (*model.parameters(), *model.buffers())],
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


class Counting(nn.Module):
    """A foreign layer whose buffer changes at every pass, even in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x


@rows
def test_the_model_is_left_exactly_as_found(name: str) -> None:
    model = nn.Sequential(Counting(), *small_net()).train()
    # a mixed state: one frozen norm, one frozen parameter, a gradient in the making, a global draw
    # to come
    model[2].eval()
    next(model.parameters()).requires_grad_(False)
    x, y = images(), labels()
    ce(model(x), y).sum().backward()
    before, rng = snapshot(model), torch.get_rng_state()
    ATTACKS[name][0](model, x, y)
    after = snapshot(model)
    for part in before:
        assert same(before[part], after[part]), part
    assert torch.equal(rng, torch.get_rng_state())


def test_the_model_is_restored_after_an_error() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                raise RuntimeError("broken")
            return x.flatten(1)[:, :4] * self.w

    model = Broken().train()
    with pytest.raises(RuntimeError, match="broken"):
        pgd(model, images(), labels(), ball=LINF)
    assert model.training
    assert model.w.requires_grad


@quick_rows
def test_attacks_work_inside_no_grad(name: str) -> None:
    attack, _, _ = ATTACKS[name]
    model, x, y = small_net(), images(), labels()
    outside = attack(model, x, y)
    with torch.no_grad():
        assert torch.equal(attack(model, x, y), outside)


def started_at(kind: type, point: Tensor) -> type:
    """A foolbox attack that begins where we tell it."""

    class Started(kind):  # type: ignore[misc]
        def get_random_start(self, x0: Any, epsilon: float) -> Any:
            return ep.astensor(point)

    return Started


@pytest.mark.parametrize(("ball", "foreign"), [(LINF, fb.attacks.LinfPGD), (TWO, fb.attacks.L2PGD)])
def test_pgd_agrees_with_foolbox_from_the_same_start(ball: Ball, foreign: type) -> None:
    model, x, y = small_net(smooth=True).eval(), images(16), labels(16)
    from amata.seeds import generator

    start = ball.around(x).start(generator(5))
    ours = pgd(model, x, y, ball=ball, steps=7, step_size=0.03, start=start)
    attack = started_at(foreign, start)(abs_stepsize=0.03, steps=7, random_start=True)
    theirs = attack.run(
        fb.PyTorchModel(model, bounds=(0, 1), device="cpu"),
        x,
        fb.criteria.Misclassification(y),
        epsilon=ball.eps,
    )
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_fgsm_agrees_with_foolbox() -> None:
    model, x, y = small_net(smooth=True).eval(), images(16), labels(16)
    theirs = fb.attacks.FGSM(random_start=False).run(
        fb.PyTorchModel(model, bounds=(0, 1), device="cpu"),
        x,
        fb.criteria.Misclassification(y),
        epsilon=LINF.eps,
    )
    ours = fgsm(model, x, y, ball=LINF)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    one_step = pgd(model, x, y, ball=LINF, steps=1, step_size=LINF.eps, random_start=False)
    assert torch.equal(ours, one_step)


@pytest.mark.parametrize(("ball", "dual"), [(Linf(0.05), 1), (L2(0.2), 2)])
@pytest.mark.parametrize("loss", [ce, margin])
def test_pgd_reaches_the_worst_case_of_a_linear_model(ball: Ball, dual: int, loss: Any) -> None:
    model, x, y = Linear(2), images(20, low=0.4, high=0.6), labels(20, classes=2)
    x_adv = pgd(model, x, y, ball=ball, steps=30, step_size=ball.eps, loss=loss)
    w = model.fc.weight[1 - y] - model.fc.weight[y]  # the direction that helps the other class
    worst = margin(model(x), y) + ball.eps * w.norm(p=dual, dim=1)
    torch.testing.assert_close(margin(model(x_adv), y), worst, atol=1e-5, rtol=1e-5)


def test_targeted_pgd_reaches_its_best_case_on_a_linear_model() -> None:
    model, x, y = Linear(2), images(20, low=0.4, high=0.6), labels(20, classes=2)
    towards = 1 - y
    x_adv = pgd(model, x, y, ball=Linf(0.05), steps=20, targets=towards)
    untargeted = pgd(model, x, y, ball=Linf(0.05), steps=20)
    torch.testing.assert_close(x_adv, untargeted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("classes", [2, 5, 10])
@pytest.mark.parametrize("c", [1.0, 100.0])
def test_cw_l2_finds_the_nearest_boundary_of_a_linear_model(classes: int, c: float) -> None:
    model, x = Linear(classes, 64, seed=3), images(30, side=8, low=0.3, high=0.7)
    y = model(x).argmax(1)
    z, w = model(x), model.fc.weight
    distances = (z.gather(1, y[:, None]) - z) / (w[y][:, None] - w[None]).norm(dim=2).clamp_min(
        1e-9
    )
    minimal = (
        distances.masked_fill(nn.functional.one_hot(y, classes).bool(), torch.inf).amin(1).detach()
    )
    x_adv = cw_l2(model, x, y, c=c)
    assert (model(x_adv).argmax(1) != y).all()
    ratio = (x_adv - x).flatten(1).norm(dim=1) / minimal
    assert float(ratio.min()) >= 0.999
    assert float(ratio.max()) <= 1.1


def test_cw_l2_converges_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the final pull, which would solve a linear model whatever the optimiser did."""
    monkeypatch.setattr("amata.attacks.cw._pulled_in", lambda model, x, y, nearest, *_: nearest)
    model, x = Linear(2, 64, seed=3), images(30, side=8, low=0.3, high=0.7)
    y = model(x).argmax(1)
    w = (model.fc.weight[0] - model.fc.weight[1]).norm().detach()
    minimal = model(x).diff(dim=1).abs().squeeze(1).detach() / w
    x_adv = cw_l2(model, x, y, c=1.0, steps=500)
    ratio = (x_adv - x).flatten(1).norm(dim=1) / minimal
    assert float(ratio.min()) >= 0.999
    assert float(ratio.max()) <= 1.1


def test_cw_l2_searches_the_constant_that_a_sample_needs() -> None:
    model, x = Linear(3, seed=4), images(10, low=0.3, high=0.7)
    # nobody so near the boundary that Adam's first step crosses it
    x = x[model(x).topk(2).values.diff().squeeze() < -1]
    y = model(x).argmax(1)
    weak = cw_l2(model, x, y, c=1e-4, steps=100)
    assert (model(weak).argmax(1) == y).all(), "a tiny constant should not be worth a step"
    assert torch.equal(weak, x), "failures come back as the image itself"
    searched = cw_l2(model, x, y, c=1e-4, steps=100, search_steps=9)
    assert (model(searched).argmax(1) != y).all()


def test_cw_l2_moves_black_and_white_pixels() -> None:
    model = Linear(2, seed=1)
    x = torch.zeros(4, 1, 6, 6)
    x[:, :, ::2] = 1.0
    y = model(x).argmax(1)
    x_adv = cw_l2(model, x, y, c=100.0)
    assert (model(x_adv).argmax(1) != y).all()
    assert float(x_adv.min()) >= 0
    assert float(x_adv.max()) <= 1


class TwoPeaks(nn.Module):
    """The loss has a low peak to the right of 0.5 and a high one to the left: where a restart
    begins decides where it ends."""

    def forward(self, x: Tensor) -> Tensor:
        v = x.flatten(1).mean(1) - 0.5
        lead = torch.where(v > 0, 1 - (v - 0.2).abs(), 3 - 10 * (v + 0.2).abs())
        return torch.stack([torch.zeros_like(lead), lead - 2], 1)


def test_restarts_keep_each_samples_worst_case() -> None:
    model, x, y = TwoPeaks(), torch.full((64, 1, 1, 1), 0.5), torch.zeros(64, dtype=torch.long)

    def fooled(restarts: int) -> Tensor:
        x_adv = pgd(model, x, y, ball=Linf(0.4), steps=40, step_size=0.02, restarts=restarts)
        return model(x_adv).argmax(1) != y

    one, ten = fooled(1), fooled(10)
    assert 0.2 < float(one.float().mean()) < 0.8
    assert ten.all()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (images() * 2, labels(), r"outside \[0, 1\]"),
        (images() - 1, labels(), r"outside \[0, 1\]"),
        (images() * torch.nan, labels(), "non-finite"),
        ((images() * 255).byte(), labels(), "floating-point"),
        (images(), labels().float(), "int64"),
        (images(), labels(5), r"shape \(6,\)"),
        (images()[:0], labels()[:0], "empty"),
        (images(), torch.tensor([0, 1, 2, 9, 0, 1]), r"\[0, 9\], outside the model's 4 classes"),
        (
            images(),
            torch.tensor([0, 1, 2, -100, 0, 1]),
            r"\[-100, 2\], outside the model's 4 classes",
        ),
    ],
)
@pytest.mark.parametrize("attack", [pgd, autoattack, lambda *args, ball: cw_l2(*args)])
def test_what_cannot_be_attacked_is_refused(
    attack: Any, x: Tensor, y: Tensor, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        attack(small_net(), x, y, ball=LINF)


def test_a_model_without_class_scores_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"logits of shape \(1, classes\), not shape \(1, 8, 6, 6\)"
    ):
        pgd(nn.Conv2d(1, 8, 3, padding=1), images(), labels(), ball=LINF)


def test_autoattack_needs_four_classes() -> None:
    with pytest.raises(InputError, match="at least 4 classes"):
        autoattack(Linear(3), images(), labels(classes=3), ball=LINF)


@pytest.mark.slow
def test_autoattack_is_at_least_as_strong_as_pgd() -> None:
    model, x = Linear(10), images(60, seed=7)
    y = model(x).argmax(1)
    weak = model(pgd(model, x, y, ball=Linf(0.04), steps=50)).argmax(1) == y
    strong = model(autoattack(model, x, y, ball=Linf(0.04))).argmax(1) == y
    assert 0 < int(strong.sum()) <= int(weak.sum()) < 60
