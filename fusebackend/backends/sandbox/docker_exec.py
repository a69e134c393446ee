"""The Docker engine as `DockerBackend` speaks to it: the SDK imported when it is needed, its errors as `OSError`s of
one line (each call of it is made inside of `engine_errors`). `DockerExec`: a program in a container, by the engine's
`exec`; to start one takes some seventy milliseconds.

The output comes over one socket, in frames that tell stdout from stderr. An agent's command begins with a line of ours,
the number of its process: the runtime gives each `exec` a session of its own (`setsid` in runc's nsexec.c), so that
number finds everything that the command has started, when it is to be killed.

A command may leave processes that go on printing, so the end of the stream says nothing. Both streams have a
random mark after its last byte, on stdout with its exit code; what comes later is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from fusebackend.backends.sandbox.scripts import LIBRARY, SETTINGS, Script, failure, nonce
from fusebackend.base.errors import oserror
from fusebackend.linux.command import End, Kept, OnOutput, response
from fusebackend.protocol import ExecuteResponse

REQUEST_TIMEOUT_S = 60
"""For one request; a pull and an attached socket are not limited by it."""

CONNECTIONS = 64
"""Kept to the engine at most; one more is closed after its request."""


def connect(base_url: str | None = None) -> Any:
    """A client of the engine at `base_url`, or where the environment says (`DOCKER_HOST`).

    Raises:
        OSError: the SDK is missing, or no engine answers.
    """
    try:
        import docker  # type: ignore[import-untyped]
    except ImportError:
        # Not ENOENT: every file would seem to be missing.
        raise OSError(errno.ENOPKG, "The Docker SDK is not installed: pip install 'fusebackend[docker]'") from None
    where = base_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    _require_socket(where)
    with engine_errors(where):
        named = docker.utils.kwargs_from_env() if base_url is None else {"base_url": base_url}
        client = docker.DockerClient(timeout=REQUEST_TIMEOUT_S, max_pool_size=CONNECTIONS, **named)
        try:
            _share_connections(client.api)
            client.ping()
        except BaseException:
            client.close()
            raise
    return client


def _share_connections(api: Any) -> None:
    """Have all requests over a Unix socket use one pool of connections.

    The SDK keeps a pool for each URL, and each command has URLs of its own. Of more than 25 (`num_pools` is ignored but
    for SSH) it closes the one that was used least recently, and a request that is under way over it may end with an
    AttributeError (`_put_conn` of urllib3): fifty searches at once were enough.
    """
    from docker.transport import UnixHTTPAdapter  # type: ignore[import-untyped]

    adapter = api.get_adapter(api.base_url)
    if isinstance(adapter, UnixHTTPAdapter):
        one = adapter.get_connection(api.base_url)
        adapter.get_connection = lambda url, proxies=None: one


def _require_socket(url: str) -> None:
    """ECONNREFUSED where nobody listens at a Unix socket: the SDK says it in four lines, and leaves a socket open."""
    scheme, _, path = url.partition("://")
    if scheme != "unix":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(REQUEST_TIMEOUT_S)
        try:
            probe.connect(path)
        except OSError as error:
            words = f"There is no Docker engine at {url}: {error.strerror or error}"
            raise OSError(errno.ECONNREFUSED, words) from None


@contextlib.contextmanager
def engine_errors(where: str = "the Docker engine") -> Iterator[None]:
    """Turn errors of the SDK in the block into `OSError`: ENOENT for unknown objects, EBUSY for a conflict,
    ECONNREFUSED where there is no engine."""
    import docker.errors  # type: ignore[import-untyped]
    import requests.exceptions
    import urllib3.exceptions

    try:
        yield
    except docker.errors.NotFound as error:
        raise OSError(errno.ENOENT, _line(error.explanation)) from error
    except docker.errors.APIError as error:
        number = errno.EBUSY if error.status_code == 409 else errno.EIO
        raise OSError(number, _line(error.explanation or error)) from error
    except requests.exceptions.Timeout as error:
        raise OSError(errno.ETIMEDOUT, "The Docker engine does not answer") from error
    except docker.errors.DockerException as error:
        raise OSError(errno.ECONNREFUSED, f"There is no Docker engine at {where}: {_cause(error)}") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise OSError(errno.ECONNREFUSED, f"The Docker engine has gone away: {_cause(error)}") from error


def _line(message: object) -> str:
    return " ".join(str(message).split())


def _cause(error: BaseException) -> str:
    """The words of the system's error at the bottom of several libraries' errors."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        for argument in seen.args:
            if isinstance(argument, BaseException):
                seen = argument
                break
        else:
            seen = seen.__cause__ or seen.__context__
    return _line(error)


