"""Mount an agent's files as a real filesystem, and give the agent the same files through one Python API.

    import fusebackend
    from fusebackend.backends import SqliteBackend

    with fusebackend.mount(SqliteBackend("notes.db"), "/mnt/agent") as files:
        files.write("/hello.txt", "hello\\n")      # `cat /mnt/agent/hello.txt` says hello

    files = fusebackend.connect("/mnt/agent")     # the same, from another process

Names are imported when they are first used: `import fusebackend` alone loads next to nothing else.

Each folder imports only from those below it:

cli/                        the command, one file for each subcommand
server/ integrations/       a running mount; bridges to other packages
doctor.py                   what a machine lacks for a mount
control/                    the control socket: wire format, verbs, client, server
fuse/ shell/                pyfuse3; the sandbox of commands
trees/                      trees of a mount beside the main one, and their differences
history/                    who changed what in which call, and how to take it back
vfs/                        the mounted tree
urls.py composite/          URLs of backends; one tree of several backends
config.py                   the TOML file of a mount
backends/                   one folder or file for each backend
rules/                      what a reader may see and do
remote/                     files behind an API
volumes/ databases/         POSIX rules of native volumes; SQLite and PostgreSQL
dialects/                   backends of others, in the words they know
text.py                     lines and encodings of files, as agents see them
linux/ protocol/ base/      mounts and processes; both faces, typed; paths, errors, time
testing/                    published suites
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusebackend.base.version import __version__ as __version__

__all__ = [
    "Actor",
    "BackendProtocol",
    "Client",
    "CompositeBackend",
    "MergeConflict",
    "Mount",
    "MountError",
    "SandboxBackendProtocol",
    "acting",
    "connect",
    "mount",
]

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.control.client.client import Client, connect
    from fusebackend.linux.mount_table import MountError
    from fusebackend.protocol import Actor, BackendProtocol, SandboxBackendProtocol, acting
    from fusebackend.protocol.branch import MergeConflict
    from fusebackend.server.api import mount
    from fusebackend.server.in_process import Mount

_MODULE_OF = {
    "Actor": "fusebackend.protocol",
    "BackendProtocol": "fusebackend.protocol",
    "Client": "fusebackend.control.client.client",
    "CompositeBackend": "fusebackend.composite.backend",
    "MergeConflict": "fusebackend.protocol.branch",
    "Mount": "fusebackend.server.in_process",
    "MountError": "fusebackend.linux.mount_table",
    "SandboxBackendProtocol": "fusebackend.protocol",
    "acting": "fusebackend.protocol",
    "connect": "fusebackend.control.client.client",
    "mount": "fusebackend.server.api",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "memory":
        return importlib.import_module("fusebackend.integrations.memory_files")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
