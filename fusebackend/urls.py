"""Backend URLs: `scheme:rest?parameter=value&…`, parsed once, and what opens them.

    sqlite:/data/notes.db      dir:~/project?max_file_size_mb=50      memory:      python:my.module:make_backend

`parse` checks everything that can be checked without opening anything, and makes paths absolute: a server changes its
directory. In a path, `%3F` stands for a question mark, `%25` for a percent sign. `open_backend` opens. `mask` is for
whatever is shown or logged: it hides passwords and keys.

Other packages add schemes through the entry-point group `fusebackend.backends`: each entry is a `Scheme`, named by its
scheme.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, unquote_to_bytes

from fusebackend.protocol import Features

ENTRY_POINT_GROUP = "fusebackend.backends"

NOT_YET = (
    "postgres", "s3", "docker", "store+sqlite", "store+postgres", "threads+sqlite", "threads+postgres", "overlay",
)  # fmt: skip
"""Schemes that are planned; asking for one says so."""


class UrlError(ValueError):
    """A URL that can't be used. `str` of it is one line for the user, with passwords masked."""


@dataclass(frozen=True)
class Url:
    """A URL that `parse` has passed: the scheme is known, the path absolute, the parameters checked."""

    scheme: str
    rest: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """The same as one string that `parse` takes anywhere. It may hold a password: show `masked`."""

    @property
    def masked(self) -> str:
        return mask(self.text)

    @property
    def path(self) -> str | None:
        """Where on this machine it keeps its files, when that is a path."""
        return self.rest if self.rest.startswith("/") and not self.rest.startswith("//") else None


@dataclass(frozen=True)
class Scheme:
    """One kind of URL.

    `takes` says what follows the colon: a `path` (made absolute), `nothing`, or `text` that `open` understands.
    `parameters` maps the names that may follow `?` to what reads their values, raising ValueError with a text such as
    `must be a number`; None passes every parameter on as text. `features` are those of its volume where they don't
    depend on the URL.
    """

    form: str
    summary: str
    open: Callable[[Url], Any]
    takes: Literal["path", "nothing", "text"] = "text"
    parameters: Mapping[str, Callable[[str], Any]] | None = field(default_factory=dict)
    features: Features | None = None
    execute: bool = False


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
        raise UrlError(f"'{mask(text)}' has no scheme; write it as one of {_known_forms()}")
    name, remainder = match[1].lower(), match[2]
    scheme = _scheme(name, text)
    rest, _, query = remainder.partition("?")
    parameters = _parameters(scheme, name, query)
    if scheme.takes == "nothing":
        if rest:
            raise UrlError(f"'{mask(text)}': nothing may follow '{name}:'")
    elif not rest:
        raise UrlError(f"'{mask(text)}' is incomplete; write {scheme.form}")
    if scheme.takes != "path":
        return Url(name, rest, parameters, text)
    path = _absolute(_unquote(rest), text, base)
    return Url(name, path, parameters, f"{name}:{_escape(path)}" + (f"?{query}" if query else ""))


def for_path(name: str, path: str) -> Url:
    """The URL of an absolute path, without parameters."""
    return Url(name, path, {}, f"{name}:{_escape(path)}")


def _escape(path: str) -> str:
    return _NEEDS_ESCAPE.sub(lambda found: "".join(f"%{byte:02X}" for byte in os.fsencode(found[0])), path)


def _scheme(name: str, text: str) -> Scheme:
    if name in SCHEMES:
        return SCHEMES[name]
    if name in NOT_YET:
        raise UrlError(f"'{mask(text)}': '{name}:' is not available in this version; known: {_known_names()}")
    added = added_schemes()
    if name not in added:
        raise UrlError(f"'{mask(text)}': unknown scheme '{name}:'; known: {_known_names()}")
    found = added[name]
    if isinstance(found, Exception):
        raise UrlError(f"'{mask(text)}': the package that adds '{name}:' can't be loaded: {found}")
    return found


def _parameters(scheme: Scheme, name: str, query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = (unquote(part) for part in pair.partition("="))
        if scheme.parameters is not None and key not in scheme.parameters:
            known = ", ".join(sorted(scheme.parameters)) or "none"
            raise UrlError(f"'{name}:' knows no parameter '{key}'; known: {known}")
        if not equals:
            raise UrlError(f"parameter '{key}' of '{name}:' has no value; write {key}=VALUE")
        if key in values:
            raise UrlError(f"parameter '{key}' of '{name}:' is given twice")
        try:
            values[key] = value if scheme.parameters is None else scheme.parameters[key](value)
        except ValueError as error:
            raise UrlError(f"parameter '{key}' of '{name}:' {error}, not '{_hide(key, value)}'") from None
    return values


def _unquote(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text.encode("utf-8", "surrogateescape")))


def _absolute(path: str, text: str, base: str | None) -> str:
    if "\0" in path:
        raise UrlError(f"'{mask(text)}': a path can't hold a NUL")
    if path.startswith("//") and not path.startswith("///"):
        raise UrlError(f"'{mask(text)}' names a host; write a path directly after the colon")
    expanded = os.path.expanduser(path)
    return os.path.normpath("/" + os.path.join(base or os.getcwd(), expanded).lstrip("/"))


def _known_forms() -> str:
    return ", ".join(scheme.form for scheme in SCHEMES.values())


def _known_names() -> str:
    return ", ".join(f"{name}:" for name in (*SCHEMES, *added_schemes()))


def added_schemes() -> dict[str, Scheme | Exception]:
    """Schemes of other packages by name; an exception stands for one that could not be loaded."""
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
# Masking
# --------------------------------------------------------------------------------------------------------------

