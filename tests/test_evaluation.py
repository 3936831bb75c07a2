"""Evaluation: counts, intervals, costs and warnings."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from amata.attacks import parse_attack, pgd
from amata.attacks.survivors import padded_size
from amata.console import results_table
from amata.console.grid import Grid
from amata.data import Arrays
from amata.errors import InputError, Interrupted
from amata.evaluation import (
    SINGLE_PROCESS,
    Attacked,
    GradCounter,
    Result,
    Shard,
    evaluate,
    unpack,
    wilson,
)
from amata.evaluation.masking import ModelStats, add_warnings
from amata.recipes import load
from amata.seeds import derive, generator
from amata.threat import Linf
from tests.conftest import Linear, images, labels, small_net
from tests.toy import fit, toy_data

BALL = Linf(0.05)


class Recording(Linear):
    """Records the images at which gradients are taken."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.seen.append(x.detach().clone())
        z: Tensor = super().forward(x)
        return z


def test_accuracy_is_what_the_attack_leaves() -> None:
    model, x, y = Linear(4), images(50), labels(50)
    results = evaluate(model, (x, y), ball=BALL, attacks=["clean", "pgd-7"], batch_size=50, seed=3)
    assert results["clean"].accuracy == pytest.approx(
        float((model(x).argmax(1) == y).float().mean())
    )
    rng = generator(derive(3, 0, "pgd-7"), 0, "attack")
    x_adv = pgd(model, x, y, ball=BALL, steps=7, generator=rng)
    assert results["pgd-7"].accuracy == pytest.approx(
        float((model(x_adv).argmax(1) == y).float().mean())
    )
    assert results["pgd-7"].params == parse_attack("pgd-7").params(BALL)


def test_accuracy_that_may_be_guessing_is_a_warning() -> None:
    def warned(*per_class: tuple[int, int]) -> str:
        right, n = (sum(counts) for counts in zip(*per_class, strict=True))
        stats = ModelStats(n, right, class_sum=1, class_square_sum=n)
        result = Result(right / n, n, 0.0, 1.0, 0, 0.0, {}, per_class=list(per_class))
        add_warnings([parse_attack("clean")], {"clean": result}, BALL, stats)
        return " ".join(result.warnings)

    assert "guessing: the classes have 27.8% on average, and by chance 33.3%" in warned(
        (5, 12), (3, 12), (2, 12)
    )
    assert "49.9% on average, and by chance 50.0%" in warned((949, 950), (0, 50), (0, 0))
    assert not warned((893, 950), (47, 50))  # less than the share of the first class
    assert not warned((20, 20))


def test_every_image_has_an_outcome_in_order_and_every_class_its_accuracy() -> None:
    model, x, y = Linear(4, seed=1), images(21), labels(21)
    seen: list[Attacked] = []
    results = evaluate(
        model, (x, y), ball=BALL, attacks="clean,pgd-3@18", batch_size=8, examine=seen.append
    )
    right = model(x).argmax(1) == y
    assert results["clean"].outcomes == right.tolist()
    attacked = torch.cat([b.z_adv.argmax(1) == b.y for b in seen if b.attack.perturbs])
    for name, expected in (("clean", right), ("pgd-3@18", attacked)):
        result, n = results[name], len(expected)
        assert result.outcomes == expected.tolist()
        assert len(repr(result)) < 300, "single images are not printed"
        assert result.per_class == [
            (int(expected[y[:n] == c].sum()), int((y[:n] == c).sum())) for c in range(4)
        ]
        stored = json.loads(json.dumps(result.to_dict()))
        assert unpack(stored["outcomes"], stored["n"]) == expected.tolist()


