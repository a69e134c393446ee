"""`StoreTree`: the items of a store as a tree of paths. `names.py` says where each key is.

A path that is a key is found with one look at that key; only names that are not spelled as their key is (they hold a
`%`) need the listing of their directory.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from fusebackend.backends.store.items import Items, Row
from fusebackend.backends.store.names import (
    FOREIGN_SUFFIX,
    ROOT_PLACE,
    Child,
    KeyList,
    Place,
    arrange_level,
    is_text,
    may_be_arranged,
    split_level,
)
from fusebackend.backends.store.values import About
from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import FileInfo
from fusebackend.volumes.walk import PATH_MAX_BYTES


@dataclass(frozen=True, slots=True)
class Node:
    """A file (`row` and `about` are set) or a directory (`place` is)."""

    row: Row | None = None
    about: About | None = None
    place: Place | None = None
    relative: bool = False
    """It is, or is in, the directory of keys without a slash that had to give way; nothing can be made there."""

    @property
    def is_dir(self) -> bool:
        return self.place is not None

    @property
    def key(self) -> str:
        assert self.row is not None, "only files have a key"
        return self.row.key

    @property
    def foreign(self) -> bool:
        return self.about is not None and self.about.foreign

    def info(self, path: str) -> FileInfo:
        if self.about is None:
            return FileInfo(path=path + "/", is_dir=True, size=0)
        info = FileInfo(path=path, is_dir=False, size=self.about.size)
        if self.about.modified_at:
            info["modified_at"] = self.about.modified_at
        if self.about.foreign:
            info["read_only"] = True
        return info


class StoreTree:
    """The tree of a namespace."""

    def __init__(self, items: Items) -> None:
        self.items = items

    # -- one path ----------------------------------------------------------------------------------------------

    def find(self, path: AgentPath) -> Node | None:
        """What is at a path."""
        if path == ROOT:
            return Node(place=ROOT_PLACE)
        if self.items.text_only and not is_text(path):
            return None
        found = self._spelled(path)
        if found is not None or not may_be_arranged(path):
            return found
        return self._walked(path) if "%" in path else self._foreign(path)

    def _spelled(self, path: AgentPath) -> Node | None:
        """What has this path as its key, letter for letter, or but for the leading slash."""
        bare = path[1:]
        rows, directories = self.items.look([path, bare], [path + "/", bare + "/"])
        if directories:
            return Node(place=Place(path + "/", bare + "/"))
        rows.sort(key=lambda row: row.key != path)
        return next((node for node in self._files(rows[:1]) if not node.foreign), None)

    def _foreign(self, path: AgentPath) -> Node | None:
        """The value that is no file whose name, with a suffix, is this."""
        key = path.removesuffix(FOREIGN_SUFFIX)
        if key in (ROOT, "") or key.endswith("/"):
            return None  # the name is the suffix alone
        rows, _ = self.items.look([key, key[1:]], [])
        rows.sort(key=lambda row: row.key != key)
        return next((node for node in self._files(rows[:1]) if node.foreign), None)

    def _walked(self, path: AgentPath) -> Node | None:
        found: Node | None = Node(place=ROOT_PLACE)
        for name in path[1:].split("/"):
            if found is None or not found.is_dir:
                return None
            found = self.children(found).get(name)
        return found

    def _files(self, rows: list[Row]) -> list[Node]:
        described = self.items.describe(rows)
        return [Node(row, described[row.key]) for row in rows if row.key in described]

    def new_key(self, path: AgentPath) -> str:
        """The key of a file that is to be made at a path, where there is nothing.

        Raises:
            OSError: ENOTDIR below a file; EACCES where a value is kept under that key that is no file, or only keys
                without a slash can be; EILSEQ for a name that the store can't keep.
        """
        if self.items.text_only and not is_text(path):
            raise oserror(errno.EILSEQ)
        directory, _ = paths.parent_and_name(path)
        while (above := self.find(directory)) is None:
            directory, _ = paths.parent_and_name(directory)
        if above.place is None:
            raise oserror(errno.ENOTDIR)
        if above.place.rooted is None:
            raise oserror(errno.EACCES)
        key = above.place.rooted + path[len(directory) :].lstrip("/")
        if self.items.look([key], [])[0]:
            raise oserror(errno.EACCES)
        return key

    # -- directories -------------------------------------------------------------------------------------------

    def children(self, directory: Node) -> dict[str, Node]:
        """What is in a directory, by name."""
        assert directory.place is not None, "only directories have children"
        place = directory.place
        twins = self.items.twins() if directory.relative or place == ROOT_PLACE else []
        if directory.relative:
            rows = [Row(key) for key in KeyList(twins).level(place.bare or "")]
            rows, _ = self.items.look([row.key for row in rows], []) if rows else ([], [])
        else:
            rows = [row for prefix in place.prefixes for row in self.items.level(prefix)]
        return self._arranged(directory, rows, bool(twins) and not directory.relative)

    def _arranged(self, directory: Node, rows: list[Row], relative: bool) -> dict[str, Node]:
        assert directory.place is not None
        by_key = {row.key: row for row in rows}
        files, directories = split_level(directory.place, by_key)
        described = self.items.describe([by_key[key] for key in files.values()])
        files = {segment: key for segment, key in files.items() if key in described}
        foreign = {key for key in files.values() if described[key].foreign}
        arranged = arrange_level(directory.place, files, directories, foreign, relative=relative)
        return {name: _node(child, by_key, described, directory.relative) for name, child in arranged.items()}

    # -- everything below --------------------------------------------------------------------------------------

    def rows_below(self, directory: Node) -> list[Row]:
        """The keys of all files below a directory, in order."""
        assert directory.place is not None, "only directories have something below them"
        if not directory.relative:
            return [row for prefix in directory.place.prefixes for row in self.items.below(prefix)]
        wanted = KeyList(self.items.twins()).below(directory.place.bare or "")
        return sorted(self.items.look(wanted, [])[0])

    def files_below(
        self, path: AgentPath, directory: Node, rows: list[Row], wanted: set[str] | None = None
    ) -> list[tuple[AgentPath, Node]]:
        """The files below a directory, with their paths, sorted by path.

        Args:
            rows: all of them, from `rows_below`.
            wanted: the keys of those that are asked for; the others' values need not be looked at. None for all.
        """
        by_key = {row.key: row for row in rows}
        asked = by_key.keys() if wanted is None else wanted
        described = self.items.describe([by_key[key] for key in asked])
        in_the_way = [
            key + FOREIGN_SUFFIX for key, about in described.items() if about.foreign and key + FOREIGN_SUFFIX in by_key
        ]
        described |= self.items.describe([by_key[key] for key in in_the_way if key not in described])
        foreign = {key for key, about in described.items() if about.foreign}
        found: list[tuple[AgentPath, Node]] = []
        left = [(path, directory, KeyList(by_key))]
        while left:
            above, node, keys = left.pop()
            assert node.place is not None
            files, directories = split_level(
                node.place, (key for prefix in node.place.prefixes for key in keys.level(prefix))
            )
            twins: list[str] = []
            if node.place == ROOT_PLACE and not node.relative:
                twins = [key for key in keys.below("") if "/" + key in by_key]
            for name, child in arrange_level(node.place, files, directories, foreign, relative=bool(twins)).items():
                inner = paths.join(above, name)
                if child.place is None:
                    if child.key in asked and child.key in described:
                        found.append((inner, _node(child, by_key, described, node.relative)))
                elif len(inner) > PATH_MAX_BYTES:
                    continue  # no path is that long
                elif child.place.rooted is None and not node.relative:
                    left.append((inner, Node(place=child.place, relative=True), KeyList(twins)))
                else:
                    left.append((inner, Node(place=child.place, relative=node.relative), keys))
        return sorted(found, key=lambda item: item[0])


def _node(child: Child, rows: dict[str, Row], described: dict[str, About], relative: bool) -> Node:
    if child.place is not None:
        return Node(place=child.place, relative=relative or child.place.rooted is None)
    return Node(rows[child.key], described[child.key], relative=relative)