_AUTHORITY = re.compile(r"(//[^/:@\s?]*):[^\s]*@")
_ASSIGNMENT = re.compile(r"([^&?\s=]+)(\s*=\s*)('(?:[^'\\]|\\.)*'?|[^&\s]*)")
_SECRET = re.compile(r"pass|pwd|secret|token|key|cred|auth|signature|^sas$|^sig$", re.IGNORECASE)


def mask(text: str) -> str:
    """`text` with `***` for every password: `//user:***@host`, and the values of secret parameters and libpq words.

    When in doubt it hides too much: from the first `:` after `//` to the last `@`, for a password may hold an
    unescaped `@`, `/` or `?`.
    """
    hidden = _AUTHORITY.sub(r"\1:***@", text)
    return _ASSIGNMENT.sub(lambda found: found[1] + found[2] + _hide(unquote(found[1]), found[3]), hidden)


def _hide(key: str, value: str) -> str:
    return "***" if value and _SECRET.search(key) else value


# --------------------------------------------------------------------------------------------------------------
# Opening
# --------------------------------------------------------------------------------------------------------------


def open_backend(url: str | Url) -> Any:
    """The backend of a URL.

    Raises:
        UrlError: as `parse`; or what it names does not exist or can't be used.
        OSError: the backend's own words for what is wrong with its file or directory.
    """
    parsed = parse(url) if isinstance(url, str) else url
    return _scheme(parsed.scheme, parsed.text).open(parsed)


def _open_sqlite(url: Url) -> Any:
    from fusebackend.backends.sqlite import SqliteBackend

    parent = os.path.dirname(url.rest)
    if not os.path.isdir(parent):
        raise UrlError(f"'{url.masked}': there is no directory '{parent}'")
    return SqliteBackend(url.rest, **url.parameters)


def _open_memory(url: Url) -> Any:
    from fusebackend.backends.memory import InMemoryBackend

    return InMemoryBackend(**url.parameters)


def _open_directory(url: Url) -> Any:
    directory = _directory(url)
    from fusebackend.backends.filesystem import FilesystemBackend

    return FilesystemBackend(directory, virtual_mode=True, **url.parameters)


def _open_shell(url: Url) -> Any:
    directory = _directory(url)
    from fusebackend.backends.local_shell import LocalShellBackend

    return LocalShellBackend(directory, virtual_mode=True, **url.parameters)


def _directory(url: Url) -> str:
    if not os.path.exists(url.rest):
        raise UrlError(f"'{url.masked}': there is no directory '{url.rest}'")
    if not os.path.isdir(url.rest):
        raise UrlError(f"'{url.masked}': '{url.rest}' is not a directory")
    return url.rest


def _open_state(url: Url) -> Any:
    from fusebackend.backends.state import StateBackend

    return StateBackend(**url.parameters)


def _open_python(url: Url) -> Any:
    """Import `package.module`, also from the current directory, and call its `callable` with the parameters."""
    import importlib

    from fusebackend.dialect import has_agent_face

    module_name, colon, attribute = url.rest.partition(":")
    if not colon or not module_name or not attribute:
        raise UrlError(f"'{url.masked}' is incomplete; write {SCHEMES['python'].form}")
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
    return made


# --------------------------------------------------------------------------------------------------------------
# The schemes of this package
# --------------------------------------------------------------------------------------------------------------


def _on_exists(value: str) -> str:
    if value not in ("error", "replace"):
        raise ValueError("must be 'error' or 'replace'")
    return value


def _positive(value: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", value) or int(value) == 0:
        raise ValueError("must be a whole number above 0")
    return int(value)


SCHEMES: dict[str, Scheme] = {
    "sqlite": Scheme(
        "sqlite:PATH",
        "all files in one SQLite file; the default",
        _open_sqlite,
        takes="path",
        parameters={"on_exists": _on_exists},
        features=Features(),
    ),
    "memory": Scheme(
        "memory:",
        "files in the server's memory, gone when it ends",
        _open_memory,
        takes="nothing",
        parameters={"on_exists": _on_exists},
        features=Features(durable=False),
    ),
    "dir": Scheme(
        "dir:PATH",
        "a directory of this machine; nothing outside it can be reached",
        _open_directory,
        takes="path",
        parameters={"max_file_size_mb": _positive, "on_exists": _on_exists},
        features=Features(change_feed=False),
    ),
    "shell": Scheme(
        "shell:PATH",
        "the same, and agents may run commands there",
        _open_shell,
        takes="path",
        parameters={
            "max_file_size_mb": _positive,
            "max_output_bytes": _positive,
            "on_exists": _on_exists,
            "timeout": _positive,
        },
        features=Features(change_feed=False),
        execute=True,
    ),
    "state": Scheme(
        "state:",
        "files as an agent's state holds them, gone when the server ends",
        _open_state,
        takes="nothing",
        parameters={"on_exists": _on_exists},
        features=Features(
            random_writes=False,
            rename=False,
            links=False,
            symlinks=False,
            special_files=False,
            xattrs=False,
            persistent_modes=False,
            change_feed=False,
            durable=False,
        ),
    ),
    "python": Scheme(
        "python:package.module:callable",
        "what your own function returns, called with the parameters",
        _open_python,
        parameters=None,
    ),
}
"""The schemes of this package, in the order in which they are shown."""


def scheme_table() -> dict[str, Scheme | Exception]:
    """Every scheme that can be used here, ours first; an exception stands for one that can't be loaded."""
    return {**SCHEMES, **added_schemes()}