def test_processes_join_their_outcomes_in_the_order_of_the_images(short_autoattack: None) -> None:
    model, x, y = Linear(4), images(23), labels(23)
    batches = list(zip(x.split(5), y.split(5), strict=True))
    attacks = ["clean", "pgd-2@11", "autoattack"]
    given: dict[str, Any] = {"ball": BALL, "attacks": attacks, "batch_size": 5}
    alone = evaluate(model, batches, **given)
    rows: dict[int, list[float]] = {}
    barrier = threading.Barrier(2)

    def process(rank: int, split: list[Any]) -> dict[str, Result]:
        def add(values: Sequence[float]) -> list[float]:
            rows[rank] = list(values)
            barrier.wait(timeout=600)
            total = [a + b for a, b in zip(rows[0], rows[1], strict=True)]
            barrier.wait(timeout=600)
            return total

        own = split[rank::2]
        return evaluate(Linear(4), own, part=Shard(rank, 2, add), **given)

    # One process may have no batch at all. Batches of unequal sizes have no known order.
    unequal = [(x[:3], y[:3]), (x[3:23], y[3:23])]
    for split, known in ((batches, True), (batches[:1], True), (unequal, False)):
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(process, (0, 1), (split, split)))
        for found in both:
            for name, result in evaluate(model, split, **given).items() if known else ():
                assert found[name].outcomes == result.outcomes
                assert found[name].per_class == result.per_class
                assert found[name].parts == pytest.approx(result.parts)
            if not known:
                assert found["clean"].outcomes is None
                assert found["clean"].accuracy == alone["clean"].accuracy


class Memory:
    """A store of evaluations."""

    def __init__(self) -> None:
        self.text: str | None = None

    def load(self) -> dict[str, Any] | None:
        return None if self.text is None else json.loads(self.text)

    def save(self, state: dict[str, Any]) -> None:
        self.text = json.dumps(state)


