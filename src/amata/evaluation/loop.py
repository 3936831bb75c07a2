"""All attacks on all batches of one process, judged by the model itself."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from amata.attacks import Attack
from amata.attacks.checks import check_images, check_logits, forward
from amata.attacks.preserve import untouched
from amata.engine import EvalCopy
from amata.evaluation.batches import Shard, Source
from amata.evaluation.counter import GradCounter
from amata.evaluation.tally import State, Store
from amata.losses import correct, finite
from amata.seeds import derive
from amata.threat import Ball

GATHERED_IMAGES = {"cuda": 4096}
"""How many images an attack that gathers them is given at once, by device. Elsewhere a batch."""

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


def in_fp16(attack: Attack) -> bool:
    """Minimum-norm attacks end at the decision boundary, where rounding decides."""
    return attack.perturbs and attack.in_ball


class _Batch(NamedTuple):
    number: int
    """Among the batches of all processes."""
    first: int
    """The index of its first image."""
    x: Tensor
    y: Tensor
    z: Tensor


class Loop:
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
        self.gathered: dict[str, list[_Batch]] = {}
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
        for attack in self.attacks:
            if batches := self.gathered.pop(attack.name, None):
                self._attack(attack, counter, batches)
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
            counter.model.warm_up(x, infers=any(attack.gathers for attack in self.attacks))
            if counter.model.fp16 and any(a.perturbs and not in_fp16(a) for a in self.attacks):
                self._tf32_copy().warm_up(x)
        self.warm = True
        for attack in self._due(number, first):
            count = len(x) if attack.limit is None else min(len(x), attack.limit - first)
            batches = self.gathered.pop(attack.name, [])
            batches.append(_Batch(index, first, x[:count], y[:count], z[:count]))
            most = GATHERED_IMAGES.get(self.device.type, 0) if attack.gathers else 0
            if len(x) * (len(batches) + 1) <= most:
                self.gathered[attack.name] = batches
                continue
            self._attack(attack, counter, batches)
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

    def _attack(self, attack: Attack, counter: GradCounter, batches: list[_Batch]) -> None:
        sizes = [len(batch.x) for batch in batches]
        x, y, z = (torch.cat([getattr(batch, name) for batch in batches]) for name in "xyz")
        self._report(attack)
        counter.reset(self.device)
        started = time.perf_counter()
        seed = derive(self.seed, batches[0].number, attack.name)
        left: dict[str, int] = {}  # images that were not broken as each part started

        def starts(part: str, images: int) -> None:
            if part in left:
                left.clear()  # the attack runs again, in TF32
            left[part] = images
            number, many = attack.parts.index(part) + 1, len(attack.parts)
            self._report(attack, f"{number} of {many}: {part}, {images:,} images left")

        run = attack.in_batches(sizes[0]).reporting(starts)
        x_adv = self._search(run, counter, x, y, z, seed, sizes[0])
        z_adv = (
            torch.cat([self.judge(part) for part in x_adv.split(sizes)]) if attack.perturbs else z
        )
        rows = torch.stack([correct(z_adv, y), ~finite(z_adv)]).long()
        *flat, bad_gradients = torch.cat([rows.flatten(), counter.non_finite[None]]).tolist()
        outcomes, non_finite = [value == 1 for value in flat[: len(x)]], flat[len(x) :]
        seconds, grad_evals = time.perf_counter() - started, counter.grad_evals
        # What a part leaves is what the next one starts with.
        parts = dict(zip(left, [*left.values(), sum(outcomes)][1:], strict=True))
        tally, end = self.state.tally(attack).plus_parts(parts), 0
        for size in sizes:
            start, end = end, end + size
            tally = tally.plus(
                outcomes[start:end], sum(non_finite[start:end]), bad_gradients, grad_evals, seconds
            )
            bad_gradients, grad_evals, seconds = 0, 0, 0.0  # counted with the first batch
        self.state = self.state.with_tally(attack, tally)
        if self.examine is not None:
            found = zip(batches, x_adv.split(sizes), z_adv.split(sizes), strict=True)
            for (_, first, x, y, z), x_adv, z_adv in found:
                right, outcomes = outcomes[: len(x)], outcomes[len(x) :]
                self.examine(Attacked(attack, first, x, y, x_adv, z, z_adv, right))
        self._report(attack)

    def _search(
        self,
        attack: Attack,
        counter: GradCounter,
        x: Tensor,
        y: Tensor,
        z: Tensor,
        seed: int,
        size: int,
    ) -> Tensor:
        """The attack's images. If fp16 cannot hold the values, the attack runs again in TF32."""
        copy, ball = counter.model, self.ball
        if not (isinstance(copy, EvalCopy) and copy.fp16 and attack.perturbs):
            return attack(counter, x, y, ball=ball, seed=seed)
        if in_fp16(attack):
            copy.compare(zip(x.split(size), z.split(size), strict=True))
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
