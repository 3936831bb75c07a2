"""Comparisons: what they say of runs, that they survive a kill, and that their page can be read."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from amata.cli import main
from amata.errors import InputError
from amata.evaluation import wilson
from amata.report.comparison import comparison_pictures, smooth
from amata.report.page import _headline, page
from amata.report.tables import as_csv, as_markdown, result_csv, result_table
from amata.reporter import Reporter
from amata.studies.compare import describe
from amata.studies.plan import found_runs, make_runs, plan
from tests.conftest import ENV, ROOT, Called

QUICK = [
    "train.device=cpu",
    "optim.name=sgd",
    "optim.lr=0.05",
    "train.epochs=3",
    "model.name=tests.conftest:dropout_net",
    "data.valid=40",
    "data.batch_size=200",
    "train.valid_attack=pgd-2",
    'eval.attacks=["clean", "pgd-2"]',
    "eval.limit=100",
    "train.tensorboard=false",
]
SETS = [part for text in QUICK for part in ("--set", text)]
RECIPES = ("mnist5k-pgd2", "mnist5k-amata")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that nothing disturbed."""
    out = tmp_path_factory.mktemp("compared")
    with pytest.raises(SystemExit) as exit_:
        main(["compare", *RECIPES, "--seeds", "2", *SETS, "--out", str(out)])
    assert not exit_.value.code
    return out


def without_times(value: Any) -> Any:
    """All that does not hang on how fast a machine is."""
    if isinstance(value, dict):
        return {
            k: without_times(v)
            for k, v in value.items()
            if not re.search("seconds|speedup|time_to", k)
        }
    return [without_times(v) for v in value] if isinstance(value, list) else value


