"""`DirectoryFace`: the agent's verbs over a `DirectoryVolume`.

`VolumeBackend` does it all; `grep`, `glob` and the deleting of trees are here because the system does them faster than
node by node. They answer the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from fusebackend.backends.directory.search import SWAPPED, Candidates, LocalFile, LocalTree, find_candidates
from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.base import budget, paths
from fusebackend.base.budget import Budget, Spent
from fusebackend.base.errors import VANISHED, oserror
from fusebackend.base.globs import Matcher, compile_glob
from fusebackend.protocol import Change, Changes, FileInfo, GlobResult, GrepMatch, GrepResult, OnExists, verbs
from fusebackend.text import grep_pieces, iso_time
from fusebackend.volumes.agent_face import Refusal, VolumeBackend
from fusebackend.volumes.contents import LOCKED_BYTES, PIECE_BYTES
from fusebackend.volumes.removal import REMOVED_AT_ONCE, Doomed
from fusebackend.volumes.walk import UNREADABLE, resolve


class DirectoryFace(VolumeBackend):
    """See the module's docstring.

    Args:
        volume: the directory.
        max_search_bytes: larger files are passed over by `grep`, with and without ripgrep; the answer then says
            `truncated`.
    """

    volume: DirectoryVolume

    def __init__(self, volume: DirectoryVolume, *, max_search_bytes: int, on_exists: OnExists = "error") -> None:
        super().__init__(volume, on_exists=on_exists)
        self.max_search_bytes = max_search_bytes

    def _tree(self, path: str, pattern: str | None) -> tuple[str, LocalTree, Matcher | None] | None:
        """The tree below a path, for a pattern that files have to match. None if it is no directory, or the path or the
        pattern is refused: for those `VolumeBackend` has the answer."""
        try:
            matcher = compile_glob(pattern) if pattern else None
            attr = resolve(self.volume, path).attr
            if attr is None or not attr.is_dir:
                return None
            below, depth = (matcher.prefix, matcher.depth) if matcher is not None else ((), None)
            directory = self.volume.open_directory(attr.node)
            node = attr.node
            for name in below:  # which `LocalTree` opens
                node = self.volume.lookup(node, paths.to_name(name)).node
        except Refusal:
            return None
        return paths.normalise(path), LocalTree(directory, below=below, depth=depth), matcher

    # -- glob --------------------------------------------------------------------------------------------------

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        path = "/" if path is None else path
        with budget.granted():
            found = self._tree(path, pattern) if pattern else None
            if found is None:
                return super().glob(pattern, path)
            try:
                return self._glob(*found)
            except OSError as error:
                return verbs.GLOB.refused(error, path)

    def _glob(self, base: str, tree: LocalTree, matcher: Matcher | None) -> GlobResult:
        infos: list[FileInfo] = []
        try:
            left = budget.current()
            for file in tree:
                left.rest()
                if matcher is None or matcher.matches(file.path):
                    left.hold(budget.ENTRY_BYTES + len(file.path))
                    infos.append(_info(base, file))
        except Spent:
            return GlobResult(matches=infos, truncated=True, truncation_reason="budget")
        reason = "unreadable" if tree.unreadable else None
        return GlobResult(matches=infos, truncated=tree.unreadable, truncation_reason=reason)

    # -- grep --------------------------------------------------------------------------------------------------

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        path = "/" if path is None else path
        with budget.granted() as left:
            found = self._tree(path, glob)
            if found is None:
                return super().grep(pattern, path, glob, max_count=max_count)
            matches: list[GrepMatch] = []
            limit = None if max_count is None else max(0, max_count)
            try:
                complete = self._grep(pattern, *found, limit, left, matches)
            except Spent:
                complete = False
            except OSError as error:
                return verbs.GREP.refused(error, path)
        return GrepResult(matches=matches[:limit], truncated=not complete)

    def _grep(
        self,
        pattern: str,
        base: str,
        tree: LocalTree,
        matcher: Matcher | None,
        limit: int | None,
        left: Budget,
        matches: list[GrepMatch],
    ) -> bool:
        """Fill `matches` with up to one more than `limit`; return True if they are all."""
        start = tree.start()
        max_bytes = min(self.max_search_bytes, self.max_file_bytes)
        candidates = find_candidates(start.fd, pattern, max_bytes) if start is not None else None
        below = "".join(f"{name}/" for name in matcher.prefix) if matcher is not None else ""
        incomplete = candidates is not None and not candidates.complete
        for file in tree:
            left.rest()
            if matcher is not None and not matcher.matches(file.path):
                continue
            try:
                if not _worth_reading(file, file.path.removeprefix(below), candidates, max_bytes):
                    continue
                # One more than wanted, to know whether there is more.
                wanted = None if limit is None else limit + 1 - len(matches)
                lines = grep_pieces(left.metered(self._pieces(file, max_bytes)), pattern, wanted, left.hold)
            except OSError as error:
                if error.errno not in SWAPPED | UNREADABLE | {errno.EFBIG}:
                    raise
                incomplete |= error.errno not in SWAPPED
                continue
            shown = paths.join(base, file.path)
            matches.extend(GrepMatch(path=shown, line=line, text=text) for line, text in lines)
            if limit is not None and len(matches) > limit:
                return False
        return not (incomplete or tree.unreadable)

    def _pieces(self, file: LocalFile, max_bytes: int) -> Iterator[bytes]:
        """The bytes of a file. A small one is read in one go, with no write of a mount in between; a larger one may
        show lines of before and after a change."""
        opened = file.open()
        with self.volume.lock:
            first = os.pread(opened.fd, min(LOCKED_BYTES, max_bytes + 1), 0)
        offset = len(first)
        piece = first
        while piece:
            if offset > max_bytes:
                raise oserror(errno.EFBIG)  # it has grown, or is a file of /proc, which has no size
            yield piece
            piece = os.pread(opened.fd, PIECE_BYTES, offset)
            offset += len(piece)

    # -- delete ------------------------------------------------------------------------------------------------

    def _delete_tree(self, top: Doomed) -> None:
        """As `remove_tree`, with the names of each directory read once: every listing reads all of them, so one for
        each portion is quadratic (100,000 files: 40 s)."""
        left = [(top, self._names(top.node))]
        while left:
            with self.volume.changing() as changes:
                found, names = set[int](), REMOVED_AT_ONCE
                while left and names > 0:
                    names -= self._delete_some(left, found, names, changes)

    def _delete_some(
        self, left: list[tuple[Doomed, list[bytes]]], found: set[int], at_once: int, changes: Changes
    ) -> int:
        """Delete names of the last directory, up to the first that is a directory, which is the last from then on.
        Returns how many names this was, its own included.

        Args:
            left: directories that are being emptied, and their names.
            found: as of `Doomed.is_there`.
        """
        doomed, names = left[-1]
        if not doomed.is_there(self.volume, found):
            left.pop()
            return 1
        changes.append(Change(node=doomed.node))
        portion = names[: -at_once - 1 : -1]
        for number, child in enumerate(portion, 1):
            names.pop()
            below = self._delete_child(doomed, child, changes)
            if below is not None:
                left.append((below, self._names(below.node)))
                return number
        if not names and self._delete_emptied(doomed, names, changes):
            left.pop()
        return 1 + len(portion)

    def _names(self, node: int) -> list[bytes]:
        try:
            return self.volume.names(node)
        except OSError as error:
            if error.errno not in VANISHED:
                raise
            return []

    def _delete_child(self, doomed: Doomed, name: bytes, changes: Changes) -> Doomed | None:
        """Delete what is not a directory; gives what is one."""
        try:
            child = self.volume.lookup(doomed.node, name)
            if child.is_dir:
                return doomed.below(name, child.node)
            self.volume.unlink(doomed.node, name)
        except OSError as error:
            if error.errno not in VANISHED | {errno.EISDIR}:
                raise
        else:
            path = paths.join(doomed.path, paths.to_text(name))
            changes.append(Change(child.node, doomed.node, name, "deleted", path))
        return None

    def _delete_emptied(self, doomed: Doomed, names: list[bytes], changes: Changes) -> bool:
        """Remove an emptied directory. False, and `names` filled, when others have put new ones there."""
        try:
            self.volume.rmdir(doomed.parent, doomed.name)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                names.extend(self._names(doomed.node))
                return not names
            if error.errno not in VANISHED:
                raise
        else:
            changes.append(Change(doomed.node, doomed.parent, doomed.name, "deleted", doomed.path + "/"))
        return True


def _worth_reading(file: LocalFile, path: str, candidates: Candidates | None, max_bytes: int) -> bool:
    """Return True if a file may hold matches. Raises the error that reading it would where the answer must report
    it."""
    if file.status.st_size > max_bytes:
        raise oserror(errno.EFBIG)
    if candidates is None or path in candidates.files:
        return True
    return candidates.denied and not file.readable()  # reading it will say why not


def _info(base: str, file: LocalFile) -> FileInfo:
    return FileInfo(
        path=paths.join(base, file.path),
        is_dir=False,
        size=file.status.st_size,
        modified_at=iso_time(file.status.st_mtime_ns),
    )
