"""The text of a comparison page: setting, captions and events, as HTML or plain sentences."""

from typing import Any

from amata.formatting import NORMS, to_text
from amata.report.comparison import WINDOW, smoothed
from amata.report.escape import for_html


def setting(result: dict[str, Any]) -> str:
    """Data, threat and device."""
    when = {
        "sequential": "one after the other",
        "parallel": "some at the same time",
        "unknown": "at times that are not recorded",
    }[result["trained"]]
    count = len(result["curves"])
    device = result["environment"]["device"]
    same = all(env["device"] == device for env in result["other_environments"])
    where = f" on {device}" if same else ""
    names = ["passed in Python" if name == "python" else name for name in result["data"]]
    data = names[0] if len(names) == 1 else f"{len(names)} data sets ({', '.join(names)})"
    if len(names) == 1 and not result["same_test_images"]:
        data += ", with different test images"
    threats = "; ".join(
        f"{NORMS.get(t['norm'], t['norm'])}, eps {to_text(t['eps'])}" for t in result["threats"]
    )
    runs = f"1 run{where}" if count == 1 else f"{count} runs{where}, trained {when}"
    return f"Data: {data}. Threat: {threats}. {runs}."


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
    if len(result["rows"]) > 1:
        sentences += ["Speed-ups are relative to the first row, the baseline."]
    return " ".join(sentences)


def about_curves(result: dict[str, Any]) -> str:
    """What the figures show."""
    seeds = (
        "Each seed has its own line; K and α are shown for the first seed."
        if len(result["curves"]) > len(result["rows"])
        else ""
    )
    if not any(p["clean"] is not None for c in result["curves"] for p in c["points"]):
        return f"No images were held out, so there are no error curves. {seeds}".rstrip()
    lines = (
        f"Points are single validations; lines average {WINDOW} neighbouring ones."
        if smoothed(result)
        else "Lines connect the validations; they are not smoothed."
    )
    return (
        f"Errors are on {result['valid_n']:,} held-out images; robust errors are under "
        f"{result['valid_attack']}. {lines} {seeds}"
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
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _remedy(event: dict[str, Any]) -> str:
    """What a run changed after a rollback."""
    if event["action"] != "rollback":
        return ""
    if "lr_scale" in event:
        return f", then {event['lr_scale']:g} of the learning rate"
    if not (steps := event.get("extra_steps")):
        return ""
    return f", then {steps} more inner step{'s' if steps > 1 else ''}"
