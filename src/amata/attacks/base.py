"""The base class of the named attacks that evaluation runs."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from amata.errors import InputError
from amata.fields import read_fields
from amata.quantity import Count
from amata.threat import Ball

INT = r"(?:0|[1-9]\d{0,8})"
"""An integer below 10^9 in a `pattern`. Zero matches, so that the error can say what is wrong with
it."""


OnPart = Callable[[str, int], None]
"""Called with the name of a part and how many images no part before it broke."""


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """One attack with its parameters; calling it returns adversarial images.

    A subclass sets `pattern` and `examples`, defines `params` and `__call__`, and gets a row in
    `ATTACKS` of attacks/named.py.
    """

    pattern: ClassVar[str]
    """Regular expression for its names. Each named group fills the field of that name."""
    examples: ClassVar[tuple[str, ...]]
    """Names that error messages suggest."""
    perturbs: ClassVar[bool] = True
    """False only for the clean images."""
    gathers: ClassVar[bool] = False
    """Whether it is given many images at once, because it soon works on few of them."""
    in_ball: ClassVar[bool] = True
    """False for minimum-norm attacks: the ball does not limit their perturbations."""
    parts: ClassVar[tuple[str, ...]] = ()
    """The attacks that it consists of, in order."""

    name: str
    """As the user wrote it. Results are stored under this name."""
    limit: Count | None = None
    """Attack only the first `limit` images; None means all."""

    def __post_init__(self) -> None:
        read_fields(self)

    @classmethod
    def parse(cls, name: str, options: Mapping[str, Any]) -> Self | None:
        """This attack with the numbers in `name` and the options that it has a field for. None if
        `name` does not match."""
        match = re.fullmatch(cls.pattern, name)
        if match is None:
            return None
        numbers = {key: int(text) for key, text in match.groupdict().items() if text is not None}
        if 0 in numbers.values():
            raise InputError(
                f"attack {name!r}: the number of {' and of '.join(match.groupdict())} must be at "
                f"least 1, as in {' or '.join(cls.examples)}"
            )
        own = {field.name for field in fields(cls)}
        given = {key: value for key, value in options.items() if key in own}
        return cls(name=name, **numbers, **given)

    @abstractmethod
    def params(self, ball: Ball) -> dict[str, Any]:
        """The exact parameters, printed beside each result."""

    @abstractmethod
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        """Adversarial images for x. `seed` determines all random draws."""

    def in_batches(self, size: int) -> "Attack":
        """The same attack. One that `gathers` batches works on `size` images at a time."""
        return self

    def reporting(self, starts: OnPart) -> "Attack":
        """The same attack. If it has parts, it calls `starts` as each of them does."""
        return self

    def caveats(self, classes: int) -> list[str]:
        """Warnings about this attack on a model with so many classes."""
        return []

    def stronger_than(self, other: "Attack", ball: Ball) -> bool:
        """Whether accuracy under this attack should be at most that under `other`. If it is
        higher, gradients look masked."""
        if self.limit != other.limit or not self.perturbs:
            return False
        return not other.perturbs or self.searches_harder(other, ball)

    def searches_harder(self, other: "Attack", ball: Ball) -> bool:
        """Whether this attack searches the same ball harder than `other`, which perturbs too."""
        return False
