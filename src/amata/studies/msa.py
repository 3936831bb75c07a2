"""Successive approximations for a network: train a schedule, carry the co-state back through its
epochs, choose every epoch's K again, train again.

The terminal cost is the loss on the held-out images under the recipe's validation attack, at the
last weights. Each run trains in a folder named after its schedule, and its Hamiltonian is saved
beside it, so an interrupted study resumes.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from amata import recipes
from amata.control.successive import Choice, Iterate, Limit, Terms, successive
from amata.data import shared_data
from amata.engine.worth import code_for
from amata.errors import AmataError, InputError, Interrupted, printable
from amata.evaluation import parse_attack
from amata.metrics import Finite, Share
from amata.quantity import number, positive, round_half_up, whole
from amata.recipes import Recipe
from amata.reporter import Reporter, RunInfo
from amata.runs import RunFolder
from amata.runs.files import read_record, refuse_links, write_atomic, write_record
from amata.schedules import (
    closed_loop,
    largest_control,
    only_k_changes,
    planned_controls,
)
from amata.studies.cost import Prices
from amata.studies.criterion import robust_attack
from amata.studies.recorded_run import RecordedRun
from amata.studies.runs import check_runs, train_or_resume
from amata.studies.space import schedule_key
from amata.training.setup import load_data


@dataclass(frozen=True, kw_only=True)
class MsaSettings:
    budget: float | None = None
    """Gradient evaluations per image and epoch; by default those of the recipe's schedule."""
    gamma: float | None = None
    """Instead of a budget: the held-out loss that a gradient evaluation per image is worth."""
    k_max: int | None = None
    """The largest K; by default that of the recipe's schedule."""
    block: int = 1
    """Epochs that share a control."""
    batches: int = 4
    """Probe batches per epoch."""
    order: int = 8
    """Hessian products per epoch and probe batch."""

    def __post_init__(self) -> None:
        if self.budget is not None and self.gamma is not None:
            raise InputError("pass either --budget or --gamma")
        if self.budget is not None:
            positive(self.budget, "budget")
        if self.gamma is not None and number(self.gamma, "gamma") < 0:
            raise InputError(f"gamma = {self.gamma:g} must not be negative")
        for name in ("block", "batches", "order", *(["k_max"] if self.k_max is not None else [])):
            whole(getattr(self, name), name, 1)


class Ended(TypedDict):
    """runs/KEY.terminal.json."""

    about: dict[str, Any]
    loss: Finite | None
    """None if the training failed."""
    accuracy: Share | None


class Measured(TypedDict):
    """runs/KEY.gains.json: a row per epoch with the gain of every K on each probe batch."""

    about: dict[str, Any]
    gains: list[list[list[Finite]]]


class Study(TypedDict):
    """What is read of msa.json."""

    about: dict[str, Any]


TERMINAL, MEASURED = TypeAdapter(Ended), TypeAdapter(Measured)
STUDY = TypeAdapter(Study)


