"""Fault injection: what is done to a run, and what must hold afterwards.

    python -m tests.faults --trials 200 --seed 1      200 random trials over all rows of ROWS
    python -m tests.faults --only "kill -9" --seed 7  one trial of one row

A row is a fault, which does something and returns how the last command ended, and the checks that
must hold. Trial i of seed N draws everything from N + i, so a broken one can be repeated alone. A
new row is a line in ROWS.
"""

import argparse
import contextlib
import ctypes
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.death import signal_when
from tests.forked import Child, Inside, Outcome, command, import_everything

ROOT = Path(__file__).parents[1]
TOY = """extends = "mnist5k-amata"
[data]
name = "mnist"
batch_size = 20
valid = 40
augment = "crop-flip"
pad = 1
[model]
args = {width = 2}
[threat]
eps = 0.05
[schedule]
k_min = 1
k_max = 2
tau = 0.1
[optim]
name = "adamw"
lr = 0.02
lr_schedule = "constant"
nesterov = false
ema = 0.9
[train]
device = "cpu"
epochs = 3
valid_attack = "fgsm"
keep_epochs = true
tensorboard = false
save_minutes = 1e-9
[eval]
attacks = ["clean", "pgd-2"]
"""
"""Half a second of training with everything that a resume has to restore, saved after each
batch."""


class Broken(Exception):
    """Something did not hold."""


class Skipped(Exception):
    """This machine cannot do it."""


# ---- references


class Lab:
    """Data, recipes and the results of undisturbed commands, made once and shared by all trials."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.toy, self.other = path / "toy.toml", path / "other.toml"
        self.seconds: dict[str, float] = {}
        """How long the undisturbed training and comparison took."""
        self.changes: dict[str, int] = {}
        """How many changes they made to their folder."""
        self.results: dict[tuple[str, str], Any] = {}
        """The results of commands, by the state of the run and the command."""

    def build(self, needs: Iterable[str]) -> None:
        write_digits(self.path / "data" / "mnist")
        os.environ.update(AMATA_DATA=str(self.path / "data"), HOME=str(self.path))
        self.toy.write_text(TOY)
        self.other.write_text('extends = "toy.toml"\n[schedule]\nname = "constant"\n')
        with self.other.open("a") as file:
            file.write("steps = 1\nstep_size = 0.06\n")
        self._timed("finished", "train", self.toy)
        self._unfinished()
        for state, name in sorted(RESULTS):
            if f"{state} {name}" in needs:
                copied = self.path / "made" / f"{state} {name}" / "run"
                copy(self.path / state, copied)
                ended = command(*RESULTS[state, name][0], folder=copied.parent).wait()
                self.results[state, name] = read_result(state, name, copied.parent, ended)
        if "compare" in needs:
            self._timed("compare", "compare", self.toy, self.other)
        if "ranks" in needs:
            ended = torchrun(self.toy, self.path / "ranks", lambda process: None)
            assert ended.code == 0, ended

    def _timed(self, name: str, *arguments: str | Path) -> None:
        folder, tally, start = self.path / name, self.path / f"{name}.changes", time.monotonic()
        count = partial(at_change, folder, None, partial(append, tally))
        ended = command(*arguments, "--out", folder, folder=self.path, inside=count).wait()
        assert ended.code == 0, ended
        self.seconds[name], self.changes[name] = time.monotonic() - start, tally.stat().st_size

    def _unfinished(self) -> None:
        """A run that was killed in its last epoch."""
        folder = self.path / "unfinished"

        def last_epoch() -> bool:
            saved = list(folder.glob("checkpoints/[0-9]*.json"))
            return (folder / "epochs" / "00002.safetensors").is_file() and len(saved) >= 2

        kill = partial(signal_when, signal.SIGKILL, last_epoch)
        ended = command("train", self.toy, "--out", folder, inside=kill).wait()
        assert ended.code == -signal.SIGKILL, ended


def write_digits(folder: Path) -> None:
    """MNIST files of a task that is learnt in seconds: a bright bar, whose height is the digit."""
    import numpy as np

    from amata.data.mnist import FILES
    from tests.test_data import idx

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in FILES:
        n = 200 if "train" in name else 60
        x, y = rng.integers(0, 120, (n, 28, 28)), np.arange(n) % 10
        for image, digit in zip(x, y, strict=True):
            image[2 * digit + 3 : 2 * digit + 6] += 120
        content = idx((x if "images" in name else y).astype(np.uint8))
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))


def copy(source: Path, target: Path) -> None:
    """A copy of a folder, with its hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", source, target], check=True)


