"""Writes the tables and the picture of docs/annealing.md: python evidence/annealing.py (--check
compares the tables)."""

import statistics
import sys
from collections.abc import Sequence
from functools import partial

import stored
from amata.report.figures import BLUE, GREEN, GREY, ORANGE
from measure import ROOT
from page import GRADIENTS, Parts, markdown, picture, refuse_others, rewrite

STUDY, QUICK = "cifar10-equal-cost", "cifar10-quick-equal-cost"
DOCS = ROOT / "docs"
ARMS = {
    "k2": "constant 2",
    "linear-1-3": "linear 1 → 3",
    "k3": "constant 3",
    "linear-1-5": "linear 1 → 5",
    "falling-5-1": "falling 5 → 1",
    "shuffled-1-5": "shuffled 1 → 5",
    "k4": "constant 4",
}
PAIRS = (
    ("linear-1-5", "k3"),
    ("linear-1-5", "falling-5-1"),
    ("linear-1-5", "shuffled-1-5"),
    ("linear-1-3", "k2"),
)
"""The comparisons that the study states."""
QUICK_ARMS = {
    "k1": "constant 1",
    "k1-tau10": "constant 1, α = 10/255",
    "linear-1-2": "linear 1 → 2",
    "nfgsm": "N-FGSM, 24 epochs",
    "linear-1-3": "linear 1 → 3",
    "falling-3-1": "falling 3 → 1",
    "k2": "constant 2",
    "linear-2-3": "linear 2 → 3",
    "k3": "constant 3",
}
QUICK_PAIRS = (("linear-1-3", "k2"), ("linear-1-3", "falling-3-1"))
QUICK_LINES = (("linear-1-2", "k1-tau10", "k2"), ("linear-2-3", "k2", "k3"))
"""Annealed arms and the constants on either side, for the value between them at equal cost."""
ATTACKS = {"pgd-20": "PGD-20", "cw-pgd-20": "CW-PGD-20"}
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""The 97.5% quantile of Student's t by degrees of freedom."""


def steps(study: str, title: str) -> list[int]:
    """K of each epoch; the same for all seeds."""
    (found,) = {tuple(row["steps"] for row in rows) for rows in stored.epochs(study, title)}
    return list(found)


def arms_table(study: str, arms: dict[str, str]) -> str:
    found, rows = stored.summaries(study), []
    for title, name in arms.items():
        if title not in found:
            continue
        runs, k = found[title], steps(study, title)
        rows.append(
            [
                name,
                f"{statistics.mean(k):.2f}",
                f"{stored.cost(runs):.2f}",
                f"{stored.seconds(runs):.1f}",
                *(stored.accuracy(runs, attack) for attack in ("clean", *ATTACKS)),
                str(len(runs)),
            ]
        )
    head = ["K over the epochs", "mean K", GRADIENTS, "seconds", "clean %"]
    return markdown([*head, *(f"{a} %" for a in ATTACKS.values()), "seeds"], rows)


def context() -> str:
    """The same training with other step sizes, from the study behind the README."""
    others = stored.summaries("cifar10") | stored.summaries("cifar10-others")
    rows = {"pgd2": "K = 2, α = 2/255", "pgd10": "K = 10, α = 2/255", "amata": "linear 2 → 10"}
    found = [f"{name}: {stored.accuracy(others[title], 'pgd-20')}" for title, name in rows.items()]
    return f"PGD-20 accuracy of the same training in [docs/paper.md](paper.md): {'; '.join(found)}."


def by_seed(study: str, title: str, attack: str) -> dict[str, float]:
    """Accuracy in percent by seed."""
    return {
        run.name.removeprefix(f"{title}-"): 100
        * stored.summary(run)["evaluation"][attack]["accuracy"]
        for run in stored.runs_of(study, title)
    }


def paired(study: str, first: str, second: str, attack: str) -> list[float]:
    """The differences in points on the seeds that both arms have."""
    a, b = by_seed(study, first, attack), by_seed(study, second, attack)
    return [a[seed] - b[seed] for seed in a if seed in b]


def above_line(annealed: str, below: str, above: str, attack: str) -> list[float]:
    """How far an annealed arm is above the line between two constants, at its gradient
    evaluations, by seed."""
    runs = stored.summaries(QUICK)
    costs = [stored.cost(runs[title]) for title in (annealed, below, above)]
    share = (costs[0] - costs[1]) / (costs[2] - costs[1])
    a, b, c = (by_seed(QUICK, title, attack) for title in (annealed, below, above))
    return [a[seed] - (1 - share) * b[seed] - share * c[seed] for seed in a]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half of its 95% interval by Student's t."""
    spread = statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), T_975[len(values) - 1] * spread


def differences_table() -> str:
    rows, found = [], []
    for first, second in PAIRS:
        cells = []
        for attack in ATTACKS:
            values = paired(STUDY, first, second, attack)
            if len(values) < 2:
                return stored.pending(STUDY)
            found.append(interval(values))
            cells.append(written(found[-1]))
        rows.append([f"{ARMS[first]} minus {ARMS[second]}", *cells, str(len(values))])
    clear = sum(abs(mean) > half for mean, half in found)
    return (
        f"{markdown(['difference in points', *ATTACKS.values(), 'seeds'], rows)}\n\n"
        "Mean over seeds ± half of the 95% interval (Student's t, paired by seed). "
        f"{clear or 'None'} of the {len(found)} intervals "
        f"{'excludes' if clear < 2 else 'exclude'} zero. "
        f"Their half-widths are {min(h for _, h in found):.2f} to "
        f"{max(h for _, h in found):.2f} points."
    )


