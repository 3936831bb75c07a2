"""fit(): trains any module, refuses bad input, returns the best weights."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import amata
from amata import recipes
from amata.errors import AmataError, InputError
from amata.methods import PGD
from amata.models.small import TinyCNN
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder
from amata.schedules import Adaptive, Constant
from amata.tensors import read_tensors
from amata.threat import Linf
from amata.training.checks import recipe_notes
from tests.conftest import Linear, small_net
from tests.test_evaluation import Endless
from tests.toy import Notes, fit, toy_data, toy_recipe


def test_fit_trains_any_module_on_tensors_and_on_batches() -> None:
    data, held = toy_data(), toy_data(40)
    fitted = fit(small_net(), data, held, toy_recipe())
    assert [row["steps"] for row in fitted.epochs] == [2, 2, 3, 3]
    assert fitted.grad_evals == 96 * (3 + 3 + 4 + 4)
    assert fitted.epochs[-1]["grad_evals_per_image"] == 3.5
    assert (
        fitted.epochs[fitted.best_epoch or 0]["valid"]["pgd-20"]
        == max(row["valid"]["pgd-20"] for row in fitted.epochs)
        > 0.9
    )
    assert fitted.epochs[-1]["loss"] < fitted.epochs[0]["loss"]
    batches = [(data[0][i : i + 16], data[1][i : i + 16]) for i in range(0, 96, 16)]
    assert fit(small_net(), batches, [held], toy_recipe()).epochs[-1]["valid"]["clean"] > 0.9


def test_fit_leaves_the_global_generator_alone_and_does_not_depend_on_it() -> None:
    finals = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        finals.append(fit(small_net(), toy_data(), None, toy_recipe()).model.state_dict())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(
        torch.equal(a, b) for a, b in zip(finals[0].values(), finals[1].values(), strict=True)
    )


def test_the_best_model_is_chosen_by_held_out_robust_accuracy(tmp_path: Path) -> None:
    class Ruin(Reporter):
        """Spoils the weights after the second epoch, so that a later epoch cannot be the best."""

        def batch(self, info: BatchInfo) -> None:
            if info.epoch >= 2:
                with torch.no_grad():
                    for p in net.parameters():
                        p.zero_()

    net = small_net()
    with pytest.raises(
        AmataError,
        match=r"collapsed to chance accuracy in epoch 3.*stopped, with the weights of the last "
        r"good epoch: lower optim.lr",
    ):
        fit(
            net,
            toy_data(),
            toy_data(40),
            toy_recipe("train.tensorboard=false"),
            run=tmp_path / "stopped",
            reporter=Ruin(),
        )
    assert [event["lr_scale"] for event in RunFolder(tmp_path / "stopped").events()] == [
        1 / 2,
        1 / 4,
        1 / 8,
        1 / 16,
        1 / 32,
        1 / 32,
    ]
    net = small_net()
    recipe = toy_recipe("train.tensorboard=false", "train.guard=ignore")
    fitted = fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "run", reporter=Ruin())
    assert fitted.best_epoch is not None
    assert fitted.best_epoch < 2
    assert any(p.any() for p in fitted.model.parameters())
    best = read_tensors(tmp_path / "run" / "model.safetensors")
    last = read_tensors(tmp_path / "run" / "last.safetensors")
    assert all(torch.equal(v, best[k]) for k, v in fitted.model.state_dict().items())
    assert not any(last[k].any() for k, _ in fitted.model.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("optim.name=adamw", "optim.lr=0.003"),
        ("optim.name=muon",),
        ("optim.ema=0.9",),
        ("optim.label_smoothing=0.1",),
    ],
)
def test_options_train(options: tuple[str, ...]) -> None:
    fitted = fit(small_net(), toy_data(), toy_data(40), toy_recipe("train.epochs=8", *options))
    assert fitted.epochs[-1]["valid"]["clean"] > 0.9


def test_the_average_is_what_is_kept() -> None:
    net = small_net()
    fitted = fit(net, toy_data(), None, toy_recipe("optim.ema=0.99"))
    assert fitted.model is not net
    assert any(
        not torch.equal(a, b)
        for a, b in zip(fitted.model.parameters(), net.parameters(), strict=True)
    )


def test_the_warm_up_of_the_average_is_that_of_the_recipe() -> None:
    """Without it a slow average hardly leaves the first weights."""
    moved = []
    for warmup in (0, 9):
        net = small_net()
        first = [p.detach().clone() for p in net.parameters()]
        recipe = toy_recipe("optim.ema=0.9999", f"optim.ema_warmup={warmup}")
        average = fit(net, toy_data(), None, recipe).model.parameters()
        moved.append(sum(float((a - b).norm()) for a, b in zip(average, first, strict=True)))
    assert 0 < moved[0] < moved[1] / 20


class ByKeyword(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, *, pixel_values: Tensor) -> Tensor:  # type: ignore[override]
        return pixel_values


NONE: Any = []


class Pair(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x, x


def test_fit_refuses_what_it_cannot_train_on() -> None:
    (x, y), recipe = toy_data(), toy_recipe()
    broken = x.clone()
    broken[3, 0, 0, 0], broken[5, 0, 0, 0] = torch.nan, torch.inf
    for model, data, message in (
        (small_net(), [(4 * x - 2, y)], r"outside \[0, 1\]"),
        (
            small_net(),
            (x, y + 4),
            r"outside the model's 4 classes; the model needs at least 6 outp",
        ),
        (small_net(), (x, y * 3 + 1), r"\[1, 4\], .* 4 classes; labels start at 0: subtract 1"),
        (
            nn.Sequential(small_net(), nn.Softmax(1)),
            (x, y),
            r"outputs are probabilities.* Drop its softmax",
        ),
        (ByKeyword(), (x, y), r"must take one batch of images, as in model\(x\): .*; wrap it"),
        (TinyCNN(classes=4), (x, y), r"it takes images of 28 x 28 pixels: resize them"),
        (torch.nn.Conv2d(1, 3, 3), (x, y), r"for 2 images .* logits of shape \(2, classes\)"),
        (Pair(), (x, y), r"not tuple; return the logits alone"),
        (
            small_net(),
            (broken, y),
            r"2 images have values that are not finite, the first is image 3",
        ),
        (
            small_net(),
            DataLoader([(x[0], 0), (x[0, :, 1:], 1)], batch_size=2),  # type: ignore[arg-type]
            r"^the training data have images of several sizes, .*: resize or crop them",
        ),
        (small_net(), (x, nn.functional.one_hot(y)), r"y.argmax\(1\) makes numbers of one-hot"),
        (Linear(1), (x, y), r"^training labels range over .* the model's 1 class;"),
        (small_net(), (x, y - 1), r"the lowest label is -1; number classes from 0"),
        (small_net(), (x[:0], y[:0]), r"there are no images"),
        (small_net(), DataLoader(NONE, batch_size=8), r"loader gives no batches: it is empty"),
        (small_net(), DataLoader(Endless(x, y), batch_size=8), r"no len\(\).*batches_per_epoch=N"),
    ):
        with pytest.raises(InputError, match=message):
            fit(model, data, None, recipe)


LATER: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "range": (lambda x, y: (255 * x, y), r"outside \[0, 1\]"),
    "not a number": (lambda x, y: (x * torch.nan, y), "non-finite"),
    "label above": (lambda x, y: (x, y + 3), r"labels range over \[3, 4\], outside the model's 4"),
    "label below": (lambda x, y: (x, y - 1), "outside the model's 4 classes"),
    "length": (lambda x, y: (x, y[1:]), r"labels must be an int64 tensor of shape \(16,\)"),
    "dtype of labels": (lambda x, y: (x, y.float()), "labels must be an int64 tensor"),
    "bytes": (lambda x, y: ((255 * x).byte(), y[1:]), r"labels must be .* shape \(16,\)"),
    "a single image": (lambda x, y: (x[0], y[0]), "this is one image, not a batch"),
    "dtype": (lambda x, y: (x.double(), y), r"images are torch.float64 and .*: take x.float\(\)"),
    "shape": (lambda x, y: (x[..., 1:], y), r"the model cannot take images of shape \(1, 6, 5\)"),
    "empty": (lambda x, y: (x[:0], y[:0]), "the batch is empty"),
}


@pytest.mark.parametrize("case", LATER)
def test_later_batches_are_checked_like_the_first(case: str) -> None:
    change, said = LATER[case]
    batches = [toy_data(16), toy_data(16), change(*toy_data(16))]
    with pytest.raises(InputError, match=f"^batch 3 of the training data: .*{said}"):
        fit(small_net(), batches, None, toy_recipe("train.epochs=1"))


@pytest.mark.parametrize("form", ["pair", "batches"])
def test_a_batch_of_one_image_that_batch_norm_refuses_is_named(form: str) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)
    )
    x, y = torch.rand(9, 3, 4, 4), torch.arange(9) % 3
    data = (x, y) if form == "pair" else list(zip(x.split(4), y.split(4), strict=True))
    with pytest.raises(InputError, match=r"batch 3 has 1 image.*drop_last=true"):
        fit(net, data, None, toy_recipe("data.batch_size=4"))


def test_batches_of_other_sizes_are_trained_on_where_the_model_can() -> None:
    pool = nn.AdaptiveAvgPool2d(1)
    pooled = nn.Sequential(nn.Conv2d(1, 4, 3), pool, nn.Flatten(), nn.Linear(4, 2))
    x, y = toy_data(16)
    sizes: list[int] = []
    pool.register_forward_hook(lambda module, args, z: sizes.append(len(z)))
    one, other = (x, y), (x[..., 1:], y)
    fit(pooled, [one, other, (x[:5], y[:5]), one, other], None, toy_recipe("train.epochs=1"))
    assert sizes.count(2) == 2, "each size is checked once, with two images"


BAD_HELD_OUT = {
    "too large": ([torch.full((40,), 10)], "outside the model's 4 classes"),
    "shape": ([torch.zeros(39).long()], "^batch 1 of the validation data: labels must be an int64"),
    "negative": ([torch.full((40,), -1)], "outside the model's 4 classes"),
    "floats": ([torch.zeros(40)], "labels"),
    "none": ([], "the validation set is empty"),
}


@pytest.mark.parametrize("case", BAD_HELD_OUT)
def test_a_bad_held_out_stream_is_named(case: str) -> None:
    labels, said = BAD_HELD_OUT[case]
    valid = [(toy_data(40)[0], y) for y in labels]
    with pytest.raises(InputError, match=said):
        fit(small_net(), toy_data(), valid, toy_recipe("train.tensorboard=false", "train.epochs=1"))


def test_held_out_labels_that_the_model_lacks_are_refused_before_an_epoch() -> None:
    x, y = toy_data(40)
    with pytest.raises(InputError, match=r"validation data have labels up to 6, .* has 4 outputs"):
        fit(small_net(), toy_data(), (x, y + 5), toy_recipe("train.guard=ignore"))


def test_training_on_clean_images_keeps_the_weights_that_are_best_on_them() -> None:
    """Under an attack they are all bad, and the least bad of them have hardly been trained."""
    recipe = toy_recipe(
        "train.tensorboard=false",
        "method.name=erm",
        "threat.eps=0.5",
        "train.epochs=4",
        "optim.lr=0.3",
    )
    rows = (fitted := fit(small_net(), toy_data(), toy_data(40), recipe)).epochs
    clean, robust = ([row["valid"][attack] for row in rows] for attack in ("clean", "pgd-20"))
    assert robust.index(max(robust)) != clean.index(max(clean))
    assert clean[1:] == [1.0] * 3, "held-out images cannot tell these epochs apart"
    assert fitted.best_epoch == 3, "of equal epochs the last has learnt most"


def test_while_no_epoch_is_robust_the_last_one_is_the_best_so_far() -> None:
    """The first epochs of a short training all have 0%: the first would have learnt nothing."""
    net = fit(small_net(), toy_data(), None, toy_recipe()).model
    x, y = toy_data(40)
    fitted = fit(net, toy_data(), (x, 1 - y), toy_recipe("train.guard=ignore"))
    assert [row["valid"]["pgd-20"] for row in fitted.epochs] == [0.0] * 4
    assert fitted.best_epoch == 3


def test_a_loss_that_explodes_is_noted_once() -> None:
    notes = Notes()
    recipe = toy_recipe("train.epochs=2", "train.guard=ignore", "optim.lr=1000")
    fit(Linear(2), toy_data(), None, recipe, reporter=notes)
    (note,) = [note for note in notes.notes if "diverges" in note]
    assert note.startswith("the loss is "), note
    assert "with a lower optim.lr (now 1000)" in note


def test_equal_bounds_end_with_the_same_bytes_as_a_constant(tmp_path: Path) -> None:
    common = ["train.epochs=3", "data.batch_size=16", "optim.lr=0.02", "train.tensorboard=false"]
    linear = recipes.load(
        "mnist5k-amata", [*common, "schedule.k_min=3", "schedule.k_max=3", "schedule.tau=0.15"]
    )
    constant = recipes.load(
        "mnist5k-pgd", [*common, "schedule.steps=3", f"schedule.step_size={0.15 / 3!r}"]
    )
    for recipe, name in ((linear, "linear"), (constant, "constant")):
        fit(small_net(), toy_data(), None, recipe, run=tmp_path / name)
    a, b = (read_tensors(tmp_path / name / "last.safetensors") for name in ("linear", "constant"))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_every_part_of_a_batch_has_its_own_dropout() -> None:
    masks: list[Tensor] = []
    dropout = nn.Dropout(0.5)
    dropout.register_forward_hook(
        lambda module, _, output: masks.append(output == 0) if module.training else None
    )
    net = nn.Sequential(dropout, nn.Flatten(), nn.Linear(36, 2))
    recipe = toy_recipe("train.epochs=2", "method.name=erm", "train.accumulate=2")
    fit(net, toy_data(32), None, recipe)
    assert len(masks) == 2 * 2 * 2  # epochs, batches, parts
    for a, b in combinations(masks, 2):
        assert not torch.equal(a, b)


@pytest.mark.parametrize("more", [(), ("method.awp.gamma=0.3",)])
def test_a_batch_in_parts_has_the_loss_and_the_update_of_the_whole(more: tuple[str, ...]) -> None:
    fits = []
    for parts in (1, 3):
        net = nn.Sequential(nn.Flatten(), Linear(2))
        recipe = toy_recipe("train.epochs=2", f"train.accumulate={parts}", *more)
        fits.append(fit(net, toy_data(32), None, recipe))
    for one, three in zip(*(f.epochs for f in fits), strict=True):
        assert three["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert three["grad_evals"] == one["grad_evals"]
    for a, b in zip(*(f.model.parameters() for f in fits), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("key", "value", "note"),
    [
        ("warmup", 1.5, None),
        ("warmup", 2, "optim.warmup = 2 is as long as the run"),
        ("warmup", 4, "optim.warmup = 4 is as long as the run"),
        ("milestones", [1, 4], None),
        ("milestones", [2, 4], "the run ends before the first of optim.milestones, 2, so"),
    ],
)
def test_a_learning_rate_that_never_rises_or_drops_is_noted(
    key: str, value: Any, note: str | None
) -> None:
    options = ["train.epochs=2", "optim.lr_schedule=piecewise", "optim.milestones=[]"]
    recipe = toy_recipe(*options, f"optim.{key}={value}")
    fit(small_net(), toy_data(), None, recipe, reporter=(told := Notes()))
    found = [text for text in told.notes if "learning rate never" in text]
    assert [text[: len(note or "")] for text in found] == ([note] if note else [])
    # Also of a recipe that a plan for a given time wrote.
    planned = toy_recipe(*options, f"optim.{key}={value}", "train.within=9")
    assert [text for text in recipe_notes(planned, None) if "learning rate never" in text] == found


@pytest.mark.parametrize(
    "schedule", [Constant(steps=2, step_size=0.1), Adaptive(k_max=2, tau=0.1, gamma=0.1)]
)
@pytest.mark.parametrize(("outputs", "expected"), [(2, 0), (5, 1)])
def test_outputs_without_a_class_are_noted_once(outputs: int, expected: int, schedule: Any) -> None:
    told = Notes()
    amata.fit(
        nn.Sequential(nn.Flatten(), nn.Linear(36, outputs)),
        toy_data(),
        method=PGD(ball=Linf(0.1)),
        schedule=schedule,
        optim=amata.SGD(lr=0.01),
        epochs=2,
        progress=told,
    )
    note = "the model has 5 outputs, and the training data have 2 classes: check its last layer"
    assert told.notes == [note] * expected


def test_held_out_logits_that_are_not_finite_count_as_wrong_and_are_noted() -> None:
    """Images brighter than those of training give NaN, which argmax would call class 0."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.net(x)
            return torch.where((x.flatten(1)[:, :1] > 0.95), torch.nan, z)

    x, y = toy_data(40)
    x, y = x.clone(), torch.zeros_like(y)
    x[:30, :, 0, 0] = 1
    recipe = toy_recipe("train.epochs=1", "train.valid_attack=pgd-1", "threat.eps=0.02")
    fitted = fit(Broken(), toy_data(), (x, y), recipe, reporter=(told := Notes()))
    assert fitted.epochs[0]["valid"]["clean"] <= 10 / 40
    said = "epoch 1: the logits of 30 of 40 held-out images are not finite"
    assert any(said in note for note in told.notes)
