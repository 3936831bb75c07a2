"""Catastrophic overfitting: a single-step method's robustness can vanish within an epoch while its own loss goes on falling."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from amata.errors import AmataError
from amata.training.trainer import Trainer

PROBE = "pgd-10"
IMAGES = 256
DROP = 0.2
"""A fall of the probe's accuracy by this much from one epoch to the next is a collapse (the threshold of Wong et al. 2020)."""


class Collapse(NamedTuple):
    """An epoch in which the accuracy under the probe fell too far."""

    epoch: int
    before: float
    after: float

    def row(self, action: str, extra_steps: int) -> dict[str, Any]:
        """The event as a row of metrics.jsonl."""
        return {"event": "collapse", "action": action, "extra_steps": extra_steps, **self._asdict()}

    def __str__(self) -> str:
        fell = f"{PROBE} on held-out images fell from {self.before:.1%} to {self.after:.1%}"
        return f"catastrophic overfitting in epoch {self.epoch + 1}: {fell}"


def collapsed(before: float | None, after: float) -> bool:
    return before is not None and after < before - DROP


class Guard:
    """Looks at the trained weights after every epoch of a single gradient step, and knows the way back from a collapse."""

    def __init__(self, trainer: Trainer, probe: Callable[[], float] | None) -> None:
        """`probe` gives the accuracy of the weights under PROBE on held-out images; none where nothing is held out."""
        self.trainer, self.probe = trainer, probe
        self.good: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        """The state at the end of the last good epoch."""

    @property
    def armed(self) -> bool:
        """Whether the schedule asks for a single gradient step now, of a method that may collapse by it."""
        recipe = self.trainer.recipe
        may_collapse = getattr(recipe.method, "may_collapse", False)
        return self.probe is not None and self.trainer.scheduled().steps == 1 and recipe.train.guard != "ignore" and may_collapse

    def remember(self) -> None:
        """Keep the state after a good epoch."""
        if self.armed:
            tensors, record = self.trainer.state()
            self.good = {k: v.detach().clone() for k, v in tensors.items()}, record

    def look(self) -> Collapse | None:
        """After an epoch: whether robustness has collapsed since the last good one."""
        at = self.trainer.at
        if not self.armed:
            at.probe = None
            return None
        assert self.probe is not None
        now = self.probe()
        if at.probe is not None and collapsed(at.probe, now):
            return Collapse(at.epoch, at.probe, now)
        at.probe = now
        return None

    def event(self, collapse: Collapse) -> dict[str, Any]:
        """What is to be done about a collapse, as the recipe says, in a row of metrics.jsonl."""
        action = "stop" if self.good is None else self.trainer.recipe.train.guard
        return collapse.row(action, self.trainer.at.extra_steps + (action == "rollback"))

    def go_back(self, collapse: Collapse, event: dict[str, Any]) -> None:
        """To the last good epoch, to go on from there with one more inner step, or to stop there."""
        if self.good is not None:
            self.trainer.rewind(*self.good)
        if event["action"] == "stop":
            raise AmataError(f"{collapse}; stopped, with the last good checkpoint kept: anneal with more steps, or set train.guard")
        self.trainer.at.extra_steps = event["extra_steps"]
