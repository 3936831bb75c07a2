"""Attacks: one conformance table, closed forms on linear models, and agreement with foolbox."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import eagerpy as ep
import foolbox as fb
import pytest
import torch
from torch import Tensor, nn

from amata.attacks import ATTACKS, autoattack, cw_l2, cw_pgd, fgsm, parse_attack, pgd
from amata.errors import InputError
from amata.losses import ce, margin
from amata.schedules import Linear as Rising
from amata.seeds import generator
from amata.threat import L2, Ball, Linf
from tests.conftest import Linear, images, labels, small_net

LINF, TWO = Linf(0.1), L2(0.5)
Call = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Named(NamedTuple):
    """A row for an attack that evaluation knows by name."""

    name: str
    ball: Ball
    params: dict[str, Any]
    raises: Any = None
    """The loss that the attack must not lower."""


IN_LINF = {"norm": "linf", "eps": 0.1}
PGD = {"random_start": True, "step_size": 0.025, "steps": 10, "restarts": 1, "loss": "ce"}
NAMED = [
    Named("clean", LINF, {}),
    Named(
        "fgsm",
        LINF,
        IN_LINF | {"random_start": False, "step_size": 0.1, "steps": 1, "loss": "ce"},
        ce,
    ),
    Named("pgd-1", LINF, IN_LINF | PGD | {"steps": 1, "step_size": 0.1}, ce),
    Named("pgd-10", LINF, IN_LINF | PGD, ce),
    Named("pgd-10-3", LINF, IN_LINF | PGD | {"restarts": 3}, ce),
    Named("pgd-10@5", TWO, {"norm": "l2", "eps": 0.5} | PGD | {"step_size": 0.125}, ce),
    Named("cw-pgd-10", LINF, IN_LINF | PGD | {"loss": "margin"}, margin),
    Named(
        "cw-l2-20",
        LINF,
        {"norm": "l2", "c": 1.0, "steps": 20, "lr": 0.01, "kappa": 0.0, "pulled_in": True},
    ),
    *(
        Named(
            "autoattack",
            ball,
            {"version": "standard", "iterations": 100, "queries": 5000}
            | {"norm": ball.norm, "eps": ball.eps},
        )
        for ball in (Linf(0.3), L2(2))  # wide: AutoAttack is quick when its first attack succeeds
    ),
    Named("apgd-ce", Linf(0.3), {"norm": "linf", "eps": 0.3, "iterations": 100}),
]


class Row(NamedTuple):
    call: Call
    ball: Ball | None
    raises: Any = None


def row(named: Named) -> Row:
    attack = parse_attack(named.name)
    ball = named.ball if attack.in_ball else None
    return Row(partial(attack, ball=named.ball, seed=0), ball, named.raises)


def pgd_row(ball: Ball = LINF, **options: Any) -> Row:
    """A use of `pgd` that has no name in evaluation."""

    def call(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        targets = (y + 1) % 4 if options.get("targeted") else None
        given = {key: value for key, value in options.items() if key != "targeted"}
        return pgd(model, x, y, ball=ball, targets=targets, generator=generator(0), **given)

    return Row(call, ball, None if options.get("targeted") else ce)


TABLE: dict[str, Row] = {f"{n.name} in {n.ball.norm}": row(n) for n in NAMED} | {
    "pgd, no random start": pgd_row(steps=10, random_start=False),
    "pgd, restarts": pgd_row(steps=5, restarts=3),
    "pgd, targeted": pgd_row(steps=10, targeted=True),
    "cw-l2, search": Row(partial(cw_l2, steps=20, search_steps=2), None),
}
rows = pytest.mark.parametrize("name", TABLE)
quick_rows = pytest.mark.parametrize("name", [name for name in TABLE if "autoattack" not in name])


def test_every_attack_has_a_row() -> None:
    assert {type(parse_attack(named.name)) for named in NAMED} == set(ATTACKS)


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.name)
def test_an_attack_states_its_parameters(named: Named) -> None:
    attack = parse_attack(named.name)
    assert attack.params(named.ball) == named.params
    assert attack.name == named.name
    assert attack.limit == (5 if "@" in named.name else None)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("cw-l2", "steps", 100),
        ("cw-l2", "c", 7.0),
        ("pgd-50-10", "steps", 50),
        ("pgd-50-10", "restarts", 10),
        ("pgd-50", "step_size", 0.003),
        ("cw-pgd-20-2", "restarts", 2),
        ("cw-pgd-20@9", "step_size", 0.003),
    ],
)
def test_numbers_and_options_reach_the_parameters(text: str, key: str, value: float) -> None:
    assert parse_attack(f" {text} ", step_size=0.003, c=7.0).params(LINF)[key] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pgd", "unknown attack 'pgd'"),
        ("pgd-x", "unknown attack 'pgd-x'; did you mean"),
        ("pgd-020", "unknown attack"),
        ("pdg-3@8", "unknown attack 'pdg-3'"),
        ("pgd-3@0", "attack 'pgd-3@0': after @ comes a number of images"),
        ("pgd-3@abc", "attack 'pgd-3@abc': after @ comes a number of images"),
        ("pgd-3@8@8", "after @ comes a number of images"),
        ("auto-attack", "did you mean 'autoattack'"),
        ("", "unknown attack ''; choose from apgd-ce, apgd-t, autoattack, clean, cw-l2, "),
        ("pgd-0", "'pgd-0': the number of steps and of restarts must be at least 1, as in pgd-20"),
        ("cw-pgd-5-0", "'cw-pgd-5-0': the number of steps and of restarts must be at least 1"),
        ("cw-l2-0", "'cw-l2-0': the number of steps must be at least 1, as in cw-l2 or cw-l2-100"),
    ],
)
def test_misspelt_attacks_are_errors(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_attack(text)


@pytest.mark.parametrize(
    ("strong", "weak", "expected"),
    [
        ("fgsm", "clean", True),
        ("cw-l2", "clean", True),
        ("autoattack", "clean", True),
        ("clean", "clean", False),
        ("clean", "fgsm", False),
        ("pgd-2", "fgsm", True),
        ("pgd-1", "fgsm", False),
        ("pgd-5", "fgsm", True),  # with a step size of 0.02 these reach 0.1, the radius
        ("pgd-4", "fgsm", False),
        ("cw-pgd-20", "fgsm", False),
        ("fgsm", "pgd-1", False),
        ("pgd-20", "pgd-10", True),
        ("pgd-10", "pgd-20", False),
        ("pgd-10-2", "pgd-10", True),
        ("pgd-10", "pgd-10-2", False),
        ("pgd-10-1", "pgd-10", False),
        ("pgd-20", "pgd-10-2", False),
        ("cw-pgd-20", "pgd-10", False),
        ("pgd-20", "cw-pgd-10", False),
        ("cw-pgd-20", "cw-pgd-10", True),
        ("autoattack", "fgsm", True),
        ("autoattack", "pgd-50-10", True),
        ("autoattack", "cw-pgd-20", True),
        ("autoattack", "cw-l2", False),
        ("autoattack", "autoattack", False),
        ("pgd-20", "autoattack", False),
        ("cw-l2-200", "cw-l2", False),
        ("pgd-20@5", "clean@5", True),
        ("pgd-20@5", "clean", False),
        ("pgd-20@5", "pgd-10@6", False),
    ],
)
def test_which_attack_is_stronger(strong: str, weak: str, expected: bool) -> None:
    step_size = 0.02 if strong in ("pgd-5", "pgd-4") else None
    found = parse_attack(strong, step_size=step_size).stronger_than(parse_attack(weak), LINF)
    assert found is expected


@pytest.mark.parametrize(
    "attack",
    [partial(pgd, steps=2), partial(cw_pgd, steps=2), autoattack],
    ids=["pgd", "cw-pgd", "autoattack"],
)
def test_randomness_is_fresh_unless_seeded(attack: Any) -> None:
    model, x = Linear(4), images()
    y = model(x).argmax(1)

    def call(given: torch.Generator | None = None) -> Tensor:
        x_adv: Tensor = attack(model, x, y, ball=Linf(0.3), generator=given)
        return x_adv

    torch.manual_seed(1)
    first = call()
    assert not torch.equal(call(), first)
    torch.manual_seed(1)
    assert torch.equal(call(), first)
    given, state = generator(7), torch.get_rng_state()
    first = call(given)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
    assert not torch.equal(call(given), first), "the generator was not advanced"
    assert torch.equal(call(generator(7)), first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_generator_may_be_on_another_device(device: str) -> None:
    model, x, y = small_net().cuda(), images().cuda(), labels().cuda()
    first, again = (
        pgd(model, x, y, ball=LINF, steps=0, generator=generator(7, device=device))
        for _ in range(2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, pgd(model, x, y, ball=LINF, steps=0, generator=generator(8)))


@rows
def test_the_budget_and_the_box_are_respected(name: str) -> None:
    attack, ball, loss = TABLE[name]
    model, x = Linear(4), images(8)
    y = model(x).argmax(1)
    before = x.clone()
    x_adv = attack(model, x, y)
    assert torch.equal(x, before), "the images were changed in place"
    assert torch.equal(x_adv, x) == name.startswith("clean")
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
    """A layer whose buffer changes in every forward pass, even in eval mode."""

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
    # mixed state: one module in eval mode, one frozen parameter, stored gradients
    model[2].eval()
    next(model.parameters()).requires_grad_(False)
    x, y = images(), labels()
    ce(model(x), y).sum().backward()
    before, rng = snapshot(model), torch.get_rng_state()
    TABLE[name].call(model, x, y)
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
    attack = TABLE[name].call
    model, x, y = small_net(), images(), labels()
    outside = attack(model, x, y)
    with torch.no_grad():
        assert torch.equal(attack(model, x, y), outside)


def started_at(kind: type, point: Tensor) -> type:
    """A foolbox attack with a given starting point."""

    class Started(kind):  # type: ignore[misc]
        def get_random_start(self, x0: Any, epsilon: float) -> Any:
            return ep.astensor(point)

    return Started


@pytest.mark.parametrize(("ball", "foreign"), [(LINF, fb.attacks.LinfPGD), (TWO, fb.attacks.L2PGD)])
def test_pgd_agrees_with_foolbox_from_the_same_start(ball: Ball, foreign: type) -> None:
    model, x, y = small_net(smooth=True).eval(), images(16), labels(16)
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


def test_a_step_that_was_meant_in_units_of_1_255_is_refused() -> None:
    model, x, y = Linear(4), images(2), labels(2)
    with pytest.raises(InputError, match=r'^step_size = 2 .* did you mean "2/255"\?'):
        pgd(model, x, y, ball=LINF, steps=1, step_size=2)
    pgd(model, x, y, ball=TWO, steps=1, step_size=2)  # in L2 a step may be as long


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
    """Without the final steps, which solve a linear model whatever the optimiser did."""
    monkeypatch.setattr(
        "amata.attacks.carlini_wagner_l2._pull_to_boundary",
        lambda model, x, y, nearest, *_: nearest,
    )
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
    # drop images so near the boundary that Adam's first step crosses it
    x = x[model(x).topk(2).values.diff().squeeze() < -1]
    y = model(x).argmax(1)
    weak = cw_l2(model, x, y, c=1e-4, steps=100)
    assert (model(weak).argmax(1) == y).all(), "a tiny constant should not be worth a step"
    assert torch.equal(weak, x), "failures come back as the image itself"
    searched = cw_l2(model, x, y, c=1e-4, steps=100, search_steps=9)
    assert (model(searched).argmax(1) != y).all()


def test_cw_l2_leaves_images_that_are_successes_already() -> None:
    model, x = Linear(4), images(8)
    right = model(x).argmax(1)
    y = torch.where(torch.arange(8) % 2 == 0, right, (right + 1) % 4)
    x_adv, all_right = cw_l2(model, x, y, c=100.0), cw_l2(model, x, right, c=100.0)
    assert torch.equal(x_adv[1::2], x[1::2])
    assert torch.equal(x_adv[::2], all_right[::2])
    assert not torch.equal(x_adv[::2], x[::2])


def test_cw_l2_reaches_the_confidence_kappa() -> None:
    model, x = Linear(3, seed=4), images(10, low=0.3, high=0.7)
    y = model(x).argmax(1)
    x_adv = cw_l2(model, x, y, c=100.0, kappa=0.5)
    lead = margin(model(x_adv), y)
    assert ((lead >= 0.5) & (lead < 0.6)).all()


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
    """The loss has a low peak to the right of 0.5 and a high one to the left: the starting point
    decides which one PGD reaches."""

    def forward(self, x: Tensor) -> Tensor:
        v = x.flatten(1).mean(1) - 0.5
        lead = torch.where(v > 0, 1 - (v - 0.2).abs(), 3 - 10 * (v + 0.2).abs())
        return torch.stack([torch.zeros_like(lead), lead - 2], 1)


def test_restarts_keep_each_samples_worst_case() -> None:
    model, x, y = TwoPeaks(), torch.full((64, 1, 1, 1), 0.5), torch.zeros(64, dtype=torch.long)

    def fooled(restarts: int) -> Tensor:
        x_adv = pgd(
            model,
            x,
            y,
            ball=Linf(0.4),
            steps=40,
            step_size=0.02,
            restarts=restarts,
            generator=generator(0),
        )
        return model(x_adv).argmax(1) != y

    one, ten = fooled(1), fooled(10)
    assert 0.2 < float(one.float().mean()) < 0.8
    assert ten.all()


class Lookup(nn.Module):
    """Gives each of the known images its logits."""

    def __init__(self, points: Tensor, logits: list[list[float]]) -> None:
        super().__init__()
        self.points, self.logits = points.flatten(), torch.tensor(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[(x.flatten(1) - self.points).abs().argmin(1)]


# logits for label 0: the model holds or is fooled, at a low or a high cross-entropy
HOLDS, HOLDS_HIGH = [2.0, 0.0, 0.0], [0.1, 0.0, 0.0]
FOOLED, FOOLED_HIGH = [0.0, 0.1, -9.0], [0.0, 5.0, 0.0]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([HOLDS, HOLDS_HIGH, HOLDS], 1),
        ([HOLDS_HIGH, HOLDS, HOLDS], 0),
        ([FOOLED, FOOLED_HIGH, FOOLED], 1),
        ([FOOLED_HIGH, FOOLED, FOOLED], 0),
        ([HOLDS_HIGH, FOOLED, HOLDS], 1),
        ([FOOLED, HOLDS_HIGH, HOLDS], 0),
        ([HOLDS_HIGH, FOOLED, HOLDS_HIGH], 1),
        ([HOLDS, FOOLED, FOOLED_HIGH], 2),
        ([HOLDS, FOOLED_HIGH, FOOLED], 1),
        ([FOOLED, FOOLED, FOOLED], 0),
    ],
)
@pytest.mark.parametrize("started", [True, False])
def test_the_worst_of_all_restarts_is_kept(
    logits: list[list[float]], expected: int, started: bool
) -> None:
    """Without steps the candidates are the starting points: `start` or x first, then random ones
    drawn one after the other."""
    x, y, ball = torch.full((1, 1, 1, 1), 0.5), torch.zeros(1, dtype=torch.long), Linf(0.3)
    rng, region = generator(0), ball.around(x)
    first = torch.full_like(x, 0.8) if started else x
    points = torch.cat([first, region.start(rng), region.start(rng)])
    x_adv = pgd(
        Lookup(points, logits),
        x,
        y,
        ball=ball,
        steps=0,
        start=first if started else None,
        random_start=False,
        restarts=3,
        generator=generator(0),
    )
    assert torch.equal(x_adv.flatten(), points[expected].flatten())


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
        (images(), torch.tensor([0, 1, 2, 4, 0, 1]), r"\[0, 4\], outside the model's 4 classes"),
        (
            images(),
            torch.tensor([0, 1, 2, -100, 0, 1]),
            r"\[-100, 2\], outside the model's 4 classes",
        ),
    ],
)
@pytest.mark.parametrize("attack", [pgd, autoattack, lambda *args, ball: cw_l2(*args)])
def test_bad_input_is_an_error(attack: Any, x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attack(small_net(), x, y, ball=LINF)


def test_a_model_without_logits_is_an_error() -> None:
    with pytest.raises(
        InputError, match=r"logits of shape \(1, classes\), not shape \(1, 8, 6, 6\)"
    ):
        pgd(nn.Conv2d(1, 8, 3, padding=1), images(), labels(), ball=LINF)


CE_FAB_SQUARE = ["apgd-ce", "fab-t", "square"]
STANDARD = ["apgd-ce", "apgd-t", "fab-t", "square"]


@pytest.mark.parametrize(
    ("version", "classes", "runs", "targets"),
    [
        ("standard", 2, CE_FAB_SQUARE, 1),
        ("standard", 3, CE_FAB_SQUARE, 2),
        ("standard", 4, STANDARD, 3),
        ("standard", 10, STANDARD, 9),
        ("standard", 12, STANDARD, 9),
        ("plus", 2, ["apgd-ce", "fab", "square", "fab-t"], 1),
        ("plus", 3, ["apgd-ce", "apgd-dlr", "fab", "square", "fab-t"], 2),
        ("plus", 5, ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"], 4),
        ("rand", 2, ["apgd-ce"], 1),
        ("rand", 3, ["apgd-ce", "apgd-dlr"], 2),
    ],
)
def test_autoattack_runs_what_the_number_of_classes_allows(
    version: Any, classes: int, runs: list[str], targets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def attack(model: nn.Module, name: str, plan: Any, x: Tensor, y: Tensor, t: Tensor, *_: Any):  # type: ignore[no-untyped-def]
        seen.append((name, len(t)))
        assert all(
            len({int(c) for c in (*column, label)}) == 1 + len(t)
            for column, label in zip(t.T, y, strict=True)
        )

    monkeypatch.setattr("amata.attacks.auto_attack._attack", attack)
    model, x = Linear(classes), images()
    autoattack(model, x, model(x).argmax(1), ball=LINF, version=version)
    assert seen == [(name, targets) for name in runs]
    caveats = parse_attack("autoattack").caveats(classes)
    assert [text.split(":")[0] for text in caveats] == (
        [f"with {classes} classes AutoAttack ran apgd-ce, fab-t and square only"]
        if classes < 4
        else []
    )


def test_autoattack_names_its_parts_and_finds_the_same_images(short_autoattack: None) -> None:
    model, x = Linear(5), images(40)
    y, ball = model(x).argmax(1), Linf(0.02)
    parts: list[tuple[str, int]] = []
    attack = parse_attack("autoattack")
    reporting = attack.reporting(lambda *part: parts.append(part))
    plain, watched = (a(model, x, y, ball=ball, seed=3) for a in (attack, reporting))
    assert [name for name, _ in parts] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert torch.equal(plain, watched)
    assert 0 < (model(plain).argmax(1) == y).sum() < 40, "some are broken, some are not"


def test_autoattack_attacks_what_the_judge_classifies_correctly(short_autoattack: None) -> None:
    class Copy(nn.Module):
        """An imprecise copy: wrong on some clean images."""

        def __init__(self) -> None:
            super().__init__()
            self.judge = Linear(5)

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.judge(x)
            return torch.where(x[:, 0, 0, :1] > 0.7, z.roll(1, 1), z)

    copy, x = Copy(), images(40)
    y = copy.judge(x).argmax(1)
    assert 5 < (copy(x).argmax(1) != y).sum() < 20
    x_adv = autoattack(copy, x, y, ball=Linf(0.5))
    assert not (copy.judge(x_adv).argmax(1) == y).any()


def test_autoattack_needs_two_classes() -> None:
    with pytest.raises(InputError, match="at least 2 classes, and the model has 1"):
        autoattack(Linear(1), images(), labels(classes=1), ball=LINF)


@pytest.mark.parametrize(("version", "classes"), [("standard", 2), ("standard", 3), ("plus", 5)])
def test_autoattack_breaks_what_a_linear_model_allows(version: Any, classes: int) -> None:
    """A perturbation of eps changes the lead over class i by up to eps |w_i - w_y|_1."""
    model, x = Linear(classes), images(4, low=0.3, high=0.7)
    y = model(x).argmax(1)
    w, z = model.fc.weight.detach(), model(x).detach()
    reach = (w[:, None] - w[None]).abs().sum(2)[y]
    needed = torch.where(reach > 0, (z.gather(1, y[:, None]) - z) / reach, torch.inf).amin(1)
    ball = Linf(1.02 * float(needed.max()))
    assert ball.eps < 0.3, "the box does not matter"
    x_adv = autoattack(model, x, y, ball=ball, version=version)
    assert not bool((model(x_adv).argmax(1) == y).any())


@pytest.mark.slow
def test_autoattack_is_at_least_as_strong_as_pgd() -> None:
    model, x = Linear(10), images(60, seed=7)
    y = model(x).argmax(1)
    weak = model(pgd(model, x, y, ball=Linf(0.04), steps=50)).argmax(1) == y
    strong = model(autoattack(model, x, y, ball=Linf(0.04))).argmax(1) == y
    assert 0 < int(strong.sum()) <= int(weak.sum()) < 60


class NaNGradient(Linear):
    """Finite logits, but a gradient of NaN at images that begin with a white pixel."""

    def forward(self, x: Tensor) -> Tensor:
        white = 1 - x.flatten(1)[:, :1]
        z: Tensor = super().forward(x)
        return z + 0 * white.sqrt()


@pytest.mark.parametrize("ball", [Linf(0.1), L2(0.5)], ids=["linf", "l2"])
@pytest.mark.parametrize("name", ["fgsm", "cw-l2-5", "autoattack"])
def test_a_gradient_of_nan_leaves_a_finite_image(name: str, ball: Ball) -> None:
    model, x = NaNGradient(4), images(6)
    x[:3, :, 0, 0] = 1
    y = model(x).argmax(1)
    if name == "autoattack":  # quick: APGD breaks all
        ball = ball.scaled(6)
    x_adv = parse_attack(name)(model, x, y, ball=ball, seed=0)
    assert bool(x_adv.isfinite().all())


def test_cw_l2_goes_on_where_one_pixel_has_a_gradient_of_nan() -> None:
    model, x = NaNGradient(4), images(6)
    x[:, :, 0, 0] = 1
    y = model(x).argmax(1)
    assert not bool((model(cw_l2(model, x, y, c=10, steps=40)).argmax(1) == y).any())


class NaNAbove(nn.Module):
    """Two classes; the logits are NaN where the first pixel is above 0.6."""

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)[:, 0]
        z = torch.stack([first * 0 + 1, first], 1)
        return torch.where((first > 0.6)[:, None], torch.nan, z)


def test_of_several_restarts_the_worst_is_a_number_if_one_is() -> None:
    x, zeros = torch.full((64, 1, 1, 1), 0.55), torch.zeros(64, dtype=torch.long)
    model, starts = NaNAbove(), partial(pgd, ball=Linf(0.2), steps=0, restarts=20)
    found = starts(model, x, zeros, generator=generator(0))
    assert bool(model(found).isnan().all()), "label 0: only NaN is wrong"
    found = starts(model, x, zeros + 1, generator=generator(0))
    assert bool(model(found).isfinite().all()), "label 1: all are wrong, the others have a loss"


class OnePixel(nn.Module):
    """Two classes of one pixel: the lead of class 1 is 0.2 x - 0.08. It records where it is
    asked."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.seen.append(float(x.detach()))
        lead = 0.2 * x.flatten(1)[:, 0] - 0.08
        return torch.stack([0 * lead, lead], 1)


