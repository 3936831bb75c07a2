"""torch.compile for the whole process: what is compiled once serves every network of the same
structure, and compiled code is kept on disk."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from amata.ahead import may_compile, use_folder

BACKEND = "inductor"
"""The backend of torch.compile; another one replaces it everywhere."""

AUTOCAST = {f"torch.amp.autocast_mode._{verb}_autocast": "1" for verb in ("enter", "exit")}


@cache
def has_compiler() -> bool:
    """Whether they are installed and Triton works on the GPU: to find out takes a second."""
    from torch.utils._triton import has_triton

    return may_compile() and has_triton()


def compiled(function: Callable[..., Any], backend: Any = "inductor") -> Callable[..., Any]:
    """A module-level function, compiled for fixed shapes; the same object in every call.

    Pass networks and losses as arguments: Dynamo then checks their structure, not their identity.
    Call it within `compiling`. `backend` is Inductor, or something in front of it.
    """
    return _compiled(function, backend if BACKEND == "inductor" else BACKEND)


@cache
def _compiled(function: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    if BACKEND == "inductor":
        use_folder()
    return torch.compile(function, dynamic=False, backend=backend)


@contextmanager
def compiling() -> Iterator[None]:
    """Settings under which compiled functions are called for the first time."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    # Dynamo limits recompilations per function. All networks of a process share ours, each with its
    # own shapes, so the limits have to be high.
    with ExitStack() as stack:
        stack.enter_context(dynamo.patch(recompile_limit=1024, accumulated_recompile_limit=4096))
        # The cache on disk skips autograd functions and autocast by default. Dynamo traces the
        # functions, and the arguments of autocast are constants: both are part of its key.
        if hasattr(functorch, "autograd_cache_allow_custom_autograd_functions"):
            stack.enter_context(
                functorch.patch(autograd_cache_allow_custom_autograd_functions=True)
            )
        if hasattr(inductor, "unsafe_marked_cacheable_functions"):
            known = {**inductor.unsafe_marked_cacheable_functions, **AUTOCAST}
            stack.enter_context(inductor.patch(unsafe_marked_cacheable_functions=known))
        yield


def mark_static(*models: nn.Module) -> None:
    """Say that the tensors of these networks stay where they are. Dynamo does so itself when it
    traces a network, and what is known of a tensor is part of the key of compiled code on disk. So
    the order in which functions of the same network are compiled would change the key."""
    import torch._dynamo

    for model in models:
        for module in model.modules():
            lists = [v for v in vars(module).values() if isinstance(v, list)]
            own = [*module._parameters.values(), *module._buffers.values(), *chain(*lists)]
            for t in own:
                if isinstance(t, Tensor):
                    torch._dynamo.mark_static_address(t, guard=False)