STDOUT, STDERR = 1, 2
HEADER = struct.Struct(">BxxxL")
PIECE_BYTES = 256 << 10

KILL_S = 10.0
"""How long the end of a command that was killed is waited for."""

KILL_AGAIN_S = 0.5
"""How often it is killed again until then: it may have started others meanwhile."""

LOOK_S = 0.05
"""How often a command that may be stopped from outside is looked at."""

SEND_S = 60.0
"""How long nothing may move while a file is sent or fetched."""

ANSWER_BYTES = 2 << 30
"""The longest answer to a script."""

RUN: Final = r"""
fb_run() {
  echo $$
  (cd "$2" && exec sh -c "$3") </dev/null &
  wait $! 2>/dev/null
  fb_status=$?
  printf '\001%s %s\n' "$1" $fb_status
  printf '\001%s\n' "$1" >&2
}
"""
"""Runs a command, the third argument, in a directory, the second, and ends its output with a mark, the first. Of one in
the foreground that was killed, the shell would say so on stderr."""

KILL: Final = r"""
# Everything in the session of a process, until there is nothing left.
fb_kill() {
  fb_c=$1 fb_n=0 fb_some=1
  while [ -n "$fb_some" ] && [ $fb_n -lt 50 ]; do
    fb_some= fb_n=$((fb_n + 1))
    for fb_f in /proc/[0-9]*; do
      fb_line=
      while IFS= read -r fb_x; do fb_line=$fb_line$fb_x; done <"$fb_f/stat"
      fb_line=${fb_line##*) }
      set -- $fb_line
      if [ "${4-}" = "$fb_c" ] && [ "$1" != Z ] && [ "$1" != X ]; then kill -9 "${fb_f#/proc/}"; fb_some=1; fi
    done
  done 2>/dev/null
  echo ok
}
"""


class DockerExec:
    """See the module's docstring.

    Args:
        api: the SDK's low-level client.
        container: id of a container that runs.
        words: the program and its arguments.
    """

    def __init__(self, api: Any, container: str, words: list[str]) -> None:
        with engine_errors():
            made = api.exec_create(container, words, stdin=True)
            self._stream = api.exec_start(made["Id"], socket=True)
        self._socket: socket.socket = getattr(self._stream, "_sock", self._stream)
        self._read = bytearray()  # bytes that have come, and are not used yet
        self._left = 0  # bytes of the frame that has begun
        self._kind = STDOUT

    def close(self) -> None:
        """Let go of it. It goes on until it is done."""
        # The HTTP response first: from Python 3.13 on its finalizer flushes, an error once its socket is closed.
        for part in (getattr(self._stream, "_response", None), self._socket, self._stream):
            with contextlib.suppress(OSError):
                if part is not None:
                    part.close()

    def send(self, data: bytes, timeout_s: float) -> None:
        """Give it all its input."""
        self._socket.settimeout(timeout_s)
        view = memoryview(data)
        try:
            for start in range(0, len(view), PIECE_BYTES):
                self._socket.sendall(view[start : start + PIECE_BYTES])
            self._socket.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, "The container's shell does not read") from None

    def receive(self, deadline: float) -> tuple[int, bytes]:
        """The next piece of output, which is empty at the end. TimeoutError at the deadline (monotonic)."""
        while self._left == 0:
            while len(self._read) < HEADER.size:
                if not self._fill(deadline):
                    return STDOUT, b""
            self._kind, self._left = HEADER.unpack_from(self._read)
            del self._read[: HEADER.size]
        if not self._read and not self._fill(deadline):
            return STDOUT, b""
        piece = bytes(self._read[: self._left])
        del self._read[: len(piece)]
        self._left -= len(piece)
        return self._kind, piece

    def _fill(self, deadline: float) -> bool:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise oserror(errno.ETIMEDOUT)
        self._socket.settimeout(left_s)
        piece = self._socket.recv(PIECE_BYTES)
        self._read += piece
        return bool(piece)


