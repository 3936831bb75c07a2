"""The text of a comparison page: headline, captions and events, as HTML or plain sentences."""

from typing import Any

from amata.quantity import to_fractions
from amata.report.comparison import smoothing_weight
from amata.report.escape import for_html

Row = dict[str, Any]

MENTIONED = 3
"""Recipes in the headline besides the baseline; the table has all of them."""


def headline(result: dict[str, Any]) -> str:
    """HTML: each recipe against the baseline, by cost, speed and its strongest attack."""
    baseline, *others = result["rows"]
    rows = [baseline, *others[:MENTIONED]]
    # test accuracies if all of them have one, else held-out accuracies
    split = "test" if all(_strongest(row, "test") for row in rows) else "held-out"
    if not others:
        return _alone(baseline, split)
    sentences = []
    for row in rows[1:]:
        text = (
            f"{for_html(row['recipe'])} used {row['cost_ratio']:.2f} times the gradient "
            f"evaluations of {for_html(baseline['recipe'])}"
        )
        if row["speedup"] and result["times_comparable"]:
            text += f" and trained <b>{row['speedup']:.2f} times</b> as fast"
        sentences.append(f"{text}.{_against(row, baseline, split)}")
    if len(others) > MENTIONED:
        sentences.append(f"The table has {len(others) - MENTIONED} more recipes.")
    return " ".join(sentences)


def _alone(row: Row, split: str) -> str:
    name, attack = for_html(row["recipe"]), _strongest(row, split)
    if attack is None:
        return (
            f"{name} trained for {row['train_seconds']:,.1f} s with {row['grad_evals']:,.0f} "
            "gradient evaluations."
        )
    return f"{name}: {_accuracy(row, attack, split)}."


def _against(row: Row, baseline: Row, split: str) -> str:
    attack, other = _strongest(row, split), _strongest(baseline, split)
    if attack is None or other is None:
        return ""
    mine, theirs = row["accuracies"][attack], baseline["accuracies"][other]
    gap = round(100 * (mine["accuracy"] - theirs["accuracy"]), 1)
    place = f"{abs(gap)} points {'above' if gap > 0 else 'below'}" if gap else "equal to"
    reference = f"{for_html(baseline['recipe'])} ({for_html(_attack(other))})"
    overlap = mine["low"] <= theirs["high"] and theirs["low"] <= mine["high"]
    return (
        f" It reaches {_accuracy(row, attack, split)}, {place} {reference}"
        f"{'; their intervals overlap' if overlap else ''}."
    )


def _accuracy(row: Row, attack: str, split: str) -> str:
    percent = f"<b>{100 * row['accuracies'][attack]['accuracy']:.1f}%</b>"
    if split == "test":
        return f"{percent} under its strongest attack ({for_html(attack)})"
    return f"{percent} held-out accuracy under {for_html(_attack(attack))}"


def _attack(name: str) -> str:
    return name.removeprefix("held-out ")


def _strongest(row: Row, split: str) -> str | None:
    """The attack inside the ball with the lowest accuracy. Held-out rows have one attack."""
    bounded = [
        name
        for name, a in row["accuracies"].items()
        if a["split"] == split and (split == "held-out" or "eps" in a["params"])
        if _attack(name) != "clean"
    ]
    return min(bounded, key=lambda name: row["accuracies"][name]["accuracy"], default=None)


def setting(result: dict[str, Any]) -> str:
    """Data, threat and device."""
    threat = result["threat"]
    where = {
        "sequential": "trained one after the other",
        "parallel": "some trained at the same time",
        "unknown": "trained at times that are not recorded",
    }[result["trained"]]
    where = where if len(result["curves"]) > 1 else "one"
    device = result["environment"]["device"]
    if all(env["device"] == device for env in result["other_environments"]):
        where += f" on {device}"
    data = "passed in Python" if result["data"] == "python" else result["data"]
    return (
        f"Data: {data}. Threat: {threat['norm']}, eps {to_fractions(threat['eps'])}. Runs: {where}."
    )


def about_results(result: dict[str, Any]) -> str:
    """What the accuracies are measured on, and the target."""
    splits = {a["split"] for row in result["rows"] for a in row["accuracies"].values()}
    sentences = []
    if "test" in splits:
        images = " or ".join(f"{n:,}" for n in result["images"])
        selected = any(epoch is not None for row in result["rows"] for epoch in row["best_epochs"])
        weights = "best epoch on held-out images" if selected else "last epoch: none were held out"
        sentences += [
            f"Test accuracies are on {images} test images, with the weights of the {weights}."
        ]
    if "held-out" in splits:
        none = "" if "test" in splits else "No run has a test evaluation. "
        sentences += [
            f"{none}Held-out accuracies are on {result['valid_n']:,} images, at the epoch that was "
            "selected on the same images, so they are optimistic."
        ]
    sentences += (
        [
            "Intervals are 95%: over images for one seed; over seeds and images, in quadrature, "
            "for several."
        ]
        if splits
        else [
            "There are no accuracies: the runs have neither a test evaluation nor held-out images."
        ]
    )
    if result["target"]:
        sentences += [
            f"The target is {100 * result['target']:.4g}% under {result['valid_attack']} on "
            f"{result['valid_n']:,} held-out images ({result['target_source']})."
        ]
    return " ".join([*sentences, "Speed-ups are relative to the first row, the baseline."])


def about_curves(result: dict[str, Any]) -> str:
    """What the figures show."""
    seeds = (
        "Each seed has its own line; K and α are shown for the first seed."
        if len(result["curves"]) > len(result["rows"])
        else ""
    )
    if not any(p["clean"] is not None for c in result["curves"] for p in c["points"]):
        return f"No images were held out, so there are no error curves. {seeds}".rstrip()
    return (
        f"Errors are on {result['valid_n']:,} held-out images; robust errors are under "
        f"{result['valid_attack']}. Faint points are single validations. Strong lines are an "
        f"exponential moving average with weight {smoothing_weight(result):.2g} and bias "
        f"correction. {seeds}"
    ).rstrip()


def events(result: dict[str, Any]) -> str:
    """HTML: the events of all runs, or nothing."""
    lines = [
        f"<li>{for_html(c['run'])}, epoch {e['epoch'] + 1}: {for_html(e['event'])}, "
        f"{for_html(e['action'])} "
        f"({100 * e['before']:.1f}% to {100 * e['after']:.1f}%){_remedy(e)}</li>"
        for c in result["curves"]
        for e in c["events"]
    ]
    return f"<h2>Events</h2><ul>{''.join(lines)}</ul>" if lines else ""


def _remedy(event: dict[str, Any]) -> str:
    """What a run changed after a rollback."""
    if event["action"] != "rollback":
        return ""
    if "lr_scale" in event:
        return f", then {event['lr_scale']:g} of the learning rate"
    if not (steps := event.get("extra_steps")):
        return ""
    return f", then {steps} more inner step{'s' if steps > 1 else ''}"
