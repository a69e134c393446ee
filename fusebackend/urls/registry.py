"""The kinds of backend URLs of this package, in one table, with the functions that open them. Backends are imported
when opened."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fusebackend.base.sizes import EXAMPLES, size_bytes
from fusebackend.databases.urls import LIBPQ_WORDS
from fusebackend.protocol import WHOLE_FILES, Features
from fusebackend.protocol.scheme import Scheme, Url, UrlError

NOT_YET = ("overlay",)
"""Schemes that are planned; asking for one says so."""


def _opener(place: str) -> Callable[[Url], Any]:
    """Return a function that opens a URL by the `module:function` in `place`, which is imported when it is called."""
    module, _, name = place.partition(":")

    def open_url(url: Url) -> Any:
        return getattr(importlib.import_module(module), name)(url)

    return open_url


def _open_sqlite(url: Url) -> Any:
    from fusebackend.backends.sqlite.backend import SqliteBackend

    parent = os.path.dirname(url.rest)
    if not os.path.isdir(parent):
        raise UrlError(f"'{url.masked}': there is no directory '{parent}'")
    return SqliteBackend(url.rest, **url.parameters)


def _open_memory(url: Url) -> Any:
    from fusebackend.backends.memory import InMemoryBackend

    return InMemoryBackend(**url.parameters)


def _open_directory(url: Url) -> Any:
    directory = _directory(url)
    from fusebackend.backends.directory.backend import FilesystemBackend

    return FilesystemBackend(directory, virtual_mode=True, **url.parameters)


def _open_shell(url: Url) -> Any:
    directory = _directory(url)
    from fusebackend.backends.directory.backend import LocalShellBackend

    return LocalShellBackend(directory, virtual_mode=True, **url.parameters)


def _directory(url: Url) -> str:
    if not os.path.exists(url.rest):
        raise UrlError(f"'{url.masked}': there is no directory '{url.rest}'")
    if not os.path.isdir(url.rest):
        raise UrlError(f"'{url.masked}': '{url.rest}' is not a directory")
    return url.rest


def _open_state(url: Url) -> Any:
    from fusebackend.backends.state.backend import StateBackend

    return StateBackend.named(url.rest, **url.parameters) if url.rest else StateBackend(**url.parameters)


def _open_python(url: Url) -> Any:
    """Import `package.module`, also from the current directory, and call its `callable` with the parameters."""
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.dialects.agent_face import AgentFace, has_agent_face

    module_name, colon, attribute = url.rest.partition(":")
    if not colon or not module_name or not attribute:
        raise UrlError(f"'{url.masked}' is incomplete; write {SCHEMES['python'].form}")
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.append(directory)  # last, so that a file there can't stand in for a module of Python's
    try:
        found: Any = importlib.import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
        made = found if not callable(found) or has_agent_face(found) else found(**url.parameters)
    except Exception as error:
        raise UrlError(f"'{url.masked}' failed: {type(error).__name__}: {error}") from error
    if not has_agent_face(made):
        raise UrlError(f"'{url.masked}' gave a {type(made).__name__}, which is no backend")
    try:
        for part in CompositeBackend(made).mounts().values():
            AgentFace(part, type(part).__name__).require_mountable()
    except TypeError as error:
        raise UrlError(f"'{url.masked}': {error}") from None
    return made


# --------------------------------------------------------------------------------------------------------------
# Parameters
# --------------------------------------------------------------------------------------------------------------


def _one_of(*known: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"must be {' or '.join(map(repr, known))}")
        return value

    return read


def _auto_or_off(value: str) -> bool:
    return _one_of("auto", "off")(value) == "auto"


def _root(value: str) -> str:
    from fusebackend.base.paths import PathError, normalise

    try:
        return normalise(value)
    except PathError:
        raise ValueError("must be the path of a directory") from None


def _positive(value: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", value) or int(value) == 0:
        raise ValueError("must be a whole number above 0")
    return int(value)


def _size(value: str) -> int:
    try:
        size = size_bytes(value)
    except ValueError:
        size = 0
    if size == 0:
        raise ValueError(f"must be a size above 0 ({EXAMPLES})")
    return size


def _namespace(value: str) -> tuple[str, ...]:
    from fusebackend.backends.store.source import checked_namespace

    try:
        return checked_namespace(value)
    except ValueError as error:
        raise ValueError(f"must be a namespace such as 'a.b' ({error})") from None


def _seconds(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        raise ValueError("must be a number of seconds")
    return float(value)


def _yes(value: str) -> bool:
    if value != "1":
        raise ValueError("must be 1")
    return True


def _endpoint(value: str) -> str:
    if not re.fullmatch(r"https?://[^/?#@\s]+/?", value):
        raise ValueError("must be a URL such as 'https://s3.example.org:9000'")
    return value.rstrip("/")


MEANINGS = {
    "access_key_id": "with secret_access_key: credentials; by default those of the environment",
    "cache": "auto (default): sizes of computed files are kept in the server's cache directory, for SQLite also by a"
    " second process ahead of a walk through many threads; off: neither",
    "cache_mb": "how many MiB of objects that were read stay in memory; 64 by default",
    "conflict": "replacing a file that another host has changed since it was opened: error (default) or last-writer",
    "connections": "how many connections to the server, and so operations at once",
    "endpoint": "the URL of an S3 server that is not AWS's",
    "feed": "auto (default): a trigger tells of changes at once, where it may be made; off: they are seen after ttl",
    "limit_bytes": "how much the volume may hold, such as 10GiB; more is EDQUOT",
    "limit_files": "how many files, directories and links the volume may hold; more is EDQUOT",
    "max_file_size_mb": "larger files are passed over by grep",
    "max_output_bytes": "what a command prints beyond this is dropped",
    "network": "the container's network, as of 'docker run --network'",
    "ns": "the namespace, its parts with dots between",
    "on_exists": "an agent's write to a file that is there: error (default) or replace",
    "quiet_s": "a run counts as ended after so many seconds without a new checkpoint",
    "region": "of the bucket",
    "root": "the directory of the container that is mounted",
    "secret_access_key": "see access_key_id",
    "session_token": "for temporary credentials",
    "timeout": "seconds that a command may take",
    "tree": "1: all namespaces of the store, each a directory",
    "ttl": "for how many seconds the kernel believes what was seen before it looks again",
    "volume": "which volume of the database; several can be in one",
    "write": "head: changes of files become pending writes of the thread; read-only by default",
}
"""The meaning of URLs' parameters, for `fusebackend backends`; a name means the same wherever it is known."""

