"""Downloads, from a real HTTP server on this machine."""

import contextlib
import hashlib
import io
import itertools
import os
import socketserver
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from amata.data import DATASETS
from amata.data.archive import unpack
from amata.data.fetch import Remote, fetch
from amata.errors import InputError

CONTENT = bytes(range(256)) * 4000
PATIENCE = 120.0
"""Seconds: a server that answers is never given up, however slow the machine is."""


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
        checksum = checksum or "sha256:" + hashlib.sha256(content).hexdigest()
        return Remote(url, checksum, 2 * len(CONTENT), unpack)


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


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


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
        fetch(server.remote(), tmp_path, tries=1)
    assert not (tmp_path / "data.bin").exists()
    kept = (tmp_path / "data.bin.part").stat().st_size
    assert 0 < kept <= 300_000
    server.break_after = None
    assert fetch(server.remote(), tmp_path).read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={kept}-"]
    assert not (tmp_path / "data.bin.part").exists()


def test_a_download_is_tried_again_from_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.break_after = 400_000
    assert fetch(server.remote(), tmp_path, pause=0).read_bytes() == CONTENT
    assert [wanted is None for wanted in server.requests] == [True, False, False]


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
        fetch(Remote("http://127.0.0.1:9/x", "md5:0", 1), tmp_path, timeout=2, pause=0)
    assert list(tmp_path.iterdir()) == []


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


def test_archives_are_not_unpacked_through_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "set").symlink_to(tmp_path / "outside")
    (tmp_path / "set.tar.gz").write_bytes(archive(("set/a.txt", b"one", "")))
    with pytest.raises(InputError, match="inside/set is a symbolic link"):
        unpack(tmp_path / "set.tar.gz", tmp_path / "inside")
    assert not any((tmp_path / "outside").iterdir())


