"""Checks of a recipe as a whole: settings that contradict each other, processes that differ, and
what cannot be divided among them or into parts of a batch."""

import hashlib
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import amata
from amata.attacks.preserve import NO_GRADIENT, ignores
from amata.distributed import Ranks
from amata.errors import InputError
from amata.formatting import short_number
from amata.methods import AWP, ERM, MART, METHODS, PGD, TRADES, YOPO, Method, planned_evals
from amata.quantity import in_pixels
from amata.recipes import Recipe
from amata.schedules import Adaptive, Control, closed_loop
from amata.threat import Linf
from amata.training.sizes import check_usable

FIELD_KEYS = {"size": "sizes", "eps": "eps_start"}
"""The keys of [schedule] that set fields of the control, where they have other names."""


def method_name(recipe: Recipe) -> str:
    """The method as a recipe names it; one of a user's own by its class."""
    own = type(recipe.method.base)
    return str(recipe.tables["method"]["name"]) if own in METHODS.values() else own.__name__


def check_consistent(recipe: Recipe, plan: Sequence[Control[float]] | None) -> None:
    """Refuse settings that would have no effect, and controls with which nothing is trained."""
    method, name = recipe.method, method_name(recipe)
    if recipe.model.new_head and recipe.model.weights is None:
        raise InputError(
            "model.new_head replaces the classifier of given weights; set model.weights=PATH to a "
            "weights file or a run folder"
        )
    _check_warmups(recipe, plan)
    for epoch, u in enumerate(plan or []):
        for field in method.refuses:
            if getattr(u, field) != Control._field_defaults[field]:
                raise InputError(
                    f"{name} cannot use the {field} that the schedule sets in epoch {epoch + 1}; "
                    f"drop schedule.{FIELD_KEYS.get(field, field)}, or choose another method"
                )
        try:
            method.scaled(u.eps)
        except InputError as error:
            raise InputError(
                f"the radius of epoch {epoch + 1}, {u.eps:g} times the usual: {error}; lower "
                "schedule.eps_start"
            ) from None
    check_usable(recipe, plan)
    if isinstance(recipe.ball, Linf):
        loop = closed_loop(recipe.schedule)
        _check_steps(recipe, loop.candidates() if loop else plan or [])
    if isinstance(method.base, ERM) and closed_loop(recipe.schedule) is not None:
        raise InputError(
            f"{name} takes no attack steps, so an adaptive schedule has nothing to choose; set "
            "schedule.name to constant"
        )
    if method.own_loss and recipe.optim.label_smoothing > 0:
        raise InputError(
            f"{name} trains on a loss of its own, without label smoothing; set "
            "optim.label_smoothing=0"
        )
    schedule = recipe.schedule
    if (
        isinstance(schedule, Adaptive)
        and schedule.budget is not None
        and type(method.base) in METHODS.values()  # a user-defined one may need real images
        and not planned_evals(method, schedule.largest()).exact
    ):
        raise InputError(
            f"schedule.budget needs a cost that is known beforehand, and with {name} samples stop "
            "early; set schedule.gamma instead"
        )
    for epoch, u in enumerate(plan or []):
        if int(u.steps) < method.min_steps:
            where = f"in epoch {epoch + 1}"
            if not isinstance(u.steps, int):
                where = f"in some batches of epoch {epoch + 1}, where K = {u.steps:.3g}"
            raise InputError(
                f"with {int(u.steps)} steps, as {where}, {name} does not update the weights; "
                "raise K in [schedule]"
            )


