"""Studies: they can be planned, resumed and read back."""

import json
from pathlib import Path

import pytest

import annealing
import finetune
import measure
import paper
import stored
import study
from amata import recipes
from amata.schedules import planned_controls
from amata.studies.plan import plan, run_name

RECORDS = Path(__file__).parents[1] / "records"


@pytest.mark.parametrize("name", study.STUDIES)
def test_a_study_can_be_planned_and_measures_its_own_runs(name: str, tmp_path: Path) -> None:
    own = study.STUDIES[name]
    for title, (base, sets) in own.recipes.items():
        recipe = recipes.load(base, [*sets, f"eval.attacks={list(own.attacks)}"])
        (tmp_path / f"{title}.toml").write_text(recipe.to_toml())
    notes: list[str] = []
    paths = [str(tmp_path / f"{title}.toml") for title in own.recipes]
    planned = plan(paths, [], own.seeds, notes.append)
    assert notes == []  # the recipes are tested alike without overrides
    assert all(recipe.eval.attacks == list(own.attacks) for recipe in planned)
    wanted = {a for _, command in own.after for a in command if a.startswith("runs/")}
    assert wanted <= {f"runs/{run_name(recipe)}" for recipe in planned}


def test_arms_at_equal_cost_differ_in_k_alone() -> None:
    arms = study.STUDIES["cifar10-equal-cost"].recipes
    loaded = {title: recipes.load(base, list(sets)) for title, (base, sets) in arms.items()}
    tables = [{k: v for k, v in r.tables.items() if k != "schedule"} for r in loaded.values()]
    assert all(table == tables[0] for table in tables)
    steps = {}
    for title, recipe in loaded.items():
        controls = planned_controls(recipe.schedule, 30) or []
        assert all(u.steps * u.step_size == pytest.approx(20 / 255) for u in controls)
        steps[title] = [u.steps for u in controls]
    rising = steps["linear-1-5"]
    assert steps["falling-5-1"] == rising[::-1]
    assert sorted(steps["shuffled-1-5"]) == rising != steps["shuffled-1-5"]


def test_runs_whose_weights_are_still_needed_are_trained_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "amata", lambda *command, capture=False: "{}")
    small = study.Study(
        {"pgd": ("mnist5k-pgd", ())}, ("clean",), after=study.autoattack("pgd-seed0")
    )
    monkeypatch.setitem(study.STUDIES, "small", small)
    kept, run = tmp_path / "kept", "runs/pgd-seed0/summary.json"
    (kept / run).parent.mkdir(parents=True)
    (kept / run).write_text("{}")
    measure.measure("small", tmp_path / "first", kept)
    assert not (tmp_path / "first" / "small" / run).exists()
    assert (kept / "autoattack-pgd-seed0.json").is_file()
    measure.measure("small", tmp_path / "second", kept)  # nothing needs the weights any more
    assert (tmp_path / "second" / "small" / run).is_file()


EPOCH = dict.fromkeys(("step_size", "loss", "train_seconds", "grad_evals_per_image", "lr"), 0.1)
EVENT = {"action": "stop", "before": 0.5, "after": 0.1}
RESULT = {"n": 10, "low": 0, "high": 1, "grad_evals": 0, "seconds": 1, "params": {}, "warnings": []}


def write_run(folder: Path, rows: list[dict[str, object]], **summary: object) -> None:
    """The small files of a run, with what the test does not need filled in."""
    folder.mkdir(parents=True)
    epochs = iter(range(len(rows)))
    whole = [
        {**EVENT, **row}
        if "event" in row
        else {**EPOCH, "epoch": next(epochs), "steps": 1, "grad_evals": 1, **row}
        for row in rows
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in whole))
    basic = {"recipe": "r", "epochs": next(epochs, len(rows)), "train_seconds": 1, "grad_evals": 1}
    more: dict[str, object] = {"grad_evals_per_image": 1, "best_epoch": None, "evaluation": {}}
    (folder / "summary.json").write_text(json.dumps({**basic, **more, **summary}))


def test_a_threshold_that_one_of_two_never_reaches_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    small = study.Study({"slow": ("mnist5k-pgd", ()), "fast": ("mnist5k-amata", ())}, ("clean",))
    monkeypatch.setitem(study.STUDIES, "small", small)
    monkeypatch.setitem(paper.RACES, "small", {"slow": "slow", "fast": "fast"})
    for title, curve in {"slow": [0.5, 0.8, 0.9], "fast": [0.8, 0.7, 0.6]}.items():
        seconds = 2 if title == "slow" else 1
        rows = [
            {"train_seconds": seconds * (i + 1), "valid": {"clean": 1.0, "pgd-20": robust}}
            for i, robust in enumerate(curve)
        ]
        write_run(tmp_path / f"small/runs/{title}-seed0", rows, train_seconds=3 * seconds)
    table = paper.race("small", (0.8, 0.9, 0.95))()
    assert "| 80% | 4.0 s | 1.0 s | 4.00 |" in table
    assert "| 90% | 6.0 s | not reached |  |" in table
    assert "95%" not in table
    assert "| 6.0 s, 90.0% | 3.0 s, 80.0% | 2.00 |" in table


