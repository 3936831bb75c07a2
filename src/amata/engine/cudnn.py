"""How a GPU's libraries may compute convolutions and matrix products, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_cudnn_benchmark() -> Iterator[None]:
    """Take convolutions as they come: trying out kernels for a shape that comes once an epoch takes
    longer than it saves."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether factors may be rounded to TF32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
