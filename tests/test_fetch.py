"""Downloads, from a real HTTP server on this machine."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from amata.data import DATASETS
from amata.data.fetch import Remote, fetch, unpack
from amata.errors import InputError

CONTENT = bytes(range(256)) * 4000


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/data.bin": CONTENT}
        self.break_after: int | None = None
        self.ranges = True
        self.requests: list[str | None] = []

    def remote(
        self, name: str = "data.bin", checksum: str | None = None, unpack: bool = False
    ) -> Remote:
        content = self.files.get(f"/{name}", b"")
        url = f"http://127.0.0.1:{self.server_address[1]}/{name}"
        return Remote(url, checksum or "sha256:" + hashlib.sha256(content).hexdigest(), unpack)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        wanted = self.headers["Range"]
        self.server.requests.append(wanted)
        if content is None:
            return self.send_error(404)
        start = (
            int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        )
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.break_after is not None:
            self.wfile.write(body[: self.server.break_after])
            self.close_connection = True
            return None
        self.wfile.write(body)
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_fetched_once_and_verified(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch(
        server.remote(),
        tmp_path / "new" / "folder",
        lambda _, done, total: seen.append((done, total)),
    )
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    fetch(server.remote(), tmp_path / "new" / "folder")
    assert len(server.requests) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_resumes(server: Server, tmp_path: Path, ranges: bool) -> None:
    server.break_after, server.ranges = 300_000, ranges
    with pytest.raises(InputError, match="run the command again to resume"):
        fetch(server.remote(), tmp_path)
    assert not (tmp_path / "data.bin").exists()
    kept = (tmp_path / "data.bin.part").stat().st_size
    assert 0 < kept <= 300_000
    server.break_after = None
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={kept}-"]
    assert not (tmp_path / "data.bin.part").exists()


def test_a_download_killed_after_its_last_byte_is_complete(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_the_file_removed(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"wrong checksum \(md5:.*, not md5:0123\) and was removed"
    ):
        fetch(server.remote(checksum="md5:0123"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_already_there_is_verified_and_never_lost(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "data.bin").write_bytes(b"my own copy")
    with pytest.raises(
        InputError, match=r"data\.bin exists and is not the published file .*move it away"
    ):
        fetch(server.remote(), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == b"my own copy"


def test_a_missing_file_and_a_missing_server_are_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="HTTP 404"):
        fetch(server.remote("absent"), tmp_path)
    with pytest.raises(InputError, match="cannot be fetched"):
        fetch(Remote("http://127.0.0.1:9/x", "md5:0"), tmp_path, timeout=2)


def archive(*members: tuple[str, bytes | None, str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content, link in members:
            info = tarfile.TarInfo(name)
            if link:
                info.type, info.linkname = tarfile.SYMTYPE, link
                tar.addfile(info)
            else:
                info.size = len(content or b"")
                tar.addfile(info, io.BytesIO(content or b""))
    return file.getvalue()


def test_archives_are_unpacked_beside_themselves(server: Server, tmp_path: Path) -> None:
    server.files["/set.tar.gz"] = archive(("set/a.txt", b"one", ""), ("set/b/c.txt", b"two", ""))
    fetch(server.remote("set.tar.gz", unpack=True), tmp_path)
    assert (tmp_path / "set" / "b" / "c.txt").read_bytes() == b"two"
    # unpacking again replaces what is there
    fetch(server.remote("set.tar.gz", unpack=True), tmp_path)
    assert not list(tmp_path.glob(".unpack-*"))


@pytest.mark.parametrize(
    "member",
    [
        ("../evil.txt", b"x", ""),
        ("set/../../evil.txt", b"x", ""),
        ("set/link", None, "../../outside"),
    ],
    ids=["up", "far up", "link"],
)
def test_archives_cannot_leave_their_folder(
    tmp_path: Path, member: tuple[str, bytes | None, str]
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "bad.tar.gz").write_bytes(archive(("set/a.txt", b"one", ""), member))
    with pytest.raises(InputError, match="unpacked safely"):
        unpack(inside / "bad.tar.gz", inside)
    assert [p.name for p in inside.iterdir()] == ["bad.tar.gz"]
    assert [p.name for p in tmp_path.iterdir()] == ["inside"]


def test_the_command_fetches(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amata: Callable[..., Any]
) -> None:
    local = replace(DATASETS["mnist"], source=(server.remote(),))
    monkeypatch.setitem(DATASETS, "mnist", local)
    called = amata("data", "fetch", "mnist", "--root", tmp_path)
    assert called.code == 0
    assert (tmp_path / "mnist" / "data.bin").read_bytes() == CONTENT
    broken = replace(local, source=(server.remote(checksum="md5:0123"),))
    monkeypatch.setitem(DATASETS, "mnist", broken)
    called = amata("data", "fetch", "mnist", "--root", tmp_path / "other")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "wrong checksum" in called.err
    called = amata("data", "fetch", "mnits")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "did you mean 'mnist'" in called.err


def test_the_list_marks_what_can_be_fetched(amata: Callable[..., Any]) -> None:
    lines = amata("data").out.split("\n\n")[0].splitlines()
    fetched = {line.split()[0]: line.endswith(" (fetch)") for line in lines}
    assert fetched == {name: bool(entry.source) for name, entry in DATASETS.items()}
    assert fetched["caltech256"]
