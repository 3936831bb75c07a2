"""Terminal output: a progress bar on a terminal, one line per epoch in a log, and result tables."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from amata.errors import printable
from amata.metrics import EpochRow
from amata.reporter import BatchInfo, Reporter


class PlainConsole(Console):
    """Prints texts literally: names of files may look like markup or hold terminal codes."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Called for every text, in a table too."""
        return super().render_str(printable(text), **options)


out = PlainConsole()
err = PlainConsole(stderr=True)
for console in (out, err):
    if not console.is_terminal:
        console.width = 160  # a log has no window: do not fold tables


def duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


DATA_WAIT = 0.05
"""The fraction of training time spent waiting for data above which we report it."""


class ConsoleReporter(Reporter):
    """Progress on stderr; stdout is for results. A terminal also gets a progress bar."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            console=err,
            transient=True,
        )
        self.task = self.progress.add_task("starting", total=1.0, left="")
        self.drawn = 0.0
        self.logged = time.monotonic()

    def __enter__(self) -> "ConsoleReporter":
        if err.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if err.is_terminal:
            self.progress.stop()

    def batch(self, info: BatchInfo) -> None:
        now = time.monotonic()
        # reading the loss waits for the device, so do it rarely
        if err.is_terminal and now - self.drawn > 0.2:
            loss = f"{info.loss.item():.3f}" if info.loss is not None else "-"
            text = (
                f"epoch {info.epoch + 1}/{info.epochs}  batch {info.batch}/{info.batches}  "
                f"K {info.steps}  alpha {info.step_size:.4g}  loss {loss}"
            )
            left = f"{duration(info.seconds_left)} left" if info.seconds_left is not None else ""
            self.progress.update(
                self.task, description=text, completed=info.share, total=1.0, left=left
            )
            self.drawn = now
        # in a log, a long epoch gets one line a minute
        elif not err.is_terminal and now - self.logged > 60:
            left = f", {duration(info.seconds_left)} left" if info.seconds_left is not None else ""
            err.print(
                f"epoch {info.epoch + 1}/{info.epochs}, batch {info.batch}/{info.batches}, "
                f"{info.share:.0%} done{left}",
                soft_wrap=True,
            )
            self.logged = now

    def epoch(self, row: EpochRow) -> None:
        valid = "  ".join(
            f"{name} {accuracy:6.1%}" for name, accuracy in row.get("valid", {}).items()
        )
        waiting = (
            row.get("data_seconds", 0.0) / row["train_seconds"] if row["train_seconds"] else 0.0
        )
        waited = f"  {waiting:.0%} waiting for data" if waiting > DATA_WAIT else ""
        err.print(
            f"epoch {row['epoch'] + 1:3d}  K {row['steps']:2d}  alpha {row['step_size']:<8.4g} "
            f"loss {row['loss']:7.4f}  "
            f"{row['train_seconds']:8.1f} s  {row['grad_evals']:>12,} grads  "
            f"{valid and 'held-out ' + valid}{waited}".rstrip(),
            soft_wrap=True,
        )
        self.logged = time.monotonic()

    def evaluating(
        self,
        attack: str,
        done: int,
        total: int,
        part: str = "",
        seconds_left: float | None = None,
    ) -> None:
        if err.is_terminal:
            share = done / total if total else 0.0
            self.progress.update(
                self.task,
                description=f"evaluating {attack}  {done}/{total} images",
                completed=share,
                total=1.0,
                left="",
            )

    def note(self, text: str) -> None:
        err.print(f"note: {text}", soft_wrap=True)


def _add_column(table: Table, title: str, *, named: bool = False) -> None:
    """A column of numbers, or of names, whose length is limited."""
    table.add_column(
        title,
        justify="left" if named else "right",
        no_wrap=True,
        overflow="ellipsis",
        max_width=32 if named else None,
    )


def results_table(results: dict[str, dict[str, Any]]) -> Table:
    """Accuracy with n, interval, cost and parameters, one row per attack."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, justify in (
        ("attack", "left"),
        ("accuracy", "right"),
        ("95% interval", "right"),
        ("n", "right"),
        ("gradients", "right"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("parameters", overflow="fold")
    for name, r in results.items():
        params = _describe(r["params"])
        interval = f"{100 * r['low']:.1f} .. {100 * r['high']:.1f}%"
        bad = r.get("non_finite")  # results of older runs have no such count
        count = f"{r['n']:,}" + (f" ({bad:,} not finite)" if bad else "")
        table.add_row(name, f"{r['accuracy']:.1%}", interval, count, f"{r['grad_evals']:,}", params)
    return table


def _describe(params: dict[str, Any]) -> str:
    """An attack's main parameters; the JSON has all of them."""
    steps = params.get("steps", "?")  # a file may lack it
    parts = [f"{params.get('norm', '?')} {params['eps']:.4g}"] if "eps" in params else []
    if "step_size" in params:
        parts.append(f"{steps} x {params['step_size']:.3g}")
    if params.get("restarts", 1) > 1:
        parts.append(f"{params['restarts']} starts")
    if "c" in params:
        parts.append(f"l2, c {params['c']:g}, {steps} steps")
    if "version" in params:
        parts.append(params["version"])
    return ", ".join(parts)


def criterion_table(rows: list[dict[str, Any]]) -> Table:
    """The paper's Table 1 with standard errors, cost and FOSC."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    _add_column(table, "strategy", named=True)
    for column in ("C", "FOSC", "robust", "seconds", "gradients"):
        _add_column(table, column)
    for r in rows:
        error = f" ± {r['c_stderr']:.3f}" if r["c_stderr"] is not None else ""
        robust = (
            f"{r['robust_accuracy']:.1%} ({r['robust_attack']})"
            if r["robust_accuracy"] is not None
            else "-"
        )
        numbers = (f"{r['c']:.3f}{error}", f"{r['fosc']:.3f}", robust)
        table.add_row(r["strategy"], *numbers, f"{r['train_seconds']:.1f}", f"{r['grad_evals']:,}")
    return table


def search_table(result: dict[str, Any]) -> Table:
    """The Pareto front of a search, sorted by cost; the winner has a star."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, justify in (
        ("", "left"),
        ("schedule", "left"),
        ("cost", "right"),
        (f"held-out {result['attack']}", "right"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for t in sorted((t for t in result["trials"] if t["front"]), key=lambda t: t["cost"]):
        schedule = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
            for k, v in t["schedule"].items()
            if k != "name"
        )
        mark = "*" if t["number"] == result["best"]["number"] else ""
        table.add_row(
            mark, f"{t['schedule']['name']} {schedule}", f"{t['cost']:.2f}", f"{t['accuracy']:.1%}"
        )
    return table


def bench_table(result: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in (
        "recipe",
        "batch",
        "K",
        "variant",
        "s/epoch",
        "images/s",
        "TFLOP/s",
        "ceiling",
        "ratio",
        "compile s",
        "peak MiB",
    ):
        _add_column(table, column, named=column in ("recipe", "variant"))
    for r in result["rows"]:
        ratio = f"{r['ratio_to_reference']:.2f}" if r["ratio_to_reference"] else "-"
        speed = (
            f"{r['seconds_per_epoch']:.2f}",
            f"{r['images_per_second']:,.0f}",
            f"{r['tflops']:.1f}" if r["tflops"] >= 1 else f"{r['tflops']:.2g}",
            f"{r['ceiling_share']:.1%}",
            ratio,
        )
        # known on a GPU only
        memory = f"{r['peak_memory_bytes'] / 2**20:,.0f}" if r["peak_memory_bytes"] else "-"
        rest = (f"{r['compile_seconds']:.1f}", memory)
        table.add_row(r["recipe"], str(r["batch"]), str(r["steps"]), r["variant"], *speed, *rest)
    return table


def comparison_table(result: dict[str, Any]) -> Table:
    """One row per recipe; the first is the baseline."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    attacks = result["attacks"]
    goal = f"s to {100 * result['target']:.4g}%" if result["target"] else "s to target"
    for column in ("recipe", *attacks, "seconds", "gradients", goal, "speed-up"):
        _add_column(table, column, named=column == "recipe")
    for row in result["rows"]:
        cells = []
        for attack in attacks:
            a = row["accuracies"].get(attack)
            cells.append(_with_interval(a) if a else "-")
        reached = f"{row['time_to_target']:.1f}" if row["time_to_target"] else "-"
        faster = f"{row['speedup']:.2f}x" if row["speedup"] else "-"
        table.add_row(
            row["recipe"],
            *cells,
            f"{row['train_seconds']:.1f}",
            f"{row['grad_evals']:,.0f}",
            reached,
            faster,
        )
    if attacks:
        images = " or ".join(f"{n:,}" for n in result["images"])
        sizes = [f"{images} test images"] if images else []
        if any(
            a["split"] == "held-out" for row in result["rows"] for a in row["accuracies"].values()
        ):
            sizes.append(f"{result['valid_n']:,} held-out images")
        table.caption = f"accuracy in % ± half the 95% interval; {', '.join(sizes)}"
    return table


def _with_interval(a: dict[str, Any]) -> str:
    """An accuracy with the half-width of its interval, or both ends if 0 or 1 clips a wide one."""
    clipped = (a["low"] == 0 or a["high"] == 1) and a["high"] - a["low"] > 0.1
    interval = (
        f"({100 * a['low']:.0f} to {100 * a['high']:.0f})"
        if clipped
        else f"±{50 * (a['high'] - a['low']):.1f}"
    )
    return f"{100 * a['accuracy']:.1f} {interval}"
