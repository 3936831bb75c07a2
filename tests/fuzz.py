"""A fuzzer: hostile recipes, --set values, command lines and Python calls succeed, or fail with one
line.

    python -m tests.fuzz --minutes 10 --seed 1         all targets, on two processes
    python -m tests.fuzz --only python --minutes 1     one target

Each example runs in a forked child with a limit on memory and processor time, and stops at its
first training batch or attack. It must end with exit status 0, or with 1 or 2 and one line on
stderr that starts with "error:", or with 130 and one that starts with "interrupted"; a call from
Python must return, or raise AmataError with one line. Anything else is a finding: a traceback, a
hang, too much memory, a number that cannot be. Add it to PAST.
"""

import argparse
import contextlib
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis import strategies as st

from tests.faults import PROGRESS, TOY, copy, write_digits
from tests.forked import Child, Outcome, command, import_everything
from tests.hostile import command_lines, python_calls, recipe_files, settings

SECONDS, MEMORY = 60, 3 * 2**30
"""What one example may use: processor seconds, and bytes besides those of its parent."""

# ---- running an example


def limits() -> None:
    """In a child: at most so much memory and time, and no training beyond its first batch."""
    import faulthandler

    from amata.console import ConsoleReporter

    # what torch says where a CPU has no bf16
    warnings.filterwarnings("ignore", "mkldnn_matmul failed")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    faulthandler.register(signal.SIGXCPU, sys.stderr, all_threads=False, chain=True)
    interrupt = lambda *_: signal.raise_signal(signal.SIGINT)  # noqa: E731
    ConsoleReporter.batch = ConsoleReporter.evaluating = interrupt  # type: ignore[method-assign]


def run_command(sandbox: Path, arguments: list[str]) -> Child:
    return command(*arguments, folder=sandbox, inside=limits)


def run_recipe(sandbox: Path, text: str) -> Child:
    (sandbox / "recipe.toml").write_text(text)
    return run_command(sandbox, ["train", "recipe.toml", "--out", "out"])


def run_settings(sandbox: Path, values: list[str]) -> Child:
    options = [text for value in values for text in ("--set", value)]
    return run_command(sandbox, ["train", "toy.toml", "--out", "out", *options])


def run_python(sandbox: Path, source: str) -> Child:
    return Child(lambda: call_python(source), sandbox, limits)


def call_python(source: str) -> None:
    """Evaluate a call. AmataError becomes an exit status and a line, as on the command line."""
    from amata.errors import AmataError, Interrupted

    names = scene()
    try:
        check_value(eval(source, names), source)
    except AmataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)
    except names["Stop"]:
        pass


def check_value(value: Any, source: str) -> None:
    """Refuse results that cannot be: controls, accuracies and adversarial images out of range."""
    import torch

    import amata
    from amata.evaluation import Result

    if isinstance(value, amata.Control):
        assert isinstance(value.steps, int), f"impossible: {value}"
        assert value.steps >= 0, f"impossible: {value}"
        assert 0 <= value.step_size < float("inf"), f"impossible: {value}"
    elif isinstance(value, torch.Tensor) and source.startswith("amata.attacks"):
        low, high = value.float().aminmax()
        assert low >= -1e-5, f"impossible: image values from {low} to {high}"
        assert high <= 1 + 1e-5, f"impossible: image values from {low} to {high}"
    elif isinstance(value, dict) and all(isinstance(v, Result) for v in value.values()):
        for name, result in value.items():
            assert 0 <= result.accuracy <= 1, f"impossible: accuracy of {name} {result.accuracy}"


