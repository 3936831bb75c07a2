"""Writes the tables of docs/engine.md and docs/engine-log.md from results/bench: python
evidence/engine.py (--check compares them)."""

import json
import re
from pathlib import Path
from typing import Any

from page import refuse_others, rewrite

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "bench" / "h200"
PAGE = ROOT / "docs" / "engine.md"
LOG = ROOT / "docs" / "engine-log.md"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def speed_table() -> str:
    results = [read("pgd.json"), read("lenet.json")]
    lines = [
        "| recipe | batch | K | variant | s / epoch | TFLOP/s | of peak | speedup | "
        "compile s | memory MiB | host |"
    ]
    lines.append("|---" * 11 + "|")
    for result in results:
        for r in result["rows"]:
            host = f"{r['host_share']:.1%}" if r["host_share"] is not None else ""
            numbers = (
                f"{r['seconds_per_epoch']:.2f} | {r['tflops']:.1f} | {r['ceiling_share']:.1%} "
                f"| {r['ratio_to_reference']:.2f}"
            )
            rest = f"{r['compile_seconds']:.0f} | {r['peak_memory_bytes'] / 2**20:,.0f} | {host}"
            lines.append(
                f"| {r['recipe']} | {r['batch']} | {r['steps']} | {r['variant']} | {numbers} | "
                f"{rest} |"
            )
    first = results[0]
    lines.append(
        f"\n{first['device']}, torch {first['torch']}. Peak is the speed of a large bf16 matrix "
        f"product, {first['matmul_tflops']:.0f} TFLOP/s."
    )
    return "\n".join(lines)


def schedule_line() -> str:
    result = read("schedule.json")
    (pgd,) = [r["seconds_per_epoch"] for r in result["rows"] if r["recipe"] == "cifar10-pgd10"]
    (amata,) = [
        s["seconds_per_epoch"] for s in result["schedules"] if s["recipe"] == "cifar10-amata"
    ]
    return (
        f"At batch 128 an epoch of PGD-10 takes {pgd:.2f} s. An epoch of Amata 2 → 10 takes "
        f"{amata:.2f} s on average over its schedule: {amata / pgd:.3f} of PGD-10's time, with "
        "0.652 of its FLOPs."
    )


