"""Backend URLs and their kinds: `Url`, `Scheme`, `Parameter`, `UrlError`; what opens one; `mask`, to show one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

from fusebackend.base.errors import UserError
from fusebackend.base.extras import is_installed
from fusebackend.base.sizes import EXAMPLES, size_bytes
from fusebackend.protocol import Features


class UrlError(UserError, ValueError):
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
class Parameter:
    """A parameter of URLs: how its value is read, and what it means, for people.

    `reads` raises ValueError with a text such as `must be a number`.
    """

    reads: Callable[[str], Any]
    meaning: str

    def __call__(self, value: str) -> Any:
        return self.reads(value)


@dataclass(frozen=True)
class Scheme:
    """One kind of URL. A backend of this package has those of its URLs in `schemes`, by name.

    `takes` is the kind of the text after the colon: a `path` (made absolute), `nothing`, a `name` or nothing, or `text`
    that `open` understands. `parameters` maps the names that may follow `?` to a `Parameter` or a plain function that
    reads the value; those in `passed_on` are passed on as text, as all are
    where `parameters` is None. `features` are those of its volume where they don't depend on the URL. `snapshots` says
    that the volume keeps them.
    """

    form: str
    summary: str
    open: Callable[[Url], Any]
    takes: Literal["path", "nothing", "name", "text"] = "text"
    parameters: Mapping[str, Callable[[str], Any]] | None = field(default_factory=dict)
    passed_on: tuple[str, ...] = ()
    features: Features | None = None
    execute: bool = False
    snapshots: bool = False


# --------------------------------------------------------------------------------------------------------------
# Parameters that several backends know
# --------------------------------------------------------------------------------------------------------------
#
# A name means the same in all of them.


def one_of(*known: str) -> Callable[[str], str]:
    """Return a reader of one of these words."""

    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"must be {' or '.join(map(repr, known))}")
        return value

    return read


def auto_or_off(value: str) -> bool:
    """Read `auto` or `off`."""
    return one_of("auto", "off")(value) == "auto"


def positive(value: str) -> int:
    """Read a whole number above 0."""
    if not re.fullmatch("[0-9]{1,12}", value) or int(value) == 0:
        raise ValueError("must be a whole number above 0")
    return int(value)


def seconds(value: str) -> float:
    """Read a number of seconds."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        raise ValueError("must be a number of seconds")
    return float(value)


def _size(value: str) -> int:
    try:
        size = size_bytes(value)
    except ValueError:
        size = 0
    if size == 0:
        raise ValueError(f"must be a size above 0 ({EXAMPLES})")
    return size


ON_EXISTS = {
    "on_exists": Parameter(
        one_of("error", "replace"), "an agent's write to a file that is there: error (default) or replace"
    )
}

LIMITS = {
    "limit_bytes": Parameter(_size, "how much the volume may hold, such as 10GiB; more is EDQUOT"),
    "limit_files": Parameter(positive, "how many files, directories and links the volume may hold; more is EDQUOT"),
}
"""Of volumes that every change of passes through this package: what others add elsewhere could not be refused."""

MAX_FILE_SIZE = {"max_file_size_mb": Parameter(positive, "larger files are passed over by grep")}

TTL = {"ttl": Parameter(seconds, "for how many seconds the kernel believes what was seen before it looks again")}

COMMANDS = {
    "max_output_bytes": Parameter(positive, "what a command prints beyond this is dropped"),
    "timeout": Parameter(positive, "seconds that a command may take"),
}


# --------------------------------------------------------------------------------------------------------------
# Opening one
# --------------------------------------------------------------------------------------------------------------


def require_modules(url: Url, extra: str, *modules: str) -> None:
    """UrlError, with the extra to install, where one of these modules is missing."""
    for module in modules:
        if not is_installed(module):
            raise UrlError(f"'{url.masked}' needs {module}, which is not installed: pip install 'fusebackend[{extra}]'")


@contextlib.contextmanager
def url_errors(url: Url) -> Iterator[None]:
    """Raise the errors of opening a URL as `UrlError`s that name it."""
    try:
        yield
    except UrlError:
        raise
    except ModuleNotFoundError as error:
        raise UrlError(f"'{url.masked}': {error.msg}") from None
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror or os.strerror(error.errno or 0)}") from error
    except ValueError as error:
        raise UrlError(f"'{url.masked}': {error}") from None


# --------------------------------------------------------------------------------------------------------------
# What is shown
# --------------------------------------------------------------------------------------------------------------

_AUTHORITY = re.compile(r"(//[^/:@\s?]*):[^\s]*@")
_ASSIGNMENT = re.compile(r"([^&?\s=]+)(\s*=\s*)('(?:[^'\\]|\\.)*'?|[^&\s]*)")
_QUOTED = re.compile(r"([?&][^=&?\s]+=)([^&\s]*%[^&\s]*)")
_SECRET = re.compile(r"pass|pwd|secret|token|key|cred|auth|signature|^sas$|^sig$", re.IGNORECASE)


def mask(text: str) -> str:
    """`text` with `***` for every password: `//user:***@host`, and the values of secret parameters and libpq words.

    When in doubt it hides too much: from the first `:` after `//` to the last `@`, for a password may hold an
    unescaped `@`, `/` or `?`.
    """
    hidden = _QUOTED.sub(lambda found: found[1] + _hide_dsn(found[2]), text)
    hidden = _AUTHORITY.sub(r"\1:***@", hidden)
    return _ASSIGNMENT.sub(lambda found: found[1] + found[2] + hide(unquote(found[1]), found[3]), hidden)


def hide(key: str, value: str) -> str:
    """The value of a parameter as it may be shown."""
    return "***" if value and _SECRET.search(key) else mask(value) if "=" in value else value


def _hide_dsn(value: str) -> str:
    """A quoted value, which may be a DSN with a password."""
    plain = unquote(value)
    return value if mask(plain) == plain else "***"
