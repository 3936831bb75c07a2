"""Randomness that does not depend on how a batch is divided."""

import pytest
import torch

from amata.seeds import derive, draw, generator, seed_global
from tests.test_methods import N, batch_of


def test_parts_of_a_batch_draw_what_the_whole_batch_would() -> None:
    batch, cpu = batch_of(0), torch.device("cpu")
    whole = draw(torch.rand, generator(7), tuple(batch.x.shape), cpu, batch.x.dtype)
    # two processes, and in each of them two passes
    parts = [part for half in batch.parts(2) for part in half.parts(2)]
    drawn = [
        draw(torch.rand, generator(7), tuple(p.x.shape), cpu, p.x.dtype, rows=p.rows) for p in parts
    ]
    assert [len(part.x) for part in parts] == [2, 1, 2, 1]
    assert torch.equal(torch.cat(drawn), whole)
    for name in ("x", "y", "ids"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(batch, name))
    assert all(part.rows is not None and part.rows.total == N for part in parts)


def test_a_batch_has_no_more_parts_than_images() -> None:
    assert [len(part.x) for part in batch_of(0).parts(N + 3)] == [1] * N


def test_a_seed_depends_on_every_key_and_their_order() -> None:
    keys: list[tuple[int | str, ...]] = [(0,), (1,), (0, 1), (1, 0), (0, "1"), ("0", 1), (0, 1, 0)]
    assert len({derive(*key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
        ),
    ],
)
def test_layers_draw_what_they_draw_after_manual_seed(device: str) -> None:
    drawn = []
    for seed in (torch.manual_seed, lambda seed: seed_global(seed, torch.device(device))):
        torch.rand(3, device=device)
        seed(derive(1, "layers"))
        drawn.append([torch.rand(5), torch.rand(5, device=device).cpu()])
    assert all(map(torch.equal, *drawn))
