"""What a person sees: progress on stderr, results on stdout, in any width."""

from amata.console.downloads import downloading
from amata.console.numbers import WALL_PARTS, duration, short_count, wall_line
from amata.console.progress import ConsoleReporter, reporting, watching
from amata.console.streams import PlainConsole, err, out
from amata.console.tables import (
    audit_table,
    bench_data_table,
    bench_table,
    comparison_table,
    criterion_table,
    keys_table,
    listing,
    msa_table,
    results_table,
    search_table,
    sweep_table,
    wall_table,
)

__all__ = [
    "WALL_PARTS",
    "ConsoleReporter",
    "PlainConsole",
    "audit_table",
    "bench_data_table",
    "bench_table",
    "comparison_table",
    "criterion_table",
    "downloading",
    "duration",
    "err",
    "keys_table",
    "listing",
    "msa_table",
    "out",
    "reporting",
    "results_table",
    "search_table",
    "short_count",
    "sweep_table",
    "wall_line",
    "wall_table",
    "watching",
]
