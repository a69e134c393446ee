"""Virtual subclasses: `isinstance(ours, theirs)` for classes of packages that may be imported later, or never.

`create_deep_agent` asks `isinstance` whether an object is a backend, can execute, and keeps files in the graph's state.
A class of ours names the class that it stands for once:

    @registered_with("deepagents.backends.protocol", "BackendProtocol")

It can't call `ABCMeta.register` there, for that needs the other package imported, which takes a second. `isinstance`
reads `instance.__class__` when the types differ (`ABCMeta.__instancecheck__`), so `BackendProtocol.__class__` is a
property that calls `register_all`: the caller of `isinstance` has imported the other package by then. That works in any
order of imports, and makes an `isinstance` of a backend, which no hot path has, 0.7 µs slower.

At the same moment, before an agent's tools exist, the module of `WITH` that belongs to one of theirs is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TypeVar

Class = TypeVar("Class", bound=type)

_waiting: list[tuple[str, str, type]] = []

WITH = {"deepagents.middleware.filesystem": ("FilesystemMiddleware", "fusebackend.integrations.exported")}
"""Modules of other packages: the last name that is needed of them, and the module that gives their tools our backends.
By name, for it is above this one."""


def registered_with(module: str, name: str) -> Callable[[Class], Class]:
    """Make the decorated class a virtual subclass of `module.name`, an `abc.ABC`, once that module is imported."""

    def decorate(cls: Class) -> Class:
        _waiting.append((module, name, cls))
        return cls

    return decorate


def register_all() -> None:
    """Register what waits for modules that are there now. A module that is still being imported may lack the class."""
    for waiting in tuple(_waiting):
        module, name, cls = waiting
        theirs = getattr(sys.modules.get(module), name, None)
        if theirs is not None and hasattr(theirs, "register"):
            theirs.register(cls)
            _waiting.remove(waiting)
    for name, (needed, ours) in tuple(WITH.items()):
        if hasattr(sys.modules.get(name), needed):
            del WITH[name]
            importlib.import_module(ours)
