"""The full criterion C of a recorded training run, for networks small enough to keep every step.

Gradient descent theta_{t+1} = theta_t - eta g_t(theta_t, u_t) is recorded, where g_t is the
displacement that a batch causes, divided by eta. The co-state runs backward through the recording:
p_T = -grad Phi(theta_T) and p_t = p_{t+1} - eta (d g_t / d theta)^T p_{t+1}, update by update where
a method makes several (free). At every step H(v) = -<p_{t+1}, g_t(theta_t, v)> - gamma K. The
adversarial images are constants for the derivative, which for sign steps and clamps is exact almost
everywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from amata.batch import Batch
from amata.control.gap import standard_error
from amata.control.probing import Probe, RunningCost, StepCost
from amata.engine import ProbeNet
from amata.errors import InputError
from amata.losses import ce
from amata.methods import PGD, Free, Method
from amata.schedules import Control
from amata.seeds import derive
from amata.threat import Linf


@dataclass(frozen=True)
class Recorded:
    """One batch: the weights before it, its control, and the adversarial images of each update."""

    theta: Tensor
    batch: Batch
    control: Control
    images: list[Tensor]
    seed: int


@dataclass
class Trajectory:
    model: nn.Module
    method: Method
    lr: float
    steps: list[Recorded] = field(default_factory=list)

    @property
    def end(self) -> Tensor:
        return _weights(self.model)


def record(
    model: nn.Module,
    method: Method,
    batches: Iterable[Batch],
    control: Callable[[int], Control],
    *,
    lr: float,
    seed: int = 0,
) -> Trajectory:
    """Train `model` in place by gradient descent, one batch a step, and record every step.
    `control` gives the u of each step."""
    if any(True for _ in model.buffers()):
        raise InputError(
            "a recorded trajectory needs a model without buffers, because BatchNorm's statistics "
            "are not recorded; use a model without BatchNorm"
        )
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules()):
        raise InputError(
            "a recorded trajectory needs a model without dropout, because its masks are not "
            "recorded; set p = 0"
        )
    known = isinstance(method, Free) or (isinstance(method, PGD) and not method.clean_term)
    if not known or not isinstance(getattr(method, "ball", None), Linf):
        raise InputError(
            "a recorded trajectory needs pgd or free in L-inf, where the adversarial images are "
            "constants for the derivative; choose one of them"
        )
    trajectory = Trajectory(model, method, lr)
    for index, batch in enumerate(batches):
        u, net = control(index), ProbeNet(model, attack_mode="train", lr=lr)
        key = derive(seed, index)
        g = Probe(net, method, batch, {}, key).displacement(u)
        trajectory.steps.append(Recorded(_weights(model), batch, u, net.images, key))
        _load(model, trajectory.steps[-1].theta - lr * g)
    return trajectory


@dataclass(frozen=True)
class FullCriterion:
    per_step: list[float]
    best: list[Control]
    costate: Tensor
    """p_0: minus the gradient of Phi with respect to the initial weights."""

    @property
    def c(self) -> float:
        return sum(self.per_step) / len(self.per_step)

    @property
    def c_stderr(self) -> float | None:
        return standard_error(self.per_step)


def full_criterion(
    trajectory: Trajectory,
    candidates: Sequence[Control],
    terminal: Callable[[nn.Module], Tensor],
    *,
    cost: RunningCost | None = None,
) -> FullCriterion:
    """C of the recorded controls over the whole interval. `terminal` is Phi, a differentiable
    function of the model."""
    model, cost = trajectory.model, cost or StepCost()
    end = trajectory.end
    p = -torch.cat([g.flatten() for g in torch.autograd.grad(terminal(model), _trainable(model))])
    per_step: list[float] = []
    best: list[Control] = []
    for step in reversed(trajectory.steps):
        _load(model, step.theta)
        net = ProbeNet(model, attack_mode="train", lr=trajectory.lr)
        probe = Probe(net, trajectory.method, step.batch, {}, step.seed)
        tried = []
        for v in [step.control, *candidates]:
            found = probe(v)
            tried.append((-float(p.double() @ net.displacement.double()) - cost(found), v))
        top = max(tried, key=lambda pair: pair[0])
        per_step.append(top[0] - tried[0][0])
        best.append(top[1])
        p = _before(model, step, trajectory.lr, p)
    _load(model, end)
    return FullCriterion(per_step[::-1], best[::-1], p)


def _before(model: nn.Module, step: Recorded, lr: float, p: Tensor) -> Tensor:
    """The co-state before a batch, from that after it. The model has the weights before it."""
    path = [step.theta]
    for x in step.images[:-1]:
        parts = torch.autograd.grad(ce(model(x), step.batch.y).mean(), _trainable(model))
        path.append(path[-1] - lr * torch.cat([g.flatten() for g in parts]))
        _load(model, path[-1])
    for theta, x in zip(path[::-1], step.images[::-1], strict=True):
        _load(model, theta)
        p = p - lr * _hessian_product(model, x, step.batch.y, p)
    return p


def _hessian_product(model: nn.Module, x: Tensor, y: Tensor, p: Tensor) -> Tensor:
    """(d g / d theta)^T p of the batch-mean loss at the images x."""
    weights = _trainable(model)
    gradients = torch.autograd.grad(ce(model(x), y).mean(), weights, create_graph=True)
    product = torch.cat([g.flatten() for g in gradients]) @ p
    return torch.cat([h.flatten() for h in torch.autograd.grad(product, weights)])


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in _trainable(model)])


def _load(model: nn.Module, flat: Tensor) -> None:
    weights = _trainable(model)
    with torch.no_grad():
        for p, values in zip(weights, flat.split([p.numel() for p in weights]), strict=True):
            p.copy_(values.view_as(p))
