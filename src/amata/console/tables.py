"""Tables of results. Each fits 60 columns and more."""

from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len

from amata.console.grid import Cell, Column, Grid, flow
from amata.console.numbers import WALL_PARTS, short_count
from amata.console.streams import out
from amata.errors import printable
from amata.formatting import describe_ball, describe_parts, short_number

TESTED = (
    Column("attack"),
    Column("accuracy"),
    Column("95% interval"),
    Column("images", 1),
    Column("gradients", 2),
)


def results_table(results: dict[str, dict[str, Any]]) -> Grid:
    """Accuracy with n, interval, cost and parameters, one row per attack."""
    table = Grid(*TESTED, Column("parameters", 3, text=True))
    for name, r in results.items():
        table.add_row(*_tested(name, r), _describe(r["params"], r.get("parts", {})))
    return table


def audit_table(results: dict[str, dict[str, Any]]) -> Grid:
    """Accuracy with n, interval, cost and time, one row per attack and one for the worst case."""
    table = Grid(*TESTED, Column("seconds", 3))
    for name, r in results.items():
        table.add_row(*_tested(name, r), f"{r['seconds']:,.1f}")
    return table


def _tested(name: str, r: dict[str, Any]) -> tuple[Cell, ...]:
    """The cells of TESTED."""
    interval = f"{100 * r['low']:.1f} to {100 * r['high']:.1f}%"
    bad = r.get("non_finite")  # results of older runs have no such count
    count = f"{r['n']:,}" + (f" ({bad:,} not finite)" if bad else "")
    gradients = f"{r['grad_evals']:,}", short_count(r["grad_evals"])
    return name, f"{r['accuracy']:.1%}", interval, count, gradients


def _describe(params: dict[str, Any], after: dict[str, float]) -> str:
    """An attack's main parameters, and the accuracy after each of its parts; the JSON has all."""
    steps, norm = params.get("steps", "?"), str(params.get("norm", "?"))  # a file may lack them
    parts = [describe_ball(norm, params["eps"])] if "eps" in params else []
    if "step_size" in params:
        parts.append(f"{steps} x {short_number(params['step_size'])}")
    if params.get("restarts", 1) > 1:
        parts.append(f"{params['restarts']} starts")
    if "c" in params:
        parts.append(f"L2, c {params['c']:g}, {steps} steps")
    if "version" in params:
        parts.append(params["version"])
    if after:
        parts.append(describe_parts(after))
    return ", ".join(parts)


def criterion_table(rows: list[dict[str, Any]]) -> Grid:
    """The paper's Table 1 with standard errors, cost, FOSC and the feasible gap."""
    table = Grid(
        Column("strategy"),
        Column("C"),
        Column("gradient term"),
        Column("price term"),
        Column("FOSC", 1),
        Column("feasible gap", 1),
        Column("robust"),
        Column("seconds", 2),
        Column("gradients", 3),
    )
    for r in rows:
        error = f" ± {r['c_stderr']:.3f}" if r["c_stderr"] is not None else ""
        robust = (
            f"{r['robust_accuracy']:.1%} ({r['robust_attack']})"
            if r["robust_accuracy"] is not None
            else "-"
        )
        table.add_row(
            r["strategy"],
            f"{r['c']:.3f}{error}",
            f"{r['c_gain']:.3f}",
            f"{r['c_price']:.3f}",
            f"{r['fosc']:.3f}",
            f"{r['feasible_gap']:.3f}",
            robust,
            f"{r['train_seconds']:.1f}",
            (f"{r['grad_evals']:,}", short_count(r["grad_evals"])),
        )
    return table


def sweep_table(rows: list[dict[str, Any]]) -> Grid:
    """C at every gamma, with its price term."""
    gammas = sorted(at["gamma"] for at in rows[0]["sweep"])
    table = Grid(Column("C (price term)"), *(Column(f"gamma {gamma:g}") for gamma in gammas))
    for r in rows:
        found = {at["gamma"]: f"{at['c']:.3f} ({at['c_price']:.3f})" for at in r["sweep"]}
        table.add_row(r["strategy"], *(found[gamma] for gamma in gammas))
    return table


def search_table(result: dict[str, Any]) -> Grid:
    """The Pareto front of a search, sorted by cost; the winner has a star."""
    table = Grid(
        Column(""),
        Column("cost"),
        Column(f"held-out {result['attack']}"),
        Column("schedule", 1, text=True),
    )
    for t in sorted((t for t in result["trials"] if t["front"]), key=lambda t: t["cost"]):
        schedule = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
            for k, v in t["schedule"].items()
            if k != "name"
        )
        mark = "*" if t["number"] == result["best"]["number"] else ""
        table.add_row(
            mark, f"{t['cost']:.2f}", f"{t['accuracy']:.1%}", f"{t['schedule']['name']} {schedule}"
        )
    return table


