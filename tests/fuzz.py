"""A fuzzer: hostile recipes, --set values, command lines and Python calls succeed, or fail with one
line.

    python -m tests.fuzz --minutes 10 --seed 1         all targets, on two processes
    python -m tests.fuzz --only python --minutes 1     one target

Each example runs in a forked child with a limit on memory and processor time, and stops at its
first training batch or attack. It must end with exit status 0, or with 1, 2 or 130 and one line on
stderr that starts with "error:"; a call from Python must return, or raise AmataError with one line.
Anything else is a finding: a traceback, a hang, too much memory, a number that cannot be. Add it to
PAST.
"""

import argparse
import contextlib
import inspect
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import hypothesis
import tomli_w
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis import strategies as st

from tests.faults import PROGRESS, TOY, copy, write_digits
from tests.forked import Child, Outcome, command, import_everything

SECONDS, MEMORY = 10, 3 * 2**30
"""What one example may use: processor seconds, and bytes besides those of its parent."""

# ---- values

# fmt: off
NUMBERS = [
    "0", "-1", "1", "2", "3.5", "-0.0", "1e-320", "1e38", "1e308", "nan", "inf", "-inf",
    str(2**31), str(2**63), "1" + "0" * 20, "1" + "0" * 400, "9" * 5000,
]
TEXTS = [
    "", " ", "bogus", "None", "true", "8/255", "1/0", "1e999", "0x10", "a b", "é☃", "x" * 300,
    "\x1b[31mred", "a\nb", "[/red]", "[bold]", "$x$", "=1+1", "<b>", "%s", "{0}", "\udcff",
]
PATHS = [
    ".", "..", "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "toy.toml", "run", "~",
    "run/recipe.toml", "run/model.safetensors", "run/metrics.jsonl", "out", "a/b/c", "nosuch/",
]
PLACES = [
    "out", "a/b", "run", "run/new", "toy.toml", "toy.toml/x", "/dev/null/x", ".", "",
    "x" * 300, "[/y]z", "a\x1b[31m", "a\nb", "\udcff", "$x", "~/x", "-", "--", "é",
]
CODE = [
    "os:getcwd", "math:pi", "torch.nn:Identity", "torch.nn:Module", "nosuch:x", ":", "a:b:c",
]
# fmt: on
"""Names of models: none of these does any harm."""
# fmt: off
ATTACKS = [
    "clean", "fgsm", "pgd-2", "pgd-2-2@3", "pgd-0", "pgd-99999999999", "pgd-2@0", "cw-l2-2",
    "autoattack@1", "cw-pgd-1", "pgd-", "clean,,pgd-1", ",", "PGD-2",
]
# fmt: on


@cache
def words() -> list[str]:
    """Names that the program knows."""
    from amata.data import DATASETS
    from amata.methods import METHODS
    from amata.models import MODELS
    from amata.recipes import built_in
    from amata.schedules import SCHEDULES
    from amata.threat import BALLS

    choices = [
        "crop-flip",
        "rollback",
        "one-cycle",
        "cosine",
        "sgd",
        "muon",
        "adamw",
        "bf16",
        "fast",
    ]
    choices += [
        "cpu",
        "cuda",
        "meta",
        "train",
        "robustbench",
        "hf",
        "onnx",
        "criterion",
        "tpe",
        "gp",
    ]
    known = [*DATASETS, *METHODS, *MODELS, *SCHEDULES, *BALLS, *choices]
    return [*known, *(name for name in built_in() if not name.startswith("mnist5k"))]


@cache
def strings() -> st.SearchStrategy[str]:
    """Text that a command line can hold."""
    anything = st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8
    )
    pools = (TEXTS, PATHS, ATTACKS, words(), CODE, NUMBERS)
    return st.one_of(*map(st.sampled_from, pools), anything.map(lambda text: text.lstrip("/~")))


@cache
def tables() -> st.SearchStrategy[Any]:
    """Anything that a value of a TOML file can be."""
    numbers = [n for n in NUMBERS if len(n) < 30]
    scalars = st.one_of(
        st.sampled_from(numbers).map(lambda n: float(n) if re.search("[.nfe]", n) else int(n)),
        st.integers(-3, 300),
        st.floats(),
        st.booleans(),
        strings().map(lambda text: text.replace("\udcff", "\0")),
        st.dates(),
    )
    return st.one_of(scalars, nested(scalars))


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(inner, inner).map(list), max_size=3)
    keys = st.sampled_from(["width", "depth", "name", "classes", "a b", ""])
    return st.one_of(st.lists(inner, max_size=3), pairs, st.dictionaries(keys, inner, max_size=2))


