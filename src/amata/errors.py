"""The errors a user can cause or meet, each told in one line: what, where, and the way out."""

import difflib
from collections.abc import Iterable


class AmataError(Exception):
    """Something went wrong that the user should read as one line, without a traceback."""

    exit_code = 1


class InputError(AmataError, ValueError):
    """A value, name, file or folder that was handed in cannot be used."""

    exit_code = 2


def nearest(name: str, options: Iterable[str]) -> str:
    """A hint for a mistyped name: the nearest option if one is near, else all of them."""
    names = sorted(options)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}"


def unknown(kind: str, name: str, options: Iterable[str]) -> InputError:
    """The error for a name that is not among the options of its kind."""
    return InputError(f"unknown {kind} {name!r}; {nearest(name, options)}")


def missing(package: str, purpose: str, extra: str) -> InputError:
    """The error for an optional package that is needed and not installed."""
    return InputError(
        f"{purpose} needs the package {package}, which is not installed; pip install "
        f"'amata[{extra}]'"
    )
