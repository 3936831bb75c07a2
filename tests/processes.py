"""The script of each of the two processes in tests/test_ranks.py:
python -m torch.distributed.run --nproc-per-node 2 tests/processes.py FOLDER."""

import contextlib
import copy
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from amata.distributed import (
    GradientBuckets,
    convert_sync_batchnorm,
    current,
    init_distributed,
)
from amata.errors import InputError, Interrupted
from amata.metrics import EpochRow
from amata.runs import RunFolder
from amata.runs.files import save_tensors
from amata.training import train_model
from tests.conftest import small_net
from tests.toy import StopAt, fit, toy_data, toy_recipe

CASES: dict[str, tuple[list[str], int]] = {
    "erm": (["method.name=erm"], 96),
    "pgd": ([], 96),
    "pgd, parts of different sizes": ([], 91),
    "pgd, K from 0 in fractions": (["schedule.k_min=0", "schedule.fractional=true"], 96),
    "pgd, average and crops": (["optim.ema=0.9", "data.augment=crop-flip", "data.pad=1"], 96),
    "pgd in l2": (["threat.norm=l2", "threat.eps=0.3", "schedule.tau=0.6"], 96),
    "fast from before": (["method.name=fast", "method.init=previous"], 96),
    "free": (["method.name=free"], 96),
    "nfgsm": (["method.name=nfgsm"], 96),
    "trades": (["method.name=trades"], 96),
    "mart": (["method.name=mart"], 96),
    "fat": (["method.name=fat", "method.omega=0.0"], 96),
    "dat": (["method.name=dat"], 96),
    "atta": (["method.name=atta", "method.reset=2", "data.augment=crop-flip", "data.pad=1"], 96),
    "atta, parts of different sizes": (["method.name=atta", "method.store=cpu"], 91),
    # without momentum the norm over the batch, which parts only estimate, does not matter
    "fgsm-pgi, parts of different sizes": (
        [
            "method.name=fgsm-pgi",
            "method.momentum=0",
            "method.reset=2",
            "data.augment=crop-flip",
            "data.pad=1",
        ],
        91,
    ),
    "yopo": (["method.name=yopo", "method.inner=2", "model.first_layer=net.0"], 96),
    "adaptive": (
        ["schedule.name=adaptive", "schedule.tau=0.1", "schedule.k_max=4", "schedule.gamma=0.01"],
        96,
    ),
    "awp": (["method.awp.gamma=0.05"], 96),
    "awp, batch in parts": (["method.awp.gamma=0.05", "train.accumulate=3"], 96),
    "batch in parts": (["train.accumulate=3"], 96),
    "shared BatchNorm": (["train.sync_bn=true"], 96),
    "shared BatchNorm, parts of different sizes": (["train.sync_bn=true"], 91),
    "shared BatchNorm, adaptive": (
        [
            "train.sync_bn=true",
            "schedule.name=adaptive",
            "schedule.tau=0.1",
            "schedule.k_max=4",
            "schedule.gamma=0.01",
        ],
        96,
    ),
    "BatchNorm of one's own": ([], 96),
}


NORMED: dict[str, tuple[nn.Module, tuple[int, ...], torch.dtype, float, tuple[int, int]]] = {
    "float64": (nn.BatchNorm2d(3), (8, 3, 5, 5), torch.float64, 1e-9, (4, 4)),
    "float32": (nn.BatchNorm2d(3), (8, 3, 5, 5), torch.float32, 1e-3, (4, 4)),
    "uneven": (nn.BatchNorm2d(3), (8, 3, 5, 5), torch.float64, 1e-9, (7, 1)),
    "one value each": (nn.BatchNorm1d(3), (2, 3), torch.float64, 1e-9, (1, 1)),
    "no weights": (nn.BatchNorm1d(3, affine=False), (8, 3, 5), torch.float64, 1e-9, (3, 5)),
    "cumulative": (nn.BatchNorm2d(3, momentum=None), (8, 3, 2, 2), torch.float64, 1e-9, (4, 4)),
    "not tracked": (
        nn.BatchNorm3d(3, track_running_stats=False),
        (4, 3, 2, 2, 2),
        torch.float64,
        1e-9,
        (2, 2),
    ),
}
"""BatchNorms, the shape of a whole batch, its dtype, the relative tolerance, and the images of each
process."""


def normed(name: str, sizes: tuple[int, ...] | None = None) -> list[dict[str, Tensor]]:
    """Two steps of a BatchNorm on values with mean / std = 1000: outputs, gradients and running
    statistics. With `sizes`, of this process's part; gradients of weights are then summed."""
    norm, shape, dtype, _, _ = NORMED[name]
    norm = copy.deepcopy(norm).to(dtype)
    rng = torch.Generator().manual_seed(0)
    for p in norm.parameters():
        p.data = torch.randn(3, generator=rng, dtype=dtype)
    if sizes:
        norm = convert_sync_batchnorm(norm)
    found = []
    for _ in range(2):
        x, weights = (torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(2))
        # Other means on every image, so that processes differ in theirs.
        x = (x + 1000 + 0.1 * torch.arange(len(x)).view(-1, *[1] * (x.dim() - 1))).to(dtype)
        if sizes:
            x, weights = (t.split(sizes)[current().rank] for t in (x, weights))
        x = x.clone().requires_grad_()
        y = norm(x)
        norm.zero_grad()
        (y.double() * weights + y.double() ** 3).sum().backward()
        assert x.grad is not None
        step = {"y": y.detach(), "x.grad": x.grad}
        for key, p in norm.named_parameters():
            assert p.grad is not None
            if sizes:
                dist.all_reduce(p.grad)
            step[f"{key}.grad"] = p.grad.clone()
        step |= {key: b.clone() for key, b in norm.named_buffers()}
        found.append(step)
    return found


