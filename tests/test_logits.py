"""Models whose output is an object with `.logits` or a dict, as Hugging Face's are."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amata
from amata.errors import InputError
from amata.tensors import read_tensors
from tests.conftest import small_net
from tests.toy import toy_data

BALL = amata.Linf(0.05)


@dataclass
class Output:
    loss: Tensor | None = None
    logits: Tensor | None = None


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "an object": lambda z: Output(logits=z),
    "a dict": lambda z: OrderedDict(logits=z),
}


class Classifier(nn.Module):
    """A network that wraps its logits."""

    first_layer = "net.0"

    def __init__(self, output: str) -> None:
        super().__init__()
        self.net, self.output = small_net(), output

    def forward(self, pixel_values: Tensor) -> Any:
        return OUTPUTS[self.output](self.net(pixel_values))


class Plain(Classifier):
    """The same network with bare logits."""

    def forward(self, pixel_values: Tensor) -> Any:
        return self.net(pixel_values)


@pytest.mark.parametrize("engine", ["plain", "fast"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_they_train_and_save_like_bare_logits(output: str, engine: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "schedule": amata.Constant(steps=2, step_size=0.03),
        "optim": amata.SGD(lr=0.02, ema=0.9),
        "epochs": 1,
        "batch_size": 32,
        "engine": engine,
        "device": "cpu",
        "progress": False,
    }
    for method in (amata.PGD(ball=BALL), amata.YOPO(ball=BALL, inner=1), amata.TRADES(ball=BALL)):
        run = tmp_path / type(method).__name__
        fitted = amata.fit(
            Classifier(output), toy_data(), toy_data(40), method=method, run=run, **settings
        )
        bare = amata.fit(Plain(output), toy_data(), toy_data(40), method=method, **settings)
        assert all(map(torch.equal, fitted.model.parameters(), bare.model.parameters()))
        assert fitted.epochs[0]["valid"] == bare.epochs[0]["valid"]
        assert type(fitted.model(toy_data(2)[0])) is type(OUTPUTS[output](torch.zeros(1)))
        Classifier(output).load_state_dict(read_tensors(run / "model.safetensors"))


@pytest.mark.parametrize("output", OUTPUTS)
def test_they_are_attacked_and_evaluated_like_bare_logits(output: str) -> None:
    (x, y), wrapped, bare = toy_data(16), Classifier(output).eval(), Plain(output).eval()
    y[:2] = (bare(x[:2]).argmax(1) + 1) % 4  # wrong already: AutoAttack would take long
    names = ["clean", "fgsm", "pgd-2-2", "cw-pgd-2", "cw-l2-2", "autoattack@2"]
    found, expected = (
        amata.evaluate(model, (x, y), ball=BALL, attacks=names) for model in (wrapped, bare)
    )
    for name in names:
        assert (found[name].accuracy, found[name].grad_evals) == (
            expected[name].accuracy,
            expected[name].grad_evals,
        )
    for attack in (amata.attacks.fgsm, amata.attacks.pgd, amata.attacks.cw_pgd):
        rng = [torch.Generator().manual_seed(1) for _ in range(2)]
        options: list[dict[str, Any]] = [
            {} if attack is amata.attacks.fgsm else {"generator": g} for g in rng
        ]
        a, b = (
            attack(model, x, y, ball=BALL, **given)
            for model, given in zip((wrapped, bare), options, strict=True)
        )
        assert torch.equal(a, b)
    assert not wrapped._forward_hooks
    assert not isinstance(wrapped(x), Tensor)


class Odd(Classifier):
    def forward(self, pixel_values: Tensor) -> Any:
        z = self.net(pixel_values)
        return {"tuple": (z, z), "scores": {"scores": z}, "flat": z[0]}[self.output]


@pytest.mark.parametrize(
    ("output", "kind"), [("tuple", "tuple"), ("scores", "dict"), ("flat", r"shape \(4,\)")]
)
def test_other_outputs_are_one_line(output: str, kind: str) -> None:
    given: dict[str, Any] = {"method": amata.ERM(ball=BALL), "device": "cpu", "progress": False}
    for call in (
        lambda: amata.fit(Odd(output), toy_data(), **given),
        lambda: amata.evaluate(Odd(output), toy_data(), ball=BALL),
        lambda: amata.attacks.pgd(Odd(output), *toy_data(), ball=BALL),
    ):
        with pytest.raises(InputError, match=f"the model's output must be logits .*, not {kind}"):
            call()
