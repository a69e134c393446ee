"""Records that verbs answer with. A verb never raises for a bad path: `error` is its message.

Names and attributes follow deepagents 0.7. The last ones are answers that only a live mount gives.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from fusebackend.base.lines import split_lines
from fusebackend.protocol.actors import Actor

__all__ = [
    "READ_LIMIT_LINES",
    "WORKTREE",
    "ApprovalInfo",
    "BlameResult",
    "BlamedLine",
    "BranchInfo",
    "CallInfo",
    "ChangeInfo",
    "ContextLine",
    "DeleteResult",
    "EditResult",
    "ErrorCode",
    "ExecuteResponse",
    "Explained",
    "FileData",
    "FileDownloadResponse",
    "FileInfo",
    "FileRange",
    "FileUploadResponse",
    "ForgetResult",
    "GlobResult",
    "GrepMatch",
    "GrepResult",
    "LimitInfo",
    "LsResult",
    "MergeResult",
    "MoveResult",
    "PruneResult",
    "PrunedThread",
    "ReadResult",
    "RestoreResult",
    "SnapshotInfo",
    "SpaceInfo",
    "StatResult",
    "StatsResult",
    "ThreadSize",
    "UndoConflict",
    "UndoResult",
    "UndoneChange",
    "VerifyResult",
    "ViewInfo",
    "WriteResult",
]  # fmt: skip

ErrorCode: TypeAlias = Literal["file_not_found", "permission_denied", "is_directory", "invalid_path"]
"""The four codes every backend knows; a backend may answer with another string of its own."""

MARKER_WIDTH = 6
"""Columns of a line number in the seeds' numbered text of a file."""

LINE_CHARACTERS = 5000
"""Longer lines are continued under markers `n.1`, `n.2` (seeds)."""

EMPTY_REMINDER = "System reminder: File exists but has empty contents"
NO_LINES_REMINDER = "System reminder: no lines were read because the limit asks for none"

WORKTREE = "worktree-"
"""The names of branches begin so that a coding agent has as worktrees. A merge leaves their `.git` to git."""

READ_LIMIT_LINES = 2000
"""Lines that `read` returns when the caller names no limit (seeds and deepagents agree)."""


class FileInfo(TypedDict):
    """One file or directory in a listing. The path of a directory ends with `/`."""

    path: str
    is_dir: NotRequired[bool]
    size: NotRequired[int]  # bytes
    modified_at: NotRequired[str]  # ISO 8601, UTC, with offset
    read_only: NotRequired[bool]  # it can never be written
    version: NotRequired[str]  # in answers of `ls` where it costs nothing (`protocol/versions.py`)


class ContextLine(TypedDict):
    """A line beside a match."""

    line: int
    text: str


class GrepMatch(TypedDict):
    """One matching line. `line` counts from 1; `text` is the line without its newline. Lines of the context are there
    if they were asked for (`FilesystemBackend.grep`), without those that match themselves."""

    path: str
    line: int
    text: str
    context_before: NotRequired[list[ContextLine]]
    context_after: NotRequired[list[ContextLine]]


class FileData(TypedDict):
    """A file's content as it is kept in state and stores (deepagents "v2").

    `content` is text when `encoding` is `utf-8`, and the base64 of the bytes when it is `base64`. Version 1 kept a
    list of lines and no encoding; `text.decode_file_data` reads both.
    """

    content: str
    encoding: NotRequired[str]
    created_at: NotRequired[str]
    modified_at: NotRequired[str]


@dataclass
class LsResult:
    """The entries that `ls` found, sorted by path; or its error."""

    error: str | None = None
    entries: list[FileInfo] | None = None


