"""Profiles one PGD-10 training step by GPU kernel: python evidence/kernels.py OUT.txt."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from amata import recipes
from amata.schedules import Control
from amata.studies.bench_case import Case

REPEATS, TOP = 5, 40
KINDS = {
    "convolutions, forward": ("fprop",),
    "convolutions, to their inputs": ("dgrad",),
    "convolutions, to their weights": ("wgrad", "init_device_workspace"),
    "matrix products": ("nvjet", "gemm", "cutlass"),
    "BatchNorm, ReLU and sums between them": (
        *("triton", "elementwise", "multi_tensor"),
        *("_statistics", "_normalise", "_sums"),
    ),
}


def timed(work: Callable[[], object], count: int = 50) -> float:
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def table(name: str, work: Callable[[], object]) -> list[str]:
    seconds = timed(work)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(REPEATS):
            work()
        torch.cuda.synchronize()
    events = sorted(
        (e for e in recorded.key_averages() if e.self_device_time_total),
        key=lambda e: -e.self_device_time_total,
    )
    total = sum(e.self_device_time_total for e in events) / REPEATS
    lines = [
        f"== {name}: {1e6 * seconds:.0f} us, of which kernels {total:.0f} us "
        f"({sum(e.count for e in events) // REPEATS} launches)"
    ]
    shares = dict.fromkeys([*KINDS, "other"], 0.0)
    for e in events:
        kind = next((k for k, words in KINDS.items() if any(w in e.key for w in words)), "other")
        shares[kind] += e.self_device_time_total / REPEATS
    lines += [f"{value:9.1f} us {value / total:6.1%}  {kind}" for kind, value in shares.items()]
    lines += [
        f"{e.self_device_time_total / REPEATS:9.1f} us x{e.count / REPEATS:4.0f}  {e.key[:110]}"
        for e in events[:TOP]
    ]
    return lines


def main(out: str) -> None:
    torch.backends.cudnn.benchmark = True
    device, recipe, lines = (
        torch.device("cuda"),
        recipes.load("cifar10-pgd10"),
        [f"{torch.cuda.get_device_name()}, torch {torch.__version__}"],
    )
    for size in (128, 512):
        case = Case(recipe, size, (Control(10, 2 / 255),))
        net, batch = case.net("fast", case.model(device)), case.batches(device, 1)[0]
        region = recipe.ball.around(batch.x)

        def ascend(net=net, region=region, batch=batch) -> object:  # type: ignore[no-untyped-def]
            return net.ascent(region, batch.x, batch.y, 5, 2 / 255)

        def update(net=net, batch=batch) -> None:  # type: ignore[no-untyped-def]
            net.backward(batch.x, batch.y)
            net.apply()

        update()
        ascend()
        lines += table(f"five ascent steps, batch {size}", ascend) + table(
            f"one update, batch {size}", update
        )
    Path(out).write_text("\n".join(lines) + "\n")
    print("\n".join(line for line in lines if line.startswith("==")))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