def test_cw_l2_raises_c_tenfold_and_then_halves_the_interval() -> None:
    """|x'|^2 + c (0.08 - 0.2 x') is least at x' = 0.1 c, and succeeds at x' = 0.4: c = 4.
    So c = 1 fails, 10 and 5.5 succeed, 3.25 fails, and (3.25 + 5.5) / 2 succeeds."""
    model, x, y = OnePixel(), torch.zeros(1, 1, 1, 1), torch.zeros(1, dtype=torch.long)
    cw_l2(model, x, y, steps=70, lr=0.02, search_steps=4)
    ends = model.seen[69 : 5 * 70 : 70]
    assert ends == pytest.approx([0.1, 0.4, 0.4, 0.325, 0.4], abs=0.015)


@pytest.mark.parametrize("kappa", [0.0, 0.04])
def test_cw_l2_ends_one_percent_beyond_the_margin_kappa(kappa: float) -> None:
    """On a linear model the last steps are exact: 0.2 x' - 0.08 = kappa, and 1% further."""
    x, y = torch.full((1, 1, 1, 1), 0.1), torch.zeros(1, dtype=torch.long)
    found = cw_l2(OnePixel(), x, y, c=10, steps=2, lr=0.7, kappa=kappa)  # two leaps
    assert float(found) == pytest.approx(0.1 + 1.01 * ((0.08 + kappa) / 0.2 - 0.1), abs=1e-5)


