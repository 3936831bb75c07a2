"""BatchNorm in train mode, and the ReLU behind it, with few passes over memory.

Inductor's own reductions over channels_last tensors are slow. Here the forward pass reads the input
once for its statistics and once to normalise it. The backward pass reads gradient and input once
for two sums per channel, and once for the input's gradient; Inductor fuses the latter with what
follows. The mask of the ReLU is computed again from the input.
"""

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
RELUS = (F.relu, torch.relu, F.relu_, torch.relu_)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _per_channel(t: Tensor) -> Tensor:
    return t[:, None, None]


def _normalised(x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    return (_wide(x) - _per_channel(mean)) * _per_channel(rstd)


def _affine(hat: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return hat * _per_channel(weight) + _per_channel(bias)


@torch.library.custom_op("amata::batch_norm", mutates_args=())
def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normalised tensor, the mean and 1 / std of the batch, and its unbiased variance, per
    channel. Only the first has a gradient."""
    if x.is_cuda:
        from amata.engine import batchnorm_kernels

        return batchnorm_kernels.batch_norm(x, weight, bias, eps, relu)
    var, mean = torch.var_mean(_wide(x), (0, 2, 3), correction=0)
    rstd, n = torch.rsqrt(var + eps), x.numel() // x.shape[1]
    y = _affine(_normalised(x, mean, rstd), weight, bias)
    return (y.relu() if relu else y).to(x.dtype), mean, rstd, var * n / (n - 1)


@batch_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool) -> tuple[Tensor, ...]:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.empty_like(x), *(x.new_empty(x.shape[1], dtype=dtype) for _ in range(3))


@torch.library.custom_op("amata::batch_norm_sums", mutates_args=())
def batch_norm_sums(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    """The sums of g and of g times the normalised x per channel: the gradients of bias and weight.
    With `relu`, g counts where the output of the ReLU is above zero."""
    if x.is_cuda:
        from amata.engine import batchnorm_kernels

        return batchnorm_kernels.batch_norm_sums(g, x, weight, bias, mean, rstd, relu)
    hat, g = _normalised(x, mean, rstd), _wide(g)
    if relu:
        g = torch.where(_affine(hat, weight, bias) > 0, g, 0)
    return g.sum((0, 2, 3)), (g * hat).sum((0, 2, 3))


@batch_norm_sums.register_fake
def _(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(mean), torch.empty_like(mean)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, ctx.relu = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:3])


def _backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    total, dot = torch.ops.amata.batch_norm_sums(g, x, weight, bias, mean, rstd, ctx.relu)
    n, hat, g = x.numel() // x.shape[1], _normalised(x, mean, rstd), _wide(g)
    if ctx.relu:
        g = torch.where(_affine(hat, weight, bias) > 0, g, 0)
    dx = _per_channel(weight * rstd) * (g - _per_channel(total / n) - hat * _per_channel(dot / n))
    return dx.to(x.dtype), dot.to(weight.dtype), total.to(bias.dtype), None, None


batch_norm.register_autograd(_backward, setup_context=_setup_context)


def compile_with_batchnorm(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """A backend of torch.compile: Inductor, after BatchNorms are replaced."""
    replace_batchnorms(graph.graph)
    graph.recompile()
    return torch._dynamo.lookup_backend("inductor")(graph, inputs)


def replace_batchnorms(graph: fx.Graph, device: str = "cuda") -> int:
    """Replace each train-mode BatchNorm of channels_last images, with the ReLU behind it if nothing
    else reads its output. Running statistics are updated at the end, all at once. Returns how many
    there were."""
    found = [node for node in graph.nodes if _is_batchnorm(node, device)]
    # Statistics that something else reads must be updated where they are now.
    while others := {n for n in found if not _statistics_users(n) <= set(found)}:
        found = [node for node in found if node not in others]
    updates = _Updates(graph)
    for node in found:
        args = _arguments(node)
        x, weight, bias = (args[name] for name in ("input", "weight", "bias"))
        users = list(node.users)
        relu = len(users) == 1 and _is_relu(users[0])
        with graph.inserting_before(node):
            outputs = graph.call_function(
                torch.ops.amata.batch_norm.default, (x, weight, bias, args["eps"], relu)
            )
            y, mean, _, var = (
                graph.call_function(operator.getitem, (outputs, i)) for i in range(4)
            )
        y.meta["example_value"] = node.meta["example_value"]
        for buffer, value in ((args["running_mean"], mean), (args["running_var"], var)):
            updates.add(buffer, args["momentum"], value)
        for old in [*(users if relu else []), node]:
            old.replace_all_uses_with(y)
            graph.erase_node(old)
    if found:
        for node in [n for n in graph.nodes if _counts_batches(n)]:
            updates.add(node.args[0], None, None)
            graph.erase_node(node)
    updates.insert()
    return len(found)


class _Updates:
    """Updates of buffers at the end of a graph, with one kernel for all of a kind."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.seen: dict[fx.Node, int] = {}
        self.kinds: dict[tuple[int, float | None], list[tuple[fx.Node, fx.Node | None]]] = {}

    def add(self, buffer: fx.Node, momentum: float | None, value: fx.Node | None) -> None:
        """Move the buffer towards the value; without one, count up. A buffer of a layer that is
        used twice is updated twice, in order."""
        turn = self.seen[buffer] = self.seen.get(buffer, 0) + 1
        self.kinds.setdefault((turn, momentum), []).append((buffer, value))

    def insert(self) -> None:
        end = next(n for n in self.graph.nodes if n.op == "output")
        call = self.graph.call_function
        with self.graph.inserting_before(end):
            for (_, momentum), pairs in sorted(self.kinds.items(), key=lambda kind: kind[0][0]):
                buffers = [buffer for buffer, _ in pairs]
                if momentum is None:
                    call(torch.ops.aten._foreach_add_.Scalar, (buffers, 1))
                    continue
                values = [call(torch.ops.aten.detach.default, (value,)) for _, value in pairs]
                call(torch.ops.aten._foreach_lerp_.Scalar, (buffers, values, momentum))


def _arguments(node: fx.Node) -> dict[str, Any]:
    bound = inspect.signature(F.batch_norm).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound.arguments


def _is_batchnorm(node: fx.Node, device: str) -> bool:
    """Whether it is a BatchNorm that can be replaced."""
    if node.op != "call_function" or node.target is not F.batch_norm:
        return False
    args = _arguments(node)
    nodes = [args[k] for k in ("input", "running_mean", "running_var", "weight", "bias")]
    values: list[Any] = [
        n.meta.get("example_value") if isinstance(n, fx.Node) else None for n in nodes
    ]
    if any(value is None for value in values):
        return False
    x, *others = values
    return (
        args["training"] is True
        and isinstance(args["momentum"], float)
        and x.dim() == 4
        and x.device.type == device
        and x.dtype in DTYPES
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > x.shape[1]
        and all(t.dtype == torch.float32 for t in others)
    )


def _statistics_users(node: fx.Node) -> set[fx.Node]:
    args = _arguments(node)
    return {*args["running_mean"].users, *args["running_var"].users}


def _is_relu(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in RELUS


def _counts_batches(node: fx.Node) -> bool:
    """Whether it is `num_batches_tracked.add_(1)`, and nothing else in the graph reads that."""
    if node.op != "call_method" or node.target != "add_" or node.args[1:] != (1,) or node.users:
        return False
    (counter,) = node.all_input_nodes
    value = counter.meta.get("example_value")
    return (
        counter.op in ("placeholder", "get_attr")
        and value is not None
        and value.dtype == torch.int64
        and value.dim() == 0
        and all(n.op == "call_method" and n.target == "add_" for n in counter.users)
    )
