"""Successive approximations over whole trainings, against the toy problem's closed form, brute
force over all schedules, and the exact co-state of a small network."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from amata.attacks import pgd
from amata.batch import Batch
from amata.control import Probe
from amata.control.costate import Motion, carry_back, probe_epoch
from amata.control.pmp import ControlProblem, run
from amata.control.successive import Choice, Iterate, Limit, Terms, propose, successive
from amata.control.toy import Toy
from amata.control.trajectory import full_criterion, record
from amata.engine import ProbeNet
from amata.errors import InputError
from amata.losses import ce
from amata.methods import PGD, TRADES, YOPO, Method
from amata.schedules import Control
from amata.threat import Linf
from tests.conftest import labels
from tests.test_control import flat, tiny_net, two_weights

BALL = Linf(0.1)


def solved(
    problem: ControlProblem, candidates: Tensor, gamma: float, start: Choice, limit: Limit
) -> list[Iterate]:
    """MSA of a problem whose running cost is gamma times a price."""
    length = problem.horizon / problem.parts

    def train(choice: Choice) -> tuple[float, float]:
        found = run(problem, candidates[list(choice)])
        phi = float(problem.terminal(found.theta[-1:])[0])
        return phi, (found.objective - phi) / gamma

    def measure(choice: Choice) -> Terms:
        theta, p = run(problem, candidates[list(choice)]).middle()
        gain, price = [], []
        for part in range(problem.parts):
            rows = theta[part : part + 1].expand(len(candidates), -1)
            gain.append((length * problem.flow(rows, candidates) @ p[part]).tolist())
            price.append((length / gamma * problem.running(rows, candidates)).tolist())
        return Terms(gain, price)

    return successive(start, limit, train=train, measure=measure, iterations=8)


def test_the_toys_closed_form_is_reached() -> None:
    toy = Toy(parts=20)
    candidates = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    *_, last = solved(toy.problem(), candidates, toy.gamma, (4,) * 20, Limit(gamma=toy.gamma))
    assert last.accepted
    rollout = run(toy.problem(), candidates[list(last.choice)])
    expected = toy.closed_form(toy.problem().middle_times())
    assert toy.steps_of(rollout).tolist() == pytest.approx(expected.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("limit", "start"),
    [
        (Limit(gamma=0.0005), (0, 0, 0, 0, 0)),
        (Limit(gamma=0.01), (3, 3, 3, 3, 3)),
        (Limit(budget=4.0), (1, 1, 1, 1, 1)),
        (Limit(budget=4.0), (0, 1, 0, 1, 3)),
        (Limit(budget=7.2), (0, 0, 3, 3, 3)),
    ],
)
def test_msa_reaches_what_brute_force_over_all_schedules_finds(limit: Limit, start: Choice) -> None:
    gamma = limit.gamma or 1.0
    given = two_weights(parts=5, k_max=3)
    problem = ControlProblem(**{**given.__dict__, "running": lambda w, k: gamma * k})
    found = solved(problem, torch.arange(4, dtype=torch.float64), gamma, start, limit)
    every = torch.tensor(list(itertools.product(range(4), repeat=5)), dtype=torch.float64)
    theta, cost = problem.theta0.expand(len(every), 2), torch.zeros(len(every)).double()
    for part in range(5):
        theta, spent = problem.advance(theta, every[:, part])
        cost = cost + spent / gamma
    objectives = [
        limit.objective(phi, spent)
        for phi, spent in zip(problem.terminal(theta).tolist(), cost.tolist(), strict=True)
        if limit.allows(spent)
    ]
    low, high = min(objectives), max(objectives)
    assert found[0].choice == start
    assert all(limit.allows(iterate.spent) for iterate in found)
    best = min(iterate.objective for iterate in found)
    assert best <= low + 0.01 * (high - low)
    assert best == next(i.objective for i in reversed(found) if i.accepted)


def test_msa_that_would_diverge_changes_fewer_parts_and_keeps_the_best() -> None:
    # H praises the last candidate everywhere, but two changes at once make the run worse.
    def train(choice: Choice) -> tuple[float, float]:
        return (1 - 0.1 * sum(choice) if sum(choice) < 2 else 5.0), 0.0

    terms = Terms([[0.0, 1.0 + part] for part in range(4)], [[1.0, 1.0]] * 4)
    found = successive(
        (0, 0, 0, 0),
        Limit(budget=4.0),
        train=train,
        measure=lambda choice: terms,
        iterations=20,
    )
    assert [sum(iterate.choice) for iterate in found[:4]] == [0, 4, 2, 1]
    assert found[3].choice == (0, 0, 0, 1)  # the largest gap
    assert [i.choice for i in found if i.accepted] == [(0, 0, 0, 0), (0, 0, 0, 1)]
    assert len({i.choice for i in found}) == len(found)


def test_a_budget_is_spent_where_it_gains_most_and_never_exceeded() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        gain = torch.rand(5, 4, generator=generator).cumsum(1).tolist()
        terms = Terms(gain, [[1.0, 2.0, 3.0, 4.0]] * 5)
        for budget in (5.0, 9.0, 12.5, 20.0):
            choice, gamma = terms.best_within(budget)
            assert terms.spent(choice) <= budget
            value = sum(row[v] for row, v in zip(gain, choice, strict=True))
            exact = max(
                sum(row[v] for row, v in zip(gain, c, strict=True))
                for c in itertools.product(range(4), repeat=5)
                if terms.spent(c) <= budget
            )
            assert value >= exact - 2 * gamma  # what a multiplier may leave is worth two steps
            part = propose(terms, (0,) * 5, Limit(budget=budget), 2)
            assert part is None or sum(v > 0 for v in part.choice) <= 2
    with pytest.raises(InputError, match="below 5, the least; raise it"):
        terms.best_within(4.0)


def test_lanczos_is_the_matrix_exponential_without_negative_curvature() -> None:
    generator = torch.Generator().manual_seed(1)
    q, _ = torch.linalg.qr(torch.randn(30, 30, generator=generator).double())
    values = torch.cat([torch.tensor([-3.0, 400.0, 50.0]), torch.linspace(0, 3, 27)]).double()
    a = q @ torch.diag(values) @ q.T
    p = torch.randn(30, generator=generator).double()
    found = carry_back(lambda v: a @ v, p, [0.5, 1.0], 30)
    for time, got in zip((0.5, 1.0), found, strict=True):
        expected = q @ torch.diag(torch.exp(-time * values.clamp_min(0))) @ q.T @ p
        assert torch.allclose(got, expected, atol=1e-8)
    few = carry_back(lambda v: a @ v, p, [1.0], 10)[0]
    assert float((few - found[1]).norm() / found[1].norm()) < 0.1
    assert float(carry_back(lambda v: a @ v, p * 0, [1.0], 4)[0].norm()) == 0


def task(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy copies of four images."""
    generator, y = torch.Generator().manual_seed(seed), labels(count, seed=seed)
    shapes = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(9)).double()
    noise = 0.1 * torch.randn(count, 1, 6, 6, generator=generator).double()
    return (shapes[y] + noise).clamp(0, 1), y


