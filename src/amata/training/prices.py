"""What an epoch costs on this device, from a few batches on trial: nothing of the training
changes."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from statistics import mean, median
from typing import Any, NamedTuple

import torch

from amata.attacks.fast_gradient_sign import FGSM
from amata.batch import Batch
from amata.data import ImageSet
from amata.errors import InputError
from amata.evaluation import parse_attack
from amata.evaluation.corruptions import is_attack
from amata.methods import AWP, planned_evals
from amata.recipes import Recipe
from amata.schedules import Control
from amata.training.batches import Batches, held_out_batches
from amata.training.failure import ATTACK
from amata.training.guard import EVALS, IMAGES, cloned, guard_images, guard_stats, may_fade
from amata.training.guard import SHARE as GUARD_SHARE
from amata.training.saver import RATE, Copies
from amata.training.time_plan import Prices, may_stop_early
from amata.training.trainer import Trainer
from amata.training.validation import validate

SHARE = 0.05
"""Of the time, for timing batches."""
BLOCKS = 4
"""Of each K, in turn, or 2 if time is short: a machine that others use changes its speed."""
MOST = 20
"""Batches in a block."""
WHOLE = 0.5
"""Seconds. Batches that take less are timed as a whole."""
SETTLING = 100
"""Batches that a method with early stopping trains on before it is timed: a new network is fooled
at once, and its samples stop sooner than they will."""
FEW, ON_CPU = 8, 64
"""Images that are timed on a CPU, at least, and of validation and guard at most: each costs the
same."""


class Measured(NamedTuple):
    prices: Prices
    gradient: float | None
    """Seconds per gradient evaluation of an image under attack; None if no attack was timed."""

    def evaluation(self, recipe: Recipe, images: int) -> float | None:
        """Seconds of the final evaluation; None if the cost of an attack is not known."""
        if self.gradient is None or not all(map(is_attack, recipe.eval.attacks)):
            return None
        n = min(images, recipe.eval.limit or images)
        costs = [_gradients(name, n) for name in recipe.eval.attacks]
        return None if None in costs else self.gradient * sum(c for c in costs if c is not None)


def measure(
    trainer: Trainer,
    valid: Any,
    controls: Sequence[Control],
    within: float,
    *,
    attack_images: Any = None,
) -> Measured:
    """The prices of one or two controls, and of what comes once an epoch. The trainer's step is
    compiled. Without a validation set, `attack_images` tell the price of an attack."""
    check_measurable(trainer)
    recipe, batches = trainer.recipe, trainer.batches
    on_cpu = trainer.device.type == "cpu"
    images = min(batches.count or 0, len(batches) * recipe.data.batch_size)
    with trainer.trial():
        # AWP's warm-up is cheaper than the epochs after it
        first = recipe.method.warmup if isinstance(recipe.method, AWP) else 0
        trainer.check_batch(next(iter(batches.epoch(first))))
        source = _endless(batches, first)
        lr = trainer.lr(0)
        if stops := may_stop_early(recipe):
            settling = min(SETTLING, len(batches))
            trainer.time_batches(islice(source, settling), controls[-1], recipe.optim.lr / 2)
        sample = Sample(trainer, source, lr, images)
        share = SHARE * within / len(controls)
        if on_cpu and not stops and recipe.train.accumulate == 1:
            sample.grow(controls[-1], max(share / 2, WHOLE))
        for u in controls:
            sample.epoch_seconds(u, 2)  # compiles, and fills caches
        once = max(sample.seconds(controls[-1]), 1e-6)
        count = min(int(share / BLOCKS / once), MOST)
        turns, count = (BLOCKS, count) if count else (2, 1)
        sample.images, before = 0, trainer.net.grad_evals
        blocks = [[sample.epoch_seconds(u, count) for u in controls] for _ in range(turns)]
        evals = trainer.net.grad_evals - before
        copying, keeping, nbytes = _saving(trainer)
    # Other work on the machine makes some blocks slow: the median.
    costs = [median(block[i] for block in blocks) for i in range(len(controls))]
    spread = max((max(c) - min(c)) / 2 / mean(c) for c in zip(*blocks, strict=True))
    if stops:  # at most, no sample stops early
        most_evals = sum(planned_evals(recipe.method, u).evals for u in controls)
        spread = max(spread, most_evals * sample.images / len(controls) / max(evals, 1) - 1)
    low, high = controls[0].steps, controls[-1].steps
    step = max(costs[-1] - costs[0], 0.0) / (high - low) if high > low else 0.0
    # To attack these takes about as long as the batches did.
    few = min(max(evals // EVALS, FEW), ON_CPU) if on_cpu else None
    validation, gradient = _validation(trainer, valid, attack_images, few)
    guard, single = _guard(trainer, valid, controls, costs[0], few)
    often = validation / recipe.train.valid_every
    # Of large checkpoints some are skipped.
    saving = copying * min(1.0, costs[0] * RATE / nbytes)
    prices = Prices(
        update=max(costs[0] - step * low, 1e-6),
        step=step,
        epoch=often + guard + saving + (keeping if guard else 0.0),
        end=validation - often,
        spread=spread,
        single=single,
    )
    return Measured(prices, gradient)


class Sample:
    """Batches to time. On a CPU each image costs the same: the first images of a slow batch tell
    what all of it costs, and a smaller last batch costs less."""

    def __init__(self, trainer: Trainer, source: Iterator[Batch], lr: float, epoch: int) -> None:
        """An epoch has so many images."""
        self.trainer, self.source, self.lr, self.epoch = trainer, source, lr, epoch
        self.on_cpu = trainer.device.type == "cpu"
        self.largest = min(trainer.recipe.data.batch_size, epoch)
        """Images of a whole batch."""
        self.size = self.largest
        """So many images of each batch are trained on."""
        self.images = 0
        """So many were trained on."""

    def grow(self, u: Control, most: float) -> None:
        """Take as many images of a batch as take at most so many seconds, but a few at least."""
        self.size = min(FEW, self.largest)
        self.seconds(u)  # fills caches
        while self.size < self.largest and 2 * self.seconds(u) <= most:
            self.size = min(2 * self.size, self.largest)

    def seconds(self, u: Control, count: int = 1) -> float:
        """What `size` images of a batch take, from so many batches."""
        trainer, coming = self.trainer, islice(self.source, count)
        self.images += count * self.size
        if not self.on_cpu:
            return trainer.time_batches(coming, u, self.lr)
        whole: list[Batch] = []
        reading = _seconds(lambda: whole.extend(coming)) / count
        training = trainer.time_batches((b.first(self.size) for b in whole), u, self.lr)
        return training + reading * self.size / self.largest

    def epoch_seconds(self, u: Control, count: int) -> float:
        """What an epoch takes, from so many batches."""
        batches = self.epoch / self.size if self.on_cpu else len(self.trainer.batches)
        return self.seconds(u, count) * batches


def check_measurable(trainer: Trainer) -> None:
    """Refuse what cannot be put on trial."""
    if trainer.ranks.size > 1:
        raise InputError("a time is planned for one process; under torchrun give epochs instead")
    if not isinstance(getattr(trainer.batches, "images", None), ImageSet):
        raise InputError(
            "within= reads batches to time them, which changes an iterable; pass single images "
            "(tensors, arrays, or loader.dataset with batch_size=), or epochs="
        )


def _endless(batches: Batches, first: int = 0) -> Iterator[Batch]:
    """Whole batches, epoch after epoch; the last one of an epoch may be smaller."""
    for epoch in count(first):
        largest = 0
        for batch in batches.epoch(epoch):
            largest = max(largest, len(batch.x))
            if len(batch.x) == largest:
                yield batch


def _seconds(work: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _saving(trainer: Trainer) -> tuple[float, float, int]:
    """What a checkpoint makes training wait for: a copy, which a thread writes. Then what the
    guard's own copy takes, and the bytes of each."""
    copies = Copies()
    copies.of(trainer.snapshot()[0])  # the first one takes longer
    copying = _seconds(lambda: copies.of(trainer.snapshot()[0]))
    return copying, _seconds(lambda: cloned(trainer.snapshot()[0])), copies.size


