"""Writes the tables and the pictures of docs/annealing.md, docs/claims.md and docs/collapse.md:
python evidence/annealing.py (--check compares the tables)."""

import json
import math
import statistics
import sys

import steepness
import stored
import verdicts
from definition import FRONT, RESULTS, ROOT, SHARED, Test, Tuning
from differences import collapsed, difference
from fronts import draw
from intervals import Estimate
from page import Parts, markdown, picture, refuse_others, rewrite
from study import STUDIES

DOCS = ROOT / "docs"
ORDER = (
    "cifar10-paper-recipe",
    "cifar10-fast-recipe",
    "cifar10-headline",
    "cifar10-eps16",
    "mnist-equal-cost",
    "mnist5k-equal-cost",
    "mnist5k-again",
    "cifar10-closed-loop",
    "cifar10-100-epochs",
    "cifar10-fastat",
    "cifar10-long",
    "cifar10-epochs-or-k",
    "cifar10-order",
    "cifar10-20s",
    "cifar10-13s",
    "cifar10-13s-ema",
    "cifar10-18s",
    "cifar10-27s",
    "cifar10-1m",
    "cifar10-1m-tuning",
    "cifar10-5m-tuning",
    "cifar10-trades",
    "cifar10-wrn",
    "tiny-free-equal-cost",
    "tiny-equal-cost",
    "mnist-pgd60",
    "cifar10-fast-at",
    "cifar10-free-at",
    "mnist-yopo-seeds",
    "cifar10-atta-seeds",
    "cifar10-equal-cost",
    "cifar10-quick-equal-cost",
)
"""The studies of the page."""
ATTACKS = {"clean": "clean", "autoattack": "AutoAttack"}


def measured() -> list[str]:
    """The studies with at least one finished run."""
    return [study for study in ORDER if stored.summaries(study)]


def named(attack: str) -> str:
    return ATTACKS.get(attack, attack.upper())


def arms_table(study: str) -> str:
    """The arms that have runs, by rising cost."""
    own, found = STUDIES[study], stored.summaries(study)
    attacks = [*own.attacks, *(["autoattack"] if own.autoattack else [])]
    rows = []
    for title, runs in sorted(found.items(), key=lambda item: stored.total_cost(item[1])):
        steps = [row["steps"] for row in stored.epochs(study, title)[0]]
        rows.append(
            [
                own.labels[title],
                f"{statistics.mean(steps):.2f}",
                f"{stored.total_cost(runs):.1f}",
                f"{stored.seconds(runs):.1f}",
                *(
                    ""
                    if title not in own.autoattack and attack not in own.attacks
                    else stored.accuracy(runs, attack)
                    for attack in attacks
                ),
                seeds(study, title, runs),
            ]
        )
    head = ["arm", "mean K", "gradients per image", "seconds"]
    return markdown([*head, *(f"{named(a)} %" for a in attacks), "seeds"], rows)


def seeds(study: str, title: str, runs: stored.Rows) -> str:
    """How many there are, how many of them collapsed, and how often the guard went back."""
    counts = {
        "collapsed": len(collapsed(study)[title]),
        "epochs rolled back": sum(run["rolled_back"] for run in runs),
    }
    return ", ".join([str(len(runs)), *(f"{n} {what}" for what, n in counts.items() if n)])


def test_name(study: str, test: Test) -> str:
    labels = STUDIES[study].labels
    against = "the line of constants" if test.against == FRONT else labels[test.against]
    return f"{labels[test.arm]} minus {against}"


def differences_table(study: str) -> str:
    """The differences that the study states, as far as they are measured."""
    attacks = [attack for attack in STUDIES[study].attacks if attack != "clean"]
    rows: list[list[str]] = []
    found: list[Estimate] = []
    for test in STUDIES[study].tests:
        cells = [difference(study, test, attack) for attack in attacks]
        known = [cell for cell in cells if cell is not None]
        found += known
        written = ["not measured" if cell is None else str(cell) for cell in cells]
        rows.append([test_name(study, test), *written, str(known[0].seeds) if known else ""])
    if not found:
        return "No difference has two seeds yet."
    clear = sum(abs(cell.mean) > cell.half for cell in found)
    held = "seeds and images" if all(cell.images for cell in found) else "seeds, not images"
    return (
        f"{markdown(['difference in points', *map(named, attacks), 'seeds'], rows)}\n\n"
        f"Mean ± half of the 95% interval, which holds {held}. Intervals that exclude zero: "
        f"{clear} of {len(found)}. Half-widths: {min(cell.half for cell in found):.2f} to "
        f"{max(cell.half for cell in found):.2f} points."
    )


