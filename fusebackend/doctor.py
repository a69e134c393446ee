"""`fusebackend doctor`: what this machine lacks for a mount, and how to mend it. Nothing is changed by a check.

A check gives `Finding`s: a verdict, why, and the mend. One that fails, or takes too long, is a finding, too. `diagnose`
makes all of them: of what this machine lets a process have (FUSE, namespaces, programs, places, packages), and of the
backends of a configuration.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from fusebackend import urls
from fusebackend.base import xdg
from fusebackend.base.context import closing_fd
from fusebackend.base.deadline import GivenUp, within
from fusebackend.base.extras import EXTRA_OF, is_installed
from fusebackend.base.paths import ROOT
from fusebackend.config import MountPlan
from fusebackend.databases.dsn import conninfo_of
from fusebackend.linux import mount_table as table
from fusebackend.linux import proc, runtime_directory
from fusebackend.linux.bind_mount import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    mount,
    unbind,
    unshare,
)
from fusebackend.linux.distribution import install, install_everything
from fusebackend.linux.mount_point import FUSE_DEVICE, user_allow_other
from fusebackend.protocol.scheme import Url, UrlError, mask, require_modules
from fusebackend.shell import bubblewrap, seccomp
from fusebackend.shell.cgroups import ControlGroups
from fusebackend.urls import open_backend

Verdict: TypeAlias = Literal["ok", "warning", "error"]

PATIENCE_S = 20.0
"""How long a check may take."""


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        what: the thing that was looked at, such as `/dev/fuse`.
        verdict: `error` if mounts, or the routes of a configuration, can't work; `warning` if a part of it can't.
        why: what was found.
        mend: a command, or what is to be changed; empty where all is well.
    """

    what: str
    verdict: Verdict
    why: str
    mend: str = ""


Check: TypeAlias = Callable[[str], Iterable[Finding]]
"""Looks at one thing. It is given the name of that, for its findings."""


def ok(what: str, why: str) -> Finding:
    return Finding(what, "ok", why)


def warning(what: str, why: str, mend: str) -> Finding:
    return Finding(what, "warning", why, mend)


def error(what: str, why: str, mend: str) -> Finding:
    return Finding(what, "error", why, mend)


