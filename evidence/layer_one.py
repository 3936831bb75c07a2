"""Measures how YOPO's first layer dies on MNIST, with the gradient of its paper or of its code.

python evidence/layer_one.py FORM [M SIGMA]
    Writes results/yopo-layer-one/FORM-M-SIGMA.jsonl; ten minutes on one core.

FORM is "paper", "reference" (YOPO's code) or "reference-mean". A SmallCNN is trained on noisy
digits for 100 batches, then by YOPO with M passes of ten steps of SIGMA, in fp32. The default is
Amata's control in its first epochs, 2 and 0.025; YOPO's own is 5 and 0.01. Weight gradients are
summed over the passes, so an update with 5 passes is longer than one with 2. "reference-mean" takes
their mean, with the learning rate of mnist-amata-yopo: updates as long as those of mnist-yopo-5-10.
MNIST is read from $AMATA_DATA.
"""

import json
import sys
from pathlib import Path

import torch

from amata import recipes
from amata.batch import Batch
from amata.data.images import Arrays
from amata.engine import PlainNet
from amata.errors import InputError
from amata.losses import ce
from amata.models.small import SmallCNN
from amata.quantity import positive, whole
from amata.schedules import Control
from amata.seeds import generator
from amata.training.optim import make_optimizer
from amata.training.setup import build_model, load_data

RESULTS = Path(__file__).parents[1] / "evidence" / "results" / "yopo-layer-one"
BATCH, WARM, STEPS, EVERY = 64, 100, 500, 25
FORMS = {
    "paper": lambda: recipes.load("mnist-yopo-5-10", ["method.layer_one=paper"]),
    "reference": lambda: recipes.load("mnist-yopo-5-10"),
    "reference-mean": lambda: recipes.load("mnist-amata-yopo"),
}


def curve_of(form: str, u: Control) -> Path:
    """The file of one training curve."""
    return RESULTS / f"{form}-{u.steps}-{u.step_size:g}.jsonl"


def main(form: str, u: Control) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # a dying layer is full of denormals, which are slow on a CPU
    recipe = FORMS[form]()
    splits = load_data(recipe)
    assert isinstance(splits.train, Arrays)
    assert isinstance(splits.valid, Arrays)
    x, y = splits.train.x.float() / 255, splits.train.y
    seen, labels = splits.valid.x[:500].float() / 255, splits.valid.y[:500]
    model = build_model(recipe, splits.train)
    assert isinstance(model, SmallCNN)
    order = torch.randperm(len(x), generator=generator(0, "order"))
    warm = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    net = PlainNet(model, make_optimizer(model, recipe.optim), first_layer=model.first_layer)
    torch.manual_seed(0)  # dropout
    RESULTS.mkdir(parents=True, exist_ok=True)
    with curve_of(form, u).open("w") as file:
        for step in range(WARM + STEPS + 1):
            ids = order[step * BATCH : (step + 1) * BATCH]
            if step < WARM:
                model.train()
                ce(
                    model(recipe.ball.around(x[ids]).start(generator(0, step))), y[ids]
                ).mean().backward()
                warm.step()
                warm.zero_grad()
                continue
            if (step - WARM) % EVERY == 0:
                loss = float(net.last_loss.detach()) if net.last_loss is not None else None
                file.write(
                    json.dumps(
                        {"step": step - WARM, "loss": loss, **statistics_of(model, seen, labels)}
                    )
                    + "\n"
                )
                file.flush()
            recipe.method.step(net, Batch(x[ids], y[ids], ids), u, generator(0, step), {})


@torch.no_grad()
def statistics_of(model: SmallCNN, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    model.eval()
    active = (model.conv1(model.normalize(x)) > 0).float().mean()
    clean = (model(x).argmax(1) == y).float().mean()
    assert model.conv1.bias is not None
    return {"clean": float(clean), "active": float(active), "bias": float(model.conv1.bias.mean())}


if __name__ == "__main__":
    form, *control = sys.argv[1:] or [""]
    if form not in FORMS or len(control) not in (0, 2):
        sys.exit(f"error: unknown arguments\n\n{__doc__}")
    try:
        steps, sigma = control or ("2", "0.025")
        main(form, Control(whole(steps, "M", 1), positive(sigma, "SIGMA")))
    except InputError as error:
        sys.exit(f"error: {error}")
