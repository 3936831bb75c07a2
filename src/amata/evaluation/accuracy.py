"""Accuracy under attack: every attack on every batch, judged by the model itself."""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from amata.attacks import Attack, parse_attack
from amata.attacks.checks import check_module
from amata.engine import compiled_for_eval, no_cudnn_benchmark, suits_fp16, tf32
from amata.errors import InputError, Interrupted
from amata.evaluation.batches import SINGLE_PROCESS, Shard, batches_of
from amata.evaluation.counter import GradCounter
from amata.evaluation.loop import Attacked, Loop, in_fp16
from amata.evaluation.masking import ModelStats, add_warnings
from amata.evaluation.result import Result
from amata.evaluation.tally import State, Store
from amata.quantity import choice, positive, split_names, whole
from amata.reporter import Reporter
from amata.threat import Ball, check_ball

Progress = bool | Reporter | Sequence[bool | Reporter] | Callable[..., None]
"""A bar, silence, a reporter, several, or a function like `Reporter.evaluating`."""

Precision = Literal["auto", "tf32", "fp32"]


@torch.inference_mode(False)  # a caller's inference mode would record no gradients
def evaluate(
    model: nn.Module,
    data: Any,
    *,
    ball: Ball,
    attacks: Iterable[str] | str = ("clean", "pgd-20"),
    step_size: float | None = None,
    cw_c: float = 1.0,
    batch_size: int = 256,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress = True,
    part: Shard = SINGLE_PROCESS,
    engine: Literal["auto", "plain"] = "auto",
    precision: Precision = "auto",
    store: Store | None = None,
    examine: Callable[[Attacked], None] | None = None,
    workers: int = 0,
) -> dict[str, Result]:
    """Evaluate a model under each attack.

    `data` is a pair (x, y) of tensors or arrays, an image set, a map-style Dataset (read by
    `workers` processes), or any iterable of batches, such as a DataLoader or a generator. A batch
    is (x, y, ...) or a dict. The model is left unchanged. The random draws of an attack depend only
    on `seed`, the batch and its name.

    With several processes, `data` holds only the batches of this process's `part`, each of
    `batch_size` images. All processes return the results of the whole.

    On a GPU, attacks run on a compiled copy of the model unless `engine` is "plain". The original
    model judges their images: one that it classifies correctly is attacked further. Compilation
    does not count as attack time.

    `precision` is for a GPU: TF32, or with "fp32" full float32. "auto" is TF32 too, but attacks in
    a ball search on a copy with convolutions in fp16, which is twice as fast; batches whose values
    fp16 cannot hold are attacked again in TF32. Results name what was used.

    With a `store`, what is done is kept every half a minute and when the call ends for any reason.
    The next call continues at that batch, with the same results. The store is for one model, data
    and set of arguments; `attacks` alone may differ. `examine` sees every attacked batch.

    `progress` draws a bar with the time left; False is silent. A `Reporter`, or a function with the
    arguments of `Reporter.evaluating`, is called instead.

    Ctrl-C raises `Interrupted`. Its `result` is that of the images that met every attack; without
    such images, and in several processes, it is a plain KeyboardInterrupt.
    """
    from amata.console import watching  # imports rich, which `import amata` does not need

    check_ball(ball)
    check_module(model)
    cw_c, batch_size = positive(cw_c, "cw_c"), whole(batch_size, "batch_size", 1)
    limit = None if limit is None else whole(limit, "limit", 1)
    seed = whole(seed, "seed", 0, 2**63 - 1)
    workers = whole(workers, "workers", 0)
    choice(engine, "engine", ("auto", "plain"))
    choice(precision, "precision", get_args(Precision))
    if not isinstance(part, Shard):
        raise InputError(f"part = {part!r} must be an amata.evaluation.Shard")
    if not isinstance(attacks, Iterable):
        raise InputError(f"attacks = {attacks!r} must be a list of names, such as ['pgd-20']")
    if store is not None and part.size > 1:
        raise InputError("an evaluation by several processes has no store")
    named = split_names(attacks) if isinstance(attacks, str) else attacks
    every = [parse_attack(name, step_size=step_size, c=cw_c) for name in named]
    parsed = list({attack.name: attack for attack in every}.values())
    if not parsed:
        raise InputError("attacks is empty; name at least one, such as 'pgd-20'")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    on_gpu = device.type == "cuda"
    fp16 = precision == "auto" and engine == "auto" and suits_fp16(model)
    lowest = "fp32" if precision == "fp32" else "tf32"
    used = {a.name: "fp16" if fp16 and in_fp16(a) else lowest for a in parsed if on_gpu}
    with watching(progress, "evaluate()") as report:
        loop = Loop(model, parsed, ball, seed, part, report, examine, store, device)
        compiled = on_gpu and engine == "auto" and loop.perturbs
        if not all(loop.state.has(attack) for attack in parsed):
            counter = (
                GradCounter(compiled_for_eval(model, fp16=fp16), loop.judge)
                if compiled
                else GradCounter(model)
            )
            source = batches_of(data, batch_size, device, workers)
            try:
                with loop.kept(), tf32(precision != "fp32"), no_cudnn_benchmark():
                    loop.run(counter, source, batch_size, limit)
            except Interrupted:
                raise  # by the caller's progress, who says what was saved
            except KeyboardInterrupt:
                done = loop.state.finished(parsed)
                if part.size > 1 or done == 0:
                    raise
                of = f" of {loop.total:,}" if loop.total else ""
                found = _results(loop.state.first(done), parsed, ball, part, batch_size, used)
                text = f"interrupted after {done:,}{of} images"
                raise Interrupted(text, signal.SIGINT, found) from None
    return _results(loop.state, parsed, ball, part, batch_size, used)


def _results(
    state: State,
    attacks: Sequence[Attack],
    ball: Ball,
    part: Shard,
    batch_size: int,
    precision: Mapping[str, str],
) -> dict[str, Result]:
    """The results of all processes. `precision` is what each attack used, where there is a
    choice."""
    n, own = state.total or 0, state.classes
    total, classes, seen, *stats = map(int, part.sum([n, own, own > 0, *astuple(state.stats)]))
    if total == 0:
        raise InputError("data has no images to evaluate")
    # A process without batches has seen no logits.
    state = replace(state, classes=classes // max(seen, 1))
    results = {}
    for attack in attacks:
        params, counts = attack.params(ball), state.per_class(attack, part)
        if attack.name in precision:
            params["precision"] = precision[attack.name]
        result = state.tally(attack).result(attack, params, part, batch_size, counts)
        result.warnings += attack.caveats(state.classes)
        results[attack.name] = result
    add_warnings(attacks, results, ball, ModelStats(*stats))
    return results
