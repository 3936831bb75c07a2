"""Whether torch.compile pays: the seconds that it takes against those that it saves."""

import copy
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import nn

from amata.ahead import use_folder
from amata.engine.compiler import has_compiler

Compile = Literal["auto", "always", "never"]

# Of PreActResNet-18 on one H200, PGD-10 with CUDA graphs alone against compiled: 9.5 and 5.3 s an
# epoch at batch 128, 7.2 and 3.6 s at batch 512. Slower devices save more.
SAVED_PER_FLOP = 2.65e-15
SAVED_PER_LAYER = 3.1e-6
"""Seconds of one layer in one forward and backward pass, whatever its size."""
SAVED_SHARE = 0.44
"""Of the seconds with CUDA graphs alone: the smaller of the two above."""
COLD_SECONDS, WARM_SECONDS = 20.0, 2.0
"""What compiling takes without and with compiled code on disk. PreActResNet-18 on H200s with 16
cores: 18 to 65 s and 6 to 8 s, of which 6 s record CUDA graphs, compiled or not."""
SLOW_SECONDS = 30.0
"""Without, in a run that was given a time: it must not count on a fast machine."""

_runs = 1


@contextmanager
def code_for(runs: int) -> Iterator[None]:
    """Within, what is compiled serves so many runs: those of a study."""
    global _runs
    outer, _runs = _runs, max(runs, 1)
    try:
        yield
    finally:
        _runs = outer


class Plan(NamedTuple):
    """The work of a training run, in one process."""

    method: str
    shape: tuple[int, ...]
    """Of an image."""
    images: int
    """Per epoch."""
    batch: int
    steps: Sequence[float]
    """Attack steps in each epoch."""
    pixels: Sequence[float] = ()
    """Of the images of each epoch, as a share of all; none if all are of full size."""
    within: float | None = None
    """Seconds of a run that fills them with as many epochs as fit: `steps` do not count then."""

    @property
    def sizes(self) -> int:
        """Of images; each is compiled."""
        return max(len(set(self.pixels)), 1)


def flops_of(model: nn.Module, shape: tuple[int, ...]) -> float | None:
    """FLOPs of one image's forward pass, without computing it; None if the model has to compute."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        shadow = copy.deepcopy(model).eval().to("meta")
        with counter, torch.no_grad():
            shadow(torch.empty(2, *shape, device="meta"))
    except Exception:  # any model of a user
        return None
    return counter.get_total_flops() / 2


def seconds_saved(model: nn.Module, plan: Plan) -> float | None:
    """What compiling saves in a whole run, or in all runs of a study. An input gradient costs two
    forward passes, an update three. Smaller images save less work, in as many passes. Of a given
    time, it saves a share."""
    if plan.within is not None:
        return _runs * SAVED_SHARE * plan.within
    if (flops := flops_of(model, plan.shape)) is None:
        return None
    layers = sum(1 for module in model.modules() if not any(module.children()))
    passes = sum(k + 1 for k in plan.steps) * plan.images / plan.batch
    pixels = plan.pixels or [1.0] * len(plan.steps)
    work = sum((2 * k + 3) * p for k, p in zip(plan.steps, pixels, strict=True))
    work *= plan.images * flops
    return _runs * (work * SAVED_PER_FLOP + passes * layers * SAVED_PER_LAYER)


def marker_of(model: nn.Module, plan: Plan | None, settings: str) -> Path | None:
    """The file that says that code for this work is on disk; None if none is kept."""
    folder = use_folder()
    if folder is None or plan is None:
        return None
    device = next(model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    sizes = sorted({*plan.pixels} - {1.0})
    key = repr((torch.__version__, name, str(model), plan[:2], plan.batch, settings, *sizes))
    return folder / hashlib.sha256(key.encode()).hexdigest()[:32]


def seconds_taken(plan: Plan | None, *, on_disk: bool = False) -> float:
    """What compiling takes, for all sizes of images."""
    timed = plan is not None and plan.within is not None
    each = WARM_SECONDS if on_disk else SLOW_SECONDS if timed else COLD_SECONDS
    return each * (plan.sizes if plan is not None else 1)


def is_worth(saved: float | None, takes: float) -> bool:
    """Whether it saves as many seconds as it takes, or nobody knows."""
    return saved is None or saved >= takes


def choose(mode: Compile, saved: float | None, takes: float) -> tuple[bool, str]:
    """Whether to compile, and if not, why."""
    if mode == "never":
        return False, "train.compile = never"
    if not has_compiler():
        return False, "no Triton or no C compiler"
    if mode == "always" or is_worth(saved, takes):
        return True, ""
    return False, f"it would take about {takes:.0f} s and save about {saved:.0f} s"
