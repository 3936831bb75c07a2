"""The collapse guard: failed epochs, detected on held-out images or, where there are none, on
training images; and recovery from them.

A method with one attack step, or few long ones, can lose its robustness while its training loss
still falls: catastrophic overfitting. With one step it takes an epoch, with more of them several.
And any training can collapse to chance accuracy, when one update is too large and the network gives
every image the same logits.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amata.attacks.checks import check_images, check_logits, forward
from amata.attacks.preserve import untouched
from amata.data import ImageSet
from amata.engine import no_cudnn_benchmark
from amata.errors import AmataError, InputError
from amata.losses import correct
from amata.metrics import Event
from amata.recipes import Recipe
from amata.schedules import Control, is_single_step
from amata.training.batches import Batches, held_out_batches
from amata.training.failure import (
    ATTACK,
    HELD_OUT,
    CatastrophicOverfitting,
    ChanceCollapse,
    Failure,
)
from amata.training.trainer import Snapshot, Trainer

IMAGES = 256
DROP = 0.2
"""A drop of the accuracy under ATTACK by more than this is catastrophic overfitting (the threshold
of Wong et al. 2020); so is the loss of half of it, where it was at least this."""
LONG = 0.5
"""Attack steps of at least this share of eps are long."""
FALL = 0.05
"""With two or more long steps, ATTACK is made again after the training loss fell by this share: it
falls when training overfits, so that few attacks are enough."""
SHARE = 0.1
"""Of the gradient evaluations of training: no more are spent on these attacks."""
EVALS = 11
"""Of ATTACK, per image, with the pass that judges it."""
SAME = 0.05
"""A difference of accuracies that is none."""
FEW = 30
"""Images that are too few to tell chance accuracy from bad luck."""
ENOUGH = 2
"""Steps added to a single one, after which an epoch that ends as before is accepted: three steps
seldom overfit, so the cause is something else. Unless hardly any robust accuracy is left."""
UPDATES = 50
"""After so many, and an epoch more than the warm-up, a network should have learnt something. On
digits all that had not after two epochs never did."""


def overfitted(before: float, after: float) -> bool:
    """Whether the accuracy under ATTACK dropped too far."""
    return after < before - DROP or (before >= DROP and after < before / 2)


def unchanged(failed: float | None, after: float) -> bool:
    """Whether an epoch ends as it did before its remedy, more attack steps. Then it is something
    else, such as too few images: they overfit slowly, with any steps."""
    return failed is not None and abs(failed - after) < SAME


class GuardStats(NamedTuple):
    """How the weights do on some clean images."""

    images: int
    accuracy: float
    same: float
    """The share of images that get the most common prediction."""
    loss: float
    informed: float
    """The loss of a guess that knows the class frequencies."""
    equal: float
    """The loss of equal logits."""
    majority: float
    """The share of the largest class."""

    def collapsed(self, best: float) -> bool:
        """Whether a network that had learnt something is now at chance accuracy, or near it."""
        near = self.accuracy < self.majority + DROP
        return near and self.at_chance and self.accuracy < max(best - DROP, best / 2)

    @property
    def at_chance(self) -> bool:
        """Whether most images get one class, with about the loss of a guess.

        A network with bad BatchNorm statistics may also give most images one class, but with
        confidence: its loss is higher. Too few images are no evidence.
        """
        guess = 0.95 * self.informed < self.loss < 1.05 * self.equal
        return self.images >= FEW and self.same > 0.5 and guess

    def learnt_nothing(self, best: float) -> bool:
        """Whether the network is at chance accuracy, and always was."""
        return self.at_chance and max(best, self.accuracy) <= self.majority + SAME


def may_fade(recipe: Recipe, u: Control[float]) -> bool:
    """Whether training under this control may lose its robustness over some epochs: two or more
    steps, and long ones."""
    long = u.step_size >= LONG * recipe.ball.eps * u.eps
    return recipe.method.may_collapse and u.steps >= 2 and long


def guard_images(trainer: Trainer, valid: Any) -> Any:
    """The images that the guard looks at: of the validation set, else of the training set. An
    epoch that overfits catastrophically fails on both. None of a training stream, which is read
    only for training."""
    if valid is not None:
        return valid
    images = getattr(trainer.batches, "images", None)
    return images if isinstance(images, ImageSet) else None


def guard_batches(trainer: Trainer, valid: Any) -> Batches | None:
    images = guard_images(trainer, valid)
    return held_out_batches(images, trainer.recipe, trainer.device, IMAGES)


def guard_stats(model: nn.Module, batches: Batches) -> GuardStats:
    """The statistics of the model on the first IMAGES of these; the model is left as it was."""
    pairs: list[tuple[Tensor, Tensor]] = []
    with untouched(model), torch.no_grad(), no_cudnn_benchmark():
        for batch in batches.epoch():
            if sum(len(y) for _, y in pairs) >= IMAGES:  # a stream may have more
                break
            check_images(batch.x, batch.y)
            z = forward(model, batch.x).float()
            check_logits(z, batch.y)
            pairs.append((z.cpu(), batch.y.cpu()))
    if not pairs:
        raise InputError("the validation set is empty: pass None or at least one image")
    z, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    predictions, labels = (
        torch.bincount(t, minlength=z.shape[1]) / len(y) for t in (z.argmax(1), y)
    )
    return GuardStats(
        images=len(y),
        accuracy=float(correct(z, y).float().mean()),
        same=float(predictions.max()),
        loss=float(cross_entropy(z, y)),
        informed=-float(torch.special.xlogy(labels, labels).sum()),
        equal=math.log(z.shape[1]),
        majority=float(labels.max()),
    )


def cloned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies where the tensors are: on a GPU they take no time."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


class Guard:
    """Checks the weights after every epoch, and rolls a failed epoch back."""

    def __init__(
        self,
        trainer: Trainer,
        robust_accuracy: Callable[[Batches], float],
        images: Batches,
        seen_on: str = HELD_OUT,
    ) -> None:
        """`images` are HELD_OUT or TRAINING, as `seen_on` says; `robust_accuracy` tests under
        ATTACK."""
        self.trainer, self.robust_accuracy = trainer, robust_accuracy
        self.images, self.seen_on = images, seen_on
        self.good: Snapshot | None = None
        """The snapshot after the last good epoch."""
        self._told = False

    @property
    def armed(self) -> bool:
        """Whether the method may overfit catastrophically within this epoch."""
        single_step = is_single_step(self.trainer.scheduled())
        return single_step and self.trainer.recipe.method.may_collapse

    def _watches(self, images: int) -> bool:
        """Whether robustness may fade, and this can be told: by enough images, and where training
        attacks reach as far as those of the guard."""
        recipe = self.trainer.recipe
        full = self.trainer.method().training_ball.eps >= (1 - 1e-9) * recipe.ball.eps
        return full and images >= FEW and may_fade(recipe, self.trainer.scheduled())

    def _due(self, loss: float, images: int) -> bool:
        """Whether to attack after an epoch with this training loss."""
        state = self.trainer.state
        if self.armed or state.guard_failed is not None:
            return True
        cost = (state.guard_attacks + 1) * EVALS * images
        fell = state.guard_loss is None or loss < (1 - FALL) * state.guard_loss
        return fell and cost <= SHARE * state.spent.grad_evals

    def remember(self) -> None:
        """Keep a snapshot after a good epoch."""
        self.good = None  # frees the old one first
        tensors, record = self.trainer.snapshot()
        self.good = cloned(tensors), record

    def check(self) -> Failure | None:
        """After an epoch: how it failed, if it did."""
        state = self.trainer.state
        # Broadcast, so that all processes agree.
        stats, loss = self.trainer.ranks.broadcast(
            (guard_stats(self.trainer.model, self.images), self.trainer.mean_loss())
        )
        # Chance accuracy also fails the attack, but needs the other remedy.
        if stats.collapsed(state.guard_clean):
            return ChanceCollapse(state.epoch, state.guard_clean, stats.accuracy, self.seen_on)
        self._tell_of_chance(stats)
        if not (self.armed or self._watches(stats.images)):
            state.guard_robust = state.guard_loss = None
        elif not math.isfinite(stats.loss):
            pass  # the weights are not finite: saving them will say so
        elif self._due(loss, stats.images):
            robust, before = self.robust_accuracy(self.images), state.guard_robust
            state.guard_attacks += 1
            if before is not None and overfitted(before, robust):
                single_step = is_single_step(self.trainer.control())
                tried = state.extra_steps >= ENOUGH and robust >= SAME
                lost = self.armed and robust < before / 2 and not tried
                if single_step or lost or not unchanged(state.guard_failed, robust):
                    return CatastrophicOverfitting(state.epoch, before, robust, self.seen_on)
                self.trainer.net.note(
                    f"with {self.trainer.control().steps:.3g} steps epoch {state.epoch + 1} ends "
                    f"as before, with {robust:.1%} under {ATTACK}: steps are not the cause, and it "
                    "is accepted; from here on they are as before"
                )
                before, state.extra_steps = None, state.guard_extra
            # One class for all images is never fooled: a network that learns more is less robust.
            known = robust if robust > stats.majority + SAME else None
            best = known if self.armed else max(before or 0.0, known or 0.0) or None
            state.guard_robust, state.guard_loss = best, loss
        elif state.guard_loss is not None:
            state.guard_loss = max(state.guard_loss, loss)
        state.guard_clean = max(state.guard_clean, stats.accuracy)
        state.guard_failed = None
        return None

    def _tell_of_chance(self, stats: GuardStats) -> None:
        """Note, once, that the network should have learnt something by now, and has not. There is
        no good epoch to go back to."""
        state, recipe = self.trainer.state, self.trainer.recipe
        updates = state.spent.images // recipe.data.batch_size
        early = updates < UPDATES or state.epoch < max(
            1.0, recipe.optim.warmup, recipe.train.eps_warmup
        )
        if early or self._told or not stats.learnt_nothing(state.guard_clean):
            return
        self._told = True
        self.trainer.net.note(
            f"accuracy on {self.seen_on} is at chance after epoch {state.epoch + 1}, and such runs "
            "seldom learn later: consider stopping, and fewer attack steps at first, "
            "train.eps_warmup=5, or a third of optim.lr"
        )

    def event(self, failure: Failure) -> Event:
        """The failure, and what the recipe says to do about it."""
        value = getattr(self.trainer.state, failure.key)
        no_way_back = self.good is None or value == failure.last
        action = "stop" if no_way_back else self.trainer.recipe.train.guard
        event = Event(
            event=failure.event,
            action=action,
            epoch=failure.epoch,
            before=failure.before,
            after=failure.after,
        )
        event[failure.key] = failure.remedied(value) if action == "rollback" else value  # type: ignore[literal-required]
        return event

    def go_back(self, failure: Failure, event: Event) -> str:
        """Restore the last good epoch and apply the remedy, or stop there. Returns the remedy in
        words."""
        now = self.trainer.state
        extra = now.extra_steps if now.guard_failed is None else now.guard_extra
        if self.good is not None:
            self.trainer.roll_back(*self.good)
        if event["action"] == "stop":
            raise AmataError(
                f"{failure}; stopped, with the weights of the last good epoch: "
                f"{failure.advice}, or set train.guard=ignore (in Python, guard='ignore')"
            )
        state = self.trainer.state
        setattr(state, failure.key, event[failure.key])  # type: ignore[literal-required]
        if isinstance(failure, CatastrophicOverfitting):
            state.guard_failed, state.guard_extra = failure.after, extra
            return f"{self.trainer.control().steps:.3g} inner steps"
        return f"{state.lr_scale:g} of the learning rate"
