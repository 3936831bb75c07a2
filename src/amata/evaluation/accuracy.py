"""Accuracy under attack, told honestly: with the number of images, an interval, the cost, and a
warning when an attack looks masked."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from amata.attacks.guard import check_images, check_logits, input_grad, logits, untouched
from amata.engine import EvalCopy, compiled_for_eval, no_cudnn_benchmark, tf32
from amata.errors import InputError
from amata.evaluation.spec import AttackSpec, parse_attack
from amata.losses import ce
from amata.seeds import derive
from amata.threat import Ball, check_ball

Progress = Callable[[str, int, int], None]
"""Called with the attack, the images done and the images in all."""


class Part(NamedTuple):
    """What one of several processes evaluates: every `size`th batch, from batch `rank` on. `sum`
    adds numbers up over all of them."""

    rank: int
    size: int
    sum: Callable[[Sequence[float]], list[float]]


ALONE = Part(0, 1, list)


@dataclass
class Result:
    """The accuracy of a model under one attack, with a 95% Wilson interval over the n images."""

    accuracy: float
    n: int
    low: float
    high: float
    grad_evals: int
    seconds: float
    params: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def wilson(correct: int, n: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion; it stays in [0, 1] and is sound at 0 and 1
    too."""
    z2 = 1.959964**2
    p = correct / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


