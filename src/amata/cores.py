"""The processor cores that this process may use."""

import os


def local_processes() -> int:
    """The processes of this program on this machine, as torchrun says."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def cores() -> int:
    """The cores for this process: its share of those that it may use."""
    usable = getattr(os, "sched_getaffinity", None)
    count = len(usable(0)) if usable is not None else os.cpu_count() or 1
    return max(1, count // local_processes())
