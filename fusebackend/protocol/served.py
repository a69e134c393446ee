"""The verbs of a mount, declared once: signature, documentation, and what each door to them has to know.

`MountProtocol` has a method for each, without a body. `server/mounted.py` implements them. Everything else follows from
the table `SERVED`: the `a…` form of each, its parameters and call on the control socket
(`control/verbs.py`), its methods of a client (`control/client/client.py`), whether a view has it (`server/mounted.py`),
what is measured (`server/metrics.py`), and the pages of reference (`scripts/declared.py`).

A new verb is a method here with `@verb`, and a method of the same name in `MountedBackend`.
"""

# The decorator makes the bodies.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from fusebackend.protocol.agent import SandboxBackendProtocol, absent, async_twin
from fusebackend.protocol.awaited import Awaited
from fusebackend.protocol.records import (
    ApprovalInfo,
    BlameResult,
    BranchInfo,
    CallInfo,
    ChangeInfo,
    ExecuteResponse,
    Explained,
    FileRange,
    ForgetResult,
    MergeResult,
    PrunedThread,
    PruneResult,
    RestoreResult,
    SnapshotInfo,
    SpaceInfo,
    StatResult,
    StatsResult,
    ThreadSize,
    UndoResult,
    VerifyResult,
    ViewInfo,
)
from fusebackend.protocol.verbs import VERBS, Declared

if TYPE_CHECKING:
    from fusebackend.protocol.branch import Branch

__all__ = ["PLAIN", "SERVED", "MountProtocol", "OnOutput"]

DiffForm: TypeAlias = Literal["patch", "stat", "names", "json"]