class Counted(Linear):
    """Counts forward passes."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        z: Tensor = super().forward(x)
        return z


def counted(result: Result) -> tuple[Any, ...]:
    """What a result says of its images."""
    return result.n, result.outcomes, result.per_class, result.low, result.params


@pytest.mark.parametrize("stop", [1, 2, 5, 9, 14, 23, 24, 45])
def test_an_interrupted_evaluation_continues_with_the_same_results(
    stop: int, short_autoattack: None
) -> None:
    x, y = images(23), labels(23)
    given: dict[str, Any] = {
        "ball": BALL,
        "attacks": ["clean", "pgd-2-2", "cw-pgd-3@9", "autoattack"],
        "batch_size": 5,
        "seed": 4,
    }
    whole = evaluate(Counted(4), (x, y), **given)
    memory, calls = Memory(), 0

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:  # before or after an attack on a batch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        evaluate(Counted(4), (x, y), store=memory, progress=interrupt, **given)
    # The results so far are those of the images that met every attack.
    if isinstance(stopped.value, Interrupted):
        done = next(iter(stopped.value.result.values())).n
        assert str(stopped.value) == f"interrupted after {done} of 23 images"
        assert done > 9 or stop < 45, "an attack of nine images is not waited for"
        fewer = evaluate(Counted(4), (x, y), limit=done, **given)
        for name, result in stopped.value.result.items():
            assert counted(result) == counted(fewer[name])
    else:
        assert stop < 14, "the first batch has met every attack"
    model = Counted(4)
    continued = evaluate(model, (x, y), store=memory, **given)
    for name, result in whole.items():
        assert replace(continued[name], seconds=0) == replace(result, seconds=0)
    # Done is done: neither the model nor the data are needed, unless by another attack.
    calls_before = model.calls
    again = evaluate(model, iter(()), store=memory, **given)
    assert model.calls == calls_before
    assert again == continued
    more = evaluate(model, (x, y), store=memory, **{**given, "attacks": ["clean", "fgsm"]})
    alone = evaluate(model, (x, y), **{**given, "attacks": ["clean", "fgsm"]})
    assert [r.outcomes for r in more.values()] == [r.outcomes for r in alone.values()]


@pytest.mark.parametrize("stop", [3, 12])
def test_autoattack_gathers_batches(
    stop: int, monkeypatch: pytest.MonkeyPatch, short_autoattack: None
) -> None:
    """Two batches of five at a time, then what is left; also when it was interrupted."""
    monkeypatch.setattr("amata.evaluation.loop.GATHERED_IMAGES", {"cpu": 10})
    model, x = Linear(4), images(23)
    y = model(x).argmax(1)
    seen: list[Attacked] = []
    given: dict[str, Any] = {
        "ball": Linf(0.1),
        "attacks": ["clean", "apgd-ce@13", "autoattack"],
        "batch_size": 5,
    }
    whole = evaluate(model, (x, y), examine=seen.append, **given)
    assert [r.n for r in whole.values()] == [23, 13, 23]
    assert 0 < whole["autoattack"].accuracy < 1
    for name, result in whole.items():
        own = [found for found in seen if found.attack.name == name]
        assert [len(found.x) for found in own] == ([5, 5, 3] if "@" in name else [5, 5, 5, 5, 3])
        assert [right for found in own for right in found.outcomes] == result.outcomes
        for found in own:
            assert torch.equal(found.x, x[found.first : found.first + len(found.x)])
            assert torch.equal(found.z_adv, model(found.x_adv))
    memory, calls = Memory(), 0

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model, (x, y), store=memory, progress=interrupt, **given)
    continued = evaluate(model, (x, y), store=memory, **given)
    for name, result in whole.items():
        assert replace(continued[name], seconds=0) == replace(result, seconds=0)


def test_progress_names_what_is_running_and_the_time_left(short_autoattack: None) -> None:
    rows: list[tuple[Any, ...]] = []
    model, x = Linear(4), images(12)
    evaluate(
        model,
        (x, model(x).argmax(1)),
        ball=Linf(1e-4),  # breaks nothing: all parts run
        attacks=["pgd-1", "autoattack@4"],
        batch_size=4,
        progress=lambda *row: rows.append(row),
    )
    assert [row[3] for row in rows if row[0] == "autoattack@4"] == [
        "",
        "1 of 4: apgd-ce, 4 images left",
        "2 of 4: apgd-t, 4 images left",
        "3 of 4: fab-t, 4 images left",
        "4 of 4: square, 4 images left",
        "",
    ]
    assert all(row[2] == (4 if row[0] == "autoattack@4" else 12) for row in rows)
    left = [row[4] for row in rows if row[0] == "pgd-1"]
    assert left[0] is None, "nothing is known before the first batch"
    assert all(seconds > 0 for seconds in left[1:-1])
    assert left[-1] == 0


@pytest.mark.parametrize(
    ("attack", "per_image"),
    [("clean", 0), ("fgsm", 1), ("pgd-5", 5), ("cw-pgd-4", 4), ("cw-l2-6", 6 + 3 + 5)],
)
def test_gradient_evaluations_are_counted(attack: str, per_image: int) -> None:
    model, x = Linear(4), images(10)
    right = model(x).argmax(1)
    y = torch.where(torch.arange(10) < 7, right, (right + 1) % 4)
    attacked = 7 if attack.startswith("cw-l2") else 10  # images that are wrong already are not
    found = evaluate(model, (x, y), ball=BALL, attacks=[attack], batch_size=4)[attack]
    assert found.grad_evals == attacked * per_image


def test_an_attack_may_have_its_own_number_of_images() -> None:
    model, x, y = Linear(4), images(30), labels(30)
    found = evaluate(
        model, (x, y), ball=BALL, attacks=["clean", "clean@17", "pgd-3@8", "pgd-3@99"], batch_size=5
    )
    assert {name: r.n for name, r in found.items()} == {
        "clean": 30,
        "clean@17": 17,
        "pgd-3@8": 8,
        "pgd-3@99": 30,
    }
    assert found["clean@17"].accuracy == pytest.approx(
        float((model(x[:17]).argmax(1) == y[:17]).float().mean())
    )
    assert found["pgd-3@8"].grad_evals == 8 * 3


def test_restarts_attack_only_images_that_are_still_correct() -> None:
    model, x, y = Linear(4), images(40), labels(40)
    y = model(x).argmax(1)
    one, three = (
        evaluate(model, (x, y), ball=Linf(0.1), attacks=[a], batch_size=40)[a]
        for a in ("pgd-1", "pgd-1-3")
    )
    assert 0 < one.accuracy < 1
    assert three.accuracy <= one.accuracy
    rng = generator(derive(derive(0, 0, "pgd-1-3"), 0), 0, "attack")
    found = pgd(model, x, y, ball=Linf(0.1), steps=1, generator=rng)
    left = int((model(found).argmax(1) == y).sum())
    # batches are filled up to multiples of five
    assert 40 < three.grad_evals <= 40 + 2 * padded_size(left, 40) < 120
    none_fooled = evaluate(model, (x, y), ball=Linf(1e-6), attacks=["pgd-5-3"], batch_size=40)
    assert none_fooled["pgd-5-3"].grad_evals == 40 * 15
    recording = Recording(4)
    evaluate(recording, (x, y), ball=Linf(1e-3), attacks=["pgd-1-2"])
    _, first, second = recording.seen  # the first entry checks for zero gradients
    assert not torch.equal(first[: len(second)], second), "restarts have their own noise"
    net = small_net().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    evaluate(net, (x, y), ball=BALL, attacks=["pgd-2-3"])
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items()), "statistics moved"


def test_every_gradient_is_counted_once() -> None:
    counter = GradCounter(small_net())
    x = images().requires_grad_()
    z = counter(x)
    torch.autograd.grad(z.sum(), x, retain_graph=True)
    torch.autograd.grad(z[:, 0].sum(), x)
    with torch.no_grad():
        counter(x)
    assert counter.grad_evals == 12


def test_limit_batches_and_iterables_agree() -> None:
    model, x, y = Linear(4), images(30), labels(30)
    seen: list[tuple[Any, ...]] = []
    pair = evaluate(
        model,
        (x, y),
        ball=BALL,
        attacks=["clean"],
        limit=17,
        batch_size=5,
        progress=lambda *row: seen.append(row),
    )["clean"]
    stream = evaluate(
        model,
        [(x[i : i + 5], y[i : i + 5]) for i in range(0, 30, 5)],
        ball=BALL,
        attacks=["clean"],
        limit=17,
    )["clean"]
    assert (pair.accuracy, pair.n) == (stream.accuracy, stream.n)
    assert pair.n == 17
    assert [row[:3] for row in seen[1::2]] == [("clean", done, 17) for done in (5, 10, 15, 17)]
    assert [row[1] for row in seen[::2]] == [0, 5, 10, 15], "and when it begins"


def test_wilson_intervals() -> None:
    assert wilson(0, 100) == pytest.approx((0.0, 0.03699), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.40383, 0.59617), abs=1e-4)
    assert wilson(100, 100)[1] == 1.0
    assert wilson(9000, 10000) == pytest.approx((0.89397, 0.90573), abs=1e-4)


class Masked(Linear):
    """Has no gradient at images that begin with a white pixel."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        white = (x.flatten(1)[:, :1] == 1).float()
        return (1 - white) * z + white * z.detach()