def test_an_archive_of_deep_folders_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(archive(("a/" * 2000 + "b", b"one", "")))
    with pytest.raises(InputError, match="cannot be unpacked safely"):
        unpack(tmp_path / "set.tar.gz", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["set.tar.gz"]


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


def test_a_second_unpacking_deletes_nothing(server: Server, tmp_path: Path) -> None:
    server.files["/set.tar.gz"] = archive(("set/a.txt", b"one", ""), ("set/b/c.txt", b"two", ""))
    remote = server.remote("set.tar.gz", unpack=True)
    fetch(remote, tmp_path)
    (tmp_path / "set" / "mine.txt").write_bytes(b"my notes")
    (tmp_path / "set" / "a.txt").unlink()
    fetch(remote, tmp_path)
    assert (tmp_path / "set" / "mine.txt").read_bytes() == b"my notes"
    assert (tmp_path / "set" / "a.txt").read_bytes() == b"one"
    (tmp_path / "set" / "a.txt").write_bytes(b"changed by me")
    with pytest.raises(InputError, match=r"a\.txt exists and is not the file in .*move it away"):
        fetch(remote, tmp_path)
    assert (tmp_path / "set" / "a.txt").read_bytes() == b"changed by me"
    assert not list(tmp_path.glob(".unpack-*"))


def tar_of(kind: bytes, size: int = 0) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        info = tarfile.TarInfo("set/member")
        info.type, info.size, info.linkname = kind, size, "set/other"
        tar.addfile(info, io.BytesIO(bytes(size)))
    return file.getvalue()


BAD_ARCHIVES = {
    "link": (tar_of(tarfile.SYMTYPE), "set/member is a link or a device"),
    "hard link": (tar_of(tarfile.LNKTYPE), "is a link or a device"),
    "device": (tar_of(tarfile.CHRTYPE), "is a link or a device"),
    "fifo": (tar_of(tarfile.FIFOTYPE), "is a link or a device"),
    "bomb": (tar_of(tarfile.REGTYPE, 4 << 20), "more than 20 times its size"),
    "many": (archive(*((f"{i}", b"", "") for i in range(3000))), "more than 20 times its size"),
    "absolute": (archive(("/evil", b"x", "")), "/evil is outside of it"),
    "twice": (archive(("a", b"x", ""), ("a", b"y", "")), "File exists"),
    "not an archive": (b"nothing", "could not be opened"),
    "truncated": (archive(("a", bytes(range(256)), ""))[:-150], "end-of-stream|unexpected end"),
    "damaged": (b"\x1f\x8b\x08" + bytes(99), "could not be opened"),
}


@pytest.mark.parametrize(("content", "message"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_a_bad_archive_leaves_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "set.tar.gz").write_bytes(content)
    with pytest.raises(InputError, match=rf"^\S*set\.tar\.gz cannot be unpacked [^\n]*({message})"):
        unpack(tmp_path / "set.tar.gz", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["set.tar.gz"]


def zipped(*members: tuple[str, bytes], kind: int = 0, flags: int = 0) -> bytes:
    """A zip file; `kind` is the type of its members in their Unix mode."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = kind << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
            info.flag_bits |= flags
    return file.getvalue()


BAD_ZIPS = {
    "link": (zipped(("a", b"/etc"), kind=stat.S_IFLNK), "a is a link, a device or encrypted"),
    "device": (zipped(("a", b""), kind=stat.S_IFCHR), "is a link, a device"),
    "encrypted": (zipped(("a", b"x"), flags=1), "or encrypted"),
    "up": (zipped(("set/../../evil", b"x")), "is outside of it"),
    "absolute": (zipped(("/evil", b"x")), "/evil is outside of it"),
    "bomb": (zipped(("a", bytes(4 << 20))), "more than 20 times its size"),
    "a folder that is a file": (zipped(("a", b"x"), ("a/b", b"y")), "File exists|Not a dir"),
    "not an archive": (b"nothing", "not a zip file"),
    "truncated": (zipped(("a", b"x" * 99))[:-30], "not a zip file"),
    "wrong content": (zipped(("a", b"x")).replace(b"\x83\x16\xdc\x8c", bytes(4)), "CRC-32"),
    "unknown compression": (
        zipped(("a", b"x")).replace(b"\x08\x00\x00\x00\x21", b"\x63\x00\x00\x00\x21"),
        "compression",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD_ZIPS.values(), ids=BAD_ZIPS)
def test_a_bad_zip_file_leaves_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(InputError, match=rf"^\S*set\.zip cannot be unpacked [^\n]*({message})"):
        unpack(tmp_path / "set.zip", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["set.zip"]


def test_zip_files_are_unpacked_beside_themselves(server: Server, tmp_path: Path) -> None:
    members = ("set/", b""), ("set/a.txt", b"one"), ("set/b/c.txt", b"two")
    server.files["/set.zip"] = zipped(*members)
    for _ in range(2):
        fetch(server.remote("set.zip", unpack=True), tmp_path)
        assert (tmp_path / "set" / "b" / "c.txt").read_bytes() == b"two"
    assert not list(tmp_path.glob(".unpack-*"))


def answer(status: str = "200 OK", *headers: str, body: bytes = CONTENT) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def redirect(to: str) -> bytes:
    return answer("302 Found", f"Location: {to}", "Content-Length: 0", body=b"")


def forever(part: bytes) -> Iterator[bytes]:
    return itertools.repeat(part)


def drip(content: Iterable[int]) -> Iterator[bytes]:
    for byte in content:
        time.sleep(0.01)
        yield bytes([byte])


CHUNKED = answer("200 OK", "Transfer-Encoding: chunked", body=b"")
# What a server sends -> the error.
HOSTILE: dict[str, tuple[Callable[[], Iterable[bytes]], str]] = {
    "nothing": (lambda: [], "closed connection without response"),
    "garbage": (lambda: [b"\0\xff\x1b[31m\r\n\r\n"], "cannot be fetched"),
    "a status of letters": (lambda: [b"HTTP/1.1 abc OK\r\n\r\n"], "cannot be fetched"),
    "a long status line": (lambda: [b"HTTP/1.1 " + b"x" * 99_999], "cannot be fetched"),
    "another protocol": (lambda: [b"SSH-2.0-OpenSSH_9.6\r\n"], "cannot be fetched"),
    "a cut header": (
        lambda: [b"HTTP/1.1 200 OK\r\nContent-Le"],
        "wrong checksum|cannot be fetched",
    ),
    "headers without end": (
        lambda: itertools.chain([b"HTTP/1.1 200 OK\r\n"], forever(b"a: b\r\n" * 999)),
        "more than 100 headers",
    ),
    "continues without end": (
        lambda: forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 999),
        "sends without end",
    ),
    "a body cut off": (
        lambda: [answer("200 OK", f"Content-Length: {len(CONTENT) + 1}")],
        "was cut off at 1024000 of 1024001 bytes",
    ),
    "a length too short": (lambda: [answer("200 OK", "Content-Length: 10")], "wrong checksum"),
    "a length too long": (lambda: [answer("200 OK", f"Content-Length: {1 << 60}")], "more than"),
    "a body without end": (
        lambda: itertools.chain([answer(body=b"")], forever(CONTENT)),
        "has more than 2048000 bytes: it is not the published file",
    ),
    "chunks without end": (
        lambda: itertools.chain([CHUNKED], forever(b"3e8\r\n" + bytes(1000) + b"\r\n")),
        "has more than 2048000 bytes",
    ),
    "a bad chunk": (lambda: [CHUNKED, b"zz\r\nabc"], "cannot be fetched"),
    "a cut chunk": (lambda: [CHUNKED, b"ffff\r\nabc"], "cannot be fetched|wrong checksum"),
    "a huge chunk": (
        lambda: [CHUNKED, b"f" * 5000 + b"\r\nabc"],
        "cannot be fetched|wrong checksum",
    ),
    "a negative chunk": (lambda: [CHUNKED, b"-5\r\nabc"], "cannot be fetched|wrong checksum"),
    "other content": (lambda: [answer("200 OK", "Content-Length: 3", body=b"abc")], "wrong checks"),
    "no content": (lambda: [answer("204 No Content", body=b"")], "wrong checksum"),
    "an error": (lambda: [answer("404 Not\x1b[2J Found", body=b"")], "HTTP 404"),
    "an error of the server": (lambda: [answer("503 Busy", body=b"")], "HTTP 503 Busy; run the"),
    "a status unknown": (lambda: [answer("999 What", body=b"")], "HTTP 999"),
    "silence": (lambda: [b""], "timed out"),
    "a drip of headers": (lambda: drip(answer()), "slower than 1024 bytes per second"),
    "a drip": (
        lambda: itertools.chain([answer(body=CONTENT[:2000])], drip(CONTENT)),
        "slower than 1024 bytes per second",
    ),
    "a redirect to itself": (lambda: [redirect("/data.bin")], "infinite loop"),
    "a redirect to a file": (lambda: [redirect("file:///etc/passwd")], "not allowed"),
    "a redirect to ftp": (lambda: [redirect("ftp://127.0.0.1/x")], "to another scheme, ftp:"),
    "a redirect to https": (lambda: [redirect("https://127.0.0.1/x")], "to another scheme, https:"),
    "a redirect to data": (lambda: [redirect("data:text/plain,x")], "not allowed"),
    "a redirect to nowhere": (lambda: [answer("302 Found", body=b"")], "HTTP 302"),
    "a redirect to nonsense": (lambda: [redirect("http://[::1/x")], "cannot be fetched"),
    "a redirect to no port": (lambda: [redirect("http://127.0.0.1:x/")], "cannot be fetched"),
    "a redirect to port 99999999": (
        lambda: [redirect("http://127.0.0.1:99999999/")],
        "cannot be fetched",
    ),
    "a redirect with a body without end": (
        lambda: itertools.chain([answer("302 Found", "Location: /data.bin")], forever(CONTENT)),
        "infinite loop",
    ),
}


class RawServer(socketserver.ThreadingTCPServer):
    """Sends raw bytes, as a table of behaviours lists them."""

    daemon_threads = True

    def __init__(self, content: Callable[[], Iterable[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), Raw)
        self.content = content

    def handle_error(self, *_: object) -> None:
        pass  # the client has closed the connection


class Raw(socketserver.BaseRequestHandler):
    server: RawServer

    def handle(self) -> None:
        self.request.recv(1 << 16)
        for part in self.server.content():
            if part:
                self.request.sendall(part)
            else:
                self.request.recv(1)  # until the client gives up


@contextlib.contextmanager
def sending(content: Callable[[], Iterable[bytes]]) -> Iterator[Remote]:
    with RawServer(content) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/data.bin"
        yield Remote(url, "sha256:" + hashlib.sha256(CONTENT).hexdigest(), 2 * len(CONTENT))
        server.shutdown()
        thread.join()


class Clock:
    """Half a minute passes between two looks at it."""

    def __init__(self) -> None:
        self.looks = itertools.count()

    def monotonic(self) -> float:
        return 30.0 * next(self.looks)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_one_line(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, message = HOSTILE[name]
    if "drip" in name:
        monkeypatch.setattr("amata.data.download.time", Clock())
    timeout = 0.1 if name == "silence" else PATIENCE
    with sending(content) as remote, pytest.raises(InputError, match=rf"^[^\n]*({message})[^\n]*$"):
        fetch(remote, tmp_path, timeout=timeout, tries=2, pause=0)
    left = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    assert left.keys() <= {"data.bin.part"}
    assert left.get("data.bin.part", 1) > 0


@pytest.mark.parametrize("length", ["many", "-5", "", "1" * 5000])
def test_a_length_that_is_not_one_is_ignored(tmp_path: Path, length: str) -> None:
    with sending(lambda: [answer("200 OK", f"Content-Length: {length}")]) as remote:
        assert fetch(remote, tmp_path, timeout=PATIENCE).read_bytes() == CONTENT


def test_a_wrong_range_starts_again(tmp_path: Path) -> None:
    sent = iter([answer("206 OK", "Content-Range: bytes 0-9/99", body=b"x"), answer()])
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    with sending(lambda: [next(sent)]) as remote:
        assert fetch(remote, tmp_path, timeout=PATIENCE, pause=0).read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["folder", "link", "fifo", "directory"])
def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path, name: str) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    precious.write_bytes(b"mine")
    if name == "folder":
        folder.write_bytes(b"a file")
    else:
        folder.mkdir()
    if name == "link":
        (folder / "data.bin.part").symlink_to(precious)
    elif name == "fifo":
        os.mkfifo(folder / "data.bin.part")
    elif name == "directory":
        (folder / "data.bin").mkdir()
    with pytest.raises(InputError, match=rf"^{folder}\S* cannot be written \(.*choose another"):
        fetch(server.remote(), folder)
    assert precious.read_bytes() == b"mine"


def test_two_downloads_of_a_file_do_not_mix(server: Server, tmp_path: Path) -> None:
    fetching = pytest.raises(InputError, match="is being fetched by another process")
    with FileLock(tmp_path / "data.bin.part.lock"), fetching:
        fetch(server.remote(), tmp_path)