@dataclass
class ReadResult:
    """A window of a file's lines.

    `start_line` and `end_line` count from 1 and are absent where no window applies (binary files, empty files,
    errors). `next_offset` is the `offset` that continues, or None when the window reaches the end of the file.

    `version` is that of the whole file (`protocol/versions.py`).

    `str(result)` is the numbered text that the seeds' `read` returned, and `"x" in result` searches that text.

    Raises:
        ValueError: the window makes no sense (deepagents refuses the same): a reader that went on at a wrong
            `next_offset` would miss lines.
    """

    error: str | None = None
    file_data: FileData | None = None
    total_lines: int | None = None
    start_line: int | None = None
    end_line: int | None = None
    next_offset: int | None = None
    no_lines_requested: bool = False
    version: str | None = None

    def __post_init__(self) -> None:
        window = (self.start_line, self.end_line, self.total_lines, self.next_offset)
        if window == (None, None, None, None):
            if self.no_lines_requested and self.error is not None:
                raise ValueError("ReadResult: no_lines_requested is no error")
            return
        if self.no_lines_requested:
            raise ValueError("ReadResult: there is no window where no lines were requested")
        start, end, total, following = window
        if start is None or end is None:
            raise ValueError(
                "ReadResult: start_line and end_line come together, and total_lines and next_offset with them"
            )
        if not 1 <= start <= end or (total is not None and total < end):
            raise ValueError(f"ReadResult: lines {start} to {end} of {total} are no window")
        if following is not None and following != end:
            raise ValueError(f"ReadResult: next_offset is {following} after line {end}")

    def __str__(self) -> str:
        """The text that the seeds' `read` returned: numbered lines, a reminder, `Error: …`, or base64 as it is."""
        if self.error is not None:
            return self.error if self.error.startswith("Error: ") else f"Error: {self.error}"
        if self.no_lines_requested:
            return NO_LINES_REMINDER
        content = self.file_data["content"] if self.file_data is not None else ""
        if self.start_line is None and not content.strip():
            return EMPTY_REMINDER
        if self.file_data is not None and self.file_data.get("encoding") == "base64":
            return content
        return number_lines(split_lines(content), self.start_line or 1)

    def __contains__(self, needle: str) -> bool:
        return needle in str(self)


def number_lines(lines: Iterable[str], start_line: int = 1) -> str:
    """Lines under right-aligned markers, each followed by a TAB."""
    numbered: list[str] = []
    for number, line in enumerate(lines, start=start_line):
        numbered.append(f"{number:>{MARKER_WIDTH}}\t{line[:LINE_CHARACTERS]}")
        for part, begin in enumerate(range(LINE_CHARACTERS, len(line), LINE_CHARACTERS), start=1):
            marker = f"{number}.{part}"
            numbered.append(f"{marker:>{MARKER_WIDTH}}\t{line[begin : begin + LINE_CHARACTERS]}")
    return "\n".join(numbered)


@dataclass
class ChangeResult:
    """The outcome of a verb that changes files."""

    error: str | None = None
    path: str | None = None
    files_update: dict[str, Any] | None = None
    version: str | None = field(default=None, kw_only=True)


class WriteResult(ChangeResult):
    """The outcome of `write`. `files_update` is the state update of a state-backed backend, None elsewhere.

    `version` is the present one where a change with a condition came too late, here and in the records below.
    """


@dataclass
class EditResult(ChangeResult):
    """The outcome of `edit`; `occurrences` is how many replacements were made."""

    occurrences: int | None = None


class DeleteResult(ChangeResult):
    """The outcome of `delete`. In `files_update` a deleted path maps to None."""


class MoveResult(ChangeResult):
    """The outcome of `move`; `path` is where the file or directory is now."""


@dataclass
class GrepResult:
    """Matches sorted by path and line. `truncated` is True when a limit cut them short.

    `missing` names the parts that were not searched: one of several backends that failed, or files that a backend
    leaves out by rule, as the histories of threads; then `truncated` is not set for it.
    """

    error: str | None = None
    matches: list[GrepMatch] | None = None
    truncated: bool = False
    missing: str | None = None


