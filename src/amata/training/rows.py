"""A row of metrics.jsonl."""

import time

from amata.metrics import EpochRow
from amata.training.trainer import Trainer


def epoch_row(trainer: Trainer) -> EpochRow:
    """What an epoch has cost, and under which control. Its validation comes later."""
    state, spent = trainer.state, trainer.state.spent
    u = trainer.control()
    row: EpochRow = {
        "epoch": state.epoch,
        "steps": u.steps,
        "step_size": u.step_size,
        "loss": trainer.mean_loss(),
        "train_seconds": round(spent.train_seconds, 3),
        "data_seconds": round(spent.data_seconds, 3),
        "grad_evals": spent.grad_evals,
        "grad_evals_per_image": spent.grad_evals / spent.images,
        "lr": trainer.lr(state.batch - 1),
        "unix_seconds": round(time.time(), 3),
    }
    if u.tau is not None:
        row["tau"] = u.tau
    if u.step_size_max is not None:
        row["step_size_max"] = u.step_size_max
    if trainer.changes_eps:
        row["eps"] = trainer.method().training_ball.eps
    if trainer.changes_size and (size := u.size or trainer.side):
        row["size"] = size
    if spent.compile_seconds:
        row["compile_seconds"] = round(spent.compile_seconds, 3)
    if spent.first_layer_evals:
        row["first_layer_evals"] = spent.first_layer_evals
    if state.choice is not None:
        row["gamma"], row["probe_evals"] = state.choice.gamma, spent.probe_evals
        row["probed"] = [
            [r.control.steps, r.control.step_size, r.value, r.cost] for r in state.curves[-1]
        ]
    return row
