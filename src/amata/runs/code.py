"""The code of a user's classes, as a hash per class, so that an edit between two starts of a run is
noticed."""

import ast
import hashlib
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

STANDARD = sysconfig.get_path("stdlib")
INSTALLED = {"site-packages", "dist-packages"}


def code_of(objects: Iterable[object]) -> dict[str, str]:
    """Of each class of these objects, and of its bases, that is no installed package's: the hash of
    its functions, without comments and docstrings. What has no source, such as a class typed into a
    shell, is left out."""
    kinds = dict.fromkeys(kind for value in objects for kind in _kinds(value))
    found = {}
    for kind in kinds:
        if _is_own(kind) and (text := _text(kind)):
            name = f"{kind.__module__}.{kind.__qualname__}"
            found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def _is_own(kind: Any) -> bool:
    if kind.__module__.partition(".")[0] == "amata":  # which may be a checkout
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return not (file.startswith(STANDARD) or INSTALLED & {*Path(file).parts})


def _kinds(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, FunctionType) else type(value).__mro__


def _text(kind: Any) -> str:
    sources = []
    for function in _functions(kind):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):  # a lambda's lines need not be a statement
            continue
        sources.append(ast.unparse(_without_docstrings(tree)))
    return "\n".join(sources)


def _functions(kind: Any) -> Iterator[FunctionType]:
    for value in [kind] if isinstance(kind, FunctionType) else vars(kind).values():
        plain = getattr(value, "fget", getattr(value, "__func__", value))
        if isinstance(plain, FunctionType):
            yield inspect.unwrap(plain)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree
