"""Numbers as a person reads them, and lines that fit a width."""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len


def duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


WALL_PARTS = {
    "start": "start",
    "data": "data",
    "compile": "compile",
    "train": "training",
    "valid": "validation",
    "evaluate": "evaluation",
    "save": "saving",
}
"""The keys of `wall_seconds` in summary.json, in words."""


def wall_line(seconds: Mapping[str, float]) -> str:
    """What the time of a run was spent on.

    >>> wall_line({"start": 3.7, "data": 0.4, "train": 26.2, "total": 30.3})
    '30 s: start 4, data 0, training 26'
    >>> wall_line({"start": 1.26, "train": 2.01, "total": 3.27})
    '3.3 s: start 1.3, training 2.0'
    """
    digits = 0 if seconds["total"] >= 20 else 1
    parts = [f"{word} {seconds[k]:.{digits}f}" for k, word in WALL_PARTS.items() if k in seconds]
    return f"{seconds['total']:.{digits}f} s: {', '.join(parts)}"


def loss_text(loss: float) -> str:
    """A loss in at least six characters.

    >>> loss_text(0.12345), loss_text(21.5), loss_text(6.43e18)
    (' 0.123', '21.500', '6.43e+18')
    """
    return f"{loss:6.3f}" if abs(loss) < 10_000 else f"{loss:.2e}"


def short_count(n: float) -> str:
    """A count in at most six characters.

    >>> [short_count(n) for n in (0, 9_999, 41_800, 250_800, 1_281_167, 3.2e12)]
    ['0', '9,999', '41.8k', '250.8k', '1.281M', '3.2T']
    """
    if n < 10_000:
        return f"{n:,.0f}"
    for unit in "kMGT":
        n /= 1000
        if n < 999.95 or unit == "T":
            break
    return f"{n:.4g}{unit}"


def fit(parts: Sequence[tuple[int, str]], width: int) -> str:
    """The texts on one line. Those of the highest ranks are left out until the line fits.

    >>> fit([(0, "epoch 3"), (2, "alpha 0.1"), (1, "loss 2.30")], 20)
    'epoch 3  loss 2.30'
    """
    kept = [part for part in parts if part[1]]
    while len(kept) > 1 and cell_len("  ".join(text for _, text in kept)) > width:
        kept.remove(max(kept, key=lambda part: part[0]))
    return "  ".join(text for _, text in kept)
