"""Compiling ahead: another process compiles while this one does something else. What it compiles,
this process finds on disk; if it fails, this process compiles by itself. Imports no torch."""

from amata.ahead.folder import MIN_CORES, compiled_folder, cores, may_compile, use_folder
from amata.ahead.process import Server, expect, server, start_early, wait

__all__ = [
    "MIN_CORES",
    "Server",
    "compiled_folder",
    "cores",
    "expect",
    "may_compile",
    "server",
    "start_early",
    "use_folder",
    "wait",
]