@dataclass
class GlobResult:
    """Matching regular files sorted by path. `truncation_reason` is `budget`, `unreadable` or `transport`; `missing`
    is as in `GrepResult`."""

    error: str | None = None
    matches: list[FileInfo] | None = None
    truncated: bool = False
    truncation_reason: str | None = None
    missing: str | None = None


@dataclass
class FileUploadResponse:
    """One file of an `upload_files` batch. `error` is an `ErrorCode` or a string of the backend's own."""

    path: str
    error: str | None = None
    files_update: dict[str, Any] | None = None
    version: str | None = None


@dataclass
class FileDownloadResponse:
    """One file of a `download_files` batch: its bytes with their version, or an error."""

    path: str
    content: bytes | None = None
    error: str | None = None
    version: str | None = None


@dataclass
class ExecuteResponse:
    """The output of a shell command. `exit_code` is 124 after a time-out, None when it is not known."""

    output: str
    exit_code: int | None = None
    truncated: bool = False


FILE_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}
"""The words of `StatResult.type`, by the type bits of st_mode."""


@dataclass
class StatResult:
    """The attributes of a path, as stat(2) gives them: sizes in bytes, times in nanoseconds since 1970.

    `type` is `file`, `directory`, `symlink`, `fifo`, `socket`, `character device` or `block device`; `mode` has the
    permission bits alone. `route` is the prefix of the backend that holds it. A directory that exists only because a
    route's prefix runs through it has no times. Where there is an `error`, `code` says it as an `ErrorCode` does.
    """

    error: str | None = None
    path: str | None = None
    type: str | None = None
    size: int | None = None
    mode: int | None = None
    nlink: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None
    target: str | None = None
    route: str | None = None
    code: str | None = None
    version: str | None = None


@dataclass
class FileRange:
    """Bytes of a file. `size` (in bytes), `mtime_ns` and `ctime_ns` (since 1970) are those of the file after the read:
    where they are what they were before, the bytes are of that version."""

    content: bytes
    size: int
    mtime_ns: int
    ctime_ns: int


@dataclass
class StatsResult:
    """The answer of `stats`: a `StatResult` for each entry of a directory, sorted by path."""

    error: str | None = None
    entries: list[StatResult] | None = None


@dataclass
class SnapshotInfo:
    """A snapshot of a mount: its name, when it was taken (nanoseconds since 1970), the prefixes of the routes that are
    in it, and the path of its tree, below the mount point."""

    name: str
    time_ns: int
    routes: list[str]
    path: str


@dataclass
class ViewInfo:
    """A view of a mount.

    Attributes:
        name: of the view.
        rules: each with `operations`, `paths` and `mode`, in their order.
        path: of its tree, below the mount point.
        is_default: commands, and clients that name no view, see the mount through it.
    """

    name: str
    rules: list[dict[str, Any]]
    path: str
    is_default: bool = False


@dataclass
class Explained:
    """What a view does about an operation on a path.

    Attributes:
        mode: `allow`, `deny`, `interrupt`, `hide` or `append`.
        rule: the number of the rule that decides, from 1; None if none matches, which allows.
        path: what the rule matches: the path, or a directory on its way that is hidden.
    """

    mode: str
    rule: int | None
    path: str


@dataclass
class BranchInfo:
    """A branch of a mount.

    Attributes:
        name: of the branch.
        time_ns: when it was made (nanoseconds since 1970).
        routes: prefix → `frozen`, below the branch is a snapshot of the route; `live`, the route itself is.
        changes: names that are new, gone, or lead to a file that was changed.
        size_bytes: of its file on disk.
        path: of its tree, below the mount point. An answer without it, of an older server, is an error: nothing that
            was meant for a branch may reach the mount.
        conflicts: changed files that the mount has changed as well, undecided; None where that is not known.
        unmerged: changes that a merge would make, without conflicts; None where that is not known.
        error: why it can't be used; None if it can.
        directory: the plain directory that it was put into; None if it is in none.
    """

    name: str
    time_ns: int
    routes: dict[str, str]
    changes: int
    size_bytes: int
    path: str
    conflicts: int | None = None
    unmerged: int | None = None
    error: str | None = None
    directory: str | None = None


