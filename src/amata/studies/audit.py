"""Test anybody's model: clean and robust accuracy, per class, with warnings and a gallery."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amata.attacks import parse_attack
from amata.data import ImageSet
from amata.errors import InputError, printable, until_interrupted
from amata.evaluation import Progress, Result, class_counts, evaluate, grouped_warnings, wilson
from amata.formatting import describe_ball, describe_parts
from amata.quantity import split_names, whole
from amata.runs.environment import environment
from amata.runs.records import Environment
from amata.studies.examples import Collector, Example
from amata.threat import Ball

ATTACKS = ("clean", "pgd-50-5", "cw-pgd-50", "autoattack")
"""The attacks of an audit: up to 250 and 50 gradients per image, and AutoAttack's standard version,
which costs ten times as much."""
LIMIT = 1000
WORST = "worst case"


@dataclass(frozen=True, eq=False)
class Audit:
    """The results of an audit. `print` shows a table, `save` writes a page with images."""

    name: str
    """Of the model."""
    ball: Ball
    seed: int
    results: dict[str, Result]
    """By attack."""
    worst: Result
    """The worst case over all attacks inside the ball: an image counts only if it survives all."""
    classes: tuple[str, ...]
    """Their names."""
    warnings: tuple[str, ...]
    examples: tuple[Example, ...]
    environment: Environment
    date: str

    @property
    def rows(self) -> dict[str, Result]:
        """The results with the worst case last."""
        return {**self.results, WORST: self.worst}

    def table(self) -> str:
        """The results for a terminal of 80 columns."""
        from amata.console import audit_table  # imports rich, which `import amata` does not need

        rows = {name: result.to_dict() for name, result in self.rows.items()}
        return "\n".join(line.plain for line in audit_table(rows).lines(80))

    def __str__(self) -> str:
        return "\n".join([self.title, self.table(), *self.remarks])

    @property
    def title(self) -> str:
        """The model and the ball."""
        return f"{printable(self.name)}, {self.threat}"

    @property
    def remarks(self) -> list[str]:
        """Lines below the table: AutoAttack's parts, the weakest class, and the warnings."""
        counted = zip(self.classes, self.worst.per_class, strict=True)
        known = [(right / n, name) for name, (right, n) in counted if n]
        accuracy, name = min(known)
        weakest = f"weakest class: {printable(name)}, {accuracy:.1%} in the worst case"
        return [
            *(
                f"{printable(name)}: {describe_parts(result.parts)}"
                for name, result in self.results.items()
                if result.parts
            ),
            *([weakest] if accuracy < max(known)[0] else []),
            *(f"warning: {printable(warning)}" for warning in self.warnings),
        ]

    @property
    def threat(self) -> str:
        """The ball in words."""
        return describe_ball(self.ball.norm, self.ball.eps)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the images."""
        return {
            "name": self.name,
            "norm": self.ball.norm,
            "eps": self.ball.eps,
            "seed": self.seed,
            "classes": list(self.classes),
            "results": {name: result.to_dict() for name, result in self.results.items()},
            "worst": self.worst.to_dict(),
            "warnings": list(self.warnings),
            "examples": [example.to_dict() for example in self.examples],
            "environment": self.environment,
            "date": self.date,
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page: results, warnings, accuracies per class, and images."""
        from amata.report.audit import audit_page
        from amata.runs.files import write_atomic

        file = Path(path)
        if file.suffix != ".html":
            raise InputError(f"the page {str(path)!r} must be named .html, as in audit.html")
        pictures = [(e.x, e.x_adv) for e in self.examples if e.x_adv is not None]
        write_atomic(file, audit_page(self.to_dict(), self.threat, pictures).encode())
        return file


