"""BatchNorm over the whole batch, however it is divided among processes. torch's own wants a
GPU."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SyncBatchNorm:
    """In train mode the statistics are those of all processes' images; gradients flow back to all
    of them."""

    def forward(self: "nn.modules.batchnorm._BatchNorm", x: Tensor) -> Tensor:  # type: ignore[misc]
        if not self.training or not dist.is_initialized():
            return super().forward(x)  # type: ignore[misc]
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


_KINDS: dict[type, type] = {
    norm: type(f"SyncBatchNorm{norm.__name__}", (SyncBatchNorm, norm), {}) for norm in NORMS
}


def unsync_batchnorms(model: nn.Module) -> None:
    """Make every BatchNorm of the model one of its own process again."""
    for module in model.modules():
        if isinstance(module, SyncBatchNorm):
            module.__class__ = next(norm for norm, kind in _KINDS.items() if type(module) is kind)


def sync_batchnorms(model: nn.Module) -> None:
    """Make every BatchNorm of the model one over all processes. Its weights, names and shapes
    stay."""
    for module in model.modules():
        if type(module) in _KINDS:
            module.__class__ = _KINDS[type(module)]
