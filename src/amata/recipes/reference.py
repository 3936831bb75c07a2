"""Every key that a recipe may have, read from where it is defined."""

import ast
import dataclasses
import inspect
import json
import textwrap
from itertools import pairwise
from typing import Any, NamedTuple

from amata.methods import AWP
from amata.recipes import KEYED
from amata.recipes.files import TABLES
from amata.recipes.schema import STATIC, awp_table, table_of
from amata.recipes.tables import REGISTRIES


class Key(NamedTuple):
    name: str
    values: str
    default: str
    """As written in TOML; empty for an optional key without a default."""
    required: bool
    text: str


class Section(NamedTuple):
    table: str
    name: str | None
    """The method, schedule or norm that has these keys."""
    text: str
    keys: list[Key]

    @property
    def title(self) -> str:
        return f"[{self.table}]" + (f' {KEYED[self.table]} = "{self.name}"' if self.name else "")


def sections() -> list[Section]:
    """The tables in the order of a recipe; [threat], [method] and [schedule] once for each name."""
    found = []
    for table in TABLES:
        if table in STATIC:
            fields = STATIC[table].model_fields
            found.append(
                Section(
                    table,
                    None,
                    "",
                    _keys(STATIC[table], {k: f.description or "" for k, f in fields.items()}),
                )
            )
            continue
        for name, cls in REGISTRIES[table].items():
            keys = [
                key
                for key in _keys(table_of(cls, KEYED[table], name), _field_docs(cls))
                if key.name not in (KEYED[table], "awp")
            ]
            about = _about(inspect.getmodule(cls) if table == "method" else cls)
            found.append(Section(table, name, about, keys))
        if table == "method":
            keys = _keys(awp_table(), _field_docs(AWP))
            found.append(Section("method.awp", None, _about(inspect.getmodule(AWP)), keys))
    return found


def _about(documented: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


def _field_docs(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class and of the classes that it extends."""
    docs = _field_docs(cls.__base__) if dataclasses.is_dataclass(cls.__base__) else {}
    (body,) = (
        node.body
        for node in ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        if isinstance(node, ast.ClassDef)
    )
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            docs[field.target.id] = ast.literal_eval(below.value)
    return docs


def _keys(table: Any, docs: dict[str, str]) -> list[Key]:
    schema = table.model_json_schema()
    required = schema.get("required", [])
    return [
        Key(
            name,
            _values(said),
            _default(said.get("default")),
            name in required,
            " ".join(docs.get(name, "").split()),
        )
        for name, said in schema["properties"].items()
    ]


def _default(value: Any) -> str:
    return "" if value is None else json.dumps(value)


def _values(said: dict[str, Any]) -> str:
    """The accepted values, in words."""
    if "anyOf" in said:  # an optional key
        return " or ".join(_values(s) for s in said["anyOf"] if s.get("type") != "null")
    if "$ref" in said:
        return "table"
    if "enum" in said:
        *most, last = (json.dumps(v) for v in said["enum"])
        return f"{', '.join(most)} or {last}"
    # Behind our own validator, pydantic keeps the short names of its limits.
    limits = {
        "minimum": "from {}",
        "ge": "from {}",
        "exclusiveMinimum": "above {}",
        "gt": "above {}",
        "lt": "below {}",
    }
    words = {
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "string": "text",
        "object": "table",
    }
    if said["type"] == "array":
        inner = {
            "integer": "whole numbers",
            "number": "numbers",
            "string": "texts",
            "array": "pairs",
        }
        return f"list of {inner[said['items']['type']]}"
    bounds = " ".join(text.format(said[key]) for key, text in limits.items() if key in said)
    return f"{words[said['type']]} {bounds}".strip()
