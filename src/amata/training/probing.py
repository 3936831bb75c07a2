"""Probes for a closed-loop schedule: the value and cost of candidate controls on a few batches."""

from collections.abc import Sequence

from amata.batch import Batch
from amata.control import Probe
from amata.distributed import Ranks
from amata.engine import ProbeNet
from amata.methods import Memory, Method
from amata.schedules import Control, Response
from amata.seeds import derive


def probe(
    net: ProbeNet,
    method: Method,
    controls: Sequence[Control],
    batches: Sequence[Batch],
    memory: Memory,
    *,
    place: tuple[int, int],
    ranks: Ranks,
) -> list[Response]:
    """Value and cost of each control, averaged over the batches. Several processes share the work;
    `place` is (seed, epoch)."""
    curve = []
    for number, u in enumerate(controls):
        value = cost = 0.0
        for index, batch in enumerate(batches):
            if (number * len(batches) + index) % ranks.size == ranks.rank:
                measured = Probe(net, method, batch, memory, seed=derive(*place, index, "probe"))(u)
                value, cost = value + measured.value, cost + measured.grad_evals
        value, cost = ranks.sum([value, cost])
        curve.append(Response(u, value / len(batches), cost / len(batches)))
    return curve