def stopped(command: list[str], rows: Path, number: int) -> tuple[int, str]:
    """What a command that is sent a signal in the second epoch of a run ends with, and what it
    says."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not (rows.is_file() and rows.read_text()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    return process.wait(), process.communicate()[1]


@pytest.mark.slow
def test_a_comparison_that_was_interrupted_and_killed_goes_on_to_the_same_report(
    compared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cut"
    command = [
        sys.executable,
        "-m",
        "amata",
        "compare",
        *RECIPES,
        "--seeds",
        "2",
        *SETS,
        "--out",
        str(out),
    ]
    code, said = stopped(
        command, out / "runs" / "mnist5k-pgd2-seed0" / "metrics.jsonl", signal.SIGINT
    )
    assert code == 130
    assert (
        "error: interrupted in mnist5k-pgd2-seed0; what it did is saved, and the same command "
        "goes on from there" in said
    )
    stopped(command, out / "runs" / "mnist5k-amata-seed0" / "metrics.jsonl", signal.SIGKILL)
    assert not (out / "compare.json").exists()
    subprocess.run(command, check=True, cwd=ROOT, env=ENV, capture_output=True)
    found, expected = (
        json.loads((folder / "compare.json").read_text()) for folder in (out, compared)
    )
    assert without_times(found) == without_times(expected)
    assert (out / "report.html").is_file()


@pytest.mark.slow
def test_a_comparison_says_what_its_runs_say(compared: Path) -> None:
    result = json.loads((compared / "compare.json").read_text())
    assert result["order"] == [f"{recipe}-seed{seed}" for seed in (0, 1) for recipe in RECIPES]
    assert [row["recipe"] for row in result["rows"]] == list(RECIPES)
    for row in result["rows"]:
        summaries = [
            json.loads(
                (compared / "runs" / f"{row['recipe']}-seed{s}" / "summary.json").read_text()
            )
            for s in (0, 1)
        ]
        assert row["train_seconds"] == pytest.approx(sum(s["train_seconds"] for s in summaries) / 2)
        assert row["grad_evals"] == sum(s["grad_evals"] for s in summaries) / 2
        values = [s["evaluation"]["pgd-2"]["accuracy"] for s in summaries]
        told = row["accuracies"]["pgd-2"]
        assert told["accuracy"] == pytest.approx(sum(values) / 2)
        mean = sum(values) / 2
        over_seeds, over_images = (
            12.706 * abs(values[0] - values[1]) / 2,
            mean - wilson(round(100 * mean), 100)[0],
        )
        assert told["low"] == pytest.approx(max(0, mean - math.hypot(over_seeds, over_images)))
        assert told["n"] == 100
    first, second = result["rows"]
    assert second["speedup"] == pytest.approx(first["train_seconds"] / second["train_seconds"])
    assert first["speedup"] == 1
    assert {d["key"] for d in result["differences"]} >= {"schedule.name"}
    assert not any(d["key"].startswith(("eval.", "threat.")) for d in result["differences"])


@pytest.mark.slow
def test_the_target_is_reached_when_an_epoch_first_reaches_it(compared: Path) -> None:
    runs, _ = found_runs([compared])
    assert [run.path.name for run in runs] == json.loads((compared / "compare.json").read_text())[
        "order"
    ]
    curve = describe(runs)["curves"][0]
    values = [p["robust"] for p in curve["points"]]
    aim = sorted(values)[1]
    row = describe(runs[:1], target=aim)["rows"][0]
    at = next(p for p in curve["points"] if p["robust"] >= aim)
    assert (row["time_to_target"], row["cost_to_target"]) == (at["train_seconds"], at["grad_evals"])
    unreachable = describe(runs[:1], target=0.999)["rows"][0]
    assert unreachable["time_to_target"] is None
    assert unreachable["epochs_to_target"] == [None]
    one = describe(runs[:1])["rows"][0]["accuracies"]["clean"]
    assert (one["low"], one["high"]) == wilson(round(one["accuracy"] * 100), 100)


def test_bad_comparisons_are_refused(tmp_path: Path, amata: Any) -> None:
    with pytest.raises(InputError, match="cannot be compared"):
        plan(["mnist5k-amata", "cifar10-amata"], [], 1)
    with pytest.raises(InputError, match="both called"):
        plan(["mnist5k-amata", "mnist5k-amata"], [], 1)
    assert (
        "error: --target 45 must be an accuracy"
        in amata("report", _one_run(tmp_path), "--out", tmp_path / "r", "--target", "45").err
    )
    again = amata(
        "report",
        tmp_path / "one",
        tmp_path / "one" / "runs" / "mnist5k-pgd2-seed0",
        "--out",
        tmp_path / "r",
    )
    assert "same recipe with the same seed" in again.err
    assert (
        "neither a run folder nor a folder of runs"
        in amata("report", tmp_path, "--out", tmp_path / "r").err
    )
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "plan.json").write_text('{"order": ["mnist5k-pgd2-seed0"]}')
    assert "error: no run was made in" in amata("report", begun, "--out", tmp_path / "r").err
    for damage in ("{", "[]"):
        (begun / "plan.json").write_text(damage)
        assert (
            "plan.json is damaged; delete it" in amata("report", begun, "--out", tmp_path / "r").err
        )
    (tmp_path / "one" / "runs" / "mnist5k-pgd2-seed0" / "env.json").unlink()
    assert "has no env.json" in amata("report", tmp_path / "one", "--out", tmp_path / "r").err


def _one_run(folder: Path) -> Path:
    make_runs(
        plan(["mnist5k-pgd2"], [*QUICK, "train.epochs=1", "eval.limit=10"], 1),
        folder / "one",
        Reporter(),
    )
    return folder / "one" / "runs" / "mnist5k-pgd2-seed0"


def test_smoothing_begins_unbiased() -> None:
    assert smooth([3.0] * 40, 0.6) == pytest.approx([3.0] * 40)
    noisy = [float(i % 2) for i in range(60)]
    assert abs(smooth(noisy, 0.6)[-1] - 0.5) < 0.2
    assert smooth(noisy, 0.6)[0] == noisy[0]


def test_the_headline_says_above_below_and_equal() -> None:
    def row(recipe: str, accuracy: float) -> dict[str, Any]:
        found = {
            "accuracy": accuracy,
            "low": accuracy - 0.01,
            "high": accuracy + 0.01,
            "params": {"eps": 0.3},
        }
        return {
            "recipe": recipe,
            "accuracies": {"pgd-40": found},
            "cost_ratio": 0.6,
            "speedup": 1.5,
        }

    for accuracy, words in (
        (0.9041, "1.0 points above first"),
        (0.88, "1.4 points below first"),
        (0.8943, "as first does"),
    ):
        told = _headline(
            {"rows": [row("first", 0.894), row("second", accuracy)], "times_comparable": True}
        )
        assert f"{words} under its own (pgd-40)" in told


class Outline(HTMLParser):
    """What matters of a page: its figures' words, ids, and whatever it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[str | None] = []
        self.ids: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "svg":
            self.labels.append(found.get("aria-label") if found.get("role") == "img" else None)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.loads += [
            v or ""
            for k, v in attrs
            if k in ("src", "href", "xlink:href", "data")
            and not (v or "").startswith(("#", "data:"))
        ]


