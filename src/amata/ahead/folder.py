"""Where compiled code is kept, and whether this machine can compile."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

_CHOSEN_FOLDER = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
"""The user's folder for compiled code. Read here: Inductor sets the variable when imported."""

MIN_CORES = 4
"""With fewer, another process would only slow this one down."""


def use_folder() -> Path | None:
    """Have Inductor and Triton keep compiled code where it survives a reboot, unless the user
    chose a folder; Inductor's default is the temporary folder. Returns a folder there for files of
    our own, or None if nothing can be kept."""
    if _CHOSEN_FOLDER is None:
        folder = _default_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, RuntimeError):  # no home folder, or a read-only one: Inductor's default
            return None
        if not os.access(folder, os.W_OK):
            return None
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "amata"


def _default_folder() -> Path:
    """$XDG_CACHE_HOME/amata/compiled or ~/.cache/amata/compiled."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "amata" / "compiled"


def may_compile() -> bool:
    """Whether Triton seems to be installed, and the C compiler that it calls."""
    named = os.environ.get("CC")
    return find_spec("triton") is not None and any(
        shutil.which(name) for name in ([named] if named else ["gcc", "cc", "clang"])
    )