class Saturating(nn.Module):
    """The lead of class 1 is sqrt(x) - 0.5: linearised steps fall short."""

    def forward(self, x: Tensor) -> Tensor:
        lead = x.flatten(1)[:, 0].sqrt() - 0.5
        return torch.stack([0 * lead, lead], 1)


def test_the_last_steps_of_cw_l2_keep_the_margin_kappa() -> None:
    """They end at 0.40 and 0.44, where the lead is above 0 but below kappa = 0.2."""
    x, y = torch.full((1, 1, 1, 1), 0.16), torch.zeros(1, dtype=torch.long)
    found = cw_l2(Saturating(), x, y, c=10, steps=2, lr=0.7, kappa=0.2)
    assert float(found) == pytest.approx(0.86, abs=1e-4)


def test_fractions_of_steps_name_the_control_of_a_batch() -> None:
    """A schedule in fractions gives K = 1.5; a batch takes one or two steps."""
    u = Rising(k_min=1, k_max=2, tau=0.1, fractional=True)(1, 2)
    x, y = images(2), labels(2)
    with pytest.raises(InputError, match=r"steps = 1\.5 must be a whole.*u\.for_batch"):
        pgd(small_net(), x, y, ball=Linf(0.1), steps=u.steps)  # type: ignore[arg-type]
    one = u.for_batch(0)
    pgd(small_net(), x, y, ball=Linf(0.1), steps=one.steps)