AVERAGED = ("after", "during", "in two passes", "into fixed tensors")


def averaged(how: str) -> list[Tensor | None]:
    """Gradients of a network, averaged in buckets of two layers and weighted 1 : 3. Rank 1 alone
    uses its third layer, nobody the fourth."""
    torch.manual_seed(current().rank)
    layers = nn.ModuleList(nn.Linear(4, 4, dtype=torch.float64) for _ in range(5))
    used = [layers[i] for i in (0, 1, 4, *([2] if current().rank else []))]
    weight = 1.0 + 2 * current().rank
    buckets = GradientBuckets(layers.parameters(), bucket_bytes=8 * 40)
    assert len(buckets.buckets) == 3
    if how == "into fixed tensors":
        for p, view in buckets.views().items():
            p.grad = view

    def loss(of: Iterable[nn.Module]) -> Tensor:
        return sum((m(torch.ones(4, dtype=torch.float64)) ** 2).sum() for m in of)

    expected = torch.autograd.grad(loss(used), [*used[0].parameters(), *used[2].parameters()])
    for part in [used[:2], used[2:]] if how == "in two passes" else [used]:
        during = how in ("during", "in two passes")
        with buckets.overlap(weight) if during else contextlib.nullcontext():
            loss(part).backward()
    buckets.average(weight)
    mean = torch.cat([g.reshape(-1) for g in expected]) * weight
    dist.all_reduce(mean)
    found = [p.grad for p in layers.parameters()]
    mine = torch.cat([found[i].reshape(-1) for i in (0, 1, 8, 9)])  # type: ignore[union-attr]
    torch.testing.assert_close(mine, mean / 4)
    return found


class Exact(nn.Module):
    """In double precision, without dropout, so that no sign depends on a rounding error."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.net = small_net(smooth=True).double()
        self.net[3] = nn.Identity()
        if not normed:
            self.net[1] = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.double())


def trained(name: str, folder: Path) -> tuple[dict[str, Tensor], list[EpochRow]]:
    """Train a case by all processes of the group: its weights and rows. The run is in `folder`."""
    more, n = CASES[name]
    recipe = toy_recipe("train.epochs=3", "eval.batch_size=8", "train.tensorboard=false", *more)
    fitted = fit(Exact("BatchNorm" in name), toy_data(n), toy_data(40), recipe, run=folder / name)
    return fitted.model.state_dict(), fitted.epochs


def hidden(folder: Path) -> list[str]:
    """Resume an interrupted run from a folder that rank 1 sees, then from one that it does not:
    where the first resumes, and the error of the second."""
    main, recipe = current().is_main, toy_recipe("train.epochs=3", "train.tensorboard=false")
    given = Exact(False), toy_data(96), toy_data(40), recipe
    said: list[str] = []

    class Notes(StopAt):
        def note(self, text: str) -> None:
            said.append(text)

    for stop in (Notes(1, 2), Notes(2, 3)):
        with contextlib.suppress(Interrupted):
            path = folder / "hidden"
            run = RunFolder(path) if path.exists() and main else path
            fit(*given, run=run, reporter=stop)
    (folder / "elsewhere").mkdir(exist_ok=True)
    os.chdir(folder if main else folder / "elsewhere")
    try:
        train_model(*given, run=RunFolder(Path("/proc/self/cwd/hidden")) if main else None)
    except InputError as error:
        said.append(str(error))
    return said


class Mortal(nn.Module):
    """A network for digits that kills rank 1 in the middle of the second epoch, unless torchrun has
    restarted it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 6, 5, stride=4), nn.Softplus(), nn.Flatten(), nn.Linear(6 * 36, 10)
        )
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        if (
            self.passes == 60
            and os.environ.get("RANK") == "1"
            and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)


def mortal() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Mortal()


def main(folder: Path) -> None:
    with init_distributed(torch.device("cpu")):
        found = {name: normed(name, case[-1]) for name, case in NORMED.items()}
        torch.save(found, folder / f"normed-{current().rank}.pt")
        gradients = {how: averaged(how) for how in AVERAGED}
        torch.save(gradients, folder / f"averaged-{current().rank}.pt")
        (folder / f"hidden-{current().rank}.json").write_text(json.dumps(hidden(folder)))
        for index, name in enumerate(CASES):
            weights, rows = trained(name, folder)
            save_tensors(folder / f"{index}-{current().rank}.safetensors", weights)
            (folder / f"{index}-{current().rank}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
