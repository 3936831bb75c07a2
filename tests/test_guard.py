"""The collapse guard: what it sees, and what it does about it."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from amata import recipes
from amata.errors import AmataError
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder, files
from amata.runs.checkpoint import load_checkpoint
from amata.runs.files import write_atomic
from amata.training import Fitted, Interrupted, saver
from amata.training.batches import held_out_batches
from amata.training.guard import GuardStats, guard_stats, overfitted
from amata.training.trainer import Trainer
from tests.conftest import small_net
from tests.disk import Disk
from tests.toy import (
    Notes,
    StopAt,
    fit,
    newest,
    stateful_recipe,
    toy_data,
    toy_recipe,
    without_times,
)


def test_a_non_finite_loss_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poison(Reporter):
        def batch(self, info: BatchInfo) -> None:
            if (info.epoch, info.batch) == (1, 2):
                with torch.no_grad():
                    next(net.parameters()).fill_(torch.nan)

    net, recipe = small_net(), toy_recipe("train.tensorboard=false")
    with pytest.raises(
        AmataError, match=r"loss is not finite at or before epoch 2, batch 3 .*optim\.lr"
    ):
        fit(net, toy_data(), None, recipe, run=tmp_path / "run", reporter=Poison())
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints", recipe.fingerprint(), print)
    assert loaded is not None
    tensors, record = loaded
    assert (record["epoch"], record["batch"]) == (1, 0)
    assert all(t.isfinite().all() for t in tensors.values())


def test_nonfinite_weights_are_never_saved(tmp_path: Path) -> None:
    class Poison(Reporter):
        def batch(self, info: BatchInfo) -> None:
            # after the last loss of the epoch was seen
            if (info.epoch, info.batch) == (1, info.batches):
                with torch.no_grad():
                    next(net.parameters()).fill_(torch.nan)

    net, recipe = small_net(), toy_recipe("train.tensorboard=false")
    with pytest.raises(AmataError, match="weights are not finite"):
        fit(net, toy_data(), None, recipe, run=tmp_path / "run", reporter=Poison())
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").glob("*.json")) == [
        "00001-0000000.json"
    ]


class Collapsing(Reporter):
    """Ruins the weights once, at the end of an epoch: sure of wrong answers, as catastrophic
    overfitting is under an attack."""

    def __init__(self, net: torch.nn.Module, epoch: int) -> None:
        self.net, self.at, self.notes = net, epoch, [""]

    def batch(self, info: BatchInfo) -> None:
        if info.epoch == self.at and info.batch == info.batches:
            self.at = -1
            self.ruin()

    @torch.no_grad()
    def ruin(self) -> None:
        for p in list(self.net.parameters())[-2:]:
            p.mul_(-3)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Falling(Collapsing):
    """Ruins them so that all logits are equal."""

    @torch.no_grad()
    def ruin(self) -> None:
        for p in self.net.parameters():
            p.zero_()


@pytest.mark.parametrize(("method", "kind"), [("fast", Collapsing), ("free", Falling)])
def test_a_resumed_run_can_be_rolled_back_also_where_the_disk_was_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kind: type[Collapsing]
) -> None:
    Disk(monkeypatch, slow=True)
    recipe = stateful_recipe(method)
    with pytest.raises(Interrupted):
        fit(
            small_net(),
            toy_data(),
            toy_data(40),
            recipe,
            run=tmp_path / "run",
            reporter=StopAt(2, 3),
        )
    net = small_net()
    fitted = fit(
        net,
        toy_data(),
        toy_data(40),
        recipe,
        run=RunFolder.open(tmp_path / "run")[0],
        reporter=kind(net, epoch=2),
    )
    event = "chance-collapse" if kind is Falling else "catastrophic-overfitting"
    assert [(e["event"], e["epoch"]) for e in fitted.events] == [(event, 2)]
    assert [row["epoch"] for row in fitted.epochs] == [0, 1, 2, 3]


def test_catastrophic_overfitting_is_rolled_back_with_one_more_step(tmp_path: Path) -> None:
    recipe, net = stateful_recipe("fast"), small_net()
    reporter = Collapsing(net, epoch=2)
    fitted = fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "run", reporter=reporter)
    assert [row["epoch"] for row in fitted.epochs] == [0, 1, 2, 3]
    (event,) = fitted.events
    assert event["event"] == "catastrophic-overfitting"
    assert (event["epoch"], event["action"], event["extra_steps"]) == (2, "rollback", 1)
    assert event["after"] < event["before"] - 0.2
    assert [row["steps"] for row in fitted.epochs] == [1, 1, 2, 2]
    assert [row["step_size"] for row in fitted.epochs] == [0.06, 0.06, 0.03, 0.03], "K alpha = tau"
    assert fitted.grad_evals == 96 * (2 + 2 + 2 + 3 + 3), (
        "what the lost epoch cost is not forgotten"
    )
    assert any(
        "catastrophic overfitting in epoch 3" in n and "now with 2 inner steps" in n
        for n in reporter.notes
    )
    assert fitted.epochs[-1]["valid"]["pgd-20"] > 0.9
    run = RunFolder(tmp_path / "run")
    assert (run.epochs(), run.events()) == (fitted.epochs, fitted.events)


def test_without_held_out_images_the_guard_looks_at_training_images(tmp_path: Path) -> None:
    net = small_net()
    reporter, recipe = Collapsing(net, epoch=2), stateful_recipe("fast")
    fitted = fit(net, toy_data(), None, recipe, run=tmp_path / "run", reporter=reporter)
    assert [(e["event"], e["epoch"]) for e in fitted.events] == [("catastrophic-overfitting", 2)]
    assert "pgd-10 accuracy on training images dropped from" in " ".join(reporter.notes)
    assert [row["steps"] for row in fitted.epochs] == [1, 1, 2, 2]


@pytest.mark.parametrize("n", [1021, 1024])
def test_the_guards_images_are_of_all_classes_in_any_order(n: int) -> None:
    x, y = torch.zeros(n, 1, 2, 2), torch.arange(n) % 4
    for labels in (y, y.sort().values):
        batches = held_out_batches((x, labels), toy_recipe(), torch.device("cpu"), 256)
        assert batches is not None
        seen = torch.cat([batch.y for batch in batches.epoch()])
        assert len(seen) == 256
        assert seen.bincount(minlength=4).min() > 40


@pytest.mark.parametrize(("steps", "off"), [(1, True), (2, False)])
def test_a_stream_without_held_out_images_has_no_guard_and_says_so(steps: int, off: bool) -> None:
    net = small_net()
    reporter = Collapsing(net, epoch=2)
    recipe = stateful_recipe("fast", "method.init=random", f"schedule.steps={steps}")
    fit(net, [toy_data(8)] * 2, None, recipe, reporter=reporter)
    assert ("the collapse guard is off" in " ".join(reporter.notes)) is off


def test_a_guard_that_finds_nothing_changes_no_weight() -> None:
    trained = []
    for guard in ("rollback", "ignore"):
        net = small_net()
        fit(net, toy_data(), None, stateful_recipe("fast", f"train.guard={guard}"))
        trained.append(net.state_dict())
    assert all(torch.equal(trained[0][key], trained[1][key]) for key in trained[0])


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [Collapsing, Falling])
def test_a_rolled_back_run_resumes_with_its_remedy(
    tmp_path: Path, trouble: type[Collapsing]
) -> None:
    averaged = toy_recipe("train.tensorboard=false", "train.epochs=4", "optim.ema=0.9")
    recipe = stateful_recipe("fast") if trouble is Collapsing else averaged

    class Both(trouble):  # type: ignore[valid-type, misc]
        def batch(self, info: BatchInfo) -> None:
            super().batch(info)
            if stop and (info.epoch, info.batch, self.at) == (2, 3, -1):
                os.kill(os.getpid(), signal.SIGTERM)

    stop, net = False, small_net()
    fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "whole", reporter=Both(net, 2))
    stop, net = True, small_net()
    with pytest.raises(Interrupted):
        fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "cut", reporter=Both(net, 2))
    run, _ = RunFolder.open(tmp_path / "cut")
    fit(small_net(), toy_data(), toy_data(40), recipe, run=run)
    assert (tmp_path / "cut" / "last.safetensors").read_bytes() == (
        tmp_path / "whole" / "last.safetensors"
    ).read_bytes()
    whole = RunFolder(tmp_path / "whole")
    assert [without_times(r) for r in run.epochs()] == [without_times(r) for r in whole.epochs()]
    assert run.events() == whole.events() != []


@pytest.mark.slow
def test_what_a_collapsed_epoch_saved_is_never_resumed(tmp_path: Path) -> None:
    """Interrupted in the epoch that will collapse, rolled back after the resume, and interrupted
    again before anything newer was saved."""
    recipe = stateful_recipe("fast")
    net = small_net()
    fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "whole", reporter=Collapsing(net, 2))

    class Both(Collapsing):
        def batch(self, info: BatchInfo) -> None:
            super().batch(info)
            if (info.epoch, info.batch, info.steps) == stop:
                os.kill(os.getpid(), signal.SIGTERM)

    for stop in ((2, 20, 1), (2, 3, 2)):  # noqa: B007 (the reporter reads it)
        net = small_net()
        run: Any = (
            RunFolder.open(tmp_path / "cut")[0] if (tmp_path / "cut").exists() else tmp_path / "cut"
        )
        with pytest.raises(Interrupted):
            fit(net, toy_data(), toy_data(40), recipe, run=run, reporter=Both(net, 2))
    run, _ = RunFolder.open(tmp_path / "cut")
    resumed = fit(small_net(), toy_data(), toy_data(40), recipe, run=run)
    assert [row["steps"] for row in resumed.epochs] == [1, 1, 2, 2]
    assert (tmp_path / "cut" / "last.safetensors").read_bytes() == (
        tmp_path / "whole" / "last.safetensors"
    ).read_bytes()


def test_a_kill_while_the_guard_saves_leaves_the_checkpoint_that_it_went_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two have the same name."""
    recipe, net, run = stateful_recipe("fast"), small_net(), tmp_path / "run"
    saved = list[str]()

    class Killed(BaseException):
        pass

    def write(path: Path, *args: Any) -> None:
        if path.name.startswith("00002-0000000") and path.name in saved:
            raise Killed
        saved.append(path.name)
        write_atomic(path, *args)

    monkeypatch.setattr(files, "write_atomic", write)
    with pytest.raises(Killed):
        fit(net, toy_data(), toy_data(40), recipe, run=run, reporter=Collapsing(net, 2))
    loaded = load_checkpoint(run / "checkpoints", recipe.fingerprint(), print)
    assert loaded is not None
    assert (loaded[1]["epoch"], loaded[1]["batch"]) == (2, 0)


