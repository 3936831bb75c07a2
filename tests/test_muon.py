"""Muon against closed forms and against torch's own SGD."""

import copy

import pytest
import torch
from torch import Tensor, nn

from amata.models import build
from amata.recipes.schema import Optim
from amata.training.muon import Muon, orthogonal, without_denormals
from amata.training.optim import make_optimizer
from tests.conftest import small_net
from tests.nets import CosineHead, HeadFirst, TinyViT, TwoHeads
from tests.test_engine import DEVICES
from tests.test_models import SIZES


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8)])
def test_a_matrix_is_brought_near_its_orthogonal_factor(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    (found,) = orthogonal(matrix[None])[0]
    # The same directions, each with a singular value of its own near 1: the polynomial's, applied
    # five times.
    values = s / s.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    assert torch.allclose(found, u @ torch.diag(values) @ v, atol=1e-4)
    assert ((values > 0.65) & (values < 1.25)).all()


def test_a_stack_is_its_matrices_one_by_one_and_scale_does_not_matter() -> None:
    stack = torch.randn(3, 6, 10, generator=torch.Generator().manual_seed(1))
    (found,) = orthogonal(stack * torch.tensor([1.0, 1e-3, 1e3])[:, None, None])
    for made, matrix in zip(found, stack, strict=True):
        assert torch.allclose(made, orthogonal(matrix[None])[0][0], atol=1e-3)
    assert torch.equal(orthogonal(torch.zeros(1, 4, 4))[0], torch.zeros(1, 4, 4))


def test_an_update_by_hand() -> None:
    """Two steps: momentum before orthogonality, decay apart from the gradient, filters as matrices,
    tall ones scaled up."""
    generator = torch.Generator().manual_seed(2)
    filters, tall = (
        torch.randn(shape, generator=generator).requires_grad_()
        for shape in [(4, 2, 3, 3), (12, 3)]
    )
    expected = [filters.detach().clone(), tall.detach().clone()]
    optimizer = Muon(
        [{"params": [filters, tall], "orthogonal": True, "weight_decay": 0.5}],
        lr=0.1,
        momentum=0.9,
        nesterov=True,
    )
    momenta = [torch.zeros_like(e) for e in expected]
    for _ in range(2):
        for p, e, m in zip((filters, tall), expected, momenta, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            m.mul_(0.9).add_(p.grad)
            update = orthogonal((p.grad + 0.9 * m).flatten(1)[None])[0][0].view(p.shape)
            e.mul_(1 - 0.1 * 0.5).sub_(0.1 * (2 if p is tall else 1) * update)
        optimizer.step()
    assert torch.allclose(filters, expected[0], atol=1e-6)
    assert torch.allclose(tall, expected[1], atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_all_but_hidden_matrices_follow_sgd(nesterov: bool) -> None:
    net = small_net()
    other = copy.deepcopy(net)
    config = Optim(name="muon", lr=0.1, momentum=0.8, nesterov=nesterov, weight_decay=0)
    optimizer = make_optimizer(net, config)
    reference = make_optimizer(other, config.model_copy(update={"name": "sgd"}))
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        optimizer.step()
        reference.step()
    weights = [name for name, p in net.named_parameters() if p.dim() > 1]
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6) == (name not in weights[:-1]), name


SPECTRA = {
    "gaussian": None,
    "falling": torch.arange(1, 65.0) ** -2,
    "condition 1e6": torch.logspace(0, -6, 64),
    "low rank": (torch.arange(64) < 8).float(),
    "one large": torch.where(torch.arange(64) == 0, 1.0, 1e-3),
}


def with_spectrum(values: torch.Tensor | None, shape: tuple[int, int]) -> torch.Tensor:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    if values is None:
        return matrix
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return (u * values) @ v


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SPECTRA)
def test_small_singular_values_survive_rounding(name: str, device: str) -> None:
    """Gram matrices square them, so five iterations on one of them would lose them in TF32."""
    wide = with_spectrum(SPECTRA[name], (64, 576))
    tall = with_spectrum(SPECTRA[name], (128, 64))
    stacks = [torch.stack([wide, -wide]), tall[None], torch.ones(1, 3, 5)]
    found = orthogonal(*(s.float().to(device) for s in stacks))
    assert [f.shape for f in found] == [s.shape for s in stacks]
    for f, s in zip(found, stacks, strict=True):
        u, values, v = torch.linalg.svd(s.double(), full_matrices=False)
        values /= values.norm(dim=-1, keepdim=True)
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        exact = (u * values[:, None]) @ v
        error = (f.cpu() - exact).norm() / exact.norm()
        assert error < (0.002 if device == "cpu" else 0.06)
        assert torch.linalg.matrix_norm(f.cpu(), 2).max() < 1.25


def test_updates_do_not_depend_on_the_memory_layout() -> None:
    moved = []
    for layout in (torch.contiguous_format, torch.channels_last):
        weights = [torch.zeros(4, *shape) for shape in [(2, 3, 3), (6, 1, 1), (3, 2, 5)]]
        for w in weights:
            w.data = w.to(memory_format=layout)
            noise = torch.randn(w.shape, generator=torch.Generator().manual_seed(w.numel()))
            w.grad = torch.empty_like(w).copy_(noise)
        groups = [{"params": weights, "orthogonal": True}]
        Muon(groups, lr=0.1, momentum=0.9, nesterov=True).step()
        moved.append(weights)
    for a, b in zip(*moved, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_learning_rate_may_be_a_tensor() -> None:
    """That is how a CUDA graph records the step."""
    moved = []
    for lr in (0.3, torch.tensor(0.3)):
        net = small_net()
        optimizer = make_optimizer(net, Optim(name="muon", nesterov=True, weight_decay=0.1))
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(6))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        moved.append(list(net.parameters()))
    for a, b in zip(*moved, strict=True):
        torch.testing.assert_close(a, b)


def orthogonalised(model: nn.Module, shape: tuple[int, ...] | None) -> list[str]:
    groups = make_optimizer(model, Optim(name="muon"), shape).param_groups
    inner = {id(p) for g in groups if g["orthogonal"] for p in g["params"]}
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    return [name for name, p in model.named_parameters() if id(p) in inner]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_built_in_networks_orthogonalise_all_weights_but_the_last(name: str, known: bool) -> None:
    """The speed records were set with these groups."""
    channels, side, _, _ = SIZES[name]
    name = "wrn-10-1" if name.startswith("wrn") else name
    model = build(name, in_channels=channels, classes=10)
    weights = [n for n, p in model.named_parameters() if p.dim() > 1]
    assert orthogonalised(model, (channels, side, side) if known else None) == weights[:-1]


BLOCK = ("qkv", "proj", "fc1", "fc2")
ROLES: dict[str, tuple[nn.Module, tuple[int, ...] | None, list[str]]] = {
    "a head that is registered first": (HeadFirst(), (1, 6, 6), ["conv.weight", "fc.weight"]),
    "a head that is registered first, images of unknown size": (
        HeadFirst(pooled=True),
        None,
        ["conv.weight", "fc.weight"],
    ),
    "a head whose weights are used without the layer": (
        CosineHead(),
        (3, 8, 8),
        ["stem.weight", "squeeze.weight", "excite.weight"],
    ),
    "two heads": (TwoHeads(), (1, 6, 6), ["body.weight"]),
    "a transformer": (
        TinyViT(),
        (3, 8, 8),
        [f"blocks.{i}.{layer}.weight" for i in range(2) for layer in BLOCK],
    ),
    "torch's own attention": (
        nn.Sequential(
            nn.Flatten(2),
            nn.TransformerEncoderLayer(16, 2, 8, batch_first=True),
            nn.Flatten(),
            nn.Linear(48, 5),
        ),
        (3, 4, 4),
        [
            f"1.{layer}"
            for layer in (
                "self_attn.in_proj_weight",
                "self_attn.out_proj.weight",
                "linear1.weight",
                "linear2.weight",
            )
        ],
    ),
    "nothing but a classifier": (nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), (1, 6, 6), []),
    "images that the network cannot take": (HeadFirst(), (2, 9, 9), ["head.weight", "conv.weight"]),
}


