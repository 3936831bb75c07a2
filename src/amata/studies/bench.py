"""How fast training steps are on this device, engine against engine, in one process.

Variants of the same computation, on random images of the recipe's shape that lie on the device:
    reference           eager fp32, with `loss.backward()` in the attack, weight gradients and all:
                        what most published code does
    reference-train-bn  the same with BatchNorm in train mode in the attack, as in the code of
                        Madry's, Free's and Fast's generation
    amp                 the reference under bf16 autocast
    plain, plain-bf16   the plain engine: input gradients only
    fast                the fast engine
Times are those of whole training steps, synchronised at both ends, after compiling and warming up;
an epoch has the data set's number of images. Memory is what the process takes from the device while
it is timed. One network of each variant is timed at all K, so whatever was compiled again would be
noticed.
"""

import copy
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amata import models
from amata.batch import Batch
from amata.data import find_dataset
from amata.engine import FastNet, PlainNet, Precision, backend_settings
from amata.errors import AmataError, unknown
from amata.losses import Loss
from amata.recipes import Recipe
from amata.schedules import Control, closed_loop, planned_controls
from amata.seeds import generator
from amata.training.optim import make_optimizer

VARIANTS: dict[str, tuple[type[PlainNet], Precision]] = {}
"""The engine and the precision of each; filled below."""


ATTEMPTS = 4


class ReferenceNet(PlainNet):
    """Attacks as they are usually written: a whole backward pass, of which only the image's
    gradient is used."""

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self.model.train(self.attack_mode == "train")
        x = x.detach().requires_grad_()
        z = self._forward(x)
        loss(z, y).sum().backward()
        assert x.grad is not None
        self.optimizer.zero_grad()
        return x.grad, z.detach()


VARIANTS |= {
    "reference": (ReferenceNet, "fp32"),
    "reference-train-bn": (ReferenceNet, "fp32"),
    "amp": (ReferenceNet, "bf16"),
    "plain": (PlainNet, "fp32"),
    "plain-bf16": (PlainNet, "bf16"),
    "fast": (FastNet, "bf16"),
}


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
    """What is timed: a recipe's method, model and optimiser at a batch size, under one or more
    controls."""

    recipe: Recipe
    batch: int
    controls: tuple[Control, ...]

    def model(self, device: torch.device) -> nn.Module:
        c = self.recipe.model
        data = find_dataset(self.recipe.data.name)
        return models.build(
            c.name,
            in_channels=data.shape[0],
            classes=data.classes,
            args=c.args,
            mean=c.mean,
            std=c.std,
            seed=0,
        ).to(device)

    def batches(self, device: torch.device, count: int = 4) -> list[Batch]:
        data = find_dataset(self.recipe.data.name)
        rng = generator("bench", device=device)
        made = []
        for index in range(count):
            x = torch.rand(self.batch, *data.shape, generator=rng, device=device)
            y = torch.randint(data.classes, (self.batch,), generator=rng, device=device)
            ids = torch.arange(self.batch, device=device) + index * self.batch
            made.append(Batch(x, y, ids, count * self.batch, 0, None))
        return made

    def net(self, variant: str, model: nn.Module) -> PlainNet:
        kind, precision = VARIANTS[variant]
        mode = "train" if variant == "reference-train-bn" else self.recipe.train.attack_mode
        if variant == "fast" and not next(model.parameters()).is_cuda:
            precision = "fp32"
        optimizer = make_optimizer(model, self.recipe.optim)
        return kind(
            model,
            optimizer,
            attack_mode=mode,
            first_layer=self.recipe.model.first_layer,
            precision=precision,
        )

    def flops(self, u: Control) -> float:
        """Of one training step: two forward passes' worth for an input gradient, three for an
        update."""
        from torch.utils.flop_counter import FlopCounterMode

        cpu = torch.device("cpu")
        small = Case(self.recipe, 2, (u,))
        model, (batch,) = small.model(cpu), small.batches(cpu, 1)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()(batch.x)
        forward = counter.get_total_flops() / 2
        net = CountingNet(
            model,
            make_optimizer(model, self.recipe.optim),
            first_layer=self.recipe.model.first_layer,
        )
        self.recipe.method.step(net, batch, u, generator(0), {})
        attacks = (net.grad_evals - net.updates) / 2
        return forward * self.batch * (2 * attacks + 3 * net.updates / 2)


def cases(recipe: Recipe, batches: Sequence[int], steps: Sequence[int]) -> list[Case]:
    """A recipe at several batch sizes and K; its own batch size and all K of its schedule where
    none are given."""
    controls = sorted(set(_controls(recipe)), key=lambda u: u.steps)
    top = controls[-1]
    chosen = tuple(Control(k, top.step_size * top.steps / k) for k in steps) or tuple(controls)
    return [Case(recipe, batch, chosen) for batch in (batches or [recipe.data.batch_size])]


