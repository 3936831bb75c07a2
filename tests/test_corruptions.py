"""Corruption sets: accuracy per corruption and severity is exact, odd folders are one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import amata as library
from amata.data.corruptions import EXTRA, STANDARD, find_corruptions, open_corruptions
from amata.errors import InputError
from amata.evaluation import Shard, wilson
from amata.evaluation.corruptions import evaluate_corruptions, is_attack
from tests.published import write_cifar100

N = 8
LABELS = np.arange(N) % 4
SHAPE = (3, 32, 32)


def right(corruption: int, severity: int) -> np.ndarray:
    """Which images the toy model gets right: fewer at higher severities."""
    return np.arange(N) < max(0, N - severity - corruption % 3)


def write(folder: Path, names: tuple[str, ...] = (*STANDARD, *EXTRA)) -> Path:
    """Images whose first pixel is their label, or another one where the model is to be wrong."""
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        x = np.zeros((5, N, 32, 32, 3), np.uint8)
        for severity in range(1, 6):
            wrong = ~right(number, severity)
            x[severity - 1, :, 0, 0, 0] = (LABELS + wrong) % 4
        np.save(folder / f"{name}.npy", x.reshape(5 * N, 32, 32, 3))
    np.save(folder / "labels.npy", np.tile(LABELS, 5))
    return folder


class FirstPixel(nn.Module):
    """Predicts the value of the first pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot((255 * x[:, 0, 0, 0]).round().long(), 4).float()


@pytest.mark.parametrize("names", [STANDARD, (*STANDARD, *EXTRA)], ids=["standard", "all"])
@pytest.mark.parametrize(("name", "n"), [("corruptions", N), ("corruptions@5", 5)])
def test_accuracies_are_exact(tmp_path: Path, names: tuple[str, ...], name: str, n: int) -> None:
    images = open_corruptions(write(tmp_path / "c", names), SHAPE, 4)
    seen: list[tuple[str, int, int]] = []
    result = evaluate_corruptions(
        FirstPixel(), images, name=name, batch_size=3, progress=lambda *row: seen.append(row)
    )
    outcomes = np.array([[right(i, s)[:n] for s in range(1, 6)] for i in range(len(names))])
    standard = outcomes[:15]
    assert result.accuracy == pytest.approx(standard.mean())
    assert (result.n, result.grad_evals, seen[-1]) == (n, 0, (name, n, n))
    shares = standard.mean((0, 1))
    half = 1.959964 * shares.std() / np.sqrt(n)
    assert (result.low, result.high) == pytest.approx(
        (max(0, shares.mean() - half), min(1, shares.mean() + half))
    )
    table = result.params["by_corruption"]
    assert list(table) == list(names)
    for number, corruption in enumerate(names):
        assert table[corruption]["counted"] == (corruption in STANDARD)
        assert table[corruption]["accuracy"] == pytest.approx(outcomes[number].mean())
        for row, found in zip(outcomes[number], table[corruption]["severities"], strict=True):
            low, high = wilson(int(row.sum()), n)
            assert found == {"accuracy": row.mean(), "n": n, "low": low, "high": high}


def test_processes_together_give_the_same(tmp_path: Path) -> None:
    """Two processes in turn: their sums are added by hand."""
    images = open_corruptions(write(tmp_path / "c"), SHAPE, 4)
    whole = evaluate_corruptions(FirstPixel(), images, batch_size=3)
    sums: list[list[list[float]]] = []
    for rank in range(2):
        mine: list[list[float]] = []

        def keep(values: Any, mine: list[list[float]] = mine) -> list[float]:
            mine.append(list(values))
            return list(values)

        evaluate_corruptions(FirstPixel(), images, batch_size=3, part=Shard(rank, 2, keep))
        sums.append(mine)
    pairs = zip(*sums, strict=True)
    added = iter([[a + b for a, b in zip(one, two, strict=True)] for one, two in pairs])
    joined = evaluate_corruptions(
        FirstPixel(), images, batch_size=3, part=Shard(0, 2, lambda _: next(added))
    )
    assert (joined.accuracy, joined.low, joined.high) == (whole.accuracy, whole.low, whole.high)
    assert joined.params == whole.params


def test_a_perfect_model_has_an_interval_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    x = np.zeros((5, N, 32, 32, 3), np.uint8)
    x[..., 0, 0, 0] = LABELS
    for name in STANDARD:
        np.save(folder / f"{name}.npy", x.reshape(-1, 32, 32, 3))
    result = evaluate_corruptions(FirstPixel(), open_corruptions(folder, SHAPE, 4))
    assert (result.accuracy, result.low, result.high) == (1, *wilson(N, N))


def test_logits_that_are_not_finite_are_wrong_and_said(tmp_path: Path) -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x), 4), torch.nan)

    result = evaluate_corruptions(Nothing(), open_corruptions(write(tmp_path / "c"), SHAPE, 4))
    assert (result.accuracy, result.non_finite) == (0, 75 * N)
    assert "600 of 600 images are not finite" in result.warnings[0]


def save(name: str, array: Any, **options: Any) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / name, array, **options)


def claim(folder: Path) -> None:
    """A header of an array of 2^60 bytes."""
    path = folder / "fog.npy"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(40, 32, 32, 3)", b"(1<<60, )".ljust(15)))


def header(text: bytes) -> Callable[[Path], object]:
    """Another shape in the header, of the same length."""

    def change(folder: Path) -> None:
        path = folder / "fog.npy"
        path.write_bytes(path.read_bytes().replace(b"(40, 32, 32, 3)", text.ljust(15)))

    return change


def claim_much(folder: Path) -> None:
    path = folder / "fog.npy"
    path.write_bytes(path.read_bytes().replace(b"(40, 32, 32, 3)", b"(99999999999,) "))


