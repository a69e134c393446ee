"""The differences of two trees: names, types, bytes and attributes of `before` and `after`.

A file with the same times in both is taken for equal without a read (`is_untouched`). All others are compared byte by
byte. A deleted and a created file are a rename if their bytes are equal, as `git diff -M100%` has it. Empty files are
never renamed.

Times are no difference, as in git: a file that was only touched is the same. Type, bytes, the target of
a link, the number of a device, permission bits, owner and group, and extended attributes are compared.

What is mounted below the mount is no part of a tree: it is read from the volumes and not through the kernel.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fusebackend.base.relative_paths import join, split
from fusebackend.protocol.records import FILE_TYPES
from fusebackend.trees.merge.tree import Item, MergeTree, is_untouched, same_contents
from fusebackend.volumes.contents import filled

Change: TypeAlias = Literal["created", "deleted", "modified", "renamed", "retyped"]
Field: TypeAlias = Literal["bytes", "mode", "owner", "xattrs"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that differs.

    Attributes:
        change: `retyped` is a file that became a directory or a link, and the like.
        path: after the change; of a deleted file, before it.
        before, after: the file; None where there is nothing.
        old_path: the path before, of a renamed file.
        fields: the parts that differ, of a file with the same type before and after. The bytes of a link are its
            target, those of a device its number.
    """

    change: Change
    path: bytes
    before: Item | None
    after: Item | None
    old_path: bytes | None = None
    fields: tuple[Field, ...] = ()

    @property
    def item(self) -> Item:
        """The file after the change; a deleted file before it."""
        found = self.after or self.before
        assert found is not None, "one of the trees has it"
        return found

    @property
    def path_before(self) -> bytes:
        return self.path if self.old_path is None else self.old_path


@dataclass
class Differences:
    """The differences of two trees, sorted by path.

    Attributes:
        found: the differences.
        emptied: directories that are in both trees and have lost all their names.
        skipped: paths that were not compared, each with the reason.
        missing: prefixes of routes that were not compared, since not both trees hold them.
    """

    found: list[Difference] = field(default_factory=list)
    emptied: list[bytes] = field(default_factory=list)
    skipped: list[tuple[bytes, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def type_of(item: Item) -> str:
    """Return the type of a file in the words of `StatResult`."""
    return FILE_TYPES.get(item.type, "file")


def differences(before: MergeTree, after: MergeTree, paths: Iterable[bytes] = (b"",)) -> Differences:
    """Compare two trees, in the routes that both hold. Of directories on the way to routes the own attributes are not
    compared: some are synthesised.

    Args:
        paths: the paths that are compared, with all below them.

    Raises:
        FileNotFoundError: a path is in neither tree.
        OSError: of a directory on the way to a path. Errors below it become `skipped`.
    """
    result = Differences()
    for path in sorted(set(paths)):
        left = [(path, before.find(path), after.find(path))]
        if left[0][1:] == (None, None):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        while left:
            here, old, new = left.pop()
            try:
                left += _compared(result, here, old, new)
            except OSError as error:
                result.skipped.append((here, error.strerror or str(error)))
    unique = {(each.path, each.change): each for each in result.found}
    result.found = sorted(_with_renames(list(unique.values())), key=lambda each: each.path)
    result.emptied = sorted(set(result.emptied))
    result.skipped = sorted(set(result.skipped))
    return result


def _compared(
    result: Differences, path: bytes, before: Item | None, after: Item | None
) -> list[tuple[bytes, Item | None, Item | None]]:
    """Compare a path, and return the names below it that are to be compared next."""
    ours = before.names() if before is not None else {}
    theirs = after.names() if after is not None else {}
    is_way = tuple(item is not None and item.is_way for item in (before, after))
    if any(is_way) and not all(is_way):  # one of them does not hold the route, but maybe those below it
        both = (name for name in ours.keys() & theirs.keys() if ours[name].is_fixed)
        return [(join(path, name), ours[name], theirs[name]) for name in both]
    if all(is_way) or (path and any(item is not None and item.is_on_way for item in (before, after))):
        pass  # its names alone
    elif before is None or after is None or before.type != after.type:
        change: Change = "created" if before is None else "deleted" if after is None else "retyped"
        result.found.append(Difference(change, path, before, after))
    elif differing := tuple(_fields(before, after)):
        result.found.append(Difference("modified", path, before, after, fields=differing))
    if ours and after is not None and after.is_dir and not theirs:
        result.emptied.append(path)
    return [(join(path, name), ours.get(name), theirs.get(name)) for name in ours.keys() | theirs.keys()]


def _fields(before: Item, after: Item) -> Iterator[Field]:
    """The fields in which two files of the same type differ."""
    if not same_contents(before, after):
        yield "bytes"
    yield from _attributes(before, after)


def _attributes(before: Item, after: Item) -> Iterator[Field]:
    """The attributes in which two files of the same type differ."""
    if stat.S_IMODE(before.mode) != stat.S_IMODE(after.mode) and not stat.S_ISLNK(after.mode):
        yield "mode"
    if (before.uid, before.gid) != (after.uid, after.gid):
        yield "owner"
    if not is_untouched(before, after) and before.state.xattrs != after.state.xattrs:
        yield "xattrs"


# -- renames -----------------------------------------------------------------------------------------------------


def _with_renames(found: list[Difference]) -> list[Difference]:
    """Make a rename of each pair of a deleted and a created file with the same bytes.

    Of several, those with the same last name belong together, and then the first in order of their names. Only files
    are read of which there is one of the same size on the other side.
    """
    by_path = sorted(found, key=lambda each: each.path)
    gone = [each for each in by_path if each.change == "deleted" and each.item.is_file]
    new = [each for each in by_path if each.change == "created" and each.item.is_file]
    sizes = ({each.item.size for each in gone} & {each.item.size for each in new}) - {0}
    sources: dict[bytes, list[Difference]] = defaultdict(list)
    for each in gone:
        if each.item.size in sizes and (digest := _digest(each.item)):
            sources[digest].append(each)
    wanted = [(each, sources.get(_digest(each.item) or b"", [])) for each in new if each.item.size in sizes]
    pairs: dict[bytes, Difference] = {}
    for by_name in (True, False):
        for each, candidates in wanted:
            same = (other for other in candidates if not by_name or split(other.path)[1] == split(each.path)[1])
            source = next(same, None) if each.path not in pairs else None
            if source is not None:
                candidates.remove(source)
                pairs[each.path] = source
    renamed = {source.path for source in pairs.values()}
    kept = [each for each in found if each.change != "deleted" or each.path not in renamed]
    return [_renamed(pairs[each.path], each) if each.path in pairs else each for each in kept]


def _digest(item: Item) -> bytes | None:
    """Return the digest of a file's bytes, or None where they can't be read: then the file is no part of a rename."""
    digest = hashlib.blake2b(digest_size=20)
    try:
        for piece in filled(item.pieces()):
            digest.update(piece)
    except OSError:
        return None
    return digest.digest()


def _renamed(old: Difference, new: Difference) -> Difference:
    fields = tuple(_attributes(old.item, new.item))
    return Difference("renamed", new.path, old.before, new.after, old.path, fields)
