"""Studies: they can be planned, resumed and read back."""

import json
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from written import write_run

import definition
import finetune
import measure
import paper
import stored
import study
from amata import recipes
from amata.schedules import Control, Linear, planned_controls
from amata.studies.plan import plan, run_name
from runner import Runner

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


def controls(name: str) -> dict[str, list[Control[float]]]:
    """The planned controls of every arm."""
    found = {}
    for title, (base, sets) in study.STUDIES[name].recipes.items():
        recipe = recipes.load(base, list(sets))
        found[title] = planned_controls(recipe.schedule, recipe.train.epochs) or []
    return found


def test_the_recipe_of_20_seconds_is_the_arm_that_was_measured() -> None:
    """Its schedule is written as stages there."""
    (run,) = stored.runs_of("cifar10-18s", "linear-1-2")[:1]
    measured, shipped = recipes.load(run / "recipe.toml"), recipes.load("cifar10-20s")
    plans = [planned_controls(r.schedule, r.train.epochs) for r in (measured, shipped)]
    assert plans[0] == plans[1]
    for part in ("data", "model", "threat", "method", "optim"):
        assert measured.tables[part] == shipped.tables[part]


@pytest.mark.parametrize(
    ("name", "reach", "others"),
    [
        ("cifar10-equal-cost", 20 / 255, set()),
        ("cifar10-paper-recipe", 20 / 255, {"fixed-alpha-2-10"}),
        ("cifar10-fast-recipe", 13 / 255, {"k1", "nfgsm", "linear-0-2"}),
        ("cifar10-eps16", 26 / 255, set()),
        ("mnist-equal-cost", 0.4, set()),
        ("mnist-pgd60", 0.4, set()),
        ("cifar10-wrn", 20 / 255, set()),
        ("cifar10-trades", 20 / 255, set()),
        ("tiny-equal-cost", 20 / 255, set()),
        ("cifar10-5m", 17 / 255, set()),
    ],
)
def test_arms_differ_in_k_alone(name: str, reach: float, others: set[str]) -> None:
    arms = study.STUDIES[name].recipes
    loaded = {t: recipes.load(base, list(sets)) for t, (base, sets) in arms.items() if t != "nfgsm"}
    tables = [{k: v for k, v in r.tables.items() if k != "schedule"} for r in loaded.values()]
    assert all(table == tables[0] for table in tables)
    for title, planned in controls(name).items():
        if title not in others:
            assert all((u.tau or u.steps * u.step_size) == pytest.approx(reach) for u in planned)


def cost(name: str, title: str, folder: Path) -> float:
    """The gradient evaluations per image that an arm is planned to take."""
    base, sets = study.STUDIES[name].recipes[title]
    runner = Runner(study.STUDIES[name], folder)
    return runner.cost(recipes.load(base, list(sets)))


PAIRS = [(name, *pair) for name, own in study.STUDIES.items() for pair in map(astuple, own.equal)]


@pytest.mark.parametrize(("name", "arm", "against"), PAIRS)
def test_arms_that_are_called_equal_cost_the_same(
    name: str, arm: str, against: str, tmp_path: Path
) -> None:
    share = cost(name, arm, tmp_path) / cost(name, against, tmp_path)
    assert 0.95 <= share <= 1 + 1e-9


TIMED = [
    (name, *astuple(pair)) for name, own in study.STUDIES.items() for pair in own.equal_seconds
]


@pytest.mark.parametrize(("name", "arm", "against"), TIMED)
def test_arms_that_are_called_equal_in_time_took_as_long(name: str, arm: str, against: str) -> None:
    assert against in study.STUDIES[name].front
    if runs := stored.summaries(name):  # else it is not measured yet
        assert 0.97 <= stored.seconds(runs[arm]) / stored.seconds(runs[against]) <= 1.03


def test_a_searched_schedule_is_stretched_to_the_epochs_of_the_study(tmp_path: Path) -> None:
    own = study.STUDIES["cifar10-closed-loop"]
    stated = {title: recipe for title, recipe in own.recipes.items() if title != "searched"}
    own = replace(own, recipes=stated)  # as before its search
    found: dict[str, dict[str, object]] = {
        "exponential": {"k_min": 1, "k_max": 4, "tau": 0.08, "eta": 0.3},
        "piecewise": {"stages": [[0, 2], [5, 4]], "tau": 0.08},
    }
    expected = {
        "exponential": ("eta", pytest.approx(0.1)),
        "piecewise": ("stages", ((0, 2), (15, 4))),
    }
    for name, table in found.items():
        file = tmp_path / "search.json"
        file.write_text(json.dumps({"best": {"schedule": {"name": name, **table}}}))
        base, sets = definition.with_winner(own, file).recipes["searched"]
        recipe = recipes.load(base, list(sets))
        key, value = expected[name]
        assert getattr(recipe.schedule, key) == value
        assert (recipe.train.epochs, recipe.optim.milestones) == (30, [22, 27])
    assert own.search is not None
    short = recipes.load(own.search.recipe[0], list(own.search.recipe[1]))
    assert (short.train.epochs, short.optim.milestones) == (10, [7, 9])


