"""Images and labels as tensors, from whatever form a batch or an item has: tensors, numpy arrays,
PIL images, lists of them, and dicts."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amata.data.decode import to_rgb
from amata.errors import InputError, shorten

IMAGE_KEYS = ("image", "images", "pixel_values", "img", "x")
LABEL_KEYS = ("label", "labels", "target", "targets", "y")
CHANNELS = (1, 3, 4)
PAIR = "give (images, labels), or a dict with the keys image and label"


def to_pair(item: Any, where: str) -> tuple[Any, Any]:
    """The images and the labels of a batch or an item: of a sequence (x, y, ...), or of a dict."""
    if isinstance(item, Mapping):
        found = [
            next((item[key] for key in keys if key in item), None)
            for keys in (IMAGE_KEYS, LABEL_KEYS)
        ]
        if any(value is None for value in found):
            keys = shorten(", ".join(map(repr, item)), 80)
            raise InputError(
                f"{where}: a dict with the keys {keys} needs an image ({', '.join(IMAGE_KEYS)}) "
                f"and a label ({', '.join(LABEL_KEYS)})"
            )
        return found[0], found[1]
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], item[1]
    raise InputError(f"{where}: {PAIR}, not {type(item).__name__}")


def to_batch(item: Any, where: str) -> tuple[Tensor, Tensor]:
    """A batch as tensors: images as uint8 or floats, NCHW, and whole labels as int64."""
    x, y = to_pair(item, where)
    labels = to_labels(y, where)
    if labels.dim() == 0:
        raise InputError(
            f"{where}: this is one image, not a batch; make batches, as with "
            "torch.utils.data.DataLoader(data, batch_size=128)"
        )
    return to_images(x, where), labels


def to_images(x: Any, where: str) -> Tensor:
    """N images as one tensor, NCHW. A clone of a tensor from torch.inference_mode() can be trained
    on."""
    if isinstance(x, Tensor):
        t = x.clone() if x.is_inference() else x
        return t[:, None] if t.dim() == 3 and t.dtype == torch.uint8 else channels_first(t, where)
    if isinstance(x, np.ndarray):
        t = _from_array(x, where)
        return t[:, None] if t.dim() == 3 else channels_first(t, where)  # (N, H, W) is grey
    if isinstance(x, Sequence) and len(x) and all(map(is_image, x)):
        return stacked([to_image(image, where) for image in x], where)
    if isinstance(x, list | tuple):
        with contextlib.suppress(TypeError, ValueError):
            return to_images(np.asarray(x, dtype=np.float32), where)
    raise InputError(
        f"{where}: images must be a tensor, a numpy array or a list of PIL images, not {_kind(x)}"
    )


def to_labels(y: Any, where: str) -> Tensor:
    """Labels of any integer kind as int64; columns (N, 1) as rows. Others are left to the checks of
    the batch."""
    if isinstance(y, Tensor):
        t = y.clone() if y.is_inference() else y
    else:
        try:
            t = torch.as_tensor(y)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise InputError(f"{where}: labels must be whole numbers, not {_kind(y)}") from None
    if t.dim() == 2 and t.shape[1] == 1:
        t = t.squeeze(1)
    whole = not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)
    return t.long() if whole else t


def to_label(value: Any, where: str) -> int:
    """One label: a whole number, or an array or a tensor of one."""
    try:
        label = value.item() if hasattr(value, "item") else value
    except (RuntimeError, ValueError):  # more than one number
        label = None
    if not isinstance(label, int) or not -(2**63) <= label < 2**63:
        raise InputError(
            f"{where}: the label of an item must be one whole number, not {_kind(value)}"
        )
    return label


def channels_first(x: Tensor, where: str) -> Tensor:
    """NCHW, from NHWC too: the last of four axes is 1, 3 or 4 and the second is not."""
    if x.dim() != 4 or x.shape[3] not in CHANNELS or x.shape[2] <= max(CHANNELS):
        return x
    if x.shape[1] in CHANNELS:
        raise InputError(
            f"{where}: images of shape {tuple(x.shape)} may be (N, C, H, W) or (N, H, W, C); "
            "resize them to sides above 4 pixels"
        )
    return x.permute(0, 3, 1, 2).contiguous() if x.shape[1] > max(CHANNELS) else x


def is_image(value: Any) -> bool:
    """Whether a value is one image: a PIL image, or an array of two or three axes."""
    return _is_pil(value) or (isinstance(value, Tensor | np.ndarray) and value.ndim in (2, 3))


def to_image(value: Any, where: str) -> Tensor:
    """One image, CHW: as uint8, or as floats."""
    if _is_pil(value):
        value = np.array(value if value.mode.startswith("I;16") else _eight_bits(value, where))
    if not is_image(value):
        raise InputError(f"{where}: an image must be a tensor, an array or PIL, not {_kind(value)}")
    t = value if isinstance(value, Tensor) else _from_array(value, where)
    if t.dim() == 2:
        return t[None]
    return channels_first(t[None], where)[0]


def _eight_bits(image: Any, where: str) -> Any:
    """A PIL image as one in a file is read, but grey ones stay grey."""
    try:
        rgb = to_rgb(image)
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: a PIL image cannot be read ({shorten(error)})") from None
    return rgb.convert("L") if image.mode in ("1", "L") else rgb


def stacked(images: Sequence[Tensor], where: str) -> Tensor:
    """Images of one size as a batch. Grey ones among coloured ones get three equal channels."""
    most = max(image.shape[0] for image in images)
    same = [image.expand(most, -1, -1) if image.shape[0] == 1 else image for image in images]
    for image in same:
        if image.shape != same[0].shape or image.dtype != same[0].dtype:
            raise InputError(
                f"{where}: one image is {_kind(same[0])} and another {_kind(image)}; resize and "
                "convert them to one form"
            )
    return torch.stack(same)


def check_range(x: Tensor, where: str) -> None:
    """Refuse floats outside [0, 1]."""
    if x.dtype == torch.uint8 or x.numel() == 0:
        return
    low, high = x.detach().aminmax()
    if not (low.isfinite() and high.isfinite()):
        bad = x.detach().isfinite().logical_not().flatten(1).any(1).nonzero().flatten()
        images = "1 image has" if len(bad) == 1 else f"{len(bad)} images have"
        raise InputError(
            f"{where}: {images} values that are not finite, the first is image {int(bad[0])}; "
            "repair or remove such images"
        )
    if low < 0 or high > 1:
        raise InputError(
            f"{where}: images are in [{low:.3g}, {high:.3g}]; give uint8 in 0..255 or "
            "floats in [0, 1], and put the normalisation inside the model"
        )


def scaled(x: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]; floats as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _from_array(x: np.ndarray, where: str) -> Tensor:
    if x.dtype == np.uint16:
        x = x / np.float32(65535)
    if x.dtype == np.float64:
        x = x.astype(np.float32)
    try:
        return torch.from_numpy(x if x.flags.writeable and x.flags.c_contiguous else x.copy())
    except TypeError:
        raise InputError(f"{where}: images of dtype {x.dtype} are not numbers") from None


def _is_pil(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("mode", "size", "convert", "getbands"))


def _kind(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None:
        return type(value).__name__
    return f"{dtype} of shape {tuple(shape)}"