def scene() -> dict[str, Any]:
    """The names that calls use."""
    from fractions import Fraction

    import numpy as np
    import torch
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    import amata

    class Stop(BaseException):
        pass

    class Stopper(amata.Reporter):
        def batch(self, info: Any) -> None:
            raise Stop

    def x() -> Tensor:
        return torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))

    def y() -> Tensor:
        return torch.arange(8) % 4

    def small(classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, classes))

    class Gives(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value, self.weight = value, nn.Parameter(torch.ones(4))

        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1).sum(1, keepdim=True) * self.weight * self.value

    class Many(Gives):
        def forward(self, images: Tensor) -> Any:
            return (super().forward(images),)

    class Endless(IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            yield x()[0], y()[0]

    def inference(make: Callable[[], Tensor]) -> Tensor:
        with torch.inference_mode():
            return make()

    return {
        "amata": amata,
        "torch": torch,
        "np": np,
        "nn": nn,
        "Path": Path,
        "Fraction": Fraction,
        "DataLoader": DataLoader,
        "Stop": Stop,
        "nan": float("nan"),
        "inf": float("inf"),
        "x": x,
        "y": y,
        "small": small,
        "net": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)),
        "gives": Gives,
        "gives_many": lambda: Many(1.0),
        "frozen": lambda model: model.requires_grad_(False),
        "inference": inference,
        "pairs": lambda: TensorDataset(x(), y()),
        "stream": lambda: DataLoader(Endless(), 4),
        "batch": lambda: amata.Batch(x(), y(), torch.arange(8)),
        "stop": Stopper,
        "rng": torch.Generator().manual_seed(0),
    }


@dataclass(frozen=True)
class Target:
    examples: Callable[[], st.SearchStrategy[Any]]
    run: Callable[[Path, Any], Child]


TARGETS = {
    "recipe": Target(recipe_files, run_recipe),
    "set": Target(settings, run_settings),
    "command": Target(command_lines, run_command),
    "python": Target(python_calls, run_python),
}

