"""A stranger's files run no code, write nowhere else, and say what they read."""

import ast
import json
import re
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from amata import models, recipes
from amata.checksums import of_text
from amata.errors import InputError
from amata.export import Trained, export
from amata.export.card import card
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import save_tensors
from amata.runs.records import Environment
from amata.studies.compare import compare_runs
from amata.studies.criterion import CriterionSettings, measure_strategies
from amata.studies.landscape import run_landscapes
from amata.studies.plan import find_runs
from amata.studies.runs import train_or_resume
from amata.tensors import read_tensors
from amata.training import load, trust
from amata.training.experiment import resume
from amata.training.loaded import load_trained
from tests.conftest import Called
from tests.toy import Notes

Amata = Callable[..., Called]
OWN = "own_net_for_trust"
EVIL = "evil_net_for_trust"
SETS = [
    "data.resize=16",
    "data.crop=12",
    "data.workers=0",
    "data.batch_size=8",
    "data.valid=2",
    "schedule.steps=1",
    "train.epochs=1",
    "train.device=cpu",
    "train.keep_epochs=true",
    "train.tensorboard=false",
    "train.valid_attack=fgsm",
    'eval.attacks=["clean"]',
    "eval.limit=4",
    "model.args={}",
]


def write_module(folder: Path, name: str, marker: Path | None = None) -> Path:
    """A module with a network; importing it leaves the marker."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n" if marker else ""
    (folder / f"{name}.py").write_text(f"{mark}from tests.conftest import flat_net as make\n")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: data, a network, and a finished run of it."""
    from amata.cli import main
    from tests.test_data import write_folder

    home = tmp_path_factory.mktemp("home")
    write_folder(home / "data", parts=("",), per_class=10)
    write_module(home, OWN)
    sets = [*SETS, f"model.name={OWN}:make", f"data.root={home / 'data'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr(sys, "path", sys.path[:])
        with pytest.raises(SystemExit) as exit_:
            main(["train", "caltech256-pgd20", *[f"--set={s}" for s in sets], "--out", "run"])
    assert not exit_.value.code
    return home


@pytest.fixture
def fresh(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a new process, started in the user's folder."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(home))])
    for name in (OWN, EVIL, "timm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(trust, "_given", set(), raising=False)
    monkeypatch.chdir(home)
    yield monkeypatch
    for name in (OWN, EVIL, "timm"):
        sys.modules.pop(name, None)


def changed(run: Path, copy: Path, old: str, new: str) -> Path:
    """A copy of a run folder with another text in its recipe."""
    shutil.copytree(run, copy)
    change(copy / "recipe.toml", old, new)
    return copy


def change(file: Path, old: str, new: str) -> None:
    """Another text in a recipe, with the checksum that fits it."""
    text = file.read_text()
    assert old in text
    content = text.replace(old, new).rpartition("# sha256 ")[0]
    file.write_text(f"{content}# sha256 {of_text(content)}\n")


@pytest.fixture
def hostile(home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """A run folder of a stranger, opened where its module lies, and the marker of the module."""
    run, marker = tmp_path / "stranger", tmp_path / "marker"
    changed(home / "run", run, f'"{OWN}:make"', f'"{EVIL}:make"')
    fresh.chdir(write_module(run, EVIL, marker))
    return run, marker


COMMANDS: dict[str, list[str]] = {
    "eval": ["eval", "RUN"],
    "eval the weights": ["eval", "WEIGHTS", "--set=eval.limit=2"],
    "predict": ["predict", "RUN", "IMAGE", "--robust"],
    "export": ["export", "RUN", "--to", "onnx", "--out", "OUT"],
    "landscape": ["landscape", "RUN", "--out", "OUT", "--grid", "3", "--image", "0"],
    "criterion": ["criterion", "RUN", "--batches", "1", "--alphas", "1", "--out", "OUT"],
    "train --resume": ["train", "--resume", "RUN"],
}


def unfinish(run: Path) -> None:
    """Take the run back to its start."""
    (run / "summary.json").unlink()
    for file in (run / "checkpoints").iterdir():
        file.unlink()


def command(name: str, run: Path, out: Path) -> list[str]:
    if name == "train --resume":
        unfinish(run)
    if name == "eval the weights":
        tables = recipes.parse(recipes.read_toml((run / "recipe.toml").read_text(), "x"), "x")
        save_tensors(
            run / "w.safetensors",
            read_tensors(run / "model.safetensors"),
            {"recipe": "stranger", "tables": tables.tables},
        )
    image = out.with_name("image.png")
    if name == "predict":
        Image.new("RGB", (12, 12)).save(image)
    words = {
        "RUN": str(run),
        "IMAGE": str(image),
        "WEIGHTS": str(run / "w.safetensors"),
        "OUT": str(out),
    }
    return [words.get(word, word) for word in COMMANDS[name]]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_strangers_run_folder_runs_no_code(
    name: str, hostile: tuple[Path, Path], tmp_path: Path, amata: Amata
) -> None:
    run, marker = hostile
    arguments = command(name, run, tmp_path / "out")
    called = amata(*arguments)
    assert not marker.exists()
    assert called.code == 2
    (line,) = called.err.splitlines()
    source = run / ("w.safetensors" if name == "eval the weights" else "recipe.toml")
    assert line == (
        f"error: {source} would run code: model.name = '{EVIL}:make', from "
        f"{run / f'{EVIL}.py'}; add --trust (in Python, trust=True) if you know where it comes from"
    )


QUICK = [name for name in COMMANDS if name not in ("export", "landscape")]


@pytest.mark.parametrize("name", QUICK)
def test_trust_allows_it(
    name: str, hostile: tuple[Path, Path], tmp_path: Path, amata: Amata
) -> None:
    run, marker = hostile
    called = amata(*command(name, run, tmp_path / "out"), "--trust")
    assert called.code == 0, called.err
    assert marker.exists()


def test_trust_at_a_resume_is_remembered_and_elsewhere_is_not(
    hostile: tuple[Path, Path], fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    run, _ = hostile
    fresh.setenv("AMATA_STATE", str(tmp_path / "state"))
    assert amata("eval", run, "--trust").code == 0
    assert amata("eval", run).code == 2
    unfinish(run)
    assert amata("train", "--resume", run, "--trust").code == 0
    (kept,) = (tmp_path / "state" / "trusted").iterdir()
    assert json.loads(kept.read_text())["code"] == f"{EVIL}:make"
    fresh.setattr(trust, "_given", set())
    assert amata("eval", run).code == 0
    kept.unlink()
    assert amata("eval", run).code == 2


def test_a_state_folder_that_cannot_be_read_remembers_nothing(
    home: Path, fresh: pytest.MonkeyPatch, amata: Amata
) -> None:
    fresh.setenv("AMATA_STATE", "/tmp/" + "x" * 300)
    called = amata("eval", home / "run")
    assert (called.code, "would run code" in called.err) == (2, True), called.err
    assert amata("eval", home / "run", "--trust").code == 0


def test_a_module_that_is_not_found_has_a_way_out(
    home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    fresh.chdir(tmp_path)
    called = amata("eval", home / "run")
    assert called.code == 2
    assert "no such module; run the command where its file is, or set PYTHONPATH" in called.err


def test_functions_refuse_it_as_commands_do(hostile: tuple[Path, Path], tmp_path: Path) -> None:
    run, marker = hostile
    recipe = RunFolder.open(run)[1]
    images = torch.rand(2, 3, 12, 12)
    calls: list[Callable[[], Any]] = [
        lambda: load_trained(run),
        lambda: load(run),
        lambda: export(run, "onnx", tmp_path / "out"),
        lambda: run_landscapes(run, []),
        lambda: measure_strategies([RunFolder(run)], CriterionSettings(), tmp_path, Reporter()),
        lambda: models.build(recipe.model.name, in_channels=3, classes=len(images)),
    ]
    for call in calls:
        with pytest.raises(InputError, match="trust=True"):
            call()
    (run / "summary.json").unlink()
    with pytest.raises(InputError, match="trust=True"):
        resume(run)
    assert not marker.exists()


@pytest.mark.parametrize("name", QUICK)
def test_a_run_of_ones_own_needs_no_trust(
    name: str, home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    run = shutil.copytree(home / "run", tmp_path / "moved")
    called = amata(*command(name, run, tmp_path / "out"))
    assert called.code == 0, called.err


def test_nor_do_its_exports_landscapes_and_weights(home: Path, fresh: pytest.MonkeyPatch) -> None:
    assert run_landscapes(home / "run", [1], image=0, size=2, steps=(2,))[0]["landscapes"]
    assert Trained.of(home / "run").name == "caltech256-pgd20"
    for weights in ("model", "last"):
        load_trained(home / "run" / f"{weights}.safetensors", (f"data.root={home / 'data'}",))


def test_trust_is_bound_to_the_recipe_and_to_the_place_of_its_code(
    home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    assert amata("eval", "run").code == 0
    other = changed(home / "run", tmp_path / "other", "seed = 0", "seed = 1")
    assert "would run code" in amata("eval", other).err
    # The same recipe, beside a module of the same name.
    copied, marker = shutil.copytree(home / "run", tmp_path / "copied"), tmp_path / "marker"
    fresh.delitem(sys.modules, OWN)
    fresh.setattr(sys, "path", [*sys.path, str(home)])
    fresh.chdir(write_module(copied, OWN, marker))
    called = amata("eval", copied)
    assert f"would run code: model.name = '{OWN}:make', from {copied / OWN}.py" in called.err
    assert not marker.exists()
    # Where that folder is not the working directory, the user's own module is found.
    fresh.chdir(tmp_path)
    assert amata("eval", copied).code == 0


def test_a_file_in_the_working_directory_shadows_nothing(
    home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    fresh.setattr(sys, "path", [*sys.path, str(home)])
    fresh.chdir(tmp_path)
    assert amata("eval", home / "run").code == 0
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        ([f"model.name={OWN}:make"], 0),
        ([f"model.name={OWN}:make", "model.args={side=12}"], 0),
        ([f"model.name={EVIL}:make", "model.args.side=12"], 0),
        (["model.args={side=12}"], 2),
        (["train.device=cpu"], 2),
    ],
)
def test_a_name_on_the_command_line_is_the_users_own(
    sets: list[str], code: int, hostile: tuple[Path, Path], home: Path, amata: Amata
) -> None:
    run, _ = hostile
    sys.path.append(str(home))  # `fresh` restores it
    assert amata("eval", run, *[f"--set={s}" for s in sets]).code == code


def test_a_strangers_arguments_are_not_the_users_own(
    hostile: tuple[Path, Path], home: Path, amata: Amata
) -> None:
    run, marker = hostile
    change(run / "recipe.toml", "[model.args]", "[model.args]\nside = 12")
    called = amata("eval", run, f"--set=model.name={EVIL}:make")
    assert "with model.args = {'side': 12}" in called.err
    assert not marker.exists()


def test_a_weights_file_runs_no_command(
    home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    marker, file = tmp_path / "marker", tmp_path / "evil.safetensors"
    tables = recipes.load("mnist5k-amata").tables
    evil = {**tables["model"], "name": "os:system", "args": {"command": f"touch {marker}"}}
    save_tensors(file, {}, {"recipe": "x", "tables": {**tables, "model": evil}})
    called = amata("eval", file)
    assert not marker.exists()
    assert called.code == 2
    assert f"{file} would run code: model.name = 'os:system' with model.args = " in called.err


@pytest.mark.parametrize("args", [{}, {"checkpoint_path": "evil.pth"}])
def test_arguments_of_timm_need_trust(
    args: dict[str, str], fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "timm.py").write_text(
        "from torch import nn\nlist_models = lambda: ['net']\n"
        "create_model = lambda name, in_chans, num_classes, **args: nn.Linear(2, len(args) + 1)\n"
    )
    fresh.syspath_prepend(tmp_path)
    if args:
        with pytest.raises(InputError, match="'timm/net' imports code; pass trust=True"):
            models.build("timm/net", in_channels=1, classes=2, args=args)
    built = models.build("timm/net", in_channels=1, classes=2, args=args, trust=bool(args))
    assert built.weight.shape == (len(args) + 1, 2)


def test_a_report_reads_no_code(hostile: tuple[Path, Path]) -> None:
    run, marker = hostile
    assert compare_runs(find_runs([run])[0])["rows"]
    assert not marker.exists()


def test_a_study_resumes_the_users_own_recipe_without_trust(
    home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even where nothing can be remembered."""
    fresh.setenv("AMATA_STATE", "/dev/null/nowhere")
    sets = [*SETS, f"model.name={OWN}:make", f"data.root={home / 'data'}"]
    recipe = recipes.load("caltech256-pgd20", sets)
    run = train_or_resume(tmp_path / "run", recipe, told := Notes())
    assert [n for n in told.notes if "remember" in n] == [
        f"cannot remember that {OWN}:make is trusted: set AMATA_STATE to a folder, or add "
        "--trust to evaluate or resume this run"
    ]
    unfinish(run.path)
    fresh.setattr(trust, "_given", set())
    with pytest.raises(InputError, match="would run code"):
        resume(run.path)
    assert train_or_resume(run.path, recipe, Notes()).finished


def test_what_is_read_outside_the_folder_is_reported(
    home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    data = home / "data"
    note = f"note: reading data from {data} (data.root in run/recipe.toml)"
    assert note in amata("eval", "run").err.splitlines()
    assert "reading" not in amata("eval", "run", f"--set=data.root={data}").err
    odd = changed(home / "run", tmp_path / "[/x]", f'"{data}"', '"/tmp/\\u009b31m[/y]"')
    called = amata("eval", odd)
    assert (
        f"note: reading data from /tmp/\\x9b31m[/y] (data.root in {odd}/recipe.toml)" in called.err
    )
    inside = changed(home / "run", tmp_path / "run", f'"{data}"', f'"{tmp_path / "run" / "data"}"')
    shutil.copytree(data, inside / "data")
    called = amata("eval", inside)
    assert called.code == 0
    assert "reading" not in called.err


@pytest.mark.parametrize("root", ["/dev/zero", "~nobody-of-this-name/x", "a\\u0000b"])
def test_data_come_from_a_folder(
    root: str, home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    run = changed(home / "run", tmp_path / "run", f'"{home / "data"}"', f'"{root}"')
    called = amata("eval", run)
    assert called.code == 2
    assert "is not a folder; pass --set data.root=PATH" in called.err


@pytest.mark.parametrize(
    "name", ["../../../gone", "/tmp/gone", "a b", "", "\x9b31mred", "x" * 300, "a\u202eb"]
)
def test_a_recipes_name_stays_a_file_name(
    name: str, home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    run = changed(home / "run", tmp_path / "a" / "b", "# caltech256-pgd20", f"# {name}")
    called = amata("export", run, "--to", "robustbench", "--out", tmp_path / "a" / "out")
    if name:  # else the folder's own name is used
        assert called.code == 2
        assert "is used as a file name; add --name: use only letters" in called.err
        assert called.err[:-1].isprintable()
    assert {p.name for p in tmp_path.iterdir()} == {"a"}


def test_exported_source_and_card_are_plain_text(tmp_path: Path) -> None:
    hostile = '"""\n`|<script>alert(1)</script>\x1b[31m](javascript:x)![x](y)'
    recipe = recipes.load("cifar10-pgd10")
    model = recipe.model.model_copy(
        update={"name": "preactresnet18", "args": {"final_bn": f"'{hostile}"}}
    )
    found = {"accuracy": 0.5, "low": 0.4, "high": 0.6, "n": 5, "grad_evals": 5}
    asked = {"params": {hostile: hostile}, "warnings": [hostile]}
    spent = {"train_seconds": 1.0, "grad_evals": 2, "grad_evals_per_image": 1.0, "epochs": 1}
    environment: Environment = {
        "python": hostile,
        "platform": hostile,
        "machine": hostile,
        "device": hostile,
        "commit": hostile,
        "packages": {"torch": hostile, hostile: "1"},
        "threads": 1,
    }
    trained = Trained(
        "name",
        torch.nn.Identity(),
        replace(recipe, model=model),
        {hostile: {**found, **asked}},
        {**spent, "best_epoch": None},
        (hostile, "b"),
        (3, 4, 4),
        False,
        {},
        environment,
        hostile,
        None,
    )
    tree = ast.parse(trained.architecture("state"))
    (load,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "load"]
    call = next(n for n in ast.walk(load) if isinstance(n, ast.keyword) and n.arg == "final_bn")
    assert ast.literal_eval(call.value) == f"'{hostile}"
    names = next(n for n in tree.body if isinstance(n, ast.Assign) and "CLASSES" in ast.dump(n))
    assert ast.literal_eval(names.value) == (hostile, "b")
    _, head, text = card(trained, []).split("---\n", 2)
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(head)["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.5
    # The recipe is verbatim, in a fence that is longer than any run of backticks in it.
    text, recipe_text, rest = re.split(r"^````*(?:toml)?$", text, flags=re.M)
    assert "`" * 3 not in recipe_text
    text += rest
    assert not [piece for piece in ("<script", "\x1b", "x](", "![", "`|") if piece in text]
    (row,) = [line for line in text.splitlines() if line.startswith('| ""')]
    assert len(re.findall(r"(?<!\\)\|", row)) == 7


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("wrn-60004-1", {}),
        ("wrn-34-99999", {}),
        ("tinycnn", {"width": 10**30}),
        ("tinycnn", {"width": "wide"}),
        ("tinycnn", {"width": -1}),
        ("tinycnn", {"width": 10**9}),
        ("smallcnn", {"dropout": "often"}),
    ],
)
def test_absurd_networks_are_one_line(name: str, args: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=rf"model {name} (would have more|cannot be built)"
    ) as found:
        models.build(name, in_channels=1, classes=10, args=args)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_a_network_that_its_weights_cannot_fill_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe of a few bytes asks for gigabytes of parameters."""
    file = tmp_path / "weights.safetensors"
    recipe = recipes.load("mnist5k-pgd", ["model.name=tinycnn", "model.args.width=4000"])
    save_tensors(file, {}, {"recipe": "x", "tables": recipe.tables})
    small = torch.nn.Linear(1, 1)
    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", lambda t, **_: small.weight)
    with pytest.raises(InputError, match="has more parameters than its weights file has bytes"):
        load_trained(file)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


def pt_file(path: Path, data: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (("data.pkl", data), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"archive/{name}", content)
    return path


def compressed(path: Path) -> Path:
    """A file of `torch.save` with a million zeros in a few bytes."""
    torch.save({"w": torch.zeros(10**6)}, path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def overlapping(path: Path) -> Path:
    """An archive whose members share the same bytes."""
    pt_file(path, b"0" * 1000)
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\1\2")
    content[directory + 20 : directory + 28] = struct.pack("<II", 10**6, 10**6)
    path.write_bytes(content)
    return path


NESTED = b"\x80\x02}q\xff)q\0" + b"h\0h\0\x86q\0" * 60 + b"h\0K\1s."
"""A dictionary with a key whose hash takes 2^60 steps."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (compressed, "its archive is compressed"),
        (overlapping, "its archive claims more bytes than the file has"),
        (lambda path: pt_file(path, NESTED), "its tuples are nested too deeply"),
        (lambda path: path.write_bytes(NESTED) and path, "its tuples are nested too deeply"),
    ],
)
def test_small_pickles_cannot_ask_for_much(
    make: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"w\.pt cannot be read \({message}"):
        models.load_weights(torch.nn.Linear(1, 1), make(tmp_path / "w.pt"))


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_pickles_of_torch_load(options: dict[str, Any], tmp_path: Path) -> None:
    model, other = (torch.nn.Sequential(torch.nn.Linear(3, 2)) for _ in range(2))
    torch.save(model.state_dict(), tmp_path / "w.pt", **options)
    models.load_weights(other, tmp_path / "w.pt")
    assert str(model.state_dict()) == str(other.state_dict())


def safetensors_file(path: Path, header: bytes, size: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if size is None else size) + header)


def named(name: str) -> bytes:
    return json.dumps({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()


def test_bad_weights_are_one_line(tmp_path: Path) -> None:
    marker, model = tmp_path / "marker", models.build("tinycnn", in_channels=1, classes=10)
    torch.save({"w": Evil(marker)}, tmp_path / "evil.pt")
    torch.save({"anywhere": model.state_dict(), "epoch": 3}, tmp_path / "nested.pt")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({**model.state_dict(), "fc2.bias": 3}, tmp_path / "number.pt")
    torch.save({**model.state_dict(), "fc2.bias": torch.zeros(7)}, tmp_path / "shape.pt")
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "plain.pt")
    bomb = zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, bomb:
        for name in plain.namelist():
            bomb.writestr(name, plain.read(name))
    (tmp_path / "text.pt").write_text("hello")
    safetensors_file(tmp_path / "big.safetensors", b" " * (16 * 2**20 + 1))
    safetensors_file(tmp_path / "huge.safetensors", b"{}", 2**63)
    safetensors_file(tmp_path / "escape.safetensors", named("a\x1b[31mb\n"))
    safetensors_file(tmp_path / "deep.safetensors", b'{"a":' + b"[" * 100_000)
    save_tensors(tmp_path / "long.safetensors", {"x" * 100_000: torch.zeros(1)})
    expected = {
        "evil.pt": "holds other Python objects than tensors",
        "nested.pt": "'conv1.weight' is missing (and 9 more)",
        "list.pth": "the file holds list, not a state dict",
        "number.pt": "'fc2.bias' is int, not a tensor",
        "shape.pt": "'fc2.bias' has shape (7,), not (10,)",
        "bomb.pt": "its archive is compressed, which torch.save never does",
        "text.pt": "cannot be read",
        "big.safetensors": "has a header of 16,777,217 bytes, more than 16,777,216",
        "huge.safetensors": "is not a safetensors file",
        "escape.safetensors": "with control characters",
        "deep.safetensors": "is not a safetensors file",
        "long.safetensors": "do not fit the model TinyCNN",
    }
    for file, message in expected.items():
        with pytest.raises(InputError) as found:
            models.load_weights(model, tmp_path / file)
        line = str(found.value)
        assert message in line, file
        assert line.isprintable(), file
        assert len(line) < 600, file
    assert not marker.exists()


@pytest.mark.parametrize(
    "about",
    [
        [],
        {"tables": [], "recipe": "x"},
        {"tables": {}, "recipe": 3},
        {"tables": {"data": 3, "model": []}, "recipe": "x\x1b[31m"},
        {"tables": {"model": {"name": 3}}, "recipe": "x" * 100_000},
    ],
)
def test_a_damaged_description_is_one_line(about: Any, tmp_path: Path, amata: Amata) -> None:
    save_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(1)}, about)
    called = amata("eval", tmp_path / "w.safetensors")
    assert called.code == 2
    (line,) = called.err.splitlines()
    assert line.isprintable()
    assert len(line) < 600


@pytest.mark.parametrize("command", ["landscape", "criterion"])
def test_saved_epochs_are_checked_like_weights(
    command: str, home: Path, fresh: pytest.MonkeyPatch, tmp_path: Path, amata: Amata
) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    more = {"landscape": ["--epochs", "1"], "criterion": ["--batches", "1", "--alphas", "1"]}
    for content, message in (
        (named("a\x1bb"), "with control characters"),
        (named("model/other"), "do not fit the model Normalized: 'net.1.weight' is missing"),
        (b"nonsense", "is not a safetensors file"),
    ):
        for epoch in (0, 1):
            safetensors_file(run / "epochs" / f"{epoch:05d}.safetensors", content)
        called = amata(command, run, *more[command], "--out", tmp_path / "out")
        assert called.code == 2
        assert message in called.err
        assert called.err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n\x1a\n secret", "is not a text file"),
        (b"[a]\nsecret = 1\nsecret = 2\n", "not valid TOML: at line 3, column 11"),
        (b"secret = " + b"[" * 5000, "not valid TOML: nested too deeply"),
        (b"secret = " + b"9" * 5000, "not valid TOML: at one of its numbers"),
        (b"# secret\n" * 2**17, "has more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_a_recipe_extends_is_not_shown(
    content: bytes, message: str, tmp_path: Path, amata: Amata
) -> None:
    (tmp_path / "other.toml").write_bytes(content)
    (tmp_path / "mine.toml").write_text('extends = "other.toml"\n')
    called = amata("train", tmp_path / "mine.toml")
    assert called.code == 2
    assert message in called.err
    assert "secret" not in called.err