def found_by(what: str, check: Check) -> list[Finding]:
    """Run a check, and return what it finds. One that fails, or takes too long, is an error of its own.

    Args:
        what: what the check looks at.
    """
    try:
        return within(PATIENCE_S, lambda: list(check(what)))
    except GivenUp:
        return [
            error(what, f"no answer within {PATIENCE_S:.0f} s", "see whether it hangs, or the network drops packets")
        ]
    except Exception as failure:  # a defect of a check, or of what it asks, is worth a line, not a traceback
        text = mask(" ".join(f"{type(failure).__name__}: {failure}".split()))
        return [error(what, f"it can't be checked: {text}", "see whether that error has a cause here")]


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict; `ok` of none."""
    verdicts = {each.verdict for each in findings}
    return "error" if "error" in verdicts else "warning" if "warning" in verdicts else "ok"


# -- process ----------------------------------------------------------------------------------------------------
#
# What the kernel says of this process: its confinement. And trials in a child, which leaves nothing behind.


def has_filter() -> bool:
    """Return True if a filter of seccomp confines this process."""
    return proc.status(os.getpid()).get(b"Seccomp", [b"0"]) != [b"0"]


def confined_by() -> str | None:
    """Return the AppArmor profile that confines this process, such as `docker-default`; None if none does."""
    for path in ("/proc/self/attr/apparmor/current", "/proc/self/attr/current"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            said = file.read().strip("\0\n ")
            if said.endswith("(enforce)"):
                return said.removesuffix("(enforce)").strip()
    return None


def in_child(attempt: Callable[[], None]) -> int:
    """Return the error number of an attempt in a child of this process; 0 if it succeeds."""
    pid = os.fork()
    if pid == 0:
        number = 255
        try:
            attempt()
            number = 0
        except OSError as failure:
            number = failure.errno or 255
        finally:
            os._exit(number)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 255


# -- fuse -------------------------------------------------------------------------------------------------------
#
# Whether this process can mount a FUSE file system.


DEVICE = "/dev/fuse"

INSTEAD = "or do without a mount: 'fusebackend serve'"


def device(what: str) -> Iterable[Finding]:
    """/dev/fuse is there, is the device, and can be opened."""
    try:
        status = os.stat(DEVICE)
    except FileNotFoundError:
        mend = f"modprobe fuse; for a container: --device {DEVICE} --cap-add SYS_ADMIN; {INSTEAD}"
        return [error(what, "it is not there", mend)]
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != FUSE_DEVICE:
        return [error(what, "it is not the FUSE device", f"rm {DEVICE} && mknod -m 666 {DEVICE} c 10 229, as root")]
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except PermissionError as failure:
        if failure.errno == errno.EACCES and not os.access(DEVICE, os.R_OK | os.W_OK):
            return [error(what, "it is not open to this user", f"chmod a+rw {DEVICE}, as root")]
        why = "it can't be opened: the container's device rules, or a mount with nodev, forbid it"
        return [error(what, why, f"--device {DEVICE} for the container; {INSTEAD}")]
    except OSError as failure:
        return [error(what, f"it can't be opened: {failure.strerror}", f"modprobe fuse; {INSTEAD}")]
    return [ok(what, "can be opened")]


def library(what: str) -> Iterable[Finding]:
    """pyfuse3 can be imported, and with it libfuse3."""
    try:
        importlib.import_module("pyfuse3")
    except ImportError as failure:
        is_compiled = "libfuse" in str(failure)
        mend = install("libfuse3") if is_compiled else f"{install_everything()}; then pip install pyfuse3"
        return [error(what, f"pyfuse3 can't be imported: {failure}", f"{mend}; {INSTEAD}")]
    return [ok(what, "pyfuse3 can be imported")]


def fusermount(what: str) -> Iterable[Finding]:
    """fusermount3 is there for users other than root, and has their rights."""
    program = shutil.which("fusermount3")
    is_root = os.geteuid() == 0
    if program is None:
        why = "it is not installed" + (": root mounts without it" if is_root else ", and only root mounts without it")
        return [(warning if is_root else error)(what, why, install("fusermount3"))]
    status = os.stat(program)
    if not is_root and not (status.st_mode & stat.S_ISUID and status.st_uid == 0):
        return [error(what, f"{program} is not setuid root", f"chown root {program} && chmod 4755 {program}, as root")]
    if not is_root and proc.status(os.getpid()).get(b"NoNewPrivs") == [b"1"]:
        why = "this process and its children gain no privileges (no_new_privs), so its setuid bit has no effect"
        return [error(what, why, "start without --security-opt no-new-privileges, or NoNewPrivileges=yes")]
    return [ok(what, program)]


def allow_other(what: str) -> Iterable[Finding]:
    """Other users can be let in."""
    if os.geteuid() == 0 or user_allow_other():
        return [ok(what, "other users can be let in")]
    mend = "echo user_allow_other >> /etc/fuse.conf, as root, if others are to be let in"
    return [warning(what, "/etc/fuse.conf has no line 'user_allow_other': only this user sees a mount", mend)]


def mounting(what: str) -> Iterable[Finding]:
    """The kernel lets root mount: tried in a mount namespace that ends at once."""
    if os.geteuid() != 0:
        return [ok(what, "left to fusermount3")]
    if not os.path.exists(DEVICE):
        return []
    with tempfile.TemporaryDirectory(prefix="fusebackend-doctor-") as directory:
        number = in_child(lambda: _try_mount(directory))
    if number == 0:
        return [ok(what, "a FUSE file system can be mounted")]
    profile = confined_by()
    because = f" (AppArmor profile '{profile}')" if profile else ""
    mend = "--cap-add SYS_ADMIN" + (" --security-opt apparmor=unconfined" if profile else "")
    why = f"the kernel refuses: {os.strerror(number)}{because}"
    return [error(what, why, f"for a container: {mend}; {INSTEAD}")]


def _try_mount(directory: str) -> None:
    """Mount in a namespace of this process's own. OSError."""
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    unshare(CLONE_NEWNS)
    try:
        mount("none", "/", MS_REC | MS_PRIVATE)
        is_private = True
    except OSError as failure:
        if failure.errno != errno.EINVAL:  # '/' is no mount point, in a plain chroot
            raise
        is_private = False
    options = f"fd={fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
    mount("fusebackend-doctor", directory, MS_NOSUID | MS_NODEV, "fuse", options)
    if not is_private:  # other namespaces may see the mount, and its end
        unbind(directory)