PGD = "amata.attacks.pgd(net(), x(), y(), ball=amata.Linf(0.1), steps=2"
EVALUATE = "amata.evaluate(net(), (x(), y()), ball=amata.Linf(0.1), progress=False"
FIT = (
    "amata.fit(net(), (x(), y()), method=amata.PGD(ball=amata.Linf(0.1)), progress=stop(), "
    "device='cpu'"
)
CONSTANT = "schedule=amata.Constant(steps=1, step_size=0.1)"
LONG = "x" * 300
PAST: list[tuple[str, Any]] = [
    # numbers that are too large for what they become
    ("set", ["train.epochs=" + "9" * 5000]),
    ("set", ["train.epochs=100000000000000000000"]),
    ("set", ["data.batch_size=100000000000000000000"]),
    ("set", ["optim.lr=1e308"]),
    ("set", ["optim.lr=1e38"]),
    ("set", ["schedule.tau=1e308"]),
    ("set", ['method.name="fat"', "method.tau=[[0, 9223372036854775808]]"]),
    ("python", "amata.Linear(k_min=1, k_max=10**400, tau=1)"),
    ("python", "amata.Adaptive(tau=0.2, budget=10**400)"),
    # more memory than there is
    ("set", ["data.pad=99999999"]),
    ("set", ["model.args={width=1000000}"]),
    ("command", ["landscape", "run", "--out", "out", "--grid", "100000000"]),
    ("command", ["toy", "--parts", "1000000000000"]),
    ("command", ["bench", "toy.toml", "--batch", "1000000000000", "--variants", "plain"]),
    # files and folders
    ("recipe", "a = " + "[" * 5000 + "]" * 5000),
    ("set", [f"data.root={LONG}"]),
    ("command", ["train", f"{LONG}.toml"]),
    ("command", ["train", "--resume", LONG]),
    ("command", ["eval", LONG]),
    ("command", ["compare", "toy.toml", "--out", LONG]),
    ("command", ["data", "fetch", "mnist", "--root", "toy.toml"]),
    ("command", ["export", "run", "--to", "hf", "--out", "toy.toml/x"]),
    ("command", ["bench", "imagenet-free", "--steps", "1", "--seconds", "0.01", "--device", "cpu"]),
    ("python", "amata.attacks.pgd(model=None, x=x(), y=y(), ball=amata.Linf(0.1))"),
    ("python", "amata.attacks.autoattack(net(), x(), y(), ball=amata.Linf(0.1), generator=3)"),
    ("python", "amata.attacks.pgd(net(), x(), y(), ball=amata.Linf(0.1), loss=nan)"),
    ("python", "amata.models.build(in_channels=1, classes=4, name=0.5)"),
    ("python", "amata.models.build('tinycnn', args=0.5, classes=4, in_channels=1)"),
    ("python", "amata.models.build('tinycnn', args=torch.zeros(2), classes=4, in_channels=1)"),
    ("python", "amata.data.load(name=inf)"),
    ("python", "amata.data.Arrays(x(), y() * 2**40)"),
    ("command", ["data", "check", "photos"]),
    ("command", ["data", "check", "table.csv"]),
    ("command", ["init", "photos", "--skip-bad"]),
    ("command", ["predict", "run", "photos", "--top", "2"]),
    # schedules and optimisers
    ("python", "amata.Linear(k_min=1, k_max=3, tau=0.2)(0, 0)"),
    ("python", "amata.Linear(k_min=1, k_max=3, tau=0.2)('a', 1)"),
    ("python", "amata.Piecewise(stages=3, tau=1)"),
    ("python", "amata.SGD(lr=-1)"),
    ("python", "amata.recipes.load('toy.toml', [1])"),
    # attacks
    ("python", f"{PGD}, step_size=nan)"),
    ("python", f"{PGD}, step_size='2/255')"),
    ("python", f"{PGD}, start=x() * nan)"),
    ("python", f"{PGD}, start=x()[:3])"),
    ("python", f"{PGD}, loss=lambda z, y: 1)"),
    ("python", f"{PGD})".replace("y()", "inference(y)")),
    ("python", f"{PGD})".replace("x()", "x()[:, :0]")),
    ("python", f"{PGD})".replace("net()", "gives(nan)").replace("Linf", "L2")),
    ("python", "amata.attacks.cw_l2(model=net(), x=x(), y=y(), steps=None)"),
    ("python", "amata.attacks.parse_attack(text=inf)"),
    # evaluation
    ("python", f"{EVALUATE}, batch_size=0)"),
    ("python", f"{EVALUATE}, limit=nan)"),
    ("python", f"{EVALUATE}, attacks=[1])"),
    ("python", f"{EVALUATE})".replace("(x(), y())", "pairs()")),
    ("python", f"{EVALUATE})".replace("(x(), y())", "stream()")),
    ("python", f"{EVALUATE})".replace("(x(), y())", "nan")),
    ("python", f"{EVALUATE})".replace("net()", "None")),
    (
        "python",
        "amata.evaluate(net(), (x(), y()), ball=amata.Linf(0.1), progress=lambda: 0)",
    ),
    # training
    ("python", f"{FIT}, schedule=lambda: 0)"),
    ("python", f"{FIT}, {CONSTANT}, recipe=[])"),
    ("python", f"{FIT}, {CONSTANT}, run=3)"),
    ("python", f"{FIT}, {CONSTANT}, run=chr(0))"),
    ("python", f"{FIT}, {CONSTANT}, resume=chr(0))"),
    ("python", f"{FIT}, {CONSTANT}, resume=[])"),
    ("python", f"{FIT}, {CONSTANT})".replace("(x(), y())", "stream()")),
    ("python", f"{FIT}, {CONSTANT})".replace("net()", "net().to('meta')")),
]
"""Findings of the past: the target and the example."""


