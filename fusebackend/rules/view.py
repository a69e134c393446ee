"""`View`: a list of rules, and the one decision function of all doors.

The first rule that is about an operation and matches a path decides; without one, it is allowed. A rule of mode `hide`
makes a path and all that is below it absent for every operation, whatever other rules say of what is below: the kernel
would never get there. Where an earlier rule lets a path be read, writing it is denied. `append` allows reading.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fusebackend.base.globs import GlobError, compile_anchored, name_test
from fusebackend.base.paths import AgentPath, is_below, why_no_name
from fusebackend.rules.rule import OPERATIONS, Mode, Operation, Rule, RuleError, literal, matched, normal

NameTest = Callable[[str], object]
"""Gives something true for a name in a directory that a rule may match."""

MAX_CACHED = 1 << 16
"""Decisions of one kind that are kept. Then all are forgotten, which costs a few microseconds each."""

MAX_CACHED_CHARACTERS = 1 << 23
"""Likewise the characters of their paths: a reader could fill the memory with long ones. Without them, each decision
about a path of a thousand names would be about all names above it, too."""

ALLOWED: tuple[Mode, Mode] = ("allow", "allow")
"""The decisions about most paths, always the same object."""

T = TypeVar("T")


class _Decisions(dict[str, T]):
    """Decisions by paths. Another thread may forget them all at any moment."""

    def keep(self, path: str, decision: T) -> T:
        self._characters += len(path)
        if len(self) >= MAX_CACHED or self._characters >= MAX_CACHED_CHARACTERS:
            self.clear()
            self._characters = len(path)
        self[path] = decision
        return decision

    _characters = 0


class View:
    """Rules by a name. Immutable; any thread.

    Args:
        name: of the view.
        rules: `Rule`s, mappings or `FilesystemPermission`s, the first match first.

    Raises:
        RuleError: a rule is invalid, or hides the root.
    """

    def __init__(self, name: str, rules: Iterable[Any]) -> None:
        self.name = name
        made = []
        for number, said in enumerate(rules, 1):
            try:
                made.append(Rule.of(said))
            except RuleError as error:
                raise RuleError(f"rule {number}: {error}") from None
        self.rules: tuple[Rule, ...] = tuple(made)
        self._of = {operation: _first_of(self.rules, operation) for operation in OPERATIONS}
        self._granted: tuple[AgentPath, ...] = ()
        self._grants_trees = False
        self._absent: str | None = None
        self._hidden: _Decisions[bool] = _Decisions()
        self._decided: _Decisions[tuple[Mode, Mode]] = _Decisions()
        self._tests: _Decisions[NameTest | None] = _Decisions()
        self._test_of = functools.lru_cache(MAX_CACHED >> 8)(name_test)
        try:
            self._matcher = compile_anchored(
                glob
                for rule in self.rules
                for path in rule.paths
                for glob in _broad(path)
                if rule.operations != ("execute",)
            )
        except GlobError as error:
            raise RuleError(str(error)) from None
        self.hides = any(rule.mode == "hide" for rule in self.rules)
        """False if nothing is hidden anywhere."""
        self.interrupts = any(rule.mode == "interrupt" for rule in self.rules)
        """False if nothing needs an approval."""
        self.has_commands = any("execute" in rule.operations for rule in self.rules)
        """False if no rule is about commands."""
        number, mode = self._first("read", "/")
        if mode == "hide":
            raise RuleError(f"rule {number}: it hides '/'; write '/*' for all that is in it")

    def decide(self, operation: Operation, path: str) -> Mode:
        """Return what is done about an operation on a path, which is normalised."""
        if operation == "execute":
            return self._decide(operation, path)
        return self.decide_both(path)[operation == "write"]

    def decide_both(self, path: str) -> tuple[Mode, Mode]:
        """Return what is done about reading and about writing a path, which is normalised: `ALLOWED` if nothing."""
        decided = self._decided.get(path)
        if decided is None:
            decided = self._decide("read", path), self._decide("write", path)
            decided = self._decided.keep(path, ALLOWED if decided == ALLOWED else decided)
        return decided

    def ruled_names(self, directory: str) -> NameTest | None:
        """Return a test of the names in a directory: nothing true for a name that no rule matches. Such a name is
        `ALLOWED` where the directory is not hidden. None if no rule matches any name there.

        It takes the place of a decision about each path, which are most of what a listing costs: 100 rules were a sixth
        of the server's time for `find`.
        """
        try:
            return self._tests[directory]
        except KeyError:
            pass
        segments = self._matcher.last_segments(directory[1:])
        if self._absent is not None and is_below(self._absent, directory):
            segments |= {self._absent.rpartition("/")[2]}
        return self._tests.keep(directory, self._test_of(segments))

    def _decide(self, operation: Operation, path: str) -> Mode:
        if self.is_hidden(path):
            return "hide"
        mode = self._first(operation, path)[1]
        if mode == "hide":
            return "deny"  # an earlier rule lets it be read
        if mode == "interrupt" and self._is_granted(path):
            return "allow"
        return "allow" if mode == "append" and operation == "read" else mode

    def is_hidden(self, path: str) -> bool:
        """Return True if a path, or a directory on its way, is hidden."""
        if self._absent is not None and is_below(path, self._absent):
            return True
        if not self.hides or path == "/":
            return False
        above, ways = path, list[str]()
        hidden = self._hidden.get(path)
        while hidden is None:
            ways.append(above)
            above = above.rpartition("/")[0] or "/"
            hidden = self._hidden.get(above) if above != "/" else False
        for each in reversed(ways):
            hidden = self._hidden.keep(each, hidden or self._first("read", each)[1] == "hide")
        return hidden

    def without(self, path: str | None) -> View:
        """Return this view with a path, and all below it, hidden by no rule: link counts stay. None is no path."""
        view = View(self.name, self.rules)
        view._absent = path
        return view

    def granting(self, granted: Iterable[AgentPath], *, trees: bool = False) -> View:
        """Return this view with an approval for these paths: they are not interrupted, and neither are the directories
        on the way to them, where a verb makes those that are missing.

        Args:
            trees: nor is what lies below them.
        """
        view = self.without(self._absent)
        view._granted, view._grants_trees = tuple(granted), trees
        return view

    def _is_granted(self, path: str) -> bool:
        return any(is_below(each, path) or (self._grants_trees and is_below(path, each)) for each in self._granted)

    def _first(self, operation: Operation, path: str) -> tuple[int, Mode]:
        if operation != "execute" and path != "/":
            directory, _, name = path.rpartition("/")
            may_match = self.ruled_names(directory or "/")
            if may_match is None or not may_match(name):
                return 0, "allow"
        found = self._of[operation].match(matched(path))
        if found is None or found.lastgroup is None:
            return 0, "allow"
        number = int(found.lastgroup.removeprefix(_GROUP))
        return number, self.rules[number - 1].mode

    def explain(self, operation: str, path: str) -> tuple[Mode, int | None, str]:
        """Return a decision, the number of the rule that made it (None: no rule), and the path that the rule matches:
        for what is hidden, perhaps a directory on its way.

        Raises:
            RuleError: there is no such operation, or the path is malformed.
        """
        asked = next((each for each in OPERATIONS if each == operation), None)
        if asked is None:
            raise RuleError(f"there is no operation '{operation}'; give one of {', '.join(OPERATIONS)}")
        at = normal(path)
        mode = self.decide(asked, at)
        if mode == "hide":
            asked = "read"
            ways = [at[:end] or "/" for end, char in enumerate(at) if char == "/"] + [at]
            at = next(way for way in ways if self.is_hidden(way))
        number = self._first(asked, at)[0]
        return mode, number or None, at

    def is_same_below(self, old: str, new: str) -> bool:
        """Return True if no rule can tell what lies at and below one path from what lies there at the other. A
        directory is renamed at once only then; its files would change what may be done with them."""
        return all(
            _reach(rule, path, old) == _reach(rule, path, new) != ""
            for rule in self.rules
            for path in rule.paths
            if rule.operations != ("execute",)
        )


_GROUP = "rule"
"""Begins the name of the group of a rule's globs."""