RESULTS: dict[tuple[str, str], tuple[tuple[str, ...], str]] = {
    ("finished", "resume"): (("train", "--resume", "run"), ""),
    ("finished", "eval"): (("eval", "run", "--json"), ""),
    ("finished", "report"): (("report", "run", "--out", "out"), "out/compare.json"),
    ("finished", "landscape"): (
        ("landscape", "run", "--out", "out", "--epochs", "2", "--grid", "3", "--image", "0"),
        "out/landscape.json",
    ),
    ("unfinished", "resume"): (("train", "--resume", "run"), "run"),
    ("unfinished", "eval"): (("eval", "run", "--json"), ""),
}
"""Commands on a finished or an unfinished run, and where their numbers are: in a file, in the run
folder, or on stdout."""


def read_result(state: str, name: str, folder: Path, ended: Outcome) -> Any:
    """The numbers of a command of RESULTS, without times."""
    where = RESULTS[state, name][1]
    if where == "run":
        return run_result(folder / where)
    if where:
        return without_times(json.loads((folder / where).read_text()))
    if name == "eval":
        return without_times(json.loads(ended.out))
    return re.sub(r"\d+\.\d s", "", ended.out)


def run_result(run: Path) -> dict[str, Any]:
    """Everything that a finished run computed: the bytes of its weights, its rows and results."""
    files = [run / "last.safetensors", run / "model.safetensors", *run.glob("epochs/*")]
    rows = (run / "metrics.jsonl").read_text().splitlines()
    return {
        **{str(file.relative_to(run)): file.read_bytes() for file in files},
        "rows": [without_times(json.loads(row)) for row in rows],
        "summary": without_times(json.loads((run / "summary.json").read_text())),
    }


def without_times(value: Any) -> Any:
    """A result without times, hashes of files that hold times, and the state of this checkout."""
    if isinstance(value, dict):
        clocked = re.compile("seconds|time|speedup|sha256|commit")
        return {k: without_times(v) for k, v in value.items() if not clocked.search(k)}
    return [without_times(v) for v in value] if isinstance(value, list) else value


# ---- a trial


@dataclass
class Trial:
    """One trial: its folder, its random draws, and the commands that it runs."""

    lab: Lab
    folder: Path
    rng: random.Random
    story: list[str] = field(default_factory=list)
    """What was done, for a report."""
    expected: Any = None
    """The result of the undisturbed command; by default that of the training."""
    result: Any = None

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def start(self, *arguments: str | Path, inside: Inside | None = None) -> Child:
        self.story.append("amata " + " ".join(map(str, arguments)))
        return command(*arguments, folder=self.folder, inside=inside)

    def amata(self, *arguments: str | Path, inside: Inside | None = None) -> Outcome:
        return self.start(*arguments, inside=inside).wait()

    def train(self, inside: Inside | None = None) -> Child:
        """Start the training, or resume it."""
        if (self.run / "recipe.toml").is_file():
            return self.start("train", "--resume", self.run, inside=inside)
        return self.start("train", self.lab.toy, "--out", self.run, inside=inside)

    def finish(self) -> Outcome:
        """Train or resume, undisturbed."""
        ended = self.train().wait()
        if ended.code == 0:
            self.result = run_result(self.run)
            self.expected = run_result(self.lab.path / "finished")
        return ended

    def command(self, state: str, name: str, inside: Inside | None = None) -> Outcome:
        """A command of RESULTS on this trial's run."""
        ended = self.amata(*RESULTS[state, name][0], inside=inside)
        self.expected = self.lab.results[state, name]
        if ended.code == 0:
            self.result = read_result(state, name, self.folder, ended)
        return ended


def at_change(folder: Path, number: int | None, act: Inside) -> None:
    """In a child: act before change `number` to the folder, or before each."""
    from tests.death import CHANGES, writes

    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        changes = event in CHANGES or (event == "open" and writes(*args))
        if changes and str(args[0]).startswith(f"{folder}{os.sep}"):
            seen += 1
            if number in (None, seen):
                act()

    sys.addaudithook(hook)


def append(tally: Path) -> None:
    with tally.open("ab") as file:
        file.write(b".")