class Metered(nn.Module):
    """A model that counts the gradients taken through it, in images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.grad_evals = 0
        self.training = model.training  # not train(), which would reach into the model

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            # a hook here fires once for every gradient that flows back to the images
            x = x.view_as(x)
            x.register_hook(self._count)
        return self.model(x)

    def _count(self, g: Tensor) -> None:
        self.grad_evals += len(g)


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    ball: Ball,
    attacks: Sequence[str] | str = ("clean", "pgd-20"),
    step_size: float | None = None,
    cw_c: float = 1.0,
    batch_size: int = 256,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    part: Part = ALONE,
    engine: Literal["auto", "plain"] = "auto",
    precision: Literal["tf32", "fp32"] = "tf32",
) -> dict[str, Result]:
    """Evaluate a model under each attack.

    `data` is a pair of tensors (x, y), or any iterable of (x, y, ...) batches. The model is left as
    it was found. Of several processes, each is given the batches of its `part`, of `batch_size`
    images, and all get the results of the whole.

    On a GPU attacks run on a compiled copy of the model, unless `engine` is "plain"; the verdict on
    what they find is always the model's own, and compiling is not counted as an attack's time.
    `precision` says whether a GPU may round the factors of convolutions and matrix products to
    TF32.
    """
    check_ball(ball)
    named = attacks.split(",") if isinstance(attacks, str) else attacks
    specs = [
        parse_attack(name, step_size=step_size, c=cw_c)
        for name in dict.fromkeys(a.strip() for a in named)
    ]
    attacked = any(s.kind != "clean" for s in specs)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    on_gpu = device.type == "cuda"
    metered = Metered(
        compiled_for_eval(model) if on_gpu and engine == "auto" and attacked else model
    )
    tallies = {spec: _Tally() for spec in specs}
    n, look = 0, _Look()
    total = min(limit or 2**62, _count(data, batch_size))
    with tf32(precision == "tf32"), no_cudnn_benchmark():
        for number, (x, y) in enumerate(_batches(data, batch_size)):
            index = part.rank + number * part.size
            # where this batch stands among all images
            first = n if part.size == 1 else index * batch_size
            if limit is not None and first >= limit:
                break
            x, y = (t[: (limit or 2**62) - first].to(device) for t in (x, y))
            check_images(x, y)
            with untouched(model), torch.no_grad():
                z = logits(model, x) if number == 0 else model(x)
                check_logits(z, y)
            look.add(z, y)
            if index == 0 and attacked:
                look.try_gradients(model, x, y, z)
            if number == 0 and isinstance(metered.model, EvalCopy):
                metered.model.warm_up(x)
            for spec, tally in tallies.items():
                count = len(x) if spec.limit is None else min(len(x), spec.limit - first)
                if count <= 0:
                    continue
                before, started = metered.grad_evals, time.perf_counter()
                x_adv = spec.run(
                    metered, x[:count], y[:count], ball, derive(seed, index, spec.name)
                )
                with untouched(model), torch.no_grad():
                    hits = (z[:count] if spec.kind == "clean" else model(x_adv)).argmax(1) == y[
                        :count
                    ]
                tally.add(
                    int(hits.sum()),
                    count,
                    metered.grad_evals - before,
                    time.perf_counter() - started,
                )
                if progress:
                    progress(spec.name, n + len(x), total)
            n += len(x)
    n, *looked = (int(v) for v in part.sum([n, *astuple(look)]))
    if n == 0:
        raise InputError("there is no image to evaluate on")
    told = {"precision": precision} if on_gpu else {}
    results = {
        spec.name: tally.result(spec.params(ball) | told, part) for spec, tally in tallies.items()
    }
    _warn(specs, results, ball, _Look(*looked))
    return results


@dataclass
class _Tally:
    """What one attack has come to so far, in this process."""

    right: int = 0
    images: int = 0
    grad_evals: int = 0
    seconds: float = 0.0

    def add(self, right: int, images: int, grad_evals: int, seconds: float) -> None:
        self.right, self.images = self.right + right, self.images + images
        self.grad_evals, self.seconds = self.grad_evals + grad_evals, self.seconds + seconds

    def result(self, params: dict[str, Any], part: Part) -> Result:
        """The same of all processes; the time is the mean of theirs."""
        *counts, seconds = part.sum([self.right, self.images, self.grad_evals, self.seconds])
        right, images, grad_evals = map(int, counts)
        return Result(
            right / images,
            images,
            *wilson(right, images),
            grad_evals,
            round(seconds / part.size, 3),
            params,
        )


def _batches(data: Any, batch_size: int) -> Iterable[tuple[Tensor, Tensor]]:
    if pair := _is_pair(data):
        _check_tensors(data)
    for item in zip(*(t.split(batch_size) for t in data), strict=True) if pair else data:
        _check_tensors(item)
        yield item[0], item[1]


def _is_pair(data: Any) -> bool:
    return (
        isinstance(data, tuple | list) and len(data) == 2 and any(hasattr(t, "shape") for t in data)
    )


def _check_tensors(item: Any) -> None:
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise InputError(
            f"data must be tensors (x, y) or batches of them, not {type(item).__name__}"
        )
    for thing in item[:2]:
        if not isinstance(thing, Tensor):
            raise InputError(
                f"images and labels must be tensors, not {type(thing).__name__}; "
                "torch.from_numpy makes one of an array"
            )


def _count(data: Any, batch_size: int) -> int:
    if _is_pair(data):
        return len(data[0])
    return len(data) * batch_size if hasattr(data, "__len__") else 0


@dataclass
class _Look:
    """What makes a network suspicious, as sums that several processes can add up."""

    images: int = 0
    right: int = 0
    said: int = 0
    said_squared: int = 0
    """Of the classes given to the images, as numbers: where all are the same, the mean of the
    squares is the square of the mean."""
    probed: int = 0
    stuck: int = 0
    """Of the rightly classified images of the first batch, those with an input gradient of exactly
    zero: attacks cannot move them."""

    def add(self, z: Tensor, y: Tensor) -> None:
        said = z.argmax(1)
        counts = torch.stack([(said == y).sum(), said.sum(), said.square().sum()]).tolist()
        self.images, self.right = self.images + len(y), self.right + counts[0]
        self.said, self.said_squared = self.said + counts[1], self.said_squared + counts[2]

    def try_gradients(self, model: nn.Module, x: Tensor, y: Tensor, z: Tensor) -> None:
        with untouched(model):
            # of all images: a shape of its own for every count of right ones would be costly on a
            # GPU
            g = input_grad(model, x, y, ce)
        right = z.argmax(1) == y
        self.probed, self.stuck = (
            int(right.sum()),
            int((right & (g.flatten(1).abs().amax(1) == 0)).sum()),
        )

    @property
    def indifferent(self) -> bool:
        """Whether all images are given the same class, though enough of them belong to others."""
        constant = self.images * self.said_squared == self.said**2
        return constant and self.images >= 50 and self.right <= 0.9 * self.images


def _warn(specs: list[AttackSpec], results: dict[str, Result], ball: Ball, look: _Look) -> None:
    """Name networks that have learnt nothing, and gradients that look masked."""
    for strong in specs:
        result = results[strong.name]
        if look.indifferent:
            result.warnings.append(
                "every image is given the same class: this network has learnt nothing, "
                "whatever attacks leave standing"
            )
        elif look.stuck > 0.05 * look.probed and strong.kind != "clean":
            result.warnings.append(
                f"{look.stuck} of {look.probed} images have an input gradient of exactly zero: "
                "gradients look masked, "
                "so this accuracy is an upper bound at best"
            )
        for weak in specs:
            gap = result.accuracy - results[weak.name].accuracy
            if weak.weaker_than(strong, ball) and gap > max(0.01, 2 / result.n):
                result.warnings.append(
                    f"{strong.name} leaves {gap:.1%} more images standing than the weaker "
                    f"{weak.name}: gradients look masked, "
                    "trust neither number"
                )
