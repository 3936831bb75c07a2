"""A comparison as one HTML page that needs nothing else: no network, no script; readable in light
and dark, on a phone and on paper."""

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from amata.quantity import to_fractions
from amata.report.comparison import Picture, smoothing
from amata.report.figures import INK
from amata.report.tables import (
    Cell,
    difference_table,
    environment_table,
    first_line,
    flat,
    result_table,
)

STYLE = resources.files("amata.report").joinpath("style.css").read_text()


def page(result: dict[str, Any], pictures: Sequence[Picture], title: str) -> str:
    """The whole page."""
    warnings = "".join(f'<p class="warn">{escape(w)}</p>' for w in result["warnings"])
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="headline">{_headline(result)}</p>',
        f'<p class="soft">{escape(_setting(result))}</p>',
        warnings,
        "<h2>Results</h2>",
        _table(result_table(result), "Results, a row per recipe"),
        f'<p class="soft">{escape(_reading(result))}</p>',
        "<h2>Curves</h2>",
        f'<div class="figures">{"".join(_figure(p) for p in pictures)}</div>',
        f'<p class="soft">{escape(_about_curves(result))}</p>',
        _events(result),
        "<h2>What differs between the recipes</h2>",
        _table(difference_table(result), "Keys on which recipes differ", prose=True)
        if result["differences"]
        else "<p>Nothing but their names.</p>",
        "<h2>Where and how it was measured</h2>",
        _table(environment_table(result), "Environment", prose=True),
        f'<p class="soft">Order of the runs: {escape(", ".join(result["order"]))}. Time is '
        "training time alone, by a synchronised clock; "
        "compiling and validation are not in it.</p>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" '
        f'href="data:,">\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n'
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _table(table: list[list[Cell]], caption: str, *, prose: bool = False) -> str:
    """A table whose first column names its rows; the others hold numbers, or prose. Roles are told,
    because a browser forgets that a table is one where its rows are laid out as cards."""

    def cell(value: Cell, column: int, tag: str, role: str) -> str:
        small = (
            f"<small>{_unbroken(value[1])}</small>"
            if not isinstance(value, str) and value[1]
            else ""
        )
        kind = ' class="text"' if prose or column == 0 else ""
        scope = {"columnheader": ' scope="col"', "rowheader": ' scope="row"'}.get(role, "")
        label = (
            f' data-label="{escape(flat(table[0][column]))}"'
            if role == "cell" and not prose
            else ""
        )
        first = escape(first_line(value))
        if small and role == "columnheader":  # an attack's name
            first = first.replace("-", "&#8209;").replace("@", "<wbr>@")
        return f'<{tag} role="{role}"{scope}{label}{kind}>{first}{small}</{tag}>'

    head = "".join(cell(value, i, "th", "columnheader") for i, value in enumerate(table[0]))
    names = [cell(row[0], 0, "th", "rowheader") for row in table[1:]]
    values = [
        "".join(cell(value, i, "td", "cell") for i, value in enumerate(row) if i)
        for row in table[1:]
    ]
    body = "".join(
        f'<tr role="row">{name}{rest}</tr>' for name, rest in zip(names, values, strict=True)
    )
    kind = "wide prose" if prose else "wide cards"
    return (
        f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(caption)}"><table '
        'role="table">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody '
        f'role="rowgroup">{body}</tbody></table></div>'
    )


def _unbroken(words: str) -> str:
    """Escaped, with an interval on one line."""
    return re.sub(r"([\d.]+) to ([\d.]+)", r"\1&nbsp;to&nbsp;\2", escape(words))


