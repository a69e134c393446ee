"""`DockerExec`: a program in a container, by the engine's `exec`. To start one takes some seventy milliseconds.

The output comes over one socket, in frames that tell stdout from stderr. An agent's command begins with a line of ours,
the number of its process: the runtime gives each `exec` a session of its own (`setsid` in runc's nsexec.c), so that
number finds everything that the command has started, when it is to be killed.

The stream ends when nobody has the pipes any more. A command that leaves a process behind which has them is over when
the engine says so (`exec_inspect`); what that process prints later is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from fusebackend.backends.sandbox.docker_engine import engine_errors
from fusebackend.backends.sandbox.script_answers import failure
from fusebackend.backends.sandbox.scripts import LIBRARY, SETTINGS, Script, nonce
from fusebackend.base.errors import oserror
from fusebackend.linux.command import End, Kept, OnOutput, response
from fusebackend.protocol import ExecuteResponse

STDOUT, STDERR = 1, 2
HEADER = struct.Struct(">BxxxL")
PIECE_BYTES = 256 << 10

KILL_S = 10.0
"""How long the end of a command that was killed is waited for."""

KILL_AGAIN_S = 0.5
"""How often it is killed again until then: it may have started others meanwhile."""

LOOK_S = 0.05
"""How often a command that may be stopped from outside is looked at."""

ASK_S: Final = 0.25
"""How often the engine is asked whether a command that prints nothing is over."""

SEND_S = 60.0
"""How long nothing may move while a file is sent."""

ANSWER_BYTES = 2 << 30
"""The longest answer to a script."""

RUN: Final = 'echo $$; cd "$1" && exec sh -c "$2"'

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
        has_input: whether `send` is used. Else it has none.
    """

    def __init__(self, api: Any, container: str, words: list[str], *, has_input: bool = False) -> None:
        self._api = api
        with engine_errors():
            self._id = api.exec_create(container, words, stdin=has_input)["Id"]
            self._stream = api.exec_start(self._id, socket=True)
        self._socket: socket.socket = getattr(self._stream, "_sock", self._stream)
        self._read = bytearray()  # bytes that have come, and are not used yet
        self._left = 0  # bytes of the frame that has begun
        self._kind = STDOUT

    def __enter__(self) -> DockerExec:
        return self

    def __exit__(self, *error: object) -> None:
        for part in (self._socket, self._stream):
            with contextlib.suppress(OSError):
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

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs. OSError where the container is gone."""
        with engine_errors():
            found = self._api.exec_inspect(self._id)
        return None if found["Running"] or found["ExitCode"] is None else int(found["ExitCode"])


def ask(api: Any, container: str, script: Script, deadline: float) -> tuple[bytes, bool]:
    """The answer to a script, and whether it is whole: not if `deadline` (monotonic) has come.

    Raises:
        OSError: the container or its shell is gone.
    """
    end = f"\n{nonce()}\n".encode()
    text = f"{LIBRARY}{KILL}( {SETTINGS}{script.text}\n) 2>/dev/null </dev/null; printf '\\n%s\\n' {end.decode()[1:]}"
    answer = bytearray()
    with DockerExec(api, container, ["sh"], has_input=True) as shell:
        shell.send(text.encode("utf-8", "surrogateescape"), KILL_S)
        while not answer.endswith(end):
            try:
                kind, piece = shell.receive(deadline)
            except TimeoutError:
                return bytes(answer), False
            if not piece:
                raise OSError(errno.ECONNRESET, "The container's shell has ended")
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
    kill: Callable[[str], None],
    *,
    on_output: OnOutput | None = None,
    stopped: Callable[[], bool] | None = None,
) -> ExecuteResponse:
    """Run an agent's command.

    `kill` is called when the time is over, `stopped` returns True, or `on_output` raises, with the argument of
    `kill_script`.
    """
    kept: dict[int, Kept] = {STDOUT: Kept(max_bytes), STDERR: Kept(max_bytes)}
    names: dict[int, Literal["stdout", "stderr"]] = {STDOUT: "stdout", STDERR: "stderr"}
    process: str | None = None  # its number, once its first line is here
    begun = b""
    end, code = End.EXIT, None
    deadline = time.monotonic() + timeout_s
    asked_at = time.monotonic()
    with DockerExec(api, container, ["sh", "-c", RUN, "sh", directory, command]) as made:
        while True:
            now = time.monotonic()
            if end is End.EXIT and (now >= deadline or (stopped is not None and stopped())):
                end = End.TIME_OUT if now >= deadline else End.STOP
                deadline = now + KILL_S
                _kill(process, kill)
            try:
                step_s = LOOK_S if end is End.EXIT else KILL_AGAIN_S
                kind, piece = made.receive(min(deadline, now + step_s))
            except TimeoutError:
                if end is not End.EXIT:
                    if time.monotonic() >= deadline:
                        break
                    _kill(process, kill)
                elif now - asked_at >= ASK_S:
                    asked_at = now
                    code = made.exit_code()
                    if code is not None:
                        break
                continue
            except OSError:
                if end is End.EXIT:
                    raise
                break
            if not piece:
                break
            if process is None and kind == STDOUT:
                begun += piece
                first, found, rest = begun.partition(b"\n")
                if not found:
                    continue
                # Without its number it is no command, but the engine's word why there is no shell.
                process, piece = (first.decode(), rest) if first.isdigit() else ("", begun)
                if end is not End.EXIT:
                    _kill(process, kill)
            told = kept[kind].add(piece)
            if told and on_output is not None:
                try:
                    on_output(names[kind], told)
                except BaseException:
                    _kill(process, kill)
                    raise
        if end is End.EXIT and code is None:
            code = _ended(made)
    return response(kept[STDOUT], kept[STDERR], end, code or 0, timeout_s, max_bytes)


def _kill(process: str | None, kill: Callable[[str], None]) -> None:
    if process:
        kill(process)


def _ended(made: DockerExec) -> int:
    """The exit code of a program whose output has ended."""
    deadline = time.monotonic() + KILL_S
    while (code := made.exit_code()) is None:
        if time.monotonic() >= deadline:
            raise OSError(errno.ECONNRESET, "The container's shell has ended")
        time.sleep(LOOK_S / 10)
    return code


def kill_script(process: str) -> Script:
    """Ends the command of this number, and all that is in its session."""
    return Script().call("fb_kill", process)


TAKE = 'cat >"$1" || { code=$?; cat >/dev/null; exit $code; }'
"""Write what is read to a file; and read on where that fails, for its sender waits until it is read."""


def send_to(api: Any, container: str, path: str, data: bytes) -> None:
    """Write a file through a command: where the engine's archives do not reach. OSError."""
    with DockerExec(api, container, ["sh", "-c", TAKE, "sh", path], has_input=True) as made:
        made.send(data, SEND_S)
        said = b""
        while piece := made.receive(time.monotonic() + SEND_S)[1]:
            said += piece
        code = _ended(made)
    if code != 0:
        words = said.decode("utf-8", "replace").strip().partition("\n")[0]
        raise failure(f"! {words or f'cat ended with {code}'}")