def audit(
    model: nn.Module,
    data: Any,
    *,
    ball: Ball,
    attacks: Iterable[str] | str | None = None,
    limit: int | None = LIMIT,
    batch_size: int = 256,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Progress = True,
) -> Audit:
    """Test a model that maps images in [0, 1] to logits, on the device it is on.

    `data` is what `amata.evaluate` takes: a pair (x, y), an image set, or batches. By default the
    first 1,000 images meet PGD with 50 steps and 5 restarts, CW-PGD with 50 steps, and
    AutoAttack; `limit=None` takes all images. `classes` are names: by default those of the data,
    those of the model, or numbers. The model is left unchanged. Ctrl-C raises `Interrupted`; its
    `result` is the audit of the images that met every attack, if there are any.
    """
    limit = None if limit is None else whole(limit, "limit", 1)
    if attacks is None:
        attacks = ATTACKS
    elif isinstance(attacks, str):
        attacks = split_names(attacks)
    parsed = [parse_attack(attack) for attack in attacks]
    if not any(attack.perturbs for attack in parsed):
        raise InputError("an audit needs an attack, such as pgd-20")
    if all(attack.perturbs for attack in parsed):
        parsed.append(parse_attack("clean"))
    parsed.sort(key=lambda attack: attack.perturbs)  # clean is the first row
    collector = Collector(data, limit)
    results, stopped = until_interrupted(
        lambda: evaluate(
            model,
            data,
            ball=ball,
            attacks=[attack.name for attack in parsed],
            batch_size=batch_size,
            limit=limit,
            seed=seed,
            progress=progress,
            examine=collector.add,
        )
    )
    names = _names(classes, data, model, len(next(iter(results.values())).per_class))
    inside = [results[attack.name] for attack in parsed if attack.in_ball]
    worst = _worst(inside, collector.all_labels(), len(names))
    warnings = grouped_warnings({name: r.warnings for name, r in results.items()})
    if stopped is not None:
        warnings.insert(0, f"{stopped}: the results are of these")
    if collector.probabilities:
        warnings.append(
            "the model's outputs are probabilities: a softmax weakens attacks, so these accuracies "
            "are only upper bounds; drop it and audit the logits"
        )
    if worst.n < max(result.n for result in inside):
        warnings.append(
            f"the worst case is that of the first {worst.n:,} images, which every attack saw; on "
            "more images the accuracy under one attack may be lower"
        )
    absent = [label for label, (_, n) in zip(names, worst.per_class, strict=True) if n == 0]
    if absent:
        some = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        warnings.append(
            f"{len(absent)} of {len(names)} classes have no image here ({some}): shuffle the "
            "images, or raise the limit"
        )
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    found = Audit(
        name or type(model).__name__,
        ball,
        seed,
        results,
        worst,
        names,
        tuple(warnings),
        collector.chosen(),
        environment(device),
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    )
    if stopped is not None:
        stopped.result = found
        raise stopped
    return found


def _names(given: Sequence[str] | None, data: Any, model: nn.Module, count: int) -> tuple[str, ...]:
    """The names of the model's classes."""
    if given is not None:
        if isinstance(given, str) or len(given) != count:
            raise InputError(
                f"classes = {given!r} must be {count} names, one per output of the model"
            )
        return tuple(map(str, given))
    of_data = data.names if isinstance(data, ImageSet) else ()
    of_model = getattr(model, "classes", ())
    for names in (of_data, of_model):
        if isinstance(names, tuple | list) and len(names) == count:
            return tuple(map(str, names))
    return tuple(map(str, range(count)))


def _worst(results: Sequence[Result], labels: list[int], classes: int) -> Result:
    """The images that survive all attacks, among those that met all of them."""
    n = min(result.n for result in results)
    rows = [(result.outcomes or [])[:n] for result in results]
    outcomes = [all(column) for column in zip(*rows, strict=True)]
    right = sum(outcomes)
    return Result(
        right / n,
        n,
        *wilson(right, n),
        sum(result.grad_evals for result in results),
        round(sum(result.seconds for result in results), 3),
        {},
        non_finite=max(result.non_finite for result in results),
        outcomes=outcomes,
        per_class=class_counts(outcomes, labels, classes),
    )
