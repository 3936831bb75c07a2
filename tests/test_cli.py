"""The command line: output, exit status, and one-line errors."""

import gzip
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.main import get_command

from amata.cli import app, main
from amata.cli.root import PANELS, Commands
from amata.metrics import Row
from amata.runs import RunFolder
from tests.conftest import ENV, Called
from tests.disk import Disk, full_disk
from tests.test_data import idx, write_folder, write_mnist
from tests.toy import QUICK

Amata = Callable[..., Called]
FAST = [f"--set={o}" for o in QUICK]
ONE_EPOCH = [*(o for o in FAST if "train.epochs" not in o), "--epochs=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a few seconds."""
    path = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as exit_:
        main(["train", "mnist5k-amata", *FAST, "--out", str(path)])
    assert not exit_.value.code
    return path


def test_train_prints_a_table_and_where_the_run_is(amata: Amata, tmp_path: Path) -> None:
    called = amata(
        "train", "mnist5k-amata", *FAST, "--set", "train.epochs=1", "--out", tmp_path / "run"
    )
    assert called.code == 0
    assert re.search(r"clean +\d+\.\d%", called.out)
    assert f"run folder {tmp_path / 'run'}" in called.out
    wall = RunFolder(tmp_path / "run").summary()["wall_seconds"]
    total = wall.pop("total")
    assert sum(wall.values()) == pytest.approx(total, rel=0.02)
    assert all(wall[part] > 0 for part in ("start", "data", "train", "valid", "evaluate", "save"))
    last = called.out.splitlines()[-1]
    assert re.fullmatch(r"[\d.]+ s: start [\d.]+, data .*, evaluation [\d.]+, saving [\d.]+", last)
    assert re.search(r"epoch +1 +K +2 +alpha 0\.25 +loss .* held-out +clean", called.err)


@pytest.mark.slow
def test_bench_says_where_the_seconds_of_a_whole_training_go(tmp_path: Path) -> None:
    words = ["bench", "--wall", "mnist5k-amata", *FAST, "--set=train.epochs=1", "--out"]
    done = subprocess.run(
        [sys.executable, "-m", "amata", *words, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=ENV,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^seconds +cold +cached\nstart +[\d.]+ +[\d.]+\ndata ", done.stdout)
    rows = json.loads((tmp_path / "out" / "wall.json").read_text())["rows"]
    assert [row["caches"] for row in rows] == ["cold", "cached"]
    for row in rows:
        parts = {**row["wall_seconds"]}
        inside = parts.pop("total")
        assert sum(parts.values()) == pytest.approx(inside, rel=0.02)
        assert 0 < inside < row["command_seconds"]
        assert row["exit_seconds"] == pytest.approx(row["command_seconds"] - inside, abs=0.002)


def test_short_options_stand_for_keys_and_json_is_one_object(amata: Amata, tmp_path: Path) -> None:
    out, mine = tmp_path / "run", tmp_path / "mine.toml"
    mine.write_text('extends = "mnist5k-amata"\noptim.milestones = [4]\n')
    called = amata("train", mine, *ONE_EPOCH, "--seed=7", "--json", "--out", out)
    summary = json.loads(called.out)
    assert (summary["run"], summary["epochs"], called.code) == (str(out), 1, 0)
    assert summary["evaluation"]["clean"]["n"] == 50
    assert re.search(r"^epoch   1 ", called.err, re.M)
    recipe = RunFolder.open(out)[1]
    assert (recipe.train.seed, recipe.optim.milestones) == (7, [0.4])


def test_limit_takes_so_many_training_images(amata: Amata, tmp_path: Path) -> None:
    words = ["mnist5k-amata", *ONE_EPOCH, "--limit=200"]
    called = amata("compare", *words, "--out", tmp_path / "out")
    assert (called.code, "run 1 of 1: mnist5k-amata-seed0" in called.err) == (0, True)
    assert "note: one recipe: its runs are reported, and compared with nothing" in called.err
    (row,) = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert row["grad_evals"] == 200 * 3


COMPLETED = {
    "amata comp": "compare",
    "amata train --epo": "--epochs",
    "amata compare mnist5k-pgd cifar10-pgd1": "cifar10-pgd10",
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_recipes(tmp_path: Path) -> None:
    command = tmp_path / "amata"
    command.write_text(f"#!{sys.executable}\nfrom amata.cli import main\nmain()\n")
    command.chmod(0o755)
    script = ['eval "$(amata --show-completion bash)"']
    for words in COMPLETED:
        script += [
            f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))",
            '_amata_completion amata; echo "${COMPREPLY[*]}"',
        ]
    env = {**ENV, "PATH": f"{tmp_path}{os.pathsep}{ENV['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], capture_output=True, text=True, env=env
    )
    assert done.stdout.splitlines() == list(COMPLETED.values()), done.stderr


def test_a_default_folder_is_never_an_old_one(
    amata: Amata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("runs/mnist5k-amata", "runs/mnist5k-amata-2"):
        called = amata("train", "mnist5k-amata", *FAST, "--set=train.epochs=1")
        assert f"run folder {expected}\n" in called.out


def test_eval_prints_one_json_object(amata: Amata, run: Path) -> None:
    called = amata("eval", run, "--attacks", "clean,pgd-3,cw-pgd-3", "--limit", "40", "--json")
    assert called.code == 0
    result = json.loads(called.out)
    assert list(result) == ["clean", "pgd-3", "cw-pgd-3"]
    for entry in result.values():
        assert {"accuracy", "n", "low", "high", "grad_evals", "params"} <= entry.keys()
        assert entry["n"] == 40
        assert entry["low"] <= entry["accuracy"] <= entry["high"]
    assert result["pgd-3"]["grad_evals"] == 120
    assert result["pgd-3"]["params"]["eps"] == 0.2


def test_eval_takes_weights_that_contain_their_recipe(
    amata: Amata, run: Path, tmp_path: Path
) -> None:
    shutil.copy(run / "model.safetensors", tmp_path / "shared.safetensors")
    by_run = json.loads(amata("eval", run, "--attacks", "clean", "--json").out)
    by_file = json.loads(
        amata("eval", tmp_path / "shared.safetensors", "--attacks", "clean", "--json").out
    )
    assert by_run["clean"]["accuracy"] == by_file["clean"]["accuracy"]
    from safetensors.torch import load_file, save_file

    save_file(load_file(run / "model.safetensors"), tmp_path / "anonymous.safetensors")
    called = amata("eval", tmp_path / "anonymous.safetensors")
    assert called.code == 2
    assert "add --recipe" in called.err
    recipe = ["--recipe", "mnist5k-amata", *FAST]
    assert (
        amata("eval", tmp_path / "anonymous.safetensors", *recipe, "--attacks", "clean").code == 0
    )


@pytest.mark.slow
def test_eval_runs_autoattack(amata: Amata, run: Path) -> None:
    called = amata("eval", run, "--attacks", "clean,autoattack", "--limit", "10", "--json")
    result = json.loads(called.out)
    assert result["autoattack"]["params"] == {
        "norm": "linf",
        "eps": 0.2,
        "version": "standard",
        "iterations": 100,
        "queries": 5000,
    }
    assert result["autoattack"]["accuracy"] <= result["clean"]["accuracy"]


def test_recipes_and_data_are_listed(amata: Amata, tmp_path: Path) -> None:
    listed = amata("recipes")
    assert re.search(r"^cifar10-amata +Amata \(K 2 to 10", listed.out, re.M)
    assert "rise = 4\n" in amata("recipes", "show", "mnist5k-nuat", "--epochs=5").out
    shown = amata("recipes", "show", "mnist5k-amata")
    assert '[schedule]\nname = "linear"' in shown.out
    own = amata("recipes", "show", own_recipe(tmp_path)).out.splitlines()
    assert own[0].startswith("# My \\x9b31mrecipe.")
    assert own[1:] == [line for line in shown.out.splitlines() if not line.startswith("#")]
    assert "mnist5k" in amata("data").out
    assert json.loads(amata("recipes", "--json").out)["cifar10-amata"].startswith("Amata (K 2")
    data = json.loads(amata("data", "--json").out)
    assert (data["sets"]["mnist5k"]["classes"], data["sets"]["cifar10"]["fetch"]) == (10, True)
    assert Path(data["folder"]).is_absolute()
    assert (
        "mnist5k test: 1,000 images of (1, 28, 28), 10 classes, 100 to 100 each"
        in amata("data", "check", "mnist5k").out
    )


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "eval",
        "criterion",
        "search",
        "toy",
        "convergence",
        "bench",
        "recipes",
        "data",
        "recipes show",
        "data fetch",
        "data check",
        "init",
    ],
)
def test_every_command_has_help_with_an_example(amata: Amata, command: str) -> None:
    called = amata(*command.split(), "--help")
    assert called.code == 0
    assert "Example: amata" in called.out


def test_help_lists_the_commands_in_the_order_of_use(amata: Amata) -> None:
    listed = re.findall(r"^  (\w+)  +\S", amata("--help").out.partition("Commands:")[2], re.M)
    known = [name for words in PANELS.values() for name in words.split()]
    assert listed[:3] == ["train", "plan", "eval"]
    assert listed[-2:] == ["data", "recipes"]
    assert [name for name in known if name in listed] == listed, "a command has no panel"


def test_the_order_of_help_is_not_that_of_the_imports() -> None:
    group = Commands(commands=dict.fromkeys(("zebra", "recipes", "compare", "train")))  # type: ignore[arg-type]
    assert group.list_commands(None) == ["train", "compare", "recipes", "zebra"]


def test_the_page_of_commands_has_every_example(amata: Amata) -> None:
    """`python evidence/commands.py` writes it again."""
    page = " ".join((Path(__file__).parents[1] / "docs" / "commands.md").read_text().split())
    root = get_command(app)
    found = dict(root.commands)  # type: ignore[attr-defined]
    for name in ("recipes", "data"):
        found |= {f"{name} {own}": inner for own, inner in found[name].commands.items()}
    for name, command in found.items():
        example = " ".join(command.epilog.split()).removeprefix("Example: ")
        assert f"| `{name}` | {command.get_short_help_str(200)} | `{example}` |" in page


def test_no_command_shows_help_and_version_is_printed(amata: Amata) -> None:
    assert "Commands" in amata().out
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", amata("--version").out)


# Bad input: one line on stderr, exit status 2, nothing lost

Setup = Callable[[Path], list[str]]


def set_(*overrides: str) -> Setup:
    return lambda tmp: [
        "train",
        "mnist5k-amata",
        *[f"--set={o}" for o in overrides],
        "--out",
        str(tmp / "new"),
    ]


def mnist_with(spoil: Callable[[Path], object]) -> Setup:
    def setup(tmp: Path) -> list[str]:
        write_mnist(tmp)
        spoil(tmp)
        return [
            "train",
            "mnist-amata",
            f"--set=data.root={tmp}",
            "--set=data.valid=2",
            "--out",
            str(tmp / "new"),
        ]

    return setup


def truncate(tmp: Path) -> None:
    file = tmp / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-50])