def _figure(picture: Picture) -> str:
    """The figure inside the page: its ink follows the page's, its ground is the page's own."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r'<g id="patch_1">.*?</g>', "", svg, count=1, flags=re.S)  # the white ground
    svg = re.sub(r"fill: #ffffff", "fill: none", svg)
    svg = re.sub(r'\bid="', f'id="{picture.name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{picture.name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ([^>]*?)height="[^"]*"( '
        r'[^>]*?)width="[^"]*"',
        _unsized,
        svg,
        count=1,
    )
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.words)}" ', 1)
    return f"<figure><figcaption>{escape(picture.title)}</figcaption>{svg}</figure>"


def _unsized(match: "re.Match[str]") -> str:
    return "<svg " + "".join(group for group in match.groups() if group)


SPOKEN_OF = 3
"""How many recipes the headline tells of; the table has them all."""


def _headline(result: dict[str, Any]) -> str:
    """The comparison in a sentence or two: each recipe, by its own worst attack, against the
    first."""
    first, *others = result["rows"]
    worst = _worst(first)
    words = []
    for row in others[:SPOKEN_OF]:
        spent = (
            f"{escape(row['recipe'])} trained with {row['cost_ratio']:.2f} of the gradient "
            f"evaluations of {escape(first['recipe'])}"
        )
        if row["speedup"] and result["times_comparable"]:
            spent += f", <b>{row['speedup']:.2f} times</b> as fast"
        attack = _worst(row)
        if attack is None or worst is None:
            words.append(f"{spent}.")
            continue
        mine, theirs = row["accuracies"][attack], first["accuracies"][worst]
        gap = round(100 * (mine["accuracy"] - theirs["accuracy"]), 1)
        compared = (
            f"{abs(gap)} points {'above' if gap > 0 else 'below'} {escape(first['recipe'])}"
            if gap
            else f"as {escape(first['recipe'])} does"
        )
        words.append(
            f"{spent}, and stands at <b>{100 * mine['accuracy']:.1f}%</b> under the attack "
            "that hurts it most "
            f"({escape(attack)}), {compared} under its own "
            f"({escape(worst)}){_overlap(mine, theirs)}."
        )
    if not others and worst is not None:
        words.append(
            f"{escape(first['recipe'])} stands at "
            f"<b>{100 * first['accuracies'][worst]['accuracy']:.1f}%</b> under {escape(worst)}, "
            "the attack that hurts it most."
        )
    if len(others) > SPOKEN_OF:
        words.append(f"{len(others) - SPOKEN_OF} more recipes are in the table.")
    return " ".join(words)


def _overlap(a: dict[str, Any], b: dict[str, Any]) -> str:
    return "" if a["low"] > b["high"] or b["low"] > a["high"] else " (their intervals overlap)"


def _worst(row: dict[str, Any]) -> str | None:
    """The attack inside the ball that leaves the recipe least."""
    bounded = [attack for attack, a in row["accuracies"].items() if "eps" in a["params"]]
    return min(bounded, key=lambda attack: row["accuracies"][attack]["accuracy"], default=None)


def _setting(result: dict[str, Any]) -> str:
    threat = result["threat"]
    where = (
        f"one process on {result['environment']['device']}, one run after the other"
        if result["together"]
        else "runs made apart"
    )
    return f"Data {result['data']}, threat {threat['norm']} of {to_fractions(threat['eps'])}; {where}."


def _reading(result: dict[str, Any]) -> str:
    goal = (
        f"{100 * result['target']:.4g}% under {result['valid_attack']} on "
        f"{result['valid_n']:,} held-out images"
        if result["target"]
        else ""
    )
    target = f" The target, {goal}, is {result['target_source']}." if goal else ""
    chosen = any(epoch is not None for row in result["rows"] for epoch in row["best_epochs"])
    kept = "best on held-out images" if chosen else "last, as nothing was held out to choose by"
    images = " or ".join(f"{n:,}" for n in result["images"])
    return (
        f"Accuracies on {images} test images, with 95% intervals: over images for one seed; "
        "over seeds and images, in quadrature, "
        f"for several. The model that is tested is the {kept}.{target} Speed-ups are against "
        "the first row."
    )


def _about_curves(result: dict[str, Any]) -> str:
    seeds = (
        "Each seed has its own line, but for K and α, which are the first seed's."
        if len(result["curves"]) > len(result["rows"])
        else ""
    )
    if not any(p["clean"] is not None for c in result["curves"] for p in c["points"]):
        return f"Nothing was held out, so there are no errors to draw. {seeds}"
    return (
        f"Errors are on {result['valid_n']:,} held-out images, robust ones under "
        f"{result['valid_attack']}. Faint points are single "
        "validations; strong lines are smoothed by an exponential moving average (weight "
        f"{smoothing(result):.2g}) that starts unbiased. " + seeds
    )


def _events(result: dict[str, Any]) -> str:
    lines = [
        f"<li>{escape(c['run'])}, epoch {e['epoch'] + 1}: {escape(e['event'])}, "
        f"{escape(e['action'])} "
        f"({100 * e['before']:.1f}% to {100 * e['after']:.1f}%){_remedy(e)}</li>"
        for c in result["curves"]
        for e in c["events"]
    ]
    return f"<h2>Events</h2><ul>{''.join(lines)}</ul>" if lines else ""


def _remedy(event: dict[str, Any]) -> str:
    """What a run that was rolled back did otherwise from there."""
    if event["action"] != "rollback":
        return ""
    if "lr_scale" in event:
        return f", on with {event['lr_scale']:g} of the learning rate"
    steps = event["extra_steps"]
    return f", on with {steps} more inner step{'s' if steps > 1 else ''}"
