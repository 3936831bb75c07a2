"""The batch that a training method receives."""

from typing import NamedTuple

import torch
from torch import Tensor

from amata.seeds import Rows


class Frame(NamedTuple):
    """Where augmentation cropped each image from its padded original: the indices of its rows and
    columns, columns in reverse order where it is mirrored."""

    rows: Tensor
    columns: Tensor
    pad: int

    def _index(self, padded: Tensor, rows: Tensor | None) -> tuple[Tensor, slice, Tensor, Tensor]:
        if rows is None:
            rows = torch.arange(len(self.rows), device=padded.device)
        lines, columns = self.rows.to(padded.device), self.columns.to(padded.device)
        return rows[:, None, None], slice(None), lines[:, :, None], columns[:, None, :]

    def cut(self, padded: Tensor, rows: Tensor | None = None) -> Tensor:
        """The crops of padded images, or of these rows of them, as one gather."""
        # Advanced indices around a slice put the channels last; the permute puts them back.
        return padded[self._index(padded, rows)].permute(0, 3, 1, 2).contiguous()

    def paste_(self, padded: Tensor, x: Tensor, rows: Tensor | None = None) -> None:
        """Write x back to where it was cropped, in place: the inverse of `cut`."""
        padded[self._index(padded, rows)] = x.permute(0, 2, 3, 1)


class Batch(NamedTuple):
    """Images in [0, 1], their labels, and the identity of each sample in its data set."""

    x: Tensor
    y: Tensor
    ids: Tensor
    total: int = 0
    """One more than the largest id, or 0 if an id does not mean the same pixels in every epoch."""
    epoch: int = 0
    frame: Frame | None = None
    """How augmentation cropped and mirrored the images; None without augmentation."""
    rows: Rows | None = None
    """Which rows of a larger batch these are; None for a whole batch."""

    def parts(self, count: int) -> "list[Batch]":
        """The batch in `count` parts of nearly the same size, but at least one image each."""
        split = torch.arange(len(self.x)).tensor_split(min(count, len(self.x)))
        return [self._between(int(part[0]), int(part[-1]) + 1) for part in split]

    def first(self, size: int) -> "Batch":
        """Its first images; the batch itself if it has no more."""
        return self if size >= len(self.x) else self._between(0, size)

    def _between(self, first: int, last: int) -> "Batch":
        whole = self.rows or Rows(0, len(self.x), len(self.x))
        frame = self.frame and self.frame._replace(
            rows=self.frame.rows[first:last], columns=self.frame.columns[first:last]
        )
        rows = Rows(whole.first + first, whole.first + last, whole.total)
        return self._replace(
            x=self.x[first:last],
            y=self.y[first:last],
            ids=self.ids[first:last],
            frame=frame,
            rows=rows,
        )
