"""`DockerShell`: a shell in a container that stays, over one attached socket. A command in it takes some milliseconds;
an `exec` of its own would take seventy.

The shell reads commands from its standard input, and its output comes back in frames that tell stdout from stderr. Each
answer ends with a random mark. A script of ours prints its answer itself. A command of an agent may do anything: it
runs in a session of its own with pipes of its own, and the mark goes through these pipes after the command's last byte;
so it may exit, print any bytes, leave processes that go on printing, or never end.

One thread uses a shell at a time (`DockerShells` hands them out). After an error a shell is closed and not used again.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fusebackend.backends.sandbox.docker_engine import engine_errors
from fusebackend.backends.sandbox.script_answers import failure
from fusebackend.backends.sandbox.scripts import LIBRARY, SETTINGS, Script, nonce
from fusebackend.base.errors import oserror
from fusebackend.linux.command import End, Kept, OnOutput, response
from fusebackend.protocol import ExecuteResponse

STDOUT, STDERR = 1, 2
HEADER = struct.Struct(">BxxxL")
PIECE_BYTES = 256 << 10

IDLE_SHELLS = 4
"""Shells that are kept for later."""

KILL_S = 10.0
"""How long the end of a command that was killed is waited for."""

KILL_AGAIN_S = 0.5
"""How often it is killed again until then: it may not have begun when it was killed first."""

LOOK_S = 0.05
"""How often a command that may be stopped from outside is looked at."""

SEND_S = 60.0
"""How long nothing may move while a file is sent."""

ANSWER_BYTES = 2 << 30
"""The longest answer to a script."""

RUN = r"""
fb_base=${TMPDIR:-/tmp}
for fb_d in "$fb_base" /dev/shm /run /; do if [ -d "$fb_d" ] && [ -w "$fb_d" ]; then fb_base=$fb_d; break; fi; done
fb_setsid=; command -v setsid >/dev/null && fb_setsid=1
# Mark, where to begin, command. The pipes are another command's when this one has ended, so that nobody who is left
# over from it can write to them.
fb_run() {
  fb_mark=$1 fb_in=$fb_base/.fusebackend-$1~
  shift
  if ! mkdir "$fb_in" || ! mkfifo "$fb_in/o" "$fb_in/e"; then
    printf '\001%s\n' "$fb_mark" >&2
    printf '\001%s 126\n' "$fb_mark"
    return
  fi
  cat <"$fb_in/o" & fb_o=$!
  cat <"$fb_in/e" >&2 & fb_e=$!
  exec 8>"$fb_in/o" 9>"$fb_in/e"
  if [ -n "$fb_setsid" ]; then
    (cd "$1" && exec setsid sh -c "$2") </dev/null >&8 2>&9 8>&- 9>&- & fb_c=$!
    echo $fb_c >"$fb_in/p"
  else
    echo $$ >"$fb_in/p"
    (cd "$1" && exec sh -c "$2") </dev/null >&8 2>&9 8>&- 9>&- & fb_c=$!
  fi
  wait $fb_c 2>/dev/null
  fb_status=$?
  rm -rf "$fb_in"
  printf '\001%s %s\n' "$fb_mark" $fb_status >&8
  printf '\001%s\n' "$fb_mark" >&9
  exec 8>&- 9>&-
}
fb_over() {
  { kill -9 $fb_o $fb_e; wait $fb_o $fb_e; } 2>/dev/null
  printf '\n%s~\n' "$1"
  printf '\n%s~\n' "$1" >&2
}
# Everything in the session of a command, until there is nothing left.
fb_kill() {
  read -r fb_c <"$fb_base/.fusebackend-$1~/p" || { echo n; return; }
  fb_n=0 fb_some=1
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
"""Functions for commands, besides those for scripts."""


class DockerShell:
    """See the module's docstring.

    Args:
        api: the SDK's low-level client.
        container: id of a container that runs.
    """

    def __init__(self, api: Any, container: str) -> None:
        with engine_errors():
            made = api.exec_create(container, ["sh"], stdin=True, stdout=True, stderr=True)
            self._stream = api.exec_start(made["Id"], socket=True)
        self._socket: socket.socket = getattr(self._stream, "_sock", self._stream)
        self._read = bytearray()  # bytes that have come, and are not used yet
        self._left = 0  # bytes of the frame that has begun
        self._kind = STDOUT
        self.usable = True  # it waits for the next command
        try:
            self._send(LIBRARY + RUN)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it. The shell sees the end of its input, and ends when it has nothing more to do."""
        for part in (self._socket, self._stream):
            with contextlib.suppress(OSError):
                part.close()

    @property
    def is_alive(self) -> bool:
        """Return True if it is still connected, and has sent nothing unasked."""
        if self._read:
            return False
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the end, or an answer that came too late

    # -- scripts -----------------------------------------------------------------------------------------------

    def ask(self, script: Script, deadline: float) -> tuple[bytes, bool]:
        """The answer to a script, and whether it is whole: not if `deadline` (monotonic) has come.

        Raises:
            OSError: the shell is gone.
        """
        end = f"\n{nonce()}\n".encode()
        self._send(f"( {SETTINGS}{script.text}\n) 2>/dev/null </dev/null; printf '\\n%s\\n' {end.decode().strip()}\n")
        answer = bytearray()
        while not answer.endswith(end):
            try:
                kind, piece = self._receive(deadline)
            except TimeoutError:
                self.usable = False
                return bytes(answer), False
            if kind == STDOUT:
                answer += piece
            if len(answer) > ANSWER_BYTES:
                raise oserror(errno.EFBIG)
        return bytes(answer[: -len(end)]), True

    # -- commands ----------------------------------------------------------------------------------------------

    def run(
        self,
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
        `kill_script`; it has to be done by another shell, for this one waits.
        """
        mark = nonce()
        self._send(Script().call("fb_run", mark, directory, command).text + "\n")
        streams = {
            STDOUT: _Marked(mark, max_bytes, on_output and partial(on_output, "stdout")),
            STDERR: _Marked(mark, max_bytes, on_output and partial(on_output, "stderr")),
        }
        end = End.EXIT
        deadline = time.monotonic() + timeout_s
        while not all(stream.ended for stream in streams.values()):
            if end is End.EXIT and (time.monotonic() >= deadline or (stopped is not None and stopped())):
                end = End.TIME_OUT if time.monotonic() >= deadline else End.STOP
                kill(mark)
                deadline = time.monotonic() + KILL_S
            try:
                step_s = LOOK_S if end is End.EXIT else KILL_AGAIN_S
                kind, piece = self._receive(min(deadline, time.monotonic() + step_s))
            except TimeoutError:
                if end is End.EXIT:
                    continue
                if time.monotonic() < deadline:
                    kill(mark)  # it had not begun yet
                    continue
                self.usable = False
                break
            except OSError:
                if end is End.EXIT:
                    raise
                self.usable = False
                break
            try:
                streams[kind].take(piece)
            except BaseException:
                kill(mark)
                raise
        if self.usable:
            self._settle(mark)
        else:
            for stream in streams.values():
                stream.give_up()
        out, err = streams[STDOUT], streams[STDERR]
        return response(out, err, end, out.status, timeout_s, max_bytes)

    def _settle(self, mark: str) -> None:
        """Cut off background processes, and drop what they have printed. The engine carries stdout and stderr each at
        its own pace, so the end of both is waited for."""
        self._send(f"fb_over {mark}\n")
        end, tails = f"\n{mark}~\n".encode(), {STDOUT: b"", STDERR: b""}
        deadline = time.monotonic() + KILL_S
        while not all(tail.endswith(end) for tail in tails.values()):
            kind, piece = self._receive(deadline)
            tails[kind] = (tails[kind] + piece)[-len(end) :]

    # -- the socket --------------------------------------------------------------------------------------------

    def _send(self, text: str) -> None:
        self._socket.settimeout(KILL_S)
        try:
            self._socket.sendall(text.encode("utf-8", "surrogateescape"))
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, "The container's shell does not read") from None

    def _receive(self, deadline: float) -> tuple[int, bytes]:
        """The next piece of output. TimeoutError; ECONNRESET when the shell is gone."""
        while self._left == 0:
            while len(self._read) < HEADER.size:
                self._fill(deadline)
            self._kind, self._left = HEADER.unpack_from(self._read)
            del self._read[: HEADER.size]
        if not self._read:
            self._fill(deadline)
        piece = bytes(self._read[: self._left])
        del self._read[: len(piece)]
        self._left -= len(piece)
        return self._kind, piece

    def _fill(self, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise oserror(errno.ETIMEDOUT)
        self._socket.settimeout(left_s)
        piece = self._socket.recv(PIECE_BYTES)
        if not piece:
            raise OSError(errno.ECONNRESET, "The container's shell has ended")
        self._read += piece


def kill_script(mark: str) -> Script:
    """Ends the command that `run` is waiting for, and all that is in its session."""
    return Script().call("fb_kill", mark)


class _Marked(Kept):
    """A stream up to its mark, which may come in pieces. Output after it is dropped."""

    def __init__(self, mark: str, keep_bytes: int, told: Callable[[bytes], None] | None = None) -> None:
        super().__init__(keep_bytes)
        self._told = told
        self._mark = f"\x01{mark}".encode()  # begins as no line does, so that no end of a line is held back
        self._held = b""  # bytes that may be the beginning of the mark
        self._after: bytes | None = None

    def add(self, piece: bytes) -> bytes:
        kept = super().add(piece)
        if kept and self._told is not None:
            self._told(kept)
        return kept

    @property
    def ended(self) -> bool:
        return self._after is not None and b"\n" in self._after

    @property
    def status(self) -> int:
        """Return the text of the mark, None without one."""
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


class DockerShells:
    """The shells in one container: a free one, or a new one. Safe in threads."""

    def __init__(self, api: Any, container: str) -> None:
        self._api = api
        self.container = container
        self._idle: list[DockerShell] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[DockerShell]:
        """A shell for the length of a block. A shell that raises is not used again."""
        shell = self._take() or DockerShell(self._api, self.container)
        try:
            yield shell
        except BaseException:
            shell.close()
            raise
        with self._lock:
            if shell.usable and len(self._idle) < IDLE_SHELLS and not self._closed:
                self._idle.append(shell)
                return
        shell.close()

    def _take(self) -> DockerShell | None:
        while True:
            with self._lock:
                shell = self._idle.pop() if self._idle else None
            if shell is None or shell.is_alive:
                return shell
            shell.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            shells, self._idle = self._idle, []
        for shell in shells:
            shell.close()


TAKE = 'cat >"$1" || { code=$?; cat >/dev/null; exit $code; }'
"""Write what is read to a file; and read on where that fails, for its sender waits until it is read."""


def send_to(api: Any, container: str, path: str, data: bytes) -> None:
    """Write a file through a command of its own: where the engine's archives do not reach. OSError."""
    with engine_errors():
        made = api.exec_create(container, ["sh", "-c", TAKE, "sh", path], stdin=True)
        stream = api.exec_start(made["Id"], socket=True)
        connection: socket.socket = getattr(stream, "_sock", stream)
        try:
            connection.settimeout(SEND_S)
            view = memoryview(data)
            for start in range(0, len(view), PIECE_BYTES):
                connection.sendall(view[start : start + PIECE_BYTES])
            connection.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: connection.recv(PIECE_BYTES), b""))
        finally:
            connection.close()
            stream.close()
        code = api.exec_inspect(made["Id"])["ExitCode"]
    if code != 0:
        words = said[HEADER.size :].decode("utf-8", "replace").strip().partition("\n")[0]
        raise failure(f"! {words or f'cat ended with {code}'}")
