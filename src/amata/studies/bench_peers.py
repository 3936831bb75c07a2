"""PGD training as others write it, timed beside our engines by `amata bench --peers`.

torchattacks            the PGD of the package torchattacks in a plain fp32 training loop
fast_adversarial style  a loop after the description of Wong, Rice & Kolter 2020: fp16 with loss
                        scaling, BatchNorm in train mode, weight gradients in every attack step
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amata.schedules import Control
from amata.studies.bench_case import Case
from amata.threat import Linf
from amata.training.optim import make_optimizer

Step = Callable[[Tensor, Tensor, Control], None]


def torchattacks_step(model: nn.Module, optimizer: torch.optim.Optimizer, eps: float) -> Step:
    import torchattacks

    def step(x: Tensor, y: Tensor, u: Control) -> None:
        attack = torchattacks.PGD(model, eps=eps, alpha=u.step_size, steps=u.steps)
        x_adv = attack(x, y)
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x_adv), y).backward()
        optimizer.step()

    return step


def fast_adversarial_step(model: nn.Module, optimizer: torch.optim.Optimizer, eps: float) -> Step:
    on_gpu = next(model.parameters()).is_cuda
    scaler = torch.amp.GradScaler("cuda", enabled=on_gpu)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.float16, enabled=on_gpu):
            return scaler.scale(F.cross_entropy(model(x), y))

    def step(x: Tensor, y: Tensor, u: Control) -> None:
        model.train()
        delta = torch.empty_like(x).uniform_(-eps, eps)
        for _ in range(u.steps):
            delta = torch.clamp(delta, -x, 1 - x).detach().requires_grad_()
            loss(x + delta, y).backward()
            assert delta.grad is not None
            delta = torch.clamp(delta + u.step_size * delta.grad.sign(), -eps, eps)
        x_adv = (x + torch.clamp(delta, -x, 1 - x)).detach()
        optimizer.zero_grad()
        loss(x_adv, y).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


FAST_ADVERSARIAL = "fast_adversarial style"
PEERS = {"torchattacks": torchattacks_step, FAST_ADVERSARIAL: fast_adversarial_step}


def peers_of(case: Case, note: Callable[[str], None]) -> list[str]:
    """The peers that can be timed: they train with PGD in an L-inf ball."""
    if case.recipe.tables["method"]["name"] not in ("pgd", "fast") or not isinstance(
        case.recipe.ball, Linf
    ):
        note(f"{case.recipe.name}: --peers times PGD in L-inf alone, so it has no peers here")
        return []
    if find_spec("torchattacks") is None:
        note("torchattacks is not installed, so its loop is not timed: pip install torchattacks")
        return [peer for peer in PEERS if peer != "torchattacks"]
    return list(PEERS)


def peer_step(case: Case, peer: str, device: torch.device) -> Step:
    """One training step of a peer on the case's model and optimiser."""
    model = case.model(device)
    return PEERS[peer](model, make_optimizer(model, case.recipe.optim), case.recipe.ball.eps)


def peer_precision(peer: str, device: torch.device) -> str:
    return "fp16" if peer == FAST_ADVERSARIAL and device.type == "cuda" else "fp32"