def fifo(folder: Path) -> None:
    (folder / "labels.npy").unlink()
    os.mkfifo(folder / "labels.npy")


def remove_two(folder: Path) -> None:
    for name in ("fog.npy", "snow.npy"):
        (folder / name).unlink()


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a corruption is absent": (lambda f: (f / "fog.npy").unlink(), "has no fog.npy; fetch"),
    "two are absent": (
        remove_two,
        "has no snow.npy and 1 others",
    ),
    "a pickle": (
        save("labels.npy", np.array([{}], object), allow_pickle=True),
        "labels.npy is truncated or not a .npy file of numbers",
    ),
    "a zip file": (
        lambda f: (f / "fog.npy").write_bytes(b"PK\x03\x04" + bytes(99)),
        "fog.npy is truncated or not a .npy file",
    ),
    "truncated": (
        lambda f: (f / "fog.npy").write_bytes((f / "fog.npy").read_bytes()[:-1]),
        "fog.npy is truncated",
    ),
    "code in the header": (claim, "fog.npy is truncated or not"),
    "an unclosed header": (header(b"((40, 32, 32, 3"), "fog.npy is truncated or not"),
    "a shape of no numbers": (header(b"(True, 32, 3)"), "fog.npy is truncated or not"),
    "a claim of many bytes": (claim_much, "fog.npy is truncated or not"),
    "floats": (save("fog.npy", np.zeros((40, 32, 32, 3))), "fog.npy has float64 of shape"),
    "another size": (save("fog.npy", np.zeros((40, 8, 8, 3), np.uint8)), r"shape \(40, 8, 8, 3\)"),
    "fewer": (save("fog.npy", np.zeros((39, 32, 32, 3), np.uint8)), r"not uint8 of \(40, 32"),
    "a scalar": (save("labels.npy", np.array(3)), "does not hold labels of 5 severities"),
    "labels of 4 severities": (save("labels.npy", np.tile(LABELS, 4)), "labels of 5 severities"),
    "labels of text": (save("labels.npy", np.array(["a"] * 40)), "labels of 5 severities"),
    "unequal labels": (save("labels.npy", np.arange(40) % 3), "severities have different labels"),
    "labels out of range": (save("labels.npy", np.full(40, 4)), r"labels are in \[4, 4\], outside"),
    "a fifo": (fifo, "labels.npy is not a file"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_a_bad_set_is_one_line(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    folder = write(tmp_path / "c")
    change(folder)
    with pytest.raises(InputError, match=rf"^[^\n]*{message}[^\n]*$"):
        open_corruptions(folder, SHAPE, 4)


@pytest.mark.parametrize("place", ["CIFAR-100-C", "cifar100-c/CIFAR-100-C", "../CIFAR-100-C"])
def test_the_folder_is_found(tmp_path: Path, place: str) -> None:
    root = tmp_path / "data"
    root.mkdir()
    folder = write((root / place).resolve())
    assert find_corruptions("cifar100", [tmp_path / "no" / "where", root]).resolve() == folder
    assert find_corruptions("mnist", [], str(folder)) == folder


def test_names_of_evaluations() -> None:
    assert not is_attack("corruptions")
    assert not is_attack(" corruptions@100 ")
    assert is_attack("corruptions@0")
    assert is_attack("pgd-20")


def test_they_are_not_an_attack_on_given_images() -> None:
    x, y, ball = torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), library.Linf(0.1)
    for call in (library.evaluate, library.audit):
        with pytest.raises(InputError, match=r"corruptions are other images, .*`amata eval RUN"):
            call(hundred(), (x, y), ball=ball, attacks="clean,corruptions@5")


def test_the_commands_show_corruptions(tmp_path: Path, amata: Callable[..., Any]) -> None:
    root = tmp_path / "data"
    (root / "cifar100").mkdir(parents=True)
    write_cifar100(root / "cifar100")
    sets = [
        *("data.name=cifar100", f"data.root={root}", "model.name=tests.test_corruptions:hundred"),
        *("train.epochs=1", "data.valid=0", "train.device=cpu", "train.tensorboard=false"),
        *("method.name=erm", "data.batch_size=4"),
    ]
    options = [word for text in sets for word in ("--set", text)]
    train = ("train", "mnist5k-pgd", *options, "--set", "eval.attacks=['clean','corruptions']")
    called = amata(*train, "--out", tmp_path / "run")
    assert (called.code, called.err.count("\n")) == (2, 1)  # before it trains
    assert "no folder CIFAR-100-C in " in called.err
    assert "`amata data fetch cifar100-c`" in called.err
    write(root / "cifar100-c" / "CIFAR-100-C")
    assert amata("data", "check", "cifar100-c", "--root", root).out == (
        "cifar100-c: 8 images of (3, 32, 32), 19 corruptions of 5 severities\n"
    )
    called = amata(*train, "--out", tmp_path / "run")
    assert called.code == 0, called.err
    assert "15 corruptions, severity 1 to 5" in called.out
    called = amata("eval", tmp_path / "run", "--attacks", "corruptions@4", "--json")
    result = json.loads(called.out)
    assert list(result) == ["corruptions@4"]
    assert result["corruptions@4"]["n"] == 4
    assert len(result["corruptions@4"]["params"]["by_corruption"]["fog"]["severities"]) == 5
    called = amata("data", "check", "cifar10-c", "--root", root)
    assert (called.code, called.err.count("\n")) == (2, 1)
    called = amata("train", "cifar10-pgd2", "--set", "data.name=cifar10-c", "--out", tmp_path / "b")
    assert "data cifar10-c is for evaluation: train on cifar10" in called.err


def hundred() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 100))