def high_labels(tmp: Path) -> None:
    (tmp / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(12, 10, np.uint8))))


def folder_with_text(tmp: Path) -> list[str]:
    write_folder(tmp)
    (tmp / "train" / "cat" / "notes.txt").write_text("hello")
    return ["train", "caltech256-amata", f"--set=data.root={tmp}", "--out", str(tmp / "new")]


def folder_with_broken_image(tmp: Path) -> list[str]:
    write_folder(tmp)
    (tmp / "train" / "cat" / "0.png").write_bytes(b"no image")
    small = [
        "data.valid=0",
        "data.resize=64",
        "data.crop=64",
        "data.workers=0",
        "data.batch_size=4",
        "train.epochs=1",
    ]
    return [
        "train",
        "caltech256-amata",
        f"--set=data.root={tmp}",
        *[f"--set={s}" for s in small],
        "--out",
        str(tmp / "new"),
    ]


def model_without_logits(tmp: Path) -> list[str]:
    args = [
        "--set=model.name=torch.nn:Conv2d",
        "--set=model.args={in_channels=1,out_channels=3,kernel_size=3}",
    ]
    return ["train", "mnist5k-amata", *args, "--out", str(tmp / "new")]


def model_with_other_classes(tmp: Path) -> list[str]:
    (tmp / "other_classes_net.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 7))\n"
    )
    sys.path.insert(0, str(tmp))
    return [
        "train",
        "mnist5k-amata",
        "--set=model.name=other_classes_net:make",
        "--out",
        str(tmp / "new"),
    ]