@cache
def keys() -> list[str]:
    from amata.recipes.reference import sections

    known = {f"{s.table}.{key.name}" for s in sections() for key in s.keys}
    names = {"threat.norm", "method.name", "schedule.name"}
    return sorted(
        known | names | {"train", "bogus.key", "train.bogus", "a", "", "model.args.width"}
    )


# ---- examples


def recipe_files() -> st.SearchStrategy[str]:
    """The toy recipe with some keys changed, as TOML."""
    change = st.tuples(st.sampled_from(keys()), tables())
    return st.lists(change, min_size=1, max_size=3).map(_toml)


def _toml(changes: list[tuple[str, Any]]) -> str:
    import tomllib

    recipe: dict[str, Any] = tomllib.loads(TOY)
    for key, value in changes:
        section, _, rest = key.partition(".")
        if not rest or not isinstance(recipe.setdefault(section, {}), dict):
            recipe[section] = value
            continue
        recipe[section][rest] = value
    return tomli_w.dumps(recipe)


def settings() -> st.SearchStrategy[list[str]]:
    """The values of some --set options."""
    values = st.one_of(strings(), tables().map(lambda value: tomli_w.dumps({"v": value})[4:-1]))
    pairs = st.tuples(st.sampled_from(keys()), values).map(lambda pair: f"{pair[0]}={pair[1]}")
    return st.lists(st.one_of(pairs, pairs, pairs, strings()), min_size=1, max_size=3)


def command_lines() -> st.SearchStrategy[list[str]]:
    """A command with any of its options, each with any value."""
    return st.sampled_from(sorted(commands())).flatmap(_line)


