"""One study as a section of docs/studies.md: arms, differences, trials, selected checkpoints and
where its runs were made."""

import json
import math
import statistics
from typing import Any

import origins
import steepness
import stored
from amata import recipes
from amata.schedules import closed_loop
from amata.studies.intervals import Estimate
from amata.studies.space import describe
from definition import FRONT, RESULTS, SEARCH, Test, Tuning
from differences import collapsed, difference
from page import attack_name, markdown
from study import STUDIES

LISTED = 10
"""Seeds of which every one is listed, at most."""


def arms_table(study: str) -> str:
    """The arms that have runs, by rising cost."""
    own, found = STUDIES[study], stored.summaries(study)
    attacks = [*own.attacks, *(["autoattack"] if own.autoattack else [])]
    timed, rows = stored.timed(study), []
    for title, runs in sorted(found.items(), key=lambda item: stored.total_cost(item[1])):
        steps = [row["steps"] for row in stored.epochs(study, title)[0]]
        rows.append(
            [
                own.labels[title],
                f"{statistics.mean(steps):.2f}",
                f"{stored.total_cost(runs):.1f}",
                *([f"{stored.seconds(runs):.1f}"] if timed else []),
                *(
                    ""
                    if title not in own.autoattack and attack not in own.attacks
                    else stored.accuracy(runs, attack)
                    for attack in attacks
                ),
                seeds(study, title, runs),
            ]
        )
    head = ["arm", "mean K", "gradients per image", *(["seconds"] if timed else [])]
    return markdown([*head, *(f"{attack_name(a)} %" for a in attacks), "seeds"], rows)


def seeds(study: str, title: str, runs: stored.Rows) -> str:
    """How many there are, how many of them collapsed, and how often the guard went back."""
    counts = {
        "collapsed": len(collapsed(study)[title]),
        "epochs rolled back": sum(run["rolled_back"] for run in runs),
    }
    return ", ".join([str(len(runs)), *(f"{n} {what}" for what, n in counts.items() if n)])


def test_name(study: str, test: Test) -> str:
    labels = STUDIES[study].labels
    against = "the line of constants" if test.against == FRONT else labels[test.against]
    return f"{labels[test.arm]} minus {against}"


def differences_table(study: str) -> str:
    """The differences that the study states, as far as they are measured, and beside them those in
    clean accuracy, which are not counted."""
    attacks = [attack for attack in STUDIES[study].attacks if attack != "clean"]
    rows: list[list[str]] = []
    found: list[Estimate] = []
    for test in STUDIES[study].tests:
        cells = [difference(study, test, attack) for attack in attacks]
        known = [cell for cell in cells if cell is not None]
        found += known
        cells.append(difference(study, test, "clean"))
        written = ["not measured" if cell is None else str(cell) for cell in cells]
        rows.append([test_name(study, test), *written, str(known[0].seeds) if known else ""])
    if not found:
        return "No difference has two seeds yet."
    clear = sum(abs(cell.mean) > cell.half for cell in found)
    held = "seeds and images" if all(cell.images for cell in found) else "seeds, not images"
    return (
        f"{markdown(['difference in points', *map(attack_name, attacks), 'clean', 'seeds'], rows)}"
        f"\n\nMean ± half of the 95% interval, which holds {held}. Intervals under attack that "
        f"exclude zero: {clear} of {len(found)}. Half-widths: "
        f"{min(cell.half for cell in found):.2f} to {max(cell.half for cell in found):.2f} points."
    )


def tuning_table(study: str) -> str:
    """All trials, and which one was chosen."""
    tuning, search = STUDIES[study].tuning, STUDIES[study].search
    if tuning is None:
        other = "" if search is None else "other "
        return f"No {other}arm was tuned in this study."
    columns = []
    for title in STUDIES[study].labels:
        found = [trial["held_out"] if trial else None for trial in trials(study, title)]
        cells = [_held_out(accuracy, tuning) for accuracy in found]
        chosen = tuning.winner(found)
        if chosen is not None and all(found):
            cells[chosen] = f"**{cells[chosen]}**"
        columns.append(cells)
    clean = ", clean" if tuning.least_clean else ""
    head = [f"held-out {attack_name(tuning.attack)}{clean} %", *STUDIES[study].labels.values()]
    rows = [[name, *cells] for name, *cells in zip(trial_names(tuning), *columns, strict=True)]
    shared = " ".join(shared_sets(tuning))
    bold = "Bold: chosen, by the rule in the study's file, once all trials of the arm are made."
    return (
        f"{markdown(head, rows)}\n\n{bold}{f' All trials have `{shared}`.' if shared else ''}"
        f"{repeated_trials(study, tuning.attack)}{course_table(study, tuning)}"
    )


