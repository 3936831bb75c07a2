"""Writes the tables of docs/control.md: python evidence/control.py (--check compares them).

--measure first measures what is missing in results/control: the toy problem, the logistic example
and Theorem 1 (under a minute), the criterion of four strategies on three seeds (half an hour on two
cores), and, a quarter of an hour each, the criterion of Free and YOPO on one seed, successive
approximations, and the search.
"""

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from criterion import (
    ACCELERATED,
    METHODS,
    RESULTS,
    SEEDS,
    STRATEGIES,
    cifar10_table,
    criterion_table,
    methods_table,
    terms_table,
)
from measure import amata, store_run
from page import markdown, refuse_others, rewrite
from stored import read_rows, summary

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "control.md"
SHOWN = 0
"""The seed of the picture."""
VALIDATED = ("--set", "data.valid=500", "--set", "train.tensorboard=false")
MSA = ("mnist5k-amata", "--iterations", "4", *VALIDATED)
"""The arguments of `amata msa`: at the cost of linear 2 -> 10. Its winner is tested on new seeds by
studies/mnist5k-msa.toml."""
SEARCH = ("mnist5k-amata", *VALIDATED, "--budget", "0.6", "--trials", "20")


def measure() -> None:
    from logistic import Logistic, draw

    for name in ("toy", "convergence"):
        measure_once(name, (f"{name}.json", f"{name}.svg"), name)
    if not (RESULTS / "logistic").is_dir():
        result = Logistic().report()
        (RESULTS / "logistic").mkdir(parents=True)
        draw(result, RESULTS / "logistic" / "logistic.svg")
        (RESULTS / "logistic" / "logistic.json").write_text(json.dumps(result, indent=2) + "\n")
    for seed in SEEDS:
        measure_criterion(f"criterion-seed{seed}", STRATEGIES, seed, picture=seed == SHOWN)
    measure_once("msa", ("msa.json",), "msa", *MSA)
    measure_criterion(METHODS, ACCELERATED, SHOWN, picture=False)
    measure_once("search", ("search.json", "pareto.svg"), "search", *SEARCH)


def measure_once(name: str, files: Iterable[str], *command: str) -> None:
    """Keep these files of an amata command, unless they are stored."""
    if (RESULTS / name).is_dir():
        return
    with tempfile.TemporaryDirectory() as folder:
        amata(*command, "--out", Path(folder) / name)
        (RESULTS / name).mkdir(parents=True)
        for file in files:
            shutil.copy(Path(folder) / name / file, RESULTS / name / file)


def measure_criterion(name: str, strategies: Iterable[str], seed: int, *, picture: bool) -> None:
    """C of recipes, unless it is stored."""
    if (RESULTS / name).is_dir():
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / name
        sets = ("--set", f"train.seed={seed}", "--set", "train.tensorboard=false")
        amata("criterion", *strategies, *sets, "--out", work)
        store(work, RESULTS / name, picture=picture)


def store(work: Path, target: Path, *, picture: bool) -> None:
    """Copy the small files of a criterion study and of its runs."""
    target.mkdir(parents=True)
    for file in ("criterion.json", *(("criterion.svg",) if picture else ())):
        shutil.copy(work / file, target / file)
    for run in sorted((work / "runs").iterdir()):
        store_run(run, target / run.name)


def read(*parts: str) -> Any:
    return json.loads(RESULTS.joinpath(*parts).read_text())


def adaptive_table() -> str:
    lines = [
        "| schedule | seed | K of each epoch | gradient evaluations | spent on probes | PGD-40 % |",
        "|---" * 6 + "|",
    ]
    for recipe in ("mnist5k-amata", "mnist5k-adaptive"):
        for seed in SEEDS:
            run = RESULTS / f"criterion-seed{seed}" / recipe
            rows, found = read_rows(run)[0], summary(run)
            steps = " ".join(str(r["steps"]) for r in rows)
            probing = f"{rows[-1].get('probe_evals', 0):,}"
            robust = 100 * found["evaluation"]["pgd-40"]["accuracy"]
            lines.append(
                f"| {STRATEGIES[recipe]} | {seed} | {steps} | {found['grad_evals']:,} | "
                f"{probing} | {robust:.1f} |"
            )
    means = {
        recipe: statistics.mean(
            100 * summary(run)["evaluation"]["pgd-40"]["accuracy"]
            for run in RESULTS.glob(f"criterion-seed*/{recipe}")
        )
        for recipe in ("mnist5k-amata", "mnist5k-adaptive")
    }
    lines.append(
        f"\nMeans over seeds: Linear {means['mnist5k-amata']:.2f}%, Adaptive "
        f"{means['mnist5k-adaptive']:.2f}%."
    )
    return "\n".join(lines)


