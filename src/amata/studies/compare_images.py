"""The same test images under attack, one row per recipe of a comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from amata.attacks import parse_attack
from amata.attacks.preserve import untouched
from amata.errors import InputError
from amata.runs import RunFolder
from amata.seeds import derive
from amata.training.loaded import load_trained

IMAGES = 8


@dataclass(frozen=True, eq=False)
class ComparedImages:
    """Images, and what the attack made of them against each recipe."""

    attack: str
    indices: list[int]
    labels: list[str]
    """The names of the true classes."""
    x: np.ndarray[Any, Any]
    rows: list[tuple[str, np.ndarray[Any, Any], list[tuple[str, float]]]]
    """For each recipe: its title, the adversarial images, and the predicted classes with their
    probabilities."""


def compare_images(
    runs: Sequence[RunFolder], titles: Sequence[str], note: Callable[[str], None]
) -> ComparedImages | None:
    """Attack evenly spaced test images with each recipe's first run. None, with a note, if weights
    or data are not at hand. The recipes are the user's own: code that they name is run."""
    first = dict(zip(reversed(titles), reversed(runs), strict=True))
    found: ComparedImages | None = None
    try:
        for title in dict.fromkeys(titles):
            net, recipe, splits = load_trained(
                first[title].path, ("data.in_memory=false", "data.workers=0"), trust=True
            )
            device = next((p.device for p in net.parameters()), torch.device("cpu"))
            if found is None:
                count = min(IMAGES, len(splits.test))
                indices = [i * len(splits.test) // count for i in range(count)]
                ball, names = recipe.ball, splits.test.names
                attack = parse_attack("pgd-20", step_size=recipe.eval.step_size)
                seed = derive(recipe.train.seed, "gallery")
                batch = splits.test.read([torch.tensor(indices)], torch.device("cpu"), None)
                x, y = next(iter(batch))
                labels = [names[label] for label in y.tolist()]
                found = ComparedImages(attack.name, indices, labels, x.numpy(), [])
            x_adv = attack(net, x.to(device), y.to(device), ball=ball, seed=seed)
            with untouched(net), torch.no_grad():
                probability, label = net(x_adv).float().softmax(1).max(1)
            said = zip([names[i] for i in label.tolist()], probability.tolist(), strict=True)
            found.rows.append((title, x_adv.cpu().numpy(), list(said)))
    except InputError as error:
        note(f"the report has no images: {error}")
        return None
    return found
