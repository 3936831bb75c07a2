"""How a method's verbs are computed. The only package that knows of compilation, CUDA graphs,
precision and memory format."""

from typing import Any, Literal

import torch
from torch import nn

from amata.engine.cudnn import backend_settings, no_cudnn_benchmark, tf32
from amata.engine.ema import EMA
from amata.engine.eval_copy import EvalCopy, compiled_for_eval, suits_fp16
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
    "backend_settings",
    "compiled_for_eval",
    "make_net",
    "no_cudnn_benchmark",
    "suits_fp16",
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
    """The engine for a model on its device. "auto" chooses fast on a GPU and plain elsewhere, and
    bf16 for the fast engine on a GPU, else fp32."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    fast = engine == "fast" or (engine == "auto" and on_gpu)
    chosen: Precision = (
        ("bf16" if fast and on_gpu else "fp32") if precision == "auto" else precision
    )
    return (FastNet if fast else PlainNet)(model, optimizer, precision=chosen, **options)
