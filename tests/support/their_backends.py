"""Backends as deepagents' users have them: third parties that know the names of its early days only, and a
`StateBackend` of deepagents over a dict, without a graph."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

pytest.importorskip("deepagents")

from deepagents.backends import StateBackend
from deepagents.backends.protocol import (
    BackendProtocol,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    SandboxBackendProtocol,
    WriteResult,
)
from deepagents.middleware.filesystem import _file_data_reducer
from seed_backends import entries_below


class DictState(StateBackend):
    """deepagents' StateBackend over `self.files`, changed by its own reducer."""

    def __init__(self, files: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.files = files if files is not None else {}

    def _read_files(self) -> dict[str, Any]:
        return self.files

    def _send_files_update(self, update: dict[str, Any]) -> None:
        merged = _file_data_reducer(self.files, update)
        self.files.clear()
        self.files.update(merged)


class OldRemote(BackendProtocol):
    """A remote store from before deepagents 0.5, never updated: the old names, asynchronous inside, lines without their
    last newline, regular expressions, sizes in lines, and records with `files_update`, which fail now."""

    def __init__(self) -> None:
        self.rows: dict[str, list[str]] = {}

    def ls_info(self, path: str) -> Any:
        return asyncio.run(self.als_info(path))

    async def als_info(self, path: str) -> Any:
        return entries_below(self.rows, path, lambda name: {"size": len(self.rows[name]), "modified_at": None})

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        if file_path not in self.rows:
            return f"Error: File '{file_path}' not found"
        lines = self.rows[file_path]
        if not lines:
            return "System reminder: File exists but has empty contents"
        if offset >= len(lines):
            return f"Error: Line offset {offset} exceeds file length ({len(lines)} lines)"
        numbered = enumerate(lines[offset : offset + limit], start=offset + 1)
        return "\n".join(f"{number:6}\t{line}" for number, line in numbered)

    def write(self, file_path: str, content: str) -> WriteResult:
        if file_path in self.rows:
            return WriteResult(error=f"Cannot write to {file_path} because it already exists.")
        self.rows[file_path] = content.splitlines()
        return WriteResult(path=file_path, files_update=None)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        if file_path not in self.rows:
            return EditResult(error=f"Error: File '{file_path}' not found")
        content = "\n".join(self.rows[file_path])
        count = content.count(old_string)
        if count == 0 or (count > 1 and not replace_all):
            return EditResult(error=f"Error: String '{old_string}' appears {count} times in file")
        try:
            self.rows[file_path] = content.replace(old_string, new_string).splitlines()
            return EditResult(path=file_path, files_update=None, occurrences=count)
        except Exception as error:
            return EditResult(error=f"Error editing file '{file_path}': {error}")

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> Any:
        try:
            regex = re.compile(pattern)
        except re.error as error:
            return f"Invalid regex pattern: {error}"
        return [
            {"path": name, "line": number, "text": line}
            for name, lines in self.rows.items()
            if name.startswith(path or "/")
            for number, line in enumerate(lines, start=1)
            if regex.search(line)
        ]

    def glob_info(self, pattern: str, path: str = "/") -> Any:
        import fnmatch

        return [{"path": name, "is_dir": False} for name in self.rows if fnmatch.fnmatch(name, f"*{pattern}")]

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        for path, content in files:
            self.rows[path] = content.decode("utf-8", errors="replace").splitlines()
        return [FileUploadResponse(path=path, error=None) for path, _ in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [
            FileDownloadResponse(path=path, content="\n".join(self.rows[path]).encode(), error=None)
            if path in self.rows
            else FileDownloadResponse(path=path, content=None, error="file_not_found")
            for path in paths
        ]


class Sandbox(SandboxBackendProtocol):
    """A backend that only runs commands."""

    @property
    def id(self) -> str:
        return "sandbox-1"

    def execute(self, command: str) -> Any:  # the signature from before time-outs
        from deepagents.backends.protocol import ExecuteResponse

        return ExecuteResponse(output=f"ran {command}", exit_code=0)


def make() -> Any:
    """Make deepagents' own composite over two of its own backends, for `python:their_backends:make`."""
    from deepagents.backends import CompositeBackend

    return CompositeBackend(
        DictState({"/a.txt": {"content": "one\n", "encoding": "utf-8"}}), {"/deep/er/": DictState()}
    )
