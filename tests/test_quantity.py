"""Values: how they are read, and that every argument is checked where it is given."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

import amata
from amata.attacks import ATTACKS, autoattack, cw_l2, cw_pgd, parse_attack, pgd
from amata.errors import InputError
from amata.methods import METHODS
from amata.quantity import number, positive, shown, whole
from amata.schedules import SCHEDULES
from amata.threat import BALLS
from tests.conftest import Linear, images, labels

BALL = amata.Linf(0.3)
NAN, INF = float("nan"), float("inf")

# What each class needs, besides the argument that is tested.
NEEDS: dict[type, dict[str, Any]] = {
    **{cls: {"ball": BALL} for cls in METHODS.values()},
    **{cls: {"k_min": 1, "k_max": 3, "tau": 0.1} for cls in SCHEDULES.values()},
    **{cls: {"name": "mine"} for cls in ATTACKS},
    **{cls: {"eps": 0.1} for cls in BALLS.values()},
    amata.Constant: {"steps": 1, "step_size": 0.1},
    amata.Piecewise: {"stages": [(0, 1)], "tau": 0.1},
    amata.Adaptive: {"k_min": 1, "k_max": 3, "tau": 0.1, "gamma": 1.0},
}
NUMBERS = [NAN, INF, -INF, "x", None, True, [1], 10**400, 1e39, 1e-39, -1]
WRONG: dict[Any, list[Any]] = {
    float: NUMBERS,
    int: [NAN, 1.5, "x", None, False, 10**20, 10**5000, -1],
    bool: ["no", 1, None],
    Literal: ["bogus", None, 3],
    tuple: [[], [[0, -1]], [[1, 0]], [[0, 1], [0, 2]], [[0, 1], [5, 1], [3, 1]], [[0]], 3, None],
}


def wrong_values() -> list[Any]:
    """Every field of every class with values of the wrong kind or out of range."""
    rows = []
    for cls, needs in NEEDS.items():
        assert cls(**needs)
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            kinds = get_args(hints[field.name]) or [hints[field.name]]
            optional = type(None) in kinds
            kind = get_origin(hints[field.name]) or hints[field.name]
            kind = kinds[0] if optional else kind
            for value in WRONG.get(kind, []):
                may_be_empty = value == [] and field.default == ()
                if not (optional and value is None) and not may_be_empty:
                    rows.append(pytest.param(cls, {**needs, field.name: value}, field.name))
    return rows


@pytest.mark.parametrize(("cls", "arguments", "name"), wrong_values())
def test_every_field_is_checked_when_it_is_given(
    cls: type, arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(InputError, match=rf"^{name}\b") as error:
        cls(**arguments)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


X, Y, NET = images(4), labels(4), Linear(4)


def attack(call: Callable[..., Any], **arguments: Any) -> Callable[[], Any]:
    ball = {} if call is cw_l2 else {"ball": BALL}
    return lambda: call(NET, X, Y, **ball, **arguments)


def evaluate(**arguments: Any) -> Callable[[], Any]:
    return lambda: amata.evaluate(NET, (X, Y), ball=BALL, **{"attacks": "pgd-1", **arguments})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: amata.PGD(ball=0.03), "ball = 0.03 is not a threat model"),  # type: ignore[arg-type]
        (lambda: amata.PGD(ball=BALL, reach=9), "reach = 9 is too large: eps = 2.7 is more than 1"),
        (lambda: amata.NFGSM(ball=BALL, noise=4), "noise = 4 is too large: eps = 1.2 is more"),
        (lambda: amata.Fast(ball=BALL, init="randm"), "init = 'randm' is unknown; did you mean"),  # type: ignore[arg-type]
        (lambda: amata.Adaptive(tau=1, gamma=1, probed=1), "probed = 1 must be a whole number"),
        (lambda: parse_attack("pgd-3", step_size=NAN), "step_size = nan is not finite"),
        (lambda: parse_attack("cw-l2", c=-1), "c = -1 must be above 0"),
        (lambda: parse_attack("pgd-9999999999"), "unknown attack 'pgd-9999999999'"),
        (lambda: parse_attack(NAN), "attack = nan must be a name"),  # type: ignore[arg-type]
        (lambda: amata.PGD(ball=amata.Linf), "ball = .* is not a threat model"),  # type: ignore[arg-type]
        (lambda: amata.data.Arrays("", [1]), "arrays: images must be a tensor, a numpy array"),
        (lambda: amata.data.Arrays([[[[0.5]]]], [0], classes="x"), "arrays: classes = 'x' must be"),  # type: ignore[arg-type]
        (attack(pgd, generator=3), "generator = 3 must be a torch.Generator"),
        (attack(pgd, loss=lambda z, y: 1), "the loss must return a tensor, not int"),
        (attack(pgd, step_size=NAN), "step_size = nan is not finite"),
        (attack(pgd, step_size=-0.1), "step_size = -0.1 must be above 0"),
        (attack(pgd, steps=-1), "steps = -1 must be a whole number of at least 0"),
        (attack(pgd, steps=2.5), "steps = 2.5 must be a whole number"),
        (attack(pgd, restarts=0), "restarts = 0 must be a whole number of at least 1"),
        (attack(cw_pgd, step_size="fast"), "step_size = 'fast' is not a number"),
        (attack(cw_l2, kappa=NAN), "kappa = nan is not finite"),
        (attack(cw_l2, kappa=-1), "kappa = -1 must be at least 0"),
        (attack(cw_l2, c=0), "c = 0 must be above 0"),
        (attack(cw_l2, lr=INF), "lr = inf is not finite"),
        (attack(cw_l2, steps=0), "steps = 0 must be a whole number of at least 1"),
        (attack(cw_l2, search_steps=-1), "search_steps = -1 must be a whole number"),
        (attack(autoattack, version="strong"), "version = 'strong' is unknown; choose from"),
        (attack(autoattack, batch_size=0), "batch_size = 0 must be a whole number of at least 1"),
        (evaluate(step_size=NAN), "step_size = nan is not finite"),
        (evaluate(cw_c=0, attacks="clean"), "cw_c = 0 must be above 0"),
        (evaluate(batch_size=0), "batch_size = 0 must be a whole number of at least 1"),
        (evaluate(limit=0), "limit = 0 must be a whole number of at least 1"),
        (evaluate(seed=1.5), "seed = 1.5 must be a whole number"),
        (evaluate(engine="slow"), "engine = 'slow' is unknown; choose from auto, plain"),
        (evaluate(precision="bf16"), "precision = 'bf16' is unknown"),
        (lambda: amata.SGD(lr=-1), r"SGD\(\): lr: input should be greater than 0, not -1"),
        (
            lambda: amata.SGD(lr=1e39),
            r"SGD\(\): lr: value = 1e\+39 is outside the range of float32",
        ),
        (lambda: amata.SGD(momentum=0, nesterov=True), r"SGD\(\): nesterov needs a momentum"),
        (lambda: amata.AdamW(weight_decay=NAN), r"AdamW\(\): weight_decay: value = nan is not fin"),
        (lambda: amata.AdamW(momentum=0.5), r"AdamW\(\): momentum: only SGD and Muon have it"),
        (lambda: amata.Muon(milestones=[-1]), r"Muon\(\): milestones.0: input should be greater"),
        (lambda: amata.Muon(rate=1), r"Muon\(\): rate: unknown key"),  # type: ignore[call-arg]
    ],
)
def test_arguments_are_refused_at_once_by_name(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}") as error:
        build()
    assert "\n" not in str(error.value)


def test_step_sizes_may_be_fractions_everywhere() -> None:
    written: Any = "2/255"
    assert amata.Constant(steps=1, step_size=written).step_size == 2 / 255
    assert parse_attack("pgd-3", step_size=written).params(BALL)["step_size"] == 2 / 255
    rng = amata.seeds.generator(0)
    one = pgd(NET, X, Y, ball=BALL, steps=2, step_size=written, generator=rng)
    rng = amata.seeds.generator(0)
    assert torch.equal(one, pgd(NET, X, Y, ball=BALL, steps=2, step_size=2 / 255, generator=rng))


def test_numbers_are_read_exactly() -> None:
    assert number(torch.tensor(0.5)) == 0.5
    assert positive(2.0**-126, "tiny") == 2.0**-126
    assert whole("12", "n", 0) == whole(12.0, "n", 0) == whole(torch.tensor(12), "n", 0) == 12
    assert whole(2**62 + 1, "n", 0, 2**63) == 2**62 + 1, "floats would round it"
    assert shown("x" * 99) == "'" + "x" * 79 + "..."


def test_a_users_method_is_checked_by_its_annotations() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(amata.Method):
        share: float = 0.5
        often: Literal[1, 2] = 1
        step_size: Annotated[float, positive] = 1.0

        def step(self, *_: Any) -> None: ...

    assert Mine(ball=BALL, share="1/4").share == 0.25  # type: ignore[arg-type]
    for wrong, message in (
        ({"share": "much"}, "share = 'much' is not a number"),
        ({"often": 3}, "often = 3 is unknown; choose from 1, 2"),
        ({"step_size": 0}, "step_size = 0 must be above 0"),
    ):
        with pytest.raises(InputError, match=message):
            Mine(ball=BALL, **wrong)


def test_plain_fields_of_a_users_method_are_the_users_own() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(amata.PGD):
        clip: float = INF
        label: int = 10**12

    assert Own(ball=BALL, reach="1/2").reach == 0.5  # type: ignore[arg-type]
    assert Own(ball=BALL).clip == INF
    with pytest.raises(InputError, match="reach = nan is not finite"):
        Own(ball=BALL, reach=NAN)