@contextlib.contextmanager
def _fed(api: Any, container: str, text: str) -> Iterator[DockerExec]:
    """A shell that runs this text."""
    with contextlib.closing(DockerExec(api, container, ["sh"])) as shell:
        shell.send(text.encode("utf-8", "surrogateescape"), KILL_S)
        yield shell


def _gone() -> OSError:
    return OSError(errno.ECONNRESET, "The container's shell has ended")


def ask(api: Any, container: str, script: Script, deadline: float) -> tuple[bytes, bool]:
    """The answer to a script, and whether it is whole: not if `deadline` (monotonic) has come.

    Raises:
        OSError: the container or its shell is gone.
    """
    end = f"\n{nonce()}\n".encode()
    text = f"{LIBRARY}{KILL}( {SETTINGS}{script.text}\n) 2>/dev/null </dev/null; printf '\\n%s\\n' {end.decode()[1:]}"
    answer = bytearray()
    with _fed(api, container, text) as shell:
        while not answer.endswith(end):
            try:
                kind, piece = shell.receive(deadline)
            except TimeoutError:
                return bytes(answer), False
            if not piece:
                raise _gone()
            if kind == STDOUT:
                answer += piece
            if len(answer) > ANSWER_BYTES:
                raise oserror(errno.EFBIG)
    return bytes(answer[: -len(end)]), True


def run(
    api: Any,
    container: str,
    command: str,
    directory: str,
    timeout_s: float,
    max_bytes: int,
    *,
    on_output: OnOutput | None = None,
    stopped: Callable[[], bool] | None = None,
) -> ExecuteResponse:
    """Run an agent's command. It is killed when the time is over, `stopped` returns True, or `on_output` raises."""
    mark = nonce()
    streams = {
        STDOUT: _Marked(mark, max_bytes, on_output and partial(on_output, "stdout")),
        STDERR: _Marked(mark, max_bytes, on_output and partial(on_output, "stderr")),
    }
    process, begun = "", b""  # its number, once its first line is here
    end = End.EXIT
    deadline = time.monotonic() + timeout_s
    with _fed(api, container, RUN + Script().call("fb_run", mark, directory, command).text + "\n") as made:
        while not all(stream.ended for stream in streams.values()):
            if end is End.EXIT and (time.monotonic() >= deadline or (stopped is not None and stopped())):
                end = End.TIME_OUT if time.monotonic() >= deadline else End.STOP
                deadline = time.monotonic() + KILL_S
                _kill(api, container, process)
            try:
                step_s = LOOK_S if end is End.EXIT else KILL_AGAIN_S
                kind, piece = made.receive(min(deadline, time.monotonic() + step_s))
            except TimeoutError:
                if end is not End.EXIT:
                    if time.monotonic() >= deadline:
                        break
                    _kill(api, container, process)
                continue
            if not piece:
                if end is End.EXIT:
                    raise _gone()
                break
            if not process and kind == STDOUT:
                begun += piece
                first, found, piece = begun.partition(b"\n")
                if not found:
                    continue
                process = first.decode()
                if end is not End.EXIT:
                    _kill(api, container, process)
            try:
                streams[kind].take(piece)
            except BaseException:
                _kill(api, container, process)
                raise
    for stream in streams.values():
        stream.give_up()
    return response(streams[STDOUT], streams[STDERR], end, streams[STDOUT].status, timeout_s, max_bytes)


def _kill(api: Any, container: str, process: str) -> None:
    """End a command, and all that is in its session."""
    if process:  # else it has not begun yet
        ask(api, container, Script().call("fb_kill", process), time.monotonic() + KILL_S)