def _controls(recipe: Recipe) -> list[Control]:
    """What the recipe's schedule asks for, epoch by epoch; of one that is chosen as training goes,
    what it chooses from."""
    if (loop := closed_loop(recipe.schedule)) is not None:
        return loop.candidates()
    return planned_controls(recipe.schedule, recipe.train.epochs) or []


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
    cases: Sequence[Case],
    device: torch.device,
    *,
    variants: Sequence[str] = tuple(VARIANTS),
    seconds: float = 2.0,
    note: Callable[[str], None],
    save: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """A row per case, K and variant; `ratio_to_reference` is against the reference of the same case
    and K, timed in the same process.

    `schedules` holds what an epoch costs on average over a recipe's own schedule, for each recipe
    of which every K was timed. `save` is given what has been measured so far, again and again.
    """
    for variant in variants:
        if variant not in VARIANTS:
            raise unknown("variant", variant, VARIANTS)
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    ceiling = matmul_ceiling(
        device, torch.bfloat16 if on_gpu else torch.float32, 8192 if on_gpu else 1024
    )
    rows: list[dict[str, Any]] = []
    schedules: list[dict[str, Any]] = []
    result = {
        "device": name,
        "torch": torch.__version__,
        "matmul_tflops": ceiling,
        "rows": rows,
        "schedules": schedules,
    }
    for case in cases:
        images, references = find_dataset(case.recipe.data.name).images, dict[int, float]()
        for variant in variants:
            with backend_settings(benchmark=True):
                timed = {
                    u: _finish(row, case, u, images, ceiling)
                    for u, row in _time(case, variant, device, seconds)
                }
            for u, row in timed.items():
                if variant == "reference":
                    references[u.steps] = row["seconds_per_step"]
                reference = references.get(u.steps)
                row["ratio_to_reference"] = (
                    reference / row["seconds_per_step"] if reference else None
                )
                rows.append({**_describe(case, variant, u), **row})
                ratio = (
                    f", {row['ratio_to_reference']:.1f} times the reference" if reference else ""
                )
                note(
                    f"{case.recipe.name} batch {case.batch} K {u.steps} {variant}: "
                    f"{row['seconds_per_epoch']:.2f} s an epoch{ratio}"
                )
            whole = planned_controls(case.recipe.schedule, case.recipe.train.epochs)
            if len(timed) > 1 and whole is not None and set(whole) <= set(timed):
                mean = sum(timed[u]["seconds_per_epoch"] for u in whole) / len(whole)
                schedules.append(
                    {
                        "variant": variant,
                        "recipe": case.recipe.name,
                        "batch": case.batch,
                        "seconds_per_epoch": mean,
                    }
                )
                note(
                    f"{case.recipe.name} batch {case.batch} {variant}: {mean:.2f} s an epoch "
                    "on average over its schedule"
                )
            save(result)
    return result


def _finish(
    row: dict[str, Any], case: Case, u: Control, images: int, ceiling: float
) -> dict[str, Any]:
    tflops = case.flops(u) / row["seconds_per_step"] / 1e12
    return {
        **row,
        "seconds_per_epoch": row["seconds_per_step"] * images / case.batch,
        "images_per_second": case.batch / row["seconds_per_step"],
        "tflops": tflops,
        "ceiling_share": tflops / ceiling,
    }


def _describe(case: Case, variant: str, u: Control) -> dict[str, Any]:
    return {
        "variant": variant,
        "recipe": case.recipe.name,
        "method": case.recipe.tables["method"]["name"],
        "model": case.recipe.model.name,
        "batch": case.batch,
        "steps": u.steps,
        "attack_mode": "train"
        if variant == "reference-train-bn"
        else case.recipe.train.attack_mode,
    }


def _time(
    case: Case, variant: str, device: torch.device, seconds: float
) -> Iterator[tuple[Control, dict[str, Any]]]:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    batches = case.batches(device)
    net = case.net(variant, copy.deepcopy(case.model(device)))
    memory: dict[str, Tensor] = {}
    rng = generator(1, device=device)

    def run(u: Control, count: int) -> float:
        _wait(device)
        started = time.perf_counter()
        for index in range(count):
            case.recipe.method.step(net, batches[index % len(batches)], u, rng, memory)
        _wait(device)
        return time.perf_counter() - started

    run(case.controls[-1], 3)  # compiles, records, warms up
    for u in case.controls:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        once = run(u, 2) / 2
        count = max(3, min(200, round(seconds / 3 / once)))
        # a method whose samples finish one by one may meet a batch size for the first time
        for _ in range(ATTEMPTS):
            made = net.compile_seconds
            times = [run(u, count) / count for _ in range(3)]
            if net.compile_seconds == made:
                break
        else:
            raise AmataError(
                f"the {variant} engine compiles again and again while it is being timed"
            )
        step = partial(case.recipe.method.step, net, batches[0], u, rng, memory)
        yield (
            u,
            {
                "precision": net.precision,
                "engine": net.describe(),
                "seconds_per_step": min(times),
                "seconds_per_step_worst": max(times),
                "compile_seconds": net.compile_seconds,
                "peak_memory_bytes": torch.cuda.max_memory_reserved(device)
                if device.type == "cuda"
                else 0,
                "host_share": _host_share(step, device, count, min(times))
                if variant == "fast"
                else None,
            },
        )


def _host_share(
    step: Callable[[], None], device: torch.device, count: int, seconds: float
) -> float | None:
    """Python's share of a step's time: the step with every recorded graph left out, so that nothing
    but the host's work remains."""
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
