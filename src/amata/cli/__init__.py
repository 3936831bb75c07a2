"""The `amata` command. Only the commands that need torch import it; --help does not."""

import atexit
import gc
import logging
import os
import sys
from typing import Any

import typer

from amata.cli import (
    audit,
    bench,
    catalogue,
    compare,
    criterion,
    export,
    init,
    landscape,
    msa,
    plan,
    predict,
    runs,
    search,
    theory,
)
from amata.cli.root import NOTES, app, remove_empty_folders
from amata.errors import AmataError, printable

__all__ = [
    "app",
    "audit",
    "bench",
    "catalogue",
    "compare",
    "criterion",
    "export",
    "init",
    "landscape",
    "main",
    "msa",
    "plan",
    "predict",
    "runs",
    "search",
    "theory",
]

# typer exports BadParameter but not its base class UsageError, which is in click up to typer 0.25
# and in a private module of typer since 0.26. Its base class is the one path that always works.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]


def main(arguments: list[str] | None = None) -> None:
    """Run the command. An expected failure is one line on stderr and an exit status."""
    if arguments is None:
        _spare_collections()
    arguments = sys.argv[1:] if arguments is None else arguments
    logging.getLogger("amata").addHandler(NOTES)
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
        if code == 130:  # typer turns Ctrl-C into this status
            raise KeyboardInterrupt
    except AmataError as error:
        _complain(f"error: {printable(error)}")
        code = error.exit_code
    except _UsageError as error:
        line = printable(" ".join(error.format_message().split()))
        stop = "" if line.endswith((".", "?", "!")) else "."
        _complain(f"error: {line}{stop} See `{_command(error.ctx)} --help`.")
        code = 2
    except BrokenPipeError:  # such as `amata recipes | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:  # such as a name that is too long, or a folder that is not readable
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {printable(where)}{error.strerror or printable(error)}", file=sys.stderr)
        code = 2
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print("error: out of memory; use a smaller batch, network or number", file=sys.stderr)
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        code = 130
    finally:
        remove_empty_folders()
    sys.exit(code if isinstance(code, int) else 0)


def _spare_collections() -> None:
    """Collect garbage less often, and not at exit. Each pass over all objects of torch takes a
    fraction of a second, and an ending process made several of them."""
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)


def _command(context: Any) -> str:
    """The command of a usage error, as in `amata data fetch`; `amata` if none was found."""
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(["amata", *names])


def _complain(line: str) -> None:
    """Print a line on stderr; on a terminal, broken between words."""
    if not sys.stderr.isatty():
        print(line, file=sys.stderr)
        return
    from amata.console import err

    err.say(line)


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, on the CPU (torch raises a RuntimeError) or on the GPU."""
    texts = ("out of memory", "not enough memory", "allocate memory")
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)
