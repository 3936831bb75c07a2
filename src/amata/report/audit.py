"""An audit as one self-contained HTML page."""

import math
from collections.abc import Sequence
from typing import Any

from amata.formatting import describe_parts, short_number
from amata.report.escape import for_html
from amata.report.gallery import Pixels, amplification, gallery
from amata.report.page import Section, document, html_table, soft
from amata.report.tables import Cell, environment_table

MANY = 50
"""Classes of which a page shows all; of more, the ones with the lowest worst-case accuracy."""

RESULTS = (
    "Accuracy in %, with 95% Wilson intervals over the images. In the worst case an image counts "
    "only if it survives all attacks inside the ball. An attack shows an upper bound: a better one "
    "may break more."
)


def audit_page(audit: dict[str, Any], threat: str, pairs: Sequence[tuple[Pixels, Pixels]]) -> str:
    """The page of `Audit.to_dict()`, with the clean and the adversarial image of each example."""
    worst, title = audit["worst"], f"Audit of {audit['name']}"
    clean = next(iter(audit["results"].values()))
    top = [
        f'<p class="headline"><b>{worst["accuracy"]:.1%}</b> of {worst["n"]:,} images are '
        f"classified correctly under every attack within {for_html(threat)}; "
        f"{clean['accuracy']:.1%} without an attack.</p>",
        *(f'<p class="warn">{for_html(warning)}</p>' for warning in audit["warnings"]),
    ]
    environment = html_table(_environment(audit), "Environment", prose=True)
    return document(
        title,
        [
            Section("", top),
            Section("Results", [html_table(_results(audit), "Accuracy per attack"), soft(RESULTS)]),
            Section("Images", _images(audit, pairs)),
            Section(
                "Classes",
                [
                    html_table(_classes(audit), "Accuracy per class", cards=False),
                    soft(_about_classes(audit)),
                ],
            ),
            Section("Environment", [environment]),
        ],
    )


def _results(audit: dict[str, Any]) -> list[list[Cell]]:
    rows: list[list[Cell]] = [
        ["attack", ("accuracy", "%"), "images", "gradient evaluations", "seconds"]
    ]
    for name, r in (*audit["results"].items(), ("worst case", audit["worst"])):
        about = _parameters(r["params"]) if name != "worst case" else "over all attacks"
        about += f"; {describe_parts(r['parts'])}" if r["parts"] else ""
        bad = f"{r['non_finite']:,} with logits that are not finite" if r["non_finite"] else ""
        rows.append(
            [
                (name, about),
                (f"{100 * r['accuracy']:.1f}", f"{100 * r['low']:.1f} to {100 * r['high']:.1f}"),
                (f"{r['n']:,}", bad),
                f"{r['grad_evals']:,}",
                f"{r['seconds']:,.1f}",
            ]
        )
    return rows


def _parameters(params: dict[str, Any]) -> str:
    """An attack's parameters in words."""
    words = []
    if "steps" in params and "step_size" in params:
        words.append(f"{params['steps']} steps of {short_number(params['step_size'])}")
    elif "steps" in params:
        words.append(f"{params['steps']} steps")
    if params.get("restarts", 1) > 1:
        words.append(f"{params['restarts']} restarts")
    if "loss" in params:
        words.append({"ce": "cross-entropy"}.get(params["loss"], params["loss"]))
    if "version" in params:
        words.append(f"{params['version']} version")
    return ", ".join(words) or "no attack"


def _images(audit: dict[str, Any], pairs: Sequence[tuple[Pixels, Pixels]]) -> list[str]:
    if not pairs:
        return []
    survivors = sum(example["survives"] for example in audit["examples"])
    text = (
        f"{len(pairs)} images, {survivors} of which survive: chosen for a mix, so their share says "
        "nothing. Percentages are the model's own probabilities. Differences are multiplied by "
        f"{amplification(pairs):g}; mid-grey means no change."
    )
    return [gallery(audit["examples"], pairs, audit["classes"]), soft(text)]


def _classes(audit: dict[str, Any]) -> list[list[Cell]]:
    """One row per class, in order; of many classes, the weakest ones."""
    columns = {"worst case": audit["worst"], **audit["results"]}
    numbers = range(len(audit["classes"]))
    if len(numbers) > MANY:
        counts = audit["worst"]["per_class"]
        weakest = sorted(numbers, key=lambda c: counts[c][0] / counts[c][1] if counts[c][1] else 2)
        numbers = weakest[:MANY]  # type: ignore[assignment]
    rows: list[list[Cell]] = [["class", "images", *((name, "%") for name in columns)]]
    for c in numbers:
        counts = [r["per_class"][c] for r in columns.values()]
        cells = [f"{100 * right / n:.1f}" if n else "—" for right, n in counts]
        rows.append([audit["classes"][c], f"{max(n for _, n in counts):,}", *cells])
    return rows


def _about_classes(audit: dict[str, Any]) -> str:
    counts, many = sorted(n for _, n in audit["worst"]["per_class"] if n), len(audit["classes"])
    typical = counts[len(counts) // 2]
    text = (
        f"The median class has {typical:,} image{'s' if typical > 1 else ''}: the 95% interval of "
        f"an accuracy near 50% is then ± {98 / math.sqrt(typical):.0f} points."
    )
    return (
        f"The {MANY} weakest of {many:,} classes in the worst case. {text}" if many > MANY else text
    )


def _environment(audit: dict[str, Any]) -> list[list[Cell]]:
    rows = environment_table({"environment": audit["environment"], "other_environments": []})
    return [*rows, ["seed", str(audit["seed"])], ["date", audit["date"]]]
