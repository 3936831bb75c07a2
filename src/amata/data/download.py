"""Downloads over HTTP, from servers that may be broken or hostile: limited in time and size."""

import http.client
import io
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any
from urllib.parse import urlsplit

from amata.errors import InputError, shorten

SLOWEST = 1024
"""Bytes per second below which a server is given up."""
HEADERS = 1 << 20
"""Bytes that a server may send beside the file."""
TRANSIENT = {408, 425, 429, *range(500, 600)}


class Broken(Exception):
    """A download that failed in a way that may pass."""


def download(
    url: str,
    file: IO[bytes],
    max_bytes: int,
    timeout: float,
    progress: Callable[[int, int | None], None],
    if_larger: str,
) -> None:
    """Append the rest of `url`, at most `max_bytes` in all, to a file opened for appending.

    `timeout` is how long a server may be silent, or slower than `SLOWEST`. `if_larger` is the hint
    for a file that has more bytes.
    """
    done = os.fstat(file.fileno()).st_size
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    connect = partial(_connection, timeout=timeout, max_bytes=max_bytes + HEADERS)
    opener = urllib.request.build_opener(_HTTP(connect), _HTTPS(connect), _Redirects)
    try:
        with _errors(url):
            response = opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        # Range not satisfiable: the file is complete, which its checksum verifies.
        if error.code == 416 and done:
            return
        reason = f"{url} cannot be fetched: HTTP {error.code} {shorten(error.reason)}"
        raise Broken(reason) if error.code in TRANSIENT else InputError(reason) from None
    with response:
        start = response.headers.get("Content-Range", f"bytes {done}-")
        if done and not (response.status == 206 and start.startswith(f"bytes {done}-")):
            file.truncate(0)
            if response.status == 206:
                raise Broken(f"{url} cannot be fetched: the server sent another part of it")
            done = 0  # it ignored the range
        total = None if response.length is None else done + response.length
        try:
            while True:
                if max(done, total or 0) > max_bytes:
                    file.truncate(0)
                    raise InputError(f"{url} has more than {max_bytes} bytes: {if_larger}")
                with _errors(url):
                    block = response.read1(1 << 18)
                if not block:
                    break
                file.write(block)
                done += len(block)
                progress(done, total)
        finally:
            file.flush()
    if total is not None and done < total:
        raise Broken(f"{url} was cut off at {done} of {total} bytes")


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """What may go wrong with a server, as `Broken`; HTTP errors pass."""
    try:
        yield
    except (InputError, urllib.error.HTTPError):
        raise
    except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
        reason = shorten(getattr(error, "reason", error)) or type(error).__name__
        raise Broken(f"{url} cannot be fetched ({reason})") from None


class _Metered(io.RawIOBase):
    """What a server sends, until it is too slow or too much."""

    def __init__(self, raw: io.RawIOBase, timeout: float, max_bytes: int) -> None:
        self.raw, self.timeout, self.left = raw, timeout, max_bytes
        self.end, self.received = time.monotonic() + timeout, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        now = time.monotonic()
        if now > self.end:
            if self.received < SLOWEST * self.timeout:
                raise TimeoutError(f"slower than {SLOWEST} bytes per second")
            self.end, self.received = now + self.timeout, 0
        count = self.raw.readinto(buffer) or 0
        self.received += count
        self.left -= count
        if self.left < 0:
            raise InputError("the server sends without end; report it")
        return count

    def close(self) -> None:
        self.raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, *args: Any, meter: Callable[[Any], _Metered], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fp: io.BufferedReader = io.BufferedReader(meter(self.fp.detach()))


def _connection(
    kind: type[http.client.HTTPConnection],
    host: str,
    *,
    timeout: float,
    max_bytes: int,
    **kwargs: Any,
) -> http.client.HTTPConnection:
    connection = kind(host, timeout=timeout, **kwargs)
    meter = partial(_Metered, timeout=timeout, max_bytes=max_bytes)
    connection.response_class = partial(_Response, meter=meter)  # type: ignore[assignment]
    return connection


class _HTTP(urllib.request.HTTPHandler):
    def __init__(self, connect: Callable[..., Any]) -> None:
        super().__init__()
        self.connect = connect

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self.connect, http.client.HTTPConnection), req)


class _HTTPS(urllib.request.HTTPSHandler):
    def __init__(self, connect: Callable[..., Any]) -> None:
        super().__init__()
        self.connect = connect

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        connect = partial(self.connect, http.client.HTTPSConnection)
        return self.do_open(connect, req, context=ssl.create_default_context())


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within a scheme, without reading their bodies."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise InputError(
                f"{req.full_url} cannot be fetched: it redirects to another scheme, "
                f"{shorten(newurl)}; report it"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any
    ) -> Any:
        fp.close()  # the base class would read all of it
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302
