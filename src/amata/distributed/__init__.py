"""Data-parallel training: the process group, and BatchNorm synchronised over it."""

from amata.distributed.process_group import (
    Ranks,
    current,
    init_distributed,
    is_main,
    launched,
    local_device,
)
from amata.distributed.sync_batchnorm import (
    SyncBatchNorm,
    convert_sync_batchnorm,
    revert_sync_batchnorm,
)

__all__ = [
    "Ranks",
    "SyncBatchNorm",
    "convert_sync_batchnorm",
    "current",
    "init_distributed",
    "is_main",
    "launched",
    "local_device",
    "revert_sync_batchnorm",
]
