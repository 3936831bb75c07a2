"""Hostile input for tests/fuzz.py: recipes, --set values, command lines and calls from Python.

Calls are source text, so that an example can be read, repeated and kept. New values go into the
pools, new arguments into KINDS.
"""

import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import tomli_w
from hypothesis import strategies as st

from tests.faults import TOY

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
    "clean", "fgsm", "pgd-2", "pgd-2-2@3", "pgd-0", "pgd-2@0", "cw-l2-2",
    "autoattack@1", "cw-pgd-1", "pgd-", "clean,,pgd-1", ",", "PGD-2",
]
# fmt: on


def mostly(usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Six of seven times the usual; `st.one_of` would weigh the parts of both alike."""
    return st.sampled_from([usual] * 6 + [other]).flatmap(lambda chosen: chosen)


@cache
def words() -> list[str]:
    """Names that the program knows."""
    from amata.data import DATASETS
    from amata.methods import METHODS
    from amata.models import MODELS
    from amata.schedules import SCHEDULES
    from amata.threat import BALLS

    choices = [
        "cpu",
        "cuda",
        "meta",
        "robustbench",
        "hf",
        "onnx",
        "criterion",
        "tpe",
        "gp",
        "seconds",
    ]
    # Not the built-in recipes: `bench` needs no data, and would time large networks for minutes.
    return [*DATASETS, *METHODS, *MODELS, *SCHEDULES, *BALLS, *choices]


@cache
def strings() -> st.SearchStrategy[str]:
    """Text that a command line can hold."""
    anything = st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8
    )
    pools = (TEXTS, PATHS, ATTACKS, words(), CODE, NUMBERS)
    return st.one_of(*map(st.sampled_from, pools), anything.map(lambda text: text.lstrip("/~")))


# ---- recipes

WHOLE = st.one_of(st.sampled_from([0, -1, 1, 2**31, 2**63, 10**20]), st.integers(-3, 300))
REAL = st.one_of(
    st.sampled_from(
        [0.0, -1.0, 1.0, 1e-320, 1e38, 1e308, float("nan"), float("inf"), "8/255", "1/0"]
    ),
    st.floats(0, 1),
    st.floats(),
)


@cache
def value(kind: str) -> st.SearchStrategy[Any]:
    """Values of a key, by what the reference of keys says of them; some are of another kind."""
    text = strings().map(lambda text: text.replace("\udcff", "\0"))
    table = st.dictionaries(
        st.sampled_from(["width", "depth", "name", "classes", "a b", ""]),
        st.one_of(WHOLE, text),
        max_size=2,
    )
    kinds = {
        "whole": WHOLE,
        "number": REAL,
        "list of pairs": st.lists(st.lists(WHOLE, min_size=2, max_size=2), max_size=3),
        "list of numbers": st.lists(REAL, max_size=3),
        "list of texts": st.lists(st.sampled_from(ATTACKS), max_size=3),
        "true": st.booleans(),
        "text": text,
        "table": table,
        '"': st.sampled_from(re.findall('"(.*?)"', kind) or ["bogus"]),
    }
    usual = next(strategy for start, strategy in kinds.items() if kind.startswith(start))
    return mostly(usual, st.one_of(*kinds.values(), st.dates()))


@cache
def changes() -> st.SearchStrategy[dict[str, Any]]:
    """Keys of a recipe with values; a key of a method or schedule comes with its name."""
    from amata.recipes import KEYED
    from amata.recipes.reference import sections

    found = [
        st.dictionaries(st.sampled_from(["bogus.key", "train", "train.x", "a"]), WHOLE, max_size=1)
    ]
    for section in sections():
        needed = {key.name: value(key.values) for key in section.keys if key.required}
        named: dict[str, Any] = {}
        if section.name is not None:
            named = {KEYED[section.table]: st.just(section.name)}
            named |= {key: st.just(PLAIN[key]) for key in needed}
        for key in section.keys:
            table = {**named, key.name: value(key.values)}
            found.append(
                st.fixed_dictionaries({f"{section.table}.{k}": v for k, v in table.items()})
            )
    both = st.tuples(st.one_of(found), st.one_of(found)).map(lambda pair: {**pair[0], **pair[1]})
    return mostly(both, st.one_of(found))


PLAIN = {
    "eps": 0.1,
    "steps": 2,
    "step_size": 0.1,
    "k_min": 1,
    "k_max": 3,
    "tau": 0.2,
    "stages": [[0, 1]],
}
"""Values of required keys."""


@cache
def recipe_files() -> st.SearchStrategy[str]:
    """The toy recipe with some keys changed, as TOML."""
    return changes().map(changed_recipe)


def changed_recipe(changes: dict[str, Any]) -> str:
    recipe: dict[str, Any] = tomllib.loads(TOY)
    for key, setting in changes.items():
        section, _, name = key.partition(".")
        if name in ("norm", "name") and section in ("threat", "method", "schedule"):
            recipe[section] = {}
        if not name or not isinstance(recipe.setdefault(section, {}), dict):
            recipe[section] = setting
        else:
            recipe[section][name] = setting
    return tomli_w.dumps(recipe)


@cache
def settings() -> st.SearchStrategy[list[str]]:
    """The values of some --set options."""
    pairs = changes().map(
        lambda found: [f"{key}={_inline(setting)}" for key, setting in found.items()]
    )
    raw = st.tuples(st.sampled_from(["optim.lr", "train.epochs", "model.name", "x"]), strings())
    return mostly(pairs, st.one_of(raw.map(lambda pair: ["=".join(pair)]), st.lists(strings())))


def _inline(setting: Any) -> str:
    """A value on one line of TOML."""
    if isinstance(setting, dict):
        return "{" + ", ".join(f"{_inline(k)} = {_inline(v)}" for k, v in setting.items()) + "}"
    if isinstance(setting, list):
        return "[" + ", ".join(map(_inline, setting)) + "]"
    return tomli_w.dumps({"v": setting})[4:-1]


# ---- command lines


def command_lines() -> st.SearchStrategy[list[str]]:
    """A command with any of its options, each with any value."""
    slow = "convergence"  # ten seconds, with any options
    return st.sampled_from(sorted(commands().keys() - {slow})).flatmap(_line)


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
    """A command whose required parameters are usual, but for up to two."""
    parameters = {p.name: p for p in commands()[name]}
    if not parameters:
        return st.just(name.split())
    chosen = st.lists(st.sampled_from(sorted(parameters)), max_size=2, unique=True)

    def line(odd: list[str]) -> st.SearchStrategy[list[str]]:
        parts: list[st.SearchStrategy[list[str]]] = [st.just(name.split())]
        for key, p in parameters.items():
            if not (key in odd or p.required or key in ALWAYS):
                continue
            flag = [] if p.param_type_name == "argument" else [p.opts[-1]]
            if getattr(p, "is_flag", False):
                parts.append(st.just(flag))
            elif key in odd:
                parts.append(st.tuples(*map(st.just, flag), _hostile(key)).map(list))
            else:
                parts.append(st.just([*flag, PARAMETERS.get(key, ["1"])[0]]))
        return st.tuples(*parts).map(lambda lists: [text for part in lists for text in part])

    return chosen.flatmap(line)


PARAMETERS = {
    "out": PLACES,
    "recipe": ["toy.toml", "other.toml", "mnist5k-amata", "run/recipe.toml", "run"],
    "recipes": ["toy.toml", "other.toml"],
    "targets": ["run", "toy.toml", "half"],
    "attacks": ATTACKS,
    "model": ["run", "run/model.safetensors", "half", "run/recipe.toml"],
    "run": ["run", "half", "."],
    "resume": ["half", "run", "toy.toml"],
    "folders": ["run", "half", "."],
    "set_": ["train.epochs=1", "data.root=nosuch", "train.device=meta", "optim.lr=1e308", "="],
    "seconds": ["0.01", "-1", "nan", "1e308"],
    "variants": ["plain", "bogus", "plain,,"],
    "parts": ["10", "1000000000000"],
    "grid": ["2", "100000000"],
    "batch": ["2", "1000000000000", "2,,2"],
    "budget": ["0.5", "1e308", "nan", "-1"],
    "to": ["hf", "robustbench", "onnx"],
    "name": ["mnist", "toy", "a/b", "../x", "[/x]"],
    "epochs": ["1", "1,2", "0", "9" * 5000],
    "root": PATHS,
    "device": ["cpu", "cuda", "meta", "cpu:7"],
    "folder": ["photos", "table.csv", "run", "photos/cat/0.png", *PATHS],
    "images": ["photos/cat/0.png", "photos", "table.csv", "toy.toml", *PATHS],
    "log": ["wandb", "mlflow", "../x", "a b"],
    "top": ["2", "0", "1" + "0" * 20],
}
"""Values of parameters by name, the usual one first."""


@cache
def _hostile(key: str) -> st.SearchStrategy[str]:
    numbers = st.sampled_from(NUMBERS)
    return st.one_of(st.sampled_from(PARAMETERS.get(key, NUMBERS)), numbers, strings())


# ---- calls from Python

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
LOOPS = ["2", "0", "-1", "nan", "1.5", "'3'", "None", "True", "{}"]  # more steps do take longer
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
    "steps": LOOPS,
    "restarts": LOOPS,
    "search_steps": LOOPS,
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
    "ATTA", "AWP", "DAT", "ERM", "FAT", "FGSMPGI", "Fast", "Free", "MART", "NFGSM", "NuAT", "PGD",
    "TRADES", "YOPO",
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
ALWAYS = {
    "progress",
    "device",
    "method",
    "schedule",
    "epochs",
    "limit",
    "steps",
    "repeats",
    "parts",
    "seconds",
    "grid",
}
"""Arguments that are given although they have a default."""
OTHER = {
    "attacks.autoattack": {"x": "x()[:1]", "y": "y()[:1]"},
    "evaluate": {"progress": "False"},
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
    if KINDS.get(key) is LOOPS:
        return st.sampled_from(LOOPS)
    if key not in KINDS:
        return st.sampled_from(ODD_NUMBERS) if lenient else _odd()
    return (
        st.sampled_from(KINDS[key]) if lenient else st.one_of(st.sampled_from(KINDS[key]), _odd())
    )


@cache
def _odd() -> st.SearchStrategy[str]:
    return st.sampled_from(ODD)
