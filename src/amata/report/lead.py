"""The lead of a comparison page: the recipes under one shared attack, as a sentence or a table."""

from typing import Any

from amata.formatting import NORMS, short_number
from amata.report.escape import for_html
from amata.report.tables import Cell, between, in_points

Row = dict[str, Any]

PARAMS = (("eps", "eps"), ("alpha", "step_size"), ("version", "version"))
"""The parameters of an attack that the lead states: their word, and their key."""

HELD_OUT = "held-out "
LONGEST = 8
"""Recipes in the table of the lead; the results have all of them."""


def headline(result: dict[str, Any]) -> str:
    """HTML: the result in one sentence for one or two recipes; the lead's table has more."""
    rows, shared = result["rows"], result["shared"]
    if len(rows) == 1:
        return _alone(rows[0], shared)
    if shared is None:
        return f"Robust accuracies are not compared: {result['not_compared']}."
    return _against(rows[1], rows[0], result) if len(rows) == 2 else ""


def _alone(row: Row, shared: dict[str, Any] | None) -> str:
    name = for_html(row["recipe"])
    seconds, cost = f"{row['train_seconds']:,.1f} s", f"{row['grad_evals']:,.0f}"
    if shared is None:
        return f"{name} trained for {seconds} with {cost} gradient evaluations."
    a = row["accuracies"][shared["attack"]]
    return (
        f"{name} reaches <b>{100 * a['accuracy']:.1f}%</b> ({between(a)}) robust accuracy after "
        f"{seconds} and {cost} gradient evaluations."
    )


def _against(row: Row, baseline: Row, result: dict[str, Any]) -> str:
    attack = result["shared"]["attack"]
    a, gap = row["accuracies"][attack], row["difference"]
    points = round(100 * gap["accuracy"], 1)
    reference = for_html(baseline["recipe"])
    if not round(100 * max(a["accuracy"], baseline["accuracies"][attack]["accuracy"]), 1):
        return f"Neither {reference} nor {for_html(row['recipe'])} is robust: both have 0.0%."
    place = f"{abs(points)} points {'above' if points > 0 else 'below'}" if points else "equal to"
    place = f"<b>{place}</b>" if significant(gap) else place
    cost = f"with {row['cost_ratio']:.2f} times the gradient evaluations"
    if row["speedup"] and result["times_comparable"]:
        cost += f" and {1 / row['speedup']:.2f} times the training time"
    reached = f"<b>{100 * a['accuracy']:.1f}%</b> ({between(a)})"
    return (
        f"{for_html(row['recipe'])} reaches {reached} robust accuracy, {place} {reference} "
        f"({between(gap, signed=True)}{'' if significant(gap) else ', not significant'}), {cost}."
    )


def significant(gap: dict[str, float]) -> bool:
    """Whether the interval of a difference, as it is printed, excludes 0."""
    return not round(100 * gap["low"], 1) <= 0 <= round(100 * gap["high"], 1)


def about_lead(result: dict[str, Any]) -> str:
    """The attack of the lead with its parameters, the images, and the intervals."""
    if (shared := result["shared"]) is None:
        return ""
    seeds = sorted({len(row["seeds"]) for row in result["rows"]})
    runs = " or ".join(f"{n} seed{'s' if n > 1 else ''}" for n in seeds)
    test = "test" if shared["split"] == "test" else "held-out"
    runs += " per recipe" if len(result["rows"]) > 1 else ""
    text = (
        f"Robust accuracy: {describe_attack(shared['attack'], shared['params'])}, on "
        f"{shared['n']:,} {test} images, {runs}. Intervals are 95%."
    )
    if len(result["rows"]) == 1:
        return text
    rest = len(result["rows"]) - LONGEST
    if rest > 0:
        text = (
            f"The baseline and the {LONGEST - 1} most accurate recipes; {rest} more below. {text}"
        )
    if not shared["paired"]:
        how = "treats the accuracies as independent; on the same images this makes it wider"
    elif seeds == [1]:
        how = "pairs the recipes image by image; it does not cover chance between seeds"
    else:
        how = "pairs the recipes by seed and image, and covers chance in both"
        how += " (with two seeds in about 90% of cases)" if seeds == [2] else ""
    return f"{text} A difference is not significant if its interval contains 0. The interval {how}."


def describe_attack(name: str, params: dict[str, Any]) -> str:
    """An attack with its parameters: pgd-40 (L∞, eps 0.3, alpha 0.01, 1 restart)."""
    parts = [NORMS.get(str(params.get("norm")), str(params.get("norm", "")))]
    parts += [f"{word} {short_number(params[key])}" for word, key in PARAMS if key in params]
    if restarts := params.get("restarts"):
        parts.append(f"{restarts} restart{'s' if restarts != 1 else ''}")
    return f"{name.removeprefix(HELD_OUT)} ({', '.join(filter(None, parts))})"


def lead_table(result: dict[str, Any]) -> list[list[Cell]]:
    """From three recipes on: accuracy under the shared attack, time, cost, and the difference to
    the baseline. Of many recipes, the baseline and the most accurate ones."""
    rows, shared = result["rows"], result["shared"]
    if len(rows) < 3 or shared is None:
        return []
    attack, timed = shared["attack"], result["times_comparable"]
    title = attack.removeprefix(HELD_OUT)
    baseline, *others = rows
    if len(rows) > LONGEST:
        others.sort(key=lambda row: -row["accuracies"][attack]["accuracy"])
        others = others[: LONGEST - 1]
    seconds: list[Cell] = ["training (s)"] if timed else []
    table: list[list[Cell]] = [
        ["recipe", (f"accuracy under {title}", "%"), ("difference", "points"), *seconds]
    ]
    table[0].append("gradient evaluations")
    for row in (baseline, *others):
        a = row["accuracies"][attack]
        seconds = [f"{row['train_seconds']:,.1f}"] if timed else []
        cells: list[Cell] = [row["recipe"], (f"{100 * a['accuracy']:.1f}", between(a)), _gap(row)]
        table.append([*cells, *seconds, f"{row['grad_evals']:,.0f}"])
    return table


def gap_lines(result: dict[str, Any]) -> list[str]:
    """The differences to the baseline for a terminal."""
    if result["shared"] is None:
        return []
    baseline, *others = result["rows"]
    under = f"points from {baseline['recipe']} under {result['shared']['attack']}"
    return [
        f"{row['recipe']}: {gap[0]} {under} ({gap[1]}), with {row['cost_ratio']:.2f} times its "
        "gradient evaluations"
        for row, gap in ((row, _gap(row)) for row in others)
    ]


def _gap(row: Row) -> Cell:
    if (gap := row["difference"]) is None:
        return "baseline"
    note = "" if significant(gap) else ", not significant"
    return in_points(gap["accuracy"], signed=True), f"{between(gap, signed=True)}{note}"
