"""One model in training: its state, one epoch of it, and a snapshot of both for checkpoints."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from amata.batch import Batch
from amata.data import Feed, ImageSet, Loader
from amata.distributed import convert_sync_batchnorm, current
from amata.engine import EMA, ProbeNet, make_net
from amata.errors import AmataError, InputError
from amata.losses import smooth_ce
from amata.methods import Memory, Method
from amata.models import mismatch
from amata.recipes import Recipe
from amata.runs.files import under
from amata.schedules import (
    Account,
    ClosedLoop,
    Control,
    closed_loop,
    is_single_step,
    planned_controls,
)
from amata.seeds import derive, seed_global
from amata.training.batches import Batches, CheckedStream, Expected
from amata.training.checks import check_consistent, check_divisible, check_equal_batches, misuse
from amata.training.class_weights import class_weights
from amata.training.clock import Clock
from amata.training.first_batch import check_batch, check_held_out_classes, spare_outputs
from amata.training.optim import learning_rate, make_optimizer
from amata.training.probing import probe
from amata.training.sizes import RADIUS, check_sizes, reduced, reduced_sizes
from amata.training.state import TrainState
from amata.training.work import planned_work

CHECK_EVERY = 50
"""Batches between two checks of the loss on a GPU; each check synchronises with the device."""


Snapshot = tuple[dict[str, Tensor], dict[str, Any]]
"""Everything a resumed run needs, as tensors and JSON."""


class Trainer:
    """A model, its optimiser and engine, and the state of the run. Its methods train one epoch, and
    take and restore snapshots."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches | Expected,
        recipe: Recipe,
        device: torch.device,
        within: float | None = None,
    ) -> None:
        """Batches that are only expected come later, by `use`. `within` is the time of a run whose
        epochs are yet to be chosen."""
        self.recipe, self.device = recipe, device
        self.ranks = current()
        self.plan = planned_controls(recipe.schedule, recipe.train.epochs)
        self.closed_loop = closed_loop(recipe.schedule)
        check_consistent(recipe, self.plan)
        check_divisible(recipe, self.ranks)
        if not isinstance(batches, Expected):
            self.use(batches)
        self.model = model.to(device)
        images = batches.images if isinstance(batches, Loader) else batches
        shape = images.shape if isinstance(images, ImageSet | Expected) else None
        self.side = shape[-1] if shape else None
        """Of the training images as they are, if it is known before."""
        check_sizes(self.model, self.plan, shape, device)
        if self.ranks.size > 1:
            self.ranks.average(
                [t for t in self.model.state_dict().values() if t.is_floating_point()],
                float(self.ranks.is_main),
            )
            if recipe.train.sync_bn:
                self.model = convert_sync_batchnorm(self.model)
        optim = recipe.optim
        self.ema = EMA(self.model, optim.ema, optim.ema_warmup) if optim.ema else None
        self.optimizer = make_optimizer(self.model, optim, shape)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # CUDA graphs are recorded on the current device
        self.net = make_net(
            self.model,
            self.optimizer,
            engine=recipe.train.engine,
            precision=recipe.train.precision,
            # What is chosen by an estimate may change from run to run, and with it the last bits.
            compile="always"
            if recipe.train.deterministic and recipe.train.compile == "auto"
            else recipe.train.compile,
            plan=planned_work(recipe, shape, batches.count, self.ranks.size, within),
            loss=smooth_ce(recipe.optim.label_smoothing),
            class_weights=class_weights(recipe.optim, getattr(batches, "images", None), device),
            attack_mode=recipe.train.attack_mode,
            ema=self.ema,
            first_layer=recipe.model.first_layer,
            ranks=self.ranks,
        )
        self.clock = Clock(device)
        self.rng = torch.Generator(device)
        """The random generator of methods, seeded for every batch."""
        self.memory: Memory = {}
        self.state = TrainState()
        self.loss_sum = torch.zeros((), device=device, dtype=torch.float64)
        self._counted = (0, 0)
        """The engine's counters when they were last added to the account."""
        self._images = 0
        """Images trained on since then, by this process."""
        self._noted_outputs = False
        self.held_out_classes = 0
        """Of the validation data, if they are not a stream."""

    def hold_out(self, batches: Batches | None) -> None:
        """The labels of these, if they are known, must be classes of the model too."""
        if isinstance(batches, Loader):
            self.held_out_classes = batches.images.classes

    def use(self, batches: Batches) -> None:
        """Train on these batches."""
        check_equal_batches(len(batches), self.ranks)
        self.batches = batches

    def warm_up(self, expected: Expected) -> None:
        """Compile and record a step for such images. Nothing else changes: neither the weights nor
        the random state."""
        n, device, size = self.recipe.data.batch_size, self.device, self.control().size
        x = torch.rand(n, *expected.shape, device=device)
        ids = torch.arange(n, device=device)
        batch = reduced(Batch(x, torch.zeros_like(ids), ids, total=n), size)
        self.net.image_size = size
        part = batch.parts(self.recipe.train.accumulate)[0]
        self.net.part_weight = len(part.x) / n
        self.start_clock()
        # A step without an attack would leave the attack to be compiled in a later epoch.
        u = self.control() if self.control().steps else self._first_attack()
        self.net.warm_up(self.method(), part, u.parts()[-1][1])
        _, compiling = self.clock.stop(self.net.compile_seconds)
        self.state.spent.compile_seconds += compiling

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Batches that are trained in the with block change nothing, as in `PlainNet.trial`."""
        kept = self.memory, self.state, self._images, self.loss_sum
        self.memory, self.state = {}, copy.deepcopy(self.state)
        self.loss_sum = self.loss_sum.clone()
        try:
            with self.net.trial():
                yield
        finally:
            self.memory, self.state, self._images, self.loss_sum = kept
            self._counted = self.net.grad_evals, self.net.first_layer_evals

    def time_batches(self, batches: Iterator[Batch], u: Control, lr: float) -> float:
        """Seconds that a step on these batches takes, reading and checks included; for `trial`."""
        method = self.method()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.clock.start()
        compiled = self.clock.compiled = self.net.compile_seconds
        started, n = self.clock.since, 0
        for batch in Feed(batches, self.device):
            self._train_batch(batch, method, u)
            if self.device.type == "cpu":
                self.check_finite()
            n += 1
        self.clock.stop(self.net.compile_seconds)
        compiling = self.net.compile_seconds - compiled
        return (self.clock.since - started - compiling) / max(n, 1)

    def follow(self, recipe: Recipe) -> None:
        """Train by this recipe from now on: the same with another number of epochs, another
        schedule and other milestones."""
        self.recipe, self.plan = recipe, planned_controls(recipe.schedule, recipe.train.epochs)
        check_consistent(recipe, self.plan)

    def follow_plan(self) -> bool:
        """Take the K of the plan again from the next epoch on, but no smaller ones than now: the
        clock that changed them has stopped. Whether any K changes."""
        state = self.state
        if not state.steps or self.plan is None:
            return False
        first = state.epoch + (state.batch > 0)
        reached = state.steps[first - 1] if first else 0.0
        steps = [*state.steps[:first], *(max(u.steps, reached) for u in self.plan[first:])]
        changed = steps != state.steps
        state.change_steps(steps)
        return changed

    @property
    def result(self) -> nn.Module:
        """The model that is validated and kept: the EMA weights where there are any."""
        return self.ema.model if self.ema else self.model

    def _first_attack(self) -> Control[float]:
        """The first control of the plan with a step on images of this size, if there is one."""
        size = self.scheduled().size
        return next((u for u in self.plan or [] if u.steps and u.size == size), self.control())

    def scheduled(self) -> Control[float]:
        """The schedule's control for this epoch; before a closed-loop schedule has chosen, its
        first candidate."""
        if self.plan is not None:
            epoch = min(self.state.epoch, len(self.plan) - 1)
            u, steps = self.plan[epoch], self.state.steps
            if not steps or steps[epoch] == u.steps:
                return u
            return u.with_steps(steps[epoch])
        if self.state.choice is not None:
            return self.state.choice.control
        assert self.closed_loop is not None
        return self.closed_loop.candidates()[0]

    @property
    def may_collapse(self) -> bool:
        """Whether some epoch of the plan may overfit catastrophically."""
        loop = self.closed_loop
        controls = self.plan if loop is None else loop.candidates()
        return self.recipe.method.may_collapse and any(map(is_single_step, controls or ()))

    def control(self) -> Control[float]:
        """The control of this epoch: the schedule's, with the steps that the guard added. They are
        smaller then, so that K alpha stays the same. While the radius warms up, steps are smaller
        by its factor; on smaller images too, if the ball shrinks with them."""
        u = self.scheduled().scaled(self._warmth)
        if u.size is not None:
            assert self.side is not None
            u = u.scaled((u.size / self.side) ** RADIUS[self.recipe.ball.norm])
            u = u._replace(size=None if u.size == self.side else u.size)
        return u.with_more(self.state.extra_steps) if self.state.extra_steps else u

    def method(self) -> Method:
        """The method with the radius of this epoch."""
        return self.recipe.method.scaled(self.control().eps)

    @property
    def changes_eps(self) -> bool:
        """Whether epochs have different training radii."""
        shrinks = self.changes_size and RADIUS[self.recipe.ball.norm] > 0
        annealed = any(u.eps != 1 for u in self.plan or [])
        return self.recipe.train.eps_warmup > 0 or annealed or shrinks

    @property
    def changes_size(self) -> bool:
        """Whether epochs have images of different sizes."""
        return bool(reduced_sizes(self.plan, self.side))

    @property
    def _warmth(self) -> float:
        return self.recipe.train.eps_factor(self.state.epoch)

    def _choose_control(self, schedule: ClosedLoop) -> None:
        """Probe the schedule's candidates and let it choose. Probing is counted and timed as
        training."""
        state, spent = self.state, self.state.spent
        net = ProbeNet(
            self.model,
            loss=self.net.loss,
            class_weights=self.net.class_weights,
            attack_mode=self.net.attack_mode,
            first_layer=self.recipe.model.first_layer,
            precision=self.net.precision,
            lr=self.lr(0),
        )
        batches = list(islice(self.batches.whole().epoch(state.epoch), schedule.probe_batches))
        if state.epoch == 0:
            self._check_aside(batches[0])
        candidates = schedule.candidates()
        curve = probe(
            net,
            self.method(),
            [u.scaled(self._warmth) for u in candidates],
            batches,
            self.memory,
            place=(self.recipe.train.seed, state.epoch),
            ranks=self.ranks,
        )
        # The schedule knows its candidates as they are without warm-up.
        curve = [r._replace(control=u) for r, u in zip(curve, candidates, strict=True)]
        state.curves.append(curve)
        probing, first_layer = (
            int(v) for v in self.ranks.sum([net.grad_evals, net.first_layer_evals])
        )
        spent.grad_evals += probing
        spent.first_layer_evals += first_layer
        spent.probe_evals += probing
        # A stream's images are counted as they come. Before the first epoch all its batches are
        # assumed to be as large as the first.
        images = self.batches.count or (
            spent.images / state.epoch if state.epoch else len(self.batches) * len(batches[0].x)
        )
        account = Account(
            state.epoch, self.recipe.train.epochs, spent.grad_evals / images, probing / images
        )
        state.choice = schedule.choose(state.curves, account)

    def _in_rows(self, key: str) -> bool:
        """Whether this memory has a row per image, so that each process keeps its own rows."""
        return self.ranks.size > 1 and key in self.recipe.method.memory_rows

    def lr(self, batch: int) -> float:
        """The learning rate of a batch of the current epoch."""
        # Taken at mid-batch: a one-cycle rate is then above zero in the first and the last batch.
        progress = self.state.epoch + (batch + 0.5) / len(self.batches)
        return self.state.lr_scale * learning_rate(
            self.recipe.optim, progress, self.recipe.train.epochs
        )

    def train_epoch(self, after_batch: Callable[[Control[float]], bool]) -> bool:
        """Train the rest of the current epoch. `after_batch` gets the control of the epoch, and may
        end it by returning True; then so does this."""
        self.start_clock()
        if self.closed_loop is not None and self.state.choice is None:
            self._choose_control(self.closed_loop)
        method = self.method()
        checked = set[tuple[torch.Size, torch.dtype]]()
        feed = Feed(self.batches.epoch(self.state.epoch, self.state.batch), self.device)
        for batch in feed:
            self.state.spent.data_seconds += feed.waited
            feed.waited = 0.0
            if (kind := (batch.x.shape[1:], batch.x.dtype)) not in checked:
                self._check_aside(batch)
                checked.add(kind)
            lr = self.lr(self.state.batch)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            u = self.control()  # a clock may change K within an epoch
            # Counted from the start of the run: an epoch of few batches rounds K, in turn up and
            # down.
            index = self.state.epoch * len(self.batches) + self.state.batch
            self._train_batch(batch, method, u.for_batch(index))
            self._exchange_rows(batch)
            self.state.batch += 1
            if self.device.type == "cpu" or self.state.batch % CHECK_EVERY == 0:
                self.check_finite()
            self._add_seconds(*self.clock.tick(self.net.compile_seconds))
            if after_batch(u):
                return True
        self.check_finite()
        self.state.end_steps()
        self.update_account()
        self.stop_clock()
        return False

    def _train_batch(self, batch: Batch, method: Method, u: Control) -> None:
        """One update, from the batch as a whole or from its parts."""
        batch, self.net.image_size = reduced(batch, u.size), u.size
        name = type(method.base).__name__
        place = (self.recipe.train.seed, self.state.epoch, self.state.batch)
        parts = (
            batch.parts(self.recipe.train.accumulate)
            if self.recipe.train.accumulate > 1
            else [batch]
        )
        for index, part in enumerate(parts):
            # Dropout draws from the global generator.
            rank = (self.ranks.rank,) if self.ranks.rank else ()
            layers = derive(*place, "layers", *rank, *([index] if index else []))
            seed_global(layers, self.device)
            rng = self.rng.manual_seed(derive(*place, "method"))
            self.net.part_weight = len(part.x) / len(batch.x)
            self.net.accumulating = index < len(parts) - 1
            try:
                method.step(self.net, part, u, rng, self.memory)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise InputError(
                    f"batch {self.state.batch + 1} has {len(part.x)} image, too few for this "
                    "model's BatchNorm; choose another batch size, or drop the last batch "
                    "(data.drop_last=true in a recipe, drop_last=True of a DataLoader)"
                ) from None
            except (RuntimeError, TypeError) as error:
                if (problem := misuse(error, method.base, self.model, part.x)) is None:
                    raise
                raise InputError(problem) from error
            if self.net.last_loss is None:
                raise InputError(
                    f"with {u.steps} steps {name} does not update the weights: its step() never "
                    f"calls net.backward(). Call it{', or raise K' * (u.steps == 0)}"
                )
            loss = self.net.last_loss
            self.loss_sum += loss if len(parts) == 1 else loss * self.net.part_weight
        for key, kept in self.memory.items():
            if not isinstance(kept, Tensor):
                raise InputError(
                    f"{name}.step() keeps {type(kept).__name__} as memory[{key!r}]; checkpoints "
                    "hold tensors only: torch.tensor(...)"
                )
        if self.net.updates == 0:
            raise InputError(
                f"{name}.step() never calls net.apply(), so no weight was updated; call it after "
                "net.backward()"
            )
        self._images += len(batch.x)

    def _exchange_rows(self, batch: Batch) -> None:
        """Give every process the memory of the whole batch's images: the next epoch may give an
        image to another process."""
        if self.ranks.size == 1 or batch.rows is None:
            return
        for key in self.recipe.method.memory_images:
            kept = self.memory[key]
            ids = batch.ids.to(kept.device)
            # Rows of different numbers cannot be gathered: the first ones fill up.
            most = -(-batch.rows.total // self.ranks.size)
            own = torch.cat([ids, ids[:1].expand(most - len(ids))])
            kept[self.ranks.gather_rows(own)] = self.ranks.gather_rows(kept[own])

    def update_account(self) -> None:
        """Add to the account what all processes have done since the last call."""
        counted = self.net.grad_evals, self.net.first_layer_evals
        done: list[float] = [now - then for now, then in zip(counted, self._counted, strict=True)]
        done.append(self._images)
        self._counted, self._images = counted, 0
        if self.ranks.size > 1:
            *done, loss = self.ranks.sum([*done, self.loss_sum.item()])
            # Processes have parts of equal size, or nearly so.
            self.loss_sum.fill_(loss / self.ranks.size)
        spent = self.state.spent
        spent.grad_evals += int(done[0])
        spent.first_layer_evals += int(done[1])
        spent.images += int(done[2])

    def start_clock(self) -> None:
        self.clock.start()

    def stop_clock(self) -> None:
        self._add_seconds(*self.clock.stop(self.net.compile_seconds))

    def _add_seconds(self, training: float, compiling: float) -> None:
        self.state.spent.train_seconds += training
        self.state.spent.compile_seconds += compiling

    def check_batch(self, batch: Batch) -> None:
        """Check images, labels and model."""
        stream = self.batches if isinstance(self.batches, CheckedStream) else None
        place = f"batch {self.state.batch + 1} of the training data: " if stream else ""
        outputs = check_batch(self.model, batch, self.recipe, place)
        check_held_out_classes(self.held_out_classes, outputs)
        if stream is not None:
            stream.classes = outputs
        if not self._noted_outputs and (note := spare_outputs(self.recipe, outputs)):
            self._noted_outputs = True
            self.net.note(note)

    def _check_aside(self, batch: Batch) -> None:
        """Outside the training time: the first pass of a process loads libraries for seconds."""
        self.stop_clock()
        self.check_batch(batch)
        self.start_clock()

    def check_finite(self) -> None:
        if not math.isfinite(self.loss_sum.item()):
            lr = self.optimizer.param_groups[0]["lr"]
            raise AmataError(
                f"the loss is not finite at or before {self.state} (lr {lr:.3g}); start a new "
                "run with a lower optim.lr or a longer optim.warmup, or check the data. "
                "Checkpoints from before are kept"
            )

    def mean_loss(self) -> float:
        return self.loss_sum.item() / max(self.state.batch, 1)

    def next_epoch(self) -> None:
        self.state.epoch, self.state.batch, self.state.choice = self.state.epoch + 1, 0, None
        self.loss_sum.zero_()

    def roll_back(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Return to an earlier snapshot. What was spent since, and the guard's remedies, stay."""
        now = self.state
        # Copied: the same snapshot may be needed once more.
        self.restore({k: v.clone() for k, v in tensors.items()}, copy.deepcopy(record))
        self.state.rolled_back(now)

    def snapshot(self) -> Snapshot:
        """The whole state. With several processes, all of them must call it."""
        self.check_finite()
        self.update_account()
        tensors = {f"model/{k}": v for k, v in self.model.state_dict().items()}
        if not all(bool(v.isfinite().all()) for v in tensors.values() if v.is_floating_point()):
            raise AmataError(
                f"weights are not finite in {self.state}; lower optim.lr. Checkpoints from before "
                "are kept"
            )
        if self.ema:
            tensors |= {f"ema/{k}": v for k, v in self.ema.model.state_dict().items()}
            self.state.ema_steps = self.ema.steps
        for index, entries in self.optimizer.state_dict()["state"].items():
            tensors |= {
                f"optim/{index}/{k}": v for k, v in entries.items() if isinstance(v, Tensor)
            }
        tensors |= {
            f"memory/{k}": self.ranks.join_rows(v) if self._in_rows(k) else v
            for k, v in self.memory.items()
        }
        tensors["loss_sum"] = self.loss_sum
        return tensors, {"fingerprint": self.recipe.fingerprint(), **self.state.to_json()}

    def restore(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Become what a snapshot describes."""
        weights = under(tensors, "model/")
        if reason := mismatch(self.model, weights):
            raise InputError(
                f"the checkpoint does not fit this model: {reason}; resume with the model that the "
                "run began with"
            )
        self.model.load_state_dict(weights)
        if self.ema:
            self.ema.model.load_state_dict(under(tensors, "ema/"))
            self.ema.steps = record["ema_steps"]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in under(tensors, "optim/").items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        # In the memory layout of the weights, which fused optimisers rely on.
        for p, entries in self.optimizer.state.items():
            entries |= {
                k: torch.empty_like(p).copy_(v)
                for k, v in entries.items()
                if isinstance(v, Tensor) and v.shape == p.shape
            }
        # On the CPU, or where it was: a method moves its memory where it wants it.
        self.memory = under(tensors, "memory/")
        for key in filter(self._in_rows, self.memory):
            parts = self.memory[key].tensor_split(self.ranks.size)
            self.memory[key] = parts[self.ranks.rank].clone()
        self.loss_sum = tensors["loss_sum"].to(self.device)
        self.state = TrainState.from_json(record)
        self._counted, self._images = (self.net.grad_evals, self.net.first_layer_evals), 0
        self.net.weights_changed()
