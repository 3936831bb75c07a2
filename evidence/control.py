"""Writes the tables of docs/control.md: python evidence/control.py (--check compares them).

--measure first measures what is missing in results/control: the toy problem, the logistic example
and Theorem 1 (under a minute), the criterion of four strategies on three seeds (half an hour on two
cores), and the search (a quarter of an hour).
"""

import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import amata, store_run
from page import refuse_others, rewrite
from stored import read_rows, summary

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "control"
PAGE = ROOT / "docs" / "control.md"
SEEDS = (0, 1, 2)
SHOWN = 0
"""The seed of the picture."""
STRATEGIES = {
    "mnist5k-pgd": "Constant(10)",
    "mnist5k-pgd2": "Constant(2)",
    "mnist5k-amata": "Linear(2, 10)",
    "mnist5k-adaptive": "Adaptive",
}


def measure() -> None:
    from logistic import Logistic, draw

    for name in ("toy", "convergence"):
        if not (RESULTS / name).is_dir():
            with tempfile.TemporaryDirectory() as folder:
                amata(name, "--out", Path(folder) / name)
                (RESULTS / name).mkdir(parents=True)
                for file in (f"{name}.json", f"{name}.svg"):
                    shutil.copy(Path(folder) / name / file, RESULTS / name / file)
    if not (RESULTS / "logistic").is_dir():
        result = Logistic().report()
        (RESULTS / "logistic").mkdir(parents=True)
        draw(result, RESULTS / "logistic" / "logistic.svg")
        (RESULTS / "logistic" / "logistic.json").write_text(json.dumps(result, indent=2) + "\n")
    for seed in SEEDS:
        target = RESULTS / f"criterion-seed{seed}"
        if target.is_dir():
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / target.name
            amata(
                "criterion",
                *STRATEGIES,
                "--set",
                f"train.seed={seed}",
                "--set",
                "train.tensorboard=false",
                "--out",
                work,
            )
            store(work, target, picture=seed == SHOWN)
    if not (RESULTS / "search").is_dir():
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / "search"
            amata(
                "search",
                "mnist5k-amata",
                "--set",
                "data.valid=500",
                "--set",
                "train.tensorboard=false",
                "--budget",
                "0.6",
                "--trials",
                "20",
                "--out",
                work,
            )
            (RESULTS / "search").mkdir(parents=True)
            for file in ("search.json", "pareto.svg"):
                shutil.copy(work / file, RESULTS / "search" / file)


def store(work: Path, target: Path, *, picture: bool) -> None:
    """Copy the small files of a criterion study and of its runs."""
    target.mkdir(parents=True)
    for file in ("criterion.json", *(("criterion.svg",) if picture else ())):
        shutil.copy(work / file, target / file)
    for run in sorted((work / "runs").iterdir()):
        store_run(run, target / run.name)


def read(*parts: str) -> Any:
    return json.loads(RESULTS.joinpath(*parts).read_text())


def per_seed(values: list[str]) -> str:
    return " · ".join(values)


def criteria() -> list[dict[str, Any]]:
    """The strategies of each seed, by name."""
    return [
        {s["strategy"]: s for s in read(f"criterion-seed{seed}", "criterion.json")["strategies"]}
        for seed in SEEDS
    ]


def gamma_of(settings: dict[str, Any]) -> float:
    """The gamma of C. Files from before the sweep have one."""
    return settings["gammas"][0] if "gammas" in settings else settings["gamma"]


def criterion_table() -> str:
    studies = criteria()
    lines = [
        "| strategy | C | C of the means | FOSC | PGD-40 % | gradient evaluations |",
        "|---" * 6 + "|",
    ]
    for recipe, title in STRATEGIES.items():
        rows = [study[recipe] for study in studies]
        cells = (
            per_seed([f"{r['c']:.2f} ± {r['c_stderr']:.2f}" for r in rows]),
            per_seed([f"{r['c_of_means']:.2f}" for r in rows]),
            per_seed([f"{r['fosc']:.2f}" for r in rows]),
            per_seed([f"{100 * r['robust_accuracy']:.1f}" for r in rows]),
            per_seed(list(dict.fromkeys(f"{r['grad_evals']:,}" for r in rows))),
        )
        lines.append(f"| {title} (`{recipe}`) | {' | '.join(cells)} |")
    about = read("criterion-seed0", "criterion.json")["settings"]
    n = studies[0]["mnist5k-amata"]["robust_n"]
    grid = f"K = 1 to {about['k_max']} with {about['alphas']} step sizes each"
    lines.append(
        f"\nOne value per seed (0, 1, 2), or one if all are equal. γ = {gamma_of(about)}; "
        f"{about['batches']} probe batches; grid G: {grid}; ± is the "
        f"standard error over the probe batches; {n:,} test digits. Files: "
        "`evidence/results/control/criterion-seed*/`."
    )
    return "\n".join(lines)


def terms_table() -> str:
    """C of the means as the sum of its two terms, and C over gamma where it was measured."""
    gamma = gamma_of(read("criterion-seed0", "criterion.json")["settings"])
    studies = criteria()
    lines = [
        "| strategy | C of the means | gradient term | price term γ(K − best K) |",
        "|---" * 4 + "|",
    ]
    for recipe, title in STRATEGIES.items():
        rows = [study[recipe] for study in studies]
        price = [
            gamma * statistics.mean(e["steps"] - e["best_steps"] for e in r["epochs"]) for r in rows
        ]
        cells = (
            per_seed([f"{r['c_of_means']:.2f}" for r in rows]),
            per_seed([f"{r['c_of_means'] - p:.2f}" for r, p in zip(rows, price, strict=True)]),
            per_seed([f"{p:.2f}" for p in price]),
        )
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.append(f"\nOne value per seed (0, 1, 2). γ = {gamma}; means over the epochs.")
    swept = [list(study.values()) for study in studies]
    if all("sweep" in row for rows in swept for row in rows):
        gammas = sorted(at["gamma"] for at in swept[0][0]["sweep"])
        lines += [
            "\n| C at | " + " | ".join(f"γ = {g:g}" for g in gammas) + " |",
            "|---" * (1 + len(gammas)) + "|",
        ]
        for recipe, title in STRATEGIES.items():
            by_gamma = [{at["gamma"]: at["c"] for at in s[recipe]["sweep"]} for s in studies]
            found = [per_seed([f"{c[g]:.2f}" for c in by_gamma]) for g in gammas]
            lines.append(f"| {title} | {' | '.join(found)} |")
    return "\n".join(lines)


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
    "adaptive": adaptive_table,
    "search": search_table,
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
