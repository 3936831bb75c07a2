"""What becomes of YOPO's first layer on MNIST, with the gradient of its paper and with that of its code.

python tools/layer_one.py FORM    "paper" or "reference": ten minutes on one core, writes results/yopo-layer-one/FORM.jsonl

A SmallCNN that has seen noisy digits for a hundred batches goes on with two passes of ten steps of 0.025, as Amata's first epochs do, in
plain fp32. MNIST is looked for in $AMATA_DATA.
"""

import json
import sys
from pathlib import Path

import torch

from amata import recipes
from amata.batch import Batch
from amata.data.images import Arrays
from amata.engine import PlainNet
from amata.losses import ce
from amata.methods import YOPO
from amata.models.small import SmallCNN
from amata.schedules import Control
from amata.seeds import generator
from amata.threat import Linf
from amata.training.experiment import build_model, load_data

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "yopo-layer-one"
BATCH, WARM, STEPS, EVERY = 64, 100, 500, 25
EPS, RATE = 0.3, 0.002


def main(form: str) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # a layer that dies is full of them, and a CPU is slow with them
    splits = load_data(recipes.load("mnist-amata-yopo"))
    assert isinstance(splits.train, Arrays)
    assert isinstance(splits.valid, Arrays)
    x, y = splits.train.x.float() / 255, splits.train.y
    seen, labels = splits.valid.x[:500].float() / 255, splits.valid.y[:500]
    model = build_model(recipes.load("mnist-amata-yopo"), splits.train)
    assert isinstance(model, SmallCNN)
    order = torch.randperm(len(x), generator=generator(0, "order"))
    ball, method = Linf(EPS), YOPO(ball=Linf(EPS), inner=10, layer_one=form)  # type: ignore[arg-type]
    warm = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    net = PlainNet(model, torch.optim.SGD(model.parameters(), RATE, 0.9, weight_decay=5e-4), first_layer="relu1")
    torch.manual_seed(0)  # dropout
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{form}.jsonl").open("w") as file:
        for step in range(WARM + STEPS + 1):
            ids = order[step * BATCH : (step + 1) * BATCH]
            if step < WARM:
                model.train()
                warm.zero_grad()
                ce(model(ball.around(x[ids]).start(generator(0, step))), y[ids]).mean().backward()
                warm.step()
                warm.zero_grad()
                continue
            if (step - WARM) % EVERY == 0:
                model.eval()
                with torch.no_grad():
                    active = (model.conv1(model.normalize(seen)) > 0).float().mean()
                    clean = (model(seen).argmax(1) == labels).float().mean()
                loss = float(net.last_loss.detach()) if net.last_loss is not None else None
                row = {"step": step - WARM, "loss": loss, "clean": float(clean), "active": float(active)}
                row["bias"] = float(model.conv1.bias.detach().mean())  # type: ignore[union-attr]
                file.write(json.dumps(row) + "\n")
                file.flush()
            method.step(net, Batch(x[ids], y[ids], ids), Control(2, 0.025), generator(0, step), {})


if __name__ == "__main__":
    if sys.argv[1:] not in (["paper"], ["reference"]):
        sys.exit(f"error: this is not understood\n\n{__doc__}")
    main(sys.argv[1])
