"""Several processes that train one network: the process group, and BatchNorm shared between
them."""

from amata.distributed.process_group import (
    Ranks,
    current,
    init_distributed,
    is_main,
    launched,
    local_device,
)
from amata.distributed.sync_batchnorm import SyncBatchNorm, sync_batchnorms, unsync_batchnorms

__all__ = [
    "Ranks",
    "SyncBatchNorm",
    "current",
    "init_distributed",
    "is_main",
    "launched",
    "local_device",
    "sync_batchnorms",
    "unsync_batchnorms",
]