@pytest.mark.parametrize("name", ROLES)
def test_roles_decide_which_weights_are_orthogonalised(name: str) -> None:
    model, shape, expected = ROLES[name]
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert orthogonalised(model, shape) == expected
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_entries_that_are_next_to_nothing_are_left_out() -> None:
    """Of weights without a gradient: their products are denormal, and a CPU is slow with these."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8, 20, generator=generator)
    faint, without = x.clone(), x.clone()
    faint[:, 5:] *= 1e-20
    without[:, 5:] = 0
    smallest = torch.finfo(torch.float32).tiny

    def denormals(gram: Tensor) -> int:
        return int(((gram != 0) & (gram.abs() < smallest)).sum())

    assert denormals(faint @ faint.mT) > 0
    cleared = without_denormals(faint)
    assert denormals(cleared @ cleared.mT) == 0
    assert torch.equal(cleared, without)
    assert torch.equal(without_denormals(x), x)
    assert torch.equal(orthogonal(faint)[0], orthogonal(without)[0])
    assert not without_denormals(1e-20 * x).any()
    exact = orthogonal(faint.double())[0]  # nothing is left out in float64
    assert (orthogonal(faint)[0] - exact).abs().max() < 1e-5


def test_momentum_without_gradients_ends_at_zero() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    muon = Muon([{"params": [weight], "orthogonal": True}], lr=0.1, momentum=0.5, nesterov=True)
    for number in range(120):
        weight.grad = torch.full_like(weight, float(number == 0))
        muon.step()
    assert not muon.state[weight]["momentum_buffer"].any(), "0.5 ** 120 is 8e-37"
