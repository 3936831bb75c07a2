"""Figures of studies: nothing hides anything, and legends stand outside the axes."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from amata.report.control import criterion_figure
from amata.report.figures import search_figure, winners


def trial(number: int, cost: float, accuracy: float, **schedule: Any) -> dict[str, Any]:
    return {
        "number": number,
        "state": "complete",
        "cost": cost,
        "accuracy": accuracy,
        "front": True,
        "schedule": {"name": "linear", **schedule},
    }


TRIALS = [
    trial(0, 3.0, 0.8, k_min=1, tau=0.5),
    trial(1, 6.0, 0.9, k_min=2, tau=0.1 + 0.2),
    trial(2, 6.0, 0.9, k_min=3, tau=0.4),
]
SEARCH = {"trials": TRIALS, "best": TRIALS[1], "budget": 6.5, "attack": "pgd-20"}


def strategy(name: str, epochs: int) -> dict[str, Any]:
    row = {"steps": 3, "best_steps": 5, "c_stderr": 0.1, "c_price": -0.08}
    rows = [{**row, "epoch": i, "c": 1.0 + (i % 2)} for i in range(epochs)]
    at = {"gamma": 0.04, "c": 1.5, "c_gain": 1.58, "c_price": -0.08}
    sweep = [at, {"gamma": 0.0, "c": 1.7, "c_gain": 1.7, "c_price": 0.0}]
    return {"strategy": name, "c": 1.5, "c_stderr": None, "epochs": rows, "sweep": sweep}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, laid out."""
    found: list[Any] = []

    def keep(figure: Any) -> bytes:
        figure.draw_without_rendering()
        found.append(figure)
        return b"<svg/>"

    monkeypatch.setattr("amata.report.figures.to_svg", keep)
    return found


def check_legend(figure: Any) -> list[str]:
    """The texts of the figure's only legend, which overlaps no axes and is not cut."""
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    for ax in figure.axes:
        assert ax.get_legend() is None
        assert not box.overlaps(ax.get_window_extent())
    return [text.get_text() for text in legend.get_texts()]


def test_every_winner_of_a_search_is_shown(tmp_path: Path, drawn: list[Any]) -> None:
    assert [t["number"] for t in winners(SEARCH)] == [1, 2]
    search_figure(SEARCH, tmp_path / "pareto")
    texts = check_legend(drawn[0])
    assert "winner: linear, k_min 2, tau 0.3" in texts
    assert "winner: linear, k_min 3, tau 0.4" in texts
    rings = [line for line in drawn[0].axes[0].lines if line.get_label() in texts[3:5]]
    assert len({ring.get_markersize() for ring in rings}) == 2


@pytest.mark.parametrize(("epochs", "smoothed"), [(10, False), (30, True)])
def test_c_is_drawn_with_errors_and_smoothed_over_long_runs(
    epochs: int, smoothed: bool, tmp_path: Path, drawn: list[Any]
) -> None:
    criterion_figure([strategy("a", epochs), strategy("b", epochs)], tmp_path / "criterion")
    texts = check_legend(drawn[0])
    assert {"K of the best control", "price term of C", "gradient term at gamma"} <= set(texts)
    terms = {line.get_label(): line for line in drawn[0].axes[4].lines}
    assert terms["price term at gamma"].get_xydata().tolist() == [[0, 0], [0.04, -0.08]]
    lines = [line.get_ydata() for line in drawn[0].axes[0].lines if line.get_linestyle() == "-"]
    (curve,) = [ys for ys in lines if len(ys) == epochs]
    middle = [abs(b - a) for a, b in pairwise(curve[2:-2])]
    assert (max(middle) < 0.5) == smoothed
