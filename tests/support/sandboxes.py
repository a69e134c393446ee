"""Sandboxes for tests: a directory of this machine, reached by commands alone, as a hosted sandbox would be.

`LocalSandbox` needs no more than the docstring of `BaseSandbox` asks for: its uploads and downloads are a few lines.
Its commands have GNU's tools or busybox's, and nothing else, in their PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fusebackend.backends.sandbox.base import BaseSandbox
from fusebackend.base.errors import code_of
from fusebackend.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse

TOOLS = (
    "base64", "cat", "chmod", "chown", "find", "grep", "ln", "mkdir", "mkfifo", "mv", "readlink", "rm", "rmdir", "sh",
    "sha256sum", "sleep", "stat",
)  # fmt: skip
"""All that the scripts may use; `mkfifo` is for the tests."""


def tools(kind: str, directory: Path) -> Path:
    """Make a directory with the tools of one kind and no others: GNU's under dash or bash, or busybox's."""
    directory.mkdir(parents=True)
    busybox = shutil.which("busybox")
    for tool in TOOLS:
        found = busybox if kind == "busybox" else shutil.which("bash" if (kind, tool) == ("bash", "sh") else tool)
        if found is None:
            reason = f"{'busybox' if kind == 'busybox' else tool} is not installed"
            pytest.skip(reason)
        (directory / tool).symlink_to(os.path.realpath(found))
    return directory


class LocalSandbox(BaseSandbox):
    """Runs commands by `sh -c`; cuts their output at `limit` and decorates it as the seeds do."""

    def __init__(self, root: Path, path: Path, *, limit: int = 100_000, **options: Any) -> None:
        super().__init__(root=str(root), **options)
        self.path = path
        self.limit = limit
        self.commands: list[str] = []

    @property
    def id(self) -> str:
        return f"local-{self.root}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        self.commands.append(command)
        shell = [str(self.path / "sh"), "-c", command]
        try:
            done = subprocess.run(
                shell, env={"PATH": str(self.path)}, cwd="/", capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return ExecuteResponse(output=f"Error: Command timed out after {timeout} seconds.", exit_code=124)
        output = done.stdout.decode("utf-8", "replace")
        if done.stderr:
            output += "\n".join(f"[stderr] {line}" for line in done.stderr.decode("utf-8", "replace").splitlines())
        truncated = len(output) > self.limit
        if truncated:
            output = f"{output[: self.limit]}\n\n... Output truncated at {self.limit} bytes."
        return ExecuteResponse(output=output or "<no output>", exit_code=done.returncode, truncated=truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses = []
        for path, content in files:
            try:
                os.makedirs(os.fsencode(os.path.dirname(path)), exist_ok=True)
                with open(os.fsencode(path), "wb") as file:
                    file.write(content)
                responses.append(FileUploadResponse(path=path))
            except OSError as error:
                responses.append(FileUploadResponse(path=path, error=_code(error)))
        return responses

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses = []
        for path in paths:
            try:
                with open(os.fsencode(path), "rb") as file:
                    responses.append(FileDownloadResponse(path=path, content=file.read()))
            except OSError as error:
                responses.append(FileDownloadResponse(path=path, error=_code(error)))
        return responses


def _code(error: OSError) -> str:
    return "invalid_path" if isinstance(error, FileExistsError) else code_of(error)
