"""Exports load without amata and compute the same."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amata import PGD, Constant, Linf, fit, load, recipes
from amata.errors import InputError
from amata.export import Trained, export
from amata.export.card import card
from amata.export.robustbench import claim, write_robustbench
from amata.training.experiment import train
from amata.training.loaded import load_trained
from tests.test_logits import Classifier
from tests.toy import toy_data

SETS = [
    "train.device=cpu",
    "threat.eps=8/255",
    "train.epochs=1",
    "data.valid=40",
    "data.batch_size=400",
    "schedule.k_max=2",
    "train.valid_attack=pgd-1",
    'eval.attacks=["clean", "fgsm"]',
    "eval.limit=20",
    "train.tensorboard=false",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    train(recipes.load("mnist5k-amata", [*SETS, "model.mean=[0.13]", "model.std=[0.31]"]), folder)
    return folder


def expected(run: Path) -> tuple[torch.Tensor, torch.Tensor]:
    model, _, splits = load_trained(run)
    x, _ = next(iter(splits.test.read([torch.arange(24)], torch.device("cpu"), None)))
    with torch.no_grad():
        return x, model(x)


LOAD = """
import sys, torch
blocked = {"amata", "numpy_never", *BLOCKED}
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Wall())
from architecture import load
x = torch.load("x.pt", weights_only=True)
with torch.no_grad():
    torch.save(load()(x), "z.pt")
import architecture
assert architecture.CLASSES == tuple("0123456789")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("to", "blocked"), [("robustbench", {"safetensors"}), ("hf", set())])
def test_a_folder_loads_without_amata(
    to: str, blocked: set[str], run: Path, tmp_path: Path, amata: Any
) -> None:
    called = amata("export", run, "--to", to, "--out", tmp_path / "out", "--name", "Mine2026")
    assert called.code == 0, called.err
    x, z = expected(run)
    torch.save(x, tmp_path / "out" / "x.pt")
    code = LOAD.replace("BLOCKED", repr(blocked))
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "out", capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert torch.allclose(torch.load(tmp_path / "out" / "z.pt", weights_only=True), z, atol=1e-4)


def test_the_size_in_a_networks_name_is_in_its_source(tmp_path: Path, amata: Any) -> None:
    sets = ["model.name=wrn-10-1", "data.limit=60", "data.batch_size=20"]
    train(recipes.load("mnist5k-amata", [*SETS, *sets]), tmp_path / "run")
    called = amata("export", tmp_path / "run", "--to", "hf", "--out", tmp_path / "out")
    assert called.code == 0, called.err
    found = (tmp_path / "out" / "architecture.py").read_text()
    assert "WideResNet(in_channels=1, classes=10, depth=10, widen=1, " in found


def test_the_claim_has_robustbenchs_fields_and_our_numbers(
    run: Path, tmp_path: Path, amata: Any
) -> None:
    assert amata("export", run, "--to", "robustbench", "--out", tmp_path / "rb").code == 0
    claimed = json.loads(
        (tmp_path / "rb" / "model_info" / "mnist5k" / "Linf" / "mnist5k-amata.json").read_text()
    )
    fields = (
        "link name authors additional_data number_forward_passes dataset venue architecture "
        "eps clean_acc reported autoattack_acc"
    )
    assert {*fields.split(), "unreliable"} <= claimed.keys()
    evaluation = json.loads((run / "summary.json").read_text())["evaluation"]
    assert claimed["clean_acc"] == f"{100 * evaluation['clean']['accuracy']:.2f}"
    assert claimed["reported"] == f"{100 * evaluation['fgsm']['accuracy']:.2f}"
    assert claimed["autoattack_acc"] is None
    assert claimed["eps"] == "8/255"
    assert "fgsm on 20 test images" in claimed["footnote"]


def test_a_claim_takes_autoattack_on_a_subset_and_admits_warnings(run: Path) -> None:
    trained = Trained.of(run)
    assert not claim(trained)["unreliable"]
    found = {"accuracy": 0.4, "n": 5, "params": {"eps": 0.1}, "warnings": ["masked gradients"]}
    claimed = claim(replace(trained, evaluation={"autoattack@5": found}))
    assert claimed["autoattack_acc"] == claimed["reported"] == "40.00"
    assert claimed["unreliable"]
    assert claimed["footnote"] == (
        "reported under autoattack@5 on 5 test images; autoattack@5: masked gradients"
    )


def test_a_model_card_has_the_evaluation(run: Path, tmp_path: Path, amata: Any) -> None:
    assert amata("export", run, "--to", "hf", "--out", tmp_path / "hf").code == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pytorch\n")
    assert "| fgsm |" in card
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["mean"] == [0.13]
    assert config["shape"] == [1, 28, 28]
    assert list(config["id2label"].values()) == list("0123456789")
    assert "The 10 classes are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9." in card
    assert config["threat"] == {"norm": "linf", "eps": "8/255"}