def quick_differences_table() -> str:
    rows = []
    for first, second in QUICK_PAIRS:
        cells = [interval(paired(QUICK, first, second, attack)) for attack in ATTACKS]
        rows.append([f"{QUICK_ARMS[first]} minus {QUICK_ARMS[second]}", *map(written, cells)])
    for arm, below, above in QUICK_LINES:
        cells = [interval(above_line(arm, below, above, attack)) for attack in ATTACKS]
        between = f"the line between {QUICK_ARMS[below]} and {QUICK_ARMS[above]}"
        rows.append([f"{QUICK_ARMS[arm]} minus {between}", *map(written, cells)])
    return markdown(["difference in points", *ATTACKS.values()], rows)


def written(cell: tuple[float, float]) -> str:
    return "{:+.2f} ± {:.2f}".format(*cell)


def selection_table() -> str:
    """When each run's checkpoint was selected, and what training had cost by then."""
    rows = []
    for title, name in ARMS.items():
        attack = stored.valid_attack(STUDY, title)
        chosen, cost, best, last = [], [], [], []
        for run in stored.runs_of(STUDY, title):
            epochs, epoch = stored.read_rows(run)[0], stored.summary(run)["best_epoch"]
            chosen.append(str(epoch + 1))
            cost.append(sum(row["steps"] + 1 for row in epochs[: epoch + 1]))
            best.append(epochs[epoch]["valid"][attack])
            last.append(epochs[-1]["valid"][attack])
        means = stored.mean(best, 1, 100), stored.mean(last, 1, 100)
        rows.append([name, " · ".join(chosen), f"{statistics.mean(cost):.1f}", *means])
    head = ["K over the epochs", "selected epoch, by seed", "gradients per image up to it"]
    return markdown([*head, "held-out PGD-10 % then", "after the last epoch"], rows)


def draw() -> None:
    """K over epochs of the arms with a mean K of 3, and PGD-20 of all arms by seed."""
    colours = {"k3": GREY, "linear-1-5": ORANGE, "falling-5-1": BLUE, "shuffled-1-5": GREEN}
    with picture(DOCS / "annealing.svg", 2, (8.4, 3.1)) as (k, robust):
        for title, colour in colours.items():
            k.step(range(1, 31), steps(STUDY, title), where="mid", color=colour, label=ARMS[title])
        k.set(xlabel="epoch", ylabel="inner steps K", ylim=(0, 6.6))
        k.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
        for place, title in enumerate(ARMS):
            values = list(by_seed(STUDY, title, "pgd-20").values())
            colour = colours.get(title, ORANGE if title.startswith("linear") else GREY)
            robust.plot(values, [place] * len(values), ls="none", marker="o", ms=5, color=colour)
            robust.plot(statistics.mean(values), place, marker="|", ms=16, mew=1.6, color=colour)
        robust.set_yticks(range(len(ARMS)), ARMS.values())
        robust.invert_yaxis()
        robust.set(xlabel="PGD-20 accuracy (%): seeds and their mean")


COLLAPSED = 40
"""PGD-20 accuracy in percent under which a run of the quick study is not drawn."""


def draw_quick() -> None:
    """Accuracy against training time: the constants as a line, the other arms beside it."""
    runs = stored.summaries(QUICK)
    constants = ("k1-tau10", "k2", "k3")
    colours = {"nfgsm": BLUE, **dict.fromkeys(constants, GREY)}
    with picture(DOCS / "annealing-quick.svg", 2, (8.4, 3.3)) as axes:
        for ax, (attack, name) in zip(axes, ATTACKS.items(), strict=True):
            means = {t: statistics.mean(by_seed(QUICK, t, attack).values()) for t in QUICK_ARMS}
            seconds = {t: stored.seconds(runs[t]) for t in QUICK_ARMS}
            ax.plot([seconds[t] for t in constants], [means[t] for t in constants], color=GREY)
            for title, label in QUICK_ARMS.items():
                if means[title] < COLLAPSED:
                    continue
                values, colour = by_seed(QUICK, title, attack).values(), colours.get(title, ORANGE)
                ax.plot(
                    [seconds[title]] * len(values),
                    values,
                    ls="none",
                    marker="o",
                    ms=3.5,
                    color=colour,
                    alpha=0.5,
                )
                ax.plot(seconds[title], means[title], marker="_", ms=13, mew=2, color=colour)
                # Annealed arms are named above their points, the others below.
                up = colour == ORANGE
                ax.annotate(
                    label.partition(",")[0],
                    (seconds[title], max(values) if up else min(values)),
                    xytext=(-4 if up else 4, 6 if up else -6),
                    textcoords="offset points",
                    fontsize=7.5,
                    color=colour,
                    ha="right" if up and title != "linear-2-3" else "left",
                    va="bottom" if up else "top",
                )
            ax.set(xlabel="training seconds, one H200", ylabel=f"{name} accuracy (%)")
            ax.margins(0.17, 0.18)


PARTS: Parts = {
    "arms": partial(arms_table, STUDY, ARMS),
    "context": context,
    "differences": differences_table,
    "selection": selection_table,
    "quick-arms": partial(arms_table, QUICK, QUICK_ARMS),
    "quick-differences": quick_differences_table,
}


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    if "--check" not in sys.argv:
        draw()
        draw_quick()
    rewrite({DOCS / "annealing.md": PARTS}, "annealing")