def _check_warmups(recipe: Recipe, plan: Sequence[Control[float]] | None) -> None:
    """Refuse those that never end, and one of a radius that the schedule changes too."""
    method = recipe.method
    if (warmup := recipe.train.eps_warmup) > recipe.train.epochs - 1:
        raise InputError(
            f"train.eps_warmup = {warmup:g} leaves none of the {recipe.train.epochs} epochs with "
            f"the full eps; set it to {recipe.train.epochs - 1}, or train longer"
        )
    if isinstance(method, AWP) and method.warmup >= recipe.train.epochs:
        raise InputError(
            f"method.awp.warmup = {method.warmup} leaves none of the {recipe.train.epochs} epochs "
            f"with AWP; set it to {recipe.train.epochs - 1}, or train longer"
        )
    if warmup and any(u.eps != 1 for u in plan or []):
        raise InputError(
            "train.eps_warmup and the schedule both change the training radius; set "
            "train.eps_warmup=0, or schedule.eps_start=1"
        )


def _check_steps(recipe: Recipe, plan: Sequence[Control[float]]) -> None:
    """Refuse steps that were meant in units of 1/255, in training and in tests."""
    if recipe.eval.step_size is not None:
        in_pixels(recipe.eval.step_size, "eval.step_size")
    for u in plan:
        own = getattr(recipe.schedule, "tau", None)
        # without a limit, the control has none
        tau = own * u.eps if isinstance(own, float) else u.tau
        key, given = ("step_size", u.step_size) if tau is None else ("tau", tau)
        if given / (1 if tau is None else max(u.steps, 1)) > 1:
            raise InputError(
                f"schedule.{key} = {given:g} makes steps of more than 1, the whole range of a "
                f'pixel; did you mean "{given:g}/255"?'
            )


def recipe_notes(recipe: Recipe, plan: Sequence[Control[float]] | None) -> Iterator[str]:
    """What is allowed, but hardly meant."""
    optim, epochs = recipe.optim, recipe.train.epochs
    if optim.warmup >= epochs:
        yield (
            f"optim.warmup = {optim.warmup:g} is as long as the run, so the learning rate never "
            f"reaches optim.lr; lower it, or train more than {optim.warmup:g} epochs; to shorten a "
            "recipe pass --epochs, not train.epochs"
        )
    piecewise = optim.lr_schedule == "piecewise"
    if piecewise and optim.milestones and (first := min(optim.milestones)) >= epochs:
        yield (
            f"the run ends before the first of optim.milestones, {first:g}, so the learning rate "
            f"never drops; lower it, or train more than {first:g} epochs; to shorten a recipe pass "
            "--epochs, not train.epochs"
        )
    if isinstance(recipe.method.base, ERM) and any(u.steps for u in plan or []):
        yield "erm takes no attack steps: K and alpha of the schedule have no effect"
    if weak := weak_attack(recipe, plan):
        yield weak
    if summed := summed_passes(recipe, plan):
        yield summed


def weak_attack(recipe: Recipe, plan: Sequence[Control[float]] | None) -> str:
    """A note on an attack that cannot cross the ball, or nothing. Other methods than these keep
    their perturbations, or start elsewhere."""
    if type(recipe.method.base) not in (PGD, TRADES, MART) or not plan:
        return ""
    reach, eps = max(u.steps * u.step_size / max(u.eps, 1e-9) for u in plan), recipe.ball.eps
    if reach >= eps * (1 - 1e-9):
        return ""
    if not any(u.steps for u in plan):
        return "K is 0 in every epoch: training images are at most moved at random, never attacked"
    return (
        f"K times the step size is {short_number(reach)} and eps is {short_number(eps)}: attacks "
        "in training cannot cross the ball; usual is 1.6 eps (schedule.tau)"
    )


def summed_passes(recipe: Recipe, plan: Sequence[Control[float]] | None) -> str:
    """A note on yopo's updates that change with m, or nothing. Adam's steps hardly depend on the
    scale of the gradients."""
    method = recipe.method.base
    passes = sorted({part.steps for u in plan or [] for _, part in u.parts()})
    if not isinstance(method, YOPO) or method.pass_average or recipe.optim.name == "adamw":
        return ""
    if len(passes) < 2:
        return ""
    few, most = passes[0], passes[-1]
    return (
        f"yopo sums weight gradients over its m passes, so an update with m = {most} is up to "
        f"{most / few:.3g} times as long as with m = {few}; set method.pass_average=true, and "
        "multiply the learning rate by the m that it was tuned for"
    )


