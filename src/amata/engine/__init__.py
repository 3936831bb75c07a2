"""How the verbs of a method are computed. The only room that may know of compilation, graphs, precision and distribution."""

from amata.engine.average import WeightAverage
from amata.engine.plain import PlainNet

__all__ = ["PlainNet", "WeightAverage"]