@pytest.mark.slow
def test_the_page_is_whole_and_loads_nothing(compared: Path) -> None:
    text = (compared / "report.html").read_text()
    outline = Outline()
    outline.feed(text)
    assert len(outline.labels) == 7
    assert all(label and len(label) > 20 for label in outline.labels)
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.loads == []
    assert not re.findall(r"url\((?!#)|@import", text)
    for reference in re.findall(r'(?:url\(#|href="#)([^")]+)', text):
        assert reference in outline.ids
    for name in (
        "results.csv",
        "results.md",
        "differences.csv",
        "figures/robust-time.svg",
        "figures/robust-time.png",
    ):
        assert (compared / name).is_file()


@pytest.mark.slow
def test_tables_are_the_same_in_every_form(compared: Path) -> None:
    result = json.loads((compared / "compare.json").read_text())
    table = result_table(result)
    assert as_csv(table).count("\n") == as_markdown(table).count("\n") - 1 == 3
    assert len(result_csv(result).splitlines()) == 1 + 2 * 2
    assert f"{100 * result['rows'][1]['accuracies']['pgd-2']['accuracy']:.1f}" in as_markdown(table)


@pytest.mark.slow
def test_what_recipes_say_cannot_break_the_page(compared: Path, tmp_path: Path) -> None:
    result = json.loads((compared / "compare.json").read_text())
    result["rows"][0]["recipe"] = '<script>alert("x")</script>'
    result["warnings"] = ["a < b & c"]
    for curve in result["curves"][::2]:
        curve["recipe"] = result["rows"][0]["recipe"]
        events = [{"event": "collapse", "extra_steps": 1}, {"event": "fall", "lr_scale": 0.25}]
        curve["events"] = [
            {**event, "action": "rollback", "epoch": 1, "before": 0.5, "after": 0.1}
            for event in events
        ]
    result["differences"] = []
    text = page(result, comparison_pictures(result, tmp_path), result["rows"][0]["recipe"])
    assert "<script" not in text
    assert "a &lt; b &amp; c" in text
    assert "epoch 2: collapse, rollback (50.0% to 10.0%), on with 1 more inner step<" in text
    assert "epoch 2: fall, rollback (50.0% to 10.0%), on with 0.25 of the learning rate<" in text


