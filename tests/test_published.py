"""Published weights: exported with a card, served over HTTP, and loaded by URL and checksum."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import amata as library
from amata import recipes
from amata.errors import InputError
from amata.export import export
from amata.runs.files import describe_weights, save_tensors
from amata.tensors import read_tensors
from amata.training.experiment import train
from tests.conftest import ENV
from tests.test_data import write_folder
from tests.test_fetch import Server, serving
from tests.test_load import SETS

ZERO = "0" * 64


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images of the user's own, and its export for the hub."""
    home = tmp_path_factory.mktemp("published")
    write_folder(home / "images", parts=("",), per_class=8)
    sets = [*SETS, f"data.root={home / 'images'}", 'eval.attacks=["clean", "pgd-2"]']
    train(recipes.load("caltech256-pgd20", sets), home / "run")
    export(home / "run", "hf", home / "hf", licence="CC BY 4.0, by me", weights_licence="mit")
    return home


@pytest.fixture
def server(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AMATA_DATA", str(tmp_path / "data"))
    with serving() as server:
        server.files["/m/model.safetensors"] = (home / "hf" / "model.safetensors").read_bytes()
        yield server


def url(server: Server, name: str = "m/model.safetensors") -> str:
    return server.remote(name).url


def digest(server: Server) -> str:
    return hashlib.sha256(server.files["/m/model.safetensors"]).hexdigest()


def images() -> Tensor:
    return torch.rand(3, 3, 28, 28, generator=torch.Generator().manual_seed(0))


FRESH = """
import amata, sys, torch
net = amata.load(sys.argv[1], sha256=sys.argv[2])
x = torch.rand(3, 3, 28, 28, generator=torch.Generator().manual_seed(0))
about = {"logits": net(x).detach(), "classes": net.classes, "digest": net.recipe.digest()}
torch.save(about, "out.pt")
"""


@pytest.mark.slow
def test_a_fresh_process_loads_what_was_published(
    home: Path, server: Server, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FRESH, url(server), digest(server)],
        cwd=tmp_path,
        env={**ENV, "AMATA_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    own: Any = library.load(home / "run")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(found["logits"], own(images()))
    assert found["classes"] == own.classes == ("cat", "dog")
    assert found["digest"] == own.recipe.digest()


def test_a_url_is_loaded_once_and_kept_with_the_data_sets(
    home: Path, server: Server, tmp_path: Path
) -> None:
    own: Any = library.load(home / "run")
    for address in (url(server), url(server), f"{url(server)}?download=a/b"):
        server.files["/m/model.safetensors?download=a/b"] = server.files["/m/model.safetensors"]
        net: Any = library.load(address, sha256=digest(server).upper())
        assert torch.equal(net(images()), own(images()))
        assert net.classes == ("cat", "dog")
        assert str(net.recipe.ball) == str(own.recipe.ball)
    assert len(server.requests) == 1
    kept = tmp_path / "data" / "weights" / digest(server) / "model.safetensors"
    assert kept.read_bytes() == server.files["/m/model.safetensors"]
    kept.write_bytes(b"other")
    with pytest.raises(InputError, match="exists and is not the published file"):
        library.load(url(server), sha256=digest(server))


def test_a_changed_byte_is_refused(home: Path, server: Server, tmp_path: Path) -> None:
    known, content = digest(server), bytearray(server.files["/m/model.safetensors"])
    content[-1] ^= 1
    server.files["/m/model.safetensors"] = bytes(content)
    with pytest.raises(InputError, match=rf"wrong checksum \(sha256:.*, not sha256:{known}\)"):
        library.load(url(server), sha256=known)
    assert not list((tmp_path / "data" / "weights").iterdir())
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="is not the published file"):
        library.load(tmp_path / "model.safetensors", sha256=known)
    assert library.load(home / "hf" / "model.safetensors", sha256=known).classes == ("cat", "dog")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "URL": ({}, "may send any file: pass the SHA-256 checksum .*which the model's card has"),
    "URL ": ({"sha256": ZERO}, "is not a URL"),
    "URL#": ({"sha256": "12"}, "sha256 = '12' must be 64 hexadecimal digits"),
    "URL?": ({"sha256": 3}, "sha256 = '3' must be 64 hexadecimal digits"),
    "https:///model.safetensors": ({"sha256": ZERO}, "is not a URL"),
    "http://[/model.safetensors": ({"sha256": ZERO}, "is not a URL"),
    "https:/one.slash/model.safetensors": ({"sha256": ZERO}, "is not a URL; pass it as text"),
    "ftp://host/model.safetensors": ({"sha256": ZERO}, "over https or http only"),
    "file:///etc/model.safetensors": ({"sha256": ZERO}, "is not a URL"),
    "https://host/": ({"sha256": ZERO}, "is not the URL of a weights file"),
    "https://host/..": ({"sha256": ZERO}, "is not the URL of a weights file"),
    "https://host/README.md": ({"sha256": ZERO}, "is not the URL of a weights file"),
    "https://host/a;b.safetensors": ({"sha256": ZERO}, "is not the URL of a weights file"),
    "HOME/hf": ({"sha256": ZERO}, "sha256 is the checksum of one file, and .*hf is not a file"),
}


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_refused_is_not_fetched(address: str, server: Server, home: Path) -> None:
    arguments, message = REFUSED[address]
    path = address.replace("URL", url(server)).replace("HOME", str(home))
    with pytest.raises(InputError, match=message) as error:
        library.load(path, **arguments)
    assert "\n" not in str(error.value)
    assert server.requests == []


