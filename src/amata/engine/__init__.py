"""How the verbs of a method are computed. The only room that may know of compilation, graphs, precision and distribution."""

from typing import Any, Literal

import torch
from torch import nn

from amata.engine.average import WeightAverage
from amata.engine.convolutions import rounding, untuned
from amata.engine.fast import FastNet
from amata.engine.plain import PlainNet, Precision
from amata.engine.probe import ProbeNet
from amata.engine.quick import QuickNet, quick
from amata.engine.ranks import Ranks, current, launched, local_device, started_first, together
from amata.engine.syncnorm import share_norms

Engine = Literal["auto", "plain", "fast"]

__all__ = [
    "Engine",
    "FastNet",
    "PlainNet",
    "Precision",
    "ProbeNet",
    "QuickNet",
    "Ranks",
    "WeightAverage",
    "current",
    "launched",
    "local_device",
    "make_net",
    "quick",
    "rounding",
    "share_norms",
    "started_first",
    "together",
    "untuned",
]


def make_net(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    engine: Engine = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    **options: Any,
) -> PlainNet:
    """The engine for a model where it is. "auto": fast on a GPU, plain elsewhere; bf16 for the fast one on a GPU, fp32 for all else."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    fast = engine == "fast" or (engine == "auto" and on_gpu)
    chosen: Precision = ("bf16" if fast and on_gpu else "fp32") if precision == "auto" else precision
    return (FastNet if fast else PlainNet)(model, optimizer, precision=chosen, **options)
