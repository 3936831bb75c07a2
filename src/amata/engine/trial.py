"""Steps on trial: afterwards a network in training is what it was before."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from amata.engine.plain import PlainNet

COUNTERS = ("_evals", "first_layer_evals", "updates", "last_loss", "_samples", "_in_update")


@contextmanager
def on_trial(net: PlainNet, *, keep_tensors: bool) -> Iterator[None]:
    """Restore weights, statistics, gradients, optimiser, EMA, counters and random states after the
    with block, in the tensors that they are in now.

    Optimiser state that the block creates is dropped; with `keep_tensors`, for CUDA graphs that
    write to it, it stays and is zero, which means the same to SGD, Adam and Muon.
    """
    on_gpu = net.device.type == "cuda"
    tensors = [*net.model.parameters(), *net.model.buffers()]
    if net.ema is not None:
        tensors += [*net.ema.model.parameters(), *net.ema.model.buffers()]
    entries = {p: dict(state) for p, state in net.optimizer.state.items()}
    tensors += [t for state in entries.values() for t in state.values() if isinstance(t, Tensor)]
    tensors += [p.grad for p in net.model.parameters() if p.grad is not None]
    before = [(t, t.detach().clone()) for t in tensors]
    no_gradient = [p for p in net.model.parameters() if p.grad is None]
    counters = {name: getattr(net, name) for name in COUNTERS}
    ema_steps, training = net.ema.steps if net.ema is not None else 0, net.model.training
    try:
        with torch.random.fork_rng(devices=[net.device] if on_gpu else []):
            yield
    finally:
        with torch.no_grad():
            for t, value in before:
                t.copy_(value)
            for p, state in list(net.optimizer.state.items()):
                if p in entries:
                    state.update(entries[p])
                elif not keep_tensors:
                    del net.optimizer.state[p]
                else:
                    for value in state.values():
                        if isinstance(value, Tensor):
                            value.zero_()
            for p in no_gradient:
                if p.grad is not None and keep_tensors:
                    p.grad.zero_()
                else:
                    p.grad = None
        for name, value in counters.items():
            setattr(net, name, value)
        if net.ema is not None:
            net.ema.steps = ema_steps
        net.model.train(training)