def msa_table(result: dict[str, Any]) -> Grid:
    """The runs of successive approximations, in order; the best has a star."""
    attack = result["best"]["robust_attack"]
    table = Grid(
        Column(""),
        Column("cost"),
        Column("held-out loss"),
        Column(f"held-out {result['attack']}", 1),
        *([Column(f"test {attack}", 1)] if attack else []),
        Column("K of the epochs", 1, text=True),
    )
    for number, r in enumerate(result["runs"]):
        star = "*" if r["key"] == result["best"]["key"] else ""
        failed = r["held_out_loss"] is None
        table.add_row(
            f"{number}{star}",
            f"{r['cost']:.2f}",
            "failed" if failed else f"{r['held_out_loss']:.4f}",
            "-" if failed else f"{r['held_out_accuracy']:.1%}",
            *(["-" if failed else f"{r['test'][attack]:.1%}"] if attack else []),
            " ".join(map(str, r["steps"])),
        )
    return table


def bench_table(result: dict[str, Any]) -> Grid:
    """One row per recipe, batch size, K and variant."""
    table = Grid(
        Column("recipe"),
        Column("batch"),
        Column("K"),
        Column("variant", text=True),
        Column("s/epoch"),
        Column("images/s", 2),
        Column("TFLOP/s", 3),
        Column("ceiling", 3),
        Column("ratio", 1),
        Column("compile s", 4),
        Column("peak MiB", 4),
    )
    for r in result["rows"]:
        # known on a GPU only
        memory = f"{r['peak_memory_bytes'] / 2**20:,.0f}" if r["peak_memory_bytes"] else "-"
        table.add_row(
            r["recipe"],
            str(r["batch"]),
            str(r["steps"]),
            r["variant"],
            f"{r['seconds_per_epoch']:.2f}",
            (f"{r['images_per_second']:,.0f}", short_count(r["images_per_second"])),
            f"{r['tflops']:.1f}" if r["tflops"] >= 1 else f"{r['tflops']:.2g}",
            f"{r['ceiling_share']:.1%}",
            f"{r['ratio_to_reference']:.2f}" if r["ratio_to_reference"] else "-",
            f"{r['compile_seconds']:.1f}",
            memory,
        )
    return table


def wall_table(result: dict[str, Any]) -> Grid:
    """One row per part of a run, one column per run."""
    rows = result["rows"]
    several = len({r["recipe"] for r in rows}) > 1
    titles = [f"{r['recipe']} {r['caches']}" if several else r["caches"] for r in rows]
    table = Grid(Column("seconds"), *(Column(title) for title in titles))
    for part, word in WALL_PARTS.items():
        table.add_row(word, *(f"{r['wall_seconds'][part]:.1f}" for r in rows))
    table.add_row("exit", *(f"{r['exit_seconds']:.1f}" for r in rows))
    table.add_row("whole command", *(f"{r['command_seconds']:.1f}" for r in rows))
    return table


def bench_data_table(result: dict[str, Any]) -> Grid:
    """One row per transform, number of workers and pipeline."""
    table = Grid(
        Column("transform", text=True),
        Column("workers"),
        Column("pipeline", text=True),
        Column("images/s"),
        Column("per core"),
        Column("ratio"),
    )
    for r in result["rows"]:
        table.add_row(
            r["transform"],
            str(r["workers"]),
            r["pipeline"],
            f"{r['images_per_second']:,.0f}",
            f"{r['images_per_second_per_core']:,.0f}",
            f"{r['ratio']:.2f}",
        )
    return table


def comparison_table(result: dict[str, Any]) -> Grid:
    """One row per recipe; the first is the baseline."""
    attacks = result["attacks"]
    goal = f"s to {100 * result['target']:.4g}%" if result["target"] else "s to target"
    table = Grid(
        Column("recipe"),
        *(Column(attack) for attack in attacks),
        Column("seconds", 2),
        Column("gradients", 4),
        Column(goal, 3),
        Column("speed-up", 1),
    )
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
            (f"{row['grad_evals']:,.0f}", short_count(row["grad_evals"])),
            reached,
            faster,
        )
    captions = []
    if attacks:
        images = " or ".join(f"{n:,}" for n in result["images"])
        sizes = [f"{images} test images"] if images else []
        if any(
            a["split"] == "held-out" for row in result["rows"] for a in row["accuracies"].values()
        ):
            sizes.append(f"{result['valid_n']:,} held-out images")
        captions.append(f"accuracy in % ± half the 95% interval; {', '.join(sizes)}")
    if not result["times_comparable"]:
        captions.append("seconds are not comparable")
    table.caption = "; ".join(captions)
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


def keys_table(keys: Iterable[tuple[str, str, str, str]]) -> Grid:
    """The keys of a recipe's table: name, default, values and meaning."""
    columns = Column("key"), Column("default", text=True), Column("values", 1, text=True)
    table = Grid(*columns, Column("meaning", 2, text=True), titles=False)
    for key in keys:
        table.add_row(*key)
    return table


def listing(rows: Iterable[tuple[str, str]]) -> None:
    """Print names with a text about each: wrapped on a terminal, one line each in a pipe."""
    every = list(rows)
    names = max((cell_len(name) for name, _ in every), default=0)
    for name, about in every:
        room = out.width - names - 2 if out.windowed else 10_000
        first, *more = flow([printable(about)], room) or [""]
        out.print(f"{name:{names}}  {first}".rstrip(), soft_wrap=True)
        for line in more:
            out.print(f"{'':{names}}  {line}", soft_wrap=True)
