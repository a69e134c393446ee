"""A directory that is seen at a second path: a bind mount (mount(2), MS_BIND); and what that takes of the C library."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 2, 4, 4096, 16384, 1 << 18, 1 << 19
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8


def bind(source: str, target: str) -> None:
    """Show a directory at another path. What is mounted below it is not seen there.

    Raises:
        OSError: EPERM without CAP_SYS_ADMIN, or another of mount(2).
    """
    mount(source, target, MS_BIND)


def unbind(target: str) -> None:
    """Take a mount away; files that are open below it can be used until they are closed.

    Raises:
        OSError: EINVAL, nothing is mounted there; EPERM, or another of umount(2).
    """
    called("umount2", target, os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW)


def mount(source: str, target: str, flags: int, fstype: str | None = None, data: str | None = None) -> None:
    """mount(2). OSError."""
    words = [None if each is None else os.fsencode(each) for each in (source, target, fstype, data)]
    called("mount", target, *words[:3], ctypes.c_ulong(flags), words[3])


def unshare(flags: int) -> None:
    """unshare(2). OSError."""
    called("unshare", None, flags)


def called(name: str, target: str | None, *arguments: object) -> None:
    """Make a call of the C library. OSError: about `target`, if it is about a path."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


# -- in a namespace of its own ----------------------------------------------------------------------------------
#
# `run_with_bind`: a program in a mount namespace of its own, in which one directory is seen at another's path.
#
# Nothing changes for other processes. A user other than root gets a user namespace as well, with the same user and
# group and no rights beyond theirs: mount(2) asks for CAP_SYS_ADMIN in the namespace (user_namespaces(7)).

NOT_STARTED: Final = 126
"""The exit status when the program could not be started; a shell gives it for a file that can't be run."""


def run_with_bind(words: Sequence[str], *, source: str | None, target: str, cwd: str, no_namespace: str) -> int:
    """Run a program on this terminal, wait for its end, and return its exit status, as of a shell.

    Args:
        words: the program, which is looked for in PATH, and its arguments.
        source: a directory that is seen at `target`; None for none, and no namespace.
        cwd: where it starts; `target` if that is not there.
        no_namespace: the last part of the error where this machine lets the user make no namespace.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()  # unshare(2) of a user namespace is refused to a process with several threads
    if pid == 0:
        try:
            if source is not None:
                _bind(source, target, no_namespace)
            try:
                os.chdir(cwd)
            except OSError:
                os.chdir(target)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and ignored signals are inherited
            os.execvp(words[0], list(words))
        except OSError as error:
            os.write(2, f"Error: '{words[0]}': {error.strerror}\n".encode("utf-8", "surrogateescape"))
        except _NoBind as error:
            os.write(2, f"Error: {error}\n".encode("utf-8", "surrogateescape"))
        finally:
            os._exit(NOT_STARTED)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program on the terminal
    try:
        _, status = os.waitpid(pid, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class _NoBind(Exception):
    """The directory can't be seen at the other path; the text is a line for the user."""


def _bind(source: str, target: str, no_namespace: str) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWNS | (CLONE_NEWUSER if uid else 0))
    except OSError as error:
        raise _NoBind(f"it can't have a mount namespace of its own: {error.strerror}; {no_namespace}") from None
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    # What is mounted and unmounted outside is so here as well, and not the reverse.
    mount("none", "/", MS_REC | MS_SLAVE)
    try:
        bind(source, target)
    except OSError as error:
        raise _NoBind(f"'{source}' can't be mounted on '{target}': {error.strerror}") from None