def written(file: Path, text: str) -> str:
    file.write_text(text)
    return str(file)


def own_recipe(tmp: Path) -> str:
    (tmp / "mine.toml").write_text("# My \x9b31mrecipe.\nextends = 'mnist5k-amata'\n")
    return str(tmp / "mine.toml")


def existing_folder(tmp: Path) -> list[str]:
    (tmp / "old").mkdir()
    (tmp / "old" / "thesis.txt").write_text("precious")
    return ["train", "mnist5k-amata", "--out", str(tmp / "old")]


BAD: dict[str, tuple[Setup, str]] = {
    "unknown key": (
        set_("optim.lrr=1"),
        r"recipe mnist5k-amata: optim\.lrr: unknown key; did you mean "
        r"'lr'\?",
    ),
    "wrong type": (
        set_("train.epochs=many"),
        r"train\.epochs: input should be a valid integer.*, not "
        r"'many'",
    ),
    "k_min above k_max": (
        set_("schedule.k_min=11"),
        r"\[schedule\] k_min = 11 is above k_max = "
        r"10",
    ),
    "tau not positive": (set_("schedule.tau=0"), r"\[schedule\] tau = 0\.0 must be above 0"),
    "eps not positive": (set_("threat.eps=-8/255"), r"\[threat\] eps = -0\.03\d+ must be above 0"),
    "unknown recipe": (
        lambda tmp: ["train", "mnist5k-amat"],
        r"unknown recipe 'mnist5k-amat'; did you mean "
        r"'mnist5k-amata'\?",
    ),
    "unknown file": (
        lambda tmp: ["train", "shapes.tml"],
        r"unknown recipe 'shapes\.tml'; there is no file shapes\.tml either; ",
    ),
    "a folder that is not there": (
        set_("data.name=sahpes/"),
        r"there is no folder sahpes/, and data sets have no / in their names",
    ),
    "a folder without a path": (
        set_("data.name=folder"),
        r"data folder needs the folder of the images; set data\.root \(--set data\.root=FOLDER\)",
    ),
    "unknown attack with another number": (
        set_('eval.attacks=["pdg-5"]'),
        r"unknown attack 'pdg-5'; did you mean 'pgd-20'\?",
    ),
    "unknown model": (set_("model.name=lennet"), r"unknown model 'lennet'; did you mean 'lenet'\?"),
    "unknown method": (
        set_("method.name=pg"),
        r"method\.name: unknown method 'pg'; did you mean "
        r"'pgd'\?",
    ),
    "unknown schedule": (
        set_("schedule.name=linaer"),
        r"schedule\.name: unknown schedule 'linaer'; did you mean "
        r"'linear'\?",
    ),
    "unknown data": (
        set_("data.name=mnist5"),
        r"unknown data set 'mnist5'; did you mean "
        r"'mnist5k'\?",
    ),
    "unknown attack": (
        set_('eval.attacks=["pdg-20"]'),
        r"unknown attack 'pdg-20'; did you mean "
        r"'pgd-20'\?",
    ),
    "missing data": (
        lambda tmp: ["train", "mnist-amata", f"--set=data.root={tmp}"],
        r"no train-images-idx3-ubyte\.gz in .*data "
        r"fetch",
    ),
    "truncated data": (
        mnist_with(truncate),
        r"train-images-idx3-ubyte\.gz is truncated or damaged .*fetch it "
        r"again",
    ),
    "labels outside the classes": (
        mnist_with(high_labels),
        r"labels are in \[10, 10\], outside the 10 classes "
        r"0\.\.9",
    ),
    "no image in a folder": (
        folder_with_text,
        r"notes\.txt has no suffix of an image; remove it",
    ),
    "broken image in a folder": (
        folder_with_broken_image,
        r"0\.png is not a readable image .*; remove "
        r"it",
    ),
    "output is not (N, C)": (
        model_without_logits,
        r"must give logits of shape \(N, classes\); for 2 images it gave \(2, 3, 26, "
        r"26\)",
    ),
    "other classes": (model_with_other_classes, r"has 7 outputs and the data 10 classes"),
    "existing output folder": (
        existing_folder,
        r"output folder .*old exists already; .*choose another folder",
    ),
    "resume of no run": (
        lambda tmp: ["train", "--resume", str(tmp)],
        r"is not a run folder: it has no recipe\.toml",
    ),
    "resume with --out": (
        lambda tmp: ["train", "--resume", str(tmp), "--out", str(tmp / "new")],
        r"--resume continues in its own folder; drop --out",
    ),
    "eval of no run": (lambda tmp: ["eval", str(tmp)], r"is not a run folder"),
    "eval of nothing": (
        lambda tmp: ["eval", str(tmp / "absent")],
        r"no run folder or weights file "
        r"at",
    ),
    "no recipe at all": (lambda tmp: ["train"], r"pass either a recipe or --resume RUN"),
    "unknown option": (
        lambda tmp: ["train", "--fast"],
        r"No such option.*--fast.*\. See `amata train --help`\.$",
    ),
    "unknown option of a subcommand": (
        lambda tmp: ["data", "fetch", "mnist", "--fast"],
        r"See `amata data fetch --help`",
    ),
    "resume of nothing": (
        lambda tmp: ["train", "--resume", str(tmp / "absent")],
        r"no run folder .*absent; pass the folder that `amata train` printed",
    ),
    "folder for a data set": (
        lambda tmp: ["train", "mnist5k-amata", f"--set=data.name={tmp}"],
        r"is a folder; set data\.name=folder and data\.root=",
    ),
    "recipe for a run": (
        lambda tmp: ["eval", own_recipe(tmp)],
        r"mine.toml is a recipe; pass the run folder that `amata train` wrote",
    ),
    "unknown command": (
        lambda tmp: ["trian"],
        r"No such command 'trian'. Did you mean 'train'\? See `amata --help`\.$",
    ),
    "huge grid": (
        lambda tmp: ["landscape", str(tmp), "--grid", "100000", "--out", str(tmp / "new")],
        r"--grid.* 1000\.",
    ),
    "huge steps": (
        lambda tmp: ["landscape", str(tmp), "--steps", f"{10**20}", "--out", str(tmp / "new")],
        r"--steps '1000+' must be from 1 to 10,000",
    ),
    "huge batch": (
        lambda tmp: ["bench", "mnist5k-pgd2", "--batch", f"{10**20}", "--out", str(tmp / "new")],
        r"--batch '1000+' must be from 1 to 65,536",
    ),
    "steps of whole trainings": (
        lambda tmp: ["bench", "--wall", "mnist5k-pgd2", "--steps", "2", "--out", str(tmp / "new")],
        r"--wall times whole trainings as their recipes say: drop --batch, --steps",
    ),
    "endless seconds": (
        lambda tmp: ["bench", "mnist5k-pgd2", "--seconds", "inf", "--out", str(tmp / "new")],
        r"seconds = inf is not finite",
    ),
    "endless seconds of data": (
        lambda tmp: ["bench", "--data", "--seconds", "inf", "--out", str(tmp / "new")],
        r"seconds = inf is not finite",
    ),
    "nothing to bench": (
        lambda tmp: ["bench", "--out", str(tmp / "new")],
        r"bench needs a recipe, as in amata bench cifar10-pgd10; or --data",
    ),
    "no whole training": (
        lambda tmp: ["bench", "--wall", "--out", str(tmp / "new")],
        r"bench needs a recipe, as in amata bench cifar10-pgd10; or --data",
    ),
    "data of a recipe": (
        lambda tmp: ["bench", "--data", "mnist5k-pgd2", "--out", str(tmp / "new")],
        r"--data times image folders alone: drop the recipes and --wall",
    ),
    "huge seeds": (
        lambda tmp: ["compare", "mnist5k-pgd2", "--seeds", f"{10**20}", "--out", str(tmp / "new")],
        r"--seeds.* 1000\.",
    ),
    "huge fixed control": (
        lambda tmp: ["criterion", "mnist5k-pgd2", "--z", "1e18,1", "--out", str(tmp / "new")],
        r"K of --z = '1e18' must be at most 10,000",
    ),
    "huge probe": (
        lambda tmp: ["criterion", "mnist5k-pgd2", "--k-max", f"{10**9}", "--out", str(tmp / "new")],
        r"--k-max.* 10000\.",
    ),
    "huge problem": (lambda tmp: ["toy", "--parts", f"{10**12}"], r"--parts.* 10000\."),
    "nan problem": (lambda tmp: ["toy", "--horizon", "nan"], r"horizon = nan is not finite"),
    "a name that is too long": (lambda tmp: ["eval", "a" * 300], r"a{300}: File name too long"),
    "--set without a table": (set_("epochs=1"), r"table\.key; did you mean train\.epochs\?"),
    "--set in several tables": (set_("name=x"), r"did you mean data\.name or model\.name or "),
    "--set of a schedule's key": (set_("k_max=3"), r"did you mean schedule\.k_max\?"),
    "limit below 1": (
        lambda tmp: ["train", "mnist5k-amata", "--limit", "0", "--out", str(tmp / "new")],
        r"--limit.* 1\.",
    ),
    "unknown logger": (
        lambda tmp: ["train", "mnist5k-amata", "--log", "wanb", "--out", str(tmp / "new")],
        r"unknown logger 'wanb'; did you mean 'wandb'\?",
    ),
    "tau in units of 1/255": (
        set_("schedule.tau=13"),
        r'schedule\.tau = 13 makes steps of more than 1, .*; did you mean "13/255"\?',
    ),
    "tau of adaptive in units of 1/255": (
        set_("schedule.name=adaptive", "schedule.gamma=0.04", "schedule.tau=20"),
        r'schedule\.tau = 20 makes steps of more than 1, .*; did you mean "20/255"\?',
    ),
    "steps of tests in units of 1/255": (
        set_("eval.step_size=2"),
        r'eval\.step_size = 2 is more than 1, .*; did you mean "2/255"\?',
    ),
    "option eps in units of 1/255": (
        lambda tmp: ["train", "mnist5k-amata", "--eps", "4", "--out", str(tmp / "new")],
        r'eps = 4 is more than 1, .*; did you mean "4/255"\?',
    ),
    "eps in units of 1/255": (set_("threat.eps=4"), r'did you mean "4/255"\?'),
    "a fraction without quotes": (
        lambda tmp: ["train", written(tmp / "mine.toml", "[threat]\neps = 8/255  # usual\n")],
        r'recipe mine: not valid TOML: line 2: write fractions in quotes, "8/255"',
    ),
    "init of nothing": (
        lambda tmp: ["init", str(tmp / "absent")],
        r"absent does not exist; pass a folder with one folder per class, or a csv",
    ),
    "init of a file": (
        lambda tmp: ["init", written(tmp / "mine.toml", "")],
        r"mine\.toml is a file; pass a folder with one folder per class",
    ),
    "bad --set": (
        lambda tmp: ["train", "mnist5k-amata", "--set", "lr"],
        r"must read table\.key=value",
    ),
}
if not torch.cuda.is_available():
    BAD["no GPU"] = (
        set_("train.device=cuda"),
        r"train\.device = 'cuda', but 0 GPUs are visible; use --set train\.device=cpu",
    )


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(
    amata: Amata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    setup, message = BAD[name]
    called = amata(*setup(tmp_path))
    assert called.code == 2, called.err
    lines = [line for line in called.err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert re.search(message, lines[0]), lines[0]
    assert called.out == ""
    if name == "existing output folder":
        assert [p.name for p in (tmp_path / "old").iterdir()] == ["thesis.txt"]
    elif "broken" not in name:
        assert not (tmp_path / "new").exists(), "a folder was left behind"


def test_resume_guards_the_experiment(amata: Amata, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "summary.json").unlink()
    called = amata("train", "--resume", copy, "--set", "optim.lr=9")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "optim.lr would change the experiment that is resumed" in called.err
    toml = (copy / "recipe.toml").read_text()
    assert "\nlr = 0.05\n" in toml
    (copy / "recipe.toml").write_text(toml.replace("\nlr = 0.05\n", "\nlr = 0.2\n"))
    called = amata("train", "--resume", copy, "--trust")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "recipe.toml was changed after the run began" in called.err
    (copy / "recipe.toml").write_text(toml)
    called = amata("train", "--resume", copy, "--set", "train.save_minutes=1")
    assert called.code == 0
    assert re.match(r"since it was resumed: [\d.]+ s: start", called.out.splitlines()[-1])
    assert (copy / "summary.json").is_file()
    called = amata("train", "--resume", copy)  # nothing is left to do, and no time was spent
    assert called.out.splitlines()[-1] == f"run folder {copy}"


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_can_be_resumed(
    amata: Amata, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, full = RunFolder.append_row, ExitStack()

    def append_row(self: RunFolder, row: Row) -> None:
        """The second epoch's checkpoint finds a full disk; its best weights are smaller."""
        append(self, row)
        if row["epoch"] == 1:
            full.enter_context(full_disk(16_000))

    Disk(monkeypatch)
    monkeypatch.setattr(RunFolder, "append_row", append_row)
    with full:
        called = amata("train", "mnist5k-amata", *FAST, "--out", tmp_path / "full")
    monkeypatch.undo()
    assert called.code == 2
    assert re.search(
        r"^error: cannot write .*00002-0000000\.safetensors \(File too large\); "
        r".*free some space and resume$",
        called.err,
        re.M,
    )
    assert amata("train", "--resume", tmp_path / "full").code == 0
    last = "last.safetensors"
    assert (tmp_path / "full" / last).read_bytes() == (run / last).read_bytes()


@pytest.mark.slow
def test_ctrl_c_saves_and_exits_130(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "amata",
            "train",
            "mnist5k-amata",
            *FAST,
            "--set=train.epochs=5000",
            "--out",
            str(out),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    while not (out / "metrics.jsonl").is_file() or not (out / "metrics.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert re.search(
        r"^interrupted in epoch \d+(, batch \d+)?; resume with `amata train --resume ",
        err,
        re.M,
    )
    assert f"--resume {out}`" in err
    assert "Traceback" not in err


def read_terminal(arguments: list[str], env: dict[str, str]) -> Iterator[str]:
    """The output of a command on its own pseudo-terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "amata", *arguments], env)
    while True:
        try:
            block = os.read(fd, 4096)
        except OSError:
            break
        if not block:
            break
        yield block.decode(errors="replace")
    os.waitpid(pid, 0)


@pytest.mark.slow
def test_a_terminal_shows_progress_with_time_left(tmp_path: Path) -> None:
    env = {**ENV, "COLUMNS": "120", "TERM": "xterm"}
    arguments = [
        "train",
        "mnist5k-amata",
        *FAST,
        "--set=train.epochs=6",
        "--out",
        str(tmp_path / "run"),
    ]
    drawn = "".join(read_terminal(arguments, env))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    assert re.search(r"epoch \d/6  batch \d+/40  K [23]  alpha [\d.]+  loss [\d.]+", plain)
    assert re.search(r"\d:\d\d left", plain)


def test_a_failed_command_leaves_no_empty_folder(amata: Amata, run: Path, tmp_path: Path) -> None:
    for words in (
        ["landscape", str(run), "--steps", "a"],
        ["compare", "mnist5k-amataa"],
        ["criterion", "mnist5k-amataa"],
    ):
        out = tmp_path / "new" / words[0]
        called = amata(*words, "--out", str(out))
        assert called.code == 2
        assert not out.parent.exists()
    kept = tmp_path / "kept"
    kept.mkdir()
    amata("landscape", str(run), "--steps", "a", "--out", str(kept))
    assert kept.is_dir()  # it was there before


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory"), True),
        (RuntimeError("a mistake of ours"), False),
    ],
)
def test_out_of_memory_is_one_line_and_other_errors_are_not_hidden(
    error: Exception,
    line: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("amata.cli.app", fail)
    with pytest.raises(SystemExit if line else RuntimeError) as ended:
        main(["recipes"])
    if line:
        assert isinstance(ended.value, SystemExit)
        assert ended.value.code == 1
        assert capsys.readouterr().err.startswith("error: out of memory; use a smaller batch")


def test_control_characters_in_an_error_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "runs/\x1b[31mred\nsecond line"])
    text = capsys.readouterr().err
    assert r"runs/\x1b[31mred\nsecond line" in text
    assert len(text.splitlines()) == 1


# What a command needs is checked before it works

NO_DATA = ["--set=data.root=/nowhere"]
COMMANDS: dict[str, list[str]] = {
    "compare": ["compare", "mnist-pgd40", *NO_DATA],
    "report": ["report", "runs"],
    "criterion": ["criterion", "mnist-pgd40", *NO_DATA],
    "search": ["search", "mnist-amata", "--budget", "0.9", *NO_DATA],
    "landscape": ["landscape", "run"],
    "bench": ["bench", "mnist5k-pgd2", "--seconds", "1e9"],
    "toy": ["toy", "--parts", "10000"],
    "convergence": ["convergence", "--repeats", "100000"],
    "export": ["export", "run", "--to", "onnx"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("place", ["below a file", "not writable"])
def test_a_folder_that_cannot_be_written_is_noticed_first(
    name: str, place: str, amata: Amata, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out" if place == "below a file" else Path("/proc/self/task")
    called = amata(*COMMANDS[name], "--out", out)
    assert (called.code, called.out, called.err.count("\n")) == (2, "", 1), called.err
    assert f"error: cannot write to output folder {out} (" in called.err


@pytest.mark.parametrize(
    ("name", "package"),
    [(name, "onnxruntime" if name == "export" else "matplotlib") for name in COMMANDS],
)
def test_a_missing_package_is_noticed_first(
    name: str, package: str, amata: Amata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amata.errors.find_spec", lambda _: None)
    called = amata(*COMMANDS[name], "--out", tmp_path / "new")
    assert (called.code, called.err.count("\n")) == (2, 1), called.err
    assert f"needs the package {package}, which is not installed" in called.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("landscape", "landscape.json"),
        ("landscape", "landscape-3d.png"),
        ("bench", "bench.json"),
        ("bench", "bench.svg"),
        ("toy", "toy.json"),
        ("convergence", "convergence.svg"),
        ("search", "best.toml"),
        ("compare", "report.html"),
        ("report", "environment.md"),
    ],
)
def test_no_command_overwrites(name: str, file: str, amata: Amata, tmp_path: Path) -> None:
    (tmp_path / file).write_text("precious")
    called = amata(*COMMANDS[name], "--out", tmp_path)
    assert (called.code, called.err.count("\n")) == (2, 1), called.err
    assert f"{file} exists already; choose another folder" in called.err
    assert [p.read_text() for p in tmp_path.iterdir()] == ["precious"]


def test_saved_epochs_are_needed_before_the_work(amata: Amata, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    for words in (
        ["criterion", "mnist5k-pgd", str(run)],  # before the recipe is trained
        ["landscape", str(tmp_path / "run"), "--epochs", "2"],  # before the model is loaded
    ):
        called = amata(*words, "--out", tmp_path / "new")
        assert (called.code, called.err.count("\n")) == (2, 1), called.err
        assert "has no saved epochs; train it again with --set train.keep_epochs=true" in called.err
        assert not (tmp_path / "new").exists()


def test_a_path_in_a_hint_is_quoted(amata: Amata, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "a run; with 'spaces'"
    shutil.copytree(run, path)
    hint = f"`amata train --resume {shlex.quote(str(path))}`"
    assert hint in amata("train", "mnist5k-amata", "--out", path).err
    assert hint in amata("train", f"{path}/").err
    (path / "summary.json").unlink()
    assert hint in amata("export", path, "--to", "hf", "--out", tmp_path / "new").err


def test_names_are_printed_literally(amata: Amata, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "x[" / "y]z [bold] :smile:\x1b[31m\n\udcff"
    path.parent.mkdir()
    shutil.copytree(run, path)
    called = amata("train", "--resume", path)
    assert called.code == 0
    shown = str(path.parent) + r"/y]z [bold] :smile:\x1b[31m\n\udcff"
    assert f"run folder {shown}\n" in called.out
    assert called.err == f"note: {shown} is finished already\n"
