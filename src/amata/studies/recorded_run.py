"""A trained run as a trajectory: its terminal cost, and the co-state carried back through its
epochs. The run has kept its epochs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from amata.batch import Batch
from amata.control.costate import Motion, probe_epoch
from amata.data import Splits
from amata.engine import ProbeNet
from amata.errors import InputError
from amata.evaluation import parse_attack
from amata.losses import ce, correct, smooth_ce
from amata.models import load_state
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.runs.files import under
from amata.schedules import Control
from amata.tensors import read_tensors
from amata.training.batches import held_out_batches, training_batches
from amata.training.class_weights import class_weights
from amata.training.device import resolve_device
from amata.training.optim import learning_rate
from amata.training.setup import build_model


class Terminal(NamedTuple):
    """Phi: the mean loss on the held-out images under the validation attack, at the last weights,
    with the accuracy, and the gradient of Phi at these adversarial images."""

    loss: float
    accuracy: float
    gradient: Tensor


@dataclass(frozen=True)
class RecordedRun:
    path: Path
    recipe: Recipe
    splits: Splits

    @property
    def device(self) -> torch.device:
        return resolve_device(self.recipe.train.device)

    def terminal(self) -> Terminal:
        model = self._model()
        self._load(model, self.recipe.train.epochs)
        return self._terminal(model.eval())

    def _terminal(self, model: nn.Module) -> Terminal:
        recipe, weights = self.recipe, _trainable(model)
        attack = parse_attack(recipe.train.valid_attack, step_size=recipe.eval.step_size)
        loader = held_out_batches(self.splits.valid, recipe, self.device)
        assert loader is not None
        total = [torch.zeros_like(p) for p in weights]
        loss = hits = count = 0.0
        for batch in loader.epoch():
            x = attack(model, batch.x, batch.y, ball=recipe.ball, seed=recipe.train.seed)
            z = model(x)
            value = ce(z, batch.y).sum()
            parts = torch.autograd.grad(value, weights, materialize_grads=True)
            total = [a + b for a, b in zip(total, parts, strict=True)]
            loss += float(value.detach())
            hits += int(correct(z, batch.y).sum())
            count += len(x)
        gradient = torch.cat([g.flatten() for g in total]) / count
        return Terminal(loss / count, hits / count, gradient)

    def gains(
        self, own: Sequence[Control], candidates: Sequence[Control], batches: int, order: int
    ) -> list[list[list[float]]]:
        """For each epoch and candidate the fall of Phi on each probe batch, to first order. `own`
        are the controls of the run."""
        recipe, model, found = self.recipe, self._model(), []
        loader = training_batches(self.splits.train, recipe, self.device)
        self._load(model, recipe.train.epochs)
        p = -self._terminal(model.eval()).gradient
        end = _copied(model)
        for epoch in reversed(range(recipe.train.epochs)):
            memory = self._load(model, epoch)
            start = _copied(model)
            for w, a, b in zip(_moving(model), start, end, strict=True):
                w.data.copy_((a + b) / 2)
            probes: list[Batch] = list(islice(loader.epoch(epoch), batches))
            measured = probe_epoch(
                self._net(model, epoch),
                recipe.method,
                probes,
                memory,
                self._motion(model, start, end, epoch, len(loader)),
                own[epoch],
                candidates,
                p,
                order=order,
                seed=recipe.train.seed,
            )
            p, end = measured.costate, start
            found.append(measured.gains)
        return found[::-1]

    def _model(self) -> nn.Module:
        weights = RunFolder(self.path).epoch_file(0)
        model = build_model(self.recipe, self.splits.train, trust=True, weights=weights)
        return model.to(self.device)

    def _load(self, model: nn.Module, epoch: int) -> dict[str, Tensor]:
        """Load the state after so many epochs. Returns the method's memory."""
        file = RunFolder(self.path).epoch_file(epoch)
        if not file.is_file():
            raise InputError(f"{file} is missing; delete {self.path} to train it again")
        state = read_tensors(file)
        load_state(model, under(state, "model/"), file)
        return {k: v.to(self.device) for k, v in under(state, "memory/").items()}

    def _net(self, model: nn.Module, epoch: int) -> ProbeNet:
        recipe = self.recipe
        return ProbeNet(
            model,
            loss=smooth_ce(recipe.optim.label_smoothing),
            class_weights=class_weights(recipe.optim, self.splits.train, self.device),
            attack_mode=recipe.train.attack_mode,
            first_layer=recipe.model.first_layer,
            lr=learning_rate(recipe.optim, epoch + 0.5, recipe.train.epochs),
        )

    def _motion(
        self, model: nn.Module, start: list[Tensor], end: list[Tensor], epoch: int, updates: int
    ) -> Motion:
        """How the gradients of an epoch move the weights."""
        sizes = [p.numel() for p in _trainable(model)]
        optim, epochs = self.recipe.optim, self.recipe.train.epochs
        # at mid-batch, as in training
        places = (epoch + (i + 0.5) / updates for i in range(updates))
        rate = sum(learning_rate(optim, place, epochs) for place in places)
        if optim.name == "sgd":
            rate /= 1 - optim.momentum
        return Motion(
            rate if optim.name == "sgd" else None,
            rate * optim.weight_decay,
            [float((b - a).norm()) for a, b in zip(start, end, strict=True)][: len(sizes)],
            sizes,
        )


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _moving(model: nn.Module) -> list[Tensor]:
    """What training changes: the weights, then BatchNorm's statistics."""
    return [*_trainable(model), *(b for b in model.buffers() if b.is_floating_point())]


def _copied(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in _moving(model)]
