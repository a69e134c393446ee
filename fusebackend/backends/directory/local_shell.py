"""`LocalShellBackend`: a directory of this machine, and its shell.

The file verbs are those of `FilesystemBackend`. A command runs as this process's user, in `root_dir`, and nothing
confines it: `virtual_mode` is about the paths of the file verbs alone. For commands that may not leave the files they
work on, mount the backend and use the mount's `execute`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping

from fusebackend.backends.directory.agent_face import OnExists
from fusebackend.backends.directory.backend import FilesystemBackend
from fusebackend.linux.command import Command, End, nothing_to_run, require_positive
from fusebackend.protocol import Change, ExecuteResponse, SandboxBackendProtocol


class LocalShellBackend(FilesystemBackend, SandboxBackendProtocol):
    """See the module's docstring.

    Args:
        root_dir: a directory that exists, where commands start; the current one when None.
        virtual_mode: confine the paths of the file verbs to `root_dir`.
        timeout: seconds that a command may take, unless `execute` is told otherwise.
        max_output_bytes: output beyond this is dropped, and the answer says `truncated`.
        env: environment variables of the commands.
        inherit_env: start from this process's environment. By default commands know none of it, for it may hold keys.
        max_file_size_mb, on_exists: as for `FilesystemBackend`.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        virtual_mode: bool = True,
        timeout: int = 120,
        max_output_bytes: int = 100_000,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
        *,
        max_file_size_mb: int = 10,
        on_exists: OnExists = "error",
    ) -> None:
        require_positive(timeout)
        if max_output_bytes < 0:
            raise ValueError(f"max_output_bytes must not be negative, but is {max_output_bytes}")
        super().__init__(root_dir, virtual_mode, max_file_size_mb, on_exists=on_exists)
        self.timeout = timeout
        self.max_output_bytes = max_output_bytes
        self.env = {**(os.environ if inherit_env else {}), **(env or {})}
        self._id = f"local-{uuid.uuid4().hex[:8]}"

    @property
    def id(self) -> str:
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run `command` with `sh -c` in `root_dir`, with no input.

        What it leaves running in the background goes on, unless it ran out of time or `aexecute` was cancelled: then
        its whole process group is killed. Output is stdout, then the lines of stderr prefixed `[stderr] `.

        Raises:
            ValueError: `timeout` is not above 0.
        """
        seconds = self.timeout if timeout is None else timeout
        require_positive(seconds)
        refusal = nothing_to_run(command)
        if refusal is not None:
            return refusal
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError, UnicodeError) as error:  # the directory is gone; a NUL; longer than 128 KiB
            return ExecuteResponse(output=f"Error executing command: {error}", exit_code=1)
        with process:
            run = Command(process, self.max_output_bytes)
            end = None
            try:
                end = run.wait(time.monotonic() + seconds)
            finally:
                if end is not End.EXIT:
                    _kill_group(process)
            run.drain()
        with self.volume.changing() as changes:  # it may have changed any file
            changes += [Change(), Change(path="/")]
        return run.response(end, process.returncode, seconds, self.max_output_bytes)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The group's number is the child's, which is not waited for yet: it can't be anybody else's.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
