"""The run folder on disk: its layout, rows, checkpoints, atomic files and the lock."""

from amata.runs.folder import RunFolder, resume_call

__all__ = ["RunFolder", "resume_call"]
