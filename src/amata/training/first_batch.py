"""What is checked of a batch before an epoch is spent on it."""

import torch
from torch import nn

from amata.attacks.checks import are_probabilities, check_images, check_logits, forward
from amata.batch import Batch
from amata.engine import no_cudnn_benchmark
from amata.errors import InputError
from amata.recipes import Recipe


def check_batch(model: nn.Module, batch: Batch, recipe: Recipe, place: str) -> int:
    """Refuse images outside [0, 1], labels outside the classes and models without logits. Returns
    how many outputs the model has. `place` names the batch of a stream; empty for a data set."""
    try:
        check_images(batch.x, batch.y)
        model.eval()
        with torch.no_grad(), no_cudnn_benchmark():
            z = forward(model, batch.x[:2])
        check_logits(z, batch.y, n=len(batch.x[:2]), what="" if place else "training ")
        if (z.isnan() | (z == torch.inf)).any():  # -inf excludes a class
            raise InputError(
                "the model's logits are NaN or infinite on its first images: check its weights and "
                "its forward()"
            )
        if are_probabilities(z):
            raise InputError(
                "the model's outputs are probabilities: each row sums to 1. Drop its softmax: "
                "losses and attacks take logits"
            )
        given = recipe.optim.class_weights
        if isinstance(given, list) and len(given) != z.shape[1]:
            raise InputError(
                f"optim.class_weights has {len(given)} weights and the model {z.shape[1]} "
                "classes; give one for each"
            )
    except InputError as error:
        raise InputError(f"{place}{error}") from error
    return z.shape[1]


def check_held_out_classes(classes: int, outputs: int) -> None:
    """Labels of the validation data must be classes of the model."""
    if classes > outputs:
        raise InputError(
            f"the validation data have labels up to {classes - 1}, and the model has {outputs} "
            f"output{'s' * (outputs != 1)}: number classes from 0, or give the model more outputs"
        )


def spare_outputs(recipe: Recipe, outputs: int) -> str:
    """A note on outputs for which the data have no class; empty if there are none."""
    classes = getattr(recipe.data, "classes", None)  # of data that come from Python
    meant = isinstance(recipe.optim.class_weights, list)  # one for each
    if classes is None or outputs <= classes or meant:
        return ""
    return (
        f"the model has {outputs} outputs, and the training data have {classes} "
        f"class{'es' * (classes != 1)}: check its last layer"
    )