def training_table() -> str:
    lines = [
        "| run | engine | seconds | compile s | last loss | clean % | PGD-20 % |",
        "|---" * 7 + "|",
    ]
    for name in ("amata-plain", "amata-fast", "amata-fast-seed1", "pgd10-fast"):
        summary = read(f"{name}/summary.json")
        last = json.loads((RESULTS / name / "metrics.jsonl").read_text().splitlines()[-1])
        clean, robust = (summary["evaluation"][a]["accuracy"] for a in ("clean", "pgd-20"))
        engine = "plain fp32" if "plain" in name else "fast bf16"
        compiled = f"{last.get('compile_seconds', 0):.0f}"
        cells = (
            f"{summary['train_seconds']:.1f}",
            compiled,
            f"{last['loss']:.4f}",
            f"{100 * clean:.1f}",
            f"{100 * robust:.1f}",
        )
        lines.append(f"| {name} | {engine} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ascent(name: str, tag: str) -> str:
    """The time of an ascent step in a file under tried/."""
    found = re.search(
        rf"^== {re.escape(tag)}: ascent ([\d.]+) us", (RESULTS / "tried" / name).read_text(), re.M
    )
    assert found, (name, tag)
    return f"{float(found[1]):,.0f} µs"


def tried_table() -> str:
    profile = (RESULTS / "tried" / "profile.txt").read_text()
    before = re.search(r"default B=512: ascent ([\d.]+) ms", profile)
    assert before
    first, second = "layers-first.txt", "layers-second.txt"
    rows = {
        "1. folded bf16 copy, compiled, one CUDA graph per step": (
            f"{1000 * float(before[1]):,.0f} µs"
        ),
        "2. as 1, bias and ReLU fused into cuDNN's convolution": ascent(
            first, "prn, no patches B=512"
        ),
        "3. as 2, first convolution as a matrix product, patches by `cat`": ascent(
            first, "prn B=512"
        ),
        "4. as 3, without the fused bias and ReLU": ascent(first, "prn, no convrelu B=512"),
        "5. as 3, patches by one strided read, step and projection compiled": ascent(
            second, "prn B=512"
        ),
    }
    lines = [
        "| change | ascent step, batch 512 |",
        "|---|---|",
        *(f"| {change} | {time} |" for change, time in rows.items()),
    ]
    lenet, small = (
        (ascent(first, "lenet B=256"), ascent(second, "lenet B=256")),
        ascent(second, "prn B=128"),
    )
    return "\n".join(
        [
            *lines,
            f"\nFrom 3 to 5, LeNet's step goes from {lenet[0]} to {lenet[1]}. At batch 128, "
            f"5 takes {small}.",
        ]
    )


def methods_table() -> str:
    lines = [
        "| recipe | network | batch | K | reference, s / epoch | fast, s / epoch | "
        "speedup | host |",
        "|---" * 8 + "|",
    ]
    for name in ("methods.json", "yopo.json", "trades.json"):
        rows = read(name)["rows"]
        for fast in (r for r in rows if r["variant"] == "fast"):
            (reference,) = [
                r for r in rows if r["variant"] == "reference" and r["recipe"] == fast["recipe"]
            ]
            seconds = f"{reference['seconds_per_epoch']:.2f} | {fast['seconds_per_epoch']:.2f}"
            numbers = f"{seconds} | {fast['ratio_to_reference']:.2f} | {fast['host_share']:.0%}"
            lines.append(
                f"| {fast['recipe']} | {fast['model']} | {fast['batch']} | {fast['steps']} | "
                f"{numbers} |"
            )
    return "\n".join(lines)


def kernels_table() -> str:
    """The time of one ascent step and of one update by kind of kernel."""
    columns: dict[str, dict[str, float]] = {}
    totals = []
    for block in (RESULTS / "kernels.txt").read_text().split("== ")[1:]:
        head, *rows = block.splitlines()
        found = re.match(r"(five ascent steps|one update), batch (\d+): (\d+) us", head)
        assert found, head
        divisor = 5 if found[1].startswith("five") else 1
        title = f"{'ascent step' if divisor == 5 else 'update'}, batch {found[2]}"
        totals.append(f"{int(found[3]) / divisor:,.0f} µs")
        shares = [re.match(r" *([\d.]+) us +[\d.]+%  (.+)", row) for row in rows]
        columns[title] = {m[2]: float(m[1]) / divisor for m in shares if m}
    kinds = list(next(iter(columns.values())))
    lines = [f"| kernels | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [
        f"| {kind} | {' | '.join(f'{column[kind]:,.0f} µs' for column in columns.values())} |"
        for kind in kinds
    ]
    return "\n".join([*lines, f"| wall clock | {' | '.join(totals)} |"])


def buckets_table() -> str:
    result = read("buckets.json")
    lines = [
        "| recipe | batches | s / epoch | gradients per image |",
        "|---" * 4 + "|",
    ]
    lines += [
        f"| {r['recipe']} | {r['shapes']} | {r['seconds']:.2f} | {r['grad_evals_per_image']:.1f} |"
        for r in result["rows"]
    ]
    return "\n".join(
        [*lines, f"\n{result['images']:,} images of CIFAR-10 (JPEG copy), batch {result['batch']}."]
    )


def evaluation_table() -> str:
    trained = read("evaluation/quick-summary.json")["evaluation"]
    found = {name: trained[name] for name in ("pgd-20", "cw-pgd-20")}
    found |= read("evaluation/quick.json")
    lines = [
        "| attack | images | gradient evaluations | seconds | accuracy % | precision |",
        "|---" * 6 + "|",
    ]
    for name, r in found.items():
        lines.append(
            f"| {name} | {r['n']:,} | {r['grad_evals']:,} | {r['seconds']:.1f} | "
            f"{100 * r['accuracy']:.1f} | {r['params']['precision']} |"
        )
    return "\n".join(lines)


def wall_table() -> str:
    """Where the seconds of a training go, with empty and with filled caches."""
    rows = read("wall.json")["rows"]
    parts = [part for part in rows[0]["wall_seconds"] if part != "total"]
    columns = {f"`{part}`": [r["wall_seconds"][part] for r in rows] for part in parts}
    columns["exit"] = [r["exit_seconds"] for r in rows]
    lines = [f"| seconds | {' | '.join(r['caches'] for r in rows)} |", "|---" * 3 + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |"
        for name, values in columns.items()
    ]
    whole = " | ".join(f"{r['command_seconds']:.1f}" for r in rows)
    accuracies = [
        f"{100 * r['evaluation']['clean']:.1f}% clean and {100 * r['evaluation']['pgd-20']:.1f}% "
        "under PGD-20"
        for r in rows
    ]
    lines += [f"| whole command | {whole} |", "", f"The networks have {' and '.join(accuracies)}."]
    return "\n".join(lines)


def lanes_line() -> str:
    found = re.findall(
        r"^(prn|lenet) B=(\d+) lanes=([12]): ascent step ([\d.]+) us",
        (RESULTS / "tried" / "lanes.txt").read_text(),
        re.M,
    )
    steps = {(net, batch, lanes): float(us) for net, batch, lanes, us in found}
    cases = [
        f"batch {b}: {steps[n, b, '1']:,.0f} to {steps[n, b, '2']:,.0f} µs"
        for n, b in (("prn", "128"), ("prn", "512"))
    ]
    lenet = f"LeNet {steps['lenet', '256', '1']:,.0f} to {steps['lenet', '256', '2']:,.0f} µs"
    return f"- Two half batches on two streams in parallel: slower ({'; '.join(cases)}; {lenet})."


def fused_table() -> str:
    """Convolutions with the work behind them: cuDNN and torch.compile against own kernels."""
    kinds = {
        "relu": "convolution, bias, ReLU",
        "sum": "convolution, sum, BatchNorm, ReLU",
        "mask": "input gradient, mask",
        "residual": "input gradient, mask, scale, sum",
    }
    text = (RESULTS / "tried" / "fused_convolutions.txt").read_text()
    lines = [
        "| | 64 channels: cuDNN | own | 128: cuDNN | own | 256: cuDNN | own |",
        "|---" * 7 + "|",
    ]
    for kind, title in kinds.items():
        cells = []
        for channels in (64, 128, 256):
            found = re.search(
                rf"^batch 512 channels +{channels} {kind} .* now ([\d.]+) .*halo \d+x\d+ ([\d.]+)",
                text,
                re.M,
            )
            assert found, (kind, channels)
            cells += [f"{float(value):.0f}" for value in found.groups()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


LOG_PARTS = {
    "speed": speed_table,
    "schedule": schedule_line,
    "methods": methods_table,
    "evaluation": evaluation_table,
    "kernels": kernels_table,
    "tried": tried_table,
    "lanes": lanes_line,
    "fused": fused_table,
    "buckets": buckets_table,
    "training": training_table,
}


def main() -> None:
    rewrite({PAGE: {"wall": wall_table}, LOG: LOG_PARTS}, "engine")


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    main()
