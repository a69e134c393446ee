"""Every backend and every record by its public name, imported when it is first used.

The names are those of `deepagents.backends`, and the submodules `protocol` and `composite` are there as well, so that
code written for it runs when `deepagents.backends` is replaced by `fusebackend.backends`.

memory.py                       `memory:`, the reference for every other volume
sqlite/ directory/ postgres/    native volumes
object_store/                   plain objects: S3, Google Cloud Storage, Azure
state/ store/ threads/          files of LangGraph agents: state, stores, checkpoints
sandbox/                        files reached by running commands: Docker, E2B, Modal
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusebackend.backends.directory.backend import FilesystemBackend
    from fusebackend.backends.directory.local_shell import LocalShellBackend
    from fusebackend.backends.memory import InMemoryBackend
    from fusebackend.backends.object_store.backend import ObjectStoreBackend, S3Backend
    from fusebackend.backends.postgres import PostgresBackend
    from fusebackend.backends.sandbox.base import BaseSandbox
    from fusebackend.backends.sandbox.docker import DockerBackend
    from fusebackend.backends.sandbox.e2b import E2BBackend
    from fusebackend.backends.sandbox.modal import ModalBackend
    from fusebackend.backends.sandbox.staged import StagedSandbox
    from fusebackend.backends.sqlite.backend import SqliteBackend
    from fusebackend.backends.state.backend import StateBackend
    from fusebackend.backends.store import StoreBackend
    from fusebackend.backends.threads import ThreadsBackend
    from fusebackend.composite.attach import resolve
    from fusebackend.composite.backend import CompositeBackend
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
    from fusebackend.remote.agent_verbs import FileVerbs, Loaded
    from fusebackend.remote.buffer import digest_of
    from fusebackend.remote.volume import ForeignVolume, volume_of
    from fusebackend.volumes.agent_face import VolumeBackend

_MODULE_OF = {
    "BaseSandbox": "fusebackend.backends.sandbox.base",
    "CompositeBackend": "fusebackend.composite.backend",
    "DockerBackend": "fusebackend.backends.sandbox.docker",
    "E2BBackend": "fusebackend.backends.sandbox.e2b",
    "FileVerbs": "fusebackend.remote.agent_verbs",
    "FilesystemBackend": "fusebackend.backends.directory.backend",
    "ForeignVolume": "fusebackend.remote.volume",
    "InMemoryBackend": "fusebackend.backends.memory",
    "Loaded": "fusebackend.remote.agent_verbs",
    "LocalShellBackend": "fusebackend.backends.directory.local_shell",
    "ModalBackend": "fusebackend.backends.sandbox.modal",
    "PostgresBackend": "fusebackend.backends.postgres",
    "ObjectStoreBackend": "fusebackend.backends.object_store.backend",
    "S3Backend": "fusebackend.backends.object_store.backend",
    "SqliteBackend": "fusebackend.backends.sqlite.backend",
    "StagedSandbox": "fusebackend.backends.sandbox.staged",
    "StateBackend": "fusebackend.backends.state.backend",
    "StoreBackend": "fusebackend.backends.store",
    "ThreadsBackend": "fusebackend.backends.threads",
    "VolumeBackend": "fusebackend.volumes.agent_face",
    "digest_of": "fusebackend.remote.buffer",
    "resolve": "fusebackend.composite.attach",
    "volume_of": "fusebackend.remote.volume",
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

    from fusebackend.base.extras import needed_by

    with needed_by(name):
        value = getattr(importlib.import_module(_MODULE_OF.get(name, "fusebackend.protocol")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
