"""Data in every form that Python knows: fit and evaluate read the same images from each."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import amata
from amata.data import Arrays, Loader, MapStyle, as_images, read_image
from amata.data.convert import to_batch
from amata.errors import InputError
from amata.runs import RunFolder
from tests.conftest import small_net
from tests.toy import StopAt

CPU = torch.device("cpu")
N = 24
BALL = amata.Linf(0.05)
SETTINGS: dict[str, Any] = {
    "method": amata.PGD(ball=BALL),
    "schedule": amata.Constant(steps=1, step_size=0.05),
    "optim": amata.SGD(lr=0.02),
    "epochs": 2,
    "device": "cpu",
    "progress": False,
}


def bytes_and_labels(n: int = N) -> tuple[Tensor, Tensor]:
    """Grey images of 6 x 6 bytes in two classes of different brightness."""
    y = torch.arange(n) % 2
    rng = torch.Generator().manual_seed(n)
    return (torch.randint(0, 50, (n, 1, 6, 6), generator=rng) + 150 * y.view(-1, 1, 1, 1)).byte(), y


X, Y = bytes_and_labels()
FLOATS = X.float() / 255
PICTURES = [Image.fromarray(x[0].numpy()) for x in X]


class Items(Dataset[Any]):
    """A map-style dataset of any items."""

    def __init__(self, item: Callable[[int], Any], n: int = N) -> None:
        self.item, self.n = item, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


class Shown:
    """Like a dataset of Hugging Face: items by number, iterable, with columns."""

    column_names = ("image", "label")

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": PICTURES[i], "label": int(Y[i])}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(N))


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(FLOATS, Y, strict=True))


def cut(*parts: Any) -> list[Any]:
    """Batches of eight."""
    return [tuple(part[i : i + 8] for part in parts) for i in range(0, N, 8)]


SETS: dict[str, Callable[[], Any]] = {
    "float tensors": lambda: (FLOATS, Y),
    "byte tensors": lambda: (X, Y),
    "arrays": lambda: (FLOATS.double().numpy(), Y.numpy()),
    "read-only bytes": lambda: (np.frombuffer(X.numpy().tobytes(), np.uint8).reshape(X.shape), Y),
    "channels last": lambda: (X.permute(0, 2, 3, 1).numpy(), Y.numpy().astype(np.int32)),
    "channels last floats": lambda: (FLOATS.permute(0, 2, 3, 1), Y),
    "grey arrays": lambda: (X[:, 0].numpy(), Y.numpy()[:, None]),
    "16 bits": lambda: (X[:, 0].numpy().astype(np.uint16) * 257, Y),
    "PIL images": lambda: (PICTURES, Y.tolist()),
    "a dict of arrays": lambda: {"pixel_values": X, "labels": Y},
    "TensorDataset": lambda: TensorDataset(FLOATS, Y),
    "Dataset": lambda: Items(lambda i: (FLOATS[i], int(Y[i]))),
    "Dataset of bytes": lambda: Items(lambda i: (X[i], Y[i])),
    "Dataset of PIL images": lambda: Items(lambda i: (PICTURES[i], np.int64(Y[i]))),
    "Dataset of dicts": lambda: Items(lambda i: {"img": X[i].numpy(), "label": Y[i].numpy()}),
    "Subset": lambda: Subset(Items(lambda i: (X[i], int(Y[i]))), range(N)),
    "Hugging Face": Shown,
    "items": lambda: [(FLOATS[i], int(Y[i])) for i in range(N)],
    "dict items": lambda: [{"image": PICTURES[i], "label": int(Y[i])} for i in range(N)],
}
BATCHES: dict[str, Callable[[], Any]] = {
    "tuples": lambda: cut(FLOATS, Y),
    "bytes": lambda: cut(X, Y.int()),
    "arrays last": lambda: cut(X.permute(0, 2, 3, 1).numpy(), Y.numpy()),
    "dicts": lambda: [{"x": x, "y": y} for x, y in cut(FLOATS, Y)],
    "lists of PIL images": lambda: [[PICTURES[i : i + 8], Y[i : i + 8]] for i in range(0, N, 8)],
    "DataLoader": lambda: DataLoader(TensorDataset(X, Y), batch_size=8),
    "DataLoader of dicts": lambda: DataLoader(
        Items(lambda i: {"image": X[i], "label": int(Y[i])}), batch_size=8
    ),
    "iterable DataLoader": lambda: DataLoader(Streamed(), batch_size=8),
    "a function": lambda: lambda: iter(cut(FLOATS, Y)),
    "a generator": lambda: (batch for _ in range(2) for batch in cut(FLOATS, Y)),
}


@pytest.fixture(scope="module")
def from_tensors() -> amata.Fitted:
    return amata.fit(small_net(), (FLOATS, Y), (FLOATS, Y), batch_size=8, **SETTINGS)


@pytest.fixture(scope="module")
def from_batches() -> amata.Fitted:
    return amata.fit(small_net(), cut(FLOATS, Y), cut(FLOATS, Y), **SETTINGS)


def same(a: amata.Fitted, b: amata.Fitted) -> bool:
    return all(map(torch.equal, a.model.state_dict().values(), b.model.state_dict().values()))


@pytest.mark.parametrize("form", SETS)
def test_image_sets_of_every_form_train_to_the_same_weights(
    form: str, from_tensors: amata.Fitted
) -> None:
    data = SETS[form]()
    fitted = amata.fit(small_net(), data, data, batch_size=8, **SETTINGS)
    assert same(fitted, from_tensors)
    assert [row["valid"] for row in fitted.epochs] == [row["valid"] for row in from_tensors.epochs]
    found = amata.evaluate(fitted.model, data, ball=BALL, attacks="pgd-2", batch_size=8)["pgd-2"]
    plain = amata.evaluate(fitted.model, (FLOATS, Y), ball=BALL, attacks="pgd-2", batch_size=8)
    assert (found.accuracy, found.n) == (plain["pgd-2"].accuracy, N)


@pytest.mark.parametrize("form", BATCHES)
def test_batches_of_every_form_train_to_the_same_weights(
    form: str, from_batches: amata.Fitted
) -> None:
    make, unknown = BATCHES[form], form in ("iterable DataLoader", "a function", "a generator")
    settings = SETTINGS | ({"batches_per_epoch": 3} if unknown else {})
    valid = (FLOATS, Y) if form == "a generator" else make()
    fitted = amata.fit(small_net(), make(), valid, **settings)
    assert same(fitted, from_batches)
    found = amata.evaluate(fitted.model, make(), ball=BALL, attacks="clean", limit=N)["clean"]
    kept = fitted.epochs[fitted.best_epoch or 0]["valid"]["clean"]
    assert (found.accuracy, found.n) == (kept, N)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((5, 32, 32, 3), (3, 32, 32)),
        ((5, 3, 32, 32), (3, 32, 32)),
        ((5, 1, 4, 4), (1, 4, 4)),
        ((5, 64, 1, 1), (64, 1, 1)),
        ((5, 28, 28, 1), (1, 28, 28)),
        ((5, 28, 28), (1, 28, 28)),
        ((5, 3, 32, 3), None),
    ],
)
def test_channels_are_found_first_or_last(
    shape: tuple[int, ...], found: tuple[int, ...] | None
) -> None:
    x, y = np.zeros(shape, np.uint8), np.zeros(5, int)
    if found is None:
        with pytest.raises(InputError, match=r"may be \(N, C, H, W\) or \(N, H, W, C\)"):
            Arrays(x, y)
        return
    assert Arrays(x, y).shape == to_batch((x, y), "")[0].shape[1:] == found


def test_colours_that_are_mixed_become_three_channels() -> None:
    modes = ["RGB", "L", "P", "RGBA", "1", "CMYK"]
    items = [(Image.new("RGB", (7, 5), (10, 200, 30)).convert(mode), 0) for mode in modes]
    images = as_images(items)
    assert images.shape == (3, 5, 7)
    x, _ = next(images.read([torch.arange(6)], CPU, None))
    assert torch.allclose(x[0], x[3])
    assert torch.equal(x[1, 0], x[1, 2])


def test_a_pil_image_is_read_as_its_file_is(tmp_path: Path) -> None:
    """Transparent pixels on white, and turned as the camera says."""
    clear = Image.new("RGBA", (7, 5), (10, 200, 30, 0))
    turned = Image.new("RGB", (5, 7), (10, 200, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    clear.save(tmp_path / "clear.png")
    turned.save(tmp_path / "turned.png", exif=exif)
    for name in ("clear", "turned"):
        path = tmp_path / f"{name}.png"
        with Image.open(path) as image:
            x, _ = next(as_images([(image, 0)]).read([torch.arange(1)], CPU, None))
        assert torch.equal(x[0], read_image(path, (3, 5, 7)).x), name


def test_the_classes_of_a_dataset_are_not_counted_by_reading_it(tmp_path: Path) -> None:
    read: list[int] = []

    def item(i: int) -> tuple[Tensor, int]:
        read.append(i)
        return FLOATS[i], int(Y[i])

    own = {**SETTINGS, "epochs": 1, "guard": "ignore"}  # the guard reads images of its own
    amata.fit(small_net(), Items(item), run=tmp_path / "run", **own)
    assert len(read) < 2 * N, "one epoch, and a few images to look at"


def noisy(i: int) -> tuple[Tensor, int]:
    """An item with a transform that draws from every global generator."""
    noise = torch.rand(()) + float(np.random.rand()) + random.random()
    return (FLOATS[i] * noise / 3).clamp(0, 1), int(Y[i])


def test_random_transforms_depend_on_seed_and_epoch_but_not_on_workers() -> None:
    def read(workers: int, seed: int | None, epoch: int, start: int = 0) -> Tensor:
        loader = Loader(MapStyle(Items(noisy), workers), 8, CPU, seed=seed)
        return torch.cat([batch.x for batch in loader.epoch(epoch, start)])

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    first = read(0, 1, 0)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    assert torch.equal(read(2, 1, 0), first)
    assert torch.equal(read(0, 1, 0, start=2), first[16:])
    for seed, epoch in ((2, 0), (1, 1)):
        assert not torch.equal(read(0, seed, epoch), first)


def test_class_names_of_a_dataset_are_used_and_others_are_counted() -> None:
    named = Items(lambda i: (X[i], int(Y[i])))
    named.classes = ["cat", "dog", "owl"]  # type: ignore[attr-defined]
    assert as_images(Subset(named, [0, 1])).names == ("cat", "dog", "owl")
    assert as_images(Items(lambda i: (X[i], int(Y[i])))).classes == 2


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (10**15, "labels go up to 1000000000000000, and at most 100000 classes"),
        (2**70, "labels? .*must be .*whole number"),
    ],
)
def test_labels_that_number_something_else_are_refused(label: int, message: str) -> None:
    items = [(torch.rand(1, 6, 6), 0), (torch.rand(1, 6, 6), label)]
    with pytest.raises(InputError, match=message):
        _ = MapStyle(items).names
    with pytest.raises(InputError, match=message):
        Arrays(torch.rand(2, 1, 6, 6), [0, label])


def test_an_epoch_has_the_batches_that_it_is_said_to_have() -> None:
    """A short iterable begins again, a long one is cut, an iterator may end too soon."""
    for given, images in ((2, 16), (3, 24), (5, 40)):
        fitted = amata.fit(small_net(), cut(FLOATS, Y), batches_per_epoch=given, **SETTINGS)
        assert fitted.images == 2 * images
    with pytest.raises(InputError, match=r"ended after 1 of 2 batches of epoch 2: an iterator"):
        amata.fit(small_net(), iter(cut(FLOATS, Y)), batches_per_epoch=2, **SETTINGS)
    with pytest.raises(InputError, match=r"ended after 0 of 2 batches of epoch 1"):
        amata.fit(small_net(), [], batches_per_epoch=2, **SETTINGS)


@pytest.mark.parametrize("form", ["Dataset", "a generator"])
def test_a_run_resumes_in_the_middle_of_an_epoch(form: str, tmp_path: Path) -> None:
    options = SETTINGS | (
        {"batches_per_epoch": 3} if form == "a generator" else {"batch_size": 8, "workers": 1}
    )
    make = BATCHES[form] if form in BATCHES else partial(Items, noisy)
    whole = amata.fit(small_net(), make(), **options)
    with pytest.raises(amata.Interrupted):
        amata.fit(small_net(), make(), run=tmp_path / "run", **options | {"progress": StopAt(1, 2)})
    resumed = amata.fit(small_net(), make(), resume=tmp_path / "run", **options)
    assert same(resumed, whole)


def test_a_share_or_a_number_is_held_out_and_the_rest_is_limited(tmp_path: Path) -> None:
    options = SETTINGS | {"batch_size": 8, "epochs": 1}
    for valid, limit, counts in (
        (0.25, None, (18, 6)),
        (5, None, (19, 5)),
        (6, 10, (10, 6)),
        (0.25, 8, (8, 2)),
        ((FLOATS, Y), 10, (10, 24)),
    ):
        run = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        fitted = amata.fit(
            small_net(), Items(lambda i: (X[i], int(Y[i]))), valid, limit=limit, run=run, **options
        )
        data = RunFolder.open(run)[1].tables["data"]
        assert (data["count"], data["valid"]) == counts
        assert fitted.epochs[0]["valid_n"] == counts[1]
        again = amata.fit(
            small_net(), Items(lambda i: (X[i], int(Y[i]))), valid, resume=run, **options
        )
        assert same(fitted, again)
    for given in ({"valid": 0.1}, {"limit": 5}):
        with pytest.raises(InputError, match="single images"):
            amata.fit(small_net(), cut(FLOATS, Y), **given, **SETTINGS)
