"""The forms in which data may be passed in Python."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from amata.data.convert import IMAGE_KEYS, LABEL_KEYS, is_image, to_pair
from amata.data.images import Arrays, ImageSet
from amata.data.map_style import MapStyle
from amata.errors import InputError

FORMS = (
    "a pair (x, y) of tensors or arrays, a Dataset, a DataLoader, another iterable of (x, y) "
    "batches, or a function () that returns one"
)


def as_images(data: Any, *, workers: int = 0, where: str = "data") -> Any:
    """Data as an image set where its images can be read in any order: pairs (x, y), dicts of two
    arrays, datasets, and lists of items. Batches, and functions that return them, as they are."""
    if isinstance(data, type):
        raise InputError(f"{where} = {data.__name__} is a class; make one: {data.__name__}(...)")
    if isinstance(data, ImageSet):
        return data
    if type(data) is TensorDataset and len(data.tensors) >= 2 and data.tensors[0].dim() == 4:
        return Arrays(*data.tensors[:2], where=where)
    if _is_dataset(data):
        return MapStyle(data, workers, where)
    if isinstance(data, Mapping) and not _is_pair(to_pair(data, where)):
        raise InputError(f"{where}: a dict must hold arrays of images and labels")
    if isinstance(data, Mapping) or _is_pair(data):
        return Arrays(*(to_pair(data, where) if isinstance(data, Mapping) else data), where=where)
    if isinstance(data, str | bytes | Tensor | np.ndarray | nn.Module) or not (
        hasattr(data, "__iter__") or _is_function(data)
    ):
        raise InputError(f"{where} must be {FORMS}, not {type(data).__name__}")
    return data


def _is_function(data: Any) -> bool:
    """Whether it can be called without arguments."""
    try:
        inspect.signature(data).bind()
    except (TypeError, ValueError):
        return False
    return True


def _is_dataset(data: Any) -> bool:
    """Whether it has items (image, label) by number: any map-style Dataset, one of Hugging Face's
    `datasets`, or a list of items."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        return False
    if isinstance(data, Dataset) or hasattr(data, "column_names"):
        return hasattr(data, "__len__")
    if not isinstance(data, list | tuple):
        return hasattr(data, "__len__") and not hasattr(data, "__iter__")
    first = data[0] if data else None
    if isinstance(first, Mapping):
        image, label = ([first[k] for k in keys if k in first] for keys in (IMAGE_KEYS, LABEL_KEYS))
        return bool(image and label) and is_image(image[0]) and np.ndim(label[0]) == 0
    if not isinstance(first, tuple | list) or len(first) != 2:
        return False
    return is_image(first[0]) and not is_image(first[1]) and np.ndim(first[1]) == 0


def _is_pair(data: Any) -> bool:
    """Whether it is (all images, all labels)."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    x = data[0]
    if isinstance(x, Tensor | np.ndarray):
        return True
    return isinstance(x, list | tuple) and len(x) > 0 and all(map(is_image, x))