def shared_sets(tuning: Tuning) -> list[str]:
    """The settings of all trials."""
    first, *others = tuning.trials
    return [one for one in first if others and all(one in sets for sets in others)]


def trial_names(tuning: Tuning) -> list[str]:
    """Each trial by its own settings."""
    shared = shared_sets(tuning)
    own = [" ".join(one for one in sets if one not in shared) for sets in tuning.trials]
    return [f"`{sets}`" if sets else "as it is" for sets in own]


def course_table(study: str, tuning: Tuning) -> str:
    """Held-out robust accuracy during the trials, if these were validated more than once."""
    courses = []
    for title, label in STUDIES[study].labels.items():
        for name, trial in zip(trial_names(tuning), trials(study, title), strict=True):
            all_attacks = dict((trial or {}).get("course", ()))
            course = {e: a[tuning.attack] for e, a in all_attacks.items() if tuning.attack in a}
            if len(course) > 1:
                courses.append(([label, name], course))
    epochs = sorted({epoch for _, course in courses for epoch in course})
    rows = [
        [*about, *(f"{100 * course[e]:.1f}" if e in course else "" for e in epochs)]
        for about, course in courses
    ]
    head = ["arm", f"held-out {attack_name(tuning.attack)} % after epoch", *map(str, epochs)]
    return f"\n\n{markdown(head, rows)}" if rows else ""


def trials(study: str, title: str) -> list[dict[str, Any] | None]:
    """The trials of an arm, None where one is not finished."""
    tuning = STUDIES[study].tuning
    count = len(tuning.trials) if tuning else 0
    files = [RESULTS / study / f"trials/{title}-{i}.json" for i in range(count)]
    return [json.loads(file.read_text()) if file.is_file() else None for file in files]


def finished_trials(study: str) -> list[dict[str, Any]]:
    return [trial for title in STUDIES[study].labels for trial in trials(study, title) if trial]


def _held_out(accuracy: dict[str, float] | None, tuning: Tuning) -> str:
    """The accuracies that decide about a trial, if it is finished."""
    attacks = [tuning.attack, "clean"] if tuning.least_clean else [tuning.attack]
    return ", ".join(f"{100 * accuracy[attack]:.2f}" for attack in attacks) if accuracy else ""


def repeated_trials(study: str, attack: str) -> str:
    """How far trials that were made twice differ."""
    found = [
        [json.loads(file.read_text())["held_out"][attack] for file in (again, first)]
        for again in sorted((RESULTS / study / "trials-again").glob("*.json"))
        if (first := RESULTS / study / "trials" / again.name).is_file()
    ]
    if not found:
        return ""
    spread = 100 * math.sqrt(statistics.mean((a - b) ** 2 for a, b in found) / 2)
    return (
        f" {len(found)} trials were made twice, with the same seed; the first counts. The "
        f"standard deviation of a trial is {spread:.2f} points."
    )


def search_table(study: str) -> str:
    """All schedules that the search tried, and the one that it chose."""
    if (search := STUDIES[study].search) is None:
        return ""
    file = RESULTS / study / SEARCH
    if not file.is_file():
        return "The schedule is not searched yet.\n\n"
    found = json.loads(file.read_text())
    rows = []
    for trial in found["trials"]:
        held_out = "" if trial["accuracy"] is None else f"{100 * trial['accuracy']:.1f}"
        chosen = trial["number"] == found["best"]["number"]
        rows.append(
            [
                describe(trial["schedule"]).replace("->", "→"),
                str(trial["epochs_trained"]),
                f"{trial['cost']:.2f}",
                f"**{held_out}**" if chosen else held_out,
            ]
        )
    after = f"held-out {attack_name(found['attack'])} % after them"
    head = ["schedule", "epochs", "gradients per image and epoch, in these", after]
    return (
        f"{markdown(head, rows)}\n\nBold: chosen; the runs stretch it to {search.arm_epochs} "
        f"epochs. Trials with fewer than {found['epochs']} epochs were stopped, below the median "
        f"of those before. Held-out accuracy is on {found['valid_n']:,} images, one seed.\n\n"
    )


