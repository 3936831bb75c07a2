"""TensorBoard events, where the package tensorboard is installed."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from amata.metrics import EpochRow


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
                "tensorboard is not installed, so no event files are written; pip install "
                "'amata[tensorboard]'"
            )
            return
        # On resume, TensorBoard hides the events of epochs that will be repeated.
        self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=epoch)

    def add(self, row: EpochRow) -> None:
        if self.writer is None:
            return
        left_out = ("epoch", "unix_seconds")
        flat = {k: v for k, v in row.items() if isinstance(v, int | float) and k not in left_out}
        flat |= {f"valid/{k}": v for k, v in row.get("valid", {}).items()}
        for name, value in flat.items():
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
