"""Own kernels for the attack's 3x3 convolutions, with the work around them in their epilogues.

python evidence/conv_kernels.py --check        correctness (without a GPU: TRITON_INTERPRET=1)
python evidence/conv_kernels.py --out FOLDER   times on a GPU, FOLDER/conv_kernels.{json,txt}

Each kernel is compared with what runs now: cuDNN's convolution and the pointwise kernel that
torch.compile makes of the rest. Tensors are (N, H, W, C) in bf16, and C is a multiple of 64. The
kinds of convolution in a block of PreActResNet-18, with s and t BatchNorm's scale and shift:

relu      a = relu(conv(x) + t)
sum       y = conv(x) + r and a = relu(s y + t)
last      the same without y
mask      g = conv(x) where a > 0
residual  g = conv(x) s where a > 0, plus r
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from amata.engine import halo_launch
from amata.engine.halo_launch import Tile

KINDS = {"relu": 1, "sum": 2, "last": 3, "mask": 4, "residual": 5}
STAGES = {64: 32, 128: 16, 256: 8, 512: 4}
"""Height and width by channels."""
USES = {
    64: {"relu": 2, "sum": 1, "last": 1, "mask": 2, "residual": 2},
    128: {"relu": 1, "sum": 1, "last": 1, "mask": 2, "residual": 1},
    256: {"relu": 1, "sum": 1, "last": 1, "mask": 2, "residual": 1},
    512: {"relu": 1, "sum": 1, "last": 1, "mask": 2, "residual": 1},
}
"""Convolutions of stride 1 in one ascent step of PreActResNet-18."""
DTYPE = torch.float16 if os.environ.get("TRITON_INTERPRET") == "1" else torch.bfloat16
"""Triton's interpreter multiplies no matrices of bf16."""
STEP = {128: 1100.0, 512: 3061.0}
"""Microseconds of one ascent step now, by batch size (docs/engine-log.md)."""


@triton.jit
def _pack(positive, BM: tl.constexpr, BN: tl.constexpr):
    """One byte for eight channels, the first in the lowest bit."""
    bits = positive.to(tl.int32).reshape(BM, BN // 8, 8)
    return tl.sum(bits << tl.arange(0, 8)[None, None, :], 2).to(tl.uint8)


@triton.jit
def _unpack(packed, BM: tl.constexpr, BN: tl.constexpr):
    bits = packed.to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]
    return ((bits & 1) != 0).reshape(BM, BN)


