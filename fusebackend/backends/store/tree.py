"""`StoreTree`: the keys of a store as a tree of paths, by the rule of `remote/keyed.py`.

A store takes values that are no files: such a key is `NAME.json`, and `NAME.md` as well where the value is one long
text; both can be read only. Names of files are text with surrogateescape, as in agent paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusebackend.backends.store.items import Items, Row
from fusebackend.backends.store.values import About, Form
from fusebackend.protocol import FileInfo
from fusebackend.remote.keyed import Keyed, KeyedTree


class StoreTree(KeyedTree):
    """The tree of a namespace, for one verb."""

    endings = (Form.JSON.value, Form.TEXT.value)

    def __init__(self, items: Items) -> None:
        self.items = items
        self.text_only = items.text_only
        self._rows: dict[str, Row] = {}
        self._about: dict[str, About] = {}

    def level(self, prefix: str) -> Iterable[str]:
        return self._seen(self.items.level(prefix))

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> tuple[dict[str, Row], list[str]]:
        rows, directories = self.items.look(keys, prefixes)
        return self._seen(rows), directories

    def suffixes(self, keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
        described = self.items.describe([self._rows[key] for key in keys])
        self._about.update(described)
        return {key: about.suffixes for key, about in described.items()}

    def _seen(self, rows: list[Row]) -> dict[str, Row]:
        found = {row.key: row for row in rows}
        self._rows.update(found)
        return found

    def rows_below(self, directory: Keyed) -> list[Row]:
        """The keys of all files below a directory, in order."""
        assert directory.place is not None, "only directories have something below them"
        rows = [row for prefix in directory.place.all for row in self.items.below(prefix)]
        self._seen(rows)
        return rows

    def info(self, path: str, key: str, suffix: str) -> FileInfo:
        """A file that was found in this tree."""
        about = self._about[key]
        info = FileInfo(path=path, is_dir=False, size=about.size_of(suffix))
        if about.modified_at:
            info["modified_at"] = about.modified_at
        if about.foreign:
            info["read_only"] = True
        return info
