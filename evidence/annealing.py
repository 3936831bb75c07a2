"""Writes the tables and the pictures of docs/annealing.md, docs/studies.md and docs/claims.md:
python evidence/annealing.py (--check compares the tables)."""

import sys
from pathlib import Path

import equal_cost
import equal_cost_picture
import origins
import steepness
import stored
import verdicts
from definition import ROOT
from fronts import draw
from page import Parts, markdown, picture, refuse_others, rewrite
from study import STUDIES
from study_section import finished_trials, is_drawn, section

DOCS = ROOT / "docs"
ORDER = (
    "cifar10-paper-recipe",
    "cifar10-fast-recipe",
    "cifar10-headline",
    "cifar10-eps16",
    "mnist-equal-cost",
    "mnist-few-steps",
    "mnist5k-equal-cost",
    "mnist5k-again",
    "mnist5k-order",
    "mnist5k-closed-loop",
    "mnist5k-autoattack",
    "mnist5k-msa",
    "mnist5k-cutout",
    "mnist5k-fgsm-pgi",
    "cifar10-fgsm-pgi",
    "cifar10-closed-loop",
    "cifar10-100-epochs",
    "cifar10-100-epochs-seeds",
    "cifar10-fastat",
    "cifar10-epochs-or-k",
    "cifar10-order",
    "cifar10-20s",
    "cifar10-13s",
    "cifar10-13s-ema",
    "cifar10-13s-again",
    "cifar10-9s-order",
    "cifar10-9s-shapes",
    "cifar10-18s",
    "cifar10-22s",
    "cifar10-27s",
    "cifar10-27s-tuning",
    "cifar10-1m",
    "cifar10-1m-tuning",
    "cifar10-5m-tuning",
    "cifar10-5m",
    "cifar10-5m-decay",
    "cifar10-trades",
    "cifar10-wrn",
    "tiny-free-equal-cost",
    "tiny-equal-cost",
    "mnist-pgd60",
    "cifar10-fast-at",
    "cifar10-free-at",
    "mnist-yopo-seeds",
    "mnist-yopo-step",
    "cifar10-atta-seeds",
    "cifar10-equal-cost",
    "cifar10-quick-equal-cost",
)
"""The studies in the order of docs/studies.md."""


def measured() -> list[str]:
    """The studies with at least one finished run."""
    return [study for study in ORDER if stored.summaries(study)]


def draw_all() -> None:
    equal_cost_picture.draw(DOCS / "annealing.svg", measured())
    for study in measured():
        if is_drawn(study):
            draw(study, DOCS / f"annealing-{study}.svg")
        if steepness.measured(study):
            with picture(DOCS / f"annealing-{study}-steepness.svg", 2, (8.4, 3.1)) as axes:
                steepness.draw_steepness(axes, study)


def begun() -> list[str]:
    """The studies with at least one finished run or tuning trial."""
    return [study for study in ORDER if stored.summaries(study) or finished_trials(study)]


def studies() -> str:
    return "\n\n".join(map(section, begun()))


def not_measured() -> str:
    left = [study for study in ORDER if study not in begun()]
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


PAGES: dict[Path, Parts] = {
    DOCS / "annealing.md": {
        "context": context,
        "short-training": equal_cost.short_training,
    },
    DOCS / "studies.md": {
        "not-measured": not_measured,
        "studies": studies,
        "origins": origins.table,
    },
    DOCS / "claims.md": {
        "verdicts": verdicts.verdicts_table,
        "not-measured": verdicts.not_measured,
    },
}


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    if "--check" not in sys.argv:
        draw_all()
    rewrite(PAGES, "annealing")