def test_a_run_that_the_guard_stops_ends_with_the_last_good_state_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its checkpoint was skipped."""
    monkeypatch.setattr(saver, "RATE", 1)
    recipe, net = stateful_recipe("fast", "train.guard=stop"), small_net()
    run = tmp_path / "run"
    with pytest.raises(AmataError, match="stopped, with the weights of the last good epoch"):
        fit(net, toy_data(), toy_data(40), recipe, run=run, reporter=Collapsing(net, 2))
    assert newest(run) == "00002-0000000.json"


def test_a_second_collapse_goes_back_to_an_unspoilt_state() -> None:
    recipe, states = stateful_recipe("fast"), []

    class Twice(Collapsing):
        def batch(self, info: BatchInfo) -> None:
            if info.epoch == 2 and info.batch == 1:
                states.append((info.steps, [p.clone() for p in self.net.parameters()]))
            if info.epoch == 2 and info.batch == info.batches and info.steps < 3:
                self.ruin()

    net = small_net()
    fitted = fit(net, toy_data(), toy_data(40), recipe, reporter=Twice(net, -1))
    assert [event["extra_steps"] for event in fitted.events] == [1, 2]
    assert [row["steps"] for row in fitted.epochs] == [1, 1, 3, 3]
    assert [steps for steps, _ in states] == [1, 2, 3]
    assert fitted.epochs[-1]["valid"]["pgd-20"] > 0.9


# of a single step the probe fails too, but that is not what went wrong
@pytest.mark.parametrize("steps", [1, 3])
def test_a_collapse_to_chance_is_rolled_back_with_half_the_learning_rate(
    tmp_path: Path, steps: int
) -> None:
    recipe = toy_recipe(
        "train.tensorboard=false",
        "train.epochs=4",
        f"schedule.k_min={steps}",
        f"schedule.k_max={steps}",
    )
    net = small_net()
    reporter = Falling(net, epoch=2)
    fitted = fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "run", reporter=reporter)
    assert [row["epoch"] for row in fitted.epochs] == [0, 1, 2, 3]
    (event,) = fitted.events
    assert event["event"] == "chance-collapse"
    assert (event["epoch"], event["action"], event["lr_scale"]) == (2, "rollback", 0.5)
    assert event["after"] == 0.5 < event["before"]  # two classes, and one answer
    rows = fitted.epochs
    untroubled = fit(small_net(), toy_data(), toy_data(40), recipe)
    assert [row["lr"] for row in rows] == pytest.approx(
        [row["lr"] * s for row, s in zip(untroubled.epochs, (1, 1, 0.5, 0.5), strict=True)]
    )
    assert {row["steps"] for row in rows} == {steps}
    note = "back to the end of epoch 2, now with 0.5 of the learning rate"
    assert any("collapsed to chance accuracy in epoch 3" in n and note in n for n in reporter.notes)
    assert rows[-1]["valid"]["clean"] > 0.9


def test_one_failure_does_not_undo_the_remedy_of_another() -> None:
    """A fall, and when the epoch is trained again, a collapse."""
    recipe = stateful_recipe("fast")

    class Both(Falling):
        def batch(self, info: BatchInfo) -> None:
            super().batch(info)
            if (info.epoch, info.batch, info.steps) == (
                2,
                info.batches,
                1,
            ) and self.at == -2:
                self.at = -3
                Collapsing.ruin(self)

        def note(self, text: str) -> None:
            super().note(text)
            if "chance accuracy" in text:
                self.at = -2

    net = small_net()
    whole = fit(net, toy_data(), toy_data(40), recipe, reporter=Both(net, 2))
    assert [row["epoch"] for row in whole.epochs] == [0, 1, 2, 3]
    assert [(e["event"], e["epoch"]) for e in whole.events] == [
        ("chance-collapse", 2),
        ("catastrophic-overfitting", 2),
    ]
    last = whole.epochs[-1]
    untroubled = fit(small_net(), toy_data(), toy_data(40), recipe)
    assert last["steps"] == 2
    assert last["lr"] == pytest.approx(untroubled.epochs[-1]["lr"] / 2)


def test_the_guard_uses_held_out_images_of_all_classes() -> None:
    """They come class by class, as those of a folder do: the first ones would show one class
    alone."""
    x, y = toy_data(600)
    order = y.argsort(stable=True)
    net, seen = small_net(), []
    net.register_forward_hook(
        lambda module, inputs, _: (
            None if module.training else seen.append(inputs[0].mean((1, 2, 3)) > 0.5)
        )
    )
    recipe = toy_recipe(
        "train.tensorboard=false", "train.epochs=1", "method.name=erm", "eval.batch_size=50"
    )
    fit(net, toy_data(), (x[order], y[order]), recipe)
    bright = torch.cat(seen[1:7])  # after the check of the first batch, before the validation
    assert len(bright) == 256
    assert 0.4 < bright.float().mean() < 0.6


def test_a_loss_of_a_fifth_or_of_half_is_catastrophic_overfitting() -> None:
    assert overfitted(0.5, 0.29)
    assert not overfitted(0.5, 0.31)
    assert overfitted(0.3, 0.14)
    assert not overfitted(0.3, 0.16)
    assert not overfitted(0.12, 0.05), "too little to tell"


def attacked(
    monkeypatch: pytest.MonkeyPatch, losses: dict[Any, float], robust: list[float], *options: str
) -> tuple[list[int], Fitted]:
    """The epochs after which the guard attacks, where training has these losses, by epoch and K or
    by epoch, and these accuracies are found."""
    epochs: list[int] = []

    def mean_loss(trainer: Trainer) -> float:
        epoch, k = trainer.state.epoch, round(trainer.control().steps)
        return losses.get(epoch) or losses[epoch, k]

    def accuracy(guard: Any, *_: Any) -> float:
        epochs.append(guard.trainer.state.epoch)
        return robust[len(epochs) - 1]

    monkeypatch.setattr(Trainer, "mean_loss", mean_loss)
    monkeypatch.setattr("amata.training.loop._Loop._guard_accuracy", accuracy)
    own = ["train.tensorboard=false", "schedule.k_min=2", "schedule.k_max=2", *options]
    return epochs, fit(small_net(), toy_data(), None, toy_recipe(*own))


FALLING = {0: 2.0, 1: 1.95, 2: 1.7, 3: 1.5}
RISING = {0: 2.0, 1: 2.4, 2: 2.2, 3: 2.15}


@pytest.mark.parametrize(
    ("share", "losses", "options", "expected"),
    [
        (9.0, FALLING, (), [0, 2, 3]),
        (9.0, RISING, (), [0, 2]),
        (9.0, FALLING, ("schedule.tau=0.04",), []),  # short steps
        (9.0, FALLING, ("train.eps_warmup=2",), [2, 3]),
        (1.5, FALLING, (), [2]),  # 11 evaluations of 96 images; an epoch of training has 3
        (0.1, FALLING, (), []),
    ],
)
def test_two_long_steps_are_attacked_when_the_loss_has_fallen(
    share: float,
    losses: dict[Any, float],
    options: tuple[str, ...],
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long: half of eps = 0.05 or more; at the full radius, and where it does not cost too much."""
    monkeypatch.setattr("amata.training.guard.SHARE", share)
    epochs, fitted = attacked(monkeypatch, losses, [0.3] * 4, *options)
    assert (epochs, fitted.events) == (expected, [])


