"""The choice of a device."""

import pytest
import torch

from amata.errors import InputError
from amata.training import resolve_device


@pytest.mark.parametrize("name", ["nonsense", "cuda:99"])
def test_missing_devices_are_named(name: str) -> None:
    with pytest.raises(InputError, match=r"train\.device"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["mps", "meta", "xpu:0"])
def test_devices_that_cannot_train_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=rf"train\.device = '{name}' is not supported; use auto"):
        resolve_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu_where_one_was_asked_for() -> None:
    with pytest.raises(
        InputError,
        match=r"train\.device = 'cuda', but 0 GPUs are visible; use --set train\.device=cpu",
    ):
        resolve_device("cuda")