def _first_of(rules: Sequence[Rule], operation: Operation) -> re.Pattern[str]:
    """Return a pattern that matches what the rules about an operation match. The group that has matched is that of the
    first of them: a hundred rules take half as long as one by one."""
    globs = [
        f"(?P<{_GROUP}{number}>{'|'.join(each.pattern for each in rule.patterns)})"
        for number, rule in enumerate(rules, 1)
        if operation in rule.operations
    ]
    return re.compile("|".join(globs) or r"(?!)")


def checked_views(views: Mapping[str, Iterable[Any]], default: str | None) -> dict[str, View]:
    """Return views by name.

    Raises:
        RuleError: a name can't be that of a directory, a rule is invalid, or there is no view `default`.
    """
    made = {}
    for name, rules in views.items():
        why = why_no_name(name)
        if why is None and (len(name) > 64 or name != name.strip()):
            why = "is longer than 64 characters, or begins or ends with a space"
        if why is not None:
            raise RuleError(f"view {name!r} {why}")
        try:
            made[name] = View(name, rules)
        except RuleError as error:
            raise RuleError(f"view '{name}': {error}") from None
    if default is not None and default not in made:
        raise RuleError(f"default_view = '{default}': there is no such view; there are: {', '.join(made) or 'none'}")
    return made


def _broad(path: str) -> tuple[str, ...]:
    """Return globs that match whatever the path of a rule does, in the words of `compile_anchored`."""
    if "\\" not in path:
        return (path,)
    top = literal(path)
    return (top, f"{top.rstrip('/')}/**")


def _reach(rule: Rule, pattern: str, path: str) -> str:
    """Return how much of a tree a glob matches: `none`, `all`, `names` (by names alone, wherever they are); an empty
    text if that is not known."""
    top = literal(pattern)
    rest = pattern[len(top.rstrip("/")) + 1 :]
    below = is_below(path, top)
    if not below and not top.startswith(path.rstrip("/") + "/"):
        return "none"
    if below and top == pattern:
        return "none"  # it matches `path` at most
    if rest.startswith("**/") and "/" not in rest[3:] and rest[3:] != "**" and below and path != top:
        return "names" if rule.dots else ""
    if rest == "**" and rule.dots and below and path != top:
        return "all"
    return ""
