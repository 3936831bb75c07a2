"""Errors that are shown to users as one line: what, where, the way out."""

import difflib
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable
from importlib import metadata
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")


class AmataError(Exception):
    """An expected failure. The command line prints its message without a traceback."""

    exit_code = 1


class InputError(AmataError, ValueError):
    """An invalid argument, name, file or folder."""

    exit_code = 2


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, by Ctrl-C or a signal. Its state is saved, or the message says why
    not.

    `result` is what `evaluate` or `audit` would have returned, of the images that met every attack.

    Not an `AmataError`: `except Exception` around a sweep must not swallow it.
    """

    def __init__(self, message: str, number: int, result: Any = None) -> None:
        """`number` is the signal's."""
        super().__init__(message)
        self.exit_code, self.result = 128 + number, result


def until_interrupted(call: Callable[[], T]) -> tuple[T, Interrupted | None]:
    """What a call returns; or, if it is interrupted, its result so far and the interrupt, which the
    caller raises again once that is reported. Without a result the interrupt is raised here."""
    try:
        return call(), None
    except Interrupted as interrupted:
        if interrupted.result is None:
            raise
        return interrupted.result, interrupted


def nearest(name: str, options: Iterable[str], listed: str = "") -> str:
    """A hint for a mistyped name: the closest option; if none is close what lists them, or all."""
    names = sorted(options)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.65)
    return f"did you mean {close[0]!r}?" if close else listed or f"choose from {', '.join(names)}"


def unknown(kind: str, name: str, options: Iterable[str]) -> InputError:
    """The error for a name that is not one of the options."""
    return InputError(f"unknown {kind} {name!r}; {nearest(name, options)}")


def missing(package: str, purpose: str, extra: str) -> InputError:
    """The error for an optional package that is not installed."""
    return InputError(
        f"{purpose} needs the package {package}, which is not installed; {install(package, extra)}"
    )


def check_installed(package: str, purpose: str, extra: str) -> None:
    """Refuse what needs an optional package that is missing, before it works for minutes."""
    if find_spec(package) is None:
        raise missing("pillow" if package == "PIL" else package, purpose, extra)


def install(package: str, extra: str) -> str:
    """The command that installs the packages of an extra, or the package alone where Amata is not
    installed itself. It is true for a checkout and for a wheel: it does not name Amata."""
    try:
        lines = metadata.requires("amata") or []
    except metadata.PackageNotFoundError:
        lines = []
    of_extra = (line for line in lines if re.search(rf"extra == ['\"]{extra}['\"]$", line))
    packages = [line.split(";")[0].strip() for line in of_extra]
    return shlex.join(["pip", "install", *(packages or [package])])


def printable(text: object) -> str:
    """The text with control characters escaped, for the terminal: a name in a file may hold
    terminal codes or newlines."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def quoted(path: str | os.PathLike[str]) -> str:
    """A path as the shell takes it, for commands in hints."""
    return shlex.quote(str(path))


def shorten(text: object, length: int = 160) -> str:
    """The text on one line, cut between words, or within a very long one."""
    line = " ".join(str(text).split())
    if len(line) <= length:
        return line
    if " " in line[:length]:
        return textwrap.shorten(line, length, placeholder=" ...")
    return f"{line[:length]}..."
