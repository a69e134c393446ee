"""Names of what a server makes outside of its mount, which tell whose it is.

A killed server leaves its control groups and device nodes behind. The next one knows them by their names, which hold
what tells a process from every other of this boot: its pid namespace, its number, and when it began.
"""

from __future__ import annotations

import os
from collections.abc import Callable

PREFIX = "fusebackend"


def name(number: int) -> str:
    """A name of this process's; `number` tells one from the other."""
    return f"{PREFIX}-{_identity(os.getpid())}-{number}"


def remove_stale(directory: str, remove: Callable[[str], None]) -> None:
    """Call `remove` for every path in `directory` whose name is that of a process which is gone.

    Those of other pid namespaces are left alone: whether they are gone can't be seen from here.
    """
    namespace = _namespace()
    for entry in os.listdir(directory):
        words = entry.split("-")
        if len(words) != 5 or words[0] != PREFIX or not all(word.isdecimal() for word in words[1:]):
            continue
        if words[1] == namespace and _identity(int(words[2])) != "-".join(words[1:4]):
            remove(os.path.join(directory, entry))


def _identity(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            began = file.read().rpartition(b")")[2].split()[19].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return f"{_namespace()}-{pid}-{began}"


def _namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)
