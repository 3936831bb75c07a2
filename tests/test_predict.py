"""amata predict: the classes of single images."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import amata as library
from amata import data, recipes
from amata.data import Framing, read_image
from amata.errors import InputError
from amata.evaluation.prediction import predict
from amata.runs.files import save_tensors
from tests.conftest import Called, Linear
from tests.test_data import write_folder

Amata = Callable[..., Called]
BALL = library.Linf(0.1)


def weights_file(path: Path, recipe: str, sets: list[str], names: list[str], side: int) -> Path:
    """A network that was never trained, as a run leaves it."""
    base = recipes.load(recipe, [*sets, "model.name=tinycnn", "model.args={}"])
    channels = 3 if base.data.name == "folder" else 1
    net = library.models.build("tinycnn", in_channels=channels, classes=len(names))
    about = {"recipe": recipe, "tables": base.deciding()}
    sizes = {"classes": names, "shape": [channels, side, side]}
    save_tensors(path, net.state_dict(), about | sizes)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write_folder(home / "images", parts=("",), per_class=2)
    sets = ["data.resize=32", "data.crop=28"]
    weights_file(home / "photos.safetensors", "caltech256-pgd20", sets, ["cat", "dog"], 28)
    weights_file(home / "digits.safetensors", "mnist5k-amata", [], list("0123456789"), 28)
    return home


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def test_images_are_read_as_a_folder_reads_them(home: Path) -> None:
    framing = Framing(32, 28)
    images = data.load("folder", root=home / "images", framing=framing, test_share=0.5).test
    x, _ = next(iter(images.read([torch.arange(len(images))], torch.device("cpu"), None)))
    for file, expected in zip(images.files, x, strict=True):  # type: ignore[attr-defined]
        assert torch.equal(read_image(file, (3, 28, 28), framing).x, expected)


@pytest.mark.parametrize("mode", ["L", "RGB", "1", "P", "LA", "I;16"])
def test_any_image_becomes_one_of_the_shape(mode: str, tmp_path: Path) -> None:
    pixels = np.arange(12 * 9, dtype=np.uint8).reshape(9, 12)
    image = Image.fromarray(pixels)
    if mode == "I;16":
        image = Image.fromarray(pixels.astype(np.uint16) << 8)
    elif mode != "L":
        image = image.convert(mode)
    image.save(tmp_path / "x.png")
    found = read_image(tmp_path / "x.png", (1, 9, 12))
    assert (found.width, found.height, tuple(found.x.shape)) == (12, 9, (1, 9, 12))
    if mode in ("L", "RGB", "LA"):  # the pixels themselves
        assert torch.equal(found.x[0], torch.from_numpy(pixels).float() / 255)
    assert tuple(read_image(tmp_path / "x.png", (3, 7, 5)).x.shape) == (3, 7, 5)
    turned = Image.Exif()
    turned[0x0112] = 6  # taken with the camera on its side
    if mode in ("L", "RGB"):
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=turned)
        assert torch.equal(read_image(tmp_path / "turned.png", (1, 9, 12)).x, found.x)
        image.save(tmp_path / "turned.png", exif=turned)
        expected = image.transpose(Image.Transpose.ROTATE_270).resize((12, 9)).convert("L")
        seen = read_image(tmp_path / "turned.png", (1, 9, 12))
        assert (seen.width, seen.height) == (9, 12)
        assert np.array_equal((255 * seen.x[0]).round().byte().numpy(), np.asarray(expected))
    with pytest.raises(InputError, match="with 1 or 3 channels, not 2"):
        read_image(tmp_path / "x.png", (2, 9, 12))
    with pytest.raises(InputError, match="a crop of 28 does not give 30 x 28 pixels"):
        read_image(tmp_path / "x.png", (3, 28, 30), Framing(32, 28))


@pytest.mark.parametrize("seed", [0, 2])
def test_an_attack_changes_what_a_linear_model_cannot_hold(seed: int) -> None:
    """z1 - z0 = w x + b moves by eps |w|_1 at most."""
    net = Linear(2, seed=seed)
    x = 0.3 + 0.4 * torch.rand(20, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    margin = (net(x) @ torch.tensor([-1.0, 1.0])).detach()
    w = (net.fc.weight[1] - net.fc.weight[0]).detach()
    holds = margin.abs() > BALL.eps * float(w.abs().sum())
    assert 0 < holds.sum() < len(x)
    found = predict(net, x, ("no", "yes"), top=5, ball=BALL)
    assert [p.classes[0] == p.attacked for p in found] == holds.tolist()
    for p, z in zip(found, net(x), strict=True):
        assert p.classes == (("no", "yes") if z[0] > z[1] else ("yes", "no"))
        assert sum(p.probabilities) == pytest.approx(1)


def test_a_table_has_one_row_per_image(home: Path, amata: Amata) -> None:
    called = amata("predict", "photos.safetensors", "images/cat/0.png", "images/dog")
    assert (called.code, called.err) == (0, "")
    title, *rows = called.out.splitlines()
    assert title.split() == ["file", "class", "probability"]
    files = ["images/cat/0.png", "images/dog/0.png", "images/dog/1.png"]
    assert [row.split()[0] for row in rows] == files
    net: Any = library.load("photos.safetensors")
    x = torch.stack([read_image(f, (3, 28, 28), Framing(32, 28)).x for f in files])
    p, best = net(x).softmax(1).max(1)
    expected = [[net.classes[c], f"{v:.1%}"] for c, v in zip(best, p.tolist(), strict=True)]
    assert [row.split()[1:] for row in rows] == expected


def test_the_header_names_attack_and_eps(home: Path, amata: Amata) -> None:
    arguments = ["predict", "photos.safetensors", "images", "--robust", "--top", "9"]
    called = amata(*arguments)
    assert called.code == 0, called.err
    eps = "8/255"  # of the recipe
    assert called.out.splitlines()[0].endswith(f"under pgd-50, L∞ {eps}")
    assert len(called.out.splitlines()) == 1 + 4 * 2
    assert all(len(line) <= 80 for line in called.out.splitlines())
    found = json.loads(amata(*arguments, "--json").out)
    assert found["attack"] == f"pgd-50, L∞ {eps}"
    smaller = json.loads(amata(*arguments, "--eps", "1/255", "--json").out)
    assert smaller["attack"] == "pgd-50, L∞ 1/255"
    for image in found["images"]:
        assert image["robust"] == (image["attacked"] == image["class"])
        assert image["top"][0]["class"] == image["class"]
        assert len(image["top"]) == 2


def test_another_size_is_a_note(home: Path, tmp_path: Path, amata: Amata) -> None:
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "digit.png")
    arguments = ["predict", "digits.safetensors", tmp_path / "digit.png"]
    assert "note" not in amata(*arguments).err
    called = amata(*arguments, "images/cat")
    assert called.code == 0, called.err
    assert "note: 2 of 3 images had another size and were resized to 28 x 28" in called.err


def test_unreadable_images_are_named_and_the_others_predicted(
    home: Path, tmp_path: Path, amata: Amata
) -> None:
    folder = shutil.copytree(home / "images", tmp_path / "images")
    for name in ("a.png", "b\x1b[31m.jpg"):
        (folder / name).write_text("not an image")
    for name in ("Thumbs.db", ".hidden.png", "notes.txt"):
        (folder / name).touch()
    called = amata("predict", "photos.safetensors", folder, "--json")
    assert called.code == 1
    found = json.loads(called.out)
    assert len(found["images"]) == 4
    assert found["unreadable"] == [str(folder / "a.png"), str(folder / "b\x1b[31m.jpg")]
    (line,) = called.err.splitlines()
    assert line.startswith(f"error: 2 of 6 images cannot be read: {folder / 'a.png'}, ")
    assert line.isprintable()
    called = amata("predict", "photos.safetensors", folder / "a.png")
    assert (called.code, called.out) == (1, "")
    assert called.err.startswith("error: 1 of 1 images cannot be read: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photos.safetensors", "nowhere.png"], "no image or folder at nowhere.png"),
        (["photos.safetensors", "."], ""),
        (["nowhere", "images"], "no run folder or weights file at nowhere"),
        (["photos.safetensors"], "Missing argument"),
        (["photos.safetensors", "images", "--top", "0"], "--top"),
        (["images/cat/0.png", "images"], "is an image; the run comes first"),
        (["photos.safetensors", "images", "--eps", "1/255"], "add --robust"),
        (["photos.safetensors", "images", "--robust", "--eps", "8"], 'did you mean "8/255"?'),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], message: str, amata: Amata) -> None:
    called = amata("predict", *arguments)
    assert called.code == (2 if message else 0)
    assert message in called.err
    assert called.err.count("\n") == (1 if message else 0)


def test_a_network_that_diverged_is_one_line(home: Path, tmp_path: Path, amata: Amata) -> None:
    file = weights_file(tmp_path / "w.safetensors", "mnist5k-amata", [], ["a", "b"], 28)
    net = library.load(file)
    about = {**json.loads(json.dumps(net.recipe.deciding()))}  # type: ignore[union-attr,operator]
    state = {name: t * torch.nan for name, t in net.state_dict().items()}
    sizes = {"classes": ["a", "b"], "shape": [1, 28, 28]}
    save_tensors(file, state, {"recipe": "x", "tables": about, **sizes})
    called = amata("predict", file, "images")
    assert called.code == 2
    assert "error: the logits of the model are not finite" in called.err
