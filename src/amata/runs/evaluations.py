"""The evaluations that a run folder keeps, in evaluations/: what was tested, the outcome of every
image, and what an interrupted evaluation needs to continue."""

import base64
import binascii
import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from amata.checksums import RESTORE, damaged, of_text
from amata.errors import InputError
from amata.runs.environment import environment
from amata.runs.files import read_record, refuse_links, write_record
from amata.runs.records import EVALUATIONS

HINT = "delete it, and evaluate again"
MOST_IMAGES = 10_000_000
"""Of a test set whose outcomes are read."""


class StoredEvaluation:
    """One file for one model, data and set of parameters, with any number of attacks.

    `load` and `save` are what `amata.evaluate` continues from. A folder that cannot be written is
    a note: the evaluation itself does not need it.
    """

    def __init__(
        self,
        folder: Path,
        context: dict[str, Any],
        device: torch.device,
        note: Callable[[str], None],
        *,
        forget: Iterable[str] = (),
    ) -> None:
        """`context` is what the results depend on. The attacks in `forget` are evaluated again."""
        refuse_links(folder)
        digest = of_text(json.dumps(context, sort_keys=True))[:10]
        name = re.sub(r"[^\w.-]+", "-", context["data"])[:60]
        self.path = folder / f"{name}-{context['images']}-{digest}.json"
        self.context, self.device, self.note = context, device, note
        self.forgotten, self.refused = set(forget), False
        self.results: dict[str, Any] = {}

    def _read(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        record = read_evaluations(self.path)
        if record["context"] != self.context:
            raise damaged(self.path, "it belongs to another evaluation", HINT)
        for part in (record["state"]["tallies"], record["results"]):
            for name in self.forgotten & part.keys():
                del part[name]
        return record

    def load(self) -> dict[str, Any] | None:
        """The state of an earlier evaluation."""
        record = self._read()
        state: dict[str, Any] | None = record and record["state"]
        return state

    def announce(self, attacks: Iterable[str]) -> None:
        """Note which of the attacks are done already, and which are continued."""
        record = self._read()
        if record is None:
            return
        tallies = record["state"]["tallies"]
        if done := [name for name in attacks if name in record["results"]]:
            self.note(
                f"{', '.join(done)}: evaluated on {record['date']}, {self.path}; --again evaluates "
                "again"
            )
        for name in attacks:
            if name in tallies and name not in record["results"]:
                self.note(f"{name}: continuing after {tallies[name]['images']:,} images")

    def save(self, state: dict[str, Any]) -> None:
        """Keep this state, and what is known of other attacks."""
        earlier = self._read()
        others = earlier["state"]["tallies"] if earlier else {}
        results = {**(earlier["results"] if earlier else {}), **self.results}
        tallies = {**others, **state["tallies"]}
        record = {
            "context": self.context,
            "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "environment": environment(self.device),
            "state": {**state, "tallies": tallies},
            "results": results,
        }
        try:
            write_record(self.path, record)
        except InputError as error:
            if not self.refused:
                self.note(f"this evaluation is not kept: {error}")
            self.refused = True
        self.forgotten = set()

    def finish(self, results: dict[str, dict[str, Any]]) -> None:
        """Add the results of the attacks that are done."""
        self.results = results
        if not self.refused and (state := self.load()) is not None:
            self.save(state)


def read_evaluations(path: Path) -> dict[str, Any]:
    """The record of one file, once its types, sizes and labels are checked."""
    record = read_record(path, EVALUATIONS, sealed=True, hint=HINT)
    state = record["state"]
    labels = memoryview(_bytes(state["labels"], path))
    if labels.nbytes != 4 * state["stats"]["images"]:
        raise damaged(path, "its labels do not fit its images", HINT)
    if any(label >= state["classes"] for label in set(labels.cast("I"))):
        raise damaged(path, "it has labels outside its classes", HINT)
    for name, tally in state["tallies"].items():
        if len(_bytes(tally["outcomes"], path)) != -(-tally["images"] // 8):
            raise damaged(path, f"its outcomes of {name} do not fit its images", HINT)
    _check_counts(record, path)
    return record


def read_outcomes(result: dict[str, Any], attack: str, run: Path) -> npt.NDArray[np.bool_] | None:
    """Which images were right, by a result of the folder `run`; None if that was not stored."""
    if not (text := result.get("outcomes")):
        return None
    n, packed = result["n"], _bytes(text, run, RESTORE)
    if n > MOST_IMAGES:
        raise damaged(run, f"its outcomes of {attack} are of {n:,} images", RESTORE)
    if len(packed) != -(-n // 8):
        raise damaged(run, f"its outcomes of {attack} do not fit its images", RESTORE)
    outcomes = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=n).astype(bool)
    if abs(float(outcomes.mean()) - result["accuracy"]) > 1e-6:
        raise damaged(run, f"its outcomes of {attack} do not fit its accuracy", RESTORE)
    return outcomes


def _check_counts(record: dict[str, Any], path: Path) -> None:
    """Refuse counts that no evaluation has: more images than there are, batches of another size."""
    state, context = record["state"], record["context"]
    stats, whole = state["stats"], context["images"]
    seen = stats["images"]
    fits = (
        seen <= whole
        and state["total"] in (None, whole)
        and (state["total"] is None or seen == whole)
        and max(stats["correct"], stats["non_finite"]) <= seen
        and stats["zero_gradient"] <= stats["probed"]
        and state["batches"] == -(-seen // context["batch_size"])
    )
    for tally in state["tallies"].values():
        fits = (
            fits
            and tally["images"] <= seen
            and tally["non_finite"] <= tally["images"]
            and tally["bad_gradients"] <= tally["grad_evals"]
            and max(tally["parts"].values(), default=0) <= tally["images"]
            and tally["batches"] == -(-tally["images"] // context["batch_size"])
        )
    for result in record["results"].values():
        fits = fits and result["low"] - 1e-9 <= result["accuracy"] <= result["high"] + 1e-9
    if not fits:
        raise damaged(path, "its counts do not fit each other", HINT)


def _bytes(text: str, path: Path, hint: str = HINT) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise damaged(path, "it has outcomes or labels that are not base64", hint) from None
