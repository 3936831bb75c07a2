"""Compiling ahead: another process compiles while this one does something else. What it compiles,
this process finds on disk; if it fails, this process compiles by itself. Imports no torch."""

from amata.ahead.folder import MIN_CORES, may_compile, use_folder
from amata.ahead.process import FAILED, Server, expect, server, start_early, wait

__all__ = [
    "FAILED",
    "MIN_CORES",
    "Server",
    "expect",
    "may_compile",
    "server",
    "start_early",
    "use_folder",
    "wait",
]
