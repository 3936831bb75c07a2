"""Recipes: every built-in one is valid, what is written reads back, errors name the key."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amata import recipes
from amata.errors import InputError
from amata.methods import AWP, ERM, TRADES
from amata.quantity import number
from amata.recipes import KEYED, built_in, load, parse, read_toml
from amata.recipes.toml import dumps
from amata.schedules import Constant, Linear, planned_controls
from amata.threat import L2, Linf
from amata.training.checks import recipe_notes, weak_attack

PAPER = {
    "mnist-pgd40",
    "mnist-amata",
    "cifar10-erm",
    "cifar10-pgd10",
    "cifar10-pgd2",
    "cifar10-amata",
    "mnist5k-amata",
    "mnist5k-pgd",
}


VALUES = st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans()


@given(st.lists(st.lists(VALUES, max_size=30) | VALUES, max_size=30))
def test_lists_in_fewer_lines_are_the_same_lists(values: list[Any]) -> None:
    tables = {"schedule": {"name": "[\n", "stages": values, "tau": 0.5}, "optim": {"lr": 1}}
    assert read_toml(dumps(tables), "written") == tables


def test_a_plan_of_many_stages_is_written_in_a_few_lines() -> None:
    lines = dumps({"stages": [[t, 1 + t / 8] for t in range(165)]}).splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_are_valid_and_survive_being_written(name: str) -> None:
    recipe = load(name)
    again = parse(read_toml(recipe.to_toml(), name), name)
    assert again.tables == recipe.tables
    assert again.fingerprint() == recipe.fingerprint()
    assert (again.schedule, again.method, again.ball) == (
        recipe.schedule,
        recipe.method,
        recipe.ball,
    )
    assert built_in()[name].startswith("# ")
    assert built_in()[name].splitlines()[0].endswith("."), "`amata recipes` shows the first line"


def test_the_papers_recipes_are_there_with_its_settings() -> None:
    assert set(built_in()) >= PAPER
    r = load("cifar10-amata")
    assert (r.ball, r.schedule) == (Linf(8 / 255), Linear(k_min=2, k_max=10, tau=20 / 255))
    assert (
        r.optim.lr,
        r.optim.momentum,
        r.optim.weight_decay,
        r.optim.milestones,
        r.train.epochs,
    ) == (0.05, 0.9, 5e-4, [75, 90], 100)
    assert load("cifar10-pgd10").schedule == Constant(steps=10, step_size=2 / 255)
    assert isinstance(load("cifar10-erm").method, ERM)
    assert load("mnist-amata").schedule == Linear(k_min=5, k_max=40, tau=0.4)


def test_the_demo_recipe_has_its_documented_settings() -> None:
    r = load("mnist5k-amata")
    assert (r.ball, r.schedule, r.train.epochs) == (
        Linf(0.2),
        Linear(k_min=2, k_max=10, tau=0.5),
        10,
    )


def test_overrides_take_numbers_fractions_words_and_lists() -> None:
    r = load(
        "mnist5k-amata",
        [
            "threat.eps=8/255",
            "optim.lr=1e-2",
            "train.device=cpu",
            'eval.attacks=["clean"]',
            "model.args.width=8",
        ],
    )
    assert (r.ball.eps, r.optim.lr, r.train.device, r.eval.attacks, r.model.args) == (
        8 / 255,
        0.01,
        "cpu",
        ["clean"],
        {"width": 8},
    )
    assert 'eps = "8/255"' in r.to_toml()
    for attacks in ("clean,pgd-2", "clean, pgd-2", '["clean", "pgd-2"]'):
        assert load("mnist5k-amata", [f"eval.attacks={attacks}"]).eval.attacks == ["clean", "pgd-2"]


def test_naming_another_schedule_starts_its_table_afresh() -> None:
    r = load(
        "mnist5k-amata", ["schedule.steps=3", "schedule.step_size=0.1", "schedule.name=constant"]
    )
    assert r.schedule == Constant(steps=3, step_size=0.1)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)


def test_a_recipe_merges_its_tables_over_those_it_extends_key_by_key(tmp_path: Path) -> None:
    base = load("cifar10-amata-fast").tables
    write(
        tmp_path,
        mine='extends = "cifar10-amata-fast"\n[optim]\nlr = 0.5\n[method]\nweak = "skip"\n'
        "[schedule]\ntau = 0.5\n[model]\nargs = {}\n",
    )
    changed = {
        ("optim", "lr"): 0.5,
        ("method", "weak"): "skip",
        ("schedule", "tau"): 0.5,
        ("model", "args"): {},  # a value: it replaces {shortcut = "raw"}
    }
    assert load(tmp_path / "mine.toml").tables == {
        section: {key: changed.get((section, key), value) for key, value in table.items()}
        for section, table in base.items()
    }


@pytest.mark.parametrize(
    ("named", "table", "expected"),
    [
        (
            "schedule",
            'name = "constant"\nsteps = 1\nstep_size = 0.1',
            Constant(steps=1, step_size=0.1),
        ),
        ("schedule", 'name = "linear"\nk_max = 4', Linear(k_min=2, k_max=4, tau=20 / 255)),
        ("method", 'name = "erm"', ERM(ball=Linf(8 / 255))),
        ("ball", 'norm = "l2"\neps = 0.5', L2(0.5)),
        ("ball", "eps = 0.5", Linf(0.5)),
    ],
)
def test_another_name_starts_a_table_afresh_and_the_same_name_does_not(
    tmp_path: Path, named: str, table: str, expected: object
) -> None:
    section = {"ball": "threat"}.get(named, named)
    # reach belongs to pgd: it would be an unknown key of another method
    write(tmp_path, base='extends = "cifar10-amata"\n[method]\nreach = 1.5\n')
    write(tmp_path, mine=f'extends = "base.toml"\n[{section}]\n{table}\n')
    recipe = load(tmp_path / "mine.toml")
    assert getattr(recipe, named) == expected
    assert getattr(recipe.method, "reach", None) == (None if named == "method" else 1.5)


def test_files_extend_files_beside_them_and_overrides_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, base='extends = "mnist5k-pgd"\n[optim]\nlr = 0.7\nema = 0.5\n')
    write(tmp_path / "sub", mine='extends = "../base.toml"\n[optim]\nlr = 0.8\n')
    monkeypatch.chdir(tmp_path)
    recipe = load("sub/mine.toml", ["optim.ema=0.9"])
    assert (recipe.name, recipe.optim.lr, recipe.optim.ema) == ("mine", 0.8, 0.9)
    assert recipe.schedule == Constant(steps=10, step_size=0.05)
    wanted = ["optim.lr=0.8", "optim.ema=0.9"]
    assert recipe.fingerprint() == load("mnist5k-pgd", wanted).fingerprint()


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("3", "recipe mine: extends = 3 must be a string"),
        (
            '"mnist5k-amta"',
            "recipe mine: extends = 'mnist5k-amta': unknown recipe 'mnist5k-amta'; "
            "did you mean 'mnist5k-amata'?",
        ),
        ('"absent.toml"', "recipe mine: extends = 'absent.toml': no recipe file "),
        ('"bad.toml"', "recipe bad: not valid TOML"),
        ('"mine.toml"', "recipe mine: extends forms a cycle, "),
        ('"other.toml"', "/mine.toml; remove one of them"),
        ('"loop.toml"', "/loop.toml; remove one of them"),
    ],
)
def test_a_base_that_cannot_be_used_is_named(tmp_path: Path, base: str, message: str) -> None:
    write(tmp_path, mine=f"extends = {base}\n", bad="[data\n")
    write(tmp_path, other='extends = "mine.toml"\n', loop='extends = "loop.toml"\n')
    with pytest.raises(InputError) as error:
        load(tmp_path / "mine.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_awp_is_a_table_of_its_method(tmp_path: Path) -> None:
    recipe = load("cifar10-amata-awp", ["method.name=trades", "method.awp.gamma=1/200"])
    assert recipe.method == AWP(TRADES(ball=recipe.ball), gamma=0.005)
    assert recipe.tables["method"]["awp"] == {"gamma": 0.005, "warmup": 0}
    assert recipe.chosen["method"] == {"name": "trades", "awp": {"gamma": 0.005}}
    assert "awp" not in load("cifar10-amata").tables["method"]
    (tmp_path / "saved.toml").write_text(recipe.to_toml())
    saved = load(tmp_path / "saved.toml")
    assert (saved.fingerprint(), saved.method) == (recipe.fingerprint(), recipe.method)
    without = load(tmp_path / "saved.toml", ["method.awp.gamma=0"])
    assert without.fingerprint() != saved.fingerprint()
    plain = load(recipe.tables, {"method.awp": None})
    assert plain.method == TRADES(ball=recipe.ball)


def test_a_shown_recipe_is_whole_and_computes_the_same(tmp_path: Path, amata: Any) -> None:
    shown = amata("recipes", "show", "cifar10-amata-fast").out
    assert shown.startswith(built_in()["cifar10-amata-fast"].split("extends")[0])
    assert "extends" not in shown
    write(tmp_path, saved=shown)
    saved, recipe = load(tmp_path / "saved.toml"), load("cifar10-amata-fast")
    assert (saved.fingerprint(), saved.tables) == (recipe.fingerprint(), recipe.tables)
    filled_in = {(s, k) for s, t in recipe.tables.items() for k, v in t.items() if v is not None}
    assert {(s, k) for s, t in read_toml(shown, "shown").items() for k in t} == filled_in


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_fractions_are_exact_quotients(top: int, bottom: int) -> None:
    assert number(f"{top}/{bottom}") == top / bottom


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", "recipe mnist5k-amata: optim.lrr: unknown key; did you mean 'lr'?"),
        ("optm.lr=1", "recipe mnist5k-amata: optm: unknown key; did you mean 'optim'?"),
        ("schedule.kmin=1", "schedule.kmin: unknown key; did you mean 'k_min'?"),
        ("optim.momentum=0", "optim: nesterov needs a momentum above 0"),
        (
            "data.flip=alternating",
            'data: flip = "alternating" needs augment = "flip" or "crop-flip"',
        ),
        ("optim.lr=fast", "optim.lr: value = 'fast' is not a number"),
        ("train.epochs=ten", "train.epochs: input should be a valid integer"),
        ("train.epochs=0", "train.epochs: input should be greater than or equal to 1, not 0"),
        (
            "data.augment=crop",
            "data.augment: input should be 'none', 'flip' or 'crop-flip', not 'crop'",
        ),
        ("schedule.k_min=20", "[schedule] k_min = 20 is above k_max = 10"),
        ("schedule.tau=0", "[schedule] tau = 0.0 must be above 0"),
        ("schedule.tau=-1/255", "[schedule] tau = -0.00392156862745098 must be above 0"),
        ("threat.eps=0", "[threat] eps = 0.0 must be above 0"),
        ("threat.norm=l1", "threat.norm: unknown threat 'l1'; choose from l2, linf"),
        ("method.name=pdg", "method.name: unknown method 'pdg'; did you mean 'pgd'?"),
        ("schedule.name=lin", "schedule.name: unknown schedule 'lin'; did you mean 'linear'?"),
        ("schedule.name=constant", "schedule.steps and schedule.step_size: these are needed"),
        ("lr=1", "must be table.key; did you mean optim.lr"),
        ("method.name=[1]", "method.name: unknown method '[1]'"),
        (
            "method.name=mine:Own",
            "a method of your own goes to amata.fit or amata.train, in Python",
        ),
        ("optim.lr.x.y=1", "optim.lr.x.y is inside a value, not a table"),
        (
            "train.epochs=1" + 20 * "0",
            "train.epochs: input should be less than or equal to 100000",
        ),
        ("train.epochs=true", "train.epochs: True is not a whole number"),
        ("train.epochs=" + 4300 * "9", "train.epochs: "),
        ("train.epochs=" + 5000 * "9", "train.epochs: "),
        ("train.seed=9223372036854775808", "train.seed: input should be less than 922337203685477"),
        ("data.batch_size=1000000000000", "data.batch_size: input should be less than or equal to"),
        ("data.pad=100000", "data.pad: input should be less than or equal to 1000"),
        ("data.workers=100000", "data.workers: input should be less than or equal to 1000"),
        ("data.crop=100000", "data.crop: input should be less than or equal to 10000"),
        ("optim.lr=1e39", "optim.lr: value = 1e+39 is outside the range of float32"),
        ("optim.lr=1e308", "optim.lr: value = 1e+308 is outside the range of float32"),
        ("optim.lr=1e-46", "optim.lr: value = 1e-46 is outside the range of float32"),
        ("optim.lr=" + 400 * "9", "optim.lr: value = 99999"),
        ("optim.lr=nan", "optim.lr: value = nan is not finite"),
        ("optim.weight_decay=inf", "optim.weight_decay: value = inf is not finite"),
        ("optim.milestones=[-1]", "optim.milestones.0: input should be greater than or equal to 0"),
        (
            f"optim.milestones={list(range(2000))}",
            "optim.milestones: list should have at most",
        ),
        (f"eval.attacks={100_000 * ['clean']}", "eval.attacks: list should have at most 100 items"),
        ("eval.step_size=nan", "eval.step_size: value = nan is not finite"),
        ("eval.cw_c=0", "eval.cw_c: input should be greater than 0"),
        ("model.std=[0]", "model.std.0: input should be greater than 0"),
        ("threat.eps=1e-39", "threat.eps: eps = 1e-39 is outside the range of float32"),
        ("method.random_start=maybe", "method.random_start: input should be a valid boolean"),
        ("method.reach=9", "[method] reach = 9 is too large: eps = 1.8 is more than 1"),
        ("model.args.x=" + "[" * 300 + "]" * 300, "it is nested more than 20 deep"),
        (
            "train.epochs=" + "[" * 5000 + "]" * 5000,
            "train.epochs: input should be a valid integer",
        ),
    ],
)
def test_errors_name_the_key(override: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load("mnist5k-amata", [override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("method", "key", "message"),
    [
        (
            "fat",
            "tau=[[0, -1]]",
            "method.tau: tau: value = -1 must be a whole number of at least 0",
        ),
        ("fat", "tau=[[0, 1], [5, 2], [3, 1]]", "must start at epoch 0, with rising epochs"),
        ("fat", "omega=-0.1", "[method] omega = -0.1 must be at least 0"),
        ("trades", "beta=-6", "[method] beta = -6.0 must be at least 0"),
        ("trades", "noise=-1", "[method] noise = -1.0 must be at least 0"),
        ("dat", "c_max=-1", "[method] c_max = -1.0 must be at least 0"),
        ("atta", "early_epochs=-1", "[method] early_epochs = -1 must be a whole number"),
        ("fast", "init=bogus", "method.init: input should be 'random', 'zero', 'previous' or"),
        ("fat", "tau=[[5, 1]]", "method.tau: tau = [[5, 1]] must start at epoch 0"),
        (
            "dat",
            "dynamic_epochs=0",
            "[method] dynamic_epochs = 0 must be a whole number of at least 1",
        ),
        ("atta", "reset=0", "[method] reset = 0 must be a whole number of at least 1"),
        ("yopo", "inner=0", "[method] inner = 0 must be a whole number of at least 1"),
        ("nfgsm", "noise=0", "[method] noise = 0.0 must be above 0"),
        ("fat", "tau=2", "method.tau: tau = 2 must be pairs, as in [[0, 2], [5, 10]]"),
        ("pgd", "awp=0.01", "method.awp: 0.01 is not a table; set method.awp.gamma=0.01 instead"),
        ("pgd", "awp.gamma=-1", "[method.awp] gamma = -1.0 must be at least 0"),
        ("pgd", "awp.warmup=5", "method.awp.gamma: this is needed"),
        ("pgd", "awp={gamma=0.01, warm=2}", "method.awp.warm: unknown key; did you mean 'warmup'?"),
        ("yopo", "awp.gamma=0.01", "[method.awp] awp does not work around yopo"),
    ],
)
def test_bad_settings_of_methods_are_refused_before_training(
    method: str, key: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        load("mnist5k-amata", [f"method.name={method}", f"method.{key}"])
    assert message in str(error.value)


@pytest.mark.parametrize("section", ["method", "schedule"])
def test_recorded_objects_that_are_nested_too_deeply_are_named(section: str) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    tables = {**load("mnist5k-amata").tables, section: {"name": "python", "x": deep}}
    with pytest.raises(InputError, match="it is nested more than 20 deep"):
        parse(tables, "x")


@pytest.mark.parametrize("digits", [4300, 5000])
def test_a_file_with_absurd_numbers_is_named(tmp_path: Path, digits: int) -> None:
    write(tmp_path, mine=f'extends = "mnist5k-pgd"\n[train]\nepochs = {digits * "9"}\n')
    with pytest.raises(InputError, match="recipe mine: ") as error:
        load(tmp_path / "mine.toml")
    assert len(str(error.value)) < 250


def test_unreadable_recipes_are_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="did you mean 'mnist5k-amata'"):
        load("mnist5k-amta")
    with pytest.raises(InputError, match="no recipe file"):
        load(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(InputError, match="recipe bad: not valid TOML"):
        load(tmp_path / "bad.toml")
    (tmp_path / "bare.toml").write_text('[threat]\nnorm = "linf"\neps = 0.1\n')
    with pytest.raises(InputError, match=r"\[method\] needs the key name"):
        load(tmp_path / "bare.toml")


def test_a_fingerprint_ignores_operational_keys_and_written_defaults() -> None:
    tables = {s: dict(t) for s, t in recipes.load("mnist5k-amata").tables.items() if s != "train"}
    plain = recipes.parse(tables, "mine").fingerprint()
    changed = {
        "data.root": "/x",
        "data.workers": "1",
        "train.compile": "never",
        "train.device": "cpu",
        "train.engine": "plain",
        "train.deterministic": "true",
        "train.keep_epochs": "true",
        "train.save_minutes": "1",
        "train.tensorboard": "false",
        "train.timeout": "5",
        "train.within": "60",
    }
    assert set(changed) == recipes.OPERATIONAL
    for key, value in changed.items():
        assert recipes.parse(tables, "mine", [f"{key}={value}"]).fingerprint() == plain, key
    assert recipes.parse(tables, "mine", ["train.seed=1"]).fingerprint() != plain
    assert recipes.parse(tables, "mine", ["train.seed=0"]).fingerprint() == plain, (
        "a default that is written out is still a default"
    )


def test_every_key_is_documented() -> None:
    from amata.recipes.reference import sections

    every = sections()
    assert [f"{s.table}.{k.name}" for s in every for k in s.keys if not (k.text and k.values)] == []
    known = {
        s.table: {k.name for other in every if other.table == s.table for k in other.keys}
        | {KEYED.get(s.table, "")}
        | {other.table.partition(f"{s.table}.")[2] for other in every}
        for s in every
    }
    for name in built_in():
        for table, content in load(name).tables.items():
            assert set(content) <= known[table], (name, table)
    (size,) = [k for s in every if s.table == "data" for k in s.keys if k.name == "batch_size"]
    (rate,) = [k for s in every if s.table == "optim" for k in s.keys if k.name == "lr"]
    assert rate.values == "number above 0"
    assert (size.default, size.required, size.values) == ("128", False, "whole number from 1")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0x" + "f" * 20_000, "an integer of thousands of digits is too large a number"),
        ("[" * 300 + "]" * 300, "nested more than 20 deep"),
        ("{a=" * 90 + "1" + "}" * 90, "nested more than 20 deep"),
    ],
)
def test_values_that_cannot_be_written_down_are_one_line(value: str, message: str) -> None:
    """They were accepted in model.args, which takes anything, and failed in hashes and reports."""
    with pytest.raises(InputError, match=message):
        recipes.load("mnist5k-pgd", [f"model.args.width={value}"])


def test_extending_a_file_of_no_user_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('extends = "~nosuchuser/base.toml"')
    with pytest.raises(InputError, match=r"no recipe file .*~nosuchuser/base\.toml"):
        recipes.load(tmp_path / "x.toml")


WRONG: list[Any] = [5, {3: 5}, None]
SAME: dict[str, Any] = {
    "texts": lambda: load("mnist5k-amata", ["train.epochs=5", "optim.lr=1/50"]),
    "paths": lambda: load("mnist5k-amata", {"train.epochs": 5, "optim.lr": "1/50"}),
    "nested": lambda: load("mnist5k-amata", {"train": {"epochs": 5}, "optim": {"lr": 0.02}}),
    "keywords": lambda: load("mnist5k-amata", train={"epochs": 5}, optim={"lr": 0.02}),
    "all three": lambda: load(
        "mnist5k-amata", "train.epochs=9", train={"epochs": 5}, optim={"lr": 0.02}
    ),
    "extends": lambda: load(
        {"extends": "mnist5k-amata", "train": {"epochs": 5}, "optim": {"lr": 0.02}}
    ),
    "whole": lambda: load(load("mnist5k-amata", ["train.epochs=5", "optim.lr=0.02"]).tables),
}


@pytest.mark.parametrize("form", SAME)
def test_recipes_from_python_equal_those_of_texts(form: str) -> None:
    assert SAME[form]().tables == SAME["texts"]().tables


def test_a_dict_may_rename_a_method_and_stays_unchanged() -> None:
    given = {"method": {"beta": 2, "name": "trades"}, "model": {"args": {"width": 3}}}
    recipe = load("mnist5k-amata", given)
    assert recipe.tables["method"] == {"name": "trades", "beta": 2.0, "noise": 0.001}
    assert recipe.model.args == {"width": 3}
    assert load("mnist5k-amata", model={"args": {"width": 3}}, name="mine").name == "mine"
    tables: dict[str, Any] = dict(recipe.tables)
    load(tables, {"model.args.width": 4})
    assert tables["model"]["args"] == {"width": 3}
    assert load(tables, {"eval.limit": None, "data.root": Path("x")}).data.root == "x"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: load("mnist5k-amata", train={"epochz": 5}),
            "train.epochz: unknown key; did you mean 'epochs'",
        ),
        (lambda: load("mnist5k-amata", {"train.epochs": "x"}), "train.epochs: input should be"),
        (lambda: load("mnist5k-amata", {"train": 5}), "override 'train' must be table.key"),
        (
            lambda: load("mnist5k-amata", trian={"epochs": 5}),
            "unknown table 'trian'; did you mean 'train'?",
        ),
        (
            lambda: load({"extends": "mnist5k-pgd", "schedule": {"name": "linear", "kmin": 1}}),
            "schedule.kmin: unknown key; did you mean 'k_min'? (and ",
        ),
        (lambda: load("mnist5k-amata", train=5), "train = 5 must be a dict of keys"),
        (
            lambda: load("mnist5k-amata", method=ERM(ball=Linf(0.1))),
            r"dataclasses.replace(recipe, method=...)",
        ),
        (lambda: load("mnist5k-amata", WRONG[0]), "overrides = 5 must be a dict, or texts"),
        (lambda: load("mnist5k-amata", WRONG[1]), "override 3 must be a text"),
        (lambda: load({"train": {"epochs": 1}}), "recipe recipe: [threat] needs the key norm"),
        (lambda: load({"extends": "mnist5k-amataa"}), "unknown recipe 'mnist5k-amataa'"),
        (lambda: load("zzz"), "unknown recipe 'zzz'; `amata recipes` lists the built-in ones"),
        (lambda: load("tests"), "tests is a folder, not a recipe: `amata init tests` writes one"),
        (lambda: load("tests/"), "tests is a folder, not a recipe: `amata init tests` writes one"),
        (lambda: load({"extends": 5}), "recipe = 5 must be the name of a recipe"),
        (lambda: load(WRONG[2]), "recipe = None must be the name of a recipe"),
    ],
)
def test_errors_of_recipes_from_python_name_the_key(call: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_only_steps_and_balls_are_written_as_fractions() -> None:
    recipe = recipes.load("cifar10-amata", [f"optim.warmup={34 / 255!r}", "threat.eps=34/255"])
    text = recipe.to_toml()
    assert f"warmup = {34 / 255!r}\n" in text
    assert 'eps = "34/255"\n' in text


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["schedule.tau=4/255"], "K times the step size is 4/255 and eps is 8/255"),
        (["schedule.name=constant", "schedule.steps=0", "schedule.step_size=1/255"], "K is 0"),
        (["schedule.tau=8/255"], ""),
        (["schedule.tau=4/255", "method.name=atta"], ""),  # adds up over epochs
        (["schedule.tau=8/255", "schedule.eps_start=0.5"], ""),
    ],
)
def test_an_attack_that_cannot_cross_the_ball_is_noted(sets: list[str], said: str) -> None:
    recipe = recipes.load("cifar10-amata", sets)
    found = weak_attack(recipe, planned_controls(recipe.schedule, recipe.train.epochs))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_attack_steps_of_erm_are_noted() -> None:
    for sets, noted in ((["method.name=erm"], True), ([], False)):
        recipe = recipes.load("mnist5k-amata", sets)
        plan = planned_controls(recipe.schedule, recipe.train.epochs)
        assert any(text.startswith("erm takes") for text in recipe_notes(recipe, plan)) == noted


@pytest.mark.parametrize(
    ("sets", "noted"),
    [
        (
            ["schedule.name=linear", "schedule.k_min=2", "schedule.k_max=5", "schedule.tau=0.05"],
            True,
        ),
        (["schedule.steps=2.5"], True),  # two passes in one batch, three in the next
        ([], False),
    ],
)
@pytest.mark.parametrize("spared", ["", "method.pass_average=true", "optim.name=adamw"])
def test_summed_gradients_of_a_changing_number_of_passes_are_noted(
    sets: list[str], noted: bool, spared: str
) -> None:
    recipe = recipes.load("mnist-yopo-5-10", [*sets, *([spared] if spared else [])])
    plan = planned_controls(recipe.schedule, recipe.train.epochs)
    found = [text for text in recipe_notes(recipe, plan) if text.startswith("yopo sums")]
    assert bool(found) == (noted and not spared)
    assert all("method.pass_average=true" in text for text in found)