CHROMIUM = (
    shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
)
LOOK = """<script>
const figures = [...document.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect());
const root = document.documentElement;
parent.document.title = JSON.stringify({over: root.scrollWidth - root.clientWidth,
  width: root.clientWidth, figures: figures.length,
  seen: figures.every(b => b.width > 200 && b.height > 100 && b.right <= root.clientWidth),
  cut: [...document.querySelectorAll(".wide")].filter(e => e.scrollWidth > e.clientWidth).length,
  main: document.querySelector("main").innerText.length});
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [400, 900, 1600])
def test_a_browser_shows_all_of_it(width: int, compared: Path, tmp_path: Path) -> None:
    inner = (compared / "report.html").read_text().replace("</body>", f"{LOOK}</body>")
    # a frame, because a browser's window is never as narrow as a phone
    outer = tmp_path / "page.html"
    outer.write_text(
        f'<iframe width="{width}" height="2000" style="border: 0" '
        f'srcdoc="{escape(inner)}"></iframe>'
    )
    options = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync "
        f"--enable-logging=stderr --hide-scrollbars --user-data-dir={tmp_path / 'profile'} "
        "--window-size=1700,2100 --dump-dom"
    )
    ran = subprocess.run(
        [str(CHROMIUM), *options.split(), f"file://{outer}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    title = re.search(r"<title>(.*?)</title>", ran.stdout, re.S)
    assert title, ran.stderr[-2000:]
    found = json.loads(title[1])
    assert found["width"] == width
    assert found["over"] == 0
    assert found["cut"] == 0
    assert found["figures"] == 7
    assert found["seen"]
    assert found["main"] > 500
    assert "CONSOLE" not in ran.stderr


@pytest.mark.slow
def test_a_report_needs_no_weights(
    compared: Path, tmp_path: Path, amata: Callable[..., Called]
) -> None:
    """Kept results are the small files alone; a comparison is told from them, and goes on from
    them."""
    kept = tmp_path / "kept"
    for run in (compared / "runs").iterdir():
        (kept / "runs" / run.name).mkdir(parents=True)
        for name in ("recipe.toml", "env.json", "metrics.jsonl", "summary.json"):
            shutil.copy(run / name, kept / "runs" / run.name / name)
    shutil.copy(compared / "plan.json", kept)
    env = next((kept / "runs").glob("*/env.json"))
    env.write_text(json.dumps({**json.loads(env.read_text()), "commit": "another"}))
    assert amata("report", str(kept), "--out", str(tmp_path / "again")).code == 0
    first, again = (
        json.loads((folder / "compare.json").read_text())
        for folder in (compared, tmp_path / "again")
    )
    assert again["rows"] == first["rows"]
    assert any("different commits" in w for w in again["warnings"])
    assert re.search("another; |; another", (tmp_path / "again" / "environment.md").read_text())
    assert amata("report", str(kept / "runs"), "--out", str(tmp_path / "flat")).code == 0
    flat = json.loads((tmp_path / "flat" / "compare.json").read_text())
    assert sorted(row["recipe"] for row in flat["rows"]) == sorted(
        row["recipe"] for row in first["rows"]
    )
    one = next((kept / "runs").iterdir())
    assert (
        "is a run folder, which nothing else is written into"
        in amata("report", str(kept), "--out", str(one)).err
    )
    fewer = amata("compare", RECIPES[0], "--seeds", "2", *SETS, "--out", str(kept))
    assert "note: mnist5k-amata-seed0, mnist5k-amata-seed1 of an earlier plan stay in" in fewer.err
    failed = amata("eval", str(one))
    assert (failed.code, "its weights were not kept" in failed.err) == (2, True)


@pytest.mark.slow
def test_an_interval_that_is_cut_off_shows_both_ends(compared: Path) -> None:
    from amata.console import comparison_table

    result = json.loads((compared / "compare.json").read_text())
    result["rows"][0]["accuracies"]["clean"] |= {"accuracy": 0.39, "low": 0.0, "high": 1.0}
    result["rows"][1]["accuracies"]["clean"] |= {"accuracy": 0.459, "low": 0.447, "high": 0.471}
    (cells,) = [
        list(column.cells)
        for column in comparison_table(result).columns
        if column.header == "clean"
    ]
    assert cells == ["39.0 (0 to 100)", "45.9 ±1.2"]
