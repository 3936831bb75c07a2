"""The schedule as a callback of Lightning: python examples/lightning_loop.py

Needs Lightning: pip install lightning.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import amata

BALL = amata.Linf("8/255")


class Anneal(lightning.Callback):
    """Attacks every training batch in place, with the control of the epoch."""

    def __init__(self, schedule: amata.Linear) -> None:
        self.schedule = schedule

    def on_train_epoch_start(self, trainer, module) -> None:
        self.control = self.schedule(trainer.current_epoch, epochs=trainer.max_epochs)
        print(f"epoch {trainer.current_epoch + 1}  K {self.control.steps}")

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        u = self.control.for_batch(batch_idx)
        x, y = batch
        x_adv = amata.attacks.pgd(module, x, y, ball=BALL, steps=u.steps, step_size=u.step_size)
        x.copy_(x_adv)


class Classifier(lightning.LightningModule):
    """An ordinary module. It knows nothing of the attack."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    y = torch.arange(256) % 4
    x = 0.25 * torch.rand(256, 3, 8, 8) + 0.25 * y.view(-1, 1, 1, 1)  # brightness is the class
    lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        callbacks=[Anneal(amata.Linear(k_min=2, k_max=4, tau="16/255"))],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
