"""Lock files, with real processes. They import no torch, so they start quickly."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from amata.errors import InputError
from amata.locks import Held, locked
from amata.runs import RunFolder
from amata.runs.lock import Busy, hold
from tests.disk import full_disk
from tests.toy import toy_recipe

PRELUDE = "import os, sys, time; from pathlib import Path; from amata.locks import Held, locked\n"
HOLD = "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
"""Holds the lock until its input ends."""
FORK = """
with locked(Path(sys.argv[1])):
    print('held', flush=True)
    if os.fork():  # the child has a copy of every descriptor
        sys.stdin.read()
print(Path(sys.argv[1]).exists(), flush=True)  # the child has left the block, and lives on
time.sleep(60)
"""
COUNT = """
for _ in range(25):
    with locked(Path(sys.argv[1]), wait=True):
        number = int(Path(sys.argv[2]).read_text())
        time.sleep(0.0005)
        Path(sys.argv[2]).write_text(str(number + 1))
"""


def process(code: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def holder(file: Path, code: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    with process(code, file) as other:
        try:
            assert other.stdout
            assert other.stdout.readline() == "held\n"
            yield other
        finally:
            with suppress(ProcessLookupError):
                os.killpg(other.pid, signal.SIGKILL)


def is_free(file: Path) -> bool:
    try:
        with locked(file):
            return True
    except Held:
        return False


@pytest.mark.parametrize("end", ["release", "kill"])
def test_a_lock_is_refused_while_it_is_held_and_ends_with_its_process(
    tmp_path: Path, end: str
) -> None:
    file = tmp_path / "a.lock"
    with holder(file) as other:
        assert not is_free(file)
        if end == "kill":
            other.kill()
            other.wait()
            assert file.exists()  # stale
        else:
            other.communicate("")
            assert not file.exists()
        assert is_free(file)
    assert list(tmp_path.iterdir()) == []


def test_processes_take_turns(tmp_path: Path) -> None:
    """Each release deletes the file, which others have open already."""
    (tmp_path / "number").write_text("0")
    others = [process(COUNT, tmp_path / "a.lock", tmp_path / "number") for _ in range(3)]
    assert [other.communicate() and other.returncode for other in others] == [0, 0, 0]
    assert (tmp_path / "number").read_text() == "75"
    assert [p.name for p in tmp_path.iterdir()] == ["number"]


def test_a_release_leaves_the_file_of_another_process(tmp_path: Path) -> None:
    """Somebody deletes the lock file, so that a second process locks anew. The release of the first
    must not delete its file too: a third would then get in."""
    file = tmp_path / "a.lock"
    with holder(file) as first:
        file.unlink()
        with holder(file):
            first.communicate("")
            assert not is_free(file)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_neither_keeps_nor_deletes_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "a.lock"
    with holder(file, FORK) as other:
        assert other.stdout
        assert other.stdout.readline() == "True\n"  # the child left the block
        assert not is_free(file)
        os.kill(other.pid, signal.SIGKILL)
        os.waitpid(other.pid, os.WNOHANG)
        until = time.monotonic() + 30
        while not is_free(file):
            assert time.monotonic() < until
        os.killpg(other.pid, 0)  # the child is alive


def test_a_folder_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "gone" / "a.lock"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that root cannot write")
def test_a_folder_that_cannot_be_written_is_an_error_of_one_line() -> None:
    with (
        pytest.raises(InputError, match=r"^cannot write .*\.lock .*writable"),
        hold(Path("/sys"), ""),
    ):
        pass


def test_a_full_disk_does_not_matter_to_an_empty_file(tmp_path: Path) -> None:
    with full_disk(0), hold(tmp_path, "training"):
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_process_creates_is_not_overwritten(tmp_path: Path) -> None:
    """Both find the folder free. The second must not replace the recipe of the first."""
    path, free = tmp_path / "run", RunFolder.check_free
    calls: list[Path] = []

    def raced(folder: Path) -> None:
        calls.append(folder)
        free(folder)
        if len(calls) == 1:  # the other process, between the check and the recipe
            (path / "checkpoints").mkdir(parents=True)
            (path / "recipe.toml").write_text("of the other")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "check_free", staticmethod(raced))
        with pytest.raises(InputError, match="exists already"):
            RunFolder.create(path, toy_recipe())
    assert (path / "recipe.toml").read_text() == "of the other"
    assert not list(path.rglob(".lock"))
    (path / "recipe.toml").unlink()
    with holder(path / "checkpoints" / ".lock"), pytest.raises(Busy):
        RunFolder.create(path, toy_recipe())
    assert not (path / "recipe.toml").exists()


def test_a_refused_process_does_not_remove_the_run_of_another(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", toy_recipe())
    with holder(run.checkpoints / ".lock"):
        with pytest.raises(Busy, match="another process is training in"), run.lock():
            pass
        run.remove_if_untrained()
        assert run.path.exists()
    run.remove_if_untrained()
    assert not run.path.exists()
