"""The run folder on disk: its layout, checkpoints, atomic files and the lock."""

from amata.runs.folder import RunFolder, environment

__all__ = ["RunFolder", "environment"]
