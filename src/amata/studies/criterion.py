"""The paper's Table 1 for any strategies: C with its standard error, robustness, time and gradient
evaluations.

A strategy is a run folder with saved epochs, or a recipe, which is trained first. All strategies
share one search space G, and the probe batches where data and seed agree. Results are saved after
every epoch, so an interrupted study can resume. The files hold both terms of the Hamiltonian for
every control of the grid, so other values of gamma need no new measurement.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from amata import recipes
from amata.control import (
    COSTS,
    ControlSpace,
    Criterion,
    Search,
    StrategyCriterion,
    can_share_paths,
    criterion,
    strategy,
)
from amata.data import shared_data
from amata.engine import ProbeNet
from amata.engine.worth import code_for
from amata.errors import InputError, unknown
from amata.evaluation.corruptions import is_attack
from amata.formatting import short_steps
from amata.losses import smooth_ce
from amata.models import load_state
from amata.quantity import number, positive, whole
from amata.recipes import Recipe
from amata.recipes.recorded import refuse_own
from amata.reporter import Reporter, run_infos
from amata.runs import RunFolder
from amata.runs.files import read_record, under, write_record
from amata.schedules import Control
from amata.studies.criterion_record import EPOCHS, MEASURED
from amata.studies.runs import check_runs, planned_cost, run_controls, train_or_resume
from amata.tensors import read_tensors
from amata.training.batches import training_batches
from amata.training.class_weights import class_weights
from amata.training.device import resolve_device
from amata.training.setup import build_model, load_data
from amata.training.trust import review

MAX_STEPS = 10_000
"""The largest K of a fixed control."""


@dataclass(frozen=True, kw_only=True)
class CriterionSettings:
    """How C is measured. The paper: gamma = 0.04, the squared-norm form, R = gamma K."""

    gammas: tuple[float, ...] = (0.04, 0.0, 0.01, 0.16)
    """Values of gamma. The first one is that of C in tables; the others make the sweep."""
    cost: str = "steps"
    z: tuple[int, float] | None = None
    """The fixed control of the inner-product form; None selects the squared-norm form."""
    batches: int = 4
    k_max: int | None = None
    """The largest K of G; by default the largest K of all strategies."""
    alphas: int = 6
    search: str = "grid"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.gammas:
            raise InputError("C needs at least one gamma")
        for gamma in self.gammas:
            if number(gamma, "gamma") < 0:
                raise InputError(f"gamma = {gamma:g} must not be negative")
        if self.cost not in COSTS:
            raise unknown("cost", self.cost, COSTS)
        if self.search not in ("grid", "tpe", "gp"):
            raise unknown("search", self.search, ("grid", "tpe", "gp"))
        for name in ("batches", "alphas", *(["k_max"] if self.k_max is not None else [])):
            whole(getattr(self, name), name, 1)

    def to_dict(self, k_max: int) -> dict[str, Any]:
        """The settings with k_max filled in."""
        return json.loads(json.dumps({**asdict(self), "k_max": self.k_max or k_max}))


def measurement(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that measurements depend on: saved ones are reused if these are equal. A grid is
    measured in the same way for every gamma."""
    return {k: v for k, v in settings.items() if k != "gammas" or settings["search"] != "grid"}


Plan = list[tuple[str, Recipe | None]]
"""The strategies of a study: the path of a run folder, or the name of a recipe with the recipe."""


def plan_strategies(
    targets: Sequence[str], overrides: Sequence[str], *, trust: bool = False
) -> Plan:
    """The run folders and recipes that are named. `trust` runs the code that the recipes of run
    folders name."""
    plans: Plan = []
    for target in targets:
        if (Path(target) / "recipe.toml").is_file():
            if overrides:
                raise InputError(
                    f"--set applies to recipes, and {target} is a trained run; drop --set"
                )
            _reviewed(RunFolder(Path(target)), trust, Reporter())  # before anything is trained
            plans.append((target, None))
        else:
            recipe = recipes.load(target, [*overrides, "train.keep_epochs=true"])
            refuse_own(recipe, "cannot be rebuilt from a run folder, where C is measured")
            plans.append((recipe.name, recipe))
    names = [Path(name).name for name, _ in plans]
    if len(set(names)) < len(names):
        raise InputError(
            f"two strategies are named {next(n for n in names if names.count(n) > 1)!r}; rename "
            "one folder or file"
        )
    return plans


