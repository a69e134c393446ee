"""`Branch`: a branch of a mount for the length of a block, as a backend whose root is the branch.

    with files.branch("try") as tried:      # or: async with
        tried.edit("/plan.md", "monday", "tuesday")
        tried.execute("make test")

`files` is a `Mount` or a `Client`. Nobody else sees the changes before the block has ended; then they are merged, in
one step, and the branch is deleted. `tried` is a `SandboxBackendProtocol`, so an agent, or each of several that work
side by side, can have a branch of its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import secrets
from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio

from fusebackend.base.awaiting import aside
from fusebackend.base.paths import PathError, normalise
from fusebackend.protocol.agent import SandboxBackendProtocol
from fusebackend.protocol.records import ExecuteResponse, MergeResult, UndoConflict
from fusebackend.protocol.verbs import PATHS, VERBS

if TYPE_CHECKING:
    from fusebackend.protocol.served import MountProtocol

__all__ = ["Branch", "MergeConflict"]

_MANY = frozenset({"paths", "wanted"})


class MergeConflict(Exception):
    """A branch was not merged, for the mount has changes of its own at the same paths. Nothing was changed.

    Attributes:
        branch: its name; it is kept.
        conflicts: the paths, and what is in the way.
    """

    def __init__(self, branch: str, conflicts: list[UndoConflict]) -> None:
        first, more = conflicts[0], len(conflicts) - 1
        super().__init__(
            f"branch '{branch}' was not merged: '{first.path}' {first.reason}"
            + (f", and {more} paths more" if more else "")
            + f"; it is kept: 'fusebackend branch merge {branch}' with --keep-main or --keep-branch decides"
        )
        self.branch = branch
        self.conflicts = conflicts


class Branch(SandboxBackendProtocol):
    """See the module's docstring. Made by `branch` of a `Mount` or a `Client`.

    Args:
        files: the mount.
        name: of the branch; an unused one when None.
        ref: the state that it begins with, as of `create_branch`; the present when None.
        keep, merge_lines: how conflicts are decided, as of `merge_branch`.
        on_error: what happens to the branch when the block ends with an exception, or is cancelled: `keep` it, and name
            it in a note of the exception; or `discard` it.

    Attributes:
        name: of the branch.
        root: its path in the mount.
        merged: the outcome of the merge, when the block has ended.

    Raises:
        ValueError: `on_error` is neither; or, at the begin of the block, as `create_branch`.
        OSError: at the begin of the block, as `create_branch`; at its end, as `merge_branch`, and the branch is kept.
        MergeConflict: at the end of the block.
    """

    def __init__(
        self,
        files: MountProtocol,
        name: str | None = None,
        ref: str | None = None,
        *,
        keep: Literal["main", "branch"] | None = None,
        merge_lines: bool = False,
        on_error: Literal["keep", "discard"] = "keep",
    ) -> None:
        if on_error not in ("keep", "discard"):
            raise ValueError(f"on_error is 'keep' or 'discard', not {on_error!r}")
        self.name = name or f"work-{secrets.token_hex(4)}"
        self.root = "/"
        self.merged: MergeResult | None = None
        self._files = files
        self._ref = ref
        self._how: dict[str, Any] = {"keep": keep, "merge_lines": merge_lines}
        self._discards = on_error == "discard"

    def _where(self) -> str:
        return f"{self._files!r}, branch '{self.name}'"

    # -- the block ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.root = self._files.create_branch(self.name, self._ref).path
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.merged = self._files.merge_branch(self.name, **self._how)
            if self.merged.conflicts:
                raise MergeConflict(self.name, self.merged.conflicts)
        elif not self._discards:
            error.add_note(f"branch '{self.name}' is kept: 'fusebackend branch merge {self.name}' merges it")
            return
        self._files.delete_branches(self.name)

    async def __aenter__(self) -> Self:
        with anyio.CancelScope(shield=True):  # a branch that is made has a block that ends it
            await aside(self, "branch", self.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # what is made of the branch is not left to chance
            await aside(self, "branch", partial(self.__exit__, kind, error, traceback))

    # -- verbs: those of the table are made below ----------------------------------------------------------------

    @property
    def id(self) -> str:
        return f"{self._files.id}:{self.name}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return self._files.run(command, timeout=timeout, cwd=self.root)

    def _outer(self, path: str | None) -> str:
        """Return a path of the branch as one of the mount. What is no path stays as it is: the mount says why."""
        try:
            return self.root + normalise("/" if path is None else path).rstrip("/")
        except PathError:
            return path or ""

    def _inner(self, text: str) -> str:
        """Return a text of the mount about paths of the branch as one of the branch."""
        return text.replace(self.root + "/", "/").replace(self.root, "/")

    def _given(self, name: str, value: Any) -> Any:
        if name in PATHS:
            return self._outer(value)
        if name in _MANY:
            return [self._outer(path) for path in value]
        if name == "files":
            return [(self._outer(path), content) for path, content in value]
        return value

    def _answer(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._answer(each) for each in found]
        if isinstance(found, str):
            return self._inner(found)
        if isinstance(found, dict):
            return {**found, "path": self._inner(found["path"])}
        told = {name: getattr(found, name, None) for name in ("path", "error", "entries", "matches")}
        changed = {name: self._answer(value) for name, value in told.items() if value is not None}
        return dataclasses.replace(found, **changed) if changed else found


def _in_branch(name: str) -> Callable[..., Any]:
    """Return a verb with paths of the branch."""
    declared = getattr(SandboxBackendProtocol, name)
    signature = inspect.signature(declared)

    @wraps(declared)
    def verb(self: Branch, *args: Any, **options: Any) -> Any:
        given = signature.bind(self, *args, **options)
        given.apply_defaults()
        given.arguments.pop("self")
        arguments = {each: self._given(each, value) for each, value in given.arguments.items()}
        return self._answer(getattr(self._files, name)(**arguments))

    return verb


for _name in (*VERBS, "real_paths"):
    setattr(Branch, _name, _in_branch(_name))