def test_robustness_that_fades_is_rolled_back_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("amata.training.guard.SHARE", 9.0)
    # more steps raise the loss, but the remedy is checked
    losses = {0: 2.0, 1: 1.85, (2, 2): 1.7, (2, 3): 2.1, (2, 4): 2.1, 3: 2.05}
    robust = [
        0.9,
        0.75,
        0.6,
        0.5,
        0.8,
    ]  # a little in every epoch, but more than a fifth of the best
    epochs, fitted = attacked(monkeypatch, losses, robust)
    assert epochs == [0, 1, 2, 2, 2]
    assert [(e["epoch"], e["before"], e["after"]) for e in fitted.events] == [
        (2, 0.9, 0.6),
        (2, 0.9, 0.5),
    ]
    assert [row["steps"] for row in fitted.epochs] == [2, 2, 4, 4]


def test_two_steps_that_end_alike_with_a_third_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if half is lost: few images may overfit slowly. Single steps are not accepted then."""
    monkeypatch.setattr("amata.training.guard.SHARE", 9.0)
    epochs, fitted = attacked(monkeypatch, {**FALLING, 3: 1.69}, [0.9, 0.3, 0.31])
    assert epochs == [0, 2, 2]
    assert [row["steps"] for row in fitted.epochs] == [2, 2, 3, 2]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_network_that_gave_one_class_to_all_images_may_lose_that(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amata.training.guard.SHARE", 9.0)
    same = [f"schedule.k_min={steps}", f"schedule.k_max={steps}"]
    epochs, fitted = attacked(monkeypatch, FALLING, [0.5, 0.1, 0.3, 0.4], *same)
    assert len(epochs) == (4 if steps == 1 else 3)
    assert fitted.events == []


def test_a_network_that_fades_on_few_images_is_not_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("amata.training.guard.SHARE", 9.0)
    monkeypatch.setattr("amata.training.guard.FEW", 97)
    assert attacked(monkeypatch, FALLING, [0.3, 0.1])[0] == []


@pytest.mark.parametrize("after", [0.34, 0.2, 0.04])
def test_a_remedy_that_changes_nothing_is_not_repeated(
    after: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where more than half is lost two are tried, because two long steps may overfit too; where
    hardly anything is left, steps are added to the end."""

    class SecondTry(Reporter):
        def batch(self, info: BatchInfo) -> None:
            if (info.epoch, info.batch, info.steps) == (1, 2, 2):
                os.kill(os.getpid(), signal.SIGTERM)

    seen = iter([0.58, *[after] * 20])
    monkeypatch.setattr("amata.training.loop._Loop._guard_accuracy", lambda *_: next(seen))
    recipe = toy_recipe("train.tensorboard=false", "schedule.k_min=1", "schedule.k_max=1")

    if after < 0.05:
        with pytest.raises(AmataError, match=r"overfitting in epoch 2: .* guard='ignore'"):
            fit(small_net(), toy_data(), None, recipe)
        return
    path = tmp_path / "run"
    with pytest.raises(Interrupted):  # in the second try; a resumed run knows of the first
        fit(small_net(), toy_data(), None, recipe, run=path, reporter=SecondTry())
    run, _ = RunFolder.open(path)
    fit(small_net(), toy_data(), None, recipe, run=run)
    tried = [1] if after > 0.29 else [1, 2]
    assert [event["extra_steps"] for event in run.events()] == tried
    taken = [row["steps"] for row in run.epochs()]
    assert taken == [1, 1 + len(tried), *[1] * (recipe.train.epochs - 2)]  # its steps are not kept