def tuning_table(study: str) -> str:
    """All trials, and which one was chosen."""
    tuning = STUDIES[study].tuning
    if tuning is None:
        return "No arm was tuned."
    rows = []
    for title, label in STUDIES[study].labels.items():
        files = [RESULTS / study / f"trials/{title}-{i}.json" for i in range(len(tuning.trials))]
        found = [
            json.loads(file.read_text())["held_out"] if file.is_file() else None for file in files
        ]
        cells = [_held_out(accuracy, tuning) for accuracy in found]
        if (chosen := tuning.winner(found)) is not None:
            cells[chosen] = f"**{cells[chosen]}**"
        rows.append([label, *cells])
    clean = ", clean" if tuning.least_clean else ""
    head = [f"held-out {named(tuning.attack)}{clean} %", *map(" ".join, tuning.trials)]
    bold = "Bold: chosen, by the rule in the study's file."
    return f"{markdown(head, rows)}\n\n{bold}{repeated_trials(study, tuning.attack)}"


def _held_out(accuracy: dict[str, float] | None, tuning: Tuning) -> str:
    """The accuracies that decide about a trial, if it is finished."""
    attacks = [tuning.attack, "clean"] if tuning.least_clean else [tuning.attack]
    return ", ".join(f"{100 * accuracy[attack]:.2f}" for attack in attacks) if accuracy else ""


def repeated_trials(study: str, attack: str) -> str:
    """How far trials that were made twice differ."""
    found = [
        [json.loads(file.read_text())["held_out"][attack] for file in (again, first)]
        for again in sorted((RESULTS / study / "trials-again").glob("*.json"))
        if (first := RESULTS / study / "trials" / again.name).is_file()
    ]
    if not found:
        return ""
    spread = 100 * math.sqrt(statistics.mean((a - b) ** 2 for a, b in found) / 2)
    return (
        f" {len(found)} trials were made twice, with the same seed; the first counts. The "
        f"standard deviation of a trial is {spread:.2f} points."
    )


def selection_table(study: str) -> str:
    """When each run's checkpoint was selected, and what training had cost by then."""
    rows = []
    for title, label in STUDIES[study].labels.items():
        chosen, cost, best, last = [], [], [], []
        for run in stored.runs_of(study, title):
            epochs, epoch = stored.read_rows(run)[0], stored.summary(run)["best_epoch"]
            if epoch is None:
                return ""
            attack = stored.valid_attack(study, title)
            chosen.append(str(epoch + 1))
            cost.append(sum(row["steps"] + 1 for row in epochs[: epoch + 1]))
            best.append(epochs[epoch]["valid"][attack])
            last.append(epochs[-1]["valid"][attack])
        if chosen:
            means = stored.mean(best, 1, 100), stored.mean(last, 1, 100)
            rows.append([label, " · ".join(chosen), f"{statistics.mean(cost):.1f}", *means])
    head = ["arm", "selected epoch, by seed", "gradients per image up to it"]
    held_out = "held-out accuracy % then"
    return f"\n\n{markdown([*head, held_out, 'after the last epoch'], rows)}"


def provenance(study: str) -> str:
    """Commits and devices of the runs, how many are still missing, and which were resumed."""
    runs = [run for title in STUDIES[study].recipes for run in stored.runs_of(study, title)]
    environments = [env for run in runs for env in stored.environments(run)]
    commits = sorted({env.get("commit") or "unknown" for env in environments})
    devices = sorted({env["device"] for env in environments})
    planned = len(STUDIES[study].recipes) * STUDIES[study].seeds
    resumed = [f"`{run.name}`" for run in runs if len(stored.environments(run)) > 1]
    return (
        f"{len(runs)} of {planned} runs, commit {', '.join(f'`{c}`' for c in commits)}, "
        f"{', '.join(devices)}.{shared(study)}"
        + (f" Interrupted and resumed: {', '.join(resumed)}." if resumed else "")
    )


