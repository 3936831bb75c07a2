"""How the verbs of a method are computed. The only room that may know of compilation, graphs,
precision and distribution."""

from typing import Any, Literal

import torch
from torch import nn

from amata.engine.cudnn import no_cudnn_benchmark, tf32
from amata.engine.ema import EMA
from amata.engine.eval_copy import EvalCopy, compiled_for_eval
from amata.engine.fast import FastNet
from amata.engine.plain import PlainNet, Precision
from amata.engine.probe import ProbeNet

Engine = Literal["auto", "plain", "fast"]

__all__ = [
    "EMA",
    "Engine",
    "EvalCopy",
    "FastNet",
    "PlainNet",
    "Precision",
    "ProbeNet",
    "compiled_for_eval",
    "make_net",
    "no_cudnn_benchmark",
    "tf32",
]


def make_net(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    engine: Engine = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    **options: Any,
) -> PlainNet:
    """The engine for a model where it is. "auto": fast on a GPU, plain elsewhere; bf16 for the fast
    one on a GPU, fp32 for all else."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    fast = engine == "fast" or (engine == "auto" and on_gpu)
    chosen: Precision = (
        ("bf16" if fast and on_gpu else "fp32") if precision == "auto" else precision
    )
    return (FastNet if fast else PlainNet)(model, optimizer, precision=chosen, **options)
