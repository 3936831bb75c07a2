"""A recipe: the arguments of a training run as objects, and the tables that write them down."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from amata.formatting import to_fractions
from amata.recipes.toml import dumps

if TYPE_CHECKING:
    from amata.methods import Method
    from amata.recipes import schema
    from amata.schedules import AnySchedule
    from amata.threat import Ball

Tables = dict[str, dict[str, Any]]

OPERATIONAL = frozenset(
    {
        "data.root",
        "data.workers",
        "train.compile",
        "train.device",
        "train.engine",
        "train.deterministic",
        "train.keep_epochs",
        "train.save_minutes",
        "train.tensorboard",
        "train.timeout",
        "train.within",
    }
)
"""Keys that say how a run is carried out, not what it computes: they may change on resume."""


@dataclass(frozen=True)
class Recipe:
    """What a training run is made of. `dataclasses.replace(recipe, schedule=...)` makes another.

    Only the objects are stored. `tables`, `to_toml` and `fingerprint` are derived from them.
    """

    name: str
    data: "schema.Data"
    model: "schema.Model"
    method: "Method"
    schedule: "AnySchedule"
    optim: "schema.Optim"
    train: "schema.Train"
    eval: "schema.Eval"

    @property
    def ball(self) -> "Ball":
        """The threat model, which the method holds."""
        return self.method.ball

    @cached_property
    def tables(self) -> Tables:
        """Every key with its value, defaults included."""
        from amata.recipes.tables import tables_of

        return tables_of(self)

    @cached_property
    def chosen(self) -> Tables:
        """The keys whose values are not the defaults."""
        from amata.recipes.tables import tables_of

        return tables_of(self, exclude_defaults=True)

    def to_toml(self, *, deciding: bool = False) -> str:
        """All keys, or those of `deciding`."""
        tables = self.deciding() if deciding else self.tables
        written = {
            section: {k: v for k, v in table.items() if v is not None}
            for section, table in tables.items()
        }
        # User-defined objects are read back as they are, so their numbers stay numbers.
        own = {section: table for section, table in written.items() if "class" in table}
        # Only the others hold sizes of steps and balls.
        plain = {
            section: written[section]
            for section in ("data", "optim", "train")
            if section in written
        }
        text = {**to_fractions(written), **plain, **own}
        if "args" in written["model"]:  # any values, which nothing parses back
            text["model"]["args"] = written["model"]["args"]
        return dumps(text)

    def deciding(self) -> Tables:
        """The keys that decide what the run computes, without the operational ones."""
        return _deciding(self.tables)

    def digest(self) -> str:
        """A hash of everything that decides what the run computes. Defaults are left out, so that
        a key that is added later changes nothing."""
        content = json.dumps(_deciding(self.chosen), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def fingerprint(self) -> str:
        """The start of the hash, which names the recipe in checkpoints and studies."""
        return self.digest()[:16]


def _deciding(tables: Tables) -> Tables:
    kept = {
        section: {k: v for k, v in table.items() if f"{section}.{k}" not in OPERATIONAL}
        for section, table in tables.items()
    }
    return {section: table for section, table in kept.items() if table}
