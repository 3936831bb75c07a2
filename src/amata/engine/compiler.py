"""Whether torch.compile can make kernels for a GPU here."""

import os
import shutil
from functools import cache


@cache
def has_compiler() -> bool:
    """Triton, and the C compiler that it calls."""
    from torch.utils._triton import has_triton

    named = os.environ.get("CC")
    return has_triton() and any(
        shutil.which(name) for name in ([named] if named else ["gcc", "cc", "clang"])
    )
