"""Time training steps on this device: every engine variant, in one process.

All variants compute the same training step, on random images that are already on the device:
    reference           eager fp32, `loss.backward()` in the attack (weight gradients included):
                        what most published code does
    reference-train-bn  the same with BatchNorm in train mode during the attack, as in the code of
                        Madry et al., Free and Fast
    amp                 the reference under bf16 autocast
    plain, plain-bf16   the plain engine: input gradients only
    fast                the fast engine
Training loops of others (bench_peers.py) may be timed beside them.
We time whole training steps between two device synchronisations, after compilation and warm-up. An
epoch has as many images as the data set. Memory is the peak that the process reserves on the
device. Each variant uses one network for all K, so a recompilation would show in the times.
"""

import copy
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from amata.engine import backend_settings
from amata.errors import AmataError, InputError, unknown
from amata.quantity import number
from amata.schedules import Control, planned_controls
from amata.seeds import generator
from amata.studies.bench_case import VARIANTS, Case
from amata.studies.bench_peers import (
    FAST_ADVERSARIAL,
    PEERS,
    peer_precision,
    peer_step,
    peers_of,
)

ATTEMPTS = 4
"""How often a timing is repeated that was interrupted by compilation."""
MAX_SECONDS = 3600
"""The longest measuring time per variant and K."""

Row = dict[str, Any]
Note = Callable[[str], None]


