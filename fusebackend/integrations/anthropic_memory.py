"""Anthropic's memory tool (`memory_20250818`) over any backend, a mount or a client.

    from fusebackend.integrations.anthropic_memory import MemoryTool

    with fusebackend.connect("/mnt/agent") as files:
        client.beta.messages.tool_runner(tools=[MemoryTool(files)], …)

The model sees `/memories`, which is the directory `root` of the backend. The answers are those of the tool over a local
directory in the `anthropic` package, word for word: models are trained with them. `AsyncMemoryTool` is the same for
`AsyncAnthropic`, under asyncio and trio.

Each change is one verb of the backend, so `str_replace` and `insert` lose nothing that others write at the same time.
The exception is an empty file: of two processes that insert into it at once, one wins. A symbolic link means what it
does to the backend's verbs: it may lead out of `root`, and never out of the backend.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types import beta

from fusebackend.base.awaiting import aside
from fusebackend.base.errors import IS_DIRECTORY
from fusebackend.base.paths import is_below
from fusebackend.base.shown import name_meant, name_shown, shown
from fusebackend.base.sizes import short_size
from fusebackend.integrations.texts import ABSENT, NO_TEXT, NotChanged, NoText, Texts
from fusebackend.text import as_shown, keep_line_ends, replace_string

MEMORIES = "/memories"
"""The directory's name in each command and each answer."""

DEPTH = 2
"""Levels of directories that `view` lists."""

DIRECTORY_SIZE = "4K"
"""The size that a directory is listed with, as ext4 has it: a verb gives none."""

MAX_LINES = 999_999

REFUSALS = {
    ABSENT: "The path {0} does not exist. Please provide a valid path.",
    IS_DIRECTORY: "The path {0} is not a file.",
    NO_TEXT: "path {0!r} is not valid utf-8",
}
CANT_BE_READ = "The file {0} can't be read: {1}"
NOT_THERE = "No replacement was performed, old_str `{0}` did not appear verbatim in {1}."
TWICE = "No replacement was performed. Multiple occurrences of old_str `{0}` in lines: {2}. Please ensure it is unique"
EDITED = "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
NO_SUCH_LINE = "Invalid `insert_line` parameter: {0}. It should be within the range [0, {1}]."


