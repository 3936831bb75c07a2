"""BatchNorm with the statistics of all processes: torch.nn.SyncBatchNorm on GPUs, over NCCL or
gloo, and the same on a CPU, which torch's does not support."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(nn.SyncBatchNorm):
    """BatchNorm that in train mode normalises by the statistics of all processes' images. Gradients
    flow back to all of them."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return super().forward(x)
        if not self.training or not dist.is_initialized():
            return _BatchNorm.forward(self, x)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        y, mean, variance, count = _Normalise.apply(wide, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            assert self.num_batches_tracked is not None
            assert self.running_mean is not None
            assert self.running_var is not None
            self.num_batches_tracked.add_(1)
            rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            unbiased = variance * count / (count - 1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)
        normalised: Tensor = y.to(x.dtype)
        return normalised


class _Normalise(torch.autograd.Function):
    """(x - mean) / std * weight + bias over all processes; also mean, variance and the number of
    values per channel, in double precision."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = _all_but_channels(x)
        var, mean = torch.var_mean(x, axes, correction=0)
        n = x.numel() // x.shape[1]
        own = torch.cat([mean.double(), n * var.double(), mean.new_full((1,), n).double()])
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own)
        # Chan's merge: sums of squared deviations from each process's own mean. E[x^2] - mean^2
        # would lose all digits of a variance that is small beside the mean.
        parts = torch.stack(gathered)
        counts, total = parts[:, -1:], parts[:, -1].sum()
        means, deviations = parts[:, :-1].chunk(2, dim=1)
        merged = (counts * means).sum(0) / total
        variance = (deviations + counts * (means - merged) ** 2).sum(0) / total
        inverse = torch.rsqrt(variance + eps)
        # Centred before it is scaled, for the same reason.
        normal = (x - _along(merged, x)) * _along(inverse, x)
        y = normal if weight is None else normal * _along(weight, x)
        ctx.save_for_backward(normal, weight, inverse, total)
        ctx.mark_non_differentiable(merged, variance, total)
        return y if bias is None else y + _along(bias, x), merged, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        normal, weight, inverse, total = ctx.saved_tensors
        axes = _all_but_channels(g)
        for_bias, for_weight = g.sum(axes), (g * normal).sum(axes)
        for_x = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([for_bias, for_weight]).double()
            dist.all_reduce(sums)
            mean_g, mean_gn = (sums / total).chunk(2)
            for_x = g - _along(mean_g, g) - normal * _along(mean_gn, g)
            scale = inverse if weight is None else inverse * weight
            for_x = for_x * _along(scale, g)
        return (
            for_x,
            for_weight if ctx.needs_input_grad[1] else None,
            for_bias if ctx.needs_input_grad[2] else None,
            None,
        )


def _all_but_channels(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _along(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, to be broadcast over x."""
    return values.to(x.dtype).view([1, -1, *[1] * (x.dim() - 2)])


# One class per dimension: each is still an nn.BatchNorm1d, 2d or 3d to code that looks for one.


class SyncBatchNorm1d(SyncBatchNorm, nn.BatchNorm1d):
    pass


class SyncBatchNorm2d(SyncBatchNorm, nn.BatchNorm2d):
    pass


class SyncBatchNorm3d(SyncBatchNorm, nn.BatchNorm3d):
    pass


SYNCED: dict[type[nn.Module], type[_BatchNorm]] = {
    nn.BatchNorm1d: SyncBatchNorm1d,
    nn.BatchNorm2d: SyncBatchNorm2d,
    nn.BatchNorm3d: SyncBatchNorm3d,
}
LOCAL: dict[type[nn.Module], type[_BatchNorm]] = {
    SyncBatchNorm1d: nn.BatchNorm1d,
    SyncBatchNorm2d: nn.BatchNorm2d,
    SyncBatchNorm3d: nn.BatchNorm3d,
}


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm of the model, in place, by a synchronised one that shares its
    parameters and buffers.

    Returns the model, or its replacement where the model itself is a BatchNorm.
    """
    return _replace_norms(model, SYNCED)


def revert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """The inverse of `convert_sync_batchnorm`."""
    return _replace_norms(model, LOCAL)


def _replace_norms(model: nn.Module, kinds: dict[type[nn.Module], type[_BatchNorm]]) -> nn.Module:
    replacements: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, _BatchNorm) and type(module) in kinds:
            replacement = kinds[type(module)](module.num_features)
            # Parameters and buffers, but also settings, mode and hooks: all that the old one has.
            vars(replacement).update(vars(module))
            replacements[module] = replacement
    for parent in model.modules():
        for name, child in parent._modules.items():  # with every name of a module used twice
            if child in replacements:
                parent._modules[name] = replacements[child]
    return replacements.get(model, model)
