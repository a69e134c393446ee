"""Differences of two trees as text: a git patch, `--stat`, `--name-status`, JSON.

`git apply` takes the patch, and makes the tree `after` of the tree `before` as far as git can: regular files, their
x bit, links, renames. Comment lines below the patch have the rest: owners, extended attributes, other mode bits, empty
directories, special files, names that git refuses. Names are quoted as git quotes them, so no name ends a line or
steers a terminal.
"""

from __future__ import annotations

import bisect
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from fusebackend.base.errors import VANISHED, unless
from fusebackend.base.git_patch import EXECUTABLE_MODE, FILE_MODE, LINK_MODE, Side, edited_lines, file_patch, quoted
from fusebackend.base.relative_paths import above, is_below
from fusebackend.trees.diff import Difference, Differences, type_of
from fusebackend.trees.merge.tree import Item
from fusebackend.volumes.contents import filled
from fusebackend.volumes.walk import resolve

MAX_PATCHED_BYTES: Final = 128 << 20
"""Of one file on one side; a larger one is a comment below the patch. Both sides, and both deflated, are in memory at
once, and git apply needs as much again."""

STAT_COLUMNS: Final = 80
GIT_MODES: Final = (0o644, 0o755)
"""The permission bits that a patch can give."""

_REFUSED_NAME = re.compile(rb"(?:\.git|git~1)[ .]*(?::.*)?", re.IGNORECASE | re.DOTALL)
_REFUSED_LINK = re.compile(rb"(?:\.gitmodules|gitmod~|gi7)", re.IGNORECASE)
_INVISIBLE = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def git_refuses(path: bytes, *, is_link: bool) -> bool:
    """Return True for a path that `git apply` takes for a part of a repository, and refuses the whole patch.

    As `verify_path` of git's read-cache.c, with `core.protectHFS` and `core.protectNTFS`; a few more names than that.
    """
    plain = _INVISIBLE.sub("", path.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    names = re.split(rb"[/\\]", plain)
    return any(_REFUSED_NAME.fullmatch(name) or (is_link and _REFUSED_LINK.match(name)) for name in names)


# -- the patch ---------------------------------------------------------------------------------------------------


def patch(result: Differences) -> Iterator[bytes]:
    """Return the git patch of differences in pieces, and below it what git can't say as comment lines."""
    said = _PatchParts(result)
    changing = []
    for each in said.differences:
        try:
            yield b"".join(said.pieces(each))
        except OSError as error:  # the main tree goes on changing
            changing.append(f"{_shown(each)}: could not be read: {error.strerror}")
    notes = [
        *said.notes(),
        *changing,
        *(f"{quoted(path or b'./')}: not compared: {reason}" for path, reason in result.skipped),
    ]
    if notes:
        yield b"# not in the patch, since git can't say it:\n"
        yield from (f"# {note}\n".encode() for note in notes)


class _PatchParts:
    """Which differences the patch has, and which are comments.

    `git apply` deletes before it creates. It can't create a file where something is that it did not delete, and then
    takes nothing of the patch; such a creation is a comment. Of a rename that has a part git can't do, each part stands
    for itself.
    """

    def __init__(self, result: Differences) -> None:
        self._result = result
        self.differences = list(self._split_renames(result.found))
        self._deleted = sorted(each.path_before for each in self.differences if self._deletes(each))
        stuck = [each for each in self.differences if self._is_stuck(each)]
        self._stuck = sorted(each.path for each in stuck)
        self._stuck_files = {each.path for each in stuck if each.before and not each.before.is_dir}
        self.differences = list(self._split_renames(self.differences, by_place=True))
        self._created = sorted(each.path for each in self.differences if self._creates(each))

    def _split_renames(self, found: Iterable[Difference], *, by_place: bool = False) -> Iterator[Difference]:
        for each in found:
            if each.old_path is None or (
                not git_refuses(each.old_path, is_link=False)
                and not git_refuses(each.path, is_link=False)
                and not (by_place and self._is_blocked(each.path))
            ):
                yield each
                continue
            yield Difference("deleted", each.old_path, each.before, None)
            yield replace(each, change="created", before=None, old_path=None, fields=())

    @staticmethod
    def _can_say(path: bytes, entry: Item | None) -> bool:
        """Return True for a file or link that can be in a patch, as far as that depends on itself."""
        if entry is None or _is_special(entry):
            return False
        return entry.size <= MAX_PATCHED_BYTES and not git_refuses(path, is_link=stat.S_ISLNK(entry.mode))

    def _deletes(self, each: Difference) -> bool:
        """Return True if the patch deletes the file that was there before."""
        if each.change == "renamed":
            return True
        return each.change in ("deleted", "retyped") and self._can_say(each.path, each.before)

    def _is_stuck(self, each: Difference) -> bool:
        """Return True if something is to go from this path which the patch does not delete.

        git deletes a directory with the last file in it.
        """
        if each.change not in ("deleted", "retyped") or each.before is None:
            return False
        if each.before.is_dir:
            return not _has_below(self._deleted, each.path)
        return not self._deletes(each) or self._is_loop(each)

    def _is_loop(self, each: Difference) -> bool:
        """Return True for a link that can't be followed, in the place of a directory.

        git deletes the link, but looks for the new files behind it before that: ELOOP ends it.
        """
        before, after = each.before, each.after
        if before is None or after is None or not stat.S_ISLNK(before.mode) or not after.is_dir:
            return False
        try:
            resolve(before.volume, before.inner)
        except OSError as error:
            return error.errno == errno.ELOOP
        return False

    def _is_blocked(self, path: bytes) -> bool:
        """Return True if a path can't be created because of something that the patch does not delete."""
        return not self._stuck_files.isdisjoint((path, *above(path))) or _has_below(self._stuck, path)

    def _creates(self, each: Difference) -> bool:
        """Return True if the patch creates the file that is there afterwards."""
        if each.change == "renamed":
            return True
        says = each.change in ("created", "retyped") and self._can_say(each.path, each.after)
        return says and not self._is_blocked(each.path)

    def _modifies(self, each: Difference) -> bool:
        return (
            each.change == "modified"
            and bool({"bytes", "mode"} & set(each.fields))
            and self._can_say(each.path, each.before)
            and self._can_say(each.path, each.after)
        )

    def pieces(self, each: Difference) -> Iterator[bytes]:
        """Return the patch of one difference; nothing where it is a comment."""
        if each.change == "renamed" and each.before is not None and each.after is not None:
            same, mode = Side(b"", git_mode(each.before)), git_mode(each.after)  # the bytes are equal, and not shown
            yield from file_patch(each.path, same, same._replace(mode=mode), old_path=each.old_path)
            return
        if self._modifies(each):
            before, after = side(each.before), side(each.after)
            if before != after:
                yield from file_patch(each.path, before, after)
            return
        if self._deletes(each):
            yield from file_patch(each.path, side(each.before), None)
        if self._creates(each):
            yield from file_patch(each.path, None, side(each.after))

    # -- comments ------------------------------------------------------------------------------------------------

    def notes(self) -> Iterator[str]:
        """Return what git can't say, a line for each path."""
        emptied = {path: "empty now; git deletes an empty directory" for path in self._result.emptied if path}
        for each in self.differences:
            texts = list(self._texts(each))
            if each.path in emptied and each.after is not None:
                texts.append(emptied.pop(each.path))
            if texts:
                yield f"{_shown(each)}: {', '.join(texts)}"
        for path, text in emptied.items():
            yield f"{quoted(path + b'/')}: {text}"

    def _texts(self, each: Difference) -> Iterator[str]:
        before, after = each.before, each.item
        if each.change == "deleted":
            if self._is_stuck(each):
                yield f"{self._named(after)} deleted{self._why(each, after)}"
        elif before is None or each.change == "retyped":
            if not self._makes(each):
                did = "created" if before is None else f"became {self._named(after)}"
                why = self._why(each, after) or self._why(each, before)
                yield f"{self._named(before or after)} {did}{why}"
            yield from self._given(after)
        else:
            if "bytes" in each.fields and not self._modifies(each):
                sizes = "the device" if _is_special(after) else f"{before.size} -> {after.size} bytes"
                yield f"modified, {sizes}{self._why(each, after) or self._why(each, before)}"
            yield from self._changed(each, before, after)

    def _makes(self, each: Difference) -> bool:
        """Return True if the patch makes what is there afterwards: a file, or a directory with a file."""
        if each.after is not None and each.after.is_dir:
            return _has_below(self._created, each.path)
        return self._creates(each)

    def _given(self, after: Item) -> Iterator[str]:
        """The attributes of a new file that `git apply` doesn't give it."""
        if not stat.S_ISLNK(after.mode):
            usual = (0o755,) if after.is_dir else GIT_MODES
            if stat.S_IMODE(after.mode) not in usual:
                yield f"mode {stat.S_IMODE(after.mode):04o}"
        if (after.uid, after.gid) != (os.geteuid(), os.getegid()):
            yield f"owner {after.uid}:{after.gid}"
        names = sorted(_xattrs(after))
        if names:
            yield f"xattrs {' '.join(names)}"

    def _changed(self, each: Difference, before: Item, after: Item) -> Iterator[str]:
        """The attributes of a file that changed, without the x bit of files in the patch."""
        if "mode" in each.fields:
            old, new = stat.S_IMODE(before.mode), stat.S_IMODE(after.mode)
            in_patch = (each.change == "renamed" or self._modifies(each)) and git_mode(before) != git_mode(after)
            if not (in_patch and new in GIT_MODES and old in GIT_MODES):
                yield f"mode {old:04o} -> {new:04o}"
        if "owner" in each.fields:
            yield f"owner {before.uid}:{before.gid} -> {after.uid}:{after.gid}"
        if "xattrs" in each.fields:
            ours, theirs = _xattrs(before), _xattrs(after)
            names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
            yield f"xattrs {' '.join(names)}"

    @staticmethod
    def _named(entry: Item) -> str:
        if stat.S_ISCHR(entry.mode) or stat.S_ISBLK(entry.mode):
            return f"{type_of(entry)} {os.major(entry.rdev)}:{os.minor(entry.rdev)}"
        return type_of(entry)

    def _why(self, each: Difference, entry: Item | None) -> str:
        """The reason why a file or link is not in the patch, where its type doesn't say it."""
        if entry is None or not (entry.is_file or stat.S_ISLNK(entry.mode)):
            return ""
        if entry.size > MAX_PATCHED_BYTES:
            return f" (above {MAX_PATCHED_BYTES >> 20} MiB)"
        if git_refuses(each.path, is_link=stat.S_ISLNK(entry.mode)):
            return " (git takes no patch of such a name)"
        is_blocked = entry is each.after and self._is_blocked(each.path)
        return " (something is in its place that git does not delete)" if is_blocked else ""


def git_mode(entry: Item) -> str:
    """The mode of a file or link in git's words."""
    if stat.S_ISLNK(entry.mode):
        return LINK_MODE
    return EXECUTABLE_MODE if entry.mode & stat.S_IXUSR else FILE_MODE


def side(entry: Item | None) -> Side | None:
    """Read one side of a difference, of a regular file or a link."""
    if entry is None:
        return None
    if stat.S_ISLNK(entry.mode):
        return Side(entry.state.target, LINK_MODE)
    return Side(b"".join(filled(entry.pieces())), git_mode(entry))


def _xattrs(entry: Item) -> dict[str, bytes]:
    """The extended attributes of a file, by their quoted names; none if it is gone by now."""
    state = unless(VANISHED, lambda: entry.state)
    return {} if state is None else {quoted(name): value for name, value in state.xattrs.items()}


def _is_special(entry: Item | None) -> bool:
    return entry is not None and not (entry.is_file or stat.S_ISLNK(entry.mode))


def _size(entry: Item | None) -> int:
    return 0 if entry is None else entry.size


def _has_below(paths: list[bytes], directory: bytes) -> bool:
    """Return True if one of the sorted paths is below a directory."""
    if not directory:
        return bool(paths)
    at = bisect.bisect_left(paths, directory + b"/")
    return at < len(paths) and is_below(paths[at], directory)


def _shown(each: Difference) -> str:
    return quoted(each.path + b"/" if each.item.is_dir else each.path) if each.path else "./"


# -- the other forms ---------------------------------------------------------------------------------------------


_LETTERS = {"created": "A", "deleted": "D", "modified": "M", "renamed": "R100", "retyped": "T"}


def listed(result: Differences) -> list[Difference]:
    """Return the differences without new and deleted directories that have further differences in them."""
    paths = sorted({path for each in result.found for path in (each.path, each.path_before)})
    return [
        each for each in result.found
        if not (each.change in ("created", "deleted") and each.item.is_dir and _has_below(paths, each.path))
    ]  # fmt: skip


def name_status(result: Differences) -> Iterator[str]:
    """Return lines as `git diff --name-status` has them: a letter, a tab, the path; both paths of a rename."""
    for each in listed(result):
        names = [quoted(each.old_path)] if each.old_path is not None else []
        yield "\t".join([_LETTERS[each.change], *names, _shown(each)])


class Row(NamedTuple):
    """A line of `--stat`: the path, and the lines that were deleted and inserted, or a text instead of them."""

    name: str
    counts: tuple[int, int] | None
    text: str


def stat_rows(result: Differences) -> Iterator[Row]:
    """Return the rows of `--stat`. Reads all files that differ."""
    for each in listed(result):
        name = f"{quoted(each.old_path)} => {_shown(each)}" if each.old_path is not None else _shown(each)
        entries = [entry for entry in (each.before, each.after) if entry is not None]
        if each.change == "modified" and "bytes" not in each.fields:
            yield Row(name, None, ", ".join(each.fields))
        elif any(map(_is_special, entries)):
            yield Row(name, None, " -> ".join(type_of(entry) for entry in entries))
        else:
            try:
                yield _counted(each, name)
            except OSError as error:  # the main tree goes on changing
                yield Row(name, None, f"could not be read: {error.strerror}")


def _counted(each: Difference, name: str) -> Row:
    counts = (0, 0) if each.change == "renamed" else None
    if counts is None and max(_size(each.before), _size(each.after)) <= MAX_PATCHED_BYTES:
        counts = edited_lines(side(each.before), side(each.after))
    if counts is None:
        return Row(name, None, f"Bin {_size(each.before)} -> {_size(each.after)} bytes")
    return Row(name, counts, str(sum(counts)))


def stat_lines(rows: list[Row], columns: int = STAT_COLUMNS) -> Iterator[str]:
    """Return the lines of `git diff --stat`: a graph of each file's lines, and the sums."""
    if not rows:
        return
    name_width = max(len(row.name) for row in rows)
    number_width = max([len(row.text) for row in rows if row.counts is not None], default=0)
    room = max(columns - name_width - number_width - 6, 10)
    most = max([sum(row.counts) for row in rows if row.counts is not None], default=0)
    for row in rows:
        graph = ""
        if row.counts is not None:
            deleted, inserted = (_scaled(count, room, most) for count in row.counts)
            graph = f" {'+' * inserted}{'-' * deleted}".rstrip()
        yield f" {row.name:<{name_width}} | {row.text:>{number_width}}{graph}"
    deleted, inserted = (sum(row.counts[side] for row in rows if row.counts is not None) for side in (0, 1))
    parts = [_count(len(rows), "file changed", "files changed")]
    parts += [_count(inserted, "insertion(+)", "insertions(+)")] if inserted or not deleted else []
    parts += [_count(deleted, "deletion(-)", "deletions(-)")] if deleted or not inserted else []
    yield f" {', '.join(parts)}"


def _scaled(count: int, room: int, most: int) -> int:
    """The columns of a number of lines; at least one where there is a line."""
    return count if most <= room else -(-count * room // (most + 1)) if count else 0


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def as_objects(result: Differences) -> Iterator[dict[str, Any]]:
    """Return an object for each difference, and one with `skipped` for each path that was not compared."""
    for each in result.found:
        value: dict[str, Any] = {"change": each.change, "path": os.fsdecode(each.path)}
        if each.old_path is not None:
            value["old_path"] = os.fsdecode(each.old_path)
        if each.change in ("modified", "renamed"):
            value["fields"] = list(each.fields)
        yield {**value, "before": _attributes(each.before), "after": _attributes(each.after)}
    for path, reason in result.skipped:
        yield {"path": os.fsdecode(path), "skipped": reason}


def _attributes(entry: Item | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {
        "type": type_of(entry),
        "size": entry.size,
        "mode": stat.S_IMODE(entry.mode),
        "uid": entry.uid,
        "gid": entry.gid,
        "mtime_ns": entry.mtime_ns,
    }
