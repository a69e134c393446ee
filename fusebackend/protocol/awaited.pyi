"""Made by scripts/declared.py: the `a…` forms of verbs: of backends, of commands, of mounts."""

import abc
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from fusebackend.protocol.records import (
    READ_LIMIT_LINES,
    ApprovalInfo,
    BlameResult,
    BranchInfo,
    CallInfo,
    ChangeInfo,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    Explained,
    FileDownloadResponse,
    FileInfo,
    FileRange,
    FileUploadResponse,
    ForgetResult,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    MergeResult,
    MoveResult,
    PrunedThread,
    PruneResult,
    ReadResult,
    RestoreResult,
    SnapshotInfo,
    SpaceInfo,
    StatResult,
    StatsResult,
    ThreadSize,
    UndoResult,
    VerifyResult,
    ViewInfo,
    WriteResult,
)
from fusebackend.protocol.served import (
    LISTED_CHANGES,
    LOGGED_CALLS,
    STAT_COLUMNS,
    DiffForm,
)

class AwaitedFiles(abc.ABC):
    async def als(self, path: str) -> LsResult: ...
    async def aread(self, file_path: str, offset: int = 0, limit: int = READ_LIMIT_LINES) -> ReadResult: ...
    async def awrite(
        self, file_path: str, content: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> WriteResult: ...
    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        if_version: str | None = None,
    ) -> EditResult: ...
    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult: ...
    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult: ...
    async def adelete(self, file_path: str, *, if_version: str | None = None) -> DeleteResult: ...
    async def amove(
        self, source: str, destination: str, *, if_version: str | None = None, if_absent: bool = False
    ) -> MoveResult: ...
    async def aupload_files(
        self,
        files: list[tuple[str, bytes]],
        *,
        if_version: Sequence[str | None] | None = None,
        if_absent: Sequence[bool] | None = None,
    ) -> list[FileUploadResponse]: ...
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]: ...
    async def als_info(self, path: str) -> list[FileInfo]: ...
    async def agrep_raw(
        self, pattern: str, path: str | None = None, glob: str | None = None
    ) -> list[GrepMatch] | str: ...
    async def aglob_info(self, pattern: str, path: str = "/") -> list[FileInfo]: ...

class AwaitedCommands:
    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse: ...

class Awaited:
    async def areal_paths(self, wanted: list[str]) -> list[str | None]: ...
    async def astat(self, path: str, *, follow: bool = False) -> StatResult: ...
    async def astats(self, path: str) -> StatsResult: ...
    async def aread_range(self, path: str, offset: int, size: int) -> FileRange: ...
    async def aappend(self, path: str, pieces: Iterable[bytes]) -> None: ...
    async def amake_directory(self, path: str, *, parents: bool = False) -> None: ...
    async def aremove_directory(self, path: str) -> None: ...
    async def astatus(self) -> dict[str, Any]: ...
    async def ametrics(self) -> str: ...
    async def ainvalidate(self, path: str = "/") -> None: ...
    async def asnapshots(self) -> list[SnapshotInfo]: ...
    async def acreate_snapshot(self, name: str | None = None) -> SnapshotInfo: ...
    async def adelete_snapshots(self, *names: str) -> None: ...
    async def aviews(self) -> list[ViewInfo]: ...
    async def aexplain(self, view: str, operation: str, path: str) -> Explained: ...
    async def aview_socket(self, name: str) -> str: ...
    async def aapprovals(self) -> list[ApprovalInfo]: ...
    async def aapproval(self, number: int) -> ApprovalInfo: ...
    async def aapprove(self, number: int) -> ApprovalInfo: ...
    async def adeny(self, number: int, reason: str | None = None) -> ApprovalInfo: ...
    async def abranches(self) -> list[BranchInfo]: ...
    async def acreate_branch(
        self, name: str, ref: str | None = None, directory: str | os.PathLike[str] | None = None
    ) -> BranchInfo: ...
    async def atake_in_branch(self, name: str) -> None: ...
    async def adelete_branches(self, *names: str) -> None: ...
    async def amerge_branch(
        self,
        name: str,
        paths: list[str] | None = None,
        keep: Literal["main", "branch"] | None = None,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> MergeResult: ...
    async def alog(
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
    ) -> list[CallInfo]: ...
    async def achanges(
        self, call: str | None = None, *, after: int = 0, limit: int = LISTED_CHANGES, branch: str | None = None
    ) -> list[ChangeInfo]: ...
    async def adiff(
        self,
        call: str,
        *,
        paths: Sequence[str] = (),
        form: DiffForm = "patch",
        columns: int = STAT_COLUMNS,
        on_text: Callable[[bytes], None] | None = None,
        on_skipped: Callable[[str, str], None] | None = None,
    ) -> str: ...
    async def averify_log(self) -> VerifyResult: ...
    async def ablame(self, path: str, *, branch: str | None = None) -> BlameResult: ...
    async def aundo(
        self,
        *calls: str,
        by: str | None = None,
        thread: str | None = None,
        since: int | str | None = None,
        branch: str | None = None,
        keep_newer: bool = False,
        merge_lines: bool = False,
        dry_run: bool = False,
    ) -> UndoResult: ...
    async def abegin_call(
        self, title: str, *, pid: int | None = None, id: str = "", agent: str = "", thread: str = ""
    ) -> str: ...
    async def aend_call(self, id: str) -> str | None: ...
    async def adf(self) -> SpaceInfo: ...
    async def aprune(self, *, dry_run: bool = False) -> PruneResult: ...
    async def aweigh_threads(
        self, *paths: str, by: Literal["channel", "step", "namespace"] | None = None
    ) -> list[ThreadSize]: ...
    async def aprune_threads(
        self,
        *paths: str,
        keep: int | None = None,
        older: str | None = None,
        keep_steps: Sequence[str] = (),
        dry_run: bool = False,
        vacuum: bool = False,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> list[PrunedThread]: ...
    async def arestore(
        self, paths: list[str], ref: str, *, to: list[str] | None = None, dry_run: bool = False, force: bool = False
    ) -> RestoreResult: ...
    async def aforget(self, *paths: str, dry_run: bool = False) -> ForgetResult: ...
