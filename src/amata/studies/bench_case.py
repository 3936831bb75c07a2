"""What `amata bench` times: a recipe's training step on random images, under an engine variant."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amata import models
from amata.batch import Batch
from amata.data import DataSet, find_dataset
from amata.data.layout import find_layout
from amata.engine import FastNet, PlainNet, Precision
from amata.losses import Loss
from amata.recipes import Recipe
from amata.schedules import Control, closed_loop, planned_controls
from amata.seeds import generator
from amata.training.optim import make_optimizer
from amata.training.setup import framing_of


class ReferenceNet(PlainNet):
    """The usual implementation of an attack: a full backward pass, weight gradients included."""

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self.model.train(self.attack_mode == "train")
        x = x.detach().requires_grad_()
        z = self._forward(x)
        loss(z, y).sum().backward()
        assert x.grad is not None
        self.optimizer.zero_grad()
        return x.grad, z.detach()


VARIANTS: dict[str, tuple[type[PlainNet], Precision]] = {
    "reference": (ReferenceNet, "fp32"),
    "reference-train-bn": (ReferenceNet, "fp32"),
    "amp": (ReferenceNet, "bf16"),
    "plain": (PlainNet, "fp32"),
    "plain-bf16": (PlainNet, "bf16"),
    "fast": (FastNet, "bf16"),
}
"""The engine and the precision of each variant."""


class CountingNet(PlainNet):
    """Counts the images of passes that also compute weight gradients."""

    updated_images = 0

    def backward(self, x: Any, y: Tensor, **options: Any) -> Tensor | None:
        self.updated_images += sum(len(t) for t in (x if isinstance(x, tuple) else (x,)))
        return super().backward(x, y, **options)

    def costate(self, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        self.updated_images += len(x)
        return super().costate(x, y, **options)


@dataclass(frozen=True)
class Case:
    """A recipe's method, model and optimiser at one batch size, under one or more controls."""

    recipe: Recipe
    batch: int
    controls: tuple[Control, ...]

    @cached_property
    def data(self) -> DataSet:
        """The recipe's data set, with images of the recipe's size; of a folder that it names, with
        its classes and images."""
        found, framing = find_dataset(self.recipe.data.name), framing_of(self.recipe)
        if framing is not None:
            found = replace(found, shape=(found.shape[0], framing.crop, framing.crop))
        given = self.recipe.data
        if given.name == "folder" and given.root is not None:
            layout = find_layout(Path(given.root).expanduser())
            share = 0.0 if "test" in layout.parts else given.test_share
            count = round((1 - share) * len(layout.parts.get("train", ())))
            found = replace(found, classes=len(layout.names), images=count)
        return found

    @property
    def images(self) -> int:
        """Training images per epoch."""
        return self.data.images

    def model(self, device: torch.device) -> nn.Module:
        c, data = self.recipe.model, self.data
        return models.build(
            c.name,
            in_channels=data.shape[0],
            classes=data.classes,
            args=c.args,
            mean=c.mean,
            std=c.std,
            seed=0,
            trust=True,
        ).to(device)

    def batches(self, device: torch.device, count: int = 4) -> list[Batch]:
        """Random images and labels of the data set's shape."""
        data, rng = self.data, generator("bench", device=device)
        batches = []
        for index in range(count):
            x = torch.rand(self.batch, *data.shape, generator=rng, device=device)
            y = torch.randint(data.classes, (self.batch,), generator=rng, device=device)
            ids = torch.arange(self.batch, device=device) + index * self.batch
            batches.append(Batch(x, y, ids, count * self.batch, 0, None))
        return batches

    def attack_mode(self, variant: str) -> Any:
        """The BatchNorm mode of the attack."""
        return "train" if variant == "reference-train-bn" else self.recipe.train.attack_mode

    def net(self, variant: str, model: nn.Module) -> PlainNet:
        kind, precision = VARIANTS[variant]
        if variant == "fast" and not next(model.parameters()).is_cuda:
            precision = "fp32"
        return kind(
            model,
            make_optimizer(model, self.recipe.optim, self.data.shape),
            attack_mode=self.attack_mode(variant),
            first_layer=self.recipe.model.first_layer,
            precision=precision,
        )

    def flops(self, u: Control) -> float:
        """FLOPs of one training step: an input gradient counts as two forward passes, an update as
        three."""
        from torch.utils.flop_counter import FlopCounterMode

        cpu = torch.device("cpu")
        small = Case(self.recipe, 2, (u,))
        model, (batch,) = small.model(cpu), small.batches(cpu, 1)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()(batch.x)
        forward = counter.get_total_flops() / 2
        net = CountingNet(
            model,
            make_optimizer(model, self.recipe.optim),
            first_layer=self.recipe.model.first_layer,
        )
        self.recipe.method.step(net, batch, u, generator(0), {})
        attacks = (net.grad_evals - net.updated_images) / 2
        return forward * self.batch * (2 * attacks + 3 * net.updated_images / 2)


def cases(recipe: Recipe, batches: Sequence[int], steps: Sequence[int]) -> list[Case]:
    """A recipe at several batch sizes and K. The defaults are its batch size and every K of its
    schedule."""
    controls = sorted(schedule_controls(recipe), key=lambda u: u.steps)
    top = controls[-1]
    chosen = tuple(top.with_steps(k).for_batch(0) for k in steps) or tuple(controls)
    return [Case(recipe, batch, chosen) for batch in (batches or [recipe.data.batch_size])]


def schedule_controls(recipe: Recipe) -> list[Control]:
    """The controls of the batches, or the candidates of a closed-loop schedule: one for every K."""
    if (loop := closed_loop(recipe.schedule)) is not None:
        return loop.candidates()
    planned = planned_controls(recipe.schedule, recipe.train.epochs) or []
    return list({part.steps: part for u in planned for _, part in u.parts()}.values())
