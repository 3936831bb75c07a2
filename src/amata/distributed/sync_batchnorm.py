"""BatchNorm with the statistics of all processes. torch.nn.SyncBatchNorm needs a GPU; this one also
runs on a CPU, over gloo."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(_BatchNorm):
    """BatchNorm that in train mode normalises by the statistics of all processes' images. Gradients
    flow back to all of them."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        from torch.distributed.nn.functional import all_reduce

        axes = [d for d in range(x.dim()) if d != 1]
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = wide.new_tensor([x.numel() / x.shape[1]])
        total = all_reduce(torch.cat([wide.sum(axes), (wide * wide).sum(axes), count]))
        n = total[-1]
        mean, square = (total[:-1] / n).chunk(2)
        variance = (square - mean * mean).clamp_min(0)
        if (
            self.track_running_stats
            and self.running_mean is not None
            and self.running_var is not None
        ):
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                rate = (
                    1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                )
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
                self.running_var.lerp_((variance * n / (n - 1)).to(self.running_var.dtype), rate)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        scale = torch.rsqrt(variance + self.eps) * (self.weight if self.affine else 1)
        shift = (self.bias if self.affine else 0) - mean * scale
        return (wide * scale.view(shape) + shift.view(shape)).to(x.dtype)


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