class _Marked(Kept):
    """A stream up to its mark, which may come in pieces. Output after it is dropped."""

    def __init__(self, mark: str, keep_bytes: int, told: Callable[[bytes], None] | None = None) -> None:
        super().__init__(keep_bytes, told)
        self._mark = f"\x01{mark}".encode()  # begins as no line does, so that no end of a line is held back
        self._held = b""  # bytes that may be the beginning of the mark
        self._after: bytes | None = None

    @property
    def ended(self) -> bool:
        return self._after is not None and b"\n" in self._after

    @property
    def status(self) -> int:
        """The exit code behind the mark; 0 without one."""
        return int(self._after.split()[0]) if self._after is not None else 0

    def take(self, piece: bytes) -> None:
        if self._after is not None:
            self._after += piece[:16] if not self.ended else b""
            return
        piece = self._held + piece
        before, found, after = piece.partition(self._mark)
        if found:
            self.add(before)
            self._held, self._after = b"", after
            return
        self._hold(piece)

    def give_up(self) -> None:
        """There will be no mark."""
        held, self._held = self._held, b""
        self.add(held)

    def _hold(self, piece: bytes) -> None:
        keep = min(len(self._mark) - 1, len(piece))
        while not self._mark.startswith(piece[len(piece) - keep :]):
            keep -= 1
        self.add(piece[: len(piece) - keep])
        self._held = piece[len(piece) - keep :]


TAKE: Final = """
while [ $# -gt 1 ]; do
  fb_w=$(dd bs=$2 count=$3 iflag=fullblock of="$1" 2>&1) || { echo "$fb_w"; exec cat >/dev/null; }
  shift 3
done
cat >"$1" && echo ok || cat >/dev/null
"""
"""Write what is read to files, each with its size and whether it has any bytes, and the last one without; and read on
where that fails, for its sender waits until all is read."""

TOGETHER_BYTES = 8 << 20
"""Larger files are each sent by themselves: dd holds a file in memory, cat does not."""


def send_to(api: Any, container: str, files: Sequence[tuple[str, bytes]]) -> None:
    """Write files, as commands see them: also in what is mounted in the container. OSError."""
    small: list[tuple[str, bytes]] = []
    for path, data in files:
        if len(data) > TOGETHER_BYTES:
            _send(api, container, [(path, data)])
        else:
            small.append((path, data))
    if small:
        _send(api, container, small)


def _send(api: Any, container: str, files: Sequence[tuple[str, bytes]]) -> None:
    words: list[str] = []
    for path, data in files[:-1]:
        words += [path, str(len(data) or 1), "1" if data else "0"]  # dd wants a size above 0
    said = b""
    words = ["sh", "-c", TAKE, "sh", *words, files[-1][0]]
    with contextlib.closing(DockerExec(api, container, words)) as made:
        made.send(b"".join(data for _, data in files), SEND_S)
        while piece := made.receive(time.monotonic() + SEND_S)[1]:
            said += piece
    if said != b"ok\n":
        reason = said.decode("utf-8", "replace").strip().partition("\n")[0]
        raise failure(f"! {reason or 'the file was not taken'}")


GIVE: Final = 'if [ -f "$1" ]; then cat "$1" && echo ok >&2; else echo n >&2; fi'
"""Print a regular file, and then say that this was all of it."""


def fetch_from(api: Any, container: str, path: str) -> bytes:
    """The bytes of a regular file, as commands see it: also one in what is mounted in the container, or that a link
    leads to. OSError: ENOENT for any other."""
    pieces: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
    with contextlib.closing(DockerExec(api, container, ["sh", "-c", GIVE, "sh", path])) as made:
        while (received := made.receive(time.monotonic() + SEND_S))[1]:
            pieces[received[0]].append(received[1])
    status = b"".join(pieces[STDERR]).decode("utf-8", "replace").strip().partition("\n")[0]
    if not status:
        raise _gone()
    if status != "ok":
        raise failure(status)
    return b"".join(pieces[STDOUT])
