"""The price of a schedule: gradient evaluations per training image and epoch.

Most methods cost the same on all data, and the price is an exact count. Where samples stop early it
is measured: a probe trains the recipe's model on a few batches and counts what controls cost there.
Epochs that were trained since then correct the price.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean

import torch

from amata.batch import Batch
from amata.data import Splits
from amata.engine import ProbeNet
from amata.errors import InputError
from amata.methods import Planned, planned_evals
from amata.metrics import EpochRow
from amata.recipes import Recipe
from amata.schedules import AnySchedule, Constant, Control, largest_control, planned_controls
from amata.seeds import generator
from amata.studies.runs import row_control
from amata.training.batches import training_batches
from amata.training.device import resolve_device
from amata.training.setup import build_model
from amata.training.trainer import Trainer

BATCHES = 100
"""The most that the probe trains on; it ends with the first epoch."""


@dataclass
class Prices:
    """What the epochs of a recipe cost under any control."""

    recipe: Recipe
    splits: Splits
    ratios: dict[int, list[float]] = field(default_factory=dict)
    """For each epoch that was trained, attack steps taken over those that the probe expected; one
    number per run."""

    def __post_init__(self) -> None:
        few, many = self._planned(Control(1, 0.0)), self._planned(Control(3, 0.0))
        if many.evals <= few.evals:
            raise InputError(
                f"method {self.recipe.tables['method']['name']} costs the same for every K; there "
                "is no schedule to search for"
            )
        self.exact = many.exact
        """Whether prices are counts; otherwise they are estimates, which `learn` may change."""

    def __call__(self, schedule: AnySchedule) -> float:
        """The mean price of an epoch under an open-loop schedule."""
        planned = planned_controls(schedule, self.recipe.train.epochs)
        assert planned is not None, "the cost of a closed-loop schedule is known after the run"
        return mean(self.epoch(epoch, u) for epoch, u in enumerate(planned))

    def epoch(self, epoch: int, u: Control[float]) -> float:
        """The price of one epoch under u."""
        planned = self._planned(u, epoch)
        if planned.exact:
            return planned.evals
        near = min(self.ratios, key=lambda known: abs(known - epoch), default=None)
        ratio = 1.0 if near is None else mean(self.ratios[near])
        return min(planned.evals, self._update(epoch) + ratio * self._expected_steps(epoch, u))

    def learn(self, rows: Sequence[EpochRow]) -> None:
        """Correct estimated prices by what the epochs of a run have cost."""
        grads = images = 0.0
        for row in rows:
            total = row["grad_evals"] / max(row["grad_evals_per_image"], 1e-9)
            new_grads, new_images = row["grad_evals"] - grads, total - images
            grads, images = row["grad_evals"], total
            u = row_control(row)
            if new_images > 0 and not self._planned(u, row["epoch"]).exact:
                steps = new_grads / new_images - self._update(row["epoch"])
                ratio = steps / self._expected_steps(row["epoch"], u)
                self.ratios.setdefault(row["epoch"], []).append(ratio)

    def _planned(self, u: Control[float], epoch: int = 0) -> Planned:
        return planned_evals(self.recipe.method, u, epoch)

    def _update(self, epoch: int) -> float:
        """The cost of an epoch without attack steps."""
        return self._planned(Control(0, 0.0), epoch).evals

    def _expected_steps(self, epoch: int, u: Control[float]) -> float:
        """Attack steps per image that the probe expects. A method's own schedule, such as DAT's
        c_t, is taken as linear between the first epoch and the last."""
        found = [(share, self._probe(part)) for share, part in u.parts()]
        end = self.recipe.train.epochs - 1
        first, last = (
            sum(share * cost[i] for share, cost in found) - self._update(at)
            for i, at in enumerate((0, end))
        )
        return max(first + epoch / max(end, 1) * (last - first), 0.01)

    @cached_property
    def _probe(self) -> "CostProbe":
        return CostProbe(self.recipe, self.splits)


class CostProbe:
    """A short training, and what controls cost after it."""

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        """Train a new model on the first batches, under the schedule's largest control."""
        self.recipe, device = recipe, resolve_device(recipe.train.device)
        u = largest_control(recipe.schedule, recipe.train.epochs)
        short = {"epochs": 1, "eps_warmup": 0.0, "engine": "plain", "accumulate": 1}
        probed = replace(
            recipe,
            method=recipe.method.base,
            schedule=Constant(steps=u.steps, step_size=u.step_size),
            train=recipe.train.model_copy(update=short),
        )
        on_gpu = device.type == "cuda"
        with torch.random.fork_rng(devices=[device] if on_gpu else []):
            batches = training_batches(splits.train, probed, device)
            model = build_model(probed, splits.train, trust=True)
            trainer = Trainer(model, batches, probed, device)
            trainer.train_epoch(lambda _: trainer.state.batch >= BATCHES)
        self.batch: Batch = next(iter(batches.epoch(1)))
        self.net = ProbeNet(
            trainer.model,
            attack_mode=trainer.net.attack_mode,
            first_layer=recipe.model.first_layer,
            precision=trainer.net.precision,
        )
        self.costs: dict[Control, tuple[float, float]] = {}

    def __call__(self, u: Control) -> tuple[float, float]:
        """Gradient evaluations per image under u, by the method's settings of the first epoch and
        of the last."""
        if u not in self.costs:
            self.costs[u] = self._cost(u, 0), self._cost(u, self.recipe.train.epochs - 1)
        return self.costs[u]

    def _cost(self, u: Control, epoch: int) -> float:
        rng = generator(self.recipe.train.seed, "cost", device=self.batch.x.device)
        self.net.rewind()
        before = self.net.grad_evals
        self.recipe.method.step(self.net, self.batch._replace(epoch=epoch), u, rng, {})
        return (self.net.grad_evals - before) / len(self.batch.x)


def reference_cost(recipe: Recipe, steps: int | None) -> tuple[int, int]:
    """What PGD-K costs per image and epoch, and K; by default the schedule's largest."""
    if steps is None:
        steps = max(largest_control(recipe.schedule, recipe.train.epochs).steps, 1)
    return steps + 1, steps