def test_a_model_card_shows_names_literally(run: Path) -> None:
    trained = Trained.of(run)
    found = {**trained.evaluation["clean"], "params": {"x": "`|</td>"}, "warnings": ["<b>\n# no"]}
    text = card(replace(trained, name="<script>\n# no", evaluation={"a|<img>": found}), [])
    _, _, text = text.split("---\n", 2)
    assert r"# &lt;script&gt;\\n# no" in text.splitlines()
    (row,) = [line for line in text.splitlines() if line.startswith(r"| a\|")]
    assert row.startswith(r"| a\|&lt;img&gt; | ")
    assert row.replace(r"\|", "").count("|") == 7
    assert not re.search("<script|<img|</td|<b>", text)


DATASETS = {
    "cifar10": ("cifar10", '["uoft-cs/cifar10"]'),
    "mnist5k": ("mnist5k", None),
    "folder": ("folder", None),
    "hf/owner/set:config": ("hf-owner-set-config", '["owner/set"]'),
    "../../../x": ("-x", None),
    "a]\n# no": ("a-no", None),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_name_of_data_is_a_folder_and_a_link_only_where_it_can_be(
    name: str, run: Path, tmp_path: Path
) -> None:
    trained, (folder, link) = Trained.of(run), DATASETS[name]
    data = trained.recipe.data.model_copy(update={"name": name})
    trained = replace(trained, recipe=replace(trained.recipe, data=data))
    write_robustbench(trained, tmp_path / "rb")
    assert [p.name for p in (tmp_path / "rb" / "model_info").iterdir()] == [folder]
    assert [p.name for p in tmp_path.iterdir()] == ["rb"]
    head = card(trained, []).split("---")[1].splitlines()
    assert [line for line in head if "datasets" in line] == ([f"datasets: {link}"] if link else [])
    assert "# no" not in card(trained, []).splitlines()


METHOD = {"awp": "pgd with adversarial weight perturbation"}


@pytest.mark.parametrize("method", ["mart", "nuat", "fgsm-pgi", "awp"])
def test_every_method_is_exported_with_its_recipe(method: str, tmp_path: Path) -> None:
    sets = [s for s in SETS if not s.startswith(("schedule", "data.", "threat"))]
    sets += ["data.limit=40", "data.valid=20", *["method.awp.warmup=0"] * (method == "awp")]
    recipe = recipes.load(f"mnist5k-{method}", sets)
    train(recipe, tmp_path / "run")
    export(tmp_path / "run", "hf", tmp_path / "hf")
    net: Any = load(tmp_path / "hf")
    assert net.recipe.digest() == recipe.digest()
    text = (tmp_path / "hf" / "README.md").read_text()
    assert f"Method {METHOD.get(method, method)}, schedule" in text
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    assert recipes.parse(recipes.read_toml(toml, "card"), "card").digest() == recipe.digest()


@pytest.mark.slow
def test_onnx_of_a_network_with_logits_in_an_object(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    net, (x, y) = Classifier("an object"), toy_data()
    method = PGD(ball=Linf(0.05))
    schedule = Constant(steps=1, step_size=0.05)
    fit(net, (x, y), method=method, schedule=schedule, epochs=1, run=tmp_path / "run")
    export(tmp_path / "run", "onnx", tmp_path / "onnx", model=net)
    assert (tmp_path / "onnx" / "model.onnx").is_file()


@pytest.mark.slow
def test_onnx_gives_the_same_logits(run: Path, tmp_path: Path, amata: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    called = amata("export", run, "--to", "onnx", "--out", tmp_path / "onnx")
    assert called.code == 0, called.err
    x, z = expected(run)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    assert session.get_modelmeta().custom_metadata_map["classes"] == json.dumps(list("0123456789"))
    for n in (1, 5, 24):  # the number of images is free
        (found,) = session.run(None, {"images": x[:n].numpy()})
        assert np.abs(found - z[:n].numpy()).max() < 1e-4
    for path in (tmp_path / "onnx" / "model.onnx", tmp_path / "onnx"):
        with pytest.raises(InputError, match="is for ONNX Runtime; pass the run folder"):
            load(path)


def test_bad_exports_are_one_line(run: Path, tmp_path: Path, amata: Any) -> None:
    assert (
        "error: unknown --to 'onx'; did you mean 'onnx'?"
        in amata("export", run, "--to", "onx", "--out", tmp_path / "a").err
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in amata("export", run, "--to", "hf", "--out", tmp_path / "full").err
    assert (
        "is not a run folder"
        in amata("export", tmp_path, "--to", "hf", "--out", tmp_path / "b").err
    )
