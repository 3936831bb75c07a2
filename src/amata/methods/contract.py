"""What a training method is, and the few verbs it is written in.

A method decides how ascent on x and descent on theta interleave; the engine decides how each of
them is computed. A method file holds the paper's algorithm box and its hyper-parameters, and
nothing else.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from amata.batch import Batch
from amata.errors import InputError
from amata.fields import Keywords, read_fields
from amata.losses import Loss
from amata.quantity import round_half_up
from amata.schedules import Control
from amata.seeds import Noise
from amata.threat import Ball, Region, check_ball


class Net(Protocol):
    """What the engine does with the network. Every sample that runs through a full forward and
    backward pass counts as one gradient evaluation.

    The fast engine compiles and records a graph for every `loss` function and every `scale` that it
    is given. Pass the same function object in every step: a module-level function or a method of
    the frozen dataclass, not a new lambda, closure or partial. Use few fixed scales. More than 16
    pairs for one call are an error.
    """

    @property
    def loss(self) -> Loss:
        """What `backward` minimises where no loss is given: the cross-entropy with the label
        smoothing of the run. A method with more terms builds on it."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """The network's output, held constant: no gradient flows through it."""
        ...

    def input_grad(
        self, x: Tensor, y: Tensor, *, loss: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        """The gradient of each sample's loss at its image; no weight gradients are computed."""
        ...

    def ascent(
        self,
        region: Region,
        x: Tensor,
        y: Tensor,
        steps: int,
        step_size: float,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Projected steps up the loss: x <- P(x + step_size direction(g)), g = `input_grad(x, y)`,
        in the feasible set `region`.

        The next call may overwrite the result: use it at once, or copy it.
        """
        ...

    def ascent_while(
        self,
        ball: Ball,
        x: Tensor,
        start: Tensor,
        y: Tensor,
        steps: int,
        step_size: float,
        *,
        goes_on: Callable[..., tuple[Tensor, ...]],
        state: tuple[Tensor, ...] = (),
        noise: Noise | None = None,
    ) -> Tensor:
        """`ascent` from `start` in the ball around x, in which samples stop one by one.

        In every step `goes_on(ball, x_adv, y, g, z, *state)` gets images, labels, gradients and
        logits, and returns which samples go on, then their new `state`. Those that stop keep the
        image they have and cost nothing more. `goes_on` must be a module-level function of tensors
        that treats samples independently; every tensor of `state` has a row per sample. `noise` is
        added to every step before projection. The next call may overwrite the result.
        """
        ...

    def backward(
        self,
        x: Tensor | tuple[Tensor, ...],
        y: Tensor,
        *,
        loss: Callable[..., Tensor] | None = None,
        given: tuple[Tensor, ...] = (),
        scale: float = 1.0,
        wrt_input: bool = False,
    ) -> Tensor | None:
        """Add the gradient of the batch-mean loss, times `scale`, to the weights' gradients;
        `wrt_input` also returns it at the images. A `loss` returns one value per image.

        A tuple of inputs goes through the network one by one, and the loss takes all their logits,
        then y, then the tensors `given`. Pass a number that changes between epochs as a tensor of
        one element there: it is not compiled in.
        """
        ...

    def apply(self) -> None:
        """One optimiser step with the gradients so far, which are then zero again."""
        ...

    def perturbed(self, gamma: float) -> AbstractContextManager[None]:
        """In the with block, an update takes its gradient at adversarially perturbed weights (AWP).

        `backward` leaves BatchNorm's running statistics alone. `apply` moves every weight tensor
        with more than one dimension by gamma |w| g / (|g| + 1e-20), g the gradient so far of the
        whole batch; repeats the backward passes there; restores the weights; and updates them.
        """
        ...

    # The network split after its first layer, z = f_0(x):

    def costate(self, x: Tensor, y: Tensor, *, first: bool, scale: float = 1.0) -> Tensor:
        """A full pass for l, the batch-mean loss times `scale`: adds the weight gradients of the
        layers behind the first (and of the first too, if asked), returns p = dl/dz. Any number of
        scales is fine."""
        ...

    def first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        """The gradient of <p, f_0(x)> at the images: the first layer alone."""
        ...

    def first_ascent(
        self, region: Region, x: Tensor, p: Tensor, steps: int, step_size: float
    ) -> Tensor:
        """Projected steps along `first_grad(x, p)`. The next call may overwrite the result."""
        ...

    def first_backward(self, x: Tensor, p: Tensor) -> None:
        """Add the gradient of <p, f_0(x)> to the first layer's weight gradients."""
        ...


Memory = dict[str, Tensor]
"""What a method keeps across batches, by name. It is saved in checkpoints, so a resumed run finds
it as it was."""


@dataclass(frozen=True, kw_only=True)
class Method(Keywords, ABC):
    """One training method: a frozen dataclass whose fields are the paper's hyper-parameters.

    To write one, subclass this, add the fields, and write `step`. Of a built-in method every field
    but `ball` is a key of a recipe's [method] table. The class attributes below tell the trainer
    what the method needs.
    """

    ball: Ball
    """The threat model; in a recipe it is the [threat] table."""

    may_collapse: ClassVar[bool] = False
    """Whether few long inner steps can end in catastrophic overfitting; the collapse guard then
    attacks, after every epoch with 0 < K < 2, and at times with long steps."""
    chosen_by: ClassVar[Literal["robust", "clean"]] = "robust"
    """Which held-out accuracy selects the best checkpoint."""
    memory_rows: ClassVar[tuple[str, ...]] = ()
    """Names in `memory` that hold one row per image of a batch: each process keeps its own rows."""
    memory_images: ClassVar[tuple[str, ...]] = ()
    """Names in `memory` that hold one row per image of the data set, at its id: after a batch every
    process gets the rows of all its images."""
    refuses: ClassVar[tuple[str, ...]] = ()
    """Fields of the control that it cannot use: a schedule that sets them is refused."""
    min_steps: ClassVar[int] = 0
    """The fewest steps K with which it updates the weights."""
    joint_loss: ClassVar[bool] = False
    """Whether its loss couples the images of a batch, which is then not divided: neither among
    processes nor into parts."""
    epoch_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that count epochs of the run, or have stages of it: with other epochs (--epochs,
    --within) they keep their share of the run."""
    own_loss: ClassVar[bool] = False
    """Whether updates minimise a loss of its own, which `optim.label_smoothing` does not change."""
    belongs: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("steps", "step_size", "k", "alpha"),
            "steps are the schedule's: amata.Constant(steps=10, step_size='2/255')",
        ),
        "eps": "eps is the ball's: ball=amata.Linf('8/255')",
    }

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "step" in vars(cls):
            _check_step(cls)

    def __post_init__(self) -> None:
        check_ball(self.ball)
        read_fields(self)

    def scaled_ball(self, name: str) -> Ball:
        """The ball times the field `name`, which an error names."""
        factor = getattr(self, name)
        try:
            return self.ball.scaled(factor)
        except InputError as error:
            raise InputError(f"{name} = {factor:g} is too large: {error}") from None

    def scaled(self, factor: float) -> Self:
        """The same method with `factor` times the radius."""
        return self if factor == 1 else replace(self, ball=self.ball.scaled(factor))

    def stretched(self, factor: float) -> Self:
        """The same method in a run of `factor` times the epochs."""
        found: dict[str, Any] = {}
        for name in self.epoch_fields:
            own = getattr(self, name)
            if isinstance(own, tuple):  # stages; those that meet become one
                found[name] = sorted({round_half_up(t * factor): k for t, k in own}.items())
            else:  # 0 turns something off
                found[name] = own and max(round_half_up(own * factor), 1)
        return replace(self, **found)

    @property
    def base(self) -> "Method":
        """The method itself, without AWP around it."""
        return self

    @property
    def whole_batch(self) -> bool:
        """Whether a batch must come in one piece, because state goes from one pass to the next."""
        return False

    @property
    def training_ball(self) -> Ball:
        """The ball that training attacks stay in."""
        return self.ball

    @abstractmethod
    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        """Train on one batch under u. Draw only from rng, keep state only in memory.

        Draw noise with `region.start(rng, batch.rows)` or `seeds.draw(..., rows=batch.rows)`: the
        parts of a batch share one seed, and `rows` gives each part its own numbers.
        """


def _check_step(method: type[Method]) -> None:
    """Refuse a step() that the trainer cannot call, where its class is defined."""
    step, given = vars(method)["step"], ["self", "net", "batch", "u", "rng", "memory"]
    if not inspect.isfunction(step):
        return  # a static method, say
    signature = inspect.signature(step, follow_wrapped=False)
    try:
        signature.bind(*given)
    except TypeError:
        found = ", ".join(signature.parameters)
        raise InputError(
            f"{method.__name__}.step({found}) must be step({', '.join(given)})"
        ) from None
