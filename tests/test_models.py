"""Networks: sizes, names, normalisation, seeds, and every way to name one."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amata.errors import InputError
from amata.models import MODELS, Normalize, Normalized, build, load_weights
from amata.models.preact_resnet import PreActBlock
from amata.models.wide_resnet import WideBlock
from amata.seeds import generator
from tests.toy import Notes

SIZES = {
    # name -> (channels, side, classes, parameters)
    "lenet": (1, 28, 10, 431_080),
    "smallcnn": (1, 28, 10, 312_202),
    "tinycnn": (1, 28, 10, 166_406),
    "preactresnet18": (3, 32, 10, 11_172_170),
    "wrn-34-10": (3, 32, 10, 46_160_474),
    "resnet18": (3, 64, 1000, 11_689_512),
    "resnet50": (3, 64, 1000, 25_557_032),
}


@pytest.mark.parametrize(
    ("name", "parameters"), [("wrn-28-10", 36_479_194), ("wrn-16-4", 2_748_890)]
)
def test_wide_networks_of_other_sizes_have_their_names(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = build(name, in_channels=3, classes=10)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_every_model_is_listed() -> None:
    assert set(SIZES) == set(MODELS)


@pytest.mark.parametrize("name", SIZES)
def test_size_and_output(name: str) -> None:
    channels, side, classes, parameters = SIZES[name]
    model = build(name, in_channels=channels, classes=classes).eval()
    assert sum(p.numel() for p in model.parameters()) == parameters
    with torch.no_grad():
        assert model(torch.rand(2, channels, side, side)).shape == (2, classes)


def test_the_other_variants_have_their_sizes() -> None:
    def size(name: str, channels: int, **args: object) -> int:
        return sum(
            p.numel()
            for p in build(name, in_channels=channels, classes=10, args=dict(args)).parameters()
        )

    assert size("preactresnet18", 3, final_bn=False) == 11_171_146  # YOPO's and FAT's
    assert size("lenet", 1, variant="2020") == 1_199_882


def test_resnets_carry_torchvisions_names() -> None:
    # torchvision's state dict of resnet18 and resnet50: 122 and 320 entries, of which these are
    # typical.
    for name, entries, deep in (
        ("resnet18", 122, "layer4.1.bn2.running_var"),
        ("resnet50", 320, "layer4.2.bn3.running_var"),
    ):
        keys = (
            build(name, in_channels=3, classes=1000, mean=[0.5] * 3, std=[0.5] * 3)
            .state_dict()
            .keys()
        )
        assert len(keys) == entries
        assert {
            "conv1.weight",
            "bn1.bias",
            "layer2.0.downsample.0.weight",
            "layer2.0.downsample.1.num_batches_tracked",
            deep,
            "fc.bias",
        } <= keys
        assert not any("normalize" in key for key in keys)


def test_torchvision_agrees_where_it_is_installed() -> None:
    torchvision = pytest.importorskip("torchvision")
    for name in ("resnet18", "resnet50"):
        theirs = getattr(torchvision.models, name)(weights=None).eval()
        ours = build(name, in_channels=3, classes=1000).eval()
        ours.load_state_dict(theirs.state_dict())
        x = torch.rand(2, 3, 64, 64)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x))


def residual(block: nn.Module, x: Tensor, branch: Tensor) -> Tensor:
    """x or its projection, plus two convolutions of `branch`, each after BatchNorm and ReLU."""
    weights = dict(block.named_parameters())
    out = F.conv2d(branch, weights["conv1.weight"], stride=2, padding=1)
    out = F.relu(F.batch_norm(out, None, None, training=True))
    out = F.conv2d(out, weights["conv2.weight"], padding=1)
    return F.conv2d(x, weights["shortcut.weight"], stride=2) + out


def test_pre_activation_blocks_project_what_their_papers_say() -> None:
    x = torch.randn(4, 3, 8, 8, generator=generator(0))
    for block, projected in (
        (WideBlock(3, 5, 2), "activation"),
        (PreActBlock(3, 5, 2, "preact"), "activation"),
        (PreActBlock(3, 5, 2, "input"), "input"),
    ):
        branch = F.relu(block.bn1(x))
        expected = residual(block, branch if projected == "activation" else x, branch)
        torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(
    ("name", "args"),
    [("preactresnet18", {"final_bn": True}), ("wrn-10-1", {})],
)
def test_pre_activation_networks_end_with_batchnorm_and_relu(
    name: str, args: dict[str, Any]
) -> None:
    model, seen = build(name, in_channels=1, classes=3, args=args), dict[str, Tensor]()
    dict(model.named_children())["bn"].register_forward_hook(
        lambda _, __, output: seen.update(normed=output)
    )
    dict(model.named_children())["linear"].register_forward_pre_hook(
        lambda _, inputs: seen.update(pooled=inputs[0])
    )
    model(torch.rand(4, 1, 16, 16, generator=generator(0)))
    torch.testing.assert_close(seen["pooled"], F.relu(seen["normed"]).mean((2, 3)))


def test_normalisation_lives_inside() -> None:
    mean, std = [0.2, 0.3, 0.4], [0.5, 0.6, 0.7]
    plain = build("preactresnet18", in_channels=3, classes=10).eval()
    inside = build("preactresnet18", in_channels=3, classes=10, mean=mean, std=std).eval()
    x = torch.rand(2, 3, 32, 32)
    scaled = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(inside(x), plain(scaled))
    foreign = build("torch.nn:Flatten", in_channels=3, classes=10, mean=mean, std=std, trust=True)
    assert isinstance(foreign, Normalized)
    torch.testing.assert_close(foreign(x), scaled.flatten(1))


def test_weights_come_from_the_seed_alone() -> None:
    state = torch.get_rng_state()
    a, b, c = (build("tinycnn", in_channels=1, classes=10, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a.state_dict()["fc1.weight"], b.state_dict()["fc1.weight"])
    assert not torch.equal(a.state_dict()["fc1.weight"], c.state_dict()["fc1.weight"])


def test_any_module_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets_for_test.py").write_text(
        "from torch import nn\ndef make(width): return nn.Linear(width, 3)\nnumber = 3\n"
        "def fitting(in_channels=3, *, num_classes=1000): return nn.Linear(in_channels, "
        "num_classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    model = build("my_nets_for_test:make", trust=True, in_channels=1, classes=3, args={"width": 4})
    assert isinstance(model, nn.Linear)
    fitted = build("my_nets_for_test:fitting", trust=True, in_channels=1, classes=5)
    assert fitted.weight.shape == (5, 1)  # from the data
    fitted = build(
        "my_nets_for_test:fitting", trust=True, in_channels=1, classes=5, args={"num_classes": 7}
    )
    assert fitted.weight.shape == (7, 1)  # unless the recipe says otherwise
    with pytest.raises(InputError, match="is not callable but int"):
        build("my_nets_for_test:number", trust=True, in_channels=1, classes=3)
    with pytest.raises(InputError, match="did you mean 'width'"):
        build("my_nets_for_test:make", trust=True, in_channels=1, classes=3, args={"widht": 4})
    with pytest.raises(InputError, match=r"cannot be built from model\.args"):
        build("my_nets_for_test:make", trust=True, in_channels=1, classes=3)
    with pytest.raises(InputError, match="cannot be imported"):
        build("my_nets_for_test:absent", trust=True, in_channels=1, classes=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenett", {}, "did you mean 'lenet'"),
        ("lenet", {"args": {"varaint": "1.0"}}, "did you mean 'variant'"),
        ("lenet", {"args": {"variant": "9"}}, "variant = '9'"),
        ("lenet", {"mean": [0.1]}, "mean and std go together"),
        ("lenet", {"mean": [0.1] * 3, "std": [1.0] * 3}, "3 values and the images have 1 channels"),
        ("wrn-33-10", {}, "6 n \\+ 4"),
        ("wrn-34-10", {"args": {"depth": 28}}, "unknown model.args key of wrn-34-10: 'depth'"),
        ("wrn-34", {}, "did you mean 'wrn-34-10'"),
    ],
)
def test_bad_models_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, in_channels=1, classes=10, **options)  # type: ignore[arg-type]


def test_a_missing_timm_is_named() -> None:
    try:
        import timm  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="needs the package timm"):
            build("timm/resnet18", in_channels=3, classes=10)
    else:
        assert build("timm/resnet18", in_channels=3, classes=10)(
            torch.rand(1, 3, 64, 64)
        ).shape == (1, 10)


def test_weights_load_from_both_formats_and_errors_name_the_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source, target = (build("tinycnn", in_channels=1, classes=10, seed=s) for s in (0, 1))
    torch.save(source.state_dict(), tmp_path / "w.pt")
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    for file in ("w.pt", "w.safetensors"):
        load_weights(target, tmp_path / file)
        assert torch.equal(target.state_dict()["fc1.weight"], source.state_dict()["fc1.weight"])
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    for file, message in (
        ("absent.pt", "no weights at"),
        ("bad.safetensors", "is not a safetensors file"),
    ):
        with pytest.raises(InputError, match=message):
            load_weights(target, tmp_path / file)
    with pytest.raises(InputError, match="do not fit"):
        load_weights(build("lenet", in_channels=1, classes=10), tmp_path / "w.pt")


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in state.items()}


WRAPPED: dict[str, Any] = {
    "a training state": lambda s: {"epoch": 3, "state_dict": s, "best": 0.5},
    "model": lambda s: {"model": s, "optimizer": {"state": {}}},
    "model_state_dict": lambda s: {"model_state_dict": s},
    "net": lambda s: {"net": s, "acc": 0.9},
    "only an EMA": lambda s: {"state_dict": None, "model_ema": s},
    "DataParallel": lambda s: prefixed(s, "module."),
    "Lightning": lambda s: {"state_dict": prefixed(s, "model."), "hyper_parameters": {"lr": 0.1}},
    "torch.compile inside DataParallel": lambda s: prefixed(s, "module._orig_mod."),
    "AveragedModel": lambda s: {"ema": {"n_averaged": torch.tensor(3), **prefixed(s, "module.")}},
    "behind a normalisation layer": lambda s: prefixed(s, "net."),
    "two levels": lambda s: {"model": {"state_dict": s}},
    "constants of a normalisation layer": lambda s: {
        **prefixed(s, "1."),
        "0.mu": torch.tensor([0.5, 0.25, 0.125]).view(1, 3, 1, 1),
    },
}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_weights_of_other_programs_are_unwrapped(tmp_path: Path, wrapper: str, suffix: str) -> None:
    from safetensors.torch import save_file

    source = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    content = WRAPPED[wrapper](source.state_dict())
    if suffix == ".pt":
        torch.save(content, tmp_path / "w.pt")
    elif all(isinstance(value, Tensor) for value in content.values()):
        save_file(content, tmp_path / "w.safetensors")
    else:
        return  # safetensors files hold nothing but tensors
    for inside in (True, False):
        target: nn.Module = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)
        )
        if wrapper.startswith("constants"):
            target = nn.Sequential(Normalize([0.5, 0.25, 0.125], [1.0] * 3), target)
        elif inside:  # as `build` puts any network behind model.mean and model.std
            target = Normalized(target, Normalize([0.5] * 3, [0.5] * 3))
        load_weights(target, tmp_path / f"w{suffix}")
        for a, b in zip(target.parameters(), source.parameters(), strict=True):
            assert torch.equal(a, b)


def test_constants_of_another_normalisation_are_not_dropped(tmp_path: Path) -> None:
    model = build("resnet18", in_channels=3, classes=2, mean=[0.5] * 3, std=[0.5] * 3)
    torch.save({**model.state_dict(), "normalize.mean": torch.zeros(3)}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"'normalize.mean' is not in the model"):
        load_weights(model, tmp_path / "w.pt")


def test_a_head_of_another_size_is_replaced_when_asked(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source = build("tinycnn", in_channels=1, classes=7, seed=1)
    run = tmp_path / "run"  # a run folder, as far as its weights are concerned
    run.mkdir()
    save_file(source.state_dict(), run / "model.safetensors")
    target, fresh = (build("tinycnn", in_channels=1, classes=3, seed=0) for _ in range(2))
    with pytest.raises(
        InputError,
        match=r"'fc2.weight' has shape \(7, 100\), not \(3, 100\) \(and 1 more\); to train a new "
        r"head, set model.new_head=true",
    ):
        load_weights(target, run, new_head=False)
    with pytest.raises(InputError, match="; give the network as many outputs as the weights have"):
        load_weights(target, run)
    assert load_weights(target, run, new_head=True) == [
        "fc2.weight (7, 100) -> (3, 100)",
        "fc2.bias (7,) -> (3,)",
    ]
    for name, value in target.state_dict().items():
        expected = (fresh if name.startswith("fc2") else source).state_dict()[name]
        assert torch.equal(value, expected), name
    assert load_weights(build("tinycnn", in_channels=1, classes=7), run, new_head=True) == []
    # A layer of another width is not a head: something behind it does not fit either.
    wider = build("tinycnn", in_channels=1, classes=7, args={"width": 8})
    with pytest.raises(InputError, match=r"do not fit the model TinyCNN: 'conv1.weight' has shape"):
        load_weights(wider, run, new_head=True)


def test_folder_finetune_starts_from_the_weights_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    from amata import recipes
    from amata.training.experiment import train
    from amata.training.loaded import load_trained

    for number in range(24):
        split, name = ("train", "val")[number // 12], ("dark", "light")[number % 2]
        path = tmp_path / "photos" / split / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (28, 28), (100 * (number % 2) + number,) * 3).save(path)
    weights = tmp_path / "pretrained"
    weights.mkdir()
    source = build("tinycnn", in_channels=3, classes=7, seed=5).state_dict()
    torch.save({"state_dict": source}, weights / "w.pt")

    sets = [
        f"data.root={tmp_path / 'photos'}",
        "data.resize=28",
        "data.crop=28",
        "data.in_memory=true",
        "data.workers=0",
        "data.valid=2",
        "model.name=tinycnn",
        "train.epochs=2",
        "train.eps_warmup=1",
        "train.device=cpu",
        "train.tensorboard=false",
        "optim.lr=1e-6",
        'eval.attacks=["clean"]',
    ]
    with pytest.raises(InputError, match=r"set model\.weights=PATH"):
        train(recipes.load("folder-finetune", sets), tmp_path / "run")
    sets.append(f"model.weights={weights / 'w.pt'}")
    with pytest.raises(InputError, match=r"'fc2\.weight' has shape \(7, 100\), not \(2, 100\)"):
        train(recipes.load("folder-finetune", [*sets, "model.new_head=false"]), tmp_path / "run")
    reporter = Notes()
    run = train(recipes.load("folder-finetune", sets), tmp_path / "run", reporter)
    assert "new head: fc2.weight (7, 100) -> (2, 100), fc2.bias (7,) -> (2,)" in reporter.notes
    again = [*sets, f"model.weights={run.path}", "model.name=lenet"]
    with pytest.raises(InputError, match=r"it was trained with model\.name=tinycnn: set the same"):
        train(recipes.load("folder-finetune", again), tmp_path / "again")
    assert [row["eps"] for row in run.epochs()] == pytest.approx([2 / 255, 4 / 255])
    # With such a learning rate nothing moves. The file is not needed to use what was trained.
    (weights / "w.pt").unlink()
    trained = load_trained(run.path)[0].state_dict()
    torch.testing.assert_close(trained["conv1.weight"], source["conv1.weight"], atol=1e-4, rtol=0)
    assert trained["fc2.weight"].shape == (2, 100)