@pytest.mark.parametrize("event", ["fall", "chance-collapse"])
def test_collapses_are_counted_under_their_old_and_new_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, event: str
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    others: list[dict[str, object]] = [
        {"event": name, "epoch": 1} for name in ("collapse", "catastrophic-overfitting")
    ]
    write_run(tmp_path / "s/runs/a-seed0", [{}, {"event": event, "epoch": 1}, *others])
    assert len(stored.chance_collapses("s", "a")) == 1
    assert [[row["epoch"] for row in rows] for rows in stored.epochs("s", "a")] == [[0]]


@pytest.mark.parametrize(
    ("name", "record"), [("cifar10-amata-quick", "pgd20"), ("cifar10-amata-minute", "autoattack")]
)
def test_recipes_that_hold_a_record_are_built_in(name: str, record: str) -> None:
    own, entry = recipes.load(name).tables, recipes.load(str(RECORDS / f"{record}.toml")).tables
    differing = {
        (table, key)
        for table in entry
        for key in {**own[table], **entry[table]}
        if own[table].get(key) != entry[table].get(key)
    }
    # none of these changes the weights; CIFAR-10 is not resized
    assert differing == {
        ("data", "resize"),
        ("data", "crop"),
        ("eval", "precision"),
        ("optim", "peak"),
        ("train", "guard"),
        ("train", "tensorboard"),
        ("eval", "cw_c"),
    }


def test_differences_are_paired_by_seed_with_students_t(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    accuracies = {"k3": {0: 0.40, 1: 0.50, 2: 0.45, 3: 0.9}, "k2": {2: 0.44, 1: 0.47, 0: 0.38}}
    for title, seeds in accuracies.items():
        for seed, accuracy in seeds.items():
            folder = tmp_path / annealing.STUDY / "runs" / f"{title}-seed{seed}"
            write_run(folder, [{}], evaluation={"pgd-20": {**RESULT, "accuracy": accuracy}})
    values = annealing.paired(annealing.STUDY, "k3", "k2", "pgd-20")
    assert values == pytest.approx([2, 3, 1])
    assert annealing.interval(values) == pytest.approx((2, 2.484), abs=1e-3)


def test_the_line_between_two_constants_is_taken_at_equal_gradient_evaluations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    found = {
        "k1": (2.0, [0.40, 0.44]),
        "k2": (3.0, [0.48, 0.48]),
        "linear-1-2": (2.25, [0.43, 0.45]),
    }
    for title, (cost, accuracies) in found.items():
        for seed, accuracy in enumerate(accuracies):
            folder = tmp_path / annealing.QUICK / "runs" / f"{title}-seed{seed}"
            evaluation = {"pgd-20": {**RESULT, "accuracy": accuracy}}
            write_run(folder, [{}], evaluation=evaluation, grad_evals_per_image=cost)
    # a quarter of the way: 42 and 45%
    values = annealing.above_line("linear-1-2", "k1", "k2", "pgd-20")
    assert values == pytest.approx([1.0, 0.0])


def test_the_logistic_example_is_what_the_page_shows() -> None:
    from logistic import Logistic

    file = measure.RESULTS.parent / "control" / "logistic" / "logistic.json"
    stored_result, result = json.loads(file.read_text()), Logistic().report()
    assert result["k_msa"] == stored_result["k_msa"]
    assert result["objectives"] == pytest.approx(stored_result["objectives"], rel=1e-6)


def test_arms_of_the_fine_tuning_study_differ_as_stated() -> None:
    tables = {
        title: recipes.load("folder-finetune", [*finetune.ARM, *sets]).tables
        for title, (_, sets) in finetune.ARMS.items()
    }
    different = {
        title: {
            f"{section}.{key}"
            for section, table in found.items()
            for key, value in table.items()
            if value != tables["finetune"][section][key]
        }
        for title, found in tables.items()
    }
    assert different == {
        "finetune": set(),
        "no-warmup": {"train.eps_warmup"},
        "scratch": {"model.new_head", "train.eps_warmup"},
        "scratch-long": {"model.new_head", "train.eps_warmup", "train.epochs"},
    }
    pretraining = recipes.load("cifar10-amata-quick", finetune.PRETRAINING).tables
    for key in ("name", "mean", "std", "args"):
        assert pretraining["model"][key] == tables["finetune"]["model"][key]
    assert pretraining["threat"] == tables["finetune"]["threat"]


def test_the_fine_tuning_table_is_read_from_stored_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(finetune, "RESULTS", tmp_path)
    assert finetune.table().startswith("Not measured yet")
    (tmp_path / "tuning.json").write_text('{"lr": {"finetune": 0.01, "scratch": 0.1}}')
    for number, title in enumerate(finetune.ARMS):
        for seed in range(3):
            run = tmp_path / "runs" / f"{title}-seed{seed}"
            run.mkdir(parents=True)
            share = 0.5 - 0.125 * number
            accuracy = {"accuracy": share, "n": 8, "low": 0.0, "high": 1.0, "grad_evals": 0}
            accuracy |= {"seconds": 0.0, "params": {}, "warnings": []}  # type: ignore[dict-item]
            about = {
                "recipe": "folder-finetune",
                "epochs": 10,
                "train_seconds": 1.0,
                "grad_evals": 1000,
                "grad_evals_per_image": 3.0,
                "best_epoch": 9,
                "evaluation": dict.fromkeys(finetune.ATTACKS, accuracy),
            }
            (run / "summary.json").write_text(json.dumps(about))
    rows = finetune.table().splitlines()
    assert rows[2] == "| finetune | 10 | 0.01 | 1,000 | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 |"
    assert "- finetune against scratch: +25.0, +25.0, +25.0 points" in rows