def check_strategies(plans: Plan, settings: CriterionSettings, out: Path) -> None:
    """Refuse runs without saved epochs, recipes that cannot train, and a folder with the results of
    other strategies or settings, before the first recipe trains."""
    for name, recipe in plans:
        if recipe is None:
            check_epochs(RunFolder.open(Path(name))[0])
        _read_epochs(out, Path(name).name)
    check_runs([(out / "runs" / name, recipe) for name, recipe in plans if recipe])
    file = out / "criterion.json"
    if not file.is_file():
        return
    known = read_record(file, MEASURED, hint="delete it, or choose another folder")
    there = {row["strategy"] for row in known["strategies"]}
    before = {"search": "", **known["settings"]}
    given = settings.to_dict(before["k_max"])
    other = measurement(given) != measurement(before)
    if other or not there <= {Path(name).name for name, _ in plans}:
        raise InputError(
            f"{out} holds the criterion of other strategies or settings; choose another folder"
        )


def check_epochs(run: RunFolder) -> None:
    """Refuse an unfinished run, and one whose epochs were not kept."""
    run.check_finished()
    if not all(run.epoch_file(epoch).is_file() for epoch in range(len(_controls(run)))):
        raise InputError(
            f"{run.path} has no saved epochs; train it again with --set train.keep_epochs=true"
        )


def strategies(plans: Plan, out: Path, reporter: Reporter) -> list[RunFolder]:
    """The run folders of the strategies. Recipes are trained in `out`, or resumed there."""
    to_train = [(out / "runs" / name, recipe) for name, recipe in plans if recipe]
    infos = run_infos([f.name for f, _ in to_train], [planned_cost(*run) for run in to_train])
    trained = {}
    with shared_data(), code_for(len(to_train)):
        for (folder, recipe), info in zip(to_train, infos, strict=True):
            reporter.run(info)
            trained[folder.name] = train_or_resume(folder, recipe, reporter)
    return [trained[name] if recipe else RunFolder.open(Path(name))[0] for name, recipe in plans]


def measure_strategies(
    runs: Sequence[RunFolder],
    settings: CriterionSettings,
    out: Path,
    reporter: Reporter,
    *,
    trust: bool = False,
) -> list[dict[str, Any]]:
    """One row per strategy, also written to `out`/criterion.json. `epochs` has a row per epoch.
    `trust` runs the code that the runs' recipes name."""
    opened = [_reviewed(run, trust, reporter) for run in runs]
    for run in runs:
        check_epochs(run)
    controls = {run.path: _controls(run) for run in runs}
    k_max = settings.k_max or max(
        math.ceil(u.steps) for run_controls in controls.values() for u in run_controls
    )
    rows = []
    for i, (run, recipe) in enumerate(zip(runs, opened, strict=True), 1):
        reporter.note(f"measuring C of {run.path.name}, {i} of {len(runs)}")
        rows.append(_measure(run, recipe, controls[run.path], settings, k_max, out, reporter))
    record = {"settings": settings.to_dict(k_max), "strategies": rows}
    write_record(out / "criterion.json", record, indent=None)
    return rows


def _reviewed(run: RunFolder, trust: bool, reporter: Reporter) -> Recipe:
    """The recipe of a run folder, whose code may be run."""
    recipe = RunFolder.open(run.path)[1]
    review(recipe, run.path / "recipe.toml", reporter.note, trust=trust)
    if any("eps" in row for row in run.epochs()):
        raise InputError(
            f"{run.path} was trained with a radius that changed, and C compares controls under one "
            "eps; train it without train.eps_warmup and schedule.eps_start"
        )
    if any("size" in row for row in run.epochs()):
        raise InputError(
            f"{run.path} was trained on images of several sizes, and C compares controls on the "
            "same images; train it without schedule.sizes"
        )
    return recipe


def _epochs_file(out: Path, name: str) -> Path:
    return out / f"{name}.criterion.json"


def _read_epochs(out: Path, name: str) -> tuple[Any, list[dict[str, Any]]]:
    """What an interrupted study measured of a strategy: its settings, and a row per epoch."""
    file = _epochs_file(out, name)
    if not file.is_file():
        return None, []
    known = read_record(file, EPOCHS, hint=f"delete it to measure {name} again")
    return known["about"], known["epochs"]


def _controls(run: RunFolder) -> list[Control[float]]:
    """The control of every epoch, in order."""
    return [u for _, u in sorted(run_controls(run).items())]