def shared(study: str) -> str:
    """A sentence about runs that did not have the device for themselves."""
    file = RESULTS / study / SHARED
    if not file.is_file():
        return ""
    parts = json.loads(file.read_text())["parts"]
    return f" {parts} runs at a time shared the device: alone, each takes fewer seconds."


def section(study: str) -> str:
    drawn = f"annealing-{study}.svg"
    return (
        f"### {STUDIES[study].about}\n\n`{study}`: {provenance(study)}\n\n{arms_table(study)}\n\n"
        f"![Accuracy against cost, {study}]({drawn})\n\n{differences_table(study)}\n\n"
        f"{tuning_table(study)}{selection_table(study)}{steepness_part(study)}"
    )


def steepness_part(study: str) -> str:
    if not steepness.measured(study):
        return ""
    drawn = f"annealing-{study}-steepness.svg"
    return (
        f"\n\n{steepness.steepness_table(study)}\n\n![Steepness, {study}]({drawn})\n\n"
        "Steepness is measured after every epoch on 1,000 test images: the norm of the input "
        "gradient dl/dx, and a curvature. The curvature is the change of the gradient between the "
        "image and the corner of the ball that the gradient points to, divided by their distance."
    )


def draw_all() -> None:
    for study in measured():
        draw(study, DOCS / f"annealing-{study}.svg")
        if steepness.measured(study):
            with picture(DOCS / f"annealing-{study}-steepness.svg", 2, (8.4, 3.1)) as axes:
                steepness.draw_steepness(axes, study)


def studies() -> str:
    return "\n\n".join(map(section, measured()))


def not_measured() -> str:
    left = [study for study in ORDER if study not in measured()]
    if not left:
        return "All studies have results."
    rows = [
        [f"[`{study}`](../evidence/studies/{study}.toml)", STUDIES[study].about] for study in left
    ]
    return markdown(["study", "about"], rows)


def context() -> str:
    """The same training with other step sizes, from the study behind the README."""
    others = stored.summaries("cifar10") | stored.summaries("cifar10-others")
    others |= {"k2": stored.summaries("cifar10-equal-cost")["k2"]}
    rows = {
        "pgd2": "K = 2, α = 2/255",
        "k2": "K = 2, α = 10/255",
        "pgd10": "K = 10, α = 2/255",
        "amata": "linear 2 → 10",
    }
    found = [f"{name}: {stored.accuracy(others[title], 'pgd-20')}" for title, name in rows.items()]
    page = "[the paper's experiments](paper.md)"
    where = f"the second from `cifar10-equal-cost`, the others from {page}"
    return f"PGD-20 accuracy, {where}: {'; '.join(found)}."


def guard() -> str:
    """A run of cifar10-eps16 that collapsed, and the same recipe again, with a guard that watches
    long steps: `amata train RECIPE` with the run's recipe.toml."""
    before = stored.summary(RESULTS / "cifar10-eps16" / "runs" / "k2-seed0")
    run = ROOT / "evidence" / "results" / "guard"
    epochs, (event,) = stored.read_rows(run)
    (steps,) = {row["steps"] for row in epochs if row["epoch"] >= event["epoch"]}
    was, now = (
        f"{100 * stored.mean_accuracy([found], 'pgd-20'):.1f}%"
        for found in (before, stored.summary(run))
    )
    return (
        f"Two steps of 13/255 at ε = 16/255, seed 0: {was} under PGD-20 before the guard watched "
        f"long steps, {now} since. It undid epoch {event['epoch'] + 1}, and the rest took {steps} "
        "steps."
    )


PARTS: Parts = {
    "studies": studies,
    "not-measured": not_measured,
    "context": context,
}


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    if "--check" not in sys.argv:
        draw_all()
    claims: Parts = {
        "verdicts": verdicts.verdicts_table,
        "not-measured": verdicts.not_measured,
    }
    pages = {
        DOCS / "annealing.md": PARTS,
        DOCS / "claims.md": claims,
        DOCS / "collapse.md": {"guard": guard},
    }
    rewrite(pages, "annealing")
