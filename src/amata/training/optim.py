"""Optimisers and learning rates."""

import bisect
import math

import torch
from torch import nn

from amata.recipes.schema import Optim


def make_optimizer(model: nn.Module, config: Optim) -> torch.optim.Optimizer:
    """SGD or AdamW over the model's trainable parameters; biases and norms may be exempt from weight decay."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if config.decay_all:
        groups = [{"params": trainable, "weight_decay": config.weight_decay}]
    else:  # what has one dimension is a bias or a norm's scale
        groups = [
            {"params": [p for p in trainable if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
        ]
    fused = all(p.is_cuda for p in trainable)  # one kernel for all weights; on a CPU the plain loop is the reference
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, fused=fused)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused)


def learning_rate(config: Optim, progress: float, epochs: int) -> float:
    """The rate at `progress` epochs (a fraction inside an epoch) of a run of `epochs`.

    piecewise: lr * factor^(milestones passed). one-cycle: linear 0 -> lr at `peak` of the run -> 0. cosine: lr (1 + cos(pi t)) / 2.
    """
    if config.rate == "one-cycle":
        share = progress / epochs
        return config.lr * (share / config.peak if share < config.peak else (1 - share) / (1 - config.peak))
    lr = config.lr
    if config.rate == "piecewise":
        lr *= config.factor ** bisect.bisect_right(sorted(config.milestones), math.floor(progress))
    if config.rate == "cosine":
        lr *= (1 + math.cos(math.pi * max(0.0, progress - config.warmup) / max(epochs - config.warmup, 1e-9))) / 2
    return lr * min(1.0, progress / config.warmup) if config.warmup else lr
