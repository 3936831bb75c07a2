"""What a study states before its first run: arms, seeds, tuning and tests. The studies in
studies/*.toml are read from their files."""

import json
import math
import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

Sets = tuple[str, ...]
Command = tuple[str, ...]
Jobs = tuple[tuple[str, Command], ...]
"""Commands, each with the name of its output file."""
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "paper"
RECORDS = ROOT / "evidence" / "records"
SHARED = "parts.json"
"""How many processes shared the device, in the folder of a study's results; else there is none."""
SEARCH = "search/search.json"
"""Where the trials of a study's search are, in its folder."""
FRONT = "front"
"""In a test: the line between the constants, at the arm's gradient evaluations."""


@dataclass(frozen=True)
class Tuning:
    """The same trials for every arm. The settings with the highest accuracy on held-out images win;
    on a tie, the first ones."""

    trials: tuple[Sets, ...]
    attack: str
    """The attack of the held-out accuracy."""
    images: int
    """How many training images are held out in a trial."""
    seed: int
    """The seed of the trials; not one of the study's."""
    least_clean: float = 0.0
    """Only settings with this held-out clean accuracy can win; if none has it, the highest does."""

    def winner(self, held_out: Sequence[dict[str, float] | None]) -> int | None:
        """Which of the trials wins, by their held-out accuracies. None: no trial is finished."""
        found = {i: accuracy for i, accuracy in enumerate(held_out) if accuracy is not None}
        enough = [i for i, accuracy in found.items() if accuracy["clean"] >= self.least_clean]
        by = self.attack if enough else "clean"
        return max(enough or found, key=lambda i: found[i][by], default=None)


@dataclass(frozen=True)
class Search:
    """A search for a schedule, made before the first run. Its winner becomes an arm, with the
    epochs of the study: stages and the rise of K are stretched to them."""

    arm: str
    recipe: tuple[str, Sets]
    """What the trials train, with its own number of epochs."""
    budget: float
    """Gradient evaluations per image and epoch."""
    k_max: int
    trials: int
    epochs: int
    arm_sets: Sets
    """The overrides of the arm, without its schedule."""
    arm_epochs: int


@dataclass(frozen=True)
class Test:
    """arm - against, paired by seed and, where outcomes are stored, by image."""

    __test__ = False
    arm: str
    against: str


@dataclass(frozen=True)
class Study:
    """Recipes with overrides, by title, that are tested alike; then the `after` commands."""

    recipes: dict[str, tuple[str, Sets]]
    attacks: tuple[str, ...]
    seeds: int = 1
    first_seed: int = 0
    """A study that repeats another takes new seeds."""
    target: float | None = None
    timed: bool = True
    """True: train one run at a time, so that times can be compared. False: all in parallel."""
    after: Jobs = ()
    about: str = ""
    """The heading on the page."""
    labels: dict[str, str] = field(default_factory=dict)
    """How the page names the arms."""
    front: tuple[str, ...] = ()
    """The constants, by rising cost."""
    tests: tuple[Test, ...] = ()
    equal: tuple[Test, ...] = ()
    """Pairs of equal cost: the first takes at most the gradient evaluations of the second, and at
    least 95% of them."""
    equal_seconds: tuple[Test, ...] = ()
    """Pairs that take the same time, within 3%. At equal time the line of constants, which goes by
    gradient evaluations, says nothing."""
    tuning: Tuning | None = None
    search: Search | None = None
    steepness: tuple[str, ...] = ()
    """Arms whose weights are kept every epoch, to measure how steep the loss is."""
    autoattack: tuple[str, ...] = ()
    """Arms that AutoAttack attacks too: it takes longer than a short training."""
    more_seeds: dict[str, int] = field(default_factory=dict)
    """The arms that matter, with how many seeds they have instead. They are run first."""

    def runs(self) -> Iterator[tuple[int, str]]:
        """Seed and arm of every run, in order: those with the most seeds first, seed by seed."""
        seeds = {title: self.more_seeds.get(title, self.seeds) for title in self.recipes}
        for most in sorted(set(seeds.values()), reverse=True):
            arms = [title for title in seeds if seeds[title] == most]
            for seed in range(self.first_seed, self.first_seed + most):
                yield from ((seed, title) for title in arms)

    def has(self, test: Test) -> bool:
        """Whether both arms of a test are known."""
        return test.arm in self.recipes and test.against in (*self.recipes, FRONT)


def steps_of(text: str, epochs: int) -> Sequence[float]:
    """K of each epoch: "3", "7/5", "1 -> 5" (Linear), "reversed 1 -> 5" or "shuffled 1 -> 5", which
    take the K of Linear in another order."""
    if re.fullmatch(r"\d+/\d+", text):
        return [float(Fraction(text))] * epochs
    found = re.fullmatch(r"(?:(reversed|shuffled) )?(\d+)(?: -> (\d+))?", text)
    if found is None:
        raise ValueError(f'k = "{text}" must be like "3", "1 -> 5", "reversed 1 -> 5"')
    order, first, last = found[1], int(found[2]), int(found[3] or found[2])
    rising = [math.floor(first + (last - first) * t / epochs + 0.5) for t in range(epochs)]
    if order == "reversed":
        return rising[::-1]
    return random.Random(0).sample(rising, epochs) if order == "shuffled" else rising


