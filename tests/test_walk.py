"""A user's walk from a folder of odd images to a model that other programs use: each command in a
process of its own, and the images gone at the end."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ENV

SMALL = [
    *("--set", "model.name=tinycnn", "--set", "model.args={}", "--set", "model.mean=[0.5,0.5,0.5]"),
    *("--set", "model.std=[0.25,0.25,0.25]", "--set", "data.resize=28", "--set", "data.crop=28"),
    *("--set", "data.workers=0", "--set", 'eval.attacks=["clean","pgd-2"]', "--epochs", "1"),
]


def write_photos(root: Path) -> None:
    """Two classes by brightness: images of many sizes and modes, and files that are none."""
    rng = np.random.default_rng(0)
    for label, (name, base) in enumerate({"day": 150, "night": 20}.items()):
        folder = root / name
        folder.mkdir(parents=True)
        for number in range(40):
            side = int(rng.integers(24, 60))
            pixels = rng.integers(base, base + 80, size=(side, side + label, 3), dtype=np.uint8)
            image = Image.fromarray(pixels)
            if number % 8 == 1:
                image = image.convert("L")
            elif number % 8 == 3:
                image = image.convert("RGBA")
            elif number % 8 == 5:
                image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
            image.save(folder / f"{number:02d}.png")
        (folder / "Thumbs.db").write_bytes(b"x")
    (root / "day" / "half.png").write_bytes((root / "day" / "00.png").read_bytes()[:200])
    (root / "night" / "notes.txt").write_text("not an image")


@pytest.mark.slow
def test_from_a_folder_of_odd_images_to_a_model_elsewhere(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    shutil.copy(tmp_path / "photos" / "day" / "02.png", tmp_path / "mine.png")

    def amata(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        called = subprocess.run(
            [sys.executable, "-m", "amata", *arguments],
            cwd=tmp_path,
            env=ENV,
            capture_output=True,
            text=True,
        )
        assert called.returncode == code, called.stderr
        return called

    checked = amata("data", "check", "photos", code=2)
    assert "half.png" in checked.stdout
    assert "notes.txt" in checked.stdout
    assert "--skip-bad" in checked.stderr
    assert amata("init", "photos", code=2).stderr.count("\n") == 1
    assert "amata train photos.toml" in amata("init", "photos", "--skip-bad").stdout
    summary = json.loads(amata("train", "photos.toml", *SMALL, "--out", "run", "--json").stdout)
    assert summary["epochs"] == 1

    evaluated = json.loads(amata("eval", "run", "--attacks", "clean,pgd-3", "--json").stdout)
    assert evaluated["pgd-3"]["n"] == 16
    assert "pgd-3" in json.dumps(
        [json.loads(file.read_text()) for file in (tmp_path / "run" / "evaluations").glob("*.json")]
    )
    amata("audit", "run", "--attacks", "clean,pgd-2,cw-pgd-2", "--out", "audit")
    assert "night" in (tmp_path / "audit" / "audit.html").read_text()

    shutil.rmtree(tmp_path / "photos")  # what follows needs no data
    predicted = json.loads(amata("predict", "run", "mine.png", "--robust", "--json").stdout)
    (image,) = predicted["images"]
    assert image["class"] in ("day", "night")
    amata("export", "run", "--to", "hf", "--out", "exported")
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import amata, torch\n"
            "a, b = amata.load('run'), amata.load('exported')\n"
            "x = torch.rand(2, 3, 28, 28)\n"
            "assert torch.equal(a(x), b(x)) and not a.training\n"
            "print(a.classes, b.classes, a.recipe.data.name)",
        ],
        cwd=tmp_path,
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert loaded.stdout == "('day', 'night') ('day', 'night') folder\n", loaded.stderr
