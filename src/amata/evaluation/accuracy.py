"""Accuracy under attack: every attack on every batch, judged by the model itself."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from amata.attacks import Attack, parse_attack
from amata.attacks.checks import check_images, check_logits, check_module, forward
from amata.attacks.preserve import untouched
from amata.engine import EvalCopy, compiled_for_eval, no_cudnn_benchmark, suits_fp16, tf32
from amata.errors import InputError
from amata.evaluation.batches import SINGLE_PROCESS, Shard, Source, batches_of
from amata.evaluation.counter import GradCounter
from amata.evaluation.masking import ModelStats, add_warnings
from amata.evaluation.result import Result
from amata.evaluation.tally import State, Store
from amata.losses import correct, finite
from amata.quantity import choice, positive, whole
from amata.reporter import Reporter
from amata.seeds import derive
from amata.threat import Ball, check_ball

Progress = bool | Reporter | Sequence[bool | Reporter] | Callable[..., None]
"""A bar, silence, a reporter, several, or a function like `Reporter.evaluating`."""

Precision = Literal["auto", "tf32", "fp32"]

SAVE_SECONDS = 30
"""How often an evaluation is stored while it runs, at most."""


class Attacked(NamedTuple):
    """A batch after an attack."""

    attack: Attack
    first: int
    """The index of its first image."""
    x: Tensor
    y: Tensor
    x_adv: Tensor
    z: Tensor
    z_adv: Tensor
    """The logits of x and of x_adv."""
    outcomes: list[bool]


@torch.inference_mode(False)  # a caller's inference mode would record no gradients
def evaluate(
    model: nn.Module,
    data: Any,
    *,
    ball: Ball,
    attacks: Iterable[str] | str = ("clean", "pgd-20"),
    step_size: float | None = None,
    cw_c: float = 1.0,
    batch_size: int = 256,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress = True,
    part: Shard = SINGLE_PROCESS,
    engine: Literal["auto", "plain"] = "auto",
    precision: Precision = "auto",
    store: Store | None = None,
    examine: Callable[[Attacked], None] | None = None,
    workers: int = 0,
) -> dict[str, Result]:
    """Evaluate a model under each attack.

    `data` is a pair (x, y) of tensors or arrays, an image set, a map-style Dataset (read by
    `workers` processes), or any iterable of batches, such as a DataLoader or a generator. A batch
    is (x, y, ...) or a dict. The model is left unchanged. The random draws of an attack depend only
    on `seed`, the batch and its name.

    With several processes, `data` holds only the batches of this process's `part`, each of
    `batch_size` images. All processes return the results of the whole.

    On a GPU, attacks run on a compiled copy of the model unless `engine` is "plain". The original
    model judges their images: one that it classifies correctly is attacked further. Compilation
    does not count as attack time.

    `precision` is for a GPU: TF32, or with "fp32" full float32. "auto" is TF32 too, but attacks in
    a ball search on a copy with convolutions in fp16, which is twice as fast; batches whose values
    fp16 cannot hold are attacked again in TF32. Results name what was used.

    With a `store`, what is done is kept every half a minute and when the call ends for any reason.
    The next call continues at that batch, with the same results. The store is for one model, data
    and set of arguments; `attacks` alone may differ. `examine` sees every attacked batch.

    `progress` draws a bar with the time left; False is silent. A `Reporter`, or a function with the
    arguments of `Reporter.evaluating`, is called instead.
    """
    from amata.console import watching  # imports rich, which `import amata` does not need

    check_ball(ball)
    check_module(model)
    cw_c, batch_size = positive(cw_c, "cw_c"), whole(batch_size, "batch_size", 1)
    limit = None if limit is None else whole(limit, "limit", 1)
    seed = whole(seed, "seed", 0, 2**63 - 1)
    workers = whole(workers, "workers", 0)
    choice(engine, "engine", ("auto", "plain"))
    choice(precision, "precision", get_args(Precision))
    if not isinstance(part, Shard):
        raise InputError(f"part = {part!r} must be an amata.evaluation.Shard")
    if not isinstance(attacks, Iterable):
        raise InputError(f"attacks = {attacks!r} must be a list of names, such as ['pgd-20']")
    if store is not None and part.size > 1:
        raise InputError("an evaluation by several processes has no store")
    named = attacks.split(",") if isinstance(attacks, str) else attacks
    every = [parse_attack(name, step_size=step_size, c=cw_c) for name in named]
    parsed = list({attack.name: attack for attack in every}.values())
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    on_gpu = device.type == "cuda"
    fp16 = precision == "auto" and engine == "auto" and suits_fp16(model)
    with watching(progress, "evaluate()") as report:
        loop = _Loop(model, parsed, ball, seed, part, report, examine, store, device)
        compiled = on_gpu and engine == "auto" and loop.perturbs
        if not all(loop.state.has(attack) for attack in parsed):
            counter = (
                GradCounter(compiled_for_eval(model, fp16=fp16), loop.judge)
                if compiled
                else GradCounter(model)
            )
            with loop.kept(), tf32(precision != "fp32"), no_cudnn_benchmark():
                loop.run(counter, batches_of(data, batch_size, device, workers), batch_size, limit)
    n = loop.state.total or 0
    total, classes, seen, *stats = (
        int(v)
        for v in part.sum(
            [n, loop.state.classes, loop.state.classes > 0, *astuple(loop.state.stats)]
        )
    )
    if total == 0:
        raise InputError("data has no images to evaluate")
    # A process without batches has seen no logits.
    state = replace(loop.state, classes=classes // max(seen, 1))
    results = {}
    for attack in parsed:
        params, counts = attack.params(ball), state.per_class(attack, part)
        if on_gpu:
            used = "fp16" if fp16 and _in_fp16(attack) else "tf32"
            params["precision"] = "fp32" if precision == "fp32" else used
        result = state.tally(attack).result(attack, params, part, batch_size, counts)
        result.warnings += attack.caveats(state.classes)
        results[attack.name] = result
    add_warnings(parsed, results, ball, ModelStats(*stats))
    return results


def _in_fp16(attack: Attack) -> bool:
    """Minimum-norm attacks end at the decision boundary, where rounding decides."""
    return attack.perturbs and attack.in_ball


class _Loop:
    """All attacks on all batches of this process, from where the store left off."""

    def __init__(
        self,
        model: nn.Module,
        attacks: list[Attack],
        ball: Ball,
        seed: int,
        part: Shard,
        report: Callable[..., None],
        examine: Callable[[Attacked], None] | None,
        store: Store | None,
        device: torch.device,
    ) -> None:
        self.model, self.attacks, self.ball, self.seed = model, attacks, ball, seed
        self.part, self.report, self.examine, self.store = part, report, examine, store
        self.device = device
        self.perturbs = any(attack.perturbs for attack in attacks)
        stored = store.load() if store is not None else None
        # Replaced as a whole after each step: an interrupt leaves a state that is consistent.
        self.state = self.saved = State() if stored is None else State.from_dict(stored)
        self.saved_at = time.monotonic()
        self.total: int | None = None
        self.warm = False
        self.in_tf32: EvalCopy | None = None

    def judge(self, x: Tensor) -> Tensor:
        """The model's own logits."""
        with untouched(self.model), torch.no_grad():
            z: Tensor = self.model(x)
        return z

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Store what is done when the block ends, also by an interrupt."""
        try:
            yield
        finally:
            if self.store is not None and self.state is not self.saved:
                self._save()

    def _save(self) -> None:
        assert self.store is not None
        self.store.save(self.state.to_dict())
        self.saved, self.saved_at = self.state, time.monotonic()

    def run(self, counter: GradCounter, source: Source, batch_size: int, limit: int | None) -> None:
        most, n = 2**62 if limit is None else limit, 0
        self.total = limit if source.images is None else min(most, source.images)
        for number, (x, y, *_) in enumerate(source.batches):
            index = self.part.rank + number * self.part.size  # among the batches of all processes
            first = n if self.part.size == 1 else index * batch_size  # index of its first image
            if first >= most:
                break
            x, y = x[: most - first], y[: most - first]
            if number == 0 and source.number is not None:
                self.total = min(most, source.number * len(x))
            n += len(x)
            if number < self.state.batches and not self._due(number, first):
                continue
            x, y = x.to(self.device), y.to(self.device)
            self._batch(counter, number, index, first, x, y)
        self.state = replace(self.state, total=n)

    def _due(self, number: int, first: int) -> list[Attack]:
        """The attacks that this batch still has to meet."""
        return [
            attack
            for attack in self.attacks
            if self.state.tally(attack).batches <= number
            and (attack.limit is None or first < attack.limit)
        ]

    def _batch(
        self, counter: GradCounter, number: int, index: int, first: int, x: Tensor, y: Tensor
    ) -> None:
        check_images(x, y)
        with untouched(self.model), torch.no_grad():
            z = forward(self.model, x) if number == 0 else self.model(x)
            check_logits(z, y)
        if number >= self.state.batches:
            self._add_stats(y, z)
        if index == 0 and self.perturbs and not self.state.stats.probed:
            stats = self.state.stats.with_gradients(self.model, x, y, z)
            self.state = replace(self.state, stats=stats)
        if not self.warm and isinstance(counter.model, EvalCopy):
            counter.model.warm_up(x)
            if counter.model.fp16 and any(a.perturbs and not _in_fp16(a) for a in self.attacks):
                self._tf32_copy().warm_up(x)
        self.warm = True
        for attack in self._due(number, first):
            self._attack(attack, counter, index, first, x, y, z)
            if self.store is not None and time.monotonic() - self.saved_at > SAVE_SECONDS:
                self._save()

    def _add_stats(self, y: Tensor, z: Tensor) -> None:
        """The statistics and the labels of a batch, in one copy from the device."""
        predicted = z.argmax(1)
        sums = [correct(z, y), ~finite(z), predicted, predicted.square()]
        *labels, right, bad, total, squares = torch.cat(
            [y, torch.stack([row.sum() for row in sums])]
        ).tolist()
        stats = self.state.stats.plus(len(y), right, bad, total, squares)
        self.state = replace(
            self.state,
            batches=self.state.batches + 1,
            classes=z.shape[1],
            labels=(*self.state.labels, *labels),
            stats=stats,
        )

    def _attack(
        self,
        attack: Attack,
        counter: GradCounter,
        index: int,
        first: int,
        x: Tensor,
        y: Tensor,
        z: Tensor,
    ) -> None:
        count = len(x) if attack.limit is None else min(len(x), attack.limit - first)
        x, y, z = x[:count], y[:count], z[:count]
        self._report(attack)
        counter.reset(self.device)
        started = time.perf_counter()
        seed = derive(self.seed, index, attack.name)
        run = attack.reporting(lambda part: self._report(attack, part))
        x_adv = self._search(run, counter, x, y, z, seed)
        z_adv = self.judge(x_adv) if attack.perturbs else z
        bad = torch.stack([(~finite(z_adv)).sum(), counter.non_finite])
        *right, non_finite, bad_gradients = torch.cat([correct(z_adv, y).long(), bad]).tolist()
        outcomes, seconds = [value == 1 for value in right], time.perf_counter() - started
        tally = self.state.tally(attack).plus(
            outcomes, non_finite, bad_gradients, counter.grad_evals, seconds
        )
        self.state = self.state.with_tally(attack, tally)
        if self.examine is not None:
            self.examine(Attacked(attack, first, x, y, x_adv, z, z_adv, outcomes))
        self._report(attack)

    def _search(
        self, attack: Attack, counter: GradCounter, x: Tensor, y: Tensor, z: Tensor, seed: int
    ) -> Tensor:
        """The attack's images. If fp16 cannot hold the values, the attack runs again in TF32."""
        copy, ball = counter.model, self.ball
        if not (isinstance(copy, EvalCopy) and copy.fp16):
            return attack(counter, x, y, ball=ball, seed=seed)
        if _in_fp16(attack):
            copy.compare(x, z)
            x_adv = attack(counter, x, y, ball=ball, seed=seed)
            if not bool(copy.out_of_range):
                return x_adv
        counter.model, counter.non_finite = self._tf32_copy(), torch.zeros_like(counter.non_finite)
        try:
            return attack(counter, x, y, ball=ball, seed=seed)
        finally:
            counter.model = copy

    def _tf32_copy(self) -> EvalCopy:
        if self.in_tf32 is None:
            self.in_tf32 = EvalCopy(self.model)
        return self.in_tf32

    def _report(self, attack: Attack, part: str = "") -> None:
        tally, size, goal = self.state.tally(attack), self.part.size, self.total
        if goal is not None and attack.limit is not None:
            goal = min(goal, attack.limit)
        done = tally.images * size  # the processes are about equally fast
        left = tally.seconds_left(None if goal is None else goal // size)
        self.report(attack.name, done if goal is None else min(done, goal), goal or 0, part, left)
