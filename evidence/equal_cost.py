"""Annealed K against the constants of equal cost, over all studies: the table of the README, and
that of short trainings on docs/annealing.md."""

import re
from operator import itemgetter

import stored
from definition import FRONT, Test
from differences import collapsed, difference
from page import attack_name, markdown
from study import STUDIES
from study_section import test_name
from verdicts import ANSWERS, CONFIRMED, NOT_REPRODUCED, OPEN, at_equal_cost, claims, verdict

WORST_FIRST = (NOT_REPRODUCED, OPEN, CONFIRMED)
SHORT = {
    "cifar10-equal-cost": "paper's, 30 epochs",
    "cifar10-paper-recipe": "paper's, 30 epochs",
    "cifar10-quick-equal-cost": "fast",
    "cifar10-fast-recipe": "fast, tuned",
    "cifar10-eps16": "fast, ε = 16/255",
    "cifar10-20s": "fast, tuned",
    "cifar10-13s": "fast, tuned",
    "cifar10-13s-ema": "fast, tuned",
    "cifar10-13s-again": "fast",
    "cifar10-9s-order": "fast",
    "cifar10-9s-shapes": "fast",
    "cifar10-18s": "fast",
    "cifar10-27s": "fast, tuned",
    "cifar10-27s-tuning": "fast, tuned",
    "cifar10-1m": "`cifar10-1m`",
    "cifar10-5m": "`cifar10-5m`",
    "cifar10-fgsm-pgi": "fast, FGSM-PGI, tuned",
    "mnist-equal-cost": "MNIST",
    "mnist-few-steps": "MNIST",
    "mnist5k-equal-cost": "5,000 digits, CPU",
    "mnist5k-again": "5,000 digits, CPU",
    "mnist5k-order": "5,000 digits, CPU",
    "mnist5k-autoattack": "5,000 digits",
    "mnist5k-msa": "5,000 digits, CPU",
    "mnist5k-fgsm-pgi": "5,000 digits, FGSM-PGI",
    "tiny-equal-cost": "Tiny-ImageNet, 40 classes",
}
"""The recipes of the studies, as the README's table names them, with seconds where these are what
is equal."""
STRICT = "autoattack"
MARGIN = "CW-PGD-20"
CLEAN = "clean"
"""Other differences of the table, where they are known."""
UNKNOWN = "–"
SHORT_TRAINING = (
    "cifar10-fast-recipe",
    "cifar10-20s",
    "cifar10-13s-ema",
    "cifar10-9s-order",
    "cifar10-9s-shapes",
    "cifar10-13s-again",
    "cifar10-18s",
    "cifar10-27s",
    "cifar10-1m",
    "cifar10-5m",
)
ATTACKS = ("pgd-20", "cw-pgd-20", CLEAN)
"""The studies and the columns of the table of short trainings on docs/annealing.md."""


def table() -> str:
    """Annealed arms beside the constants of equal cost, as far as they are measured, and how many
    annealed arms of all studies are better than every constant of their cost."""
    stated, margin = claims()
    rows: list[list[str]] = []
    answers: dict[tuple[str, str], str] = {}
    strict: dict[tuple[str, str], str] = {}  # the same, under AutoAttack
    seeds: list[int] = []
    lost: list[str] = []
    worse: list[str] = []
    for claim in stated:
        if (found := at_equal_cost(claim)) is None:
            continue
        answer, arm = verdict(claim, margin)[0], (found[0], found[1].arm)
        kept = strict if claim["attack"].startswith(STRICT) else answers
        kept[arm] = min(answer, kept.get(arm, answer), key=WORST_FIRST.index)
        if claim.get("readme"):
            others = (
                difference(*found, MARGIN.lower()),
                difference(*found, STRICT) if claim["attack"] != STRICT else None,
                difference(*found, CLEAN),
            )
            row = equal_row(*found, claim["attack"])
            rows.append([*row, ANSWERS[answer], *(unbroken(other or UNKNOWN) for other in others)])
            seeds.append(len(stored.summaries(found[0])[found[1].arm]))
            lost += lost_seeds(*found)
        gain = difference(*found, claim["attack"])
        if kept is answers and gain and gain.high < 0:
            name = SHORT.get(found[0], f"`{found[0]}`")
            worse.append(f"{name}: {test_name(*found)}, {gain}")
    head = [
        "recipe",
        "annealed",
        "constant",
        "robust %",
        "difference",
        "better?",
        MARGIN,
        "AutoAttack",
        CLEAN,
    ]
    known = [column for column in zip(head, *rows, strict=True) if set(column[1:]) != {UNKNOWN}]
    head, *rows = map(list, zip(*known, strict=True))
    harm = f" (worse: {'; '.join(worse)})" if worse else ""
    were = "1 arm was" if len(strict) == 1 else f"{len(strict)} arms were"
    too = f" Under AutoAttack {were} compared: {counted(strict)}." if strict else ""
    return (
        f"{markdown(head, rows)}\n\n{' '.join([seeds_of(seeds), *dict.fromkeys(lost)])} The table "
        f"shows {len(rows)} of {len(answers)} arms that were compared at equal cost "
        f"([all](docs/claims.md)). Annealing is {counted(answers, harm)}, without a correction for "
        f"multiple tests.{too}"
    )