def search_table() -> str:
    result = read("search", "search.json")
    lines = [f"| schedule | cost | held-out {result['attack']} % |", "|---" * 3 + "|"]
    for t in sorted((t for t in result["trials"] if t["front"]), key=lambda t: t["cost"]):
        schedule = ", ".join(
            f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
            for k, v in t["schedule"].items()
            if k != "name"
        )
        star = " (winner)" if t["number"] == result["best"]["number"] else ""
        lines.append(
            f"| {t['schedule']['name']}: {schedule}{star} | {t['cost']:.2f} | "
            f"{100 * t['accuracy']:.1f} |"
        )
    own = next(t for t in result["trials"] if t["number"] == 0)
    done = sum(t["state"] == "complete" for t in result["trials"])
    lines.append(
        f"\nThe Pareto front of {len(result['trials'])} trials; {done} were trained to the end. "
        "Cost is in gradient evaluations per image and epoch. The recipe's own Linear(2, 10): cost "
        f"{own['cost']:.2f}, {100 * own['accuracy']:.1f}%. {result['valid_n']} held-out "
        "digits, one seed. Files: `evidence/results/control/search/`."
    )
    return "\n".join(lines)


def msa_table() -> str:
    """What was trained, in turn."""
    result = read("msa", "msa.json")
    rows = []
    for i, run in enumerate(result["runs"]):
        what = "the recipe's own schedule" if i == 0 else f"iteration {i}"
        star = " (winner)" if run["key"] == result["best"]["key"] else ""
        failed = run["held_out_loss"] is None
        rows.append(
            [
                what + star,
                " ".join(map(str, run["steps"])),
                f"{run['cost']:.2f}",
                "failed" if failed else f"{run['held_out_loss']:.4f}",
                "" if failed else f"{100 * run['held_out_accuracy']:.1f}",
            ]
        )
    head = ["run", "K of each epoch", "cost", "held-out loss", f"held-out {result['attack']} %"]
    return (
        f"{markdown(head, rows)}\n\nCost is in gradient evaluations per image and epoch. "
        f"{result['valid_n']} held-out digits, one seed. Files: `evidence/results/control/msa/`."
    )


def toy_line() -> str:
    toy = read("toy", "toy.json")
    worst = max(abs(a / b - 1) for a, b in zip(toy["k_msa"], toy["k_closed_form"], strict=True))
    drift = max(abs(a - b) for a, b in zip(toy["theta"], toy["theta_closed_form"], strict=True))
    return (
        f"For θ₀ = {toy['theta0']:g}, τ = {toy['tau']:g} and γ = {toy['gamma']:g} the solver's K "
        f"is within a relative error of {worst:.0e} of K*, and its θ within {drift:.0e} of "
        f"θ₀ e^(−t). C over the whole interval: optimal {toy['c_optimal']:.2g}, Linear "
        f"{toy['c_linear']:#.2g}, Constant {toy['c_constant']:#.2g}, first order "
        f"{toy['c_first_order']:#.2g}. Files: `evidence/results/control/toy/`."
    )


def convergence_table() -> str:
    study = read("convergence", "convergence.json")
    rows = [*study["over_steps"], *study["over_delta"]]
    below = sum(r["squares"] <= r["corrected"] for r in rows)
    share = max(r["squares"] / r["corrected"] for r in rows)
    lengths = sorted({r["steps"] for r in study["over_steps"]})
    lines = ["| T | schedule | mean K | mean δ_t² | bound | measured |", "|---" * 6 + "|"]
    lines += [
        f"| {r['steps']} | {r['schedule']} | {r['cost']:.2f} | {r['mean_delta_squared']:.3f} | "
        f"{r['corrected']:.3f} | {r['squares']:.3f} |"
        for steps in (lengths[-4], lengths[-1])
        for r in study["over_steps"]
        if r["steps"] == steps and r["schedule"] in study["over_time"]
    ]
    lines.append(
        f"\n{below} of {len(rows)} measured points are below the bound; the closest reaches "
        f"{share:.0%} of it. "
        "Files: `evidence/results/control/convergence/`."
    )
    return "\n".join(lines)


def logistic_line() -> str:
    r = read("logistic", "logistic.json")
    o, c = r["objectives"], r["criteria"]
    return (
        f"Objective: optimal {o['optimal']:.4f}, no adversary {o['none']:.4f}, full adversary "
        f"{o['full']:.4f}. C: {c['optimal']:.1g}, {c['none']:.1g} and {c['full']:.1g}. "
        "Files: `evidence/results/control/logistic/`."
    )


PARTS = {
    "toy": toy_line,
    "criterion": criterion_table,
    "terms": terms_table,
    "criterion-cifar10": cifar10_table,
    "criterion-methods": methods_table,
    "adaptive": adaptive_table,
    "search": search_table,
    "msa": msa_table,
    "convergence": convergence_table,
    "logistic": logistic_line,
}


def main() -> None:
    if "--measure" in sys.argv:
        measure()
    rewrite({PAGE: PARTS}, "control")


if __name__ == "__main__":
    refuse_others(__doc__, "--check", "--measure")
    main()
