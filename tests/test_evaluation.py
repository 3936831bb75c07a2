"""Evaluation: counts, intervals, costs, and the warnings that an honest number needs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amata.attacks import pgd
from amata.errors import InputError
from amata.evaluation import Metered, evaluate, parse_attack, wilson
from amata.recipes import load
from amata.seeds import derive
from amata.threat import Linf
from amata.training import fit
from tests.conftest import Linear, images, labels, small_net

BALL = Linf(0.05)


def test_accuracy_is_what_the_attack_leaves() -> None:
    model, x, y = Linear(4), images(50), labels(50)
    results = evaluate(model, (x, y), ball=BALL, attacks=["clean", "pgd-7"], batch_size=50, seed=3)
    assert results["clean"].accuracy == pytest.approx(
        float((model(x).argmax(1) == y).float().mean())
    )
    x_adv = pgd(model, x, y, ball=BALL, steps=7, seed=derive(3, 0, "pgd-7"))
    assert results["pgd-7"].accuracy == pytest.approx(
        float((model(x_adv).argmax(1) == y).float().mean())
    )
    alpha = pytest.approx(2.5 * 0.05 / 7)
    expected = {
        "norm": "linf",
        "eps": 0.05,
        "steps": 7,
        "step_size": alpha,
        "restarts": 1,
        "random_start": True,
        "loss": "ce",
    }
    assert results["pgd-7"].params == expected


@pytest.mark.parametrize(
    ("attack", "per_image"),
    [("clean", 0), ("fgsm", 1), ("pgd-5", 5), ("cw-pgd-4", 4), ("cw-l2-6", 6 + 3 + 5)],
)
def test_gradient_evaluations_are_counted(attack: str, per_image: int) -> None:
    model, x, y = Linear(4), images(10), labels(10)
    assert (
        evaluate(model, (x, y), ball=BALL, attacks=[attack], batch_size=4)[attack].grad_evals
        == 10 * per_image
    )


def test_an_attack_may_have_its_own_number_of_images() -> None:
    model, x, y = Linear(4), images(30), labels(30)
    found = evaluate(
        model, (x, y), ball=BALL, attacks=["clean", "clean@17", "pgd-3@8", "pgd-3@99"], batch_size=5
    )
    assert {name: r.n for name, r in found.items()} == {
        "clean": 30,
        "clean@17": 17,
        "pgd-3@8": 8,
        "pgd-3@99": 30,
    }
    assert found["clean@17"].accuracy == pytest.approx(
        float((model(x[:17]).argmax(1) == y[:17]).float().mean())
    )
    assert found["pgd-3@8"].grad_evals == 8 * 3
    with pytest.raises(InputError, match="unknown attack 'pdg-3'"):
        parse_attack("pdg-3@8")


def test_restarts_are_spent_on_those_that_stand() -> None:
    model, x, y = Linear(4), images(40), labels(40)
    y = model(x).argmax(1)
    one, three = (
        evaluate(model, (x, y), ball=Linf(0.012), attacks=[a], batch_size=40)[a]
        for a in ("pgd-1", "pgd-1-3")
    )
    assert 0 < one.accuracy < 1
    assert three.accuracy <= one.accuracy
    found = pgd(model, x, y, ball=Linf(0.012), steps=1, seed=derive(derive(0, 0, "pgd-1-3"), 0))
    standing = int((model(found).argmax(1) == y).sum())
    assert 40 + standing < three.grad_evals <= 40 + 2 * standing
    standing_all = evaluate(model, (x, y), ball=Linf(1e-6), attacks=["pgd-5-3"], batch_size=40)[
        "pgd-5-3"
    ]
    assert standing_all.grad_evals == 40 * 15, "nobody fell"
    net = small_net().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    evaluate(net, (x, y), ball=BALL, attacks=["pgd-2-3"])
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items()), "statistics moved"


def test_a_metered_model_counts_every_gradient_once() -> None:
    metered = Metered(small_net())
    x = images().requires_grad_()
    z = metered(x)
    torch.autograd.grad(z.sum(), x, retain_graph=True)
    torch.autograd.grad(z[:, 0].sum(), x)
    with torch.no_grad():
        metered(x)
    assert metered.grad_evals == 12


def test_limit_batches_and_iterables_agree() -> None:
    model, x, y = Linear(4), images(30), labels(30)
    pair = evaluate(model, (x, y), ball=BALL, attacks=["clean"], limit=17, batch_size=5)["clean"]
    stream = evaluate(
        model,
        [(x[i : i + 5], y[i : i + 5]) for i in range(0, 30, 5)],
        ball=BALL,
        attacks=["clean"],
        limit=17,
    )["clean"]
    assert (pair.accuracy, pair.n) == (stream.accuracy, stream.n)
    assert pair.n == 17


def test_wilson_intervals() -> None:
    assert wilson(0, 100) == pytest.approx((0.0, 0.03699), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.40383, 0.59617), abs=1e-4)
    assert wilson(100, 100)[1] == 1.0
    assert wilson(9000, 10000) == pytest.approx((0.89397, 0.90573), abs=1e-4)


class Masked(nn.Module):
    """A net that hides its gradients: hugely scaled logits saturate the softmax to exactly 0 and
    1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Linear(4)

    def forward(self, x: Tensor) -> Tensor:
        return 1e5 * self.net(x)