def stages_of(steps: Sequence[float]) -> str:
    """K per epoch, as a recipe writes it."""
    return f"[{', '.join(f'[{epoch}, {k}]' for epoch, k in enumerate(steps))}]"


def label_of(k: str) -> str:
    text = k.replace("->", "→")
    if k.startswith("reversed"):
        return " → ".join(["falling " + text.split()[3], text.split()[1]])
    return text if k.startswith("shuffled") else f"{'linear' if '→' in text else 'constant'} {text}"


def read(file: Path) -> Study:
    """A study from its file, with what earlier results add to it."""
    stated = tomllib.loads(file.read_text())
    arms: dict[str, tuple[str, Sets]] = {}
    labels: dict[str, str] = {}
    for title, arm in stated["arms"].items():
        arms[title] = recipe_of(stated, arm)
        labels[title] = arm.get("label") or label_of(arm["k"])
    tuning = stated.get("tuning")
    study = Study(
        arms,
        tuple(stated["attacks"]),
        seeds=stated["seeds"],
        first_seed=stated.get("first_seed", 0),
        about=stated["about"],
        labels=labels,
        front=tuple(stated.get("front", ())),
        tests=tuple(Test(*pair) for pair in stated.get("tests", ())),
        equal=tuple(Test(*pair) for pair in stated.get("equal", ())),
        equal_seconds=tuple(Test(*pair) for pair in stated.get("equal_seconds", ())),
        tuning=tuning
        and Tuning(
            tuple(tuple(sets) for sets in tuning["trials"]),
            tuning["attack"],
            tuning["images"],
            tuning["seed"],
            tuning.get("least_clean", 0.0),
        ),
        search=search_of(stated),
        steepness=tuple(stated.get("steepness", ())),
        autoattack=tuple(stated.get("autoattack", ())),
        more_seeds={title: arm["seeds"] for title, arm in stated["arms"].items() if "seeds" in arm},
    )
    study = with_winner(study, RESULTS / file.stem / SEARCH)
    tests, equal = (tuple(filter(study.has, pairs)) for pairs in (study.tests, study.equal))
    return replace(study, tests=tests, equal=equal)


def recipe_of(stated: dict[str, Any], arm: dict[str, Any]) -> tuple[str, Sets]:
    return arm.get("recipe", stated["recipe"]), settings(stated, arm)


def search_of(stated: dict[str, Any]) -> Search | None:
    if (own := stated.get("search")) is None:
        return None
    short = {"set": own["set"], "epochs": own["epochs"]}
    return Search(
        own["arm"],
        recipe_of({**stated, **short}, {}),
        own["budget"],
        own["k_max"],
        own["trials"],
        own["epochs"],
        settings(stated, {}),
        stated["epochs"],
    )


def with_winner(study: Study, file: Path) -> Study:
    """The study with the winner of its search as an arm, if the search is finished."""
    search = study.search
    if search is None or search.arm in study.recipes or not file.is_file():
        return study
    table = dict(json.loads(file.read_text())["best"]["schedule"])
    stretch = search.arm_epochs / search.epochs
    if "eta" in table:
        table["eta"] /= stretch
    if "stages" in table:
        table["stages"] = [[round(stretch * epoch), k] for epoch, k in table["stages"]]
    own = tuple(f"schedule.{key}={json.dumps(value)}" for key, value in table.items())
    recipe = search.recipe[0], (*search.arm_sets, *own)
    label = f"searched: {table['name']}"
    if "k_min" in table:
        label += f" {table['k_min']} → {table['k_max']}"
    return replace(
        study,
        recipes={**study.recipes, search.arm: recipe},
        labels={**study.labels, search.arm: label},
    )


def settings(stated: dict[str, Any], arm: dict[str, Any]) -> Sets:
    """The overrides of an arm: those of the study, its K per epoch, its own."""
    epochs = arm.get("epochs", stated["epochs"])
    sets = [f"train.epochs={epochs}", *stated.get("set", ())]
    if "k" in arm:
        sets += [
            "schedule.name=piecewise",
            f"schedule.stages={stages_of(steps_of(arm['k'], epochs))}",
        ]
        if "alpha" in arm:
            sets.append(f"schedule.step_size={arm['alpha']}")
        else:
            sets.append(f"schedule.tau={arm['tau'] if 'tau' in arm else stated['tau']}")
    return (*sets, *arm.get("set", ()))


def all_studies() -> dict[str, Study]:
    """Those in studies/, by name."""
    files = sorted((ROOT / "evidence" / "studies").glob("*.toml"))
    return {file.stem: read(file) for file in files}