def test_the_orders_of_k() -> None:
    for name, rising, falling, shuffled in (
        ("cifar10-equal-cost", "linear-1-5", "falling-5-1", "shuffled-1-5"),
        ("cifar10-paper-recipe", "linear-2-10", "falling-10-2", "shuffled-2-10"),
    ):
        k = {title: [u.steps for u in planned] for title, planned in controls(name).items()}
        assert k[falling] == k[rising][::-1]
        assert sorted(k[shuffled]) == k[rising] != k[shuffled]
    k = {t: [u.steps for u in planned] for t, planned in controls("cifar10-paper-recipe").items()}
    linear = planned_controls(Linear(k_min=2, k_max=10, tau=1.0), 30) or []
    assert k["fixed-alpha-2-10"] == k["linear-2-10"] == [u.steps for u in linear]
    fixed = controls("cifar10-paper-recipe")["fixed-alpha-2-10"]
    assert {u.step_size for u in fixed} == {2 / 255}
    from_zero = [u.steps for u in controls("cifar10-fast-recipe")["linear-0-2"]]
    assert (from_zero[0], from_zero[-1]) == (0, 2)
    assert from_zero == sorted(from_zero)


def test_arms_that_matter_have_more_seeds_and_are_run_first() -> None:
    plain: tuple[str, definition.Sets] = ("mnist5k-pgd", ())
    small = definition.Study(
        {"few": plain, "many": plain, "also-many": plain},
        ("clean",),
        first_seed=3,
        more_seeds={"many": 2, "also-many": 2},
    )
    assert list(small.runs()) == [
        (3, "many"),
        (3, "also-many"),
        (4, "many"),
        (4, "also-many"),
        (3, "few"),
    ]


def test_runs_whose_weights_are_still_needed_are_trained_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "amata", lambda *command, capture=False: "{}")
    small = definition.Study(
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


def test_a_threshold_that_one_of_two_never_reaches_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    small = definition.Study(
        {"slow": ("mnist5k-pgd", ()), "fast": ("mnist5k-amata", ())}, ("clean",)
    )
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


def test_runs_that_shared_a_device_race_by_their_gradient_evaluations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    small = definition.Study({"a": ("mnist5k-pgd", ()), "b": ("mnist5k-amata", ())}, ("clean",))
    monkeypatch.setitem(study.STUDIES, "small", small)
    monkeypatch.setitem(paper.RACES, "small", {"a": "a", "b": "b"})
    curves = {
        "a-seed0": [0.5, 0.9],
        "a-seed1": [0.8, 0.9],
        "b-seed0": [0.9, 0.8],
        "b-seed1": [0, 0.8],
    }
    for run, curve in curves.items():
        price = 30 if run.startswith("a") else 10  # for ten images: 3 and 1 per image and epoch
        rows: list[dict[str, object]] = [
            {"grad_evals": price * (i + 1), "valid": {"clean": 1.0, "pgd-20": robust}}
            for i, robust in enumerate(curve)
        ]
        whole = {"epochs": 2, "grad_evals": 2 * price, "grad_evals_per_image": price / 10}
        write_run(tmp_path / "small/runs" / run, rows, **whole)
    (tmp_path / "small/parts.json").write_text(json.dumps({"parts": 2}))
    table = paper.race("small", (0.8, 0.9))()
    assert "| 80% | 4.5 | 1.5 | 3.00 |" in table
    assert "| 90% | 6.0 | by 1 of 2 runs |  |" in table
    assert "| 6.0, 90.0% | 2.0, 85.0% | 3.00 |" in table


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
    ("name", "record"), [("cifar10-amata-quick", "pgd20"), ("cifar10-1m", "autoattack")]
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


def test_the_logistic_example_is_what_the_page_shows() -> None:
    from logistic import Logistic

    file = definition.RESULTS.parent / "control" / "logistic" / "logistic.json"
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


def test_the_recipe_of_five_minutes_is_the_studys_annealed_arm() -> None:
    base, sets = study.STUDIES["cifar10-5m"].recipes["linear-2-4"]
    arm, own = recipes.load(base, list(sets)), recipes.load("cifar10-5m")
    for table in ("data", "model", "threat", "method", "optim", "train"):
        assert arm.tables[table] == own.tables[table]
    assert planned_controls(arm.schedule, 140) == planned_controls(own.schedule, 140)
