"""Optimisers and learning rates."""

import bisect
import math

import torch
from torch import nn

from amata.recipes.schema import Optim
from amata.training.muon import Muon
from amata.training.roles import hidden_weights


def make_optimizer(
    model: nn.Module, config: Optim, shape: tuple[int, ...] | None = None
) -> torch.optim.Optimizer:
    """SGD, AdamW or Muon over the trainable parameters. Biases and norms may be exempt from weight
    decay. `shape` is that of an image, with which Muon finds the classifier."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    weights = [p for p in trainable if p.dim() > 1]
    others = [p for p in trainable if p.dim() <= 1]  # biases and norms
    spared = config.weight_decay if config.decay_all else 0.0
    if config.name == "muon":
        # Muon is for hidden layers; embeddings, tokens and the classifier get SGD.
        inner = hidden_weights(model, shape)
        hidden = {
            "params": [p for p in weights if p in inner],
            "weight_decay": config.weight_decay,
            "orthogonal": True,
        }
        rest = [
            {
                "params": [p for p in weights if p not in inner],
                "weight_decay": config.weight_decay,
            },
            {"params": others, "weight_decay": spared},
        ]
        return Muon(
            [hidden, *rest], lr=config.lr, momentum=config.momentum, nesterov=config.nesterov
        )
    if config.decay_all:
        groups = [{"params": trainable, "weight_decay": config.weight_decay}]
    else:
        groups = [
            {"params": weights, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": spared},
        ]
    # One kernel for all weights. On a CPU the unfused loop is the reference.
    fused = all(p.is_cuda for p in trainable)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, fused=fused)
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused
    )


def learning_rate(config: Optim, progress: float, epochs: int) -> float:
    """The learning rate at `progress` epochs (a fraction inside an epoch) of a run of `epochs`.

    piecewise: lr * factor^(milestones passed). one-cycle: linear 0 -> lr at `peak` of the run -> 0.
    cosine: lr (1 + cos(pi t)) / 2.
    """
    if config.lr_schedule == "one-cycle":
        share = progress / epochs
        return config.lr * (
            share / config.peak if share < config.peak else (1 - share) / (1 - config.peak)
        )
    lr = config.lr
    if config.lr_schedule == "piecewise":
        lr *= config.factor ** bisect.bisect_right(sorted(config.milestones), progress)
    if config.lr_schedule == "cosine":
        lr *= (
            1
            + math.cos(
                math.pi * max(0.0, progress - config.warmup) / max(epochs - config.warmup, 1e-9)
            )
        ) / 2
    return lr * min(1.0, progress / config.warmup) if config.warmup else lr
