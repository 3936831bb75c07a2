"""Catastrophic overfitting: a single-step method's robustness can vanish within an epoch while its own loss goes on falling."""

from typing import Any, NamedTuple

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
        return f"catastrophic overfitting in epoch {self.epoch}: {PROBE} on held-out images fell from {self.before:.1%} to {self.after:.1%}"


def collapsed(before: float | None, after: float) -> bool:
    return before is not None and after < before - DROP