# -- namespaces -------------------------------------------------------------------------------------------------
#
# What the kernel and a container let this process have.


_SETTINGS = (
    ("user/max_user_namespaces", 10000),
    ("kernel/unprivileged_userns_clone", 1),
    ("kernel/apparmor_restrict_unprivileged_userns", 0),
)
"""Below /proc/sys: a setting, and a value that does not forbid user namespaces. It is forbidden by 0 in the first two,
by 1 in the last."""


def user_namespaces(what: str) -> Iterable[Finding]:
    """A process may make a user namespace: what confines commands of users other than root needs one."""
    number = in_child(lambda: unshare(CLONE_NEWUSER))
    forbids = [
        f"sysctl -w {name.replace('/', '.')}={value}" for name, value in _SETTINGS if _setting(name) == (not value)
    ]
    if number == 0 and (os.geteuid() == 0 or not forbids):
        return [ok(what, "can be made")]
    why = f"none can be made: {os.strerror(number)}" if number else "one has no rights here"
    mend = "; ".join(forbids) + ", as root" if forbids else "start the container with another seccomp profile"
    return [warning(what, f"{why}: no sandbox for commands, and no 'shell --branch', but as root", mend)]


def _setting(name: str) -> bool | None:
    """Return whether a setting is on; None without it."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/sys/{name}", encoding="ascii") as file:
        return int(file.read()) != 0
    return None


def apparmor(what: str) -> Iterable[Finding]:
    """No profile of AppArmor confines this process, as one does in most containers."""
    profile = confined_by()
    if profile is None:
        return [ok(what, "no profile confines this process")]
    why = f"profile '{profile}' confines this process, and those of containers refuse mounts"
    return [warning(what, why, "--security-opt apparmor=unconfined for the container, if mounting is refused")]


def system_calls(what: str) -> Iterable[Finding]:
    """No filter of seccomp confines this process, as one does in most containers."""
    if not has_filter():
        return [ok(what, "no filter confines this process")]
    why = "a filter confines this process, and that of a container refuses mounts without CAP_SYS_ADMIN"
    return [warning(what, why, "--cap-add SYS_ADMIN for the container, if mounting is refused")]


def propagation(mountpoint: str | None, what: str) -> Iterable[Finding]:
    """Whether a mount made here is seen in other mount namespaces: on the host of a container, and the reverse."""
    path = table.resolve(mountpoint or "/")
    inner = table.mount_of(path, table.mounts())
    if inner is None:  # in a plain chroot, whose root directory is no mount
        why = f"no mount that this process sees holds '{path}': its root directory is not a mount"
        return [warning(what, why, "bind the root directory onto itself before chroot, or use a container")]
    if inner.is_shared:
        return [ok(what, f"'{inner.mountpoint}' is shared: mounts below it are seen in other namespaces")]
    bound = "DIR" if inner.mountpoint == "/" else inner.mountpoint
    mend = f"mount --make-rshared {inner.mountpoint}; for a container: -v HOST_DIR:{bound}:rshared"
    why = f"'{inner.mountpoint}' is not shared: mounts below it are seen in this mount namespace alone"
    return [warning(what, why, f"{mend}, if others are to see them")]


# -- commands ---------------------------------------------------------------------------------------------------
#
# What commands of a mount need, and the programs that make searches and merges better.


_UNCONFINED = 'or sandbox = "none" in [execute], which confines nothing'


def sandbox(is_wanted: bool, what: str) -> Iterable[Finding]:
    """bubblewrap is there, and works.

    Args:
        is_wanted: False where the configuration has no sandbox.
    """
    if not is_wanted:
        return [ok(what, 'not needed: sandbox = "none"')]
    program = bubblewrap.where()
    if program is None:
        why = "it is not installed: commands (exec) are refused"
        return [warning(what, why, f"{install('bubblewrap')}; {_UNCONFINED}")]
    try:
        words = bubblewrap.user_namespace(program)
    except bubblewrap.SandboxError as failure:
        why = f"it can make no sandbox here, so commands (exec) are refused: {failure}"
        mend = "allow user namespaces, or run as root"
        if has_filter():
            mend = "for a container: --cap-add SYS_ADMIN --security-opt seccomp=unconfined"
        return [warning(what, why, f"{mend}; {_UNCONFINED}")]
    refusal = bubblewrap.trial([program, *words, "--unshare-net"])
    if refusal is None:
        found = [ok(what, program)]
    else:
        why = f"it can make no sandbox without a network, so commands (exec) are refused: {refusal}"
        found = [warning(what, why, "for a container: --cap-add NET_ADMIN; or network = true in [execute]")]
    if seccomp.program() is None:
        found.append(warning("seccomp filter", "none is known for this machine's architecture", "no mend: report it"))
    return found


def limits(what: str) -> Iterable[Finding]:
    """Control groups limit the memory and the processes of commands."""
    groups = ControlGroups.of_this_process()
    lacking = [name for name in ("memory", "pids") if groups.version_for(name) is None]
    if not lacking:
        return [ok(what, "limit memory and processes of commands")]
    why = f"none for {' and '.join(lacking)}: each process of a command has limits of its own, all together have none"
    mend = "a systemd unit: Delegate=yes; a container: mount /sys/fs/cgroup writable, or run as root"
    return [warning(what, why, mend)]


def program(name: str, lack: str, what: str) -> Iterable[Finding]:
    """A program is there.

    Args:
        lack: what is not done, or not as well, without it.
    """
    where = shutil.which(name)
    return [warning(what, f"it is not installed: {lack}", install(what)) if where is None else ok(what, where)]


# -- places -----------------------------------------------------------------------------------------------------
#
# The directories that a server keeps things in, and the locale.


LITTLE_BYTES = 512 << 20
"""Less free space than this is worth a warning."""

NONE_BYTES = 16 << 20
"""With less, a server can keep nothing."""


def kept(variable: str, holds: str, what: str) -> Iterable[Finding]:
    """A directory for what `holds` says can be written, and has room."""
    return [writable(what, xdg.path(variable), f"{holds}; set {variable} to another place")]


def sockets(what: str) -> Iterable[Finding]:
    """The runtime directory is the user's own."""
    try:
        return [ok(what, runtime_directory.directory())]
    except OSError as failure:
        mend = "set XDG_RUNTIME_DIR to a directory of this user's with mode 0700"
        return [error(what, f"no place for sockets: {failure.strerror or failure}", mend)]