def batches(count: int) -> list[Batch]:
    return [Batch(*task(12, seed), torch.arange(12), 12, 0, None) for seed in range(count)]


def linear_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()


@pytest.mark.parametrize(
    ("net", "aligned", "length"), [(linear_net, 0.997, 0.02), (tiny_net, 0.92, 0.4)]
)
def test_the_costate_of_an_epoch_is_near_the_exact_one(
    net: Callable[[], nn.Module], aligned: float, length: float
) -> None:
    """Two epochs of six updates. The exact co-state has every update's own weights and images."""
    torch.manual_seed(0)
    method, lr, epoch, model = PGD(ball=BALL), 0.1, batches(6), net()
    u = Control(2, 0.05)
    path = record(model, method, epoch * 2, lambda t: u, lr=lr)

    def terminal(net: nn.Module) -> Tensor:
        x, y = task(40, 99)
        return ce(net(x), y).mean()

    exact = full_criterion(path, [], terminal).costate
    phi = torch.autograd.grad(terminal(model), list(model.parameters()))
    last = p = -torch.cat([g.flatten() for g in phi])
    ends = [path.steps[0].theta, path.steps[6].theta, path.end]
    for start, end in ((ends[1], ends[2]), (ends[0], ends[1])):
        nn.utils.vector_to_parameters((start + end) / 2, model.parameters())
        motion = Motion(rate=lr * 6, decay=0.0, travelled=[], sizes=[])
        found = probe_epoch(
            ProbeNet(model, attack_mode="train"), method, epoch, {}, motion, u, [u], p, order=8
        )
        p = found.costate
    nn.utils.vector_to_parameters(path.end, model.parameters())
    assert float(nn.functional.cosine_similarity(p, exact, dim=0)) > aligned
    assert float(nn.functional.cosine_similarity(last, exact, dim=0)) < 0.7  # it has turned
    assert float(p.norm() / exact.norm()) == pytest.approx(1, abs=length)


