"""The backends of a configuration; and the table of all checks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fusebackend import urls
from fusebackend.config import MountPlan
from fusebackend.databases.postgres import conninfo_of
from fusebackend.doctor import machine
from fusebackend.doctor.machine import Check, Finding, error, found_by, ok, warning, writable
from fusebackend.protocol.scheme import Url, UrlError, require_modules
from fusebackend.urls import open_backend

CONNECT_S = 5
"""How long a database may take to accept a connection."""

SQLITE_MAGIC = b"SQLite format 3\0"


def route(prefix: str, url: Url) -> Iterable[Finding]:
    """Check one route."""
    what = f"route {prefix if prefix == '/' else prefix + '/'} ({url.masked})"
    check = _CHECKS.get(url.scheme)
    if check is None:
        return [ok(what, "not looked at: it is code of its own")]
    try:
        return check(what, url)
    except UrlError as failure:
        return [error(what, str(failure), _mend_of(str(failure)))]


def _mend_of(said: str, otherwise: str = "correct the URL, or make what it names") -> str:
    """The command in an error that names one."""
    _, colon, command = said.rpartition(": pip install")
    return f"pip install{command}" if colon else otherwise


def _nothing(what: str, url: Url) -> Iterable[Finding]:
    return [ok(what, "needs nothing")]


def _file(what: str, url: Url) -> Iterable[Finding]:
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
    try:
        head = os.pread(fd, len(SQLITE_MAGIC), 0)
        if head and head != SQLITE_MAGIC:
            return [error(what, f"'{path}' is no SQLite file", "choose another path")]
        if url.scheme == "sqlite" and _is_locked(fd):
            why = f"'{path}' is in use by another fusebackend"
            return [warning(what, why, "'fusebackend status' shows what is mounted; unmount that first")]
    finally:
        os.close(fd)
    return [room if room.verdict != "ok" else ok(what, "the file can be used")]


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _directory(what: str, url: Url) -> Iterable[Finding]:
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


def _postgres(what: str, url: Url) -> Iterable[Finding]:
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


def _listed(what: str, url: Url) -> Iterable[Finding]:
    """A bucket answers a listing of its root."""
    mend = "see whether the endpoint is reachable, the bucket is there, and the credentials are those of its user"
    try:
        backend = open_backend(url)
    except UrlError as failure:
        return [error(what, str(failure), _mend_of(str(failure), mend))]
    try:
        said = backend.ls("/").error
    finally:
        backend.close()
    return [ok(what, "the bucket answers") if said is None else error(what, said, mend)]


def _docker(what: str, url: Url) -> Iterable[Finding]:
    """An engine answers. No container is made."""
    from fusebackend.backends.sandbox.docker_exec import connect

    try:
        connect().close()
    except OSError as failure:
        mend = "pip install 'fusebackend[docker]'" if "pip install" in str(failure) else "start it, or set DOCKER_HOST"
        return [error(what, failure.strerror or str(failure), mend)]
    return [ok(what, "the Docker engine answers")]


_CHECKS: dict[str, Callable[[str, Url], Iterable[Finding]]] = {
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
#
# The table of checks.


def _checks(plan: MountPlan | None) -> Iterator[tuple[str, Check]]:
    """What is looked at, and by which check."""
    yield machine.DEVICE, machine.device
    yield "libfuse3", machine.library
    yield "fusermount3", machine.fusermount
    yield "allow_other", machine.allow_other
    yield "mount(2)", machine.mounting
    yield "user namespaces", machine.user_namespaces
    yield "AppArmor and seccomp", machine.confinement
    yield "propagation", partial(machine.propagation, None if plan is None else plan.mountpoint)
    yield "bubblewrap", partial(machine.sandbox, plan is None or plan.settings.shell.sandbox != "none")
    yield "control groups", machine.limits
    yield "programs", machine.programs
    yield "locale", machine.locale
    yield "directories", machine.directories
    yield "extras", machine.extras
    if plan is not None:
        for prefix, text in plan.urls.items():
            url = urls.parse(text)
            yield f"route {prefix} ({url.masked})", partial(route, prefix, url)


def diagnose(plan: MountPlan | None) -> Iterator[Finding]:
    """Yield what all checks find, in their order.

    Args:
        plan: what is to be mounted; its routes are looked at as well. None for this machine alone.
    """
    for what, check in _checks(plan):
        yield from found_by(what, check)
