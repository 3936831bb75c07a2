"""One model in training: its state, one epoch of it, and the state as tensors and JSON."""

import copy
import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from amata.attacks.guard import check_images, check_logits, logits
from amata.batch import Batch
from amata.data import Feed
from amata.distributed import convert_sync_batchnorm, current
from amata.engine import EMA, ProbeNet, make_net, no_cudnn_benchmark
from amata.errors import AmataError, InputError
from amata.losses import smooth_ce
from amata.methods import Memory
from amata.recipes import Recipe
from amata.runs.files import under
from amata.schedules import Account, ClosedLoop, Control, Response
from amata.seeds import derive, generator
from amata.training.batches import Batches
from amata.training.checks import check_divisible, check_equal_batches
from amata.training.clock import Clock
from amata.training.optim import learning_rate, make_optimizer
from amata.training.probing import probe
from amata.training.state import SPENT, TrainState

CHECK_EVERY = 50
"""Batches between looks at the loss; each look waits for the device."""


Snapshot = tuple[dict[str, Tensor], dict[str, Any]]
"""Everything a resumed run needs, as tensors and JSON."""


class Trainer:
    def __init__(
        self, model: nn.Module, batches: Batches, recipe: Recipe, device: torch.device
    ) -> None:
        self.recipe, self.batches, self.device = recipe, batches, device
        self.ranks = current()
        check_divisible(recipe, self.ranks)
        check_equal_batches(len(batches), self.ranks)
        self.model = model.to(device)
        if self.ranks.size > 1:
            self.ranks.average(
                [t for t in self.model.state_dict().values() if t.is_floating_point()],
                float(self.ranks.is_main),
            )
            if recipe.train.sync_bn:
                self.model = convert_sync_batchnorm(self.model)
        self.ema = EMA(self.model, recipe.optim.ema) if recipe.optim.ema else None
        self.optimizer = make_optimizer(self.model, recipe.optim)
        if device.type == "cuda":
            if device.index is not None:
                torch.cuda.set_device(device)  # graphs are recorded on the current one
            if recipe.train.deterministic:
                torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.benchmark = not recipe.train.deterministic
        self.net = make_net(
            self.model,
            self.optimizer,
            engine=recipe.train.engine,
            precision=recipe.train.precision,
            loss=smooth_ce(recipe.optim.label_smoothing),
            attack_mode=recipe.train.attack_mode,
            ema=self.ema,
            first_layer=recipe.model.first_layer,
            ranks=self.ranks,
        )
        self.clock = Clock(device)
        self._images = 0
        self.memory: Memory = {}
        self.state = TrainState()
        self.loss_sum = torch.zeros((), device=device, dtype=torch.float64)

    @property
    def result(self) -> nn.Module:
        """The model that is validated and kept: the weight average where there is one."""
        return self.ema.model if self.ema else self.model

    def scheduled(self) -> Control:
        """What the schedule says of this epoch; of a closed-loop one that has not been asked yet,
        its least candidate."""
        schedule = self.recipe.schedule
        if not isinstance(schedule, ClosedLoop):
            return schedule(self.state.epoch, self.recipe.train.epochs)
        if self.state.chosen is None:
            return schedule.candidates()[0]
        return Control(int(self.state.chosen[0]), self.state.chosen[1])

    def control(self) -> Control:
        """What this epoch is trained with: the schedule's control, and the steps that the guard has
        added."""
        u = self.scheduled()
        return u._replace(steps=u.steps + self.state.extra_steps)

    def _ask_schedule(self) -> None:
        """Let a closed-loop schedule choose the control of this epoch. Its probing is counted and
        timed as training."""
        schedule, state = self.recipe.schedule, self.state
        if not isinstance(schedule, ClosedLoop) or state.chosen is not None:
            return
        net = ProbeNet(
            self.model,
            loss=self.net.loss,
            attack_mode=self.net.attack_mode,
            first_layer=self.recipe.model.first_layer,
            precision=self.net.precision,
        )
        batches = list(islice(self.batches.whole().epoch(state.epoch), schedule.probe_batches))
        if state.epoch == 0:
            self._check_batch(batches[0])
        place = (self.recipe.train.seed, state.epoch)
        curve = probe(
            net,
            self.recipe.method,
            schedule.candidates(),
            batches,
            self.memory,
            place=place,
            ranks=self.ranks,
        )
        state.curves.append([[*r.control, r.value, r.cost] for r in curve])
        probing, first_layer = (
            int(v) for v in self.ranks.sum([net.grad_evals, net.first_layer_evals])
        )
        state.grad_evals += probing
        state.first_layer_evals += first_layer
        state.probe_evals += probing
        self._count_on()
        # A stream's images are counted as they come; before the first epoch its batches are taken
        # to be alike.
        images = self.batches.count or (
            state.images / state.epoch if state.epoch else len(self.batches) * len(batches[0].x)
        )
        account = Account(
            state.epoch, self.recipe.train.epochs, state.grad_evals / images, probing / images
        )
        curves = [
            [Response(Control(int(k), alpha), value, cost) for k, alpha, value, cost in past]
            for past in state.curves
        ]
        choice = schedule.choose(curves, account)
        state.chosen = [*choice.control, choice.gamma]

    def _in_rows(self, key: str) -> bool:
        """Whether what a method remembers under this name has a row for each image of a batch, of
        which each process keeps its own."""
        return self.ranks.size > 1 and key in getattr(self.recipe.method, "memory_rows", ())

    def lr(self, batch: int) -> float:
        """The learning rate of a batch of the current epoch."""
        # Mid-batch, so that a one-cycle rate is zero neither in the first batch nor in the last.
        progress = self.state.epoch + (batch + 0.5) / len(self.batches)
        return self.state.lr_scale * learning_rate(
            self.recipe.optim, progress, self.recipe.train.epochs
        )

    def train_epoch(self, after_batch: Callable[[Control], bool]) -> bool:
        """Train the rest of the current epoch. `after_batch` may end it early by returning True;
        then so does this."""
        self.start_clock()
        self._ask_schedule()
        u, first = self.control(), True
        feed = Feed(self.batches.epoch(self.state.epoch, self.state.batch), self.device)
        for batch in feed:
            self.state.data_seconds, feed.waited = self.state.data_seconds + feed.waited, 0.0
            if first:
                self._check_batch(batch)
                first = False
            lr = self.lr(self.state.batch)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self._train_batch(batch, u)
            self.state.batch += 1
            if self.device.type == "cpu" or self.state.batch % CHECK_EVERY == 0:
                self.check_finite()
            if self.ranks.size == 1:  # several processes add up at the end of an epoch
                self._add_up()
            self._spend(*self.clock.tick(self.net.compile_seconds))
            if after_batch(u):
                return True
        self.check_finite()
        self._add_up()
        self.stop_clock()
        return False

    def _train_batch(self, batch: Batch, u: Control) -> None:
        """One update, on a batch as a whole or in parts."""
        place = (self.recipe.train.seed, self.state.epoch, self.state.batch)
        parts = (
            batch.parts(self.recipe.train.accumulate)
            if self.recipe.train.accumulate > 1
            else [batch]
        )
        for index, part in enumerate(parts):
            # Dropout draws from the global generator.
            rank = (self.ranks.rank,) if self.ranks.rank else ()
            torch.manual_seed(derive(*place, "layers", *rank, *([index] if index else [])))
            rng = generator(*place, "method", device=self.device)
            self.net.part_weight = len(part.x) / len(batch.x)
            self.net.accumulating = index < len(parts) - 1
            self.recipe.method.step(self.net, part, u, rng, self.memory)
            if self.net.last_loss is None:
                raise InputError(
                    f"the schedule gives {u.steps} steps, with which this method does not "
                    "train at all; raise schedule.steps"
                )
            self.loss_sum += self.net.last_loss * self.net.part_weight
        self._images += len(batch.x)

    def _add_up(self) -> None:
        """Bring the account up to date with what all processes have done since the last time."""
        state, net = self.state, self.net
        done = [
            net.grad_evals - state.grad_evals,
            net.first_layer_evals - state.first_layer_evals,
            self._images,
        ]
        if self.ranks.size > 1:
            *done, loss = (
                *map(int, self.ranks.sum(done)),
                self.ranks.sum([self.loss_sum.item()])[0],
            )
            # parts of a batch have the same size, or nearly so
            self.loss_sum.fill_(loss / self.ranks.size)
        state.grad_evals += int(done[0])
        state.first_layer_evals += int(done[1])
        state.images += int(done[2])
        self._count_on()
        self._images = 0

    def start_clock(self) -> None:
        self.clock.start()

    def stop_clock(self) -> None:
        self._spend(*self.clock.stop(self.net.compile_seconds))

    def _spend(self, training: float, compiling: float) -> None:
        self.state.train_seconds += training
        self.state.compile_seconds += compiling

    def _check_batch(self, batch: Batch) -> None:
        """Refuse images outside [0, 1], labels outside the classes and models without logits before
        an epoch is spent on them."""
        self.stop_clock()  # the first pass of a process loads libraries for seconds
        check_images(batch.x, batch.y)
        self.model.eval()
        with torch.no_grad(), no_cudnn_benchmark():
            check_logits(logits(self.model, batch.x[:2]), batch.y, n=len(batch.x[:2]))
        self.start_clock()

    def check_finite(self) -> None:
        if not math.isfinite(self.loss_sum.item()):
            lr = self.lr(self.state.batch - 1)
            raise AmataError(
                f"the loss is not finite at or before {self.state} (lr {lr:.3g}); "
                "the last good checkpoint is kept: start a new run with a lower optim.lr or a "
                "longer optim.warmup, or check the data"
            )

    def mean_loss(self) -> float:
        return self.loss_sum.item() / max(self.state.batch, 1)

    def next_epoch(self) -> None:
        self.state.epoch, self.state.batch, self.state.chosen = self.state.epoch + 1, 0, None
        self.loss_sum.zero_()

    def rewind(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Go back to an earlier state, but not in what was spent since."""
        spent = self.state
        # the state gone back to may be needed once more
        self.restore({k: v.clone() for k, v in tensors.items()}, record)
        for name in SPENT:
            setattr(self.state, name, getattr(spent, name))
        self._count_on()

    def snapshot(self) -> Snapshot:
        """Several processes must ask for it together."""
        self.check_finite()
        self._add_up()
        tensors = {f"model/{k}": v for k, v in self.model.state_dict().items()}
        if not all(bool(v.isfinite().all()) for v in tensors.values() if v.is_floating_point()):
            raise AmataError(
                f"weights are not finite in {self.state}; the last good checkpoint is kept"
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
        return tensors, {"fingerprint": self.recipe.fingerprint(), **asdict(self.state)}

    def restore(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Become what `state` described."""
        self.model.load_state_dict(under(tensors, "model/"))
        if self.ema:
            self.ema.model.load_state_dict(under(tensors, "ema/"))
            self.ema.steps = record["ema_steps"]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in under(tensors, "optim/").items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(
            {"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )
        # laid out in memory as the weights are, which fused optimisers rely on
        for p, entries in self.optimizer.state.items():
            entries |= {
                k: torch.empty_like(p).copy_(v)
                for k, v in entries.items()
                if isinstance(v, Tensor) and v.shape == p.shape
            }
        # On the CPU, or where it was: each method knows where it wants its own.
        self.memory = under(tensors, "memory/")
        for key in filter(self._in_rows, self.memory):
            self.memory[key] = (
                self.memory[key].tensor_split(self.ranks.size)[self.ranks.rank].clone()
            )
        self.loss_sum = tensors["loss_sum"].to(self.device)
        self._images = 0
        self.state = TrainState(
            **copy.deepcopy({k: record[k] for k in asdict(self.state) if k in record})
        )
        self._count_on()
        self.net.weights_changed()

    def _count_on(self) -> None:
        """Let the engine count from where the account stands."""
        self.net.grad_evals, self.net.first_layer_evals = (
            self.state.grad_evals,
            self.state.first_layer_evals,
        )
