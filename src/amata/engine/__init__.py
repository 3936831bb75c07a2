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
from amata.engine.worth import Compile, Plan, choose, marker_of, seconds_saved, seconds_taken
from amata.errors import InputError

Engine = Literal["auto", "plain", "fast"]

__all__ = [
    "EMA",
    "Compile",
    "Engine",
    "EvalCopy",
    "FastNet",
    "PlainNet",
    "Plan",
    "Precision",
    "ProbeNet",
    "backend_settings",
    "choose_precision",
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
    compile: Compile = "auto",
    plan: Plan | None = None,
    **options: Any,
) -> PlainNet:
    """The engine for a model on its device. "auto" chooses fast on a GPU and plain elsewhere, and
    compiles if the `plan` of the run is long enough, or unknown."""
    device = next(model.parameters()).device
    fast = engine == "fast" or (engine == "auto" and device.type == "cuda")
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    chosen = choose_precision(precision, fast and device.type == "cuda", has_bf16)
    if not fast:
        return PlainNet(model, optimizer, precision=chosen, **options)
    if device.type != "cuda":
        return FastNet(model, optimizer, precision=chosen, **options)
    losses = [getattr(options.get(name), "__qualname__", "") for name in ("loss", "attack_loss")]
    marker = marker_of(model, plan, f"{chosen} {options.get('attack_mode')} {losses}")
    saved = seconds_saved(model, plan) if plan is not None and compile == "auto" else None
    on_disk = marker is not None and marker.is_file()
    found = choose(compile, saved, seconds_taken(plan, on_disk=on_disk))
    if (ranks := options.get("ranks")) is not None and ranks.size > 1:
        found = ranks.broadcast(found)  # the disks of machines may differ
    compiled, not_compiled = found
    net = FastNet(model, optimizer, precision=chosen, compiled=compiled, **options)
    net.not_compiled, net.marker = not_compiled, marker
    return net


def choose_precision(
    precision: Literal["auto", "fp32", "bf16"], fast_on_gpu: bool, has_bf16: bool
) -> Precision:
    """auto: bf16 for the fast engine on a GPU that computes in it, else fp32."""
    if precision == "bf16" and not has_bf16:
        raise InputError(
            "train.precision = bf16, but this GPU has no bf16; use --set train.precision=fp32"
        )
    if precision == "auto":
        return "bf16" if fast_on_gpu and has_bf16 else "fp32"
    return precision
