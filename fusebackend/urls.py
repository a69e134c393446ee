"""Backend URLs: `scheme:rest?parameter=value&…`, parsed once, and opened.

    sqlite:/data/notes.db      dir:~/project?max_file_size_mb=50      memory:      python:my.module:make_backend

`parse` checks everything that can be checked without opening anything, and makes paths absolute: a server changes its
directory. In a path, `%3F` stands for a question mark, `%25` for a percent sign. `open_backend` opens. `mask` is for
URLs that are shown or logged: it hides passwords and keys.

Other packages add schemes through the entry-point group `fusebackend.backends`: each entry is a `Scheme`, named by its
scheme.

What a URL and a kind of URL are is in `protocol/scheme.py`: backends know those two, and nothing of this module.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections import UserDict
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from fusebackend.base.here import from_here
from fusebackend.protocol.scheme import LIMITS, Parameter, Scheme, Url, UrlError, hide, mask

__all__ = ["Scheme", "Url", "UrlError", "added_schemes", "for_path", "mask", "open_backend", "parse", "scheme_table"]

# -- the schemes -------------------------------------------------------------------------------------------------
#
# The kinds of backend URLs of this package: which class has which. The classes say the rest in `schemes`, and are
# imported when one of their URLs is asked about.


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
    "postgres": "fusebackend.backends.postgres.opening:SCHEMES",
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


# -- parsing and opening -----------------------------------------------------------------------------------------


ENTRY_POINT_GROUP = "fusebackend.backends"

# --------------------------------------------------------------------------------------------------------------
# Parsing
# --------------------------------------------------------------------------------------------------------------

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_NEEDS_ESCAPE = re.compile(r"[%?#\x00-\x20\x7f\udc80-\udcff]")


def parse(text: str, *, base: str | None = None) -> Url:
    """Check a URL without opening anything.

    Args:
        text: the URL.
        base: the directory that relative paths start from; the current one when None.

    Raises:
        UrlError: no or an unknown scheme, an unknown or malformed parameter, or a rest that makes no sense.
    """
    match = _SCHEME.fullmatch(text)
    if match is None:
        forms = ", ".join(scheme.form for scheme in SCHEMES.values())
        raise UrlError(f"'{mask(text)}' has no scheme; write it as one of {forms}")
    name, remainder = match[1].lower(), match[2]
    scheme = _scheme(name, text)
    rest, _, query = remainder.partition("?")
    parameters = _parameters(scheme, name, query)
    if scheme.takes == "nothing":
        if rest:
            raise UrlError(f"'{mask(text)}': nothing may follow '{name}:'")
    elif scheme.takes == "name":
        if rest and not re.fullmatch(r"[\w.-]{1,64}", rest):
            raise UrlError(f"'{mask(text)}': a name has up to 64 letters, digits, '_', '-' and '.'")
    elif not rest:
        raise UrlError(f"'{mask(text)}' is incomplete; write {scheme.form}")
    if scheme.takes != "path":
        return Url(name, rest, parameters, text)
    path = _absolute(os.fsdecode(unquote_to_bytes(rest.encode("utf-8", "surrogateescape"))), text, base)
    return Url(name, path, parameters, f"{name}:{_escape(path)}" + (f"?{query}" if query else ""))


def for_path(name: str, path: str) -> Url:
    """The URL of an absolute path, without parameters."""
    return Url(name, path, {}, f"{name}:{_escape(path)}")


def _escape(path: str) -> str:
    return _NEEDS_ESCAPE.sub(lambda found: "".join(f"%{byte:02X}" for byte in os.fsencode(found[0])), path)


def _scheme(name: str, text: str) -> Scheme:
    if name in SCHEMES:
        return SCHEMES[name]
    added = added_schemes()
    if name not in added:
        known = ", ".join(f"{each}:" for each in (*SCHEMES, *added))
        raise UrlError(f"'{mask(text)}': unknown scheme '{name}:'; {_meant(name)}known: {known}")
    found = added[name]
    if isinstance(found, Exception):
        raise UrlError(f"'{mask(text)}': the package that adds '{name}:' can't be loaded: {found}")
    return found


def _parameters(scheme: Scheme, name: str, query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = (unquote(part) for part in pair.partition("="))
        reads = str if scheme.parameters is None or key in scheme.passed_on else scheme.parameters.get(key)
        if reads is None and key in LIMITS:
            can = ", ".join(f"{other}:" for other, each in SCHEMES.items() if key in (each.parameters or ()))
            raise UrlError(
                f"'{name}:' takes no '{key}': other programs can change what is there, and nothing would refuse them; "
                f"{can} take limits, and a directory has those of its disk (quota)"
            )
        if reads is None:
            known = ", ".join(sorted(scheme.parameters or ())) or "none"
            raise UrlError(f"'{name}:' knows no parameter '{key}'; known: {known}")
        if not equals:
            raise UrlError(f"parameter '{key}' of '{name}:' has no value; write {key}=VALUE")
        if key in values:
            raise UrlError(f"parameter '{key}' of '{name}:' is given twice")
        try:
            values[key] = reads(value)
        except ValueError as error:
            raise UrlError(f"parameter '{key}' of '{name}:' {error}, not '{hide(key, value)}'") from None
    return values


def _absolute(path: str, text: str, base: str | None) -> str:
    if "\0" in path:
        raise UrlError(f"'{mask(text)}': a path can't hold a NUL")
    if path.startswith("//") and not path.startswith("///"):
        raise UrlError(f"'{mask(text)}' names a host; write a path directly after the colon")
    expanded = os.path.expanduser(path)
    return os.path.normpath("/" + from_here(os.path.join(base or "", expanded)).lstrip("/"))


_ALSO_CALLED = {
    "postgresql": "postgres", "pg": "postgres", "file": "dir", "directory": "dir", "local": "dir", "mem": "memory",
    "sqlite3": "sqlite", "gcs": "gs", "azure": "az", "abfs": "az", "store": "store+sqlite", "threads": "threads+sqlite",
}  # fmt: skip
"""Names that other programs give what has another name here."""


def _meant(name: str) -> str:
    """A known scheme that the user may have meant, as the beginning of a list of known ones."""
    close = [_ALSO_CALLED[name]] if name in _ALSO_CALLED else difflib.get_close_matches(name, SCHEMES, 1)
    return f"did you mean '{SCHEMES[close[0]].form}'? " if close else ""


def added_schemes() -> dict[str, Scheme | Exception]:
    """Schemes of other packages by name; an exception stands for a scheme that could not be loaded."""
    from importlib.metadata import entry_points

    found: dict[str, Scheme | Exception] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name in SCHEMES:
            continue
        try:
            scheme = entry.load()
            if not isinstance(scheme, Scheme):
                raise TypeError(f"{entry.value} is no fusebackend.urls.Scheme")
            found[entry.name] = scheme
        except Exception as error:  # other people's code: it must not take the command down with it
            found[entry.name] = error
    return found


# --------------------------------------------------------------------------------------------------------------
# Opening
# --------------------------------------------------------------------------------------------------------------


def open_backend(url: str | Url) -> Any:
    """The backend of a URL.

    Raises:
        UrlError: as `parse`; or its file or server does not exist or can't be used.
        OSError: the backend's own error for its file or directory.
    """
    parsed = parse(url) if isinstance(url, str) else url
    return _scheme(parsed.scheme, parsed.text).open(parsed)


def scheme_table() -> dict[str, Scheme | Exception]:
    """Every scheme that can be used here, ours first; an exception stands for a scheme that can't be loaded."""
    return {**SCHEMES, **added_schemes()}
