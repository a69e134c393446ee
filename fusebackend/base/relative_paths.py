"""Paths in a tree: relative, of bytes, empty for the root. Those of agents are in `paths.py`. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator


def join(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def split(path: bytes) -> tuple[bytes, bytes]:
    """Split a path into its directory and its name."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def is_below(path: bytes, directory: bytes) -> bool:
    """Return True for a path inside a directory, not for the directory itself."""
    return not directory or path.startswith(directory + b"/")


def above(path: bytes) -> Iterator[bytes]:
    """The directories above a path, the nearest first and the root at last; none above the root."""
    while path:
        path = split(path)[0]
        yield path


def tops(paths: Collection[bytes]) -> list[bytes]:
    """Return the paths that lie in no other one, sorted."""
    return sorted(path for path in set(paths) if not any(each in paths for each in above(path)))