def adaptive_table(study: str) -> str:
    """K of every epoch, in runs whose schedule chooses it during training."""
    rows = []
    for title, label in STUDIES[study].labels.items():
        base, sets = STUDIES[study].recipes[title]
        if closed_loop(recipes.load(base, list(sets)).schedule) is not None:
            for run in stored.runs_of(study, title):
                steps = " ".join(f"{row['steps']:g}" for row in stored.read_rows(run)[0])
                rows.append([label, run.name.rpartition("-seed")[2], steps])
    return f"\n\n{markdown(['arm', 'seed', 'K of each epoch'], rows)}" if rows else ""


def selection_table(study: str) -> str:
    """When each run's checkpoint was selected, and what training had cost by then."""
    rows = []
    for title, label in STUDIES[study].labels.items():
        chosen, cost, best, last = [], [], [], []
        for run in stored.runs_of(study, title):
            epochs, epoch = stored.read_rows(run)[0], stored.summary(run)["best_epoch"]
            if epoch is None:
                return ""
            attack = stored.valid_attack(study, title)
            chosen.append(epoch + 1)
            cost.append(stored.costs(run)[epoch])
            best.append(epochs[epoch]["valid"][attack])
            last.append(epochs[-1]["valid"][attack])
        if chosen:
            means = stored.mean(best, 1, 100), stored.mean(last, 1, 100)
            by_seed = " · ".join(map(str, chosen))
            if len(chosen) > LISTED:
                by_seed = f"{min(chosen)} to {max(chosen)}, median {statistics.median(chosen):g}"
            rows.append([label, by_seed, f"{statistics.mean(cost):.1f}", *means])
    head = ["arm", "selected epoch, by seed", "gradients per image up to it"]
    held_out = "held-out accuracy % then"
    return f"\n\n{markdown([*head, held_out, 'after the last epoch'], rows)}"


def provenance(study: str) -> str:
    """Commits and devices of the runs, how many are still missing, and which were resumed. Of the
    trials where there is no run."""
    runs = [run for title in STUDIES[study].recipes for run in stored.runs_of(study, title)]
    tried = finished_trials(study)
    made = origins.commits(runs) or sorted({f"`{t.get('commit') or 'unknown'}`" for t in tried})
    where = origins.devices(runs) or sorted({trial["device"] for trial in tried})
    planned = len(list(STUDIES[study].runs()))
    resumed = [f"`{run.name}`" for run in runs if len(stored.environments(run)) > 1]
    done = f"{len(runs)} of {planned} runs" if planned else f"{len(tried)} trials, no runs"
    return (
        f"{done}, commit {', '.join(made)}, {', '.join(where)}."
        f"{origins.sentence(runs)}{shared(study)}"
        + (f" Interrupted and resumed: {', '.join(resumed)}." if resumed else "")
    )


def shared(study: str) -> str:
    """A sentence about runs that did not have the device for themselves."""
    count = stored.processes(study)
    if count == 1:
        return ""
    return f" {count} runs at a time shared the device, so their seconds are not given."


def is_drawn(study: str) -> bool:
    """Whether there are arms to compare."""
    return len(stored.summaries(study)) > 1


def section(study: str) -> str:
    head = f"### {STUDIES[study].about}\n\n`{study}`: {provenance(study)}\n\n"
    if not stored.summaries(study):
        return f"{head}{search_table(study)}{tuning_table(study)}"
    drawn = f"![Accuracy against cost, {study}](annealing-{study}.svg)\n\n"
    return (
        f"{head}{arms_table(study)}\n\n"
        f"{drawn if is_drawn(study) else ''}{differences_table(study)}\n\n"
        f"{search_table(study)}{tuning_table(study)}{adaptive_table(study)}{selection_table(study)}"
        f"{steepness_part(study)}"
    )


def steepness_part(study: str) -> str:
    if not steepness.measured(study):
        return ""
    drawn = f"annealing-{study}-steepness.svg"
    return (
        f"\n\n{steepness.steepness_table(study)}\n\n![Steepness, {study}]({drawn})\n\n"
        "Steepness is measured after every epoch on 1,000 test images: the norm of the input "
        "gradient dl/dx, and a curvature. The curvature is the change of the gradient between the "
        "image and the corner of the ball that the gradient points to, divided by their distance."
    )
