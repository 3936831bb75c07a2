"""Whether torch.compile can generate GPU kernels on this machine."""

import os
import shutil
from functools import cache


@cache
def has_compiler() -> bool:
    """Whether Triton is installed, and the C compiler that it calls."""
    from torch.utils._triton import has_triton

    named = os.environ.get("CC")
    return has_triton() and any(
        shutil.which(name) for name in ([named] if named else ["gcc", "cc", "clang"])
    )