@triton.jit
def _epilogue(
    acc, y_ptr, a_ptr, r_ptr, m_ptr, s_ptr, t_ptr, pixels, pid_m, pid_n,
    CO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, KIND: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """`m` holds bits with BITS, else it is the activation, whose sign is the mask."""
    rows = pid_m * BM + tl.arange(0, BM)
    columns = pid_n * BN + tl.arange(0, BN)
    inside = (rows < pixels)[:, None]
    at = rows[:, None] * CO + columns[None, :]
    packed_at = rows[:, None] * (CO // 8) + (pid_n * (BN // 8) + tl.arange(0, BN // 8))[None, :]
    if KIND == 1:
        a = tl.maximum(acc + tl.load(t_ptr + columns)[None, :], 0.0)
        tl.store(a_ptr + at, a.to(a_ptr.dtype.element_ty), mask=inside)
    if KIND == 2 or KIND == 3:
        y = acc + tl.load(r_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if KIND == 2:
            tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)
        a = y * tl.load(s_ptr + columns)[None, :] + tl.load(t_ptr + columns)[None, :]
        a = tl.maximum(a, 0.0)
        tl.store(a_ptr + at, a.to(a_ptr.dtype.element_ty), mask=inside)
    if KIND <= 3 and BITS:
        tl.store(m_ptr + packed_at, _pack(a.to(a_ptr.dtype.element_ty) > 0, BM, BN), mask=inside)
    if KIND >= 4:
        if BITS:
            positive = _unpack(tl.load(m_ptr + packed_at, mask=inside, other=0), BM, BN)
        else:
            positive = tl.load(m_ptr + at, mask=inside, other=0.0) > 0
        if KIND == 5:
            acc = acc * tl.load(s_ptr + columns)[None, :]
        g = tl.where(positive, acc, 0.0)
        if KIND == 5:
            g += tl.load(r_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, g.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def tiled_kernel(
    x_desc, w_desc, y_ptr, a_ptr, r_ptr, m_ptr, s_ptr, t_ptr, pixels,
    C: tl.constexpr, CO: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Implicit matrix product: nine shifted loads of a tile of whole rows. The tensor memory
    accelerator fills pixels outside the image with zeros."""
    tiles_n: tl.constexpr = CO // BN
    pid_m = tl.program_id(0) // tiles_n
    pid_n = tl.program_id(0) % tiles_n
    image = pid_m * BM // (H * W)
    row = (pid_m * BM % (H * W)) // W
    acc = tl.zeros((BM, BN), tl.float32)
    chunks: tl.constexpr = C // BK
    for k in range(9 * chunks):
        tap = k // chunks
        x = x_desc.load([image, row + tap // 3 - 1, tap % 3 - 1, (k % chunks) * BK])
        w = w_desc.load([pid_n * BN, k * BK])
        acc = tl.dot(x.reshape(BM, BK), w.T, acc)
    _epilogue(
        acc, y_ptr, a_ptr, r_ptr, m_ptr, s_ptr, t_ptr, pixels, pid_m, pid_n,
        CO, BM, BN, KIND, BITS,
    )  # fmt: skip


@triton.jit
def mask_kernel(g_ptr, m_ptr, r_ptr, s_ptr, y_ptr, size, C: tl.constexpr, RESIDUAL: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """The pointwise kernel behind cuDNN's convolution, with the mask as bits."""
    byte = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = byte < size // 8
    bits = tl.load(m_ptr + byte, mask=inside, other=0).to(tl.int32)
    positive = ((bits[:, None] >> tl.arange(0, 8)[None, :]) & 1) != 0
    g = tl.load(g_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
    if RESIDUAL:
        g = g * tl.load(s_ptr + at % C)
    g = tl.where(positive, g, 0.0)
    if RESIDUAL:
        g += tl.load(r_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.store(y_ptr + at, g.to(y_ptr.dtype.element_ty), mask=inside[:, None])


@dataclass
class Case:
    """One convolution: NHWC tensors, weights (C_out, 3, 3, C_in), and what its epilogue reads."""

    kind: str
    x: Tensor
    weight: Tensor
    residual: Tensor
    activation: Tensor
    scale: Tensor
    shift: Tensor

    @classmethod
    def random(cls, kind: str, batch: int, channels: int, device: str) -> "Case":
        generator = torch.Generator(device).manual_seed(0)
        size = STAGES[channels]

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        shape = (batch, size, size, channels)
        weight = normal(channels, 3, 3, channels) / (9 * channels) ** 0.5
        return cls(
            kind,
            normal(*shape).to(DTYPE),
            weight.to(DTYPE),
            normal(*shape).to(DTYPE),
            normal(*shape).relu().to(DTYPE),
            normal(channels) * 0.1 + 1,
            normal(channels) * 0.1,
        )

    def bits(self) -> Tensor:
        """The mask of the activation, packed."""
        return pack(self.activation)

    def reference(self) -> dict[str, Tensor]:
        """In fp32, without tensor cores."""
        nchw = self.x.permute(0, 3, 1, 2).float()
        conv = F.conv2d(nchw, self.weight.permute(0, 3, 1, 2).float(), padding=1)
        acc, r = conv.permute(0, 2, 3, 1), self.residual.float()
        if self.kind == "relu":
            return {"a": F.relu(acc + self.shift)}
        if self.kind in ("sum", "last"):
            a = F.relu((acc + r) * self.scale + self.shift)
            return {"y": acc + r, "a": a} if self.kind == "sum" else {"a": a}
        positive = self.activation > 0
        if self.kind == "mask":
            return {"y": torch.where(positive, acc, 0)}
        return {"y": torch.where(positive, acc * self.scale, 0) + r}

    def outputs(self) -> dict[str, Tensor]:
        names = {"sum": "ya", "relu": "a", "last": "a"}.get(self.kind, "y")
        return {name: torch.empty_like(self.residual) for name in names}


def pack(activation: Tensor) -> Tensor:
    bits = (activation > 0).unflatten(-1, (-1, 8)).to(torch.int32)
    powers = 2 ** torch.arange(8, device=activation.device, dtype=torch.int32)
    return (bits * powers).sum(-1).to(torch.uint8)


Launch = Callable[[], dict[str, Tensor]]


def tiled(
    case: Case, *, bm: int = 128, bn: int = 64, bk: int = 64, warps: int = 4, stages: int = 4,
    bits: bool = True,
) -> Launch:  # fmt: skip
    n, h, w, c = case.x.shape
    co = case.weight.shape[0]
    rows = min(h, bm // w)
    x_desc = TensorDescriptor.from_tensor(case.x, [bm // (rows * w), rows, w, bk])
    w_desc = TensorDescriptor.from_tensor(case.weight.view(co, 9 * c), [bn, bk])
    out, mask = case.outputs(), _mask(case, bits)
    pixels = n * h * w
    grid = (triton.cdiv(pixels, bm) * (co // bn),)
    y, a = out.get("y", mask), out.get("a", mask)

    def launch() -> dict[str, Tensor]:
        tiled_kernel[grid](
            x_desc, w_desc, y, a, case.residual, mask, case.scale, case.shift, pixels,
            C=c, CO=co, H=h, W=w, BM=bm, BN=bn, BK=bk, KIND=KINDS[case.kind], BITS=bits,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return {**out, "bits": mask} if bits and case.kind in ("relu", "sum", "last") else out

    return launch


def _mask(case: Case, bits: bool) -> Tensor:
    if not bits:
        return case.activation
    if case.kind in ("mask", "residual"):
        return case.bits()
    return torch.empty(*case.x.shape[:3], case.weight.shape[0] // 8, dtype=torch.uint8,
                       device=case.x.device)  # fmt: skip


def halo(case: Case, tile: Tile) -> Launch:
    """The engine's kernel. Input gradients take the weights of the convolution they belong to."""
    weight, out, mask = case.weight, case.outputs(), _mask(case, bits=True)
    if case.kind in ("mask", "residual"):
        weight = _flipped(weight.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    arguments, options = halo_launch.arguments_for(
        KINDS[case.kind], case.x.shape, tile, case.x, weight, out.get("y", case.x),
        out.get("a", case.x), case.residual, mask, case.scale, case.shift,
    )  # fmt: skip

    def launch() -> dict[str, Tensor]:
        halo_launch.launch(arguments, options)
        return {**out, "bits": mask} if case.kind in ("relu", "sum", "last") else out

    return launch


def now(case: Case) -> Launch:
    """cuDNN's convolution and, compiled, the pointwise work behind it."""
    x, r, m = (t.permute(0, 3, 1, 2) for t in (case.x, case.residual, case.activation))
    weight = case.weight.permute(0, 3, 1, 2)
    flipped = _flipped(weight)
    shift, s, t = case.shift.to(DTYPE), case.scale.view(-1, 1, 1), case.shift.view(-1, 1, 1)

    def nhwc(**out: Tensor) -> dict[str, Tensor]:
        return {name: tensor.permute(0, 2, 3, 1) for name, tensor in out.items()}

    def launch() -> dict[str, Tensor]:
        if case.kind == "relu":
            ones = [1, 1]
            return nhwc(a=torch.cudnn_convolution_relu(x, weight, shift, ones, ones, ones, 1))
        if case.kind == "sum":
            y, a = _sum(F.conv2d(x, weight, padding=1), r, s, t)
            return nhwc(y=y, a=a)
        if case.kind == "last":
            return nhwc(a=_last(F.conv2d(x, weight, padding=1), r, s, t))
        g = _input_gradient(x, flipped)
        return nhwc(y=_mask_only(g, m) if case.kind == "mask" else _mask_residual(g, m, r, s))

    return launch


def conv_only(case: Case) -> Launch:
    """cuDNN's convolution alone."""
    x, weight = case.x.permute(0, 3, 1, 2), case.weight.permute(0, 3, 1, 2)
    if case.kind in ("mask", "residual"):
        return lambda: {"y": _input_gradient(x, weight)}
    return lambda: {"y": F.conv2d(x, weight, padding=1)}


def masked_by_bits(case: Case) -> Launch:
    """cuDNN's input gradient, then a pointwise kernel that reads the mask as bits."""
    x, weight = case.x.permute(0, 3, 1, 2), case.weight.permute(0, 3, 1, 2)
    flipped = _flipped(weight)
    mask, y, size = case.bits(), torch.empty_like(case.x), case.x.numel()
    block = 256

    def launch() -> dict[str, Tensor]:
        mask_kernel[(triton.cdiv(size // 8, block),)](
            _input_gradient(x, flipped), mask, case.residual, case.scale, y, size,
            C=case.x.shape[3], RESIDUAL=case.kind == "residual", BLOCK=block,
        )  # fmt: skip
        return {"y": y}

    return launch


def _flipped(weight: Tensor) -> Tensor:
    """The weights whose input gradient is the convolution with these."""
    return weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)


def _input_gradient(g: Tensor, weight: Tensor) -> Tensor:
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
    gradient: Tensor = torch.ops.aten.convolution_backward(g, g, weight, None, *options)[0]
    return gradient


@torch.compile
def _sum(conv: Tensor, r: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    y = conv + r
    return y, F.relu(y.float() * s + t).to(DTYPE)


@torch.compile
def _last(conv: Tensor, r: Tensor, s: Tensor, t: Tensor) -> Tensor:
    return F.relu((conv + r).float() * s + t).to(DTYPE)


@torch.compile
def _mask_only(g: Tensor, a: Tensor) -> Tensor:
    return torch.where(a > 0, g, 0)


@torch.compile
def _mask_residual(g: Tensor, a: Tensor, r: Tensor, s: Tensor) -> Tensor:
    return (torch.where(a > 0, g.float() * s, 0) + r).to(DTYPE)


VARIANTS: dict[int, dict[str, Callable[[Case], Launch]]] = {
    64: {
        "tiled 128x64": partial(tiled, bm=128, bn=64, warps=4, stages=4),
        "halo 128x64": partial(halo, tile=Tile(128, 64, 2, 9)),
    },
    128: {
        "halo 128x64": partial(halo, tile=Tile(128, 64, 3, 8)),
        "halo 128x128": partial(halo, tile=Tile(128, 128, 2, 5)),
    },
    256: {
        "halo 64x128": partial(halo, tile=Tile(64, 128, 4, 6)),
        "taps 128x128": partial(halo, tile=Tile(128, 128, 4, 4, halo=False)),
    },
    512: {
        "taps 128x128": partial(halo, tile=Tile(128, 128, 4, 4, halo=False)),
        "taps 64x64": partial(halo, tile=Tile(64, 64, 6, 8, halo=False)),
    },
}


def compare(name: str, case: Case, launch: Launch) -> bool:
    """Whether the outputs are those of fp32, up to rounding."""
    found, expected, good = launch(), case.reference(), True
    for key, tensor in expected.items():
        error = ((found[key].float() - tensor).abs() / (1 + tensor.abs())).max().item()
        good &= error < 2e-2
        if error >= 2e-2:
            print(f"  {name} {case.kind} batch {len(case.x)}: {key} is off by {error:.3g}")
    if "bits" in found and not torch.equal(found["bits"], pack(found["a"])):
        good = False
        print(f"  {name} {case.kind} batch {len(case.x)}: bits are wrong")
    return good


def check(channels: int, name: str, batches: list[int], device: str) -> bool:
    """Every kind, at odd batch sizes too."""
    good = True
    for kind in KINDS:
        for batch in batches:
            try:
                case = Case.random(kind, batch, channels, device)
                good &= compare(name, case, VARIANTS[channels][name](case))
            except Exception:
                good = False
                print(f"  {name} {kind} batch {batch}: {traceback.format_exc(limit=-2)[-1500:]}")
    print(f"{channels} channels, {name}: {'equal' if good else 'NOT EQUAL'}", flush=True)
    return good


def microseconds(launch: Launch, count: int = 20) -> float:
    """Median over replays of a CUDA graph of many launches."""
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            launch()
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / count)
    return statistics.median(times[2:])


def measure(channels: int, names: list[str]) -> list[dict[str, Any]]:
    rows = []
    torch.backends.cudnn.benchmark = True
    for batch in STEP:
        for kind in KINDS:
            case = Case.random(kind, batch, channels, "cuda")
            others = {name: VARIANTS[channels][name] for name in names}
            if kind in ("mask", "residual"):
                others["cuDNN, bits"] = masked_by_bits
            row: dict[str, Any] = {"channels": channels, "batch": batch, "kind": kind}
            row["cuDNN alone"] = microseconds(conv_only(case))
            assert compare("now", case, now(case))
            row["now"] = microseconds(now(case))
            for name, variant in others.items():
                try:
                    row[name] = microseconds(variant(case))
                except Exception as error:
                    print(f"  {name} {kind}: {str(error)[:300]}")
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for batch, step in STEP.items():
        saved = 0.0
        lines.append(f"batch {batch}, microseconds")
        for row in (row for row in rows if row["batch"] == batch):
            times = {k: v for k, v in row.items() if k not in ("channels", "batch", "kind")}
            own = {k: v for k, v in times.items() if k != "cuDNN alone"}
            best = min(own, key=lambda k: own[k])
            uses = USES[row["channels"]][row["kind"]]
            saved += uses * (row["now"] - own[best])
            values = "  ".join(f"{k} {v:.1f}" for k, v in times.items())
            flop = 18 * row["channels"] ** 2 * STAGES[row["channels"]] ** 2 * batch
            lines.append(
                f"{row['channels']:4} {row['kind']:8} x{uses}  {values}  best: {best}, "
                f"{flop / own[best] / 1e6:.0f} TFLOP/s"
            )
        lines.append(f"saved {saved:.0f} of {step:.0f} us: a step of {step - saved:.0f} us")
    return "\n".join(lines) + "\n"


def spawn(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)  # fmt: skip


def finish(process: "subprocess.Popen[str]", seconds: float) -> tuple[bool, str]:
    """A kernel that hangs must not take the others with it."""
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return False, process.communicate()[0] + "  timed out\n"
    return process.returncode == 0, text


def run(out: Path, stages: list[int]) -> None:
    """Check all variants in parallel, which compiles them, and measure the correct ones."""
    checks = {
        (channels, name): spawn("--check", "--stage", str(channels), "--variant", name)
        for channels in stages
        for name in VARIANTS[channels]
    }
    good: dict[int, list[str]] = {channels: [] for channels in stages}
    for (channels, name), process in checks.items():
        equal, text = finish(process, 120)
        print(f"{channels} {name}\n{text}", end="", flush=True)
        if equal:
            good[channels].append(name)
    rows = []
    for channels, names in good.items():
        _, text = finish(spawn("--measure", ",".join(names), "--stage", str(channels)), 120)
        print(text, end="", flush=True)
        rows += [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    text = table(rows)
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name()
    versions = f"{device}, torch {torch.__version__}, triton {triton.__version__}"
    (out / "conv_kernels.txt").write_text(f"{versions}\n{text}")
    (out / "conv_kernels.json").write_text(json.dumps({"versions": versions, "rows": rows}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--stage", type=int, choices=STAGES)
    parser.add_argument("--variant")
    parser.add_argument("--measure")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    stages = [given.stage] if given.stage else list(STAGES)
    if given.check:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        batches = [128, 5, 3] if device == "cuda" else [1, 3]
        good = True
        for channels in stages:
            names = [given.variant] if given.variant else list(VARIANTS[channels])
            for name in names:
                if device == "cpu" and not name.startswith("tiled"):
                    continue  # no interpreter for Gluon
                good &= check(channels, name, batches, device)
        sys.exit(not good)
    if given.measure is not None:
        measure(given.stage, [name for name in given.measure.split(",") if name])
    else:
        assert given.out, "--out FOLDER"
        run(given.out, stages)


if __name__ == "__main__":
    main()