def writable(what: str, path: str, mend: str) -> Finding:
    """Check that files can be made in a directory, or in the nearest one above that is there, and that there is room.

    Args:
        mend: what is kept there, and what else can be done.
    """
    place = path
    while not os.path.lexists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return error(what, f"'{place}' is no directory", mend)
    about = os.statvfs(place)
    if about.f_flag & os.ST_RDONLY:
        return error(what, f"'{path}' is on a file system that is mounted read-only", mend)
    if not os.access(place, os.W_OK | os.X_OK):
        return error(what, f"'{place}' can't be written by this user", mend)
    free = about.f_bavail * about.f_frsize
    room = f"{free >> 20:,} MiB are free on '{place}'"
    if free < NONE_BYTES or (about.f_files and not about.f_favail):
        return error(what, room if about.f_favail or not about.f_files else f"no inodes are free on '{place}'", mend)
    return warning(what, room, mend) if free < LITTLE_BYTES else ok(what, f"{path}; {room}")


def locale(what: str) -> Iterable[Finding]:
    """Names and texts are UTF-8."""
    encoding = sys.getfilesystemencoding().lower().replace("_", "-")
    if encoding == "utf-8":
        return [ok(what, "UTF-8")]
    return [warning(what, f"names of files are read as {encoding}, not as UTF-8", "export LC_ALL=C.UTF-8")]