@cache
def commands() -> dict[str, list[Any]]:
    """The parameters of each command, from the Typer app itself."""
    import typer

    from amata.cli import app

    def walk(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
        for name, sub in group.commands.items():
            yield " ".join((*path, name)), list(sub.params)
            if hasattr(sub, "commands"):
                yield from walk(sub, (*path, name))

    return dict(walk(typer.main.get_command(app), ()))


@cache
def _line(name: str) -> st.SearchStrategy[list[str]]:
    parts: list[st.SearchStrategy[list[str]]] = [st.just(name.split())]
    for p in commands()[name]:
        value = _values(p.name)
        if p.param_type_name == "argument":
            most = 2 if p.nargs == -1 else 1
            parts.append(st.lists(value, min_size=1 if p.required else 0, max_size=most))
            continue
        one = st.just([p.opts[-1]])
        if not getattr(p, "is_flag", False):
            one = st.tuples(one, value).map(lambda pair: [*pair[0], pair[1]])
        # with most of the required options most of the time, or nothing else is ever tried
        parts.append(
            st.one_of(one, one, one, st.just([])) if p.required else st.one_of(st.just([]), one)
        )
    return st.tuples(*parts).map(lambda lists: [text for part in lists for text in part])


@cache
def _values(name: str) -> st.SearchStrategy[str]:
    """Values of a parameter: mostly of its kind."""
    kinds = {
        "out": PLACES,
        "recipe": ["toy.toml", "other.toml", "mnist5k-amata"],
        "recipes": ["toy.toml", "other.toml"],
        "targets": ["run", "toy.toml"],
        "attacks": ATTACKS,
        "model": ["run", "run/model.safetensors", "run/last.safetensors"],
        "run": ["run"],
        "resume": ["run", "half"],
        "folders": ["run"],
        "set_": ["data.name=mnist", "train.epochs=1", "train.device=cpu", "data.root=nosuch"],
        "seconds": ["0.01"],
        "repeats": ["1"],
        "to": ["hf", "robustbench", "onnx"],
    }
    known = kinds.get(name, ["1", "2", "0.5", "1,2", "2,0.1", "mnist"])
    return st.one_of(st.sampled_from(known), st.sampled_from(known), strings())


# fmt: off
IMAGES = [
    "x()", "x()[:0]", "x()[:1]", "x()[0]", "x().flatten(1)", "x().flatten()", "x()[None]",
    "x().long()", "x().half()", "x().bfloat16()", "x().double()", "x().cfloat()", "x() > 0.5",
    "x() * 255", "x() - 1", "x() * nan", "x() / 0", "x().numpy()", "x().tolist()", "x() * 0",
    "x().to('meta')", "x().to_sparse()", "x().requires_grad_()", "inference(x)", "x()[:, :0]",
    "x().expand(8, 3, 6, 6)", "x()[..., :3]", "x().transpose(2, 3)", "x()[:3]", "None", "'x'",
]
LABELS = [
    "y()", "y()[:0]", "y()[:3]", "y() + 100", "y() - 9", "y().float()", "y().int()", "y() > 0",
    "y()[:, None]", "y().numpy()", "y().tolist()", "y() * 2**40", "y().to('meta')", "None",
    "inference(y)", "torch.nn.functional.one_hot(y(), 4)",
]
MODELS = [
    "net()", "net().eval()", "net().double()", "net().half()", "net().to('meta')",
    "nn.Identity()", "nn.Flatten()", "frozen(net())", "lambda x: x", "None", "net",
    "gives(nan)", "gives(inf)", "gives(0)", "gives_many()", "nn.Sequential()",
    "nn.Linear(36, 4)", "small(2)", "small(1)",
]
DATA = [
    "(x(), y())", "[(x(), y())]", "[(x(), y()), (x(), y())]", "[]", "iter([(x(), y())])",
    "x()", "DataLoader(pairs(), 4)", "pairs()", "(x().numpy(), y().numpy())",
    "[(x(), y(), y())]", "{}", "[(x(),)]", "[(x(), y()), (x() * 9, y())]", "[x()]", "range(3)",
    "'ab'", "(x(), y(), x())", "DataLoader(pairs(), 4, drop_last=True)", "(y(), x())", "3",
    "([], [])", "stream()",
]
BALLS = [
    "amata.Linf(0.1)", "amata.L2(0.5)", "amata.Linf('8/255')", "amata.Linf", "'linf'", "0.1",
]
SCHEDULES = [
    "amata.Constant(steps=1, step_size=0.1)", "amata.Linear(k_min=1, k_max=2, tau=0.1)",
    "amata.Adaptive(k_max=2, tau=0.1, gamma=0.1)", "lambda t, T: (1, 0.1)", "lambda t, T: 3",
    "lambda t, T: (nan, -1)", "lambda t, T: ('a', None)", "lambda: 0", "(1, 0.1)", "print",
    "lambda t, T: (10**9, 0.1)[0:0]", "lambda t, T: (1.5, '1/255')",
]
ODD = [
    "None", "nan", "inf", "-inf", "0", "-1", "1", "2", "0.5", "1.5", "10**20", "10**400",
    "1e308", "1e-320", "''", "'bogus'", "'2/255'", "'1/0'", "'nan'", "True", "[]", "()", "{}",
    "[1]", "(0, 0)", "[[0, 0]]", "((0, -1),)", "((5, 1), (0, 2))", "object()", "b'x'", "1j",
    "'\\x1b[31m\\n'", "print", "torch.tensor(1.0)", "torch.zeros(2)", "np.float32(1)",
    "np.int64(2)", "Fraction(1, 3)", "'\\0'",
]
# fmt: on
ODD_NUMBERS = ODD[:14]
KINDS: dict[str, list[str]] = {
    "model": MODELS,
    "x": IMAGES,
    "start": IMAGES,
    "y": LABELS,
    "targets": LABELS,
    "train": DATA,
    "valid": ["None", *DATA],
    "data": DATA,
    "ball": BALLS,
    "schedule": SCHEDULES,
    "u": ["amata.Control(1, 0.1)", "amata.Control(0, 0.1)", "amata.Control(-1, nan)", "(1, 0.1)"],
    "z": ["None", "amata.Control(1, 0.1)", "amata.Control(-1, nan)"],
    "batches": ["[batch()]", "[]", "[batch(), batch()]", "batch()", "[(x(), y())]"],
    "attacks": ["['clean', 'pgd-1']", "'clean,fgsm'", "[]", "'pgd-0'", "[1]", "['cw-l2-1']", "''"],
    "text": [repr(name) for name in ATTACKS],
    "valid_attack": [repr(name) for name in ATTACKS],
    "progress": ["stop()", "False", "True", "lambda *_: None", "lambda: 0"],
    "recipe": ["'toy.toml'", "'nosuch'", "amata.recipes.load('toy.toml')", "Path('toy.toml')"],
    "name_or_path": ["'toy.toml'", "'nosuch'", "'.'", "Path('run')", "'run/recipe.toml'"],
    "overrides": ["['train.epochs=2']", "'train.epochs=2'", "[1]", "['=']", "['a.b.c=1']"],
    "run": ["'new'", "'run'", "'toy.toml/x'", "'.'", "Path('a/b')", "'a\\nb'"],
    "resume": ["'run'", "'nosuch'", "'.'"],
    "device": ["'cpu'", "'auto'", "'cuda'", "'meta'", "torch.device('cpu')", "'cuda:99'"],
    "generator": ["None", "torch.Generator()", "rng", "3"],
    "loss": ["amata.losses.ce", "amata.losses.margin", "lambda z, y: z.sum()", "lambda z, y: 1"],
    "memory": ["None", "{}", "{'noise': x()}"],
    "name": [
        "'tinycnn'",
        "'small-cnn'",
        "'resnet18'",
        "'torch.nn:Identity'",
        "'mnist'",
        "'timm/x'",
    ],
    "args": ["None", "{}", "{'width': 2}", "{'width': -1}", "{'width': 10**6}", "{'bogus': 1}"],
    "mean": ["None", "[0.5]", "[0.1, 0.2]", "[nan]", "0.5"],
    "std": ["None", "[0.5]", "[0]", "[-1, 1]", "[1e-320]"],
    "in_channels": ["1", "3", "0"],
    "classes": ["4", "10", "1", "0"],
    "root": ["None", "'nosuch'", "Path('.')"],
    "to": ["'hf'", "'robustbench'", "'onnx'", "'x'"],
    "out": ["'new'", "'run'", "'toy.toml/x'"],
    "epoch": ["0", "1", "3"],
    "epochs": ["1", "3"],
}
"""Expressions for arguments, by name: usual ones first."""
USUAL = {
    "steps": "2",
    "step_size": "0.1",
    "k_min": "1",
    "k_max": "3",
    "tau": "0.2",
    "stages": "((0, 1), (1, 2))",
    "eps": "0.1",
    "method": "amata.PGD(ball=amata.Linf(0.1))",
    "optim": "amata.SGD(lr=0.1)",
    "seed": "0",
    "batch_size": "4",
    "limit": "4",
    "smoothing": "0.1",
    "cost": "None",
    "space": "None",
    "net": "None",
    "keys": "1",
}
# fmt: off
METHODS = (
    "ATTA", "DAT", "ERM", "FAT", "Fast", "Free", "NFGSM", "PGD", "TRADES", "YOPO",
)
OPTIMISERS = (
    "SGD", "AdamW", "Muon",
)
FUNCTIONS = (
    "fit", "evaluate", "criterion", "Linf", "L2", "attacks.pgd", "attacks.fgsm",
    "attacks.cw_pgd", "attacks.cw_l2", "attacks.autoattack", "attacks.parse_attack",
    "models.build", "recipes.load", "data.load", "data.Arrays", "losses.smooth_ce",
)
CURVES = (
    "Adaptive", "Constant", "Exponential", "Linear", "Piecewise",
)
# fmt: on
ALWAYS = {"progress", "device", "method", "schedule", "epochs", "limit", "steps"}
"""Arguments that are given although they have a default."""
OTHER = {
    "attacks.autoattack": {"x": "x()[:1]", "y": "y()[:1]"},
    "evaluate": {"progress": "None"},
}
"""Usual arguments of single functions."""
LENIENT = ("criterion",)
"""Functions for research: what is not of the right type may be a TypeError."""


def python_calls() -> st.SearchStrategy[str]:
    """A call of the Python API, as source text."""
    names = (*FUNCTIONS, *FUNCTIONS[:6], *METHODS, *OPTIMISERS)
    curves = st.sampled_from(CURVES).flatmap(_curve)
    return st.one_of(st.sampled_from(names).flatmap(_call), curves)


@cache
def _curve(name: str) -> st.SearchStrategy[str]:
    """A schedule that is asked for its control in an epoch."""
    at = st.tuples(*(st.one_of(st.sampled_from(KINDS[k]), _odd()) for k in ("epoch", "epochs")))
    asked = at.map(lambda pair: f"({pair[0]}, {pair[1]})")
    return st.tuples(_call(name), st.just("") if name == "Adaptive" else asked).map("".join)


@cache
def _call(name: str) -> st.SearchStrategy[str]:
    import amata

    called: Any = amata
    for part in name.split("."):
        called = getattr(called, part)
    arguments: dict[str, st.SearchStrategy[str | None]] = {}
    for key, parameter in inspect.signature(called).parameters.items():
        usual = OTHER.get(name, {}).get(key) or USUAL.get(key) or (KINDS.get(key) or ["None"])[0]
        needed = parameter.default is inspect.Parameter.empty or key in ALWAYS
        arguments[key] = st.just(usual if needed else None)
    odd = {key: _argument(key, name in LENIENT) for key in arguments}
    changes = st.lists(st.sampled_from(sorted(odd)), min_size=1, max_size=2, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({key: odd[key] for key in chosen})
    )
    return st.tuples(st.fixed_dictionaries(arguments), changes).map(
        lambda pair: f"amata.{name}({_keywords({**pair[0], **pair[1]})})"
    )


def _keywords(given_: dict[str, str | None]) -> str:
    return ", ".join(f"{key}={value}" for key, value in given_.items() if value is not None)


@cache
def _argument(key: str, lenient: bool) -> st.SearchStrategy[str]:
    if key == "method":
        return st.one_of(st.sampled_from(METHODS).flatmap(_call), _odd())
    if key == "optim":
        return st.one_of(st.sampled_from(OPTIMISERS).flatmap(_call), _odd())
    if key == "schedule":
        curves = st.sampled_from(CURVES).flatmap(_call)
        return st.one_of(st.sampled_from(SCHEDULES), curves, _odd())
    if key not in KINDS:
        return st.sampled_from(ODD_NUMBERS) if lenient else _odd()
    return (
        st.sampled_from(KINDS[key]) if lenient else st.one_of(st.sampled_from(KINDS[key]), _odd())
    )


@cache
def _odd() -> st.SearchStrategy[str]:
    return st.sampled_from(ODD)


# ---- running an example


def limits() -> None:
    """In a child: at most so much memory and time, and no training beyond its first batch."""
    import faulthandler

    from amata.console import ConsoleReporter

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
    from amata.errors import AmataError

    names = scene()
    try:
        check_value(eval(source, names), source)
    except AmataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except names["Stop"]:
        pass


def check_value(value: Any, source: str) -> None:
    """Refuse results that cannot be: controls, accuracies and adversarial images out of range."""
    import torch

    import amata
    from amata.evaluation.accuracy import Result

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

PAST: list[tuple[str, Any]] = []
"""Findings of the past: the target and the example."""


def failure(target: str, example: Any, ended: Outcome) -> str | None:
    """What is wrong with the end of an example, as a text by which findings are told apart."""
    if ended.hung or ended.code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"hangs {_last_frame(ended.err)}"
    if ended.code < 0:
        return f"dies of signal {-ended.code} {_last_frame(ended.err)}"
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
    if len(lines) != 1 or not lines[0].startswith("error:"):
        stray = next((line for line in lines if not line.startswith("error:")), "no error line")
        return f"not one line: {re.sub(r'[0-9/]+', '#', stray)[:60]}"
    if not lines[0].isprintable():
        return "control characters in an error"
    return None


def _last_frame(text: str) -> str:
    """The last line of src/amata in a traceback."""
    frames = re.findall(r'src/(amata/[^"]*)", line (\d+)', text)
    newest = 0 if "most recent call first" in text else -1
    return ":".join(frames[newest]) if frames else ""


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
            return TARGETS[target].run(folder, example).wait(6 * SECONDS)
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
        wrong = failure(target, example, self.sandboxes.run(target, example))
        self.counts[target] += 1
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


def fixed(sandboxes: Sandboxes, examples: int = 12) -> Fuzzer:
    """The findings of the past, and a few examples of each target, always the same."""
    fuzzer = Fuzzer(sandboxes)
    for target, example in PAST:
        fuzzer.try_(target, example)
    for target in TARGETS:
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
            fuzzers = [fixed(sandboxes, 0 if given_.past else 12)]
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
            print(f"{target:8} {counts[target]:6d} examples, {findings} distinct findings")
    for wrong, (target, example) in sorted(found.items()):
        print(f"\n{wrong} ({counts[wrong]} times)\n    {(target, example)!r}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
