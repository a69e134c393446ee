"""What becomes of a backend that is given to a `CompositeBackend`, at a prefix or as the default."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from fusebackend.backends.state.backend import StateBackend
from fusebackend.base.paths import AgentPath
from fusebackend.dialects.agent_face import has_agent_face, is_factory, is_named_factory
from fusebackend.protocol import SandboxBackendProtocol


def familiar(backend: Any) -> Any:
    """One of ours that was exported is itself again, and a composite of deepagents' becomes one of ours: with its
    routes apart, each has a kernel face of its own, and is a mount point. Any other is what it is.

    Raises:
        PathError: a route of that composite has a prefix that ours refuse.
    """
    exporting = sys.modules.get("fusebackend.integrations.exported")
    if exporting is not None and isinstance(backend, exporting.Exported):
        return backend.backend
    kind = type(backend)
    if (kind.__module__, kind.__qualname__) == ("deepagents.backends.composite", "CompositeBackend"):
        from fusebackend.composite.backend import CompositeBackend

        return CompositeBackend(backend.default, backend.routes)
    return backend


def seated(backend: Any, prefix: AgentPath, default: Any) -> Any:
    """A route's backend; one that shares its state with the default keeps its files there under the prefix."""
    from fusebackend.composite.backend import CompositeBackend

    if isinstance(backend, StateBackend):
        return backend.beside(default, prefix)
    if isinstance(backend, CompositeBackend):
        given = backend.given
        base = seated(backend.default, prefix, default)
        routes: dict[str, Any] = {path: seated(part, AgentPath(prefix + path), default) for path, part in given.items()}
        if base is not backend.default or any(routes[path] is not part for path, part in given.items()):
            return CompositeBackend(base, routes)
    return backend


def resolve(backend: Any, runtime: Any = None) -> Any:
    """A backend from a backend or a factory of one (the CMDC seed's `resolve`).

    Args:
        backend: a backend, which is itself; a class or function, called with the runtime; a composite, whose factories
            are called; or `(factory, options)`, also with `"package.module:factory"` in place of the factory: called
            with the options, and with the runtime if it has a parameter for it (`RUNTIME_NAMES`).
        runtime: what a factory gets; LangGraph's inside of a graph.

    Raises:
        TypeError: this is no backend, and makes none.
        ImportError, AttributeError: there is no such module, or nothing of that name in it.
    """
    found = made(backend, runtime)
    if not has_agent_face(found):
        raise TypeError(f"a {type(found).__name__} is no backend: it can't list or fetch files")
    return found


RUNTIME_NAMES = ("runtime", "rt", "store_or_runtime")
"""Parameters of a factory with options that get the runtime, unless an option has that name."""


def _called(named: tuple[Any, Mapping[str, Any]], runtime: Any) -> Any:
    """What a factory with options gives."""
    factory, options = named
    if isinstance(factory, str):
        module, _, path = factory.partition(":")
        factory = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    try:
        known: Iterable[str] = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some C functions have none
        known = ()
    given = {name: runtime for name in RUNTIME_NAMES if name in known and name not in options}
    return factory(**given, **options)


def made(backend: Any, runtime: Any) -> Any:
    """What a factory gives for a runtime; anything else is itself.

    Raises:
        TypeError: a factory gave no backend.
    """
    from fusebackend.composite.backend import CompositeBackend

    if isinstance(backend, CompositeBackend):
        return backend.resolve(runtime)
    if not is_factory(backend):
        return backend
    found = familiar(_called(backend, runtime) if is_named_factory(backend) else backend(runtime))
    if found is None or is_factory(found):
        raise TypeError(f"The factory {backend!r} gave {found!r} and no backend")
    return found.resolve(runtime) if isinstance(found, CompositeBackend) else found


def keeps_in_graph(backend: Any) -> bool:
    """May files of this backend be in the state of a running LangGraph graph? Those of a factory may."""
    from fusebackend.composite.backend import CompositeBackend

    if isinstance(backend, CompositeBackend):
        return any(keeps_in_graph(part) for part in (backend.default, *backend.routes.values()))
    if isinstance(backend, StateBackend):
        return backend.in_graph
    module = sys.modules.get("deepagents.backends.state")
    return is_factory(backend) or (module is not None and isinstance(backend, module.StateBackend))


def supports_execution(backend: Any) -> bool:
    """Can this backend run commands? Also one that has `execute` without being our `SandboxBackendProtocol`."""
    from fusebackend.composite.backend import CompositeBackend

    if isinstance(backend, CompositeBackend):
        return supports_execution(backend.default)
    if isinstance(backend, SandboxBackendProtocol):
        return True
    return not is_factory(backend) and callable(getattr(backend, "execute", None))