_OBJECTS = replace(WHOLE_FILES, symlinks=True, persistent_modes=True, blocking=True)

ON_EXISTS = _one_of("error", "replace")

LIMITS: dict[str, Callable[[str], Any]] = {"limit_bytes": _size, "limit_files": _positive}
"""Of volumes that every change of passes through this package: what others add elsewhere could not be refused."""

_OBJECT_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "cache_mb": _positive,
    "on_exists": ON_EXISTS,
    "ttl": _seconds,
}

# --------------------------------------------------------------------------------------------------------------
# The table
# --------------------------------------------------------------------------------------------------------------

SCHEMES: dict[str, Scheme] = {
    "sqlite": Scheme(
        "sqlite:PATH",
        "all files in one SQLite file; the default",
        _open_sqlite,
        takes="path",
        parameters={**LIMITS, "on_exists": ON_EXISTS},
        features=Features(acls=True),
        snapshots=True,
    ),
    "memory": Scheme(
        "memory:",
        "files in the server's memory, gone when it ends",
        _open_memory,
        takes="nothing",
        parameters={**LIMITS, "on_exists": ON_EXISTS},
        features=Features(acls=True, durable=False),
        snapshots=True,
    ),
    "dir": Scheme(
        "dir:PATH",
        "a directory of this machine; nothing outside it can be reached",
        _open_directory,
        takes="path",
        parameters={"max_file_size_mb": _positive, "on_exists": ON_EXISTS},
        features=Features(acls=True, change_feed=False),
    ),
    "shell": Scheme(
        "shell:PATH",
        "the same, and agents may run commands there",
        _open_shell,
        takes="path",
        parameters={
            "max_file_size_mb": _positive,
            "max_output_bytes": _positive,
            "on_exists": ON_EXISTS,
            "timeout": _positive,
        },
        features=Features(acls=True, change_feed=False),
        execute=True,
    ),
    "state": Scheme(
        "state:[NAME]",
        "files as an agent's state holds them, gone when the server ends; routes of one name share theirs",
        _open_state,
        takes="name",
        parameters={"on_exists": ON_EXISTS},
        features=replace(WHOLE_FILES, durable=False),
    ),
    "store+sqlite": Scheme(
        "store+sqlite:PATH?ns=NAMESPACE",
        "an agent's long-term memory: a namespace of a LangGraph store in SQLite",
        _opener("fusebackend.backends.store.backend:open_sqlite"),
        takes="path",
        parameters={"ns": _namespace, "on_exists": ON_EXISTS, "tree": _yes, "ttl": _seconds},
        features=replace(WHOLE_FILES, blocking=True),
    ),
    "store+postgres": Scheme(
        "store+postgres:DSN?ns=NAMESPACE",
        "the same in PostgreSQL, with what other programs change shown at once",
        _opener("fusebackend.backends.store.backend:open_postgres"),
        parameters={
            "feed": _auto_or_off,
            "ns": _namespace,
            "on_exists": ON_EXISTS,
            "tree": _yes,
            "ttl": _seconds,
        },
        passed_on=LIBPQ_WORDS,
    ),
    "threads+sqlite": Scheme(
        "threads+sqlite:PATH",
        "a LangGraph checkpoint database: every thread, its files now and at each checkpoint",
        _opener("fusebackend.backends.threads.backend:open_sqlite"),
        takes="path",
        parameters={"cache": _auto_or_off, "on_exists": ON_EXISTS, "quiet_s": _seconds, "write": _one_of("head")},
    ),
    "threads+postgres": Scheme(
        "threads+postgres:DSN",
        "the same in PostgreSQL",
        _opener("fusebackend.backends.threads.backend:open_postgres"),
        parameters={
            "cache": _auto_or_off,
            "on_exists": ON_EXISTS,
            "quiet_s": _seconds,
            "write": _one_of("head"),
        },
        passed_on=LIBPQ_WORDS,
    ),
    "postgres": Scheme(
        "postgres:DSN?volume=NAME",
        "a volume in PostgreSQL that many hosts mount at once",
        _opener("fusebackend.backends.postgres.backend:open_postgres"),
        parameters={
            "conflict": _one_of("error", "last-writer"),
            "connections": _positive,
            **LIMITS,
            "on_exists": ON_EXISTS,
            "volume": str,
        },
        passed_on=LIBPQ_WORDS,
        features=Features(acls=True, stores_at_close=True, blocking=True, shared=True),
        snapshots=True,
    ),
    "s3": Scheme(
        "s3://BUCKET/PREFIX?endpoint=URL&region=REGION",
        "objects in S3, or in what speaks like it, that other programs read as well",
        _opener("fusebackend.backends.object_store.opening:open_s3"),
        parameters={
            **_OBJECT_PARAMETERS,
            "access_key_id": str,
            "endpoint": _endpoint,
            "region": str,
            "secret_access_key": str,
            "session_token": str,
        },
        features=_OBJECTS,
    ),
    "gs": Scheme(
        "gs://BUCKET/PREFIX",
        "the same in Google Cloud Storage",
        _opener("fusebackend.backends.object_store.opening:open_gs"),
        parameters=_OBJECT_PARAMETERS,
        features=_OBJECTS,
    ),
    "az": Scheme(
        "az://CONTAINER/PREFIX",
        "the same in Azure Blob Storage",
        _opener("fusebackend.backends.object_store.opening:open_az"),
        parameters=_OBJECT_PARAMETERS,
        features=_OBJECTS,
    ),
    "docker": Scheme(
        "docker:IMAGE_OR_CONTAINER",
        "the files of a container, where agents may run commands; one from an image is gone when the server ends",
        _opener("fusebackend.backends.sandbox.docker:open_docker"),
        parameters={
            "max_output_bytes": _positive,
            "network": str,
            "on_exists": ON_EXISTS,
            "root": _root,
            "timeout": _positive,
        },
        execute=True,
    ),
    "fsspec": Scheme(
        "fsspec:PROTOCOL://PLACE",
        "any file system of fsspec: file, sftp, ftp, webdav, smb, http, zip, hf …",
        _opener("fusebackend.backends.fsspec.opening:open_fsspec"),
        parameters=None,
        features=replace(_OBJECTS, symlinks=False, persistent_modes=False),
    ),
    "python": Scheme(
        "python:package.module:callable",
        "what your own function returns, called with the parameters",
        _open_python,
        parameters=None,
    ),
}
"""The schemes of this package, in the order in which they are shown."""
