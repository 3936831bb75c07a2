"""Time the reading of image folders: synthetic JPEGs of 500 x 375 pixels, ImageNet's usual size.

All pipelines decode the same files with the same transforms, in batches on the device, images in
[0, 1]: `train` is a random-resized crop to 224 pixels and a flip, `test` a resize to 256 and a
centre crop.
    amata        our image folders: bytes in worker processes, floats and flips on the device
    torchvision  ImageFolder, its transforms and a DataLoader, where torchvision is installed
    reference    the same written by hand: Pillow and a float tensor per image, in a DataLoader
Files are in the page cache. The start of the workers is not counted: the clock runs from the first
batch of every worker on.
"""

import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from amata.cores import cores
from amata.data import Folder, Framing, Loader
from amata.data.folder import load_folder
from amata.data.workers import ignore_interrupts
from amata.errors import InputError, missing
from amata.quantity import number
from amata.seeds import generator
from amata.studies.bench import MAX_SECONDS

WIDTH, HEIGHT, QUALITY = 500, 375, 90
PICTURES, BATCH = 64, 64
TRIALS = 3
Row = dict[str, Any]
Pipeline = Callable[[Folder, bool, int, torch.device], Iterator[Tensor]]
"""From the images, whether they are for training, the number of workers and the device: batches."""


def bench_data(
    device: torch.device,
    *,
    workers: Sequence[int] = (),
    seconds: float = 2.0,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """One row per transform, number of workers (one, and as many as cores) and pipeline. `ratio` is
    the speed divided by that of torchvision, or of the reference without it."""
    if not 0 < number(seconds, "seconds") <= MAX_SECONDS:
        raise InputError(f"seconds = {seconds:g} must be above 0 and at most {MAX_SECONDS:,}")
    try:
        import PIL
    except ImportError:
        raise missing("pillow", "bench --data", "images") from None
    pipelines: dict[str, Pipeline] = {"reference": _reference, "amata": _amata}
    versions = {"torch": torch.__version__, "pillow": PIL.__version__}
    with suppress(ImportError, RuntimeError):  # RuntimeError: of another version of torch
        import torchvision

        pipelines = {"torchvision": _torchvision, **pipelines}
        versions["torchvision"] = torchvision.__version__
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="amata-bench-") as folder:
        size = write_pictures(Path(folder))
        images = load_folder(Path(folder), Framing(256, 224), 0, 0.2).train
        for train in (True, False):
            for count in workers or sorted({1, cores()}):
                speeds = _speeds(pipelines, images, train, count, device, seconds)
                base = speeds.get("torchvision") or speeds["reference"]
                for name, speed in speeds.items():
                    part = "train" if train else "test"
                    rows.append(
                        {
                            "pipeline": name,
                            "transform": part,
                            "workers": count,
                            "images_per_second": speed,
                            "images_per_second_per_core": speed / count,
                            "ratio": speed / base,
                        }
                    )
                    note(f"{part}, {count} workers, {name}: {speed:,.0f} images/s")
    about = {"device": str(device), "cores": cores(), "bytes_per_image": size, "batch": BATCH}
    return {**about, "versions": versions, "rows": rows}


def write_pictures(folder: Path, count: int = PICTURES) -> float:
    """Two classes of pictures with detail of every scale, in train and val: their mean size."""
    from PIL import Image

    rng, sizes = np.random.default_rng(0), []
    for index in range(count):
        pixels = rng.normal(128, 8, (HEIGHT, WIDTH, 3))
        for cells, strength in ((8, 60), (32, 40), (128, 25)):
            coarse = rng.integers(0, 256, (cells, cells, 3), np.uint8)
            smooth = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT)))
            pixels += (smooth.astype(np.float64) - 128) * strength / 128
        file = io.BytesIO()
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(file, "JPEG", quality=QUALITY)
        for part in ("train", "val") if index < 2 else ("train",):
            place = folder / part / f"class{index % 2}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{index}.jpg").write_bytes(file.getvalue())
        sizes.append(file.tell())
    return float(np.mean(sizes))


