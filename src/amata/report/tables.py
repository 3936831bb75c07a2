"""The tables of a comparison as cells, CSV and Markdown."""

import csv
import io
from typing import Any

from amata.formatting import to_text
from amata.report.escape import for_csv, for_markdown

Cell = str | tuple[str, str]
"""The text of a cell, or the text and a smaller second line."""


def in_points(share: float, *, signed: bool = False) -> str:
    """A share in percent or in points, with a sign unless it is 0."""
    value = round(100 * share, 1) + 0.0  # no -0.0
    return f"{value:{'+' if signed and value else ''}.1f}".replace("-", "−")


def between(a: dict[str, Any], *, signed: bool = False) -> str:
    """An interval in percent, or in points with signs."""
    return f"{in_points(a['low'], signed=signed)} to {in_points(a['high'], signed=signed)}"


def result_table(result: dict[str, Any]) -> list[list[Cell]]:
    """One row per recipe."""
    target = (
        f"time to {100 * result['target']:.4g}% (s)" if result["target"] else "time to target (s)"
    )
    rows: list[list[Cell]] = [
        [
            "recipe",
            *((a, "%") for a in result["attacks"]),
            "training (s)",
            "gradient evaluations",
            target,
            *(["speed-up"] if len(result["rows"]) > 1 else []),
        ]
    ]
    for row in result["rows"]:
        cells: list[Cell] = [
            (row["recipe"], f"{len(row['seeds'])} seed{'s' if len(row['seeds']) > 1 else ''}")
        ]
        for attack in result["attacks"]:
            a = row["accuracies"].get(attack)
            cells.append((f"{100 * a['accuracy']:.1f}", between(a)) if a else "—")
        cells.append(f"{row['train_seconds']:,.1f}")
        cells.append(
            (f"{row['grad_evals']:,.0f}", f"{row['grad_evals_per_image']:.2f} per image and epoch")
        )
        missed = row["time_to_target_per_seed"].count(None)
        some = (
            f"{missed} of {len(row['seeds'])} missed it"
            if missed
            else f"{row['cost_to_target']:,.0f} evaluations"
        )
        reached = f"{row['time_to_target']:,.1f}" if row["time_to_target"] else "—"
        cells.append((reached, some) if result["target"] else "—")
        whole = f"{row['speedup']:.2f}×" if row["speedup"] else "—"
        to_target = f"{row['speedup_to_target']:.2f}× to target" if row["speedup_to_target"] else ""
        cells.append((whole, to_target) if to_target else whole)
        rows.append(cells[: len(rows[0])])
    return rows


def result_csv(result: dict[str, Any]) -> str:
    """The results for a spreadsheet: one row per recipe and attack, one number per cell. A recipe
    without accuracies has one row."""
    first = ("accuracy", "low", "high", "n")
    last = (
        "train_seconds",
        "grad_evals",
        "time_to_target",
        "cost_to_target",
        "speedup",
        "speedup_to_target",
    )
    table: list[list[Cell]] = [["recipe", "seeds", "attack", *first, *last]]
    for row in result["rows"]:
        ends = [row[key] for key in last]
        for attack, a in (row["accuracies"] or {"": dict.fromkeys(first)}).items():
            cells = [row["recipe"], len(row["seeds"]), attack, *(a[key] for key in first), *ends]
            table.append(["" if cell is None else str(cell) for cell in cells])
    return as_csv(table)


def difference_table(result: dict[str, Any]) -> list[list[Cell]]:
    names = [row["recipe"] for row in result["rows"]]
    rows: list[list[Cell]] = [["key", *names]]
    return rows + [
        [
            d["key"],
            *("—" if d["values"][n] is None else to_text(d["values"][n]) for n in names),
        ]
        for d in result["differences"]
    ]


def environment_table(result: dict[str, Any]) -> list[list[Cell]]:
    """One fact per row; where environments differ, all values."""
    every = [_facts(env) for env in (result["environment"], *result["other_environments"])]
    rows: list[list[Cell]] = [["fact", "value"]]
    return rows + [
        [key, "; ".join(dict.fromkeys(facts[key] for facts in every))] for key in every[0]
    ]


def _facts(env: dict[str, Any]) -> dict[str, str]:
    return {
        "device": env["device"],
        "threads": str(env["threads"]),
        "machine": f"{env['machine']}, {env['platform']}",
        "python": env["python"],
        "packages": ", ".join(f"{name} {version}" for name, version in env["packages"].items()),
        "amata commit": env["commit"] or "unknown",
    }


def as_csv(table: list[list[Cell]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([[for_csv(flat(cell)) for cell in row] for row in table])
    return out.getvalue()


def as_markdown(table: list[list[Cell]]) -> str:
    lines = ["| " + " | ".join(for_markdown(flat(cell)) for cell in row) + " |" for row in table]
    return "\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]]) + "\n"


def flat(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell[0]} ({cell[1]})" if cell[1] else cell[0]


def first_line(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]
