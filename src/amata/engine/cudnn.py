"""Global PyTorch backend settings, changed for the length of a with block."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def backend_settings(*, benchmark: bool, deterministic: bool = False) -> Iterator[None]:
    """Set cuDNN autotuning, and with `deterministic` only deterministic algorithms (a warning where
    there is none). Without it, that setting is left alone."""
    before = torch.backends.cudnn.benchmark
    mode = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.backends.cudnn.benchmark = benchmark
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
        if deterministic:
            torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def no_cudnn_benchmark() -> AbstractContextManager[None]:
    """Disable cuDNN autotuning: for a shape that occurs once an epoch it takes longer than it
    saves."""
    return backend_settings(benchmark=False)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in convolutions and matrix products."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
