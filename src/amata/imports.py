"""Objects that a user names by an import path, `package.module:name`.

Importing a module runs it. `origin` finds the module without importing it, so that a caller can ask
before it happens.
"""

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amata.errors import InputError


def is_import_path(text: str) -> bool:
    """Whether a text has the form of an import path; a path of a file has not.

    >>> is_import_path("package.module:name"), is_import_path("C:/recipe.toml")
    (True, False)
    """
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", text) is not None


def imported(path: str, what: str) -> Any:
    """The object. Errors say what it is for: `what`."""
    module, _, attribute = path.partition(":")
    package = package_of(path, what)
    try:
        # As with `python -m`, modules in the working directory can be imported. It is added only if
        # this module is in it: a file there must not shadow what others import.
        if origin(package) != _places(package):
            sys.path.insert(0, str(Path.cwd()))
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{what} cannot be imported ({error}); write it as package.module:name"
        ) from None


def origin(package: str) -> tuple[str, ...] | None:
    """The files or folders from which the top-level package would be imported; None if there are
    none. Nothing is imported: a submodule is found by running its package, so only the package is
    looked for."""
    with _working_directory():
        return _places(package)


def package_of(path: str, what: str) -> str:
    """The top-level package of an import path."""
    parts = path.partition(":")[0].split(".")
    if not all(part.isidentifier() for part in parts):
        raise InputError(f"{what} cannot be imported; write it as package.module:name")
    return parts[0]


def _places(package: str) -> tuple[str, ...] | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without a spec, such as the script that is running
        file = getattr(sys.modules[package], "__file__", None)
        return (os.path.realpath(file),) if file else ()
    if spec is None:
        return None
    if spec.has_location and spec.origin:
        return (os.path.realpath(spec.origin),)
    # A namespace package: every folder of its name.
    return tuple(os.path.realpath(place) for place in spec.submodule_search_locations or ())


@contextlib.contextmanager
def _working_directory() -> Iterator[None]:
    """The working directory in front of Python's path, unless it is there already."""
    here = str(Path.cwd())
    if "" in sys.path or here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