def failure(target: str, example: Any, ended: Outcome) -> str | None:
    """What is wrong with the outcome of an example; equal texts are the same finding."""
    if ended.hung or ended.code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"hangs {_last_frame(ended.err)}"
    if ended.code < 0:
        return f"dies of signal {-ended.code} {_last_frame(ended.err)}"
    if impossible := re.search(r"AssertionError: impossible: (\D*)", ended.err):
        return f"a result that cannot be, {impossible[1].strip()}, of {example.partition('(')[0]}"
    if "Traceback (most recent call last)" in ended.err:
        kind = re.split(r"[:\s]", ended.err.strip().splitlines()[-1])[0]
        for line in reversed(ended.err.splitlines()):
            if re.match(r"[\w.]+(Error|Exception|Interrupt|Warning|Flaky)\b", line):
                kind = line.partition(":")[0]
                break
        called = example.partition("(")[0] if target == "python" else ""
        return f"{kind} {_last_frame(ended.err) or called}"
    lines = [line for line in ended.err.splitlines() if not PROGRESS.match(line)]
    if ended.code == 0:
        return None
    if ended.code not in (1, 2, 130):
        return f"exit status {ended.code}"
    start = "interrupted" if ended.code == 130 else "error:"
    if len(lines) != 1 or not lines[0].startswith(start):
        stray = next((line for line in lines if not line.startswith(start)), "no error line")
        return f"not one line: {re.sub(r'[0-9/]+', '#', stray)[:60]}"
    if not lines[0].isprintable():
        return "control characters in an error"
    return None


def _last_frame(text: str) -> str:
    """The last line of src/amata in a traceback."""
    frames = re.findall(r'src/(amata/[^"]*)", line (\d+)', text)
    newest = 0 if "most recent call first" in text else -1
    return ":".join(frames[newest]) if frames else ""


