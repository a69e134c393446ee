"""Our backends in packages that may be imported later, or never: `isinstance`, and what an agent's tools ask.

`create_deep_agent` asks `isinstance` whether an object is a backend, can execute, and keeps files in the graph's state.
A class of ours names the class that it stands for once:

    @registered_with("deepagents.backends.protocol", "BackendProtocol")

It can't call `ABCMeta.register` there, for that needs the other package imported, which takes a second. A finder in
`sys.meta_path` calls it when the module has been imported. That works in any order of imports; an import of another
module costs a look into a dictionary more.

By the same way `ToolsBackend` takes the place of `FilesystemMiddleware.backend`, which gives the tools of every
deepagents 0.7 their backend: see `integrations/exported.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

EXPORTED = "fusebackend.integrations.exported"
"""By name, for it is above this module, and imports deepagents."""

_waiting: dict[str, list[Callable[[Any], object]]] = {}


def registered_with(module: str, name: str) -> Callable[[Class], Class]:
    """Make the decorated class a virtual subclass of `module.name`, an `abc.ABC`, once that module is imported."""

    def decorate(cls: Class) -> Class:
        _when_there(module, name, lambda theirs: theirs.register(cls))
        return cls

    return decorate


def _when_there(module: str, name: str, act: Callable[[Any], object]) -> None:
    """Call `act` with a class of a module, now or when the module has been imported; never if it lacks the class."""

    def found(there: Any) -> None:
        if hasattr(there, name):
            act(getattr(there, name))

    if hasattr(sys.modules.get(module), name):
        found(sys.modules[module])
    else:
        _waiting.setdefault(module, []).append(found)


class _Finder:
    """Finds what others find, and has the modules of `_waiting` carry on what waits for them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                for act in _waiting.pop(module.__name__, ()):
                    act(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class ToolsBackend:
    """`FilesystemMiddleware.backend`: as it was given, but for backends of ours."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        own = vars(instance)
        if "backend" not in own:
            raise AttributeError("backend")
        given, rules = own["backend"], own.get("_permissions")
        made = own.get("_fusebackend")
        if made is None or made[0] is not given or made[1] is not rules:
            try:
                for_tools = importlib.import_module(EXPORTED).for_tools
            except (ImportError, AttributeError):  # a deepagents before 0.7, which is not supported: it goes on
                return given
            made = own["_fusebackend"] = given, rules, for_tools(given, rules)
        return made[2]

    def __set__(self, instance: Any, backend: Any) -> None:
        vars(instance)["backend"] = backend


def _give_tools(middleware: Any) -> None:
    middleware.backend = ToolsBackend()


sys.meta_path.insert(0, _Finder())
_when_there("deepagents.middleware.filesystem", "FilesystemMiddleware", _give_tools)