def kill_self(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


# ---- the faults

Fault = Callable[[Trial], Outcome]


def kill(number: int) -> Fault:
    """Kill a training up to three times, each time at a random instant or at a random change to the
    folder; then resume it."""

    def fault(t: Trial) -> Outcome:
        for _ in range(t.rng.choice((1, 1, 2, 3))):
            at, delay = t.rng.randint(1, t.lab.changes["finished"]), None
            inside = partial(at_change, t.run, at, partial(kill_self, number))
            if t.rng.random() < 0.5:
                inside, delay = None, t.rng.uniform(0, t.lab.seconds["finished"])  # type: ignore[assignment]
            t.story.append(f"kill -{number} " + (f"after {delay:.3f} s" if delay else f"at {at}"))
            stopped(killed(t.train(inside), number, delay))
        return t.finish()

    return fault


def killed(child: Child, number: int, delay: float | None) -> Outcome:
    """The end of a child that is killed after a delay, or that kills itself."""
    if delay is not None:
        time.sleep(delay)
        child.kill(number)
    return child.wait()


def stopped(ended: Outcome) -> None:
    """A command that was asked to stop: it is killed, has finished, or says so in one line."""
    if ended.code not in (0, -9, -15, -2):
        if ended.code not in (130, 143):
            raise Broken(f"a killed command ended otherwise: {ended}")
        one_line(ended)


def kill_in_evaluation(t: Trial) -> Outcome:
    """Kill a run after its training, before its summary is written; then resume it."""
    number = t.rng.choice((9, 15, 2))
    child = t.train()
    while not (t.run / "last.safetensors").is_file() and not child.ended():
        time.sleep(0.0005)
    t.story.append(f"kill -{number} in the final evaluation")
    stopped(killed(child, number, t.rng.uniform(0, 0.05)))
    return t.finish()


def kill_compare(t: Trial) -> Outcome:
    """Kill a comparison, then repeat it."""
    number, out = t.rng.choice((9, 9, 15, 2)), t.folder / "compare"
    call: tuple[str | Path, ...] = ("compare", t.lab.toy, t.lab.other, "--out", out)
    if t.rng.random() < 0.5:
        at = t.rng.randint(1, t.lab.changes["compare"])
        t.story.append(f"kill -{number} at {at}")
        inside = partial(at_change, out, at, partial(kill_self, number))
        stopped(t.start(*call, inside=inside).wait())
    else:
        delay = t.rng.uniform(0, t.lab.seconds["compare"])
        t.story.append(f"kill -{number} after {delay:.3f} s")
        stopped(killed(t.start(*call), number, delay))
    ended = t.amata(*call)
    if ended.code == 0:
        t.result, t.expected = (comparison(folder) for folder in (out, t.lab.path / "compare"))
    return ended


def comparison(folder: Path) -> dict[str, Any]:
    """The numbers and weights of a comparison."""
    numbers = json.loads((folder / "compare.json").read_text())
    files = sorted(folder.glob("runs/*/*.safetensors"))
    weights = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    return {**weights, "compare.json": without_times(numbers)}


def damage(state: str, pattern: str, *commands: str) -> Fault:
    """Flip a bit of a file of a run, or tear it; then one of the commands reads the run."""

    def fault(t: Trial) -> Outcome:
        copy(t.lab.path / state, t.run)
        files = sorted(t.run.glob(pattern))
        if not files:
            raise Skipped(f"a {state} run has no {pattern}")
        file = t.rng.choice(files)
        t.story.append(hurt(file, t.rng))
        return t.command(state, t.rng.choice(commands))

    return fault


def damage_epoch(t: Trial) -> Outcome:
    """Damage the state of a past epoch. A resume cannot write it again and does not need it, but a
    command that reads it must refuse it."""
    copy(t.lab.path / "unfinished", t.run)
    file = t.rng.choice(sorted(t.run.glob("epochs/*[1-9].safetensors")))
    t.story.append(hurt(file, t.rng))
    ended = t.finish()
    if ended.code == 0 and t.result != t.expected:
        for result in (t.result, t.expected):
            del result[str(file.relative_to(t.run))]
        epoch = str(int(file.stem))
        refused(t.amata("landscape", "run", "--out", "out", "--epochs", epoch, "--image", "0"))
    return ended


def hurt(file: Path, rng: random.Random) -> str:
    """Flip a bit of a file, change a digit, cut it off, empty it or overwrite 32 bytes; says
    which."""
    content = bytearray(file.read_bytes())
    at = rng.randrange(len(content))
    if file.suffix == ".safetensors" and rng.random() < 0.3:
        at = rng.randrange(min(len(content), 2000))  # the header
    how = rng.choice(("flip", "flip", "digit", "digit", "tear", "empty", "zeros"))
    digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    if how == "digit" and file.suffix != ".safetensors" and digits:
        at = rng.choice(digits)
        content[at] = ord(rng.choice(sorted(set("0123456789") - {chr(content[at])})))
        how = f"digit {chr(content[at])} at byte"
    elif how in ("flip", "digit"):
        content[at] ^= 1 << (bit := rng.randrange(8))
        how = f"flip bit {bit} of byte"
    elif how == "zeros":
        content[at : at + 32] = bytes(len(content[at : at + 32]))
    else:
        del content[0 if how == "empty" else at :]
    with file.open("r+b") as stream:  # in place: a hard link has the same damage
        stream.write(content)
        stream.truncate()
    return f"{how} {at} of {file.parent.name}/{file.name}"


def full_disk(t: Trial) -> Outcome:
    """No file may grow beyond a limit; then resume without it."""
    most = t.rng.randint(3_000, 400_000)
    t.story.append(f"files of at most {most} bytes")
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    ended = t.train(limit).wait()
    if ended.code:
        refused(ended)
    return t.finish()


def full_file_system(t: Trial) -> Outcome:
    """A small file system is full; then it grows, and the run resumes."""
    size = 4096 * t.rng.randint(1, 500)
    with mounted(t, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as disk:
        t.story.append(f"a file system of {size} bytes")
        run, t.folder = t.folder, disk
        ended = t.train().wait()
        if ended.code:
            refused(ended)
        mount(t, "-o", "remount,size=50m", disk)
        ended, t.folder = t.finish(), run
        return ended


def full_report(t: Trial) -> Outcome:
    """A report into a full file system."""
    size = 4096 * t.rng.randint(1, 60)
    copy(t.lab.path / "finished", t.run)
    with mounted(t, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as disk:
        t.story.append(f"a file system of {size} bytes")
        return t.amata("report", "run", "--out", disk / "out")


def read_only_run(t: Trial) -> Outcome:
    """A command on a run in a read-only folder: it works as ever, or is refused."""
    state, name = t.rng.choice(
        (("finished", "resume"), ("finished", "eval"), ("unfinished", "resume"))
    )
    copy(t.lab.path / state, t.run)
    with read_only(t, t.run):
        return t.command(state, name)


def read_only_output(t: Trial) -> Outcome:
    """A command that writes into a read-only folder."""
    copy(t.lab.path / "finished", t.run)
    out = t.folder / "out"
    out.mkdir()
    deep = t.rng.choice((out, out / "deep"))
    calls: tuple[tuple[str | Path, ...], ...] = (
        ("train", t.lab.toy, "--out", deep),
        ("report", "run", "--out", deep),
        ("compare", t.lab.toy, t.lab.other, "--out", deep),
        ("landscape", "run", "--out", deep, "--grid", "3", "--image", "0"),
        ("export", "run", "--to", "hf", "--out", deep),
        ("toy", "--parts", "2", "--out", deep),
    )
    with read_only(t, out):
        return t.amata(*t.rng.choice(calls))


def deleted(t: Trial) -> Outcome:
    """The run folder is deleted under a training."""
    child = t.train()
    delay = t.rng.uniform(0, t.lab.seconds["finished"])
    t.story.append(f"delete it after {delay:.3f} s")
    time.sleep(delay)
    child.stop()
    if not (t.run / "summary.json").is_file():  # it has not yet finished
        with contextlib.suppress(FileNotFoundError):
            t.run.rename(t.folder / "trash")
    child.kill(signal.SIGCONT)
    shutil.rmtree(t.folder / "trash", ignore_errors=True)
    ended = child.wait()
    if ended.code == 0:
        try:
            t.result = run_result(t.run)
        except OSError as error:
            raise Broken(f"exit status 0, but the run is not there ({error})") from None
        t.expected = run_result(t.lab.path / "finished")
    return ended


def twice(t: Trial) -> Outcome:
    """Two processes train into one folder, or resume one run."""
    if t.rng.random() < 0.5:
        copy(t.lab.path / "unfinished", t.run)
    call = ("train", "--resume", t.run) if t.run.is_dir() else ("train", t.lab.toy, "--out", t.run)
    first = t.start(*call)
    delay = t.rng.uniform(0, t.lab.seconds["finished"])
    t.story.append(f"and again after {delay:.3f} s")
    time.sleep(delay)
    second = t.start(*call).wait()
    ends = [first.wait(), second]
    for ended in ends:
        if ended.code:
            refused(ended)
    if all(ended.code for ended in ends):
        raise Broken(f"neither of two processes finished: {ends[0]}; {ends[1]}")
    return t.finish() if "--resume" in call else _whole(t, ends[0])


def _whole(t: Trial, ended: Outcome) -> Outcome:
    t.result, t.expected = (run_result(run) for run in (t.run, t.lab.path / "finished"))
    return Outcome(0, ended.out, ended.err)


def two_reports(t: Trial) -> Outcome:
    """Two processes write a report into one folder."""
    copy(t.lab.path / "finished", t.run)
    other = t.start(*RESULTS["finished", "report"][0])
    time.sleep(t.rng.uniform(0, 0.3))
    ended = t.command("finished", "report")
    if (first := other.wait()).code:
        refused(first)
    return ended


def kill_rank(t: Trial) -> Outcome:
    """Kill one of two processes that train together; torchrun restarts them."""

    def act(process: "subprocess.Popen[str]") -> None:
        while not (t.run / "recipe.toml").is_file() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(t.rng.uniform(0, 1))
        if ranks := children(process.pid):
            t.story.append("kill -9 one of two processes")
            with contextlib.suppress(ProcessLookupError):
                os.kill(t.rng.choice(ranks), signal.SIGKILL)

    ended = torchrun(t.lab.toy, t.run, act)
    if ended.code == 0:
        t.result, t.expected = (run_result(run) for run in (t.run, t.lab.path / "ranks"))
    return ended


def torchrun(recipe: Path, out: Path, act: Callable[["subprocess.Popen[str]"], None]) -> Outcome:
    """Train with two processes and up to three restarts; `act` is called once they have started."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    call += ["--max-restarts", "3", "-m", "amata", "train", str(recipe), "--out", str(out)]
    with subprocess.Popen(
        call, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        act(process)
        try:
            printed, err = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
            return Outcome(-9, "", "", hung=True)
    return Outcome(process.returncode, printed, err)


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(stat.parent.name))
    return sorted(found)


@contextlib.contextmanager
def read_only(t: Trial, folder: Path) -> Iterator[None]:
    """A folder in which nothing can be written: for root only a mount has this effect."""
    if os.geteuid():
        before = folder.stat().st_mode
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(before)
        return
    mount(t, "--bind", folder, folder)
    try:
        mount(t, "-o", "remount,bind,ro", folder)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def mounted(t: Trial, *options: str) -> Iterator[Path]:
    """A file system of its own."""
    disk = t.folder / "disk"
    disk.mkdir()
    mount(t, *options, disk)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def mount(t: Trial, *arguments: str | Path) -> None:
    t.story.append(f"mount {' '.join(map(str, arguments))}")
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Skipped(f"mount: {error}") from None
    if done.returncode:
        raise Skipped(done.stderr.strip())


# ---- the checks

Check = Callable[[Trial, Outcome], None]
PROGRESS = re.compile(r"(epoch |note: |warning: |run \d+ of )")


def one_line(ended: Outcome) -> None:
    """Besides progress, stderr has one line, which starts with error:, or interrupted after a
    signal."""
    if ended.hung or "Traceback" in ended.err:
        raise Broken(str(ended))
    lines = [line for line in ended.err.splitlines() if not PROGRESS.match(line)]
    start = "interrupted" if ended.code > 128 else "error: "
    if len(lines) != 1 or not lines[0].startswith(start) or not lines[0].isprintable():
        raise Broken(f"not one line of error: {ended}")


def refused(ended: Outcome) -> None:
    """Exit status 1 or 2, and one line."""
    if ended.code not in (1, 2):
        raise Broken(str(ended))
    one_line(ended)


def succeeds(t: Trial, ended: Outcome) -> None:
    if ended.code != 0 or ended.hung:
        raise Broken(str(ended))


def is_refused(t: Trial, ended: Outcome) -> None:
    refused(ended)


def same_or_refused(t: Trial, ended: Outcome) -> None:
    """The result of the undisturbed command, or one line: never another result."""
    if ended.code:
        refused(ended)
    else:
        same_result(t, ended)


def same_result(t: Trial, ended: Outcome) -> None:
    """The bytes and numbers of the undisturbed command, times excepted."""
    if t.result != t.expected:
        raise Broken(f"exit status 0, another result: {difference(t.result, t.expected)}")


def ok_or_refused(t: Trial, ended: Outcome) -> None:
    if ended.code:
        refused(ended)


def untouched(t: Trial, ended: Outcome) -> None:
    """Nothing outside the folders of the trial is changed."""
    strange = {p.name for p in t.folder.iterdir()} - {"run", "out", "compare", "disk", "canary"}
    if strange or (t.folder / "canary").read_text() != "sings":
        raise Broken(f"something else was written: {strange or 'canary'}")


def difference(now: Any, before: Any, place: str = "") -> str:
    """Where two results differ first."""
    if isinstance(now, dict) and isinstance(before, dict):
        for key in [*before, *(k for k in now if k not in before)]:
            if now.get(key) != before.get(key):
                return difference(now.get(key), before.get(key), f"{place}.{key}")
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        for i, (a, b) in enumerate(zip(now, before, strict=True)):
            if a != b:
                return difference(a, b, f"{place}[{i}]")
    return f"{place.lstrip('.')} is {str(now)[:200]!r}, not {str(before)[:200]!r}"


# ---- the rows


@dataclass(frozen=True)
class Row:
    fault: Fault
    checks: tuple[Check, ...]
    share: int = 4
    """Trials of this row among about 200."""
    needs: tuple[str, ...] = ()
    """What it compares with, besides the undisturbed training."""


SAME = (succeeds, same_result, untouched)
SAFE = (same_or_refused, untouched)
READERS = ("resume", "eval", "eval", "report")
FINISHED = {
    "recipe.toml": READERS,
    "env.json": ("resume", "eval", "report", "report"),
    "split.json": READERS,
    "metrics.jsonl": ("resume", "eval", "report", "report"),
    "summary.json": ("resume", "resume", "eval", "report"),
    "checkpoints/*": ("resume", "eval"),
    "model.safetensors": ("resume", "eval", "eval", "landscape"),
    "last.safetensors": ("resume", "eval"),
    "epochs/*": ("eval", "landscape"),
    "evaluations/*": ("resume", "eval", "eval", "report"),
}
"""The files of a finished run, and the commands that are tried on a damaged one."""
UNFINISHED = {
    "recipe.toml": 6,
    "env.json": 4,
    "split.json": 6,
    "metrics.jsonl": 6,
    "checkpoints/[0-9]*.json": 14,
    "checkpoints/[0-9]*.safetensors": 6,
    "checkpoints/best-*.safetensors": 6,
    "model.safetensors": 6,
}
"""The files of an unfinished run, and how often each is damaged."""


def _needs(state: str, commands: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{state} {name}" for name in commands)


ROWS: dict[str, Row] = {
    "kill -9": Row(kill(9), SAME, 16),
    "kill -15": Row(kill(15), SAME, 12),
    "kill -2": Row(kill(2), SAME, 10),
    "kill in the final evaluation": Row(kill_in_evaluation, SAME, 8),
    "kill compare": Row(kill_compare, SAME, 6, ("compare",)),
    **{
        f"damaged {file}, finished": Row(
            damage("finished", file, *commands), SAFE, 6, _needs("finished", commands)
        )
        for file, commands in FINISHED.items()
    },
    **{
        f"damaged {file}, unfinished": Row(
            damage("unfinished", file, "resume", "resume", "resume", "eval"),
            SAFE,
            share,
            ("unfinished resume", "unfinished eval"),
        )
        for file, share in UNFINISHED.items()
    },
    "damaged epochs/*, unfinished": Row(damage_epoch, SAFE, 6),
    "full disk": Row(full_disk, SAME, 6),
    "full file system": Row(full_file_system, SAME, 6),
    "full file system, report": Row(full_report, (ok_or_refused, untouched), 3),
    "read-only run": Row(
        read_only_run, SAFE, 4, ("finished resume", "finished eval", "unfinished resume")
    ),
    "read-only output": Row(read_only_output, (is_refused, untouched), 4),
    "deleted folder": Row(deleted, SAFE, 6),
    "two processes": Row(twice, SAME, 6),
    "two reports": Row(two_reports, SAFE, 3, ("finished report",)),
    "killed rank": Row(kill_rank, SAME, 2, ("ranks",)),
}

DOZEN = (
    ("kill -9", 1),
    ("kill -15", 1),
    ("kill -2", 1),
    ("kill in the final evaluation", 1),
    ("damaged recipe.toml, finished", 119),
    ("damaged split.json, unfinished", 20),
    ("damaged metrics.jsonl, unfinished", 4),
    ("damaged checkpoints/[0-9]*.json, unfinished", 9),
    ("damaged epochs/*, unfinished", 25),
    ("full disk", 1),
    ("deleted folder", 1),
    ("two processes", 1),
)
"""The rows and seeds of `make test`."""


# ---- running


@dataclass(frozen=True)
class Verdict:
    row: str
    seed: int
    how: str
    """held, broken or skipped"""
    why: str = ""


def judge(lab: Lab, name: str, seed: int) -> Verdict:
    """Carry out one trial."""
    row = ROWS[name]
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir=lab.path))
    (folder / "canary").write_text("sings")
    trial = Trial(lab, folder, random.Random(f"{name} {seed}"))
    try:
        ended = row.fault(trial)
        for check in row.checks:
            check(trial, ended)
    except Skipped as skipped:
        return Verdict(name, seed, "skipped", str(skipped))
    except Broken as broken:
        return Verdict(name, seed, "broken", "\n".join([*trial.story, str(broken)]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Verdict(name, seed, "held")


def planned(trials: int, seed: int, only: str | None) -> list[tuple[str, int]]:
    """The rows and seeds of the trials: each row by its share, in turn."""
    if only is not None:
        return [(only, seed + i) for i in range(trials)]
    most = max(row.share for row in ROWS.values())
    turns = [
        name
        for turn in range(most)
        for name, row in ROWS.items()
        if turn * row.share // most != (turn + 1) * row.share // most
    ]
    return [(turns[i % len(turns)], seed + i) for i in range(trials)]


def own_mounts() -> None:
    """Mounts that nobody else sees, and that end with this process; without the right to do so,
    rows with mounts are skipped."""
    new_namespace = 0x00020000
    if os.geteuid() == 0 and ctypes.CDLL(None).unshare(new_namespace) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False)


def carry_out(trials: list[tuple[str, int]], jobs: int = 2) -> list[Verdict]:
    import_everything()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # there, fsync takes no time
    with tempfile.TemporaryDirectory(prefix="amata-faults-", dir=place) as folder:
        lab = Lab(Path(folder).resolve())
        lab.build({need for name, _ in trials for need in ROWS[name].needs})
        context = get_context("fork")
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=own_mounts) as pool:
            waiting = [pool.submit(judge, lab, name, seed) for name, seed in trials]
            return [done.result() for done in as_completed(waiting)]


def table(verdicts: list[Verdict]) -> str:
    counts = Counter((v.row, v.how) for v in verdicts)
    width = max(map(len, ROWS))
    lines = [f"{'row':{width}}  trials   held  broken  skipped"]
    for name in [*ROWS, None]:
        found = [
            sum(n for (row, h), n in counts.items() if name in (None, row) and how in (None, h))
            for how in (None, "held", "broken", "skipped")
        ]
        if found[0]:
            numbers = "{:6d}  {:5d}  {:6d}  {:7d}".format(*found)
            lines.append(f"{name or 'all':{width}}  {numbers}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", choices=ROWS, metavar="ROW", help="; ".join(ROWS))
    parser.add_argument("--dozen", action="store_true", help="the fixed trials of `make test`")
    given = parser.parse_args(arguments)
    trials = planned(given.trials or (1 if given.only else 200), given.seed, given.only)
    start = time.monotonic()
    if not given.dozen:
        print(f"{len(trials)} trials with --seed {given.seed}", flush=True)
    verdicts = carry_out(list(DOZEN) if given.dozen else trials)
    print(table(verdicts))
    print(f"{time.monotonic() - start:.0f} s")
    broken = [v for v in verdicts if v.how == "broken"]
    for v in broken:
        why = v.why.replace("\n", "\n    ")
        print(f"\n{v.row}\n    {why}")
        print(f'    again: python -m tests.faults --only "{v.row}" --seed {v.seed}')
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