@pytest.mark.parametrize(("masked", "warns"), [(2, False), (3, True)])
def test_zero_gradients_are_named(masked: int, warns: bool) -> None:
    """Above one in twenty of the correctly classified images."""
    model, x = Masked(4), images(50)
    x[40 - masked :, :, 0, 0] = 1
    y = model(x).argmax(1)
    y[40:] = (y[40:] + 1) % 4  # misclassified: their gradients do not matter
    results = evaluate(model, (x, y), ball=BALL, attacks=["clean", "pgd-10"])
    assert not results["clean"].warnings
    expected = ["3 of 40 images have an input gradient of exactly zero"] if warns else []
    assert [w.split(":")[0] for w in results["pgd-10"].warnings] == expected


class Broken(Linear):
    """A logit of NaN, or of infinity, for class 0 at images that begin with a bright pixel."""

    def __init__(self, value: float) -> None:
        super().__init__(4)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = super().forward(x)
        bright = (x.flatten(1)[:, :1] > 0.5) & (torch.arange(4) == 0)
        return torch.where(bright, self.value, z)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("attack", ["clean", "fgsm", "pgd-3", "pgd-3-2", "cw-l2-3", "autoattack"])
def test_logits_that_are_not_finite_are_wrong_and_counted(attack: str, value: float) -> None:
    """Label 0 is what argmax makes of them: 40 of 45 images would count as correct."""
    model, x = Broken(value), 0.4 * images(45)
    x[:40, :, 0, 0] = 1
    y = model(x).argmax(1)
    if attack == "autoattack":  # labels for which argmax is wrong: to attack them takes minutes
        x, y = x[:40], y[:40] + 1
    tiny = Linf(1e-7)  # changes no prediction
    result = evaluate(model, (x, y), ball=tiny, attacks=[attack], batch_size=16)[attack]
    assert result.non_finite == 40
    assert result.accuracy <= (len(x) - 40) / len(x)
    assert result.accuracy > 0 or attack == "autoattack"
    assert result.to_dict()["non_finite"] == 40
    assert f"the logits of 40 of {len(x)} images are not finite" in result.warnings[0]
    assert f"{len(x)} (40 not finite)" in as_text(results_table({attack: result.to_dict()}))


def as_text(table: Grid) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


class NaNAbove(nn.Module):
    """Class 0, with logits of NaN where the first pixel is above 0.6."""

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)[:, 0]
        z = torch.stack([0 * first + 1, 0.1 * first], 1)
        return torch.where((first > 0.6)[:, None], torch.nan, z)


