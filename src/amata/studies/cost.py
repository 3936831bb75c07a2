"""The cost of a schedule in gradient evaluations, known before training."""

from dataclasses import dataclass

import torch

from amata.batch import Batch
from amata.data import Splits
from amata.engine import ProbeNet
from amata.errors import InputError
from amata.recipes import Recipe
from amata.schedules import AnySchedule, Control, planned_controls
from amata.seeds import generator
from amata.training.setup import build_model


@dataclass(frozen=True)
class MethodCost:
    """A method's gradient evaluations per image, base + per_step * K, measured on two images."""

    base: float
    per_step: float

    @classmethod
    def of(cls, recipe: Recipe, splits: Splits) -> "MethodCost":
        images = splits.train
        positions = torch.arange(2)
        x, y = next(iter(images.read([positions], torch.device("cpu"), None)))
        batch = Batch(x, y, images.ids[positions], int(images.ids.max()) + 1, 0, None)
        model = build_model(recipe, images, trust=True)
        net = ProbeNet(model, first_layer=recipe.model.first_layer)
        costs = []
        for steps in (1, 2):
            before = net.grad_evals
            recipe.method.step(
                net, batch, Control(steps, recipe.ball.eps / steps), generator(0, "cost"), {}
            )
            costs.append((net.grad_evals - before) / 2)
        if costs[1] <= costs[0]:
            raise InputError(
                f"method {recipe.tables['method']['name']} costs the same for every K; there "
                "is no schedule to search for"
            )
        return cls(2 * costs[0] - costs[1], costs[1] - costs[0])

    def __call__(self, schedule: AnySchedule, epochs: int) -> float:
        """Gradient evaluations per image and epoch under an open-loop schedule."""
        planned = planned_controls(schedule, epochs)
        assert planned is not None, "the cost of a closed-loop schedule is known after the run"
        return self.base + self.per_step * sum(u.steps for u in planned) / epochs


def reference_cost(recipe: Recipe, cost: MethodCost, steps: int | None) -> tuple[float, int]:
    """The cost of a constant K per image and epoch, and K; by default the schedule's largest."""
    if steps is None:
        planned = planned_controls(recipe.schedule, recipe.train.epochs) or []
        steps = getattr(recipe.schedule, "k_max", None) or max(u.steps for u in planned)
    return cost.base + cost.per_step * steps, steps