OnOutput: TypeAlias = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Called with what a command prints, as it comes."""

STAT_COLUMNS = 80
"""Width of `diff` with `form="stat"`, unless its caller asks for another one."""

NOT_HELD = "not both states hold it"
"""Why `diff` did not compare a route."""

LOGGED_CALLS = 100
"""Calls that one answer of `log` has, unless its caller asks for another number."""

LISTED_CHANGES = 1000
"""Changes that one answer of `changes` has, likewise."""

MAX_CONTENT_BYTES = 8 << 20
"""How much content of files one answer over the socket carries that does not stream."""

F = TypeVar("F", bound=Callable[..., Any])


SERVED: dict[str, Declared] = {}
"""By name: the verbs of backends, of places that run commands, and of mounts."""

PLAIN = Declared("", in_view=True)
"""What nothing special is known of, such as `ping`."""


def verb(**flags: Any) -> Callable[[F], F]:
    """Declare a verb; `flags` are the attributes of `Declared`. A mount that does not implement it says so."""

    def declare(method: F) -> F:
        name = method.__name__
        SERVED[name] = Declared(name, method=method, **{"long": flags.get("command", False), **flags})
        return absent(method)

    return declare


for _name, _verb in VERBS.items():
    SERVED[_name] = replace(_verb, method=getattr(SandboxBackendProtocol, _name), in_view=True, in_record=True)
SERVED["execute"] = Declared(
    "execute",
    method=SandboxBackendProtocol.execute,
    long=True,
    works=False,
    command=True,
    has_actor=True,
    in_view=True,
    within=("run",),
)
SERVED["real_paths"] = Declared("real_paths", method=SandboxBackendProtocol.real_paths, long=True, in_view=True)


class MountProtocol(SandboxBackendProtocol, Awaited):
    """The agent face of a mount, and the verbs of mounts alone.

    Paths are those that agents use. A verb of `BackendProtocol` never raises for a bad path, and nor do `stat` and
    `stats`: their records have `error`. The others raise; from a client also `ServerLost`, where its server can't be
    reached or was gone before it answered (what it did is in the log), and EROFS where the mount is read-only.

    Attributes:
        mountpoint: where it is mounted, as an absolute path.
        is_mounted: False where only the verbs are served; `mountpoint` then stands for what is served.
    """

    mountpoint: str
    is_mounted: bool = True

    # -- files -------------------------------------------------------------------------------------------------

    @verb(works=False, in_view=True, in_record=True)
    def stat(self, path: str, *, follow: bool = False) -> StatResult:
        """Return the attributes of a path; a symbolic link itself, unless `follow` says otherwise."""

    @verb(long=True, in_view=True, in_record=True)
    def stats(self, path: str) -> StatsResult:
        """`stat` of each entry of a directory, in one answer, `path` as `ls` gives it. A file that has gone has an
        error."""

    @verb(in_view=True, limits={"offset": {"ge": 0}, "size": {"ge": 0, "le": MAX_CONTENT_BYTES}})
    def read_range(self, path: str, offset: int, size: int) -> FileRange:
        """Return bytes of a file from `offset` on: at most `size`, which is 8 MiB at most; fewer at its end alone.

        Raises:
            ValueError: the path is malformed, or offset or size are out of range.
            OSError: ENOENT, EISDIR, EACCES, or the backend's.
        """

    @verb(changes=True, long=True, in_view=True, within=("append_from",))
    def append(self, path: str, pieces: Iterable[bytes]) -> None:
        """Add pieces at the end of a file, all at once when they have arrived. The file is made if absent. In a view
        that interrupts writing it is refused.

        Raises:
            ValueError: the path is malformed.
            OSError: EISDIR, EACCES, EROFS, ESTALE (changed by others meanwhile, where a backend stores whole files), or
                the backend's.
        """

    @verb(changes=True, in_view=True)
    def make_directory(self, path: str, *, parents: bool = False) -> None:
        """Make a directory; with `parents` also those on the way. In a view that interrupts writing it is refused.

        Raises:
            ValueError: the path is malformed.
            OSError: EEXIST, ENOENT (no directory to make it in), ENOTDIR, EACCES, EROFS, or the backend's.
        """

    @verb(changes=True, in_view=True)
    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. In a view that interrupts writing it is refused.

        Raises:
            ValueError: the path is malformed.
            OSError: ENOENT, ENOTDIR, ENOTEMPTY, EBUSY (a route is there or below), EACCES, EROFS, or the backend's.
        """

    @absent
    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        cwd: str = "/",
        on_output: OnOutput | None = None,
    ) -> ExecuteResponse:
        """Run a command where the default backend runs them, else in a sandbox whose root is the mount, with every
        route at the path that the other verbs use: `execute` with everything that a command can be given.

        Args:
            timeout: in seconds, after which it is ended, with the exit code 124.
            stdin: what it reads; nothing when None.
            cwd: the directory that it starts in, as agents name it.
            on_output: called with what it prints, as it comes.

        Raises:
            ValueError: `timeout` is not above 0, or above the maximum of the place where commands run.
        """

    # -- the mount ---------------------------------------------------------------------------------------------

    @verb(works=False, in_view=True)
    def status(self) -> dict[str, Any]:
        """Return the mount as `fusebackend status --json` shows it."""

    @verb()
    def metrics(self) -> str:
        """Return what is measured of the mount, in the text format of Prometheus. Where the mount was made without
        metrics, that is what is counted anyway.

        Raises:
            OSError: ENOTSUP, prometheus-client is not installed.
        """

    @verb(works=False)
    def invalidate(self, path: str = "/") -> None:
        """Forget everything that is cached at and below `path`, regardless of its TTL, because others have changed it.

        Raises:
            PathError: the path is malformed.
            OSError: a route did not answer in time; the others are done.
        """

    @verb()
    def snapshots(self) -> list[SnapshotInfo]:
        """Return the snapshots of the mount, the oldest first. Each is a tree in `/.fusebackend/snapshots`."""

    @verb(changes=True, long=True)
    def create_snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Take a snapshot of every route that keeps any: of all of them or, after an error, of none.

        Args:
            name: of the snapshot, as that of a file; the time in UTC, as `20261123T061530Z`, when None.

        Raises:
            ValueError: the name can't be that of a snapshot.
            OSError: EEXIST, there is one of that name; ENOTSUP, the mount keeps none; or a volume's error.
        """

    @verb(changes=True, long=True)
    def delete_snapshots(self, *names: str) -> None:
        """Delete snapshots.

        Raises:
            OSError: ENOENT, one of them is not there, and none was deleted; or a volume's error.
        """

    @verb(works=False, in_view=True)
    def views(self) -> list[ViewInfo]:
        """Return the views of the mount. Each is a tree in `/.fusebackend/views`."""

    @verb(in_view=True)
    def explain(self, view: str, operation: str, path: str) -> Explained:
        """Return what a view does about an operation on a path, and why.

        Args:
            view: its name.
            operation: `read` or `write`.
            path: as agents name it; it need not exist.

        Raises:
            ValueError: there is no such operation, or the path is malformed.
            OSError: ENOENT, there is no such view.
        """

    @verb(works=False)
    def view_socket(self, name: str) -> str:
        """Return the path of a socket whose clients see the mount through a view, and can't leave it. It is made when
        it is first asked for, with mode 0600, and ends with the mount. `connect` takes the path.

        Args:
            name: of the view.

        Raises:
            OSError: ENOENT, there is no such view; EPERM, this is the mount through a view itself; ENOTCONN, the mount
                has no control socket, or has ended.
        """

    @verb()
    def approvals(self) -> list[ApprovalInfo]:
        """Return the changes that wait for an approval, and those that were decided in the last day, by number."""

    @verb(long=True)
    def approval(self, number: int) -> ApprovalInfo:
        """Return a request, with its change as text: a patch against the file as it is now, where it can be one.

        Raises:
            OSError: ENOENT, there is no request of that number.
        """

    @verb(changes=True, command=True, works=False)
    def approve(self, number: int) -> ApprovalInfo:
        """Approve a request, and have its change happen: once, as it was asked for. The caller that waits for it gets
        its answer.

        Returns:
            The request: `made`; or `failed`, and `reason` says why it could not happen any more.

        Raises:
            OSError: ENOENT, there is no request of that number; EALREADY, it was decided before.
        """

    @verb()
    def deny(self, number: int, reason: str | None = None) -> ApprovalInfo:
        """Deny a request: it will not happen.

        Args:
            reason: a line for the agent that asked.

        Raises:
            OSError: as `approve`.
        """

    @verb(long=True)
    def branches(self) -> list[BranchInfo]:
        """Return the branches of the mount, by name. Each is a tree in `/.fusebackend/branches`."""

    @verb(changes=True, long=True)
    def create_branch(
        self, name: str, ref: str | None = None, directory: str | os.PathLike[str] | None = None
    ) -> BranchInfo:
        """Make a branch: a tree of all files, in which changes stay until they are merged. No bytes are copied, but
        into `directory`.

        Args:
            name: of the branch, as that of a directory.
            ref: the state that it begins with: another branch as it is now; a call, for the state before it; a time
                such as `10m`; or a snapshot, for the routes that it holds. The present when None.
            directory: a directory of the server's machine, in which the branch is put: a plain copy, empty or new
                before, or one that has held a branch, where only what differs is copied. What is changed there
                is taken in by `take_in_branch`, and before a merge. A branch that there is is put there as it is. Of a
                client the path may be relative.

        Raises:
            ValueError: the name can't be that of a branch, or nothing is meant by `ref`.
            OSError: EEXIST, there is a branch or a snapshot of that name; ENOENT, there is no such call; ENODATA, not
                all that was changed since is known; ENOTSUP, the mount has no branches, or no history to know it;
                ENOTEMPTY, the directory holds something else; or an error of a volume, or of the branch's file.
        """

    @verb(changes=True, long=True)
    def take_in_branch(self, name: str) -> None:
        """Take the changes in the plain directory of a branch into the branch, if it is in one.

        Raises:
            OSError: ENOENT, there is no such branch, or its directory is gone; ESTALE, a file was changed there and in
                the branch's own tree; or an error of the file system.
        """

    @verb(changes=True, long=True)
    def delete_branches(self, *names: str) -> None:
        """Delete branches, with all that is in them.

        Raises:
            OSError: ENOENT, one of them is not there, and none was deleted; or an error of the branch's file.
        """

    def branch(
        self,
        name: str | None = None,
        ref: str | None = None,
        *,
        keep: Literal["main", "branch"] | None = None,
        merge_lines: bool = False,
        on_error: Literal["keep", "discard"] = "keep",
    ) -> Branch:
        """Return a branch for the length of a `with` or `async with` block, as a backend whose root is the branch. At
        the end of the block it is merged and deleted; after an exception it is kept, or discarded.

        Args, Raises: see `protocol.branch.Branch`.
        """
        from fusebackend.protocol.branch import Branch

        return Branch(self, name, ref, keep=keep, merge_lines=merge_lines, on_error=on_error)

    @verb(changes=True, long=True)
    def merge_branch(
        self,
        name: str,
        paths: list[str] | None = None,
        keep: Literal["main", "branch"] | None = None,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> MergeResult:
        """Merge a branch into the mount: make its changes there, as far as the mount has none of its own.

        What both have changed is a conflict, and nothing is changed then. A merge that was interrupted is completed by
        the same call. The branch stays.

        Args:
            name: of the branch.
            paths: only what lies at or below one of these; everything when None.
            keep: decide conflicts for this side, as a whole.
            merge_lines: merge the lines of text files that both have changed.
            dry_run: change nothing.

        Raises:
            ValueError: a path is malformed.
            OSError: ENOENT, there is no such branch; ESTALE, it can't be used; ENOTSUP, the mount has no branches; or
                an error of a volume.
        """

    @verb(long=True)
    def log(
        self,
        calls: Sequence[str] = (),
        *,
        by: str | None = None,
        since: int | str | None = None,
        paths: Sequence[str] = (),
        before: str | None = None,
        ended_after_ns: int | None = None,
        limit: int = LOGGED_CALLS,
        branch: str | None = None,
    ) -> list[CallInfo]:
        """Return calls that changed something, the newest first.

        Args:
            calls: the names of those that are asked for, in this order; the others count for nothing then.
            by: the agent, thread, tool call or program of their actor, or its user id.
            since: only those that were going on at this time or later: in ns since 1970, or as a text: `10m`, `14:05`,
                `yesterday` (its begin), `2026-11-22T14:05`.
            paths: only those that changed something at or below one of these.
            before: only those that are older than the one of this name.
            ended_after_ns: only those that ended after this time, in the order of their ends. No two end at the same
                time, so that of the last one is where to go on.
            limit: at most so many, and at most 10,000.
            branch: those that changed something in this branch instead of in the mount; `paths` are of the branch.

        Raises:
            ValueError: a name is none of a call, `since` is no time, or a path is malformed.
            OSError: ENOENT, there is no such call; ENOTSUP, the mount keeps no history.
        """

    @verb(long=True)
    def changes(
        self, call: str | None = None, *, after: int = 0, limit: int = LISTED_CHANGES, branch: str | None = None
    ) -> list[ChangeInfo]:
        """Return the changes of a call, in their order.

        Args:
            call: its name; None for the changes of all calls.
            after: only those with a higher number: how to go on after `limit` of them. A negative one counts from the
                end: -1 is for the newest change.
            branch: of a call, those in this branch, with its paths; or all in this branch.

        Raises:
            ValueError, OSError: as `log`.
        """

    @verb(long=True)
    def diff(
        self,
        call: str,
        *,
        paths: Sequence[str] = (),
        form: DiffForm = "patch",
        columns: int = STAT_COLUMNS,
        on_text: Callable[[bytes], None] | None = None,
        on_skipped: Callable[[str, str], None] | None = None,
    ) -> str:
        """Return what a call did, and nothing of what others did; or how two states differ.

        Args:
            call: its name, `c42`; or `A..B`, two states, each a snapshot, a branch, a time, a call for the state before
                it, or `main`. `A` alone is compared with `main`.
            paths: only what is at and below these.
            form: `patch` as `git diff` has it, `stat`, `names` (`--name-status`), or `json`, an object a line.
            columns: of `stat`.
            on_text: takes the text in pieces of whole lines, as it comes; the answer is empty then.
            on_skipped: is told each path that was not compared, with the reason, and each route, with the reason
                `NOT_HELD`; the text has no routes then.

        Raises:
            ValueError: it names no call and no state.
            OSError: ENOENT, there is no such call, or it did not change one of the paths, or a path is in neither
                state; ENOTSUP, the mount keeps no history; ENODATA, it lacks changes since the call, or a state holds
                nothing of a path.
        """

    @verb(long=True)
    def verify_log(self) -> VerifyResult:
        """Check by its hash chain that the log is as it was written; see `history/events.py` for what that proves.

        Raises:
            OSError: ENOTSUP, the mount keeps no history; or it can't be read.
        """

    @verb(long=True)
    def blame(self, path: str, *, branch: str | None = None) -> BlameResult:
        """Return which call left a file as it is, and each of its lines: for text files of up to 2 MiB.

        Where the bytes between calls are lost, a line has several candidates. Renames are followed. In a branch, what
        it has from below is by calls of the mount; by none if the branch was made from a state before the present.

        Args:
            path: of the file, also one in a branch (`/.fusebackend/branches/NAME/…`).
            branch: the path is one of this branch.

        Raises:
            ValueError: the path is malformed.
            OSError: ENOENT, EISDIR; EINVAL, it is no regular file; ENOTSUP, the mount keeps no history; or an error of
                the volume.
        """

    @verb(changes=True, long=True, limits={"calls": {"min_length": 0}})
    def undo(
        self,
        *calls: str,
        by: str | None = None,
        thread: str | None = None,
        since: int | str | None = None,
        branch: str | None = None,
        keep_newer: bool = False,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> UndoResult:
        """Take calls back: everything that they changed, in the mount and in branches, or nothing.

        What a later call has changed as well is a conflict: the answer names it, and nothing was changed.

        Args:
            calls: their names. Without one it is the newest call that changed something in the mount, by anybody, that
                is no undo and not undone.
            by: without a name: those of this actor, as of `log`: the newest one, or with `since` all.
            thread: without a name: all of this conversation.
            since: without a name: this call, by its name, and all after it; or all that were going on at a time or
                later, as of `log`.
            branch: without a name: the newest call with changes in this branch.
            keep_newer: leave what was changed since as it is, and take back the rest.
            merge_lines: take the lines of the call out of text files that were changed since.
            dry_run: change nothing; the answer says what would be done.

        Raises:
            ValueError: a name is none of a call, `since` is neither a call nor a time, or `keep_newer` and
                `merge_lines` are both given; or names and what chooses them.
            OSError: ENOENT, there is no such call; ENOTSUP, the mount keeps no history; or a volume's error, and
                nothing was changed.
        """

    @verb(works=False, has_actor=True)
    def begin_call(self, title: str, *, pid: int | None = None, id: str = "", agent: str = "", thread: str = "") -> str:
        """Have what a process and its descendants change belong to one call, until `end_call`.

        Args:
            title: one line for people, such as a command.
            pid: the process; None for this one.
            id: the caller's own name for the call, such as that of a tool call. `end_call` takes it, too.
            agent, thread: as of `Actor`; without them, and without `id`, those of `acting`, or of a LangGraph run.

        Returns:
            The id, which is made up where none was given. The call is in the log as soon as it changes something.

        Raises:
            OSError: ESRCH, there is no such process; ENOTSUP, the mount keeps no history.
        """

    @verb(works=False, has_actor=True)
    def end_call(self, id: str) -> str | None:
        """End a call of `begin_call`, or the present actor's tool call of that name, which else ends after 2 s of
        quiet. Returns its name in the log, such as `c42`; None if it has changed nothing, or if none goes on. OSError:
        ENOTSUP, as `log`."""

    @verb(long=True)
    def df(self) -> SpaceInfo:
        """Return what the mount takes of the disk."""

    @verb(changes=True, long=True)
    def prune(self, *, dry_run: bool = False) -> PruneResult:
        """Delete what is kept of the past, but for snapshots that were asked for: automatic ones, and the history with
        the bytes that an undo needs.

        Args:
            dry_run: delete nothing; the answer says what would go.

        Raises:
            OSError: a volume's error.
        """

    @verb(long=True, limits={"paths": {"min_length": 1}})
    def weigh_threads(self, *paths: str, by: Literal["channel", "step", "namespace"] | None = None) -> list[ThreadSize]:
        """Return what threads take in their checkpoint databases, the largest first, from sizes in SQL.

        Args:
            paths: of threads, and of routes of threads, for all in them.
            by: take each thread apart.

        Raises:
            ValueError: a path is malformed, or of something in a thread.
            OSError: ENOENT, there is no such thread; ENOTSUP, a path is in no route of threads, or these are those of a
                saver object; or the database's.
        """

    @verb(changes=True, long=True, limits={"paths": {"min_length": 1}})
    def prune_threads(
        self,
        *paths: str,
        keep: int | None = None,
        older: str | None = None,
        keep_steps: Sequence[str] = (),
        dry_run: bool = False,
        vacuum: bool = False,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> list[PrunedThread]:
        """Delete checkpoints of threads while agents run. The others read as before; it is a call that can't be undone.

        Args:
            paths: of threads, and of routes of threads, for all in them.
            keep: the newest so many of each thread stay.
            older: instead: those that are older go, such as `30d`. The newest one stays.
            keep_steps: the ids of others that stay.
            dry_run: delete nothing; the answer says what would go.
            vacuum: give the space back to the disk. Nobody can write meanwhile, and the database is there twice.
            on_progress: called with a thread, how many of its checkpoints have gone, and how many go.

        Raises:
            ValueError: as `weigh_threads`; `keep` and `older` are both given, or none is; `older` is no time.
            OSError: as `weigh_threads`; EROFS; EBUSY, others go on from what is to go; EIO, a checkpoint can't be read,
                and its thread is left as it is. The same call does the rest.
        """

    @verb(changes=True, long=True)
    def restore(
        self,
        paths: list[str],
        ref: str,
        *,
        to: list[str] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> RestoreResult:
        """Put files, directories and links back as they were, with all attributes. It is a call, which `undo` takes
        back.

        A directory is as it was afterwards: names that were not in it are removed. Routes of which the state holds
        nothing are left alone.

        Args:
            paths: what is restored.
            ref: the state: the name of a snapshot or branch, a time such as `10m`; a call for the state before it.
            to: another path for each of them, of which the directory must be there.
            dry_run: change nothing; the answer says what would be done.
            force: also files that are open for writing. Their open handles keep the old files.

        Raises:
            ValueError: a path is malformed, or nothing is meant by `ref`; `to` has another number of paths.
            OSError: ENOENT, a path is not in that state; ENOTSUP, the mount has no other states; ENODATA, bytes before
                a call are not known, and nothing was changed; EBUSY, the files change all the time; or an error of a
                volume: routes that keep snapshots have all of it then or nothing, and the same call does the rest.
        """

    @verb(changes=True, long=True, limits={"paths": {"min_length": 1}})
    def forget(self, *paths: str, dry_run: bool = False) -> ForgetResult:
        """Have all that is kept of the past lose the contents of paths: snapshots, branches, the bytes that undo needs,
        search indexes, and what files of volumes have left of deleted rows. It can't be taken back.

        The files as they are now stay, and the log keeps its calls. A volume answers nobody while its file is rewritten
        for it, which takes some seconds for a GB.

        Args:
            paths: of files and directories, as they are now or were.
            dry_run: change nothing; the answer says what would go.

        Raises:
            ValueError: a path is malformed, or there is none.
            OSError: EROFS, the mount is read-only; or an error of a volume, of the history or of a branch; the same
                call does the rest then.
        """


for _declared in SERVED.values():
    if f"a{_declared.name}" not in dir(MountProtocol):
        setattr(MountProtocol, f"a{_declared.name}", async_twin(_declared.method))