def _measure(
    run: RunFolder,
    recipe: Recipe,
    controls: list[Control[float]],
    settings: CriterionSettings,
    k_max: int,
    out: Path,
    reporter: Reporter,
) -> dict[str, Any]:
    file = _epochs_file(out, run.path.name)
    fixed = measurement(settings.to_dict(k_max))
    about = {"recipe": recipe.name, "fingerprint": recipe.fingerprint(), **fixed}
    known, rows = _read_epochs(out, run.path.name)
    gamma = settings.gammas[0]
    found = [Criterion.from_dict(row, gamma) for row in rows] if known == about else []

    def save() -> list[dict[str, Any]]:
        epochs = [{"epoch": epoch, **c.to_dict()} for epoch, c in enumerate(found)]
        write_record(file, {"about": about, "epochs": epochs}, indent=None)
        return epochs

    if len(found) < len(controls):
        device = resolve_device(recipe.train.device)
        images = load_data(recipe).train
        model = build_model(recipe, images, trust=True, weights=run.epoch_file(0)).to(device)
        batches = list(
            islice(
                training_batches(images, recipe, device).epoch(recipe.train.epochs),
                settings.batches,
            )
        )
        space, cost = (
            ControlSpace.of(recipe.method.training_ball, k_max),
            COSTS[settings.cost](gamma),
        )
        lr = {row["epoch"]: row["lr"] for row in run.epochs()}
        search: Search = settings.search  # type: ignore[assignment]
        for epoch in range(len(found), len(controls)):
            state = read_tensors(run.epoch_file(epoch))
            load_state(model, under(state, "model/"), run.epoch_file(epoch))
            net = ProbeNet(
                model,
                loss=smooth_ce(recipe.optim.label_smoothing),
                class_weights=class_weights(recipe.optim, images, device),
                attack_mode=recipe.train.attack_mode,
                first_layer=recipe.model.first_layer,
                share_paths=can_share_paths(search, cost),
                lr=lr[epoch],
            )
            measured = criterion(
                model,
                # The same images in every epoch. What a method does with them depends on it.
                [batch._replace(epoch=epoch) for batch in batches],
                controls[epoch],
                method=recipe.method,
                ball=recipe.method.training_ball,
                space=space,
                cost=cost,
                z=Control(*settings.z) if settings.z else None,
                memory={k: v.to(device) for k, v in under(state, "memory/").items()},
                search=search,
                alphas=settings.alphas,
                seed=settings.seed,
                net=net,
            )
            found.append(measured)
            save()
            best, own = measured.argmax.steps, controls[epoch].steps
            reporter.note(
                f"{run.path.name} epoch {epoch + 1}/{len(controls)}: C {measured.c:.4f}, best K "
                f"{short_steps(best)}, used {short_steps(own)}"
            )
    return _row(run, save(), [_at(found, gamma) for gamma in settings.gammas])


def _at(epochs: Sequence[Criterion], gamma: float) -> dict[str, Any]:
    """C of a strategy at a gamma, and its two terms."""
    found = [e.at(gamma) for e in epochs]
    total = strategy([e.per_batch for e in found], [e.of_means for e in found])
    return {
        "gamma": gamma,
        **total._asdict(),
        "c_gain": sum(e.c_gain for e in found) / len(found),
        "c_price": sum(e.c_price for e in found) / len(found),
    }


def _row(
    run: RunFolder, epochs: list[dict[str, Any]], sweep: list[dict[str, Any]]
) -> dict[str, Any]:
    summary = run.summary()
    attack = robust_attack(summary["evaluation"])
    result = summary["evaluation"][attack] if attack else None
    return {
        "strategy": run.path.name,
        **sweep[0],
        "sweep": sweep,
        **{k: sum(e[k] for e in epochs) / len(epochs) for k in ("fosc", "feasible_gap")},
        "robust_accuracy": result["accuracy"] if result else None,
        "robust_attack": attack,
        "robust_n": result["n"] if result else None,
        "train_seconds": summary["train_seconds"],
        "grad_evals": summary["grad_evals"],
        "epochs": epochs,
    }


def strategy_of(epochs: Sequence[dict[str, Any]]) -> StrategyCriterion:
    """C of a strategy from the rows of its epochs."""
    return strategy([e["per_batch"] for e in epochs], [e["c_of_means"] for e in epochs])


def robust_attack(evaluation: dict[str, Any]) -> str | None:
    """The attack that measures robustness: PGD with the most steps, else the strongest attack."""
    steps = {name: re.match(r"pgd-(\d{1,9})(?!\d)", name) for name in evaluation}
    if pgd := {name: int(found[1]) for name, found in steps.items() if found}:
        return max(pgd, key=lambda name: pgd[name])
    attacked = [name for name in evaluation if name != "clean" and is_attack(name)]
    return min(attacked, key=lambda name: evaluation[name]["accuracy"], default=None)


def parse_z(text: str) -> tuple[int, float]:
    """Parse a control written as "K,ALPHA"."""
    steps, comma, alpha = text.partition(",")
    if not comma:
        raise InputError(f"--z {text!r} must be K,ALPHA, as in --z 20,0.025")
    return whole(steps, "K of --z", 1, MAX_STEPS), positive(alpha, "ALPHA of --z")