OWN = frozenset(
    {
        "data.root",
        "data.workers",
        "train.device",
        "train.save_minutes",
        "train.tensorboard",
        "train.timeout",
    }
)
"""Keys that every process may have its own value of."""


def check_equal_ranks(recipe: Recipe, data: Mapping[str, Any], ranks: Ranks) -> None:
    """Refuse processes that differ in recipe, data or versions: each would train its own way, and
    the average of their gradients would be of no use. `data` identifies the images."""
    if ranks.size == 1:
        return
    facts: dict[str, Any] = {
        f"{section}.{key}": value
        for section, table in recipe.tables.items()
        for key, value in table.items()
        if f"{section}.{key}" not in OWN
    }
    facts |= {f"data.{name}": value for name, value in data.items()}
    facts |= {
        "the version of Python": platform.python_version(),
        "the version of torch": torch.__version__,
        "the version of amata": amata.__version__,
        "the hash of amata's source": _source_hash(),
    }
    first, *others = ranks.gather(facts)
    for rank, found in enumerate(others, start=1):
        for name in sorted(first.keys() | found.keys()):
            if found.get(name) != first.get(name):
                raise InputError(
                    f"rank {rank} has {name} = {found.get(name)!r} and rank 0 has "
                    f"{first.get(name)!r}; start all processes with the same recipe, data and "
                    "versions"
                )


@cache
def _source_hash() -> str:
    digest, root = hashlib.sha256(), Path(amata.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def check_equal_batches(count: int, ranks: Ranks) -> None:
    """Refuse processes with different numbers of batches: they would deadlock."""
    total, squares = ranks.sum([count, count**2])
    if squares * ranks.size != total**2:
        raise InputError(
            f"this process has {count} batches per epoch and others have a different number; give "
            "every process the same number"
        )


def check_divisible(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse what cannot be divided among processes, or into parts of a batch."""
    method, name = recipe.method, method_name(recipe)
    if recipe.data.batch_size < ranks.size:
        raise InputError(
            f"data.batch_size = {recipe.data.batch_size} cannot be divided among {ranks.size} "
            "processes; raise it"
        )
    if recipe.train.sync_bn and recipe.train.accumulate > 1 and ranks.size > 1:
        raise InputError(
            "train.sync_bn uses the statistics of the whole batch, train.accumulate those of a "
            "part; choose one of the two"
        )
    if method.joint_loss and (ranks.size > 1 or recipe.train.accumulate > 1):
        raise InputError(
            f"the loss of {name} couples the images of a batch, which cannot be divided; use one "
            "process and train.accumulate=1"
        )
    if recipe.train.accumulate > 1 and method.whole_batch:
        raise InputError(
            f"{name} carries state from pass to pass of a whole batch, which cannot come in parts; "
            "set train.accumulate=1"
        )
    if recipe.train.sync_bn and recipe.train.attack_mode == "train":
        raise InputError(
            "train.sync_bn would synchronise processes in every attack step; set "
            "train.attack_mode=eval"
        )


def misuse(error: Exception, method: Method, model: nn.Module, x: Tensor) -> str | None:
    """What a model or a user's step() did wrong, if Python's or PyTorch's message does not tell."""
    name, own = type(method).__name__, type(method) not in METHODS.values()
    if re.search("does not require grad|not have been used in the graph", str(error)):
        x = x.detach().requires_grad_()
        z = model(x)
        if isinstance(z, Tensor) and ignores(z, x):
            return NO_GRADIENT
        if own:
            return (
                f"{name}.step() asks for a gradient that does not exist: its loss does not depend "
                "on the network's output, or is a loss of net.logits(), which are constants. Take "
                "net.backward(x, y, loss=...) or net.input_grad(x, y, loss=...)"
            )
    if own and re.search(r"'(Plain|Fast)Net' object is not callable", str(error)):
        return f"{name}.step() calls net like a model; net.logits(x) gives its output"
    return None
