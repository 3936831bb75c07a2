"""The method of successive approximations (MSA) where a run is a whole training: train, carry the
co-state back, take the control with the highest Hamiltonian in every part of the run, train again.

A run has parts, such as epochs, with one of a few candidates in each. Under a budget the price
gamma is the multiplier for which the chosen controls fit the budget.

Plain MSA may diverge: H is exact only along the recorded run, and other controls lead elsewhere.
So it is damped as in `pmp.solve` (Chernousko and Lyubushin 1982): if the new run is not better than
the best so far, the next one starts from the best again and changes half as many parts, those with
the largest gaps in H. The extended MSA (Li et al. 2017, arXiv:1710.09513) penalises the distance
between displacements instead. With few candidates per part its maximum jumps from many changes to
none, and its weight has to be tuned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amata.errors import InputError

Choice = tuple[int, ...]
"""The candidate of every part, by its index."""

Rows = Sequence[Sequence[float]]
"""A row for each part, a column for each candidate."""

HALVINGS = 60


class Terms(NamedTuple):
    """The two terms of the Hamiltonian along one run."""

    gain: Rows
    """<p, F(v)>: the fall of the terminal cost, to first order."""
    price: Rows
    """R(v) at gamma = 1."""

    def values(self, part: int, gamma: float) -> list[float]:
        """H of every candidate."""
        return [g - gamma * r for g, r in zip(self.gain[part], self.price[part], strict=True)]

    def spent(self, choice: Choice) -> float:
        return sum(row[v] for row, v in zip(self.price, choice, strict=True))

    def best(self, gamma: float) -> Choice:
        """In every part the candidate with the highest H, of equal ones the cheapest."""
        found = []
        for part, price in enumerate(self.price):
            h = self.values(part, gamma)
            found.append(max(range(len(h)), key=lambda v: (h[v], -price[v])))
        return tuple(found)

    def best_within(self, budget: float) -> tuple[Choice, float]:
        """The best choice whose prices sum to at most the budget, and its gamma, by bisection.

        The choice jumps where gamma passes a tie, so a part of the budget may be left. It goes to
        the changes with the highest gain per price that fit."""
        room = budget * (1 + 1e-9)
        cheapest = sum(map(min, self.price))
        if cheapest > room:
            raise InputError(f"a budget of {budget:g} is below {cheapest:g}, the least; raise it")
        low = high = 0.0
        if self.spent(self.best(0.0)) > room:
            high = 1e-12
            while self.spent(self.best(high)) > room:
                low, high = high, 4 * high
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                fits = self.spent(self.best(middle)) <= room
                low, high = (low, middle) if fits else (middle, high)
        return self._filled(self.best(high), room), high

    def _filled(self, choice: Choice, room: float) -> Choice:
        left = room - self.spent(choice)
        while True:
            better = []
            for part, (gain, price) in enumerate(zip(self.gain, self.price, strict=True)):
                own = choice[part]
                for v in range(len(price)):
                    more, gained = price[v] - price[own], gain[v] - gain[own]
                    if 0 < more <= left and gained > 0:
                        better.append((gained / more, part, v, more))
            if not better:
                return choice
            _, part, v, more = max(better)
            choice, left = (*choice[:part], v, *choice[part + 1 :]), left - more


@dataclass(frozen=True)
class Limit:
    """A price of what is spent, or a budget for it: one of the two."""

    gamma: float | None = None
    budget: float | None = None

    def objective(self, terminal: float, spent: float) -> float:
        return terminal if self.gamma is None else terminal + self.gamma * spent

    def best(self, terms: Terms) -> tuple[Choice, float]:
        """The choice that maximises H, and its gamma."""
        if self.gamma is not None:
            return terms.best(self.gamma), self.gamma
        assert self.budget is not None
        return terms.best_within(self.budget)

    def allows(self, spent: float) -> bool:
        return self.budget is None or spent <= self.budget * (1 + 1e-9)


class Proposal(NamedTuple):
    choice: Choice
    gamma: float


def propose(
    terms: Terms, current: Choice, limit: Limit, most: int, known: Sequence[Choice] = ()
) -> Proposal | None:
    """A choice with a higher H that changes about `most` parts of the current one and is not
    `known`: as many as possible, the largest gaps first. Under a budget, cuts that pay for them
    are added. None if no change is left: the principle holds, as far as H can tell."""
    target, gamma = limit.best(terms)

    def gap(part: int) -> float:
        h = terms.values(part, gamma)
        return h[target[part]] - h[current[part]]

    changed = [part for part, v in enumerate(target) if v != current[part]]
    changed.sort(key=gap, reverse=True)
    for count in range(min(most, len(changed)), 0, -1):
        choice = list(current)
        for number, part in enumerate(changed):
            over = not limit.allows(terms.spent(tuple(choice)))
            cheaper = terms.price[part][target[part]] < terms.price[part][current[part]]
            if number < count or (over and cheaper):
                choice[part] = target[part]
        found = tuple(choice)
        if limit.allows(terms.spent(found)) and found not in known:
            return Proposal(found, gamma)
    return None


@dataclass(frozen=True)
class Iterate:
    choice: Choice
    terminal: float
    """Phi at the end of the run."""
    spent: float
    objective: float
    gamma: float | None
    """The price that led to this choice; None for the first run."""
    accepted: bool
    """Whether it is better than all before it."""


def successive(
    start: Choice,
    limit: Limit,
    *,
    train: Callable[[Choice], tuple[float, float]],
    measure: Callable[[Choice], Terms],
    iterations: int,
    note: Callable[[Iterate], None] = lambda iterate: None,
) -> list[Iterate]:
    """The runs of MSA, the first under `start`; the last accepted one is the best. `train` returns
    the terminal cost of a run and what it spent, `measure` the Hamiltonian along it. `note` is
    called after every run."""
    iterates: list[Iterate] = []

    def run(choice: Choice, gamma: float | None = None) -> Iterate:
        terminal, spent = train(choice)
        objective = limit.objective(terminal, spent)
        accepted = all(objective < other.objective for other in iterates)
        iterates.append(Iterate(choice, terminal, spent, objective, gamma, accepted))
        note(iterates[-1])
        return iterates[-1]

    best, terms, most = run(start), None, len(start)
    for _ in range(iterations):
        terms = terms or measure(best.choice)
        proposal = propose(terms, best.choice, limit, most, [i.choice for i in iterates])
        if proposal is None:
            break
        new = run(*proposal)
        if new.accepted:
            best, terms, most = new, None, len(start)
        else:
            changes = sum(v != w for v, w in zip(new.choice, best.choice, strict=True))
            most = max(1, changes // 2)
    return iterates
