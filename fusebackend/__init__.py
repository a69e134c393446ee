"""Mount an agent's files as a real filesystem, and give the agent the same files through one Python API.

    import fusebackend
    from fusebackend.backends import SqliteBackend

    with fusebackend.mount(SqliteBackend("notes.db"), "/mnt/agent") as files:
        files.write("/hello.txt", "hello\\n")      # `cat /mnt/agent/hello.txt` says hello

    files = fusebackend.connect("/mnt/agent")     # the same, from another process

Names are imported when they are first used: `import fusebackend` alone loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "BackendProtocol",
    "Client",
    "CompositeBackend",
    "Mount",
    "MountError",
    "SandboxBackendProtocol",
    "connect",
    "mount",
]

if TYPE_CHECKING:
    from fusebackend.composite import CompositeBackend
    from fusebackend.control.client import Client, connect
    from fusebackend.mount.api import Mount, mount
    from fusebackend.mount.error import MountError
    from fusebackend.protocol import BackendProtocol, SandboxBackendProtocol

_MODULE_OF = {
    "BackendProtocol": "fusebackend.protocol",
    "Client": "fusebackend.control.client",
    "CompositeBackend": "fusebackend.composite",
    "Mount": "fusebackend.mount.api",
    "MountError": "fusebackend.mount.error",
    "SandboxBackendProtocol": "fusebackend.protocol",
    "connect": "fusebackend.control.client",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "mount":  # the subpackage, which can be called: see its docstring
        return importlib.import_module("fusebackend.mount")
    if name == "memory":
        return importlib.import_module("fusebackend.memory")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