def test_restarts_end_at_an_image_with_logits_that_are_not_finite() -> None:
    """A third of the random starts are above 0.6; steps are too small to matter."""
    x, y = torch.full((40, 1, 1, 1), 0.55), torch.zeros(40, dtype=torch.long)
    attack = "pgd-1-25"
    result = evaluate(NaNAbove(), (x, y), ball=Linf(0.2), attacks=attack, step_size=1e-6)[attack]
    assert (result.accuracy, result.non_finite) == (0, 40)


class SquareRoot(Linear):
    """Finite logits, and a gradient of NaN at images that begin with a white pixel."""

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = super().forward(x)
        return z + 0 * (1 - x.flatten(1)[:, :1]).sqrt()


def test_gradients_that_are_not_finite_are_a_warning_that_names_the_attack() -> None:
    model, x = SquareRoot(4), 0.9 * images(40)
    x[:3, :, 0, 0] = 1
    y = model(x).argmax(1)
    results = evaluate(model, (x, y), ball=BALL, attacks=["clean", "fgsm"], batch_size=7)
    assert results["clean"].warnings == []
    (warning,) = results["fgsm"].warnings
    assert warning.startswith("7.5% of the input gradients of fgsm are not finite: it cannot")
    assert results["fgsm"].non_finite == 0
    assert results["fgsm"].accuracy >= 3 / 40


def test_autoattack_has_the_accuracy_after_each_of_its_parts(short_autoattack: None) -> None:
    model, x = Linear(5), images(40)
    y = model(x).argmax(1)
    given: dict[str, Any] = {"ball": Linf(0.02), "attacks": "autoattack", "batch_size": 16}
    found = evaluate(model, (x, y), **given)["autoattack"]
    assert list(found.parts) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert 1 > found.parts["apgd-ce"] >= found.parts["apgd-t"] >= found.parts["fab-t"] > 0
    assert found.parts["square"] == found.accuracy
    # The first part alone, from the same random starts.
    alone, right = parse_attack("apgd-ce"), 0
    for number, (a, b) in enumerate(zip(x.split(16), y.split(16), strict=True)):
        x_adv = alone(model, a, b, ball=Linf(0.02), seed=derive(0, number, "autoattack"))
        right += int((model(x_adv).argmax(1) == b).sum())
    assert found.parts["apgd-ce"] == right / 40
    # Nothing is left for the others.
    all_broken = evaluate(model, (x, y), **{**given, "ball": Linf(1)})["autoattack"]
    assert all_broken.parts == dict.fromkeys(found.parts, 0)


def test_what_few_classes_leave_of_autoattack_is_a_warning() -> None:
    model, x = Linear(3), images(4)
    y = (model(x).argmax(1) + 1) % 3  # wrong already: nothing is left to attack
    (warning,) = evaluate(model, (x, y), ball=BALL, attacks="autoattack")["autoattack"].warnings
    assert warning.startswith("with 3 classes AutoAttack ran apgd-ce, fab-t and square only")


def test_shards_attack_the_same_images_as_one_process() -> None:
    x, y = images(1).expand(20, -1, -1, -1), labels(20)
    batches = list(zip(x.split(5), y.split(5), strict=True))

    def starts(part: Shard, attack: str) -> list[Tensor]:
        model, own = Recording(4), batches[part.rank :: part.size]
        evaluate(model, own, ball=BALL, attacks=[attack], batch_size=5, limit=17, part=part)
        return model.seen[part.rank == 0 :]  # without the look at the first batch's gradients

    for attack, sizes in (("pgd-1", [5, 5, 5, 2]), ("pgd-1@8", [5, 3])):
        whole = starts(SINGLE_PROCESS, attack)
        assert [len(start) for start in whole] == sizes
        assert not torch.equal(whole[0][:3], whole[1][:3]), "each batch has its own noise"
        for rank in (0, 1):
            shard = starts(Shard(rank, 2, list), attack)
            assert len(shard) == len(whole[rank::2])
            assert all(map(torch.equal, shard, whole[rank::2]))


class Constant(nn.Module):
    """Predicts class 2 of 4, except 1 for images that begin with a white pixel."""

    def forward(self, x: Tensor) -> Tensor:
        first = x.flatten(1)[:, 0]
        zero = 0 * first  # with a gradient
        return torch.stack([zero, zero + (first == 1), zero + 0.5, zero], 1)


