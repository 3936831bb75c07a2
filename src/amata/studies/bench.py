"""How fast training steps are on this device, engine against engine, in one process.

Four variants of the same computation, on random images of the recipe's shape that lie on the device:
    reference  eager fp32, with `loss.backward()` in the attack, weight gradients and all: what most published code does
    amp        the same under autocast
    plain      the plain engine, fp32, input gradients only
    fast       the fast engine
Times are those of whole training steps, synchronised at both ends, after compiling and warming up; an epoch has the data
set's number of images.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from amata import models
from amata.batch import Batch
from amata.engine import FastNet, PlainNet
from amata.errors import AmataError, unknown
from amata.losses import Loss
from amata.recipes import Recipe
from amata.schedules import ClosedLoop, Control
from amata.seeds import generator
from amata.training.optim import make_optimizer

SHAPES = {
    "mnist": (1, 28, 28, 10, 60_000),
    "mnist5k": (1, 28, 28, 10, 4_000),
    "cifar10": (3, 32, 32, 10, 50_000),
    "folder": (3, 224, 224, 1000, 1_281_167),
}
VARIANTS = ("reference", "amp", "plain", "fast")


class ReferenceNet(PlainNet):
    """Attacks as they are usually written: a whole backward pass, of which only the image's gradient is used."""

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self.model.train(self.attack_mode == "train")
        x = x.detach().requires_grad_()
        z = self._forward(x)
        loss(z, y).sum().backward()
        assert x.grad is not None
        self.optimizer.zero_grad()
        return x.grad, z.detach()


class CountingNet(PlainNet):
    """Counts the images of passes that also compute weight gradients."""

    updates = 0

    def backward(self, x: Any, y: Tensor, **options: Any) -> Tensor | None:
        self.updates += sum(len(t) for t in (x if isinstance(x, tuple) else (x,)))
        return super().backward(x, y, **options)

    def costate(self, x: Tensor, y: Tensor, *, first: bool) -> Tensor:
        self.updates += len(x)
        return super().costate(x, y, first=first)


@dataclass(frozen=True)
class Case:
    """One thing to time: a recipe's method, model and optimiser at a batch size and a control."""

    recipe: Recipe
    batch: int
    control: Control

    def model(self, device: torch.device) -> nn.Module:
        c = self.recipe.model
        channels, _, _, classes, _ = SHAPES[self.recipe.data.name]
        return models.build(c.name, in_channels=channels, classes=classes, args=c.args, mean=c.mean, std=c.std, seed=0).to(device)

    def batches(self, device: torch.device, count: int = 4) -> list[Batch]:
        channels, height, width, classes, _ = SHAPES[self.recipe.data.name]
        rng = generator("bench", device=device)
        made = []
        for index in range(count):
            x = torch.rand(self.batch, channels, height, width, generator=rng, device=device)
            y = torch.randint(classes, (self.batch,), generator=rng, device=device)
            ids = torch.arange(self.batch) + index * self.batch
            made.append(Batch(x, y, ids, count * self.batch, 0, None))
        return made

    def net(self, variant: str, model: nn.Module) -> PlainNet:
        kinds: dict[str, tuple[type[PlainNet], str]] = {
            "reference": (ReferenceNet, "fp32"), "amp": (ReferenceNet, "bf16"), "plain": (PlainNet, "fp32"), "fast": (FastNet, "bf16"),
        }  # fmt: skip
        kind, precision = kinds[variant]
        on_gpu = next(model.parameters()).is_cuda
        options: dict[str, Any] = {"precision": precision if variant != "fast" or on_gpu else "fp32"}
        return kind(
            model, make_optimizer(model, self.recipe.optim), attack_mode=self.recipe.train.attack_mode,
            first_layer=self.recipe.model.first_layer, **options,
        )  # fmt: skip

    def flops(self) -> float:
        """Of one training step: two forward passes' worth for an input gradient, three for an update."""
        from torch.utils.flop_counter import FlopCounterMode

        cpu = torch.device("cpu")
        small = Case(self.recipe, 2, self.control)
        model, (batch,) = small.model(cpu), small.batches(cpu, 1)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()(batch.x)
        forward = counter.get_total_flops() / 2
        net = CountingNet(model, make_optimizer(model, self.recipe.optim), first_layer=self.recipe.model.first_layer)
        self.recipe.method.step(net, batch, self.control, generator(0), {})
        attacks = (net.grad_evals - net.updates) / 2
        return forward * self.batch * (2 * attacks + 3 * net.updates / 2)