AT_CHANCE = GuardStats(
    images=256,
    accuracy=0.12,
    same=1.0,
    loss=2.301,
    informed=2.30,
    equal=2.303,
    majority=0.1,
)


CHANCE = {"informed": 2.0, "equal": 2.0}


def at_chance(best: float = 0.97, **changes: Any) -> bool:
    return AT_CHANCE._replace(**changes).collapsed(best)


def test_chance_accuracy_differs_from_a_bad_network() -> None:
    assert at_chance()
    assert at_chance(same=0.6, accuracy=0.19)  # two predictions
    assert at_chance(informed=1.9, loss=1.9)  # rare classes known to be rare
    assert not at_chance(best=0.15)  # nothing had been learnt
    # BatchNorm's statistics lag behind: confident, and wrong
    assert not at_chance(loss=4.0)
    # one class is nearly all there is
    assert not at_chance(accuracy=0.9, same=0.96, informed=0.2, loss=0.3)


@pytest.mark.parametrize(
    ("best", "inside", "outside"),
    [
        (0.97, {"same": 0.51}, {"same": 0.49}),
        (0.97, {"images": 30}, {"images": 29}),  # few images say little
        # the loss is between 0.95 of an informed guess's and 1.05 of equal logits'
        (0.97, CHANCE | {"loss": 1.91}, CHANCE | {"loss": 1.89}),
        (0.97, CHANCE | {"loss": 2.09}, CHANCE | {"loss": 2.11}),
        # the accuracy is less than a fifth above that of one class for all
        (0.97, {"accuracy": 0.29}, {"accuracy": 0.31}),
        # and a fifth below the best, or half of it
        (0.45, {"accuracy": 0.24}, {"accuracy": 0.26}),
        (0.3, {"accuracy": 0.14}, {"accuracy": 0.16}),
    ],
)
def test_the_bounds_of_chance_accuracy(
    best: float, inside: dict[str, float], outside: dict[str, float]
) -> None:
    assert at_chance(best, **inside)
    assert not at_chance(best, **outside)


