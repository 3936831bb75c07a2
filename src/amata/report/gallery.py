"""A gallery of images as HTML: clean, adversarial, and the difference between them."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from amata.report.escape import for_html

Pixels = np.ndarray[Any, Any]
"""An image of shape (C, H, W) in [0, 1]."""


def png(image: Pixels) -> bytes:
    """An image as a PNG file: grey or RGB; of other numbers of channels, their mean."""
    if image.shape[0] not in (1, 3):
        image = image.mean(0, keepdims=True)
    rows = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = rows.shape
    # Every line of pixels begins with its filter, 0 for none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def image_tag(image: Pixels, alt: str) -> str:
    data = base64.b64encode(png(image)).decode()
    _, height, width = image.shape
    size = f'width="{width}" height="{height}"'
    return f'<img {size} alt="{for_html(alt)}" src="data:image/png;base64,{data}">'


def amplification(pairs: Sequence[tuple[Pixels, Pixels]]) -> float:
    """The largest factor of two digits at which no shown difference exceeds the grey scale."""
    largest = max((float(np.abs(adv - x).max()) for x, adv in pairs), default=0.0)
    if not 0 < largest < 0.5:
        return 1.0
    digits = 10 ** (math.floor(math.log10(0.5 / largest)) - 1)
    return max(1.0, math.floor(0.5 / largest / digits + 1e-3) * digits)


def gallery(
    examples: Sequence[dict[str, Any]],
    pairs: Sequence[tuple[Pixels, Pixels]],
    classes: Sequence[str],
) -> str:
    """A card per example: three images, the predicted classes with their probabilities, the true
    class, and the attack."""
    factor = amplification(pairs)
    cards = []
    for example, (x, adv) in zip(examples, pairs, strict=True):
        true = classes[example["label"]]
        before = _says(classes[example["clean_prediction"]], example["clean_probability"])
        after = _says(classes[example["prediction"]], example["probability"])
        if example["survives"]:
            verdict, kind = "survives all attacks", "safe"
        elif example["clean_prediction"] != example["label"]:
            verdict, kind = "wrong without an attack", "broken"
        else:
            verdict, kind = f"broken by {example['attack']}", "broken"
        marks = [
            "" if example[key] == example["label"] else ' class="wrong"'
            for key in ("clean_prediction", "prediction")
        ]
        grey = 0.5 + factor * (adv - x)
        cells = (
            (image_tag(x, f"clean image of {true}"), "clean", for_html(before), marks[0]),
            (
                image_tag(adv, f"adversarial image of {true}"),
                "adversarial",
                for_html(after),
                marks[1],
            ),
            (image_tag(grey, "difference"), "difference", f"× {factor:g}", ""),
        )
        images = "".join(
            f"<div>{image}<span>{title}</span><b{mark}>{text}</b></div>"
            for image, title, text, mark in cells
        )
        cards.append(
            f'<figure class="{kind}"><figcaption>True class: {for_html(true)} <small>image '
            f"{example['index']}, {for_html(verdict)}</small></figcaption>"
            f'<div class="images">{images}</div></figure>'
        )
    return f'<div class="gallery">{"".join(cards)}</div>'


def _says(name: str, probability: float) -> str:
    return f"{name}, {probability:.0%}"


def image_rows(
    attack: str,
    x: Pixels,
    labels: Sequence[str],
    rows: Sequence[tuple[str, Pixels, Sequence[tuple[str, float]]]],
) -> str:
    """The same images in columns: clean in the first row, then adversarial, a row per recipe with
    the predicted classes and their probabilities."""
    clean = [
        (image_tag(one, f"clean image of {true}"), true, "")
        for one, true in zip(x, labels, strict=True)
    ]
    lines = [("clean", "true class", clean)]
    for title, images, said in rows:
        cells = []
        for one, true, (name, probability) in zip(images, labels, said, strict=True):
            mark = "" if name == true else ' class="wrong"'
            cells.append(
                (image_tag(one, f"adversarial image of {true}"), _says(name, probability), mark)
            )
        right = sum(name == true for true, (name, _) in zip(labels, said, strict=True))
        lines.append((title, f"{right} of {len(labels)} correct", cells))
    body = "".join(
        f'<tr role="row"><th role="rowheader" scope="row" class="text">{for_html(title)}'
        f"<small>{about}</small></th>"
        + "".join(
            f'<td role="cell">{image}<b{mark}>{for_html(text)}</b></td>'
            for image, text, mark in cells
        )
        + "</tr>"
        for title, about, cells in lines
    )
    return (
        '<div class="wide gallery-rows" tabindex="0" role="region" aria-label="Images per recipe">'
        f'<table role="table">{body}</table></div><p class="soft">The same test images in every '
        f"row, attacked by {for_html(attack)} against the first run of each recipe. "
        "Percentages are the model's own probabilities.</p>"
    )
