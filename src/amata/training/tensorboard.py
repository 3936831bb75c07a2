"""TensorBoard events, where the package tensorboard is installed."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from amata.errors import install
from amata.metrics import EpochRow, scalars


class TensorBoard:
    """Writes each epoch's numbers as scalars. Without a folder it does nothing."""

    def __init__(self, run: Path | None, epoch: int, note: Callable[[str], None]) -> None:
        self.writer: Any = None
        if run is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            note(
                "tensorboard is not installed, so no event files are written; "
                + install("tensorboard", "tensorboard")
            )
            return
        # On resume, TensorBoard hides the events of epochs that will be repeated.
        self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=epoch)

    def add(self, row: EpochRow) -> None:
        if self.writer is None:
            return
        for name, value in scalars(row).items():
            self.writer.add_scalar(name, value, row["epoch"])
        self.writer.flush()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.writer is not None:
            self.writer.close()