def _speeds(
    pipelines: dict[str, Pipeline],
    images: Folder,
    train: bool,
    workers: int,
    device: torch.device,
    seconds: float,
) -> dict[str, float]:
    """Images per second of each pipeline: the best of several trials that take turns, so that other
    work on the machine disturbs all alike."""
    best = dict.fromkeys(pipelines, 0.0)
    counts = dict.fromkeys(pipelines, workers * 4)
    for trial in range(TRIALS + 1):
        for name, pipeline in pipelines.items():
            # The first trial only tells how many batches fill the time.
            repeated = _repeated(images, (workers + counts[name]) * BATCH)
            speed = _speed(pipeline(repeated, train, workers, device), workers, device)
            if trial:
                best[name] = max(best[name], speed)
            else:
                counts[name] = max(2 * workers, round(seconds / TRIALS * speed / BATCH))
    return best


def _repeated(images: Folder, count: int) -> Folder:
    """So many images, in random order."""
    order = torch.randperm(count, generator=generator("bench")) % len(images)
    return replace(images.subset(order), ids=torch.arange(count))


def _speed(batches: Iterator[Tensor], workers: int, device: torch.device) -> float:
    started, images = 0.0, 0
    for index, x in enumerate(batches):
        if index >= workers:
            images += len(x)
        elif index == workers - 1:
            started = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return images / (time.perf_counter() - started)


def _amata(images: Folder, train: bool, workers: int, device: torch.device) -> Iterator[Tensor]:
    framing = replace(images.framing, random_scale=train)
    folder = replace(images, framing=framing, workers=workers)
    seed = 0 if train else None
    for batch in Loader(folder, BATCH, device, seed=seed, flip=train).epoch():
        yield batch.x


def _torchvision(
    images: Folder, train: bool, workers: int, device: torch.device
) -> Iterator[Tensor]:
    from torchvision import datasets, transforms

    bicubic = transforms.InterpolationMode.BICUBIC  # Pillow's default, and ours
    resize, crop = images.framing.resize, images.framing.crop
    steps = (
        [
            transforms.RandomResizedCrop(crop, interpolation=bicubic),
            transforms.RandomHorizontalFlip(),
        ]
        if train
        else [transforms.Resize(resize, interpolation=bicubic), transforms.CenterCrop(crop)]
    )
    whole = transforms.Compose([*steps, transforms.ToTensor()])
    dataset = datasets.ImageFolder(str(images.root / "train"), whole)
    labels = images.labels.tolist()
    dataset.samples = [(str(f), y) for f, y in zip(images.files, labels, strict=True)]
    return _loaded(dataset, train, workers, device)


def _reference(images: Folder, train: bool, workers: int, device: torch.device) -> Iterator[Tensor]:
    return _loaded(_Pictures(images, train), train, workers, device)


def _loaded(
    dataset: Dataset[Any], shuffle: bool, workers: int, device: torch.device
) -> Iterator[Tensor]:
    """Batches of a DataLoader as most programs make it."""
    loader = DataLoader(
        dataset,
        BATCH,
        shuffle=shuffle,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=ignore_interrupts,
        generator=torch.Generator(),
    )
    for x, _ in loader:
        yield x.to(device, non_blocking=True)


class _Pictures(Dataset[tuple[Tensor, int]]):
    """What ImageFolder does with these transforms."""

    def __init__(self, images: Folder, train: bool) -> None:
        self.files, self.labels = images.files, images.labels.tolist()
        self.framing = replace(images.framing, random_scale=train)
        self.rng = np.random.default_rng() if train else None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with self.files[index].open("rb") as file:
            image = Image.open(file).convert("RGB")
        pixels = self.framing.apply(image, self.rng)
        if self.rng is not None and self.rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        x = torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()
        return x.float().div(255), self.labels[index]