def test_zero_gradients_are_named() -> None:
    model, x = Masked(), images(40)
    y = model(x).argmax(1)
    y[30:] = (y[30:] + 1) % 4  # attacks have nothing to do there
    results = evaluate(model, (x, y), ball=BALL, attacks=["clean", "pgd-10"])
    assert not results["clean"].warnings
    assert any(
        "30 of 30 images have an input gradient of exactly zero" in w
        for w in results["pgd-10"].warnings
    )


class Constant(nn.Module):
    """Gives all images the same class but those that begin with 1."""

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)[:, 0]
        return torch.stack([first * 0 + 0.5, first * 0 + (first == 1)], 1)


def test_a_network_that_has_learnt_nothing_is_named() -> None:
    x, y = images(200) * 0.5, torch.arange(200) % 2
    results = evaluate(Constant(), (x, y), ball=BALL, attacks=["clean", "pgd-10"], batch_size=64)
    for result in results.values():
        assert [w for w in result.warnings if "learnt nothing" in w] == result.warnings != []
    # Not on the word of a few images, of images of one class, or of the first batch.
    assert not evaluate(Constant(), (x[:40], y[:40]), ball=BALL, attacks=["clean"])[
        "clean"
    ].warnings
    assert not evaluate(Constant(), (x, y * 0), ball=BALL, attacks=["clean"])["clean"].warnings
    x[-10:, :, 0, 0] = 1
    assert not evaluate(Constant(), (x, y), ball=BALL, attacks=["clean"], batch_size=64)[
        "clean"
    ].warnings


def test_evaluation_tries_out_no_kernels_and_leaves_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches of a new size come up all the time, and each would be tuned for."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    seen = []

    class Watching(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, len(x)))
            z: Tensor = super().forward(x)
            return z

    model, x = Watching(4), images(12)
    y = model(x).argmax(1)
    y[7:] = (y[7:] + 1) % 4
    seen.clear()
    evaluate(model, (x, y), ball=BALL, attacks=["pgd-3"], precision="fp32")
    assert {s[:2] for s in seen} == {(False, False)}
    assert {s[2] for s in seen} <= {1, 2, 12}  # never as many as happen to be classified rightly
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.allow_tf32


class Rippled(nn.Module):
    """A fine ripple fools many small steps, while one large step follows the trend and wins."""

    def forward(self, x: Tensor) -> Tensor:
        v = x.flatten(1).mean(1) - 0.5
        lead = 0.05 - v - 0.02 * torch.sin(300 * v)
        return torch.stack([lead, torch.zeros_like(lead)], 1)


def test_a_stronger_attack_that_does_worse_is_named() -> None:
    x = torch.full((20, 1, 4, 4), 0.5)
    results = evaluate(
        Rippled(),
        (x, torch.zeros(20, dtype=torch.long)),
        ball=Linf(0.1),
        attacks=["fgsm", "pgd-200"],
        step_size=0.001,
    )
    assert results["fgsm"].accuracy < results["pgd-200"].accuracy
    assert any(
        "more images standing than the weaker fgsm" in w for w in results["pgd-200"].warnings
    )
    assert not results["fgsm"].warnings


