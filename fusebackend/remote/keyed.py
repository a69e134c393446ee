"""Keys that others chose, as file names: thread ids, namespaces, and the paths of files in states and stores; and the
tree that flat keys make (`KeyedTree`).

A database takes any string; a directory entry is 1 to 255 bytes without `/` and NUL, and not `.` or `..`. So one
string becomes one name (`name_of`), and back (`text_of`):

- UTF-8 without `/` and NUL stays as it is;
- `/` is `%2F`, NUL is `%00`, and the names `.` and `..` are `%2E` and `%2E%2E`; the empty string is `%`;
- a `%` that could be taken for one of the escapes on this page is `%25`; any other stays a `%`;
- a name longer than 255 bytes is cut, and ends in `%~` and 20 hex digits of its BLAKE2 digest, by which its key is
  found.

A `KeyedTree` is the tree that flat keys make, which it asks for by ranges. A key that is a path (it starts with `/`,
and every segment is a name that Linux takes) is the file at that path, letter for letter. Only a segment that is no
name is escaped as above: `//x` is `%/x`, `/a/` is `a/%`, `/a/../b` is `a/%2E%2E/b`. A name that is taken gives way,
with `%=` (and `%` more often, if need be) at the end, before a suffix: so does a key without a leading slash if there
is one with it, a file whose key has others below it, and a second file of a key to all first ones. Plain paths never
give way to anything else. A key over 4,096 bytes is listed as far as its directories go: no path is that long.

Where all keys are in memory (`ListedTree`), one with more than `MAX_SEGMENTS` segments is one name at the top, cut as
above: an agent may write 100,000 slashes, each of them a directory.

Nothing is hidden and nothing is shown twice: different keys have different paths.
"""

from __future__ import annotations

import abc
import bisect
import copy
import errno
import hashlib
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import NAME_MAX_BYTES
from fusebackend.text import is_utf8
from fusebackend.volumes.walk import PATH_MAX_BYTES

EMPTY = b"%"
FILE_MARK = b"%="
CUT_MARK = b"%~"
_DIGEST_BYTES = 10

log = logging.getLogger(__name__)

MAX_SEGMENTS = 256
"""Linux opens paths of 4,096 bytes, and people write some 20 segments."""

_ESCAPE_OF = {b"/": b"%2F", b"\0": b"%00"}
_ESCAPED = re.compile(rb"%(?:25|2F|00|2E)")
_NEEDS_ESCAPE = re.compile(rb"[/\0]|%(?=25|2F|00|2E|~|=\Z)")


