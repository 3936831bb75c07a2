"""AWP (Wu et al. 2020, arXiv 2004.05884): adversarial weight perturbation, around any method.

With g the weight gradient of the method's loss at its adversarial images, every weight tensor with
more than one dimension moves to w + gamma |w| g / (|g| + 1e-20). The gradient there updates w. This
flattens the loss around the weights. u is the method's own; an update costs its passes twice.

As in the reference code both passes run BatchNorm in train mode, and only the second one changes
its running statistics. The reference takes the optimiser's step at the perturbed weights and then
subtracts the perturbation. Here the weights are restored first, bit for bit, so weight decay is
that of w itself. gamma is 0.01 for PGD in the paper; its code has 0.005 and a warm-up of 10 epochs
for TRADES. yopo has no backward pass to repeat and is refused.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, get_origin, get_type_hints

import torch

from amata.batch import Batch
from amata.errors import InputError
from amata.fields import read_fields
from amata.methods.contract import Memory, Method, Net
from amata.methods.yopo import YOPO
from amata.quantity import NotNegative, Whole, shown
from amata.schedules import Control
from amata.threat import Ball

DECLARED = tuple(k for k, kind in get_type_hints(Method).items() if get_origin(kind) is ClassVar)
"""What a method tells the trainer about itself."""


@dataclass(frozen=True)
class AWP(Method):
    """`AWP(PGD(ball=ball), gamma=0.01)`; in a recipe the table [method.awp]."""

    method: Method
    """The method whose loss is perturbed."""
    ball: Ball = field(init=False, repr=False, compare=False)
    gamma: NotNegative = field(kw_only=True)
    """How far weights are moved, relative to the norm of each tensor; 0 turns it off."""
    warmup: Whole = field(default=0, kw_only=True)
    """Epochs without perturbation at the start."""

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise InputError(
                f"AWP(): {shown(self.method)} must be a method such as amata.PGD(ball=ball)"
            )
        if isinstance(self.method, YOPO | AWP):
            kind = "yopo, which splits the network" if isinstance(self.method, YOPO) else "itself"
            raise InputError(f"awp does not work around {kind}; choose another method, or drop awp")
        object.__setattr__(self, "ball", self.method.ball)
        for name in DECLARED:
            object.__setattr__(self, name, getattr(self.method, name))
        read_fields(self)

    @property
    def base(self) -> Method:
        return self.method

    @property
    def whole_batch(self) -> bool:
        return self.method.whole_batch

    @property
    def training_ball(self) -> Ball:
        return self.method.training_ball

    def scaled(self, factor: float) -> Self:
        return replace(self, method=self.method.scaled(factor))

    def stretched(self, factor: float) -> Self:
        # rounded down: some epochs are always perturbed
        return replace(
            self, method=self.method.stretched(factor), warmup=math.floor(self.warmup * factor)
        )

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        if self.gamma == 0 or batch.epoch < self.warmup:
            self.method.step(net, batch, u, rng, memory)
            return
        with net.perturbed(self.gamma):
            self.method.step(net, batch, u, rng, memory)
