"""Data-parallel training: the process group, averaged gradients, and synchronised BatchNorm."""

from amata.distributed.buckets import GradientBuckets
from amata.distributed.process_group import (
    Ranks,
    current,
    init_distributed,
    is_main,
    launched,
    local_device,
    report_lost_process,
)
from amata.distributed.sync_batchnorm import (
    SyncBatchNorm,
    convert_sync_batchnorm,
    revert_sync_batchnorm,
)

__all__ = [
    "GradientBuckets",
    "Ranks",
    "SyncBatchNorm",
    "convert_sync_batchnorm",
    "current",
    "init_distributed",
    "is_main",
    "launched",
    "local_device",
    "report_lost_process",
    "revert_sync_batchnorm",
]
