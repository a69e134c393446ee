"""The kinds of backend URLs of this package: which class has which. The classes say the rest in `schemes`, and are
imported when one of their URLs is asked about."""

from __future__ import annotations

import importlib
import os
import sys
from collections import UserDict
from typing import Any, Final

from fusebackend.protocol.scheme import Parameter, Scheme, Url, UrlError


def _open_python(url: Url) -> Any:
    """Import `package.module`, also from the current directory, and call its `callable` with the parameters."""
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.dialects.agent_face import AgentFace, has_agent_face

    module_name, colon, attribute = url.rest.partition(":")
    if not colon or not module_name or not attribute:
        raise UrlError(f"'{url.masked}' is incomplete; write {PYTHON.form}")
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


PYTHON: Final = Scheme(
    "python:package.module:callable",
    "what your own function returns, called with the parameters",
    _open_python,
    parameters=None,
)


class Schemes(UserDict[str, Any]):
    """Schemes by name. A value `module:Class` is imported when it is looked up; its `schemes`, or it itself, has it."""

    def __getitem__(self, name: str) -> Scheme:
        found = self.data[name]
        if isinstance(found, str):
            module, _, kind = found.partition(":")
            said = getattr(importlib.import_module(module), kind)
            found = self.data[name] = getattr(said, "schemes", said)[name]
        return found  # type: ignore[no-any-return]


SCHEMES: Final = Schemes({
    "sqlite": "fusebackend.backends.sqlite.backend:SqliteBackend",
    "memory": "fusebackend.backends.memory:InMemoryBackend",
    "dir": "fusebackend.backends.directory.backend:FilesystemBackend",
    "shell": "fusebackend.backends.directory.backend:LocalShellBackend",
    "state": "fusebackend.backends.state.backend:StateBackend",
    "store+sqlite": "fusebackend.backends.store.backend:StoreBackend",
    "store+postgres": "fusebackend.backends.store.backend:StoreBackend",
    "threads+sqlite": "fusebackend.backends.threads.backend:ThreadsBackend",
    "threads+postgres": "fusebackend.backends.threads.backend:ThreadsBackend",
    "postgres": "fusebackend.backends.postgres.backend:PostgresBackend",
    "s3": "fusebackend.backends.object_store.opening:SCHEMES",
    "gs": "fusebackend.backends.object_store.opening:SCHEMES",
    "az": "fusebackend.backends.object_store.opening:SCHEMES",
    "docker": "fusebackend.backends.sandbox.docker:DockerBackend",
    "fsspec": "fusebackend.backends.fsspec.opening:SCHEMES",
    "python": PYTHON,
})  # fmt: skip
"""In the order in which they are shown."""


def meanings() -> dict[str, tuple[str, list[str]]]:
    """Return what each parameter means, and the schemes that know it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name, scheme in SCHEMES.items():
        for parameter, read in (scheme.parameters or {}).items():
            if isinstance(read, Parameter):
                found.setdefault(parameter, (read.meaning, []))[1].append(name)
    return dict(sorted(found.items()))