def bench(
    cases: Sequence[Case],
    device: torch.device,
    *,
    variants: Sequence[str] = tuple(VARIANTS),
    peers: bool = False,
    seconds: float = 2.0,
    note: Note,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """One row per case, K and variant.

    `ratio_to_reference` compares with the reference of the same case and K, timed in the same
    process. `schedules` holds the mean seconds per epoch over a recipe's own schedule, where every
    K of it was timed. With `peers`, training loops of others follow. `save` receives the results so
    far after every case and variant.
    """
    for variant in variants:
        if variant not in VARIANTS:
            raise unknown("variant", variant, VARIANTS)
    if not 0 < number(seconds, "seconds") <= MAX_SECONDS:
        raise InputError(f"seconds = {seconds:g} must be above 0 and at most {MAX_SECONDS:,}")
    on_gpu = device.type == "cuda"
    ceiling = matmul_ceiling(
        device, torch.bfloat16 if on_gpu else torch.float32, 8192 if on_gpu else 1024
    )
    rows: list[Row] = []
    schedules: list[Row] = []
    result = {
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "torch": torch.__version__,
        "matmul_tflops": ceiling,
        "rows": rows,
        "schedules": schedules,
    }
    for case in cases:
        references: dict[int, float] = {}
        for variant in [*variants, *(peers_of(case, note) if peers else [])]:
            with backend_settings(benchmark=on_gpu):
                timed = {
                    u: _finish(row, case, u, ceiling)
                    for u, row in _time(case, variant, device, seconds)
                }
            if variant == "reference":
                references = {u.steps: row["seconds_per_step"] for u, row in timed.items()}
            rows += _rows(case, variant, timed, references, note)
            schedules += _schedule_row(case, variant, timed, note)
            save(result)
    return result


def _rows(
    case: Case,
    variant: str,
    timed: dict[Control, Row],
    references: dict[int, float],
    note: Note,
) -> list[Row]:
    rows = []
    for u, row in timed.items():
        reference = references.get(u.steps)
        ratio = reference / row["seconds_per_step"] if reference else None
        rows.append({**_describe(case, variant, u), **row, "ratio_to_reference": ratio})
        speed = f", {ratio:.1f} times the reference" if ratio else ""
        note(
            f"{case.recipe.name} batch {case.batch} K {u.steps} {variant}: "
            f"{row['seconds_per_epoch']:.2f} s/epoch{speed}"
        )
    return rows


def _schedule_row(
    case: Case, variant: str, timed: dict[Control, Row], note: Note
) -> list[dict[str, Any]]:
    """The mean over the recipe's schedule, as a list of at most one row."""
    controls = planned_controls(case.recipe.schedule, case.recipe.train.epochs)
    seconds = {u.steps: row["seconds_per_epoch"] for u, row in timed.items()}
    parts = [(share, part.steps) for u in controls or [] for share, part in u.parts()]
    if controls is None or len(timed) == 1 or not {steps for _, steps in parts} <= set(seconds):
        return []
    if any(u.size for u in controls):  # images of full size were timed
        return []
    mean = sum(share * seconds[steps] for share, steps in parts) / len(controls)
    note(
        f"{case.recipe.name} batch {case.batch} {variant}: {mean:.2f} s/epoch, the mean over its "
        "schedule"
    )
    about = {"variant": variant, "recipe": case.recipe.name, "batch": case.batch}
    return [{**about, "seconds_per_epoch": mean}]


def _finish(row: Row, case: Case, u: Control, ceiling: float) -> Row:
    tflops = case.flops(u) / row["seconds_per_step"] / 1e12
    return {
        **row,
        "seconds_per_epoch": row["seconds_per_step"] * case.images / case.batch,
        "images_per_second": case.batch / row["seconds_per_step"],
        "tflops": tflops,
        "ceiling_share": tflops / ceiling,
    }


def _describe(case: Case, variant: str, u: Control) -> Row:
    return {
        "variant": variant,
        "recipe": case.recipe.name,
        "method": case.recipe.tables["method"]["name"],
        "model": case.recipe.model.name,
        "batch": case.batch,
        "steps": u.steps,
        "attack_mode": "train" if variant == FAST_ADVERSARIAL else case.attack_mode(variant),
    }


def matmul_ceiling(device: torch.device, precision: torch.dtype, size: int) -> float:
    """TFLOP/s of a large matrix product."""
    a, b = (torch.randn(size, size, device=device, dtype=precision) for _ in range(2))
    for _ in range(3):
        a @ b
    times = []
    for _ in range(5):
        _synchronize(device)
        started = time.perf_counter()
        for _ in range(5):
            a @ b
        _synchronize(device)
        times.append((time.perf_counter() - started) / 5)
    return 2 * size**3 / min(times) / 1e12


def _time(
    case: Case, variant: str, device: torch.device, seconds: float
) -> Iterator[tuple[Control, Row]]:
    on_gpu = device.type == "cuda"
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
    batches = case.batches(device)
    net = None if variant in PEERS else case.net(variant, copy.deepcopy(case.model(device)))
    peer = peer_step(case, variant, device) if net is None else None
    memory: dict[str, Tensor] = {}
    rng = generator(1, device=device)

    def step(u: Control, index: int = 0) -> None:
        batch = batches[index % len(batches)]
        if peer is not None:
            peer(batch.x, batch.y, u)
        elif net is not None:
            case.recipe.method.step(net, batch, u, rng, memory)

    def compile_seconds() -> float:
        return net.compile_seconds if net is not None else 0.0

    def run(u: Control, count: int) -> float:
        _synchronize(device)
        started = time.perf_counter()
        for index in range(count):
            step(u, index)
        _synchronize(device)
        return time.perf_counter() - started

    run(case.controls[-1], 3)  # compile, record, warm up
    for u in case.controls:
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        once = run(u, 2) / 2
        count = max(3, min(200, round(seconds / 3 / once)))
        # a method that drops samples (FAT) may meet a new batch size, which compiles
        for _ in range(ATTEMPTS):
            compiled = compile_seconds()
            times = [run(u, count) / count for _ in range(3)]
            if compile_seconds() == compiled:
                break
        else:
            raise AmataError(f"the {variant} engine keeps recompiling while it is timed")
        host_share = (
            _host_share(partial(step, u), device, count, min(times)) if variant == "fast" else None
        )
        yield (
            u,
            {
                "precision": net.precision if net is not None else peer_precision(variant, device),
                "engine": net.describe() if net is not None else variant,
                "seconds_per_step": min(times),
                "seconds_per_step_worst": max(times),
                "compile_seconds": compile_seconds(),
                "peak_memory_bytes": torch.cuda.max_memory_reserved(device) if on_gpu else 0,
                "host_share": host_share,
            },
        )


def _host_share(
    step: Callable[[], None], device: torch.device, count: int, seconds: float
) -> float | None:
    """Python's share of a step's time, measured with graph replay disabled."""
    if device.type != "cuda":
        return None
    replay = torch.cuda.CUDAGraph.replay
    torch.cuda.CUDAGraph.replay = lambda self: None  # type: ignore[method-assign]
    try:
        _synchronize(device)
        started = time.perf_counter()
        for _ in range(count):
            step()
        host = (time.perf_counter() - started) / count
        _synchronize(device)
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
    return host / seconds


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