# -- packages ---------------------------------------------------------------------------------------------------
#
# Python packages of the extras.


def extras(what: str) -> Iterable[Finding]:
    """Say which extras are installed. A route that needs one that is missing says so itself."""
    missing = sorted({extra for module, extra in EXTRA_OF.items() if not is_installed(module)})
    have = sorted(set(EXTRA_OF.values()) - set(missing))
    lines = [f"installed: {', '.join(have) or 'none'}"]
    if missing:
        lines.append(f"not installed: {', '.join(missing)} (pip install 'fusebackend[NAME]')")
    return [ok(what, "; ".join(lines))]


# -- routes ------------------------------------------------------------------------------------------------------
#
# The backends of a configuration.


CONNECT_S = 5
"""How long a database may take to accept a connection."""

SQLITE_MAGIC = b"SQLite format 3\0"


def route(url: Url, what: str) -> Iterable[Finding]:
    """Check one route."""
    check = _CHECKS.get(url.scheme)
    if check is None:
        return [ok(what, "not looked at: it is code of its own")]
    try:
        return check(url, what)
    except UrlError as failure:
        return [error(what, str(failure), _mend_of(str(failure)))]


def _mend_of(said: str, otherwise: str = "correct the URL, or make what it names") -> str:
    """The command in an error that names one."""
    _, colon, command = said.rpartition(": pip install")
    return f"pip install{command}" if colon else otherwise


def _nothing(url: Url, what: str) -> Iterable[Finding]:
    return [ok(what, "needs nothing")]


def _file(url: Url, what: str) -> Iterable[Finding]:
    """A file of SQLite: of that kind, to be written, and in use by nobody else if it is a volume."""
    path, directory = url.rest, os.path.dirname(url.rest)
    if not os.path.isdir(directory):
        return [error(what, f"there is no directory '{directory}'", f"mkdir -p {directory}")]
    room = writable(what, directory, "choose another directory")
    if room.verdict == "error":
        return [room]
    if not os.path.exists(path):
        if url.scheme == "threads+sqlite":
            return [error(what, f"there is no file '{path}'", "give the file that LangGraph's SqliteSaver writes")]
        return [room if room.verdict != "ok" else ok(what, "the file will be made")]
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as failure:
        return [error(what, f"'{path}' can't be written: {failure.strerror}", f"chmod u+rw {path}, or another user")]
    with closing_fd(fd):
        head = os.pread(fd, len(SQLITE_MAGIC), 0)
        if head and head != SQLITE_MAGIC:
            return [error(what, f"'{path}' is no SQLite file", "choose another path")]
        if url.scheme == "sqlite" and _is_locked(fd):
            why = f"'{path}' is in use by another fusebackend"
            return [warning(what, why, "'fusebackend status' shows what is mounted; unmount that first")]
    return [room if room.verdict != "ok" else ok(what, "the file can be used")]


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _directory(url: Url, what: str) -> Iterable[Finding]:
    path = url.rest
    if not os.path.exists(path):
        return [error(what, f"there is no directory '{path}'", f"mkdir -p {path}")]
    if not os.path.isdir(path):
        return [error(what, f"'{path}' is not a directory", "choose another path")]
    if not os.access(path, os.R_OK | os.X_OK):
        return [error(what, f"'{path}' can't be read by this user", f"chmod u+rx {path}, or another user")]
    if not os.access(path, os.W_OK):
        return [warning(what, f"'{path}' can't be written by this user: the route is read-only", f"chmod u+w {path}")]
    return [ok(what, "the directory can be read and written")]


