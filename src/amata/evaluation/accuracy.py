"""Accuracy under attack: number of images, confidence interval, cost, and warnings when gradients
look masked."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from amata.attacks import Attack, parse_attack
from amata.attacks.checks import check_images, check_kinds, check_logits, check_module, forward
from amata.attacks.preserve import input_grad, untouched
from amata.batch import Batch
from amata.data import ImageSet, Loader, Stream, as_images
from amata.data.convert import to_batch
from amata.engine import EvalCopy, compiled_for_eval, no_cudnn_benchmark, tf32
from amata.errors import InputError
from amata.losses import ce, correct, finite
from amata.quantity import choice, positive, whole
from amata.seeds import derive
from amata.threat import Ball, check_ball

Progress = Callable[[str, int, int], None]
"""Called with the attack's name, the images done and the images in total."""


class Shard(NamedTuple):
    """The batches that one of several processes evaluates: `rank`, `rank + size`, ... `sum` adds
    numbers over all processes."""

    rank: int
    size: int
    sum: Callable[[Sequence[float]], list[float]]


SINGLE_PROCESS = Shard(0, 1, list)


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
    non_finite: int = 0
    """Images with logits that are NaN or infinite. They count as wrong."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def wilson(correct: int, n: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion. It stays in [0, 1] and is valid at 0 and 1."""
    z2 = 1.959964**2
    p = correct / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