class MemoryTool(BetaAbstractMemoryTool):
    """See the module's docstring. A command returns a text, or raises `ToolError` with one.

    Args:
        backend: any backend, in any dialect; a `Mount`, a `Client`.
        root: the directory of the backend that is `/memories` to the model. It need not exist.
        options: of `BetaAbstractMemoryTool`, such as `cache_control`.

    Raises:
        TypeError: `backend` is no backend.
    """

    def __init__(self, backend: Any, root: str = MEMORIES, **options: Any) -> None:
        super().__init__(**options)
        self._texts = Texts(backend, root)

    def view(self, command: beta.BetaMemoryTool20250818ViewCommand) -> str:
        path = self._path(command.path)
        if self._texts.kind(path) == "directory":
            header = f"Here're the files and directories up to {DEPTH} levels deep in {command.path}"
            lines = [f"{DIRECTORY_SIZE}\t{command.path}", *self._listed(path, command.path, DEPTH)]
            return f"{header}, excluding hidden items:\n" + "\n".join(lines)
        with _refusing(command.path):
            lines = as_shown(self._texts.read(path)).split("\n")
        if len(lines) > MAX_LINES:
            raise ToolError(f"File {command.path} exceeds maximum line limit of {MAX_LINES:,} lines.")
        first, last = 1, len(lines)
        if command.view_range and len(command.view_range) == 2:
            first = max(1, command.view_range[0])
            last = last if command.view_range[1] == -1 else command.view_range[1]
        return f"Here's the content of {command.path} with line numbers:\n" + _numbered(lines[first - 1 : last], first)

    def create(self, command: beta.BetaMemoryTool20250818CreateCommand) -> str:
        path = self._path(command.path)
        error = self._texts.files.write(path, command.file_text).error if path != self._texts.root else "it is the root"
        if error is not None:
            raise ToolError(f"File {command.path} already exists" if self._texts.kind(path) else shown(error))
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: beta.BetaMemoryTool20250818StrReplaceCommand) -> str:
        old, new = as_shown(command.old_str), as_shown(command.new_str)

        def replaced(text: str) -> tuple[str, str]:
            shown = as_shown(text)
            if shown.count(old) == 1:
                return (old, new) if shown == text else (text, replace_string(text, old, new)[0])
            places = re.finditer(f"(?={re.escape(old)})", shown)  # overlapping ones too
            lines = ", ".join(str(shown.count("\n", 0, place.start()) + 1) for place in places)
            raise ToolError((TWICE if lines else NOT_THERE).format(old, command.path, lines))

        with _refusing(command.path):
            text = as_shown(self._texts.change(self._path(command.path), replaced))
        line = text.count("\n", 0, text.index(old))
        return EDITED + _numbered(text.replace(old, new).split("\n")[max(0, line - 2) : line + 3], max(1, line - 1))

    def insert(self, command: beta.BetaMemoryTool20250818InsertCommand) -> str:
        def inserted(text: str) -> tuple[str, str]:
            lines = as_shown(text).removesuffix("\n").split("\n") if text else []
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(NO_SUCH_LINE.format(command.insert_line, len(lines)))
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            new = "\n".join(lines)
            return text, keep_line_ends(text, new if new.endswith("\n") else new + "\n")

        with _refusing(command.path):
            self._texts.change(self._path(command.path), inserted)
        return f"The file {command.path} has been edited."

    def delete(self, command: beta.BetaMemoryTool20250818DeleteCommand) -> str:
        path = self._path(command.path, "delete")
        self._require(self._texts.files.delete(path).error, path, command.path)
        return f"Successfully deleted {command.path}"

    def rename(self, command: beta.BetaMemoryTool20250818RenameCommand) -> str:
        old, new = self._path(command.old_path, "rename"), self._path(command.new_path)
        if self._texts.kind(new):
            raise ToolError(f"The destination {command.new_path} already exists")
        self._require(self._texts.files.move(old, new).error, old, command.old_path)
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear_all_memory(self) -> str:
        for entry in self._texts.files.ls(self._texts.root).entries or []:
            path = entry["path"].rstrip("/")
            self._require(self._texts.files.delete(path).error, path, path)
        return "All memory cleared"

    def _path(self, given: str, verb: str = "") -> str:
        """The path in the backend. `ToolError` for one outside of `/memories`; with a verb, for `/memories` as well."""
        if not is_below(given, MEMORIES):
            raise ToolError(f"Path must start with {MEMORIES}, got: {given}")
        path = posixpath.normpath(name_meant(given))
        if not is_below(path, MEMORIES):
            raise ToolError(f"Path {given} would escape {MEMORIES} directory")
        if verb and path == MEMORIES:
            raise ToolError(f"Cannot {verb} the {MEMORIES} directory itself")
        return posixpath.normpath(f"{self._texts.root}/{path.removeprefix(MEMORIES)}".replace("//", "/"))

    def _require(self, error: str | None, path: str, given: str) -> None:
        if error is not None:
            raise ToolError(shown(error) if self._texts.kind(path) else f"The path {given} does not exist")

    def _listed(self, path: str, above: str, depth: int) -> Iterator[str]:
        """The lines of `view` below a directory: sizes, and paths as the model knows them."""
        entries = {
            posixpath.basename(each["path"].rstrip("/")): each for each in self._texts.files.ls(path).entries or []
        }
        for name, entry in sorted(entries.items()):
            if name.startswith("."):
                continue
            is_dir = entry.get("is_dir", False)
            place = f"{above}/{name_shown(name)}"
            yield f"{DIRECTORY_SIZE if is_dir else short_size(entry.get('size', 0))}\t{place}{'/' * is_dir}"
            if is_dir and depth > 1:
                yield from self._listed(f"{path}/{name}", place, depth - 1)


class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """`MemoryTool`, awaited: each command runs in a thread."""

    def __init__(self, backend: Any, root: str = MEMORIES, **options: Any) -> None:
        super().__init__(**options)
        self._tool = MemoryTool(backend, root)

    async def execute(self, command: Any) -> str:
        return str(await aside(self._tool, command.command, lambda: self._tool.execute(command)))

    view = create = str_replace = insert = delete = rename = execute

    async def clear_all_memory(self) -> str:
        return await aside(self._tool, "clear_all_memory", self._tool.clear_all_memory)


@contextlib.contextmanager
def _refusing(given: str) -> Iterator[None]:
    """Raise what `Texts` raises about the path that the model gave, as `ToolError`."""
    try:
        yield
    except NoText as error:
        raise ToolError(REFUSALS.get(error.reason, CANT_BE_READ).format(given, shown(error.reason))) from None
    except NotChanged as error:
        raise ToolError(shown(str(error))) from None


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>{len(str(MAX_LINES))}}\t{line}" for number, line in enumerate(lines, first))