def write_photos(folder: Path) -> None:
    """Classes of photos with odd names and an odd file, and a csv that names some of them."""
    from PIL import Image

    for name in ("cat", "dog", "<b>[red]\x1b[31m"):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (9 + number, 7), (40 * number, 99, 9)).save(
                folder / name / f"{number}.png"
            )
    (folder / "dog" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    (folder.parent / "table.csv").write_text(
        "file,label\nphotos/cat/0.png,a\n../x,b\nphotos/dog/1.png,\n"
    )


class Sandboxes:
    """Folders for examples, each with a recipe, a finished run and an unfinished one."""

    def __init__(self, path: Path) -> None:
        import os

        self.path = path
        os.environ.update(AMATA_DATA=str(path / "data"), HOME=str(path))
        os.environ.update(dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"))
        write_digits(path / "data" / "mnist")
        model = self.path / "model"
        model.mkdir()
        (model / "toy.toml").write_text(TOY.replace("epochs = 3", "epochs = 1"))
        (model / "other.toml").write_text('extends = "toy.toml"\n[train]\nseed = 1\n')
        write_photos(model / "photos")
        ended = command("train", "toy.toml", "--out", "run", folder=model).wait()
        assert ended.code == 0, ended
        copy(model / "run", model / "half")
        (model / "half" / "summary.json").unlink()

    def run(self, target: str, example: Any) -> Outcome:
        folder = Path(tempfile.mkdtemp(dir=self.path)) / "a" / "b"
        folder.mkdir(parents=True)
        try:
            for source in (self.path / "model").iterdir():
                if source.is_file():
                    shutil.copy(source, folder)
                elif source.name in repr(example):
                    copy(source, folder / source.name)
            return TARGETS[target].run(folder, example).wait(10 * SECONDS)
        finally:
            shutil.rmtree(folder.parents[1], ignore_errors=True)


# ---- fuzzing


@dataclass
class Fuzzer:
    sandboxes: Sandboxes
    counts: Counter[str] = field(default_factory=Counter)
    """Examples by target, and findings by what is wrong."""
    found: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """The smallest example of each finding."""

    def try_(self, target: str, example: Any) -> str | None:
        ended = self.sandboxes.run(target, example)
        wrong = failure(target, example, ended)
        self.counts[target] += 1
        self.counts[f"{target} {ended.code}"] += wrong is None
        if wrong is not None:
            self.counts[wrong] += 1
            smallest = self.found.get(wrong)
            if smallest is None:
                print(f"found: {wrong}", flush=True)
            if smallest is None or len(repr(example)) < len(repr(smallest[1])):
                self.found[wrong] = (target, example)
        return wrong

    def explore(self, target: str, seed: int, examples: int, last: float) -> None:
        """Try examples, and shrink what is found for at most 30 seconds."""
        known, first_seen = set(self.found), dict[str, float]()

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            verbosity=Verbosity.quiet,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(TARGETS[target].examples())
        def search(example: Any) -> None:
            now = time.monotonic()
            if now > last or now > min(first_seen.values(), default=now) + 30:
                raise Over
            wrong = self.try_(target, example)
            if wrong is not None and wrong not in known:
                first_seen.setdefault(wrong, now)
                raise _kind(wrong)(wrong)

        expected = (Finding, ExceptionGroup, hypothesis.errors.HypothesisException, Over)
        with contextlib.suppress(*expected):  # findings are in self.found
            search()


class Finding(Exception):
    """Something that must not happen."""


class Over(BaseException):
    """The time is over; hypothesis does not catch it."""


@cache
def _kind(wrong: str) -> type[Finding]:
    """A class of its own for each finding: by it, hypothesis tells them apart."""
    return type("Finding", (Finding,), {"__doc__": wrong})


def fuzz(sandboxes: Sandboxes, seed: int, last: float, only: str | None) -> Fuzzer:
    """Take the targets in turn until the time is over."""
    fuzzer = Fuzzer(sandboxes)
    names = [only] if only else list(TARGETS)
    while time.monotonic() < last:
        fuzzer.explore(names[seed % len(names)], seed, 100, last)
        seed += 1
    return fuzzer


def fixed(sandboxes: Sandboxes, examples: int) -> Fuzzer:
    """The findings of the past, and a few examples of each target, always the same."""
    fuzzer = Fuzzer(sandboxes)
    for target, example in PAST:
        fuzzer.try_(target, example)
    for target in TARGETS if examples else ():
        fuzzer.explore(target, 0, examples, time.monotonic() + 600)
    return fuzzer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--fixed", action="store_true", help="the examples of `make test`")
    parser.add_argument("--past", action="store_true", help="the findings of the past alone")
    given_ = parser.parse_args(arguments)
    import_everything()
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="amata-fuzz-", dir=place) as folder:
        sandboxes = Sandboxes(Path(folder).resolve())
        if given_.fixed or given_.past:
            fuzzers = [fixed(sandboxes, 0 if given_.past else 8)]
        else:
            print(f"{given_.minutes:g} minutes with --seed {given_.seed}", flush=True)
            last = time.monotonic() + 60 * given_.minutes
            with ProcessPoolExecutor(given_.jobs, mp_context=get_context("fork")) as pool:
                seeds = [given_.seed + 1001 * job for job in range(given_.jobs)]
                works = [pool.submit(_work, folder, seed, last, given_.only) for seed in seeds]
                fuzzers = [work.result() for work in works]
    return report(fuzzers)


def _work(folder: str, seed: int, last: float, only: str | None) -> Fuzzer:
    sandboxes = Sandboxes.__new__(Sandboxes)
    sandboxes.path = Path(folder).resolve()
    return fuzz(sandboxes, seed, last, only)


def report(fuzzers: list[Fuzzer]) -> int:
    counts: Counter[str] = sum((fuzzer.counts for fuzzer in fuzzers), Counter())
    found: dict[str, tuple[str, Any]] = {}
    for fuzzer in fuzzers:
        for wrong, (target, example) in fuzzer.found.items():
            if wrong not in found or len(repr(example)) < len(repr(found[wrong][1])):
                found[wrong] = (target, example)
    for target in TARGETS:
        if counts[target]:
            findings = sum(t == target for t, _ in found.values())
            ends = [counts[f"{target} {code}"] for code in (0, 130, 2, 1)]
            print(
                f"{target:8} {counts[target]:6d} examples: {sum(ends[:2])} succeeded, "
                f"{sum(ends[2:])} refused, {findings} distinct findings"
            )
    for wrong, (target, example) in sorted(found.items()):
        print(f"\n{wrong} ({counts[wrong]} times)\n    {(target, example)!r}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