def counted(answers: dict[tuple[str, str], str], harm: str = "") -> str:
    """How many arms have which verdict, in words."""
    found = {name: [*answers.values()].count(name) for name in ANSWERS}
    return (
        f"better in {found[CONFIRMED]}, not in {found[NOT_REPRODUCED]}{harm}, and {found[OPEN]} "
        f"{'is' if found[OPEN] == 1 else 'are'} open"
    )


def unbroken(difference: object) -> str:
    """On one line, also in a narrow column."""
    return str(difference).replace(" ", "\N{NO-BREAK SPACE}")


def seeds_of(counts: list[int]) -> str:
    few, many = min(counts), max(counts)
    return f"Seeds per arm: {few if few == many else f'{few} to {many}'}."


def lost_seeds(study: str, pair: Test) -> list[str]:
    """What is to be said of the seeds that collapsed, and of those that were rolled back."""
    said = []
    for title in (pair.arm, pair.against):
        if title not in STUDIES[study].labels:
            continue  # the line of constants
        runs, label = stored.summaries(study)[title], STUDIES[study].labels[title]
        told = {
            f"of {label} collapsed": len(collapsed(study)[title]),
            f"of {label} were rolled back, with one more step from then": sum(
                run["rolled_back"] > 0 for run in runs
            ),
        }
        said += [
            f"{n} of {len(runs)} seeds {what} ({SHORT[study]})." for what, n in told.items() if n
        ]
    return said


def equal_row(study: str, pair: Test, attack: str) -> list[str]:
    own, runs = STUDIES[study], stored.summaries(study)
    found = difference(study, pair, attack)
    assert found is not None
    arm = runs[pair.arm]
    return [
        SHORT[study] + (f", {stored.seconds(arm):.0f} s" if own.equal_seconds else ""),
        *arms_of(study, pair),
        f"{100 * stored.mean_accuracy(arm, attack):.2f}",
        unbroken(found),
    ]


def short_training() -> str:
    """The comparisons with the fast recipe: at equal time, and at equal gradient evaluations."""
    stated, margin = claims()
    rows: dict[tuple[float, str, Test], list[str]] = {}
    for claim in stated:
        known = at_equal_cost(claim) if claim.get("attack") == ATTACKS[0] else None
        if known and known[0] in SHORT_TRAINING:
            study, pair = known
            seconds = stored.seconds(stored.summaries(study)[pair.arm])
            gains = (difference(study, pair, attack) for attack in ATTACKS)
            rows[seconds, study, pair] = [
                f"{seconds:.1f}",
                *arms_of(study, pair),
                *(unbroken(UNKNOWN if gain is None else gain) for gain in gains),
                ANSWERS[verdict(claim, margin)[0]],
                study.removeprefix("cifar10-"),
            ]
    head = ["seconds", "annealed", "against", *map(attack_name, ATTACKS), "better?", "study"]
    return markdown(head, [rows[key] for key in sorted(rows, key=itemgetter(0, 1))])


def arms_of(study: str, pair: Test) -> tuple[str, str]:
    """The annealed arm and what it is compared with, without what the heading says."""
    own = STUDIES[study]
    against = "line" if pair.against == FRONT else own.labels[pair.against]
    labels = own.labels[pair.arm].removeprefix("linear "), against.removeprefix("constant ")
    arm, other = (re.sub(r", \d+ epochs", "", text) for text in labels)
    return (arm, other) if own.equal_seconds else labels