class Msa:
    """One study in a folder: runs/, msa.json, best.toml."""

    def __init__(
        self, recipe: Recipe, settings: MsaSettings, out: Path, reporter: Reporter
    ) -> None:
        self.recipe, self.settings, self.out, self.reporter = recipe, settings, out, reporter
        _check(recipe)
        self.epochs = recipe.train.epochs
        self.attack = parse_attack(recipe.train.valid_attack)
        self.splits = load_data(recipe)
        self.prices = Prices(recipe, self.splits)
        if not self.prices.exact:
            raise InputError(
                "samples stop early, so the cost of a schedule is not known beforehand; use amata "
                "search"
            )
        largest = largest_control(recipe.schedule, self.epochs)
        self.tau = largest.tau or largest.steps * largest.step_size
        self.step_size_max = largest.step_size_max
        if self.tau == 0:
            raise InputError("the schedule takes no steps; give it a K above 0 and a step size")
        self.planned = [u.steps for u in planned_controls(recipe.schedule, self.epochs) or ()]
        self.least = 0 if min(self.planned) < 1 and recipe.method.min_steps == 0 else 1
        most = max(settings.k_max or math.ceil(largest.steps), self.least)
        self.candidates = [largest.with_steps(k).for_batch(0) for k in range(self.least, most + 1)]
        self.price = [
            mean(self.prices.epoch(epoch, u) for epoch in range(self.epochs))
            for u in self.candidates
        ]
        self.blocks = [
            range(first, min(first + settings.block, self.epochs))
            for first in range(0, self.epochs, settings.block)
        ]
        budget = settings.budget or self.prices(recipe.schedule)
        self.limit = (
            Limit(budget=budget * self.epochs)
            if settings.gamma is None
            else Limit(gamma=settings.gamma)
        )
        if not self.limit.allows(self.epochs * self.price[0]):
            raise InputError(
                f"a budget of {budget:g} gradient evaluations per image and epoch is below the "
                f"{self.price[0]:g} of K = {self.least}; raise it"
            )
        self.about = {"fingerprint": recipe.fingerprint(), **asdict(settings)}
        refuse_links(out / "runs", out / "msa.json", out / "best.toml")
        if (out / "msa.json").is_file():
            known = read_record(out / "msa.json", STUDY, hint="choose another folder")["about"]
            changed = [key for key in self.about if known.get(key) != self.about[key]]
            if changed:
                raise InputError(
                    f"{out} holds a study with a different {', '.join(changed)}; use the same "
                    "settings or choose another folder"
                )
        start = self.recipe_of(self._start())
        check_runs([(self._folder(start), start)])

    def run(self, iterations: int) -> dict[str, Any]:
        """Train the recipe's schedule and at most so many others; repeat the call to resume."""
        rows: list[dict[str, Any]] = []
        self.total = iterations + 1
        if (first := self._steps(self._start())) != self.planned:
            self.reporter.note(
                f"the first run takes whole K within the budget, one per block: {_listed(first)}"
            )

        def note(iterate: Iterate) -> None:
            rows.append(self._row(iterate))
            self._write(rows)
            self.reporter.note(
                f"run {len(rows)}, K {_listed(rows[-1]['steps'])}: held-out loss "
                f"{iterate.terminal:.4f}, cost {rows[-1]['cost']:.2f}: "
                + ("the best so far" if iterate.accepted else "not better")
            )

        self.trained = 0
        with shared_data(), code_for(iterations + 1):
            found = successive(
                self._start(),
                self.limit,
                train=self._train,
                measure=self._measure,
                iterations=iterations,
                note=note,
            )
        if len(found) <= iterations:
            self.reporter.note("no other controls have a higher Hamiltonian")
        return self._write(rows)

    # Schedules

    def _start(self) -> Choice:
        """The recipe's own schedule, with the K of the middle of every block, rounded. Where that
        is over the budget, the largest K are lowered."""
        middle = (self.planned[block[len(block) // 2]] for block in self.blocks)
        most = len(self.candidates) - 1
        choice = [min(max(round_half_up(k) - self.least, 0), most) for k in middle]
        while not self.limit.allows(self._spent(tuple(choice))):
            choice[choice.index(max(choice))] -= 1
        return tuple(choice)

    def _steps(self, choice: Choice) -> list[int]:
        """K of every epoch."""
        pairs = zip(choice, self.blocks, strict=True)
        return [self.candidates[v].steps for v, block in pairs for _ in block]

    def _spent(self, choice: Choice) -> float:
        """Gradient evaluations per image of the whole run."""
        return sum(self.price[k - self.least] for k in self._steps(choice))

    def recipe_of(self, choice: Choice) -> Recipe:
        """The recipe of a run. The collapse guard may not add steps to its controls or lower its
        learning rate: such a training fails."""
        guard = "ignore" if self.recipe.train.guard == "ignore" else "stop"
        return self._with(choice, {"train.keep_epochs": True, "train.guard": guard})

    def _with(self, choice: Choice, overrides: dict[str, Any]) -> Recipe:
        """The recipe with these controls as a piecewise schedule."""
        steps = self._steps(choice)
        stages = [[e, k] for e, k in enumerate(steps) if e == 0 or k != steps[e - 1]]
        table = {"name": "piecewise", "stages": stages, "tau": self.tau}
        if self.step_size_max is not None:
            table["step_size_max"] = self.step_size_max
        return recipes.parse(
            {**self.recipe.tables, "schedule": table},
            self.recipe.name,
            overrides,
        )

    # Runs

    def _folder(self, recipe: Recipe) -> Path:
        return self.out / "runs" / schedule_key(recipe)

    def _train(self, choice: Choice) -> tuple[float, float]:
        recipe = self.recipe_of(choice)
        name = f"K {_listed(self._steps(choice))}"
        share = 1 / self.total
        self.reporter.run(RunInfo(self.trained + 1, self.total, name, self.trained * share, share))
        self.trained += 1
        ended = self._ended(recipe)
        return math.inf if ended["loss"] is None else ended["loss"], self._spent(choice)

    def _ended(self, recipe: Recipe) -> dict[str, Any]:
        """Phi of a run, which is trained first, and the held-out accuracy. A schedule whose
        training fails, such as by catastrophic overfitting, has none."""
        folder, about = self._folder(recipe), {"fingerprint": recipe.fingerprint()}
        file = folder.with_name(f"{folder.name}.terminal.json")
        if (known := _read(file, TERMINAL, about)) is not None:
            return known
        loss = accuracy = None
        try:
            name = f"run {self.trained} of {self.total}"
            train_or_resume(folder, recipe, self.reporter, name)
            loss, accuracy, _ = RecordedRun(folder, recipe, self.splits).terminal()
        except (InputError, Interrupted):
            raise
        except AmataError as error:
            if self.trained == 1:
                raise
            self.reporter.note(f"the training failed: {error}")
        known = {"about": about, "loss": loss, "accuracy": accuracy}
        write_record(file, known)
        return known

    def _measure(self, choice: Choice) -> Terms:
        """The Hamiltonian along a run."""
        recipe, steps = self.recipe_of(choice), self._steps(choice)
        folder = self._folder(recipe)
        file = folder.with_name(f"{folder.name}.gains.json")
        settings, most = self.settings, len(self.candidates)
        about = {
            "fingerprint": recipe.fingerprint(),
            "k_max": most,
            "batches": settings.batches,
            "order": settings.order,
        }
        if (known := _read(file, MEASURED, about)) is None:
            self.reporter.note(f"carrying the co-state back through {self.epochs} epochs")
            own = [self.candidates[k - self.least] for k in steps]
            run = RecordedRun(folder, recipe, self.splits)
            gains = run.gains(own, self.candidates, settings.batches, settings.order)
            known = {"about": about, "gains": gains}
            write_record(file, known, indent=None)
        means = [[mean(values) for values in epoch] for epoch in known["gains"]]
        return Terms(
            [[sum(means[e][v] for e in block) for v in range(most)] for block in self.blocks],
            [[len(block) * price for price in self.price] for block in self.blocks],
        )

    # Results

    def _row(self, iterate: Iterate) -> dict[str, Any]:
        recipe = self.recipe_of(iterate.choice)
        folder, ended = self._folder(recipe), self._ended(recipe)
        row = {
            "key": folder.name,
            "steps": self._steps(iterate.choice),
            "cost": iterate.spent / self.epochs,
            "held_out_loss": ended["loss"],
            "held_out_accuracy": ended["accuracy"],
            "objective": None if ended["loss"] is None else iterate.objective,
            "gamma": iterate.gamma,
            "accepted": iterate.accepted,
        }
        if ended["loss"] is None:
            return {**row, "test": {}, "robust_attack": None, "grad_evals": None}
        summary = RunFolder(folder).summary()
        return {
            **row,
            "cost": summary["grad_evals_per_image"],
            "test": {name: r["accuracy"] for name, r in summary["evaluation"].items()},
            "robust_attack": robust_attack(summary["evaluation"]),
            "grad_evals": summary["grad_evals"],
        }

    def _write(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        best = next(row for row in reversed(rows) if row["accepted"])
        steps = best["steps"]
        choice = tuple(steps[block[0]] - self.least for block in self.blocks)
        toml = self._with(choice, {}).to_toml()
        result = {
            "about": self.about,
            "recipe": self.recipe.name,
            "attack": self.attack.name,
            "valid_n": len(self.splits.valid or []),
            "budget": None if self.limit.budget is None else self.limit.budget / self.epochs,
            "tau": self.tau,
            "best": best,
            "toml": toml,
            "runs": rows,
        }
        write_record(self.out / "msa.json", result)
        found_for = f"found for {printable(self.recipe.name)} by amata msa"
        write_atomic(self.out / "best.toml", f"# K {_listed(steps)}: {found_for}\n{toml}".encode())
        return result


def _check(recipe: Recipe) -> None:
    if recipe.data.valid == 0:
        raise InputError("msa needs held-out images, and data.valid is 0; --set data.valid=500")
    if closed_loop(recipe.schedule) is not None:
        raise InputError(
            "a closed-loop schedule chooses its own controls; start msa from an open-loop one, "
            "such as linear"
        )
    if recipe.train.eps_warmup:
        raise InputError("msa compares controls under one eps; --set train.eps_warmup=0")
    planned = planned_controls(recipe.schedule, recipe.train.epochs) or []
    if any(u.size for u in planned):
        raise InputError("msa compares controls on the same images; --set schedule.sizes=[]")
    if not only_k_changes(planned):
        raise InputError(
            "msa chooses K alone, and this schedule anneals the radius or K * alpha too; start "
            "from a linear schedule without eps_start and tau_end, or a constant one"
        )


def _read(file: Path, kind: TypeAdapter[Any], about: dict[str, Any]) -> dict[str, Any] | None:
    """What was measured before, if it is about the same."""
    if not file.is_file():
        return None
    known = read_record(file, kind, hint="delete it to measure it again")
    return known if known["about"] == about else None


def _listed(steps: Sequence[int]) -> str:
    """K of every epoch, repeated ones counted: 1x3 2 4x2."""
    text, first = [], 0
    for last in range(1, len(steps) + 1):
        if last == len(steps) or steps[last] != steps[first]:
            count = last - first
            text.append(f"{steps[first]}x{count}" if count > 1 else str(steps[first]))
            first = last
    return " ".join(text)