@pytest.mark.parametrize(
    ("n", "correct", "white", "warns"),
    [
        (200, 100, 0, True),
        (200, 100, 1, False),
        (50, 0, 0, True),
        (49, 24, 0, True),
        (49, 25, 0, False),
        (20, 10, 0, True),
        (19, 0, 0, False),
        (50, 45, 0, True),
        (50, 46, 0, False),
    ],
)
def test_a_model_that_predicts_one_class_is_named(
    n: int, correct: int, white: int, warns: bool
) -> None:
    x, y = images(n) * 0.5, torch.full((n,), 3)
    y[:correct] = 2
    x[n - white :, :, 0, 0] = 1
    results = evaluate(Constant(), (x, y), ball=BALL, attacks=["clean", "fgsm"], batch_size=64)
    for result in results.values():
        assert any("learnt nothing" in w for w in result.warnings) == warns
    if warns:
        assert [len(result.warnings) for result in results.values()] == [1, 1]


def test_evaluation_does_not_autotune_and_restores_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batch sizes change all the time, and cuDNN would tune for each."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    seen = []

    class Watching(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, len(x)))
            z: Tensor = super().forward(x)
            return z

    model, x = Watching(4), images(12)
    y = model(x).argmax(1)
    y[7:] = (y[7:] + 1) % 4
    seen.clear()
    evaluate(model, (x, y), ball=BALL, attacks=["pgd-3"], precision="fp32")
    assert {s[:2] for s in seen} == {(False, False)}
    assert {s[2] for s in seen} <= {1, 2, 12}  # never a batch of the correct images alone
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.allow_tf32


class Rippled(nn.Module):
    """A fine ripple traps many small steps, while one large step follows the trend and succeeds."""

    def forward(self, x: Tensor) -> Tensor:
        v = x.flatten(1).mean(1) - 0.5
        lead = 0.05 - v - 0.02 * torch.sin(300 * v)
        return torch.stack([lead, torch.zeros_like(lead)], 1)


@pytest.mark.parametrize(
    ("n", "gap", "warns"),
    [(64, 2, False), (64, 3, True), (1024, 10, False), (1024, 11, True)],
    ids=str,
)
def test_a_stronger_attack_that_does_worse_is_named(n: int, gap: int, warns: bool) -> None:
    """More than two images, and more than one in a hundred."""
    x = torch.full((n, 1, 2, 2), 0.5)
    x[gap:] = 0.2  # far from the boundary: both attacks fail
    results = evaluate(
        Rippled(),
        (x, torch.zeros(n, dtype=torch.long)),
        ball=Linf(0.1),
        attacks=["fgsm", "pgd-100"],
        step_size=0.001,
    )
    assert results["pgd-100"].accuracy == 1
    assert results["fgsm"].accuracy == (n - gap) / n
    assert not results["fgsm"].warnings
    expected = [f"accuracy under pgd-100 is {gap / n:.1%} higher than under the weaker fgsm"]
    assert [w.split(":")[0] for w in results["pgd-100"].warnings] == (expected if warns else [])


@pytest.mark.slow
def test_an_honest_model_gets_no_warning() -> None:
    model, x = Linear(10), images(50)
    y = model(x).argmax(1)
    results = evaluate(
        model,
        (x, y),
        ball=BALL,
        attacks=["clean", "fgsm", "pgd-5", "pgd-20", "pgd-20-2", "cw-pgd-20", "autoattack"],
    )
    assert [w for r in results.values() for w in r.warnings] == []
    assert (
        results["autoattack"].accuracy <= results["pgd-20-2"].accuracy <= results["clean"].accuracy
    )
    assert results["autoattack"].grad_evals > 50 * 100


def test_the_model_is_left_as_found_in_every_submodule() -> None:
    model = small_net().train()
    model[1].eval()
    modes = [m.training for m in model.modules()]
    evaluate(model, (images(), labels()), ball=BALL, attacks=["clean", "pgd-2"])
    assert [m.training for m in model.modules()] == modes


def test_an_attack_named_twice_is_run_once() -> None:
    model, x = Linear(4), images(10)
    names = ("clean", "clean", " clean")
    for attacks in (names, iter(names)):  # in any iterable
        results = evaluate(model, (x, model(x).argmax(1)), ball=BALL, attacks=attacks)
        assert list(results) == ["clean"]
        assert results["clean"].accuracy == 1.0


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(InputError, match="no images"):
        evaluate(Linear(4), [], ball=BALL)