@dataclass
class CallInfo:
    """A call: what one actor did in one go.

    `call` is its name, `c42`. `kind` is `verb`, `command`, `tool`, `session`, `undo`, `restore`, `merge`, or one of
    `request`, `approval`, `denial`, which change no file. `title` is one line for people. Times are nanoseconds since
    1970; `ended_ns` is None while it goes on. `changes` is the number of its records. `undoes` are the calls that an
    undo took back; `undone_by` is the undo that took this one back.
    """

    call: str
    kind: str
    title: str
    actor: Actor
    began_ns: int
    ended_ns: int | None = None
    changes: int = 0
    undoes: list[str] = field(default_factory=list)
    undone_by: str | None = None


@dataclass
class ChangeInfo:
    """A change of a call, as `log --changes` shows it.

    `number` grows with time, over all calls. `change` is `create`, `remove`, `rename`, `exchange`, `content` or
    `attributes`. Paths are those of the mount; `to_path` is there for `rename` and `exchange`. `type` and `size` are
    those of the file before the change, None where there was none. `kept` says where its bytes are: in a `snapshot`,
    in a `file` of the history, or `lost`, for the reason in `why_lost`; None where none were replaced.
    """

    number: int
    call: str
    time_ns: int
    change: str
    path: str
    to_path: str | None = None
    type: str | None = None
    size: int | None = None
    kept: str | None = None
    why_lost: str | None = None


@dataclass
class UndoneChange:
    """What an undo did to a path. `change` is `create`, `replace`, `remove`, `rename`, `attributes` or `merge` (by
    lines); `old_path` is there for `rename`."""

    change: str
    path: str
    old_path: str | None = None


@dataclass
class ApprovalInfo:
    """A change that a verb has asked for in a view, and that needs an approval.

    `state` is `pending`, `approved` (it is being made), `made`, `failed`, `denied`, `expired`, or `refused`: by the
    kernel, which can't wait. `verb` and `paths` are what was asked, through `view`, by `actor`; `title` says it in a
    line, a command without its secrets. `size` has the bytes that are kept of it. `decided_ns` and `decided_by` are
    those of the decision, `reason` is that of a denial, or why the change could not be made. Times are nanoseconds
    since 1970. `change` shows the change as text, a patch where it can be one; it is there in the answer about one
    request.
    """

    number: int
    state: str
    verb: str
    paths: list[str]
    view: str
    actor: Actor
    time_ns: int
    expires_ns: int
    title: str = ""
    size: int = 0
    decided_ns: int | None = None
    decided_by: Actor | None = None
    reason: str | None = None
    change: str | None = None


@dataclass
class VerifyResult:
    """Whether the log is as it was written. `problems` are lines for people, empty if it is.

    `first` is the first link of the hash chain that is there: older ones were deleted with their calls. `last` is the
    last one, one less than `first` if all were.
    """

    first: int
    last: int
    problems: list[str] = field(default_factory=list)


@dataclass
class BlamedLine:
    """A line of a file: `calls` has the call that made it, or several where one of them did. `others` says that a
    change which the log does not have may have made it: an older one, or one past the mount."""

    text: str
    calls: list[str]
    others: bool = False


@dataclass
class BlameResult:
    """Which calls left a file as it is.

    `last` is the call that changed its bytes last, None if the log has none. `lines` is None for a file that is not
    compared by lines: it is binary, or large. `calls` are all calls that `last` and `lines` name, by their names.
    """

    path: str
    last: str | None = None
    lines: list[BlamedLine] | None = None
    calls: dict[str, CallInfo] = field(default_factory=dict)


@dataclass
class UndoConflict:
    """A path that an undo does not take back: `reason` is one line for people, `call` the later call that changed the
    path, None where it is not known."""

    path: str
    reason: str
    call: str | None = None


