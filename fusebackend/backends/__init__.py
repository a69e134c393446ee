"""Every backend and every record by its public name, imported when it is first used.

The names are those of `deepagents.backends`, and the submodules `protocol` and `composite` are there as well, so that
code written for it runs when `deepagents.backends` is replaced by `fusebackend.backends`.

memory.py                       `memory:`, the reference for every other volume
sqlite/ directory/ postgres/    native volumes
object_store/                   plain objects: S3, Google Cloud Storage, Azure
fsspec/                         any file system of fsspec
state/ store/ threads/          files of LangGraph agents: state, stores, checkpoints
sandbox/                        files reached by running commands: Docker, E2B, Modal
composite.py protocol.py        names that `deepagents.backends` has in submodules
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusebackend.backends.protocol import *  # noqa: F403
from fusebackend.protocol import agent, records

if TYPE_CHECKING:
    from fusebackend.backends.directory.backend import FilesystemBackend as FilesystemBackend
    from fusebackend.backends.directory.backend import LocalShellBackend as LocalShellBackend
    from fusebackend.backends.fsspec.remote import FsspecBackend as FsspecBackend
    from fusebackend.backends.memory import InMemoryBackend as InMemoryBackend
    from fusebackend.backends.object_store.remote import ObjectStoreBackend as ObjectStoreBackend
    from fusebackend.backends.object_store.remote import S3Backend as S3Backend
    from fusebackend.backends.postgres.backend import PostgresBackend as PostgresBackend
    from fusebackend.backends.sandbox.base import BaseSandbox as BaseSandbox
    from fusebackend.backends.sandbox.docker import DockerBackend as DockerBackend
    from fusebackend.backends.sandbox.hosted import E2BBackend as E2BBackend
    from fusebackend.backends.sandbox.hosted import ModalBackend as ModalBackend
    from fusebackend.backends.sqlite.backend import SqliteBackend as SqliteBackend
    from fusebackend.backends.state.backend import StateBackend as StateBackend
    from fusebackend.backends.store import StoreBackend as StoreBackend
    from fusebackend.backends.threads import ThreadsBackend as ThreadsBackend
    from fusebackend.composite.backend import CompositeBackend as CompositeBackend
    from fusebackend.composite.backend import resolve as resolve
    from fusebackend.protocol.versions import digest_of as digest_of
    from fusebackend.remote.backend import RemoteBackend as RemoteBackend
    from fusebackend.remote.volume import ForeignVolume as ForeignVolume
    from fusebackend.remote.volume import RemoteVolume as RemoteVolume
    from fusebackend.remote.volume import volume_of as volume_of
    from fusebackend.volumes.agent_face import VolumeBackend as VolumeBackend

_NAMES = {
    "backends.directory.backend": "FilesystemBackend LocalShellBackend",
    "backends.fsspec.remote": "FsspecBackend",
    "backends.memory": "InMemoryBackend",
    "backends.object_store.remote": "ObjectStoreBackend S3Backend",
    "backends.postgres.backend": "PostgresBackend",
    "backends.sandbox.base": "BaseSandbox",
    "backends.sandbox.docker": "DockerBackend",
    "backends.sandbox.hosted": "E2BBackend ModalBackend",
    "backends.sqlite.backend": "SqliteBackend",
    "backends.state.backend": "StateBackend",
    "backends.store": "StoreBackend",
    "backends.threads": "ThreadsBackend",
    "composite.backend": "CompositeBackend resolve",
    "remote.backend": "RemoteBackend",
    "protocol.versions": "digest_of",
    "remote.volume": "ForeignVolume RemoteVolume volume_of",
    "volumes.agent_face": "VolumeBackend",
}
"""The names above by module, which is imported when one of them is first used."""

_MODULE_OF = {name: f"fusebackend.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [*agent.__all__, *records.__all__, *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from fusebackend.base.extras import needed_by

    with needed_by(name):
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