class Failing(nn.Module):
    """Raises a RuntimeError with or without a message."""

    def __init__(self, *message: str) -> None:
        super().__init__()
        self.message = message

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(*self.message)


@torch.inference_mode()
def inferred() -> nn.Module:
    return Linear(4)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    """Images without a length."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.pairs = list(zip(x, y, strict=True))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.pairs)


@torch.inference_mode()
def in_inference_mode(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone(), y.clone()


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "floats": lambda x, y: (x, y),
    "bytes": lambda x, y: ((255 * x).byte(), y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "arrays of bytes": lambda x, y: ((255 * x).byte().numpy(), y.numpy()),
    "labels of an array": lambda x, y: (x, y.numpy()),
    "image set": Arrays,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=8),
    "loader without a length": lambda x, y: DataLoader(Endless(x, y), batch_size=8),
    "generator": lambda x, y: ((x[i : i + 8], y[i : i + 8]) for i in range(0, 40, 8)),
    "inference tensors": in_inference_mode,
}


@pytest.mark.parametrize("form", FORMS)
def test_data_are_taken_in_any_form(form: str) -> None:
    model, y = Linear(4), labels(40)
    x = (255 * images(40)).round() / 255
    given: dict[str, Any] = {"ball": Linf(0.02), "attacks": ["clean", "pgd-3"], "batch_size": 8}
    expected = evaluate(model, (x, y), **given)
    with torch.inference_mode(form == "generator"):
        found = evaluate(model, FORMS[form](x, y), **given)
    for name, result in expected.items():
        assert (found[name].accuracy, found[name].n) == (result.accuracy, 40)
        assert found[name].grad_evals == result.grad_evals


def test_mistakes_in_the_arguments_are_named() -> None:
    model, x, y = Linear(4), images(6), labels(6) % 4
    odd = nn.Sequential(nn.Flatten(), nn.Linear(5, 4))
    recipe = load("mnist5k-amata", "train.device=cpu")
    radius: Any = 8 / 255
    mistakes: dict[str, Callable[[], object]] = {
        r"ball = 0\.03\d+ is not a threat model; write amata\.Linf": lambda: evaluate(
            model, (x, y), ball=radius
        ),
        r"ball = 0\.03\d+ is not": lambda: pgd(model, x, y, ball=radius),
        r"model must be an nn.Module, not function": lambda: evaluate(
            lambda x: x,  # type: ignore[arg-type]
            (x, y),
            ball=BALL,
        ),
        r"changes its input images in place; set inplace=False": lambda: evaluate(
            nn.Sequential(nn.ReLU(inplace=True), model), (x, y), ball=BALL
        ),
        r"the model was made in torch.inference_mode\(\)": lambda: evaluate(
            inferred(), (x, y), ball=BALL
        ),
        r"data must be a pair .*, not NoneType": lambda: evaluate(model, None, ball=BALL),
        r"batch 1 of the data: .* the keys 'x'": lambda: evaluate(model, [{"x": x}], ball=BALL),
        r"batch 1 of the data: .*, not int": lambda: evaluate(model, [3], ball=BALL),
        r"the model cannot take images of shape \(": lambda: evaluate(odd, (x, y), ball=BALL),
        r"the model cannot take images of": lambda: fit(odd, (x, y), None, recipe),
        r"the model cannot take images of shape \(.*: RuntimeError": lambda: evaluate(
            Failing(), (x, y), ball=BALL
        ),
        r"'pgd-0': the number of steps": lambda: evaluate(
            model, (x, y), ball=BALL, attacks="pgd-0"
        ),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(InputError, match=message):
            mistake()
    for message in ("CUDA out of memory", "CUDA error: misaligned"):  # not caused by the images
        with pytest.raises(RuntimeError, match=message):
            evaluate(Failing(message), (x, y), ball=BALL)
    assert list(evaluate(model, (x, y), ball=BALL, attacks="clean, pgd-2")) == ["clean", "pgd-2"]


def test_an_evaluation_without_attacks_says_so() -> None:
    with pytest.raises(InputError, match="attacks is empty; name at least one"):
        evaluate(small_net(), toy_data(8), ball=Linf(0.1), attacks=[], progress=False)