@pytest.mark.slow
def test_an_honest_model_gets_no_warning() -> None:
    model, x = Linear(10), images(50)
    y = model(x).argmax(1)
    results = evaluate(
        model,
        (x, y),
        ball=BALL,
        attacks=["clean", "fgsm", "pgd-5", "pgd-20", "pgd-20-2", "cw-pgd-20", "autoattack"],
    )
    assert [w for r in results.values() for w in r.warnings] == []
    assert (
        results["autoattack"].accuracy <= results["pgd-20-2"].accuracy <= results["clean"].accuracy
    )
    assert results["autoattack"].grad_evals > 50 * 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pgd-20", ("pgd", 20, 1)),
        ("pgd-50-10", ("pgd", 50, 10)),
        ("cw-pgd-20", ("cw-pgd", 20, 1)),
        ("cw-l2", ("cw-l2", 100, 1)),
    ],
)
def test_attack_names(text: str, expected: tuple[str, int, int]) -> None:
    spec = parse_attack(text)
    assert (spec.kind, spec.steps, spec.restarts) == expected


@pytest.mark.parametrize("text", ["pgd", "pgd-0", "pgd-x", "auto-attack", "cw", ""])
def test_misspelt_attacks_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"unknown attack|number of steps"):
        parse_attack(text)


def test_the_model_is_left_as_found_in_every_submodule() -> None:
    model = small_net().train()
    model[1].eval()
    modes = [m.training for m in model.modules()]
    evaluate(model, (images(), labels()), ball=BALL, attacks=["clean", "pgd-2"])
    assert [m.training for m in model.modules()] == modes


def test_an_attack_named_twice_is_run_once() -> None:
    model, x = Linear(4), images(10)
    results = evaluate(
        model, (x, model(x).argmax(1)), ball=BALL, attacks=["clean", "clean", " clean"]
    )
    assert list(results) == ["clean"]
    assert results["clean"].accuracy == 1.0


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(InputError, match="no image"):
        evaluate(Linear(4), [], ball=BALL)


class Failing(nn.Module):
    """Says nothing, or what it is given to say."""

    def __init__(self, *said: str) -> None:
        super().__init__()
        self.said = said

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(*self.said)


def test_what_people_hand_in_by_mistake_is_named() -> None:
    model, x, y = Linear(4), images(6), labels(6) % 4
    odd = nn.Sequential(nn.Flatten(), nn.Linear(5, 4))
    recipe = load("mnist5k-amata", "train.device=cpu")
    radius: Any = 8 / 255
    mistakes: dict[str, Callable[[], object]] = {
        r"ball = 0\.03\d+ is no threat model; write amata\.Linf": lambda: evaluate(
            model, (x, y), ball=radius
        ),
        r"ball = 0\.03\d+ is no": lambda: pgd(model, x, y, ball=radius),
        r"must be tensors, not ndarray;": lambda: evaluate(model, (x, y.numpy()), ball=BALL),
        r"tensors, not ndarray": lambda: evaluate(model, [(x, y.numpy())], ball=BALL),
        r"batches of them, not dict": lambda: evaluate(model, [{"x": x}], ball=BALL),
        r"must be tensors, not ndarray": lambda: evaluate(model, (x.numpy(), y.numpy()), ball=BALL),
        r"data must be tensors \(x, y\)": lambda: fit(model, (x.numpy(), y.numpy()), recipe=recipe),
        r"the model cannot take images of shape \(": lambda: evaluate(odd, (x, y), ball=BALL),
        r"the model cannot take images of": lambda: fit(odd, (x, y), recipe=recipe),
        r"the model cannot take images of shape \(.*: RuntimeError": lambda: evaluate(
            Failing(), (x, y), ball=BALL
        ),
        r"'pgd-0': the number of steps": lambda: evaluate(
            model, (x, y), ball=BALL, attacks="pgd-0"
        ),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(InputError, match=message):
            mistake()
    with pytest.raises(RuntimeError, match="CUDA out of memory"):  # which is no fault of the images
        evaluate(Failing("CUDA out of memory"), (x, y), ball=BALL)
    assert list(evaluate(model, (x, y), ball=BALL, attacks="clean, pgd-2")) == ["clean", "pgd-2"]
