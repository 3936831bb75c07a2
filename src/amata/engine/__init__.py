"""How the verbs of a method are computed. The only room that may know of compilation, graphs, precision and distribution."""

from amata.engine.average import WeightAverage
from amata.engine.plain import PlainNet
from amata.engine.probe import ProbeNet

__all__ = ["PlainNet", "ProbeNet", "WeightAverage"]
