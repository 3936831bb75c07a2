"""Amata: adversarial training at a fraction of its usual cost, in PyTorch.

The public names are listed in __init__.pyi, and nowhere else. Each is imported when it is first
used, so that `import amata` and `amata --help` are fast.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
