"""`Rule`: one line of a list of rules. The form is that of deepagents' `FilesystemPermission`, whose objects are taken.

Paths are globs of wcmatch with `**` and `{a,b}`, as in deepagents. `*` and `**` match names that begin with a dot, too.
deepagents' do not, so that its `deny` of `/secrets/**` leaves `/secrets/.env` open. Of its objects, `allow` keeps that
meaning and the other modes match such names as well: a list of deepagents is never looser here than there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from msgspec.structs import force_setattr

from fusebackend.base.errors import UserError
from fusebackend.base.paths import PathError, normalise
from fusebackend.base.settings import ConfigError, Setting, Table, read_table

Operation = Literal["read", "write", "execute"]
Mode = Literal["allow", "deny", "interrupt", "hide", "append"]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
FILES: tuple[Operation, ...] = ("read", "write")
"""Operations on files. `execute` is to start a command; its path is the directory that the command starts in."""

MODES: tuple[Mode, ...] = get_args(Mode)

_MAGIC = re.compile(r"[*?\[{\\]")

_NEWLINE = "\udc0a"
"""Stands for a newline where globs are matched, and is in no name (surrogateescape gives \\udc80 and more). wcmatch
ends its expressions with `$`, which is also true before a newline at the end: `**` would not match a name of a dot and
a newline, so that it could be made where nothing may."""


class RuleError(UserError, ValueError):
    """A rule is invalid. Its `str` is one line that says which, and what to write."""


class RuleTable(Table, frozen=True, kw_only=True):
    """A rule of a view, which `Rule` explains."""

    operations: Annotated[Sequence[str], Setting("read, write, execute, or several of them.")]
    paths: Annotated[Sequence[str], Setting("Globs of absolute paths.")]
    mode: Annotated[str, Setting("allow, deny, interrupt, hide or append.")] = "allow"


@dataclass(frozen=True)
class Rule:
    """Operations, paths and what is done about them.

    Args:
        operations: `read`, `write`, `execute`, or several of them.
        paths: globs of absolute paths, without `.` and `..`.
        mode: `hide` is of reading and writing at once; `append` is of writing; `execute` has neither.
        dots: `*` and `**` match names that begin with a dot.

    Raises:
        RuleError: a value is none of these.
    """

    operations: tuple[Operation, ...]
    paths: tuple[str, ...]
    mode: Mode = "allow"
    dots: bool = True
    patterns: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise RuleError(f"mode {self.mode!r} is none of {', '.join(MODES)}")
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise RuleError(f"operation {operation!r} is none of {', '.join(OPERATIONS)}")
        if not self.operations or not self.paths:
            raise RuleError(f"a rule to {self.mode} has no {'paths' if self.operations else 'operations'}")
        if self.mode == "hide" and "read" not in self.operations:
            raise RuleError('a rule to hide is about reading: give operations = ["read", "write"]')
        if self.mode == "append" and "write" not in self.operations:
            raise RuleError('a rule to append is about writing: give operations = ["write"]')
        if self.mode in ("hide", "append") and "execute" in self.operations:
            raise RuleError(f"a rule to {self.mode} is about files: a command is allowed, denied or interrupted")
        from wcmatch import glob as wcglob  # commands that only ask a mount do without it

        flags = wcglob.BRACE | wcglob.GLOBSTAR | wcglob.FORCEUNIX | (wcglob.DOTGLOB if self.dots else 0)
        patterns = []
        for path in self.paths:
            _check(path)
            try:
                found, _ = wcglob.translate(matched(path), flags=flags)
            except Exception as error:  # wcmatch: too many patterns; re: a bad class
                raise RuleError(f"path {path!r} is no glob: {error}") from None
            patterns += [re.compile(each) for each in found]
        object.__setattr__(self, "patterns", tuple(patterns))

    def matches(self, path: str) -> bool:
        """Return True if the rule is about a path, which is normalised."""
        return any(pattern.match(matched(path)) for pattern in self.patterns)

    @classmethod
    def of(cls, said: Rule | Mapping[str, Any] | Any) -> Rule:
        """Return the rule that a table of a TOML file, a mapping or a `FilesystemPermission` is.

        Raises:
            RuleError: it is none.
        """
        if isinstance(said, Rule):
            return said
        if isinstance(said, Mapping):
            given, dots = said, True
        else:
            given = {key: getattr(said, key, None) for key in ("operations", "paths", "mode")}
            if given["operations"] is None or given["paths"] is None:
                raise RuleError(f"a {type(said).__name__} is no rule: it needs operations, paths and mode")
            dots = given["mode"] != "allow"
        try:
            said_so = {key: value for key, value in given.items() if key != "mode" or value is not None}
            table: Any = read_table(RuleTable, said_so)
        except ConfigError as error:
            raise RuleError(str(error)) from None
        return cls(tuple(table.operations), tuple(table.paths), table.mode, dots)

    def described(self) -> dict[str, Any]:
        """Return the rule as JSON: `operations`, `paths`, `mode`."""
        return {"operations": list(self.operations), "paths": list(self.paths), "mode": self.mode}


def matched(path: str) -> str:
    """Return a path as the patterns of globs have it."""
    return path.replace("\n", _NEWLINE)


def _check(path: str) -> None:
    """Raises `RuleError` for a glob that no path can match, or not the one that is meant."""
    if not path.startswith("/"):
        raise RuleError(f"path {path!r} does not begin with '/'")
    segments = path.split("/")[1:]
    if path != "/" and segments[-1] == "":
        raise RuleError(f"path {path!r} ends with '/', and matches nothing: write '{path}**' for all that is below it")
    if any(segment in (".", "..", "~") for segment in segments) or (path != "/" and "" in segments):
        raise RuleError(f"path {path!r} is not plain: write it without '.', '..', '~' and empty parts")
    if "\0" in path:
        raise RuleError(f"path {path!r} holds a NUL")


def literal(pattern: str) -> str:
    """Return the directory that everything lies in or is, that a glob can match: what stands before its first `*`, `?`,
    `[` or `{`."""
    return "/" + "/".join(itertools.takewhile(lambda segment: not _MAGIC.search(segment), pattern.split("/")[1:]))


class RouteRules(Table, frozen=True):
    """The rules of one route, for every reader.

    Raises:
        RuleError: a glob is none.
    """

    read_only: Annotated[bool, Setting("Nothing can be changed.")] = False
    hide: Annotated[
        Sequence[str],
        Setting("Globs of names that are there for no reader, from the root of the route, such as **/.env."),
    ] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "hide", tuple(self.hide))
        if self.hide:
            within(self.hide)

    def __bool__(self) -> bool:
        return self.read_only or bool(self.hide)


def within(patterns: Iterable[str]) -> Rule:
    """Return the rule to hide these globs of a route, which begin with or without a `/`.

    Raises:
        RuleError: one is no glob, or would hide the root.
    """
    paths = tuple(pattern if pattern.startswith("/") else f"/{pattern}" for pattern in patterns)
    rule = Rule(FILES, paths, "hide")
    if rule.matches("/"):
        raise RuleError(f"hide = {list(patterns)!r} hides the whole route; leave the route out instead")
    return rule


def normal(path: str) -> str:
    """Return a path of a question. RuleError: it is malformed."""
    try:
        return normalise(path)
    except PathError as error:
        raise RuleError(str(error)) from None