class Mute(torch.nn.Module):
    """A network that says nothing about any image."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = 0 * self.net(x)
        return z


@pytest.mark.parametrize(
    ("option", "epoch"),
    [
        ("train.seed=0", 2),
        ("train.eps_warmup=2", 3),
        ("optim.warmup=2.5", 4),
        ("optim.warmup=4", 0),
    ],
)
def test_a_network_that_learns_nothing_is_noted_once(
    option: str, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amata.training.guard.UPDATES", 12)  # two epochs
    reporter = Notes()
    recipe = toy_recipe("train.tensorboard=false", "train.epochs=4", option)
    fit(Mute(), toy_data(), toy_data(40), recipe, reporter=reporter)
    told = [note for note in reporter.notes if "seldom learn later" in note]
    start = f"accuracy on held-out images is at chance after epoch {epoch}, "
    assert [note.startswith(start) for note in told] == [True] * (epoch > 0)


def test_a_network_that_learns_or_had_few_updates_is_not_noted() -> None:
    recipe = toy_recipe("train.tensorboard=false", "train.epochs=4")
    for net in (small_net(), Mute()):
        reporter = Notes()
        fit(net, toy_data(), toy_data(40), recipe, reporter=reporter)
        assert not any("at chance" in note for note in reporter.notes)
    assert AT_CHANCE.learnt_nothing(0.1)
    assert not AT_CHANCE.learnt_nothing(0.3)  # it once knew more
    assert not AT_CHANCE._replace(accuracy=0.3).learnt_nothing(0.1)


def test_the_guards_statistics_are_those_of_its_images() -> None:
    """Of 40 images 30 are of class 0; the network says class 1 to 35 of them."""
    labels = torch.arange(40).ge(30).long()
    predictions = torch.arange(40).ge(5).long()
    x = predictions.view(-1, 1, 1, 1).float().expand(-1, 1, 2, 2).contiguous()
    layer = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [0.5]]).expand(2, 4))
    net = torch.nn.Sequential(torch.nn.Flatten(), layer)
    # logits (0, 0) for black images, which argmax calls class 0, and (0, 2) for white ones
    batches = held_out_batches((x, labels), toy_recipe(), torch.device("cpu"))
    assert batches is not None
    wrong, right, black = math.log1p(math.exp(2)), math.log1p(math.exp(-2)), math.log(2)
    assert guard_stats(net, batches)._asdict() == pytest.approx(
        {
            "images": 40,
            "accuracy": (5 + 10) / 40,
            "same": 35 / 40,
            "loss": (5 * black + 25 * wrong + 10 * right) / 40,
            "informed": -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)),
            "equal": math.log(2),
            "majority": 0.75,
        }
    )


@pytest.mark.parametrize("guard", ["stop", "ignore"])
def test_the_guard_can_stop_or_look_away(tmp_path: Path, guard: str) -> None:
    net = small_net()
    recipe = recipes.parse(
        {
            **stateful_recipe("fast").tables,
            "train": {**stateful_recipe("fast").tables["train"], "guard": guard},
        },
        "guarded",
    )
    reporter = Collapsing(net, epoch=2)
    if guard == "stop":
        with pytest.raises(
            AmataError, match=r"catastrophic overfitting in epoch 3.*weights of the last good epoch"
        ):
            fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "run", reporter=reporter)
        assert RunFolder(tmp_path / "run").events()[-1]["action"] == "stop"
        loaded = load_checkpoint(tmp_path / "run" / "checkpoints", recipe.fingerprint(), print)
        assert loaded is not None
        assert loaded[1]["epoch"] == 2
        assert all(torch.equal(v, loaded[0][f"model/{k}"]) for k, v in net.state_dict().items()), (
            "the model should be the last good one"
        )
    else:
        fitted = fit(net, toy_data(), toy_data(40), recipe, reporter=reporter)
        assert [row["epoch"] for row in fitted.epochs] == [0, 1, 2, 3]
