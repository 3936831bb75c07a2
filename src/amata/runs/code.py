"""The code of a user's classes and functions, as a hash of each, so that an edit between two starts
of a run is noticed."""

import ast
import hashlib
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

STANDARD = sysconfig.get_path("stdlib")
INSTALLED = {"site-packages", "dist-packages"}


def code_of(objects: Iterable[object]) -> dict[str, str]:
    """Of each class of these objects, of its bases, and of the functions and classes that their
    code names, unless an installed package has them: the hash of the code, without comments and
    docstrings. What has no source, such as a class typed into a shell, is left out."""
    found: dict[str, str] = {}
    todo: list[Any] = [kind for value in objects for kind in (*type(value).__mro__, *_given(value))]
    seen: set[Any] = set()
    while todo:
        kind = todo.pop()
        if kind in seen or not _is_own(kind):
            continue
        seen.add(kind)
        functions = list(_functions(kind))
        todo += [named for function in functions for named in _named(function)]
        if text := "\n".join(filter(None, map(_text, functions))):
            name = f"{kind.__module__}.{kind.__qualname__}"
            found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return dict(sorted(found.items()))


def different_code(records: Sequence[dict[str, str]]) -> list[str]:
    """What several of these have, with different code."""
    names = dict.fromkeys(name for record in records for name in record)
    return [n for n in names if len({record[n] for record in records if n in record}) > 1]


def _given(value: object) -> list[FunctionType]:
    """The object itself if it is a function, or the functions that it was given."""
    own = [value, *getattr(value, "__dict__", {}).values()]
    return [each for each in own if isinstance(each, FunctionType)]


def _is_own(kind: Any) -> bool:
    module = kind.__module__ or ""  # None of a function that was made by exec
    if module.partition(".")[0] == "amata":  # which may be a checkout
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not (file.startswith(STANDARD) or INSTALLED & {*Path(file).parts})


def _functions(kind: Any) -> Iterator[FunctionType]:
    for value in [kind] if isinstance(kind, FunctionType) else vars(kind).values():
        plain = getattr(value, "fget", getattr(value, "__func__", value))
        if isinstance(plain, FunctionType):
            inner = inspect.unwrap(plain)
            yield inner if isinstance(inner, FunctionType) else plain


def _named(function: FunctionType) -> Iterator[Any]:
    """The functions and classes among the global names in a function's code."""
    codes: list[CodeType] = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            if isinstance(value := function.__globals__.get(name), FunctionType | type):
                yield value


def _text(function: FunctionType) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # a lambda's lines need not be a statement
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