class GradCounter(nn.Module):
    """A wrapper that counts gradient evaluations: one for each image and backward pass. Those that
    are not finite are counted on the device."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.grad_evals = 0
        self.non_finite = torch.zeros((), dtype=torch.long)
        self.training = model.training  # train() would change the model's mode

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            # the hook runs once for every gradient with respect to the images
            x = x.view_as(x)
            x.register_hook(self._count)
        return self.model(x)

    def _count(self, g: Tensor) -> None:
        self.grad_evals += len(g)
        # The sum of an image's gradient is finite only if all of it is.
        sums = g.sum(dim=tuple(range(1, g.dim())), dtype=torch.float32)
        self.non_finite = self.non_finite.to(g.device) + (~sums.isfinite()).sum()


@torch.inference_mode(False)  # a caller's inference mode would record no gradients
def evaluate(
    model: nn.Module,
    data: Any,
    *,
    ball: Ball,
    attacks: Iterable[str] | str = ("clean", "pgd-20"),
    step_size: float | None = None,
    cw_c: float = 1.0,
    batch_size: int = 256,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    part: Shard = SINGLE_PROCESS,
    engine: Literal["auto", "plain"] = "auto",
    precision: Literal["tf32", "fp32"] = "tf32",
    workers: int = 0,
) -> dict[str, Result]:
    """Evaluate a model under each attack.

    `data` is a pair (x, y) of tensors or arrays, an image set, a map-style Dataset (read by
    `workers` processes), or any iterable of batches, such as a DataLoader or a generator. A batch
    is (x, y, ...) or a dict. The model is left unchanged. The random draws of an attack depend only
    on `seed`, the batch and its name.

    With several processes, `data` holds only the batches of this process's `part`, each of
    `batch_size` images. All processes return the results of the whole.

    On a GPU, attacks run on a compiled copy of the model unless `engine` is "plain". The original
    model judges their images, and compilation does not count as attack time. `precision` selects
    TF32 or full float32 for convolutions and matrix products on a GPU.
    """
    check_ball(ball)
    check_module(model)
    cw_c, batch_size = positive(cw_c, "cw_c"), whole(batch_size, "batch_size", 1)
    limit = None if limit is None else whole(limit, "limit", 1)
    seed = whole(seed, "seed", 0, 2**63 - 1)
    choice(engine, "engine", ("auto", "plain"))
    choice(precision, "precision", ("tf32", "fp32"))
    if not isinstance(part, Shard):
        raise InputError(f"part = {part!r} must be an amata.evaluation.Shard")
    if progress is not None and not callable(progress):
        raise InputError(f"progress = {progress!r} must be a function (attack, done, total)")
    if not isinstance(attacks, Iterable):
        raise InputError(f"attacks = {attacks!r} must be a list of names, such as ['pgd-20']")
    named = attacks.split(",") if isinstance(attacks, str) else attacks
    every = [parse_attack(name, step_size=step_size, c=cw_c) for name in named]
    parsed = list({attack.name: attack for attack in every}.values())
    perturbs = any(attack.perturbs for attack in parsed)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batches, count = _batches(data, batch_size, device, whole(workers, "workers", 0))
    on_gpu = device.type == "cuda"
    counter = GradCounter(
        compiled_for_eval(model) if on_gpu and engine == "auto" and perturbs else model
    )
    tallies = {attack: _Tally() for attack in parsed}
    n, stats, classes = 0, _ModelStats(), 0
    total = min(limit or 2**62, count)
    with tf32(precision == "tf32"), no_cudnn_benchmark():
        for number, (x, y, *_) in enumerate(batches):
            index = part.rank + number * part.size  # of this batch among those of all processes
            first = n if part.size == 1 else index * batch_size  # index of its first image
            if limit is not None and first >= limit:
                break
            x, y = (t[: (limit or 2**62) - first].to(device) for t in (x, y))
            check_images(x, y)
            with untouched(model), torch.no_grad():
                z = forward(model, x) if number == 0 else model(x)
                check_logits(z, y)
            classes = z.shape[1]
            stats.add(z, y)
            if index == 0 and perturbs:
                stats.add_gradients(model, x, y, z)
            if number == 0 and isinstance(counter.model, EvalCopy):
                counter.model.warm_up(x)
            for attack, tally in tallies.items():
                count = len(x) if attack.limit is None else min(len(x), attack.limit - first)
                if count <= 0:
                    continue
                counter.grad_evals = 0
                counter.non_finite = torch.zeros((), dtype=torch.long, device=device)
                started = time.perf_counter()
                x_adv = attack(
                    counter,
                    x[:count],
                    y[:count],
                    ball=ball,
                    seed=derive(seed, index, attack.name),
                )
                with untouched(model), torch.no_grad():
                    z_adv = model(x_adv) if attack.perturbs else z[:count]
                right, bad = correct(z_adv, y[:count]).sum(), (~finite(z_adv)).sum()
                counts = torch.stack([right, bad, counter.non_finite]).tolist()
                spent = counter.grad_evals, time.perf_counter() - started
                tally.add(count, *counts, *spent)
                if progress:
                    progress(attack.name, n + len(x), total)
            n += len(x)
    n, *summed = (int(v) for v in part.sum([n, *astuple(stats)]))
    if n == 0:
        raise InputError("data has no images to evaluate")
    extra = {"precision": precision} if on_gpu else {}
    results = {
        attack.name: tally.result(attack, attack.params(ball) | extra, part)
        for attack, tally in tallies.items()
    }
    for attack in parsed if classes else []:
        results[attack.name].warnings += attack.caveats(classes)
    _warn(parsed, results, ball, _ModelStats(*summed))
    return results


@dataclass
class _Tally:
    """The counts of one attack so far, in this process."""

    images: int = 0
    correct: int = 0
    non_finite: int = 0
    """Images with logits that are not finite."""
    bad_gradients: int = 0
    """Gradient evaluations that are not finite."""
    grad_evals: int = 0
    seconds: float = 0.0

    def add(self, *more: float) -> None:
        """Add to each field, in their order."""
        for f, value in zip(fields(self), more, strict=True):
            setattr(self, f.name, getattr(self, f.name) + value)

    def result(self, attack: Attack, params: dict[str, Any], part: Shard) -> Result:
        """The result over all processes. Its time is their mean."""
        *counts, seconds = part.sum(astuple(self))
        images, correct, non_finite, bad_gradients, grad_evals = map(int, counts)
        warnings = []
        if non_finite:
            warnings.append(
                f"the logits of {non_finite} of {images} images are not finite; these images count "
                "as wrong"
            )
        if bad_gradients:
            warnings.append(
                f"{bad_gradients / grad_evals:.1%} of the input gradients of {attack.name} are not "
                "finite: it cannot attack these images, so this accuracy is only an upper bound"
            )
        return Result(
            correct / images,
            images,
            *wilson(correct, images),
            grad_evals,
            round(seconds / part.size, 3),
            params,
            warnings,
            non_finite,
        )


def _batches(
    data: Any, batch_size: int, device: torch.device, workers: int
) -> tuple[Iterator[Batch], int]:
    """The batches of data in any form, and the number of images if it is known, else 0."""
    pair = isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape")
    if pair and all(isinstance(t, Tensor) and t.dtype != torch.uint8 for t in data):
        # Kept where they are and in their precision.
        x, y = to_batch(data, "data")
        check_kinds(x, y)
        parts: Any = list(zip(x.split(batch_size), y.split(batch_size), strict=True))
        return Stream(parts, device).epoch(), len(x)
    images = as_images(data, workers=workers)
    if isinstance(images, ImageSet):
        return Loader(images, batch_size, device).epoch(), len(images)
    stream = Stream(images, device)
    try:
        return stream.epoch(), len(images) * batch_size
    except TypeError:  # an iterable without a length
        return stream.epoch(), 0


@dataclass
class _ModelStats:
    """Signs of an untrained model or of masked gradients, as sums that processes can add."""

    images: int = 0
    correct: int = 0
    non_finite: int = 0
    class_sum: int = 0
    class_square_sum: int = 0
    """Sums over the predicted class indices and over their squares."""
    probed: int = 0
    zero_gradient: int = 0
    """The correctly classified images of the first batch, and those of them with an input gradient
    of exactly zero."""

    def add(self, z: Tensor, y: Tensor) -> None:
        predicted = z.argmax(1)
        sums = [correct(z, y), ~finite(z), predicted, predicted.square()]
        counts = torch.stack([row.sum() for row in sums]).tolist()
        self.images += len(y)
        self.correct += counts[0]
        self.non_finite += counts[1]
        self.class_sum += counts[2]
        self.class_square_sum += counts[3]

    def add_gradients(self, model: nn.Module, x: Tensor, y: Tensor, z: Tensor) -> None:
        # Take the whole batch: a new batch size for the correct images would be slow on a GPU.
        with untouched(model):
            g = input_grad(model, x, y, ce)
        right = correct(z, y)
        self.probed = int(right.sum())
        self.zero_gradient = int((right & (g.flatten(1).abs().amax(1) == 0)).sum())

    @property
    def predicts_one_class(self) -> bool:
        """Whether all of at least 50 images get the same class, and over a tenth of them wrongly.

        All predictions are equal when the mean of their squares is the square of their mean.
        """
        constant = self.images * self.class_square_sum == self.class_sum**2
        known = self.images >= 50 and self.non_finite == 0
        return known and constant and self.correct <= 0.9 * self.images


def _warn(
    attacks: list[Attack], results: dict[str, Result], ball: Ball, stats: _ModelStats
) -> None:
    """Add warnings about models that have learnt nothing and about masked gradients."""
    for strong in attacks:
        result = results[strong.name]
        if stats.predicts_one_class:
            result.warnings.append(
                "every image is predicted as the same class: the model has learnt nothing, so its "
                "robust accuracy means nothing"
            )
        elif stats.zero_gradient > 0.05 * stats.probed and strong.perturbs:
            result.warnings.append(
                f"{stats.zero_gradient} of {stats.probed} images have an input gradient of exactly "
                "zero: gradients look masked, so this accuracy is only an upper bound"
            )
        for weak in attacks:
            gap = result.accuracy - results[weak.name].accuracy
            if strong.stronger_than(weak, ball) and gap > max(0.01, 2 / result.n):
                result.warnings.append(
                    f"accuracy under {strong.name} is {gap:.1%} higher than under the weaker "
                    f"{weak.name}: gradients look masked, so trust neither number"
                )
