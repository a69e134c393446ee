"""Every backend and every record by its public name, imported when it is first used.

The names are those of `deepagents.backends`, and the submodules `protocol` and `composite` are there as well, so that
code written for it runs when `deepagents.backends` is replaced by `fusebackend.backends`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusebackend.attaching import resolve
    from fusebackend.backends.buffer import digest_of
    from fusebackend.backends.filesystem import FilesystemBackend
    from fusebackend.backends.fileverbs import FileVerbs, Loaded
    from fusebackend.backends.foreign import ForeignVolume, volume_of
    from fusebackend.backends.local_shell import LocalShellBackend
    from fusebackend.backends.memory import InMemoryBackend
    from fusebackend.backends.objectstore.backend import ObjectStoreBackend, S3Backend
    from fusebackend.backends.postgres import PostgresBackend
    from fusebackend.backends.sandbox.base import BaseSandbox
    from fusebackend.backends.sandbox.docker import DockerBackend
    from fusebackend.backends.sandbox.e2b import E2BBackend
    from fusebackend.backends.sandbox.modal import ModalBackend
    from fusebackend.backends.sandbox.staged import StagedSandbox
    from fusebackend.backends.sqlite import SqliteBackend
    from fusebackend.backends.state import StateBackend
    from fusebackend.backends.store import StoreBackend
    from fusebackend.backends.threads import ThreadsBackend
    from fusebackend.backends.volume import VolumeBackend
    from fusebackend.composite import CompositeBackend
    from fusebackend.protocol import (
        BackendFactory,
        BackendLike,
        BackendProtocol,
        DeleteResult,
        EditResult,
        ErrorCode,
        ExecuteResponse,
        FileData,
        FileDownloadResponse,
        FileInfo,
        FileUploadResponse,
        GlobResult,
        GrepMatch,
        GrepResult,
        LsResult,
        MoveResult,
        ReadResult,
        SandboxBackendProtocol,
        WriteResult,
    )

_MODULE_OF = {
    "BaseSandbox": "fusebackend.backends.sandbox.base",
    "CompositeBackend": "fusebackend.composite",
    "DockerBackend": "fusebackend.backends.sandbox.docker",
    "E2BBackend": "fusebackend.backends.sandbox.e2b",
    "FileVerbs": "fusebackend.backends.fileverbs",
    "FilesystemBackend": "fusebackend.backends.filesystem",
    "ForeignVolume": "fusebackend.backends.foreign",
    "InMemoryBackend": "fusebackend.backends.memory",
    "Loaded": "fusebackend.backends.fileverbs",
    "LocalShellBackend": "fusebackend.backends.local_shell",
    "ModalBackend": "fusebackend.backends.sandbox.modal",
    "PostgresBackend": "fusebackend.backends.postgres",
    "ObjectStoreBackend": "fusebackend.backends.objectstore.backend",
    "S3Backend": "fusebackend.backends.objectstore.backend",
    "SqliteBackend": "fusebackend.backends.sqlite",
    "StagedSandbox": "fusebackend.backends.sandbox.staged",
    "StateBackend": "fusebackend.backends.state",
    "StoreBackend": "fusebackend.backends.store",
    "ThreadsBackend": "fusebackend.backends.threads",
    "VolumeBackend": "fusebackend.backends.volume",
    "digest_of": "fusebackend.backends.buffer",
    "resolve": "fusebackend.attaching",
    "volume_of": "fusebackend.backends.foreign",
}

__all__ = [
    "BackendFactory",
    "BackendLike",
    "BackendProtocol",
    "BaseSandbox",
    "CompositeBackend",
    "DeleteResult",
    "DockerBackend",
    "E2BBackend",
    "EditResult",
    "ErrorCode",
    "ExecuteResponse",
    "FileData",
    "FileDownloadResponse",
    "FileInfo",
    "FileUploadResponse",
    "FileVerbs",
    "FilesystemBackend",
    "ForeignVolume",
    "GlobResult",
    "GrepMatch",
    "GrepResult",
    "InMemoryBackend",
    "Loaded",
    "LocalShellBackend",
    "LsResult",
    "ModalBackend",
    "MoveResult",
    "ObjectStoreBackend",
    "PostgresBackend",
    "ReadResult",
    "S3Backend",
    "SandboxBackendProtocol",
    "SqliteBackend",
    "StagedSandbox",
    "StateBackend",
    "StoreBackend",
    "ThreadsBackend",
    "VolumeBackend",
    "WriteResult",
    "digest_of",
    "resolve",
    "volume_of",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from fusebackend.extras import needed_by

    with needed_by(name):
        value = getattr(importlib.import_module(_MODULE_OF.get(name, "fusebackend.protocol")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