@dataclass
class UndoResult:
    """The outcome of `undo`.

    With `conflicts`, nothing was changed. `calls` are those that were taken back, `undo` is the call that did it, which
    an undo of its own takes back; None when nothing was changed. `kept` are the paths that were left as they are, with
    `keep_newer`. `partly` has what could not be kept on the way, a line each, such as an owner.
    """

    calls: list[str]
    undo: str | None = None
    changes: list[UndoneChange] = field(default_factory=list)
    kept: list[UndoConflict] = field(default_factory=list)
    conflicts: list[UndoConflict] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)


@dataclass
class MergeResult:
    """The outcome of `merge_branch`.

    With `conflicts`, nothing was changed. `call` is the merge as a call, which `undo` takes back; None when nothing was
    changed, and without a history. `changes` are those of the mount; `decided` are conflicts that were decided for one
    side. `partly` has what could not be carried over, a line each, such as permissions in a bucket. `repositories` are
    directories whose `.git` differs in the branch, and was left as it is: of a worktree (`WORKTREE`) alone.
    """

    branch: str
    call: str | None = None
    changes: list[UndoneChange] = field(default_factory=list)
    decided: list[UndoConflict] = field(default_factory=list)
    conflicts: list[UndoConflict] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)


@dataclass
class RestoreResult:
    """What `restore` did, or would do.

    `ref` is the state that it restored from, `call` the restore itself as a call. `changes` are what was put back
    (`create`, `replace`, `link`, `remove`, `attributes`), `skipped` the paths that were left alone. With `conflicts`,
    files that are open for writing, nothing was changed. `partly` says what could not be kept. `left_alone` are the
    prefixes of routes of which that state holds nothing.
    """

    ref: str
    call: str | None = None
    changes: list[UndoneChange] = field(default_factory=list)
    skipped: list[UndoConflict] = field(default_factory=list)
    conflicts: list[UndoConflict] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)


@dataclass
class LimitInfo:
    """What a route with limits holds, and what is left of them. None where it has no such limit."""

    route: str
    used_bytes: int
    limit_bytes: int | None
    left_bytes: int | None
    used_files: int
    limit_files: int | None
    left_files: int | None


@dataclass
class SpaceInfo:
    """What a mount takes of the disk, in bytes.

    `live` are the files as they are, `snapshots` the bytes that only snapshots have, `images` those that calls replaced
    and that no snapshot has, `branches` the files of branches, `log` the file of calls and records. `reclaimable` is
    what `prune` would free of all that. None where it is not known. `limits` are those of the routes that have any.
    """

    live: int | None = None
    snapshots: int | None = None
    images: int | None = None
    branches: int | None = None
    log: int | None = None
    reclaimable: int | None = None
    limits: list[LimitInfo] = field(default_factory=list)


@dataclass
class ForgetResult:
    """What `forget` made the past of a mount forget, or would.

    `paths` are those that were asked for, `live` the files that are there now and stay, `snapshots` and `branches` the
    names of those that had versions of the files, `images` the number of versions that calls replaced. `unknown` are
    the paths of which nothing was kept; free space is erased for them all the same. `left` says where bytes may still
    be, a line each.
    """

    paths: list[str]
    live: list[str] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    images: int = 0
    unknown: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass
class PrunedThread:
    """What `prune_threads` deleted of a thread, or would delete.

    `checkpoints` are so many, with `bytes` that are given back to the database. `kept` stay and read as before, `links`
    stay as well, with `held_bytes`, for these follow from them.
    """

    thread: str
    checkpoints: int
    bytes: int
    kept: int
    links: int
    held_bytes: int


@dataclass
class ThreadSize:
    """The bytes that a thread takes in its database, or one of its channels, steps or namespaces, by `name`."""

    thread: str
    bytes: int
    name: str | None = None


@dataclass
class PruneResult:
    """What `prune` deleted, or would delete: automatic snapshots, the number of calls, and the bytes of images."""

    snapshots: list[str] = field(default_factory=list)
    calls: int = 0
    bytes: int = 0