def _validation(
    trainer: Trainer, valid: Any, others: Any, few: int | None
) -> tuple[float, float | None]:
    """Seconds of a validation, and of a gradient evaluation in its attack. On a CPU from a few
    images."""
    recipe, images = trainer.recipe, others if valid is None else valid
    if images is None:
        return 0.0, None
    count = len(images) if isinstance(images, ImageSet) else None
    timed = min(count or IMAGES, few or recipe.eval.batch_size)
    batches = held_out_batches(images, recipe, trainer.device, timed)
    assert batches is not None
    attack = parse_attack(recipe.train.valid_attack).name
    validate(trainer, batches, ("clean", attack), timed)  # compiles, and fills caches
    seconds = _seconds(lambda: validate(trainer, batches, ("clean", attack), timed))
    gradients = _gradients(attack, timed)
    price = seconds / gradients if gradients else None
    return (0.0 if valid is None else seconds * (count or timed) / timed), price


def _guard(
    trainer: Trainer, valid: Any, controls: Sequence[Control], training: float, few: int | None
) -> tuple[float, float]:
    """Seconds of the collapse guard after every epoch, here one that takes so long in training, and
    how much more after an epoch with single steps, where it attacks. With more steps that are long
    it attacks about half as often as it may. On a CPU from a few images."""
    recipe, images = trainer.recipe, guard_images(trainer, valid)
    if images is None or recipe.train.guard == "ignore":
        return 0.0, 0.0
    count = min(len(images), IMAGES) if isinstance(images, ImageSet) else IMAGES
    timed = min(count, few or IMAGES)
    batches = held_out_batches(images, recipe, trainer.device, timed)
    assert batches is not None
    single = controls[0].steps < 2 and controls[-1].steps > 0 and recipe.method.may_collapse

    def look() -> None:
        guard_stats(trainer.model, batches)

    def attack() -> None:
        validate(trainer, batches, (ATTACK,), timed, trainer.model)

    parts = [look, attack] if single or may_fade(recipe, controls[0]) else [look]
    for part in parts:
        part()  # compiles, and fills caches
    looking, *attacking = (_seconds(part) * count / timed for part in parts)
    if single:
        return looking, sum(attacking)
    return looking + sum(min(seconds, GUARD_SHARE * training) / 2 for seconds in attacking), 0.0


def _gradients(name: str, n: int) -> float | None:
    """Gradient evaluations of an attack such as pgd-20 or pgd-50-10 on n images, with the forward
    passes that judge them; None for attacks whose number is not known before."""
    attack = parse_attack(name)
    steps = getattr(attack, "steps", 1 if isinstance(attack, FGSM) else None)
    if not attack.perturbs:
        steps = 0
    if not isinstance(steps, int):
        return None
    n = min(n, attack.limit or n)
    return n * (steps * getattr(attack, "restarts", 1) + 0.3)