def _postgres(url: Url, what: str) -> Iterable[Finding]:
    """A server of PostgreSQL lets this user in."""
    require_modules(url, "langgraph" if "+" in url.scheme else "postgres", "psycopg")
    import psycopg

    try:
        with psycopg.connect(conninfo_of(url), connect_timeout=CONNECT_S) as connection:
            version = connection.info.server_version
    except psycopg.Error as failure:
        why = " ".join(str(failure).split())
        return [error(what, f"the database does not answer: {_hidden(why, url)}", "start it, or correct the DSN")]
    return [ok(what, f"PostgreSQL {version // 10000} answers")]


def _hidden(text: str, url: Url) -> str:
    """Return libpq's words without a password that they may quote."""
    from psycopg.conninfo import conninfo_to_dict

    secret = str(conninfo_to_dict(conninfo_of(url)).get("password") or "")
    return text.replace(secret, "***") if secret else text


def _listed(url: Url, what: str) -> Iterable[Finding]:
    """A bucket answers a listing of its root."""
    mend = "see whether the endpoint is reachable, the bucket is there, and the credentials are those of its user"
    try:
        backend = open_backend(url)
    except UrlError as failure:
        return [error(what, str(failure), _mend_of(str(failure), mend))]
    with contextlib.closing(backend):
        said = backend.ls("/").error
    return [ok(what, "the bucket answers") if said is None else error(what, said, mend)]


def _docker(url: Url, what: str) -> Iterable[Finding]:
    """An engine answers. No container is made."""
    from fusebackend.backends.sandbox.docker_exec import connect

    try:
        connect().close()
    except OSError as failure:
        said = failure.strerror or str(failure)
        return [error(what, said, _mend_of(said, "start it, or set DOCKER_HOST"))]
    return [ok(what, "the Docker engine answers")]


_CHECKS: dict[str, Callable[[Url, str], Iterable[Finding]]] = {
    "sqlite": _file,
    "store+sqlite": _file,
    "threads+sqlite": _file,
    "memory": _nothing,
    "state": _nothing,
    "dir": _directory,
    "shell": _directory,
    "postgres": _postgres,
    "store+postgres": _postgres,
    "threads+postgres": _postgres,
    "s3": _listed,
    "gs": _listed,
    "az": _listed,
    "docker": _docker,
}
"""By scheme. Others are code of others, which is not run."""


# -- all checks -------------------------------------------------------------------------------------------------


def diagnose(plan: MountPlan | None) -> Iterator[Finding]:
    """Yield what all checks find, in their order.

    Args:
        plan: what is to be mounted; its routes are looked at as well. None for this machine alone.
    """
    checks: dict[str, Check] = {
        DEVICE: device,
        "libfuse3": library,
        "fusermount3": fusermount,
        "allow_other": allow_other,
        "mount(2)": mounting,
        "user namespaces": user_namespaces,
        "AppArmor": apparmor,
        "seccomp": system_calls,
        "propagation": partial(propagation, None if plan is None else plan.mountpoint),
        "bubblewrap": partial(sandbox, plan is None or plan.settings.shell.sandbox != "none"),
        "control groups": limits,
        "ripgrep": partial(program, "rg", "grep of dir: routes reads each file in Python"),
        "git": partial(program, "git", "lines can't be merged: undo --merge-lines, branch merge --merge-lines"),
        "locale": locale,
        "data directory": partial(kept, "XDG_DATA_HOME", "the embedded default, and branches"),
        "state directory": partial(kept, "XDG_STATE_HOME", "logs and histories"),
        "runtime directory": sockets,
        "extras": extras,
    }
    for prefix, text in (plan.urls if plan is not None else {}).items():
        url = urls.parse(text)
        checks[f"route {prefix if prefix == ROOT else prefix + '/'} ({url.masked})"] = partial(route, url)
    for what, check in checks.items():
        yield from found_by(what, check)