def name_of(text: str) -> bytes:
    """One string as one name."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return cut_name(text.encode("utf-8", "replace"), text, NAME_MAX_BYTES)
    name = _escape(raw)
    return name if len(name) <= NAME_MAX_BYTES else cut_name(name, text, NAME_MAX_BYTES)


def text_of(name: bytes) -> str:
    """The string that `name_of` makes this name of.

    Raises:
        ValueError: there is none, or the name was cut, or it is marked as in `arranged`.
    """
    raw = b"" if name == EMPTY else _ESCAPED.sub(lambda found: bytes.fromhex(found[0][1:].decode()), name)
    text = raw.decode("utf-8", "surrogateescape")
    if name_of(text) != name:
        raise ValueError(f"{name!r} is the name of no key")
    return text


def _escape(raw: bytes) -> bytes:
    if raw in (b".", b".."):
        return raw.replace(b".", b"%2E")
    if raw == EMPTY:
        return b"%25"
    return _NEEDS_ESCAPE.sub(lambda found: _ESCAPE_OF.get(found[0], b"%25"), raw) or EMPTY


def cut_name(name: bytes, text: str, limit: int) -> bytes:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest().encode()
    kept = name[: limit - len(CUT_MARK) - len(digest)]
    while kept and kept[-1] & 0xC0 == 0x80:  # not through a character …
        kept = kept[:-1]
    if kept and kept[-1] >= 0xC0:
        kept = kept[:-1]
    return kept + CUT_MARK + digest


# -- ranges of keys ----------------------------------------------------------------------------------------------------


def bounds(prefix: str) -> tuple[tuple[str, str | None], ...]:
    """The ranges of keys (from, to but without) that start with a prefix, which ends with `/` or is empty.

    Keys are in the order of their code points, which is that of their bytes in UTF-8. The empty prefix stands for all
    keys without a leading slash.
    """
    if prefix == "":
        return (("", "/"), ("0", None))  # "0" comes after "/"
    return ((prefix, prefix[:-1] + "0"),)


def after(key: str, prefix: str) -> str:
    """The smallest key that may follow in a level, in which the keys of a subdirectory count as one."""
    segment, slash, _ = key[len(prefix) :].partition("/")
    return f"{prefix}{segment}0" if slash else key + "\0"


class KeyList:
    """Keys in memory, in order."""

    def __init__(self, found: Iterable[str]) -> None:
        self._keys = sorted(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        place = bisect.bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def below(self, prefix: str) -> list[str]:
        """All keys that start with a prefix, as `bounds` has it."""
        return [key for first, last in self._ranges(prefix) for key in self._keys[first:last]]

    def any_below(self, prefix: str) -> bool:
        return any(first < last for first, last in self._ranges(prefix))

    def level(self, prefix: str) -> list[str]:
        """The keys below a prefix without a further slash, and one of each subdirectory."""
        found: list[str] = []
        for index, last in self._ranges(prefix):
            while index < last:
                key = self._keys[index]
                found.append(key)
                index = bisect.bisect_left(self._keys, after(key, prefix), index + 1, last)
        return found

    def _ranges(self, prefix: str) -> Iterator[tuple[int, int]]:
        """Where the keys with a prefix begin and end."""
        for start, end in bounds(prefix):
            last = len(self._keys) if end is None else bisect.bisect_left(self._keys, end)
            yield bisect.bisect_left(self._keys, start), last

    def add(self, key: str) -> None:
        if key not in self:
            bisect.insort(self._keys, key)

    def discard(self, key: str) -> None:
        if key in self:
            del self._keys[bisect.bisect_left(self._keys, key)]


# -- keys that are paths as they are -----------------------------------------------------------------------------------


class Prefixes(NamedTuple):
    """A directory: the keys below it start with `rooted` or, without a leading slash, with `bare`."""

    rooted: str = "/"
    bare: str | None = ""

    def below(self, segment: str) -> Prefixes:
        bare = None if self.bare is None else f"{self.bare}{segment}/"
        return Prefixes(f"{self.rooted}{segment}/", None if bare == "/" else bare)  # "/…" has a leading slash

    @property
    def all(self) -> tuple[str, ...]:
        return (self.rooted,) if self.bare is None else (self.rooted, self.bare)

    def rest(self, key: str) -> str | None:
        """The key from here on; None where it is not below."""
        prefix = self.rooted if key.startswith("/") else self.bare
        return None if prefix is None or not key.startswith(prefix) else key[len(prefix) :]


class Keyed(NamedTuple):
    """A file, by its key, or a directory, by its prefixes. A suffix makes one of several files of a key."""

    key: str = ""
    place: Prefixes | None = None
    suffix: str = ""

    @property
    def is_dir(self) -> bool:
        return self.place is not None


ROOT_NODE = Keyed(place=Prefixes())

_ONE = ("",)
"""The suffixes of a key that is one file, by its own name."""

MARK = paths.to_text(FILE_MARK)

_NO_PATH = re.compile(r"\0|/\.{0,2}(?:/|\Z)")


def is_name(segment: str) -> bool:
    """Whether Linux takes this as the name of a file, letter for letter."""
    if segment in ("", ".", "..") or "\0" in segment:
        return False
    try:
        return len(segment) * 3 <= NAME_MAX_BYTES or len(paths.to_name(segment)) <= NAME_MAX_BYTES
    except UnicodeEncodeError:
        return False


def is_path(key: str) -> bool:
    """Whether a key is a path: it starts with `/`, and all its segments are names."""
    if not key.startswith("/") or _NO_PATH.search(key):
        return False
    return len(key) * 3 <= NAME_MAX_BYTES or (len(key) <= PATH_MAX_BYTES and all(map(is_name, key[1:].split("/"))))


def arranged(
    place: Prefixes, keys: Iterable[str], suffixes: Mapping[str, Sequence[str]], taken: Collection[str] = ()
) -> dict[str, Keyed]:
    """The names in a directory, each with its file or subdirectory.

    Args:
        keys: those of the level, and at least one of each subdirectory. Others are passed over.
        suffixes: of the files of the keys, where that is not one by the key's own name; none for a key that is gone.
        taken: names that these give way to.
    """
    directories: set[str] = set()
    files: list[tuple[str, str]] = []
    for key in keys:
        rest = place.rest(key)
        if rest is None:
            continue
        segment, slash, _ = rest.partition("/")
        if slash:
            directories.add(segment)
        else:
            files.append((segment, key))
    files.sort(key=lambda file: (not file[1].startswith("/"), file[0]))
    wanted = [(segment, Keyed(place=place.below(segment))) for segment in sorted(directories)]
    for rank in range(2):  # a key's second file gives way to all first ones
        wanted += [(name, Keyed(key, None, end)) for name, key in files for end in suffixes.get(key, _ONE)[rank:][:1]]
    children: dict[str, Keyed] = {}
    waiting: list[tuple[str, Keyed]] = []
    for segment, node in wanted:
        if not node.suffix and segment not in children and segment not in taken and is_name(segment):
            children[segment] = node
        else:
            waiting.append((segment, node))
    for segment, node in waiting:
        names = (name for name in _names(segment, node.suffix) if name not in children and name not in taken)
        children[next(names)] = node
    return children


def _names(segment: str, suffix: str) -> Iterator[str]:
    """The names to try, the nicest first."""
    base = segment if is_name(segment) else paths.to_text(name_of(segment))
    mark = ""
    while True:
        end = mark + suffix
        whole = base + end
        if len(paths.to_name(whole)) > NAME_MAX_BYTES:
            whole = paths.to_text(cut_name(paths.to_name(base), segment, NAME_MAX_BYTES - len(end))) + end
        yield whole
        mark = mark + "%" if mark else MARK


def may_be_shown_as(path: str, suffixes: Iterable[str]) -> Iterator[str]:
    """The paths of a key of plain segments, which is this path with or without its leading slash."""
    for suffix in suffixes:
        yield path + suffix
        yield path + MARK + suffix


class KeyedTree(abc.ABC):
    """The tree that keys make, where a key that is a path is that path, letter for letter.

    Keys are asked for by `level`, `look` and `suffixes`; only a name that is escaped (it holds a `%`) needs the listing
    of its directory.
    """

    endings: Sequence[str] = ()
    """The suffixes that files may have."""
    text_only = False
    """Keys must be UTF-8."""
    taken: Collection[str] = ()
    """Names in the root that are others', and are not asked for."""

    @abc.abstractmethod
    def level(self, prefix: str) -> Iterable[str]:
        """The keys that start with a prefix and have no `/` after it, and at least one of each subdirectory."""

    @abc.abstractmethod
    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[Collection[str], Collection[str]]:
        """The existing ones among `keys`, and those among `prefixes` that keys start with."""

    def suffixes(self, keys: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """The suffixes of the files of each key, without the keys that are gone."""
        return dict.fromkeys(keys, _ONE)

    # -- one path ----------------------------------------------------------------------------------------------

    def find(self, path: AgentPath) -> Keyed | None:
        """The file or directory at a path."""
        if path == ROOT:
            return ROOT_NODE
        if self.text_only and not is_utf8(path):
            return None
        found = self._spelled(path)
        return self._walked(path) if found is None and "%" in path else found

    def _spelled(self, path: AgentPath) -> Keyed | None:
        """The node at a path that is its key, perhaps with a slash in front or a suffix."""
        stems = self._stems(path)
        there, directories = self.look([key for key, _ in stems], [path + "/", path[1:] + "/"])
        if directories:
            return Keyed(place=Prefixes(path + "/", path[1:] + "/"))
        for key, suffix in stems:
            if key in there and suffix in self.suffixes([key]).get(key, ()):
                return Keyed(key, None, suffix)
        return None

    def _stems(self, path: AgentPath) -> list[tuple[str, str]]:
        """The keys that may be shown at a path, and with which suffix."""
        stems: list[tuple[str, str]] = [(path, "")]
        if "%" not in path:
            stems += [(path.removesuffix(suffix), suffix) for suffix in self.endings if path.endswith(suffix)]
        named = [(stem, suffix) for stem, suffix in stems if is_name(stem.rpartition("/")[2])]  # others are escaped
        return [(key, suffix) for stem, suffix in named for key in (stem, stem[1:])]

    def _walked(self, path: AgentPath) -> Keyed | None:
        found: Keyed | None = ROOT_NODE
        for name in path[1:].split("/"):
            if found is None or not found.is_dir:
                return None
            found = self.children(found).get(name)
        return found

    def new_keys(self, wanted: Sequence[AgentPath], *, vacant: bool = False) -> list[str]:
        """The keys of new files at paths, with a few queries for all of them.

        Args:
            vacant: it is known that nothing is at any of them.

        Raises:
            OSError: EEXIST, something is at one of them; ENOTDIR below a file; EACCES where the key has a value that is
                no file; EILSEQ for a name that keys can't have.
        """
        above: dict[AgentPath, tuple[str, bool]] = {}
        keys: list[str] = []
        doubtful: dict[AgentPath, str] = {}
        for path in wanted:
            if self.text_only and not is_utf8(path):
                raise oserror(errno.EILSEQ)
            directory, name = paths.parent_and_name(path)
            if directory not in above:
                above[directory] = self._prefix(directory)
            prefix, is_new = above[directory]
            keys.append(prefix + name)
            if not is_new:
                doubtful[path] = keys[-1]
        if not (vacant or self._are_vacant(list(doubtful))) and any(self.find(path) is not None for path in doubtful):
            raise oserror(errno.EEXIST)
        if doubtful and self.look(list(doubtful.values()), [])[0]:
            raise oserror(errno.EACCES)
        return keys

    def _prefix(self, directory: AgentPath) -> tuple[str, bool]:
        """The prefix of the keys of new files in a directory, and whether nothing is there yet."""
        there = directory
        while (above := self.find(there)) is None:
            there, _ = paths.parent_and_name(there)
        if above.place is None:
            raise oserror(errno.ENOTDIR)
        missing = directory[len(there) :].lstrip("/")
        return (f"{above.place.rooted}{missing}/", True) if missing else (above.place.rooted, False)

    def _are_vacant(self, asked: Sequence[AgentPath]) -> bool:
        """True if it takes no look at single paths to know that nothing is there."""
        if any("%" in path for path in asked):
            return False
        found = [key for path in asked for key, _ in self._stems(path)]
        return not any(self.look(found, [prefix for path in asked for prefix in (path + "/", path[1:] + "/")]))

    # -- directories -------------------------------------------------------------------------------------------

    def children(self, directory: Keyed) -> dict[str, Keyed]:
        """The entries of a directory, by name."""
        assert directory.place is not None, "only directories have children"
        place = directory.place
        keys = [key for prefix in place.all for key in self.level(prefix)]
        files = [key for key in keys if "/" not in (place.rest(key) or "")]
        known = self.suffixes(files)
        return arranged(place, keys, {key: known.get(key, ()) for key in files}, self._taken(directory))

    def _taken(self, directory: Keyed) -> Collection[str]:
        return self.taken if directory == ROOT_NODE else ()

    def paths_below(
        self, path: AgentPath, directory: Keyed, keys: Collection[str], wanted: Collection[str] | None = None
    ) -> list[tuple[AgentPath, Keyed]]:
        """The files below a directory, with their paths, sorted by path.

        Args:
            keys: all that are below it.
            wanted: those of the wanted files: others need not be looked at. None for all.
        """
        assert directory.place is not None, "only directories have something below them"
        asked = list(keys if wanted is None else wanted)
        suffixes = self.suffixes(asked)
        above, taken = directories_of(keys), self._taken(directory)
        start = len(directory.place.rooted)
        found: list[tuple[AgentPath, Keyed]] = []
        others: list[str] = []
        for key in asked:
            known = suffixes.get(key, ())
            gives_way = taken and key[1:].partition("/")[0] in taken
            if known == _ONE and key not in above and not gives_way and is_path(key):
                found.append((AgentPath(f"{'' if path == ROOT else path}/{key[start:]}"), Keyed(key)))
            elif known:
                others.append(key)
        if others:
            found += self._arranged_below(path, directory, KeyList(keys), KeyList(others), suffixes)
        return sorted(found)

    def _arranged_below(
        self,
        path: AgentPath,
        directory: Keyed,
        keys: KeyList,
        others: KeyList,
        suffixes: Mapping[str, Sequence[str]],
    ) -> Iterator[tuple[AgentPath, Keyed]]:
        """The files of `others`, which need not be where their keys are."""
        in_the_way = {
            other
            for key in others for suffix in suffixes[key] if suffix
            for other in _spellings(key + suffix) if other not in suffixes and other in keys
        }  # fmt: skip
        suffixes = {**suffixes, **dict.fromkeys(in_the_way, ()), **self.suffixes(in_the_way)}
        left = [(path, directory)]
        while left:
            above, node = left.pop()
            assert node.place is not None
            level = [key for prefix in node.place.all for key in keys.level(prefix)]
            for name, child in arranged(node.place, level, suffixes, self._taken(node)).items():
                inner = paths.join(above, name)
                if child.place is None:
                    if child.key in others:
                        yield inner, child
                elif len(inner) <= PATH_MAX_BYTES and any(map(others.any_below, child.place.all)):  # else no path
                    left.append((inner, child))


def directories_of(keys: Iterable[str]) -> set[str]:
    """All directories of keys, by the keys that they would have as files."""
    found: set[str] = set()
    for key in keys:
        rooted = key if key.startswith("/") else "/" + key
        directory = rooted[: PATH_MAX_BYTES + 1].rpartition("/")[0]
        while directory not in found:
            found.add(directory)
            directory = directory.rpartition("/")[0]
    return found


def _spellings(key: str) -> tuple[str, str]:
    """A key with a leading slash, and without it."""
    return (key, key[1:]) if key.startswith("/") else ("/" + key, key)


# -- keys in memory ----------------------------------------------------------------------------------------------------


class ListedTree(KeyedTree):
    """The tree of keys that are all in memory: of a state, of a thread's files."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._deep: dict[str, str] = {}  # by what is shown in their place
        self._moved: set[str] | None = None  # those that are not the paths of their files; found by the first search
        self._keys = KeyList(map(self._listed, keys))

    def copy(self) -> Self:
        """The same keys, to be changed."""
        made = copy.copy(self)
        made._deep, made._keys = dict(self._deep), KeyList(self._keys)
        return made

    def add(self, key: str) -> None:
        """Show one more key."""
        self._keys.add(self._listed(key))
        self._moved = None

    def discard(self, key: str) -> None:
        """Show this key no more."""
        self._keys.discard(self._listed(key))
        self._moved = None

    def _listed(self, key: str) -> str:
        if key.count("/", 1) < MAX_SEGMENTS:
            return key
        name = cut_name(_escape(key[:NAME_MAX_BYTES].encode("utf-8", "replace")), key, NAME_MAX_BYTES)
        listed = "/" + paths.to_text(name)
        if listed not in self._deep:
            log.warning("a path of %d segments is shown as one name: %r…", key.count("/", 1) + 1, key[:60])
        self._deep[listed] = key
        return listed

    def level(self, prefix: str) -> Iterable[str]:
        return self._keys.level(prefix)

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[Collection[str], Collection[str]]:
        return [key for key in keys if key in self._keys], list(filter(self._keys.any_below, prefixes))

    def key_of(self, node: Keyed) -> str:
        """The key of a file that was found."""
        return self._deep.get(node.key, node.key)

    def key(self, path: AgentPath) -> str | None:
        """The key of the file at a path; None where there is no file. A file that is a directory as well is found by
        its key, too, as deepagents' backends find it."""
        node = self.find(path)
        if node is not None and not node.is_dir:
            return self.key_of(node)
        return path if path in self._keys else None

    def require_place(self, path: AgentPath) -> None:
        """EISDIR, ENOTDIR, ENAMETOOLONG where a path has no place for a new file. Its key is the path."""
        if self.find(path) is not None:
            raise oserror(errno.EISDIR)
        if path.count("/", 1) >= MAX_SEGMENTS:
            raise oserror(errno.ENAMETOOLONG)
        self._prefix(paths.parent_and_name(path)[0])

    def below(self, path: AgentPath, node: Keyed | None) -> list[tuple[AgentPath, str]]:
        """The file at a path, or all below the directory there, sorted by path, with their keys."""
        if node is None or node.place is None:
            return [] if node is None else [(path, self.key_of(node))]
        if self._moved is None:
            directories = directories_of(self._keys)
            self._moved = {key for key in self._keys if key in directories or not is_path(key)}
        keys = [key for prefix in node.place.all for key in self._keys.below(prefix)]
        above, start = "" if path == ROOT else path, len(node.place.rooted) - 1
        found = [(AgentPath(above + key[start:]), self._deep.get(key, key)) for key in keys if key not in self._moved]
        if moved := self._moved.intersection(keys):
            found += [(place, self.key_of(file)) for place, file in self.paths_below(path, node, keys, moved)]
            found.sort()
        return found

    def all(self) -> list[tuple[AgentPath, str]]:
        """All files, sorted by path, with their keys."""
        return self.below(ROOT, ROOT_NODE)
