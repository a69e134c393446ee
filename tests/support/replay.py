"""A model of names that follows `FileEvent`s, and fails on an impossible one: sent twice, or out of order."""

from __future__ import annotations

from fusebackend.protocol import FileEvent


class Replay:
    """The tree as a watcher knows it: path without its last `/` → whether it is a directory."""

    def __init__(self, tree: dict[str, bool] | None = None) -> None:
        self.tree = dict(tree or {})
        self.touched: list[tuple[str, str]] = []  # (kind, path) of events that change no name

    def apply(self, event: FileEvent) -> None:
        path = event.path.rstrip("/")
        assert event.path.endswith("/") == event.is_dir, event
        assert event.time_ns > 0
        if event.kind == "created":
            assert path not in self.tree, f"told twice: {event}"
            self._require_directory_of(path, event)
            self.tree[path] = event.is_dir
        elif event.kind == "deleted":
            self._require(path, event)
            self._take(path)
        elif event.kind == "moved":
            assert event.moved_from is not None
            old = event.moved_from.rstrip("/")
            self._require(old, event)
            moved = self._take(old)
            replaced = self._take(path)
            assert len(replaced) <= 1, f"a directory that was not empty is replaced: {event}"
            self._require_directory_of(path, event)
            self._put(moved, path)
        elif event.kind == "exchanged":
            assert event.moved_from is not None
            other = event.moved_from.rstrip("/")
            one, two = self._take(path), self._take(other)
            assert one and two, event
            self._put(one, other)
            self._put(two, path)
            self._require(path, event)
        elif event.kind in ("modified", "attributes", "unknown"):
            # `unknown`, of the root: bytes of a file whose present name was not known. Had names changed, too, the tree
            # would not be what it is in the end.
            if path:
                self._require(path, event)
            self.touched.append((event.kind, event.path))
        else:
            raise AssertionError(f"a watcher can't follow {event}")

    def _require(self, path: str, event: FileEvent) -> None:
        assert path in self.tree, f"not there: {event}"
        assert self.tree[path] == event.is_dir, event

    def _require_directory_of(self, path: str, event: FileEvent) -> None:
        above = path.rpartition("/")[0]
        assert above == "" or self.tree.get(above), f"in no directory: {event}"

    def _take(self, top: str) -> dict[str, bool]:
        """Remove a subtree and return it, with paths relative to its top."""
        taken = {path: kind for path, kind in self.tree.items() if path == top or path.startswith(top + "/")}
        for path in taken:
            del self.tree[path]
        return {path[len(top) :]: kind for path, kind in taken.items()}

    def _put(self, tree: dict[str, bool], top: str) -> None:
        self.tree.update({top + path: kind for path, kind in tree.items()})