def cases(recipe: Recipe, batches: Sequence[int], steps: Sequence[int]) -> list[Case]:
    """A recipe at several batch sizes and K; its own batch size and the largest K of its schedule where none are given."""
    epochs = recipe.train.epochs
    if isinstance(recipe.schedule, ClosedLoop):
        controls = recipe.schedule.candidates()
    else:
        controls = [recipe.schedule(t, epochs) for t in range(epochs)]
    top = max(controls, key=lambda u: u.steps)
    chosen = [Control(k, top.step_size * top.steps / k) for k in steps] or [top]
    return [Case(recipe, batch, u) for batch in (batches or [recipe.data.batch_size]) for u in chosen]


def matmul_ceiling(device: torch.device, precision: torch.dtype, size: int) -> float:
    """TFLOP/s of a large matrix product."""
    a, b = (torch.randn(size, size, device=device, dtype=precision) for _ in range(2))
    for _ in range(3):
        a @ b
    times = []
    for _ in range(5):
        _wait(device)
        started = time.perf_counter()
        for _ in range(5):
            a @ b
        _wait(device)
        times.append((time.perf_counter() - started) / 5)
    return 2 * size**3 / min(times) / 1e12


def bench(
    cases: Sequence[Case], device: torch.device, *, variants: Sequence[str] = VARIANTS, seconds: float = 2.0, note: Callable[[str], None]
) -> dict[str, Any]:
    """A row per case and variant; `ratio_to_reference` is against the reference of the same case, timed just before."""
    for variant in variants:
        if variant not in VARIANTS:
            raise unknown("variant", variant, VARIANTS)
    on_gpu = device.type == "cuda"
    ceiling = matmul_ceiling(device, torch.bfloat16 if on_gpu else torch.float32, 8192 if on_gpu else 1024)
    rows: list[dict[str, Any]] = []
    for case in cases:
        reference = None
        for variant in variants:
            row = {**_describe(case, variant), **_time(case, variant, device, seconds)}
            images = SHAPES[case.recipe.data.name][4]
            row["seconds_per_epoch"] = row["seconds_per_step"] * images / case.batch
            row["images_per_second"] = case.batch / row["seconds_per_step"]
            row["tflops"] = case.flops() / row["seconds_per_step"] / 1e12
            row["ceiling_share"] = row["tflops"] / ceiling
            reference = row["seconds_per_step"] if variant == "reference" else reference
            row["ratio_to_reference"] = reference / row["seconds_per_step"] if reference else None
            rows.append(row)
            ratio = f", {row['ratio_to_reference']:.1f} times the reference" if row["ratio_to_reference"] else ""
            note(f"{row['recipe']} batch {row['batch']} K {row['steps']} {variant}: {row['seconds_per_epoch']:.2f} s an epoch{ratio}")
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    return {"device": name, "torch": torch.__version__, "matmul_tflops": ceiling, "rows": rows}


def _describe(case: Case, variant: str) -> dict[str, Any]:
    return {
        "variant": variant,
        "recipe": case.recipe.name,
        "method": case.recipe.tables["method"]["name"],
        "model": case.recipe.model.name,
        "batch": case.batch,
        "steps": case.control.steps,
        "attack_mode": case.recipe.train.attack_mode,
    }


def _time(case: Case, variant: str, device: torch.device, seconds: float) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        torch.backends.cudnn.benchmark = True
    batches = case.batches(device)
    net = case.net(variant, copy.deepcopy(case.model(device)))
    memory: dict[str, Tensor] = {}
    rng = generator(1, device=device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    def run(count: int) -> float:
        _wait(device)
        started = time.perf_counter()
        for index in range(count):
            case.recipe.method.step(net, batches[index % len(batches)], case.control, rng, memory)
        _wait(device)
        return time.perf_counter() - started

    run(3)  # compiles, records, warms up
    made = net.compile_seconds
    once = run(2) / 2
    count = max(3, min(200, round(seconds / 3 / once)))
    times = [run(count) / count for _ in range(3)]
    if net.compile_seconds != made:
        raise AmataError(f"the {variant} engine compiled again while it was being timed")
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    host = None
    if variant == "fast":
        host = _host_share(lambda: case.recipe.method.step(net, batches[0], case.control, rng, memory), device, count, min(times))
    return {
        "precision": net.precision,
        "engine": net.describe(),
        "seconds_per_step": min(times),
        "seconds_per_step_worst": max(times),
        "compile_seconds": net.compile_seconds,
        "peak_memory_bytes": peak,
        "base_memory_bytes": before,
        "host_share": host,
    }


def _host_share(step: Callable[[], None], device: torch.device, count: int, seconds: float) -> float | None:
    """Python's share of a step's time: the step with every recorded graph left out, so that nothing but the host's work remains."""
    if device.type != "cuda":
        return None
    replay = torch.cuda.CUDAGraph.replay
    torch.cuda.CUDAGraph.replay = lambda self: None  # type: ignore[method-assign]
    try:
        _wait(device)
        started = time.perf_counter()
        for _ in range(count):
            step()
        handed = (time.perf_counter() - started) / count
        _wait(device)
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
    return handed / seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
