"""`StoreTree`: the keys of a store as a tree of paths.

A key that is a path (it starts with `/`, and every segment is a name that Linux takes) is the file at that path, letter
for letter. A store takes other keys too, and other values; none is hidden, and no two share a place:

- a segment that is no name (empty, `.`, `..`, with a NUL, over 255 bytes) is escaped as in `remote/keys.py`: `//x` is
  `/%/x`, `/a/` is `/a/%`, `/a/../b` is `/a/%2E%2E/b`, the empty key is `/%`;
- a key without a leading slash is shown as if it had one; where there is a key with it as well, it is below `/%.`;
- a key that has other keys below it is a directory and a file: the directory keeps the name, the file's ends in `%=`;
- a value that is no file is `NAME.json`, and `NAME.md` as well where it is one long text; both can be read only;
- a name that is taken even so gives way, with `%=` (and `%` more often, if need be) at the end, or before `.json` and
  `.md`. Plain paths never give way to anything else, and a `.md` gives way to all others.

A key over 4,096 bytes is listed as far as its directories go, and can't be opened: no path is that long. Names of files
are text with surrogateescape, as in agent paths.

A path that is a key is found by that key alone; only names that are escaped (they hold a `%`) need the listing of their
directory.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fusebackend.backends.store.items import Items, KeyList, Row, is_text
from fusebackend.backends.store.values import About, Form
from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import NAME_MAX_BYTES, FileInfo
from fusebackend.remote import keys
from fusebackend.volumes.walk import PATH_MAX_BYTES

FILE_MARK = paths.to_text(keys.FILE_MARK)
RELATIVE = paths.to_text(keys.RELATIVE)

_COMPUTED = (Form.JSON, Form.TEXT)


class Place(NamedTuple):
    """A directory: the keys below it start with `rooted`, or with `bare`."""

    rooted: str | None
    bare: str | None

    def below(self, segment: str) -> Place:
        rooted = None if self.rooted is None else f"{self.rooted}{segment}/"
        bare = None if self.bare is None else f"{self.bare}{segment}/"
        return Place(rooted, None if bare == "/" else bare)  # a key that starts with a slash is not bare

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(prefix for prefix in self if prefix is not None)


ROOT_PLACE = Place("/", "")
RELATIVE_PLACE = Place(None, "")


class Child(NamedTuple):
    """The file (by its key) or directory of a name."""

    key: str
    place: Place | None = None
    form: Form = Form.FILE


def is_name(segment: str) -> bool:
    """Whether Linux takes this as the name of a file, letter for letter."""
    if segment in ("", ".", "..") or "\0" in segment:
        return False
    try:
        return len(segment) * 3 <= NAME_MAX_BYTES or len(paths.to_name(segment)) <= NAME_MAX_BYTES
    except UnicodeEncodeError:
        return False


def split_level(place: Place, found: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """The keys of a level as segment → key of files, and segments of directories. Rooted keys win over bare ones.

    `found` may hold keys further down, and those of other places, which are passed over.
    """
    files: dict[str, str] = {}
    bare: dict[str, str] = {}
    directories: set[str] = set()
    for key in found:
        rooted = key.startswith("/")
        prefix = place.rooted if rooted else place.bare
        if prefix is None or not key.startswith(prefix):
            continue
        segment, slash, _ = key[len(prefix) :].partition("/")
        if slash:
            directories.add(segment)
        else:
            (files if rooted else bare)[segment] = key
    return {**bare, **files}, directories


def arrange_level(
    place: Place,
    files: dict[str, str],
    directories: Iterable[str],
    foreign: Mapping[str, tuple[Form, ...]],
    *,
    relative: bool = False,
) -> dict[str, Child]:
    """The names in a directory.

    Args:
        files, directories: as `split_level` gives them.
        foreign: the keys whose values are no files, and the forms of each value.
        relative: there are keys to be shown below `RELATIVE`.
    """
    children: dict[str, Child] = {}
    waiting: list[tuple[str, str, bool, Child]] = []  # segment, suffix, whether it must be marked, child
    texts: list[tuple[str, str, bool, Child]] = []
    subdirectories = set(directories)
    for segment in sorted(subdirectories):
        child = Child("", place.below(segment))
        if is_name(segment):
            children[segment] = child
        else:
            waiting.append((segment, "", False, child))
    for segment in sorted(files):
        key = files[segment]
        if key in foreign:
            for form in foreign[key]:
                child = Child(key, None, form)
                (texts if form is Form.TEXT else waiting).append((segment, form.value, False, child))
        elif segment in subdirectories:
            waiting.append((segment, "", True, Child(key)))
        elif is_name(segment):
            children[segment] = Child(key)
        else:
            waiting.append((segment, "", False, Child(key)))
    if relative:
        children[next(name for name in _wanted(RELATIVE, "", False) if name not in children)] = Child(
            "", RELATIVE_PLACE
        )
    for segment, suffix, marked, child in waiting + texts:
        children[next(name for name in _wanted(segment, suffix, marked) if name not in children)] = child
    return children


def _wanted(segment: str, suffix: str, marked: bool) -> Iterator[str]:
    """The names to try, the nicest first."""
    base = segment if is_name(segment) else paths.to_text(keys.name_of(segment))
    if not marked:
        yield _fitting(base, segment, suffix)
    mark = FILE_MARK
    while True:
        yield _fitting(base, segment, mark + suffix)
        mark += "%"


def _fitting(base: str, segment: str, suffix: str) -> str:
    whole = base + suffix
    if len(paths.to_name(whole)) <= NAME_MAX_BYTES:
        return whole
    return paths.to_text(keys.cut_name(paths.to_name(base), segment, NAME_MAX_BYTES - len(suffix))) + suffix


def may_be_shown_as(path: str, forms: Iterable[Form]) -> Iterator[str]:
    """The paths of a key of plain segments, which is this path with or without its leading slash."""
    for form in forms:
        yield path + form.value
        yield path + FILE_MARK + form.value


@dataclass(frozen=True, slots=True)
class Node:
    """A file (`row` and `about` are set) or a directory (`place` is)."""

    row: Row | None = None
    about: About | None = None
    place: Place | None = None
    relative: bool = False
    """It is, or is in, the directory of keys without a slash that had to give way; nothing can be made there."""
    form: Form = Form.FILE

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
        info = FileInfo(path=path, is_dir=False, size=self.about.size_of(self.form))
        if self.about.modified_at:
            info["modified_at"] = self.about.modified_at
        if self.about.foreign:
            info["read_only"] = True
        return info


class _Room(NamedTuple):
    """A directory, where new files shall be."""

    prefix: str
    """Of their keys."""
    is_new: bool
    """There are no keys below it yet."""


class StoreTree:
    """The tree of a namespace."""

    def __init__(self, items: Items) -> None:
        self.items = items

    # -- one path ----------------------------------------------------------------------------------------------

    def find(self, path: AgentPath) -> Node | None:
        """The file or directory at a path."""
        if path == ROOT:
            return Node(place=ROOT_PLACE)
        if self.items.text_only and not is_text(path):
            return None
        found = self._spelled(path)
        return self._walked(path) if found is None and "%" in path else found

    def _spelled(self, path: AgentPath) -> Node | None:
        """The node at a path that is its key, perhaps with a slash in front or the suffix of a form."""
        stems = _stems(path)
        asked = [key for stem, _ in stems for key in (stem, stem[1:])]
        rows, directories = self.items.look(asked, [path + "/", path[1:] + "/"])
        if directories:
            return Node(place=Place(path + "/", path[1:] + "/"))
        there = {row.key: row for row in rows}
        for stem, form in stems:
            row = there.get(stem) or there.get(stem[1:])
            described = self.items.describe([row]) if row is not None else {}
            for key, about in described.items():
                if form in about.forms:
                    return Node(there[key], about, form=form)
        return None

    def _walked(self, path: AgentPath) -> Node | None:
        found: Node | None = Node(place=ROOT_PLACE)
        for name in path[1:].split("/"):
            if found is None or not found.is_dir:
                return None
            found = self.children(found).get(name)
        return found

    def new_key(self, path: AgentPath) -> str:
        """The key of a new file at a path.

        Raises:
            OSError: ENOTDIR below a file; EACCES where the key has a value that is no file, or must not have a slash;
                EILSEQ for a name that the store can't have.
        """
        (key,) = self._keys([path], {})
        if self.items.look([key], [])[0]:
            raise oserror(errno.EACCES)
        return key

    def new_keys(self, wanted: Sequence[AgentPath]) -> list[str]:
        """The keys of new files at paths where nothing is, with a few queries for all of them.

        Raises:
            OSError: EEXIST, something is at one of them; as `new_key`.
        """
        rooms: dict[AgentPath, _Room] = {}
        keys = self._keys(wanted, rooms)
        doubtful = [number for number, path in enumerate(wanted) if not rooms[paths.parent_and_name(path)[0]].is_new]
        asked = [wanted[number] for number in doubtful]
        if not self._are_vacant(asked) and any(self.find(path) is not None for path in asked):
            raise oserror(errno.EEXIST)
        if doubtful and self.items.look([keys[number] for number in doubtful], [])[0]:
            raise oserror(errno.EACCES)
        return keys

    def _keys(self, wanted: Sequence[AgentPath], rooms: dict[AgentPath, _Room]) -> list[str]:
        found = []
        for path in wanted:
            if self.items.text_only and not is_text(path):
                raise oserror(errno.EILSEQ)
            directory, name = paths.parent_and_name(path)
            if directory not in rooms:
                rooms[directory] = self._room(directory)
            found.append(rooms[directory].prefix + name)
        return found

    def _room(self, directory: AgentPath) -> _Room:
        there = directory
        while (above := self.find(there)) is None:
            there, _ = paths.parent_and_name(there)
        if above.place is None:
            raise oserror(errno.ENOTDIR)
        if above.place.rooted is None:
            raise oserror(errno.EACCES)
        missing = directory[len(there) :].lstrip("/")
        return _Room(f"{above.place.rooted}{missing}/" if missing else above.place.rooted, bool(missing))

    def _are_vacant(self, asked: Sequence[AgentPath]) -> bool:
        """True if it takes no look at single paths to know that nothing is there."""
        if any("%" in path for path in asked):
            return False
        found = [key for path in asked for stem, _ in _stems(path) for key in (stem, stem[1:])]
        return not any(self.items.look(found, [prefix for path in asked for prefix in (path + "/", path[1:] + "/")]))

    # -- directories -------------------------------------------------------------------------------------------

    def children(self, directory: Node) -> dict[str, Node]:
        """The entries of a directory, by name."""
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
        foreign = {key: described[key].forms for key in files.values() if described[key].foreign}
        arranged = arrange_level(directory.place, files, directories, foreign, relative=relative)
        return {name: _node(child, by_key, described, directory.relative) for name, child in arranged.items()}

    # -- whole subtrees --------------------------------------------------------------------------------------

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
            wanted: the keys of the wanted files: other values need not be read. None for all.
        """
        by_key = {row.key: row for row in rows}
        asked = by_key.keys() if wanted is None else wanted
        described = self.items.describe([by_key[key] for key in asked])
        in_the_way = {
            by_key[other]
            for key, about in described.items() if about.foreign
            for form in about.forms
            for other in _spellings(key + form.value) if other in by_key and other not in described
        }  # fmt: skip
        described |= self.items.describe(sorted(in_the_way))
        foreign = {key: about.forms for key, about in described.items() if about.foreign}
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


def _stems(path: AgentPath) -> list[tuple[str, Form]]:
    """The keys, as paths, that may be shown at a path, and in which form."""
    stems: list[tuple[str, Form]] = [(path, Form.FILE)]
    if "%" not in path:
        stems += [(path.removesuffix(form.value), form) for form in _COMPUTED if path.endswith(form.value)]
    return [(stem, form) for stem, form in stems if is_name(stem.rpartition("/")[2])]  # others are escaped


def _spellings(key: str) -> tuple[str, str]:
    """A key with a leading slash, and without it."""
    return (key, key[1:]) if key.startswith("/") else ("/" + key, key)


def _node(child: Child, rows: dict[str, Row], described: dict[str, About], relative: bool) -> Node:
    if child.place is not None:
        return Node(place=child.place, relative=relative or child.place.rooted is None)
    return Node(rows[child.key], described[child.key], relative=relative, form=child.form)