@pytest.mark.parametrize("method", [PGD(ball=BALL), TRADES(ball=BALL), YOPO(ball=BALL)])
def test_a_hessian_product_is_the_derivative_of_the_displacement(method: Method) -> None:
    model, (batch,) = tiny_net(), batches(1)
    net = ProbeNet(model, first_layer="1")
    Probe(net, method, batch, {}).displacement(Control(2, 0.05))
    passes, v = net.passes, torch.randn(len(flat(model))).double()
    found = net.hessian_product(passes, v, 0)

    def gradient(weights: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(weights, model.parameters())
        total = sum(s.scale * s.loss(*[model(x) for x in s.inputs], s.y).mean() for s in passes)
        parts = torch.autograd.grad(total, list(model.parameters()))  # type: ignore[arg-type]
        return torch.cat([g.flatten() for g in parts])

    at = flat(model)
    slope = (gradient(at + 1e-5 * v) - gradient(at - 1e-5 * v)) / 2e-5
    assert torch.allclose(found, slope, atol=1e-6)


def test_a_gain_is_what_a_change_of_the_control_does_to_the_terminal_cost() -> None:
    """One short epoch, trained with an adversary and without: H predicts the difference."""
    torch.manual_seed(0)
    method, lr, epoch, model = PGD(ball=BALL), 0.02, batches(6), linear_net()
    start, (x, y) = flat(model), task(40, 99)
    strong, none = Control(4, 0.03), Control(0, 0.1)
    end = record(model, method, epoch, lambda t: strong, lr=lr).end
    attacked = pgd(model, x, y, ball=BALL, steps=5, random_start=False)
    phi = ce(model(attacked), y).mean()
    p = -torch.cat([g.flatten() for g in torch.autograd.grad(phi, list(model.parameters()))])
    nn.utils.vector_to_parameters((start + end) / 2, model.parameters())
    net = ProbeNet(model, attack_mode="train")
    motion = Motion(lr * 6, 0.0, [], [])
    found = probe_epoch(net, method, epoch, {}, motion, strong, [none, strong], p)
    without, own = (sum(each) / len(each) for each in found.gains)
    nn.utils.vector_to_parameters(start, model.parameters())
    record(model, method, epoch, lambda t: none, lr=lr)
    other = ce(model(attacked), y).mean()
    assert own - without == pytest.approx(float((other - phi).detach()), rel=0.15)


def test_without_a_rate_every_tensor_moves_as_far_as_it_did() -> None:
    motion = Motion(rate=None, decay=0.0, travelled=[2.0, 0.0, 3.0], sizes=[3, 2, 1])
    g = torch.tensor([3.0, 0.0, 4.0, 1.0, 1.0, -7.0])
    moved = motion.scale(g) * g
    assert moved.tolist() == pytest.approx([1.2, 0, 1.6, 0, 0, -3])
    assert (motion.scale(10 * g) * 10 * g).tolist() == pytest.approx(moved.tolist())