def test_a_published_file_is_limited(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMATA_MAX_BYTES", "1000")
    with pytest.raises(InputError, match=r"more than 1000 bytes: set the .* AMATA_MAX_BYTES"):
        library.load(url(server), sha256=digest(server))


def test_a_published_recipe_runs_no_code(server: Server, home: Path, tmp_path: Path) -> None:
    file = home / "hf" / "model.safetensors"
    about = describe_weights(file)
    about["tables"]["model"]["name"] = "os:system"
    save_tensors(tmp_path / "evil.safetensors", read_tensors(file), about)
    server.files["/m/model.safetensors"] = (tmp_path / "evil.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"would run code: model\.name = 'os:system'"):
        library.load(url(server), sha256=digest(server))


def test_the_commands_take_a_url(server: Server, home: Path, amata: Any) -> None:
    weights = (url(server), "--sha256", digest(server))
    called = amata("predict", *weights, home / "images" / "cat" / "0.png", "--json")
    assert called.code == 0, called.err
    assert json.loads(called.out)["images"][0]["class"] in ("cat", "dog")
    root = f"data.root={home / 'images'}"
    for command in ("eval", "audit"):
        called = amata(command, *weights, "--attacks=clean,fgsm", "--json", "--set", root)
        assert called.code == 0, called.err
        called = amata(command, url(server), "--attacks=clean,fgsm", "--set", root)
        assert (called.code, called.out) == (2, "")
        assert "pass the SHA-256 checksum" in called.err


def test_the_card_loads_the_weights_and_has_their_numbers(home: Path, amata: Any) -> None:
    yaml = pytest.importorskip("yaml")
    text = (home / "hf" / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    metadata, summary = (
        yaml.safe_load(head),
        json.loads((home / "run" / "summary.json").read_text()),
    )
    assert metadata["license"] == "mit"
    assert metadata["library_name"] == "pytorch"
    assert metadata["metrics"] == ["accuracy"]
    assert "datasets" not in metadata  # images of one's own are not on the hub
    (index,) = metadata["model-index"]
    (result,) = index["results"]
    assert result["task"] == {"type": "image-classification"}
    claimed = {metric["name"]: metric for metric in result["metrics"]}
    for attack, r in summary["evaluation"].items():
        metric = claimed[f"accuracy, {attack}"]
        args = {"images": r["n"], "low": r["low"], "high": r["high"]}
        assert (metric["type"], metric["value"]) == ("accuracy", r["accuracy"])
        assert metric["args"] == args
        shown = f"| {100 * r['low']:.1f} to {100 * r['high']:.1f} | {r['n']:,} |"
        (row,) = [line for line in body.splitlines() if line.startswith(f"| {attack} |")]
        assert f"| {attack} | {100 * r['accuracy']:.1f} {shown}" in row
    assert '"steps": 2' in body
    assert f"{summary['grad_evals']:,} gradient evaluations" in body
    assert f"{summary['train_seconds']:.1f} seconds on cpu" in body
    assert "licence of the data: CC BY 4.0, by me" in body
    assert f"torch {torch.__version__}" in body
    assert str(home) not in text  # no folder of this machine
    toml = re.findall(r"```toml\n(.*?)```", body, flags=re.S)
    tables = recipes.read_toml(toml[0], "card")
    own: Any = library.load(home / "run")
    assert recipes.parse(tables, "card").digest() == own.recipe.digest()
    lines = re.findall(r"```python\n(.*?)```", body, flags=re.S)[0]
    assert len(lines.splitlines()) == 2
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home / "hf")
        exec(lines, found)
    assert torch.equal(found["model"](images()), own(images()))


def test_a_card_says_what_is_known_and_no_more(home: Path, tmp_path: Path, amata: Any) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    assert amata("eval", run, "--attacks", "fgsm", "--limit", "2").code == 0
    (run / "env.json").unlink()
    export(run, "robustbench", tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| fgsm@2 |" in text
    assert "license: unknown\n" in text
    assert "licence of the data: unknown\n" in text
    assert "Unknown: the run has no env.json" in text
    assert "seconds.\n" in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"licence": "a\nb"}, "--licence must be a text of 1 to 200 characters"),
        ({"licence": " "}, "--licence must be a text of 1 to 200 characters"),
        ({"weights_licence": "My own"}, "--weights-licence 'My own' must be an identifier"),
    ],
)
def test_a_licence_is_one_line(
    given: dict[str, str], message: str, home: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        export(home / "run", "hf", tmp_path / "out", **given)  # type: ignore[arg-type]
