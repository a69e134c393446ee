"""Verbs as tools for models: a function for each, whose parameters and docstring are what a model reads.

The MCP server has all of them, an agent of OpenAI's SDK those of files.

A tool returns the lines of its answer, or raises `Refused` with one for the model. What is more than `PAGE_CHARACTERS`
goes on with `cursor`, the number of the line to begin with: nothing is kept between two calls, so a change in between
may show a line twice or not at all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from fusebackend.base.shown import name_meant, name_shown, one_line, shown
from fusebackend.control.client.client import Client
from fusebackend.protocol import SERVED, Declared, MergeResult, RestoreResult, UndoResult

PAGE_CHARACTERS = 30_000
"""Of an answer, about 10,000 tokens. Claude Code takes 25,000 of them by default."""

LINE_CHARACTERS = 2_000
"""Of a line. What is behind is left out, and the line says so."""

COMMAND_LIMIT_S = 120.0
"""Of a command that comes without one."""

NAMES = frozenset(("path", "paths", "source", "destination", "name", "ref", "branch"))
"""Arguments that are paths, or names of trees."""

T = TypeVar("T")


class Refused(Exception):
    """A tool did not do it; the text says why."""

    def __init__(self, text: str) -> None:
        super().__init__(shown(text, but="\n"))


def _about(text: str, **limits: Any) -> Any:
    return msgspec.Meta(description=text, **limits)


Path = Annotated[str, _about("begins with /, the root of the mount")]
IfVersion = Annotated[str | None, _about("only if the file still has this version, which `read` with `version` shows")]
Cursor = Annotated[int, _about("where to go on, from the end of the answer before", ge=0)]


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name, text: as the client shows them.
        call: the function. Its parameters are what the schema shows.
        verb: the one that it calls. A view without this verb does not have the tool.
        destroys: a hint of the protocol: something may be gone afterwards.
    """

    name: str
    text: str
    call: Callable[..., Awaitable[Iterable[str]]]
    verb: Declared
    destroys: bool

    @property
    def changes(self) -> bool:
        """A hint of the protocol: it changes something."""
        return self.verb.changes or self.verb.command

    @functools.cached_property
    def _arguments(self) -> type[msgspec.Struct]:
        known = list(inspect.signature(self.call, eval_str=True).parameters.values())[1:]
        fields: list[Any] = [
            (each.name, each.annotation) if each.default is each.empty else (each.name, each.annotation, each.default)
            for each in known
        ]
        return msgspec.defstruct(self.name, fields, forbid_unknown_fields=True, kw_only=True)

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, as one object."""
        _, components = msgspec.json.schema_components([self._arguments], ref_template="#/$defs/{name}")
        schema = components[self.name]
        return {key: value for key, value in schema.items() if key not in ("title", "description")}

    async def answer(self, files: Any, given: Mapping[str, Any], place: Callable[[str], str] = str) -> str:
        """Call it with the arguments that a model gives, with paths as answers have them (`name_shown`). A tool of
        files takes any backend; `place` gives its path for that of a model. Raises `Refused`."""
        try:
            asked = msgspec.structs.asdict(msgspec.convert(given, self._arguments))
        except msgspec.ValidationError as error:
            raise Refused(f"Wrong arguments of {self.name}: {error}") from None
        for name in NAMES & given.keys():
            value = asked[name]
            if value is not None:
                is_one = isinstance(value, str)
                asked[name] = place(name_meant(value)) if is_one else [place(name_meant(each)) for each in value]
        cursor = asked.get("cursor", 0)
        try:
            lines = await self.call(files, **asked)
        except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
            raise Refused(one_line(error)) from error
        return page(lines, cursor)


TOOLS: dict[str, Tool] = {}
"""By name."""

Call = TypeVar("Call", bound=Callable[..., Awaitable[Iterable[str]]])


def _tool(verb: str = "", *, destroys: bool = False) -> Callable[[Call], Call]:
    """Make a tool of a function that calls a verb: the one of its name, unless another is named."""

    def register(call: Call) -> Call:
        name, text = call.__name__, " ".join((call.__doc__ or "").split())
        TOOLS[name] = Tool(name, text, call, SERVED[verb or name], destroys)
        return call

    return register


# -- files ------------------------------------------------------------------------------------------------------------


@_tool()
async def ls(files: Client, *, path: Path = "/", cursor: Cursor = 0) -> Iterable[str]:
    """List a directory: path, size in bytes, time of the last change. Directories end with /."""
    found = await files.als(path)
    check(found.error)
    return [
        name_shown(entry["path"])
        + ("" if entry.get("is_dir") else f"\t{entry.get('size')}\t{entry.get('modified_at', '')}")
        for entry in found.entries or []
    ]


@_tool()
async def read(
    files: Client,
    *,
    path: Path,
    offset: Annotated[int, _about("lines to skip", ge=0)] = 0,
    limit: Annotated[int, _about("lines to read", ge=1, le=10_000)] = 2000,
    version: Annotated[bool, _about("show the version of the file, for `if_version`")] = False,
    cursor: Cursor = 0,
) -> Iterable[str]:
    """Read lines of a text file, with their numbers. Bytes that are no text come as base64."""
    found = await files.aread(path, offset, limit)
    check(found.error)
    lines = str(found).split("\n")
    if found.next_offset is not None:
        lines.append(f"(the file goes on: offset={found.next_offset})")
    return [*lines, f"(version: {found.version})"] if version else lines


@_tool()
async def write(files: Client, *, path: Path, content: str, if_version: IfVersion = None) -> Iterable[str]:
    """Make a new text file. One that exists is refused, unless its version is given: change it with edit."""
    check((await files.awrite(path, content, if_version=if_version)).error)
    return [f"{name_shown(path)} is written"]


@_tool(destroys=True)
async def edit(
    files: Client,
    *,
    path: Path,
    old_string: Annotated[str, _about("the text to replace, as it is in the file", min_length=1)],
    new_string: str,
    replace_all: Annotated[bool, _about("else it must be there once")] = False,
    if_version: IfVersion = None,
) -> Iterable[str]:
    """Replace a text in a file."""
    done = await files.aedit(path, old_string, new_string, replace_all, if_version=if_version)
    check(done.error)
    return [f"{name_shown(path)}: {done.occurrences} replaced"]


@_tool(destroys=True)
async def delete(files: Client, *, path: Path, if_version: IfVersion = None) -> Iterable[str]:
    """Delete a file, or a directory with all that is in it."""
    check((await files.adelete(path, if_version=if_version)).error)
    return [f"{name_shown(path)} is deleted"]


@_tool()
async def move(files: Client, *, source: Path, destination: Path, if_version: IfVersion = None) -> Iterable[str]:
    """Rename a file or directory. The destination must not exist."""
    check((await files.amove(source, destination, if_version=if_version)).error)
    return [f"{name_shown(source)} is {name_shown(destination)} now"]


@_tool()
async def grep(
    files: Client,
    *,
    pattern: Annotated[str, _about("a literal text, no regular expression", min_length=1)],
    path: Path = "/",
    glob: Annotated[str | None, _about("only files whose name matches, such as *.py")] = None,
    cursor: Cursor = 0,
) -> Iterable[str]:
    """Find lines that contain a text, in all files at and below a path: path:line: text."""
    found = await files.agrep(pattern, path, glob)
    check(found.error)
    lines = [f"{name_shown(match['path'])}:{match['line']}: {match['text']}" for match in found.matches or []]
    return lines + _gaps(found.truncated, found.missing)


@_tool()
async def glob(
    files: Client,
    *,
    pattern: Annotated[str, _about("such as **/*.py", min_length=1)],
    path: Path = "/",
    cursor: Cursor = 0,
) -> Iterable[str]:
    """Find files by a pattern for their paths."""
    found = await files.aglob(pattern, path)
    check(found.error)
    return [name_shown(entry["path"]) for entry in found.matches or []] + _gaps(found.truncated, found.missing)


@_tool(destroys=True)
async def execute(
    files: Client,
    *,
    command: Annotated[str, _about("a line for the shell", min_length=1)],
    timeout: Annotated[float, _about("seconds", gt=0)] = COMMAND_LIMIT_S,
) -> Iterable[str]:
    """Run a command in a shell that sees the files at the same paths. An exit status other than 0 is at
    the end. Of a long output the middle is left out."""
    done = await files.aexecute(command, timeout=max(1, round(timeout)))
    half = PAGE_CHARACTERS // 3
    output = done.output
    if len(output) > 2 * half:
        output = f"{output[:half]}\n… {len(output) - 2 * half} characters left out …\n{output[-half:]}"
    return [*output.rstrip("\n").split("\n"), *(["(the output was cut)"] if done.truncated else [])]


# -- who did what, and how to have it back ----------------------------------------------------------------------------


@_tool()
async def log(
    files: Client,
    *,
    paths: Annotated[Sequence[str], _about("only calls that changed something at or below one of these")] = (),
    by: Annotated[str | None, _about("an agent, thread, tool call, program or user id")] = None,
    since: Annotated[str | None, _about("such as 10m, 14:05, yesterday")] = None,
    branch: Annotated[str | None, _about("calls that changed this branch, not those of the mount")] = None,
    limit: Annotated[int, _about("of calls", ge=1, le=1000)] = 20,
    cursor: Cursor = 0,
) -> Iterable[str]:
    """Show the calls that changed files, the newest first: name, begin, who, number of changes, what it was."""
    calls = await files.alog(
        by=by,
        since=since,
        paths=tuple(paths),
        limit=limit,
        branch=branch,
    )
    return [
        "\t".join(
            (
                call.call,
                _time(call.began_ns),
                shown(call.actor.agent or call.actor.command.split(" ")[0]),
                str(call.changes),
                shown(call.title) + (f" (undone by {call.undone_by})" if call.undone_by else ""),
            )
        )
        for call in calls
    ] or ["(no call has changed anything)"]


@_tool()
async def diff(
    files: Client,
    *,
    call: Annotated[str | None, _about("such as c42; without it the last one")] = None,
    paths: Annotated[Sequence[str], _about("only what is at and below these")] = (),
    cursor: Cursor = 0,
) -> Iterable[str]:
    """Show what a call did, as a git patch."""
    if call is None:
        last = await files.alog(limit=1)
        if not last:
            return ["(no call has changed anything)"]
        call = last[0].call
    patch = await files.adiff(call, paths=tuple(paths))
    return patch.rstrip("\n").split("\n") if patch else [f"({call} changed nothing that is left)"]


@_tool()
async def blame(files: Client, *, path: Path, cursor: Cursor = 0) -> Iterable[str]:
    """Show which call left a file as it is, and each of its lines."""
    found = await files.ablame(path)
    head = [f"{name_shown(path)}: last changed by {found.last or 'no call that the log has'}"]
    titles = [f"{name}\t{shown(call.title)}" for name, call in found.calls.items()]
    lines = [f"{'|'.join(line.calls) or '-'}\t{line.text}" for line in found.lines or []]
    return head + titles + lines


@_tool(destroys=True)
async def undo(
    files: Client,
    *,
    calls: Annotated[Sequence[str], _about("such as c42; without any the newest call that is not undone yet")] = (),
    by: Annotated[str | None, _about("the calls of this agent, thread, tool call, program or user id")] = None,
    thread: Annotated[str | None, _about("without calls: all of this conversation")] = None,
    since: Annotated[str | None, _about("without calls: this call and all after it, or since a time, 10m")] = None,
    branch: Annotated[str | None, _about("without calls: the newest one in this branch, not in the mount")] = None,
    keep_newer: Annotated[bool, _about("leave what later calls changed as well as it is")] = False,
    merge_lines: Annotated[bool, _about("merge it by lines")] = False,
    dry_run: Annotated[bool, _about("only say what would be done")] = False,
) -> Iterable[str]:
    """Take calls back, all of their changes or none, and nothing that others have done. An undo can be undone."""
    done = await files.aundo(
        *calls,
        by=by,
        thread=thread,
        since=since,
        branch=branch,
        keep_newer=keep_newer,
        merge_lines=merge_lines,
        dry_run=dry_run,
    )
    what = f"{', '.join(done.calls)} undone" + (f" by {done.undo}" if done.undo else " (dry run)")
    kept = [shown(f"kept {each.path}: {each.reason}") for each in done.kept]
    return _changed(done, what, "nothing was undone; keep_newer or merge_lines decide it") + kept


@_tool(destroys=True)
async def restore(
    files: Client,
    *,
    paths: Annotated[Sequence[str], _about("what to put back", min_length=1)],
    ref: Annotated[str, _about("the state to take it from: a snapshot, a branch, or a time such as 10m or 14:05")],
    dry_run: Annotated[bool, _about("only say what would be done")] = False,
) -> Iterable[str]:
    """Put files and directories back as they were in another state."""
    done = await files.arestore(list(paths), ref, dry_run=dry_run)
    what = f"restored from {done.ref}" + (" (dry run)" if dry_run else "")
    left = [shown(f"left as it was {each.path}: {each.reason}") for each in done.skipped]
    return _changed(done, what, "nothing was restored") + left


@_tool("snapshots")
async def snapshot_list(
    files: Client,
    *,
    automatic: Annotated[bool, _about("also those that were taken by themselves")] = False,
    cursor: Cursor = 0,
) -> Iterable[str]:
    """List the snapshots of the mount, the oldest first: name and time."""
    found = [each for each in await files.asnapshots() if automatic or not each.name.startswith("@")]
    return [f"{name_shown(each.name)}\t{_time(each.time_ns)}" for each in found] or ["(there are none)"]


@_tool("create_snapshot")
async def snapshot_create(
    files: Client, *, name: Annotated[str | None, _about("without one it is named by the time")] = None
) -> Iterable[str]:
    """Keep the present state of all files. Copies nothing."""
    return [f"snapshot {(await files.acreate_snapshot(name)).name}"]


@_tool("branches")
async def branch_list(files: Client, *, cursor: Cursor = 0) -> Iterable[str]:
    """List the branches of the mount: name, time, number of changes. Files are below /.fusebackend/branches/NAME."""
    found = await files.abranches()
    return [
        f"{name_shown(each.name)}\t{_time(each.time_ns)}\t{each.changes}"
        + (f"\t{shown(each.error)}" if each.error else "")
        for each in found
    ] or ["(there are none)"]


@_tool("create_branch")
async def branch_create(
    files: Client,
    *,
    name: Annotated[str, _about("of the new branch", min_length=1)],
    ref: Annotated[str | None, _about("a snapshot or another branch; without one the present state")] = None,
) -> Iterable[str]:
    """Make a branch: all files again below /.fusebackend/branches/NAME, where changes stay until they are merged."""
    made = await files.acreate_branch(name, ref)
    name = name_shown(made.name)
    return [f"branch {name}: its files are below /.fusebackend/branches/{name}"]


@_tool("merge_branch", destroys=True)
async def branch_merge(
    files: Client,
    *,
    name: Annotated[str, _about("of the branch", min_length=1)],
    paths: Annotated[Sequence[str], _about("only what is at and below these, with paths as in the mount")] = (),
    keep: Annotated[Literal["main", "branch"] | None, _about("whose side wins where both changed")] = None,
    merge_lines: Annotated[bool, _about("merge by lines where both changed")] = False,
    dry_run: Annotated[bool, _about("only say what would be done")] = False,
) -> Iterable[str]:
    """Merge the changes of a branch into the mount: all of them, or none where both sides changed the same file."""
    done = await files.amerge_branch(name, list(paths) or None, keep, merge_lines, dry_run)
    what = f"{name_shown(name)} is merged" + (" (dry run)" if dry_run else "")
    return _changed(done, what, "nothing was merged; keep or merge_lines decide it")


@_tool("delete_branches", destroys=True)
async def branch_delete(files: Client, *, name: Annotated[str, _about("of the branch", min_length=1)]) -> Iterable[str]:
    """Delete a branch with all of its changes that are not merged."""
    await files.adelete_branches(name)
    return [f"branch {name} is deleted"]


# -- of all tools -----------------------------------------------------------------------------------------------------


def page(lines: Iterable[str], begin: int) -> str:
    """The part of an answer from line `begin` on that fits, and at its end how to go on."""
    fitting: list[str] = []
    left = PAGE_CHARACTERS
    for number, line in enumerate(lines):
        if number < begin:
            continue
        if len(line) > LINE_CHARACTERS:
            line = f"{line[:LINE_CHARACTERS]}… ({len(line)} characters)"
        left -= len(line) + 1
        if left < 0:
            fitting.append(f"(more: cursor={number})")
            break
        fitting.append(line)
    return "\n".join(fitting).encode("utf-8", "backslashreplace").decode() or "(nothing)"  # output of others' backends


def check(error: str | None) -> None:
    """Raise `Refused` for the error of a record, if there is one."""
    if error is not None:
        raise Refused(error)


def _changed(done: UndoResult | RestoreResult | MergeResult, what: str, refusal: str) -> list[str]:
    """The lines of `what` was done. Raises `Refused` with the conflicts and the refusal, if it was not."""
    if done.conflicts:
        raise Refused("\n".join([*(f"{each.path}: {each.reason}" for each in done.conflicts), refusal]))
    ends = [[name_shown(path) for path in (each.old_path, each.path) if path] for each in done.changes]
    changes = [f"{each.change}\t{' -> '.join(names)}" for each, names in zip(done.changes, ends, strict=True)]
    return [what, *changes, *map(shown, done.partly)]


def _gaps(truncated: bool, missing: str | None) -> list[str]:
    return [
        *(["(not all were found: search for less)"] if truncated else []),
        *([f"({shown(missing)})"] if missing else []),
    ]


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).isoformat(timespec="seconds")
